//! Writes the tokenizer files of a folder from GGUF's keys.

use gguf_rs_lite::{Array, Gguf};
use prost::Message;
use serde_json::{Map, Value, json};

use super::super::{Error, generation, pretty};
use super::order::{LONGEST, Token, merges};
use super::proto::{BPE, FILE, ModelProto, NormalizerSpec, Piece, TrainerSpec};
use super::{CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED, bad, padding};
use octavo_text::tokenizer::{ENDS_KEY, SpacePrefix, Tokenizer};

/// A vocabulary in a GGUF file.
struct Vocab<'a> {
    gguf: &'a Gguf,
    tokenizer: Tokenizer,
    tokens: Vec<String>,
    types: Vec<i32>,
}

/// Returns names and contents of the files.
pub(in super::super) fn files(gguf: &Gguf) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
    let tokenizer = Tokenizer::from_gguf(gguf).map_err(|error| Error::Model {
        error: error.to_string(),
    })?;
    let tokens = strings(gguf, "tokens")?;
    let types = gguf.array("tokenizer.ggml.token_type")?;
    let types = types
        .as_ref()
        .and_then(Array::i32s)
        .map_or(vec![NORMAL; tokens.len()], Iterator::collect);
    let vocab = Vocab {
        gguf,
        tokenizer,
        tokens,
        types,
    };
    let (tokenizer, model) = match vocab.tokenizer.model_name() {
        "llama" => vocab.spm()?,
        "gpt2" => (vocab.byte_level()?, None),
        other => {
            let key = "tokenizer.ggml.model";
            return Err(bad(gguf.name(), key, "gpt2 or llama", other));
        }
    };
    let mut files = vec![
        ("tokenizer.json", pretty(&tokenizer)),
        ("tokenizer_config.json", pretty(&vocab.settings()?)),
        ("generation_config.json", pretty(&vocab.generation()?)),
    ];
    files.extend(model.map(|model| (FILE, model.encode_to_vec())));
    Ok(files)
}

fn strings(gguf: &Gguf, key: &str) -> Result<Vec<String>, Error> {
    let key = format!("tokenizer.ggml.{key}");
    let array = gguf.array(&key)?;
    let strings = array.as_ref().and_then(Array::strings);
    let strings =
        strings.ok_or_else(|| bad(gguf.name(), &key, "an array of strings", "something else"))?;
    let utf8 =
        |s: &[u8]| String::from_utf8(s.to_vec()).map_err(|e| bad(gguf.name(), &key, "UTF-8", e));
    strings.map(utf8).collect()
}

