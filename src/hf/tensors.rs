//! A folder's tensors under GGUF's names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{OpenOptions, TensorType, View};
use safetensors::Dtype;

use super::Error;
use super::awq::{Awq, FileRange, Packing, block_type, zero_words};
use super::config::Config;
use super::files::{Place, Source, Sources, bad, read, show};
use super::layout::{Layout, Rule};
use super::modules;
use super::names::{gguf_name, in_layer, named, which_expert};
use super::order::HeadOrder;
use super::rows::{Computed, Mxfp4};
use super::types::{Biases, Cut, Expert};

/// Adds every tensor of the folder.
pub(super) fn declare(
    dir: &Path,
    config: &Config,
    options: &OpenOptions,
    view: &mut View,
) -> Result<(), Error> {
    let row = config.row;
    let n_layer = config.count("num_hidden_layers")?;
    let mut sources = named(config, n_layer, read(dir, options)?)?;
    sources.extend(modules::tensors(dir, config, options)?);
    // checkpoints also have tensors that follow from the settings, and copies of tied weights
    let spare = |name: &str| {
        let is_derived = row.derived.iter().any(|end| name.ends_with(end));
        is_derived || config.tied && name == "lm_head.weight"
    };
    sources.retain(|name, _| !spare(name));
    promised(config, |name| sources.contains_key(name))?;
    let modules: BTreeSet<String> = sources
        .keys()
        .filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned()))
        .collect();
    let mut folder = Folder {
        config,
        transposed: row.transposed && !has_outputs_in_rows(config, &sources)?,
        sources,
        view,
        places: HashMap::new(),
    };
    for module in modules {
        folder.module(&module)?;
    }
    folder.experts()?;
    if let Some((name, source)) = folder.sources.first_key_value() {
        let expected = format!("a tensor of {}", row.arch);
        return Err(bad(name, source, expected, "a name that is none's"));
    }
    let mut places = folder.places;
    for (i, (name, divisors)) in config.divisors()?.into_iter().enumerate() {
        let n = divisors.len() as u64;
        view.made(
            name,
            &[n],
            TensorType::F32,
            &config.file,
            Arc::new(Computed(divisors)),
        )?;
        places.insert(name.to_owned(), Place::Extra(i));
    }
    view.sort_by_key(|tensor| places.get(tensor).copied());
    Ok(())
}

/// Checks the tensors against what the settings say of an output matrix and of biases. A model
/// without them would run, with the embedding as its output and zero biases, and give other results
/// than the trained model.
pub(super) fn promised(config: &Config, is_there: impl Fn(&str) -> bool) -> Result<(), Error> {
    let broken = |tensor: String, expected: String, got: &str| {
        Err(Error::Tensor {
            file: config.file.clone(),
            tensor,
            expected,
            got: got.to_owned(),
        })
    };
    let mut ends = config.row.ends.iter();
    let head = ends
        .find(|end| end.1 == "output")
        .map_or("lm_head", |end| end.0);
    let has_head = ["weight", "qweight"]
        .iter()
        .any(|part| is_there(&format!("{head}.{part}")));
    if config.untied && !has_head {
        let expected = "a tensor of that name, as tie_word_embeddings is not true".to_owned();
        return broken(format!("{head}.weight"), expected, "none");
    }
    let layers = config.count("num_hidden_layers")?;
    let prefix = config.row.layers;
    // no more layers than the files have: the setting is untrusted
    let has_layer = |layer: &usize| {
        let name = |module: &str| format!("{prefix}{layer}.{module}.weight");
        config.row.modules.iter().any(|m| is_there(&name(m.0)))
    };
    let layers = (0..layers).take_while(has_layer).count();
    for Biases {
        key,
        unset,
        modules,
    } in config.row.biases
    {
        let there = config.flag(key)?.unwrap_or(*unset);
        for layer in 0..layers {
            let name = |module: &&str| format!("{prefix}{layer}.{module}.bias");
            match modules
                .iter()
                .map(name)
                .find(|name| is_there(name) != there)
            {
                Some(name) if there => {
                    return broken(
                        name,
                        format!("a tensor of that name, as {key} says"),
                        "none",
                    );
                }
                Some(name) => {
                    return broken(
                        name,
                        format!("no tensor of that name, as {key} is not true"),
                        "one",
                    );
                }
                None => {}
            }
        }
    }
    Ok(())
}

/// Returns whether the experts' last matrices have as many rows as their outputs have values, as
/// transformers 5 writes them even for types whose published folders have inputs in rows.
fn has_outputs_in_rows(config: &Config, sources: &Sources) -> Result<bool, Error> {
    let width = config.count("hidden_size")?;
    let is_down = |name: &str| name.ends_with("mlp.experts.down_proj.weight");
    let down = sources.iter().find(|(name, _)| is_down(name));
    let shape = down.map_or(&[][..], |(_, source)| &source.shape);
    Ok(matches!(*shape, [_, rows, cols] if rows == width && cols != width))
}

