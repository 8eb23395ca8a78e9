//! Recurrent layers: their choice and the size of their state.

use gguf_rs_lite::Value;
use octavo_kernels::{KeyHeads, matrix_state};

use crate::arch::{Arch, Recurrent, Spec};
use crate::blocks::Block;
use crate::error::Error;
use crate::keys::{Keys, PerLayer, Source};

use super::{MAX_HEADS, MAX_WIDTH, TokenMixer};

/// Maximum number of values in a layer's state.
const MAX_STATE: usize = 1 << 26;
/// Maximum convolution kernel, in rows.
const MAX_KERNEL: usize = 64;

/// Sizes of every recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentHparams {
    /// Kernel of the convolution in rows, including the token's own.
    pub kernel: usize,
    /// Total width of all value heads.
    pub inner: usize,
    /// Width of a key: the rows of state kept for each value.
    pub state_size: usize,
    /// Number of value heads.
    pub heads: usize,
    /// Number of key heads; divides `heads`.
    pub groups: usize,
    /// Values that time steps are projected from, in Mamba 1 and PLaMo 2.
    pub rank: usize,
    /// Ranks of RWKV's projections.
    pub mix: Option<MixRanks>,
}

/// Ranks of the low-rank projections of RWKV 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixRanks {
    /// Of decays.
    pub decay: usize,
    /// Of the rates at which keys are replaced.
    pub rate: usize,
    /// Of the share of the first layer's values.
    pub value: usize,
    /// Of the result's gate.
    pub gate: usize,
}

impl RecurrentHparams {
    /// Returns the total width of all queries, or of all keys.
    pub fn key_width(&self) -> usize {
        self.groups * self.state_size
    }

    /// Returns the number of values in a layer's state: the convolution's and the heads'.
    pub(super) fn state_values(&self, arch: Arch) -> usize {
        let before = self.kernel - 1;
        let matrices = || {
            let matrices = matrix_state(self.heads, self.state_size, self.value_dim());
            matrices.expect("checked when they were read")
        };
        match arch.spec().recurrent {
            Some(Recurrent::ShortConv) => before * self.inner,
            Some(Recurrent::Mamba1 | Recurrent::Plamo2) => before * self.inner + matrices(),
            // the rows before of both halves of a layer
            Some(Recurrent::Rwkv7) => 2 * before * self.inner + matrices(),
            _ => before * (self.inner + 2 * self.key_width()) + matrices(),
        }
    }

    /// Returns the width of a value head.
    pub fn value_dim(&self) -> usize {
        self.inner / self.heads
    }
}

/// Returns the token mixing of each layer.
pub(super) fn token_mixers(
    k: &mut Keys<'_>,
    spec: &Spec,
    n_head_kv: &PerLayer,
    n_ff: &PerLayer,
) -> Result<Vec<TokenMixer>, Error> {
    let without_keys = |kv: usize| match kv {
        0 => TokenMixer::Recurrence,
        _ => TokenMixer::Attention,
    };
    if spec.block == Block::OneOfBoth {
        let mixer = |(kv, n_ff): (usize, usize)| match n_ff {
            0 => without_keys(kv),
            _ => TokenMixer::Absent,
        };
        return Ok(n_head_kv.iter().zip(n_ff.iter()).map(mixer).collect());
    }
    Ok(match spec.recurrent {
        None => n_head_kv.iter().map(|_| TokenMixer::Attention).collect(),
        Some(Recurrent::Mamba2Beside) => n_head_kv.iter().map(|_| TokenMixer::Both).collect(),
        Some(Recurrent::Rwkv7) => n_head_kv.iter().map(|_| TokenMixer::Recurrence).collect(),
        Some(
            Recurrent::KimiDelta
            | Recurrent::Mamba1
            | Recurrent::Mamba2
            | Recurrent::Plamo2
            | Recurrent::ShortConv,
        ) => n_head_kv.iter().map(without_keys).collect(),
        Some(Recurrent::DeltaNet(_)) => by_interval(k, n_head_kv.iter().count())?,
    })
}

