//! The layout of a message record, drawn in `protocol/records/record.py`: the fixed head, the body,
//! and the tail with topic and properties.

use super::crc::body_crc;
use crate::reader::Reader;
use crate::view::View;

pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const MAGIC_V2: u32 = 0xDAA3_20AB;

pub const BORN_HOST_V6: i32 = 1 << 4;
pub const STORE_HOST_V6: i32 = 1 << 5;
pub const HEAD_WITHOUT_HOSTS: usize = 72;
pub const HEAD_MAX: usize = HEAD_WITHOUT_HOSTS + 2 * 20;
const SYS_FLAG_AT: usize = 36;

/// The head of a record, and the record itself.
pub struct RecordHead<'h, 'v> {
    pub record: View<'v>,
    pub size: i32,
    /// Whether the length of the topic has two bytes.
    pub is_v2: bool,
    pub crc: i32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sys_flag: i32,
    pub born_time: i64,
    pub born_host: &'h [u8],
    pub store_time: i64,
    pub store_host: &'h [u8],
    pub reconsume_count: i32,
    pub prepared_log_offset: i64,
    pub body_length: usize,
}

impl<'h, 'v> RecordHead<'h, 'v> {
    /// Reads the head of the record at `start`, copied into `buffer`; None if the record is not
    /// complete or has another magic number. Body and tail are not read.
    #[inline(always)]
    pub fn read(view: View<'v>, start: usize, buffer: &'h mut [u8; HEAD_MAX]) -> Option<Self> {
        let size = i32::from_be_bytes(view.array(start)?);
        let record = view.part(start, start.checked_add(usize::try_from(size).ok()?)?)?;
        record.copy_to(buffer);
        let mut reader = Reader(buffer.get(4..record.len().min(HEAD_MAX))?);
        let magic = u32::from_be_bytes(reader.array()?);
        if magic != MAGIC_V1 && magic != MAGIC_V2 {
            return None;
        }
        let crc = reader.i32()?;
        let queue_id = reader.i32()?;
        let flag = reader.i32()?;
        let queue_offset = reader.i64()?;
        let log_offset = reader.i64()?;
        let sys_flag = reader.i32()?;
        let born_time = reader.i64()?;
        let born_host = reader.take(host_length(sys_flag, BORN_HOST_V6))?;
        let store_time = reader.i64()?;
        let store_host = reader.take(host_length(sys_flag, STORE_HOST_V6))?;
        let reconsume_count = reader.i32()?;
        let prepared_log_offset = reader.i64()?;
        let body_length = usize::try_from(reader.i32()?).ok()?;
        Some(Self {
            record,
            size,
            is_v2: magic == MAGIC_V2,
            crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_time,
            born_host,
            store_time,
            store_host,
            reconsume_count,
            prepared_log_offset,
            body_length,
        })
    }

    /// Start and end of the body in the record.
    #[inline(always)]
    pub fn body_range(&self) -> Option<(usize, usize)> {
        let start = HEAD_WITHOUT_HOSTS + self.born_host.len() + self.store_host.len();
        Some((start, start.checked_add(self.body_length)?))
    }

    /// Whether the checksum of the body is right; an empty body has none.
    #[inline(always)]
    pub fn has_crc_of(&self, body: View<'_>) -> bool {
        self.body_length == 0 || u32::try_from(self.crc).is_ok_and(|crc| crc == body_crc(body))
    }
}

/// Topic and properties in the tail of a record; None unless they fill it exactly.
#[inline(always)]
pub fn split_tail(tail: &[u8], is_v2: bool) -> Option<(&[u8], &[u8])> {
    let mut reader = Reader(tail);
    let topic_length = if is_v2 { reader.i16()? } else { i16::from(reader.i8()?) };
    let topic = reader.take(i32::from(topic_length))?;
    let properties_length = reader.i16()?;
    let properties = reader.take(i32::from(properties_length))?;
    reader.0.is_empty().then_some((topic, properties))
}

/// Length of the body of the record at `start`, as its head says.
pub fn body_length_at(view: View<'_>, start: usize) -> Option<usize> {
    let sys_flag = i32::from_be_bytes(view.array(start.checked_add(SYS_FLAG_AT)?)?);
    let hosts = host_length(sys_flag, BORN_HOST_V6) + host_length(sys_flag, STORE_HOST_V6);
    let at = HEAD_WITHOUT_HOSTS - 4 + usize::try_from(hosts).ok()?;
    usize::try_from(i32::from_be_bytes(view.array(start.checked_add(at)?)?)).ok()
}

#[inline(always)]
fn host_length(sys_flag: i32, bit: i32) -> i32 {
    if sys_flag & bit == 0 { 8 } else { 20 }
}
