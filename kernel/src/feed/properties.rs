//! The properties of a message to store: the values that the feed needs, and the text that is stored.
//!
//! Texts are bytes that are known to be UTF-8.

use super::settings::Settings;
use crate::codecs::text::{find, java_hash, key_hash};

/// More properties than any client sends; Python handles such a message.
const NAMES_MAX: usize = 64;

/// The properties that the feed needs.
pub struct Properties<'a> {
    pub tags: &'a [u8],
    pub keys: &'a [u8],
    pub unique_key: &'a [u8],
    pub wait_stored: bool,
}

/// Start and end of the names read so far, to detect repeated ones.
pub type Names = Vec<(usize, usize)>;

/// Reads properties and appends the ones to store to `stored`, if given.
///
/// Declines special names (`Settings::special_names`) and repeated names.
pub fn read<'a>(
    text: &'a [u8],
    settings: &Settings,
    names: &mut Names,
    mut stored: Option<&mut Vec<u8>>,
) -> Option<Properties<'a>> {
    let mut properties = Properties { tags: b"", keys: b"", unique_key: b"", wait_stored: true };
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
        if names.iter().any(is_known)
            || settings.special_names.contains(name)
            || names.len() >= NAMES_MAX
        {
            return None;
        }
        names.push((first, first + name.len()));
        match name {
            b"TAGS" => properties.tags = value,
            b"KEYS" => properties.keys = value,
            b"UNIQ_KEY" => properties.unique_key = value,
            b"WAIT" => {
                properties.wait_stored = value.eq_ignore_ascii_case(b"true");
                continue;
            }
            // It keeps its position and gets a new value, which only Python does.
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
    Some(properties)
}

impl Properties<'_> {
    /// The tags code of the queue entry.
    pub fn tags_code(&self) -> i64 {
        i64::from(java_hash(0, self.tags))
    }

    /// Appends the hashes of the index items, that of the unique key first.
    pub fn put_keys(&self, topic_hash: i32, keys: &mut Vec<i32>) {
        let unique = Some(self.unique_key).filter(|key| !key.is_empty());
        let others = self.keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty());
        let hash = |key| key_hash(topic_hash, key);
        keys.extend(unique.into_iter().chain(others).map(hash));
    }
}
