//! Records as columns: the buffers of Arrow arrays, by the contract of `spark/columns/without_kernel.py`.
//!
//! Numbers are in the machine's byte order, as Arrow requires. Texts are an array of 32-bit offsets
//! and the concatenated bytes, with a validity bit map where values may be missing. Records are
//! parsed first (`decode_records.rs`); then each column is written in one go, directly into the object that
//! Python gets. Bodies are copied there while parsing, and their checksums computed on the copy.

use std::iter::repeat_n;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::decode_records::{Host, Parsed, Row, Wanted, all_starts, body_bytes};
use crate::codecs::text::hex_of;
use crate::view::View;

const START_BYTES: usize = 8;

/// A column; numbers are indexes into `Parsed::values`.
enum Column {
    Int(fn(&Row) -> i32),
    Long(fn(&Row) -> i64),
    Topic,
    MsgId(usize),
    OffsetMsgId,
    BornHost,
    StoreHost,
    Property(usize),
    Keys(usize),
    Properties,
    Body,
}

/// The wanted columns of the records at `starts`, or of all consecutive records.
pub fn decode<'py>(
    py: Python<'py>,
    view: View<'_>,
    starts: Option<&[u8]>,
    names: &[String],
    check_crc: bool,
) -> Option<(usize, Bound<'py, PyList>)> {
    let mut wanted = Wanted { check_crc, with_pairs: false, all_pairs: false, names: Vec::new() };
    let columns =
        names.iter().map(|name| Column::of(name, &mut wanted)).collect::<Option<Vec<_>>>()?;
    let starts = match starts {
        Some(starts) => given_starts(starts)?,
        None => all_starts(view)?,
    };
    let mut parsed = Parsed::new(wanted, starts.len());
    let bodies = if columns.iter().any(|column| matches!(column, Column::Body)) {
        let total = body_bytes(view, &starts)?;
        Some(filled(py, total, |target| parsed.parse_all(view, &starts, Some(target)))?)
    } else {
        parsed.parse_all(view, &starts, None)?;
        None
    };
    let parts = PyList::empty(py);
    for column in columns {
        parts.append(parsed.column(py, column, bodies.as_ref())?).ok()?;
    }
    Some((starts.len(), parts))
}

fn given_starts(starts: &[u8]) -> Option<Vec<usize>> {
    starts
        .chunks_exact(START_BYTES)
        .map(|start| usize::try_from(i64::from_ne_bytes(start.try_into().ok()?)).ok())
        .collect()
}

impl Column {
    /// The column of that name; adds what must be parsed for it to `wanted`.
    fn of(name: &str, wanted: &mut Wanted) -> Option<Self> {
        Some(match name {
            "queueId" => Self::Int(|row| row.queue_id),
            "reconsumeTimes" => Self::Int(|row| row.reconsume_count),
            "sysFlag" => Self::Int(|row| row.sys_flag),
            "flag" => Self::Int(|row| row.flag),
            "storeSize" => Self::Int(|row| row.size),
            "bodyCrc" => Self::Int(|row| row.crc),
            "queueOffset" => Self::Long(|row| row.queue_offset),
            "physicalOffset" => Self::Long(|row| row.log_offset),
            "preparedOffset" => Self::Long(|row| row.prepared_log_offset),
            "bornTimestamp" => Self::Long(|row| row.born_time.saturating_mul(1000)),
            "storeTimestamp" => Self::Long(|row| row.store_time.saturating_mul(1000)),
            "topic" => Self::Topic,
            "msgId" => Self::MsgId(wanted.property("UNIQ_KEY")),
            "offsetMsgId" => Self::OffsetMsgId,
            "bornHost" => Self::BornHost,
            "storeHost" => Self::StoreHost,
            "keys" => Self::Keys(wanted.property("KEYS")),
            "properties" => {
                (wanted.with_pairs, wanted.all_pairs) = (true, true);
                Self::Properties
            }
            "body" => Self::Body,
            _ => Self::Property(wanted.property(name.strip_prefix("property:")?)),
        })
    }
}

