//! Prints the most likely next token after every token of a text.
//!
//!     cargo run --release --example logits -- "1+1=2" model.gguf

use octavo_llm::{EncodeOptions, Engine, ModelSource};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let text = args.next().unwrap_or_else(|| "1+1=2".to_owned());
    let source = args
        .next()
        .map_or(ModelSource::Demo, |path| ModelSource::Path(path.into()));

    let engine = Engine::builder().open_source(&source)?;
    let logits = engine.logits(&text)?;
    let tokenizer = engine.tokenizer();
    let tokens = tokenizer.encode(text.as_bytes(), EncodeOptions::PROMPT)?;

    let shown = |id: u32| tokenizer.piece(id).unwrap_or_default().escape_ascii();
    for (row, &token) in tokens.iter().enumerate() {
        let row = logits.row(row);
        let best = (0..).zip(row).max_by(|a, b| a.1.total_cmp(b.1));
        if let Some((id, logit)) = best {
            println!("{:>12} -> {:<12} {logit:8.3}", shown(token), shown(id));
        }
    }
    Ok(())
}
