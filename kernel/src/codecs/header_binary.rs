//! The ROCKETMQ header encoding; its layout is drawn in `protocol/pure/frames.py`.

use std::borrow::Cow;
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::header::{Command, Head, Header};
use super::text::is_utf8;
use crate::reader::Reader;

pub fn decode<'py>(py: Python<'py>, header: &[u8]) -> Option<Header<'py>> {
    let parts = read(header)?;
    let mut ext_fields = None;
    if !parts.ext_fields.is_empty() {
        let pairs = PyDict::new(py);
        each_pair(parts.ext_fields, |key, value| {
            pairs.set_item(from_utf8(key).ok()?, from_utf8(value).ok()?).ok()
        })?;
        ext_fields = Some(pairs);
    }
    Some(Header {
        code: parts.head.code,
        language: parts.language,
        version: i32::from(parts.version),
        opaque: parts.head.opaque,
        flag: parts.head.flag,
        remark: (!parts.remark.is_empty()).then(|| PyString::new(py, parts.remark)),
        ext_fields,
    })
}

/// Reads a header without Python objects: `field` gets the code and each ext field, all UTF-8.
pub fn scan<'a>(
    header: &'a [u8],
    mut field: impl FnMut(i32, &[u8], Cow<'a, [u8]>) -> Option<()>,
) -> Option<Head> {
    let parts = read(header)?;
    let code = parts.head.code;
    each_pair(parts.ext_fields, |key, value| {
        (is_utf8(key) && is_utf8(value)).then_some(())?;
        field(code, key, Cow::Borrowed(value))
    })?;
    Some(parts.head)
}

struct Parts<'a> {
    head: Head,
    language: u8,
    version: i16,
    remark: &'a str,
    ext_fields: &'a [u8],
}

fn read(header: &[u8]) -> Option<Parts<'_>> {
    let mut reader = Reader(header);
    let code = i32::from(reader.i16()?);
    let [language] = reader.array()?;
    let version = reader.i16()?;
    let opaque = reader.i32()?;
    let flag = reader.i32()?;
    let remark_length = reader.i32()?;
    let remark = from_utf8(reader.take(remark_length)?).ok()?;
    let ext_length = reader.i32()?;
    let ext_fields = reader.take(ext_length)?;
    Some(Parts { head: Head { code, flag, opaque }, language, version, remark, ext_fields })
}

fn each_pair<'a>(
    pairs: &'a [u8],
    mut pair: impl FnMut(&'a [u8], &'a [u8]) -> Option<()>,
) -> Option<()> {
    let mut reader = Reader(pairs);
    while !reader.0.is_empty() {
        let key_length = reader.i16()?;
        let key = reader.take(i32::from(key_length))?;
        let value_length = reader.i32()?;
        pair(key, reader.take(value_length)?)?;
    }
    Some(())
}

pub fn encode(command: &Command<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(256);
    out.extend(i16::try_from(command.code).ok()?.to_be_bytes());
    out.push(u8::try_from(command.language).ok()?);
    out.extend(i16::try_from(command.version).ok()?.to_be_bytes());
    out.extend(command.opaque.to_be_bytes());
    out.extend(command.flag.to_be_bytes());
    put_text(&mut out, command.remark.unwrap_or_default())?;
    let pairs = command.ext_fields.as_deref().unwrap_or_default();
    let ext_length: usize = pairs.iter().map(|(key, value)| 6 + key.len() + value.len()).sum();
    out.extend(i32::try_from(ext_length).ok()?.to_be_bytes());
    for (key, value) in pairs {
        out.extend(i16::try_from(key.len()).ok()?.to_be_bytes());
        out.extend_from_slice(key.as_bytes());
        put_text(&mut out, value)?;
    }
    Some(out)
}

fn put_text(out: &mut Vec<u8>, text: &str) -> Option<()> {
    out.extend(i32::try_from(text.len()).ok()?.to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    Some(())
}
