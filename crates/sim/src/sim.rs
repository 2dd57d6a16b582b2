//! The scheduler: draws what happens next, until nothing more may happen.
//!
//! ```text
//!   Setup ---> Storm -----------------> Calm ------------------> Drained
//!   one        clients come, work,      no new work, no faults;  every queue empty, nothing lost,
//!   client     stall, are reset         then all is drained      no memory held
//!   declares
//! ```
//!
//! One step lets one actor have one turn, moves bytes one way over one socket, lets one client do one
//! thing, or makes one fault. All is drawn from the seed; inboxes are never reordered, only when they are
//! looked at is.

use leveret_amqp::reply::ReplyCode;
use leveret_broker::flow::Alarm;
use leveret_broker::message::{ConnectionId, ToMeta, ToSession};
use leveret_node::start::Past;
use leveret_queue::Time;

use crate::checks::{self, ACK_TIMEOUT_MS, Watch};
use crate::client::{Channel, Client, ConnectionState, Mood, World};
use crate::disk::{Disks, Store};
use crate::life;
use crate::mover::Mover;
use crate::node::{Actor, Node};
use crate::plan;
use crate::policies::Policies;
use crate::random::{Random, Seed};
use crate::shadow::{Check, QueueFate, Shadow, Totals};
use crate::trace::Trace;

/// Virtual time at the start, in ms since the epoch.
const START_MS: u64 = 1_700_000_000_000;

/// How far the clock jumps at once when nothing else can happen: less than what a client may take to
/// ack, or to send a heartbeat.
const JUMP_MS_MAX: u64 = 2_000;

/// How long the process stands still at most: longer than any client's two heartbeats.
const PAUSE_MS_MAX: usize = 10_000;

/// Steps after the storm within which everything must have drained.
const CALM_STEPS_MAX: u32 = 300_000;

/// Times that nothing can happen, each a while after the last, until that is believed.
const IDLE_TIMES: u32 = 20;

/// How often it is to be idle with nothing left in any queue.
const DRAINED_TIMES: u32 = 4;

/// Steps for which others are slow to agree, and then quick.
const SLOW_STEPS: u64 = 300;

/// Steps until a letter comes again.
const AGAIN_STEPS: usize = 20;

/// Bytes a client has on the way to the server before it waits.
const SENDING_MAX: usize = 64 << 10;

/// What may go wrong, and how often: one in so many steps, 0 for never.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A connection is reset.
    pub reset: usize,
    /// A client stops reading for a while.
    pub stall: usize,
    /// The operator closes a connection.
    pub close: usize,
    /// Memory runs short: publishers are blocked for a while.
    pub alarm: usize,
    /// The operator sets or clears a policy.
    pub policy: usize,
    /// A client says nothing more, though its connection stands.
    pub silence: usize,
    /// Nothing happens for longer than a delivery may be kept.
    pub night: usize,
    /// The process stands still for a while, as after SIGSTOP, and nobody else does.
    pub pause: usize,
    /// The process is killed.
    pub kill: usize,
    /// The power is cut.
    pub power: usize,
    /// The broker is stopped in good order and started again.
    pub stop: usize,
    /// Shards lose what their logs have that was not agreed upon, and go on; where a crash loses it, too.
    pub lose: usize,
    /// A disk takes its time.
    pub slow: usize,
    /// A disk is full for a while.
    pub full: usize,
    /// A disk fails; the broker has to be started again.
    pub fail: usize,
    /// Clients do nothing until all that they did is on the disks.
    pub rest: usize,
    /// What a shard says of a transaction comes twice. One in so many such letters.
    pub twice: usize,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        reset: 0,
        stall: 0,
        close: 0,
        alarm: 0,
        policy: 0,
        silence: 0,
        night: 0,
        pause: 0,
        kill: 0,
        power: 0,
        stop: 0,
        lose: 0,
        slow: 0,
        full: 0,
        fail: 0,
        rest: 0,
        twice: 0,
    };
}

