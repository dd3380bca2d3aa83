//! The messages of a send, one or a batch: parsed, then written to the stage as records.

use std::ops::{Deref, Range};

use super::properties;
use super::send_header::SendHeader;
use super::settings::Settings;
use super::store_memory::Stage;
use crate::codecs::crc::body_crc;
use crate::codecs::records::Record;
use crate::codecs::text::is_utf8;
use crate::reader::Reader;
use crate::view::View;

const PROPERTIES_MAX: usize = 32_767;
const BATCH_ITEM_MIN: usize = 22;

/// One message to store.
pub(super) struct NewMessage<'a> {
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub flag: i32,
    pub tags_code: i64,
    pub keys: Range<usize>,
}

/// Parses the messages of a send; appends the hashes of their keys to `keys`.
#[expect(clippy::too_many_arguments, reason = "a message, and scratch memory")]
pub(super) fn parse_messages<'a>(
    settings: &Settings,
    topic_hash: i32,
    send: &SendHeader<'_>,
    body: &'a [u8],
    is_batch: bool,
    text: &'a mut Vec<u8>,
    names: &mut properties::Names,
    keys: &mut Vec<i32>,
) -> Option<NewMessages<'a>> {
    if body.len() > settings.body_max {
        return None;
    }
    let found = properties::read(&send.properties, settings, names, Some(text))?;
    if (settings.waits && !found.wait_stored) || text.len() > PROPERTIES_MAX {
        return None;
    }
    if is_batch {
        return parse_batch(body, topic_hash, settings, names, keys).map(NewMessages::Many);
    }
    if settings.index_on {
        found.put_keys(topic_hash, keys);
    }
    Some(NewMessages::One([NewMessage {
        body,
        properties: text,
        flag: send.flag,
        tags_code: found.tags_code(),
        keys: 0..keys.len(),
    }]))
}

/// One message or a batch; a single message needs no allocation.
pub(super) enum NewMessages<'a> {
    One([NewMessage<'a>; 1]),
    Many(Vec<NewMessage<'a>>),
}

impl<'a> Deref for NewMessages<'a> {
    type Target = [NewMessage<'a>];

    fn deref(&self) -> &[NewMessage<'a>] {
        match self {
            NewMessages::One(message) => message,
            NewMessages::Many(messages) => messages,
        }
    }
}

/// Appends a record to the stage; returns its size.
pub(super) fn put_record(
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

/// The messages of a batch; its layout is drawn in `protocol/records/batch.py`.
fn parse_batch<'a>(
    bytes: &'a [u8],
    topic_hash: i32,
    settings: &Settings,
    names: &mut properties::Names,
    keys: &mut Vec<i32>,
) -> Option<Vec<NewMessage<'a>>> {
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
        let text = reader.take(i32::from(text_length))?;
        if !is_utf8(text) || !reader.0.is_empty() || items.len() >= settings.batch_max {
            return None;
        }
        let found = properties::read(text, settings, names, None)?;
        let first_key = keys.len();
        if settings.index_on {
            found.put_keys(topic_hash, keys);
        }
        if keys.len() > settings.batch_keys_max {
            return None;
        }
        items.push(NewMessage {
            body,
            properties: text,
            flag,
            tags_code: found.tags_code(),
            keys: first_key..keys.len(),
        });
    }
    (!items.is_empty()).then_some(items)
}
