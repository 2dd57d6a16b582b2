//! Runs conversations: checks what arrives against the script, or writes it down.
//!
//! Checking never waits for time to pass. An expected line waits for its event, up to a deadline;
//! that nothing else came is asked with a round trip through every queue and channel at the end.
//! Recording does wait for silence: its result is looked at by people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::peer::{Connect, Event, Peer, frame};
use crate::record;
use crate::script::{Action, Block, Conversation, Expect, Script, Send, Target, What};
use crate::text::{Call, Term, Vars};
use crate::value::Value;
use crate::wire::{encode_call, encode_content};

/// How scripts are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the broker is, most special first, such as `leveret`, `3.10`.
    pub dialects: Vec<String>,
    /// Longest wait for one expected line.
    pub deadline: Duration,
    /// Rewrite expected lines that differ; how long silence lasts.
    pub record: Option<Duration>,
}

/// What became of a conversation.
#[derive(Debug)]
pub enum Outcome {
    /// All lines fit.
    Passed,
    /// The first line that did not.
    Failed(String),
    /// Does not apply.
    Skipped(String),
}

/// What happened to a script.
#[derive(Debug, Default)]
pub struct Report {
    /// Conversations by name.
    pub outcomes: Vec<(String, Outcome)>,
    /// The script's new text, when recording changed it.
    pub rewritten: Option<String>,
}

/// Runs every conversation whose name contains `filter`.
pub fn run(script: &Script, broker: &mut dyn Connect, settings: &Settings, filter: &str) -> Report {
    let mut report = Report::default();
    let mut edits = Vec::new();
    for conversation in script.conversations.iter().filter(|c| c.name.contains(filter)) {
        let outcome = match conversation.skipped(&settings.dialects) {
            Some(why) => Outcome::Skipped(why.to_owned()),
            None => {
                let mut runner = Runner::new(broker, settings);
                runner.clean(conversation);
                let result = runner.conversation(conversation, &mut edits);
                runner.part();
                runner.clean(conversation);
                match result {
                    Ok(()) => Outcome::Passed,
                    Err((line, why)) => {
                        Outcome::Failed(format!("{}:{}: {why}", script.path, line + 1))
                    }
                }
            }
        };
        report.outcomes.push((conversation.name.clone(), outcome));
    }
    if !edits.is_empty() {
        report.rewritten = Some(record::apply(&script.lines, edits));
    }
    report
}

/// A line, counted from 0, and what is wrong there.
type Wrong = (usize, String);

struct Runner<'a> {
    broker: &'a mut dyn Connect,
    settings: &'a Settings,
    peers: BTreeMap<String, Peer>,
    /// The first connection of the conversation.
    first: String,
    vars: Vars,
    is_manual: bool,
    /// Publishes that were confirmed, by connection and channel, to make `multiple` explicit.
    confirmed: BTreeMap<(String, u16), BTreeSet<u64>>,
}

impl<'a> Runner<'a> {
    fn new(broker: &'a mut dyn Connect, settings: &'a Settings) -> Self {
        Self {
            broker,
            settings,
            peers: BTreeMap::new(),
            first: "a".to_owned(),
            vars: Vars::new(),
            is_manual: false,
            confirmed: BTreeMap::new(),
        }
    }

