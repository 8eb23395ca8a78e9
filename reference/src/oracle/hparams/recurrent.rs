//! Recurrent layers: their choice and the size of their state.

use super::super::architecture::{Architecture, Recurrent};
use super::MAX_WIDTH;
use super::heads::Heads;
use super::keys::Keys;
use crate::Error;
use gguf_rs_lite::Value;

/// Maximum values of a state.
const MAX_STATE: usize = 1 << 24;

const LAYERS: &str = "attention.recurrent_layers";

/// State of a recurrent layer.
#[derive(Debug)]
pub(in super::super) struct State {
    /// Rows a convolution covers, including the latest.
    pub(in super::super) kernel: usize,
    /// Total width of all heads.
    pub(in super::super) inner: usize,
    /// State size: the number of values each value of a head expands to.
    pub(in super::super) size: usize,
    pub(in super::super) heads: usize,
    /// Groups of heads that share the vectors that write and read the state.
    pub(in super::super) groups: usize,
    /// Number of values that time steps are projected from.
    pub(in super::super) rank: usize,
    /// Keys, queries and time steps are normed without weights.
    pub(in super::super) normed: bool,
    /// Ranks of RWKV's decay, rate, share of values, and gate.
    pub(in super::super) ranks: [usize; 4],
}

const NONE: State = State {
    kernel: 1,
    inner: 1,
    size: 1,
    heads: 1,
    groups: 1,
    rank: 0,
    normed: false,
    ranks: [0; 4],
};

/// Reads the state's sizes, and which layers have one.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
    heads: &Heads,
) -> Result<(Option<State>, Vec<bool>), Error> {
    let n_layer = heads.n_head.len();
    let Some(recurrent) = architecture.recurrent else {
        return Ok((None, vec![false; n_layer]));
    };
    let layers = match recurrent {
        Recurrent::DeltaNet { .. } => read_layers(keys, n_layer)?,
        Recurrent::Rwkv7 => vec![true; n_layer],
        _ => heads.n_head_kv.iter().map(|&heads| heads == 0).collect(),
    };
    let state = match recurrent {
        Recurrent::ShortConv => State {
            kernel: read_kernel(keys, "shortconv.l_cache")?,
            inner: n_embd,
            ..NONE
        },
        Recurrent::Mamba1 { .. } => {
            let state = State {
                kernel: read_kernel(keys, "ssm.conv_kernel")?,
                inner: keys.count("ssm.inner_size")?,
                size: keys.count("ssm.state_size")?,
                rank: keys.count("ssm.time_step_rank")?,
                normed: keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false),
                ..NONE
            };
            check_sizes(keys, &state)?;
            state
        }
        Recurrent::Plamo2 => {
            let state = State {
                kernel: read_kernel(keys, "ssm.conv_kernel")?,
                inner: keys.count("ssm.inner_size")?,
                size: keys.count("ssm.state_size")?,
                heads: keys.count("ssm.time_step_rank")?,
                rank: (n_embd / 16).max(64),
                ..NONE
            };
            check_sizes(keys, &state)?;
            state
        }
        Recurrent::Rwkv7 => read_rwkv(keys, n_embd)?,
        Recurrent::KimiDelta => {
            let n_head = heads.n_head.iter().copied().max().unwrap_or(1);
            let size = keys.count("kda.head_dim")?;
            let state = State {
                kernel: read_kernel(keys, "ssm.conv_kernel")?,
                inner: n_head.saturating_mul(size),
                size,
                heads: n_head,
                groups: n_head,
                ..NONE
            };
            check_sizes(keys, &state)?;
            state
        }
        _ => read_state(keys, recurrent)?,
    };
    Ok((Some(state), layers))
}

/// Reads the sizes of RWKV 7's state, and the ranks of its projections.
fn read_rwkv(keys: &Keys<'_>, n_embd: usize) -> Result<State, Error> {
    let size = keys.count("wkv.head_size")?;
    if !n_embd.is_multiple_of(size) {
        let expected = format!("heads that fill {n_embd} values");
        return Err(keys.bad("wkv.head_size", expected, size));
    }
    let rank = |name: &str| keys.count(&format!("attention.{name}_lora_rank"));
    let state = State {
        inner: n_embd,
        size,
        heads: n_embd / size,
        ranks: [
            rank("decay")?,
            rank("iclr")?,
            rank("value_residual_mix")?,
            rank("gate")?,
        ],
        ..NONE
    };
    check_sizes(keys, &state)?;
    Ok(state)
}

/// Reads the recurrent layers: by default all but every fourth.
fn read_layers(keys: &Keys<'_>, n_layer: usize) -> Result<Vec<bool>, Error> {
    if let Some(values) = keys.array(LAYERS, n_layer)? {
        let flags = values.iter().map(|value| match value {
            Value::Bool(flag) => Some(*flag),
            other => other.as_int().map(|v| v != 0),
        });
        let flags: Option<Vec<bool>> = flags.collect();
        return flags.ok_or_else(|| keys.bad(LAYERS, "an array of flags", "other values"));
    }
    let interval = keys.optional_count("full_attention_interval")?.unwrap_or(4);
    Ok((1..=n_layer).map(|n| !n.is_multiple_of(interval)).collect())
}

/// Reads the kernel of a convolution, in rows.
fn read_kernel(keys: &Keys<'_>, key: &str) -> Result<usize, Error> {
    let kernel = keys.count(key)?;
    if kernel > MAX_WIDTH {
        return Err(keys.bad(key, format!("at most {MAX_WIDTH} rows"), kernel));
    }
    Ok(kernel)
}

fn read_state(keys: &Keys<'_>, recurrent: Recurrent) -> Result<State, Error> {
    let state = State {
        kernel: read_kernel(keys, "ssm.conv_kernel")?,
        inner: keys.count("ssm.inner_size")?,
        size: keys.count("ssm.state_size")?,
        heads: keys.count("ssm.time_step_rank")?,
        groups: keys.count("ssm.group_count")?,
        ..NONE
    };
    if !state.heads.is_multiple_of(state.groups) {
        let expected = format!("a divisor of the {} heads", state.heads);
        return Err(keys.bad("ssm.group_count", expected, state.groups));
    }
    let (fits, expected) = match recurrent {
        Recurrent::DeltaNet { .. } => (
            Some(state.inner) == state.heads.checked_mul(state.size),
            format!("{} heads of {} values", state.heads, state.size),
        ),
        _ => (
            state.inner.is_multiple_of(state.heads),
            format!("{} heads of equal width", state.heads),
        ),
    };
    if !fits {
        return Err(keys.bad("ssm.inner_size", expected, state.inner));
    }
    check_sizes(keys, &state)?;
    Ok(state)
}

/// Bounds the allocations, and with them sums and products of these numbers.
fn check_sizes(keys: &Keys<'_>, state: &State) -> Result<(), Error> {
    for (key, value) in [
        ("ssm.inner_size", Some(state.inner)),
        ("ssm.group_count", state.groups.checked_mul(state.size)),
    ] {
        if value.is_none_or(|value| value > MAX_WIDTH) {
            let expected = format!("rows of at most {MAX_WIDTH} values");
            return Err(keys.bad(
                key,
                expected,
                value.map_or("more".into(), |v| v.to_string()),
            ));
        }
    }
    let values = state.inner.checked_mul(state.size);
    if values.is_none_or(|values| values > MAX_STATE) {
        let expected = format!("a state of at most {MAX_STATE} values");
        return Err(keys.bad("ssm.state_size", expected, state.size));
    }
    Ok(())
}
