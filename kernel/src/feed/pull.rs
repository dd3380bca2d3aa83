//! Pulls that find messages: the request header, the read of a queue, and the response.
//!
//! The rules are those of `store/reading.py` and `broker/handlers/pull.py`. Every other result than
//! FOUND is declined: no message yet, a wrong offset, a record in a file that was not granted, or one
//! that must be read from disk, which would block all connections. So all that is read here is in
//! memory, and has the limits for such messages, however far it is from the end of the log.

use std::borrow::Cow;
use std::str::from_utf8;

use pyo3::prelude::*;

use super::log_files::{LogFiles, Piece, RecordAt};
use super::send_header::{int32, once, put_common};
use super::settings::{Settings, put_headline, put_length, put_number, put_pair};
use super::topics::{Filter, Grant, QueueFile};
use crate::codecs::header::{ENCODING_BINARY, Head};
use crate::codecs::header_json::number;
use crate::codecs::queue_entry::{ENTRY_BYTES, QueueEntry};
use crate::codecs::text::java_hash;

pub const PULL_MESSAGE: i32 = 11;
pub const LITE_PULL_MESSAGE: i32 = 361;

const COMMIT_OFFSET: i32 = 1;
const HAS_SUBSCRIPTION: i32 = 4;
const RECORD_MIN: usize = 91;
const BLANK_SIZE: i32 = i32::MAX;
/// The least number of entries that one read examines, when a filter rejects most of them.
const ENTRIES_PER_READ: i64 = 800;
const RESPONSE_HEADER_BYTES_MAX: usize = 1024;
/// This many entries at the end of a queue are assumed to be in memory.
const HOT_ENTRIES: i64 = 8192;
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

/// The header of a pull, as far as it was read.
#[derive(Default)]
pub struct PullHeader<'a> {
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

impl<'a> PullHeader<'a> {
    pub fn put(&mut self, key: &[u8], value: Cow<'a, [u8]>) -> Option<()> {
        let Some(field) = NAMES.iter().position(|name| *name == key) else {
            return put_common(&mut self.seen, NAMES.len(), key, &value);
        };
        once(&mut self.seen, field)?;
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

    /// The filter of the pull, if Python has granted it.
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

/// The result of a pull.
pub struct Pulled {
    pub count: usize,
    pub size_bytes: usize,
    pub next_offset: i64,
}

/// What pulls may read without the handlers.
pub struct Limits<'a> {
    /// Records further than this behind the end of the log are read only if in the page cache.
    pub hot_bytes: i64,
    /// Only records that lie wholly below this log offset.
    pub confirmed: i64,
    /// Python's `max_offset_of`.
    pub max_offset: Option<&'a Py<PyAny>>,
}

impl Limits<'_> {
    /// The offset after the last message of a queue that readers may see.
    fn max_offset(&self, py: Python<'_>, owner: &Py<PyAny>, end: i64) -> Option<i64> {
        let queue = owner.bind(py);
        if self.confirmed < end {
            let queue_end: i64 = queue.getattr("end_log_offset").ok()?.extract().ok()?;
            if queue_end > self.confirmed {
                return self.max_offset?.bind(py).call1((queue,)).ok()?.extract().ok();
            }
        }
        queue.getattr("next_offset").ok()?.extract().ok()
    }
}

