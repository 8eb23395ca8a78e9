//! Each operation's constraints on its operands' shapes, and the shape of its result.

use super::super::{CacheShape, MatrixShape, Recurrence, RowSet, ValueShape, matrix_state};
use super::ShapeError;
use crate::hadamard::HADAMARD_ORDER;
use crate::op::Cut;
use octavo_simd::generic::routing::TopGroups;

/// Most keys that a row selects: their positions are whole numbers as floats.
const MOST_SELECTED: usize = 1 << 24;

/// A value of all rows, which has no operands.
pub(super) fn rows_of(width: usize) -> ValueShape {
    ValueShape {
        width,
        rows: RowSet::All,
    }
}

pub(super) fn norm(x: ValueShape, group: usize) -> Result<ValueShape, ShapeError> {
    whole("normalised width", group, x.width)?;
    Ok(x)
}

pub(super) fn product(x: ValueShape, matrix: MatrixShape) -> Result<ValueShape, ShapeError> {
    same("matrix input", matrix.cols, x.width)?;
    Ok(ValueShape {
        width: matrix.rows,
        ..x
    })
}

pub(super) fn bias(x: ValueShape, bias: usize) -> Result<ValueShape, ShapeError> {
    same("bias", x.width, bias)?;
    Ok(x)
}

/// Shape of adding the values from `from` on of embedding inputs of this width.
pub(super) fn add_embeddings(
    x: ValueShape,
    from: usize,
    embedding_input_width: usize,
) -> Result<ValueShape, ShapeError> {
    at_most(
        "values of an embedding input",
        embedding_input_width,
        from + x.width,
    )?;
    of_all(x)
}

pub(super) fn rotation(
    x: ValueShape,
    head_dim: usize,
    pairs: usize,
) -> Result<ValueShape, ShapeError> {
    if 2 * pairs > head_dim {
        return Err(ShapeError::Width {
            what: "pairs of a head that turn",
            expected: head_dim / 2,
            got: pairs,
        });
    }
    whole("heads", head_dim, x.width)?;
    Ok(x)
}

pub(super) fn kv_write(
    k: ValueShape,
    v: ValueShape,
    cache: CacheShape,
) -> Result<ValueShape, ShapeError> {
    same("keys", cache.width, k.width)?;
    same("values", cache.width, v.width)?;
    Ok(ValueShape {
        width: 0,
        rows: same_rows(k, v)?,
    })
}

pub(super) fn attention(
    q: ValueShape,
    seen: Option<ValueShape>,
    cache: CacheShape,
    sinks: Option<Result<usize, ShapeError>>,
) -> Result<ValueShape, ShapeError> {
    if let Some(seen) = seen {
        same_rows(q, seen)?;
    }
    whole("queries", cache.width, q.width)?;
    if let Some(sinks) = sinks {
        whole("query heads", cache.head_dim, q.width)?;
        same("sinks", q.width / cache.head_dim, sinks?)?;
    }
    Ok(q)
}

pub(super) fn select_keys(
    q: ValueShape,
    weights: ValueShape,
    cache: CacheShape,
    n: usize,
) -> Result<ValueShape, ShapeError> {
    same("one key for all heads", cache.head_dim, cache.width)?;
    same("queries", weights.width * cache.head_dim, q.width)?;
    same_rows(q, weights)?;
    at_most("keys to select", MOST_SELECTED, n)?;
    whole("keys to select", n, n)?;
    Ok(ValueShape {
        width: n,
        ..of_all(q)?
    })
}

/// Element by element.
pub(super) fn pair(a: ValueShape, b: ValueShape) -> Result<ValueShape, ShapeError> {
    same("second operand", a.width, b.width)?;
    Ok(ValueShape {
        rows: same_rows(a, b)?,
        ..a
    })
}

pub(super) fn hadamard(x: ValueShape, order: usize) -> Result<ValueShape, ShapeError> {
    let power = order.clamp(2, HADAMARD_ORDER).next_power_of_two();
    same("order of a Hadamard transform", power, order)?;
    whole("values that are transformed", order, x.width)?;
    Ok(x)
}

pub(super) fn scale_by_position(x: ValueShape, step: usize) -> Result<ValueShape, ShapeError> {
    of_all(x)?;
    whole("positions of a step of the scale", step, step)?;
    Ok(x)
}

pub(super) fn select_rows(x: ValueShape) -> Result<ValueShape, ShapeError> {
    Ok(ValueShape {
        rows: RowSet::Outputs,
        ..of_all(x)?
    })
}

pub(super) fn merge(x: ValueShape, rows: usize) -> Result<ValueShape, ShapeError> {
    some("rows that become one", rows)?;
    Ok(ValueShape {
        width: rows * of_all(x)?.width,
        rows: RowSet::Merged(rows),
    })
}

