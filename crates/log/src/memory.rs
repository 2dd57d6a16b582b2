//! A log in memory: nothing survives the process, and everything is durable at once.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{AppendError, HoldError, Log, Offset, ReadError, Record, SyncError, Usage};

/// A log in memory.
#[derive(Debug, Default)]
pub struct MemoryLog {
    first: u64,
    entries: VecDeque<(Bytes, u32)>,
    usage: Usage,
}

impl MemoryLog {
    /// An empty log, which allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    fn entry(&mut self, at: Offset) -> Result<&mut (Bytes, u32), HoldError> {
        let end = self.end();
        if at >= end {
            return Err(HoldError::NotAppended { at, end });
        }
        at.get()
            .checked_sub(self.first)
            .and_then(|i| self.entries.get_mut(i as usize))
            .filter(|e| e.1 > 0)
            .ok_or(HoldError::Released { at })
    }
}

impl Log for MemoryLog {
    fn append(&mut self, parts: &[&[u8]], holders: u32) -> Result<Offset, AppendError> {
        let at = self.end();
        let bytes = Bytes::from(parts.concat());
        self.usage.records += u64::from(holders > 0);
        self.usage.live_bytes += if holders > 0 { bytes.len() as u64 } else { 0 };
        self.entries.push_back((bytes, holders));
        Ok(at)
    }

    fn readable(&self) -> Offset {
        self.end()
    }

    fn durable(&self) -> Offset {
        self.end()
    }

    fn end(&self) -> Offset {
        Offset::new(self.first + self.entries.len() as u64)
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        if at >= self.end() {
            return Err(ReadError::NotReadable { at, readable: self.end() });
        }
        at.get()
            .checked_sub(self.first)
            .and_then(|i| self.entries.get(i as usize))
            .filter(|e| e.1 > 0)
            .map(|e| Record { bytes: e.0.clone() })
            .ok_or(ReadError::Released { at })
    }

    fn hold(&mut self, at: Offset, more: u32) -> Result<(), HoldError> {
        let entry = self.entry(at)?;
        let holders = entry.1;
        entry.1 = holders.checked_add(more).ok_or(HoldError::TooMany { at, holders, more })?;
        Ok(())
    }

    fn release(&mut self, at: Offset) -> Result<(), HoldError> {
        let entry = self.entry(at)?;
        entry.1 -= 1;
        if entry.1 == 0 {
            let len = entry.0.len() as u64;
            entry.0 = Bytes::new();
            self.usage.records -= 1;
            self.usage.live_bytes -= len;
            while self.entries.front().is_some_and(|e| e.1 == 0) {
                self.entries.pop_front();
                self.first += 1;
            }
        }
        Ok(())
    }

    fn next_held(&self, from: Offset) -> Option<Offset> {
        let skip = from.get().saturating_sub(self.first) as usize;
        let (i, _) = self.entries.iter().enumerate().skip(skip).find(|(_, e)| e.1 > 0)?;
        Some(Offset::new(self.first + i as u64))
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}