/// When a record is agreed upon, of a shard's log or that of names, and so readable and durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// When it is written, as on one node.
    AtOnce,
    /// Some time after it is on the disk, as with members that have to answer.
    Later,
    /// The same, but the log gives it to whoever reads it before: a mistake that must be found.
    LaterButReadBefore,
    /// Some time after it is on the disk, and a crash loses what is not: others go on without it.
    Cut,
    /// The same, but answers do not wait for it: a mistake that must be found.
    CutButAnsweredBefore,
    /// The same, but publishers are told, and consumers given, what is on the disk of a shard alone: a mistake that must be
    /// found.
    CutButConfirmedBefore,
}

impl Agreed {
    pub(crate) const fn is_cut(self) -> bool {
        !matches!(self, Self::AtOnce | Self::Later | Self::LaterButReadBefore)
    }
}

/// How big a simulation is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Shards of the broker.
    pub shards: usize,
    /// Clients at a time.
    pub clients: usize,
    /// Logs are in files on simulated disks, so that a restart finds them.
    pub has_disks: bool,
    /// When what is appended may be given out.
    pub agreed: Agreed,
    /// Letters of sessions go to shards over links, which lose some.
    pub has_links: bool,
    /// With links: a second node has clients, too, and outlives the one with the shards.
    pub has_second: bool,
    /// Commands of sessions go to the owner of the names over links, which lose some.
    pub has_command_link: bool,
    /// What goes wrong.
    pub faults: Faults,
    /// How many of the last events to keep as text.
    pub lines: usize,
}

impl Options {
    /// Different for every seed, so that many seeds visit many kinds of runs.
    pub fn of(seed: Seed) -> Self {
        let mut random = Random::new(seed, 4);
        let often = |random: &mut Random, most: usize| match random.below(3) {
            0 => 0,
            _ => most + random.below(20 * most),
        };
        let has_disks = !seed.0.is_multiple_of(4);
        let if_disks = |often: usize| if has_disks { often } else { 0 };
        let mut options = Self {
            shards: 1 + random.below(4),
            clients: 1 + random.below(8),
            has_disks,
            faults: Faults {
                reset: often(&mut random, 100),
                stall: often(&mut random, 40),
                close: often(&mut random, 200),
                alarm: often(&mut random, 200),
                policy: often(&mut random, 50),
                silence: often(&mut random, 200),
                night: often(&mut random, 500),
                kill: if_disks(often(&mut random, 300)),
                power: if_disks(often(&mut random, 300)),
                stop: if_disks(often(&mut random, 300)),
                lose: 100 + (seed.0 % 7) as usize * 100,
                slow: if_disks(often(&mut random, 50)),
                full: if_disks(often(&mut random, 500)),
                fail: if_disks(often(&mut random, 1000)),
                rest: often(&mut random, 200),
                pause: often(&mut random, 300),
                twice: 1 + (seed.0 % 5) as usize,
            },
            agreed: match random.one_in(3) {
                true if has_disks && seed.0.is_multiple_of(2) => Agreed::Cut,
                true => Agreed::Later,
                false => Agreed::AtOnce,
            },
            has_links: false,
            has_second: false,
            has_command_link: seed.0 % 5 == 2,
            lines: 0,
        };
        options.has_links = options.agreed == Agreed::Cut && !seed.0.is_multiple_of(3);
        options.has_second = options.has_links && (seed.0 / 4).is_multiple_of(2);
        options
    }
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[error("seed {} failed at step {step}: {what}\n{recent}", seed.0)]
pub struct Failure {
    /// Run it again with this.
    pub seed: Seed,
    /// When.
    pub step: u64,
    /// What was expected.
    pub what: String,
    /// The last events, when they were kept, and the state of the broker.
    pub recent: String,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The same for the same seed.
    pub trace_hash: u64,
    /// Steps until all was drained.
    pub steps: u64,
    /// Virtual milliseconds.
    pub elapsed_ms: u64,
    /// What was sent and seen.
    pub totals: Totals,
}

/// A client, its connection and its habits.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) client: Client,
    pub(crate) connection: ConnectionId,
    stalled_until: Time,
    /// The operator closed it: the broker waits for its answer, but not for long.
    pub(crate) is_forced: bool,
}

impl Peer {
    /// It is about to say something that the broker waits for. A close may be on its way to it: then only the
    /// broker knows.
    pub(crate) fn is_talked_to(&self, node: &Node<Store>) -> bool {
        self.client.state != ConnectionState::Open || node.has_closed(self.connection)
    }
}

