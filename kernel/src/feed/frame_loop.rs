//! The loop over the frames of a buffer: sends are stored, pulls served, all others declined.

use std::str::from_utf8;

use pyo3::prelude::*;

use super::log_files::LogFiles;
use super::pull::{self, Limits, PULL_MESSAGE, PullHeader, is_pull};
use super::send_header::{SEND_BATCH_MESSAGE, SendHeader, is_send};
use super::send_messages::{parse_messages, put_record};
use super::settings::Stored;
use super::topics::Counts;
use super::{Call, Commit, Feed, Scratch, broken};
use crate::codecs::header::{ENCODING_BINARY, ENCODING_JSON, Head};
use crate::codecs::queue_entry::QueueEntry;
use crate::codecs::records::Record;
use crate::codecs::{frames, header_binary, header_json};
use crate::guard::guarded;
use crate::view::{View, Window, with_view};

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
const MULTI_TAGS: i32 = 1 << 1;
/// The flags of an ordinary message (`protocol/sysflag.py`): compressed, several tags, the two
/// address types, and the compression type.
const PLAIN_FLAGS: i32 = 1 | MULTI_TAGS | 3 << 4 | 3 << 8;
/// Responses of one call; beyond this the client should read some first.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;
/// Staged records; beyond this Python writes them first.
const STAGED_BYTES_MAX: usize = 256 * 1024;
/// Upper bounds of a send's response: the fixed part, and per message.
const SEND_RESPONSE_BYTES: usize = 1024;
const SEND_RESPONSE_BYTES_EACH: usize = 64;

/// Arguments of one call: the client's address, the time, and how many sends may be uncommitted.
pub(super) struct CallContext<'a> {
    pub born_host: &'a [u8],
    pub now_ms: i64,
    pub budget: usize,
}

/// An error after the store was changed.
struct Broken;

/// The outcome of one frame.
enum Outcome {
    Handled,
    /// Python handles it.
    Declined,
    /// To be handled again after the uncommitted sends are committed.
    AfterCommit,
}

impl Feed {
    /// Handles the frames of one call; returns start and end of the next frame.
    pub(super) fn handle_buffer(
        &mut self,
        buffer: &Bound<'_, PyAny>,
        at: usize,
        context: &CallContext<'_>,
    ) -> PyResult<(usize, isize)> {
        self.call = Call::default();
        let mut window = std::mem::take(&mut self.window);
        let handled = guarded(|| {
            with_view(buffer, |view| {
                self.handle_frames(buffer.py(), view, at, context, &mut window).ok()
            })
        });
        window.clear();
        self.window = window;
        let (start, stop) = handled?.ok_or_else(broken)?;
        Ok((start, stop.map_or(Ok(-1), isize::try_from)?))
    }

