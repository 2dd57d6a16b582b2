//! Which leader sessions of several nodes had last: a record of the log of names.
//!
//! A leader forgets the streams of nodes that it does not see, and what was in no batch is gone with the leader before: the offset of a
//! message may be another one's in its term. So what a node has that it did not hear counts for nothing at the one after it, which has
//! to know. A leader notes its term before it has anything given out, and whose sessions it waits for, and that is agreed upon; and later
//! whose sessions are over with it, as what they held is given to others. See `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use leveret_log::{AppendError, Log, Offset};
use leveret_queue::Offset as MessageOffset;
use leveret_topology::{NodeId, Topology};

use super::Meta;
use super::saved::SaveError;
use crate::command::CommandStream;

/// The head of a record: a kind that no thing of the topology has.
pub(super) const TERM_HEAD: [u8; 2] = [2, 66];

/// That of records which say only which sessions are over.
pub(super) const EARLIER_TERM_HEAD: [u8; 2] = [1, 66];

/// A record of the log of names: in this term messages were given out, or were about to be, and those processes' sessions are over.
///
/// ```text
///  0      8        12            16
///  | term | shards | count, over | node | start | ... | node | start | below | below | ... | ...
///                                  those that are over  those that are awaited, with an offset for each shard
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermNote {
    /// Of the owner of the names.
    pub term: u64,
    /// Processes whose sessions are over with the leader, and earlier ones of their nodes, by their streams of commands.
    pub over: Vec<CommandStream>,
    /// Processes whose sessions are to attach: nothing is given out until they have, or are over. None of them may have heard of it.
    pub awaited: Vec<AwaitedProcess>,
}

/// A process of sessions that a leader waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedProcess {
    /// By its stream of commands.
    pub process: CommandStream,
    /// By shard: what its sessions have from earlier terms counts below this offset. Those from there on are given to messages of the term.
    pub below: Vec<MessageOffset>,
}

impl TermNote {
    /// Whether what this process has from earlier leaders counts for the leader after that term. `heard` is the last term in
    /// which a leader told it that it is heard.
    pub fn knew(&self, process: CommandStream, heard: u64) -> bool {
        let is_over = |it: &CommandStream| it.node == process.node && it.start >= process.start;
        if heard >= self.term {
            // A leader that had no room for a note is later than the last one that has one.
            return heard > self.term || !self.over.iter().any(is_over);
        }
        self.awaited(process).is_some()
    }

    /// What the leader has noted of a process that it waits for.
    pub fn awaited(&self, process: CommandStream) -> Option<&AwaitedProcess> {
        self.awaited.iter().find(|it| it.process == process)
    }

    /// The sessions of a process are over.
    fn is_over(&mut self, process: CommandStream) {
        self.over.retain(|it| it.node != process.node);
        self.over.push(process);
        self.awaited.retain(|it| it.process.node != process.node);
    }

    /// The body of the record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let shards = self.awaited.first().map_or(0, |it| it.below.len());
        let mut out = Vec::with_capacity(16 + 8 * self.over.len());
        out.extend(self.term.to_le_bytes());
        out.extend((shards as u32).to_le_bytes());
        out.extend((self.over.len() as u32).to_le_bytes());
        let put = |out: &mut Vec<u8>, CommandStream { node, start }: CommandStream| {
            out.extend(node.get().to_le_bytes());
            out.extend(start.to_le_bytes());
        };
        self.over.iter().for_each(|process| put(&mut out, *process));
        for AwaitedProcess { process, below } in &self.awaited {
            put(&mut out, *process);
            below.iter().for_each(|offset| out.extend(offset.get().to_le_bytes()));
        }
        out
    }

    /// None when the body is not one.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let (term, rest) = body.split_first_chunk::<8>()?;
        let (shards, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let [shards, count] = [shards, count].map(|it| u32::from_le_bytes(*it) as usize);
        let (over, awaited) = rest.split_at_checked(count.checked_mul(8)?)?;
        let awaited = awaited.chunks(shards.checked_add(1)?.checked_mul(8)?).map(|bytes| {
            let ([process, offsets @ ..], []) = bytes.as_chunks::<8>() else { return None };
            let below = offsets.iter().map(|it| MessageOffset::new(u64::from_le_bytes(*it)));
            let awaited = AwaitedProcess { process: process_of(process)?, below: below.collect() };
            (offsets.len() == shards).then_some(awaited)
        });
        let awaited = awaited.collect::<Option<_>>()?;
        Some(Self { term: u64::from_le_bytes(*term), over: processes(over)?, awaited })
    }

    /// The same of an [earlier](EARLIER_TERM_HEAD) one.
    pub(super) fn decode_earlier(body: &[u8]) -> Option<Self> {
        let (term, over) = body.split_first_chunk::<8>()?;
        let term = u64::from_le_bytes(*term);
        Some(Self { term, over: processes(over)?, awaited: Vec::new() })
    }
}

