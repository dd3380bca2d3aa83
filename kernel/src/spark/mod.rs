//! Conversion between records and Arrow columns, for the Spark source and sink.

pub mod columns;
mod parse;
pub mod rows;
