//! Pulls that find messages: the header, the walk over a queue, and the answer.
//!
//! The rules are those of `store/reading.py` and `broker/handlers/pull.py`. Whatever is not plainly
//! "found" declines: nothing there yet, a wrong offset, a record in a file that is not lent, or one
//! that would have to come from the disk, for which everybody would wait.

use std::borrow::Cow;
use std::collections::HashMap;
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::header::{ENCODING_BINARY, Head};
use crate::header_json::number;
use crate::leases::Log;
use crate::request::{int32, put_common};
use crate::settings::{PYTHON, RESPONSE, Settings, put_headline, put_length, put_number, put_pair};
use crate::texts::java_hash;
use crate::view::{Mapping, View, write_parts};
use crate::walk::{self, Task};

pub const PULL_MESSAGE: i32 = 11;
pub const LITE_PULL_MESSAGE: i32 = 361;

const COMMIT_OFFSET: i32 = 1;
const HAS_SUBSCRIPTION: i32 = 4;
const ENTRY: usize = 20;
const RECORD_MIN: usize = 91;
const BLANK_SIZE: i32 = i32::MAX;
/// Entries that one read looks at, at least, when a filter rejects most of them.
const ENTRIES_A_READ: i64 = 800;
const ANSWER_BYTES: usize = 1024;
/// So many entries at the end of a queue are taken to be in memory.
const HOT_ENTRIES: i64 = 8192;
/// From this size on, parts of answers are given to the system one by one.
const PART_BYTES: usize = 4096;
const ROOM_BYTES_MAX: usize = 512 * 1024;
/// Pieces within so many bytes are asked for at once.
const CLOSE_BYTES: usize = 1 << 20;

const NAMES: [&[u8]; 15] = [
    b"consumerGroup",
    b"topic",
    b"queueId",
    b"queueOffset",
    b"maxMsgNums",
    b"sysFlag",
    b"commitOffset",
    b"suspendTimeoutMillis",
    b"subVersion",
    b"subscription",
    b"expressionType",
    b"liteTopic",
    b"maxMsgBytes",
    b"requestSource",
    b"proxyFrowardClientId",
];
const REQUIRED: u32 = 0x1FF;

pub fn is_pull(code: i32) -> bool {
    matches!(code, PULL_MESSAGE | LITE_PULL_MESSAGE)
}

/// A header of a pull as far as it was read.
#[derive(Default)]
pub struct Pull<'a> {
    seen: u32,
    pub group: Cow<'a, [u8]>,
    pub topic: Cow<'a, [u8]>,
    pub queue_id: i32,
    queue_offset: i64,
    max_count: i32,
    sys_flag: i32,
    commit_offset: i64,
    version: i64,
    subscription: Cow<'a, [u8]>,
    expression_type: Cow<'a, [u8]>,
}

impl<'a> Pull<'a> {
    pub fn put(&mut self, key: &[u8], value: Cow<'a, [u8]>) -> Option<()> {
        let Some(field) = NAMES.iter().position(|name| *name == key) else {
            return put_common(&mut self.seen, NAMES.len(), key, &value);
        };
        let bit = 1 << field;
        if self.seen & bit != 0 {
            return None;
        }
        self.seen |= bit;
        match field {
            0 => self.group = value,
            1 => self.topic = value,
            2 => self.queue_id = int32(&value)?,
            3 => self.queue_offset = number(&value)?,
            4 => self.max_count = int32(&value)?,
            5 => self.sys_flag = int32(&value)?,
            6 => self.commit_offset = number(&value)?,
            7 => drop(number(&value)?),
            8 => self.version = number(&value)?,
            9 => self.subscription = value,
            10 => self.expression_type = value,
            12 | 13 => drop(int32(&value)?),
            _ => {}
        }
        Some(())
    }

    pub fn is_complete(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }

    /// The offset to commit along with the pull.
    pub fn commit(&self) -> Option<i64> {
        (self.sys_flag & COMMIT_OFFSET != 0).then_some(self.commit_offset)
    }