impl Vocab<'_> {
    fn bad(&self, key: &str, expected: &str, got: impl ToString) -> Error {
        bad(
            self.gguf.name(),
            &format!("tokenizer.ggml.{key}"),
            expected,
            got,
        )
    }

    /// Returns ids, texts and types of all tokens.
    fn all(&self) -> impl Iterator<Item = (u32, &String, i32)> {
        (0..)
            .zip(&self.tokens)
            .zip(&self.types)
            .map(|((id, text), ty)| (id, text, *ty))
    }

    /// Returns the tokens that are matched in texts before anything else, with their flags.
    fn added(&self) -> impl Iterator<Item = (u32, Value)> {
        let special = |ty: i32| [CONTROL, UNKNOWN].contains(&ty);
        let is_added = move |t: &(u32, &String, i32)| {
            t.2 == USER_DEFINED || special(t.2) && *t.1 != padding(t.0 as usize)
        };
        self.all().filter(is_added).map(move |(id, text, ty)| {
            let (lstrip, rstrip) = self.tokenizer.strips(id);
            let token = json!({ "content": text, "single_word": false,
                "lstrip": lstrip, "rstrip": rstrip,
                "normalized": false, "special": special(ty) });
            (id, token)
        })
    }

    /// Builds `tokenizer.json` from a model and its normalizer, pre-tokenizer and decoder.
    fn json(&self, steps: [Value; 3], model: &Value) -> Value {
        let [normalizer, pre_tokenizer, decoder] = steps;
        let added = self.added().map(|(id, mut token)| {
            token["id"] = json!(id);
            token
        });
        json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": self.post_processor(),
            "decoder": decoder, "model": model,
        })
    }

    /// Builds the post-processor that adds BOS and EOS, where the file asks for them.
    fn post_processor(&self) -> Value {
        let t = &self.tokenizer;
        let text = |id: u32| self.tokens.get(id as usize).map(|text| (text.as_str(), id));
        let first = t.bos().filter(|_| t.add_bos()).and_then(text);
        let last = t.eos().filter(|_| t.add_eos()).and_then(text);
        if first.is_none() && last.is_none() {
            return Value::Null;
        }
        let around = |id: &str, of: u32| {
            let special = |token: Option<(&str, u32)>| {
                token.map(|t| json!({ "SpecialToken": { "id": t.0, "type_id": of } }))
            };
            let text = json!({ "Sequence": { "id": id, "type_id": of } });
            [special(first), Some(text), special(last)]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        let tokens: Map<String, Value> = [first, last]
            .into_iter()
            .flatten()
            .map(|(text, id)| {
                (
                    text.to_owned(),
                    json!({ "id": text, "ids": [id], "tokens": [text] }),
                )
            })
            .collect();
        let (single, pair) = (around("A", 0), [around("A", 0), around("B", 1)].concat());
        json!({
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": tokens,
        })
    }

    fn byte_level(&self) -> Result<Value, Error> {
        let pre = self.gguf.str("tokenizer.ggml.pre")?.unwrap_or_default();
        let expected = "one that cuts text by patterns alone";
        let (regexes, ignore_merges) =
            Tokenizer::patterns_of_pre(pre).ok_or_else(|| self.bad("pre", expected, pre))?;
        let named = |t: &(u32, &String, i32)| [NORMAL, CONTROL, USER_DEFINED].contains(&t.2);
        let vocab: Map<String, Value> = self
            .all()
            .filter(named)
            .map(|(id, text, _)| (text.clone(), json!(id)))
            .collect();
        let merges: Vec<Value> = strings(self.gguf, "merges")?
            .iter()
            .map(|m| m.split_once(' ').map_or(json!(m), |(a, b)| json!([a, b])))
            .collect();
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        });
        let mut steps: Vec<Value> = regexes
            .iter()
            .map(|r| {
                json!({
                    "type": "Split", "pattern": { "Regex": r }, "behavior": "Isolated",
                    "invert": false,
                })
            })
            .collect();
        steps.push(byte_level.clone());
        let model = json!({
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": ignore_merges,
            "vocab": vocab, "merges": merges });
        let cut = json!({ "type": "Sequence", "pretokenizers": steps });
        Ok(self.json([Value::Null, cut, byte_level], &model))
    }

    /// Builds `tokenizer.json` with merges that are equivalent to the scores, and
    /// `tokenizer.model`.
    fn spm(&self) -> Result<(Value, Option<ModelProto>), Error> {
        let scores: Vec<f32> = match self
            .gguf
            .array("tokenizer.ggml.scores")?
            .as_ref()
            .and_then(Array::f32s)
        {
            Some(scores) => scores.collect(),
            None => return Err(self.bad("scores", "an array of f32", "something else")),
        };
        let merges = self.spm_merges(&scores)?;
        let vocab: Map<String, Value> = self
            .all()
            .filter(|t| !is_padding(t))
            .map(|(id, text, _)| (text.clone(), json!(id)))
            .collect();
        let unk = self.tokenizer.unk();
        let model = json!({ "type": "BPE", "dropout": null,
            "unk_token": unk.and_then(|id| self.tokens.get(id as usize)),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab, "merges": merges });
        let json = self.json(around_spm(self.tokenizer.space_prefix()), &model);
        Ok((json, Some(self.proto(&scores))))
    }

    /// Returns merges that split text as the tokens' scores do.
    fn spm_merges(&self, scores: &[f32]) -> Result<Vec<(&str, &str)>, Error> {
        let cut = |ty: i32| [CONTROL, USER_DEFINED, UNKNOWN].contains(&ty);
        let tokens: Vec<Token<'_>> = self
            .all()
            .map(|(_, text, ty)| Token { text, cut: cut(ty) })
            .collect();
        if let Some(long) = tokens.iter().find(|t| !t.cut && t.text.len() > LONGEST) {
            return Err(self.bad(
                "tokens",
                &format!("tokens of at most {LONGEST} bytes"),
                long.text,
            ));
        }
        merges(&tokens, scores).map_err(|error| {
            self.bad(
                "scores",
                "an order of tokens that merges can express",
                error,
            )
        })
    }

    /// Builds `tokenizer.model`, without the padding at the end of the vocabulary.
    fn proto(&self, scores: &[f32]) -> ModelProto {
        let t = &self.tokenizer;
        let unk = t.unk();
        let last = self.all().filter(|t| !is_padding(t)).map(|t| t.0).last();
        let pieces = self
            .all()
            .take_while(|t| Some(t.0) <= last)
            .zip(scores)
            .map(|((id, text, ty), score)| Piece {
                text: text.replace(' ', &SPACE.to_string()),
                score: *score,
                ty: Some(match ty {
                    _ if Some(id) == unk => UNKNOWN,
                    // a model has only one such token
                    UNKNOWN => UNUSED,
                    ty => ty,
                }),
            });
        let id = |id: Option<u32>| Some(id.and_then(|id| i32::try_from(id).ok()).unwrap_or(-1));
        ModelProto {
            pieces: pieces.collect(),
            trainer: Some(TrainerSpec {
                model_type: Some(BPE),
                vocab_size: last.and_then(|last| i32::try_from(last + 1).ok()),
                byte_fallback: Some(true),
                unk_id: id(unk),
                bos_id: id(t.bos()),
                eos_id: id(t.eos()),
                pad_id: id(t.pad()),
                ..TrainerSpec::default()
            }),
            normalizer: Some(NormalizerSpec {
                name: Some("identity".to_owned()),
                add_dummy_prefix: Some(t.space_prefix() != SpacePrefix::Never),
                remove_extra_whitespaces: Some(false),
                escape_whitespaces: Some(true),
                ..NormalizerSpec::default()
            }),
        }
    }

    fn settings(&self) -> Result<Value, Error> {
        let t = &self.tokenizer;
        let added: Map<String, Value> = self
            .added()
            .map(|(id, token)| (id.to_string(), token))
            .collect();
        let mut settings =
            json!({ "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added });
        let usual = self.gguf.str("tokenizer.chat_template")?;
        if let Some(template) = usual {
            settings["chat_template"] = json!(template);
        }
        let mut named = Vec::new();
        for (key, _) in self.gguf.keys() {
            if let Some(name) = key.strip_prefix("tokenizer.chat_template.") {
                named.push(json!({ "name": name, "template": self.gguf.str(key)? }));
            }
        }
        if !named.is_empty() {
            let usual = usual.map(|template| json!({ "name": "default", "template": template }));
            settings["chat_template"] = usual.into_iter().chain(named).collect();
        }
        for (id, to) in [
            (t.bos(), "bos_token"),
            (t.eos(), "eos_token"),
            (t.unk(), "unk_token"),
            (t.pad(), "pad_token"),
        ] {
            if let Some(text) = id.and_then(|id| self.tokens.get(id as usize)) {
                settings[to] = json!(text);
            }
        }
        settings["add_bos_token"] = json!(t.add_bos());
        settings["add_eos_token"] = json!(t.add_eos());
        if t.space_prefix() == SpacePrefix::First {
            settings["legacy"] = json!(false);
        }
        Ok(settings)
    }

    fn generation(&self) -> Result<Value, Error> {
        let mut ends = Vec::new();
        for key in ["eos", "eot", "eom"] {
            ends.extend(self.gguf.u32(&format!("tokenizer.ggml.{key}_token_id"))?);
        }
        let more = self.gguf.array(ENDS_KEY)?;
        ends.extend(more.as_ref().and_then(Array::u32s).into_iter().flatten());
        // a file may name ids that are not in its vocabulary
        ends.retain(|id| (*id as usize) < self.tokens.len());
        let mut settings = json!({ "eos_token_id": ends });
        for (name, value) in generation::recommended(self.gguf) {
            settings[name] = value;
        }
        Ok(settings)
    }
}

/// Builds the normalizer, pre-tokenizer and decoder of a SentencePiece vocabulary.
fn around_spm(prefix: SpacePrefix) -> [Value; 3] {
    let replace =
        |a: char, b: char| json!({ "type": "Replace", "pattern": { "String": a }, "content": b });
    let [normalizer, cut] = match (prefix, prefix.scheme()) {
        (_, Some(scheme)) => {
            let metaspace = json!({
                "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false,
            });
            [Value::Null, metaspace]
        }
        (SpacePrefix::Never, None) => [replace(' ', SPACE), Value::Null],
        (_, None) => {
            let steps = json!([{ "type": "Prepend", "prepend": SPACE }, replace(' ', SPACE)]);
            [
                json!({ "type": "Sequence", "normalizers": steps }),
                Value::Null,
            ]
        }
    };
    let mut decoders = vec![
        replace(SPACE, ' '),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix != SpacePrefix::Never {
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    [
        normalizer,
        cut,
        json!({ "type": "Sequence", "decoders": decoders }),
    ]
}

/// Returns whether a token (id, text, type) is only padding of the vocabulary.
fn is_padding((id, text, ty): &(u32, &String, i32)) -> bool {
    [UNUSED, UNKNOWN].contains(ty) && **text == padding(*id as usize)
}
