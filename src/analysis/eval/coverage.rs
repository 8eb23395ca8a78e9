//! Coverage of intervals on real text: how often the 95 % interval of some chunks contains the mean
//! of all chunks of the text. The figures of every chunk are in `tools/bench/coverage-smollm2.csv`,
//! which [`measure`] wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::workspace_root;

use super::blocks::Interval;
use super::divergence::ChunkDivergence;
use super::stats::Moments;
use super::{Options, Text, divergence_beside, encode};

/// Columns of the file. Means over the scored tokens of a chunk: of the KL divergence, of the
/// difference of log-probabilities of the text's token, of their squares, and of the same top.
const HEAD: &str = "text,type,chunk,tokens,kl,kl_squares,ln_ratio,ln_ratio_squares,same_top";

/// Mean and mean square of the tokens of a chunk.
type Chunk = (f64, f64);

/// Tokens of a chunk, and the chunks of each text, type and figure.
struct Measured {
    tokens: usize,
    figures: BTreeMap<(String, String, &'static str), Vec<Chunk>>,
}

fn file() -> PathBuf {
    workspace_root().join("tools/bench/coverage-smollm2.csv")
}

fn read() -> Measured {
    let text = std::fs::read_to_string(file()).expect("the measurements");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(HEAD));
    let mut measured = Measured {
        tokens: 0,
        figures: BTreeMap::new(),
    };
    for line in lines {
        let [text, ty, _, tokens, numbers @ ..] = &line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let number = |i: usize| numbers[i].parse::<f64>().expect(line);
        measured.tokens = tokens.parse().expect(line);
        for (name, chunk) in [
            ("kl", (number(0), number(1))),
            ("ln_ratio", (number(2), number(3))),
            // of zeros and ones, the squares are the values
            ("same_top", (number(4), number(4))),
        ] {
            let key = ((*text).to_owned(), (*ty).to_owned(), name);
            measured.figures.entry(key).or_default().push(chunk);
        }
    }
    measured
}

/// How often intervals contained the mean, as fractions.
#[derive(Clone, Copy, Debug, Default)]
struct Coverage {
    by_chunk: f64,
    by_token: f64,
}

/// Counts how often the intervals of these sets of chunks contain the mean of all. As a set is a
/// part of the whole text, which is all there is, both intervals are narrower by the
/// finite-population correction, √(1 - n / N).
fn coverage(all: &[Chunk], tokens: usize, sets: &[Vec<usize>]) -> Coverage {
    let mean = all.iter().map(|chunk| chunk.0).sum::<f64>() / all.len() as f64;
    let (mut by_chunk, mut by_token) = (0, 0);
    for set in sets {
        let correction = (1.0 - set.len() as f64 / all.len() as f64).sqrt();
        let chunks = || set.iter().map(|&i| all[i]);
        let n = set.len() as f64;
        let of_set = chunks().map(|chunk| chunk.0).sum::<f64>() / n;
        let covers = |half: f64| usize::from((of_set - mean).abs() <= correction * half);
        let interval = Interval::of_blocks(chunks().map(|chunk| chunk.0)).expect("enough chunks");
        by_chunk += covers((interval.high - interval.low) / 2.0);
        let squares = chunks().map(|chunk| chunk.1).sum::<f64>() / n;
        let moments = Moments {
            sum: of_set * n * tokens as f64,
            sum2: squares * n * tokens as f64,
        };
        by_token += covers(1.96 * moments.variance(set.len() * tokens).sqrt());
    }
    let share = |count: usize| count as f64 / sets.len() as f64;
    Coverage {
        by_chunk: share(by_chunk),
        by_token: share(by_token),
    }
}

/// Draws `n` of `of` numbers without replacement.
fn draw(n: usize, of: usize, state: &mut u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..of).collect();
    for i in 0..n {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        numbers.swap(i, i + (*state >> 33) as usize % (of - i));
    }
    numbers.truncate(n);
    numbers
}

