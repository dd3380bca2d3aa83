//! The entry of a consume queue: log offset, record size, tags code.

use crate::reader::Reader;

pub const ENTRY_BYTES: usize = 20;

/// The fields of an entry.
#[derive(Clone, Copy)]
pub struct QueueEntry {
    pub log_offset: i64,
    pub size: i32,
    pub tags_code: i64,
}

impl QueueEntry {
    #[inline(always)]
    pub fn encode(self) -> Option<[u8; ENTRY_BYTES]> {
        let mut entry = [0; ENTRY_BYTES];
        let (log_offset, rest) = entry.split_first_chunk_mut::<8>()?;
        let (size, tags_code) = rest.split_first_chunk_mut::<4>()?;
        *log_offset = self.log_offset.to_be_bytes();
        *size = self.size.to_be_bytes();
        tags_code.copy_from_slice(&self.tags_code.to_be_bytes());
        Some(entry)
    }

    #[inline(always)]
    pub fn decode(entry: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let mut reader = Reader(entry);
        Some(Self { log_offset: reader.i64()?, size: reader.i32()?, tags_code: reader.i64()? })
    }
}
