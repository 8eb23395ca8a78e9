//! `octavo diff --suite`: models × prompts × instruction sets against stored goldens.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use octavo_kernels::{Isa, IsaChoice};
use octavo_llm::diff::{LlamaCpp, Measured, Reference, Tolerance};
use octavo_llm::engine::{Engine, EngineOptions, ModelSource, default_threads};
use octavo_llm::tokenizer::EncodeOptions;
use octavo_reference::results::Results;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{DiffArgs, Which};
use crate::cli::failure::{Exit, Failure, one_line};
use crate::cli::load::shown;
use crate::cli::output::{Inputs, Kind, Output};
use crate::cli::signal;
use crate::cli::terminal;

/// A suite's file. Paths are relative to it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    /// Model files.
    models: Vec<PathBuf>,
    /// Texts by name; special tokens are added, none are looked for.
    prompts: BTreeMap<String, String>,
    /// Instruction sets; those that this CPU lacks are skipped, and that is said.
    #[serde(default)]
    isa: Vec<String>,
    /// The folder with `MODEL/PROMPT.safetensors` or `MODEL/PROMPT.gguf`.
    goldens: PathBuf,
    /// Which side of a golden: `logits` or `exact`.
    #[serde(default)]
    against: SuiteWhich,
    /// NMSE allowed; by the coarsest weights unless given.
    tol_nmse: Option<f64>,
    /// Mean KL allowed; not judged unless given.
    tol_kl: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SuiteWhich {
    #[default]
    Logits,
    Exact,
}

impl From<SuiteWhich> for Which {
    fn from(which: SuiteWhich) -> Which {
        match which {
            SuiteWhich::Logits => Which::Logits,
            SuiteWhich::Exact => Which::Exact,
        }
    }
}

/// What came of one cell.
struct Cell {
    model: String,
    prompt: String,
    isa: Isa,
    within: bool,
    nmse: f64,
    kl: f64,
    allowed: f64,
}

/// Runs a suite, or makes its goldens anew.
pub(super) fn diff(args: &DiffArgs, path: &Path) -> Result<Exit, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    let suite: Suite = toml::from_str(&text).map_err(|error| {
        Failure::Input(format!(
            "{}: {}",
            path.display(),
            one_line(&error.to_string())
        ))
    })?;
    let folder = path.parent().unwrap_or(Path::new("."));
    if suite.models.is_empty() || suite.prompts.is_empty() {
        return Err(Failure::Input(format!(
            "{}: expected at least one model and one prompt",
            path.display()
        )));
    }
    let isas = instruction_sets(args, &suite)?;
    if args.bless {
        signal::install()?;
        return bless(args, &suite, folder);
    }
    let mut cells = Vec::new();
    for model in &suite.models {
        for isa in &isas {
            run(args, &suite, (folder, model, *isa), &mut cells)?;
        }
    }
    let changed = cells.iter().filter(|cell| !cell.within).count();
    let out = if args.json {
        to_json(&cells)
    } else {
        to_text(&cells, args.all)
    };
    terminal::print(out.as_bytes())?;
    Ok(if changed == 0 {
        Exit::Done
    } else {
        Exit::Outside
    })
}

fn instruction_sets(args: &DiffArgs, suite: &Suite) -> Result<Vec<Isa>, Failure> {
    if suite.isa.is_empty() {
        return Ok(vec![args.compute.isa.resolve()?]);
    }
    let mut isas = Vec::new();
    for name in &suite.isa {
        match name.parse::<IsaChoice>()? {
            IsaChoice::Auto => isas.push(Isa::best()),
            IsaChoice::Only(isa) if isa.is_available() => isas.push(isa),
            IsaChoice::Only(isa) => {
                terminal::note(&format!("octavo: skipped: {isa}: this CPU lacks it"))
            }
        }
    }
    Ok(isas)
}

