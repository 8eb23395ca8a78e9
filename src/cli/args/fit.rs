//! Options of how to fit a model into a GPU's memory.

use clap::Args;
use octavo_engine::Fit;
use octavo_kernels::cuda::RESERVED;

/// Options of how to fit a model into a GPU's memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(crate) struct FitArgs {
    /// Whether a model that does not fit into a GPU's memory gets a smaller context, then keeps
    /// experts on the CPU, then layers, as far as -c, --gpu-layers, --n-cpu-moe and their like do
    /// not say otherwise (also: -fit) [default: on]
    #[arg(long, value_name = "WHEN", hide_possible_values = true)]
    fit: Option<When>,
    /// Memory that --fit leaves free on the GPU, in MiB; 256 are kept free in any case (also:
    /// -fitt) [default: 256]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32))]
    fit_target: Option<u32>,
    /// Smallest context that --fit chooses, in tokens (also: -fitc) [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    fit_ctx: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum When {
    On,
    Off,
}

impl FitArgs {
    /// Returns how to fit a model; `None` for not at all.
    pub(crate) fn fit(&self) -> Option<Fit> {
        let least = Fit::default();
        let margin = self.fit_target.map(|mib| u64::from(mib) << 20);
        (self.fit != Some(When::Off)).then(|| Fit {
            margin: margin.unwrap_or(RESERVED),
            min_ctx: self.fit_ctx.map_or(least.min_ctx, |n| n as usize),
            ..least
        })
    }

    /// Returns the first option that asks for it, as it was given.
    pub(crate) fn option(&self) -> Option<String> {
        let on = self.fit.filter(|when| *when == When::On);
        let details = || self.detail();
        on.map(|_| "--fit on".to_owned()).or_else(details)
    }

    /// Returns the first option of its details, as it was given.
    fn detail(&self) -> Option<String> {
        let target = self.fit_target.map(|mib| format!("--fit-target {mib}"));
        target.or_else(|| self.fit_ctx.map(|n| format!("--fit-ctx {n}")))
    }

    /// Returns the option that says nothing because of `--fit off`.
    pub(crate) fn useless(&self) -> Option<String> {
        let is_off = self.fit == Some(When::Off);
        self.detail().filter(|_| is_off)
    }
}
