//! Rows of Arrow columns as the items of a batch (`protocol/records/batch.py`), for the sink of Spark.
//!
//! The text of properties is that of `client/sending/send_request.py`: the row's own properties, TAGS, KEYS, the
//! sharding key, WAIT and the unique id; a row without any of the first begins with its id. None
//! (declined) for values that Python would refuse or that need its special cases.

use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::view::{View, with_view};

const ID_BYTES: usize = 32;
const NUMBER_BYTES: usize = 4;
const HEAD_BYTES: usize = 20;
const NAME_END: u8 = 1;
const PAIR_END: u8 = 2;

/// Texts of an Arrow array: validity bits, end positions, bytes.
#[derive(Clone, Copy)]
struct Texts<'a> {
    bits: Option<View<'a>>,
    first: usize,
    ends: View<'a>,
    data: View<'a>,
}

/// Lists of an Arrow array: validity bits, and end positions in the arrays inside.
#[derive(Clone, Copy)]
struct Lists<'a> {
    bits: Option<View<'a>>,
    first: usize,
    ends: View<'a>,
}

fn is_valid(bits: Option<View<'_>>, at: usize) -> Option<bool> {
    match bits {
        None => Some(true),
        Some(bits) => Some(bits.array::<1>(at / 8)?[0] >> (at % 8) & 1 == 1),
    }
}

/// Two neighbours in an array of 32-bit numbers.
fn span(ends: View<'_>, at: usize) -> Option<(usize, usize)> {
    let start_at = at.checked_mul(NUMBER_BYTES)?;
    let start = i32::from_ne_bytes(ends.array(start_at)?);
    let stop = i32::from_ne_bytes(ends.array(start_at.checked_add(NUMBER_BYTES)?)?);
    Some((usize::try_from(start).ok()?, usize::try_from(stop).ok()?))
}

impl<'a> Texts<'a> {
    fn get(&self, row: usize) -> Option<Option<View<'a>>> {
        let at = self.first.checked_add(row)?;
        if !is_valid(self.bits, at)? {
            return Some(None);
        }
        let (start, stop) = span(self.ends, at)?;
        self.data.part(start, stop).map(Some)
    }

    /// None as well where it is empty.
    fn get_filled(&self, row: usize) -> Option<Option<View<'a>>> {
        Some(self.get(row)?.filter(|text| text.len() > 0))
    }
}

impl Lists<'_> {
    /// Where the items of a row begin and end; nothing lies there if it has none.
    fn get(&self, row: usize) -> Option<(usize, usize)> {
        let at = self.first.checked_add(row)?;
        if is_valid(self.bits, at)? { span(self.ends, at) } else { Some((0, 0)) }
    }
}

/// The columns of a record batch that become parts of messages.
struct Columns<'a> {
    body: Texts<'a>,
    tags: Option<Texts<'a>>,
    key: Option<Texts<'a>>,
    keys: Option<(Lists<'a>, Texts<'a>)>,
    properties: Option<(Lists<'a>, Texts<'a>, Texts<'a>)>,
    shard: Option<Texts<'a>>,
}

// -- writing --------------------------------------------------------------------------------------

fn put(target: &mut Vec<u8>, part: View<'_>) -> Option<()> {
    let start = target.len();
    target.resize(start.checked_add(part.len())?, 0);
    part.copy_to(target.get_mut(start..)?);
    Some(())
}

/// A text that has to come back as it is: without the two separators.
fn put_text(target: &mut Vec<u8>, part: View<'_>) -> Option<()> {
    let start = target.len();
    put(target, part)?;
    let clean = target.get(start..)?.iter().all(|byte| *byte != NAME_END && *byte != PAIR_END);
    clean.then_some(())
}

fn put_pair(target: &mut Vec<u8>, name: &[u8], value: View<'_>) -> Option<()> {
    target.extend_from_slice(name);
    target.push(NAME_END);
    put_text(target, value)?;
    target.push(PAIR_END);
    Some(())
}

/// Declines repeated names: a map of Python has one of each.
fn put_properties(
    target: &mut Vec<u8>,
    names: &Texts<'_>,
    values: &Texts<'_>,
    (start, stop): (usize, usize),
) -> Option<()> {
    for at in start..stop {
        let from = target.len();
        put_text(target, names.get_filled(at)??)?;
        let name = target.get(from..)?;
        for before in start..at {
            if names.get(before)??.bytes().as_ref() == name {
                return None;
            }
        }
        target.push(NAME_END);
        put_text(target, values.get(at)??)?;
        target.push(PAIR_END);
    }
    Some(())
}

fn put_keys(target: &mut Vec<u8>, keys: &Texts<'_>, (start, stop): (usize, usize)) -> Option<()> {
    let mut is_first = true;
    for at in start..stop {
        if let Some(key) = keys.get_filled(at)? {
            target.extend_from_slice(if is_first { b"KEYS\x01" } else { b" " });
            put_text(target, key)?;
            is_first = false;
        }
    }
    if !is_first {
        target.push(PAIR_END);
    }
    Some(())
}