    fn conversation(
        &mut self,
        conversation: &Conversation,
        edits: &mut Vec<record::Edit>,
    ) -> Result<(), Wrong> {
        if !conversation.is_bare() {
            let call = Call {
                name: "connect".to_owned(),
                args: Vec::new(),
                named: Vec::new(),
                content: None,
            };
            self.log_in("a", &call).map_err(|e| (conversation.line, e))?;
        }
        let mut dead_line = conversation.line;
        for block in &conversation.blocks {
            dead_line = block.line;
            let expects = block.expects_for(&self.settings.dialects);
            if let Action::Send(send) = &block.action
                && send.is_poll
            {
                self.poll(send, &expects).map_err(|e| (block.line, e))?;
                continue;
            }
            self.act(&block.action).map_err(|e| (block.line, e))?;
            if matches!(&block.action, Action::Send(Send { is_held: true, .. })) {
                continue;
            }
            match self.settings.record {
                Some(quiet) => self.record(block, &expects, quiet, edits)?,
                None => self.check(&expects)?,
            }
        }
        if self.settings.record.is_none() {
            self.nothing_more(conversation).map_err(|e| (dead_line, e))?;
        }
        Ok(())
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Begin => {}
            Action::Connect(name, call) => self.log_in(name, call)?,
            Action::Tcp(name) => self.open(name)?,
            Action::Hang(name) => {
                self.peers.remove(name);
            }
            Action::Manual(_) => {
                self.is_manual = true;
                self.peers.values_mut().for_each(|p| p.is_manual = true);
            }
            Action::Sync(target, queues) => self.sync(target, queues)?,
            Action::Send(send) => self.send(send)?,
        }
        Ok(())
    }

    fn open(&mut self, name: &str) -> Result<(), String> {
        let stream = self.broker.connect().map_err(|e| format!("connect: {e}"))?;
        let mut peer = Peer::new(stream);
        peer.is_manual = self.is_manual;
        if self.peers.is_empty() {
            self.first = name.to_owned();
        }
        self.peers.insert(name.to_owned(), peer);
        Ok(())
    }

    /// Logs in as the options say and opens channel 1.
    fn log_in(&mut self, name: &str, options: &Call) -> Result<(), String> {
        let option = |key: &str, default: &str| {
            let item = options.named.iter().find(|(n, _)| n == key).map(|(_, item)| item);
            match item {
                Some(Term::Text(text)) => String::from_utf8_lossy(text).into_owned(),
                Some(Term::Number(n)) => n.to_string(),
                _ => default.to_owned(),
            }
        };
        let has_word = |word: &str| options.args.contains(&Term::Text(word.as_bytes().to_vec()));
        self.open(name)?;
        let deadline = self.settings.deadline;
        let peer = self.peers.get_mut(name).ok_or("no such connection")?;
        peer.send(b"AMQP\0\0\x09\x01");
        await_method(peer, 0, "connection.start", deadline)?;
        let properties = match options.named.iter().find(|(n, _)| n == "properties") {
            Some((_, item)) => item.clone(),
            None => capabilities(),
        };
        let secret = format!("\0{}\0{}", option("user", "guest"), option("pass", "guest"));
        let mut call = Call::parse("connection.start-ok")?;
        call.args = vec![
            properties,
            Term::Text(b"PLAIN".to_vec()),
            Term::Text(secret.into_bytes()),
            Term::Text(b"en_US".to_vec()),
        ];
        send_call(peer, 0, &call)?;
        let tune = await_method(peer, 0, "connection.tune", deadline)?;
        let offered = |field: &str| tune.number(field).unwrap_or(0).to_string();
        let channel_max = option("channel-max", &offered("channel-max"));
        let frame_max = option("frame-max", &offered("frame-max"));
        let heartbeat = option("heartbeat", "0");
        peer.channel_max = channel_max.parse().unwrap_or(0);
        if let Ok(max @ 1..) = frame_max.parse() {
            peer.frame_max = max;
        }
        let tune_ok = format!("connection.tune-ok {channel_max} {frame_max} {heartbeat}");
        send_call(peer, 0, &Call::parse(&tune_ok)?)?;
        let mut open = Call::parse("connection.open")?;
        open.args = vec![Term::Text(option("vhost", "/").into_bytes())];
        send_call(peer, 0, &open)?;
        await_method(peer, 0, "connection.open-ok", deadline)?;
        if !has_word("no-channel") {
            send_call(peer, 1, &Call::parse("channel.open")?)?;
            await_method(peer, 1, "channel.open-ok", deadline)?;
        }
        Ok(())
    }

    fn name_of(&self, target: &Target) -> String {
        if target.connection.is_empty() { self.first.clone() } else { target.connection.clone() }
    }

    fn peer(&mut self, target: &Target) -> Result<&mut Peer, String> {
        let name = self.name_of(target);
        self.peers.get_mut(&name).ok_or_else(|| format!("no connection {name}"))
    }

    fn send(&mut self, send: &Send) -> Result<(), String> {
        let mut bytes = Vec::new();
        for i in 1..=send.repeat {
            self.vars.insert("i".to_owned(), Value::Int('I', i as i64));
            let channel = match send.target.is_counted {
                true => i as u16,
                false => send.target.channel.unwrap_or(1),
            };
            match &send.what {
                What::Bytes(raw) => bytes.extend_from_slice(raw),
                What::Frame(kind, payload) => bytes.extend(frame(*kind, channel, payload)),
                What::Call(call) => {
                    let frame_max = self.peer(&send.target)?.frame_max;
                    bytes.extend(encode(call, channel, &self.vars, frame_max)?);
                }
            }
        }
        let peer = self.peer(&send.target)?;
        if let What::Call(call) = &send.what
            && call.name == "connection.tune-ok"
            && let Some(Term::Number(max @ 1..)) = call.args.get(1)
        {
            peer.frame_max = *max as u32;
        }
        if send.is_held {
            peer.hold(&bytes);
        } else {
            peer.send(&bytes);
        }
        Ok(())
    }

    /// Sends again until the answer fits; what came before is forgotten.
    fn poll(&mut self, send: &Send, expects: &[&Expect]) -> Result<(), String> {
        let channel = send.target.channel.unwrap_or(1);
        let mut waited = Duration::ZERO;
        let step = Duration::from_millis(20);
        loop {
            self.send(send)?;
            self.sync(&send.target, &[])?;
            let vars = self.vars.clone();
            match self.fit(expects, true) {
                Ok(()) => return Ok(()),
                Err((_, why)) if waited > self.settings.deadline => return Err(why),
                Err(_) => {}
            }
            self.vars = vars;
            let peer = self.peer(&send.target)?;
            peer.drain();
            if peer.has_ended() {
                return Err(format!("channel {channel} is gone while polling"));
            }
            peer.pump(step);
            waited += step;
        }
    }

    /// A round trip through queues, each on a spare channel, and through one channel.
    fn sync(&mut self, target: &Target, queues: &[String]) -> Result<(), String> {
        let deadline = self.settings.deadline;
        let channel = target.channel.unwrap_or(1);
        let peer = self.peer(target)?;
        for queue in queues {
            if let Ok(spare) = open_spare(peer, deadline) {
                let mut call = Call::parse("queue.declare passive")?;
                call.args.push(Term::Text(queue.clone().into_bytes()));
                send_call(peer, spare, &call)?;
                let answer = await_any(peer, spare, deadline)?;
                if !matches!(&answer, Event::Method(m) if m.method.name == "channel.close") {
                    send_call(peer, spare, &Call::parse("channel.close 200 \"\" 0 0")?)?;
                    await_method(peer, spare, "channel.close-ok", deadline)?;
                }
            }
        }
        let flow = Call::parse("channel.flow active")?;
        send_call(peer, channel, &flow)?;
        let mut kept = Vec::new();
        loop {
            match await_any(peer, channel, deadline) {
                Ok(Event::Method(m)) if m.method.name == "channel.flow-ok" => break,
                Ok(event) => {
                    let is_last = matches!(&event, Event::End)
                        || matches!(&event, Event::Method(m) if m.method.name == "channel.close");
                    kept.push(event);
                    if is_last {
                        break;
                    }
                }
                Err(e) => return Err(format!("no round trip: {e}")),
            }
        }
        peer.put_back(channel, kept);
        Ok(())
    }

    fn check(&mut self, expects: &[&Expect]) -> Result<(), Wrong> {
        self.fit(expects, false)
    }

    /// Takes the expected events off the inboxes. With `at_once` all must be there already, and
    /// nothing else.
    fn fit(&mut self, expects: &[&Expect], at_once: bool) -> Result<(), Wrong> {
        let mut rest = expects;
        while let Some(first) = rest.first() {
            if first.is_unordered {
                let end = rest.iter().position(|e| !e.is_unordered).unwrap_or(rest.len());
                let (group, after) = rest.split_at(end);
                self.fit_unordered(group, at_once)?;
                rest = after;
            } else {
                for i in 1..=first.repeat {
                    let at = (first.line, i);
                    self.fit_one(first, at.1, at_once).map_err(|e| (at.0, e))?;
                }
                rest = &rest[1..];
            }
        }
        if at_once {
            let line = expects.last().map_or(0, |e| e.line);
            for (name, peer) in &self.peers {
                if peer.waiting() > 0 {
                    return Err((line, format!("more arrived on {name}")));
                }
            }
        }
        Ok(())
    }

    fn channel_of(expect: &Expect, i: u64) -> u16 {
        if expect.target.is_counted { i as u16 } else { expect.target.channel.unwrap_or(1) }
    }

    fn fit_one(&mut self, expect: &Expect, i: u64, at_once: bool) -> Result<(), String> {
        self.vars.insert("i".to_owned(), Value::Int('I', i as i64));
        let channel = Self::channel_of(expect, i);
        let within = if at_once { Duration::ZERO } else { self.settings.deadline };
        let name = self.name_of(&expect.target);
        match expect.call.name.as_str() {
            "confirms" => return self.fit_confirms(&name, channel, &expect.call, within),
            "heartbeat" => {
                let peer = self.peer(&expect.target)?;
                let mut waited = Duration::ZERO;
                while peer.heartbeats == 0 && waited < within && !peer.has_ended() {
                    peer.pump(Duration::from_millis(100));
                    waited += Duration::from_millis(100);
                }
                if peer.heartbeats == 0 {
                    return Err("no heartbeat".to_owned());
                }
                peer.heartbeats -= 1;
                return Ok(());
            }
            _ => {}
        }
        let vars = self.vars.clone();
        let peer = self.peer(&expect.target)?;
        let event = await_any(peer, channel, within)
            .map_err(|e| format!("expected {:?} on {name}{channel}, {e}", expect.call.name))?;
        if expect.is_open {
            return Ok(());
        }
        let mut bound = vars;
        match fits(&event, &expect.call, &mut bound) {
            Ok(()) => {
                self.vars = bound;
                Ok(())
            }
            Err(why) => Err(format!("{why}; got  {}", self.show(&name, channel, &event))),
        }
    }

    fn fit_unordered(&mut self, group: &[&Expect], at_once: bool) -> Result<(), Wrong> {
        let mut left: Vec<&Expect> = group.to_vec();
        let within = if at_once { Duration::ZERO } else { self.settings.deadline };
        while let Some(first) = left.first() {
            let (line, name) = (first.line, self.name_of(&first.target));
            let channel = Self::channel_of(first, 1);
            let peer = self.peer(&first.target).map_err(|e| (line, e))?;
            let event = await_any(peer, channel, within).map_err(|e| (line, e))?;
            let mut found = None;
            for (i, expect) in left.iter().enumerate() {
                let mut bound = self.vars.clone();
                if self.name_of(&expect.target) == name
                    && Self::channel_of(expect, 1) == channel
                    && fits(&event, &expect.call, &mut bound).is_ok()
                {
                    self.vars = bound;
                    found = Some(i);
                    break;
                }
            }
            let Some(i) = found else {
                return Err((line, format!("got  {}", self.show(&name, channel, &event))));
            };
            left.remove(i);
        }
        Ok(())
    }

    /// Collects acks and nacks until they cover what is expected.
    fn fit_confirms(
        &mut self,
        name: &str,
        channel: u16,
        call: &Call,
        within: Duration,
    ) -> Result<(), String> {
        let (mut acks, mut nacks) = confirm_ranges(call)?;
        while !acks.is_empty() || !nacks.is_empty() {
            let peer = self.peers.get_mut(name).ok_or("no such connection")?;
            let event = await_any(peer, channel, within)
                .map_err(|e| format!("not confirmed: {acks:?} nacked: {nacks:?}, {e}"))?;
            let shown = self.show(name, channel, &event);
            let known = self.confirmed.entry((name.to_owned(), channel)).or_default();
            let highest = acks.iter().chain(&nacks).max().copied().unwrap_or(0);
            let Some((is_ack, tags)) = confirm_tags(&event, known, highest) else {
                return Err(format!("not confirmed: {acks:?} nacked: {nacks:?}; got  {shown}"));
            };
            for tag in tags {
                let set = if is_ack { &mut acks } else { &mut nacks };
                if !set.remove(&tag) || !known.insert(tag) {
                    return Err(format!("{tag} was not to be confirmed so; got  {shown}"));
                }
            }
        }
        Ok(())
    }

    fn show(&self, name: &str, channel: u16, event: &Event) -> String {
        let target = record::target(&self.first, name, channel, event);
        format!("<{target} {}", record::line(event, &self.vars))
    }

    fn record(
        &mut self,
        block: &Block,
        expects: &[&Expect],
        quiet: Duration,
        edits: &mut Vec<record::Edit>,
    ) -> Result<(), Wrong> {
        let wanted: u64 = expects
            .iter()
            .filter(|e| e.call.name != "heartbeat" && e.call.name != "confirms")
            .map(|e| e.repeat)
            .sum();
        let wanted_beats = expects.iter().filter(|e| e.call.name == "heartbeat").count() as u64;
        let has_confirms = expects.iter().any(|e| e.call.name == "confirms");
        let wanted = wanted as usize + usize::from(has_confirms);
        // A slow answer is still an answer.
        let patience = match &block.action {
            Action::Send(send) if send.has_answer() && expects.is_empty() => Duration::from_secs(4),
            _ => quiet,
        };
        let step = Duration::from_millis(10);
        let (mut silent, mut waited) = (Duration::ZERO, Duration::ZERO);
        loop {
            let mut any = false;
            for peer in self.peers.values_mut() {
                any |= peer.pump(step);
                if peer.has_ended() {
                    waited += step;
                    silent += step;
                }
            }
            let count: usize = self.peers.values().map(Peer::waiting).sum();
            let beats: u64 = self.peers.values().map(|p| p.heartbeats).sum();
            let is_enough = count >= wanted && beats >= wanted_beats;
            silent = if any { Duration::ZERO } else { silent + step };
            waited += step;
            let is_due = if count == 0 && is_enough {
                waited >= patience
            } else {
                is_enough || waited >= self.settings.deadline
            };
            if silent >= quiet && is_due {
                break;
            }
        }
        let mut all = Vec::new();
        for (name, peer) in &mut self.peers {
            for (channel, event) in peer.drain() {
                all.push((name.clone(), channel, event));
            }
        }
        for (name, channel, event) in &all {
            if let Some(peer) = self.peers.get_mut(name) {
                peer.put_back(*channel, vec![event.clone()]);
            }
        }
        let before = (self.vars.clone(), self.confirmed.clone());
        let is_filled = expects.iter().all(|e| !e.is_open);
        if is_filled && self.fit(expects, true).is_ok() {
            return Ok(());
        }
        (self.vars, self.confirmed) = before;
        self.peers.values_mut().for_each(|peer| drop(peer.drain()));
        let lines = record::lines(&self.first, &all, &mut self.vars, &mut self.confirmed);
        edits.push(record::Edit::new(block, &self.settings.dialects, lines));
        Ok(())
    }

    /// Nothing waits, and nothing comes after a round trip.
    fn nothing_more(&mut self, conversation: &Conversation) -> Result<(), String> {
        let queues: Vec<String> = conversation
            .declares()
            .into_iter()
            .filter(|(is_queue, _)| *is_queue)
            .map(|(_, name)| name)
            .collect();
        let deadline = self.settings.deadline;
        for (name, peer) in &mut self.peers {
            let is_calm = peer.is_running && !peer.is_manual && peer.waiting() == 0;
            if is_calm && peer.channel_max > 100 {
                through_queues(peer, &queues, deadline)?;
            }
            if let Some(channel) = peer.busy_channels().first().copied()
                && let Some(event) = peer.front(channel)
            {
                let shown = record::line(event, &self.vars);
                return Err(format!("nobody expected on {name}{channel}:  {shown}"));
            }
        }
        Ok(())
    }

    /// Closes what is open, so that exclusive queues are gone.
    fn part(&mut self) {
        let within = Duration::from_secs(5);
        for peer in self.peers.values_mut().filter(|p| !p.has_ended()) {
            if let Ok(close) = Call::parse("connection.close 200 \"\" 0 0") {
                let _ = send_call(peer, 0, &close);
                peer.is_manual = false;
                while let Ok(event) = await_any(peer, 0, within) {
                    if matches!(&event, Event::End)
                        || matches!(&event, Event::Method(m) if m.method.name == "connection.close-ok")
                    {
                        break;
                    }
                }
            }
        }
        self.peers.clear();
    }

    /// Deletes what a conversation may have left.
    fn clean(&mut self, conversation: &Conversation) {
        let names = conversation.declares();
        if names.is_empty() {
            return;
        }
        self.peers.clear();
        let Ok(connect) = Call::parse("connect janitor") else { return };
        if self.log_in("janitor", &connect).is_err() {
            return;
        }
        let within = Duration::from_secs(5);
        if let Some(peer) = self.peers.get_mut("janitor") {
            for (is_queue, name) in names {
                let word = if is_queue { "queue.delete" } else { "exchange.delete" };
                let Ok(mut call) = Call::parse(word) else { return };
                call.args.push(Term::Text(name.into_bytes()));
                let _ = send_call(peer, 1, &call);
                if let Ok(Event::Method(m)) = await_any(peer, 1, within)
                    && m.method.name == "channel.close"
                    && let Ok(open) = Call::parse("channel.open")
                {
                    let _ = send_call(peer, 1, &open);
                    let _ = await_method(peer, 1, "channel.open-ok", within);
                }
            }
        }
        self.part();
        self.vars.clear();
    }
}