    /// What the pull selects by tags, if the handlers have granted it.
    pub fn filter<'g>(&self, grant: &'g Grant) -> Option<Cow<'g, Filter>> {
        if self.sys_flag & HAS_SUBSCRIPTION == 0 {
            let (version, filter) = grant.registered.as_ref()?;
            return (*version >= self.version).then_some(Cow::Borrowed(filter));
        }
        let by_tags = self.expression_type.is_empty() || &*self.expression_type == b"TAG";
        if !grant.inline || !by_tags {
            return None;
        }
        if self.subscription.is_empty() || &*self.subscription == b"*" {
            return Some(Cow::Owned(Filter(None)));
        }
        let expression = from_utf8(&self.subscription).ok()?;
        let tags = expression.split("||").map(|tag| tag.trim_matches(|c| c <= ' '));
        let codes =
            tags.filter(|tag| !tag.is_empty()).map(|tag| i64::from(java_hash(0, tag.as_bytes())));
        Some(Cow::Owned(Filter(Some(codes.collect()))))
    }
}

/// The hashes of the tags that are wanted; None wants everything.
#[derive(Clone)]
pub struct Filter(pub Option<Vec<i64>>);

impl Filter {
    fn accepts(&self, tags_code: i64) -> bool {
        self.0.as_ref().is_none_or(|codes| codes.contains(&tags_code))
    }
}

/// What the handlers have answered a group in a topic before, and the feed may answer since.
#[derive(Default)]
pub struct Grant {
    /// Pulls that bring their subscription with them.
    pub inline: bool,
    /// Version and filter of the subscription that heartbeats told.
    pub registered: Option<(i64, Filter)>,
    /// What was given to the group, by queue id.
    pub counts: Vec<Counts>,
}

/// Messages that came or went since it was last asked for.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub messages: u64,
    pub size_bytes: u64,
    pub calls: u64,
    /// Where the last pull went on.
    pub next_offset: i64,
}

impl Counts {
    pub fn add(&mut self, messages: usize, size_bytes: usize) -> Option<()> {
        self.messages += u64::try_from(messages).ok()?;
        self.size_bytes += u64::try_from(size_bytes).ok()?;
        self.calls += 1;
        Some(())
    }
}

pub type Grants = HashMap<Vec<u8>, Grant>;

/// A file of a queue that is read.
pub struct QueueFile {
    /// Python's own queue object, which knows the end of the queue.
    pub owner: Py<PyAny>,
    pub memory: Mapping,
    /// Queue offset of its first entry, and of the first entry behind it.
    pub first: i64,
    pub stop: i64,
    /// The smallest queue offset whose message is still there.
    pub low: i64,
}

/// What a read may bring, of new and of old messages.
#[derive(Clone, Copy, Default)]
pub struct ReadLimits {
    pub pull_count: i64,
    pub count: (i64, i64),
    pub size_bytes: (usize, usize),
    /// What lies further than this behind the end of the log is old.
    pub memory_bytes: i64,
    /// Records before this log offset were there before this process, and are checked as they leave.
    pub checked_from: i64,
}

/// The log as far as it is lent.
pub struct LogFiles<'a> {
    pub last: &'a Log,
    pub older: &'a [(i64, Mapping)],
}

