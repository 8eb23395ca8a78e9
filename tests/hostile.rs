//! Files that are broken in many ways, passed through everything that the program does with a file:
//! whatever is wrong, the answer is a result or one line that names the file, soon, and without
//! more memory than the size of the file justifies.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gguf_rs_lite::TensorType;
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, EngineOptions, LogitsFor, ModelSource};
use octavo_engine::{GenerationParams, Observer};
use octavo_fixtures::breaking::{Rng, damage};
use octavo_fixtures::tiny::{File, Val};
use octavo_kernels::{Isa, IsaChoice, KvType};
use octavo_text::chat::Message;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

const ARCHS: [&str; 3] = ["llama", "qwen2", "qwen3"];

struct Silent;

impl Observer for Silent {
    fn text(&mut self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}

/// A file on disk that is overwritten with broken contents again and again.
struct Bench {
    _dir: tempfile::TempDir,
    path: PathBuf,
    cases: usize,
    refused: usize,
    slowest: Duration,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::TempDir::new().expect("a temporary folder");
        let path = dir.path().join("model.gguf");
        Bench {
            _dir: dir,
            path,
            cases: 0,
            refused: 0,
            slowest: Duration::ZERO,
        }
    }

    /// Does everything with a file; returns the errors. `what` names the case if it fails.
    fn examine(&mut self, bytes: &[u8], what: &dyn Fn() -> String) -> Vec<String> {
        // another file each time: an earlier case may still have the old one mapped
        std::fs::remove_file(&self.path).ok();
        std::fs::write(&self.path, bytes).expect("written");
        self.cases += 1;
        let start = Instant::now();
        let errors = examine(&self.path, self.cases);
        let took = start.elapsed();
        self.slowest = self.slowest.max(took);
        assert!(took < Duration::from_secs(10), "{}: took {took:?}", what());
        for error in &errors {
            // names are as in the file; the command line strips control characters
            let sound = !error.is_empty() && error.chars().count() < 600;
            assert!(
                sound && error.contains("model.gguf"),
                "{}: {error:?}",
                what()
            );
        }
        self.refused += usize::from(!errors.is_empty());
        errors
    }

    fn report(&self, name: &str) {
        println!(
            "{name}: {} of {} refused, slowest {:?}",
            self.refused, self.cases, self.slowest
        );
    }
}

/// Does everything that the program does with a file, each step on its own as far as it can go.
fn examine(path: &Path, turn: usize) -> Vec<String> {
    let mut errors: Vec<String> = Vec::new();
    let source = ModelSource::Path(path.to_owned());
    let gguf = match source.open(turn.is_multiple_of(2)) {
        Ok(gguf) => gguf,
        Err(error) => return vec![error.to_string()],
    };
    let text = "hello w\u{e9}\u{1F600}<|end|></s>\u{0}\n".as_bytes();
    if let Some(tokenizer) = keep(Tokenizer::from_gguf(&gguf), &mut errors) {
        for special in [false, true] {
            let options = EncodeOptions {
                add_special: special,
                parse_special: special,
            };
            if let Some(ids) = keep(tokenizer.encode(text, options), &mut errors) {
                tokenizer.decode(&ids, special);
            }
        }
    }
    // the options of the computation change from case to case
    let isas = Isa::available();
    let options = EngineOptions {
        isa: IsaChoice::Only(isas[turn % isas.len()]),
        threads: Some(1),
        kv_type: if turn.is_multiple_of(3) {
            KvType::F32.both()
        } else {
            KvType::F16.both()
        },
        ctx: Some(48),
        batch: Some(5),
        mmap: turn.is_multiple_of(2),
        repack: !turn.is_multiple_of(4),
        ..EngineOptions::default()
    };
    let Some(engine) = keep(Engine::load(&source, &options, &mut |_| {}), &mut errors) else {
        return errors;
    };
    if let Some(Some(template)) = keep(engine.chat_template(), &mut errors) {
        keep(
            template.render(&[Message::new("user", "hello")], true),
            &mut errors,
        );
    }
    let special = EncodeOptions::PROMPT;
    let Some(mut ids) = keep(engine.tokenizer().encode(text, special), &mut errors) else {
        return errors;
    };
    ids.truncate(24);
    // a vocabulary may have more tokens than there are rows: an error of its own, not of the file
    ids.retain(|&id| (id as usize) < engine.hparams().n_vocab());
    if ids.is_empty() {
        return errors;
    }
    let mut session = engine.session();
    match session.eval(&ids, Phase::Prefill, LogitsFor::All) {
        Ok(logits) => {
            assert!(logits.data.iter().all(|x| x.is_finite()) && logits.rows() == ids.len())
        }
        // the error names the value that is not finite, and the command line names the model
        Err(error) => return [errors, vec![format!("model.gguf: {error}")]].concat(),
    }
    let options = GenerationParams {
        max_tokens: Some(3),
        logprobs: Some(2),
        ..GenerationParams::default()
    };
    if let Err(error) = session.generate(&ids, &options, None, &mut Silent) {
        errors.push(format!("model.gguf: {error}"));
    }
    errors
}

