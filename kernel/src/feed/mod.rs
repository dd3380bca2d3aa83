//! The fast path: receive buffers in, stored messages and responses out.
//!
//! `feed` goes through the frames of a buffer. It stores ordinary sends, reads for ordinary pulls and
//! writes their responses; the first other frame ends the loop without side effects, and Python
//! handles it. `broker/requests/fast_path.py` says what is ordinary and what Python must do for the
//! feed. Python owns all positions: it grants memory of the store (`store_memory.rs`) and commits
//! what the feed has written (`end_batch`), for several calls at once.
//!
//! The file is long because PyO3 wants all methods of a class in one block.

mod frame_loop;
mod log_files;
mod properties;
mod pull;
mod send_header;
mod send_messages;
mod settings;
mod store_memory;
mod topics;

use std::collections::HashMap;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use self::frame_loop::CallContext;
use self::log_files::Piece;
use self::settings::Settings;
use self::store_memory::{Index, IndexState, Log, Queue, Stage};
use self::topics::{Counts, Filter, QueueFile, Topic};
use crate::view::{Mapping, Window};

/// The most full files of the log that are held for reading.
const OLDER_MAX: usize = 4;

/// What was stored since the last `end_batch`.
#[derive(Default)]
struct Uncommitted {
    messages: usize,
    sends: usize,
    keys: usize,
    /// Topic number and queue id of each queue with new entries.
    queues: Vec<(usize, usize)>,
}

/// Counters of one call.
#[derive(Default)]
struct Call {
    sends: usize,
    pulls: usize,
    pulled_bytes: usize,
    commits: Vec<Commit>,
}

/// Buffers that are reused, and hold nothing between two frames.
#[derive(Default)]
struct Scratch {
    text: Vec<u8>,
    names: properties::Names,
    keys: Vec<i32>,
    log_offsets: Vec<i64>,
    /// Head or tail of a record.
    around: Vec<u8>,
    /// Responses that are written at once.
    joined: Vec<u8>,
}

#[derive(Default)]
#[pyclass(module = "tianzhou_kernel")]
pub struct Feed {
    settings: Option<Settings>,
    names: HashMap<Vec<u8>, usize>,
    topics: Vec<Option<Topic>>,
    /// The topic that was sent to last.
    last: usize,
    log: Option<Log>,
    stage: Option<Stage>,
    index: Option<Index>,
    /// Records further than this behind the end of the log may not be in the page cache.
    hot_bytes: i64,
    /// Pulls get only records that lie wholly below this log offset.
    confirmed: i64,
    /// Python's `max_offset_of`, for queues that end above it.
    max_offset: Option<Py<PyAny>>,
    /// Full files of the log, with the log offset of their first byte.
    older: Vec<(i64, Mapping)>,
    uncommitted: Uncommitted,
    call: Call,
    /// The responses of one call; bodies of pulls are in `pieces`.
    out: Vec<u8>,
    pieces: Vec<Piece>,
    window: Window,
    scratch: Scratch,
}

/// Messages, sends, bytes of records in the stage, keys, the queues.
type Batch<'py> = (usize, usize, usize, usize, Bound<'py, PyList>);
/// Topic, group, queue id, and the offset to commit.
type Commit = (String, String, i32, i64);
type Fed<'py> = (usize, isize, Bound<'py, PyBytes>, usize, Option<Vec<Commit>>, usize);
/// Topic, group, queue id, messages, bytes and pulls.
type Delivered = (String, String, usize, (u64, u64, u64), i64);

#[pymethods]
impl Feed {
    #[new]
    fn new() -> Self {
        Self { hot_bytes: i64::MAX, confirmed: i64::MAX, ..Self::default() }
    }

    /// Replaces all settings, which are given by name; see `settings::Given`.
    #[pyo3(signature = (**given))]
    fn configure(&mut self, given: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let given = given.ok_or_else(|| PyValueError::new_err("no settings"))?.extract()?;
        self.settings = Some(Settings::new(given));
        Ok(())
    }

    /// Records further than this behind the end of the log are read only if in the page cache.
    #[pyo3(signature = (hot_bytes, /))]
    fn set_hot_bytes(&mut self, hot_bytes: i64) {
        self.hot_bytes = hot_bytes;
    }

    /// Pulls get only records that lie wholly below this log offset.
    #[pyo3(signature = (log_offset, /))]
    fn set_confirmed(&mut self, log_offset: i64) {
        self.confirmed = log_offset;
    }

