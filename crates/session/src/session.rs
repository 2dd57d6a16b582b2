//! The session: what goes in and out, and which part of it answers.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use leveret_amqp::frame::{BODY, Decoder, Event, HEADER, METHOD};
use leveret_amqp::method::{Method, access, basic, channel, confirm, connection};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{ConnectionId, Settle, Step, ToSession, UnackedDelivery, What};
use leveret_queue::{Offset, OutputGauge, Time};
use leveret_topology::rights::Admitted;
use leveret_topology::{CountedConnection, QueueId, Vhost, VhostId};

use crate::allowances::Allowances;
use crate::bind::{Bind, bind};
use crate::brought::Brought;
use crate::channel::content::Stake;
use crate::channel::{Channel, Channels, Mode};
use crate::confirm::Confirms;
use crate::connection::Stage;
use crate::connection::timers::Timers;
use crate::core::{Capabilities, Context, Core, End, Identity};
use crate::random::Random;
use crate::reply::{self, Fault};
use crate::settings::{Peer, Settings};
use crate::totals::ConfirmTimes;
use crate::waiting::Awaited;
use crate::{attach, consume, declare, deliver, direct, publish, settle, trace, tx};

/// Class and method of `basic.publish`.
const PUBLISH: (u16, u16) = (60, 40);

/// The server's state of one connection.
#[derive(Debug)]
pub struct Session {
    pub(crate) core: Core,
    pub(crate) channels: Channels,
}

impl Session {
    /// A connection that was accepted and not read from. `seed` comes from the server's random source.
    pub fn new(
        id: ConnectionId,
        settings: Arc<Settings>,
        peer: Peer,
        seed: u64,
        now: Time,
    ) -> Self {
        let gauge = Arc::new(OutputGauge::new(settings.output_bytes_max));
        let core = Core {
            id,
            stage: Stage::Header,
            decoder: Decoder::new(settings.initial_frame_max),
            frame_max: settings.initial_frame_max,
            channel_max: 0,
            identity: Box::new(Identity {
                user: Box::default(),
                is_operator: false,
                tags: Vec::new(),
                elsewhere: None,
                vhost: VhostId::new(0),
                vhost_name: Box::default(),
                is_inside: false,
                mechanism: "",
                client_properties: Box::default(),
                connected: now,
            }),
            counted: CountedConnection::default(),
            capabilities: Capabilities::default(),
            waiting: None,
            batch: Default::default(),
            cache: None,
            consumers: Default::default(),
            allowances: settings
                .allows_by_letters
                .then(|| Box::new(Allowances::new(Arc::clone(&gauge)))),
            gauge,
            gauged: 0,
            resumes: false,
            resumes_made: 0,
            random: Random::new(seed),
            alarm: Alarm::default(),
            is_blocked: false,
            holds_publish: false,
            peer_closed: false,
            pauses: 0,
            pace: None,
            paced_at: 0,
            is_slowed: false,
            lacks_names: false,
            timers: Timers::new(now, settings.handshake_timeout_ms),
            out_len: 0,
            end: None,
            is_end_said: false,
            is_told: false,
            in_read: 0,
            closed: Vec::new(),
            left_len: 0,
            kept: 0,
            unfinished: Default::default(),
            turn_spent: 0,
            half_settled: None,
            brought: Brought::default(),
            confirms_dirty: false,
            confirm_base: 0,
            totals: Box::default(),
            peer,
            settings,
        };
        Self { core, channels: Channels::default() }
    }

    /// A connection of the node's own, for a user who has shown elsewhere who it is and may use the vhost:
    /// the management API. It is open already, and takes no place among the connections of the vhost. The
    /// operator of the node's own machine has no permissions, and needs none.
    pub fn inside(
        id: ConnectionId,
        settings: Arc<Settings>,
        peer: Peer,
        (admitted, vhost): (Admitted, &Vhost),
        now: Time,
    ) -> Self {
        let mut session = Self::new(id, settings, peer, id.bits(), now);
        let core = &mut session.core;
        core.stage = Stage::Running;
        core.frame_max = core.settings.frame_max;
        core.decoder.set_frame_max(core.frame_max);
        core.channel_max = core.settings.channel_max;
        core.identity.admit(admitted);
        core.identity.is_inside = true;
        core.identity.vhost = vhost.id;
        core.identity.vhost_name = (*vhost.name).into();
        core.timers.end_handshake();
        session
    }

