//! The headers of sends, read from ext fields in their usual form.
//!
//! Missing, repeated and unusually written fields are declined; Python reads them then
//! (`protocol/headers/`).

use std::borrow::Cow;

use crate::codecs::header_json::number;

pub const SEND_MESSAGE: i32 = 10;
pub const SEND_MESSAGE_V2: i32 = 310;
pub const SEND_BATCH_MESSAGE: i32 = 320;

/// The fields of SEND_MESSAGE in the order of the letters that SEND_MESSAGE_V2 gives them.
const LONG_NAMES: [&[u8]; 13] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
];
/// Fields that 5.x may add to any request, and whether each is a boolean.
const COMMON_NAMES: [(&[u8], bool); 5] =
    [(b"ns", false), (b"nsd", true), (b"bname", false), (b"oway", true), (b"lo", true)];
const REQUIRED: u32 = 0xFF;

pub fn is_send(code: i32) -> bool {
    matches!(code, SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE)
}

/// The header of a send, as far as it was read.
#[derive(Default)]
pub struct SendHeader<'a> {
    seen: u32,
    pub topic: Cow<'a, [u8]>,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_time: i64,
    pub flag: i32,
    pub properties: Cow<'a, [u8]>,
    pub reconsume_count: i32,
    pub batch: bool,
}

impl<'a> SendHeader<'a> {
    #[inline]
    pub fn put(&mut self, code: i32, key: &[u8], value: Cow<'a, [u8]>) -> Option<()> {
        let index = if code == SEND_MESSAGE {
            LONG_NAMES.iter().position(|name| *name == key)
        } else {
            match key {
                [letter @ b'a'..=b'm'] => Some(usize::from(letter - b'a')),
                _ => None,
            }
        };
        let Some(field) = index else {
            return put_common(&mut self.seen, LONG_NAMES.len(), key, &value);
        };
        once(&mut self.seen, field)?;
        match field {
            1 => self.topic = value,
            4 => self.queue_id = int32(&value)?,
            5 => self.sys_flag = int32(&value)?,
            6 => self.born_time = number(&value)?,
            7 => self.flag = int32(&value)?,
            8 => self.properties = value,
            9 => self.reconsume_count = int32(&value)?,
            10 => drop(boolean(&value)?),
            12 => self.batch = boolean(&value)?,
            3 | 11 => drop(int32(&value)?),
            _ => {}
        }
        Some(())
    }

    pub fn is_complete(&self) -> bool {
        self.seen & REQUIRED == REQUIRED
    }
}

/// Marks a field as read; declines one that is repeated.
#[inline]
pub fn once(seen: &mut u32, field: usize) -> Option<()> {
    let bit = 1 << field;
    let is_first = *seen & bit == 0;
    *seen |= bit;
    is_first.then_some(())
}

/// Checks a field that any request of 5.x may have; marks it in `seen` from bit `first` on.
pub fn put_common(seen: &mut u32, first: usize, key: &[u8], value: &[u8]) -> Option<()> {
    if let Some(at) = COMMON_NAMES.iter().position(|(name, _)| *name == key) {
        once(seen, first + at)?;
        if COMMON_NAMES.get(at)?.1 {
            boolean(value)?;
        }
    }
    Some(())
}

pub fn int32(text: &[u8]) -> Option<i32> {
    i32::try_from(number(text)?).ok()
}

fn boolean(text: &[u8]) -> Option<bool> {
    match text {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}
