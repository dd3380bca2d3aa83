//! Pulls that find messages: the header, the walk over a queue, and the answer.
//!
//! The rules are those of `store/reading.py` and `broker/handlers/pull.py`. Whatever is not plainly
//! "found" declines: nothing there yet, a wrong offset, a record in a file that is not lent.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::str::from_utf8;

use pyo3::prelude::*;

use crate::header::{ENCODING_BINARY, Head};
use crate::header_json::number;
use crate::leases::Log;
use crate::request::{int32, put_common};
use crate::settings::{PYTHON, RESPONSE, put_headline, put_length, put_pair};
use crate::texts::java_hash;
use crate::view::{Mapping, View};

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
        from_utf8(&value).ok()?;
        let Some(field) = NAMES.iter().position(|name| *name == key) else {
            from_utf8(key).ok()?;
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
        let codes = tags.filter(|tag| !tag.is_empty()).map(|tag| i64::from(java_hash(0, tag)));
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
    /// Records before this log offset are checked by Python before they leave.
    pub checked_from: i64,
}

/// The log as far as it is lent.
pub struct LogFiles<'a> {
    pub last: &'a Log,
    pub older: &'a [(i64, Mapping)],
}

impl LogFiles<'_> {
    fn record(&self, log_offset: i64, size: usize) -> Option<View<'_>> {
        let part = |memory: &Mapping, first: i64, len: usize| {
            let start = usize::try_from(log_offset.checked_sub(first)?).ok()?;
            let stop = start.checked_add(size)?;
            (stop <= len.min(memory.len())).then_some((start, stop))
        };
        let last = self.last;
        if log_offset >= last.first {
            let (start, stop) = part(&last.memory, last.first, last.position)?;
            return last.memory.view().part(start, stop);
        }
        self.older.iter().find_map(|(first, memory)| {
            let (start, stop) = part(memory, *first, memory.len())?;
            memory.view().part(start, stop)
        })
    }
}

/// What a pull got.
pub struct Got {
    pub count: usize,
    pub size_bytes: usize,
}

/// Reads and puts the answer into `out`; None, and nothing in `out`, if it is not plainly found.
#[expect(clippy::too_many_arguments, reason = "a pull needs all of the feed's tables")]
pub fn answer(
    py: Python<'_>,
    pull: &Pull<'_>,
    filter: &Filter,
    file: &QueueFile,
    log: &LogFiles<'_>,
    limits: &ReadLimits,
    (head, encoding, version, frame_max): (&Head, u8, i16, usize),
    out: &mut Vec<u8>,
) -> Option<Got> {
    let end = log.last.end()?;
    let high: i64 = file.owner.bind(py).getattr("next_offset").ok()?.extract().ok()?;
    let start = pull.queue_offset;
    let count_max = i64::from(pull.max_count).min(limits.pull_count);
    if start < file.low || start >= high || start < file.first || count_max < 1 {
        return None;
    }
    let stop = start.checked_add(count_max.max(ENTRIES_A_READ))?.min(high).min(file.stop);
    let entries = file.memory.view();
    let mut records: Vec<View<'_>> = Vec::with_capacity(32);
    let (mut total, mut at) = (0, start);
    while at < stop {
        let place = usize::try_from(at - file.first).ok()?.checked_mul(ENTRY)?;
        let log_offset = i64::from_be_bytes(entries.array(place)?);
        let size_field = i32::from_be_bytes(entries.array(place + 8)?);
        let tags_code = i64::from_be_bytes(entries.array(place + 12)?);
        let size = usize::try_from(size_field).ok()?;
        if !records.is_empty() {
            let old = end.checked_sub(log_offset)? > limits.memory_bytes;
            let count = if old { limits.count.1 } else { limits.count.0 };
            let size_max = if old { limits.size_bytes.1 } else { limits.size_bytes.0 };
            let is_full = i64::try_from(records.len()).ok()? >= count_max.min(count);
            if is_full || size.checked_add(total)? > size_max {
                break;
            }
        }
        at += 1;
        if size_field == BLANK_SIZE || !filter.accepts(tags_code) {
            continue;
        }
        // A file whose entries lie elsewhere meanwhile reads as zeros.
        if log_offset < limits.checked_from || size < RECORD_MIN {
            return None;
        }
        records.push(log.record(log_offset, size)?);
        total += size;
    }
    if records.is_empty() || total.checked_add(ANSWER_BYTES)? > frame_max {
        return None;
    }
    let first = out.len();
    out.reserve(total + ANSWER_BYTES);
    out.extend([0; 8]);
    let offsets = [at, file.low, high];
    if encoding == ENCODING_BINARY {
        put_binary(out, head, version, offsets)?;
    } else {
        put_json(out, head, version, offsets)?;
    }
    put_headline(out, first, encoding, total)?;
    let body_at = out.len();
    out.resize(body_at + total, 0);
    let mut room = out.get_mut(body_at..)?;
    for record in &records {
        let (place, rest) = room.split_at_mut_checked(record.len())?;
        record.copy_to(place);
        room = rest;
    }
    Some(Got { count: records.len(), size_bytes: total })
}

fn put_json(out: &mut Vec<u8>, head: &Head, version: i16, offsets: [i64; 3]) -> Option<()> {
    let [next, low, high] = offsets;
    write!(
        out,
        r#"{{"code":0,"extFields":{{"suggestWhichBrokerId":"0","nextBeginOffset":"{next}","#
    )
    .ok()?;
    write!(out, r#""minOffset":"{low}","maxOffset":"{high}"}},"flag":1,"language":"PYTHON","#)
        .ok()?;
    write!(out, r#""opaque":{},"remark":"FOUND","#, head.opaque).ok()?;
    write!(out, r#""serializeTypeCurrentRPC":"JSON","version":{version}}}"#).ok()
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
    put_pair(out, "suggestWhichBrokerId", |out| write!(out, "0").ok())?;
    put_pair(out, "nextBeginOffset", |out| write!(out, "{next}").ok())?;
    put_pair(out, "minOffset", |out| write!(out, "{low}").ok())?;
    put_pair(out, "maxOffset", |out| write!(out, "{high}").ok())?;
    put_length(out, length_at)
}
