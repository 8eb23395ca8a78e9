//! Compilation units: a source file and, for most of them, a macro that specializes it.

use super::launch::{IMMA_PARTS, KV_TYPES, PROMPT_TYPES, WIDE_PARTS, has_prompt_kernels};
use super::{grids, pack};
use octavo_quant::TensorType;
use octavo_simd::formats::packed_types;
use octavo_simd::kv_layout::KvType;
use std::fmt;
use std::sync::LazyLock;

/// A part of the kernels of a source file that takes long to compile, from 1: `PART` there.
pub type Part = usize;

/// A compilation unit: one `.cu` file, for one weight format or head size where it has those, or a
/// part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// Elementwise operations, norms and the like over rows of floats.
    Rows,
    /// Conversion of activations to the products' input forms.
    Activations,
    /// KV cache writes, for one element type.
    Kv(Part),
    /// Benchmark of tensor core speed.
    Probe,
    /// Embedding lookup: rows of weights as floats.
    Embed(TensorType),
    /// Matrix products of decode.
    Gemv(TensorType),
    /// Matrix products of batches of 9 to 16 rows, for float weights.
    FloatGemv(TensorType),
    /// Matrix products of batches of 3 to 16 rows, for weights with codes.
    Imma(TensorType, Part),
    /// Matrix products of prefill.
    Gemm(TensorType),
    /// Matrix products of prefill with warpgroup multiply (Hopper); empty for any other GPU.
    WideGemm(TensorType, Part),
    /// Routing and other operations around mixtures of experts.
    Experts,
    /// Recurrent operations: causal convolution and linear attention.
    Recurrence,
    /// Matrix products with experts.
    ExpertGemv(TensorType),
    /// Matrix products of three rows and more with experts, for weights with codes.
    ExpertImma(TensorType, Part),
    /// Attention, with values per head: for one element type of the cache, or for none.
    Attention(usize, Part),
}

/// Weight types with their own kernels; other types share these.
pub static FORMATS: LazyLock<Vec<TensorType>> = LazyLock::new(|| {
    let own = |ty: &TensorType| pack::is_packed(*ty) && pack::kernels_of(*ty) == *ty;
    packed_types().filter(own).collect()
});

/// Head sizes compiled in tests; any multiple of 8 up to 256 is supported.
pub const HEAD_DIMS: [usize; 10] = [8, 16, 32, 64, 72, 80, 96, 128, 192, 256];

/// Headers that the kernels include: name and text.
pub static HEADERS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    let mut all = FIXED_HEADERS.to_vec();
    all.push(("grids.cuh", &GRIDS));
    all
});

/// Text of the header that is made of the grids' points.
static GRIDS: LazyLock<String> = LazyLock::new(grids::header);

