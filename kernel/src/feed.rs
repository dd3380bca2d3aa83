//! The hot path: whole receive buffers in, stored messages and answers out.
//!
//! `feed` walks over the frames of a buffer. A frame that is an ordinary send is stored and
//! answered; the first one that is not ends the walk before it has left a trace, and Python handles
//! it. What is ordinary is written down in `broker/requests/fast_path.py`; there, too, is what Python owes the
//! feed. All positions are Python's: it lends memory (`leases.rs`) and settles what was done, when
//! it likes: what several calls have stored is settled at once.

mod items;
mod taking;

use std::collections::HashMap;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use self::taking::From;
use crate::leases::{Index, IndexState, Log, Queue, Stage};
use crate::pull::{self, Counts, Filter, Grants, Piece, QueueFile, ReadLimits};
use crate::settings::{NamesByLength, Settings};
use crate::texts::{self, java_hash};
use crate::view::{Mapping, Window};

/// Full files of the log that are lent for reading at a time.
const OLDER_MAX: usize = 4;

struct Topic {
    name: String,
    /// Java's hash of the name and `#`, with which the hash of every key begins.
    hash: i32,
    /// Queues that may be sent to, and those that may be read; 0 if there are none.
    queue_count: usize,
    read_count: usize,
    multi_tag: bool,
    queues: Vec<Option<Queue>>,
    files: Vec<Option<QueueFile>>,
    grants: Grants,
    /// By queue id.
    counts: Vec<Counts>,
}

/// What was done since the last settlement.
#[derive(Default)]
struct Done {
    messages: usize,
    sends: usize,
    keys: usize,
    /// Topic and queue id of each queue that got something.
    queues: Vec<(usize, usize)>,
}

/// What was done in one call.
#[derive(Default)]
struct Call {
    sends: usize,
    pulls: usize,
    pulled_bytes: usize,
    commits: Vec<Commit>,
}

/// What is used again and again, and holds nothing between two frames.
#[derive(Default)]
struct Scratch {
    text: Vec<u8>,
    names: texts::Names,
    keys: Vec<i32>,
    log_offsets: Vec<i64>,
    /// What comes before or behind the body of a record.
    around: Vec<u8>,
    /// Answers that leave at once.
    joined: Vec<u8>,
}

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
    /// What lies further than this behind the end of the log may have to come from the disk.
    hot_bytes: i64,
    /// Older files of the log that are read, by the log offset of their first byte.
    older: Vec<(i64, Mapping)>,
    done: Done,
    call: Call,
    /// The answers of one call; bodies of pulls are in `pieces`.
    out: Vec<u8>,
    pieces: Vec<Piece>,
    window: Window,
    scratch: Scratch,
}

/// Messages, sends, bytes of records in the stage, keys, the index's header, the queues.
type Settled<'py> =
    (usize, usize, usize, usize, Option<(i64, i64, i64, i64, i32, i32)>, Bound<'py, PyList>);
/// Topic, group, queue id, and the offset to commit.
type Commit = (String, String, i32, i64);
type Fed<'py> = (usize, isize, Bound<'py, PyBytes>, usize, Option<Vec<Commit>>);
type FedTo<'py> = (usize, isize, Bound<'py, PyBytes>, usize, Option<Vec<Commit>>, usize);
/// Topic, group, queue id, messages, bytes and pulls.
type Delivered = (String, String, usize, (u64, u64, u64), i64);

#[pymethods]
impl Feed {
    #[new]
    fn new() -> Self {
        Self {
            settings: None,
            names: HashMap::new(),
            topics: Vec::new(),
            last: 0,
            log: None,
            stage: None,
            index: None,
            hot_bytes: i64::MAX,
            older: Vec::new(),
            done: Done::default(),
            call: Call::default(),
            out: Vec::new(),
            pieces: Vec::new(),
            window: Window::default(),
            scratch: Scratch::default(),
        }
    }

