//! The point in the list of files: what is not above it may have been rewritten or removed, so others cannot have it as batches.
//!
//! Who is a member is in batches of their own, which go with their files, and who is one as of the point is in the list. So it is
//! moved, and synced, before a file goes that has a batch above it, or is begun to be rewritten. The log does not know who is a
//! member: its owner says so.

use super::segments::Segment;
use super::{FileLog, submit};
use crate::disk::{Disk, DiskError, Op, Point, Token};

/// What is known of the point.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// What the list has.
    listed: Option<Point>,
    /// A later one.
    next: Option<Point>,
    /// It is on its way to the list.
    moving: Option<(Token, Point)>,
    /// Files wait for a higher one.
    is_wanted: bool,
}

impl Known {
    pub(super) fn of(listed: Option<Point>) -> Self {
        Self { listed, ..Self::default() }
    }

    /// Whether all batches of a segment are below that of the point, so that it may go. Those of a log that has no others are. The file
    /// with the batch of the point stays: who leads with that alone agreed upon can give others its files only as of it, and may have to
    /// before they agree to anything else.
    pub(super) fn covers(&self, segment: &Segment) -> bool {
        let number = self.listed.as_ref().map_or(0, |it| it.at.number);
        !segment.framing.has_terms || segment.next_batch <= number
    }

    /// Whether the list is being changed.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// A file waits for a higher one.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
    }
}

impl<D: Disk> FileLog<D> {
    /// The point that the list of files has; none if it was never told one. With files that another log gave it is
    /// that of those.
    pub fn listed_point(&self) -> Option<&Point> {
        self.point.listed.as_ref()
    }

    /// Whether files with terms wait to be removed or rewritten until there is a higher [point](Self::set_point). To be asked
    /// after the log has collected. It is so again when there was no room for the point.
    pub fn wants_point(&self) -> bool {
        let known = &self.point;
        known.is_wanted && known.moving.is_none() && known.next.is_none()
    }

    /// Who is a member as of a batch that all agreed to and that is stored here. The list of files says so before a file goes
    /// that has a batch of its term or another, up to this one; and none goes that has one above. Nothing is written until a file
    /// waits for it. A lower point than before changes nothing.
    pub fn set_point(&mut self, point: Point) {
        let known = &mut self.point;
        let moving = known.moving.as_ref().map(|(_, point)| point);
        let of = |point: Option<&Point>| point.map_or(0, |it| it.at.number);
        let last = of(known.listed.as_ref()).max(of(moving)).max(of(known.next.as_ref()));
        if point.at.number > last {
            known.next = Some(point);
            self.move_point();
        }
    }

    /// Has the list say the next point, if a file waits for it.
    pub(super) fn move_point(&mut self) {
        let known = &mut self.point;
        if !known.is_wanted || known.moving.is_some() {
            return;
        }
        let Some(point) = known.next.take() else { return };
        known.is_wanted = false;
        let token = submit(&mut self.disk, &mut self.next_token, Op::SetPoint(point.clone()));
        known.moving = Some((token, point));
    }

    /// The list has the point, or has no room for it.
    pub(super) fn point_set(&mut self, token: Token, result: Result<(), DiskError>) {
        let Some((_, point)) = self.point.moving.take_if(|(it, _)| *it == token) else { return };
        match result {
            Ok(()) => self.point.listed = Some(point),
            // Its owner is asked for it again.
            Err(DiskError::Full) => {}
            Err(DiskError::Failed(reason)) => self.writer.fail(reason),
        }
        self.space.look();
        self.space.check();
    }
}
