//! A model on several GPUs: each has neighbouring layers, the last one the output head too. Hidden
//! states go from one to the next through the host, within a step.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::Step;
use octavo_kernels::cuda::Device;

use super::cuda::{self, Cuda, GpuLayers};
use super::lower::weight_bytes;
use super::{Backend, Candidates, Loading, LoadingSink, TapSink};
use crate::error::Error;
use octavo_model::{Model, Tap};

/// A model whose layers are on several devices. Each has its layers' keys and values, in pages of
/// the same numbers.
pub struct Pipeline<D: Device> {
    /// In the order of their layers; at least one.
    stages: Vec<Cuda<D>>,
    layers: Vec<Range<usize>>,
}

/// Divides `n_layer` layers among devices in these proportions, as llama.cpp does: the output head
/// counts as one layer more, and layer `i` of `n` is on the first device whose share, with those
/// before it, is more than `i / n`. A device may get none.
///
/// # Panics
/// If the proportions are negative, or none is above 0.
pub fn layers_of(n_layer: usize, proportions: &[f64]) -> Vec<Range<usize>> {
    let total: f64 = proportions.iter().sum();
    assert!(
        total > 0.0 && proportions.iter().all(|share| *share >= 0.0),
        "proportions {proportions:?}"
    );
    let (mut start, mut sum) = (0, 0.0);
    let of = |share: &f64| {
        sum += share;
        let is_before = |layer: &usize| (*layer as f64) < sum / total * (n_layer + 1) as f64;
        let end = start + (start..n_layer).take_while(is_before).count();
        start = end;
        end
    };
    let ends: Vec<usize> = proportions.iter().map(of).collect();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, end)| start..*end).collect()
}

impl<D: Device> Pipeline<D> {
    /// Prepares each device's layers, in proportions of them; devices without layers are left out.
    ///
    /// # Errors
    /// If layers cannot be divided, and as [`Cuda::prepare`].
    ///
    /// # Panics
    /// If there are not as many proportions as devices, and as [`layers_of`].
    pub fn prepare(
        devices: Vec<D>,
        (gguf, model): (&Arc<Gguf>, &Model),
        proportions: &[f64],
        options: &cuda::Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Pipeline<D>, Error> {
        assert_eq!(devices.len(), proportions.len(), "a share for each device");
        let n_layer = model.hparams.n_layer();
        let of_devices = devices.into_iter().zip(layers_of(n_layer, proportions));
        let used: Vec<_> = of_devices
            .filter(|(_, layers)| !layers.is_empty())
            .collect();
        if used.len() > 1 && !model.is_divisible() {
            return Err(Error::IndivisibleLayers {
                file: gguf.name().to_owned(),
                gpus: used.len(),
            });
        }
        let bytes = |layers: &Range<usize>| weight_bytes(model, layers);
        let mut left: u64 = used.iter().map(|(_, layers)| bytes(layers)).sum();
        let (mut before, mut stages, mut all) = (0, Vec::new(), Vec::new());
        for (device, layers) in used {
            left -= bytes(&layers);
            let mut of_stage = 0;
            let mut progress = |event: Loading<'_>| match event {
                Loading::Weights { done, total } => {
                    of_stage = total;
                    sink(Loading::Weights {
                        done: before + done,
                        total: before + total + left,
                    });
                }
                note @ Loading::Note(_) => sink(note),
            };
            let on = GpuLayers::whole(layers.clone());
            let stage = Cuda::prepare_part(device, gguf, model, &on, options, &mut progress)?;
            before += of_stage;
            stages.push(stage);
            all.push(layers);
        }
        Ok(Pipeline {
            stages,
            layers: all,
        })
    }

    fn last(&self) -> &Cuda<D> {
        self.stages.last().expect("there is a stage")
    }

