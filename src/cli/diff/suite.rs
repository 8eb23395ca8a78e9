//! `octavo diff --suite`: models × prompts × instruction sets against stored goldens.

use std::ops::Range;
use std::path::Path;

use octavo_analysis::diff::LlamaCpp;
use octavo_analysis::diff::suite::{Cell, Suite, SuiteModel};
use octavo_analysis::shards::{About, Content, Key};
use octavo_engine::{Engine, EngineOptions, ModelSource, default_threads};
use octavo_kernels::{Isa, IsaChoice};
use octavo_reference::results::Results;
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use super::print::summary;
use super::{DiffArgs, html};
use crate::answer::VERSION;
use crate::failure::{Exit, Failure};
use crate::load::{in_trained_context, shown};
use crate::output::{Inputs, Kind, Output};
use crate::shards::{Measured, add_computation, add_model};
use crate::signal;
use crate::terminal;

/// Runs a suite, or writes its goldens anew.
pub(super) fn diff(args: &DiffArgs, path: &Path) -> Result<Exit, Failure> {
    check_options(args)?;
    let suite = Suite::read(path)?;
    // an instruction set given with --isa replaces those that the suite names
    let (isas, lacking) = match args.compute.isa {
        IsaChoice::Auto if suite.names_instruction_sets() => suite.instruction_sets()?,
        choice => (vec![choice.resolve()?], Vec::new()),
    };
    for isa in lacking {
        terminal::note(&format!("octavo: skipped: {isa}: this CPU lacks it"));
    }
    if args.bless {
        signal::install()?;
        return bless(args, &suite);
    }
    let units = suite.models().len() * isas.len() * suite.prompts().len();
    let mut inputs = inputs(args, &suite);
    for model in suite.models() {
        inputs = inputs.files(&suite.goldens(model)?);
    }
    if let Some(job) = args.shard.job(args.force, &inputs) {
        job.check()?;
        signal::install()?;
        return job.run(key(args, path, &suite, &isas)?, |shard| {
            let cells = compare(args, &suite, &isas, shard.range(units))?;
            let (about, content) = (About::default(), Content::Suite(cells));
            Ok(Some(Measured {
                units,
                about,
                content,
            }))
        });
    }
    let page = args.page(&inputs);
    page.as_ref().map_or(Ok(()), Output::check)?;
    signal::install()?;
    let cells = compare(args, &suite, &isas, 0..units)?;
    print(&cells, args.json, args.all, page.as_ref())
}

