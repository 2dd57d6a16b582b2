//! The channels of a connection.

use super::Channel;

/// The channels of a connection, by number.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    #[expect(clippy::vec_box, reason = "a channel is large, and most connections have one or two")]
    all: Vec<Box<Channel>>,
    /// Where the last one was found.
    last: usize,
}

impl Channels {
    /// Open and closing ones.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn get(&mut self, number: u16) -> Option<&mut Channel> {
        if self.all.get(self.last).is_none_or(|channel| channel.number != number) {
            self.last = self.find(number).ok()?;
        }
        self.all.get_mut(self.last).map(AsMut::as_mut)
    }

    fn find(&self, number: u16) -> Result<usize, usize> {
        self.all.binary_search_by_key(&number, |channel| channel.number)
    }

    pub(crate) fn insert(&mut self, channel: Channel) {
        match self.find(channel.number) {
            Ok(at) => *self.all[at] = channel,
            Err(at) => self.all.insert(at, Box::new(channel)),
        }
    }

    pub(crate) fn remove(&mut self, number: u16) -> Option<Box<Channel>> {
        let at = self.find(number).ok()?;
        Some(self.all.remove(at))
    }

    /// Forgets channels that both sides closed.
    pub(crate) fn forget_crossed(&mut self) {
        self.all.retain(|channel| !channel.is_crossed);
        self.last = 0;
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.all.iter().map(AsRef::as_ref)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Channel> {
        self.all.iter_mut().map(AsMut::as_mut)
    }
}
