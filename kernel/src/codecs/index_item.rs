//! Items of an index file; its layout is drawn in `store/index_file.py`.

use crate::reader::Reader;
use crate::view::Mapping;

pub const HEADER_BYTES: usize = 40;
const SLOT_BYTES: usize = 4;
const ITEM_BYTES: usize = 20;

/// Writes item `number` and makes it the first of its slot; returns whether the slot was empty.
#[inline(always)]
pub fn put_item(
    file: &Mapping,
    slot_count: usize,
    number: i32,
    key_hash: i32,
    log_offset: i64,
    age_s: i32,
) -> Option<bool> {
    let slot = usize::try_from(key_hash).ok()?.checked_rem(slot_count)?;
    let slot_at = HEADER_BYTES + slot * SLOT_BYTES;
    let items_at = slot_count.checked_mul(SLOT_BYTES)?.checked_add(HEADER_BYTES)?;
    let mut previous = i32::from_be_bytes(file.view().array(slot_at)?);
    let is_new = !(0 < previous && previous < number);
    if is_new {
        previous = 0;
    }
    let mut item = [0; ITEM_BYTES];
    let (hash, rest) = item.split_first_chunk_mut::<4>()?;
    let (offset, rest) = rest.split_first_chunk_mut::<8>()?;
    let (age, before) = rest.split_first_chunk_mut::<4>()?;
    *hash = key_hash.to_be_bytes();
    *offset = log_offset.to_be_bytes();
    *age = age_s.to_be_bytes();
    before.copy_from_slice(&previous.to_be_bytes());
    file.write(items_at + usize::try_from(number).ok()? * ITEM_BYTES, &item)?;
    file.write(slot_at, &number.to_be_bytes())?;
    Some(is_new)
}

/// Seconds since the first item of a file, as its items hold them.
#[inline(always)]
pub fn age_s(store_time: i64, begin_time: i64) -> i32 {
    let seconds = store_time.saturating_sub(begin_time) / 1000;
    i32::try_from(seconds.max(0)).unwrap_or(i32::MAX)
}

/// Writes many items, each given as key hash, log offset and store time; returns how many slots
/// came into use. See `protocol/pure/walk.py`, `put_index_items`.
pub fn put_items(
    file: &Mapping,
    slot_count: usize,
    number: i32,
    begin_time: i64,
    items: &[u8],
) -> Option<u32> {
    let items_at = slot_count.checked_mul(SLOT_BYTES)?.checked_add(HEADER_BYTES)?;
    let capacity = file.len().checked_sub(items_at)? / ITEM_BYTES;
    let first = usize::try_from(number).ok()?;
    let items = items.chunks_exact(ITEM_BYTES);
    let is_whole = items.remainder().is_empty();
    if slot_count == 0 || !is_whole || first.checked_add(items.len())? > capacity {
        return None;
    }
    let mut slots_used = 0;
    for (item, number) in items.zip(number..) {
        let mut reader = Reader(item);
        let (key_hash, log_offset, store_time) = (reader.i32()?, reader.i64()?, reader.i64()?);
        let age_s = age_s(store_time, begin_time);
        slots_used += u32::from(put_item(file, slot_count, number, key_hash, log_offset, age_s)?);
    }
    Some(slots_used)
}
