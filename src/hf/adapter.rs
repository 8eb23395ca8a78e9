//! PEFT folders of LoRA adapters, presented as the GGUF file that llama.cpp's converter makes of
//! them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, RowSource, View};
use serde_json::{Value, json};

use super::Error;
use super::config::Config;
use super::files::{Source, bad, read, show};
use super::layout::Rule;
use super::names::{gguf_name, in_layer};
use super::order::Order;
use super::rows::Plain;
use super::settings::Settings;
use super::types::{self, Cut, ModelType};

/// Settings of an adapter.
const SETTINGS: &str = "adapter_config.json";

/// Prefix of PEFT's names.
const PREFIX: &str = "base_model.model.";

/// Returns whether a folder is one of a PEFT adapter.
pub fn is_adapter(dir: &Path) -> bool {
    dir.join(SETTINGS).is_file()
}

/// Opens a folder as the GGUF file of an adapter for a model.
///
/// # Errors
/// For settings that are not supported, and tensors that the model does not have.
pub fn open_adapter(dir: &Path, model: &Gguf) -> Result<Gguf, Error> {
    let settings = Settings::beside(dir, SETTINGS)?;
    let settings = settings.ok_or_else(|| Error::Missing {
        file: dir.join(SETTINGS).display().to_string(),
        expected: "the settings of a PEFT adapter",
    })?;
    let alpha = alpha(&settings)?;
    let arch = model.str("general.architecture")?.unwrap_or_default();
    let Some(row) = types::of_arch(arch) else {
        let expected = "a model whose Hugging Face names are known";
        return Err(settings.bad("base_model_name_or_path", expected, arch));
    };
    let mut view = View::new(dir);
    view.set("general.type", "adapter")
        .set("adapter.type", "lora")
        .set("general.architecture", arch)
        .set("adapter.lora.alpha", alpha);
    let tokens = settings.ids("alora_invocation_tokens")?;
    if !tokens.is_empty() {
        view.set("adapter.alora.invocation_tokens", tokens);
    }
    let mut folder = Folder {
        config: config(settings, row, model)?,
        view,
    };
    for (module, halves) in pairs(row, read(dir, &OpenOptions::default())?)? {
        folder.module(&module, halves)?;
    }
    Ok(folder.view.open()?)
}

/// Reads the settings; returns the alpha by which GGUF's scale is PEFT's.
fn alpha(settings: &Settings) -> Result<f32, Error> {
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    for key in [
        "use_dora",
        "fan_in_fan_out",
        "modules_to_save",
        "alpha_pattern",
        "trainable_token_indices",
    ] {
        if let Some(value) = settings.get(key).filter(|value| is_set(value)) {
            return Err(settings.bad(key, "nothing", value));
        }
    }
    for (key, expected) in [("peft_type", "LORA"), ("bias", "none")] {
        let got = settings.string(key)?;
        if got.as_ref().is_some_and(|got| got != expected) {
            return Err(settings.bad(key, expected, got.unwrap_or_default()));
        }
    }
    let alpha = settings.double("lora_alpha")?;
    let alpha = settings.must("lora_alpha", "a number", alpha)?;
    if !settings.flag("use_rslora")?.unwrap_or(false) {
        return Ok(alpha as f32);
    }
    if let Some(value) = settings.get("rank_pattern").filter(|value| is_set(value)) {
        return Err(settings.bad("rank_pattern", "nothing beside use_rslora", value));
    }
    // alpha / sqrt(r) there, alpha / r here
    Ok((alpha * (settings.count("r")? as f64).sqrt()) as f32)
}

