//! Reads and writes GGUF files: versions 2 and 3, little-endian, split models, memory-mapped or
//! read.
//!
//! This crate handles the container: header, keys, the list of tensors and the places of their
//! bytes. It knows no model and decodes no block. For any bytes, opening a file returns a fully
//! checked directory or an [`Error`]; it does not panic, and allocates no more than the file's size
//! and a few tens of MiB.
//!
//! ```
//! use gguf_rs_lite::{Gguf, OpenOptions};
//! let empty = [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0; 16]].concat();
//! let file = Gguf::from_bytes(empty, "empty.gguf", &OpenOptions::default())?;
//! assert_eq!(file.tensors().len(), 0);
//! # Ok::<(), gguf_rs_lite::Error>(())
//! ```
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::cast_possible_truncation,
        clippy::panic
    )
)]

mod cursor;
mod edit;
mod error;
mod gguf;
mod layout;
mod map;
mod owned;
mod parse;
mod parts;
mod replace;
mod rows;
mod split;
mod temporary;
mod tensor;
mod types;
mod value;
mod view;
mod writer;

pub use edit::{Edited, InPlace, KeyEdit};
pub use error::Error;
pub use gguf::{Gguf, OpenOptions};
pub use map::guard_maps;
pub use owned::{OwnedArray, OwnedValue};
pub use parts::{Part, PartLimit, SplitPlan, merged};
pub use replace::{NewFile, behind_links, check_replaceable, replace as replace_file};
pub use rows::RowSource;
pub use temporary::{Temporary, remove_temporaries, removed_left_overs};
pub use tensor::TensorInfo;
pub use types::{TensorType, removed_type_name};
pub use value::{Array, ArrayIter, Value, ValueType};
pub use view::{SharedFile, View};
pub use writer::{TensorData, Writer};