/// One simulation.
#[derive(Debug)]
pub struct Sim {
    seed: Seed,
    pub(crate) options: Options,
    pub(crate) node: Node<Store>,
    pub(crate) disks: Option<Disks>,
    pub(crate) watch: Watch,
    pub(crate) peers: Vec<Peer>,
    pub(crate) shadow: Shadow,
    pub(crate) trace: Trace,
    pub(crate) now: Time,
    step: u64,
    mood: Mood,
    pub(crate) is_alarmed: bool,
    /// What is short meanwhile.
    alarm: Alarm,
    pub(crate) policies: Policies,
    pub(crate) mover: Mover,
    /// Connections whose client says nothing more.
    pub(crate) silent: Vec<ConnectionId>,
    /// Letters that came and are to come again.
    pub(crate) again: Vec<ToMeta>,
    next_publisher: u32,
    next_client: usize,
    /// What happens next.
    schedule: Random,
    /// What clients do.
    work: Random,
    pub(crate) faults: Random,
    /// Until when a disk is full.
    pub(crate) full_until: Option<Time>,
    /// What befalls links.
    network: Random,
    /// How logs are opened.
    pub(crate) storage: Random,
    /// When queues are filled.
    pub(crate) starts: Random,
    /// What the queues are to be filled with, if they are not.
    pub(crate) past: Option<Past>,
    ready: Vec<Event>,
    actors: Vec<Actor>,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Event {
    Turn(Actor),
    /// Frames of a client go on their way.
    Send(usize),
    /// A client reads.
    Read(usize),
    /// A client does something.
    Act(usize),
    /// A disk does something.
    Disk(usize),
    /// Of a log some more is agreed upon.
    Agree(usize),
    /// Something happens on a link.
    Link(usize),
    /// Something happens on the link of a node to the owner of the names.
    CommandLink(usize),
}

impl Sim {
    /// A broker with no queue and nobody connected.
    pub fn new(seed: Seed, options: Options) -> Self {
        let mut schedule = Random::new(seed, 1);
        let mut storage = Random::new(seed, 6);
        let disks = options.has_disks.then(|| Disks::new(seed, options.shards));
        let start = Time::from_ms(START_MS);
        let node = life::start(options, disks.as_ref(), None, &mut storage, start);
        let (mut node, past) = node.expect("empty disks open");
        life::fill(&mut node, &past);
        Self {
            seed,
            options,
            node,
            disks,
            watch: Watch { marks: vec![[0; 3]; options.shards], ..Watch::default() },
            full_until: None,
            storage,
            network: Random::new(seed, 8),
            starts: Random::new(seed, 7),
            past: None,
            peers: Vec::new(),
            shadow: {
                let mut shadow = Shadow::new(plan::queues(), options.has_disks);
                shadow.is_agreed = options.agreed != Agreed::AtOnce;
                shadow
            },
            trace: Trace::new(options.lines),
            now: Time::from_ms(START_MS + schedule.below(1000) as u64),
            step: 0,
            mood: Mood::Storm,
            is_alarmed: false,
            alarm: Alarm::default(),
            policies: Policies::default(),
            mover: Mover::default(),
            silent: Vec::new(),
            again: Vec::new(),
            next_publisher: 0,
            next_client: 0,
            schedule,
            work: Random::new(seed, 2),
            faults: Random::new(seed, 3),
            ready: Vec::new(),
            actors: Vec::new(),
        }
    }

    /// The first client declares the queues, exchanges and bindings that stand.
    pub fn set_up(&mut self) -> Result<(), Failure> {
        let result = self.declare_plan();
        result.map_err(|what| self.failure(what))
    }

    /// Lets so much happen, with faults.
    pub fn run(&mut self, steps: u32) -> Result<(), Failure> {
        let result = self.storm(steps);
        result.map_err(|what| self.failure(what))
    }

    /// Ends all faults and all work, and sees that everything drains.
    pub fn settle(&mut self) -> Result<Outcome, Failure> {
        let result = self.calm();
        result.map_err(|what| self.failure(what))?;
        Ok(Outcome {
            trace_hash: self.trace.hash(),
            steps: self.step,
            elapsed_ms: self.now.ms() - START_MS,
            totals: self.shadow.totals,
        })
    }

