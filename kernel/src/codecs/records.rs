//! Records to and from Python values; the layout is in `record_layout.rs`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::crc::body_crc;
use super::record_layout::{
    BORN_HOST_V6, HEAD_MAX, HEAD_WITHOUT_HOSTS, MAGIC_V1, MAGIC_V2, RecordHead, STORE_HOST_V6,
    split_tail,
};
use crate::view::View;

// -- reading --------------------------------------------------------------------------------------

/// Topic and hosts of the record before: neighbours mostly have the same, as one Python object.
#[derive(Default)]
pub struct Neighbour<'py> {
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
    let mut neighbour = Neighbour::default();
    let mut start = 0;
    while start < view.len() {
        let (fields, size) = decode(py, view, start, check_crc, read_body, &mut neighbour)?;
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
    neighbour: &mut Neighbour<'py>,
) -> Option<(Bound<'py, PyTuple>, usize)> {
    let mut buffer = [0; HEAD_MAX];
    let head = RecordHead::read(view, start, &mut buffer)?;
    let (body_at, tail_at) = head.body_range()?;
    let body = head.record.part(body_at, tail_at)?;
    if check_crc && !head.has_crc_of(body) {
        return None;
    }
    let tail = head.record.part(tail_at, head.record.len())?.bytes();
    let (topic, properties) = split_tail(&tail, head.is_v2)?;
    let properties = from_utf8(properties).ok()?;

    let body = if read_body { body.to_python(py)? } else { PyBytes::new(py, b"") };
    let fields = [
        shared_topic(py, &mut neighbour.topic, topic)?.into_any(),
        body.into_any(),
        decode_properties(py, properties)?.into_any(),
        number(py, head.queue_id)?,
        number(py, head.queue_offset)?,
        number(py, head.log_offset)?,
        number(py, head.flag)?,
        number(py, head.sys_flag)?,
        number(py, head.born_time)?,
        shared_host(py, &mut neighbour.born_host, head.born_host)?.into_any(),
        number(py, head.store_time)?,
        shared_host(py, &mut neighbour.store_host, head.store_host)?.into_any(),
        number(py, head.reconsume_count)?,
        number(py, head.prepared_log_offset)?,
        number(py, head.crc)?,
        number(py, head.size)?,
    ];
    Some((PyTuple::new(py, fields).ok()?, head.record.len()))
}

fn number<'py>(py: Python<'py>, value: impl Into<i64>) -> Option<Bound<'py, PyAny>> {
    let number = value.into().into_pyobject(py).ok()?;
    Some(number.into_any())
}

fn shared_topic<'py>(
    py: Python<'py>,
    last: &mut Option<(Vec<u8>, Bound<'py, PyString>)>,
    raw: &[u8],
) -> Option<Bound<'py, PyString>> {
    if let Some((_, topic)) = last.as_ref().filter(|(known, _)| known == raw) {
        return Some(topic.clone());
    }
    let topic = PyString::new(py, from_utf8(raw).ok()?);
    *last = Some((raw.to_vec(), topic.clone()));
    Some(topic)
}

fn shared_host<'py>(
    py: Python<'py>,
    last: &mut Option<(Vec<u8>, Bound<'py, PyTuple>)>,
    raw: &[u8],
) -> Option<Bound<'py, PyTuple>> {
    if let Some((_, host)) = last.as_ref().filter(|(known, _)| known == raw) {
        return Some(host.clone());
    }
    let (address, port) = raw.split_last_chunk()?;
    let address = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(v4), _) => Ipv4Addr::from(v4).to_string(),
        (_, Ok(v6)) => Ipv6Addr::from(v6).to_canonical().to_string(),
        _ => return None,
    };
    let host = (address, i32::from_be_bytes(*port)).into_pyobject(py).ok()?;
    *last = Some((raw.to_vec(), host.clone()));
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

/// Version and size of a record to write.
#[derive(Clone, Copy)]
pub struct Layout {
    pub size: usize,
    magic: u32,
    sys_flag: i32,
    body_length: usize,
}

impl Record<'_> {
    /// None if a text or the record is too long for the layout.
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

    fn head_length(&self) -> usize {
        HEAD_WITHOUT_HOSTS + self.born_host.len() + self.store_host.len()
    }

    /// Appends what comes before the body.
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

    /// Appends what follows the body.
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
        let (head_target, rest) = target.split_at_mut(head.len());
        let (body_target, tail_target) = rest.split_at_mut(body.len());
        head_target.copy_from_slice(&head);
        body.copy_to(body_target);
        tail_target.copy_from_slice(&tail);
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
