//! Records taken apart: the fixed parts as rows, the texts behind each other in memory of ours.
//!
//! Everything about a record is checked here; whoever makes columns of the rows (`columns.rs`) goes
//! through them once for each column, which is far quicker than through all columns for each row.
//! Neighbours tend to have the same hosts and the same names of properties, so those of the record
//! before are tried first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::crc::body_crc;
use crate::reader::Reader;
use crate::texts::{find, is_text};
use crate::view::View;

const MAGIC_V1: u32 = 0xDAA3_20A7;
const MAGIC_V2: u32 = 0xDAA3_20AB;
const BORN_HOST_V6: i32 = 1 << 4;
const STORE_HOST_V6: i32 = 1 << 5;
const HEAD_WITHOUT_HOSTS: usize = 72;
const HEAD_MAX: usize = HEAD_WITHOUT_HOSTS + 2 * 20;
const SYS_FLAG_AT: usize = 36;
const NAMES_MAX: usize = 64;
/// About what a record has behind its body; more is made room for as it comes.
const TEXT_BYTES: usize = 192;

/// One record, all of it checked; texts lie in `Gathered::text`.
pub struct Row {
    pub size: i32,
    pub crc: i32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sys_flag: i32,
    pub born_time: i64,
    pub store_time: i64,
    pub reconsume_count: i32,
    pub prepared_offset: i64,
    pub body_length: usize,
    /// Places in `Gathered::born_hosts` and `store_hosts`.
    pub born_host: usize,
    pub store_host: usize,
    pub topic: Range<usize>,
    /// Of `Gathered::pairs`.
    pub pairs: Range<usize>,
}

/// A property that has a name and a value.
pub struct Pair {
    pub name: Range<usize>,
    pub value: Range<usize>,
    wanted: Option<usize>,
}

/// The values of one wanted property, by row; rows without it are left out.
#[derive(Default)]
pub struct Found(pub Vec<(usize, Range<usize>)>);

/// What is to be read of records.
pub struct Wanted {
    pub check_crc: bool,
    /// Whether properties are read at all.
    pub with_pairs: bool,
    /// Whether all of them are wanted, which declines names that come twice: those keep their
    /// first place and their last value.
    pub all_pairs: bool,
    /// Properties that have a column of their own.
    pub names: Vec<Vec<u8>>,
}

/// An address: as text, and as the digits that begin an id.
pub struct Host {
    raw: Vec<u8>,
    pub text: String,
    pub digits: Vec<u8>,
}

pub struct Gathered {
    wanted: Wanted,
    pub rows: Vec<Row>,
    pub text: Vec<u8>,
    pub pairs: Vec<Pair>,
    pub found: Vec<Found>,
    pub born_hosts: Vec<Host>,
    pub store_hosts: Vec<Host>,
}

impl Gathered {
    pub fn new(wanted: Wanted, count: usize) -> Self {
        let text_bytes = count.saturating_mul(TEXT_BYTES);
        Self {
            found: wanted.names.iter().map(|_| Found::default()).collect(),
            wanted,
            rows: Vec::with_capacity(count),
            text: Vec::with_capacity(text_bytes),
            pairs: Vec::new(),
            born_hosts: Vec::new(),
            store_hosts: Vec::new(),
        }
    }

    pub fn part(&self, place: &Range<usize>) -> &[u8] {
        self.text.get(place.clone()).unwrap_or_default()
    }

    /// Takes the records that begin at `starts`, their bodies to `room` if there is any.
    pub fn take_all(
        &mut self,
        view: View<'_>,
        starts: &[usize],
        mut room: Option<&mut [u8]>,
    ) -> Option<()> {
        for start in starts {
            let body_length = self.take(view, *start, room.as_deref_mut())?;
            room = match room {
                Some(rest) => Some(rest.get_mut(body_length..)?),
                None => None,
            };
        }
        Some(())
    }

