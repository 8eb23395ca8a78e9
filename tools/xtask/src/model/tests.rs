//! Generated models, and running them.

use super::*;
use clap::ValueEnum;
use octavo_analysis::bench::{self, Test};
use octavo_engine::{Engine, EngineOptions, ModelSource};

fn made(dir: &tempfile::TempDir, arch: Arch, ty: &str, seed: u64) -> Result<PathBuf, String> {
    let out = dir.path().join(format!("{}-{ty}-{seed}.gguf", arch.name()));
    run(&ModelArgs {
        arch,
        preset: Preset::Tiny,
        layers: None,
        ty: ty.to_owned(),
        pure: false,
        seed,
        mmproj: arch.sees().then(|| tower_of(&out)),
        tower: None,
        out: out.clone(),
    })?;
    Ok(out)
}

/// Returns the path of a model's tower.
fn tower_of(model: &Path) -> PathBuf {
    model.with_extension("mmproj.gguf")
}

/// Generates a few tokens and returns their hash; checks that the logits are finite.
fn generated(path: &std::path::Path) -> String {
    let options = EngineOptions {
        threads: Some(1),
        ctx: Some(64),
        ..EngineOptions::default()
    };
    let source = ModelSource::Path(path.to_owned());
    let engine = Engine::load(&source, &options, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(engine.warnings(), <[String; 0]>::default());
    let tests = Test::all(&[], &[12], &[8], &[1]);
    let samples = bench::run(&mut engine.session(), tests[0], 1, &mut |_, _| {});
    samples
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .token_hash
}

#[test]
fn every_architecture_loads_runs_and_is_deterministic() {
    let dir = tempfile::tempdir().expect("a folder");
    for &arch in Arch::value_variants() {
        let one = made(&dir, arch, "Q4_K_M", 1).expect("written");
        let bytes = std::fs::read(&one).expect("there");
        let hash = generated(&one);
        assert_eq!(
            std::fs::read(made(&dir, arch, "Q4_K_M", 1).expect("written")).expect("there"),
            bytes
        );
        assert_eq!(generated(&one), hash);
        let other = made(&dir, arch, "Q4_K_M", 2).expect("written");
        assert_ne!(std::fs::read(&other).expect("there"), bytes);
        assert_ne!(generated(&other), hash, "{}", arch.name());
    }
}

#[test]
fn every_type_can_be_had_and_weights_have_their_deviation() {
    let dir = tempfile::tempdir().expect("a folder");
    let names = Target::all()
        .map(Target::name)
        .chain(["MXFP4", "NVFP4"])
        .filter(|name| *name != "COPY");
    for name in names {
        let path = made(&dir, Arch::Qwen3, name, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
        generated(&path);
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("sound");
        let t = gguf.tensor("blk.0.ffn_gate.weight").expect("there");
        let mut x = vec![0f32; t.n_elements() as usize];
        octavo_quant::dequantize(t.ty, gguf.data(t), &mut x).expect("whole blocks");
        let variance = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
        // two-bit weights lose some of it
        let deviation = (variance * 256.0).sqrt();
        assert!((0.7..1.2).contains(&deviation), "{name}: {deviation}");
    }
    for name in ["COPY", "Q9", "I32"] {
        assert!(made(&dir, Arch::Qwen3, name, 0).is_err(), "{name}");
    }
}

#[test]
fn towers_fit_their_models() {
    use octavo_vision::pixels::{Limits, TokenLimits};
    let dir = tempfile::tempdir().expect("a folder");
    for arch in [Arch::Qwen2vl, Arch::Qwen3vl, Arch::Qwen35] {
        let text = made(&dir, arch, "Q4_K_M", 1).expect("written");
        let options = EngineOptions {
            threads: Some(1),
            ctx: Some(64),
            ..EngineOptions::default()
        };
        let source = ModelSource::Path(text.clone());
        let engine = Engine::load(&source, &options, &mut |_| {}).expect("it loads");
        let around = AROUND_IMAGES.map(|token| engine.tokenizer().token_to_id(token.as_bytes()));
        assert!(around.iter().all(Option::is_some), "{around:?}");
        let tower = Gguf::open(&tower_of(&text), &OpenOptions::default()).expect("sound");
        let tower = Arc::new(tower);
        let encoder = octavo_vision::Encoder::load(&tower, &options, 16, &mut |_| {});
        let mut encoder = encoder.unwrap_or_else(|e| panic!("{e}"));
        let unit = encoder.tower().hparams.unit();
        let side = 4 * unit;
        let planes: Vec<f32> = (0..3 * side * side).map(|i| (i % 7) as f32 / 7.0).collect();
        let pixels = octavo_vision::pixels::Pixels {
            width: side,
            height: side,
            planes: &planes,
        };
        let cells = encoder.encode(pixels, None).expect("it runs");
        let deviation = cells
            .rows
            .iter()
            .map(|x| f64::from(*x).powi(2))
            .sum::<f64>();
        let deviation = (deviation / cells.rows.len() as f64).sqrt();
        assert!((0.1..10.0).contains(&deviation), "{arch:?}: {deviation}");
        let (limits, cells) = (Limits::default(), TokenLimits::default());
        octavo_vision::EncoderCache::new(&engine, encoder, limits, cells).expect("made for it");
    }
    let out = dir.path().join("none.gguf");
    let args = ModelArgs {
        arch: Arch::Qwen3,
        preset: Preset::Tiny,
        layers: None,
        ty: "F16".to_owned(),
        pure: false,
        seed: 0,
        mmproj: Some(out.clone()),
        tower: None,
        out,
    };
    let error = run(&args).expect_err("it sees nothing");
    assert!(
        error.contains("or --arch qwen35, qwen3vl or qwen2vl, got qwen3"),
        "{error}"
    );
}

/// Zeros in place of all weights.
struct Zeros;

impl RowSource for Zeros {
    fn fill(&self, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
}

#[test]
fn named_towers_have_all_that_their_encoders_read() {
    for name in TowerName::value_variants() {
        let tower = NamedTower {
            name: *name,
            n_projected: 640,
        };
        let (mut writer, mut head) = (Writer::new(), Vec::new());
        tower.set_keys(&mut writer);
        writer.write_to(&mut head).expect("keys");
        let keys = Gguf::from_bytes(head, "keys", &OpenOptions::default()).expect("sound");
        let mut view = View::new(Path::new("tower"));
        for (key, value) in keys.keys() {
            view.set(key, value);
        }
        for t in tower.tensors() {
            let made = view.made(&t.name, &t.dims, t.ty, "zeros", Arc::new(Zeros));
            made.expect("a shape");
        }
        let loaded = octavo_vision::Tower::load(&view.open().expect("sound"));
        let loaded = loaded.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert_eq!(loaded.width(), 640);
    }
}

#[test]
fn presets_are_published_shapes() {
    let count = |arch, preset| {
        let tensors = Shape::of(arch, preset).expect("it has it").tensors();
        tensors
            .iter()
            .map(|(_, dims)| dims.iter().product::<u64>())
            .sum::<u64>()
    };
    // as published: 0.6B and 1.7B, 4B; 8B has untied output embeddings
    let sizes = [Preset::B0_6, Preset::B1_7, Preset::B4, Preset::B8];
    let counts = sizes.map(|preset| count(Arch::Qwen3, preset));
    assert_eq!(
        counts,
        [596_049_920, 1_720_574_976, 4_022_468_096, 8_190_735_360]
    );
    assert_eq!(count(Arch::Qwen3moe, Preset::B30A3), 30_532_122_624);
    assert_eq!(count(Arch::GptOss, Preset::B20), 20_914_757_184);
    assert_eq!(count(Arch::Gemma3, Preset::B1), 999_885_952);
    // as the model's name says, to the precision given
    let small = count(Arch::Qwen35, Preset::B0_8) as f64;
    assert!((small / 1e9 - 0.75).abs() < 0.05, "{small}");
    // without the 64 tokens for images
    assert_eq!(count(Arch::Gemma3, Preset::B4), 3_880_099_328);
    // language model and tower together
    let pair = |arch, preset| {
        let shape = Shape::of(arch, preset).expect("it has it");
        let tower = Tower::of(arch, preset, shape.n_embd).expect("it sees");
        let tensors = tower.tensors();
        let of_tower = tensors
            .iter()
            .map(|tensor| tensor.dims.iter().product::<u64>());
        count(arch, preset) + of_tower.sum::<u64>()
    };
    let sizes = [Preset::B2, Preset::B4, Preset::B8];
    let pairs = sizes.map(|preset| pair(Arch::Qwen3vl, preset));
    assert_eq!(pairs, [2_127_532_032, 4_437_815_808, 8_767_123_696]);
    let pairs = [Preset::B3, Preset::B7].map(|preset| pair(Arch::Qwen2vl, preset));
    assert_eq!(pairs, [3_754_622_976, 8_292_166_656]);
    for arch in [Arch::Qwen3moe, Arch::GptOss, Arch::Gemma3] {
        assert!(Shape::of(arch, Preset::B8).is_err(), "{}", arch.name());
    }
}