    /// What went wrong, and what led to it.
    pub(crate) fn failure(&self, what: String) -> Failure {
        let diaries = self.peers.iter().filter_map(|peer| peer.client.diary.as_ref());
        let last = diaries.flatten().fold(String::new(), |text, line| text + line + "\n");
        let recent = format!("{}{last}{}", self.trace, self.node.describe());
        Failure { seed: self.seed, step: self.step, what, recent }
    }

    fn declare_plan(&mut self) -> Check {
        self.connect();
        let mut declared = 0;
        let all = Client::plan_len(self.shadow.queues.len());
        for _ in 0..100_000 {
            let mut world = World {
                shadow: &mut self.shadow,
                random: &mut self.work,
                next_publisher: &mut self.next_publisher,
                now: self.now,
            };
            let Some(peer) = self.peers.first_mut() else { break };
            if declared < all && peer.client.declare_plan(declared, &mut world) {
                declared += 1;
            }
            let is_answered = !peer.client.channels.values().any(Channel::is_asking);
            if declared == all && is_answered {
                return Ok(());
            }
            self.one(false)?;
        }
        Err(format!("{declared} of {all} commands of the plan were answered"))
    }

    fn storm(&mut self, steps: u32) -> Check {
        self.mood = Mood::Storm;
        for _ in 0..steps {
            if self.peers.len() < self.options.clients && self.schedule.one_in(20) {
                self.connect();
            }
            self.fault()?;
            let moved = self.one(true)?;
            // Everybody waits: for the end of the alarm.
            if !moved && self.is_alarmed {
                self.set_alarm(false);
            }
        }
        Ok(())
    }

    fn fault(&mut self) -> Check {
        let Faults { reset, stall, close, alarm, policy, silence, night, pause, .. } =
            self.options.faults;
        if !self.again.is_empty() && self.faults.one_in(AGAIN_STEPS) {
            let index = self.faults.below(self.again.len());
            self.say_again(index);
        }
        if reset > 0 && self.faults.one_in(reset) {
            let victim = self.faults.below(self.peers.len());
            self.reset(victim);
        }
        if stall > 0 && self.faults.one_in(stall) {
            let victim = self.faults.below(self.peers.len());
            let until = self.now.after_ms(self.faults.below(300) as u64);
            if let Some(peer) = self.peers.get_mut(victim) {
                self.trace.event([1, victim as u64, until.ms()], || {
                    format!("client {} stops reading", peer.client.name)
                });
                peer.stalled_until = until;
            }
        }
        if close > 0 && self.faults.one_in(close) {
            let victim = self.faults.below(self.peers.len());
            let is_open = |peer: &&mut Peer| peer.client.state == ConnectionState::Open;
            if let Some(peer) = self.peers.get_mut(victim).filter(is_open) {
                peer.is_forced = true;
                self.trace.event([5, victim as u64, 0], || format!("close {}", peer.client.name));
                self.node.tell(peer.connection, forced("for a test"));
            }
        }
        if alarm > 0 && self.faults.one_in(if self.is_alarmed { alarm / 4 } else { alarm }) {
            self.set_alarm(!self.is_alarmed);
        }
        if policy > 0
            && self.faults.one_in(policy)
            && let Some(letter) = self.policies.change(&mut self.faults)
        {
            self.trace.event([6, 0, 0], || format!("{letter:?}"));
            self.node.tell_meta(letter);
        }
        if policy > 0
            && self.faults.one_in(policy)
            && let Some((group, letter)) = self.mover.look(self.node.topology(), &mut self.faults)
        {
            self.trace.event([9, group.get().into(), 0], || format!("{letter:?}"));
            self.node.tell_shard(group.index(), letter);
        }
        if silence > 0 && self.faults.one_in(silence) {
            self.silence();
        }
        if night > 0 && self.faults.one_in(night) {
            self.night()?;
        }
        if pause > 0 && self.faults.one_in(pause) {
            self.pause()?;
        }
        self.disk_fault()
    }

