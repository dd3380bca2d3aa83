//! Records as columns: the buffers of Arrow arrays, by the contract of `spark/twin.py`.
//!
//! Numbers are written in the machine's own order, as Arrow wants them. Texts are an array of 32-bit
//! offsets and their bytes behind each other; where a value may be missing a bit map tells. Bodies
//! are copied once, straight to where Python gets them, and their checksums are taken there.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::crc::body_crc;
use crate::reader::Reader;
use crate::view::View;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_HOST_V6: i32 = 1 << 4;
const STORE_HOST_V6: i32 = 1 << 5;
const HEAD_WITHOUT_HOSTS: usize = 72;
const HEAD_MAX: usize = HEAD_WITHOUT_HOSTS + 2 * 20;
const START_BYTES: usize = 8;
const SYS_FLAG_AT: usize = 36;
const NAMES_MAX: usize = 64;

/// One record, all of it checked; texts are those of its tail.
struct Parsed<'a> {
    size: i32,
    crc: i32,
    queue_id: i32,
    flag: i32,
    queue_offset: i64,
    log_offset: i64,
    sys_flag: i32,
    born_time: i64,
    store_time: i64,
    reconsume_count: i32,
    prepared_offset: i64,
    born_host: &'a [u8],
    store_host: &'a [u8],
    topic: &'a str,
    pairs: Pairs<'a>,
    body_length: usize,
}

#[derive(Clone, Copy)]
enum Int {
    QueueId,
    ReconsumeTimes,
    SysFlag,
    Flag,
    StoreSize,
    BodyCrc,
}

#[derive(Clone, Copy)]
enum Long {
    QueueOffset,
    PhysicalOffset,
    PreparedOffset,
    BornTime,
    StoreTime,
}

#[derive(Clone, Copy)]
enum Text {
    Topic,
    MsgId,
    OffsetMsgId,
    BornHost,
    StoreHost,
}

/// A column in the making.
enum Column {
    Int(Int, Vec<u8>),
    Long(Long, Vec<u8>),
    Text(Text, Texts),
    Property(String, Texts, Bits),
    Keys(Vec<u8>, Texts),
    Properties(Vec<u8>, Texts, Texts),
    Body(Vec<u8>, usize),
}

// -- columns --------------------------------------------------------------------------------------

/// Texts behind each other, and where each ends.
#[derive(Default)]
struct Texts {
    ends: Vec<u8>,
    data: Vec<u8>,
    count: usize,
}

impl Texts {
    fn new() -> Self {
        Self { ends: 0_i32.to_ne_bytes().to_vec(), ..Self::default() }
    }

    fn put(&mut self, text: &str) -> Option<()> {
        self.data.extend_from_slice(text.as_bytes());
        self.close()
    }

    fn close(&mut self) -> Option<()> {
        self.ends.extend(i32::try_from(self.data.len()).ok()?.to_ne_bytes());
        self.count += 1;
        Some(())
    }

    fn give<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        (PyBytes::new(py, &self.ends), PyBytes::new(py, &self.data))
    }
}

/// One bit for each value, set where there is one, the lowest bit first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    count: usize,
    missing: usize,
}

impl Bits {
    fn put(&mut self, there: bool) {
        if self.count % 8 == 0 {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(there) << (self.count % 8);
        }
        self.count += 1;
        self.missing += usize::from(!there);
    }
}

impl Column {
    fn of(name: &str) -> Option<Self> {
        let int = |kind| Some(Self::Int(kind, Vec::new()));
        let long = |kind| Some(Self::Long(kind, Vec::new()));
        let text = |kind| Some(Self::Text(kind, Texts::new()));
        let starts = || 0_i32.to_ne_bytes().to_vec();
        match name {
            "queueId" => int(Int::QueueId),
            "reconsumeTimes" => int(Int::ReconsumeTimes),
            "sysFlag" => int(Int::SysFlag),
            "flag" => int(Int::Flag),
            "storeSize" => int(Int::StoreSize),
            "bodyCrc" => int(Int::BodyCrc),
            "queueOffset" => long(Long::QueueOffset),
            "physicalOffset" => long(Long::PhysicalOffset),
            "preparedOffset" => long(Long::PreparedOffset),
            "bornTimestamp" => long(Long::BornTime),
            "storeTimestamp" => long(Long::StoreTime),
            "topic" => text(Text::Topic),
            "msgId" => text(Text::MsgId),
            "offsetMsgId" => text(Text::OffsetMsgId),
            "bornHost" => text(Text::BornHost),
            "storeHost" => text(Text::StoreHost),
            "keys" => Some(Self::Keys(starts(), Texts::new())),
            "properties" => Some(Self::Properties(starts(), Texts::new(), Texts::new())),
            "body" => Some(Self::Body(starts(), 0)),
            _ => {
                let name = name.strip_prefix("property:")?.to_owned();
                Some(Self::Property(name, Texts::new(), Bits::default()))
            }
        }
    }