/// Returns the settings that decide the order of rows, as the model's file has them.
fn config(settings: Settings, row: &'static ModelType, model: &Gguf) -> Result<Config, Error> {
    let key = |name: &str| {
        let value = model.u32(&format!("{}.{name}", row.arch));
        value.ok().flatten().map(|n| n as usize)
    };
    let heads = key("attention.head_count").unwrap_or(0);
    let hidden = key("embedding_length").unwrap_or(0);
    let usual = hidden.checked_div(heads).unwrap_or(0);
    let head_dim = key("attention.key_length").unwrap_or(usual);
    let heads_kv = key("attention.head_count_kv").unwrap_or(heads);
    let root = json!({
        "hidden_size": hidden,
        "num_hidden_layers": key("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads_kv,
        "head_dim": head_dim,
        "vocab_size": key("vocab_size"),
        "intermediate_size": key("feed_forward_length"),
    });
    Ok(Config {
        settings: Settings {
            file: settings.file,
            root,
        },
        row,
        wrapper: None,
        heads,
        heads_kv,
        head_dim,
        tied: false,
        untied: false,
        awq: None,
    })
}

/// The two matrices of a module, each with its name.
type Halves = [(String, Source); 2];

/// Returns the matrices of each module.
fn pairs(
    row: &ModelType,
    sources: BTreeMap<String, Source>,
) -> Result<BTreeMap<String, Halves>, Error> {
    let mut found: BTreeMap<String, [Option<(String, Source)>; 2]> = BTreeMap::new();
    for (name, source) in sources {
        let Some((module, half)) = half_of(row, &name) else {
            let expected = "a name that ends with lora_A.weight or lora_B.weight";
            return Err(bad(&name, &source, expected, show(&source)));
        };
        found.entry(module).or_default()[half] = Some((name, source));
    }
    let both = |(module, halves): (String, [Option<(String, Source)>; 2])| match halves {
        [Some(a), Some(b)] => Ok((module, [a, b])),
        [Some((name, source)), None] | [None, Some((name, source))] => {
            let expected = "lora_A and lora_B of the module";
            Err(bad(&name, &source, expected, "one of them"))
        }
        [None, None] => unreachable!("one of them was found"),
    };
    found.into_iter().map(both).collect()
}

/// Returns the module of a matrix, under the name it has in a folder of the model, and which of the
/// two it is.
fn half_of(row: &ModelType, name: &str) -> Option<(String, usize)> {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    let (module, half) = [
        ".lora_A",
        ".lora_B",
        ".lora_embedding_A",
        ".lora_embedding_B",
    ]
    .into_iter()
    .enumerate()
    .find_map(|(i, end)| Some((name.split_once(end)?, i % 2)))
    .and_then(|((module, rest), half)| {
        // PEFT puts an adapter's name there in its own checkpoints
        let known = ["", ".weight", ".default", ".default.weight"].contains(&rest);
        known.then_some((module, half))
    })?;
    let module = module.replacen("language_model.", "", 1);
    let module = module.strip_prefix(row.prefix).unwrap_or(&module);
    Some((module.to_owned(), half))
}

/// A folder's tensors while they are converted one by one.
struct Folder {
    config: Config,
    view: View,
}

impl Folder {
    /// Adds the matrices of a module under the names of the tensors that it becomes.
    fn module(&mut self, module: &str, [a, b]: Halves) -> Result<(), Error> {
        let row = self.config.row;
        let mut names = Vec::new();
        if let Some(name) = gguf_name(row, module) {
            let rule = (row.order)(&self.config, &name)?;
            names.push((name, rule));
        } else if let Some((layer, rest)) = in_layer(row, module) {
            for (_, name, cut) in row.cuts.iter().filter(|cut| cut.0 == rest) {
                let name = format!("blk.{layer}.{name}");
                let rule = match cut {
                    Cut::Ordered => (row.order)(&self.config, &name)?,
                    cut => Rule::Cut(*cut),
                };
                names.push((name, rule));
            }
        }
        if names.is_empty() {
            let expected = format!("a module of {}, not of a single expert", row.arch);
            return Err(bad(&a.0, &a.1, expected, module));
        }
        for (name, rule) in names {
            self.pair(&name, rule, [&a, &b])?;
        }
        Ok(())
    }

    /// Adds the matrices of a tensor.
    fn pair(
        &mut self,
        name: &str,
        rule: Rule,
        [a, b]: [&(String, Source); 2],
    ) -> Result<(), Error> {
        let supported = matches!(
            rule,
            Rule::Same | Rule::Heads(_) | Rule::Rows { .. } | Rule::Columns { .. } | Rule::Cut(_)
        );
        let factors = (self.config.row.factors)(&self.config, name)?;
        if !supported || !factors.is_empty() {
            let expected = "a tensor that is converted row by row";
            return Err(bad(&a.0, &a.1, expected, name));
        }
        let (mut down, mut up) = (Rows::of(a)?, Rows::of(b)?);
        if name == "token_embd" {
            down = down.transposed();
        } else if let Rule::Columns { order, columns } = rule {
            if down.cols != columns {
                let expected = format!("{columns} columns");
                return Err(bad(&a.0, &a.1, expected, show(&a.1)));
            }
            down = down.transposed().ordered(columns, order).transposed();
        } else {
            let left = rule.rows(up.rows);
            let (left, order) = left.map_err(|expected| bad(&b.0, &b.1, expected, show(&b.1)))?;
            up = up.ordered(left, order);
        }
        for (rows, half, (from, source)) in [(down, "lora_a", a), (up, "lora_b", b)] {
            let dims = [rows.cols as u64, rows.rows as u64];
            let tensor = format!("{name}.weight.{half}");
            let (ty, file) = (rows.plain.ty(), source.part.file.name());
            let made = self.view.made(&tensor, &dims, ty, file, Arc::new(rows));
            made.map_err(|error| bad(from, source, error.to_string(), show(source)))?;
        }
        Ok(())
    }
}

/// A matrix in memory.
struct Rows {
    plain: Plain,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl Rows {
    fn of((name, source): &(String, Source)) -> Result<Rows, Error> {
        let plain = Plain::of(name, source)?;
        let [rows, cols] = source.shape[..] else {
            return Err(bad(name, source, "two dimensions", show(source)));
        };
        Ok(Rows {
            plain,
            rows,
            cols,
            bytes: source.part.bytes().to_vec(),
        })
    }

    fn row_bytes(&self) -> usize {
        self.cols * self.plain.bytes()
    }

    fn transposed(&self) -> Rows {
        let each = self.plain.bytes();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for col in 0..self.cols {
            for row in 0..self.rows {
                let at = (row * self.cols + col) * each;
                bytes.extend_from_slice(&self.bytes[at..at + each]);
            }
        }
        Rows {
            plain: self.plain,
            rows: self.cols,
            cols: self.rows,
            bytes,
        }
    }

    /// Leaves this many rows, in this order.
    fn ordered(&self, rows: usize, order: Order) -> Rows {
        let each = self.row_bytes();
        let row = |i: usize| &self.bytes[order.source(i) * each..][..each];
        Rows {
            plain: self.plain,
            rows,
            cols: self.cols,
            bytes: (0..rows).flat_map(|i| row(i).to_vec()).collect(),
        }
    }
}

impl RowSource for Rows {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let start = first as usize * self.row_bytes();
        out.copy_from_slice(&self.bytes[start..start + out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    /// A model with the keys that adapters need.
    fn model(arch: &str) -> Gguf {
        let mut view = View::new(Path::new("model.gguf"));
        view.set("general.architecture", arch);
        for (key, value) in [
            ("embedding_length", 8_u32),
            ("block_count", 2),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("feed_forward_length", 12),
        ] {
            view.set(&format!("{arch}.{key}"), value);
        }
        view.open().expect("a sound file")
    }

    /// Writes a folder of these matrices, each of whole numbers from 0 on.
    fn write(dir: &Path, settings: &Value, matrices: &[(&str, [usize; 2])]) {
        std::fs::write(dir.join(SETTINGS), settings.to_string()).expect("written");
        let bytes: Vec<Vec<u8>> = matrices
            .iter()
            .map(|(_, [rows, cols])| {
                let numbers = (0..rows * cols).map(|i| i as f32);
                numbers.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let tensors: HashMap<String, TensorView<'_>> = matrices
            .iter()
            .zip(&bytes)
            .map(|((name, shape), bytes)| {
                let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("sound");
                (format!("{PREFIX}{name}"), view)
            })
            .collect();
        let file = safetensors::serialize(&tensors, None).expect("sound");
        std::fs::write(dir.join("adapter_model.safetensors"), file).expect("written");
    }

    fn usual() -> Value {
        json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none" })
    }

    const Q: [(&str, [usize; 2]); 2] = [
        ("model.layers.1.self_attn.q_proj.lora_A.weight", [2, 8]),
        ("model.layers.1.self_attn.q_proj.lora_B.weight", [8, 2]),
    ];

    /// Returns the first number of each row of a tensor.
    fn firsts(gguf: &Gguf, name: &str) -> Vec<f32> {
        let tensor = gguf.tensor(name).unwrap_or_else(|| panic!("{name}"));
        let row = tensor.dims[0] as usize * 4;
        let rows = gguf.data(tensor).chunks_exact(row);
        rows.map(|row| f32::from_le_bytes(row[..4].try_into().expect("four bytes")))
            .collect()
    }

    #[test]
    fn rows_are_ordered_as_those_of_the_model() {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), &usual(), &Q);
        let (a, b) = ("blk.1.attn_q.weight.lora_a", "blk.1.attn_q.weight.lora_b");
        let qwen = open_adapter(dir.path(), &model("qwen3")).expect("an adapter");
        assert_eq!(
            firsts(&qwen, b),
            [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]
        );
        assert_eq!(qwen.f32("adapter.lora.alpha").expect("a number"), Some(4.0));
        // the halves of a head of four rows become neighbours
        let llama = open_adapter(dir.path(), &model("llama")).expect("an adapter");
        assert_eq!(
            firsts(&llama, b),
            [0.0, 4.0, 2.0, 6.0, 8.0, 12.0, 10.0, 14.0]
        );
        assert_eq!(firsts(&llama, a), [0.0, 8.0]);
    }

    #[test]
    fn embeddings_have_a_row_for_each_token() {
        let dir = tempfile::tempdir().expect("a folder");
        let names = [
            ("model.embed_tokens.lora_embedding_A", [2, 3]),
            ("model.embed_tokens.lora_embedding_B", [8, 2]),
        ];
        write(dir.path(), &usual(), &names);
        let gguf = open_adapter(dir.path(), &model("qwen3")).expect("an adapter");
        assert_eq!(firsts(&gguf, "token_embd.weight.lora_a"), [0.0, 1.0, 2.0]);
        let b = gguf.tensor("token_embd.weight.lora_b").expect("B");
        assert_eq!(b.dims, [2, 8]);
    }

    #[test]
    fn a_stabilized_rank_is_another_alpha() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut settings = usual();
        settings["use_rslora"] = json!(true);
        write(dir.path(), &settings, &Q);
        let gguf = open_adapter(dir.path(), &model("qwen3")).expect("an adapter");
        let alpha = gguf.f32("adapter.lora.alpha").expect("a number");
        assert_eq!(alpha, Some((4.0 * 2.0_f64.sqrt()) as f32));
    }

    #[test]
    fn other_settings_and_tensors_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let refused = |settings: &Value, matrices: &[(&str, [usize; 2])]| {
            write(dir.path(), settings, matrices);
            match open_adapter(dir.path(), &model("qwen3")) {
                Ok(_) => "nothing".to_owned(),
                Err(error) => error.to_string(),
            }
        };
        for (key, value) in [
            ("peft_type", json!("LOHA")),
            ("use_dora", json!(true)),
            ("fan_in_fan_out", json!(true)),
            ("modules_to_save", json!(["lm_head"])),
            ("alpha_pattern", json!({ "q_proj": 3 })),
            ("bias", json!("all")),
            ("lora_alpha", json!("x")),
            ("lora_alpha", json!(null)),
        ] {
            let mut settings = usual();
            settings[key] = value.clone();
            let error = refused(&settings, &Q);
            assert!(
                error.contains(key) && error.contains(SETTINGS),
                "{key} {value}: {error}"
            );
        }
        for matrices in [
            &Q[..1],
            &[("model.layers.1.self_attn.q_proj.weight", [8, 8])],
            &[("model.norm.lora_C.weight", [8, 8])],
            &[
                ("model.layers.0.mlp.experts.3.up_proj.lora_A.weight", [2, 8]),
                ("model.layers.0.mlp.experts.3.up_proj.lora_B.weight", [8, 2]),
            ],
        ] {
            let error = refused(&usual(), matrices);
            assert!(
                error.contains("adapter_model.safetensors: tensor"),
                "{error}"
            );
        }
    }
}
