//! Loads engines from arguments, with a progress bar and a note about what runs.

use std::path::Path;

use octavo_engine::{
    Context, CpuExperts, Engine, EngineOptions, Loading, LoadingSink, ModelSource, SharedWeights,
};
use octavo_model::{Hparams, is_assistant, is_mtp_only};

use super::args::{ModelArgs, SpeculativeArgs};
use super::failure::Failure;
use super::ranks;
use super::terminal::{self, Progress};
use super::{context, hub};

/// Message about the built-in model.
pub(super) const DEMO_NOTE: &str =
    "octavo: no MODEL given: this is the built-in demo model (tiny-qwen3, 2.6 million parameters)";

/// Message for a person who has named no model.
const SMALL_MODELS: &str = "\
octavo: small models that run well: hf:Qwen/Qwen3-0.6B-GGUF:Q8_0 (0.6 GB), \
hf:ggml-org/gemma-3-1b-it-GGUF (0.8 GB), hf:ggml-org/SmolLM3-3B-GGUF (1.9 GB)";

/// Returns the model's source; reports on stderr if it is the built-in one.
pub(super) fn source(model: &ModelArgs) -> Result<ModelSource, Failure> {
    Ok(model.keys.changed(source_at(model.path()?)?))
}

/// Does the same as [`source`] without a message, for a look at the model before it is loaded.
pub(super) fn source_quietly(model: &ModelArgs) -> Result<ModelSource, Failure> {
    let source = model.path()?.map(|path| ModelSource::Path(path.to_owned()));
    Ok(model.keys.changed(source.unwrap_or(ModelSource::Demo)))
}

/// Does the same as [`source_quietly`] for a model that is on this machine.
///
/// # Errors
/// If it is one of the hub.
pub(super) fn source_cached(model: &ModelArgs) -> Result<ModelSource, Failure> {
    match model.name() {
        Some(name) if hub::is_remote(&name) => Err(Failure::Input(format!(
            "{}: expected a file of this machine",
            name.display()
        ))),
        _ => source_quietly(model),
    }
}

/// Checks that the model of an option exists, if it is a file.
pub(super) fn check_model(option: &str, name: &Path) -> Result<(), Failure> {
    match hub::is_remote(name) {
        true => Ok(()),
        false => check_there(option, name),
    }
}

/// Checks that the file of an option exists, before long work.
pub(super) fn check_there(option: &str, path: &Path) -> Result<(), Failure> {
    let missing = |error| Failure::Input(format!("{option} {}: {error}", path.display()));
    path.metadata().map(drop).map_err(missing)
}

/// Does the same as [`source`] for a path or a name.
pub(super) fn source_at(path: Option<&Path>) -> Result<ModelSource, Failure> {
    Ok(match path {
        Some(path) => ModelSource::Path(hub::model(path)?),
        None => {
            terminal::note(DEMO_NOTE);
            if terminal::stdin_is_terminal() && terminal::stdout_is_terminal() {
                terminal::note(SMALL_MODELS);
            }
            ModelSource::Demo
        }
    })
}

/// Does the same as [`engine_with`], and loads the draft model, if one is given. Leaves room for an
/// image encoder that is loaded later.
pub(super) fn engine_with_draft(
    model: &ModelArgs,
    options: EngineOptions,
    speculative: &SpeculativeArgs,
    tower: Option<&Path>,
) -> Result<Engine, Failure> {
    let engine = any_engine_with_draft(model, options, speculative, tower)?;
    engine.check_logits()?;
    Ok(engine)
}

/// Does the same as [`any_engine`], and loads the draft model, if one is given. Leaves room for an
/// image encoder that is loaded later.
pub(super) fn any_engine_with_draft(
    model: &ModelArgs,
    mut options: EngineOptions,
    speculative: &SpeculativeArgs,
    tower: Option<&Path>,
) -> Result<Engine, Failure> {
    let draft = speculative.source(model)?;
    leave_room(&mut options, draft.as_ref(), tower)?;
    let Some(draft) = draft else {
        return any_engine(model, options);
    };
    let is_layer = matches!(
        draft,
        ModelSource::MtpLayer(_) | ModelSource::Assistant { .. }
    );
    let options = EngineOptions {
        keep_hidden: is_layer,
        // most layers end with the model's own matrix
        weights: is_layer.then(SharedWeights::default),
        ..options
    };
    let engine = any_engine(model, options.clone())?;
    let options = EngineOptions {
        ctx: Some(n_ctx_train(&draft)?.min(engine.n_ctx())),
        sessions: engine.sessions(),
        kv_positions: Some(engine.positions()),
        pool: engine.pool(),
        // those that were asked for are the target's
        cpu_experts: CpuExperts::default(),
        keep_hidden: false,
        // files hold pages of the target alone
        prompt_cache: None,
        slot_dir: None,
        // adapters and control vectors are the target's
        adapters: Vec::new(),
        control: Vec::new(),
        ..options
    };
    let draft = shown(|sink| Engine::load(&draft, &options, sink))?;
    terminal::warn(draft.warnings());
    engine.set_draft_model(draft)?;
    Ok(engine)
}