    /// Whether properties must be read for it.
    fn is_of_properties(&self) -> bool {
        matches!(
            self,
            Self::Property(..) | Self::Keys(..) | Self::Properties(..) | Self::Text(Text::MsgId, _)
        )
    }

    fn take(&mut self, record: &Parsed<'_>, hosts: &mut Hosts) -> Option<()> {
        match self {
            Self::Int(kind, values) => values.extend(record.int(*kind).to_ne_bytes()),
            Self::Long(kind, values) => values.extend(record.long(*kind).to_ne_bytes()),
            Self::Text(kind, texts) => record.put_text(*kind, texts, hosts)?,
            Self::Property(name, texts, bits) => {
                let value = record.pairs.value_of(name);
                bits.put(value.is_some());
                texts.put(value.unwrap_or(""))?;
            }
            Self::Keys(ends, texts) => {
                let keys = record.pairs.value_of("KEYS").unwrap_or("");
                for key in keys.split(' ').filter(|key| !key.is_empty()) {
                    texts.put(key)?;
                }
                ends.extend(i32::try_from(texts.count).ok()?.to_ne_bytes());
            }
            Self::Properties(ends, names, values) => {
                put_properties(&record.pairs, names, values)?;
                ends.extend(i32::try_from(names.count).ok()?.to_ne_bytes());
            }
            Self::Body(ends, total) => {
                *total = total.checked_add(record.body_length)?;
                ends.extend(i32::try_from(*total).ok()?.to_ne_bytes());
            }
        }
        Some(())
    }

    fn give<'py>(
        &self,
        py: Python<'py>,
        bodies: Option<&Bound<'py, PyBytes>>,
    ) -> Option<Bound<'py, PyAny>> {
        let bytes = |values: &[u8]| PyBytes::new(py, values);
        let tuple = match self {
            Self::Int(_, values) | Self::Long(_, values) => return Some(bytes(values).into_any()),
            Self::Text(_, texts) => {
                let (ends, data) = texts.give(py);
                (py.None(), ends, data).into_pyobject(py).ok()?.into_any()
            }
            Self::Property(_, texts, bits) => {
                let (ends, data) = texts.give(py);
                let bits = (bits.missing > 0).then(|| bytes(&bits.bytes));
                (bits, ends, data).into_pyobject(py).ok()?.into_any()
            }
            Self::Keys(ends, texts) => {
                let (key_ends, data) = texts.give(py);
                (bytes(ends), key_ends, data).into_pyobject(py).ok()?.into_any()
            }
            Self::Properties(ends, names, values) => {
                let (name_ends, name_data) = names.give(py);
                let (value_ends, value_data) = values.give(py);
                (bytes(ends), name_ends, name_data, value_ends, value_data)
                    .into_pyobject(py)
                    .ok()?
                    .into_any()
            }
            Self::Body(ends, _) => {
                (py.None(), bytes(ends), bodies?).into_pyobject(py).ok()?.into_any()
            }
        };
        Some(tuple)
    }
}

// -- texts ----------------------------------------------------------------------------------------

/// The properties of a record: their text, and where in it each name begins and ends and each value
/// ends. One byte lies between a name and its value.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    text: &'a str,
    places: &'a [[usize; 3]],
}

impl<'a> Pairs<'a> {
    fn get(&self, place: [usize; 3]) -> Option<(&'a str, &'a str)> {
        let [start, middle, stop] = place;
        Some((self.text.get(start..middle)?, self.text.get(middle + 1..stop)?))
    }

    /// Of a repeated name the last one counts.
    fn value_of(&self, wanted: &str) -> Option<&'a str> {
        for place in self.places.iter().rev() {
            // Lengths are compared first: most names are told apart by them.
            if place[1] - place[0] == wanted.len() {
                let (name, value) = self.get(*place)?;
                if name == wanted {
                    return Some(value);
                }
            }
        }
        None
    }
}

