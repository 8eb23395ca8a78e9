//! Continues a prompt and prints the text while it is generated.
//!
//!     cargo run --release --example generate -- "What is the capital of France?" model.gguf

use std::io::Write;

use octavo_llm::{Engine, GenerationParams, ModelSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let text = args.next().unwrap_or_else(|| "1+1=".to_owned());
    let source = args
        .next()
        .map_or(ModelSource::Demo, |path| ModelSource::Path(path.into()));

    let engine = Engine::builder().open_source(&source)?;
    let params = GenerationParams {
        max_tokens: Some(64),
        ..GenerationParams::default()
    };
    print!("{text}");
    let answer = engine.generate_stream(&text, &params, |piece| {
        print!("{piece}");
        // shown at once; a terminal that has gone away is no reason to stop here
        let _ = std::io::stdout().flush();
    })?;
    println!();
    if let Some(rate) = answer.timing.generation_rate() {
        eprintln!("{} tokens, {rate:.1} per second", answer.tokens.len());
    }
    Ok(())
}