    /// Its name among the broker's connections.
    pub fn id(&self) -> ConnectionId {
        self.core.id
    }

    /// Takes bytes from the front of `input`, which begins with what the last call left. A partial frame is
    /// left; everything is while [`wants_input`](Self::wants_input) is false.
    pub fn input(&mut self, input: &mut Bytes, cx: &mut Context<'_>) {
        let is_heard = input.len() > self.core.left_len;
        self.core.timers.has_read |= is_heard;
        let may_take = !self.core.lacks_names;
        if may_take && (self.core.stage != Stage::Header || self.core.protocol_header(input, cx)) {
            self.frames(input, cx);
        }
        if matches!(self.core.stage, Stage::Deaf | Stage::Ended) {
            input.clear();
        }
        self.ends_in(input);
        self.core.timers.listens &= !is_heard;
        self.take_room(cx);
        let is_busy = !self.wants_input();
        self.core.timers.was_busy |= is_busy;
        self.core.unfinished.reads(!is_busy, cx.now);
        self.watch_unfinished(cx);
        self.send_confirms(cx);
        self.core.finish(cx);
    }

    /// What is left of the input begins with a part of a frame, or with what waits until it is read again.
    #[inline]
    fn ends_in(&mut self, input: &[u8]) {
        let core = &mut self.core;
        core.left_len = input.len();
        // Before it is open frames are short, and once it is closed, or about to be, there is a deadline.
        let is_running = !input.is_empty() && core.stage == Stage::Running;
        match core.decoder.unfinished_len(input).filter(|_| is_running) {
            Some(len) => core.unfinished.ends_in_frame(len, input.len()),
            None => core.unfinished.ends_in_frame(0, 0),
        }
    }

    /// Looks again at what may have changed since the last read.
    pub(crate) fn refresh(&mut self, cx: &Context<'_>) {
        if let Some(cache) = &mut self.core.cache {
            cache.refresh(cx.topology);
            let elsewhere = self.core.identity.elsewhere.as_mut();
            if elsewhere.is_some_and(|elsewhere| elsewhere.forgets(cx.now)) {
                cache.forget();
            }
        }
        if self.core.stage == Stage::Running {
            self.core.refresh_pace(cx);
        }
    }

    fn frames(&mut self, input: &mut Bytes, cx: &mut Context<'_>) {
        self.refresh(cx);
        let is_paced = self.core.pace.is_some();
        let read = input.clone();
        let mut at = 0;
        self.core.turn_spent = 0;
        while at < read.len() && self.reads(cx.out.len()) && !self.leaves_some() {
            let whole = self.whole_publish(&read[at..], &read, cx);
            let Some(consumed) = whole.or_else(|| self.frame(&read[at..], &read, cx)) else {
                break;
            };
            at += consumed;
            if is_paced && self.core.pace_publishes(cx) {
                break;
            }
        }
        self.core.closed.clear();
        if at >= read.len() {
            self.core.turn_spent = 0;
        }
        self.end_read(&read);
        self.core.unfinished.taken += at as u64;
        input.advance(at.min(input.len()));
    }

    /// Takes a publish that the input begins with, if it is whole and nothing is special about it; gives
    /// its length.
    fn whole_publish(&mut self, input: &[u8], read: &Bytes, cx: &mut Context<'_>) -> Option<usize> {
        let publish = self.core.decoder.whole_publish(input)?;
        let channel = self.channels.get(publish.channel).filter(|channel| !channel.is_closing)?;
        if self.core.stage != Stage::Running {
            return None;
        }
        match publish::whole(&mut self.core, channel, &publish, read, cx) {
            Ok(is_taken) => is_taken.then_some(publish.len),
            Err(fault) => {
                self.fault(publish.channel, PUBLISH, true, fault, cx);
                Some(publish.len)
            }
        }
    }