fn capabilities() -> Term {
    let yes = |name: &str| (name.as_bytes().to_vec(), Term::Scalar(Value::Bool(true)));
    let all = [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    ];
    let table = Term::Table(all.iter().map(|name| yes(name)).collect(), false);
    Term::Table(vec![(b"capabilities".to_vec(), table)], false)
}

/// A channel that no script uses, opened.
fn open_spare(peer: &mut Peer, deadline: Duration) -> Result<u16, String> {
    const SPARE: u16 = 2000;
    send_call(peer, SPARE, &Call::parse("channel.open")?)?;
    await_method(peer, SPARE, "channel.open-ok", deadline)?;
    Ok(SPARE)
}

/// A round trip through each queue, whether it may be seen from here or not.
fn through_queues(peer: &mut Peer, queues: &[String], deadline: Duration) -> Result<(), String> {
    let spare = open_spare(peer, deadline)?;
    for queue in queues {
        let mut call = Call::parse("queue.declare passive")?;
        call.args.push(Term::Text(queue.clone().into_bytes()));
        send_call(peer, spare, &call)?;
        if let Event::Method(m) = await_any(peer, spare, deadline)?
            && m.method.name == "channel.close"
        {
            open_spare(peer, deadline)?;
        }
    }
    send_call(peer, spare, &Call::parse("channel.close 200 \"\" 0 0")?)?;
    await_method(peer, spare, "channel.close-ok", deadline)?;
    Ok(())
}

