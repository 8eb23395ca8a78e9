//! The closed list of tensor types: id, name, block shape.

/// A tensor's element type. The discriminant is the id in the file.
///
/// The last three occur in no file: groups of AWQ checkpoints, which [`View`](crate::View) presents
/// as blocks of rows.
///
/// Block shapes are those of ggml (`ggml-common.h`); ids that ggml removed have no variant here and
/// are named by [`removed_type_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(non_camel_case_types, missing_docs)] // the names are ggml's own, which users search for
pub enum TensorType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
    AWQ_G32 = 0x4157_5120,
    AWQ_G64 = 0x4157_5140,
    AWQ_G128 = 0x4157_5180,
}

use TensorType as T;

/// Every tensor type with its name, elements per block and bytes per block.
const TABLE: [(T, &str, u32, u32); 38] = [
    (T::F32, "F32", 1, 4),
    (T::F16, "F16", 1, 2),
    (T::Q4_0, "Q4_0", 32, 18),
    (T::Q4_1, "Q4_1", 32, 20),
    (T::Q5_0, "Q5_0", 32, 22),
    (T::Q5_1, "Q5_1", 32, 24),
    (T::Q8_0, "Q8_0", 32, 34),
    (T::Q8_1, "Q8_1", 32, 36),
    (T::Q2_K, "Q2_K", 256, 84),
    (T::Q3_K, "Q3_K", 256, 110),
    (T::Q4_K, "Q4_K", 256, 144),
    (T::Q5_K, "Q5_K", 256, 176),
    (T::Q6_K, "Q6_K", 256, 210),
    (T::Q8_K, "Q8_K", 256, 292),
    (T::IQ2_XXS, "IQ2_XXS", 256, 66),
    (T::IQ2_XS, "IQ2_XS", 256, 74),
    (T::IQ3_XXS, "IQ3_XXS", 256, 98),
    (T::IQ1_S, "IQ1_S", 256, 50),
    (T::IQ4_NL, "IQ4_NL", 32, 18),
    (T::IQ3_S, "IQ3_S", 256, 110),
    (T::IQ2_S, "IQ2_S", 256, 82),
    (T::IQ4_XS, "IQ4_XS", 256, 136),
    (T::I8, "I8", 1, 1),
    (T::I16, "I16", 1, 2),
    (T::I32, "I32", 1, 4),
    (T::I64, "I64", 1, 8),
    (T::F64, "F64", 1, 8),
    (T::IQ1_M, "IQ1_M", 256, 56),
    (T::BF16, "BF16", 1, 2),
    (T::TQ1_0, "TQ1_0", 256, 54),
    (T::TQ2_0, "TQ2_0", 256, 66),
    (T::MXFP4, "MXFP4", 32, 17),
    (T::NVFP4, "NVFP4", 64, 36),
    (T::Q1_0, "Q1_0", 128, 18),
    (T::Q2_0, "Q2_0", 64, 18),
    (T::AWQ_G32, "AWQ_G32", 32, 19),
    (T::AWQ_G64, "AWQ_G64", 64, 35),
    (T::AWQ_G128, "AWQ_G128", 128, 67),
];

impl TensorType {
    /// Types of AWQ groups, which no file has.
    pub const AWQ: [TensorType; 3] = [T::AWQ_G32, T::AWQ_G64, T::AWQ_G128];

    /// Iterates over every type that a file can have, in the order of their ids.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TABLE
            .iter()
            .map(|row| row.0)
            .filter(|ty| !T::AWQ.contains(ty))
    }

    /// Returns the type with this id in a GGUF file, or `None` (see [`removed_type_name`]).
    pub fn from_id(id: u32) -> Option<TensorType> {
        TensorType::all().find(|&t| t as u32 == id)
    }

    /// Returns the type of this name, upper or lower case (`q4_k` and `Q4_K`).
    pub fn from_name(name: &str) -> Option<TensorType> {
        TABLE
            .iter()
            .find(|row| row.1.eq_ignore_ascii_case(name))
            .map(|row| row.0)
    }

    fn row(self) -> (T, &'static str, u32, u32) {
        let [f32, ..] = TABLE;
        // every variant is in the table, as asserted below
        let row = TABLE.iter().find(|row| row.0 == self);
        row.copied().unwrap_or(f32)
    }

    /// Returns the id stored in a GGUF file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Returns ggml's name, `Q4_K` for example.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the elements in one block: 1 for plain types, 32 to 256 for quantized ones.
    pub fn block_len(self) -> usize {
        self.row().2 as usize
    }

    /// Returns the bytes in one block.
    pub fn block_bytes(self) -> usize {
        self.row().3 as usize
    }

    /// Returns the bytes of a row of `n` elements; `None` if `n` is not a whole number of blocks or
    /// the size overflows.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        let (_, _, len, bytes) = self.row();
        if n.checked_rem(len.into())? != 0 {
            return None;
        }
        n.checked_div(len.into())?.checked_mul(bytes.into())
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the name of a type id that ggml has removed, for error messages.
pub fn removed_type_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_complete_and_ids_round_trip() {
        for id in 0..64 {
            assert!(
                !(TensorType::from_id(id).is_some() && removed_type_name(id).is_some()),
                "id {id}"
            );
            if let Some(t) = TensorType::from_id(id) {
                assert_eq!(t.id(), id);
                assert_eq!(t.row().0, t);
                assert_eq!(TensorType::from_name(t.name()), Some(t));
            }
        }
        assert_eq!(TensorType::all().count(), 35);
        assert_eq!(TensorType::Q4_K.row_bytes(512), Some(288));
        assert_eq!(TensorType::Q4_K.row_bytes(100), None);
        assert_eq!(TensorType::I64.row_bytes(u64::MAX), None);
    }
}