/// Where each property lies that has a name and a value; declines more than anybody sends.
fn find_pairs(text: &str, places: &mut Vec<[usize; 3]>) -> Option<()> {
    places.clear();
    let mut start = 0;
    let mut middle = None;
    for (at, byte) in text.bytes().chain([2]).enumerate() {
        if byte == 1 && middle.is_none() {
            middle = Some(at);
        } else if byte == 2 {
            if let Some(middle) = middle.take() {
                if middle > start && at > middle + 1 {
                    places.push([start, middle, at]);
                }
            }
            start = at + 1;
        }
    }
    (places.len() <= NAMES_MAX).then_some(())
}

/// Declines repeated names, which keep their first place and their last value.
fn put_properties(pairs: &Pairs<'_>, names: &mut Texts, values: &mut Texts) -> Option<()> {
    for (count, place) in pairs.places.iter().enumerate() {
        let (name, value) = pairs.get(*place)?;
        for known in pairs.places.get(..count)? {
            if known[1] - known[0] == name.len() && pairs.get(*known)?.0 == name {
                return None;
            }
        }
        names.put(name)?;
        values.put(value)?;
    }
    Some(())
}

/// Addresses as texts, the last of each kind kept: neighbours tend to have the same.
#[derive(Default)]
struct Hosts {
    born: (Vec<u8>, String),
    store: (Vec<u8>, String),
}

fn host_text<'a>(kept: &'a mut (Vec<u8>, String), raw: &[u8]) -> Option<&'a str> {
    if kept.0 != raw {
        let (address, port) = raw.split_last_chunk()?;
        let port = i32::from_be_bytes(*port);
        let text = match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
            (Ok(v4), _) => format!("{}:{port}", Ipv4Addr::from(v4)),
            (_, Ok(v6)) => match Ipv6Addr::from(v6).to_canonical() {
                std::net::IpAddr::V4(v4) => format!("{v4}:{port}"),
                std::net::IpAddr::V6(v6) => format!("[{v6}]:{port}"),
            },
            _ => return None,
        };
        *kept = (raw.to_vec(), text);
    }
    Some(&kept.1)
}

impl Parsed<'_> {
    fn int(&self, kind: Int) -> i32 {
        match kind {
            Int::QueueId => self.queue_id,
            Int::ReconsumeTimes => self.reconsume_count,
            Int::SysFlag => self.sys_flag,
            Int::Flag => self.flag,
            Int::StoreSize => self.size,
            Int::BodyCrc => self.crc,
        }
    }

    fn long(&self, kind: Long) -> i64 {
        match kind {
            Long::QueueOffset => self.queue_offset,
            Long::PhysicalOffset => self.log_offset,
            Long::PreparedOffset => self.prepared_offset,
            Long::BornTime => self.born_time.saturating_mul(1000),
            Long::StoreTime => self.store_time.saturating_mul(1000),
        }
    }

    fn put_text(&self, kind: Text, texts: &mut Texts, hosts: &mut Hosts) -> Option<()> {
        match kind {
            Text::Topic => texts.put(self.topic),
            Text::BornHost => texts.put(host_text(&mut hosts.born, self.born_host)?),
            Text::StoreHost => texts.put(host_text(&mut hosts.store, self.store_host)?),
            Text::OffsetMsgId => self.put_offset_id(texts),
            Text::MsgId => match self.pairs.value_of("UNIQ_KEY") {
                Some(id) => texts.put(id),
                None => self.put_offset_id(texts),
            },
        }
    }

    fn put_offset_id(&self, texts: &mut Texts) -> Option<()> {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        for byte in self.store_host.iter().copied().chain(self.log_offset.to_be_bytes()) {
            texts.data.push(*DIGITS.get(usize::from(byte >> 4))?);
            texts.data.push(*DIGITS.get(usize::from(byte & 15))?);
        }
        texts.close()
    }
}

// -- records --------------------------------------------------------------------------------------

/// What is done with each record, and what is used again for each.
struct Task {
    columns: Vec<Column>,
    check_crc: bool,
    with_pairs: bool,
    hosts: Hosts,
    tail: Vec<u8>,
    places: Vec<[usize; 3]>,
}

/// The wanted columns of records: those that begin at `starts`, or all that follow each other.
pub fn decode<'py>(
    py: Python<'py>,
    view: View<'_>,
    starts: Option<&[u8]>,
    names: &[String],
    check_crc: bool,
) -> Option<(usize, Bound<'py, PyList>)> {
    let columns = names.iter().map(|name| Column::of(name)).collect::<Option<Vec<_>>>()?;
    let mut task = Task {
        with_pairs: columns.iter().any(Column::is_of_properties),
        columns,
        check_crc,
        hosts: Hosts::default(),
        tail: Vec::new(),
        places: Vec::new(),
    };
    let starts = match starts {
        Some(starts) => given_starts(starts)?,
        None => all_starts(view)?,
    };
    let bodies = if task.columns.iter().any(|column| matches!(column, Column::Body(..))) {
        let mut total = 0_usize;
        for start in &starts {
            total = total.checked_add(body_place(view, *start)?.1)?;
        }
        let mut done = None;
        let made = PyBytes::new_with(py, total, |target| {
            done = task.take_all(view, &starts, Some(target));
            Ok(())
        });
        done?;
        Some(made.ok()?)
    } else {
        task.take_all(view, &starts, None)?;
        None
    };
    let parts = PyList::empty(py);
    for column in &task.columns {
        parts.append(column.give(py, bodies.as_ref())?).ok()?;
    }
    Some((starts.len(), parts))
}