impl Wanted {
    /// Index of a property among the wanted ones.
    fn property(&mut self, name: &str) -> usize {
        self.with_pairs = true;
        let known = self.names.iter().position(|each| each == name.as_bytes());
        known.unwrap_or_else(|| {
            self.names.push(name.as_bytes().to_vec());
            self.names.len() - 1
        })
    }
}

// -- columns --------------------------------------------------------------------------------------

impl Parsed {
    fn column<'py>(
        &self,
        py: Python<'py>,
        column: Column,
        bodies: Option<&Bound<'py, PyBytes>>,
    ) -> Option<Bound<'py, PyAny>> {
        let count = self.rows.len();
        let tuple = match column {
            Column::Int(number) => return self.numbers(py, |row| number(row).to_ne_bytes()),
            Column::Long(number) => return self.numbers(py, |row| number(row).to_ne_bytes()),
            Column::Topic => {
                let texts = self.rows.iter().map(|row| self.part(&row.topic));
                never_missing(py, texts, count)?
            }
            Column::BornHost => self.hosts(py, &self.born_hosts, |row| row.born_host)?,
            Column::StoreHost => self.hosts(py, &self.store_hosts, |row| row.store_host)?,
            Column::OffsetMsgId => {
                let ids = self.offset_ids()?;
                never_missing(py, ids.iter(), count)?
            }
            Column::MsgId(index) => self.message_ids(py, index)?,
            Column::Property(index) => self.property(py, index)?,
            Column::Keys(index) => self.keys(py, index)?,
            Column::Properties => self.properties(py)?,
            Column::Body => {
                let lengths = self.rows.iter().map(|row| row.body_length);
                let ends = ends(py, lengths, count)?;
                (py.None(), ends, bodies?).into_pyobject(py).ok()?.into_any()
            }
        };
        Some(tuple)
    }

    fn numbers<'py, const N: usize>(
        &self,
        py: Python<'py>,
        number: impl Fn(&Row) -> [u8; N],
    ) -> Option<Bound<'py, PyAny>> {
        let bytes = filled(py, self.rows.len().checked_mul(N)?, |target| {
            for (slot, row) in target.chunks_exact_mut(N).zip(&self.rows) {
                slot.copy_from_slice(&number(row));
            }
            Some(())
        })?;
        Some(bytes.into_any())
    }

    fn hosts<'py>(
        &self,
        py: Python<'py>,
        hosts: &[Host],
        index: fn(&Row) -> usize,
    ) -> Option<Bound<'py, PyAny>> {
        let found = self.rows.iter().map(|row| hosts.get(index(row)));
        let texts = found.map(|host| host.map_or("", |host| &host.text).as_bytes());
        never_missing(py, texts, self.rows.len())
    }

    /// The values of a property, with a bit map if any is missing.
    fn property<'py>(&self, py: Python<'py>, index: usize) -> Option<Bound<'py, PyAny>> {
        let (found, count) = (self.values.get(index)?, self.rows.len());
        let bits = if found.len() == count {
            None
        } else {
            Some(filled(py, count.div_ceil(8), |target| {
                for (row, _) in found {
                    *target.get_mut(row / 8)? |= 1 << (row % 8);
                }
                Some(())
            })?)
        };
        let (ends, data) = if found.is_empty() {
            (ends(py, repeat_n(0, count), count)?, PyBytes::new(py, b""))
        } else {
            texts(py, self.values(index)?, count)?
        };
        Some((bits, ends, data).into_pyobject(py).ok()?.into_any())
    }

    /// The value of a property for each row, empty where it is missing.
    fn values(&self, index: usize) -> Option<impl Iterator<Item = &[u8]> + Clone> {
        let mut found = self.values.get(index)?.iter().peekable();
        let rows = 0..self.rows.len();
        Some(rows.map(move |row| {
            found.next_if(|(of, _)| *of == row).map_or(&[][..], |(_, value)| self.part(value))
        }))
    }

    fn message_ids<'py>(&self, py: Python<'py>, index: usize) -> Option<Bound<'py, PyAny>> {
        let count = self.rows.len();
        if self.values.get(index)?.len() == count {
            return never_missing(py, self.values(index)?, count);
        }
        let others = self.offset_ids()?;
        let ids = self.values(index)?.zip(others.iter());
        let ids = ids.map(|(id, other)| if id.is_empty() { other } else { id });
        never_missing(py, ids, count)
    }

    fn offset_ids(&self) -> Option<Ids> {
        let mut ids = Ids { data: Vec::with_capacity(self.rows.len() * 32), stops: Vec::new() };
        for row in &self.rows {
            ids.data.extend_from_slice(&self.store_hosts.get(row.store_host)?.digits);
            ids.data.extend_from_slice(&hex_of(row.log_offset));
            ids.stops.push(ids.data.len());
        }
        Some(ids)
    }

    fn keys<'py>(&self, py: Python<'py>, index: usize) -> Option<Bound<'py, PyAny>> {
        let keys = self.values(index)?.map(keys_of);
        let counts: Vec<usize> = keys.clone().map(Iterator::count).collect();
        let all = counts.iter().sum();
        let (key_ends, data) = texts(py, keys.flatten(), all)?;
        let ends = ends(py, counts.into_iter(), self.rows.len())?;
        Some((ends, key_ends, data).into_pyobject(py).ok()?.into_any())
    }

    fn properties<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let counts = self.rows.iter().map(|row| row.pairs.len());
        let ends = ends(py, counts, self.rows.len())?;
        let names = self.pairs.iter().map(|pair| self.part(&pair.name));
        let values = self.pairs.iter().map(|pair| self.part(&pair.value));
        let (name_ends, names) = texts(py, names, self.pairs.len())?;
        let (value_ends, values) = texts(py, values, self.pairs.len())?;
        Some((ends, name_ends, names, value_ends, values).into_pyobject(py).ok()?.into_any())
    }
}

