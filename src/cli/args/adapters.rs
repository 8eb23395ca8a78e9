//! Options of LoRA adapters and control vectors.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use octavo_engine::{ControlFile, EngineOptions, LoraFile};

use super::super::failure::Failure;
use super::super::load::check_there;

/// Options of LoRA adapters and control vectors.
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct AdapterArgs {
    #[command(flatten)]
    lora: LoraArgs,
    /// Load adapters, but apply those alone that a request names
    #[arg(long)]
    lora_init_without_apply: bool,
    #[command(flatten)]
    control: ControlArgs,
    /// First and last layer that control vectors change [default: all]
    #[arg(long, num_args = 2, value_names = ["START", "END"])]
    control_vector_layer_range: Option<Vec<usize>>,
}

/// LoRA adapters in the order of the command line.
#[derive(Debug, Default)]
pub(crate) struct LoraArgs(Vec<LoraFile>);

/// The options of [`LoraArgs`].
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapters")]
struct NamedLora {
    /// LoRA adapter to apply: a GGUF file or a PEFT folder; several with commas, or given again
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    #[arg(value_hint = clap::ValueHint::AnyPath)]
    lora: Vec<PathBuf>,
    /// LoRA adapter with a factor of what it adds
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',', value_parser = scaled)]
    lora_scaled: Vec<Scaled>,
}

/// Control vectors in the order of the command line.
#[derive(Debug, Default)]
pub(crate) struct ControlArgs(Vec<ControlFile>);

/// The options of [`ControlArgs`].
#[derive(Debug, Args)]
#[command(next_help_heading = "Adapters")]
struct NamedControl {
    /// Control vector to add to the outputs of layers: a GGUF file; several are summed
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    control_vector: Vec<PathBuf>,
    /// Control vector with a factor
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',', value_parser = scaled)]
    control_vector_scaled: Vec<Scaled>,
}

/// A file and a factor.
#[derive(Clone, Debug)]
struct Scaled {
    path: PathBuf,
    scale: f32,
}

fn scaled(text: &str) -> Result<Scaled, String> {
    let parts = text.rsplit_once(':').filter(|(path, _)| !path.is_empty());
    let scale = |scale: &str| scale.parse::<f32>().ok().filter(|scale| scale.is_finite());
    let parts = parts.and_then(|(path, number)| Some((path, scale(number)?)));
    let (path, scale) = parts.ok_or("expected FILE:SCALE with a finite number")?;
    Ok(Scaled {
        path: OsString::from(path).into(),
        scale,
    })
}

impl AdapterArgs {
    /// Returns whether there are any.
    pub(crate) fn are_given(&self) -> bool {
        !(self.lora.0.is_empty() && self.control.0.is_empty())
    }

    /// Adds them to the engine's options.
    ///
    /// # Errors
    /// If a file is not there.
    pub(crate) fn apply(&self, options: &mut EngineOptions) -> Result<(), Failure> {
        options.adapters = self.lora.files()?;
        if self.lora_init_without_apply {
            options
                .adapters
                .iter_mut()
                .for_each(|file| file.scale = 0.0);
        }
        for file in &self.control.0 {
            check_there("--control-vector", &file.path)?;
        }
        options.control.clone_from(&self.control.0);
        options.control_layers = match self.control_vector_layer_range.as_deref() {
            Some(&[first, last]) => Some([first, last]),
            _ => None,
        };
        Ok(())
    }
}

impl LoraArgs {
    /// Returns the adapters.
    ///
    /// # Errors
    /// If one is not there.
    pub(crate) fn files(&self) -> Result<Vec<LoraFile>, Failure> {
        for file in &self.0 {
            check_there("--lora", &file.path)?;
        }
        Ok(self.0.clone())
    }
}

/// Files with their factors.
type Files = Vec<(PathBuf, f32)>;

/// Merges the files of two options by their places on the command line.
fn ordered(
    matches: &ArgMatches,
    ids: [&str; 2],
    plain: Vec<PathBuf>,
    scaled: Vec<Scaled>,
) -> Files {
    let places = |id| matches.indices_of(id).into_iter().flatten();
    let plain = plain.into_iter().map(|path| (path, 1.0));
    let scaled = scaled.into_iter().map(|file| (file.path, file.scale));
    let mut all: Vec<(usize, (PathBuf, f32))> = places(ids[0]).zip(plain).collect();
    all.extend(places(ids[1]).zip(scaled));
    all.sort_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, file)| file).collect()
}

impl FromArgMatches for LoraArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let NamedLora { lora, lora_scaled } = NamedLora::from_arg_matches(matches)?;
        let files = ordered(matches, ["lora", "lora_scaled"], lora, lora_scaled);
        let file = |(path, scale)| LoraFile { path, scale };
        Ok(LoraArgs(files.into_iter().map(file).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = LoraArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for LoraArgs {
    fn augment_args(command: Command) -> Command {
        NamedLora::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        NamedLora::augment_args_for_update(command)
    }
}

impl FromArgMatches for ControlArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = NamedControl::from_arg_matches(matches)?;
        let files = ordered(
            matches,
            ["control_vector", "control_vector_scaled"],
            named.control_vector,
            named.control_vector_scaled,
        );
        let file = |(path, strength)| ControlFile { path, strength };
        Ok(ControlArgs(files.into_iter().map(file).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ControlArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for ControlArgs {
    fn augment_args(command: Command) -> Command {
        NamedControl::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        NamedControl::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        adapters: AdapterArgs,
    }

    fn parse(line: &str) -> Result<AdapterArgs, String> {
        let words = std::iter::once("octavo").chain(line.split_whitespace());
        let line = Line::try_parse_from(words);
        line.map(|line| line.adapters)
            .map_err(|error| error.to_string())
    }

    fn files(line: &str) -> Vec<(String, f32)> {
        let args = parse(line).expect("valid options");
        let adapters = args.lora.0.iter();
        adapters
            .map(|file| (file.path.display().to_string(), file.scale))
            .collect()
    }

    #[test]
    fn adapters_are_numbered_in_the_order_of_the_line() {
        let own = |list: &[(&str, f32)]| -> Vec<(String, f32)> {
            list.iter()
                .map(|(file, scale)| ((*file).to_owned(), *scale))
                .collect()
        };
        assert_eq!(
            files("--lora-scaled a:0.5,b:-2 --lora c,d --lora-scaled e:1 --lora f"),
            own(&[
                ("a", 0.5),
                ("b", -2.0),
                ("c", 1.0),
                ("d", 1.0),
                ("e", 1.0),
                ("f", 1.0)
            ])
        );
        assert_eq!(
            files("--lora-scaled x:y:3 --lora a"),
            own(&[("x:y", 3.0), ("a", 1.0)])
        );
        let args = parse("--control-vector-scaled a:0.5 --control-vector b").expect("valid");
        let control: Vec<f32> = args.control.0.iter().map(|file| file.strength).collect();
        assert_eq!(control, [0.5, 1.0]);
    }

    #[test]
    fn factors_are_numbers() {
        for line in ["a", "a:", "a:x", ":1", "a:nan", "a:inf"] {
            assert!(parse(&format!("--lora-scaled {line}")).is_err(), "{line}");
        }
        assert!(parse("--control-vector-layer-range 1").is_err());
        assert!(parse("--control-vector-layer-range 1 3").is_ok());
    }
}
