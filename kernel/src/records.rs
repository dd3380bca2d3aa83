//! The message record; its layout is drawn in `protocol/records/record.py`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::crc::body_crc;
use crate::reader::Reader;
use crate::view::View;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;

const BORN_HOST_V6: i32 = 1 << 4;
const STORE_HOST_V6: i32 = 1 << 5;
const HEAD_WITHOUT_HOSTS: usize = 72;
const HEAD_MAX: usize = HEAD_WITHOUT_HOSTS + 2 * 20;

// -- reading --------------------------------------------------------------------------------------

/// What neighbouring records tend to share, kept so that one Python object serves them all.
#[derive(Default)]
pub struct Shared<'py> {
    topic: Option<(Vec<u8>, Bound<'py, PyString>)>,
    born_host: Option<(Vec<u8>, Bound<'py, PyTuple>)>,
    store_host: Option<(Vec<u8>, Bound<'py, PyTuple>)>,
}

pub fn decode_all<'py>(
    py: Python<'py>,
    view: View<'_>,
    check_crc: bool,
    read_body: bool,
) -> Option<Bound<'py, PyList>> {
    let records = PyList::empty(py);
    let mut shared = Shared::default();
    let mut start = 0;
    while start < view.len() {
        let (fields, size) = decode(py, view, start, check_crc, read_body, &mut shared)?;
        records.append(fields).ok()?;
        start += size;
    }
    Some(records)
}

/// The fields of the record at `start` in the order of StoredMessage, and the record's size.
pub fn decode<'py>(
    py: Python<'py>,
    view: View<'_>,
    start: usize,
    check_crc: bool,
    read_body: bool,
    shared: &mut Shared<'py>,
) -> Option<(Bound<'py, PyTuple>, usize)> {
    let size = i32::from_be_bytes(view.array(start)?);
    let record = view.part(start, start.checked_add(usize::try_from(size).ok()?)?)?;
    let mut head = [0; HEAD_MAX];
    record.copy_to(&mut head);
    let mut reader = Reader(head.get(4..record.len().min(HEAD_MAX))?);
    let magic = u32::from_be_bytes(reader.array()?);
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return None;
    }
    let crc = reader.i32()?;
    let queue_id = reader.i32()?;
    let flag = reader.i32()?;
    let queue_offset = reader.i64()?;
    let log_offset = reader.i64()?;
    let sys_flag = reader.i32()?;
    let born_time = reader.i64()?;
    let born_host = reader.take(host_length(sys_flag, BORN_HOST_V6))?;
    let store_time = reader.i64()?;
    let store_host = reader.take(host_length(sys_flag, STORE_HOST_V6))?;
    let reconsume_count = reader.i32()?;
    let prepared_log_offset = reader.i64()?;
    let body_length = usize::try_from(reader.i32()?).ok()?;

    let body_at = HEAD_WITHOUT_HOSTS + born_host.len() + store_host.len();
    let body = record.part(body_at, body_at.checked_add(body_length)?)?;
    if check_crc && body_length > 0 && u32::try_from(crc).ok()? != body_crc(body) {
        return None;
    }
    let tail = record.part(body_at + body_length, record.len())?.bytes();
    let mut reader = Reader(&tail);
    let topic_length = if magic == MAGIC_V2 { reader.i16()? } else { i16::from(reader.i8()?) };
    let topic = reader.take(i32::from(topic_length))?;
    let properties_length = reader.i16()?;
    let properties = from_utf8(reader.take(i32::from(properties_length))?).ok()?;
    if !reader.0.is_empty() {
        return None;
    }

    let body = if read_body { body.to_python(py)? } else { PyBytes::new(py, b"") };
    let fields = [
        shared_topic(py, &mut shared.topic, topic)?.into_any(),
        body.into_any(),
        decode_properties(py, properties)?.into_any(),
        number(py, queue_id)?,
        number(py, queue_offset)?,
        number(py, log_offset)?,
        number(py, flag)?,
        number(py, sys_flag)?,
        number(py, born_time)?,
        shared_host(py, &mut shared.born_host, born_host)?.into_any(),
        number(py, store_time)?,
        shared_host(py, &mut shared.store_host, store_host)?.into_any(),
        number(py, reconsume_count)?,
        number(py, prepared_log_offset)?,
        number(py, crc)?,
        number(py, size)?,
    ];
    Some((PyTuple::new(py, fields).ok()?, record.len()))
}

fn number<'py>(py: Python<'py>, value: impl Into<i64>) -> Option<Bound<'py, PyAny>> {
    let number = value.into().into_pyobject(py).ok()?;
    Some(number.into_any())
}

fn host_length(sys_flag: i32, bit: i32) -> i32 {
    if sys_flag & bit == 0 { 8 } else { 20 }
}

fn shared_topic<'py>(
    py: Python<'py>,
    kept: &mut Option<(Vec<u8>, Bound<'py, PyString>)>,
    raw: &[u8],
) -> Option<Bound<'py, PyString>> {
    if let Some((_, topic)) = kept.as_ref().filter(|(known, _)| known == raw) {
        return Some(topic.clone());
    }
    let topic = PyString::new(py, from_utf8(raw).ok()?);
    *kept = Some((raw.to_vec(), topic.clone()));
    Some(topic)
}

