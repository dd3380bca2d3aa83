//! The hot path: whole receive buffers in, stored messages and answers out.
//!
//! `feed` walks over the frames of a buffer. A frame that is an ordinary send is stored and
//! answered; the first one that is not ends the walk before it has left a trace, and Python handles
//! it. What is ordinary is written down in `broker/hotpath.py`; there, too, is what Python owes the
//! feed. All positions are Python's: it lends memory (`leases.rs`) and settles what was done, when
//! it likes: what several calls have stored is settled at once.

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::str::from_utf8;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::crc::body_crc;
use crate::guard::guarded;
use crate::header::{ENCODING_BINARY, ENCODING_JSON, Head};
use crate::leases::{Index, IndexState, Log, Queue, Stage};
use crate::pull::{
    self, Counts, Filter, Grants, LogFiles, PULL_MESSAGE, Piece, Pull, QueueFile, ReadLimits,
    is_pull,
};
use crate::reader::Reader;
use crate::records::Record;
use crate::request::{SEND_BATCH_MESSAGE, Send, is_send};
use crate::settings::{Settings, length_bit};
use crate::texts::{self, java_hash};
use crate::view::{Mapping, View, Window, with_view};
use crate::{frames, header_binary, header_json};

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
const TRANSACTION_MASK: i32 = 3 << 2;
const MULTI_TAGS: i32 = 1 << 1;
/// Answers are handed over when there are so many bytes of them, and the peer had better read.
const OUT_MAX: usize = 256 * 1024;
/// Python had better write the records when there are so many bytes of them.
const RECORDS_MAX: usize = 256 * 1024;
/// Full files of the log that are lent for reading at a time.
const OLDER_MAX: usize = 4;
const PROPERTIES_MAX: usize = 32_767;
const BATCH_ITEM_MIN: usize = 22;
/// An answer has no more bytes than this, and so many for each message.
const ANSWER_BYTES: usize = 1024;
const ANSWER_BYTES_EACH: usize = 64;

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

/// One message to store.
struct Item<'a> {
    body: &'a [u8],
    properties: &'a [u8],
    flag: i32,
    tags_code: i64,
    keys: Range<usize>,
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
type Delivered = (String, String, usize, u64, u64, u64);

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
            cluster_property: format!("CLUSTER\x01{cluster}\x02").into_bytes(),
            odd_lengths: odd_names.iter().fold(0, |bits, name| bits | length_bit(name.as_bytes())),
            odd_names,
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
                    let Counts { messages, size_bytes, calls } = std::mem::take(counts);
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
                        let Counts { messages, size_bytes, calls } = std::mem::take(counts);
                        let group = String::from_utf8_lossy(group).into_owned();
                        let name = topic.name.clone();
                        taken.push((name, group, queue_id, messages, size_bytes, calls));
                    }
                }
            }
        }
        taken
    }

    // -- pulls ------------------------------------------------------------------------------------

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

/// Where a buffer comes from, when, and how many sends may be unsettled.
struct From<'a> {
    born_host: &'a [u8],
    now_ms: i64,
    budget: usize,
}

fn mapped(memory: &Bound<'_, PyAny>) -> PyResult<Mapping> {
    Mapping::of(memory).ok_or_else(|| PyValueError::new_err("no writable memory"))
}

/// A lease that does not hold what it promised, or a buffer that is none.
fn broken() -> PyErr {
    PyRuntimeError::new_err("the feed could not write where it was told to")
}

/// Something went wrong after traces were left.
struct Broken;

/// What became of a frame.
enum Taken {
    Done,
    /// Python handles it.
    Declined,
    /// It is to be offered again when what was done so far is settled.
    AfterSettlement,
}

impl Feed {
    fn topic_mut(&mut self, name: &str) -> Option<&mut Topic> {
        let number = *self.names.get(name.as_bytes())?;
        self.topics.get_mut(number)?.as_mut()
    }

    /// Walks over the frames of one call; answers where the next one begins and ends.
    fn fed(
        &mut self,
        buffer: &Bound<'_, PyAny>,
        at: usize,
        from: &From<'_>,
    ) -> PyResult<(usize, isize)> {
        self.call = Call::default();
        let mut window = std::mem::take(&mut self.window);
        let walked = guarded(|| {
            with_view(buffer, |view| self.walk(buffer.py(), view, at, from, &mut window).ok())
        });
        window.clear();
        self.window = window;
        let (start, stop) = walked?.ok_or_else(broken)?;
        Ok((start, stop.map_or(Ok(-1), isize::try_from)?))
    }

