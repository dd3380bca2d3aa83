//! Texts of records and headers: UTF-8, separators, and the hashes that RocketMQ stores of them.

use std::str::from_utf8;

/// Index of the first `BYTE`, or the length if there is none; compares eight bytes at a time.
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

/// Whether bytes are UTF-8; mostly they are ASCII, which is checked faster.
pub fn is_utf8(bytes: &[u8]) -> bool {
    bytes.is_ascii() || from_utf8(bytes).is_ok()
}

/// `String.hashCode` of Java for UTF-8 bytes, continuing from the hash of the text before.
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

/// The hash of `topic#`, with which the hash of every key of the topic begins.
pub fn topic_hash(topic: &[u8]) -> i32 {
    java_hash(java_hash(0, topic), b"#")
}

/// The hash of a key in the index: positive. The smallest int has no positive counterpart and
/// becomes 0, as in RocketMQ.
#[inline(always)]
pub fn key_hash(topic_hash: i32, key: &[u8]) -> i32 {
    java_hash(topic_hash, key).checked_abs().unwrap_or(0)
}

/// A number in 16 hexadecimal digits.
#[inline(always)]
pub fn hex_of(number: i64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    digits
}

/// A hexadecimal digit of a value below 16.
#[inline(always)]
pub fn digit(value: u8) -> u8 {
    const DIGITS: [u8; 16] = *b"0123456789ABCDEF";
    DIGITS.get(usize::from(value)).copied().unwrap_or(b'0')
}