    /// A client falls silent, at any time from its first byte on. One that has no heartbeat would do so
    /// for ever.
    fn silence(&mut self) {
        let victim = self.faults.below(self.peers.len());
        let is_watched = |peer: &Peer| {
            matches!(peer.client.state, ConnectionState::Opening | ConnectionState::Open)
                && peer.client.heartbeat_s > 0
        };
        if self.peers.get(victim).is_some_and(is_watched) {
            let peer = self.peers.swap_remove(victim);
            self.trace.event([7, victim as u64, 0], || format!("silent: {}", peer.client.name));
            self.silent.push(peer.connection);
        }
    }

    /// Nothing happens for a while; then who keeps a delivery has kept it for too long. Not while the
    /// broker waits for somebody who is about to say something.
    fn night(&mut self) -> Check {
        if self.peers.iter().any(|peer| peer.is_talked_to(&self.node)) {
            return Ok(());
        }
        self.is_in_time()?;
        self.now = self.now.after_ms(ACK_TIMEOUT_MS + self.faults.below(10_000) as u64);
        self.trace.event([8, self.now.ms(), 0], || "a night passes".to_owned());
        Ok(())
    }

    /// The process stands still; clients and disks go on. Who kept on beating meanwhile is not hung up on. Not
    /// while somebody has only so much time for his answer.
    fn pause(&mut self) -> Check {
        if self.peers.iter().any(|peer| peer.is_talked_to(&self.node)) {
            return Ok(());
        }
        let until = self.now.after_ms(self.faults.below(PAUSE_MS_MAX) as u64);
        self.trace.event([9, until.ms(), 0], || "the process stands still".to_owned());
        while self.now < until {
            self.find_ready(true)?;
            self.ready.retain(|event| !matches!(event, Event::Turn(_)));
            match self.schedule.pick(&self.ready).copied() {
                Some(event) if !self.schedule.one_in(4) => self.happen(event)?,
                _ => self.now = self.now.after_ms(1 + self.schedule.below(100) as u64),
            }
        }
        Ok(())
    }

    /// Nobody keeps a delivery much longer than he may. The broker looks four times in that time.
    fn is_in_time(&self) -> Check {
        let mut ready = Vec::new();
        self.node.ready(self.now, &mut ready);
        for Peer { client, connection, .. } in &self.peers {
            if ready.contains(&Actor::Connection(*connection))
                || !self.node.has_read_all(*connection)
            {
                continue;
            }
            for (number, channel) in &client.channels {
                let Some(oldest) = channel.unacked.values().map(|held| held.since).min() else {
                    continue;
                };
                let latest = oldest.after_ms(ACK_TIMEOUT_MS * 5 / 4 + 2_000);
                if latest < self.now && !channel.is_ending() {
                    let ms = self.now.ms() - oldest.ms();
                    let name = client.name;
                    return Err(format!("client {name} keeps a delivery on {number} for {ms} ms"));
                }
            }
        }
        Ok(())
    }

    /// Raises or clears the memory alarm.
    fn set_alarm(&mut self, is_raised: bool) {
        self.is_alarmed = is_raised;
        self.trace.event([4, u64::from(is_raised), 0], || format!("alarm: {is_raised}"));
        self.alarm = Alarm::default();
        if is_raised {
            let (disk, stops_all) = (self.faults.one_in(2), self.faults.one_in(3));
            self.alarm = Alarm { memory: !disk || self.faults.one_in(3), disk, stops_all };
        }
        self.node.set_alarm(self.alarm);
    }

    /// Cuts a connection: what the client has not read is gone, the server finds out.
    fn reset(&mut self, index: usize) {
        if index >= self.peers.len() {
            return;
        }
        let peer = self.peers.swap_remove(index);
        self.shadow.totals.resets += 1;
        self.trace.event([2, index as u64, 0], || format!("client {} is reset", peer.client.name));
        if let Some(socket) = self.node.socket(peer.connection) {
            socket.is_reset = true;
            socket.to_client.clear();
            if self.faults.one_in(2) {
                socket.to_server.clear();
            }
        }
    }