fn keep<T, E: Display>(result: Result<T, E>, errors: &mut Vec<String>) -> Option<T> {
    result.map_err(|error| errors.push(error.to_string())).ok()
}

/// Returns where the header ends and the data begins.
fn header_len(file: &[u8]) -> usize {
    let gguf =
        gguf_rs_lite::Gguf::from_bytes(file.to_vec(), "sound", &Default::default()).expect("sound");
    let first = &gguf.tensors()[0];
    usize::try_from(gguf.file_offset(first).expect("its place")).expect("small")
}

#[test]
fn the_sound_files_do_everything() {
    let mut bench = Bench::new();
    for arch in ARCHS {
        let bytes = File::running(arch).bytes();
        for _ in 0..12 {
            assert_eq!(
                bench.examine(&bytes, &|| arch.to_owned()),
                Vec::<String>::new(),
                "{arch}"
            );
        }
    }
}

#[test]
fn every_cut_is_refused() {
    let mut bench = Bench::new();
    for arch in ARCHS {
        let file = File::running(arch);
        let bytes = file.bytes();
        let gguf = gguf_rs_lite::Gguf::from_bytes(bytes.clone(), "sound", &Default::default())
            .expect("sound");
        let ends = gguf
            .tensors()
            .iter()
            .map(|t| gguf.file_offset(t).expect("its place") + t.bytes);
        let ends: Vec<usize> = ends
            .map(|end| usize::try_from(end).expect("small"))
            .collect();
        let last = *ends.last().expect("tensors");
        let mut lengths: Vec<usize> = (0..=64)
            .chain((65..header_len(&bytes)).step_by(61))
            .collect();
        lengths.extend(ends.iter().flat_map(|&end| [end - 1, end, end + 1]));
        for len in lengths.into_iter().filter(|&len| len <= bytes.len()) {
            let errors = bench.examine(&bytes[..len], &|| format!("{arch} cut to {len}"));
            // the padding after the last tensor may be missing
            assert_eq!(
                errors.is_empty(),
                len >= last,
                "{arch} cut to {len} of {last}: {errors:?}"
            );
        }
    }
    bench.report("cuts");
}

#[test]
fn a_cache_of_bytes_wants_heads_of_whole_groups() {
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, File::running("llama").bytes()).expect("written");
    let load = |kv_type| {
        let options = EngineOptions {
            kv_type,
            threads: Some(1),
            ..EngineOptions::default()
        };
        Engine::load(&ModelSource::Path(path.clone()), &options, &mut |_| {}).map(|_| ())
    };
    assert!(load(KvType::Bf16.both()).is_ok());
    let error = load(KvType::Q8_0.both())
        .expect_err("heads are narrower")
        .to_string();
    assert!(
        error.starts_with("KV cache of q8_0: expected heads of a multiple of 32 values, got "),
        "{error}"
    );
}

#[test]
fn flipped_bits_and_nasty_numbers_end_well() {
    let mut bench = Bench::new();
    let mut rng = Rng(1);
    for arch in ARCHS {
        let sound = File::running(arch).bytes();
        let header = header_len(&sound);
        // every seventh byte of the header, and seeded places everywhere
        let places = (0..header).step_by(7).chain((0..500).map(|_| usize::MAX));
        for place in places.collect::<Vec<_>>() {
            let mut bytes = sound.clone();
            let at = if place < header {
                place
            } else {
                rng.below(bytes.len() - 8)
            };
            damage(&mut rng, &mut bytes, at);
            bench.examine(&bytes, &|| {
                format!("{arch}, byte {at}, {:?}", &bytes[at..at + 8])
            });
        }
    }
    bench.report("flips");
    assert!(bench.refused * 4 > bench.cases, "too mild");
}

/// Returns values that no key should accept, unless it has them already.
fn values() -> Vec<Val> {
    let mut values: Vec<Val> = [0, 1, 3, 7, 1 << 16, 1 << 31, u32::MAX]
        .map(Val::U32)
        .to_vec();
    values.extend([-1, i32::MIN].map(Val::I32));
    values.extend([1 << 40, u64::MAX].map(Val::U64));
    values.extend(
        [
            0.0,
            -1.0,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE,
            f32::MAX,
        ]
        .map(Val::F32),
    );
    values.extend([
        Val::F64(f64::NAN),
        Val::F64(1e300),
        Val::Bool(true),
        Val::Bool(false),
        Val::I8(-1),
    ]);
    values.extend(["", "x", "default", "{% for", "\u{1F600}\n\u{0}"].map(Val::from));
    values.push(Val::Str(b"\xff\xfe".to_vec()));
    values.extend([
        Vec::<u32>::new().into(),
        vec![u32::MAX; 2].into(),
        vec![0u32; 2].into(),
        vec![-1i32; 300].into(),
    ]);
    values.extend([
        vec![f32::NAN; 264].into(),
        vec![String::new(); 264].into(),
        vec!["a".to_owned(); 264].into(),
    ]);
    values
}

/// Keys that change the computation and that the valid files leave to their defaults.
const OPTIONAL: [&str; 13] = [
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "vocab_size",
    "expert_count",
    "general.alignment",
    "tokenizer.ggml.add_space_prefix",
];