/// Reads messages; appends the header of the response to `out` and its body to `pieces`. If it
/// returns None the caller must truncate both to their lengths before.
#[expect(clippy::too_many_arguments, reason = "a pull needs all of the feed's tables")]
pub fn respond(
    py: Python<'_>,
    pull: &PullHeader<'_>,
    (filter, brokers): (&Filter, (i64, i64)),
    file: &QueueFile,
    log: &LogFiles<'_>,
    settings: &Settings,
    limits: &Limits<'_>,
    (head, encoding): (&Head, u8),
    out: &mut Vec<u8>,
    pieces: &mut Vec<Piece>,
) -> Option<Pulled> {
    let end = log.last.end()?;
    let high = limits.max_offset(py, &file.owner, end)?;
    let start = pull.queue_offset;
    let count_max = i64::from(pull.max_count).min(settings.pull_count).min(settings.read_count);
    if start < file.low || start >= high || start < file.first || count_max < 1 {
        return None;
    }
    let stop = start.checked_add(count_max.max(ENTRIES_PER_READ))?.min(high).min(file.stop);
    let entries = file.memory.view();
    if high - start > HOT_ENTRIES {
        let position = |at: i64| usize::try_from(at - file.first).ok()?.checked_mul(ENTRY_BYTES);
        if !entries.part(position(start)?, position(stop)?)?.is_cached() {
            return None;
        }
    }
    let first_piece = pieces.len();
    let (mut got, mut total, mut at) = (0, 0, start);
    let mut last = end;
    let mut unchecked = Vec::new();
    while at < stop {
        let position = usize::try_from(at - file.first).ok()?.checked_mul(ENTRY_BYTES)?;
        let QueueEntry { log_offset, size: size_field, tags_code } =
            QueueEntry::decode(&entries.array(position)?)?;
        let size = usize::try_from(size_field).ok()?;
        let is_full = i64::try_from(got).ok()? >= count_max;
        if got > 0 && (is_full || size.checked_add(total)? > settings.read_bytes) {
            break;
        }
        at += 1;
        if size_field == BLANK_SIZE {
            continue;
        }
        last = log_offset;
        if !filter.accepts(tags_code) {
            continue;
        }
        // The entries of a file that was replaced meanwhile read as zeros.
        if size < RECORD_MIN {
            return None;
        }
        let piece = log.find(log_offset, size)?;
        if log_offset < settings.checked_from {
            unchecked.push(RecordAt { queue_offset: at - 1, size: size_field, piece });
        }
        match pieces.get_mut(first_piece..).and_then(<[Piece]>::last_mut) {
            Some(last) if last.continues_with(&piece) => last.stop = piece.stop,
            _ => pieces.push(piece),
        }
        got += 1;
        total += size;
    }
    if got == 0 || total.checked_add(RESPONSE_HEADER_BYTES_MAX)? > settings.frame_max {
        return None;
    }
    if !log.has_cached(pieces.get(first_piece..)?, end.saturating_sub(limits.hot_bytes)) {
        return None;
    }
    // Python handles damaged records: it skips and logs them.
    let mut text = Vec::new();
    if !unchecked.iter().all(|record| log.is_sound(pull, record, &mut text)) {
        return None;
    }
    let first = out.len();
    out.extend([0; 8]);
    let is_slow = end.checked_sub(last)? > settings.memory_bytes;
    let broker = if is_slow { brokers.1 } else { brokers.0 };
    let numbers = [broker, at, file.low, high];
    if encoding == ENCODING_BINARY {
        put_binary(out, head, settings, numbers)?;
    } else {
        put_json(out, head, &settings.json_end, numbers);
    }
    put_headline(out, first, encoding, total)?;
    for piece in pieces.get_mut(first_piece..)? {
        piece.header_bytes = out.len();
    }
    Some(Pulled { count: got, size_bytes: total, next_offset: at })
}

fn put_json(out: &mut Vec<u8>, head: &Head, end: &[u8], numbers: [i64; 4]) {
    let [broker, next, low, high] = numbers;
    out.extend_from_slice(br#"{"code":0,"extFields":{"suggestWhichBrokerId":""#);
    put_number(out, broker);
    out.extend_from_slice(br#"","nextBeginOffset":""#);
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

fn put_binary(
    out: &mut Vec<u8>,
    head: &Head,
    settings: &Settings,
    numbers: [i64; 4],
) -> Option<()> {
    let [broker, next, low, high] = numbers;
    let length_at = settings.begin_binary(out, head.opaque, "FOUND")?;
    put_pair(out, "suggestWhichBrokerId", |out| put_number(out, broker))?;
    put_pair(out, "nextBeginOffset", |out| put_number(out, next))?;
    put_pair(out, "minOffset", |out| put_number(out, low))?;
    put_pair(out, "maxOffset", |out| put_number(out, high))?;
    put_length(out, length_at)
}
