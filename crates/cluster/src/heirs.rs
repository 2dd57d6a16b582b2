//! Who is asked to lead in place of a node.

use std::collections::BTreeMap;

use leveret_link::hello::RaftId;

/// One that may be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PossibleHeir {
    pub(crate) id: RaftId,
    /// Its disk hung lately.
    pub(crate) hung: bool,
    /// How many batches it lacks.
    pub(crate) lag: u64,
}

/// Those who were asked.
#[derive(Debug, Default)]
pub(crate) struct AskedHeirs {
    /// How often each was.
    times: BTreeMap<RaftId, u32>,
    /// Who was last, and when.
    last: Option<(RaftId, u64)>,
}

impl AskedHeirs {
    /// Who is to lead: the one that was asked last, for so long and as long as it is among these; then who was asked least often, of those
    /// one whose disk did not hang lately, and then the one that lacks least.
    pub(crate) fn ask(
        &mut self,
        able: &[PossibleHeir],
        for_ms: u64,
        now_ms: u64,
    ) -> Option<RaftId> {
        let is_present = |(id, at): &(RaftId, u64)| {
            now_ms < at.saturating_add(for_ms) && able.iter().any(|it| it.id == *id)
        };
        if let Some((present, _)) = self.last.filter(is_present) {
            return Some(present);
        }
        let times = |id: RaftId| self.times.get(&id).copied().unwrap_or(0);
        let heir = able.iter().min_by_key(|it| (times(it.id), it.hung, it.lag, it.id))?.id;
        let times = self.times.entry(heir).or_default();
        *times = times.saturating_add(1);
        self.last = Some((heir, now_ms));
        Some(heir)
    }

    /// Nobody is to be asked any more.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}
