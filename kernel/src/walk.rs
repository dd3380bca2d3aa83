//! Many records of a log file in one call, and what queues and index need of them, by the contract
//! of `protocol/pure/walk.py`.

use std::collections::HashMap;
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::crc::body_crc;
use crate::reader::Reader;
use crate::view::{Mapping, View};

/// A topic is a folder; longer names are left out of queues.
const TOPIC_NAME_BYTES_MAX: usize = 255;
const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_HOST_V6: i32 = 1 << 4;
const STORE_HOST_V6: i32 = 1 << 5;
const TRANSACTION_MASK: i32 = 3 << 2;
const TRANSACTION_NONE: i32 = 0;
const TRANSACTION_COMMIT: i32 = 2 << 2;
const TRANSACTION_ROLLBACK: i32 = 3 << 2;
const HEAD_MAX: usize = 112;
const HEAD_WITHOUT_HOSTS: usize = 72;
const SIZE_MIN: usize = 91;
const FILLER_BYTES: usize = 8;
const SECTOR_BYTES: usize = 512;
const ENTRY_BYTES: usize = 20;
const INDEX_HEADER_BYTES: usize = 40;
const SLOT_BYTES: usize = 4;
const ITEM_BYTES: usize = 20;
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
const LEVEL_DIGITS_MAX: usize = 9;

// -- walking --------------------------------------------------------------------------------------

/// What a walk is asked for; see `pure_walk.walk_records`.
#[derive(Default)]
pub struct Task {
    pub first: i64,
    pub start: usize,
    pub stop: usize,
    pub queues_from: i64,
    pub index_from: i64,
    pub keys_max: usize,
    pub delay_levels: Vec<i64>,
    pub check_crc: bool,
    pub torn: bool,
}

struct Run {
    topic: String,
    queue_id: i32,
    queue_offset: i64,
    count: i64,
    entries: Vec<u8>,
}

#[derive(Default)]
struct Gathered {
    open: HashMap<String, HashMap<i32, usize>>,
    runs: Vec<Run>,
    items: Vec<u8>,
}

/// The fixed part of a record and its text, all of it checked.
pub struct Plain<'a> {
    pub size: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    log_offset: i64,
    sys_flag: i32,
    store_time: i64,
    pub topic: &'a str,
    properties: &'a str,
}

pub fn walk<'py>(py: Python<'py>, view: View<'_>, task: &Task) -> Option<Bound<'py, PyTuple>> {
    let mut gathered = Gathered::default();
    let mut position = task.start;
    let (mut count, mut store_time) = (0_u64, 0);
    let mut tail = Vec::new();
    while position < task.stop {
        let Some(plain) = read(view, position, task, &mut tail) else { break };
        let Some(size) = usize::try_from(plain.size).ok() else { break };
        let time = plain.store_time;
        if gathered.take(&plain, task).is_none() {
            break;
        }
        position += size;
        count += 1;
        store_time = time;
    }
    let runs = PyList::empty(py);
    for run in &gathered.runs {
        let entries = PyBytes::new(py, &run.entries);
        let run = (run.topic.as_str(), run.queue_id, run.queue_offset, entries);
        runs.append(run).ok()?;
    }
    let items = PyBytes::new(py, &gathered.items);
    (position, count, store_time, runs, items).into_pyobject(py).ok()
}