fn encode(call: &Call, channel: u16, vars: &Vars, frame_max: u32) -> Result<Vec<u8>, String> {
    let (method, payload) = encode_call(call, vars)?;
    let mut out = frame(1, channel, &payload);
    if let Some(content) = &call.content {
        let (header, body) = encode_content(content, vars)?;
        out.extend(frame(2, channel, &header));
        for part in body.chunks(frame_max as usize - 8) {
            out.extend(frame(3, channel, part));
        }
    } else if method.name == "basic.publish" && !call.args.is_empty() {
        // A publish without content: the script sends header and body by hand.
    }
    Ok(out)
}

fn send_call(peer: &mut Peer, channel: u16, call: &Call) -> Result<(), String> {
    let bytes = encode(call, channel, &Vars::new(), peer.frame_max)?;
    peer.send(&bytes);
    Ok(())
}

fn await_any(peer: &mut Peer, channel: u16, within: Duration) -> Result<Event, String> {
    let step = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    loop {
        if let Some(event) = peer.pop(channel) {
            return Ok(event);
        }
        if peer.has_ended() && channel != 0 {
            return match peer.front(0) {
                Some(event) => Err(format!("connection: {}", record::line(event, &Vars::new()))),
                None => Err("the connection has ended".to_owned()),
            };
        }
        if waited >= within {
            return Err("nothing came".to_owned());
        }
        if !peer.pump(step.min(within)) {
            waited += step;
            if peer.has_ended() && peer.front(channel).is_none() {
                return Err("the connection has ended".to_owned());
            }
        }
    }
}

