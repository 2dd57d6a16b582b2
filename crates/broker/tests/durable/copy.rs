//! A copy of the names that follows the log of another node, and takes over from it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use leveret_broker::Meta;
use leveret_broker::message::Outbox;
use leveret_broker::meta::NamesFollower;
use leveret_log::file::BatchContents;
use leveret_log::{BatchName, Holder, Offset};
use leveret_topology::{Homes, Topology, VhostId};

use crate::log::HandLog;
use crate::random::Rng;
use crate::{SHARDS, World};

/// Who follows, and what the log had on the disk when it was last looked at.
pub(crate) struct Copy {
    follower: NamesFollower,
    pub(crate) topology: Topology,
    disk: BTreeMap<u64, Vec<u8>>,
    name: BatchName,
}

impl Copy {
    /// It begins with what the log has: half of it is told as found, half as batches, some of which takes away what was never found.
    pub(crate) fn of(log: &HandLog, rng: &mut Rng) -> Self {
        let homes = Homes::among(SHARDS as u32);
        let mut follower = NamesFollower::new(homes);
        let (name, mut topology) = (BatchName { number: 1, term: 1 }, Topology::new());
        let disk = log.hand().bytes_on_disk();
        let (found, later): (Vec<_>, Vec<_>) = records(&disk).partition(|_| rng.at(2) == 0);
        follower.found(found);
        let released = vec![(Offset::new(1 << 40), Holder::new(0))];
        let batch = BatchContents { name, records: later, released, ..BatchContents::default() };
        follower.batch(&batch, &mut topology).unwrap();
        assert!(!follower.is_whole());
        let topology = follower.whole(name).unwrap().expect("a topology");
        let copy = Self { follower, topology, disk, name };
        copy.check(log);
        copy
    }

    /// What came to the disk since is the next batch. Some of it was there before, and nobody knew whether it stays.
    pub(crate) fn follow(&mut self, log: &HandLog, rng: &mut Rng) {
        let disk = log.hand().bytes_on_disk();
        if disk == self.disk {
            return;
        }
        let new = records(&disk).filter(|(at, _)| !self.disk.contains_key(&at.get()));
        let (records, volatile): (Vec<_>, Vec<_>) = new.partition(|_| rng.at(8) > 0);
        let released = self.disk.keys().filter(|at| !disk.contains_key(at));
        let released = released.map(|&at| (Offset::new(at), Holder::new(0))).collect();
        let persisted = volatile.iter().map(|(at, _)| *at).collect();
        for batch in [
            BatchContents { volatile, ..BatchContents::default() },
            BatchContents { records, persisted, released, ..BatchContents::default() },
        ] {
            self.name.number += 1;
            let batch = BatchContents { name: self.name, ..batch };
            self.follower.batch(&batch, &mut self.topology).unwrap();
        }
        assert_eq!(self.follower.up_to(), self.name);
        self.disk = disk;
        if rng.at(3) == 0 {
            self.check(log);
        }
    }

    /// It is what a start reads.
    fn check(&self, log: &HandLog) {
        let (_, read) = read(log);
        let [got, want] = [self.topology.describe_durable(), read.describe_durable()];
        let [got, want]: [BTreeSet<_>; 2] = [&got, &want].map(|text| text.lines().collect());
        let more: Vec<_> = got.difference(&want).take(5).collect();
        let less: Vec<_> = want.difference(&got).take(5).collect();
        assert!(more.is_empty() && less.is_empty(), "more: {more:#?}\nless: {less:#?}");
        assert_eq!(self.topology.next_ids(), read.next_ids());
        assert_eq!(self.topology.weight(), read.weight());
        self.topology.assert_invariants();
        assert!(!self.topology.has_changes());
    }

    /// The node that had the names ends, and this one goes on.
    pub(crate) fn take_over(self, log: &HandLog) -> World {
        let log = log.crash();
        let Self { follower, mut topology, .. } = self;
        let copy = follower.into_copy().expect("it is whole");
        let mut meta = Meta::take_over(log.clone(), copy, &mut topology).unwrap();
        let disk = log.clone();
        meta.promise(&mut topology, &mut || assert!(disk.hand().finish_any())).unwrap();
        let vhost = topology.vhost("/").map_or(VhostId::new(0), |vhost| vhost.id);
        World { log, meta, topology, out: Outbox::default(), vhost }
    }
}

fn read(log: &HandLog) -> (Meta<HandLog>, Topology) {
    let log = log.crash();
    let disk = log.clone();
    let wait = &mut || assert!(disk.hand().finish_any());
    Meta::read(Homes::among(SHARDS as u32), log, wait).unwrap()
}

fn records(disk: &BTreeMap<u64, Vec<u8>>) -> impl Iterator<Item = (Offset, Bytes)> {
    disk.iter().map(|(&at, bytes)| (Offset::new(at), Bytes::copy_from_slice(bytes)))
}
