//! What must always hold, for tests and the simulator.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::binding::Target;
use crate::pattern::Effort;
use crate::policy;
use crate::topology::Topology;
use crate::weight::Weigh;

impl Topology {
    /// Panics when an invariant is broken. The cost is that of looking at everything.
    pub fn assert_invariants(&self) {
        self.assert_structure();
        self.assert_policies();
    }

    /// As [`assert_invariants`](Self::assert_invariants), but for what does not hold while a policy is being changed.
    pub fn assert_structure(&self) {
        self.assert_names();
        self.assert_bindings();
        self.assert_weight();
    }

    /// What is counted as names come and go is what they weigh.
    fn assert_weight(&self) {
        let queues = self.queues.values().map(Weigh::weight).sum::<u64>();
        let exchanges = self.exchanges.values().map(Weigh::weight).sum::<u64>();
        let bindings = self.bindings.iter().map(Weigh::weight).sum::<u64>();
        let of_vhosts = self.vhosts.values().map(|it| it.settings_weight()).sum::<u64>();
        let global = self.global_parameters.values().map(Weigh::weight).sum::<u64>();
        assert_eq!(self.weight(), queues + exchanges + bindings + of_vhosts + global);
    }

    /// What is found by name is found by id, and the other way round; names are kept once.
    fn assert_names(&self) {
        let (mut queues, mut exchanges) = (0, 0);
        for vhost in self.vhosts() {
            for (name, id) in &vhost.queues {
                let queue = self.queue_by_id(*id).expect("a named queue exists");
                assert!(Arc::ptr_eq(name, &queue.name), "queue {name} has its name twice");
                assert_eq!(queue.vhost, vhost.id);
                let owned =
                    queue.exclusive_owner.is_none_or(|owner| self.owned[&owner].contains(id));
                assert!(owned, "queue {name} is not among its owner's");
            }
            for (name, id) in &vhost.exchanges {
                let exchange = self.exchange_by_id(*id).expect("a named exchange exists");
                assert!(Arc::ptr_eq(name, &exchange.name), "exchange {name} has its name twice");
                assert_eq!(exchange.vhost, vhost.id);
            }
            assert_eq!(vhost.exchange_id(""), Some(vhost.default_exchange));
            queues += vhost.queues.len();
            exchanges += vhost.exchanges.len();
        }
        let is_there = |vhost| self.vhost_by_id(vhost).is_some();
        let all = self.queues.values().filter(|it| !it.is_going && is_there(it.vhost)).count();
        assert_eq!(queues, all, "a queue has no name");
        let all = self.exchanges.values().filter(|it| !it.is_going && is_there(it.vhost)).count();
        assert_eq!(exchanges, all, "an exchange has no name");
        let going: BTreeSet<_> =
            self.queues.values().filter(|it| it.is_going).map(|it| it.id).collect();
        assert_eq!(self.going.queues, going);
        let going: BTreeSet<_> =
            self.exchanges.values().filter(|it| it.is_going).map(|it| it.id).collect();
        assert_eq!(self.going.exchanges, going);
        let owned = self.queues.values().filter(|queue| queue.exclusive_owner.is_some()).count();
        assert_eq!(owned, self.owned.values().map(BTreeSet::len).sum::<usize>());
    }

    /// Every binding is where it believes to be in both lists, can be found, and nothing else is listed.
    fn assert_bindings(&self) {
        let mut count = 0;
        for (ix, entry) in self.bindings.entries() {
            count += 1;
            let binding = &entry.binding;
            let source = self.exchanges.get(&binding.source).expect("a binding's source exists");
            assert_eq!(source.outgoing.get(entry.at_source as usize), Some(&ix));
            let incoming = match binding.target {
                Target::Queue(id) => &self.queues.get(&id).expect("its queue exists").incoming,
                Target::Exchange(id) => {
                    &self.exchanges.get(&id).expect("its exchange exists").incoming
                }
            };
            assert_eq!(incoming.get(entry.at_target as usize), Some(&ix));
            assert_eq!(self.bindings.find(binding), Some(ix));
        }
        let queues = self.queues.values().map(|queue| queue.incoming.len());
        let exchanges = self.exchanges.values().map(|exchange| exchange.incoming.len());
        assert_eq!(count, queues.chain(exchanges).sum::<usize>());
        assert_eq!(count, self.exchanges.values().map(|x| x.outgoing.len()).sum::<usize>());
        assert_eq!(count, self.binding_count());
    }

    /// Everything has the policies that match it best now.
    fn assert_policies(&self) {
        for queue in self.queues.values().filter(|it| !it.is_going) {
            let vhost = self.vhost_even_going(queue.vhost).expect("a queue's vhost exists");
            let mut effort = Effort::new(true);
            let want = policy::of_queue(vhost, &queue.name, queue.kind, &mut effort);
            let is_unmatched = effort.dear > 0 && vhost.unmatched_names > 0;
            assert!(is_unmatched || want.is(&queue.policies), "queue {}: {want:?}", queue.name);
        }
        for exchange in self.exchanges.values().filter(|it| !it.is_going) {
            let vhost = self.vhost_even_going(exchange.vhost).expect("an exchange's vhost exists");
            let mut effort = Effort::new(true);
            let want = policy::of_exchange(vhost, exchange, &mut effort);
            let is_unmatched = effort.dear > 0 && vhost.unmatched_names > 0;
            let is_it = is_unmatched || want.is(&exchange.policies);
            assert!(is_it, "exchange {}: {want:?}", exchange.name);
        }
    }
}
