//! Which leader sessions of several nodes had last: a record of the log of names.
//!
//! A leader forgets the streams of nodes that it does not see, and what was in no batch is gone with the leader before: the offset of a
//! message may be another one's in its term. So what a node has that it did not hear counts for nothing at the one after it, which has
//! to know. A leader notes its term before it has anything given out, and that is agreed upon; and later whose sessions are over with
//! it, as what they held is given to others. See `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use leveret_log::{AppendError, Log, Offset};
use leveret_topology::{NodeId, Topology};

use super::Meta;
use super::saved::SaveError;
use crate::command::CommandStream;

/// The head of a record: a kind that no thing of the topology has.
pub(super) const TERM_HEAD: [u8; 2] = [1, 66];

/// A record of the log of names: in this term messages were given out, or were about to be, and those processes' sessions are over.
///
/// ```text
///  0      8      12      16
///  | term | node | start | node | start | ...
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TermNote {
    /// Of the owner of the names.
    pub term: u64,
    /// Processes whose sessions are over with the leader, and earlier ones of their nodes, by their streams of commands.
    pub over: Vec<CommandStream>,
}

impl TermNote {
    /// Whether what this process has from earlier leaders counts for the leader after that term. `heard` is the last term in
    /// which a leader told it that it is heard.
    pub fn knew(&self, process: CommandStream, heard: u64) -> bool {
        let is_over = |it: &CommandStream| it.node == process.node && it.start >= process.start;
        // A leader that had no room for a note is later than the last one that has one.
        heard > self.term || heard == self.term && !self.over.iter().any(is_over)
    }

    /// The sessions of a process are over.
    fn is_over(&mut self, process: CommandStream) {
        self.over.retain(|it| it.node != process.node);
        self.over.push(process);
    }

    /// The body of the record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8 + 8 * self.over.len());
        out.extend(self.term.to_le_bytes());
        for CommandStream { node, start } in &self.over {
            out.extend(node.get().to_le_bytes());
            out.extend(start.to_le_bytes());
        }
        out
    }

    /// None when the body is not one.
    pub(super) fn decode(body: &[u8]) -> Option<Self> {
        let (term, rest) = body.split_first_chunk::<8>()?;
        let (over, []) = rest.as_chunks::<8>() else { return None };
        let process = |bytes: &[u8; 8]| {
            let (node, start) = bytes.split_first_chunk::<4>()?;
            let node = NodeId::new(u32::from_le_bytes(*node))?;
            Some(CommandStream { node, start: u32::from_le_bytes(start.try_into().ok()?) })
        };
        let over = over.iter().map(process).collect::<Option<_>>()?;
        Some(Self { term: u64::from_le_bytes(*term), over })
    }
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

    /// Notes its [term](Self::term), outside of turns: messages are about to be given out; or, with `over`, what the sessions of that
    /// process held is. Returns how far the log has to be [durable](leveret_log::Log::durable) before they are. Without room for the
    /// note there is none, and nothing is to be waited for.
    ///
    /// # Errors
    ///
    /// The log has failed.
    pub fn note_term(
        &mut self,
        over: Option<CommandStream>,
        topology: &mut Topology,
    ) -> Result<Option<Offset>, SaveError> {
        let term = self.term();
        let own = self.last_term().filter(|it| it.term == term).cloned();
        let mut note = own.unwrap_or_else(|| TermNote { term, over: Vec::new() });
        over.into_iter().for_each(|process| note.is_over(process));
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

    #[test]
    fn what_is_written_is_read() {
        for over in [vec![], vec![process(2, 0)], vec![process(7, u32::MAX), process(3, 1)]] {
            let note = TermNote { term: u64::MAX - 1, over };
            let body = note.encode();
            assert_eq!(TermNote::decode(&body).as_ref(), Some(&note));
            for len in (0..body.len()).filter(|len| *len < 8 || len % 8 != 0) {
                assert_eq!(TermNote::decode(&body[..len]), None, "{len}");
            }
        }
        let of_nobody = [&[1; 8][..], &[0; 8]].concat();
        assert_eq!(TermNote::decode(&of_nobody), None, "no node has the number 0");
    }

    #[test]
    fn who_was_heard_counts_until_it_is_over() {
        let mut note = TermNote { term: 5, over: vec![process(4, 7)] };
        note.is_over(process(2, 1));
        note.is_over(process(2, 3));
        assert_eq!(note.over, [process(4, 7), process(2, 3)]);
        let all = [
            (process(2, 2), 5, false),
            (process(2, 3), 5, false),
            (process(2, 4), 5, true),
            (process(2, 4), 4, false),
            (process(3, 1), 4, false),
            (process(3, 1), 5, true),
            (process(2, 3), 6, true),
        ];
        for (process, heard, knew) in all {
            assert_eq!(note.knew(process, heard), knew, "{process:?} {heard}");
        }
    }

    #[test]
    fn the_latest_note_stays() {
        let mut noted = LastTerm::default();
        let note = |term| TermNote { term, over: Vec::new() };
        assert_eq!(noted.found(Offset::new(4), note(1)), None);
        assert_eq!(noted.found(Offset::new(9), note(2)), Some(Offset::new(4)));
        assert_eq!(noted.found(Offset::new(7), note(3)), Some(Offset::new(7)));
        assert_eq!(noted.0, Some((Offset::new(9), note(2))));
    }
}
