//! The properties of a message to store: what they say, and the text that is stored.

use crate::settings::Settings;

/// More properties than any client sends; such a message is Python's.
const NAMES_MAX: usize = 64;

/// What a message's properties say.
pub struct Found<'a> {
    pub tags: &'a str,
    pub keys: &'a str,
    pub unique_key: &'a str,
    pub wait_stored: bool,
}

/// Reads properties and, if asked for, writes those to store behind each other into `stored`.
///
/// Declines names that make a message more than an ordinary one, and names that come twice.
pub fn read<'a>(
    text: &'a str,
    settings: &Settings,
    mut stored: Option<&mut Vec<u8>>,
) -> Option<Found<'a>> {
    let mut found = Found { tags: "", keys: "", unique_key: "", wait_stored: true };
    let mut names = [""; NAMES_MAX];
    let mut count = 0;
    for part in text.split('\x02') {
        let Some((name, value)) = part.split_once('\x01') else {
            continue;
        };
        if name.is_empty() || value.is_empty() {
            continue;
        }
        if names.get(..count)?.contains(&name) || settings.is_odd(name) {
            return None;
        }
        *names.get_mut(count)? = name;
        count += 1;
        match name {
            "TAGS" => found.tags = value,
            "KEYS" => found.keys = value,
            "UNIQ_KEY" => found.unique_key = value,
            "WAIT" => {
                found.wait_stored = value.eq_ignore_ascii_case("true");
                continue;
            }
            // It keeps its place and changes its value, which is Python's to do.
            "CLUSTER" if stored.is_some() => return None,
            _ => {}
        }
        if let Some(stored) = stored.as_deref_mut() {
            stored.extend_from_slice(part.as_bytes());
            stored.push(2);
        }
    }
    if let Some(stored) = stored {
        stored.extend_from_slice(&settings.cluster_property);
    }
    Some(found)
}

impl Found<'_> {
    /// The hash that a queue entry keeps of the tags.
    pub fn tags_code(&self) -> i64 {
        i64::from(java_hash(0, self.tags))
    }

    /// The hashes under which the message is filed, its unique key first.
    pub fn put_keys(&self, topic_hash: i32, keys: &mut Vec<i32>) {
        let unique = Some(self.unique_key).filter(|key| !key.is_empty());
        let others = self.keys.split(' ').filter(|key| !key.is_empty());
        // The smallest int has no positive twin; RocketMQ files it under 0.
        let filed = |key| java_hash(topic_hash, key).checked_abs().unwrap_or(0);
        keys.extend(unique.into_iter().chain(others).map(filed));
    }
}

/// `String.hashCode` of Java, going on from the hash of what comes before.
pub fn java_hash(before: i32, text: &str) -> i32 {
    let step = |hash: i32, unit: i32| hash.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        text.bytes().fold(before, |hash, byte| step(hash, i32::from(byte)))
    } else {
        text.encode_utf16().fold(before, |hash, unit| step(hash, i32::from(unit)))
    }
}