pub(super) fn stem(model: &Path) -> String {
    model
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn load(args: &DiffArgs, model: &Path, isa: IsaChoice, ctx: usize) -> Result<Engine, Failure> {
    let kv_type = args.compute.kv_type_or_f32()?;
    let options = EngineOptions {
        isa,
        kv_type,
        ctx: Some(ctx.max(1)),
        ..args.compute.options()?
    };
    Ok(shown(|sink| {
        Engine::load(&ModelSource::Path(model.to_owned()), &options, sink)
    })?)
}

/// The golden of a model and a prompt.
fn golden(suite: &Suite, folder: &Path, model: &Path, prompt: &str) -> Result<PathBuf, Failure> {
    let base = folder.join(&suite.goldens).join(stem(model));
    let places =
        ["safetensors", "gguf"].map(|extension| base.join(format!("{prompt}.{extension}")));
    places
        .iter()
        .find(|place| place.is_file())
        .cloned()
        .ok_or_else(|| {
            Failure::Input(format!(
                "{}: no golden (nor .gguf); --bless makes one",
                places[0].display()
            ))
        })
}

/// All prompts of one model on one instruction set.
fn run(
    args: &DiffArgs,
    suite: &Suite,
    (folder, model, isa): (&Path, &Path, Isa),
    cells: &mut Vec<Cell>,
) -> Result<(), Failure> {
    let against = Which::from(suite.against).into();
    let mut references = Vec::new();
    for (prompt, text) in &suite.prompts {
        let path = golden(suite, folder, model, prompt)?;
        references.push((prompt, text, Reference::read(&path, against)?, path));
    }
    let longest = references
        .iter()
        .map(|(_, _, reference, _)| reference.n_ctx(None))
        .max()
        .unwrap_or(1);
    let engine = load(args, &folder.join(model), IsaChoice::Only(isa), longest)?;
    let default = Tolerance::of(engine.model());
    let tolerance = Tolerance {
        nmse: suite.tol_nmse.unwrap_or(default.nmse),
        kl: suite.tol_kl,
        ..default
    };
    for (prompt, text, reference, path) in references {
        let tokens = engine.tokenizer().encode(text.as_bytes(), PLAIN)?;
        if reference
            .tokens
            .as_ref()
            .is_some_and(|theirs| *theirs != tokens)
        {
            let message = format!(
                "{}: prompt {prompt:?}: other tokens than the golden's",
                path.display()
            );
            return Err(Failure::Input(message));
        }
        let Measured::Logits(logits) = reference.compare(&engine, None, &tolerance)? else {
            return Err(Failure::Input(format!(
                "{}: expected a golden with logits",
                path.display()
            )));
        };
        cells.push(Cell {
            model: stem(model),
            prompt: prompt.clone(),
            isa,
            within: tolerance.allows(&logits),
            nmse: logits.nmse,
            kl: logits.mean_kl,
            allowed: tolerance.nmse,
        });
    }
    Ok(())
}

/// As llama.cpp's tools read a prompt.
const PLAIN: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: false,
};

/// Computes every golden anew: by llama.cpp where --llama-cpp names one, else by this engine.
/// Goldens in safetensors hold what one program cannot make alone, and stay.
fn bless(args: &DiffArgs, suite: &Suite, folder: &Path) -> Result<Exit, Failure> {
    let llama = args.llama_cpp.as_deref().map(LlamaCpp::open).transpose()?;
    let inputs = suite.models.iter().fold(args.inputs(), |inputs, model| {
        inputs.model(Some(&folder.join(model)))
    });
    check_goldens(args, suite, folder, &inputs)?;
    for model in &suite.models {
        let goldens = folder.join(&suite.goldens).join(stem(model));
        let file = folder.join(model);
        for (prompt, text) in &suite.prompts {
            let kept = goldens.join(format!("{prompt}.safetensors"));
            if kept.is_file() {
                terminal::note(&format!(
                    "octavo: kept: {} (a golden of two programs)",
                    kept.display()
                ));
                continue;
            }
            let out = goldens.join(format!("{prompt}.gguf"));
            let golden = args.output(&out, Kind::Golden, &inputs);
            let made_by = match &llama {
                Some(llama) => by_llama_cpp(args, llama, (&file, text), &golden)?,
                None => by_this_engine(args, (&file, model, text), &golden)?,
            };
            let note = goldens.join(format!("{prompt}.cmd.txt"));
            args.output(&note, Kind::Note, &inputs)
                .write(made_by.as_bytes())?;
            terminal::print(format!("blessed {}\n", out.display()).as_bytes())?;
        }
    }
    Ok(Exit::Done)
}