pub(super) fn mul_vector(x: ValueShape, by: usize) -> Result<ValueShape, ShapeError> {
    whole("factors", by, x.width)?;
    Ok(x)
}

/// Shape of `width` values from `from` on, out of every `each`.
pub(super) fn slice(
    x: ValueShape,
    each: usize,
    from: usize,
    width: usize,
) -> Result<ValueShape, ShapeError> {
    some("values of a part", width)?;
    whole("values that are cut", each, x.width)?;
    at_most("values of a row", each, from.saturating_add(width))?;
    Ok(ValueShape {
        width: x.width / each * width,
        ..x
    })
}

pub(super) fn concat(
    a: ValueShape,
    b: ValueShape,
    each: [usize; 2],
) -> Result<ValueShape, ShapeError> {
    whole("pieces of a row", each[0], a.width)?;
    let pieces = a.width / each[0];
    if b.width != each[1] {
        let all = pieces.saturating_mul(each[1]);
        same("pieces of the second row", all, b.width)?;
    }
    some("values of a piece", each[1])?;
    Ok(ValueShape {
        width: pieces * (each[0] + each[1]),
        rows: same_rows(a, b)?,
    })
}

pub(super) fn convolution(
    x: ValueShape,
    weight: usize,
    state_values: Result<usize, ShapeError>,
) -> Result<ValueShape, ShapeError> {
    whole("weights of a convolution", x.width, weight)?;
    let before = weight - x.width;
    same("values of the state", before, state_values?)?;
    of_all(x)
}

/// Checks that queries, keys, values, decays and rates fit each other and a state of this many
/// values.
pub(super) fn linear_attention(
    how: &Recurrence,
    [q, k, v, decay, rate]: [ValueShape; 5],
    state_values: usize,
) -> Result<ValueShape, ShapeError> {
    let heads = rate.width;
    let decays = if how.decay_by_key { how.key_dim } else { 1 };
    same("decays", heads.saturating_mul(decays), decay.width)?;
    whole("heads of values", heads, v.width)?;
    whole("queries", how.key_dim, q.width)?;
    same("keys", q.width, k.width)?;
    whole("heads of keys", q.width / how.key_dim, heads)?;
    let state = matrix_state(heads, how.key_dim, v.width / heads).unwrap_or(usize::MAX);
    same("values of the state", state, state_values)?;
    for other in [q, k, decay, rate] {
        same_rows(v, other)?;
    }
    of_all(v)
}

/// Checks that values, their steps and their rates `a`, of which there are this many, fit rows of
/// `b` and `c`, and a state of this many values.
pub(super) fn selective_scan(
    [x, steps, b, c]: [ValueShape; 4],
    rates: usize,
    state_values: usize,
) -> Result<ValueShape, ShapeError> {
    same("steps", x.width, steps.width)?;
    some("values of a row", b.width)?;
    same("values read", b.width, c.width)?;
    same("rates", x.width.saturating_mul(b.width), rates)?;
    let state = matrix_state(1, b.width, x.width).unwrap_or(usize::MAX);
    same("values of the state", state, state_values)?;
    for other in [steps, b, c] {
        same_rows(x, other)?;
    }
    of_all(x)
}

/// Checks that the values `v` fit the other inputs, of `key_dim` values for each head, and a state
/// of this many values.
pub(super) fn wkv7(
    v: ValueShape,
    inputs: [ValueShape; 5],
    key_dim: usize,
    state_values: usize,
) -> Result<ValueShape, ShapeError> {
    whole("keys", key_dim, inputs[0].width)?;
    let heads = inputs[0].width / key_dim;
    whole("heads of values", heads, v.width)?;
    for other in inputs {
        same("keys", heads * key_dim, other.width)?;
        same_rows(v, other)?;
    }
    let state = matrix_state(heads, key_dim, v.width / heads).unwrap_or(usize::MAX);
    same("values of the state", state, state_values)?;
    of_all(v)
}

/// Shape of rows of values that are compared with each other.
pub(super) fn distribution(x: ValueShape) -> Result<ValueShape, ShapeError> {
    some("values of a row", x.width)?;
    Ok(x)
}

pub(super) fn top(
    x: ValueShape,
    n: usize,
    groups: Option<TopGroups>,
) -> Result<ValueShape, ShapeError> {
    let width = x.width;
    // indices are stored as floats
    at_most("values of a row", 1 << f32::MANTISSA_DIGITS, width)?;
    let mut candidates = width;
    if let Some(TopGroups { count, used }) = groups {
        whole("groups of a row", count, width)?;
        if width / count < 2 {
            return Err(ShapeError::Width {
                what: "values of a group",
                expected: 2,
                got: width / count,
            });
        }
        at_most("groups used", count, used)?;
        candidates = width / count * used;
    }
    at_most("places", candidates, n)?;
    Ok(ValueShape { width: n, ..x })
}

