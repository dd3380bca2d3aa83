//! Checks many records of a log file in one call, and derives queue entries and index items from
//! them, by the contract of `protocol/pure/walk.py`.

use std::collections::HashMap;
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::queue_entry::{ENTRY_BYTES, QueueEntry};
use super::record_layout::{HEAD_MAX, RecordHead, split_tail};
use super::text::{java_hash, key_hash, topic_hash};
use crate::view::View;

/// A topic is a folder; longer names are left out of queues.
const TOPIC_NAME_BYTES_MAX: usize = 255;
const TRANSACTION_MASK: i32 = 3 << 2;
const TRANSACTION_NONE: i32 = 0;
const TRANSACTION_COMMIT: i32 = 2 << 2;
const TRANSACTION_ROLLBACK: i32 = 3 << 2;
const SIZE_MIN: usize = 91;
const FILLER_BYTES: usize = 8;
const SECTOR_BYTES: usize = 512;
const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
const LEVEL_DIGITS_MAX: usize = 9;

// -- walking --------------------------------------------------------------------------------------

/// The arguments of a walk; see `walk_records` in `protocol/pure/walk.py`.
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

/// Entries of one queue with consecutive queue offsets.
struct Run {
    topic: String,
    queue_id: i32,
    queue_offset: i64,
    count: i64,
    entries: Vec<u8>,
}

/// Queue entries and index items of the records read so far.
#[derive(Default)]
struct Derived {
    /// Index of the last run of each queue, by topic and queue id.
    last_runs: HashMap<String, HashMap<i32, usize>>,
    runs: Vec<Run>,
    items: Vec<u8>,
}

/// A record that passed all checks.
pub struct Checked<'a> {
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
    let mut derived = Derived::default();
    let mut position = task.start;
    let (mut count, mut store_time) = (0_u64, 0);
    let mut tail = Vec::new();
    while position < task.stop {
        let Some(record) = read(view, position, task, &mut tail) else { break };
        let Some(size) = usize::try_from(record.size).ok() else { break };
        let time = record.store_time;
        if derived.add(&record, task).is_none() {
            break;
        }
        position += size;
        count += 1;
        store_time = time;
    }
    let runs = PyList::empty(py);
    for run in &derived.runs {
        let entries = PyBytes::new(py, &run.entries);
        let run = (run.topic.as_str(), run.queue_id, run.queue_offset, entries);
        runs.append(run).ok()?;
    }
    let items = PyBytes::new(py, &derived.items);
    (position, count, store_time, runs, items).into_pyobject(py).ok()
}

/// The record at `position`, or None if any check fails; `tail` receives its topic and properties.
pub fn read<'a>(
    view: View<'_>,
    position: usize,
    task: &Task,
    tail: &'a mut Vec<u8>,
) -> Option<Checked<'a>> {
    let mut buffer = [0; HEAD_MAX];
    let head = RecordHead::read(view, position, &mut buffer)?;
    let record = head.record;
    // A file always has space for the filler behind its last record.
    let end = position.checked_add(record.len())?;
    if record.len() < SIZE_MIN || end.checked_add(FILLER_BYTES)? > view.len() {
        return None;
    }
    let log_offset = task.first.checked_add(i64::try_from(position).ok()?)?;
    if head.log_offset != log_offset || head.queue_id < 0 || head.queue_offset < 0 {
        return None;
    }
    let (body_at, tail_at) = head.body_range()?;
    if task.check_crc && !head.has_crc_of(record.part(body_at, tail_at)?) {
        return None;
    }
    let text = record.part(tail_at, record.len())?;
    tail.clear();
    tail.resize(text.len(), 0);
    text.copy_to(tail);
    let (topic, properties) = split_tail(tail, head.is_v2)?;
    let properties_at = end - properties.len();
    let topic_at = properties_at - 2 - topic.len();
    if task.torn && (lost_sector(topic, topic_at) || lost_sector(properties, properties_at)) {
        return None;
    }
    let topic = from_utf8(topic).ok()?;
    let properties = from_utf8(properties).ok()?;
    let is_valid_name = !matches!(topic, "" | "." | "..")
        && !topic.contains(['/', '\0'])
        && topic.len() <= TOPIC_NAME_BYTES_MAX;
    is_valid_name.then_some(Checked {
        size: head.size,
        queue_id: head.queue_id,
        queue_offset: head.queue_offset,
        log_offset,
        sys_flag: head.sys_flag,
        store_time: head.store_time,
        topic,
        properties,
    })
}

/// Whether a text contains a sector that was never written and so reads as zeros.
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

impl Derived {
    /// Adds entry and items of a record; adds nothing and returns None if it has no valid entry.
    fn add(&mut self, record: &Checked<'_>, task: &Task) -> Option<()> {
        let named = Named::of(record.properties);
        let state = record.sys_flag & TRANSACTION_MASK;
        if record.log_offset >= task.queues_from
            && matches!(state, TRANSACTION_NONE | TRANSACTION_COMMIT)
        {
            let entry = QueueEntry {
                log_offset: record.log_offset,
                size: record.size,
                tags_code: tags_code(record, &named, &task.delay_levels)?,
            };
            self.entries_of(record)?.extend_from_slice(&entry.encode()?);
        }
        if record.log_offset >= task.index_from && state != TRANSACTION_ROLLBACK {
            let keys = named.keys.split(' ').filter(|key| !key.is_empty());
            let unique = Some(named.unique).filter(|key| !key.is_empty());
            let topic_hash = topic_hash(record.topic.as_bytes());
            for key in unique.into_iter().chain(keys).take(task.keys_max) {
                self.items.extend(key_hash(topic_hash, key.as_bytes()).to_be_bytes());
                self.items.extend(record.log_offset.to_be_bytes());
                self.items.extend(record.store_time.to_be_bytes());
            }
        }
        Some(())
    }

    /// The entries of the run that the record continues, or of a new run.
    fn entries_of(&mut self, record: &Checked<'_>) -> Option<&mut Vec<u8>> {
        let last = self.last_runs.get(record.topic).and_then(|queues| queues.get(&record.queue_id));
        let continued = last.copied().filter(|index| {
            let run = self.runs.get(*index);
            run.is_some_and(|run| {
                run.queue_offset.checked_add(run.count) == Some(record.queue_offset)
            })
        });
        let index = continued.unwrap_or_else(|| {
            let index = self.runs.len();
            self.runs.push(Run {
                topic: record.topic.to_owned(),
                queue_id: record.queue_id,
                queue_offset: record.queue_offset,
                count: 0,
                entries: Vec::with_capacity(8 * ENTRY_BYTES),
            });
            self.last_runs
                .entry(record.topic.to_owned())
                .or_default()
                .insert(record.queue_id, index);
            index
        });
        let run = self.runs.get_mut(index)?;
        run.count += 1;
        Some(&mut run.entries)
    }
}

/// The properties that entries and items need; of a repeated name the last one.
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

fn tags_code(record: &Checked<'_>, named: &Named<'_>, levels: &[i64]) -> Option<i64> {
    let delay = named.delay;
    let decimal = !delay.is_empty() && delay.bytes().all(|byte| byte.is_ascii_digit());
    if record.topic == SCHEDULE_TOPIC && decimal {
        let number =
            if delay.len() > LEVEL_DIGITS_MAX { usize::MAX } else { delay.parse().ok()? };
        if let Some(index) = number.min(levels.len()).checked_sub(1) {
            return record.store_time.checked_add(*levels.get(index)?);
        }
    }
    Some(i64::from(java_hash(0, named.tags.as_bytes())))
}
