//! The checksum of bodies: CRC-32 without its top bit, so that it is a positive Java int.

use crc32fast::Hasher;

use crate::view::View;

const CHUNK: usize = 4096;

pub fn body_crc(view: View<'_>) -> u32 {
    let mut hasher = Hasher::new();
    if let View::Bytes(bytes) = view {
        hasher.update(bytes);
    } else {
        let mut chunk = [0; CHUNK];
        let mut at = 0;
        while let Some(part) =
            view.part(at, view.len().min(at + CHUNK)).filter(|part| part.len() > 0)
        {
            part.copy_to(&mut chunk);
            hasher.update(chunk.get(..part.len()).unwrap_or_default());
            at += part.len();
        }
    }
    hasher.finalize() & 0x7FFF_FFFF
}