pub(super) fn gather(x: ValueShape, ids: ValueShape) -> Result<ValueShape, ShapeError> {
    some("values of a row", x.width)?;
    some("places", ids.width)?;
    Ok(ValueShape {
        rows: same_rows(x, ids)?,
        ..ids
    })
}

pub(super) fn scale_rows(x: ValueShape, by: ValueShape) -> Result<ValueShape, ShapeError> {
    whole("factors of a row", by.width, x.width)?;
    Ok(ValueShape {
        rows: same_rows(x, by)?,
        ..x
    })
}

pub(super) fn expert_product(
    x: ValueShape,
    matrix: MatrixShape,
    ids: ValueShape,
    experts: usize,
) -> Result<ValueShape, ShapeError> {
    whole("rows of an expert", experts, matrix.rows)?;
    let used = ids.width;
    at_most("experts of a row", experts, used)?;
    if x.width != matrix.cols {
        let all = used.saturating_mul(matrix.cols);
        same("inputs of experts", all, x.width)?;
    }
    Ok(ValueShape {
        width: used.saturating_mul(matrix.rows / experts),
        rows: same_rows(x, ids)?,
    })
}

/// Shape of low-rank products side by side, `width` values in all.
pub(super) fn lora_down(
    x: Option<ValueShape>,
    ids: Option<ValueShape>,
    width: usize,
) -> Result<ValueShape, ShapeError> {
    if let Some(ids) = ids {
        whole("low-rank values of experts", ids.width, width)?;
    }
    let rows = match (x, ids) {
        (Some(x), Some(ids)) => same_rows(x, ids)?,
        (Some(x), None) | (None, Some(x)) => x.rows,
        (None, None) => RowSet::All,
    };
    Ok(ValueShape { width, rows })
}

pub(super) fn lora_up(
    y: ValueShape,
    h: ValueShape,
    ids: Option<ValueShape>,
) -> Result<ValueShape, ShapeError> {
    same_rows(y, h)?;
    if let Some(ids) = ids {
        same_rows(y, ids)?;
        whole("results of experts", ids.width, y.width)?;
    }
    Ok(y)
}

pub(super) fn expert_bias(
    x: ValueShape,
    bias: usize,
    ids: ValueShape,
) -> Result<ValueShape, ShapeError> {
    let used = ids.width;
    whole("results of experts", used, x.width)?;
    let n = x.width / used;
    whole("biases of experts", n, bias)?;
    at_most("experts of a row", bias / n, used)?;
    Ok(ValueShape {
        rows: same_rows(x, ids)?,
        ..x
    })
}

pub(super) fn expert_sum(x: ValueShape, weights: ValueShape) -> Result<ValueShape, ShapeError> {
    let used = weights.width;
    whole("results of experts", used, x.width)?;
    Ok(ValueShape {
        width: x.width / used,
        rows: same_rows(x, weights)?,
    })
}

/// Shape of the gathered rows. The executor knows the part of them that its rank holds.
pub(super) fn all_gather(x: ValueShape, cut: Cut) -> Result<ValueShape, ShapeError> {
    some("values that stay together", cut.grain)?;
    whole("pieces of a row", cut.pieces, x.width)?;
    at_most("values of a piece", cut.width, x.width / cut.pieces)?;
    Ok(ValueShape {
        width: cut.pieces.saturating_mul(cut.width),
        ..x
    })
}

/// Shape of a result that requires rows of all tokens.
fn of_all(x: ValueShape) -> Result<ValueShape, ShapeError> {
    match x.rows {
        RowSet::All => Ok(x),
        RowSet::Outputs | RowSet::Merged(_) => Err(ShapeError::RowsDiffer),
    }
}

pub(super) fn same_rows(a: ValueShape, b: ValueShape) -> Result<RowSet, ShapeError> {
    if a.rows == b.rows {
        Ok(a.rows)
    } else {
        Err(ShapeError::RowsDiffer)
    }
}

pub(super) fn same(what: &'static str, expected: usize, got: usize) -> Result<(), ShapeError> {
    if expected == got {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            expected,
            got,
        })
    }
}

/// Checks that `got` is not zero.
fn some(what: &'static str, got: usize) -> Result<(), ShapeError> {
    at_most(what, usize::MAX, got)
}

/// There must be some, and no more than there are.
fn at_most(what: &'static str, expected: usize, got: usize) -> Result<(), ShapeError> {
    if (1..=expected).contains(&got) {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            // where there are none, the expected number is at least one
            expected: if got == 0 { 1 } else { expected },
            got,
        })
    }
}

/// `got` must be a whole number of groups.
fn whole(what: &'static str, group: usize, got: usize) -> Result<(), ShapeError> {
    if group > 0 && got > 0 && got.is_multiple_of(group) {
        Ok(())
    } else {
        Err(ShapeError::Width {
            what,
            expected: group,
            got,
        })
    }
}