/// Returns the means over all texts, types and figures, and the lowest by chunk.
fn over_all(
    measured: &Measured,
    mut sets: impl FnMut(usize) -> Vec<Vec<usize>>,
) -> (Coverage, f64) {
    let (mut mean, mut lowest) = (Coverage::default(), 1f64);
    let n = measured.figures.len() as f64;
    for all in measured.figures.values() {
        let got = coverage(all, measured.tokens, &sets(all.len()));
        mean.by_chunk += got.by_chunk / n;
        mean.by_token += got.by_token / n;
        lowest = lowest.min(got.by_chunk);
    }
    (mean, lowest)
}

/// The figures of `docs/quantization.md`.
#[test]
fn intervals_by_chunk_cover_on_real_text() {
    let measured = read();
    let mut state = 1;
    for n in [8, 16, 32, 64] {
        let (drawn, lowest) = over_all(&measured, |of| {
            (0..2000).map(|_| draw(n, of, &mut state)).collect()
        });
        let (in_a_row, _) = over_all(&measured, |of| {
            (0..=of - n).map(|i| (i..i + n).collect()).collect()
        });
        println!("{n} chunks: drawn {drawn:.3?}, lowest {lowest:.3}, in a row {in_a_row:.3?}");
        assert!((0.91..0.96).contains(&drawn.by_chunk), "{n}: {drawn:?}");
        assert!(
            lowest > 0.79 && drawn.by_token < 0.8,
            "{n}: {lowest}, {drawn:?}"
        );
        // chunks in a row are of one topic, and say less about the others
        assert!(
            in_a_row.by_chunk > in_a_row.by_token + 0.15,
            "{n}: {in_a_row:?}"
        );
    }
}

/// Measures every chunk and writes the file: `OCTAVO_COVERAGE_MODELS` names the reference and then
/// quantizations of it, `OCTAVO_COVERAGE_TEXTS` texts, both separated by colons.
#[test]
#[ignore = "takes half an hour"]
fn measure() {
    let paths = |name: &str| -> Vec<PathBuf> {
        let value = std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
        value.split(':').map(PathBuf::from).collect()
    };
    let stem = |path: &PathBuf| path.file_stem().expect("a name").display().to_string();
    let n_ctx = 128;
    let models = paths("OCTAVO_COVERAGE_MODELS");
    let mut pool = None;
    let engines = models.iter().map(|path| {
        let options = EngineOptions {
            ctx: Some(n_ctx),
            pool: pool.clone(),
            ..EngineOptions::default()
        };
        let source = ModelSource::Path(path.clone());
        let engine = Engine::load(&source, &options, &mut |_| {}).expect("a model");
        pool = engine.pool();
        engine
    });
    let engines: Vec<Engine> = engines.collect();
    let (reference, others) = engines.split_first().expect("a reference");
    let mut out = HEAD.to_owned() + "\n";
    for path in paths("OCTAVO_COVERAGE_TEXTS") {
        let text = std::fs::read(&path).expect("a text");
        let tokens = encode(reference.tokenizer(), &text).expect("tokens");
        let n_vocab = reference.tokenizer().n_vocab();
        let text = Text::new(tokens, n_vocab, n_ctx, None).expect("long enough");
        let options = Options::default();
        let all = divergence_beside(reference, others, &text, &options, &mut ());
        for (d, model) in all.expect("scored").iter().zip(&models[1..]) {
            for (i, chunk) in d.by_chunk().iter().enumerate() {
                let start = format!("{},{},{i}", stem(&path), stem(model));
                writeln!(out, "{start},{}", line(chunk)).expect("written");
            }
        }
    }
    std::fs::write(file(), out).expect("written");
}

/// Formats the figures of a chunk.
fn line(chunk: &ChunkDivergence) -> String {
    let sums = chunk.sums();
    let n = sums.scored as f64;
    let difference = sums.nll.sum - sums.nll_base.sum;
    let squares = sums.nll.sum2 + sums.nll_base.sum2 - 2.0 * sums.nll_products;
    let means = [sums.kld.sum, sums.kld.sum2, difference, squares].map(|sum| sum / n);
    let means = means.map(|mean| format!("{mean:.4e}")).join(",");
    format!("{},{means},{:.6}", sums.scored, sums.same_top as f64 / n)
}
