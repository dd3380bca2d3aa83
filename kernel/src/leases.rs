//! Memory of the store that the feed may read or write to, and how far.
//!
//! Python lends it and stays the owner of every position: what the feed has written counts once
//! Python has settled it. The layouts are drawn in `store/consume_queue.py` and `store/index.py`.

use pyo3::prelude::*;

use crate::view::Mapping;

const ENTRY: usize = 20;
/// Kept free at the end of a log file for the filler.
const FILLER: usize = 8;

/// The last file of the log. It is only read; the records to come are Python's to write, many at a
/// time, which costs less than the first touch of each mapped page.
pub struct Log {
    pub memory: Mapping,
    /// Log offset of the file's first byte.
    pub first: i64,
    pub position: usize,
}

impl Log {
    pub fn has_room(&self, size: usize) -> bool {
        let stop = self.position.checked_add(size).and_then(|stop| stop.checked_add(FILLER));
        stop.is_some_and(|stop| stop <= self.memory.len())
    }

    /// Log offset of the next record.
    pub fn end(&self) -> Option<i64> {
        self.first.checked_add(i64::try_from(self.position).ok()?)
    }
}

/// Memory of Python in which the records to come are put together, for one write of many.
pub struct Stage {
    pub memory: Mapping,
    pub used: usize,
}

impl Stage {
    pub fn has_room(&self, size: usize) -> bool {
        self.used.checked_add(size).is_some_and(|stop| stop <= self.memory.len())
    }

    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.memory.write(self.used, bytes)?;
        self.used += bytes.len();
        Some(())
    }
}

/// The file of a queue that takes its next entries.
pub struct Queue {
    /// Python's own queue object, to name it by.
    pub owner: Py<PyAny>,
    pub memory: Mapping,
    /// Queue offset of the file's first entry.
    pub first: i64,
    pub next: i64,
    /// Queue offset of the first entry without room.
    pub limit: i64,
    /// Whether it got entries since the last settlement, and what the last of them says.
    pub touched: bool,
    pub end_log_offset: i64,
    pub tags_code: i64,
}

impl Queue {
    pub fn has_room(&self, count: usize) -> bool {
        let Some(at) = self.place(count) else {
            return false;
        };
        let stop = i64::try_from(count).ok().and_then(|count| self.next.checked_add(count));
        stop.is_some_and(|stop| stop <= self.limit) && at <= self.memory.len()
    }

    /// Position of the entry `ahead` entries after the next one.
    fn place(&self, ahead: usize) -> Option<usize> {
        let number = usize::try_from(self.next.checked_sub(self.first)?).ok()?;
        number.checked_add(ahead)?.checked_mul(ENTRY)
    }

    pub fn put(&mut self, log_offset: i64, size: i32, tags_code: i64) -> Option<()> {
        let mut entry = [0; ENTRY];
        let (place, rest) = entry.split_first_chunk_mut::<8>()?;
        let (length, code) = rest.split_first_chunk_mut::<4>()?;
        *place = log_offset.to_be_bytes();
        *length = size.to_be_bytes();
        code.copy_from_slice(&tags_code.to_be_bytes());
        self.memory.write(self.place(0)?, &entry)?;
        self.next += 1;
        self.end_log_offset = log_offset + i64::from(size);
        self.tags_code = tags_code;
        Some(())
    }
}

/// The last file of the index.
pub struct Index {
    pub memory: Mapping,
    pub slot_count: u32,
    /// Items that may be there at most, and those that have disk blocks.
    pub item_max: u32,
    pub room_max: u32,
    pub state: IndexState,
}

/// The numbers of an index file's header.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexState {
    pub begin_time: i64,
    pub end_time: i64,
    pub begin_log_offset: i64,
    pub end_log_offset: i64,
    pub slots_used: i32,
    pub count: i32,
}

const INDEX_HEAD: usize = 40;
const SLOT: usize = 4;

impl Index {
    pub fn has_room(&self, key_count: usize) -> bool {
        let stop = u32::try_from(key_count)
            .ok()
            .zip(u32::try_from(self.state.count).ok())
            .and_then(|(more, count)| count.checked_add(more));
        stop.is_some_and(|stop| stop <= self.item_max && stop <= self.room_max)
    }

    pub fn put(&mut self, hashed: i32, log_offset: i64, store_time: i64) -> Option<()> {
        let state = &mut self.state;
        let number = state.count;
        if number == 1 {
            state.begin_time = store_time;
            state.begin_log_offset = log_offset;
        }
        let seconds = (store_time.checked_sub(state.begin_time)? / 1000).max(0);
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let slot = u32::try_from(hashed).ok()?.checked_rem(self.slot_count)?;
        let slot_at = INDEX_HEAD + usize::try_from(slot).ok()? * SLOT;
        let mut previous = i32::from_be_bytes(self.memory.view().array(slot_at)?);
        if !(0 < previous && previous < number) {
            previous = 0;
            state.slots_used += 1;
        }
        let items_at = INDEX_HEAD + usize::try_from(self.slot_count).ok()? * SLOT;
        let item_at = items_at + usize::try_from(number).ok()? * ENTRY;
        let mut item = [0; ENTRY];
        let (hash, rest) = item.split_first_chunk_mut::<4>()?;
        let (place, rest) = rest.split_first_chunk_mut::<8>()?;
        let (age, before) = rest.split_first_chunk_mut::<4>()?;
        *hash = hashed.to_be_bytes();
        *place = log_offset.to_be_bytes();
        *age = seconds.to_be_bytes();
        before.copy_from_slice(&previous.to_be_bytes());
        self.memory.write(item_at, &item)?;
        self.memory.write(slot_at, &number.to_be_bytes())?;
        let state = &mut self.state;
        state.count = number + 1;
        state.end_time = store_time;
        state.end_log_offset = log_offset;
        Some(())
    }

    pub fn write_header(&self) -> Option<()> {
        let state = &self.state;
        let mut head = Vec::with_capacity(INDEX_HEAD);
        head.extend(state.begin_time.to_be_bytes());
        head.extend(state.end_time.to_be_bytes());
        head.extend(state.begin_log_offset.to_be_bytes());
        head.extend(state.end_log_offset.to_be_bytes());
        head.extend(state.slots_used.to_be_bytes());
        head.extend(state.count.to_be_bytes());
        self.memory.write(0, &head)
    }
}