/// Before anything is computed: whether every golden and its note may be written.
fn check_goldens(
    args: &DiffArgs,
    suite: &Suite,
    folder: &Path,
    inputs: &Inputs,
) -> Result<(), Failure> {
    if args.llama_cpp.is_some() {
        args.check_kept(None, inputs)?;
    }
    for model in &suite.models {
        let goldens = folder.join(&suite.goldens).join(stem(model));
        let failed = |error| Failure::Input(format!("{}: {error}", goldens.display()));
        std::fs::create_dir_all(&goldens).map_err(failed)?;
        for prompt in suite
            .prompts
            .keys()
            .filter(|prompt| !goldens.join(format!("{prompt}.safetensors")).is_file())
        {
            args.output(
                &goldens.join(format!("{prompt}.gguf")),
                Kind::Golden,
                inputs,
            )
            .check()?;
            args.output(
                &goldens.join(format!("{prompt}.cmd.txt")),
                Kind::Note,
                inputs,
            )
            .check()?;
        }
    }
    Ok(())
}

fn by_this_engine(
    args: &DiffArgs,
    (file, model, text): (&Path, &Path, &str),
    golden: &Output<'_>,
) -> Result<String, Failure> {
    let engine = load(args, file, args.compute.isa, text.len() + 8)?;
    let tokens = engine.tokenizer().encode(text.as_bytes(), PLAIN)?;
    let logits = engine.session().eval(
        &tokens,
        octavo_llm::backend::Role::Prompt,
        octavo_llm::engine::Wanted::All,
    )?;
    golden.check()?;
    let path_model = model.to_string_lossy().into_owned();
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
    (file, text): (&Path, &str),
    golden: &Output<'_>,
) -> Result<String, Failure> {
    let threads = args
        .compute
        .options()?
        .threads
        .unwrap_or_else(default_threads);
    let made = llama.results(file, text.as_bytes(), (text.len() + 8, threads), &args.keep)?;
    let made = std::fs::read(&made)
        .map_err(|error| Failure::Input(format!("{}: {error}", made.display())))?;
    golden.write(&made)?;
    let commands = args.keep.join("commands.txt");
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
            "{word} {model} / {prompt} / {isa}: NMSE {nmse:.3e} (allowed {allowed:e}), mean KL {kl:.3e}\n"
        );
    }
    let changed = cells.iter().filter(|cell| !cell.within).count();
    out += &format!("{} comparisons, {changed} changed\n", cells.len());
    out
}

fn to_json(cells: &[Cell]) -> String {
    let one = |cell: &Cell| {
        let verdict = if cell.within { "within" } else { "outside" };
        json!({"model": cell.model, "prompt": cell.prompt, "isa": cell.isa.to_string(), "verdict": verdict,
               "nmse": cell.nmse, "mean_kl": cell.kl, "tol_nmse": cell.allowed})
    };
    let changed = cells.iter().filter(|cell| !cell.within).count();
    let cells: Vec<Value> = cells.iter().map(one).collect();
    let verdict = if changed == 0 { "within" } else { "outside" };
    format!(
        "{}\n",
        json!({"verdict": verdict, "changed": changed, "comparisons": cells})
    )
}
