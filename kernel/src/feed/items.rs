//! The messages of a send: one or a batch of them, read and put behind each other as records.

use std::ops::{Deref, Range};

use crate::crc::body_crc;
use crate::leases::Stage;
use crate::reader::Reader;
use crate::records::Record;
use crate::request::Send;
use crate::settings::Settings;
use crate::texts;
use crate::view::View;

const PROPERTIES_MAX: usize = 32_767;
const BATCH_ITEM_MIN: usize = 22;

/// One message to store.
pub(super) struct Item<'a> {
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub flag: i32,
    pub tags_code: i64,
    pub keys: Range<usize>,
}

/// The messages that a send brings, one or a batch; their keys go into `keys`.
#[expect(clippy::too_many_arguments, reason = "a message, and memory to read it with")]
pub(super) fn plan<'a>(
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
pub(super) enum Items<'a> {
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
