//! The reader against files that are right, wrong and hostile, and the writer against the reader.

mod allocations;
mod corpus;
mod hostile;
mod llama_list;
mod raw;
mod real_files;
mod round_trip;
mod splits;
mod writer;
