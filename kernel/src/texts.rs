//! The properties of a message to store: what they say, and the text that is stored.
//!
//! Texts are bytes that are known to be UTF-8.

use std::str::from_utf8;

use crate::settings::Settings;

/// More properties than any client sends; such a message is Python's.
const NAMES_MAX: usize = 64;

/// What a message's properties say.
pub struct Found<'a> {
    pub tags: &'a [u8],
    pub keys: &'a [u8],
    pub unique_key: &'a [u8],
    pub wait_stored: bool,
}

/// The places of names that were read, to find those that come twice.
pub type Names = Vec<(usize, usize)>;

/// Reads properties and, if asked for, writes those to store behind each other into `stored`.
///
/// Declines names that make a message more than an ordinary one, and names that come twice.
pub fn read<'a>(
    text: &'a [u8],
    settings: &Settings,
    names: &mut Names,
    mut stored: Option<&mut Vec<u8>>,
) -> Option<Found<'a>> {
    let mut found = Found { tags: b"", keys: b"", unique_key: b"", wait_stored: true };
    names.clear();
    let mut start = 0;
    while let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
        let part = rest.get(..find::<2>(rest))?;
        let first = start;
        start += part.len() + 1;
        let (name, value) = part.split_at_checked(find::<1>(part))?;
        let Some((_, value)) = value.split_first().filter(|(_, value)| !value.is_empty()) else {
            continue;
        };
        if name.is_empty() {
            continue;
        }
        let is_known = |(at, stop): &(usize, usize)| text.get(*at..*stop) == Some(name);
        if names.iter().any(is_known) || settings.is_odd(name) || names.len() >= NAMES_MAX {
            return None;
        }
        names.push((first, first + name.len()));
        match name {
            b"TAGS" => found.tags = value,
            b"KEYS" => found.keys = value,
            b"UNIQ_KEY" => found.unique_key = value,
            b"WAIT" => {
                found.wait_stored = value.eq_ignore_ascii_case(b"true");
                continue;
            }
            // It keeps its place and changes its value, which is Python's to do.
            b"CLUSTER" | b"MSG_REGION" | b"TRACE_ON" => return None,
            _ => {}
        }
        if let Some(stored) = stored.as_deref_mut() {
            stored.extend_from_slice(part);
            stored.push(2);
        }
    }
    if let Some(stored) = stored {
        stored.extend_from_slice(&settings.stamps);
    }
    Some(found)
}

/// Where a byte is first found, the length if it is not there; eight bytes are looked at in one go.
#[inline]
pub fn find<const BYTE: u8>(bytes: &[u8]) -> usize {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut rest = bytes;
    while let Some((chunk, behind)) = rest.split_first_chunk() {
        let word = u64::from_le_bytes(*chunk) ^ (LOW * u64::from(BYTE));
        // A borrow can only mark bytes above a true hit, and the lowest mark counts.
        let marks = word.wrapping_sub(LOW) & !word & HIGH;
        if marks != 0 {
            let hit = usize::try_from(marks.trailing_zeros() / 8).unwrap_or(0);
            return bytes.len() - rest.len() + hit;
        }
        rest = behind;
    }
    bytes.len() - rest.len() + rest.iter().take_while(|byte| **byte != BYTE).count()
}

impl Found<'_> {
    /// The hash that a queue entry keeps of the tags.
    pub fn tags_code(&self) -> i64 {
        i64::from(java_hash(0, self.tags))
    }

    /// The hashes under which the message is filed, its unique key first.
    pub fn put_keys(&self, topic_hash: i32, keys: &mut Vec<i32>) {
        let unique = Some(self.unique_key).filter(|key| !key.is_empty());
        let others = self.keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty());
        // The smallest int has no positive twin; RocketMQ files it under 0.
        let filed = |key| java_hash(topic_hash, key).checked_abs().unwrap_or(0);
        keys.extend(unique.into_iter().chain(others).map(filed));
    }
}

/// `String.hashCode` of Java, going on from the hash of what comes before.
pub fn java_hash(before: i32, text: &[u8]) -> i32 {
    let step = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    if !text.is_ascii() {
        if let Ok(text) = from_utf8(text) {
            return text.encode_utf16().fold(before, |hash, unit| step(hash, i32::from(unit)));
        }
    }
    // Four at a time, since each multiplication waits for the one before.
    let (mut hash, mut rest) = (before, text);
    while let Some(([a, b, c, d], behind)) = rest.split_first_chunk() {
        let unit = |byte: &u8| i32::from(*byte);
        let sum = unit(a) * 29_791 + unit(b) * 961 + unit(c) * 31 + unit(d);
        hash = hash.wrapping_mul(923_521).wrapping_add(sum);
        rest = behind;
    }
    rest.iter().fold(hash, |hash, byte| step(hash, i32::from(*byte)))
}

/// Whether bytes are UTF-8; nearly always they are plain ASCII, which is seen sooner.
pub fn is_text(bytes: &[u8]) -> bool {
    bytes.is_ascii() || from_utf8(bytes).is_ok()
}
