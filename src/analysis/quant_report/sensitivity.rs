//! Sensitivity: quantizing one tensor at a time.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use octavo_quant::needs_importance;

use super::replaced::{Replaced, weights};
use super::{Base, Error, Setup, TensorScores, Watch, score};
use crate::eval::ChunkDivergence;
use crate::quantize::{
    self,
    mix::{fallback, is_quantizable},
};
use octavo_engine::ModelSource;

/// Splits a name: `blk.3.attn_v.weight` is `attn_v` of layer 3.
pub(crate) fn role(name: &str) -> (String, Option<usize>) {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let in_layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    match in_layer.and_then(|(layer, role)| Some((role.to_owned(), layer.parse().ok()?))) {
        Some((role, layer)) => (role, Some(layer)),
        None => (name.to_owned(), None),
    }
}

/// Returns whether a tensor is a matrix of floats that quantization may change: vectors, norms and
/// routers never are.
pub(crate) fn is_float_matrix(gguf: &Gguf, t: &TensorInfo) -> bool {
    let architecture = gguf.str("general.architecture").ok().flatten();
    matches!(t.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
        && is_quantizable(architecture.unwrap_or(""), &t.name, &t.dims)
}

/// Returns the type that a tensor gets: `to`, or `quantize`'s fallback if its rows do not fit;
/// `None` for tensors that are never quantized.
fn goes_to(gguf: &Gguf, t: &TensorInfo, to: TensorType) -> Option<TensorType> {
    let fits = |ty: &TensorType| t.dims[0].is_multiple_of(ty.block_len() as u64);
    if !is_float_matrix(gguf, t) {
        return None;
    }
    Some(to)
        .filter(fits)
        .or_else(|| fallback(to, t.dims[0]))
        .filter(fits)
}

/// Tensors quantized together: role, layer (if of one layer), tensors.
type Group<'g> = (String, Option<usize>, Vec<&'g TensorInfo>);

/// Returns the groups to be quantized to `to`, each tensor by itself or all layers of a role. With
/// an importance matrix, tensors that need weights but have none (embeddings) are left out.
///
/// # Errors
/// There is no tensor that can be quantized so.
pub(super) fn groups<'g>(
    gguf: &'g Gguf,
    setup: &Setup<'_>,
    (to, by_role): (TensorType, bool),
) -> Result<Vec<Group<'g>>, Error> {
    let can: Vec<(&TensorInfo, TensorType)> = gguf
        .tensors()
        .iter()
        .filter_map(|t| Some((t, goes_to(gguf, t, to)?)))
        .collect();
    let weighted = |t: &TensorInfo, ty: TensorType| {
        !needs_importance(ty) || weights(setup.importance, t).is_some()
    };
    let mut groups: Vec<Group<'g>> = Vec::new();
    for (t, _) in can.iter().copied().filter(|(t, ty)| weighted(t, *ty)) {
        let (role, layer) = role(&t.name);
        match groups
            .iter_mut()
            .find(|(name, _, _)| by_role && *name == role)
        {
            Some((_, _, tensors)) => tensors.push(t),
            None => groups.push((role, if by_role { None } else { layer }, vec![t])),
        }
    }
    match can.first() {
        _ if !groups.is_empty() => Ok(groups),
        Some((t, ty)) => Err(quantize::Error::NeedsImportance {
            tensor: t.name.clone(),
            ty: *ty,
        }
        .into()),
        None => Err(Error::NothingToRank {
            file: gguf.name().to_owned(),
            to: to.name(),
        }),
    }
}

/// Quantizes one tensor after the other to `to`, or to its fallback if rows do not fit (all layers
/// of a role together if `by_role`), and scores the model with each of them.
/// [`TensorScores::ranked`] ranks them.
///
/// # Errors
/// [`enum@Error`].
pub fn sensitivity(
    setup: &Setup<'_>,
    base: &Base,
    (to, by_role): (TensorType, bool),
    watch: &mut dyn Watch,
) -> Result<Vec<TensorScores>, Error> {
    let gguf = ModelSource::Path(setup.model.to_owned()).open(true)?;
    let groups = groups(&gguf, setup, (to, by_role))?;
    let mut model = Replaced::new(&gguf, setup)?;
    let mut all = Vec::new();
    for (done, (role, layer, tensors)) in groups.iter().enumerate() {
        watch.begin(&format!(
            "{} of {}: {}",
            done + 1,
            groups.len(),
            tensors[0].name
        ));
        let types: Vec<(&TensorInfo, TensorType)> = tensors
            .iter()
            .map(|t| (*t, goes_to(&gguf, t, to).unwrap_or(to)))
            .collect();
        let d = model.with(&types, |path| {
            score(setup, base, &setup.load(path)?, &mut *watch)
        })?;
        all.push(TensorScores {
            name: if tensors.len() == 1 {
                tensors[0].name.clone()
            } else {
                format!("blk.*.{role}.weight")
            },
            layer: *layer,
            role: role.clone(),
            weights: tensors.iter().map(|t| t.dims.iter().product::<u64>()).sum(),
            chunks: d
                .by_chunk()
                .iter()
                .map(ChunkDivergence::sums_only)
                .collect(),
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_layers_come_from_names() {
        assert_eq!(
            role("blk.12.attn_v.weight"),
            ("attn_v".to_owned(), Some(12))
        );
        assert_eq!(role("token_embd.weight"), ("token_embd".to_owned(), None));
        assert_eq!(role("blk.x.y.weight"), ("blk.x.y".to_owned(), None));
    }
}