fn await_method(
    peer: &mut Peer,
    channel: u16,
    name: &str,
    within: Duration,
) -> Result<crate::wire::Message, String> {
    match await_any(peer, channel, within) {
        Ok(Event::Method(message)) if message.method.name == name => Ok(message),
        Ok(event) => Err(format!("expected {name}, got  {}", record::line(&event, &Vars::new()))),
        Err(e) => Err(format!("expected {name}, {e}")),
    }
}

/// Whether an event is what a line expects.
fn fits(event: &Event, call: &Call, vars: &mut Vars) -> Result<(), String> {
    match (event, call.name.as_str()) {
        (Event::Method(message), _) => message.check(call, vars),
        (Event::End, "eof") => Ok(()),
        (Event::Greeting(bytes), "protocol-header") => {
            let numbers: Vec<Term> =
                bytes.iter().skip(4).map(|b| Term::Number(i64::from(*b))).collect();
            if numbers == call.args { Ok(()) } else { Err("another version".to_owned()) }
        }
        _ => Err("another event".to_owned()),
    }
}

/// The tags named by a `confirms` line: acked, nacked.
fn confirm_ranges(call: &Call) -> Result<(BTreeSet<u64>, BTreeSet<u64>), String> {
    let (mut acks, mut nacks) = (BTreeSet::new(), BTreeSet::new());
    let mut set = &mut acks;
    for item in &call.args {
        let word = match item {
            Term::Number(n) => n.to_string(),
            Term::Text(text) => String::from_utf8_lossy(text).into_owned(),
            other => return Err(format!("confirms {other:?}")),
        };
        if word == "nack" {
            set = &mut nacks;
            continue;
        }
        for part in word.split(',') {
            let (first, last) = part.split_once("..").unwrap_or((part, part));
            let number = |s: &str| s.parse::<u64>().map_err(|e| format!("confirms {s}: {e}"));
            set.extend(number(first)?..=number(last)?);
        }
    }
    Ok((acks, nacks))
}

/// The tags that an ack or nack settles, given those settled before.
pub(crate) fn confirm_tags(
    event: &Event,
    known: &BTreeSet<u64>,
    highest: u64,
) -> Option<(bool, Vec<u64>)> {
    let Event::Method(message) = event else { return None };
    let is_ack = match message.method.name.as_str() {
        "basic.ack" => true,
        "basic.nack" => false,
        _ => return None,
    };
    let tag = message.number("delivery-tag")?;
    let tags = if message.number("multiple") == Some(1) {
        let last = if tag == 0 { highest } else { tag };
        (1..=last).filter(|t| !known.contains(t)).collect()
    } else {
        vec![tag]
    };
    Some((is_ack, tags))
}