/// Reads a flag for each layer, or the interval of the attention layers.
fn by_interval(k: &mut Keys<'_>, n_layer: usize) -> Result<Vec<TokenMixer>, Error> {
    const FLAGS: &str = "attention.recurrent_layers";
    let of = |recurs: bool| match recurs {
        true => TokenMixer::Recurrence,
        false => TokenMixer::Attention,
    };
    if let Some(value) = k.get(FLAGS) {
        let flag = |v: Value<'_>| match v {
            Value::Bool(flag) => Some(flag),
            v => v.as_int().map(|flag| flag != 0),
        };
        let flags: Option<Vec<bool>> = match &value {
            Value::Array(flags) => flags.iter().map(flag).collect(),
            _ => None,
        };
        // flags beyond the last layer belong to multi-token prediction layers
        let flags = flags
            .filter(|flags| flags.len() >= n_layer)
            .ok_or_else(|| {
                let expected = format!("a flag for each of {n_layer} layers");
                k.bad(k.full(FLAGS), expected, crate::keys::show(&value))
            })?;
        let shown: Vec<serde_json::Value> = flags.iter().map(|flag| (*flag).into()).collect();
        k.note(k.full(FLAGS), shown, Source::File);
        return Ok(flags[..n_layer].iter().copied().map(of).collect());
    }
    let range = 1..=i32::MAX as usize;
    let interval = k.count("full_attention_interval", range, Some(4))?.value;
    Ok((1..=n_layer)
        .map(|n| of(!n.is_multiple_of(interval)))
        .collect())
}

/// Reads the sizes of recurrent layers, if an architecture has any; delta nets of Kimi have as many
/// heads as attention, `n_head`.
pub(super) fn read(
    k: &mut Keys<'_>,
    spec: &Spec,
    n_embd: usize,
    n_head: usize,
) -> Result<Option<RecurrentHparams>, Error> {
    let Some(recurrent) = spec.recurrent else {
        return Ok(None);
    };
    let none = RecurrentHparams {
        kernel: 1,
        inner: n_embd,
        state_size: 1,
        heads: 1,
        groups: 1,
        rank: 0,
        mix: None,
    };
    match recurrent {
        Recurrent::ShortConv => {
            let kernel = k.count("shortconv.l_cache", 1..=MAX_KERNEL, None)?.value;
            return Ok(Some(RecurrentHparams { kernel, ..none }));
        }
        Recurrent::Rwkv7 => return rwkv7(k, none).map(Some),
        Recurrent::Mamba1 => return mamba1(k, none).map(Some),
        _ => {}
    }
    let kernel = k.count("ssm.conv_kernel", 1..=MAX_KERNEL, None)?.value;
    if recurrent == Recurrent::KimiDelta {
        let most = MAX_WIDTH / n_head.max(1);
        let state_size = k.count("kda.head_dim", 1..=most, None)?.value;
        let sizes = RecurrentHparams {
            kernel,
            inner: n_head * state_size,
            state_size,
            heads: n_head,
            groups: n_head,
            ..none
        };
        if n_head == 0 {
            let key = k.full("attention.head_count");
            return Err(k.bad(key, "heads of delta nets", "0"));
        }
        check_state(k, "kda.head_dim", &sizes)?;
        return Ok(Some(sizes));
    }
    let inner = k.count("ssm.inner_size", 1..=MAX_WIDTH, None)?.value;
    let state_size = k.count("ssm.state_size", 1..=MAX_WIDTH, None)?.value;
    let heads = k.count("ssm.time_step_rank", 1..=MAX_HEADS, None)?.value;
    let (groups, rank) = match recurrent {
        Recurrent::Plamo2 => {
            k.count("ssm.group_count", 0..=0, Some(0))?;
            (1, (n_embd / 16).max(64))
        }
        _ => (k.count("ssm.group_count", 1..=heads, None)?.value, 0),
    };
    let sizes = RecurrentHparams {
        kernel,
        inner,
        state_size,
        heads,
        groups,
        rank,
        mix: None,
    };
    check(k, recurrent, &sizes)?;
    Ok(Some(sizes))
}

