//! Conversion between records and Arrow columns, for the Spark source and sink.

pub mod decode_columns;
mod decode_records;
pub mod encode_rows;
