//! How the broker goes and comes back in the middle of a simulation, and what must be true then.

use leveret_broker::flow::Alarm;
use leveret_broker::message::{ConnectionId, NodeId, ToMeta, ToShard};
use leveret_broker::{Meta, Shard};
use leveret_log::disk::Faults as DiskFaults;
use leveret_log::file::match_up;
use leveret_node::stop::{Next, PutAway, Stopping};

use crate::disk::{DiskOwner, Ending, Store};
use crate::life;
use crate::node::Actor;
use crate::plan;
use crate::shadow::Check;
use crate::sim::{Faults, Sim, forced};

/// Steps after which a rest is given up.
const REST_STEPS: u32 = 2_000;

/// Operations of each disk within which a node must be able to write what it has to.
const STOP_STEPS_MAX: u32 = 100_000;

/// How often it is quiet then, with a while between.
const REST_TIMES: u32 = 5;

/// Steps that it takes to fill the queues, about.
const FILL_STEPS: usize = 50;

/// Steps that clients have to answer when the broker stops.
const PATIENCE_STEPS: usize = 300;

impl Sim {
    /// What may befall disks and the process.
    pub(crate) fn disk_fault(&mut self) -> Check {
        let Faults { kill, power, stop, lose, slow, full, fail, rest, .. } = self.options.faults;
        if !self.node.is_filled() && self.starts.one_in(FILL_STEPS) {
            self.fill()?;
        }
        if self.full_until.is_some_and(|until| until <= self.now) {
            self.mend_disks();
        }
        // Whoever runs the process starts it again, some time after.
        if self.node.failure().is_some() && self.faults.one_in(30) {
            let powers_off = self.faults.one_in(2);
            self.crash(if powers_off { Ending::PowerCut } else { Ending::Killed })?;
        }
        if full > 0 && self.faults.one_in(full) {
            self.fill_a_disk();
        }
        if fail > 0 && self.faults.one_in(fail) {
            self.break_a_disk();
        }
        if rest > 0 && self.faults.one_in(rest) {
            self.rest()?;
        }
        if slow > 0 && self.faults.one_in(slow) {
            let until = self.now.after_ms(self.faults.below(400) as u64);
            if let Some(disks) = &mut self.disks {
                let index = self.faults.below(disks.count());
                self.trace
                    .event([20, index as u64, until.ms()], || format!("disk {index} is slow"));
                disks.slow_down(index, until);
            }
        }
        if kill > 0 && self.faults.one_in(kill) {
            self.crash(Ending::Killed)?;
        }
        if power > 0 && self.faults.one_in(power) {
            self.crash(Ending::PowerCut)?;
        }
        if stop > 0 && self.faults.one_in(stop) && !self.shadow.has_trouble {
            self.stop()?;
        }
        if lose > 0 && self.options.agreed.is_cut() && self.faults.one_in(lose) {
            self.lose()?;
        }
        Ok(())
    }