fn given_starts(starts: &[u8]) -> Option<Vec<usize>> {
    starts
        .chunks_exact(START_BYTES)
        .map(|start| usize::try_from(i64::from_ne_bytes(start.try_into().ok()?)).ok())
        .collect()
}

fn all_starts(view: View<'_>) -> Option<Vec<usize>> {
    let mut starts = Vec::new();
    let mut start = 0;
    while start < view.len() {
        starts.push(start);
        let size = usize::try_from(i32::from_be_bytes(view.array(start)?)).ok()?;
        if size < HEAD_WITHOUT_HOSTS {
            return None;
        }
        start = start.checked_add(size)?;
    }
    Some(starts)
}

/// Where in its record a body begins, and how long it says that it is.
fn body_place(view: View<'_>, start: usize) -> Option<(usize, usize)> {
    let sys_flag = i32::from_be_bytes(view.array(start.checked_add(SYS_FLAG_AT)?)?);
    let hosts = host_length(sys_flag, BORN_HOST_V6) + host_length(sys_flag, STORE_HOST_V6);
    let at = HEAD_WITHOUT_HOSTS + usize::try_from(hosts).ok()?;
    let length = i32::from_be_bytes(view.array(start.checked_add(at - 4)?)?);
    Some((at, usize::try_from(length).ok()?))
}

impl Task {
    fn take_all(
        &mut self,
        view: View<'_>,
        starts: &[usize],
        mut room: Option<&mut [u8]>,
    ) -> Option<()> {
        for start in starts {
            let taken = match room.as_deref_mut() {
                Some(rest) => self.take(view, *start, Some(rest))?,
                None => self.take(view, *start, None)?,
            };
            room = match room.take() {
                Some(rest) => Some(rest.get_mut(taken..)?),
                None => None,
            };
        }
        Some(())
    }

    /// Puts one record into all columns, its body to the beginning of `room`; answers the length of
    /// the body.
    fn take(&mut self, view: View<'_>, start: usize, room: Option<&mut [u8]>) -> Option<usize> {
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
        let prepared_offset = reader.i64()?;
        let body_length = usize::try_from(reader.i32()?).ok()?;

        let body_at = HEAD_WITHOUT_HOSTS + born_host.len() + store_host.len();
        let text_at = body_at.checked_add(body_length)?;
        let body = match room {
            Some(room) => {
                let room = room.get_mut(..body_length)?;
                record.part(body_at, text_at)?.copy_to(room);
                View::Bytes(room)
            }
            None => record.part(body_at, text_at)?,
        };
        if self.check_crc && body_length > 0 && u32::try_from(crc).ok()? != body_crc(body) {
            return None;
        }
        let text = record.part(text_at, record.len())?;
        self.tail.clear();
        self.tail.resize(text.len(), 0);
        text.copy_to(&mut self.tail);
        let mut reader = Reader(&self.tail);
        let topic_length = if magic == MAGIC_V2 { reader.i16()? } else { i16::from(reader.i8()?) };
        let topic = from_utf8(reader.take(i32::from(topic_length))?).ok()?;
        let properties_length = reader.i16()?;
        let properties = from_utf8(reader.take(i32::from(properties_length))?).ok()?;
        if !reader.0.is_empty() {
            return None;
        }
        self.places.clear();
        if self.with_pairs {
            find_pairs(properties, &mut self.places)?;
        }
        let parsed = Parsed {
            size,
            crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_time,
            store_time,
            reconsume_count,
            prepared_offset,
            born_host,
            store_host,
            topic,
            pairs: Pairs { text: properties, places: &self.places },
            body_length,
        };
        for column in &mut self.columns {
            column.take(&parsed, &mut self.hosts)?;
        }
        Some(body_length)
    }
}

fn host_length(sys_flag: i32, bit: i32) -> i32 {
    if sys_flag & bit == 0 { 8 } else { 20 }
}