    /// Sets the function that returns the maximum offset of a queue that ends above it.
    #[pyo3(signature = (max_offset, /))]
    fn set_max_offset(&mut self, max_offset: Py<PyAny>) {
        self.max_offset = Some(max_offset);
    }

    // -- topics -----------------------------------------------------------------------------------

    /// Adds or changes a topic; the memory of its queues stays granted.
    #[pyo3(signature = (name, queue_count, read_count, multi_tag, /))]
    fn put_topic(&mut self, name: String, queue_count: usize, read_count: usize, multi_tag: bool) {
        if let Some(topic) = self.topic_mut(&name) {
            topic.queue_count = queue_count;
            topic.read_count = read_count;
            topic.multi_tag = multi_tag;
            return;
        }
        let topic = Topic::new(name, queue_count, read_count, multi_tag);
        let free = self.topics.iter().position(Option::is_none).unwrap_or(self.topics.len());
        self.names.insert(topic.name.as_bytes().to_vec(), free);
        match self.topics.get_mut(free) {
            Some(slot) => *slot = Some(topic),
            None => self.topics.push(Some(topic)),
        }
    }

    /// Removes a topic and the memory of its queues.
    #[pyo3(signature = (name, /))]
    fn drop_topic(&mut self, name: &str) {
        if let Some(number) = self.names.remove(name.as_bytes()) {
            if let Some(topic) = self.topics.get_mut(number) {
                *topic = None;
            }
        }
    }

    /// (topic, queue id, messages, bytes, sends) stored since the last call.
    fn drain_stored(&mut self) -> Vec<(String, usize, u64, u64, u64)> {
        let mut drained = Vec::new();
        for topic in self.topics.iter_mut().flatten() {
            for (queue_id, counts) in topic.counts.iter_mut().enumerate() {
                if counts.calls > 0 {
                    let Counts { messages, size_bytes, calls, .. } = std::mem::take(counts);
                    drained.push((topic.name.clone(), queue_id, messages, size_bytes, calls));
                }
            }
        }
        drained
    }

    /// What was delivered to groups since the last call; revoked groups are not counted.
    fn drain_delivered(&mut self) -> Vec<Delivered> {
        let mut drained = Vec::new();
        for topic in self.topics.iter_mut().flatten() {
            for (group, grant) in &mut topic.grants {
                for (queue_id, counts) in grant.counts.iter_mut().enumerate() {
                    if counts.calls > 0 {
                        let Counts { messages, size_bytes, calls, next_offset } =
                            std::mem::take(counts);
                        let group = String::from_utf8_lossy(group).into_owned();
                        let name = topic.name.clone();
                        let done = (messages, size_bytes, calls);
                        drained.push((name, group, queue_id, done, next_offset));
                    }
                }
            }
        }
        drained
    }

    // -- pulls ------------------------------------------------------------------------------------

    /// Python has served a pull: sets the next offset that `drain_delivered` returns.
    #[pyo3(signature = (topic, group, queue_id, next_offset, /))]
    fn note_pull(&mut self, topic: &str, group: &str, queue_id: usize, next_offset: i64) {
        let grant = self.topic_mut(topic).and_then(|topic| topic.grants.get_mut(group.as_bytes()));
        if let Some(counts) = grant.and_then(|grant| grant.counts.get_mut(queue_id)) {
            counts.next_offset = next_offset;
        }
    }

    /// Lets the feed serve a group's pulls of a topic, by the subscription in the pull or (with a
    /// version) in the heartbeats; None as codes selects everything. `brokers` are the ids to
    /// suggest; see `Grant`.
    #[pyo3(signature = (topic, group, version, codes, brokers = (0, 0), /))]
    fn grant_pulls(
        &mut self,
        topic: &str,
        group: &str,
        version: Option<i64>,
        codes: Option<Vec<i64>>,
        brokers: (i64, i64),
    ) {
        if let Some(topic) = self.topic_mut(topic) {
            let grant = topic.grants.entry(group.as_bytes().to_vec()).or_default();
            grant.brokers = brokers;
            match version {
                Some(version) => grant.registered = Some((version, Filter(codes))),
                None => grant.inline = true,
            }
        }
    }

