//! Types that both header encodings share.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

pub const ENCODING_JSON: u8 = 0;
pub const ENCODING_BINARY: u8 = 1;

pub const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP",
    "OMS", "RUST", "NODE_JS",
];
pub const LANGUAGE_OTHER: u8 = 7;

/// The fields of a header that come before the ext fields are read.
pub struct Head {
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
}

/// A decoded header; the types of remark and ext fields depend on the reader.
pub struct Header<R, E> {
    pub head: Head,
    pub language: u8,
    pub version: i32,
    pub remark: Option<R>,
    pub ext_fields: Option<E>,
}

/// A header with Python objects.
pub type PythonHeader<'py> = Header<Bound<'py, PyString>, Bound<'py, PyDict>>;

/// A header to encode.
pub struct Command<'a> {
    pub code: i32,
    pub language: i64,
    pub version: i32,
    pub opaque: i32,
    pub flag: i32,
    pub remark: Option<&'a str>,
    pub ext_fields: Option<Vec<(&'a str, &'a str)>>,
}