    /// Some shards lose what their logs have that was not agreed upon, and go on. With links nobody notices but for a pause. Without,
    /// whoever is connected is cut off: he cannot know what is there of what he did.
    fn lose(&mut self) -> Check {
        if self.shadow.has_trouble || self.node.failure().is_some() || self.full_until.is_some() {
            return Ok(());
        }
        self.fill()?;
        let shards = self.options.shards;
        let proposed: usize = (0..shards).map(|index| self.node.proposed(index)).sum();
        self.trace
            .event([27, proposed as u64, 0], || "shards lose the ends of their logs".to_owned());
        let has_links = self.options.has_links;
        let mut cut = Vec::new();
        if has_links {
            self.shadow.totals.spared += self.peers.len() as u64;
        } else {
            cut.extend(self.peers.drain(..).map(|peer| peer.connection));
            cut.append(&mut self.silent);
        }
        for connection in cut {
            if let Some(socket) = self.node.socket(connection) {
                socket.is_reset = true;
                socket.to_server.clear();
                socket.to_client.clear();
            }
        }
        let (mistake, _) = life::mistakes(self.options.agreed);
        for (index, image) in self.node.agreed_images().into_iter().take(shards).enumerate() {
            // Each group has members of its own: the others go on as they were.
            if self.faults.one_in(2) {
                continue;
            }
            let (Some(disks), Some(image)) = (&self.disks, image) else { return Ok(()) };
            let mut logs = vec![disks.cut(index, &image, &mut self.storage)?];
            match_up(&mut logs, &[]);
            let Some(log) = logs.pop() else { return Ok(()) };
            let mut log = Store::on_disk(log);
            log.agree_later(mistake, true);
            let restored = self.node.lose(index, log, self.now);
            let Some(restored) = restored.filter(|it| it.damaged == 0) else {
                return Err(format!("shard {index} finds damaged records"));
            };
            let late = self.node.shard_mut(index).map_or(0, |it| it.late_messages());
            self.shadow.totals.late += late;
            let keeps_flights = self.faults.one_in(2);
            self.node.begin_links(index, true, keeps_flights);
            self.node.attach(index, |_| true);
            let counters = self.node.shard_mut(index).map(|it| it.counters()).unwrap_or_default();
            let came = counters.enqueued + counters.refused - counters.unstored;
            let out = counters.acked + counters.dead_lettered + counters.dropped + counters.moved;
            if self.watch.restored.len() < shards {
                self.watch.restored.resize(shards, 0);
            }
            self.watch.restored[index] = (restored.messages + out).wrapping_sub(came);
            if let Some(marks) = self.watch.marks.get_mut(index) {
                *marks = [0; 3];
            }
        }
        self.shadow.lost(has_links);
        Ok(())
    }

    /// The process ends here and now, and is started again.
    pub(crate) fn crash(&mut self, how: Ending) -> Check {
        self.trace.event([21, how as u64, 0], || format!("the broker ends: {how:?}"));
        // What was on the way to a client may come yet.
        for index in 0..self.peers.len() {
            if self.faults.one_in(2) && self.has_to_read(index) {
                self.read(index)?;
            }
        }
        self.start_again(how)
    }

    /// The broker is told to stop: clients are sent away, what is to be done is done, and it is written
    /// down that all is.
    fn stop(&mut self) -> Check {
        self.trace.event([22, 0, 0], || "the broker stops".to_owned());
        // What may have been delivered is written down for all.
        self.fill()?;
        for _ in 0..STOP_STEPS_MAX {
            if !self.node.is_attaching() {
                break;
            }
            self.one(false)?;
        }
        for peer in &mut self.peers {
            peer.is_forced = true;
            self.node.tell(peer.connection, forced("shutdown"));
        }
        for _ in 0..self.faults.below(PATIENCE_STEPS) {
            self.one(false)?;
        }
        // Those who did not answer are cut off; that of some is not even noticed.
        for peer in &self.peers {
            if self.faults.one_in(2)
                && let Some(socket) = self.node.socket(peer.connection)
            {
                socket.is_reset = true;
                socket.to_server.clear();
                socket.to_client.clear();
            }
        }
        let noticed: Vec<_> = self.peers.iter().map(|peer| peer.connection).collect();
        let noticed = noticed
            .into_iter()
            .filter(|&id| self.node.socket(id).is_none_or(|socket| socket.is_reset));
        let noticed: Vec<_> = noticed.collect();
        self.write_all(noticed)?;
        self.node.is_followed()?;
        let before = self.node.topology().describe_durable();
        let is_off = self.faults.one_in(2);
        self.start_again(if is_off { Ending::SwitchedOff } else { Ending::Clean })?;
        let after = self.node.topology().describe_durable();
        if before != after {
            return Err(format!("names before a stop:\n{before}\nand after it:\n{after}"));
        }
        Ok(())
    }