    /// Revokes the grant of a group in a topic.
    #[pyo3(signature = (topic, group, /))]
    fn revoke_pulls(&mut self, topic: &str, group: &str) {
        if let Some(topic) = self.topic_mut(topic) {
            topic.grants.remove(group.as_bytes());
        }
    }

    /// Revokes all grants.
    fn revoke_all_pulls(&mut self) {
        for topic in self.topics.iter_mut().flatten() {
            topic.grants.clear();
        }
    }

    /// Grants a file of a queue for reading.
    #[pyo3(signature = (topic, queue_id, owner, memory, first, stop, low, /))]
    #[expect(clippy::too_many_arguments, reason = "one grant in one call")]
    fn grant_queue_file(
        &mut self,
        topic: &str,
        queue_id: usize,
        owner: Py<PyAny>,
        memory: &Bound<'_, PyAny>,
        first: i64,
        stop: i64,
        low: i64,
    ) -> PyResult<()> {
        let memory = mapped(memory)?;
        if let Some(topic) = self.topic_mut(topic).filter(|topic| queue_id < topic.read_count) {
            let file = QueueFile { owner, memory, first, stop, low };
            put_slot(&mut topic.files, queue_id, file);
        }
        Ok(())
    }

    /// Grants a full file of the log for reading; beyond `OLDER_MAX` the oldest grant is dropped.
    #[pyo3(signature = (memory, first, /))]
    fn grant_log_file(&mut self, memory: &Bound<'_, PyAny>, first: i64) -> PyResult<()> {
        if self.older.iter().all(|(known, _)| *known != first) {
            if self.older.len() >= OLDER_MAX {
                self.older.remove(0);
            }
            self.older.push((first, mapped(memory)?));
        }
        Ok(())
    }

    /// Releases all files that were granted for reading.
    fn revoke_files(&mut self) {
        self.older.clear();
        for topic in self.topics.iter_mut().flatten() {
            topic.files.clear();
        }
    }

    // -- store memory ----------------------------------------------------------------------------

    #[pyo3(signature = (memory, first, position, /))]
    fn grant_log(
        &mut self,
        memory: &Bound<'_, PyAny>,
        first: i64,
        position: usize,
    ) -> PyResult<()> {
        match &mut self.log {
            // The same file as before; acquiring its buffer again would cost more.
            Some(log) if log.first == first => log.position = position,
            _ => self.log = Some(Log { memory: mapped(memory)?, first, position }),
        }
        Ok(())
    }

    /// Grants memory for new records.
    #[pyo3(signature = (memory, /))]
    fn grant_stage(&mut self, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        self.stage = Some(Stage { memory: mapped(memory)?, used: 0 });
        Ok(())
    }

    /// Grants the last file of the index, whose header is up to date.
    #[pyo3(signature = (memory, slot_count, item_max, allocated_max, /))]
    fn grant_index(
        &mut self,
        memory: &Bound<'_, PyAny>,
        slot_count: u32,
        item_max: u32,
        allocated_max: u32,
    ) -> PyResult<()> {
        let memory = mapped(memory)?;
        let state = IndexState::read(&memory).ok_or_else(broken)?;
        self.index = Some(Index { memory, slot_count, item_max, allocated_max, state });
        Ok(())
    }

    /// Grants the end of a queue; False if the topic or the queue is unknown.
    #[pyo3(signature = (topic, queue_id, owner, memory, first, next_offset, limit, /))]
    #[expect(clippy::too_many_arguments, reason = "one grant in one call")]
    fn grant_queue(
        &mut self,
        topic: &str,
        queue_id: usize,
        owner: Py<PyAny>,
        memory: &Bound<'_, PyAny>,
        first: i64,
        next_offset: i64,
        limit: i64,
    ) -> PyResult<bool> {
        let memory = mapped(memory)?;
        let Some(topic) = self.topic_mut(topic).filter(|topic| queue_id < topic.queue_count) else {
            return Ok(false);
        };
        let queue = Queue {
            owner,
            memory,
            first,
            next: next_offset,
            limit,
            is_dirty: false,
            end_log_offset: 0,
            tags_code: 0,
        };
        put_slot(&mut topic.queues, queue_id, queue);
        topic.counts.resize(topic.queues.len().max(topic.counts.len()), Counts::default());
        Ok(true)
    }