    /// Runs all stages but the last one; returns the last one, and its input.
    fn up_to_last(&mut self, step: &Step<'_>) -> Result<(&mut Cuda<D>, Vec<f32>), Error> {
        let (last, first) = self.stages.split_last_mut().expect("there is a stage");
        let mut rows = step.input.to_vec();
        for stage in first {
            let input = &rows[..];
            rows = stage.step(&Step { input, ..*step }, None)?.to_vec();
        }
        Ok((last, rows))
    }
}

impl<D: Device> Backend for Pipeline<D> {
    fn batch(&self) -> usize {
        super::BATCH_OF_GPUS
    }

    fn step(
        &mut self,
        step: &Step<'_>,
        mut tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], Error> {
        let (last, first) = self.stages.split_last_mut().expect("there is a stage");
        let mut input = step.input;
        for stage in first {
            let tap = tap.as_mut().map(|tap| &mut **tap as &mut TapSink<'_>);
            input = stage.step(&Step { input, ..*step }, tap)?;
        }
        last.step(&Step { input, ..*step }, tap)
    }

    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        let (last, input) = self.up_to_last(step)?;
        let input = &input[..];
        last.argmax(&Step { input, ..*step })
    }

    fn max_candidates(&self, n_outputs: usize) -> usize {
        self.last().max_candidates(n_outputs)
    }

    fn candidates(&mut self, step: &Step<'_>, whole: &[usize]) -> Result<Candidates, Error> {
        let (last, input) = self.up_to_last(step)?;
        let input = &input[..];
        last.candidates(&Step { input, ..*step }, whole)
    }

    fn rows_of(&mut self, step: &Step<'_>, tap: Tap) -> Result<Vec<f32>, Error> {
        let (last, input) = self.up_to_last(step)?;
        let input = &input[..];
        last.rows_of(&Step { input, ..*step }, tap)
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, Error> {
        let last = self.stages.last_mut().expect("there is a stage");
        last.kept_rows()
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error> {
        let mut stages = self.stages.iter_mut();
        stages.try_for_each(|stage| stage.copy_page(group, from, to))
    }

    fn cache_groups(&self) -> usize {
        self.last().cache_groups()
    }

    fn n_pages(&self) -> usize {
        let pages = self.stages.iter().map(Backend::n_pages);
        pages.min().unwrap_or(0)
    }

    fn n_states(&self) -> usize {
        let states = self.stages.iter().map(Backend::n_states);
        states.max().unwrap_or(0)
    }

    fn weight_bytes(&self) -> u64 {
        self.stages.iter().map(Backend::weight_bytes).sum()
    }

    fn describe(&self) -> String {
        let stages = self.stages.iter().zip(&self.layers);
        let of_stage = |(stage, layers): (&Cuda<D>, &Range<usize>)| {
            format!("{} layers: {}", layers.len(), stage.describe())
        };
        let all: Vec<String> = stages.map(of_stage).collect();
        all.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_divided_as_by_llama_cpp() {
        let of = |n_layer, proportions: &[f64]| {
            let layers = layers_of(n_layer, proportions);
            assert_eq!(layers.last().map(|last| last.end), Some(n_layer));
            assert!(layers.windows(2).all(|pair| pair[0].end == pair[1].start));
            layers.iter().map(Range::len).collect::<Vec<_>>()
        };
        assert_eq!(of(32, &[1.0]), [32]);
        // the output head is a layer of the last one
        assert_eq!(of(32, &[1.0, 1.0]), [17, 15]);
        assert_eq!(of(3, &[1.0, 1.0]), [2, 1]);
        assert_eq!(of(32, &[3.0, 1.0]), [25, 7]);
        assert_eq!(of(36, &[24.0, 8.0, 8.0]), [23, 7, 6]);
        assert_eq!(of(4, &[0.0, 1.0, 1.0]), [0, 3, 1]);
        // less than a layer: its part is the output head, which goes with the layers before it
        assert_eq!(of(2, &[1.0, 0.1]), [2, 0]);
        assert_eq!(of(2, &[1.0, 1.0, 1.0, 1.0]), [1, 1, 0, 0]);
    }
}
