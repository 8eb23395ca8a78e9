//! The best mixes in the sizes of stock ones.

use super::{Allocator, Error};
use crate::quant_report::{Base, ModelScores, Setup, Watch, planned};
use crate::quantize::{Plan, Target};

/// Chooses the types that lose least in a file of the size of a stock mix, and scores the result on
/// the text of a report: another one than that on which the types are chosen.
///
/// # Errors
/// A model that cannot be quantized to the stock mix, a size below that of the smallest choice,
/// those of scoring.
pub fn best_of_size(
    allocator: &Allocator<'_>,
    (setup, base): (&Setup<'_>, &Base),
    target: Target,
    watch: &mut dyn Watch,
) -> Result<ModelScores, Error> {
    let stock = Plan::new(allocator.gguf, setup.importance, &setup.quantizing(target))?;
    let best = allocator.within(stock.file_bytes()?)?;
    let plan = allocator.plan(&best.choices)?;
    let name = format!("mix ≤ {target}");
    Ok(planned(setup, base, (&name, &plan), watch)?)
}
