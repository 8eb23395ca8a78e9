//! Recorded expert choices against the engine's: the recordings are made by the f64 oracle, in
//! llama-eval-callback's format.

use std::fmt::Write;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, Writer};
use octavo_analysis::diff::{
    Cause, Execution, Fault, Measured, Options, OracleExecution, Reference, ReferenceValues,
    Routing, TapAction, TapOut, Tensors, Tolerance,
};
use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::shared;
use octavo_model::OwnedTap;
use octavo_text::tokenizer::EncodeOptions;

/// A text of few tokens, and one of more tokens than are printed.
const TEXTS: [&str; 2] = ["3+4", "The fox lived under a tree; 3+4=7."];

const TOPK: &str = "ffn_moe_topk";

/// An MoE model whose router gives two experts equal scores, opened twice.
struct Tied {
    dir: tempfile::TempDir,
    gguf: Arc<Gguf>,
    engine: Engine,
}

/// Experts that have the same scores in every layer.
const ALIKE: [f64; 2] = [0.0, 1.0];

impl Tied {
    fn new() -> Option<Tied> {
        let model = shared("arch/models/qwen3moe-F32.gguf")?;
        let gguf = Gguf::open(&model, &OpenOptions::default()).expect("a model");
        let mut writer = Writer::new();
        for (key, value) in gguf.keys() {
            writer.set(key, value);
        }
        for t in gguf.tensors() {
            let mut bytes = gguf.data(t).to_vec();
            if t.name.ends_with("ffn_gate_inp.weight") {
                let row = bytes.len() / t.dims[1] as usize;
                let [first, second] = ALIKE.map(|expert| expert as usize * row);
                bytes.copy_within(first..first + row, second);
            }
            writer.tensor(&t.name, &t.dims, t.ty, bytes);
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).expect("it is written");
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tied.gguf");
        std::fs::write(&path, bytes).expect("it is written");
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a model");
        let source = ModelSource::Path(path);
        let options = EngineOptions {
            kv_type: octavo_kernels::KvType::F32.both(),
            ..EngineOptions::default()
        };
        let engine = Engine::load(&source, &options, &mut |_| {}).expect("a model");
        Some(Tied {
            dir,
            gguf: Arc::new(gguf),
            engine,
        })
    }

    /// Records a text as printed by a program with this fault.
    fn record(&self, text: &str, fault: Box<Fault>) -> Reference {
        self.record_some(text, fault, |_| true)
    }

    /// Records some of the tensors only.
    fn record_some(
        &self,
        text: &str,
        fault: Box<Fault>,
        shown: fn(&OwnedTap) -> bool,
    ) -> Reference {
        let mut oracle = OracleExecution::with_fault(self.gguf.clone(), fault).expect("a model");
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let tokens = self.engine.tokenizer().encode(text.as_bytes(), options);
        let mut printed = String::new();
        let mut sink = |tap: TapOut| {
            if shown(&tap.tap) {
                print(&mut printed, &tap);
            }
            TapAction::Continue
        };
        oracle
            .run((&tokens.expect("tokens")[..]).into(), &mut sink)
            .expect("it runs");
        let path = self.dir.path().join("printed.txt");
        std::fs::write(&path, printed).expect("it is written");
        Reference::read(&path, ReferenceValues::default()).expect("a recording")
    }

