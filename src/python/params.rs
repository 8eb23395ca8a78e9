//! Settings of a text from keyword arguments.

use std::collections::BTreeMap;

use octavo_grammar::Rule;
use octavo_llm::engine::GenerationParams;
use octavo_llm::engine::sample::{
    ConfigError, NUMBERS, Number, SamplerDefaults, Stage, random_seed,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Failure;
use crate::json;

/// Names of the keyword arguments, beside those of the numbers that a sampler has.
const NAMES: [&str; 13] = [
    "max_tokens",
    "seed",
    "logit_bias",
    "samplers",
    "dry_sequence_breakers",
    "stop",
    "stop_ids",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "special",
    "json_schema",
    "grammar",
];

/// Settings of a text, and the rule that it must follow.
pub(crate) struct Params {
    pub(crate) generation: GenerationParams,
    pub(crate) rule: Option<Rule>,
}

/// One text or several.
#[derive(FromPyObject)]
enum Texts {
    #[pyo3(transparent)]
    One(String),
    #[pyo3(transparent)]
    Several(Vec<String>),
}

/// Keyword arguments; `None` stands for one that is not given.
struct Arguments<'a, 'py>(Option<&'a Bound<'py, PyDict>>);

impl<'py> Arguments<'_, 'py> {
    fn object(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(all) = self.0 else { return Ok(None) };
        Ok(all.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn get<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
    {
        let Some(value) = self.object(name)? else {
            return Ok(None);
        };
        let wrong = |error: PyErr| PyTypeError::new_err(format!("{name}: {error}"));
        value
            .extract()
            .map(Some)
            .map_err(|error: <T as FromPyObject<'_, 'py>>::Error| wrong(error.into()))
    }

    /// Refuses names that no setting has.
    fn check(&self) -> PyResult<()> {
        let Some(all) = self.0 else { return Ok(()) };
        for name in all.keys() {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) && Number::named(&name).is_none() {
                let numbers = NUMBERS.iter().map(|number| number.name);
                let all: Vec<&str> = NAMES.into_iter().chain(numbers).collect();
                let expected = all.join(", ");
                return Err(PyTypeError::new_err(format!(
                    "{name}: expected one of {expected}"
                )));
            }
        }
        Ok(())
    }
}

impl Params {
    /// Reads the arguments of a text, which is greedy unless one of drawing is given.
    pub(crate) fn read(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Params> {
        let all = Arguments(options);
        all.check()?;
        let generation = GenerationParams {
            max_tokens: all.get("max_tokens")?,
            sampler: sampling(py, &all)?.greedy_unless_drawn(random_seed),
            stop: match all.get("stop")? {
                None => Vec::new(),
                Some(Texts::One(one)) => vec![one],
                Some(Texts::Several(several)) => several,
            },
            stop_ids: all.get("stop_ids")?.unwrap_or_default(),
            ignore_eos: all.get("ignore_eos")?.unwrap_or_default(),
            min_tokens: all.get("min_tokens")?.unwrap_or_default(),
            logprobs: all.get("logprobs")?,
            show_special: all.get("special")?.unwrap_or_default(),
            ..GenerationParams::default()
        };
        let rule = match (all.object("json_schema")?, all.get::<String>("grammar")?) {
            (Some(_), Some(_)) => {
                let what = "json_schema and grammar: expected one of them";
                return Err(PyTypeError::new_err(what));
            }
            (Some(schema), None) => Some(schema_rule(&schema)?),
            (None, grammar) => grammar.map(|text| Rule::of_grammar(&text)),
        };
        Ok(Params { generation, rule })
    }
}

fn sampling(py: Python<'_>, all: &Arguments<'_, '_>) -> PyResult<SamplerDefaults> {
    let bias: Option<BTreeMap<u32, f32>> = all.get("logit_bias")?;
    let order: Option<Vec<String>> = all.get("samplers")?;
    let order = order.map(|names| Stage::parse_order(&names.join(",")));
    let wrong = |error: ConfigError| Failure::from(error).into_py(py);
    let mut settings = SamplerDefaults {
        logit_bias: bias.map(|all| all.into_iter().collect()),
        dry_sequence_breakers: all.get("dry_sequence_breakers")?,
        seed: all.get("seed")?,
        order: order.transpose().map_err(wrong)?,
        ..SamplerDefaults::default()
    };
    for number in &NUMBERS {
        if let Some(value) = all.get(number.name)? {
            number.set(&mut settings, value).map_err(wrong)?;
        }
    }
    Ok(settings)
}

/// Reads a JSON schema: a dictionary, or its text.
fn schema_rule(schema: &Bound<'_, PyAny>) -> PyResult<Rule> {
    let value = match schema.extract::<String>() {
        Ok(text) => json::parse(schema.py(), &text)?,
        Err(_) => json::from_python(schema)?,
    };
    Rule::of_schema(value).ok_or_else(|| {
        PyTypeError::new_err("json_schema: expected a JSON schema, which is an object")
    })
}
