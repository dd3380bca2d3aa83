//! What becomes of each frame of a buffer: a send is stored, a pull answered, the rest declined.

use std::str::from_utf8;

use pyo3::prelude::*;

use super::items::{plan, put_record};
use super::{Call, Commit, Feed, Scratch, broken};
use crate::guard::guarded;
use crate::header::{ENCODING_BINARY, ENCODING_JSON, Head};
use crate::pull::{self, Counts, LogFiles, PULL_MESSAGE, Pull, is_pull};
use crate::records::Record;
use crate::request::{SEND_BATCH_MESSAGE, Send, is_send};
use crate::view::{View, Window, with_view};
use crate::{frames, header_binary, header_json};

const FLAG_RESPONSE: i32 = 1;
const FLAG_ONEWAY: i32 = 2;
const MULTI_TAGS: i32 = 1 << 1;
/// The flags of an ordinary message, as `protocol/sysflag.py` has them: compressed, several tags,
/// two kinds of addresses, and the kind of compression.
const PLAIN_FLAGS: i32 = 1 | MULTI_TAGS | 3 << 4 | 3 << 8;
/// Answers are handed over when there are so many bytes of them, and the peer had better read.
const OUT_MAX: usize = 256 * 1024;
/// Python had better write the records when there are so many bytes of them.
const RECORDS_MAX: usize = 256 * 1024;
/// An answer has no more bytes than this, and so many for each message.
const ANSWER_BYTES: usize = 1024;
const ANSWER_BYTES_EACH: usize = 64;

/// Where a buffer comes from, when, and how many sends may be unsettled.
pub(super) struct From<'a> {
    pub born_host: &'a [u8],
    pub now_ms: i64,
    pub budget: usize,
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
    /// Walks over the frames of one call; answers where the next one begins and ends.
    pub(super) fn fed(
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
    pub(super) fn parts(&self) -> PyResult<Option<Vec<View<'_>>>> {
        match &self.log {
            Some(last) if !self.pieces.is_empty() => {
                let log = LogFiles { last, older: &self.older };
                log.parts(&self.out, &self.pieces).ok_or_else(broken).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// How many sends one call had, and the offsets to commit; its answers are gone then.
    pub(super) fn end_call(&mut self) -> (usize, Option<Vec<Commit>>) {
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
        let counts = counts.get_mut(queue_id)?;
        counts.add(got.count, got.size_bytes)?;
        counts.next_offset = got.next_offset;
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
        if head.flag & FLAG_RESPONSE != 0 || send.sys_flag & !PLAIN_FLAGS != 0 {
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
