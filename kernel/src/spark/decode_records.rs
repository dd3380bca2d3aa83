//! Parses records into rows: the fixed fields in a struct, the texts in one buffer.
//!
//! Every check of a record happens here. `decode_columns.rs` then goes through the rows once per column,
//! which is far faster than through all columns per row. Neighbouring records mostly have the same
//! hosts and property names, so those of the record before are compared first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use crate::codecs::record_layout::{
    HEAD_MAX, HEAD_WITHOUT_HOSTS, RecordHead, body_length_at, split_tail,
};
use crate::codecs::text::{digit, find, is_utf8};
use crate::view::View;

const NAMES_MAX: usize = 64;
/// Typical length of a record's tail; the buffer grows if they are longer.
const TEXT_BYTES: usize = 192;

/// One record that passed all checks; its texts are ranges of `Parsed::text`.
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
    pub prepared_log_offset: i64,
    pub body_length: usize,
    /// Indexes into `Parsed::born_hosts` and `store_hosts`.
    pub born_host: usize,
    pub store_host: usize,
    pub topic: Range<usize>,
    /// Range of `Parsed::pairs`.
    pub pairs: Range<usize>,
}

/// A property that has a name and a value.
pub struct Pair {
    pub name: Range<usize>,
    pub value: Range<usize>,
    wanted: Option<usize>,
}

/// The values of one wanted property, by row; rows without it are left out.
type Values = Vec<(usize, Range<usize>)>;

/// The columns and checks that the caller wants.
pub struct Wanted {
    pub check_crc: bool,
    /// Whether properties are read at all.
    pub with_pairs: bool,
    /// Whether all of them are wanted. Repeated names are declined then: in Python they have the
    /// position of the first and the value of the last.
    pub all_pairs: bool,
    /// Properties that have a column of their own.
    pub names: Vec<Vec<u8>>,
}

/// An address: as text, and as the hexadecimal digits that begin a message id.
pub struct Host {
    raw: Vec<u8>,
    pub text: String,
    pub digits: Vec<u8>,
}

pub struct Parsed {
    wanted: Wanted,
    pub rows: Vec<Row>,
    pub text: Vec<u8>,
    pub pairs: Vec<Pair>,
    pub values: Vec<Values>,
    pub born_hosts: Vec<Host>,
    pub store_hosts: Vec<Host>,
}

impl Parsed {
    pub fn new(wanted: Wanted, count: usize) -> Self {
        let text_bytes = count.saturating_mul(TEXT_BYTES);
        Self {
            values: vec![Values::new(); wanted.names.len()],
            wanted,
            rows: Vec::with_capacity(count),
            text: Vec::with_capacity(text_bytes),
            pairs: Vec::new(),
            born_hosts: Vec::new(),
            store_hosts: Vec::new(),
        }
    }

    pub fn part(&self, range: &Range<usize>) -> &[u8] {
        self.text.get(range.clone()).unwrap_or_default()
    }

    /// Parses the records at `starts`; copies their bodies to `bodies`, one after the other.
    pub fn parse_all(
        &mut self,
        view: View<'_>,
        starts: &[usize],
        mut bodies: Option<&mut [u8]>,
    ) -> Option<()> {
        for start in starts {
            let body_length = self.parse(view, *start, bodies.as_deref_mut())?;
            bodies = match bodies {
                Some(rest) => Some(rest.get_mut(body_length..)?),
                None => None,
            };
        }
        Some(())
    }

