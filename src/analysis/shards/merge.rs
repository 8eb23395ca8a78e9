//! Merges all shards of a measurement.

use super::{About, Content, Error, Named, index};

/// Merged result of all shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// Names printed with the figures: those of the first shard that has any units.
    pub about: About,
    /// Instruction sets that computed it, each once. Sets of one rounding class agree up to the
    /// order of their sums.
    pub isas: Vec<String>,
    /// Results of all units, in order.
    pub content: Content,
}

/// Merges the shards of a measurement, given in any order.
///
/// # Errors
/// [`enum@Error`]: shards of different measurements, a missing or duplicate shard.
pub fn merge(shards: Vec<Named>) -> Result<Merged, Error> {
    let mut shards = arrange(shards)?.into_iter();
    let Some((_, first)) = shards.next() else {
        return Err(Error::Nothing);
    };
    let mut has_units = !first.range().is_empty();
    let mut merged = Merged {
        isas: Vec::new(),
        about: first.about,
        content: first.content,
    };
    let note = |isas: &mut Vec<String>, isa: &String| {
        if !isas.contains(isa) {
            isas.push(isa.clone());
        }
    };
    if has_units {
        note(&mut merged.isas, &merged.about.isa);
    }
    for (file, shard) in shards {
        if !shard.range().is_empty() {
            note(&mut merged.isas, &shard.about.isa);
            if !has_units {
                (merged.about, has_units) = (shard.about, true);
            }
        }
        merged.content = merged
            .content
            .with(shard.content)
            .ok_or(Error::Unsound { file })?;
    }
    Ok(merged)
}

impl Content {
    /// Appends the following content; `None` if it is of another kind.
    fn with(mut self, next: Content) -> Option<Content> {
        match (&mut self, next) {
            (Content::Perplexity(all), Content::Perplexity(more)) => all.extend(more),
            (
                Content::Divergence { cut, chunks },
                Content::Divergence {
                    cut: deeper,
                    chunks: more,
                },
            ) => {
                *cut = cut.max(deeper);
                chunks.extend(more);
            }
            (Content::SmallBase(all), Content::SmallBase(more)) => all.append(more)?,
            (
                Content::FromSmallBase { chunks, slacks },
                Content::FromSmallBase {
                    chunks: more,
                    slacks: further,
                },
            ) => {
                chunks.extend(more);
                slacks.extend(further);
            }
            (Content::Imatrix(sums), Content::Imatrix(more)) => sums.merge(&more).ok()?,
            (Content::Suite(all), Content::Suite(more)) => all.extend(more),
            (Content::QuantReport(all), Content::QuantReport(more)) => match (&mut *all, more) {
                (Some(all), Some(more)) => all.append(*more)?,
                (None, more) => *all = more,
                (Some(_), None) => {}
            },
            _ => return None,
        }
        Some(self)
    }
}

/// Sorts all shards of one measurement; refuses missing and duplicate ones.
fn arrange(mut shards: Vec<Named>) -> Result<Vec<Named>, Error> {
    let Some((first, others)) = shards.split_first() else {
        return Err(Error::Nothing);
    };
    for shard in others {
        same_measurement(first, shard)?;
    }
    let of = first.1.index.of();
    shards.sort_by_key(|(_, shard)| shard.index.number());
    for pair in shards.windows(2) {
        if let [(other, a), (file, b)] = pair
            && a.index == b.index
        {
            return Err(Error::Twice {
                file: file.clone(),
                other: other.clone(),
                index: b.index,
            });
        }
    }
    let there: Vec<u32> = shards.iter().map(|(_, p)| p.index.number()).collect();
    match index::missing(&there, of) {
        Some(missing) => Err(Error::Missing {
            missing,
            of,
            got: there.len(),
        }),
        None => Ok(shards),
    }
}

/// Refuses a shard of another measurement.
fn same_measurement((other, a): &Named, (file, b): &Named) -> Result<(), Error> {
    let differs = |what: &str, expected: String, got: String| Error::Differs {
        file: file.clone(),
        other: other.clone(),
        what: what.to_owned(),
        expected,
        got,
    };
    if let Some((what, expected, got)) = a.key.difference(&b.key) {
        return Err(differs(&what, expected, got));
    }
    for (what, a, b) in [
        ("shards", a.index.of() as usize, b.index.of() as usize),
        ("units", a.units, b.units),
    ] {
        if a != b {
            return Err(differs(what, a.to_string(), b.to_string()));
        }
    }
    let kinds = [&a.content, &b.content].map(std::mem::discriminant);
    if kinds[0] == kinds[1] && a.about.n_ctx == b.about.n_ctx {
        Ok(())
    } else {
        Err(Error::Unsound { file: file.clone() })
    }
}
