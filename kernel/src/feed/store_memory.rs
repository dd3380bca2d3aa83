//! Memory of the store that the feed may read and write, with its limits.
//!
//! Python grants it and owns every position: what the feed has written takes effect when Python
//! commits it (`Feed::end_batch`). The layouts are drawn in `store/consume_queue.py` and
//! `store/index_file.py`.

use pyo3::prelude::*;

use crate::codecs::index_item::{HEADER_BYTES, age_s, put_item};
use crate::codecs::queue_entry::{ENTRY_BYTES, QueueEntry};
use crate::reader::Reader;
use crate::view::Mapping;

/// Reserved at the end of a log file for the filler.
const FILLER_BYTES: usize = 8;

/// The last file of the log. The feed only reads it; Python writes new records, many at a time, which
/// costs less than the page fault of each mapped page.
pub struct Log {
    pub memory: Mapping,
    /// Log offset of the file's first byte.
    pub first: i64,
    pub position: usize,
}

impl Log {
    pub fn has_space(&self, size: usize) -> bool {
        let stop = self.position.checked_add(size).and_then(|stop| stop.checked_add(FILLER_BYTES));
        stop.is_some_and(|stop| stop <= self.memory.len())
    }

    /// Log offset of the next record.
    pub fn end(&self) -> Option<i64> {
        self.first.checked_add(i64::try_from(self.position).ok()?)
    }
}

/// Memory of Python in which new records are collected, to be written in one call.
pub struct Stage {
    pub memory: Mapping,
    pub used: usize,
}

impl Stage {
    pub fn has_space(&self, size: usize) -> bool {
        self.used.checked_add(size).is_some_and(|stop| stop <= self.memory.len())
    }

    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.memory.write(self.used, bytes)?;
        self.used += bytes.len();
        Some(())
    }
}

/// The file that a queue's next entries go to.
pub struct Queue {
    /// Python's queue object, which `Feed::end_batch` returns.
    pub owner: Py<PyAny>,
    pub memory: Mapping,
    /// Queue offset of the file's first entry.
    pub first: i64,
    pub next: i64,
    /// Queue offset of the first entry that does not fit.
    pub limit: i64,
    /// Whether it has entries that are not committed yet, and end and tags code of the last one.
    pub is_dirty: bool,
    pub end_log_offset: i64,
    pub tags_code: i64,
}

impl Queue {
    pub fn has_space(&self, count: usize) -> bool {
        let Some(at) = self.position(count) else {
            return false;
        };
        let stop = i64::try_from(count).ok().and_then(|count| self.next.checked_add(count));
        stop.is_some_and(|stop| stop <= self.limit) && at <= self.memory.len()
    }

    /// Position of the entry `ahead` entries after the next one.
    fn position(&self, ahead: usize) -> Option<usize> {
        let number = usize::try_from(self.next.checked_sub(self.first)?).ok()?;
        number.checked_add(ahead)?.checked_mul(ENTRY_BYTES)
    }

    pub fn put(&mut self, entry: QueueEntry) -> Option<()> {
        self.memory.write(self.position(0)?, &entry.encode()?)?;
        self.next += 1;
        self.end_log_offset = entry.log_offset + i64::from(entry.size);
        self.tags_code = entry.tags_code;
        Some(())
    }
}

/// The last file of the index.
pub struct Index {
    pub memory: Mapping,
    pub slot_count: u32,
    /// The most items of a file, and how many have disk blocks allocated.
    pub item_max: u32,
    pub allocated_max: u32,
    pub state: IndexState,
}

/// The header of an index file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexState {
    pub begin_time: i64,
    pub end_time: i64,
    pub begin_log_offset: i64,
    pub end_log_offset: i64,
    pub slots_used: i32,
    pub count: i32,
}

impl IndexState {
    pub fn read(file: &Mapping) -> Option<Self> {
        let head: [u8; HEADER_BYTES] = file.view().array(0)?;
        let mut reader = Reader(&head);
        Some(Self {
            begin_time: reader.i64()?,
            end_time: reader.i64()?,
            begin_log_offset: reader.i64()?,
            end_log_offset: reader.i64()?,
            slots_used: reader.i32()?,
            count: reader.i32()?.max(1),
        })
    }

    pub fn write(&self, file: &Mapping) -> Option<()> {
        let mut head = Vec::with_capacity(HEADER_BYTES);
        head.extend(self.begin_time.to_be_bytes());
        head.extend(self.end_time.to_be_bytes());
        head.extend(self.begin_log_offset.to_be_bytes());
        head.extend(self.end_log_offset.to_be_bytes());
        head.extend(self.slots_used.to_be_bytes());
        head.extend(self.count.to_be_bytes());
        file.write(0, &head)
    }
}

impl Index {
    pub fn has_space(&self, key_count: usize) -> bool {
        let stop = u32::try_from(key_count)
            .ok()
            .zip(u32::try_from(self.state.count).ok())
            .and_then(|(more, count)| count.checked_add(more));
        stop.is_some_and(|stop| stop <= self.item_max && stop <= self.allocated_max)
    }

    pub fn put(&mut self, key_hash: i32, log_offset: i64, store_time: i64) -> Option<()> {
        let state = &mut self.state;
        let number = state.count;
        if number == 1 {
            state.begin_time = store_time;
            state.begin_log_offset = log_offset;
        }
        let slot_count = usize::try_from(self.slot_count).ok()?;
        let age_s = age_s(store_time, state.begin_time);
        if put_item(&self.memory, slot_count, number, key_hash, log_offset, age_s)? {
            state.slots_used += 1;
        }
        state.count = number + 1;
        state.end_time = store_time;
        state.end_log_offset = log_offset;
        Some(())
    }
}