fn processes(bytes: &[u8]) -> Option<Vec<CommandStream>> {
    let (all, []) = bytes.as_chunks::<8>() else { return None };
    all.iter().map(process_of).collect()
}

fn process_of(bytes: &[u8; 8]) -> Option<CommandStream> {
    let (node, start) = bytes.split_first_chunk::<4>()?;
    let node = NodeId::new(u32::from_le_bytes(*node))?;
    Some(CommandStream { node, start: u32::from_le_bytes(start.try_into().ok()?) })
}

/// The note that is in the log, and where.
#[derive(Debug, Default)]
pub(super) struct LastTerm(Option<(Offset, TermNote)>);

impl LastTerm {
    /// A note is in the log. Returns the record that is to be released, if there are two.
    pub(super) fn found(&mut self, at: Offset, note: TermNote) -> Option<Offset> {
        if self.0.as_ref().is_some_and(|(other, _)| *other > at) {
            return Some(at);
        }
        self.0.replace((at, note)).map(|(earlier, _)| earlier)
    }
}

impl<L: Log> Meta<L> {
    /// The last note of a term that is in the log: of a leader before, until [`note_term`](Self::note_term).
    pub fn last_term(&self) -> Option<&TermNote> {
        self.last_term.0.as_ref().map(|(_, note)| note)
    }

    /// Notes its [term](Self::term), outside of turns: messages are about to be given out, once the sessions of these processes have
    /// attached. Returns how far the log has to be [durable](leveret_log::Log::durable) before shards begin. Without room for the note there
    /// is none, and nothing is to be waited for.
    ///
    /// # Errors
    ///
    /// The log has failed.
    pub fn note_term(
        &mut self,
        awaited: Vec<AwaitedProcess>,
        topology: &mut Topology,
    ) -> Result<Option<Offset>, SaveError> {
        let over = self.own_note().map(|it| it.over.clone()).unwrap_or_default();
        self.write_term(TermNote { term: self.term(), over, awaited }, topology)
    }

    /// Notes that what the sessions of a process held is given to others.
    ///
    /// # Errors
    ///
    /// The log has failed.
    pub fn note_over(
        &mut self,
        process: CommandStream,
        topology: &mut Topology,
    ) -> Result<(), SaveError> {
        let own = self.own_note().cloned();
        let mut note = own.unwrap_or_else(|| TermNote { term: self.term(), ..TermNote::default() });
        note.is_over(process);
        self.write_term(note, topology).map(|_| ())
    }

    fn own_note(&self) -> Option<&TermNote> {
        self.last_term().filter(|it| it.term == self.term())
    }