fn keys_of(text: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    text.split(|byte| *byte == b' ').filter(|key| !key.is_empty())
}

/// Offset message ids, concatenated.
struct Ids {
    data: Vec<u8>,
    stops: Vec<usize>,
}

impl Ids {
    fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let firsts = repeat_n(0, 1).chain(self.stops.iter().copied());
        let ranges = firsts.zip(&self.stops);
        ranges.map(|(first, stop)| self.data.get(first..*stop).unwrap_or_default())
    }
}

// -- buffers --------------------------------------------------------------------------------------

/// `length` bytes, written by `write`; None if that declines.
fn filled<'py>(
    py: Python<'py>,
    length: usize,
    write: impl FnOnce(&mut [u8]) -> Option<()>,
) -> Option<Bound<'py, PyBytes>> {
    let mut done = None;
    let made = PyBytes::new_with(py, length, |target| {
        done = write(target);
        Ok(())
    });
    done?;
    made.ok()
}

/// End positions of concatenated values, with 0 before the first.
fn ends<'py>(
    py: Python<'py>,
    mut lengths: impl Iterator<Item = usize>,
    count: usize,
) -> Option<Bound<'py, PyBytes>> {
    filled(py, count.checked_add(1)?.checked_mul(4)?, |target| {
        let mut end = 0_usize;
        for slot in target.chunks_exact_mut(4).skip(1) {
            end = end.checked_add(lengths.next()?)?;
            slot.copy_from_slice(&i32::try_from(end).ok()?.to_ne_bytes());
        }
        Some(())
    })
}

/// Texts: their end positions, and their bytes.
fn texts<'a, 'py>(
    py: Python<'py>,
    texts: impl Iterator<Item = &'a [u8]> + Clone,
    count: usize,
) -> Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let mut total = 0;
    let lengths = texts.clone().map(<[u8]>::len);
    let ends = ends(py, lengths.inspect(|length| total += length), count)?;
    let data = filled(py, total, |mut target| {
        for text in texts {
            let (slot, rest) = target.split_at_mut_checked(text.len())?;
            slot.copy_from_slice(text);
            target = rest;
        }
        Some(())
    })?;
    Some((ends, data))
}

fn never_missing<'a, 'py>(
    py: Python<'py>,
    all: impl Iterator<Item = &'a [u8]> + Clone,
    count: usize,
) -> Option<Bound<'py, PyAny>> {
    let (ends, data) = texts(py, all, count)?;
    Some((py.None(), ends, data).into_pyobject(py).ok()?.into_any())
}