fn shared_host<'py>(
    py: Python<'py>,
    kept: &mut Option<(Vec<u8>, Bound<'py, PyTuple>)>,
    raw: &[u8],
) -> Option<Bound<'py, PyTuple>> {
    if let Some((_, host)) = kept.as_ref().filter(|(known, _)| known == raw) {
        return Some(host.clone());
    }
    let (address, port) = raw.split_last_chunk()?;
    let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(v4), _) => Ipv4Addr::from(v4).to_string(),
        (_, Ok(v6)) => Ipv6Addr::from(v6).to_canonical().to_string(),
        _ => return None,
    };
    let host = (address, i32::from_be_bytes(*port)).into_pyobject(py).ok()?;
    *kept = Some((raw.to_vec(), host.clone()));
    Some(host)
}

fn decode_properties<'py>(py: Python<'py>, text: &str) -> Option<Bound<'py, PyDict>> {
    let properties = PyDict::new(py);
    for part in text.split('\x02') {
        match part.split_once('\x01') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                properties.set_item(name, value).ok()?;
            }
            _ => {}
        }
    }
    Some(properties)
}

// -- writing --------------------------------------------------------------------------------------

/// A record to write; hosts are packed, 8 or 20 bytes.
pub struct Record<'a> {
    pub topic: &'a str,
    /// UTF-8.
    pub properties: &'a [u8],
    pub queue_id: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_time: i64,
    pub born_host: &'a [u8],
    pub store_time: i64,
    pub store_host: &'a [u8],
    pub reconsume_count: i32,
    pub prepared_log_offset: i64,
}

/// How a record is laid out, and how long it is.
#[derive(Clone, Copy)]
pub struct Layout {
    pub size: usize,
    magic: u32,
    sys_flag: i32,
    body_length: usize,
}

impl Record<'_> {
    /// Declines what does not fit the lengths of a record.
    pub fn layout(&self, body_length: usize) -> Option<Layout> {
        let short_topic = i8::try_from(self.topic.len()).is_ok();
        i16::try_from(self.topic.len()).ok()?;
        i16::try_from(self.properties.len()).ok()?;
        let mut sys_flag = self.sys_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
        sys_flag |= v6_bit(self.born_host, BORN_HOST_V6)?;
        sys_flag |= v6_bit(self.store_host, STORE_HOST_V6)?;
        let lengths = if short_topic { 3 } else { 4 };
        let head = self.head_length();
        let text = lengths + self.topic.len() + self.properties.len();
        let size = (head + text).checked_add(body_length)?;
        i32::try_from(size).ok()?;
        let magic = if short_topic { MAGIC_V1 } else { MAGIC_V2 };
        Some(Layout { size, magic, sys_flag, body_length })
    }

    /// How many bytes come before the body.
    pub fn head_length(&self) -> usize {
        HEAD_WITHOUT_HOSTS + self.born_host.len() + self.store_host.len()
    }

    /// What comes before the body.
    pub fn put_head(&self, layout: Layout, crc: u32, head: &mut Vec<u8>) -> Option<()> {
        head.extend(i32::try_from(layout.size).ok()?.to_be_bytes());
        head.extend(layout.magic.to_be_bytes());
        head.extend(crc.to_be_bytes());
        head.extend(self.queue_id.to_be_bytes());
        head.extend(self.flag.to_be_bytes());
        head.extend(self.queue_offset.to_be_bytes());
        head.extend(self.log_offset.to_be_bytes());
        head.extend(layout.sys_flag.to_be_bytes());
        head.extend(self.born_time.to_be_bytes());
        head.extend_from_slice(self.born_host);
        head.extend(self.store_time.to_be_bytes());
        head.extend_from_slice(self.store_host);
        head.extend(self.reconsume_count.to_be_bytes());
        head.extend(self.prepared_log_offset.to_be_bytes());
        head.extend(i32::try_from(layout.body_length).ok()?.to_be_bytes());
        Some(())
    }

    /// What comes behind it.
    pub fn put_tail(&self, tail: &mut Vec<u8>) -> Option<()> {
        match i8::try_from(self.topic.len()) {
            Ok(length) => tail.extend(length.to_be_bytes()),
            Err(_) => tail.extend(i16::try_from(self.topic.len()).ok()?.to_be_bytes()),
        }
        tail.extend_from_slice(self.topic.as_bytes());
        tail.extend(i16::try_from(self.properties.len()).ok()?.to_be_bytes());
        tail.extend_from_slice(self.properties);
        Some(())
    }
}

pub fn encode<'py>(
    py: Python<'py>,
    record: &Record<'_>,
    body: View<'_>,
) -> Option<Bound<'py, PyBytes>> {
    let layout = record.layout(body.len())?;
    let mut head = Vec::with_capacity(HEAD_MAX);
    record.put_head(layout, body_crc(body), &mut head)?;
    let mut tail = Vec::with_capacity(4 + record.topic.len() + record.properties.len());
    record.put_tail(&mut tail)?;
    PyBytes::new_with(py, layout.size, |target| {
        let (head_room, rest) = target.split_at_mut(head.len());
        let (body_room, tail_room) = rest.split_at_mut(body.len());
        head_room.copy_from_slice(&head);
        body.copy_to(body_room);
        tail_room.copy_from_slice(&tail);
        Ok(())
    })
    .ok()
}

fn v6_bit(host: &[u8], bit: i32) -> Option<i32> {
    match host.len() {
        8 => Some(0),
        20 => Some(bit),
        _ => None,
    }
}