    /// What is under way arrives, and all is written down: as in the server. Of the connections only these have turns.
    fn write_all(&mut self, noticed: Vec<ConnectionId>) -> Check {
        let mut stop = PutAway::default();
        let mut stopped = StoppingSim { sim: self, noticed, result: Ok(()) };
        for step in 0..STOP_STEPS_MAX {
            if step == REST_STEPS && stop == PutAway::Departing {
                stop.give_up_departing(&mut stopped);
            }
            let done = stop.round(&mut stopped).map_err(|error| error.to_string())?;
            std::mem::replace(&mut stopped.result, Ok(()))?;
            if done == Next::Done {
                return Ok(());
            }
            stopped.sim.step_disks();
            stopped.sim.agree_all();
        }
        Err("a stop does not come to an end".to_owned())
    }

    fn agree_all(&mut self) {
        (0..=self.options.shards).for_each(|index| self.node.agree(index, usize::MAX));
    }

    /// There is little room left on a disk, for a while.
    fn fill_a_disk(&mut self) {
        let Some(disks) = &self.disks else { return };
        let index = self.faults.below(disks.count());
        let disk = disks.disk(index);
        let capacity = Some(disk.used() + self.faults.below(8 << 10) as u64);
        disk.sim().set_faults(DiskFaults { capacity, ..DiskFaults::default() });
        let until = self.now.after_ms(self.faults.below(3_000) as u64);
        self.trace.event([24, index as u64, until.ms()], || format!("disk {index} gets full"));
        self.full_until = Some(until);
        self.shadow.set_trouble(true);
        self.shadow.totals.full += 1;
    }

    /// The next write to a disk fails, or its sync.
    fn break_a_disk(&mut self) {
        let Some(disks) = &self.disks else { return };
        let index = self.faults.below(disks.count());
        let fail_sync = self.faults.one_in(2);
        let faults = DiskFaults { fail_sync, fail_write: !fail_sync, ..DiskFaults::default() };
        disks.disk(index).sim().set_faults(faults);
        self.trace.event([25, index as u64, 0], || format!("disk {index} fails"));
        self.shadow.set_trouble(true);
        self.shadow.totals.failed += 1;
    }

    fn mend_disks(&mut self) {
        self.full_until = None;
        if let Some(disks) = &self.disks {
            disks.all().for_each(|disk| disk.sim().set_faults(DiskFaults::default()));
        }
    }

    /// No more faults. A broker that has given up is started again.
    pub(crate) fn heal(&mut self) -> Check {
        self.fill()?;
        self.mend_disks();
        // What failed on a disk is known only once its owner has looked.
        self.work_off(&[])?;
        if self.node.failure().is_some() { self.crash(Ending::PowerCut) } else { Ok(()) }
    }

    /// How often all disks have written.
    fn writes(&self) -> u64 {
        let disks = self.disks.iter().flat_map(|disks| disks.all());
        disks.map(|disk| disk.sim().work().writes).sum()
    }

    /// Clients do nothing until nobody has anything to do, and then for long enough that all of it is on
    /// the disks: from then on no crash undoes a settlement.
    fn rest(&mut self) -> Check {
        self.fill()?;
        let mut is_still = false;
        for _ in 0..REST_TIMES {
            let before = (self.writes(), self.shadow.totals.given);
            let mut is_quiet = false;
            for _ in 0..REST_STEPS {
                is_quiet = !self.one(false)?;
                if is_quiet {
                    break;
                }
            }
            let is_well = self.node.failure().is_none() && self.full_until.is_none();
            // Whoever waits for a slow disk, or for others, to close his connection waits only so long.
            let is_talked_to = self.peers.iter().any(|peer| peer.is_talked_to(&self.node));
            if !is_quiet || !is_well || !self.node.is_idle() || is_talked_to {
                return Ok(());
            }
            self.now = self.now.after_ms(500);
            // What was given out just now may be settled with it, and the disk hears of that a moment later.
            is_still = (self.writes(), self.shadow.totals.given) == before;
        }
        // What timers began late goes on.
        if !is_still {
            return Ok(());
        }
        let disks = self.disks.iter().flat_map(|disks| disks.all());
        if disks.into_iter().all(|disk| disk.is_idle()) {
            self.trace.event([26, 0, 0], || "all is on the disks".to_owned());
            self.shadow.all_is_on_disk();
            if self.shadow.has_trouble {
                self.mend_disks();
                self.shadow.set_trouble(false);
            }
            self.node.is_followed()?;
            self.shadow.totals.rests += 1;
        }
        Ok(())
    }