#[test]
fn every_key_with_every_value_is_used_or_named() {
    let mut bench = Bench::new();
    for arch in ARCHS {
        let sound = File::running(arch);
        let mut keys: Vec<String> = sound.kv.iter().map(|(key, _)| key.clone()).collect();
        let full = |key: &&str| {
            if key.contains("ral.") || key.contains("ggml.") {
                (*key).into()
            } else {
                format!("{arch}.{key}")
            }
        };
        keys.extend(
            OPTIONAL
                .iter()
                .map(full)
                .filter(|key| !sound.kv.iter().any(|(k, _)| k == key)),
        );
        for key in &keys {
            let mut missing = sound.clone();
            missing.kv.retain(|(k, _)| k != key);
            check_named(&mut bench, &missing, key, "missing");
            for value in values() {
                let mut file = sound.clone();
                file.kv.retain(|(k, _)| k != key);
                file.kv.push((key.clone(), value.clone()));
                check_named(&mut bench, &file, key, &format!("{value:.60?}"));
            }
        }
    }
    bench.report("keys");
}

/// Checks that an error names the key, or the other thing that it no longer agrees with.
fn check_named(bench: &mut Bench, file: &File, key: &str, how: &str) {
    // the writer itself refuses an invalid alignment
    let Some(bytes) = file.try_bytes() else {
        return;
    };
    let what = || format!("{key} {how}");
    for error in bench.examine(&bytes, &what) {
        let name = key.rsplit('.').next().expect("a last part");
        let elsewhere = [
            "tensor ",
            "chat template",
            "not finite",
            "one for each token",
            // the key that the number of experts makes necessary
            "expert_used_count",
        ]
        .iter()
        .any(|what| error.contains(what));
        assert!(error.contains(name) || elsewhere, "{}: {error}", what());
    }
}

#[test]
fn tensors_that_are_dropped_doubled_renamed_or_reshaped_are_named() {
    let mut bench = Bench::new();
    for arch in ARCHS {
        let sound = File::running(arch);
        let optional = |name: &str| name == "output.weight" || name.ends_with(".bias");
        for (i, tensor) in sound.tensors.iter().enumerate() {
            let name = tensor.name.as_str();
            let mut change = |what: &str, may_run: bool, change: &dyn Fn(&mut File)| {
                let mut file = sound.clone();
                change(&mut file);
                let errors = bench.examine(&file.bytes(), &|| format!("{arch} {name} {what}"));
                match errors.first() {
                    None => assert!(may_run, "{arch} {name} {what}: runs"),
                    Some(error) => assert!(error.contains(name), "{arch} {name} {what}: {error}"),
                }
            };
            change("dropped", optional(name), &|f| drop(f.tensors.remove(i)));
            change("renamed", optional(name), &|f| f.tensors[i].name.push('x'));
            change("narrower", false, &|f| f.tensors[i].dims[0] -= 32);
            change("wider", false, &|f| f.tensors[i].dims[0] += 32);
            change("empty", false, &|f| f.tensors[i].dims[0] = 0);
            change("of three dimensions", false, &|f| {
                f.tensors[i].dims = [&tensor.dims[..], &[1, 2]].concat()
            });
            if tensor.dims.len() == 2 && tensor.dims[0] != tensor.dims[1] {
                change("turned", false, &|f| f.tensors[i].dims.reverse());
            }
            for ty in [
                TensorType::I8,
                TensorType::I32,
                TensorType::F64,
                TensorType::Q8_K,
            ] {
                change(ty.name(), false, &|f| f.retype(i, ty));
            }
            for ty in [
                TensorType::F16,
                TensorType::Q4_0,
                TensorType::Q8_0,
                TensorType::IQ4_NL,
                TensorType::MXFP4,
            ] {
                // a type that a matrix may have, with zeros for weights
                let matrix = tensor.dims.len() == 2;
                change(ty.name(), matrix, &|f| f.retype(i, ty));
            }
            for value in [f32::NAN, f32::INFINITY, f32::MAX] {
                let mut file = sound.clone();
                let n = usize::try_from(tensor.dims.iter().product::<u64>()).expect("small");
                file.tensors[i].ty = TensorType::F32;
                file.tensors[i].values = Some(vec![value; n]);
                let errors =
                    bench.examine(&file.bytes(), &|| format!("{arch} {name} full of {value}"));
                assert!(
                    value == f32::MAX || !errors.is_empty(),
                    "{arch} {name} full of {value}: runs"
                );
            }
        }
        let mut doubled = sound.bytes();
        let (from, to) = (b"blk.0.attn_q.weight", b"blk.1.attn_q.weight");
        let at = doubled
            .windows(from.len())
            .position(|w| w == from)
            .expect("the name");
        doubled[at..at + to.len()].copy_from_slice(to);
        let errors = bench.examine(&doubled, &|| format!("{arch} doubled"));
        assert!(
            errors[0].contains("blk.1.attn_q.weight") && errors[0].contains("twice"),
            "{errors:?}"
        );
    }
    bench.report("tensors");
}
