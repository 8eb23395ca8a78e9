//! Runs two prompts as one batch: each gives the text that it would give alone.
//!
//!     cargo run --release --example batch -- model.gguf

use octavo_llm::{
    Batch, BatchOptions, EncodeOptions, Engine, EngineOptions, Event, GenerationParams,
    ModelSource, Request,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = std::env::args()
        .nth(1)
        .map_or(ModelSource::Demo, |path| ModelSource::Path(path.into()));
    let texts = [
        "1+1=",
        "What is the capital of France? The capital of France is",
    ];

    let options = EngineOptions {
        sessions: texts.len(),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&source, &options, &mut |_| {})?;
    let mut batch = Batch::new(&engine, BatchOptions::default());
    for text in texts {
        let prompt = engine
            .tokenizer()
            .encode(text.as_bytes(), EncodeOptions::PROMPT)?;
        let options = GenerationParams {
            max_tokens: Some(16),
            ..GenerationParams::default()
        };
        batch.add(Request::new(&prompt, &options))?;
    }
    while !batch.is_empty() {
        batch.step(&mut |id, event| match event {
            Event::Finished { text, .. } => println!("{}{}", texts[id as usize], text.text),
            Event::Failed(error) => eprintln!("{}: {error}", texts[id as usize]),
            _ => {}
        })?;
    }
    Ok(())
}