impl Columns<'_> {
    fn put_text_of(&self, target: &mut Vec<u8>, row: usize, id: View<'_>) -> Option<()> {
        let start = target.len();
        if let Some((lists, names, values)) = &self.properties {
            put_properties(target, names, values, lists.get(row)?)?;
        }
        for (name, texts) in [(b"TAGS", &self.tags), (b"KEYS", &self.key)] {
            if let Some(text) = texts.map_or(Some(None), |texts| texts.get_filled(row))? {
                put_pair(target, name, text)?;
            }
        }
        if let Some((lists, keys)) = &self.keys {
            put_keys(target, keys, lists.get(row)?)?;
        }
        if let Some(shard) = self.shard.as_ref().map_or(Some(None), |shard| shard.get(row))? {
            put_pair(target, b"__SHARDINGKEY", shard)?;
        }
        let is_plain = target.len() == start;
        if is_plain {
            put_pair(target, b"UNIQ_KEY", id)?;
        }
        target.extend_from_slice(b"WAIT\x01true\x02");
        if !is_plain {
            put_pair(target, b"UNIQ_KEY", id)?;
        }
        from_utf8(target.get(start..)?).ok().map(|_| ())
    }

    fn put_item(&self, target: &mut Vec<u8>, row: usize, id: View<'_>) -> Option<()> {
        let start = target.len();
        let body = self.body.get_filled(row)??;
        target.resize(start.checked_add(HEAD_BYTES)?, 0);
        put(target, body)?;
        let text_at = target.len();
        target.extend([0; 2]);
        self.put_text_of(target, row, id)?;
        let length = i16::try_from(target.len() - text_at - 2).ok()?;
        target.get_mut(text_at..text_at + 2)?.copy_from_slice(&length.to_be_bytes());
        let size = i32::try_from(target.len() - start).ok()?;
        target.get_mut(start..start + 4)?.copy_from_slice(&size.to_be_bytes());
        let length = i32::try_from(body.len()).ok()?;
        target.get_mut(start + 16..start + HEAD_BYTES)?.copy_from_slice(&length.to_be_bytes());
        Some(())
    }
}

/// The items of some rows, concatenated, and their end positions.
type Items<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn encode_with<'py>(
    py: Python<'py>,
    columns: &Columns<'_>,
    rows: &[u8],
    ids: &[u8],
) -> Option<Items<'py>> {
    let count = rows.len() / NUMBER_BYTES;
    if ids.len() != count.checked_mul(ID_BYTES)? {
        return None;
    }
    let mut data = Vec::new();
    let mut ends = Vec::with_capacity(rows.len());
    for (row, id) in rows.chunks_exact(NUMBER_BYTES).zip(ids.chunks_exact(ID_BYTES)) {
        let row = usize::try_from(i32::from_ne_bytes(row.try_into().ok()?)).ok()?;
        columns.put_item(&mut data, row, View::Bytes(id))?;
        ends.extend(i32::try_from(data.len()).ok()?.to_ne_bytes());
    }
    Some((PyBytes::new(py, &data), PyBytes::new(py, &ends)))
}

// -- columns from Python --------------------------------------------------------------------------

type Part<'a, 'py> = &'a Bound<'py, PyAny>;

/// (bits or None, first, ends, data)
fn with_texts<T>(
    part: Part<'_, '_>,
    work: impl FnOnce(Option<Texts<'_>>) -> Option<T>,
) -> Option<T> {
    if part.is_none() {
        return work(None);
    }
    let (bits, first, ends, data) =
        part.extract::<(Bound<'_, PyAny>, usize, Bound<'_, PyAny>, Bound<'_, PyAny>)>().ok()?;
    with_bits(&bits, |bits| {
        with_view(&ends, |ends| {
            with_view(&data, |data| work(Some(Texts { bits, first, ends, data })))
        })
    })
}

fn with_bits<T>(part: Part<'_, '_>, work: impl FnOnce(Option<View<'_>>) -> Option<T>) -> Option<T> {
    if part.is_none() { work(None) } else { with_view(part, |bits| work(Some(bits))) }
}

/// (bits or None, first, ends, what is inside ...)
fn with_lists<T>(
    part: &Bound<'_, PyTuple>,
    work: impl FnOnce(Lists<'_>) -> Option<T>,
) -> Option<T> {
    let first = part.get_item(1).ok()?.extract().ok()?;
    with_bits(&part.get_item(0).ok()?, |bits| {
        with_view(&part.get_item(2).ok()?, |ends| work(Lists { bits, first, ends }))
    })
}

fn with_keys<T>(
    part: Part<'_, '_>,
    work: impl FnOnce(Option<(Lists<'_>, Texts<'_>)>) -> Option<T>,
) -> Option<T> {
    if part.is_none() {
        return work(None);
    }
    let part = part.cast::<PyTuple>().ok()?;
    with_lists(part, |lists| with_texts(&part.get_item(3).ok()?, |keys| work(Some((lists, keys?)))))
}

fn with_map<T>(
    part: Part<'_, '_>,
    work: impl FnOnce(Option<(Lists<'_>, Texts<'_>, Texts<'_>)>) -> Option<T>,
) -> Option<T> {
    if part.is_none() {
        return work(None);
    }
    let part = part.cast::<PyTuple>().ok()?;
    with_lists(part, |lists| {
        with_texts(&part.get_item(3).ok()?, |names| {
            with_texts(&part.get_item(4).ok()?, |values| work(Some((lists, names?, values?))))
        })
    })
}

/// The items of some rows. `parts` are body, tags, one key, keys, properties and sharding key, each
/// None if there is no such column.
pub fn encode<'py>(parts: &Bound<'py, PyTuple>, rows: &[u8], ids: &[u8]) -> Option<Items<'py>> {
    let part = |at: usize| parts.get_item(at).ok();
    with_texts(&part(0)?, |body| {
        with_texts(&part(1)?, |tags| {
            with_texts(&part(2)?, |key| {
                with_keys(&part(3)?, |keys| {
                    with_map(&part(4)?, |properties| {
                        with_texts(&part(5)?, |shard| {
                            let body = body?;
                            let columns = Columns { body, tags, key, keys, properties, shard };
                            encode_with(parts.py(), &columns, rows, ids)
                        })
                    })
                })
            })
        })
    })
}
