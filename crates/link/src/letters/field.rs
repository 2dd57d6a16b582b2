//! The fields of letters: each knows how it is written and read.
//!
//! ```text
//!   varint      7 bits a byte, the lowest first; the last one is below 128
//!   step        varint of a difference, zigzag: 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
//!   text, bytes varint length, bytes
//!   table       as bytes: the entries of an AMQP field table as on its wire
//!   option      0, or 1 and the field
//!   list        varint count, the fields
//! ```

use bytes::Bytes;
use leveret_amqp::table::{RawTable, Table};
use leveret_broker::message::{ChannelId, ConnectionId, ConsumerSlot, ReplyTo};
use leveret_broker::stream::AskedMessage;
use leveret_broker::transaction::TxId;
use leveret_queue::{Offset, Time, UnackedId};
use leveret_topology::{ExchangeId, GroupId, QueueId, VhostId};

use super::{GROUPS_MAX, LetterError};
use crate::payload::{Payload, Writer};

/// What a letter is made of.
pub(super) trait Field: Sized {
    /// Bytes that one has at least.
    const MIN: usize = 1;

    fn put(&self, to: &mut Writer);

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError>;
}

/// What is left of a letter, in pieces.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// What is left of the piece; empty only at the end of all.
    rest: &'a [u8],
    piece: Option<&'a Bytes>,
    others: std::slice::Iter<'a, Bytes>,
    /// Bytes in all.
    left: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a Payload) -> Self {
        let others = payload.pieces().iter();
        let mut reader = Self { rest: &[], piece: None, others, left: payload.len() };
        reader.next_piece();
        reader
    }

    #[inline]
    fn next_piece(&mut self) {
        if self.rest.is_empty() {
            self.piece = self.others.next();
            self.rest = self.piece.map_or(&[], |piece| piece);
        }
    }

    /// All was read.
    pub(super) fn end(&self) -> Result<(), LetterError> {
        if self.left == 0 { Ok(()) } else { Err(LetterError::TooLong(self.left)) }
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, LetterError> {
        let (first, rest) = self.rest.split_first().ok_or(LetterError::Truncated)?;
        self.rest = rest;
        self.left = self.left.saturating_sub(1);
        self.next_piece();
        Ok(*first)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], LetterError> {
        let mut array = [0; N];
        match self.rest.split_first_chunk() {
            Some((chunk, rest)) => {
                array = *chunk;
                self.rest = rest;
                self.left = self.left.saturating_sub(N);
                self.next_piece();
            }
            None => {
                for place in &mut array {
                    *place = self.byte()?;
                }
            }
        }
        Ok(array)
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, LetterError> {
        // Most have one byte, and are not the last of a piece.
        if let [byte, rest @ ..] = self.rest
            && *byte < 0x80
            && !rest.is_empty()
        {
            self.rest = rest;
            self.left = self.left.saturating_sub(1);
            return Ok((*byte).into());
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, LetterError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(LetterError::Number);
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(LetterError::Number)
    }

    /// A number of fewer bits.
    #[inline]
    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, LetterError> {
        T::try_from(self.varint()?).map_err(|_| LetterError::Number)
    }

    /// A count of things that have `min` bytes each at least.
    pub(super) fn count(&mut self, min: usize) -> Result<usize, LetterError> {
        let count = self.number::<usize>()?;
        let bytes = count.checked_mul(min).filter(|bytes| *bytes <= self.left);
        bytes.map(|_| count).ok_or(LetterError::Truncated)
    }

    /// So many bytes may be taken as they lie.
    pub(super) fn in_piece(&self) -> usize {
        self.rest.len()
    }

    /// So many bytes: a slice where they are, copied if they are of several pieces.
    pub(super) fn take(&mut self, len: usize) -> Result<Bytes, LetterError> {
        if len > self.left {
            return Err(LetterError::Truncated);
        }
        if let (Some((here, rest)), Some(piece)) = (self.rest.split_at_checked(len), self.piece) {
            self.rest = rest;
            self.left = self.left.saturating_sub(len);
            let taken = piece.slice_ref(here);
            self.next_piece();
            return Ok(taken);
        }
        let mut copy = Vec::with_capacity(len);
        self.each(len, |_, part| copy.extend_from_slice(part));
        Ok(copy.into())
    }

    /// So many bytes, as they lie in pieces.
    pub(super) fn pieces(&mut self, len: usize) -> Result<Vec<Bytes>, LetterError> {
        if len > self.left {
            return Err(LetterError::Truncated);
        }
        let mut pieces = Vec::new();
        self.each(len, |piece, part| pieces.push(piece.slice_ref(part)));
        Ok(pieces)
    }

    /// Goes through so many bytes, which are there.
    fn each(&mut self, len: usize, mut with: impl FnMut(&Bytes, &[u8])) {
        let mut missing = len;
        while let Some(piece) = self.piece.filter(|_| missing > 0) {
            let (part, rest) = self.rest.split_at(missing.min(self.rest.len()));
            with(piece, part);
            missing = missing.saturating_sub(part.len());
            self.left = self.left.saturating_sub(part.len());
            self.rest = rest;
            self.next_piece();
        }
    }

    /// The next field.
    #[inline]
    pub(super) fn get<T: Field>(&mut self) -> Result<T, LetterError> {
        T::get(self)
    }

    /// Flags, of which these are known.
    pub(super) fn flags(&mut self, known: u8) -> Result<u8, LetterError> {
        let flags = self.byte()?;
        if flags & !known == 0 { Ok(flags) } else { Err(LetterError::Flags(flags)) }
    }
}

/// `to`, and a number in as few bytes as it needs.
#[inline]
pub(super) fn put_varint(to: &mut Writer, value: u64) {
    match value {
        0..0x80 => to.put(&[value as u8]),
        _ => put_long_varint(to, value),
    }
}

fn put_long_varint(to: &mut Writer, mut value: u64) {
    let mut bytes = [0; 10];
    let mut len = 0_usize;
    for place in &mut bytes {
        len = len.saturating_add(1);
        *place = value as u8 & 0x7f;
        value >>= 7;
        if value == 0 {
            break;
        }
        *place |= 0x80;
    }
    to.put(bytes.get(..len).unwrap_or_default());
}

/// How far a number is from the one before it, as a small number for a small step either way.
pub(super) fn step(before: u64, now: u64) -> u64 {
    let step = now.wrapping_sub(before);
    (step << 1) ^ (((step as i64) >> 63) as u64)
}

/// The number that is such a step behind another one.
pub(super) fn stepped(before: u64, step: u64) -> u64 {
    before.wrapping_add((step >> 1) ^ (step & 1).wrapping_neg())
}

pub(super) fn put_bytes(to: &mut Writer, bytes: &[u8]) {
    put_varint(to, bytes.len() as u64);
    to.put(bytes);
}

/// A field that is a varint.
macro_rules! varint {
    ($($field:ty: |$own:ident| $write:expr, |$number:ident: $inner:ty| $read:expr;)*) => {$(
        impl Field for $field {
            #[inline]
            fn put(&self, to: &mut Writer) {
                let $own = *self;
                put_varint(to, $write);
            }

            #[inline]
            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                let $number: $inner = from.number()?;
                Ok($read)
            }
        }
    )*};
}

varint! {
    u64: |own| own, |number: u64| number;
    u32: |own| own.into(), |number: u32| number;
    ChannelId: |own| own.into(), |number: u16| number;
    usize: |own| own as u64, |number: usize| number;
    QueueId: |own| own.get(), |number: u64| Self::new(number);
    ExchangeId: |own| own.get(), |number: u64| Self::new(number);
    VhostId: |own| own.get().into(), |number: u32| Self::new(number);
    Offset: |own| own.get(), |number: u64| Self::new(number);
    UnackedId: |own| own.get().into(), |number: u32| Self::new(number);
    ConsumerSlot: |own| own.0.into(), |number: u32| Self(number);
    Time: |own| own.ms(), |number: u64| Self::from_ms(number);
    i32: |own| step(0, i64::from(own) as u64),
        |number: u64| i32::try_from(stepped(0, number) as i64).map_err(|_| LetterError::Number)?;
}

impl Field for GroupId {
    fn put(&self, to: &mut Writer) {
        self.get().put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.get()? {
            group if group < GROUPS_MAX => Ok(Self::new(group)),
            group => Err(LetterError::Group(group)),
        }
    }
}

impl Field for bool {
    fn put(&self, to: &mut Writer) {
        to.put(&[u8::from(*self)]);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(from.flags(1)? == 1)
    }
}

/// Eight bytes: node and number.
impl Field for ConnectionId {
    const MIN: usize = 8;

    fn put(&self, to: &mut Writer) {
        to.put(&self.bits().to_le_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self::from_bits(u64::from_le_bytes(from.array()?)))
    }
}

/// Eight bytes, as it is drawn at random.
impl Field for TxId {
    const MIN: usize = 8;

    fn put(&self, to: &mut Writer) {
        to.put(&self.get().to_le_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self::new(u64::from_le_bytes(from.array()?)))
    }
}

impl<const N: usize> Field for [u8; N] {
    const MIN: usize = N;

    fn put(&self, to: &mut Writer) {
        to.put(self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        from.array()
    }
}

impl Field for ReplyTo {
    const MIN: usize = 9;

    fn put(&self, to: &mut Writer) {
        self.connection.put(to);
        self.channel.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self { connection: from.get()?, channel: from.get()? })
    }
}

impl Field for String {
    fn put(&self, to: &mut Writer) {
        put_bytes(to, self.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let len = from.count(1)?;
        let bytes = from.take(len)?;
        std::str::from_utf8(&bytes).map(str::to_owned).map_err(|_| LetterError::NotText)
    }
}

impl Field for Box<str> {
    fn put(&self, to: &mut Writer) {
        put_bytes(to, self.as_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        from.get::<String>().map(Into::into)
    }
}

/// A record: sent from where it is, if it is long.
impl Field for Bytes {
    fn put(&self, to: &mut Writer) {
        put_varint(to, self.len() as u64);
        to.share(self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let len = from.count(1)?;
        from.take(len)
    }
}

impl Field for Table {
    fn put(&self, to: &mut Writer) {
        put_bytes(to, &self.to_bytes());
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let bytes = from.get::<Bytes>()?;
        if bytes.is_empty() {
            return Ok(Self::new());
        }
        Ok(Self::decode(RawTable::new(&bytes)?)?)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, to: &mut Writer) {
        self.is_some().put(to);
        if let Some(field) = self {
            field.put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(match from.get()? {
            true => Some(from.get()?),
            false => None,
        })
    }
}

impl<T: Field> Field for Box<T> {
    const MIN: usize = T::MIN;

    fn put(&self, to: &mut Writer) {
        (**self).put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        from.get().map(Self::new)
    }
}

impl<A: Field, B: Field> Field for (A, B) {
    const MIN: usize = A::MIN.saturating_add(B::MIN);

    fn put(&self, to: &mut Writer) {
        self.0.put(to);
        self.1.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok((from.get()?, from.get()?))
    }
}

pub(super) fn put_list<T: Field>(list: &[T], to: &mut Writer) {
    put_varint(to, list.len() as u64);
    list.iter().for_each(|field| field.put(to));
}

pub(super) fn get_list<T: Field>(from: &mut Reader<'_>) -> Result<Vec<T>, LetterError> {
    get_list_of(T::MIN, from)
}

/// A list of fields that have `min` bytes each at least.
pub(super) fn get_list_of<T: Field>(
    min: usize,
    from: &mut Reader<'_>,
) -> Result<Vec<T>, LetterError> {
    let count = from.count(min)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(from.get()?);
    }
    Ok(list)
}

/// Lists whose fields do not refer to each other.
macro_rules! lists {
    ($($list:ty),*) => {$(
        impl Field for $list {
            fn put(&self, to: &mut Writer) {
                put_list(self, to);
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                Ok(get_list(from)?.into())
            }
        }
    )*};
}

lists!(
    Vec<Offset>,
    Box<[QueueId]>,
    Vec<(ConnectionId, ConsumerSlot)>,
    Vec<(QueueId, Offset)>,
    Vec<AskedMessage>
);