/// Refuses options that would have no effect: neither a part nor goldens written anew are reported.
fn check_options(args: &DiffArgs) -> Result<(), Failure> {
    let is_sharded = args.shard.index().is_some();
    let report = [
        ("--json", args.json),
        ("--all", args.all),
        ("--html", args.html.is_some()),
    ];
    let report = report.into_iter().find(|(_, is_set)| *is_set);
    let what = match report {
        _ if args.bless && is_sharded => {
            "--shard has no effect with --bless: expected one of the two".to_owned()
        }
        Some((option, _)) if args.bless => {
            format!("{option} has no effect with --bless: expected one of the two")
        }
        Some((option, _)) if is_sharded => {
            format!("{option} has no effect with --shard: expected it of octavo merge")
        }
        _ if args.llama_cpp.is_some() && !args.bless => {
            "--llama-cpp has no effect: expected --bless with it".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(what))
}

/// Returns all files that a suite reads, except goldens.
fn inputs(args: &DiffArgs, suite: &Suite) -> Inputs {
    let models = suite.models().iter();
    models.fold(args.inputs(), |inputs, model| {
        inputs.model(Some(&model.file))
    })
}

/// Computes the comparisons with these numbers: ordered by model, then instruction set, then
/// prompt. Models without any are not loaded.
fn compare(
    args: &DiffArgs,
    suite: &Suite,
    isas: &[Isa],
    numbers: Range<usize>,
) -> Result<Vec<Cell>, Failure> {
    let (mut cells, mut first, n_prompts) = (Vec::new(), 0, suite.prompts().len());
    for model in suite.models() {
        for isa in isas {
            let own = |number: usize| number.clamp(first, first + n_prompts) - first;
            let prompts = own(numbers.start)..own(numbers.end);
            first += n_prompts;
            if prompts.is_empty() {
                continue;
            }
            let references = suite.references(model)?;
            let engine = load(args, &model.file, IsaChoice::Only(*isa), references.n_ctx())?;
            cells.extend(suite.compare(model, &references, prompts, &engine, *isa)?);
        }
    }
    Ok(cells)
}

/// Returns the key of everything that the comparisons depend on.
fn key(args: &DiffArgs, path: &Path, suite: &Suite, isas: &[Isa]) -> Result<Key, Failure> {
    let mut key = Key::new("diff --suite");
    key.files("suite", &[path.to_owned()])?;
    for (i, model) in suite.models().iter().enumerate() {
        add_model(&mut key, &format!("model {}", i + 1), Some(&model.file))?;
        for (j, golden) in suite.goldens(model)?.into_iter().enumerate() {
            key.files(&format!("golden {} of model {}", j + 1, i + 1), &[golden])?;
        }
    }
    let names: Vec<&str> = isas.iter().map(|isa| isa.name()).collect();
    key.set("instruction sets", names.join(" "));
    let kv_type = args.compute.kv_type_or_f32();
    let options = EngineOptions {
        kv_type,
        ..args.compute.options()?
    };
    add_computation(&mut key, &options)?;
    Ok(key)
}

/// Writes the page, if one is given, and prints the results of the comparisons.
pub(crate) fn print(
    cells: &[Cell],
    json: bool,
    all: bool,
    page: Option<&Output<'_>>,
) -> Result<Exit, Failure> {
    if let Some(page) = page {
        page.write(html::suite(cells).as_bytes())?;
    }
    let changed = cells.iter().filter(|cell| !cell.within).count();
    let out = if json {
        to_json(cells)
    } else {
        to_text(cells, all)
    };
    terminal::print(out.as_bytes())?;
    Ok(if changed == 0 {
        Exit::Done
    } else {
        Exit::Outside
    })
}

fn load(args: &DiffArgs, model: &Path, isa: IsaChoice, ctx: usize) -> Result<Engine, Failure> {
    let kv_type = args.compute.kv_type_or_f32();
    let mut options = EngineOptions {
        isa,
        kv_type,
        ..args.compute.options()?
    };
    let source = ModelSource::Path(model.to_owned());
    in_trained_context(&source, &mut options, ctx)?;
    Ok(shown(|sink| Engine::load(&source, &options, sink))?)
}

/// Computes every golden anew: with llama.cpp if --llama-cpp is given, else with this engine.
/// Goldens in safetensors are kept: one program alone cannot make them.
fn bless(args: &DiffArgs, suite: &Suite) -> Result<Exit, Failure> {
    let llama = args.llama_cpp.as_deref().map(LlamaCpp::open).transpose()?;
    let inputs = inputs(args, suite);
    check_goldens(args, suite, &inputs)?;
    for model in suite.models() {
        for (prompt, text) in suite.prompts() {
            let golden = model.golden(prompt, "safetensors");
            if golden.is_file() {
                terminal::note(&format!(
                    "octavo: kept: {} (a golden of two programs)",
                    golden.display()
                ));
                continue;
            }
            let out = model.golden(prompt, "gguf");
            let golden = args.output(&out, Kind::Golden, &inputs);
            let made_by = match &llama {
                Some(llama) => by_llama_cpp(args, llama, model, text, &golden)?,
                None => by_this_engine(args, model, text, &golden)?,
            };
            let note = model.golden(prompt, "cmd.txt");
            args.output(&note, Kind::Note, &inputs)
                .write(made_by.as_bytes())?;
            terminal::print(format!("blessed {}\n", out.display()).as_bytes())?;
        }
    }
    Ok(Exit::Done)
}

/// Checks that every golden and its note may be written, before anything is computed.
fn check_goldens(args: &DiffArgs, suite: &Suite, inputs: &Inputs) -> Result<(), Failure> {
    if args.llama_cpp.is_some() {
        args.check_kept(None, inputs)?;
    }
    for model in suite.models() {
        let failed = |error| Failure::Input(format!("{}: {error}", model.goldens.display()));
        std::fs::create_dir_all(&model.goldens).map_err(failed)?;
        let made = |prompt: &&String| !model.golden(prompt, "safetensors").is_file();
        for prompt in suite.prompts().keys().filter(made) {
            for (extension, kind) in [("gguf", Kind::Golden), ("cmd.txt", Kind::Note)] {
                args.output(&model.golden(prompt, extension), kind, inputs)
                    .check()?;
            }
        }
    }
    Ok(())
}

fn by_this_engine(
    args: &DiffArgs,
    model: &SuiteModel,
    text: &str,
    golden: &Output<'_>,
) -> Result<String, Failure> {
    let engine = load(args, &model.file, args.compute.isa, text.len() + 8)?;
    let tokens = engine
        .tokenizer()
        .encode(text.as_bytes(), EncodeOptions::default())?;
    let logits = engine.session().eval(
        &tokens,
        octavo_engine::backend::Phase::Prefill,
        octavo_engine::LogitsFor::All,
    )?;
    golden.check()?;
    let path_model = model.name.to_string_lossy().into_owned();
    Results {
        path_model,
        tokens,
        n_vocab: logits.n_vocab,
        logits: logits.data,
    }
    .write(golden.path)?;
    let version = env!("CARGO_PKG_VERSION");
    let device = engine.describe();
    Ok(format!(
        "octavo {version} ({device}): octavo diff --suite SUITE --bless, prompt {text:?}\n"
    ))
}

fn by_llama_cpp(
    args: &DiffArgs,
    llama: &LlamaCpp,
    model: &SuiteModel,
    text: &str,
    golden: &Output<'_>,
) -> Result<String, Failure> {
    let threads = args
        .compute
        .options()?
        .threads
        .unwrap_or_else(default_threads);
    let made = llama.results(
        &model.file,
        text.as_bytes(),
        (text.len() + 8, threads),
        args.keep(),
    )?;
    let made = std::fs::read(&made)
        .map_err(|error| Failure::Input(format!("{}: {error}", made.display())))?;
    golden.write(&made)?;
    let commands = args.keep().join("commands.txt");
    let line = std::fs::read_to_string(&commands)
        .map_err(|error| Failure::Input(format!("{}: {error}", commands.display())))?;
    Ok(format!("{}{line}", llama.version()))
}

fn to_text(cells: &[Cell], all: bool) -> String {
    let mut out = String::new();
    for cell in cells.iter().filter(|cell| all || !cell.within) {
        let word = if cell.within { "within " } else { "CHANGED" };
        let Cell {
            model,
            prompt,
            isa,
            nmse,
            kl,
            allowed,
            ..
        } = cell;
        out += &format!(
            "{word} {model} / {prompt} / {isa}: NMSE {nmse:.3e} (allowed {allowed:e}), mean KL \
             {kl:.3e}\n"
        );
    }
    out + &summary(cells) + "\n"
}

fn to_json(cells: &[Cell]) -> String {
    let one = |cell: &Cell| {
        let verdict = if cell.within { "within" } else { "outside" };
        json!({"model": cell.model, "prompt": cell.prompt, "isa": cell.isa,
                "verdict": verdict,
               "nmse": cell.nmse, "mean_kl": cell.kl, "tol_nmse": cell.allowed})
    };
    let changed = cells.iter().filter(|cell| !cell.within).count();
    let cells: Vec<Value> = cells.iter().map(one).collect();
    let verdict = if changed == 0 { "within" } else { "outside" };
    format!(
        "{}\n",
        json!({"version": VERSION, "verdict": verdict, "changed": changed, "comparisons": cells})
    )
}
