//! The topics that the feed serves, with their queues, grants and counters.

use std::collections::HashMap;

use pyo3::prelude::*;

use super::store_memory::Queue;
use crate::codecs::text;
use crate::view::Mapping;

pub struct Topic {
    pub name: String,
    /// See `text::topic_hash`.
    pub hash: i32,
    /// Number of writable and of readable queues; 0 if the feed must not serve them.
    pub queue_count: usize,
    pub read_count: usize,
    pub multi_tag: bool,
    pub queues: Vec<Option<Queue>>,
    pub files: Vec<Option<QueueFile>>,
    pub grants: Grants,
    /// By queue id.
    pub counts: Vec<Counts>,
}

impl Topic {
    pub fn new(name: String, queue_count: usize, read_count: usize, multi_tag: bool) -> Self {
        Self {
            hash: text::topic_hash(name.as_bytes()),
            name,
            queue_count,
            read_count,
            multi_tag,
            queues: Vec::new(),
            files: Vec::new(),
            grants: Grants::new(),
            counts: Vec::new(),
        }
    }
}

/// The hashes of the selected tags; None selects everything.
#[derive(Clone)]
pub struct Filter(pub Option<Vec<i64>>);

impl Filter {
    #[inline(always)]
    pub fn accepts(&self, tags_code: i64) -> bool {
        self.0.as_ref().is_none_or(|codes| codes.contains(&tags_code))
    }
}

/// Permission to serve a group's pulls of a topic, given when a handler has served one.
#[derive(Default)]
pub struct Grant {
    /// Pulls that carry their subscription.
    pub inline: bool,
    /// Version and filter of the subscription in the heartbeats.
    pub registered: Option<(i64, Filter)>,
    /// Ids of the brokers to suggest to readers: usually, and to those that read old messages.
    pub brokers: (i64, i64),
    /// Messages delivered to the group, by queue id.
    pub counts: Vec<Counts>,
}

/// Messages stored or delivered since the counters were last read.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub messages: u64,
    pub size_bytes: u64,
    pub calls: u64,
    /// The next offset of the last pull.
    pub next_offset: i64,
}

impl Counts {
    pub fn add(&mut self, messages: usize, size_bytes: usize) -> Option<()> {
        self.messages += u64::try_from(messages).ok()?;
        self.size_bytes += u64::try_from(size_bytes).ok()?;
        self.calls += 1;
        Some(())
    }
}

pub type Grants = HashMap<Vec<u8>, Grant>;

/// A file of a queue, for reading.
pub struct QueueFile {
    /// Python's queue object, which has the end of the queue.
    pub owner: Py<PyAny>,
    pub memory: Mapping,
    /// Queue offset of its first entry, and of the first entry behind it.
    pub first: i64,
    pub stop: i64,
    /// The smallest queue offset whose message still exists.
    pub low: i64,
}