    #[pyo3(signature = (
        frame_max, body_max, batch_max, index_on, waits, store_host, id_prefix, cluster, odd_names,
        region, trace_on, version, pull_on, lite_pull_on, read, /,
    ))]
    #[expect(clippy::too_many_arguments, reason = "settings, told all at once")]
    fn configure(
        &mut self,
        frame_max: usize,
        body_max: usize,
        batch_max: usize,
        index_on: bool,
        waits: bool,
        store_host: Vec<u8>,
        id_prefix: &str,
        cluster: &str,
        odd_names: Vec<String>,
        region: String,
        trace_on: bool,
        version: i16,
        pull_on: bool,
        lite_pull_on: bool,
        read: (i64, i64, i64, usize, usize, i64, i64),
    ) {
        let (pull_count, count, old_count, size_bytes, old_bytes, memory_bytes, checked_from) =
            read;
        let (json_middle, json_end) = Settings::json_parts(&region, trace_on, version);
        self.settings = Some(Settings {
            json_middle,
            json_end,
            frame_max,
            body_max,
            batch_max,
            index_on,
            waits,
            store_host,
            id_prefix: id_prefix.as_bytes().to_vec(),
            stamps: format!(
                "MSG_REGION\x01{region}\x02TRACE_ON\x01{trace_on}\x02CLUSTER\x01{cluster}\x02"
            )
            .into_bytes(),
            odd_names: NamesByLength::new(odd_names),
            region,
            trace_on,
            version,
            pull_on,
            lite_pull_on,
            read: ReadLimits {
                pull_count,
                count: (count, old_count),
                size_bytes: (size_bytes, old_bytes),
                memory_bytes,
                checked_from,
            },
        });
    }

    /// What lies further than this behind the end of the log is not given if it is on the disk only.
    #[pyo3(signature = (hot_bytes, /))]
    fn set_hot_bytes(&mut self, hot_bytes: i64) {
        self.hot_bytes = hot_bytes;
    }

    // -- topics -----------------------------------------------------------------------------------

    /// Makes a topic known, or changes it; its queues stay lent.
    #[pyo3(signature = (name, queue_count, read_count, multi_tag, /))]
    fn put_topic(&mut self, name: String, queue_count: usize, read_count: usize, multi_tag: bool) {
        if let Some(topic) = self.topic_mut(&name) {
            topic.queue_count = queue_count;
            topic.read_count = read_count;
            topic.multi_tag = multi_tag;
            return;
        }
        let topic = Topic {
            hash: java_hash(java_hash(0, name.as_bytes()), b"#"),
            name,
            queue_count,
            read_count,
            multi_tag,
            queues: Vec::new(),
            files: Vec::new(),
            grants: Grants::new(),
            counts: Vec::new(),
        };
        let free = self.topics.iter().position(Option::is_none).unwrap_or(self.topics.len());
        self.names.insert(topic.name.as_bytes().to_vec(), free);
        match self.topics.get_mut(free) {
            Some(place) => *place = Some(topic),
            None => self.topics.push(Some(topic)),
        }
    }

    /// Forgets a topic and the leases of its queues.
    #[pyo3(signature = (name, /))]
    fn drop_topic(&mut self, name: &str) {
        if let Some(number) = self.names.remove(name.as_bytes()) {
            if let Some(topic) = self.topics.get_mut(number) {
                *topic = None;
            }
        }
    }

    /// (topic, queue id, messages, bytes, sends) of what was stored since the last call.
    fn take_counts(&mut self) -> Vec<(String, usize, u64, u64, u64)> {
        let mut taken = Vec::new();
        for topic in self.topics.iter_mut().flatten() {
            for (queue_id, counts) in topic.counts.iter_mut().enumerate() {
                if counts.calls > 0 {
                    let Counts { messages, size_bytes, calls, .. } = std::mem::take(counts);
                    taken.push((topic.name.clone(), queue_id, messages, size_bytes, calls));
                }
            }
        }
        taken
    }

    /// What was given to groups since the last call; what is revoked is forgotten.
    fn take_delivered(&mut self) -> Vec<Delivered> {
        let mut taken = Vec::new();
        for topic in self.topics.iter_mut().flatten() {
            for (group, grant) in &mut topic.grants {
                for (queue_id, counts) in grant.counts.iter_mut().enumerate() {
                    if counts.calls > 0 {
                        let Counts { messages, size_bytes, calls, next_offset } =
                            std::mem::take(counts);
                        let group = String::from_utf8_lossy(group).into_owned();
                        let name = topic.name.clone();
                        let done = (messages, size_bytes, calls);
                        taken.push((name, group, queue_id, done, next_offset));
                    }
                }
            }
        }
        taken
    }

    // -- pulls ------------------------------------------------------------------------------------

    /// Python has answered a pull: what `take_delivered` says of the place counts from there.
    #[pyo3(signature = (topic, group, queue_id, next_offset, /))]
    fn note_pull(&mut self, topic: &str, group: &str, queue_id: usize, next_offset: i64) {
        let grant = self.topic_mut(topic).and_then(|topic| topic.grants.get_mut(group.as_bytes()));
        if let Some(counts) = grant.and_then(|grant| grant.counts.get_mut(queue_id)) {
            counts.next_offset = next_offset;
        }
    }

    /// Lets a group pull from a topic by subscriptions in its pulls, or (with a version) by the one
    /// that its heartbeats told; None as codes selects everything.
    #[pyo3(signature = (topic, group, version, codes, /))]
    fn grant(&mut self, topic: &str, group: &str, version: Option<i64>, codes: Option<Vec<i64>>) {
        if let Some(topic) = self.topic_mut(topic) {
            let grant = topic.grants.entry(group.as_bytes().to_vec()).or_default();
            match version {
                Some(version) => grant.registered = Some((version, Filter(codes))),
                None => grant.inline = true,
            }
        }
    }

    /// Ends what was granted to a group in a topic.
    #[pyo3(signature = (topic, group, /))]
    fn revoke(&mut self, topic: &str, group: &str) {
        if let Some(topic) = self.topic_mut(topic) {
            topic.grants.remove(group.as_bytes());
        }
    }

    /// Ends everything that was granted.
    fn revoke_all(&mut self) {
        for topic in self.topics.iter_mut().flatten() {
            topic.grants.clear();
        }
    }

    /// Lends a file of a queue for reading.
    #[pyo3(signature = (topic, queue_id, owner, memory, first, stop, low, /))]
    #[expect(clippy::too_many_arguments, reason = "a lease, told all at once")]
    fn lend_queue_file(
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
            if topic.files.len() <= queue_id {
                topic.files.resize_with(queue_id + 1, || None);
            }
            if let Some(place) = topic.files.get_mut(queue_id) {
                *place = Some(QueueFile { owner, memory, first, stop, low });
            }
        }
        Ok(())
    }

    /// Lends a full file of the log for reading; of many the oldest loan goes.
    #[pyo3(signature = (memory, first, /))]
    fn lend_log_file(&mut self, memory: &Bound<'_, PyAny>, first: i64) -> PyResult<()> {
        if self.older.iter().all(|(known, _)| *known != first) {
            if self.older.len() >= OLDER_MAX {
                self.older.remove(0);
            }
            self.older.push((first, mapped(memory)?));
        }
        Ok(())
    }

    /// Gives back everything that was lent for reading.
    fn give_back_files(&mut self) {
        self.older.clear();
        for topic in self.topics.iter_mut().flatten() {
            topic.files.clear();
        }
    }

    // -- leases -----------------------------------------------------------------------------------

    #[pyo3(signature = (memory, first, position, /))]
    fn lend_log(&mut self, memory: &Bound<'_, PyAny>, first: i64, position: usize) -> PyResult<()> {
        match &mut self.log {
            // The same file as before; taking the buffer anew would cost more.
            Some(log) if log.first == first => log.position = position,
            _ => self.log = Some(Log { memory: mapped(memory)?, first, position }),
        }
        Ok(())
    }

    /// Lends memory for the records to come.
    #[pyo3(signature = (memory, /))]
    fn lend_stage(&mut self, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        self.stage = Some(Stage { memory: mapped(memory)?, used: 0 });
        Ok(())
    }

    #[pyo3(signature = (memory, slot_count, item_max, room_max, state, /))]
    fn lend_index(
        &mut self,
        memory: &Bound<'_, PyAny>,
        slot_count: u32,
        item_max: u32,
        room_max: u32,
        state: (i64, i64, i64, i64, i32, i32),
    ) -> PyResult<()> {
        let (begin_time, end_time, begin_log_offset, end_log_offset, slots_used, count) = state;
        let state = IndexState {
            begin_time,
            end_time,
            begin_log_offset,
            end_log_offset,
            slots_used,
            count,
        };
        self.index = Some(Index { memory: mapped(memory)?, slot_count, item_max, room_max, state });
        Ok(())
    }

    /// Lends the end of a queue; False if its topic is not known or has no such queue.
    #[pyo3(signature = (topic, queue_id, owner, memory, first, next_offset, limit, /))]
    #[expect(clippy::too_many_arguments, reason = "a lease, told all at once")]
    fn lend_queue(
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
        if topic.queues.len() <= queue_id {
            topic.queues.resize_with(queue_id + 1, || None);
            topic.counts.resize(topic.queues.len().max(topic.counts.len()), Counts::default());
        }
        if let Some(place) = topic.queues.get_mut(queue_id) {
            *place = Some(Queue {
                owner,
                memory,
                first,
                next: next_offset,
                limit,
                touched: false,
                end_log_offset: 0,
                tags_code: 0,
            });
        }
        Ok(true)
    }

    /// Gives back the end of one queue.
    #[pyo3(signature = (topic, queue_id, /))]
    fn give_back_queue(&mut self, topic: &str, queue_id: usize) {
        let place = self.topic_mut(topic).and_then(|topic| topic.queues.get_mut(queue_id));
        if let Some(place) = place {
            *place = None;
        }
    }

    /// Gives back all memory; what was not settled is as if it had not happened.
    fn give_back(&mut self) {
        self.log = None;
        self.index = None;
        self.done = Done::default();
        if let Some(stage) = &mut self.stage {
            stage.used = 0;
        }
        self.out.clear();
        self.pieces.clear();
        self.give_back_queues();
        self.give_back_files();
    }

    fn give_back_queues(&mut self) {
        for topic in self.topics.iter_mut().flatten() {
            topic.queues.clear();
        }
    }

    // -- feeding ----------------------------------------------------------------------------------

    /// Handles frames from `at` on, as long as less than `budget` sends are to be settled.
    ///
    /// Answers where the next frame begins and ends, the answers, how many sends are to be settled
    /// before they may leave, and offsets to commit. Both ends are equal if no whole frame is left;
    /// the end is -1 if `feed` wants to be called again when everything is settled.
    #[pyo3(signature = (buffer, at, born_host, now_ms, budget, /))]
    fn feed<'py>(
        &mut self,
        buffer: &Bound<'py, PyAny>,
        at: usize,
        born_host: &[u8],
        now_ms: i64,
        budget: usize,
    ) -> PyResult<Fed<'py>> {
        let (start, stop) = self.fed(buffer, at, &From { born_host, now_ms, budget })?;
        let answers = match self.parts()? {
            Some(parts) => pull::join(buffer.py(), &parts, 0).ok_or_else(broken)?,
            None => PyBytes::new(buffer.py(), &self.out),
        };
        let (sends, commits) = self.end_call();
        Ok((start, stop, answers, sends, commits))
    }

    /// The same with a socket, to which answers to pulls are written at once if there are no others
    /// in this call. What it did not take is answered, and at the end how much it took.
    #[pyo3(signature = (buffer, at, born_host, now_ms, budget, socket, /))]
    fn feed_to<'py>(
        &mut self,
        buffer: &Bound<'py, PyAny>,
        at: usize,
        born_host: &[u8],
        now_ms: i64,
        budget: usize,
        socket: i32,
    ) -> PyResult<FedTo<'py>> {
        let (start, stop) = self.fed(buffer, at, &From { born_host, now_ms, budget })?;
        let mut room = std::mem::take(&mut self.scratch.joined);
        let (answers, written) = match self.parts()? {
            Some(parts) => {
                let is_free = self.call.sends == 0;
                let written = if is_free { pull::write(socket, &parts, &mut room) } else { 0 };
                (pull::join(buffer.py(), &parts, written).ok_or_else(broken)?, written)
            }
            None => (PyBytes::new(buffer.py(), &self.out), 0),
        };
        self.scratch.joined = room;
        let (sends, commits) = self.end_call();
        Ok((start, stop, answers, sends, commits, written))
    }

    /// What Python has to note, None if nothing happened. It is over for the feed then.
    fn settle<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Settled<'py>>> {
        let done = std::mem::take(&mut self.done);
        if done.messages == 0 {
            return Ok(None);
        }
        let queues = PyList::empty(py);
        for (topic, queue_id) in done.queues {
            let topic = self.topics.get_mut(topic).and_then(Option::as_mut);
            let queue = topic.and_then(|topic| topic.queues.get_mut(queue_id)?.as_mut());
            let queue = queue.ok_or_else(broken)?;
            queue.touched = false;
            queues.append((&queue.owner, queue.next, queue.end_log_offset, queue.tags_code))?;
        }
        let mut index = None;
        if done.keys > 0 {
            let lent = self.index.as_ref().ok_or_else(broken)?;
            lent.write_header().ok_or_else(broken)?;
            let state = &lent.state;
            index = Some((
                state.begin_time,
                state.end_time,
                state.begin_log_offset,
                state.end_log_offset,
                state.slots_used,
                state.count,
            ));
        }
        let stage = self.stage.as_mut().ok_or_else(broken)?;
        let size = std::mem::take(&mut stage.used);
        Ok(Some((done.messages, done.sends, size, done.keys, index, queues)))
    }
}

fn mapped(memory: &Bound<'_, PyAny>) -> PyResult<Mapping> {
    Mapping::of(memory).ok_or_else(|| PyValueError::new_err("no writable memory"))
}

/// A lease that does not hold what it promised, or a buffer that is none.
fn broken() -> PyErr {
    PyRuntimeError::new_err("the feed could not write where it was told to")
}

impl Feed {
    fn topic_mut(&mut self, name: &str) -> Option<&mut Topic> {
        let number = *self.names.get(name.as_bytes())?;
        self.topics.get_mut(number)?.as_mut()
    }
}