/// The record at `position` if it is plain; `tail` holds its text.
pub fn read<'a>(
    view: View<'_>,
    position: usize,
    task: &Task,
    tail: &'a mut Vec<u8>,
) -> Option<Plain<'a>> {
    let size = i32::from_be_bytes(view.array(position)?);
    let end = position.checked_add(usize::try_from(size).ok()?)?;
    // A file always keeps room for the filler behind its last record.
    if end.checked_add(FILLER_BYTES)? > view.len() {
        return None;
    }
    let record = view.part(position, end)?;
    if record.len() < SIZE_MIN {
        return None;
    }
    let mut head = [0; HEAD_MAX];
    record.copy_to(&mut head);
    let mut reader = Reader(head.get(4..record.len().min(HEAD_MAX))?);
    let magic = u32::from_be_bytes(reader.array()?);
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return None;
    }
    let crc = reader.i32()?;
    let queue_id = reader.i32()?;
    let _flag = reader.i32()?;
    let queue_offset = reader.i64()?;
    let log_offset = reader.i64()?;
    let sys_flag = reader.i32()?;
    let _born_time = reader.i64()?;
    let born_host = reader.take(host_length(sys_flag, BORN_HOST_V6))?.len();
    let store_time = reader.i64()?;
    let store_host = reader.take(host_length(sys_flag, STORE_HOST_V6))?.len();
    let _reconsume_count = reader.i32()?;
    let _prepared_log_offset = reader.i64()?;
    let body_length = usize::try_from(reader.i32()?).ok()?;
    let here = task.first.checked_add(i64::try_from(position).ok()?)?;
    if log_offset != here || queue_id < 0 || queue_offset < 0 {
        return None;
    }

    let body_at = HEAD_WITHOUT_HOSTS + born_host + store_host;
    let text_at = body_at.checked_add(body_length)?;
    let body = record.part(body_at, text_at)?;
    if task.check_crc && body_length > 0 && u32::try_from(crc).ok()? != body_crc(body) {
        return None;
    }
    let text = record.part(text_at, record.len())?;
    tail.clear();
    tail.resize(text.len(), 0);
    text.copy_to(tail);
    let width = if magic == MAGIC_V2 { 2 } else { 1 };
    let mut reader = Reader(tail);
    let topic_length = if magic == MAGIC_V2 { reader.i16()? } else { i16::from(reader.i8()?) };
    let topic = reader.take(i32::from(topic_length))?;
    let properties_length = reader.i16()?;
    let properties = reader.take(i32::from(properties_length))?;
    if !reader.0.is_empty() {
        return None;
    }
    let topic_at = position + text_at + width;
    let properties_at = topic_at + topic.len() + 2;
    if task.torn && (lost_sector(topic, topic_at) || lost_sector(properties, properties_at)) {
        return None;
    }
    let topic = from_utf8(topic).ok()?;
    let properties = from_utf8(properties).ok()?;
    let named = !matches!(topic, "" | "." | "..")
        && !topic.contains(['/', '\0'])
        && topic.len() <= TOPIC_NAME_BYTES_MAX;
    let plain =
        Plain { size, queue_id, queue_offset, log_offset, sys_flag, store_time, topic, properties };
    named.then_some(plain)
}

fn host_length(sys_flag: i32, bit: i32) -> i32 {
    if sys_flag & bit == 0 { 8 } else { 20 }
}

/// Whether a sector that never arrived, and so reads as zeros, lies in a text.
fn lost_sector(mut text: &[u8], mut at: usize) -> bool {
    while !text.is_empty() {
        let length = (SECTOR_BYTES - at % SECTOR_BYTES).min(text.len());
        let (piece, rest) = text.split_at(length);
        if piece.iter().all(|byte| *byte == 0) {
            return true;
        }
        (text, at) = (rest, at + length);
    }
    false
}

// -- deriving -------------------------------------------------------------------------------------

impl Gathered {
    /// None if no entry can be made of it; then nothing was taken.
    fn take(&mut self, plain: &Plain<'_>, task: &Task) -> Option<()> {
        let named = Named::of(plain.properties);
        let state = plain.sys_flag & TRANSACTION_MASK;
        if plain.log_offset >= task.queues_from
            && matches!(state, TRANSACTION_NONE | TRANSACTION_COMMIT)
        {
            let code = tags_code(plain, &named, &task.delay_levels)?;
            let entries = self.entries_of(plain)?;
            entries.extend(plain.log_offset.to_be_bytes());
            entries.extend(plain.size.to_be_bytes());
            entries.extend(code.to_be_bytes());
        }
        if plain.log_offset >= task.index_from && state != TRANSACTION_ROLLBACK {
            let keys = named.keys.split(' ').filter(|key| !key.is_empty());
            let unique = Some(named.unique).filter(|key| !key.is_empty());
            for key in unique.into_iter().chain(keys).take(task.keys_max) {
                self.items.extend(key_hash(plain.topic, key).to_be_bytes());
                self.items.extend(plain.log_offset.to_be_bytes());
                self.items.extend(plain.store_time.to_be_bytes());
            }
        }
        Some(())
    }