/// Headers that are files.
static FIXED_HEADERS: [(&str, &str); 22] = [
    ("compat.cuh", include_str!("../../cuda/compat.cuh")),
    ("gate.cuh", include_str!("../../cuda/gate.cuh")),
    ("norm.cuh", include_str!("../../cuda/norm.cuh")),
    ("softcap.cuh", include_str!("../../cuda/softcap.cuh")),
    ("candidates.cuh", include_str!("../../cuda/candidates.cuh")),
    ("rope.cuh", include_str!("../../cuda/rope.cuh")),
    ("formats.cuh", include_str!("../../cuda/formats.cuh")),
    (
        "grid_formats.cuh",
        include_str!("../../cuda/grid_formats.cuh"),
    ),
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
static FILES: [(&str, &str); 15] = [
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
        let mut all = vec![
            Module::Rows,
            Module::Activations,
            Module::Kv(1),
            Module::Probe,
        ];
        all.extend([Module::Experts, Module::Recurrence]);
        for &ty in FORMATS.iter() {
            all.extend([Module::Embed(ty), Module::Gemv(ty), Module::ExpertGemv(ty)]);
            all.extend([Module::Gemm(ty), Module::WideGemm(ty, 1)]);
            match pack::has_codes(ty) {
                true => all.extend([Module::Imma(ty, 1), Module::ExpertImma(ty, 1)]),
                false => all.push(Module::FloatGemv(ty)),
            }
        }
        all.extend(HEAD_DIMS.map(|dim| Module::Attention(dim, 1)));
        all.into_iter().flat_map(Module::parts).collect()
    }

    /// Returns all parts of its source file, of its format or head size.
    pub fn parts(self) -> Vec<Module> {
        let all = |n: Part, one: &dyn Fn(Part) -> Module| (1..=n).map(one).collect();
        match self {
            Module::Kv(_) => all(KV_TYPES.len(), &Module::Kv),
            Module::Imma(ty, _) => all(IMMA_PARTS, &|part| Module::Imma(ty, part)),
            Module::ExpertImma(ty, _) => all(IMMA_PARTS, &|part| Module::ExpertImma(ty, part)),
            Module::WideGemm(ty, _) => all(WIDE_PARTS, &|part| Module::WideGemm(ty, part)),
            Module::Attention(dim, _) => {
                let takes = |ty: &KvType| ty.both().takes(dim);
                let prompts = has_prompt_kernels(dim).then_some(PROMPT_TYPES);
                let of_type = KV_TYPES.map(|ty| takes(&ty));
                let of_prompts = prompts.into_iter().flatten().map(|ty| takes(&ty));
                let is_there = of_type.into_iter().chain([true]).chain(of_prompts);
                let parts = (1..).zip(is_there).filter(|(_, is_there)| *is_there);
                parts
                    .map(|(part, _)| Module::Attention(dim, part))
                    .collect()
            }
            _ => vec![self],
        }
    }

    /// Returns the modules that choose among each other by the size of a step: parts in sizes of
    /// tiles.
    pub fn tiles(self) -> Vec<Module> {
        match self {
            Module::Imma(..) | Module::ExpertImma(..) | Module::WideGemm(..) => self.parts(),
            _ => vec![self],
        }
    }

    /// Returns how long it takes to compile, from 1 to 4: those that take the longest begin first.
    pub(super) fn effort(self) -> u8 {
        match self {
            Module::Imma(..) | Module::ExpertImma(..) | Module::WideGemm(..) => 4,
            Module::Gemv(_) | Module::FloatGemv(_) | Module::Activations => 3,
            Module::Attention(..) => 2,
            _ => 1,
        }
    }

    /// Returns the name and text of its source file.
    pub fn file(self) -> (&'static str, &'static str) {
        FILES[match self {
            Module::Rows => 0,
            Module::Activations => 1,
            Module::Kv(_) => 2,
            Module::Embed(_) => 3,
            Module::Gemv(_) => 4,
            Module::Gemm(_) => 5,
            Module::Attention(..) => 6,
            Module::Probe => 7,
            Module::Experts => 8,
            Module::ExpertGemv(_) => 9,
            Module::Recurrence => 10,
            Module::WideGemm(..) => 11,
            Module::Imma(..) => 12,
            Module::ExpertImma(..) => 13,
            Module::FloatGemv(_) => 14,
        }]
    }

    /// Returns the names and texts of its source file and of all headers that this includes, by
    /// way of others too.
    pub fn sources(self) -> Vec<(&'static str, &'static str)> {
        let mut sources = vec![self.file()];
        let mut read = 0;
        while let Some((_, text)) = sources.get(read).copied() {
            read += 1;
            for name in included(text) {
                if sources.iter().any(|source| source.0 == name) {
                    continue;
                }
                let headers = HEADERS.iter();
                let of_ours = headers.map(|(header, text)| (*header, *text));
                sources.extend(of_ours.filter(|header| header.0 == name));
            }
        }
        sources
    }

    /// Returns the names and values of the macros that specialize it.
    pub fn defines(self) -> Vec<(&'static str, String)> {
        let part = match self {
            Module::Kv(part)
            | Module::Imma(_, part)
            | Module::WideGemm(_, part)
            | Module::ExpertImma(_, part)
            | Module::Attention(_, part) => Some(("PART", part.to_string())),
            _ => None,
        };
        self.specialization().into_iter().chain(part).collect()
    }

    /// Returns the name and value of the macro that specializes all parts of its file.
    pub(super) fn specialization(self) -> Option<(&'static str, String)> {
        match self {
            Module::Rows | Module::Activations | Module::Kv(_) | Module::Probe => None,
            Module::Experts | Module::Recurrence => None,
            Module::Embed(ty)
            | Module::Gemv(ty)
            | Module::FloatGemv(ty)
            | Module::Imma(ty, _)
            | Module::Gemm(ty)
            | Module::WideGemm(ty, _)
            | Module::ExpertImma(ty, _)
            | Module::ExpertGemv(ty) => Some(("FORMAT", ty.to_string())),
            Module::Attention(dim, _) => Some(("HEAD_DIM", dim.to_string())),
        }
    }
}

