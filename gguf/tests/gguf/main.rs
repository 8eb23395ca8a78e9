//! Tests the reader with valid, invalid and hostile files, and the writer with the reader.

mod allocations;
mod corpus;
mod edit;
mod hostile;
mod llama_list;
mod parts;
mod raw;
mod real_files;
mod round_trip;
mod splits;
mod writer;