/// Loads a model with logits and prints its warnings.
pub(super) fn engine_with(model: &ModelArgs, options: EngineOptions) -> Result<Engine, Failure> {
    let engine = any_engine(model, options)?;
    engine.check_logits()?;
    Ok(engine)
}

/// Loads a model, with or without logits, and prints its warnings. If the options have no context,
/// or 0, [`Context`] chooses one.
pub(super) fn any_engine(model: &ModelArgs, mut options: EngineOptions) -> Result<Engine, Failure> {
    if ranks::tp_group().is_some() && !model.keys.changes().is_empty() {
        return Err(Failure::Usage(
            "--override-kv, --rope-* and --yarn-*: expected one process, not several ranks"
                .to_owned(),
        ));
    }
    let source = source(model)?;
    if matches!(options.ctx, None | Some(0)) {
        let chosen = Context::of(&source.open(true)?, &options)?;
        context::note(&chosen);
        chosen.apply(&mut options);
    }
    options.tp_group = ranks::tp_group();
    let start = std::time::Instant::now();
    let engine = shown(|sink| Engine::load(&source, &options, sink))?;
    terminal::warn(engine.warnings());
    terminal::detail(&format!(
        "octavo: loaded {} in {:.1} s: {}, a context of {} tokens",
        engine.gguf().name(),
        start.elapsed().as_secs_f64(),
        engine.describe(),
        engine.n_ctx()
    ));
    Ok(engine)
}

/// Leaves room on a GPU for the draft model and the image encoder that are loaded later.
fn leave_room(
    options: &mut EngineOptions,
    draft: Option<&ModelSource>,
    tower: Option<&Path>,
) -> Result<(), Failure> {
    let Some(fit) = &mut options.fit else {
        return Ok(());
    };
    match draft {
        Some(ModelSource::Path(path)) => fit.leave_room_for(path),
        Some(other) => {
            let draft = other.open(true)?;
            fit.leave_room(draft.tensors().iter().map(|tensor| tensor.bytes).sum());
        }
        None => {}
    }
    tower.into_iter().for_each(|path| fit.leave_room_for(path));
    Ok(())
}

/// Returns the trained context of a model.
pub(super) fn n_ctx_train(source: &ModelSource) -> Result<usize, Failure> {
    Ok(Hparams::from_gguf(&source.open(true)?)?.n_ctx_train())
}

/// Sets the options to compute as in the trained context, which decides the rotary angles of some
/// models, with a KV cache of `positions` positions.
pub(super) fn in_trained_context(
    source: &ModelSource,
    options: &mut EngineOptions,
    positions: usize,
) -> Result<(), Failure> {
    let positions = positions.max(1);
    let trained = Hparams::from_gguf(&source.open(options.mmap)?)?.n_ctx_train();
    options.ctx = Some(trained.max(positions));
    options.kv_positions = Some(positions);
    Ok(())
}

/// Runs the loading of a model, with progress on stderr.
pub(super) fn shown<T>(load: impl FnOnce(&mut LoadingSink<'_>) -> T) -> T {
    let bar = Progress::bytes("loading");
    let loaded = load(&mut |event| match event {
        Loading::Note(line) => bar.line(&format!("octavo: {line}")),
        Loading::Weights { done, total } => bar.at(done, total),
    });
    bar.clear();
    loaded
}

impl SpeculativeArgs {
    /// Checks that the draft model exists.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let draft = self.draft.as_deref().map(|path| ("--draft", path));
        let layer = self.draft_mtp.iter().flatten().next();
        let layer = layer.map(|path| ("--draft-mtp", path.as_path()));
        let mut files = draft.into_iter().chain(layer);
        files.try_for_each(|(option, path)| check_model(option, path))
    }

    /// Returns the source of the draft model, if one is given: the MTP layer of the model
    /// itself, or a file, which may have such a layer and nothing else, or be its assistant.
    pub(super) fn source(&self, model: &ModelArgs) -> Result<Option<ModelSource>, Failure> {
        let layer_of = |source| Some(ModelSource::MtpLayer(Box::new(source)));
        let at = |path: &Path| Ok::<_, Failure>(ModelSource::Path(hub::model(path)?));
        let target = || {
            let source = model.path()?.map_or(Ok(ModelSource::Demo), at)?;
            Ok::<_, Failure>(model.keys.changed(source))
        };
        let (file, has_layer) = match (&self.draft_mtp, &self.draft) {
            (Some(None), _) => return Ok(layer_of(target()?)),
            (Some(Some(file)), _) => (file, true),
            (None, Some(file)) => (file, false),
            (None, None) => return Ok(None),
        };
        let source = at(file)?;
        let opened = source.open(true)?;
        Ok(if is_assistant(&opened) {
            Some(ModelSource::Assistant {
                assistant: Box::new(source),
                target: Box::new(target()?),
            })
        } else if has_layer || is_mtp_only(&opened) {
            layer_of(source)
        } else {
            Some(source)
        })
    }
}