    /// Takes the frame that the input begins with, or a piece of it; gives its length. None when there is no
    /// more, or it is to be given again.
    pub(crate) fn frame(
        &mut self,
        input: &[u8],
        read: &Bytes,
        cx: &mut Context<'_>,
    ) -> Option<usize> {
        match self.core.decoder.next(input) {
            Ok(found) => {
                let (event, consumed) = found?;
                self.event(event, read, cx).then_some(consumed)
            }
            Err(error) => {
                self.fail(0, (0, 0), &reply::bad_frame(&error), cx);
                self.core.stage = Stage::Deaf;
                self.core.timers.give_up_silently(cx.now);
                None
            }
        }
    }

    /// The read at hand goes.
    pub(crate) fn end_read(&mut self, read: &Bytes) {
        if self.core.in_read != 0 {
            self.stash(read);
        }
    }

    /// Keeps what a content needs of the read at hand.
    #[cold]
    fn stash(&mut self, read: &Bytes) {
        let number = std::mem::take(&mut self.core.in_read);
        if let Some(channel) = self.channels.get(number)
            && channel.content.is_in_read()
        {
            channel.content.stash(read);
            self.core.unfinished.change(Stake::default(), channel.content.stake());
        }
    }

    /// False when the frame is to be given again.
    fn event(&mut self, event: Event<'_>, read: &Bytes, cx: &mut Context<'_>) -> bool {
        let (number, kind, payload, is_whole) = match event {
            Event::Method { channel, payload } => (channel, METHOD, payload, true),
            Event::Header { channel, payload } => (channel, HEADER, payload, true),
            Event::Body { channel, part, is_last, .. } => (channel, BODY, part, is_last),
            Event::Heartbeat => return true,
        };
        // What a publish means is known once it is whole.
        self.core.brought.is_awaited |= kind == METHOD && !payload.starts_with(&[0, 60, 0, 40]);
        if self.core.alarm.is_raised() && kind == METHOD && self.holds_publish(number, payload, cx)
        {
            return false;
        }
        let result = if number == 0 {
            self.connection_frame(kind, payload, cx)
        } else {
            self.channel_frame(number, kind, payload, is_whole, read, cx)
        };
        let Err(fault) = result else { return self.core.half_settled.is_none() };
        let method = match (kind, payload) {
            (METHOD, &[c0, c1, m0, m1, ..]) => {
                (u16::from_be_bytes([c0, c1]), u16::from_be_bytes([m0, m1]))
            }
            _ => PUBLISH,
        };
        self.fault(number, method, kind != METHOD, fault, cx)
    }

    fn connection_frame(
        &mut self,
        kind: u8,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        match kind {
            METHOD => self.connection_method(payload, cx),
            _ if !self.core.stage.is_open() => Ok(()),
            _ => Err(reply::unexpected_frame(kind, payload)),
        }
    }

    fn channel_frame(
        &mut self,
        number: u16,
        kind: u8,
        payload: &[u8],
        is_whole: bool,
        read: &Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        if self.core.stage != Stage::Running {
            return match self.core.stage.is_open() {
                true => Err(reply::unexpected_frame(kind, payload)),
                false => Ok(()),
            };
        }
        if self.core.in_read != 0 && self.core.in_read != number {
            self.stash(read);
        }
        let Some(channel) = self.channels.get(number) else {
            return self.unopened(number, kind, payload, cx);
        };
        if channel.is_closing {
            return self.closing(number, kind, payload, cx);
        }
        let core = &mut self.core;
        match kind {
            HEADER => publish::header(core, channel, payload, read, cx),
            BODY => publish::body(core, channel, payload, is_whole, read, cx),
            _ => self.channel_method(number, payload, read, cx),
        }
    }