    /// Parses one record, copies its body to the start of `target`, and returns the body's length.
    fn parse(&mut self, view: View<'_>, start: usize, target: Option<&mut [u8]>) -> Option<usize> {
        let mut buffer = [0; HEAD_MAX];
        let head = RecordHead::read(view, start, &mut buffer)?;
        let (body_at, tail_at) = head.body_range()?;
        let mut body = head.record.part(body_at, tail_at)?;
        if let Some(target) = target {
            let target = target.get_mut(..head.body_length)?;
            body.copy_to(target);
            body = View::Bytes(target);
        }
        if self.wanted.check_crc && !head.has_crc_of(body) {
            return None;
        }
        let tail = head.record.part(tail_at, head.record.len())?;
        let (topic, properties) = self.parse_tail(tail, head.is_v2)?;
        let pairs = self.parse_pairs(properties)?;
        self.rows.push(Row {
            size: head.size,
            crc: head.crc,
            queue_id: head.queue_id,
            flag: head.flag,
            queue_offset: head.queue_offset,
            log_offset: head.log_offset,
            sys_flag: head.sys_flag,
            born_time: head.born_time,
            store_time: head.store_time,
            reconsume_count: head.reconsume_count,
            prepared_log_offset: head.prepared_log_offset,
            body_length: head.body_length,
            born_host: host_index(&mut self.born_hosts, head.born_host)?,
            store_host: host_index(&mut self.store_hosts, head.store_host)?,
            topic,
            pairs,
        });
        Some(head.body_length)
    }

    /// Copies the tail of a record; returns the ranges of topic and properties in `text`.
    fn parse_tail(&mut self, tail: View<'_>, is_v2: bool) -> Option<(Range<usize>, Range<usize>)> {
        let first = self.text.len();
        self.text.resize(first + tail.len(), 0);
        tail.copy_to(self.text.get_mut(first..)?);
        let (topic, properties) = split_tail(self.text.get(first..)?, is_v2)?;
        if !is_utf8(topic) || !is_utf8(properties) {
            return None;
        }
        let stop = self.text.len();
        let properties_at = stop - properties.len();
        let topic_stop = properties_at - 2;
        Some((topic_stop - topic.len()..topic_stop, properties_at..stop))
    }

    // -- properties ---------------------------------------------------------------------------

    /// Parses the properties of a record; None if there are more than any client sends.
    fn parse_pairs(&mut self, range: Range<usize>) -> Option<Range<usize>> {
        let first = self.pairs.len();
        if !self.wanted.with_pairs {
            return Some(first..first);
        }
        let row = self.rows.len();
        let before = self.rows.last().map_or(0..0, |row| row.pairs.clone());
        let mut like_before = true;
        let mut start = range.start;
        while start < range.end {
            let known = self.pairs.get(before.start + self.pairs.len() - first);
            let known = known.filter(|_| before.start + self.pairs.len() - first < before.end);
            let text = self.text.get(start..range.end)?;
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
                    put(self.values.get_mut(index)?, row, value.clone());
                }
                self.pairs.push(Pair { name: start..start + middle, value, wanted });
            }
            start = stop + 1;
        }
        let pairs = first..self.pairs.len();
        if pairs.len() > NAMES_MAX {
            return None;
        }
        // The same names in the same order as before were compared then.
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
fn begins_with(parsed: &Parsed, text: &[u8], known: &Pair) -> bool {
    text.get(known.name.len()) == Some(&1)
        && text.get(..known.name.len()) == parsed.text.get(known.name.clone())
}

/// Adds a value; of a repeated name the last one counts.
fn put(values: &mut Values, row: usize, value: Range<usize>) {
    match values.last_mut() {
        Some(last) if last.0 == row => last.1 = value,
        _ => values.push((row, value)),
    }
}

// -- hosts ----------------------------------------------------------------------------------------

/// Index of a host in the list; appended unless it is the last one.
fn host_index(hosts: &mut Vec<Host>, raw: &[u8]) -> Option<usize> {
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

// -- positions ------------------------------------------------------------------------------------

/// Start positions of the consecutive records in a buffer.
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

/// The sum of the body lengths in the heads of records.
pub fn body_bytes(view: View<'_>, starts: &[usize]) -> Option<usize> {
    starts.iter().try_fold(0_usize, |total, start| total.checked_add(body_length_at(view, *start)?))
}
