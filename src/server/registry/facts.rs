//! Facts about a model that its file tells, without loading it.

use gguf_rs_lite::Gguf;

/// Facts about a model that its file tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Size of the file, in bytes.
    pub(crate) bytes: u64,
    /// Architecture.
    pub(crate) family: String,
    /// Number of weights.
    pub(crate) parameters: u64,
    /// Type of most of the weights.
    pub(crate) quantization: &'static str,
}

impl Facts {
    /// Reads them from a file.
    pub(crate) fn of(gguf: &Gguf) -> Facts {
        let family = gguf.str("general.architecture").ok().flatten();
        let tensors = gguf.tensors().iter();
        Facts {
            bytes: gguf.file_bytes(),
            family: family.unwrap_or_default().to_owned(),
            parameters: tensors.map(|tensor| tensor.n_elements()).sum(),
            quantization: most_common_type(gguf),
        }
    }
}

fn most_common_type(gguf: &Gguf) -> &'static str {
    let mut sizes: Vec<(&'static str, u64)> = Vec::new();
    for tensor in gguf.tensors() {
        let name = tensor.ty.name();
        match sizes.iter_mut().find(|(own, _)| *own == name) {
            Some((_, size)) => *size += tensor.n_elements(),
            None => sizes.push((name, tensor.n_elements())),
        }
    }
    let most = sizes.into_iter().max_by_key(|(_, size)| *size);
    most.map_or("", |(name, _)| name)
}