/// A folder's tensors while they are converted one by one.
struct Folder<'a> {
    config: &'a Config,
    /// Whether experts' matrices have inputs in rows.
    transposed: bool,
    sources: Sources,
    view: &'a mut View,
    /// Places of the tensors that were added. Those of one place are in the order of addition.
    places: HashMap<String, Place>,
}

impl Folder<'_> {
    /// Adds the tensors of a module; a module without a name in GGUF is skipped.
    fn module(&mut self, module: &str) -> Result<(), Error> {
        let row = self.config.row;
        if let Some(name) = gguf_name(row, module) {
            let rule = (row.order)(self.config, &name)?;
            return self.parts(module, &[(name, rule)]);
        }
        let Some((layer, rest)) = in_layer(row, module) else {
            return Ok(());
        };
        let mut cuts = Vec::new();
        for (_, name, cut) in row.cuts.iter().filter(|cut| cut.0 == rest) {
            let name = format!("blk.{layer}.{name}");
            let rule = match cut {
                Cut::Ordered => (row.order)(self.config, &name)?,
                cut => Rule::Cut(*cut),
            };
            cuts.push((name, rule));
        }
        match cuts.is_empty() {
            true => Ok(()),
            false => self.parts(module, &cuts),
        }
    }

    /// Adds the weight and the bias of a module under these names.
    fn parts(&mut self, module: &str, names: &[(String, Rule)]) -> Result<(), Error> {
        let (weight, qweight) = (format!("{module}.weight"), format!("{module}.qweight"));
        let awq = self.config.awq.as_ref();
        let stays = awq.is_none_or(|awq| awq.plain.iter().any(|part| module.contains(part)));
        let linear = module.ends_with("_proj");
        if let Some(source) = self.sources.get(&weight).filter(|_| linear && !stays) {
            let expected = "AWQ's qweight: config.json does not list it in modules_to_not_convert";
            return Err(bad(&weight, source, expected, show(source)));
        }
        match (self.sources.get(&qweight), names) {
            (Some(_), [(name, rule)]) if !stays => {
                self.awq(module, &format!("{name}.weight"), rule.heads())?;
            }
            (Some(source), _) => {
                let expected = "a plain weight, as config.json says";
                return Err(bad(&qweight, source, expected, show(source)));
            }
            (None, _) => {
                self.mxfp4(module, names)?;
                self.part(module, "weight", names)?;
            }
        }
        for suffix in ["bias", "scale", "log", "bare"] {
            self.part(module, suffix, names)?;
        }
        Ok(())
    }

    /// Adds one tensor of a module, if the module has it.
    fn part(&mut self, module: &str, suffix: &str, names: &[(String, Rule)]) -> Result<(), Error> {
        let from = format!("{module}.{suffix}");
        let Some(source) = self.sources.remove(&from) else {
            return Ok(());
        };
        for (name, rule) in names {
            let name = match suffix {
                // it is no logarithm any more, and the module has no other tensor
                "log" | "bare" => name.clone(),
                suffix => format!("{name}.{suffix}"),
            };
            self.plain(&from, &[&source], &name, *rule)?;
        }
        Ok(())
    }

    /// Adds a plain tensor, stacked from several of one shape if each expert has one.
    fn plain(
        &mut self,
        from: &str,
        sources: &[&Source],
        name: &str,
        rule: Rule,
    ) -> Result<(), Error> {
        let source = sources[0];
        let differs = |s: &&&Source| s.dtype != source.dtype || s.shape != source.shape;
        if let Some(other) = sources.iter().find(differs) {
            let expected = format!("{} for every expert", show(source));
            return Err(bad(from, other, expected, show(other)));
        }
        let layout = Layout::of(from, source, name, rule, self.config, self.transposed)?;
        layout.declare(self.view, name, sources)?;
        self.places.insert(name.to_owned(), source.place);
        Ok(())
    }

    /// Adds a weight of MXFP4 blocks, if the module has one.
    fn mxfp4(&mut self, module: &str, names: &[(String, Rule)]) -> Result<(), Error> {
        let [blocks, scales] = ["blocks", "scales"].map(|part| format!("{module}.{part}"));
        let Some(source) = self.sources.remove(&blocks) else {
            return Ok(());
        };
        let file = source.part.file.name().to_owned();
        let (Dtype::U8, &[experts, rows, row_blocks, 16]) = (source.dtype, &source.shape[..])
        else {
            let expected = "U8 of experts, rows, blocks and 16 bytes";
            return Err(bad(&blocks, &source, expected, show(&source)));
        };
        let scales = self.exactly(&scales, Dtype::U8, &[experts, rows, row_blocks], &file)?;
        for (name, rule) in names {
            let left = rule.rows(rows);
            let (rows, order) =
                left.map_err(|expected| bad(&blocks, &source, expected, show(&source)))?;
            let dims = [row_blocks * 32, rows, experts].map(|n| n as u64);
            let made = Arc::new(Mxfp4 {
                blocks: source.part.clone(),
                scales: scales.clone(),
                row_blocks,
                order,
            });
            let name = format!("{name}.weight");
            self.view
                .made(&name, &dims, TensorType::MXFP4, &file, made)?;
            let (Place::Source(n) | Place::Extra(n)) = source.place;
            self.places.insert(name, Place::Extra(n));
        }
        Ok(())
    }

    /// Adds the stacked matrices of experts that are separate tensors.
    fn experts(&mut self) -> Result<(), Error> {
        let row = self.config.row;
        let mut found: BTreeMap<(u32, usize), BTreeMap<u32, String>> = BTreeMap::new();
        for name in self.sources.keys() {
            if let Some((layer, which, number)) = which_expert(row, name) {
                let names = found.entry((layer, which)).or_default();
                names.insert(number, name.clone());
            }
        }
        // the converter stacks all of a layer's when it has seen the last one
        let mut last: BTreeMap<u32, Place> = BTreeMap::new();
        for ((layer, _), names) in &found {
            let places = names.values().map(|name| self.sources[name].place);
            let place = places.chain(last.get(layer).copied()).max();
            last.extend(place.map(|place| (*layer, place)));
        }
        for ((layer, which), names) in found {
            let Expert { before, part, gguf } = &row.experts[which];
            let taken = names
                .iter()
                .filter_map(|(number, name)| Some((*number, name, self.sources.remove(name)?)));
            let taken: Vec<_> = taken.collect();
            let missing = (0..).zip(&taken).find(|(n, taken)| *n != taken.0);
            if let Some((number, (_, _, other))) = missing {
                let name = format!("{}{layer}.{before}{number}.{part}.weight", row.layers);
                return Err(bad(&name, other, "a matrix of every expert", "nothing"));
            }
            let sources: Vec<&Source> = taken.iter().map(|t| &t.2).collect();
            let name = format!("blk.{layer}.{gguf}.weight");
            self.plain(taken[0].1, &sources, &name, Rule::Stacked)?;
            self.places.insert(name, last[&layer]);
        }
        Ok(())
    }

    /// Takes a part of a quantized weight, which must have exactly this type and shape.
    fn exactly(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        file: &str,
    ) -> Result<FileRange, Error> {
        let expected = format!("{dtype:?} {shape:?}");
        let Some(source) = self.sources.remove(name) else {
            return Err(Error::Tensor {
                file: file.to_owned(),
                tensor: name.to_owned(),
                expected,
                got: "nothing".into(),
            });
        };
        if source.dtype != dtype || source.shape != shape {
            return Err(bad(name, &source, expected, show(&source)));
        }
        Ok(source.part)
    }

    fn awq(&mut self, module: &str, name: &str, order: Option<HeadOrder>) -> Result<(), Error> {
        let config = self
            .config
            .awq
            .as_ref()
            .expect("asked for where there is a configuration");
        let [qweight, qzeros, scales] =
            ["qweight", "qzeros", "scales"].map(|part| format!("{module}.{part}"));
        let source = &self.sources[&qweight];
        let (file, place) = (source.part.file.name().to_owned(), source.place);
        let [first, second] = *source.shape.as_slice() else {
            return Err(bad(&qweight, source, "two dimensions", show(source)));
        };
        let eightfold = second.saturating_mul(8);
        let (cols, rows) = match config.packing {
            Packing::Gemm => (first, eightfold),
            Packing::Gemv => (eightfold, first),
        };
        let group = config.group.unwrap_or(cols);
        let ty = block_type(group).filter(|_| group > 0 && cols.is_multiple_of(group));
        let Some(ty) = ty else {
            let expected = format!("rows of whole groups of {group}, and those a multiple of 32");
            return Err(bad(&qweight, source, expected, show(source)));
        };
        if order.is_some_and(|o| !rows.is_multiple_of(o.head_dim)) {
            return Err(bad(&qweight, source, "rows of whole heads", show(source)));
        }
        let groups = cols / group;
        let (of_zeros, of_scales) = match (config.packing, zero_words(groups, group)) {
            (Packing::Gemm, _) => ([groups, second], [groups, rows]),
            (Packing::Gemv, Some(words)) => ([rows, words], [rows, 8 * words]),
            (Packing::Gemv, None) => {
                let expected = "groups of 32, 64, or 128 and more, as gemv can read";
                return Err(bad(
                    &qweight,
                    source,
                    expected,
                    format!("groups of {group}"),
                ));
            }
        };
        let rest = Awq {
            packing: config.packing,
            qweight: self.exactly(&qweight, Dtype::I32, &[first, second], &file)?,
            qzeros: match config.zero_point || self.sources.contains_key(&qzeros) {
                true => Some(self.exactly(&qzeros, Dtype::I32, &of_zeros, &file)?),
                false => None,
            },
            scales: self.exactly(&scales, Dtype::F16, &of_scales, &file)?,
            cols,
            rows,
            group,
            ty,
            order,
        };
        self.view
            .made(name, &[cols as u64, rows as u64], ty, &file, Arc::new(rest))?;
        self.places.insert(name.to_owned(), place);
        Ok(())
    }
}
