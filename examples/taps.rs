//! Prints an intermediate tensor by llama.cpp's name for it.
//!
//!     cargo run --release --example taps -- Qcur_normed-0 model.gguf

use octavo_llm::{EncodeOptions, Engine, EngineOptions, LogitsFor, ModelSource, Phase, TapView};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "Qcur_normed-0".to_owned());
    let source = args
        .next()
        .map_or(ModelSource::Demo, |path| ModelSource::Path(path.into()));

    let engine = Engine::load(&source, &EngineOptions::default(), &mut |_| {})?;
    let tokens = engine
        .tokenizer()
        .encode(b"The opposite of hot is", EncodeOptions::default())?;

    let mut names = Vec::new();
    let mut look = |view: &TapView<'_>| {
        let this = view.tap.to_string();
        if this == name {
            println!("{this}: {} rows of {} values", view.rows, view.width);
            for row in view.data.chunks_exact(view.width) {
                println!("  {:9.4?} ..", &row[..row.len().min(6)]);
            }
        }
        names.push(this);
    };
    engine.session().eval_with(
        &tokens,
        Phase::Prefill,
        LogitsFor::Last,
        Some(&mut look),
        &mut |_, _| {},
    )?;
    if !names.contains(&name) {
        println!("no tensor is named {name}; there are {}", names.join(" "));
    }
    Ok(())
}
