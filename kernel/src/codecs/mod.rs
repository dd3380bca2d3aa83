//! Codecs: frames, headers, records, and the queue entries and index items derived from records.

pub mod crc;
pub mod frames;
pub mod header;
pub mod header_binary;
pub mod header_json;
pub mod index_item;
pub mod queue_entry;
pub mod record_layout;
pub mod records;
pub mod text;
pub mod walk;