    /// Lets shards, the names' owner and these connections work until they have nothing to do.
    fn work_off(&mut self, connections: &[ConnectionId]) -> Check {
        let mut ready = Vec::new();
        loop {
            self.node.flush_links();
            self.node.ready(self.now, &mut ready);
            ready.retain(|actor| match actor {
                Actor::Connection(id) => connections.contains(id),
                Actor::Shard(_) | Actor::Meta => true,
            });
            if ready.is_empty() {
                return Ok(());
            }
            for actor in ready.drain(..) {
                self.turn(actor)?;
            }
        }
    }

    /// Every disk does one thing, and tells it.
    fn step_disks(&mut self) {
        let count = self.disks.as_ref().map_or(0, |disks| disks.count());
        (0..count).for_each(|index| self.step_disk(index));
    }

    /// A disk does one thing, and tells it.
    pub(crate) fn step_disk(&mut self, index: usize) {
        let Some(disks) = &self.disks else { return };
        disks.disk(index).step();
        match disks.owner(index) {
            DiskOwner::Shard(index) => self.node.tell_shard(index, ToShard::LogWoke),
            DiskOwner::Names => self.node.tell_meta(ToMeta::LogWoke),
        }
    }

    fn start_again(&mut self, how: Ending) -> Check {
        self.mend_disks();
        let Some(disks) = &mut self.disks else { return Ok(()) };
        disks.end(how);
        let is_clean = matches!(how, Ending::Clean | Ending::SwitchedOff);
        if !is_clean {
            if self.options.agreed.is_cut() {
                let proposed = (0..=self.options.shards).map(|index| self.node.proposed(index));
                self.shadow.totals.cuts += u64::from(proposed.sum::<usize>() > 0);
            }
            for (index, image) in self.node.agreed_images().into_iter().enumerate() {
                image.into_iter().for_each(|image| disks.put_back(index, image));
            }
        }
        let outlives = !is_clean && self.options.has_second;
        let stays = |id: ConnectionId| outlives && id.node() != NodeId::ALONE;
        self.peers.retain(|peer| stays(peer.connection));
        self.silent.retain(|&id| stays(id));
        self.shadow.totals.outlived += self.peers.len() as u64;
        self.again.clear();
        let shards = self.options.shards;
        let seen_below: Option<Vec<_>> =
            is_clean.then(|| self.node.shards().map(|shard| shard.seen_below()).collect());
        let seen_below = seen_below.as_deref();
        let (mut node, past) =
            life::start(self.options, Some(disks), seen_below, &mut self.storage, self.now)?;
        if is_clean && let Some(others) = self.node.queues_without_us() {
            let own = node.queue_names();
            if own != others {
                return Err(format!("after a stop queues are {own:?}, others have {others:?}"));
            }
        }
        std::mem::swap(&mut self.node, &mut node);
        let closed = self.node.go_on_after(node, outlives);
        let closed = closed.map_err(|error| format!("names by changes alone: {error}"))?;
        for peer in &mut self.peers {
            peer.is_forced |= closed.contains(&peer.connection);
            peer.client.outlives_its_leader(&self.shadow);
        }
        if std::mem::take(&mut self.is_alarmed) {
            self.node.set_alarm(Alarm::default());
        }
        self.node.is_followed()?;
        self.shadow.restarted(is_clean, outlives);
        self.shadow.totals.power_cuts += u64::from(how == Ending::PowerCut);
        self.watch.marks = vec![[0; 3]; shards];
        self.watch.restored = Vec::new();
        self.past = Some(past);
        // Clients come in before the queues are filled, or not.
        if self.starts.one_in(2) {
            self.fill()?;
        }
        self.policies.restarted(self.node.topology())?;
        self.mover.restarted();
        self.names_are_back(outlives)
    }