    fn compare(&self, text: &str, recording: &Reference, same_routing: bool) -> Tensors {
        let tolerance = Tolerance::of(self.engine.model());
        let options = Options { same_routing };
        let text = Some(text.as_bytes());
        let measured = recording.compare_with(&self.engine, text, &tolerance, options);
        match measured.expect("it runs") {
            Measured::Tensors(tensors) => tensors,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the indices of the first and the last three of `n`.
fn printed(n: usize) -> impl Iterator<Item = usize> {
    (0..n).filter(move |i| *i < 3 || i + 3 >= n)
}

fn print(out: &mut String, tap: &TapOut) {
    let (width, rows) = (tap.width, tap.data.len() / tap.width);
    let name = &tap.tap;
    let op = if name.name == TOPK { "VIEW" } else { "MUL" };
    let head = format!("{name} = (f32) {op}(x{{{width}, {rows}, 1, 1}}, }})");
    let _ = writeln!(
        out,
        "common_debug_cb_eval: {head} = {{{width}, {rows}, 1, 1}}"
    );
    let _ = writeln!(out, "    [\n        [");
    for row in printed(rows) {
        if row > 0 && row + 3 == rows && rows > 6 {
            let _ = writeln!(out, "            ..., ");
        }
        let value = |i: usize| format!("{:12.4}", tap.data[row * width + i]);
        let mut values: Vec<String> = printed(width).map(value).collect();
        if width > 6 {
            values.insert(3, "...".to_owned());
        }
        let _ = writeln!(out, "            [{}],", values.join(", "));
    }
    let sum: f32 = tap.data.iter().sum();
    let _ = writeln!(out, "        ],\n    ]\n    sum = {sum:.6}");
}

/// Swaps the experts with equal scores, where they are printed.
fn taken_for_each_other(tap: &OwnedTap, width: usize, ids: &mut [f64]) {
    if tap.name != TOPK {
        return;
    }
    for row in printed(ids.len() / width) {
        for id in &mut ids[row * width..(row + 1) * width] {
            if let Some(at) = ALIKE.iter().position(|expert| expert == id) {
                *id = ALIKE[1 - at];
            }
        }
    }
}

fn outside(tensors: &Tensors) -> Vec<&str> {
    let outside = tensors.all.iter().filter(|t| t.outside);
    outside.map(|t| t.name.as_str()).collect()
}

fn routing(tensors: &Tensors) -> &Routing {
    tensors.routing.as_ref().expect("a mixture")
}

#[test]
fn what_an_unlike_program_chose_where_experts_are_tied_is_told_and_gone_on_with() {
    let Some(tied) = Tied::new() else { return };
    for text in TEXTS {
        let same = tied.record(text, Box::new(|_, _, _| {}));
        assert!(same.has_routing());
        for same_routing in [false, true] {
            let found = tied.compare(text, &same, same_routing);
            assert!(outside(&found).is_empty(), "{text}: {:?}", outside(&found));
            assert!(routing(&found).choices > 0);
        }

        let other = tied.record(text, Box::new(taken_for_each_other));
        let free = tied.compare(text, &other, false);
        let first = routing(&free).first.as_ref().expect("another choice");
        assert_eq!(
            (first.name.as_str(), first.cause),
            ("ffn_moe_topk-0", Cause::NearTie)
        );
        assert!(
            first.tie.is_some_and(|tie| tie.apart <= tie.allowed),
            "{first:?}"
        );
        assert_eq!(routing(&free).unexplained, 0, "{text}");
        let behind = outside(&free);
        assert!(
            !behind.is_empty() && behind[0] != "ffn_moe_topk-0",
            "{text}: {behind:?}"
        );

        let forced = tied.compare(text, &other, true);
        assert!(
            outside(&forced).is_empty(),
            "{text}: {:?}",
            outside(&forced)
        );
        assert!(routing(&forced).same_routing);
        assert_eq!(routing(&forced).first.as_ref(), Some(first), "{text}");
        assert_eq!(routing(&forced).following, 0, "{text}");
        assert_eq!(routing(&forced).layers.len(), 2, "{text}");
        // the middle of a long text is not printed
        let unrecorded = routing(&forced).unrecorded;
        assert_eq!(unrecorded > 0, text.len() > 6, "{text}: {unrecorded}");
    }
}

#[test]
fn a_fault_behind_the_choices_of_a_recording_is_found() {
    let Some(tied) = Tied::new() else { return };
    let fault: Box<Fault> = Box::new(|tap, width, x| {
        taken_for_each_other(tap, width, x);
        if tap.name == "ffn_moe_down" && tap.layer == Some(0) {
            x[width] *= 1.5;
        }
    });
    let recording = tied.record(TEXTS[0], fault);
    let forced = tied.compare(TEXTS[0], &recording, true);
    assert_eq!(outside(&forced).first(), Some(&"ffn_moe_down-0"));
    assert_eq!(routing(&forced).unexplained, 0);
}

#[test]
fn recorded_experts_in_a_wrong_order_are_the_divergence_and_all_behind_them_agrees() {
    let Some(tied) = Tied::new() else { return };
    let turned: Box<Fault> = Box::new(|tap, width, ids| {
        if tap.name == TOPK && tap.layer == Some(1) {
            ids.chunks_exact_mut(width).for_each(|ids| ids.reverse());
        }
    });
    let recording = tied.record(TEXTS[0], turned);
    let forced = tied.compare(TEXTS[0], &recording, true);
    assert_eq!(outside(&forced), ["ffn_moe_topk-1"]);
    let found = routing(&forced);
    assert_eq!((found.reordered, found.layers.len()), (found.differing, 1));
    assert!(found.unexplained > 0);
    let free = tied.compare(TEXTS[0], &recording, false);
    assert_eq!(outside(&free).first(), Some(&"ffn_moe_topk-1"));
}

/// The same holds for a recording of choices only.
#[test]
fn choices_that_may_follow_from_others_are_no_near_ties() {
    let Some(tied) = Tied::new() else { return };
    let is_choice = |tap: &OwnedTap| tap.name == TOPK;
    let recording = tied.record_some(TEXTS[0], Box::new(taken_for_each_other), is_choice);
    for (same_routing, cause) in [(false, Cause::Following), (true, Cause::NearTie)] {
        let found = tied.compare(TEXTS[0], &recording, same_routing);
        let causes = routing(&found).layers.iter().map(|layer| layer.first.cause);
        assert_eq!(causes.collect::<Vec<_>>(), [Cause::NearTie, cause]);
    }
}