    /// The answers of one call in their parts; None if they are all in `out`.
    fn parts(&self) -> PyResult<Option<Vec<View<'_>>>> {
        match &self.log {
            Some(last) if !self.pieces.is_empty() => {
                let log = LogFiles { last, older: &self.older };
                log.parts(&self.out, &self.pieces).ok_or_else(broken).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// How many sends one call had, and the offsets to commit; its answers are gone then.
    fn end_call(&mut self) -> (usize, Option<Vec<Commit>>) {
        self.out.clear();
        self.pieces.clear();
        let call = std::mem::take(&mut self.call);
        (call.sends, (!call.commits.is_empty()).then_some(call.commits))
    }

    fn walk(
        &mut self,
        py: Python<'_>,
        view: View<'_>,
        at: usize,
        from: &From<'_>,
        window: &mut Window,
    ) -> Result<(usize, Option<usize>), Broken> {
        let mut start = at;
        while let Some(stop) = self.frame_end(view, start) {
            let staged = self.stage.as_ref().map_or(0, |stage| stage.used);
            if self.out.len() + self.call.pulled_bytes >= OUT_MAX || staged >= RECORDS_MAX {
                return Ok((start, None));
            }
            let frame = window.part(view, start, stop).ok_or(Broken)?;
            match self.take(py, frame, from)? {
                Taken::Done => {}
                Taken::Declined => return Ok((start, Some(stop))),
                Taken::AfterSettlement => return Ok((start, None)),
            }
            start = stop;
        }
        Ok((start, Some(start)))
    }

    /// Where the whole frame at `start` ends; None if there is none.
    fn frame_end(&self, view: View<'_>, start: usize) -> Option<usize> {
        let length = usize::try_from(u32::from_be_bytes(view.array(start)?)).ok()?;
        let stop = start.checked_add(4)?.checked_add(length)?;
        let frame_max = self.settings.as_ref()?.frame_max;
        (length >= 4 && length <= frame_max && stop <= view.len()).then_some(stop)
    }

    /// Handles one frame, or leaves no trace of it.
    fn take(&mut self, py: Python<'_>, frame: &[u8], from: &From<'_>) -> Result<Taken, Broken> {
        let Some((encoding, body_start)) = frames::headline(View::Bytes(frame)) else {
            return Ok(Taken::Declined);
        };
        let (Some(header), Some(body)) = (frame.get(8..body_start), frame.get(body_start..)) else {
            return Ok(Taken::Declined);
        };
        let (mut send, mut pull) = (Send::default(), Pull::default());
        let field = |code, key: &[u8], value| {
            if is_send(code) {
                send.put(code, key, value)
            } else if is_pull(code) {
                pull.put(key, value)
            } else {
                None
            }
        };
        let head = match encoding {
            ENCODING_JSON => header_json::scan(header, field),
            ENCODING_BINARY => header_binary::scan(header, field),
            _ => None,
        };
        // Answers to pulls must not wait for the disk with those to sends.
        let waits = self.settings.as_ref().is_some_and(|settings| settings.waits);
        match head {
            Some(head) if is_send(head.code) && send.is_complete() => {
                if waits && self.call.pulls > 0 {
                    return Ok(Taken::AfterSettlement);
                }
                if self.done.sends >= from.budget {
                    return Ok(Taken::Declined);
                }
                self.take_send(&head, encoding, &send, body, from)
            }
            Some(head) if is_pull(head.code) && pull.is_complete() => {
                if waits && self.call.sends > 0 || self.is_unsettled(&pull) {
                    return Ok(Taken::AfterSettlement);
                }
                let taken = self.take_pull(py, &head, encoding, &pull).is_some();
                Ok(if taken { Taken::Done } else { Taken::Declined })
            }
            _ => Ok(Taken::Declined),
        }
    }

    /// Whether the queue of a pull got messages that are to be settled before they can be found.
    fn is_unsettled(&self, pull: &Pull<'_>) -> bool {
        if self.done.messages == 0 {
            return false;
        }
        let topic = self.names.get(&*pull.topic).and_then(|number| self.topics.get(*number));
        let place = usize::try_from(pull.queue_id).ok();
        let queue = topic
            .and_then(Option::as_ref)
            .zip(place)
            .and_then(|(topic, place)| topic.queues.get(place)?.as_ref());
        queue.is_some_and(|queue| queue.touched)
    }

    fn take_pull(
        &mut self,
        py: Python<'_>,
        head: &Head,
        encoding: u8,
        pull: &Pull<'_>,
    ) -> Option<()> {
        let Self { settings, names, topics, log, hot_bytes, older, call, out, pieces, .. } = self;
        let settings = settings.as_ref()?;
        let is_on = settings.pull_on && (head.code == PULL_MESSAGE || settings.lite_pull_on);
        if !is_on || head.flag & (FLAG_RESPONSE | FLAG_ONEWAY) != 0 {
            return None;
        }
        let topic = topics.get_mut(*names.get(&*pull.topic)?)?.as_mut()?;
        let filter = pull.filter(topic.grants.get(&*pull.group)?)?;
        let queue_id = usize::try_from(pull.queue_id).ok()?;
        if queue_id >= topic.read_count {
            return None;
        }
        let file = topic.files.get(queue_id)?.as_ref()?;
        let log = LogFiles { last: log.as_ref()?, older };
        let (length, piece_count) = (out.len(), pieces.len());
        let request = (head, encoding);
        let Some(got) =
            pull::answer(py, pull, &filter, file, &log, settings, *hot_bytes, request, out, pieces)
        else {
            out.truncate(length);
            pieces.truncate(piece_count);
            return None;
        };
        call.pulls += 1;
        call.pulled_bytes += got.size_bytes;
        let counts = &mut topic.grants.get_mut(&*pull.group)?.counts;
        if counts.len() <= queue_id {
            counts.resize(queue_id + 1, Counts::default());
        }
        counts.get_mut(queue_id)?.add(got.count, got.size_bytes)?;
        if let Some(offset) = pull.commit() {
            let group = from_utf8(&pull.group).ok()?.to_owned();
            call.commits.push((topic.name.clone(), group, pull.queue_id, offset));
        }
        Some(())
    }

    fn take_send(
        &mut self,
        head: &Head,
        encoding: u8,
        send: &Send<'_>,
        body: &[u8],
        from: &From<'_>,
    ) -> Result<Taken, Broken> {
        let Self { settings, names, topics, last, log, stage, index, done, call, .. } = self;
        let (Some(settings), Some(log), Some(stage)) =
            (settings.as_ref(), log.as_mut(), stage.as_mut())
        else {
            return Ok(Taken::Declined);
        };
        let is_last = topics
            .get(*last)
            .and_then(Option::as_ref)
            .is_some_and(|topic| topic.name.as_bytes() == &*send.topic);
        let number = if is_last { Some(*last) } else { names.get(&*send.topic).copied() };
        let Some((number, topic)) =
            number.and_then(|number| Some((number, topics.get_mut(number)?.as_mut()?)))
        else {
            return Ok(Taken::Declined);
        };
        *last = number;
        let Scratch { text, names, keys, log_offsets, around, .. } = &mut self.scratch;
        text.clear();
        keys.clear();
        if head.flag & FLAG_RESPONSE != 0 || send.sys_flag & TRANSACTION_MASK != 0 {
            return Ok(Taken::Declined);
        }
        let is_batch = send.batch || head.code == SEND_BATCH_MESSAGE;
        let Some(items) = plan(settings, topic.hash, send, body, is_batch, text, names, keys)
        else {
            return Ok(Taken::Declined);
        };
        let queue_id = send.queue_id;
        let (place, queue) = match usize::try_from(queue_id) {
            Ok(place) if place < topic.queue_count => match topic.queues.get_mut(place) {
                Some(Some(queue)) => (place, queue),
                _ => return Ok(Taken::Declined),
            },
            _ => return Ok(Taken::Declined),
        };
        let mut record = Record {
            topic: &topic.name,
            properties: b"",
            queue_id,
            queue_offset: queue.next,
            log_offset: 0,
            flag: 0,
            sys_flag: send.sys_flag | if topic.multi_tag { MULTI_TAGS } else { 0 },
            born_time: send.born_time,
            born_host: from.born_host,
            store_time: from.now_ms,
            store_host: &settings.store_host,
            reconsume_count: send.reconsume_count,
            prepared_log_offset: 0,
        };
        let mut size = 0;
        for item in items.iter() {
            record.properties = item.properties;
            let Some(layout) = record.layout(item.body.len()) else {
                return Ok(Taken::Declined);
            };
            size += layout.size;
        }
        let answer_max = ANSWER_BYTES + items.len() * ANSWER_BYTES_EACH + settings.region.len() * 6;
        let has_room = log.has_room(size)
            && queue.has_room(items.len())
            && answer_max <= settings.frame_max
            && (keys.is_empty() || index.as_ref().is_some_and(|index| index.has_room(keys.len())));
        if !has_room {
            return Ok(Taken::Declined);
        }
        if !stage.has_room(size) {
            return Ok(if stage.used > 0 { Taken::AfterSettlement } else { Taken::Declined });
        }

        // Everything is known to fit; from here on there are traces.
        let queue_offset = queue.next;
        log_offsets.clear();
        for item in items.iter() {
            let log_offset = log.end().ok_or(Broken)?;
            record.properties = item.properties;
            record.flag = item.flag;
            record.queue_offset = queue.next;
            record.log_offset = log_offset;
            let size = put_record(&record, item.body, stage, around).ok_or(Broken)?;
            log.position += usize::try_from(size).map_err(|_| Broken)?;
            queue.put(log_offset, size, item.tags_code).ok_or(Broken)?;
            for key in keys.get(item.keys.clone()).ok_or(Broken)? {
                let index = index.as_mut().ok_or(Broken)?;
                index.put(*key, log_offset, from.now_ms).ok_or(Broken)?;
            }
            log_offsets.push(log_offset);
        }
        if !queue.touched {
            queue.touched = true;
            done.queues.push((number, place));
        }
        topic.counts.get_mut(place).ok_or(Broken)?.add(items.len(), size).ok_or(Broken)?;
        done.messages += items.len();
        done.sends += 1;
        done.keys += keys.len();
        call.sends += 1;
        if head.flag & FLAG_ONEWAY == 0 {
            settings
                .put_answer(&mut self.out, head, encoding, queue_id, queue_offset, log_offsets)
                .ok_or(Broken)?;
        }
        Ok(Taken::Done)
    }
}

/// The messages that a send brings, one or a batch; their keys go into `keys`.
#[expect(clippy::too_many_arguments, reason = "a message, and memory to read it with")]
fn plan<'a>(
    settings: &Settings,
    topic_hash: i32,
    send: &Send<'_>,
    body: &'a [u8],
    is_batch: bool,
    text: &'a mut Vec<u8>,
    names: &mut texts::Names,
    keys: &mut Vec<i32>,
) -> Option<Items<'a>> {
    if body.len() > settings.body_max {
        return None;
    }
    let found = texts::read(&send.properties, settings, names, Some(text))?;
    if (settings.waits && !found.wait_stored) || text.len() > PROPERTIES_MAX {
        return None;
    }
    if is_batch {
        return items_of(body, topic_hash, settings, names, keys).map(Items::Many);
    }
    if settings.index_on {
        found.put_keys(topic_hash, keys);
    }
    Some(Items::One([Item {
        body,
        properties: text,
        flag: send.flag,
        tags_code: found.tags_code(),
        keys: 0..keys.len(),
    }]))
}

