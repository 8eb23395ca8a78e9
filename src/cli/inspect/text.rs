//! The report as text.

use std::fmt::Write;

use octavo_model::Source;

use super::super::wording::{one_line, size};
use super::{structure, tower};
use octavo_analysis::facts::{Facts, Key};

/// Maximum length of a value on a line, in characters.
const MAX_VALUE: usize = 60;

/// Returns all sections.
pub(super) fn render(report: &Facts<'_>, tensors: bool) -> String {
    let mut out = String::new();
    // writing to a String cannot fail
    let _ = sections(&mut out, report, tensors);
    out
}

fn sections(out: &mut String, report: &Facts<'_>, tensors: bool) -> std::fmt::Result {
    let gguf = report.gguf;
    writeln!(out, "{}", one_line(gguf.name()))?;
    let container = match gguf.part_names().count() {
        parts if gguf.is_view() => format!("Hugging Face folder, {} files of weights", parts - 1),
        1 => format!("GGUF v{}", gguf.version()),
        parts => format!("GGUF v{}, {parts} parts", gguf.version()),
    };
    let (keys, n) = (gguf.keys().len(), gguf.tensors().len());
    let (bytes, alignment) = (size(gguf.file_bytes()), gguf.alignment());
    writeln!(
        out,
        "  {container}, {bytes}, {keys} keys, {n} tensors, alignment {alignment}"
    )?;
    if let Some(h) = &report.hparams {
        structure::write(out, report, h)?;
    }
    if let Some(tower) = &report.tower {
        writeln!(out, "\nStructure")?;
        tower::write(out, tower)?;
    }
    writeln!(out, "\nKeys (* = not in the file: the default in use)")?;
    for key in &report.keys {
        let mark = if key.source == Source::Default {
            "*"
        } else {
            " "
        };
        writeln!(out, " {mark} {:<44} {}", one_line(&key.name), value(key))?;
    }
    types(out, report)?;
    memory(out, report)?;
    tokenizer(out, report)?;
    if tensors {
        tensor_list(out, report)?;
    }
    if !report.warnings.is_empty() {
        writeln!(out, "\nWarnings")?;
        for warning in &report.warnings {
            writeln!(out, "  {}", one_line(warning))?;
        }
    }
    verdict(out, report)
}

/// Formats a value on one line: long strings are cut, long arrays are counted.
fn value(key: &Key) -> String {
    let text = match &key.value {
        serde_json::Value::String(s) => one_line(s),
        serde_json::Value::Object(o) => {
            match (o.get("array").and_then(|v| v.as_str()), o.get("len")) {
                (Some(of), Some(len)) => format!("{len} values of type {of}"),
                _ => key.value.to_string(),
            }
        }
        serde_json::Value::Number(n) => match n.as_f64() {
            // whole numbers without ".0", small ones without a series of zeros
            Some(x) if !n.is_i64() && !n.is_u64() && x != 0.0 && x.abs() < 1e-3 => format!("{x:e}"),
            Some(x) if !n.is_i64() && !n.is_u64() => x.to_string(),
            _ => n.to_string(),
        },
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE) {
        Some((at, _)) => format!("{}... ({} characters)", &text[..at], text.chars().count()),
        None => text,
    }
}

fn types(out: &mut String, report: &Facts<'_>) -> std::fmt::Result {
    let total = report.elements();
    if total == 0 {
        return writeln!(out, "\nTypes\n  no tensors");
    }
    let bits = report.tensor_bytes() as f64 * 8.0 / total as f64;
    writeln!(
        out,
        "\nTypes ({total} weights, {}, {bits:.2} bits per weight)",
        size(report.tensor_bytes())
    )?;
    for share in &report.types {
        writeln!(
            out,
            "  {:<8} {:>5} tensors {:>14} weights {:>11}  {:>5.2} bits  {}",
            share.ty,
            share.tensors,
            share.elements,
            size(share.bytes),
            share.bits_per_weight,
            share.kernel.as_deref().unwrap_or("vectors: f32")
        )?;
    }
    Ok(())
}

fn memory(out: &mut String, report: &Facts<'_>) -> std::fmt::Result {
    let Some(m) = &report.memory else {
        return Ok(());
    };
    let state = match m.state {
        0 => String::new(),
        n => format!(", state {}", size(n)),
    };
    writeln!(
        out,
        "\nMemory (estimate)\n  weights {}, KV cache {} (context {}, {}){state}, buffers {} \
         (batch {}): {} in all",
        size(m.weights),
        size(m.kv_cache),
        m.context,
        m.kv_type,
        size(m.buffers),
        m.batch,
        size(m.total)
    )
}

fn tokenizer(out: &mut String, report: &Facts<'_>) -> std::fmt::Result {
    let Some(t) = &report.tokenizer else {
        return Ok(());
    };
    let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
    let ends: Vec<String> = t.eog_ids().iter().map(u32::to_string).collect();
    writeln!(
        out,
        "\nTokenizer\n  {} / {}, {} tokens, bos {} ({}), eos {}, ends of generation [{}], chat \
         template {}",
        t.model_name(),
        t.pre_name(),
        t.n_vocab(),
        id(t.bos()),
        if t.add_bos() { "added" } else { "not added" },
        id(t.eos()),
        ends.join(", "),
        if report.chat_template {
            "present"
        } else {
            "absent"
        }
    )
}

fn tensor_list(out: &mut String, report: &Facts<'_>) -> std::fmt::Result {
    writeln!(out, "\nTensors (shape: innermost dimension first)")?;
    for t in report.gguf.tensors() {
        let dims: Vec<String> = t.dims.iter().map(u64::to_string).collect();
        writeln!(
            out,
            "  {:<32} {:<8} {:<18} {:>11}  {}",
            one_line(&t.name),
            t.ty.name(),
            format!("[{}]", dims.join(", ")),
            size(t.bytes),
            report.kernel(t).as_deref().unwrap_or("-")
        )?;
    }
    Ok(())
}

fn verdict(out: &mut String, report: &Facts<'_>) -> std::fmt::Result {
    if report.refusals.is_empty() {
        let threads = report.threads.in_brackets();
        if report.tower.is_some() {
            return writeln!(
                out,
                "\nThis file is the vision tower of a text model, which takes it as --mmproj; it \
                 runs on {} with {threads}.",
                report.isa
            );
        }
        return writeln!(
            out,
            "\nThis file loads and runs on {} with {threads}.",
            report.isa
        );
    }
    writeln!(out, "\nWould refuse to load")?;
    for refusal in &report.refusals {
        writeln!(out, "  {:<16} {}", refusal.what, one_line(&refusal.why))?;
    }
    Ok(())
}
