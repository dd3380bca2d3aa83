//! Settings of the feed, and the responses to sends.

use std::ops::Deref;

use pyo3::prelude::*;

use crate::codecs::header::ENCODING_BINARY;
use crate::codecs::header_json::put_string;
use crate::codecs::text::hex_of;

const PYTHON: u8 = 3;
const RESPONSE: i32 = 1;

/// Switches and limits as Python gives them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Given {
    pub frame_max: usize,
    pub body_max: usize,
    /// The most messages of a batch, and keys of all of them together.
    pub batch_max: usize,
    pub batch_keys_max: usize,
    pub index_on: bool,
    /// Whether responses wait for a flush; Python handles messages that ask not to wait then.
    pub waits: bool,
    pub store_host: Vec<u8>,
    /// The store host as message ids begin with it.
    pub id_prefix: String,
    cluster: String,
    /// Names of properties that need Python.
    special_names: Vec<String>,
    pub region: String,
    pub trace_on: bool,
    pub version: i16,
    /// Whether the feed handles pulls, and lite pulls.
    pub pull_on: bool,
    pub lite_pull_on: bool,
    /// Limits of one pull, and of one read of messages in memory.
    pub pull_count: i64,
    pub read_count: i64,
    pub read_bytes: usize,
    /// Whether groups may be sent to a slave, and how far behind the end of the log.
    pub memory_bytes: i64,
    /// Records before this log offset were written before this process, and are checked when read.
    pub checked_from: i64,
}

/// The settings, with what follows from them.
pub struct Settings {
    given: Given,
    /// Properties that are added to every single message: the text of `properties.stamps`.
    pub stamps: Vec<u8>,
    pub special_names: NamesByLength,
    /// See `json_parts`.
    json_middle: Vec<u8>,
    pub json_end: Vec<u8>,
}

impl Deref for Settings {
    type Target = Given;

    fn deref(&self) -> &Given {
        &self.given
    }
}

/// What the response to a send says.
pub struct Stored<'a> {
    pub opaque: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    /// Of each message.
    pub log_offsets: &'a [i64],
}

impl Settings {
    pub fn new(mut given: Given) -> Self {
        let Given { region, trace_on, cluster, version, .. } = &given;
        let (json_middle, json_end) = Self::json_parts(region, *trace_on, *version);
        let stamps =
            format!("MSG_REGION\x01{region}\x02TRACE_ON\x01{trace_on}\x02CLUSTER\x01{cluster}\x02");
        let special_names = NamesByLength::new(std::mem::take(&mut given.special_names));
        Self { given, stamps: stamps.into_bytes(), special_names, json_middle, json_end }
    }

    /// Appends the response to a send, as `broker/handlers/send.py` writes it.
    pub fn put_response(&self, out: &mut Vec<u8>, encoding: u8, stored: &Stored<'_>) -> Option<()> {
        let start = out.len();
        out.extend([0; 8]);
        if encoding == ENCODING_BINARY {
            self.put_binary(out, stored)?;
        } else {
            self.put_json(out, stored);
        }
        put_headline(out, start, encoding, 0)
    }