    fn write_term(
        &mut self,
        note: TermNote,
        topology: &mut Topology,
    ) -> Result<Option<Offset>, SaveError> {
        let at = match self.saved.append_term(&note) {
            Err(SaveError::Append(AppendError::Full)) => {
                tracing::warn!(
                    "there is no room on the disk to note that this node leads: if another one leads before it has seen all nodes, \
                     sessions of a node that was away may go on though what they hold was given to others"
                );
                return Ok(None);
            }
            appended => appended?,
        };
        let earlier = self.last_term.found(at, note);
        earlier.into_iter().for_each(|earlier| self.saved.release(earlier));
        self.saved.seal(topology)?;
        self.saved.sync()?;
        Ok(Some(self.saved.until()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(node: u32, start: u32) -> CommandStream {
        CommandStream { node: NodeId::new(node).expect("a node"), start }
    }

    fn awaited(node: u32, start: u32, below: &[u64]) -> AwaitedProcess {
        let below = below.iter().map(|offset| MessageOffset::new(*offset)).collect();
        AwaitedProcess { process: process(node, start), below }
    }

    #[test]
    fn what_is_written_is_read() {
        let overs = [vec![], vec![process(2, 0)], vec![process(7, u32::MAX), process(3, 1)]];
        let all = [
            vec![],
            vec![awaited(5, 1, &[])],
            vec![awaited(2, 1, &[3, u64::MAX]), awaited(4, 0, &[0, 9])],
        ];
        for (over, awaited) in overs.iter().flat_map(|over| all.iter().map(move |it| (over, it))) {
            let shards = awaited.first().map_or(0, |it| it.below.len());
            let note =
                TermNote { term: u64::MAX - 1, over: over.clone(), awaited: awaited.clone() };
            let body = note.encode();
            assert_eq!(TermNote::decode(&body).as_ref(), Some(&note));
            let rest = 16 + 8 * over.len();
            for len in
                (0..body.len()).filter(|len| *len < rest || (len - rest) % (8 + 8 * shards) != 0)
            {
                assert_eq!(TermNote::decode(&body[..len]), None, "{len}");
            }
        }
        let of_nobody = |count| [&[1; 8][..], &[0; 4], &[count, 0, 0, 0], &[0; 8]].concat();
        for count in 0..3 {
            assert_eq!(TermNote::decode(&of_nobody(count)), None, "no node has the number 0");
        }
        let earlier = [&7_u64.to_le_bytes()[..], &[2, 0, 0, 0, 1, 0, 0, 0]].concat();
        let note = TermNote { term: 7, over: vec![process(2, 1)], awaited: vec![] };
        assert_eq!(TermNote::decode_earlier(&earlier), Some(note));
        assert_eq!(TermNote::decode_earlier(&earlier[..15]), None);
        let of_many = [&[1; 8][..], &[u8::MAX; 8], &[1; 8]].concat();
        assert_eq!(TermNote::decode(&of_many), None);
    }

    #[test]
    fn who_was_heard_or_is_awaited_counts_until_it_is_over() {
        let awaited = vec![awaited(2, 3, &[1]), awaited(5, 4, &[7])];
        let mut note = TermNote { term: 5, over: vec![process(4, 7)], awaited };
        assert!(note.knew(process(2, 3), 4));
        note.is_over(process(2, 1));
        note.is_over(process(2, 3));
        assert_eq!(note.over, [process(4, 7), process(2, 3)]);
        let all = [
            (process(2, 2), 5, false),
            (process(2, 3), 4, false),
            (process(2, 3), 5, false),
            (process(2, 4), 5, true),
            (process(2, 4), 4, false),
            (process(3, 1), 4, false),
            (process(3, 1), 5, true),
            (process(2, 3), 6, true),
            (process(5, 4), 1, true),
            (process(5, 3), 4, false),
            (process(5, 5), 4, false),
        ];
        for (process, heard, knew) in all {
            assert_eq!(note.knew(process, heard), knew, "{process:?} {heard}");
        }
    }

    #[test]
    fn the_latest_note_stays() {
        let mut noted = LastTerm::default();
        let note = |term| TermNote { term, ..TermNote::default() };
        assert_eq!(noted.found(Offset::new(4), note(1)), None);
        assert_eq!(noted.found(Offset::new(9), note(2)), Some(Offset::new(4)));
        assert_eq!(noted.found(Offset::new(7), note(3)), Some(Offset::new(7)));
        assert_eq!(noted.0, Some((Offset::new(9), note(2))));
    }
}
