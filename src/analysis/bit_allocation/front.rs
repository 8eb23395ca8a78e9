//! The best mixes in the sizes of stock ones.

use gguf_rs_lite::Gguf;

use super::{Allocator, Error};
use crate::quant_report::{Candidate, Setup};
use crate::quantize::{Plan, Target};

/// Chooses the types that lose least in a file of the size of a stock mix, as a candidate of a
/// report, whose text is another one than that on which they are chosen.
///
/// # Errors
/// A model that cannot be quantized to the stock mix, a size below that of the smallest choice.
pub fn best_of_size<'a>(
    allocator: &Allocator<'_>,
    (gguf, setup): (&'a Gguf, &'a Setup<'_>),
    target: Target,
) -> Result<Candidate<'a>, Error> {
    let stock = Plan::new(gguf, setup.importance, &setup.quantizing(target))?;
    let best = allocator.within(stock.file_bytes()?)?;
    let plan = Plan::new(gguf, setup.importance, &allocator.options(&best.choices))?;
    Ok(Candidate::planned(&format!("mix ≤ {target}"), plan))
}