    /// The responses of one call as parts; None if they are all in `out`.
    pub(super) fn response_parts(&self) -> PyResult<Option<Vec<View<'_>>>> {
        match &self.log {
            Some(last) if !self.pieces.is_empty() => {
                let log = LogFiles { last, older: &self.older };
                log.parts(&self.out, &self.pieces).ok_or_else(broken).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Clears the responses; returns the number of sends of the call and the consumer offsets to
    /// commit.
    pub(super) fn end_call(&mut self) -> (usize, Option<Vec<Commit>>) {
        self.out.clear();
        self.pieces.clear();
        let call = std::mem::take(&mut self.call);
        (call.sends, (!call.commits.is_empty()).then_some(call.commits))
    }

    fn handle_frames(
        &mut self,
        py: Python<'_>,
        view: View<'_>,
        at: usize,
        context: &CallContext<'_>,
        window: &mut Window,
    ) -> Result<(usize, Option<usize>), Broken> {
        let mut start = at;
        while let Some(stop) = self.frame_end(view, start) {
            let staged = self.stage.as_ref().map_or(0, |stage| stage.used);
            if self.out.len() + self.call.pulled_bytes >= RESPONSE_BYTES_MAX
                || staged >= STAGED_BYTES_MAX
            {
                return Ok((start, None));
            }
            let frame = window.part(view, start, stop).ok_or(Broken)?;
            match self.handle_frame(py, frame, context)? {
                Outcome::Handled => {}
                Outcome::Declined => return Ok((start, Some(stop))),
                Outcome::AfterCommit => return Ok((start, None)),
            }
            start = stop;
        }
        Ok((start, Some(start)))
    }

    /// End of the frame at `start`; None if it is not complete.
    fn frame_end(&self, view: View<'_>, start: usize) -> Option<usize> {
        let length = usize::try_from(u32::from_be_bytes(view.array(start)?)).ok()?;
        let stop = start.checked_add(4)?.checked_add(length)?;
        let frame_max = self.settings.as_ref()?.frame_max;
        (length >= 4 && length <= frame_max && stop <= view.len()).then_some(stop)
    }

    /// Handles one frame, or declines it without side effects.
    fn handle_frame(
        &mut self,
        py: Python<'_>,
        frame: &[u8],
        context: &CallContext<'_>,
    ) -> Result<Outcome, Broken> {
        let Some((encoding, body_start)) = frames::headline(View::Bytes(frame)) else {
            return Ok(Outcome::Declined);
        };
        let (Some(header), Some(body)) = (frame.get(8..body_start), frame.get(body_start..)) else {
            return Ok(Outcome::Declined);
        };
        let (mut send, mut pull) = (SendHeader::default(), PullHeader::default());
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
        // Responses to pulls must not wait for the flush of sends.
        let waits = self.settings.as_ref().is_some_and(|settings| settings.waits);
        match head {
            Some(head) if is_send(head.code) && send.is_complete() => {
                if waits && self.call.pulls > 0 {
                    return Ok(Outcome::AfterCommit);
                }
                if self.uncommitted.sends >= context.budget {
                    return Ok(Outcome::Declined);
                }
                self.handle_send(&head, encoding, &send, body, context)
            }
            Some(head) if is_pull(head.code) && pull.is_complete() => {
                if waits && self.call.sends > 0 || self.is_uncommitted(&pull) {
                    return Ok(Outcome::AfterCommit);
                }
                let is_handled = self.handle_pull(py, &head, encoding, &pull).is_some();
                Ok(if is_handled { Outcome::Handled } else { Outcome::Declined })
            }
            _ => Ok(Outcome::Declined),
        }
    }

    /// Whether the queue of a pull has uncommitted messages, which a read does not see yet.
    fn is_uncommitted(&self, pull: &PullHeader<'_>) -> bool {
        if self.uncommitted.messages == 0 {
            return false;
        }
        let topic = self.names.get(&*pull.topic).and_then(|number| self.topics.get(*number));
        let queue_id = usize::try_from(pull.queue_id).ok();
        let queue = topic
            .and_then(Option::as_ref)
            .zip(queue_id)
            .and_then(|(topic, queue_id)| topic.queues.get(queue_id)?.as_ref());
        queue.is_some_and(|queue| queue.is_dirty)
    }

    fn handle_pull(
        &mut self,
        py: Python<'_>,
        head: &Head,
        encoding: u8,
        pull: &PullHeader<'_>,
    ) -> Option<()> {
        let Self { settings, names, topics, log, older, call, out, pieces, .. } = self;
        let limits = Limits {
            hot_bytes: self.hot_bytes,
            confirmed: self.confirmed,
            max_offset: self.max_offset.as_ref(),
        };
        let settings = settings.as_ref()?;
        let is_on = settings.pull_on && (head.code == PULL_MESSAGE || settings.lite_pull_on);
        if !is_on || head.flag & (FLAG_RESPONSE | FLAG_ONEWAY) != 0 {
            return None;
        }
        let topic = topics.get_mut(*names.get(&*pull.topic)?)?.as_mut()?;
        let grant = topic.grants.get(&*pull.group)?;
        let granted = (&*pull.filter(grant)?, grant.brokers);
        let queue_id = usize::try_from(pull.queue_id).ok()?;
        if queue_id >= topic.read_count {
            return None;
        }
        let file = topic.files.get(queue_id)?.as_ref()?;
        let log = LogFiles { last: log.as_ref()?, older };
        let (length, piece_count) = (out.len(), pieces.len());
        let request = (head, encoding);
        let Some(pulled) =
            pull::respond(py, pull, granted, file, &log, settings, &limits, request, out, pieces)
        else {
            out.truncate(length);
            pieces.truncate(piece_count);
            return None;
        };
        call.pulls += 1;
        call.pulled_bytes += pulled.size_bytes;
        let counts = &mut topic.grants.get_mut(&*pull.group)?.counts;
        if counts.len() <= queue_id {
            counts.resize(queue_id + 1, Counts::default());
        }
        let counts = counts.get_mut(queue_id)?;
        counts.add(pulled.count, pulled.size_bytes)?;
        counts.next_offset = pulled.next_offset;
        if let Some(offset) = pull.commit() {
            let group = from_utf8(&pull.group).ok()?.to_owned();
            call.commits.push((topic.name.clone(), group, pull.queue_id, offset));
        }
        Some(())
    }

    fn handle_send(
        &mut self,
        head: &Head,
        encoding: u8,
        send: &SendHeader<'_>,
        body: &[u8],
        context: &CallContext<'_>,
    ) -> Result<Outcome, Broken> {
        let Self { settings, names, topics, last, log, stage, index, uncommitted, call, .. } = self;
        let (Some(settings), Some(log), Some(stage)) =
            (settings.as_ref(), log.as_mut(), stage.as_mut())
        else {
            return Ok(Outcome::Declined);
        };
        let is_last = topics
            .get(*last)
            .and_then(Option::as_ref)
            .is_some_and(|topic| topic.name.as_bytes() == &*send.topic);
        let number = if is_last { Some(*last) } else { names.get(&*send.topic).copied() };
        let Some((number, topic)) =
            number.and_then(|number| Some((number, topics.get_mut(number)?.as_mut()?)))
        else {
            return Ok(Outcome::Declined);
        };
        *last = number;
        let Scratch { text, names, keys, log_offsets, around, .. } = &mut self.scratch;
        text.clear();
        keys.clear();
        if head.flag & FLAG_RESPONSE != 0 || send.sys_flag & !PLAIN_FLAGS != 0 {
            return Ok(Outcome::Declined);
        }
        let is_batch = send.batch || head.code == SEND_BATCH_MESSAGE;
        let Some(items) =
            parse_messages(settings, topic.hash, send, body, is_batch, text, names, keys)
        else {
            return Ok(Outcome::Declined);
        };
        let queue_id = send.queue_id;
        let (queue_number, queue) = match usize::try_from(queue_id) {
            Ok(number) if number < topic.queue_count => match topic.queues.get_mut(number) {
                Some(Some(queue)) => (number, queue),
                _ => return Ok(Outcome::Declined),
            },
            _ => return Ok(Outcome::Declined),
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
            born_host: context.born_host,
            store_time: context.now_ms,
            store_host: &settings.store_host,
            reconsume_count: send.reconsume_count,
            prepared_log_offset: 0,
        };
        let mut size = 0;
        for item in items.iter() {
            record.properties = item.properties;
            let Some(layout) = record.layout(item.body.len()) else {
                return Ok(Outcome::Declined);
            };
            size += layout.size;
        }
        let response_max = SEND_RESPONSE_BYTES
            + items.len() * SEND_RESPONSE_BYTES_EACH
            + settings.region.len() * 6;
        let has_space = log.has_space(size)
            && queue.has_space(items.len())
            && response_max <= settings.frame_max
            && (keys.is_empty() || index.as_ref().is_some_and(|index| index.has_space(keys.len())));
        if !has_space {
            return Ok(Outcome::Declined);
        }
        if !stage.has_space(size) {
            return Ok(if stage.used > 0 { Outcome::AfterCommit } else { Outcome::Declined });
        }

        // Everything fits; from here on the store is changed.
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
            queue.put(QueueEntry { log_offset, size, tags_code: item.tags_code }).ok_or(Broken)?;
            for key in keys.get(item.keys.clone()).ok_or(Broken)? {
                let index = index.as_mut().ok_or(Broken)?;
                index.put(*key, log_offset, context.now_ms).ok_or(Broken)?;
            }
            log_offsets.push(log_offset);
        }
        if !queue.is_dirty {
            queue.is_dirty = true;
            uncommitted.queues.push((number, queue_number));
        }
        topic.counts.get_mut(queue_number).ok_or(Broken)?.add(items.len(), size).ok_or(Broken)?;
        uncommitted.messages += items.len();
        uncommitted.sends += 1;
        uncommitted.keys += keys.len();
        call.sends += 1;
        if head.flag & FLAG_ONEWAY == 0 {
            let stored = Stored { opaque: head.opaque, queue_id, queue_offset, log_offsets };
            settings.put_response(&mut self.out, encoding, &stored).ok_or(Broken)?;
        }
        Ok(Outcome::Handled)
    }
}
