//! What somebody has for each of the groups that it has to do with.

use crate::id::GroupId;

/// A place for each group, by the group's name: whoever has one knows neither how many groups there are nor what their numbers say.
///
/// Hot path: a place is found by an index. It takes room for all groups with lower numbers, which have few gaps.
#[derive(Clone, Debug, Default)]
pub struct ByGroup<T> {
    places: Vec<T>,
}

impl<T: Default> ByGroup<T> {
    /// The place of a group, which is made if it is not there yet.
    #[inline]
    pub fn of(&mut self, group: GroupId) -> &mut T {
        let index = group.index();
        if self.places.len() <= index {
            self.places.resize_with(index + 1, T::default);
        }
        &mut self.places[index]
    }

    /// The place of a group, if it was ever asked for.
    #[inline]
    pub fn get(&self, group: GroupId) -> Option<&T> {
        self.places.get(group.index())
    }

    /// All places, also those of groups that nobody asked for, which have nothing in them.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, &T)> {
        self.places.iter().enumerate().map(|(index, place)| (GroupId::at(index), place))
    }

    /// All places, to be changed.
    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut()
    }

    /// What was in the places.
    pub fn into_all(self) -> impl Iterator<Item = (GroupId, T)> {
        self.places.into_iter().enumerate().map(|(index, place)| (GroupId::at(index), place))
    }

    /// The same groups, with something else of each.
    pub fn map<U>(self, change: impl FnMut(T) -> U) -> ByGroup<U> {
        ByGroup { places: self.places.into_iter().map(change).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_their_groups() {
        let mut places = ByGroup::<Vec<u8>>::default();
        let (low, high) = (GroupId::new(1), GroupId::new(5));
        places.of(high).push(7);
        places.of(low).push(8);
        assert_eq!((places.get(high), places.get(GroupId::new(6))), (Some(&vec![7]), None));
        let filled: Vec<_> = places.iter().filter(|(_, place)| !place.is_empty()).collect();
        assert_eq!(filled, [(low, &vec![8]), (high, &vec![7])]);
        places.all_mut().for_each(|place| place.push(9));
        let lengths = places.map(|place| place.len()).into_all();
        assert_eq!(lengths.filter(|(_, len)| *len == 2).collect::<Vec<_>>(), [(low, 2), (high, 2)]);
    }
}