    /// A frame on a channel that is not open.
    #[cold]
    fn unopened(
        &mut self,
        number: u16,
        kind: u8,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        if self.core.closed.contains(&number) {
            match Method::decode(payload) {
                Ok(Method::ChannelOpen(_)) if kind == METHOD => {
                    self.core.closed.retain(|&closed| closed != number);
                }
                Ok(Method::ChannelClose(_)) if kind == METHOD => {
                    cx.out.put_method(number, &channel::CloseOk);
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
        if kind != METHOD {
            return Err(reply::expected_method_frame());
        }
        let max = self.core.channel_max;
        if max != 0 && self.channels.len() >= usize::from(max) {
            self.channels.forget_crossed();
        }
        if max != 0 && self.channels.len() >= usize::from(max) {
            return Err(reply::too_many_channels(self.channels.len(), max));
        }
        let counted = cx.topology.count_channel(&self.core.identity.user);
        let counted = counted.map_err(|error| Fault::from(error).without_method())?;
        match Method::decode(payload).map_err(|error| reply::bad_method(&error, payload))? {
            Method::ChannelOpen(_) => {
                let prefetch = self.core.settings.default_prefetch;
                self.channels.insert(Channel::new(number, prefetch, counted));
                self.core.totals.channels_opened += 1;
                self.core.tell_channel_opened(number, cx);
                cx.out.put_method(number, &channel::OpenOk { channel_id: b"" });
                Ok(())
            }
            // Of a channel that both sides closed at once.
            Method::ChannelCloseOk(_) => Ok(()),
            _ => Err(reply::expected_open()),
        }
    }

    /// A frame on a channel that we closed: all but the close's answer is thrown away.
    #[cold]
    fn closing(
        &mut self,
        number: u16,
        kind: u8,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        if kind != METHOD {
            return Ok(());
        }
        let Some(channel) = self.channels.get(number) else { return Ok(()) };
        match Method::decode(payload) {
            Ok(Method::ChannelCloseOk(_)) => drop(self.channels.remove(number)),
            Ok(Method::ChannelClose(_)) => {
                channel.is_crossed = true;
                channel.counted = leveret_topology::CountedChannel::default();
                cx.out.put_method(number, &channel::CloseOk);
            }
            Ok(Method::ChannelOpen(_)) if channel.is_crossed => {
                self.channels.remove(number);
                return self.unopened(number, kind, payload, cx);
            }
            Ok(Method::ChannelOpen(_)) => return Err(reply::second_open()),
            _ => {}
        }
        Ok(())
    }

    fn channel_method(
        &mut self,
        number: u16,
        payload: &[u8],
        read: &Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        use crate::channel::content::Stage as Content;
        let core = &mut self.core;
        let Some(channel) = self.channels.get(number) else { return Ok(()) };
        match channel.content.stage {
            Content::Idle => {}
            Content::Header => return Err(reply::expected_header()),
            Content::Body => return Err(reply::expected_body()),
        }
        // The two methods that come per message are read by hand.
        match payload {
            [0, 60, 0, 40, ..] if publish::begin(core, channel, payload, read)? => return Ok(()),
            [0, 60, 0, 80, tag @ .., bits] if tag.len() == 8 => {
                let tag = u64::from_be_bytes(tag.try_into().unwrap_or_default());
                return settle::traced(core, channel, tag, bits & 1 != 0, Settle::Ack, cx);
            }
            _ => {}
        }
        let method = Method::decode(payload).map_err(|error| reply::bad_method(&error, payload))?;
        match method {
            Method::BasicNack(m) => {
                let how = settle::refusal(m.requeue);
                settle::traced(core, channel, m.delivery_tag, m.multiple, how, cx)
            }
            Method::BasicReject(m) => {
                let how = settle::refusal(m.requeue);
                settle::traced(core, channel, m.delivery_tag, false, how, cx)
            }
            method => self.rare_method(number, method, cx),
        }
    }

    #[cold]
    fn rare_method(
        &mut self,
        number: u16,
        method: Method<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        let Some(channel) = self.channels.get(number) else { return Ok(()) };
        match method {
            Method::BasicGet(m) => consume::get(core, channel, &m, cx)?,
            Method::BasicConsume(m) => consume::consume(core, channel, &m, cx)?,
            Method::BasicCancel(m) => consume::cancel(core, channel, &m, cx),
            Method::BasicQos(m) => settle::qos(core, channel, &m, cx)?,
            Method::BasicRecoverAsync(m) => {
                settle::recover(core, channel, m.requeue)?;
            }
            Method::BasicRecover(m) => {
                if settle::recover(core, channel, m.requeue)? {
                    cx.out.put_method(number, &basic::RecoverOk);
                }
            }
            // The answer to our own cancel.
            Method::BasicCancelOk(_) => {}
            Method::QueueDeclare(m) => declare::declare_queue(core, channel, &m, cx)?,
            Method::QueueDelete(m) => declare::delete_queue(core, channel, &m, cx)?,
            Method::QueuePurge(m) => declare::purge_queue(core, channel, &m, cx)?,
            Method::ExchangeDeclare(m) => declare::declare_exchange(core, channel, &m, cx)?,
            Method::ExchangeDelete(m) => declare::delete_exchange(core, channel, &m, cx)?,
            Method::QueueBind(m) => {
                let what = Awaited::QueueBind;
                let asked = Bind {
                    source: m.exchange,
                    destination: m.queue,
                    to_queue: true,
                    key: m.routing_key,
                    arguments: m.arguments,
                    no_wait: m.no_wait,
                    method: (50, 20),
                    what,
                };
                bind(core, channel, asked, cx)?;
            }
            Method::QueueUnbind(m) => {
                let asked = Bind {
                    source: m.exchange,
                    destination: m.queue,
                    to_queue: true,
                    key: m.routing_key,
                    arguments: m.arguments,
                    no_wait: false,
                    method: (50, 50),
                    what: Awaited::QueueUnbind,
                };
                bind(core, channel, asked, cx)?;
            }
            Method::ExchangeBind(m) => {
                let asked = Bind {
                    source: m.source,
                    destination: m.destination,
                    to_queue: false,
                    key: m.routing_key,
                    arguments: m.arguments,
                    no_wait: m.no_wait,
                    method: (40, 30),
                    what: Awaited::ExchangeBind,
                };
                bind(core, channel, asked, cx)?;
            }
            Method::ExchangeUnbind(m) => {
                let asked = Bind {
                    source: m.source,
                    destination: m.destination,
                    to_queue: false,
                    key: m.routing_key,
                    arguments: m.arguments,
                    no_wait: m.no_wait,
                    method: (40, 40),
                    what: Awaited::ExchangeUnbind,
                };
                bind(core, channel, asked, cx)?;
            }
            Method::ConfirmSelect(m) => {
                match channel.mode {
                    Mode::Tx(_) => return Err(reply::tx_to_confirm()),
                    Mode::Plain => {
                        channel.mode = Mode::Confirm(Confirms::new(core.confirm_base));
                        channel.unconfirmable = channel.published.sum().publish;
                    }
                    Mode::Confirm(_) => {}
                }
                if !m.no_wait {
                    cx.out.put_method(number, &confirm::SelectOk);
                }
            }
            Method::TxSelect(_) => tx::select(channel, cx)?,
            Method::TxCommit(_) => tx::commit(core, channel, cx)?,
            Method::TxRollback(_) => tx::rollback(core, channel, cx)?,
            Method::ChannelFlow(m) if m.active => {
                cx.out.put_method(number, &channel::FlowOk { active: true });
            }
            Method::ChannelFlow(_) => return Err(reply::flow_inactive()),
            Method::ChannelOpen(_) => return Err(reply::second_open()),
            Method::ChannelClose(_) => {
                core.release(channel, cx);
                self.channels.remove(number);
                self.core.closed.push(number);
                cx.out.put_method(number, &channel::CloseOk);
            }
            // Of a channel that both sides closed at once, and that was opened again.
            Method::ChannelCloseOk(_) => {}
            Method::AccessRequest(_) => {
                cx.out.put_method(number, &access::RequestOk { ticket: 1 });
            }
            _ => return Err(reply::unimplemented_method()),
        }
        Ok(())
    }

    /// Takes a letter. Deliveries are encoded straight into the output buffer.
    pub fn receive(&mut self, letter: ToSession, cx: &mut Context<'_>) {
        let core = &mut self.core;
        match letter {
            ToSession::Deliver(deliveries) => {
                deliver::deliver(core, &mut self.channels, &deliveries, cx);
            }
            ToSession::Confirm { channel, first, last, ok } => {
                if let Some(channel) = self.channels.get(channel)
                    && let Mode::Confirm(confirms) = &mut channel.mode
                {
                    confirms.resolve(first, last, ok, &mut channel.published);
                    let traced = trace::traced(core, cx);
                    put_confirms(channel.number, confirms, &mut core.totals.confirm, traced, cx);
                }
            }
            ToSession::ConfirmTimeout { channel, first, last } => {
                if let Some(channel) = self.channels.get(channel)
                    && let Mode::Confirm(confirms) = &mut channel.mode
                {
                    confirms.give_up(first, last);
                    let traced = trace::traced(core, cx);
                    put_confirms(channel.number, confirms, &mut core.totals.confirm, traced, cx);
                }
            }
            ToSession::Paused(true) => core.pauses += 1,
            ToSession::Paused(false) => core.pauses = core.pauses.saturating_sub(1),
            ToSession::Reply { channel, reply } => self.answered(channel, reply, cx),
            ToSession::Attach { group, term, begins_at } => {
                attach::attach(core, &mut self.channels, (group, term, begins_at), cx);
            }
            ToSession::AllowanceStates { group, states } => {
                if let Some(allowances) = &mut core.allowances {
                    allowances.hear(group, &states);
                }
            }
            ToSession::ConsumerGone { slot } => {
                let channel = core.consumers.get(slot).map(|consumer| consumer.channel);
                let channel = channel.and_then(|number| self.channels.get(number));
                consume::gone(core, channel, slot, cx);
            }
            ToSession::DirectReply { channel, token, message } => {
                if let Some(channel) = self.channels.get(channel) {
                    direct::deliver(core, channel, token, &message, cx);
                }
            }
            ToSession::DirectReplyAsked { reply, channel, token } => {
                let channel = self.channels.get(channel);
                let answer = direct::answer(channel.as_deref(), token);
                cx.outbox.reply(reply, answer);
            }
            ToSession::LoggedIn(admitted) => self.logged_in(admitted, cx),
            ToSession::Decided(answer) => {
                let (question, decision) = *answer;
                self.decided(question, decision, cx);
            }
            ToSession::Alarm(alarm) => core.set_alarm(alarm, cx),
            ToSession::Stopped => core.stopped(cx),
            ToSession::Room { number, is_granted } => self.room(number, is_granted, cx),
            ToSession::Close { code, text } => {
                let text = Fault::new(code, text).reply_text();
                let close = connection::Close {
                    reply_code: code.code(),
                    reply_text: &text,
                    class_id: 0,
                    method_id: 0,
                };
                self.forced(&close, cx);
            }
        }
        self.core.finish(cx);
        let is_read = self.wants_input();
        self.core.unfinished.reads(is_read, cx.now);
    }

    /// The connection is closed by an operator or by the server's end.
    fn forced(&mut self, close: &connection::Close<'_>, cx: &mut Context<'_>) {
        match self.core.stage {
            Stage::Running => {
                self.core.say_forced(close.reply_text);
                self.close(close, cx);
            }
            Stage::Closing | Stage::Closed | Stage::Ended => {}
            _ => {
                self.core.stage = Stage::Ended;
                self.core.end = Some(End::Now);
            }
        }
    }

    /// Confirms that this turn resolved by itself.
    pub(crate) fn send_confirms(&mut self, cx: &mut Context<'_>) {
        if !std::mem::take(&mut self.core.confirms_dirty) {
            return;
        }
        let traced = trace::traced(&self.core, cx);
        for channel in self.channels.iter_mut() {
            if let Mode::Confirm(confirms) = &mut channel.mode
                && confirms.is_dirty()
            {
                put_confirms(channel.number, confirms, &mut self.core.totals.confirm, traced, cx);
            }
        }
    }

    /// What was read since the last call.
    pub fn take_brought(&mut self) -> Brought {
        std::mem::take(&mut self.core.brought)
    }

    /// Whether the last input led to so much that the rest of it is for another turn, after what this one led to: a
    /// block of small messages for very many queues is gigabytes in these.
    pub fn leaves_some(&self) -> bool {
        self.core.turn_spent >= self.core.settings.turn_spent_max
    }

    /// Whether it reads on: not while [names are lacking](Self::has_names), a reply is awaited, publishers are blocked and its next
    /// frame is a publish, a disk is far behind and it publishes to it, the output is far behind, or it is over.
    pub fn wants_input(&self) -> bool {
        (!self.core.lacks_names || self.core.stage == Stage::Deaf) && self.reads(self.core.out_len)
    }

    /// Whether the names here are those of all that was answered anywhere: of a node that is cut off from the others they may not be, and
    /// nothing of the client is taken [until](Self::wants_input) they are. To be said when bytes were read, and before they are taken.
    #[inline]
    pub fn has_names(&mut self, has_names: bool) {
        self.core.lacks_names = !has_names;
        // Who is not read is not dead.
        self.core.timers.was_busy |= !has_names;
    }

    /// Whether the next frame of what was read is taken, with so much output.
    fn reads(&self, out_len: usize) -> bool {
        let core = &self.core;
        match core.stage {
            Stage::Authenticating | Stage::Closing | Stage::Ended => false,
            // The vhost may be asked about.
            Stage::Opening => core.waiting.is_none(),
            Stage::Running => {
                core.waiting.is_none()
                    && !(core.is_blocked && core.holds_publish)
                    && !core.unfinished.waits()
                    && core.pauses == 0
                    && !core.is_slowed
                    && (out_len as u64 <= core.settings.output_bytes_max.saturating_mul(2)
                        || core.timers.listens)
            }
            _ => true,
        }
    }

    /// The server wrote what it could; `remaining_in_outbuf` bytes wait for the socket.
    pub fn flushed(
        &mut self,
        remaining_in_outbuf: usize,
        wrote_anything: bool,
        cx: &mut Context<'_>,
    ) {
        let core = &mut self.core;
        core.timers.writes = core.timers.writes.wrapping_add(u32::from(wrote_anything));
        core.unfinished.has_written |= wrote_anything;
        if remaining_in_outbuf > 0 {
            core.timers.watch_unfinished(core.settings.unfinished_timeout_ms, cx.now);
        }
        core.out_len = remaining_in_outbuf;
        let kept = core.gauged.min(remaining_in_outbuf as u64);
        let released = core.gauged - kept;
        if released > 0 {
            core.gauged = kept;
            core.resumes |= core.gauge.released(released);
            core.finish(cx);
            core.out_len = remaining_in_outbuf;
        }
        let is_read = self.wants_input();
        self.core.unfinished.reads(is_read, cx.now);
    }

    /// Does what is due at [`next_timeout`](Self::next_timeout).
    pub fn timeout(&mut self, cx: &mut Context<'_>) {
        self.on_timeout(cx);
        self.core.finish(cx);
        let is_read = self.wants_input();
        self.core.unfinished.reads(is_read, cx.now);
    }

    /// When [`timeout`](Self::timeout) is to be called. It may come late: all of it is coarse.
    pub fn next_timeout(&self) -> Option<Time> {
        self.core.timers.next()
    }

    /// The socket is gone. Letters that are still on their way are to be given to
    /// [`receive`](Self::receive) all the same: it sends deliveries back.
    pub fn disconnected(&mut self, cx: &mut Context<'_>) {
        self.core.say_disconnected(cx.now);
        self.let_go(false, cx);
        self.core.stage = Stage::Ended;
        self.core.end = Some(End::Now);
        self.core.finish(cx);
    }

    /// Bytes that it keeps of messages on their way in: contents that are not whole, with all that they may become,
    /// transactions that are not committed,
    /// and what it has beside: consumers with their arguments.
    pub fn kept_bytes(&self) -> u64 {
        let core = &self.core;
        let routes = core.cache.as_ref().map_or(0, |cache| cache.bytes());
        core.kept + core.unfinished.held() + core.consumers.bytes() + routes
    }

    /// Most bytes to be read at once: no more than it may have without room, while that or memory is short. What it
    /// is given beyond that it would keep all the while that it waits.
    pub fn read_max(&self) -> usize {
        let (core, room) = (&self.core, &self.core.settings.bodies);
        let is_short = core.alarm.memory || room.waiting() + room.frames_waiting() > 0;
        match is_short && core.unfinished.is_without_room() {
            true => room.free().max(1) as usize,
            false => usize::MAX,
        }
    }

    /// Whether what is read next may be a password.
    pub fn is_logging_in(&self) -> bool {
        matches!(self.core.stage, Stage::Header | Stage::Starting)
    }

    /// Whether [`peer_closed`](Self::peer_closed) is to be told: the alarm, its rate, want of names or of room, or a login that is looked at
    /// keeps it from reading, for who knows how long.
    pub fn watches_end(&self) -> bool {
        let core = &self.core;
        let waits =
            core.is_blocked || core.is_slowed || core.lacks_names || core.unfinished.waits();
        !core.peer_closed && (waits || core.stage == Stage::Authenticating)
    }

    /// The client has closed its end while nobody read. The rest of what it sent is read in spite of an
    /// alarm, or of its rate: it is no more than lies in the socket, and when it is done the connection is, too. Whoever leaves
    /// while its login is looked at has sent nothing that counts.
    pub fn peer_closed(&mut self, cx: &mut Context<'_>) {
        if self.core.stage == Stage::Authenticating {
            return self.disconnected(cx);
        }
        self.core.peer_closed = true;
        self.core.is_blocked = false;
        self.core.holds_publish = false;
        self.core.is_slowed = false;
        self.core.leave_line(cx);
    }

    /// Whether it has this message and did not settle it: for checks of the simulator.
    pub fn holds(&self, queue: QueueId, offset: Offset) -> bool {
        let is_it = |it: &UnackedDelivery| it.queue == queue && it.offset == offset;
        self.channels.iter().any(|channel| channel.unacked.iter().any(is_it))
    }

    /// Whether, and how, the server is to close the socket.
    pub fn end(&self) -> Option<End> {
        self.core.end
    }
}

/// Sends what was resolved.
fn put_confirms(
    number: u16,
    confirms: &mut Confirms,
    times: &mut ConfirmTimes,
    traced: Option<ConnectionId>,
    cx: &mut Context<'_>,
) {
    if let Some(since_us) = confirms.take_probe() {
        times.count(cx.now_us.saturating_sub(since_us));
    }
    confirms.take(|c| {
        let (delivery_tag, multiple) = (c.tag, c.multiple);
        if let Some(connection) = traced {
            let what = What::Confirmed { number: c.tag, multiple, ok: c.ok };
            cx.outbox.steps.push(Step { connection, channel: number, what });
        }
        if c.ok {
            cx.out.put_method(number, &basic::Ack { delivery_tag, multiple });
        } else {
            cx.out.put_method(number, &basic::Nack { delivery_tag, multiple, requeue: false });
        }
    });
}