    /// Fills the queues, if they are not: the shards have turns from now on.
    pub(crate) fn fill(&mut self) -> Check {
        let Some(past) = self.past.take() else { return Ok(()) };
        let restored = life::fill(&mut self.node, &past);
        self.shadow.totals.late += self.node.shards_mut().map(|it| it.late_messages()).sum::<u64>();
        self.watch.restored = restored.iter().map(|one| one.messages).collect();
        for one in &restored {
            self.shadow.totals.restored += one.messages;
            if one.damaged > 0 {
                return Err(format!("damaged records: {one:?}"));
            }
        }
        self.trace.event([23, self.shadow.totals.restored, 0], || format!("{restored:?}"));
        Ok(())
    }

    /// What was declared is there; what was to go with its connection or with the process is not.
    fn names_are_back(&mut self, outlives: bool) -> Check {
        let topology = self.node.topology();
        let vhost = topology.vhost("/").ok_or("the vhost is gone")?.id;
        for queue in topology.queues(vhost) {
            if !queue.durable || queue.exclusive_owner.is_some() {
                return Err(format!("{} survived a restart", queue.name));
            }
        }
        for kind in plan::queues() {
            let queue = topology.queue(vhost, &kind.name);
            let queue = queue.ok_or_else(|| format!("queue {} is gone", kind.name))?;
            if queue.arguments.to_bytes() != kind.arguments.to_bytes() {
                return Err(format!("{} has other arguments", kind.name));
            }
        }
        for (name, kind) in plan::EXCHANGES {
            let exchange = topology.exchange(vhost, name);
            if exchange.is_none_or(|exchange| exchange.kind.to_string() != kind) {
                return Err(format!("exchange {name} is gone"));
            }
        }
        let bindings = topology.binding_count();
        if bindings != plan::BINDINGS.len() {
            return Err(format!("{bindings} bindings, {} were made", plan::BINDINGS.len()));
        }
        self.shadow.kept_is_back(outlives, |name| topology.queue(vhost, name).is_some())
    }

    fn has_to_read(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers.get(index) else { return false };
        self.node.socket(peer.connection).is_some_and(|socket| !socket.to_client.is_empty())
    }
}

/// A simulation whose broker stops.
struct StoppingSim<'a> {
    sim: &'a mut Sim,
    /// Connections that have turns.
    noticed: Vec<ConnectionId>,
    /// What turns came to.
    result: Check,
}

impl StoppingSim<'_> {
    fn work_off(&mut self) {
        if self.result.is_ok() {
            self.result = self.sim.work_off(&self.noticed);
        }
    }
}

impl Stopping for StoppingSim<'_> {
    type Log = Store;

    fn shards(&self) -> usize {
        self.sim.options.shards
    }

    fn shard<T>(&mut self, index: usize, look: impl FnOnce(&mut Shard<Store>) -> T) -> T {
        look(self.sim.node.shard_mut(index).expect("an index below the number of shards"))
    }

    fn meta<T>(&mut self, look: impl FnOnce(&mut Meta<Store>) -> T) -> T {
        look(self.sim.node.meta_mut())
    }

    fn run_shard(&mut self, index: usize, letter: ToShard) {
        self.sim.node.tell_shard(index, letter);
        self.work_off();
    }

    fn run_meta(&mut self, letter: ToMeta) {
        self.sim.node.tell_meta(letter);
        self.work_off();
    }
}
