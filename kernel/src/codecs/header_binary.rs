//! The ROCKETMQ header encoding; its layout is drawn in `protocol/pure/frames.py`.

use std::borrow::Cow;
use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::header::{Command, Head, Header, PythonHeader};
use super::text::is_utf8;
use crate::reader::Reader;

pub fn decode<'py>(py: Python<'py>, header: &[u8]) -> Option<PythonHeader<'py>> {
    let Header { head, language, version, remark, ext_fields } = read(header)?;
    let ext_fields = match ext_fields {
        Some(raw) => {
            let pairs = PyDict::new(py);
            each_pair(raw, |key, value| {
                pairs.set_item(from_utf8(key).ok()?, from_utf8(value).ok()?).ok()
            })?;
            Some(pairs)
        }
        None => None,
    };
    let remark = remark.map(|text| PyString::new(py, text));
    Some(Header { head, language, version, remark, ext_fields })
}

/// Reads a header without Python objects: `field` gets the code and each ext field, all UTF-8.
pub fn scan<'a>(
    header: &'a [u8],
    mut field: impl FnMut(i32, &[u8], Cow<'a, [u8]>) -> Option<()>,
) -> Option<Head> {
    let Header { head, ext_fields, .. } = read(header)?;
    each_pair(ext_fields.unwrap_or_default(), |key, value| {
        (is_utf8(key) && is_utf8(value)).then_some(())?;
        field(head.code, key, Cow::Borrowed(value))
    })?;
    Some(head)
}

/// Remark and ext fields as they are in the header, None if empty.
fn read(header: &[u8]) -> Option<Header<&str, &[u8]>> {
    let mut reader = Reader(header);
    let code = i32::from(reader.i16()?);
    let [language] = reader.array()?;
    let version = i32::from(reader.i16()?);
    let opaque = reader.i32()?;
    let flag = reader.i32()?;
    let remark_length = reader.i32()?;
    let remark = Some(from_utf8(reader.take(remark_length)?).ok()?).filter(|it| !it.is_empty());
    let ext_length = reader.i32()?;
    let ext_fields = Some(reader.take(ext_length)?).filter(|it| !it.is_empty());
    Some(Header { head: Head { code, flag, opaque }, language, version, remark, ext_fields })
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
