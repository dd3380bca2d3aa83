//! The files of the log that the feed may read, and responses whose bodies are runs of them.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::pull::PullHeader;
use super::store_memory::Log;
use crate::codecs::walk::{self, Task};
use crate::view::{Mapping, View, write_parts};

/// From this average size on, parts of responses are written without joining them first.
const PART_BYTES: usize = 4096;
const JOINED_BYTES_MAX: usize = 512 * 1024;
/// Pieces within this many bytes are checked for presence in the page cache with one call.
const CLOSE_BYTES: usize = 1 << 20;

/// The granted files of the log.
pub struct LogFiles<'a> {
    pub last: &'a Log,
    pub older: &'a [(i64, Mapping)],
}

impl<'l> LogFiles<'l> {
    /// The position of a record; None if its file was not granted.
    #[inline(always)]
    pub fn find(&self, log_offset: i64, size: usize) -> Option<Piece> {
        let part = |first: i64, len: usize| {
            let start = usize::try_from(log_offset.checked_sub(first)?).ok()?;
            let stop = start.checked_add(size)?;
            (stop <= len).then_some(Piece { header_bytes: 0, first, start, stop })
        };
        let last = self.last;
        if log_offset >= last.first {
            return part(last.first, last.position.min(last.memory.len()));
        }
        self.older.iter().find_map(|(first, memory)| part(*first, memory.len()))
    }

    fn view(&self, piece: &Piece) -> Option<View<'l>> {
        self.file(piece.first)?.part(piece.start, piece.stop)
    }

    fn file(&self, first: i64) -> Option<View<'l>> {
        if first == self.last.first {
            return Some(self.last.memory.view());
        }
        self.older.iter().find(|file| file.0 == first).map(|(_, memory)| memory.view())
    }

    /// Whether the record that a queue entry points to is valid and belongs to that entry.
    pub fn is_sound(&self, pull: &PullHeader<'_>, at: &RecordAt, text: &mut Vec<u8>) -> bool {
        let Piece { first, start, .. } = at.piece;
        let task = Task { first, check_crc: true, ..Task::default() };
        let record = self.file(first).and_then(|file| walk::read(file, start, &task, text));
        record.is_some_and(|record| {
            record.topic.as_bytes() == pull.topic.as_ref()
                && record.queue_id == pull.queue_id
                && record.queue_offset == at.queue_offset
                && record.size == at.size
        })
    }

    /// Whether pieces can be read without waiting for the disk; recent ones always can.
    pub fn has_cached(&self, pieces: &[Piece], hot_from: i64) -> bool {
        let Some((first, last)) = pieces.first().zip(pieces.last()) else {
            return true;
        };
        if first.log_offset() >= Some(hot_from) {
            return true; // the other pieces are newer
        }
        // Mostly they are close together; then one system call is enough.
        let is_close = first.first == last.first
            && first.start <= last.stop
            && last.stop - first.start <= CLOSE_BYTES;
        let all = Piece { stop: last.stop, ..*first };
        if is_close && self.view(&all).is_some_and(View::is_cached) {
            return true;
        }
        pieces.iter().all(|piece| {
            piece.log_offset() >= Some(hot_from) || self.view(piece).is_some_and(View::is_cached)
        })
    }

    /// Headers and pieces of the log in the order in which they are sent.
    pub fn parts(&self, headers: &'l [u8], pieces: &[Piece]) -> Option<Vec<View<'l>>> {
        let mut parts = Vec::with_capacity(2 * pieces.len() + 1);
        let mut used = 0;
        for piece in pieces {
            if used < piece.header_bytes {
                parts.push(View::Bytes(headers.get(used..piece.header_bytes)?));
                used = piece.header_bytes;
            }
            parts.push(self.view(piece)?);
        }
        let behind = headers.get(used..)?;
        if !behind.is_empty() {
            parts.push(View::Bytes(behind));
        }
        Some(parts)
    }
}

/// The bytes of all parts, without the first `without` bytes.
pub fn join<'py>(
    py: Python<'py>,
    parts: &[View<'_>],
    without: usize,
) -> Option<Bound<'py, PyBytes>> {
    let total = parts.iter().map(|part| part.len()).sum::<usize>().checked_sub(without)?;
    if total == 0 {
        return Some(PyBytes::new(py, b""));
    }
    let mut whole = Some(());
    let joined = PyBytes::new_with(py, total, |target| {
        whole = copy_parts(target, parts, without);
        Ok(())
    });
    whole.and(joined.ok())
}

/// Writes parts to a socket; returns how many bytes it accepted. Small parts are joined in `buffer`
/// first: an element of `writev` costs more than copying it.
pub fn write(socket: i32, parts: &[View<'_>], buffer: &mut Vec<u8>) -> usize {
    let total = parts.iter().map(|part| part.len()).sum::<usize>();
    if total / PART_BYTES >= parts.len() || total > JOINED_BYTES_MAX {
        return write_parts(socket, parts);
    }
    if buffer.len() < total {
        buffer.resize(total, 0);
    }
    let Some(joined) = buffer.get_mut(..total) else {
        return 0;
    };
    match copy_parts(joined, parts, 0) {
        Some(()) => write_parts(socket, &[View::Bytes(joined)]),
        None => 0,
    }
}

fn copy_parts(mut target: &mut [u8], parts: &[View<'_>], mut without: usize) -> Option<()> {
    for part in parts {
        let skipped = without.min(part.len());
        without -= skipped;
        let part = part.part(skipped, part.len())?;
        let (slot, rest) = target.split_at_mut_checked(part.len())?;
        part.copy_to(slot);
        target = rest;
    }
    Some(())
}

/// A run of bytes in a file of the log, part of the body of a response.
#[derive(Clone, Copy)]
pub struct Piece {
    /// Number of bytes of headers that are sent before it.
    pub header_bytes: usize,
    /// Log offset of the file's first byte.
    first: i64,
    start: usize,
    pub stop: usize,
}

/// A record that a queue entry points to.
pub struct RecordAt {
    pub queue_offset: i64,
    pub size: i32,
    pub piece: Piece,
}

impl Piece {
    #[inline(always)]
    pub fn continues_with(&self, next: &Self) -> bool {
        self.first == next.first && self.stop == next.start
    }

    fn log_offset(&self) -> Option<i64> {
        self.first.checked_add(i64::try_from(self.start).ok()?)
    }
}