/// What a send brings; a single message takes no memory of its own.
enum Items<'a> {
    One([Item<'a>; 1]),
    Many(Vec<Item<'a>>),
}

impl<'a> Deref for Items<'a> {
    type Target = [Item<'a>];

    fn deref(&self) -> &[Item<'a>] {
        match self {
            Items::One(item) => item,
            Items::Many(items) => items,
        }
    }
}

/// Puts a record behind the others; answers its size.
fn put_record(
    record: &Record<'_>,
    body: &[u8],
    stage: &mut Stage,
    around: &mut Vec<u8>,
) -> Option<i32> {
    let layout = record.layout(body.len())?;
    around.clear();
    record.put_head(layout, body_crc(View::Bytes(body)), around)?;
    stage.put(around)?;
    stage.put(body)?;
    around.clear();
    record.put_tail(around)?;
    stage.put(around)?;
    i32::try_from(layout.size).ok()
}

/// The messages of a batch; its layout is drawn in `protocol/batch.py`.
fn items_of<'a>(
    bytes: &'a [u8],
    topic_hash: i32,
    settings: &Settings,
    names: &mut texts::Names,
    keys: &mut Vec<i32>,
) -> Option<Vec<Item<'a>>> {
    let mut items = Vec::with_capacity(bytes.len() / 128);
    let mut rest = bytes;
    while !rest.is_empty() {
        let size = i32::from_be_bytes(*rest.first_chunk()?);
        let size = usize::try_from(size).ok().filter(|size| *size >= BATCH_ITEM_MIN)?;
        let (item, behind) = rest.split_at_checked(size)?;
        rest = behind;
        let mut reader = Reader(item.get(12..)?);
        let flag = reader.i32()?;
        let body_length = reader.i32()?;
        let body = reader.take(body_length)?;
        let text_length = reader.i16()?;
        let properties = reader.take(i32::from(text_length))?;
        if !texts::is_text(properties) || !reader.0.is_empty() || items.len() >= settings.batch_max
        {
            return None;
        }
        let found = texts::read(properties, settings, names, None)?;
        let first_key = keys.len();
        if settings.index_on {
            found.put_keys(topic_hash, keys);
        }
        items.push(Item {
            body,
            properties,
            flag,
            tags_code: found.tags_code(),
            keys: first_key..keys.len(),
        });
    }
    (!items.is_empty()).then_some(items)
}