    /// No faults, no new work: all leave, then two drain what is left.
    fn calm(&mut self) -> Check {
        self.mood = Mood::Leave;
        self.heal()?;
        while !self.again.is_empty() {
            self.say_again(0);
        }
        if self.is_alarmed {
            self.set_alarm(false);
        }
        for peer in &mut self.peers {
            peer.stalled_until = self.now;
        }
        let steady = self.shadow.queues.iter().filter(|kind| kind.is_steady).count();
        let (mut idle_times, mut drained_times, mut numbered) = (0, 0, 0);
        for _ in 0..CALM_STEPS_MAX {
            // A session whose client has left may still wait for an answer, and then do what it had read.
            let all_left =
                self.peers.is_empty() && self.silent.is_empty() && self.node.all_have_left();
            // A shard may still have in its lines what they wrote last, the ends of exclusive consumers among it.
            if self.mood == Mood::Leave && all_left && self.node.is_idle() {
                self.mood = Mood::Drain;
                self.shadow.is_calm = true;
                // Whoever asked for it or for its deletion has gone.
                let kept = self.shadow.kept.values_mut().filter(|kept| **kept != QueueFate::Gone);
                kept.for_each(|kept| *kept = QueueFate::There);
                self.connect();
                self.connect();
            }
            if let Some(letter) = self.policies.resume() {
                self.node.tell_meta(letter);
            }
            let moved = self.one(true)?;
            // Whoever waits for a slow disk, or for others, to close his connection waits only so long.
            let closes =
                self.peers.iter().any(|peer| peer.client.state == ConnectionState::Closing);
            if moved || !self.node.is_idle() || closes {
                continue;
            }
            // Long enough for what waits for a timer.
            self.now = self.now.after_ms(2_000);
            // Who pauses until what he sent is agreed upon goes on, some letters at a time.
            if self.node.numbered_letters()
                != std::mem::replace(&mut numbered, self.node.numbered_letters())
            {
                continue;
            }
            idle_times += 1;
            if self.mood == Mood::Drain && self.peers.is_empty() && self.node.messages() > 0 {
                // Those who were to drain were refused something for a disk that was still full.
                self.connect();
            }
            let is_drained = self.mood == Mood::Drain
                && self.silent.is_empty()
                && self.node.messages() == 0
                && (self.node.topology().queue_count() == steady || idle_times >= IDLE_TIMES);
            drained_times += u32::from(is_drained);
            // What a shard has released is told to another when that is on the disk.
            if drained_times >= DRAINED_TIMES {
                if self.node.kept_letters() > 0 {
                    return Err("letters are kept that are done".to_owned());
                }
                self.shadow.nothing_is_lost()?;
                return checks::is_drained(&self.node, &self.watch, steady);
            }
            if idle_times > IDLE_TIMES + DRAINED_TIMES {
                break;
            }
        }
        let stuck = match self.mood {
            _ if !self.silent.is_empty() => "silent clients are taken for alive",
            Mood::Leave => "clients wait for answers that do not come",
            _ => "queues do not drain",
        };
        Err(format!(
            "{stuck}: {:?}",
            self.peers.iter().map(|peer| &peer.client).collect::<Vec<_>>()
        ))
    }

    fn connect(&mut self) {
        let room = 1 << (10 + self.schedule.below(7));
        let site = usize::from(self.options.has_second && self.schedule.one_in(2));
        let connection = self.node.connect_to(site, self.schedule.next(), room, self.now);
        let client = Client::new(self.next_client, connection, self.options.lines > 0);
        self.next_client += 1;
        if self.is_alarmed {
            self.node.tell(connection, ToSession::Alarm(self.alarm));
        }
        self.peers.push(Peer { client, connection, stalled_until: self.now, is_forced: false });
    }