    /// The run that the record goes on with, or a new one.
    fn entries_of(&mut self, plain: &Plain<'_>) -> Option<&mut Vec<u8>> {
        let known = self.open.get(plain.topic).and_then(|queues| queues.get(&plain.queue_id));
        let fitting = known.copied().filter(|index| {
            let run = self.runs.get(*index);
            run.is_some_and(|run| {
                run.queue_offset.checked_add(run.count) == Some(plain.queue_offset)
            })
        });
        let index = fitting.unwrap_or_else(|| {
            let index = self.runs.len();
            self.runs.push(Run {
                topic: plain.topic.to_owned(),
                queue_id: plain.queue_id,
                queue_offset: plain.queue_offset,
                count: 0,
                entries: Vec::with_capacity(8 * ENTRY_BYTES),
            });
            self.open.entry(plain.topic.to_owned()).or_default().insert(plain.queue_id, index);
            index
        });
        let run = self.runs.get_mut(index)?;
        run.count += 1;
        Some(&mut run.entries)
    }
}

/// The properties that count here; of a repeated name the last one.
#[derive(Default)]
struct Named<'a> {
    keys: &'a str,
    unique: &'a str,
    tags: &'a str,
    delay: &'a str,
}

impl<'a> Named<'a> {
    fn of(text: &'a str) -> Self {
        let mut named = Self::default();
        for part in text.split('\x02') {
            match part.split_once('\x01') {
                Some((_, "")) | None => {}
                Some(("KEYS", value)) => named.keys = value,
                Some(("UNIQ_KEY", value)) => named.unique = value,
                Some(("TAGS", value)) => named.tags = value,
                Some(("DELAY", value)) => named.delay = value,
                Some(_) => {}
            }
        }
        named
    }
}

fn tags_code(plain: &Plain<'_>, named: &Named<'_>, levels: &[i64]) -> Option<i64> {
    let delay = named.delay;
    let decimal = !delay.is_empty() && delay.bytes().all(|byte| byte.is_ascii_digit());
    if plain.topic == SCHEDULE_TOPIC && decimal {
        let number =
            if delay.len() > LEVEL_DIGITS_MAX { usize::MAX } else { delay.parse().ok()? };
        if let Some(index) = number.min(levels.len()).checked_sub(1) {
            return plain.store_time.checked_add(*levels.get(index)?);
        }
    }
    Some(i64::from(java_hash(0, named.tags)))
}

fn java_hash(start: i32, text: &str) -> i32 {
    text.encode_utf16()
        .fold(start, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// Of `topic#key`, made positive; the smallest int has no positive twin and becomes 0.
fn key_hash(topic: &str, key: &str) -> i32 {
    java_hash(java_hash(java_hash(0, topic), "#"), key).checked_abs().unwrap_or(0)
}

// -- index ----------------------------------------------------------------------------------------

/// Writes loose items into an index file; see `pure_walk.put_index_items`.
pub fn put_items(
    file: &Mapping,
    slot_count: usize,
    number: i32,
    begin_time: i64,
    items: &[u8],
) -> Option<u32> {
    let items_at = slot_count.checked_mul(SLOT_BYTES)?.checked_add(INDEX_HEADER_BYTES)?;
    let room = file.len().checked_sub(items_at)? / ITEM_BYTES;
    let first = usize::try_from(number).ok()?;
    let loose = items.chunks_exact(ITEM_BYTES);
    let whole = loose.remainder().is_empty();
    if slot_count == 0 || !whole || first.checked_add(loose.len())? > room {
        return None;
    }
    let mut used = 0;
    for (loose, number) in loose.zip(number..) {
        let mut reader = Reader(loose);
        let (hashed, log_offset, store_time) = (reader.i32()?, reader.i64()?, reader.i64()?);
        let slot = usize::try_from(hashed).ok()?.checked_rem(slot_count)?;
        let slot_at = INDEX_HEADER_BYTES + slot * SLOT_BYTES;
        let mut previous = i32::from_be_bytes(file.view().array(slot_at)?);
        if !(0 < previous && previous < number) {
            previous = 0;
            used += 1;
        }
        let seconds = store_time.saturating_sub(begin_time).div_euclid(1000);
        let seconds = i32::try_from(seconds.max(0)).unwrap_or(i32::MAX);
        let mut item = [0; ITEM_BYTES];
        let parts = hashed.to_be_bytes().into_iter().chain(log_offset.to_be_bytes());
        let parts = parts.chain(seconds.to_be_bytes()).chain(previous.to_be_bytes());
        item.iter_mut().zip(parts).for_each(|(byte, part)| *byte = part);
        file.write(items_at + usize::try_from(number).ok()? * ITEM_BYTES, &item)?;
        file.write(slot_at, &number.to_be_bytes())?;
    }
    Some(used)
}
