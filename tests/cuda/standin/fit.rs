//! Models that do not fit into a GPU's memory as they are asked for: what is chosen instead, by the
//! memory that the driver says is free, and that results stay the same.

use std::path::PathBuf;

use octavo_engine::backend::Phase;
use octavo_engine::backend::cuda::Error;
use octavo_engine::{
    CpuExperts, DeviceChoice, Engine, EngineOptions, Fit, Loading, LogitsFor, ModelSource,
};
use octavo_fixtures::shared;
use octavo_kernels::cuda::{Needs, RESERVED};

use super::failures::Controls;
use super::{driver, octavo, run};

/// Bytes that the GPU's self-test has.
const SELF_TEST: u64 = 8000;

/// Memory of a GPU without limits, for small models.
const PLENTY: u64 = 4 << 30;

/// Returns a small mixture of two layers.
fn mixture() -> Option<PathBuf> {
    shared("arch/models/qwen3moe-Q4_K_M.gguf")
}

/// Options of a context of this many tokens, which may be reduced to 64.
fn options(ctx: usize) -> EngineOptions {
    EngineOptions {
        device: DeviceChoice::Cuda(0),
        threads: Some(2),
        ctx: Some(ctx),
        batch: Some(16),
        fit: Some(Fit {
            min_ctx: 64,
            ctx_is_default: true,
            kv_is_default: true,
            ..Fit::default()
        }),
        ..EngineOptions::default()
    }
}

/// Loads the mixture; returns the lines about it as well.
fn load(options: &EngineOptions) -> (Result<Engine, octavo_engine::Error>, Vec<String>) {
    let mut lines = Vec::new();
    let mut sink = |event: Loading<'_>| {
        if let Loading::Note(line) = event {
            lines.push(line.to_owned());
        }
    };
    let source = ModelSource::Path(mixture().expect("it was there"));
    (Engine::load(&source, options, &mut sink), lines)
}

/// Returns what the mixture takes without its first `n` layers' experts.
fn needs(controls: &Controls, ctx: usize, n: usize) -> Needs {
    controls.configure(&format!("free={RESERVED}"));
    let cpu_experts = CpuExperts {
        first: n,
        ..CpuExperts::default()
    };
    let options = EngineOptions {
        fit: None,
        cpu_experts,
        ..options(ctx)
    };
    match load(&options).0.err() {
        Some(octavo_engine::Error::Cuda(Error::TooLarge { needs, .. })) => needs,
        other => panic!("{other:?}"),
    }
}

/// Returns the tokens of a greedy generation, and the logits of each.
fn generated(engine: &Engine) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (mut session, mut token) = (engine.session(), 7);
    let mut step = || {
        let logits = session.eval(&[token], Phase::Decode, LogitsFor::Last);
        let logits = logits.expect("it runs").data;
        let largest = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        token = largest.expect("logits").0 as u32;
        (token, logits)
    };
    (0..40).map(|_| step()).unzip()
}

/// Runs a test of this file on the stand-in.
fn inside(test: &str) {
    let Some(driver) = driver() else { return };
    if mixture().is_none() {
        return;
    }
    let ended = driver.inside(&format!("cuda::standin::fit::{test}"), "");
    let text = ended.text(test);
    assert!(text.contains("all is well"), "{text}");
}

#[test]
fn a_mixture_that_does_not_fit_generates_the_same() {
    inside("in_less_and_less_memory");
}

/// A plan of the mixture, and the end of the line that tells it.
struct Case {
    /// Bytes that are free beside those that always are.
    free: u64,
    /// 0 for what is left.
    ctx: usize,
    cpu_experts: usize,
    gpu_layers: usize,
    says: &'static str,
}

impl Case {
    fn new(free: u64, [ctx, cpu_experts, gpu_layers]: [usize; 3], says: &'static str) -> Case {
        Case {
            free,
            ctx,
            cpu_experts,
            gpu_layers,
            says,
        }
    }

    /// Loads the mixture in this memory, and again as the plan says where nothing is to be fitted;
    /// checks that the logits are the same, and returns them with the tokens.
    fn run(&self, controls: &Controls) -> (Vec<u32>, Vec<Vec<f32>>) {
        let says = self.says;
        controls.configure(&format!("free={}", self.free + RESERVED + SELF_TEST));
        let (engine, lines) = load(&options(512));
        let engine = engine.unwrap_or_else(|error| panic!("{says}: {error}"));
        let told = lines.iter().find(|line| line.contains("so it gets"));
        let told = told.map_or("", String::as_str);
        let is_told = told.ends_with(says) && told.is_empty() == says.is_empty();
        assert!(is_told, "{says}: {lines:?}");
        let ctx = engine.n_ctx();
        assert!([0, ctx].contains(&self.ctx), "{ctx}: {lines:?}");
        let fitted = generated(&engine);
        drop(engine);
        controls.configure(&format!("free={PLENTY}"));
        let asked = EngineOptions {
            cpu_experts: CpuExperts {
                first: self.cpu_experts,
                ..CpuExperts::default()
            },
            gpu_layers: Some(self.gpu_layers),
            fit: None,
            ..options(ctx)
        };
        let engine = load(&asked).0.expect("it loads");
        assert!(generated(&engine) == fitted, "{says}");
        drop(engine);
        assert_eq!(controls.number(b"octavo_standin_settle\0"), 0, "left over");
        fitted
    }
}