impl<'l> LogFiles<'l> {
    /// Where a record lies; declines what is not lent.
    fn find(&self, log_offset: i64, size: usize) -> Option<Piece> {
        let part = |first: i64, len: usize| {
            let start = usize::try_from(log_offset.checked_sub(first)?).ok()?;
            let stop = start.checked_add(size)?;
            (stop <= len).then_some(Piece { at: 0, first, start, stop })
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

    /// Whether the record that an entry leads to is whole, and the one that is meant.
    fn is_sound(
        &self,
        pull: &Pull<'_>,
        (queue_offset, size, first, start): (i64, i32, i64, usize),
        text: &mut Vec<u8>,
    ) -> bool {
        let task = Task { first, check_crc: true, ..Task::default() };
        let record = self.file(first).and_then(|file| walk::read(file, start, &task, text));
        record.is_some_and(|record| {
            record.topic.as_bytes() == pull.topic.as_ref()
                && record.queue_id == pull.queue_id
                && record.queue_offset == queue_offset
                && record.size == size
        })
    }

    /// Whether pieces can be read without waiting for the disk; new ones always can.
    fn has_cached(&self, pieces: &[Piece], hot_from: i64) -> bool {
        let Some((first, last)) = pieces.first().zip(pieces.last()) else {
            return true;
        };
        if first.log_offset() >= Some(hot_from) {
            return true; // and so are those behind it, which are newer
        }
        // Mostly they lie close together; then one question does for all.
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

    /// Headers and the pieces of the log that belong between them, in their order.
    pub fn parts(&self, headers: &'l [u8], pieces: &[Piece]) -> Option<Vec<View<'l>>> {
        let mut parts = Vec::with_capacity(2 * pieces.len() + 1);
        let mut used = 0;
        for piece in pieces {
            if used < piece.at {
                parts.push(View::Bytes(headers.get(used..piece.at)?));
                used = piece.at;
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

/// The bytes of all parts but for the first ones.
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
    let joined = PyBytes::new_with(py, total, |room| {
        whole = copy_parts(room, parts, without);
        Ok(())
    });
    whole.and(joined.ok())
}

/// Writes parts behind each other to a socket; answers how many bytes it took. Small ones are put
/// together in `room` first: each part costs the system more than copying so much.
pub fn write(socket: i32, parts: &[View<'_>], room: &mut Vec<u8>) -> usize {
    let total = parts.iter().map(|part| part.len()).sum::<usize>();
    if total / PART_BYTES >= parts.len() || total > ROOM_BYTES_MAX {
        return write_parts(socket, parts);
    }
    if room.len() < total {
        room.resize(total, 0);
    }
    let Some(joined) = room.get_mut(..total) else {
        return 0;
    };
    match copy_parts(joined, parts, 0) {
        Some(()) => write_parts(socket, &[View::Bytes(joined)]),
        None => 0,
    }
}

fn copy_parts(mut room: &mut [u8], parts: &[View<'_>], mut without: usize) -> Option<()> {
    for part in parts {
        let skipped = without.min(part.len());
        without -= skipped;
        let part = part.part(skipped, part.len())?;
        let (place, rest) = room.split_at_mut_checked(part.len())?;
        part.copy_to(place);
        room = rest;
    }
    Some(())
}

/// A run of bytes in a file of the log, which leaves when the answers are complete.
pub struct Piece {
    /// How many bytes of headers come before it.
    at: usize,
    /// Log offset of the file's first byte.
    first: i64,
    start: usize,
    stop: usize,
}

impl Piece {
    fn log_offset(&self) -> Option<i64> {
        self.first.checked_add(i64::try_from(self.start).ok()?)
    }
}

/// What a pull got.
pub struct Got {
    pub count: usize,
    pub size_bytes: usize,
    pub next_offset: i64,
}

/// Reads and puts the header of the answer into `out` and its body into `pieces`; None if it is not
/// plainly found, and then there may be something in them that is to be taken out again.
#[expect(clippy::too_many_arguments, reason = "a pull needs all of the feed's tables")]
pub fn answer(
    py: Python<'_>,
    pull: &Pull<'_>,
    filter: &Filter,
    file: &QueueFile,
    log: &LogFiles<'_>,
    settings: &Settings,
    hot_bytes: i64,
    (head, encoding): (&Head, u8),
    out: &mut Vec<u8>,
    pieces: &mut Vec<Piece>,
) -> Option<Got> {
    let limits = &settings.read;
    let end = log.last.end()?;
    let high: i64 = file.owner.bind(py).getattr("next_offset").ok()?.extract().ok()?;
    let start = pull.queue_offset;
    let count_max = i64::from(pull.max_count).min(limits.pull_count);
    if start < file.low || start >= high || start < file.first || count_max < 1 {
        return None;
    }
    let stop = start.checked_add(count_max.max(ENTRIES_A_READ))?.min(high).min(file.stop);
    let entries = file.memory.view();
    if high - start > HOT_ENTRIES {
        let place = |at: i64| usize::try_from(at - file.first).ok()?.checked_mul(ENTRY);
        if !entries.part(place(start)?, place(stop)?)?.is_cached() {
            return None;
        }
    }
    let first_piece = pieces.len();
    let (mut got, mut total, mut at) = (0, 0, start);
    let mut unchecked = Vec::new();
    while at < stop {
        let place = usize::try_from(at - file.first).ok()?.checked_mul(ENTRY)?;
        let (log_offset, size_field, tags_code) = entry_of(&entries.array(place)?)?;
        let size = usize::try_from(size_field).ok()?;
        if got > 0 {
            let old = end.checked_sub(log_offset)? > limits.memory_bytes;
            let count = if old { limits.count.1 } else { limits.count.0 };
            let size_max = if old { limits.size_bytes.1 } else { limits.size_bytes.0 };
            let is_full = i64::try_from(got).ok()? >= count_max.min(count);
            if is_full || size.checked_add(total)? > size_max {
                break;
            }
        }
        at += 1;
        if size_field == BLANK_SIZE || !filter.accepts(tags_code) {
            continue;
        }
        // A file whose entries lie elsewhere meanwhile reads as zeros.
        if size < RECORD_MIN {
            return None;
        }
        let piece = log.find(log_offset, size)?;
        if log_offset < limits.checked_from {
            unchecked.push((at - 1, size_field, piece.first, piece.start));
        }
        match pieces.get_mut(first_piece..).and_then(<[Piece]>::last_mut) {
            Some(last) if last.first == piece.first && last.stop == piece.start => {
                last.stop = piece.stop;
            }
            _ => pieces.push(piece),
        }
        got += 1;
        total += size;
    }
    if got == 0 || total.checked_add(ANSWER_BYTES)? > settings.frame_max {
        return None;
    }
    if !log.has_cached(pieces.get(first_piece..)?, end.saturating_sub(hot_bytes)) {
        return None;
    }
    // What is damaged is for Python, which leaves it out and says so.
    let mut text = Vec::new();
    if !unchecked.into_iter().all(|place| log.is_sound(pull, place, &mut text)) {
        return None;
    }
    let first = out.len();
    out.extend([0; 8]);
    let offsets = [at, file.low, high];
    if encoding == ENCODING_BINARY {
        put_binary(out, head, settings.version, offsets)?;
    } else {
        put_json(out, head, &settings.json_end, offsets);
    }
    put_headline(out, first, encoding, total)?;
    for piece in pieces.get_mut(first_piece..)? {
        piece.at = out.len();
    }
    Some(Got { count: got, size_bytes: total, next_offset: at })
}

fn entry_of(entry: &[u8; ENTRY]) -> Option<(i64, i32, i64)> {
    let (log_offset, rest) = entry.split_first_chunk()?;
    let (size, code) = rest.split_first_chunk()?;
    let log_offset = i64::from_be_bytes(*log_offset);
    Some((log_offset, i32::from_be_bytes(*size), i64::from_be_bytes(*code.first_chunk()?)))
}

fn put_json(out: &mut Vec<u8>, head: &Head, end: &[u8], offsets: [i64; 3]) {
    let [next, low, high] = offsets;
    out.extend_from_slice(
        br#"{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":""#,
    );
    put_number(out, next);
    out.extend_from_slice(br#"","minOffset":""#);
    put_number(out, low);
    out.extend_from_slice(br#"","maxOffset":""#);
    put_number(out, high);
    out.extend_from_slice(br#""},"flag":1,"language":"PYTHON","opaque":"#);
    put_number(out, head.opaque.into());
    out.extend_from_slice(br#","remark":"FOUND""#);
    out.extend_from_slice(end);
}

fn put_binary(out: &mut Vec<u8>, head: &Head, version: i16, offsets: [i64; 3]) -> Option<()> {
    let [next, low, high] = offsets;
    out.extend([0, 0, PYTHON]);
    out.extend(version.to_be_bytes());
    out.extend(head.opaque.to_be_bytes());
    out.extend(RESPONSE.to_be_bytes());
    out.extend([0, 0, 0, 5]);
    out.extend_from_slice(b"FOUND");
    let length_at = out.len();
    out.extend([0; 4]);
    put_pair(out, "suggestWhichBrokerId", |out| out.push(b'0'))?;
    put_pair(out, "nextBeginOffset", |out| put_number(out, next))?;
    put_pair(out, "minOffset", |out| put_number(out, low))?;
    put_pair(out, "maxOffset", |out| put_number(out, high))?;
    put_length(out, length_at)
}
