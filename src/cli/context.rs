//! Says which context size was chosen for a model, and why.

use std::io::{IsTerminal, stderr};

use octavo_engine::{Context, Engine};

use super::terminal;

/// Describes the chosen context and the reason for it.
pub(super) fn reason(context: &Context) -> String {
    let Context {
        positions, trained, ..
    } = context;
    match () {
        () if context.is_set => format!("context of {positions} tokens"),
        () if positions == trained => format!("context of {positions} tokens, the model's own"),
        () => format!(
            "context of {positions} of the model's {trained} tokens, for which a quarter of the \
             free memory has room (-c N for another)"
        ),
    }
}

/// Describes the context of an engine: the chosen one, or a smaller one that its GPU has room for.
pub(super) fn reason_of(engine: &Engine, chosen: &Context) -> String {
    match engine.n_ctx() {
        n if n == chosen.positions => reason(chosen),
        n => format!(
            "context of {n} of the model's {} tokens, for which the GPU has room",
            chosen.trained
        ),
    }
}

/// Reports the chosen context on stderr if it is smaller than the trained one; on a terminal,
/// always.
pub(super) fn note(context: &Context) {
    let is_less = !context.is_set && context.positions < context.trained;
    if is_less || !context.is_set && stderr().is_terminal() {
        terminal::note(&format!("octavo: {}", reason(context)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_rs_lite::Gguf;
    use octavo_engine::{EngineOptions, kv_bytes};
    use octavo_fixtures::tiny::File;
    use octavo_model::Hparams;

    #[test]
    fn it_says_what_was_chosen_and_why() {
        let mut file = File::running("qwen3");
        file.set("context_length", 131_072u32);
        let gguf = Gguf::from_bytes(file.bytes(), "a test", &Default::default()).expect("sound");
        let hparams = Hparams::from_gguf(&gguf).expect("whole");
        let reason_of = |room: u64, ctx: Option<usize>| {
            let options = EngineOptions {
                ctx,
                ..EngineOptions::default()
            };
            let bytes = room.saturating_mul(kv_bytes(&hparams, options.kv_type, 1));
            reason(&Context::within(bytes, &hparams, &options))
        };
        let own = reason_of(u64::MAX, None);
        assert_eq!(own, "context of 131072 tokens, the model's own");
        let less = reason_of(20_000, None);
        assert!(less.starts_with("context of 19968 of the model's 131072 tokens"));
        assert_eq!(reason_of(10, Some(77)), "context of 77 tokens");
    }
}
