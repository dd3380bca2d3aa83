//! The ROCKETMQ header encoding; its layout is drawn in `protocol/pure.py`.

use std::str::from_utf8;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::header::{Command, Header};
use crate::reader::Reader;

pub fn decode<'py>(py: Python<'py>, header: &[u8]) -> Option<Header<'py>> {
    let mut reader = Reader(header);
    let code = reader.i16()?;
    let [language] = reader.array()?;
    let version = reader.i16()?;
    let opaque = reader.i32()?;
    let flag = reader.i32()?;
    let remark_length = reader.i32()?;
    let remark = from_utf8(reader.take(remark_length)?).ok()?;
    let ext_length = reader.i32()?;
    let ext_fields = reader.take(ext_length)?;
    Some(Header {
        code: i32::from(code),
        language,
        version: i32::from(version),
        opaque,
        flag,
        remark: (!remark.is_empty()).then(|| PyString::new(py, remark)),
        ext_fields: match ext_fields {
            [] => None,
            pairs => Some(decode_pairs(py, Reader(pairs))?),
        },
    })
}

fn decode_pairs<'py>(py: Python<'py>, mut reader: Reader<'_>) -> Option<Bound<'py, PyDict>> {
    let pairs = PyDict::new(py);
    while !reader.0.is_empty() {
        let key_length = reader.i16()?;
        let key = from_utf8(reader.take(i32::from(key_length))?).ok()?;
        let value_length = reader.i32()?;
        let value = from_utf8(reader.take(value_length)?).ok()?;
        pairs.set_item(key, value).ok()?;
    }
    Some(pairs)
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
