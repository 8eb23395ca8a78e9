//! Settings of what is done to images before the encoder.

use std::path::Path;

use serde_json::Value;

use super::super::settings::Settings;
use super::super::{Error, MAX_SETTINGS, read_json};
use super::COLOURS;

/// Files, and the group of settings in each that counts like settings beside it.
const FILES: [(&str, &str); 2] = [
    ("preprocessor_config.json", "media_proc_cfg"),
    ("processor_config.json", "image_processor"),
];

/// The folder's files of such settings; if several have one, the last counts.
pub(super) struct Preprocessor {
    files: Vec<Settings>,
    /// Path of the file that is expected if there is none.
    usual: String,
}

impl Preprocessor {
    pub(super) fn read(dir: &Path) -> Result<Preprocessor, Error> {
        let mut files = Vec::new();
        for (name, group) in FILES {
            if let Some(mut root) = read_json(dir, name, MAX_SETTINGS)? {
                let inner = root.get_mut(group).map(Value::take);
                if let (Value::Object(all), Some(Value::Object(inner))) = (&mut root, inner) {
                    all.extend(inner);
                }
                let file = dir.join(name).display().to_string();
                files.push(Settings { file, root });
            }
        }
        let usual = dir.join(FILES[0].0).display().to_string();
        Ok(Preprocessor { files, usual })
    }

    /// Returns the file that has a setting.
    pub(super) fn with(&self, key: &str) -> Option<&Settings> {
        self.files.iter().rev().find(|file| file.get(key).is_some())
    }

    /// Reads a number for each of red, green and blue.
    pub(super) fn colours(&self, key: &str) -> Result<Vec<f32>, Error> {
        let expected = "a number for each of three colours";
        let settings = self.with(key).or(self.files.last());
        let settings = settings.ok_or_else(|| Error::Missing {
            file: self.usual.clone(),
            expected: "what is taken from the colours of pixels, and what they are divided by",
        })?;
        let three = settings.typed(key, expected, |v| {
            let number = |v: &Value| v.as_f64().map(|x| x as f32).filter(|x| x.is_finite());
            let all: Vec<f32> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
            (all.len() == COLOURS).then_some(all)
        })?;
        settings.must(key, expected, three)
    }
}
