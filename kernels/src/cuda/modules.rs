//! Compilation units: a source file and, for most of them, a macro that specializes it.

use super::pack;
use octavo_quant::TensorType;
use octavo_simd::formats::packed_types;
use std::fmt;
use std::sync::LazyLock;

/// A compilation unit: one `.cu` file, for one weight format or head size where it has those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Elementwise operations, norms and the like over rows of floats.
    Rows,
    /// Conversion of activations to the products' input forms.
    Activations,
    /// KV cache writes.
    Kv,
    /// Benchmark of tensor core speed.
    Probe,
    /// Embedding lookup: rows of weights as floats.
    Embed(TensorType),
    /// Matrix products of decode.
    Gemv(TensorType),
    /// Matrix products of batches of 9 to 16 rows, for float weights.
    FloatGemv(TensorType),
    /// Matrix products of batches of 3 to 16 rows, for weights with codes.
    Imma(TensorType),
    /// Matrix products of prefill.
    Gemm(TensorType),
    /// Matrix products of prefill with warpgroup multiply (Hopper); empty for any other GPU.
    WideGemm(TensorType),
    /// Routing and other operations around mixtures of experts.
    Experts,
    /// Recurrent operations: causal convolution and linear attention.
    Recurrence,
    /// Matrix products with experts.
    ExpertGemv(TensorType),
    /// Matrix products of three rows and more with experts, for weights with codes.
    ExpertImma(TensorType),
    /// Attention, with values per head.
    Attention(usize),
}

/// Weight types with their own kernels; other types share these.
pub static FORMATS: LazyLock<Vec<TensorType>> = LazyLock::new(|| {
    let own = |ty: &TensorType| pack::is_packed(*ty) && pack::kernels_of(*ty) == *ty;
    packed_types().filter(own).collect()
});

/// Head sizes compiled in tests; any multiple of 8 up to 256 is supported.
pub const HEAD_DIMS: [usize; 10] = [8, 16, 32, 64, 72, 80, 96, 128, 192, 256];

/// Headers that the kernels include: name and text.
pub const HEADERS: [(&str, &str); 20] = [
    ("compat.cuh", include_str!("../../cuda/compat.cuh")),
    ("gate.cuh", include_str!("../../cuda/gate.cuh")),
    ("norm.cuh", include_str!("../../cuda/norm.cuh")),
    ("softcap.cuh", include_str!("../../cuda/softcap.cuh")),
    ("rope.cuh", include_str!("../../cuda/rope.cuh")),
    ("formats.cuh", include_str!("../../cuda/formats.cuh")),
    (
        "activations.cuh",
        include_str!("../../cuda/activations.cuh"),
    ),
    ("embed.cuh", include_str!("../../cuda/embed.cuh")),
    ("gemv.cuh", include_str!("../../cuda/gemv.cuh")),
    ("imma.cuh", include_str!("../../cuda/imma.cuh")),
    ("gemm.cuh", include_str!("../../cuda/gemm.cuh")),
    ("wide.cuh", include_str!("../../cuda/wide.cuh")),
    ("wide_gemm.cuh", include_str!("../../cuda/wide_gemm.cuh")),
    ("experts.cuh", include_str!("../../cuda/experts.cuh")),
    (
        "expert_gemv.cuh",
        include_str!("../../cuda/expert_gemv.cuh"),
    ),
    (
        "expert_imma.cuh",
        include_str!("../../cuda/expert_imma.cuh"),
    ),
    ("paging.cuh", include_str!("../../cuda/paging.cuh")),
    ("attention.cuh", include_str!("../../cuda/attention.cuh")),
    (
        "attention_split.cuh",
        include_str!("../../cuda/attention_split.cuh"),
    ),
    (
        "attention_prompt.cuh",
        include_str!("../../cuda/attention_prompt.cuh"),
    ),
];

/// Source files of the modules: name and text.
const FILES: [(&str, &str); 15] = [
    ("rows.cu", include_str!("../../cuda/rows.cu")),
    ("activations.cu", include_str!("../../cuda/activations.cu")),
    ("kv.cu", include_str!("../../cuda/kv.cu")),
    ("embed.cu", include_str!("../../cuda/embed.cu")),
    ("gemv.cu", include_str!("../../cuda/gemv.cu")),
    ("gemm.cu", include_str!("../../cuda/gemm.cu")),
    ("attention.cu", include_str!("../../cuda/attention.cu")),
    ("probe.cu", include_str!("../../cuda/probe.cu")),
    ("experts.cu", include_str!("../../cuda/experts.cu")),
    ("expert_gemv.cu", include_str!("../../cuda/expert_gemv.cu")),
    ("recurrence.cu", include_str!("../../cuda/recurrence.cu")),
    ("wide_gemm.cu", include_str!("../../cuda/wide_gemm.cu")),
    ("imma.cu", include_str!("../../cuda/imma.cu")),
    ("expert_imma.cu", include_str!("../../cuda/expert_imma.cu")),
    ("float_gemv.cu", include_str!("../../cuda/float_gemv.cu")),
];

impl Module {
    /// Lists every module, with every format and the usual head sizes.
    pub fn all() -> Vec<Module> {
        let mut all = vec![Module::Rows, Module::Activations, Module::Kv, Module::Probe];
        all.extend([Module::Experts, Module::Recurrence]);
        for &ty in FORMATS.iter() {
            all.extend([Module::Embed(ty), Module::Gemv(ty), Module::ExpertGemv(ty)]);
            all.extend([Module::Gemm(ty), Module::WideGemm(ty)]);
            match pack::has_codes(ty) {
                true => all.extend([Module::Imma(ty), Module::ExpertImma(ty)]),
                false => all.push(Module::FloatGemv(ty)),
            }
        }
        all.extend(HEAD_DIMS.map(Module::Attention));
        all
    }

    /// Returns the name and text of its source file.
    pub fn file(self) -> (&'static str, &'static str) {
        FILES[match self {
            Module::Rows => 0,
            Module::Activations => 1,
            Module::Kv => 2,
            Module::Embed(_) => 3,
            Module::Gemv(_) => 4,
            Module::Gemm(_) => 5,
            Module::Attention(_) => 6,
            Module::Probe => 7,
            Module::Experts => 8,
            Module::ExpertGemv(_) => 9,
            Module::Recurrence => 10,
            Module::WideGemm(_) => 11,
            Module::Imma(_) => 12,
            Module::ExpertImma(_) => 13,
            Module::FloatGemv(_) => 14,
        }]
    }

    /// Returns the name and value of the macro that specializes it.
    pub fn define(self) -> Option<(&'static str, String)> {
        match self {
            Module::Rows | Module::Activations | Module::Kv | Module::Probe => None,
            Module::Experts | Module::Recurrence => None,
            Module::Embed(ty)
            | Module::Gemv(ty)
            | Module::FloatGemv(ty)
            | Module::Imma(ty)
            | Module::Gemm(ty)
            | Module::WideGemm(ty)
            | Module::ExpertImma(ty)
            | Module::ExpertGemv(ty) => Some(("FORMAT", ty.to_string())),
            Module::Attention(dim) => Some(("HEAD_DIM", dim.to_string())),
        }
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, _) = self.file();
        match self.define() {
            Some((name, value)) => write!(f, "{file} -D{name}={value}"),
            None => f.write_str(file),
        }
    }
}
