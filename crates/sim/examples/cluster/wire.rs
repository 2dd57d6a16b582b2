//! Letters between nodes are bytes on their way.

use leveret_broker::message::{FromLeader, ToLeader};
use leveret_link::letters::{read_from_leader, read_to_leader, write_from_leader, write_to_leader};
use leveret_link::payload::Writer;

pub(crate) fn to_leader(letter: ToLeader) -> ToLeader {
    let bytes = write_to_leader(&letter, &mut Writer::default()).expect("it goes to a leader");
    read_to_leader(&bytes).unwrap_or_else(|error| panic!("{error}: {letter:?}"))
}

pub(crate) fn from_leader(letter: FromLeader) -> FromLeader {
    let bytes = write_from_leader(&letter, &mut Writer::default()).expect("it goes to a node");
    read_from_leader(&bytes).unwrap_or_else(|error| panic!("{error}: {letter:?}"))
}