/// Returns the names that `#include "NAME"` lines of a source give.
fn included(text: &str) -> impl Iterator<Item = &str> {
    let names = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?;
        rest.trim_start().strip_prefix("include")
    });
    names
        .filter_map(|rest| rest.trim().strip_prefix('"')?.split_once('"'))
        .map(|(name, _)| name)
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file().0)?;
        let mut defines = self.defines().into_iter();
        defines.try_for_each(|(name, value)| write!(f, " -D{name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::launch::NO_KV_TYPE;
    use super::*;

    #[test]
    fn every_included_header_is_among_the_sources() {
        for module in Module::all() {
            let sources = module.sources();
            let names: Vec<&str> = sources.iter().map(|(name, _)| *name).collect();
            for (name, text) in &sources {
                // the host's is read where no compiler of NVIDIA's is
                for header in included(text).filter(|header| !header.starts_with("host/")) {
                    assert!(names.contains(&header), "{name} includes {header}");
                }
            }
        }
        let names = |module: Module| -> Vec<&str> {
            module.sources().iter().map(|(name, _)| *name).collect()
        };
        assert_eq!(names(Module::Probe), ["probe.cu", "compat.cuh"]);
        // by way of embed.cuh
        assert!(names(Module::Embed(TensorType::Q4_K)).contains(&"formats.cuh"));
        assert_eq!(
            included("# include \"a.cuh\"\n//#include \"b\"\n").count(),
            1
        );
    }

    /// Parts of the sources have the kernels that launches look for there.
    #[test]
    fn parts_have_the_kernels_of_their_numbers() {
        let has = |module: Module, part: Part, kernels: &str| {
            let (file, text) = module.file();
            let guarded = format!("TAKES({part})\n{kernels}");
            assert!(text.contains(&guarded), "{file}: {guarded}");
        };
        for (part, ty) in (1..).zip(KV_TYPES) {
            let name = ty.name().to_ascii_uppercase();
            has(Module::Kv(1), part, &format!("KV_KERNELS({name})\n"));
            let attend = format!("ATTEND_SPLIT({name}, 1)\nATTEND_SPLIT({name}, 4)\n");
            has(Module::Attention(64, 1), part, &attend);
        }
        let others = "KERNEL(JOIN(attend, HEAD_DIM, merge)";
        has(Module::Attention(64, 1), NO_KV_TYPE, others);
        for (part, ty) in (NO_KV_TYPE + 1..).zip(PROMPT_TYPES) {
            let name = ty.name().to_ascii_uppercase();
            let attend = format!("ATTEND_PROMPT({name})\n");
            has(Module::Attention(64, 1), part, &attend);
        }
        let format = FORMATS[0];
        for (part, columns) in (1..=IMMA_PARTS).zip([8, 16]) {
            let kernel = format!("KERNEL(JOIN(imma, FORMAT, 32_{columns})");
            has(Module::Imma(format, 1), part, &kernel);
            let kernel = format!("KERNEL(JOIN(expert_imma, FORMAT, 32_{columns})");
            has(Module::ExpertImma(format, 1), part, &kernel);
        }
        for (part, tile) in (1..=WIDE_PARTS).zip(["128_256", "128_128", "64_128"]) {
            let kernel = format!("KERNEL(JOIN(wide_gemm, FORMAT, {tile})");
            has(Module::WideGemm(format, 1), part, &kernel);
        }
    }

    #[test]
    fn heads_of_other_sizes_lack_types_in_groups_of_32() {
        assert_eq!(Module::Attention(64, 1).parts().len(), 12);
        assert_eq!(Module::Attention(80, 1).parts().len(), 6);
        // prompts without tensor cores
        assert_eq!(Module::Attention(72, 1).parts().len(), 4);
        let all = Module::all();
        let of = |file| all.iter().filter(|module| module.file().0 == file).count();
        assert_eq!(of("kv.cu"), KV_TYPES.len());
        assert_eq!(of("rows.cu"), 1);
    }
}