    /// Takes one record, its body to the beginning of `room`; answers the length of the body.
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
        let mut body = record.part(body_at, text_at)?;
        if let Some(room) = room {
            let room = room.get_mut(..body_length)?;
            body.copy_to(room);
            body = View::Bytes(room);
        }
        if self.wanted.check_crc && body_length > 0 && u32::try_from(crc).ok()? != body_crc(body) {
            return None;
        }
        let (topic, properties) =
            self.take_text(record.part(text_at, record.len())?, magic == MAGIC_V2)?;
        let pairs = self.take_pairs(properties)?;
        self.rows.push(Row {
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
            body_length,
            born_host: host_place(&mut self.born_hosts, born_host)?,
            store_host: host_place(&mut self.store_hosts, store_host)?,
            topic,
            pairs,
        });
        Some(body_length)
    }

    /// Copies what lies behind a body; answers where topic and properties are.
    fn take_text(&mut self, tail: View<'_>, is_v2: bool) -> Option<(Range<usize>, Range<usize>)> {
        let first = self.text.len();
        self.text.resize(first + tail.len(), 0);
        tail.copy_to(self.text.get_mut(first..)?);
        let mut reader = Reader(self.text.get(first..)?);
        let topic_length = if is_v2 { reader.i16()? } else { i16::from(reader.i8()?) };
        let topic = reader.take(i32::from(topic_length))?;
        let properties_length = reader.i16()?;
        let properties = reader.take(i32::from(properties_length))?;
        if !reader.0.is_empty() || !is_text(topic) || !is_text(properties) {
            return None;
        }
        let stop = self.text.len();
        let properties_at = stop - properties.len();
        let topic_stop = properties_at - 2;
        Some((topic_stop - topic.len()..topic_stop, properties_at..stop))
    }

    // -- properties ---------------------------------------------------------------------------

    /// Finds the properties of a record; declines more than anybody sends.
    fn take_pairs(&mut self, place: Range<usize>) -> Option<Range<usize>> {
        let first = self.pairs.len();
        if !self.wanted.with_pairs {
            return Some(first..first);
        }
        let row = self.rows.len();
        let before = self.rows.last().map_or(0..0, |row| row.pairs.clone());
        let mut like_before = true;
        let mut start = place.start;
        while start < place.end {
            let known = self.pairs.get(before.start + self.pairs.len() - first);
            let known = known.filter(|_| before.start + self.pairs.len() - first < before.end);
            let text = self.text.get(start..place.end)?;
            let (middle, wanted) = match known.filter(|known| begins_with(self, text, known)) {
                Some(known) => (known.name.len(), known.wanted),
                None => {
                    like_before = false;
                    // The separator must lie before the end of this property.
                    let part = text.get(..find::<2>(text))?;
                    let name = part.get(..find::<1>(part))?;
                    (name.len(), self.wanted.names.iter().position(|each| each == name))
                }
            };
            let value = text.get(middle..)?;
            let length = find::<2>(value);
            let stop = start + middle + length;
            if middle > 0 && length > 1 {
                let value = start + middle + 1..stop;
                if let Some(index) = wanted {
                    self.found.get_mut(index)?.put(row, value.clone());
                }
                self.pairs.push(Pair { name: start..start + middle, value, wanted });
            }
            start = stop + 1;
        }
        let pairs = first..self.pairs.len();
        if pairs.len() > NAMES_MAX {
            return None;
        }
        // Names as before, in the same order, have been looked at.
        if self.wanted.all_pairs && !like_before && self.has_repeated(&pairs)? {
            return None;
        }
        Some(pairs)
    }

    fn has_repeated(&self, pairs: &Range<usize>) -> Option<bool> {
        let pairs = self.pairs.get(pairs.clone())?;
        let is_same = |one: &Pair, other: &Pair| {
            one.name.len() == other.name.len() && self.part(&one.name) == self.part(&other.name)
        };
        let known = |count, pair| pairs.iter().take(count).any(|each| is_same(each, pair));
        Some(pairs.iter().enumerate().any(|(count, pair)| known(count, pair)))
    }
}

/// Whether a text begins with the name of a known property and the separator behind it.
#[inline]
fn begins_with(gathered: &Gathered, text: &[u8], known: &Pair) -> bool {
    text.get(known.name.len()) == Some(&1)
        && text.get(..known.name.len()) == gathered.text.get(known.name.clone())
}

impl Found {
    /// Of a repeated name the last one counts.
    fn put(&mut self, row: usize, value: Range<usize>) {
        match self.0.last_mut() {
            Some(last) if last.0 == row => last.1 = value,
            _ => self.0.push((row, value)),
        }
    }
}

// -- hosts ----------------------------------------------------------------------------------------

/// The place of a host in the list, which it is put into unless it is the last one there.
fn host_place(hosts: &mut Vec<Host>, raw: &[u8]) -> Option<usize> {
    if hosts.last().is_none_or(|last| last.raw != raw) {
        hosts.push(Host { raw: raw.to_vec(), text: host_text(raw)?, digits: hex(raw) });
    }
    hosts.len().checked_sub(1)
}

fn host_text(raw: &[u8]) -> Option<String> {
    let (address, port) = raw.split_last_chunk()?;
    let port = i32::from_be_bytes(*port);
    match (<[u8; 4]>::try_from(address), <[u8; 16]>::try_from(address)) {
        (Ok(v4), _) => Some(format!("{}:{port}", Ipv4Addr::from(v4))),
        (_, Ok(v6)) => Some(match Ipv6Addr::from(v6).to_canonical() {
            IpAddr::V4(v4) => format!("{v4}:{port}"),
            IpAddr::V6(v6) => format!("[{v6}]:{port}"),
        }),
        _ => None,
    }
}

fn hex(raw: &[u8]) -> Vec<u8> {
    raw.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The sixteen digits of a number.
pub fn hex_of(number: i64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    digits
}

#[inline]
fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'A' - 10 + value }
}

// -- places ---------------------------------------------------------------------------------------

/// Where the records begin that follow each other in a buffer.
pub fn all_starts(view: View<'_>) -> Option<Vec<usize>> {
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

/// How long the bodies of records say that they are, together.
pub fn body_bytes(view: View<'_>, starts: &[usize]) -> Option<usize> {
    let mut total = 0_usize;
    for start in starts {
        let sys_flag = i32::from_be_bytes(view.array(start.checked_add(SYS_FLAG_AT)?)?);
        let hosts = host_length(sys_flag, BORN_HOST_V6) + host_length(sys_flag, STORE_HOST_V6);
        let at = HEAD_WITHOUT_HOSTS - 4 + usize::try_from(hosts).ok()?;
        let length = i32::from_be_bytes(view.array(start.checked_add(at)?)?);
        total = total.checked_add(usize::try_from(length).ok()?)?;
    }
    Some(total)
}

fn host_length(sys_flag: i32, bit: i32) -> i32 {
    if sys_flag & bit == 0 { 8 } else { 20 }
}