    /// One step. False when nothing could happen but the passing of time.
    pub(crate) fn one(&mut self, acts: bool) -> Check<bool> {
        self.step += 1;
        self.bury();
        self.find_ready(acts)?;
        // Time passes now and then, and when there is nothing else to do.
        let Some(&event) = self.schedule.pick(&self.ready) else {
            self.fill()?;
            self.pass_time(true);
            return Ok(false);
        };
        if self.schedule.one_in(30) {
            self.pass_time(false);
        }
        let shown = event.numbers();
        self.trace.event(shown, || format!("{event:?}"));
        if self.options.lines > 0 {
            for peer in &mut self.peers {
                let lines = peer.client.diary.as_mut().map(std::mem::take).unwrap_or_default();
                lines.into_iter().for_each(|line| self.trace.line(line));
            }
            let letters = match event {
                Event::Turn(actor) => self.node.letters(actor),
                Event::Link(index) => self.node.letters_on(index),
                _ => Vec::new(),
            };
            letters.into_iter().for_each(|line| self.trace.line(line));
        }
        self.happen(event)?;
        Ok(true)
    }

    fn happen(&mut self, event: Event) -> Check {
        match event {
            Event::Turn(actor) => self.turn(actor)?,
            Event::Disk(index) => self.step_disk(index),
            Event::Agree(index) => {
                let count = 1 + self.schedule.below(self.node.proposed(index));
                self.node.agree(index, count);
            }
            Event::Link(index) => self.node.step_link(index, &mut self.network),
            Event::CommandLink(site) => self.node.step_command_link(site, &mut self.network),
            Event::Send(index) => {
                let Peer { client, connection, .. } = &mut self.peers[index];
                if let Some(socket) = self.node.socket(*connection) {
                    client.send(&mut self.schedule, &mut socket.to_server);
                }
            }
            Event::Read(index) => self.read(index)?,
            Event::Act(index) => {
                let mut world = World {
                    shadow: &mut self.shadow,
                    random: &mut self.work,
                    next_publisher: &mut self.next_publisher,
                    now: self.now,
                };
                self.peers[index].client.act(self.mood, &mut world);
            }
        }
        Ok(())
    }

    pub(crate) fn turn(&mut self, actor: Actor) -> Check {
        let Self { node, now, schedule, watch, shadow, .. } = self;
        let before = node.letters_to_meta();
        checks::turn(node, actor, *now, schedule, watch, shadow)?;
        if matches!(actor, Actor::Shard(_)) {
            self.note_votes(before);
        }
        let Self { node, watch, shadow, policies, .. } = self;
        for is_done in watch.operator_told.drain(..) {
            policies.answered(is_done, node.topology());
        }
        for told in watch.mover_told.drain(..) {
            if let Some((group, letter)) = self.mover.answered(&told, node.topology())? {
                node.tell_shard(group.index(), letter);
            }
            shadow.totals.moved = self.mover.done;
        }
        Ok(())
    }

    /// What a shard just said of a transaction may come again, at any time. So many letters were there before.
    fn note_votes(&mut self, before: usize) {
        let twice = self.options.faults.twice;
        if twice == 0 || self.mood != Mood::Storm {
            return;
        }
        for vote in self.node.votes(before) {
            if self.faults.one_in(twice) {
                self.again.push(vote);
            }
        }
    }

    /// A letter comes for the second time.
    fn say_again(&mut self, index: usize) {
        let letter = self.again.swap_remove(index);
        self.trace.event([10, index as u64, 0], || format!("again: {letter:?}"));
        self.shadow.totals.said_again += 1;
        self.node.tell_meta(letter);
    }

    fn find_ready(&mut self, acts: bool) -> Check {
        let Self { node, peers, ready, actors, disks, .. } = self;
        peers.iter_mut().for_each(|peer| peer.client.beat(self.now));
        ready.clear();
        actors.clear();
        node.ready(self.now, actors);
        ready.extend(actors.drain(..).map(Event::Turn));
        ready.extend(node.ready_links().map(Event::Link));
        ready.extend(node.ready_command_links().map(Event::CommandLink));
        ready.extend(disks.iter().flat_map(|disks| disks.ready(self.now)).map(Event::Disk));
        for (index, Peer { client, connection, stalled_until, is_forced }) in
            peers.iter_mut().enumerate()
        {
            let Some(socket) = node.socket(*connection) else { continue };
            if socket.is_closed && socket.to_client.is_empty() {
                // One that was told to go may be too slow with its answer.
                if !*is_forced && client.state != ConnectionState::Answering {
                    return Err(format!(
                        "the broker hung up on client {}: {client:?}",
                        client.name
                    ));
                }
                client.state = ConnectionState::Closed;
                continue;
            }
            let may_send = socket.to_server.len() < SENDING_MAX;
            if may_send && client.has_output() {
                ready.push(Event::Send(index));
            }
            if !socket.to_client.is_empty() && *stalled_until <= self.now {
                ready.push(Event::Read(index));
            }
            if acts
                && may_send
                && client.state == ConnectionState::Open
                && client.wants_to_act(self.mood)
            {
                ready.push(Event::Act(index));
            }
        }
        self.find_disputed();
        Ok(())
    }

