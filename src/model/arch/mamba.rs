//! Mamba 1 (and Falcon Mamba, which norms time steps, keys and queries): no attention and no
//! feed-forward blocks.

use super::{Recurrent, Spec, mamba2};

const NORMED: &str = "ssm.dt_b_c_rms";

pub(super) const SPEC: Spec = Spec {
    name: "mamba",
    recurrent: Some(Recurrent::Mamba1),
    read_hparams: |k, h| {
        h.normed_steps = k.flag(NORMED, false)?;
        Ok(())
    },
    ..mamba2::SPEC
};
