//! Mistakes made on purpose: the world finds each within the seeds of an ordinary run.
//!
//! One it does not: copies of batches of an earlier term that are counted. A thousand seeds have none in which such a batch is
//! lost again; `pitfalls` has the case that the Raft paper gives.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::seeds::SEEDS;
use super::world::{Planted, World};

/// How many seeds it takes to find it, and what is found.
fn found(planted: Planted) -> (u64, String) {
    for seed in 0..SEEDS {
        // The engine and the log stop at what cannot be.
        let run = AssertUnwindSafe(|| World::new(seed, planted).run());
        match catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(what)) => return (seed + 1, what),
            Err(_) => {
                return (
                    seed + 1,
                    "stopped by a check in the replica, its engine or its log".into(),
                );
            }
        }
    }
    panic!("{planted:?} is not found by {SEEDS} seeds");
}

macro_rules! planted {
    ($($name:ident $planted:ident,)*) => {
        $(
            #[test]
            fn $name() {
                let (seeds, what) = found(Planted::$planted);
                eprintln!("{}: {seeds} seeds: {what}", stringify!($name));
            }
        )*
    };
}

planted! {
    a_word_that_is_not_synced WordNotSynced,
    a_batch_that_is_not_synced BatchNotSynced,
    a_batch_stored_by_number StoredByNumber,
    a_wiped_member_that_keeps_its_id WipedKeepsItsId,
    a_cut_of_what_is_equal CutThoughEqual,
    a_heartbeat_above_the_log AgreedAboveLog,
    a_mark_that_is_not_asked MarkIgnored,
    a_lease_that_counts_from_the_answer LeaseFromAnswer,
}