    /// Logs of which some more may be agreed upon. Others are slow with that now and then.
    fn find_disputed(&mut self) {
        let is_slow = self.options.agreed.is_cut() && (self.step / SLOW_STEPS).is_multiple_of(2);
        if self.options.agreed == Agreed::AtOnce || is_slow && !self.ready.is_empty() {
            return;
        }
        let logs = 0..=self.options.shards;
        let disputed = logs.filter(|&index| self.node.proposed(index) > 0);
        self.ready.extend(disputed.map(Event::Agree));
    }

    pub(crate) fn read(&mut self, index: usize) -> Check {
        let Peer { client, connection, .. } = &mut self.peers[index];
        let Some(socket) = self.node.socket(*connection) else { return Ok(()) };
        let count = self.schedule.part(socket.to_client.len());
        let bytes: Vec<u8> = socket.to_client.drain(..count).collect();
        self.trace.bytes(&bytes);
        let mut world = World {
            shadow: &mut self.shadow,
            random: &mut self.work,
            next_publisher: &mut self.next_publisher,
            now: self.now,
        };
        client.read(&bytes, &mut world)
    }

    /// Forgets connections that are over on both sides.
    fn bury(&mut self) {
        let Self { node, peers, silent, shadow, .. } = self;
        silent.retain(|&connection| {
            let Some(socket) = node.socket(connection) else { return false };
            socket.is_reset = socket.is_closed;
            shadow.totals.found_dead += u64::from(socket.is_closed);
            !socket.is_closed
        });
        peers.retain(|Peer { client, connection, .. }| {
            if !client.is_over() {
                return true;
            }
            if let Some(socket) = node.socket(*connection) {
                socket.is_reset = true;
            }
            false
        });
        node.bury();
    }

    /// Moves the clock: a little, or to the next thing that waits for it.
    fn pass_time(&mut self, nothing_else: bool) {
        let beats = self.peers.iter().map(|peer| &peer.client);
        let beats = beats.filter(|client| client.heartbeat_s > 0).map(|client| client.beat_at);
        let stalls = self.peers.iter().map(|peer| peer.stalled_until);
        let wake = beats.chain(stalls).filter(|&at| at > self.now).min();
        let disk = self.disks.as_ref().and_then(Disks::next);
        let other = disk.into_iter().chain(self.full_until);
        let next = self.node.next_timeout().into_iter().chain(wake).chain(other).min();
        let step = self.now.after_ms(self.schedule.below(10) as u64);
        self.now = match next {
            Some(at) if nothing_else => at.clamp(self.now, self.now.after_ms(JUMP_MS_MAX)),
            _ => step,
        };
        self.trace.event([3, self.now.ms(), 0], || format!("it is {}", self.now.ms() - START_MS));
    }
}

/// The letter that makes a session close its connection.
pub(crate) fn forced(why: &str) -> ToSession {
    ToSession::Close { code: ReplyCode::ConnectionForced, text: why.to_owned() }
}

impl Event {
    fn numbers(self) -> [u64; 3] {
        match self {
            Self::Turn(Actor::Meta) => [10, 0, 0],
            Self::Turn(Actor::Shard(index)) => [11, index as u64, 0],
            Self::Turn(Actor::Connection(id)) => [12, id.bits(), 0],
            Self::Send(index) => [13, index as u64, 0],
            Self::Read(index) => [14, index as u64, 0],
            Self::Act(index) => [15, index as u64, 0],
            Self::Disk(index) => [16, index as u64, 0],
            Self::Agree(index) => [17, index as u64, 0],
            Self::Link(index) => [18, index as u64, 0],
            Self::CommandLink(site) => [19, site as u64, 0],
        }
    }
}