    /// Releases the end of one queue.
    #[pyo3(signature = (topic, queue_id, /))]
    fn revoke_queue(&mut self, topic: &str, queue_id: usize) {
        let slot = self.topic_mut(topic).and_then(|topic| topic.queues.get_mut(queue_id));
        if let Some(slot) = slot {
            *slot = None;
        }
    }

    /// Releases all memory; what was not committed is dropped.
    fn revoke_memory(&mut self) {
        self.log = None;
        self.index = None;
        self.uncommitted = Uncommitted::default();
        if let Some(stage) = &mut self.stage {
            stage.used = 0;
        }
        self.out.clear();
        self.pieces.clear();
        self.revoke_queues();
        self.revoke_files();
    }

    fn revoke_queues(&mut self) {
        for topic in self.topics.iter_mut().flatten() {
            topic.queues.clear();
        }
    }

    // -- feeding ----------------------------------------------------------------------------------

    /// Handles frames from `at` on, while fewer than `budget` sends are uncommitted.
    ///
    /// Returns start and end of the next frame, the responses, the number of sends that must be
    /// committed before the responses are sent, consumer offsets to commit, and the number of bytes
    /// written to the socket. Start and end are equal if no complete frame is left; the end is -1 if
    /// `feed` must be called again after `end_batch`.
    ///
    /// If the call has only pulls, their responses are written to the socket at once, unless it is
    /// negative; those that it did not accept are returned.
    #[pyo3(signature = (buffer, at, born_host, now_ms, budget, socket, /))]
    fn feed<'py>(
        &mut self,
        buffer: &Bound<'py, PyAny>,
        at: usize,
        born_host: &[u8],
        now_ms: i64,
        budget: usize,
        socket: i32,
    ) -> PyResult<Fed<'py>> {
        let context = CallContext { born_host, now_ms, budget };
        let (start, stop) = self.handle_buffer(buffer, at, &context)?;
        let mut buffer_of_parts = std::mem::take(&mut self.scratch.joined);
        let (responses, written) = match self.response_parts()? {
            Some(parts) => {
                let written = if self.call.sends == 0 && socket >= 0 {
                    log_files::write(socket, &parts, &mut buffer_of_parts)
                } else {
                    0
                };
                (log_files::join(buffer.py(), &parts, written).ok_or_else(broken)?, written)
            }
            None => (PyBytes::new(buffer.py(), &self.out), 0),
        };
        self.scratch.joined = buffer_of_parts;
        let (sends, commits) = self.end_call();
        Ok((start, stop, responses, sends, commits, written))
    }

    /// Ends the uncommitted batch: what Python must commit, None if nothing was stored.
    fn end_batch<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Batch<'py>>> {
        let done = std::mem::take(&mut self.uncommitted);
        if done.messages == 0 {
            return Ok(None);
        }
        let queues = PyList::empty(py);
        for (topic, queue_id) in done.queues {
            let topic = self.topics.get_mut(topic).and_then(Option::as_mut);
            let queue = topic.and_then(|topic| topic.queues.get_mut(queue_id)?.as_mut());
            let queue = queue.ok_or_else(broken)?;
            queue.is_dirty = false;
            queues.append((&queue.owner, queue.next, queue.end_log_offset, queue.tags_code))?;
        }
        if done.keys > 0 {
            let index = self.index.as_ref().ok_or_else(broken)?;
            index.state.write(&index.memory).ok_or_else(broken)?;
        }
        let stage = self.stage.as_mut().ok_or_else(broken)?;
        let size = std::mem::take(&mut stage.used);
        Ok(Some((done.messages, done.sends, size, done.keys, queues)))
    }
}

fn put_slot<T>(slots: &mut Vec<Option<T>>, at: usize, value: T) {
    if slots.len() <= at {
        slots.resize_with(at + 1, || None);
    }
    if let Some(slot) = slots.get_mut(at) {
        *slot = Some(value);
    }
}

fn mapped(memory: &Bound<'_, PyAny>) -> PyResult<Mapping> {
    Mapping::of(memory).ok_or_else(|| PyValueError::new_err("no writable memory"))
}

/// Granted memory was smaller than promised, or the buffer is not contiguous.
fn broken() -> PyErr {
    PyRuntimeError::new_err("the feed could not write to the memory that it was granted")
}

impl Feed {
    fn topic_mut(&mut self, name: &str) -> Option<&mut Topic> {
        let number = *self.names.get(name.as_bytes())?;
        self.topics.get_mut(number)?.as_mut()
    }
}