/// Less and less memory takes context, then experts, layer by layer, then whole layers; the tokens
/// stay the same, and every logit that of the same model placed so by its options.
#[test]
#[ignore = "runs on the stand-in"]
fn in_less_and_less_memory() {
    let controls = Controls::new();
    let [all, one, none] = [0, 1, 2].map(|n| needs(&controls, 64, n).total());
    let whole = needs(&controls, 512, 0).total();
    let context = "so it gets a context of 320 instead of 512 tokens";
    let short = "so it gets a context of 64 instead of 512 tokens";
    let of_one = "the experts of the first layer on the CPU";
    let of_one_short = "of 64 instead of 512 tokens, and the experts of the first layer on the CPU";
    let of_both = "the experts of the first 2 layers on the CPU";
    let layer = "1 of 2 layers on the CPU, and the experts of the first 2 layers on the CPU";
    let cases = [
        Case::new(whole, [512, 0, 2], ""),
        Case::new(whole - 1, [320, 0, 2], context),
        Case::new(all, [64, 0, 2], short),
        Case::new(all - 1, [0, 1, 2], of_one),
        Case::new(one, [64, 1, 2], of_one_short),
        Case::new(one - 1, [0, 2, 2], of_both),
        Case::new(none - 1, [0, 2, 1], layer),
    ];
    let all: Vec<_> = cases.iter().map(|case| case.run(&controls)).collect();
    for (case, (tokens, logits)) in cases.iter().zip(&all) {
        assert!(*tokens == all[0].0, "{}", case.says);
        assert!(case.cpu_experts > 0 || *logits == all[0].1, "{}", case.says);
    }
    println!("all is well");
}

#[test]
fn a_card_that_is_taken_meanwhile_is_asked_again() {
    inside("while_memory_is_taken");
}

/// Another program takes memory after the driver was asked how much is free, before the model's
/// allocation is checked once more.
#[test]
#[ignore = "runs on the stand-in"]
fn while_memory_is_taken() {
    let controls = Controls::new();
    let (whole, small) = (needs(&controls, 512, 0), needs(&controls, 64, 1));
    controls.configure(&format!("free={PLENTY}"));
    let tokens = generated(&load(&options(512)).0.expect("it loads")).0;
    let free = whole.total() + RESERVED + SELF_TEST;
    let taken = whole.total() - small.total();
    controls.configure(&format!("free={free} taken=1:{taken}"));
    let (engine, lines) = load(&options(512));
    let engine = engine.expect("it loads");
    let said = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(said("another program has taken memory: "), "{lines:?}");
    assert!(
        said("64 instead of 512 tokens, and the experts of the first layer"),
        "{lines:?}"
    );
    assert_eq!(generated(&engine).0, tokens);
    // too much is taken for any plan
    controls.configure(&format!("free={free} taken=1:{}", whole.total()));
    let (none, lines) = load(&options(512));
    let error = none.err().expect("nothing fits").to_string();
    assert!(error.contains(" and 0 MiB are free"), "{error}, {lines:?}");
    drop(engine);
    println!("all is well");
}

/// A GPU chosen by its number is the one whose memory counts.
#[test]
fn each_of_two_gpus_has_its_own_memory() {
    let Some(driver) = driver() else { return };
    let settings = format!("devices=2 free={},{PLENTY}", RESERVED + (2 << 20));
    let arguments = [
        "run",
        "-p",
        "1+1=",
        "-n",
        "8",
        "--ignore-eos",
        "--device",
        "cuda",
        "-c",
        "64",
    ];
    let text_of = |more: &[&str]| {
        let mut command = octavo(&driver, &settings);
        run(command
            .args(arguments)
            .args(["-b", "16", "-t", "2"])
            .args(more))
    };
    let answer = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with("octavo: "));
        let text = lines.collect::<Vec<_>>().join("\n");
        text.split("prompt 4 tokens")
            .next()
            .expect("a part")
            .to_owned()
    };
    let first = text_of(&["--gpu", "0"]).text("the smaller GPU");
    let second = text_of(&["--gpu", "1"]).text("the larger GPU");
    let of_first = "GPU 0 (a stand-in): the model would take ";
    assert!(
        first.contains(of_first) && first.contains(" layers on the CPU"),
        "{first}"
    );
    assert!(!second.contains("would take"), "{second}");
    assert_eq!(answer(&first), answer(&second));
    // options that forbid it, or that ask for more than there is
    for (more, says) in [
        (&["--gpu", "0", "--fit", "off"][..], "--gpu-layers "),
        (&["--gpu", "0", "-ngl", "99"], "--gpu-layers "),
        (
            &["--gpu", "1", "--fit-target", "5000"],
            "and 0 MiB are free",
        ),
    ] {
        let ended = text_of(more);
        assert!(
            !ended.ok && ended.text.contains(says),
            "{more:?}: {}",
            ended.text
        );
    }
}