    fn put_json(&self, out: &mut Vec<u8>, stored: &Stored<'_>) {
        out.extend_from_slice(br#"{"code":0,"extFields":{"msgId":""#);
        self.put_ids(out, stored.log_offsets);
        out.extend_from_slice(br#"","queueId":""#);
        put_number(out, stored.queue_id.into());
        out.extend_from_slice(br#"","queueOffset":""#);
        put_number(out, stored.queue_offset);
        out.extend_from_slice(&self.json_middle);
        put_number(out, stored.opaque.into());
        out.extend_from_slice(&self.json_end);
    }

    fn put_binary(&self, out: &mut Vec<u8>, stored: &Stored<'_>) -> Option<()> {
        let length_at = self.begin_binary(out, stored.opaque, "")?;
        put_pair(out, "msgId", |out| self.put_ids(out, stored.log_offsets))?;
        put_pair(out, "queueId", |out| put_number(out, stored.queue_id.into()))?;
        put_pair(out, "queueOffset", |out| put_number(out, stored.queue_offset))?;
        put_pair(out, "MSG_REGION", |out| out.extend_from_slice(self.region.as_bytes()))?;
        put_pair(out, "TRACE_ON", |out| out.extend_from_slice(truth(self.trace_on)))?;
        put_length(out, length_at)
    }

    /// Appends a binary header up to its ext fields; returns the position of their length.
    #[inline(always)]
    pub fn begin_binary(&self, out: &mut Vec<u8>, opaque: i32, remark: &str) -> Option<usize> {
        out.extend([0, 0, PYTHON]);
        out.extend(self.version.to_be_bytes());
        out.extend(opaque.to_be_bytes());
        out.extend(RESPONSE.to_be_bytes());
        out.extend(i32::try_from(remark.len()).ok()?.to_be_bytes());
        out.extend_from_slice(remark.as_bytes());
        out.extend([0; 4]);
        out.len().checked_sub(4)
    }

    fn put_ids(&self, out: &mut Vec<u8>, log_offsets: &[i64]) {
        for (number, log_offset) in log_offsets.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend_from_slice(self.id_prefix.as_bytes());
            out.extend_from_slice(&hex_of(*log_offset));
        }
    }

    /// The constant parts of a JSON response: between queue offset and opaque, and after the opaque.
    fn json_parts(region: &str, trace_on: bool, version: i16) -> (Vec<u8>, Vec<u8>) {
        let mut middle = br#"","MSG_REGION":"#.to_vec();
        put_string(&mut middle, region);
        middle.extend_from_slice(br#","TRACE_ON":""#);
        middle.extend_from_slice(truth(trace_on));
        middle.extend_from_slice(br#""},"flag":1,"language":"PYTHON","opaque":"#);
        let mut end = br#","serializeTypeCurrentRPC":"JSON","version":"#.to_vec();
        put_number(&mut end, version.into());
        end.push(b'}');
        (middle, end)
    }
}

/// A set of property names, by length.
pub struct NamesByLength(Vec<Vec<Vec<u8>>>);

impl NamesByLength {
    pub fn new(names: Vec<String>) -> Self {
        let longest = names.iter().map(String::len).max().unwrap_or(0);
        let mut by_length = vec![Vec::new(); longest + 1];
        for name in names {
            if let Some(same) = by_length.get_mut(name.len()) {
                same.push(name.into_bytes());
            }
        }
        Self(by_length)
    }

    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.get(name.len()).is_some_and(|same| same.iter().any(|each| each == name))
    }
}

fn truth(value: bool) -> &'static [u8] {
    if value { b"true" } else { b"false" }
}

/// Appends a number in decimal digits.
pub fn put_number(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let mut rest = number.unsigned_abs();
    let mut count = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(digits.get(20 - count..).unwrap_or_default());
}

/// Appends a key and a value of binary ext fields; `value` writes the value.
pub fn put_pair(out: &mut Vec<u8>, key: &str, value: impl FnOnce(&mut Vec<u8>)) -> Option<()> {
    out.extend(i16::try_from(key.len()).ok()?.to_be_bytes());
    out.extend_from_slice(key.as_bytes());
    let length_at = out.len();
    out.extend([0; 4]);
    value(out);
    put_length(out, length_at)
}

/// Fills in the length field at `at` with the number of bytes that follow it.
pub fn put_length(out: &mut [u8], at: usize) -> Option<()> {
    let length = i32::try_from(out.len().checked_sub(at + 4)?).ok()?;
    *out.get_mut(at..)?.first_chunk_mut()? = length.to_be_bytes();
    Some(())
}

/// Fills in the first 8 bytes of the frame at `start`, whose header is complete and whose body of
/// `body_length` bytes is still to be sent.
pub fn put_headline(out: &mut [u8], start: usize, encoding: u8, body_length: usize) -> Option<()> {
    let header_length = u32::try_from(out.len().checked_sub(start + 8)?).ok()?;
    let length = u32::try_from(body_length).ok()?.checked_add(header_length)?.checked_add(4)?;
    if header_length > 0x00FF_FFFF {
        return None;
    }
    let words = [length.to_be_bytes(), (u32::from(encoding) << 24 | header_length).to_be_bytes()];
    out.get_mut(start..)?.get_mut(..8)?.copy_from_slice(words.as_flattened());
    Some(())
}