/// Reads the sizes of Mamba 1, in which each value has a state of its own.
fn mamba1(k: &mut Keys<'_>, none: RecurrentHparams) -> Result<RecurrentHparams, Error> {
    let sizes = RecurrentHparams {
        kernel: k.count("ssm.conv_kernel", 1..=MAX_KERNEL, None)?.value,
        inner: k.count("ssm.inner_size", 1..=MAX_WIDTH, None)?.value,
        state_size: k.count("ssm.state_size", 1..=MAX_WIDTH, None)?.value,
        rank: k.count("ssm.time_step_rank", 1..=MAX_WIDTH, None)?.value,
        ..none
    };
    check_state(k, "ssm.state_size", &sizes)?;
    Ok(sizes)
}

/// Reads the sizes of RWKV 7, whose heads fill the embedding width, and whose halves of a layer
/// each read the row before.
fn rwkv7(k: &mut Keys<'_>, none: RecurrentHparams) -> Result<RecurrentHparams, Error> {
    const SIZE: &str = "wkv.head_size";
    let n_embd = none.inner;
    k.count("token_shift_count", 2..=2, Some(2))?;
    let state_size = k.count(SIZE, 1..=MAX_WIDTH, None)?.value;
    if !n_embd.is_multiple_of(state_size) {
        let expected = format!("heads that fill embedding_length {n_embd}");
        return Err(k.bad(k.full(SIZE), expected, state_size.to_string()));
    }
    let mut rank = |of: &str| {
        let key = format!("attention.{of}_lora_rank");
        Ok::<usize, Error>(k.count(&key, 1..=MAX_WIDTH, None)?.value)
    };
    let mix = MixRanks {
        decay: rank("decay")?,
        rate: rank("iclr")?,
        value: rank("value_residual_mix")?,
        gate: rank("gate")?,
    };
    let sizes = RecurrentHparams {
        kernel: 2,
        state_size,
        heads: n_embd / state_size,
        groups: n_embd / state_size,
        mix: Some(mix),
        ..none
    };
    check_state(k, SIZE, &sizes)?;
    Ok(sizes)
}

fn check(k: &Keys<'_>, recurrent: Recurrent, sizes: &RecurrentHparams) -> Result<(), Error> {
    let &RecurrentHparams {
        inner,
        state_size,
        heads,
        groups,
        ..
    } = sizes;
    if !heads.is_multiple_of(groups) {
        let expected = format!("a divisor of the {heads} heads");
        return Err(k.bad(k.full("ssm.group_count"), expected, groups.to_string()));
    }
    let (fits, expected) = match recurrent {
        Recurrent::DeltaNet(_) => (
            Some(inner) == heads.checked_mul(state_size),
            format!("{heads} heads of {state_size} values"),
        ),
        _ => (
            inner.is_multiple_of(heads) && inner.is_multiple_of(groups),
            format!("{heads} heads of equal width, in {groups} equal groups"),
        ),
    };
    if !fits {
        return Err(k.bad(k.full("ssm.inner_size"), expected, inner.to_string()));
    }
    if groups.checked_mul(state_size).is_none_or(|n| n > MAX_WIDTH) {
        let expected = format!("{groups} keys of together at most {MAX_WIDTH} values");
        return Err(k.bad(k.full("ssm.state_size"), expected, state_size.to_string()));
    }
    check_state(k, "ssm.state_size", sizes)
}

/// Refuses a state that is too large; `key` has the size of keys.
fn check_state(k: &Keys<'_>, key: &str, sizes: &RecurrentHparams) -> Result<(), Error> {
    let size = sizes.state_size;
    let state = matrix_state(sizes.heads, size, sizes.value_dim());
    if state.is_none_or(|values| values > MAX_STATE) {
        let expected = format!("a layer's state of at most {MAX_STATE} values");
        return Err(k.bad(k.full(key), expected, size.to_string()));
    }
    Ok(())
}

impl Recurrent {
    /// Returns the assignment of key heads to value heads.
    pub(crate) fn key_heads(self) -> KeyHeads {
        match self {
            Recurrent::DeltaNet(heads) => heads,
            Recurrent::KimiDelta
            | Recurrent::ShortConv
            | Recurrent::Mamba1
            | Recurrent::Mamba2
            | Recurrent::Plamo2
            | Recurrent::Rwkv7
            | Recurrent::Mamba2Beside => KeyHeads::Grouped,
        }
    }
}
