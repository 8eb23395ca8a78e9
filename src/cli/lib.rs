//! The command line: one file per subcommand. Handles arguments, terminals, signals and exit codes;
//! computes nothing, and sees tensors only to print them.
//!
//! Results go to stdout, and nothing else does; notes, progress and errors go to stderr. An error
//! is one line, `octavo: error: ...`. Exit codes: 0, 1 (bad input), 2 (usage), 75 (batch work:
//! another try may help), 101 (a fault of the program), 130 (Ctrl-C), 143 and 129 (SIGTERM and
//! SIGHUP).

mod answer;
mod args;
mod argv;
mod arrays;
mod bench;
mod chat;
mod context;
mod convert;
mod diff;
mod embed;
mod environment;
mod failure;
mod feed;
mod gguf;
mod hub;
mod imatrix;
mod inspect;
mod lines;
mod load;
mod logits;
mod merge;
mod metrics;
mod output;
mod perplexity;
mod prompt;
mod quant_report;
mod quantize;
mod ranks;
mod reply;
mod report;
mod rerank;
mod run;
mod serve;
mod shards;
mod signal;
mod streamed;
mod terminal;
mod threads;
mod tokenize;
mod values;
mod vision;
mod wording;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use failure::{Exit, Failure};
use terminal::Level;

const EXAMPLES: &str = "\
Examples:
  octavo run -p \"1+1=\"                         the built-in demo model
  octavo run model.gguf -p \"Once upon a time\" -n 64 --temp 0.8 --seed 1
  octavo run model.gguf --chat -p \"What is the capital of France?\"
  octavo chat model.gguf
  octavo serve model.gguf --port 8080
  octavo inspect model.gguf --tensors
  octavo logits model.gguf -p \"Hello\" --top 10
  octavo embed bge-small.gguf -p \"Hello\"
  octavo perplexity model.gguf -f text.txt
  octavo bench model.gguf -p 512 -n 128
  octavo diff f16.gguf q4_k_m.gguf -p \"Hello\"
  octavo convert Qwen3-0.6B-AWQ qwen3-0.6b.gguf
  octavo quantize model-f16.gguf model-q4.gguf Q4_K_M
  octavo gguf show model.gguf

MODEL is a GGUF file, a Hugging Face folder (safetensors, plain or AWQ), a model of the hub
(hf:USER/REPO, hf:USER/REPO:QUANT, hf:USER/REPO/FILE) or an address of a GGUF file.
Commands that run a model run the built-in demo model if no MODEL is given.
The environment can set every option: OCTAVO_PORT=8000 is --port 8000.";

/// Run GGUF language models, with numbers that can be checked.
#[derive(Debug, Parser)]
#[command(name = "octavo", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    messages: MessageArgs,
    #[command(flatten)]
    hub: hub::HubArgs,
    /// With several MPI ranks: seconds that one may take to answer before all of them end
    #[cfg(feature = "mpi")]
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = ranks::SECONDS)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    rank_timeout: u64,
}

/// Level of detail on stderr.
#[derive(Debug, Args)]
#[command(next_help_heading = "Messages")]
struct MessageArgs {
    /// Print more to stderr: what is loaded, and how long it takes
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    verbose: bool,
    /// Print only errors to stderr
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Write every message to FILE as well, with its time; append to an older log
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    log_file: Option<PathBuf>,
}

impl MessageArgs {
    fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (false, true) => Level::Verbose,
            (false, false) => Level::Usual,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Chat(Box<chat::ChatArgs>),
    Serve(Box<serve::ServeArgs>),
    Inspect(inspect::InspectArgs),
    Tokenize(tokenize::TokenizeArgs),
    Logits(logits::LogitsArgs),
    Embed(embed::EmbedArgs),
    Rerank(rerank::RerankArgs),
    Perplexity(perplexity::PerplexityArgs),
    Bench(bench::BenchArgs),
    Diff(Box<diff::DiffArgs>),
    QuantReport(Box<quant_report::QuantReportArgs>),
    Convert(convert::ConvertArgs),
    Quantize(Box<quantize::QuantizeArgs>),
    Imatrix(imatrix::ImatrixArgs),
    Gguf(Box<gguf::GgufArgs>),
    Merge(merge::MergeArgs),
    Pull(hub::PullArgs),
    List(hub::ListArgs),
    Rm(hub::RmArgs),
    /// Print a script that completes octavo's commands and options in a shell
    #[command(after_help = "Example:\n  \
                      octavo completions bash > ~/.local/share/bash-completion/completions/octavo")]
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Print a manual page, in roff
    #[command(after_help = "Examples:\n  \
                      octavo man | man -l -\n  \
                      octavo man run > ~/.local/share/man/man1/octavo-run.1\n  \
                      octavo man gguf set | man -l -")]
    Man {
        /// Command of the page, such as run or gguf set; octavo itself if not given
        command: Vec<String>,
    },
}

impl Command {
    /// Returns the tensor-parallel options of commands that several ranks can run together.
    fn numa(&self) -> Option<&ranks::NumaArgs> {
        match self {
            Command::Run(args) => Some(&args.numa),
            Command::Chat(args) => Some(&args.numa),
            Command::Serve(args) => Some(&args.numa),
            Command::Logits(args) => Some(&args.numa),
            Command::Perplexity(args) => Some(&args.numa),
            Command::Bench(args) => Some(&args.numa),
            Command::Inspect(_)
            | Command::Tokenize(_)
            | Command::Embed(_)
            | Command::Rerank(_)
            | Command::Diff(_)
            | Command::QuantReport(_)
            | Command::Convert(_)
            | Command::Quantize(_)
            | Command::Imatrix(_)
            | Command::Gguf(_)
            | Command::Merge(_)
            | Command::Pull(_)
            | Command::List(_)
            | Command::Rm(_)
            | Command::Completions { .. }
            | Command::Man { .. } => None,
        }
    }

    /// Returns whether the command prints to stdout.
    fn prints(&self) -> bool {
        match self {
            Command::Serve(_) | Command::Convert(_) | Command::Imatrix(_) | Command::Rm(_) => false,
            Command::Quantize(args) => args.prints(),
            Command::Gguf(args) => args.prints(),
            _ => true,
        }
    }

    /// Checks that several ranks can run this command together.
    fn check_ranks(&self, ranks: usize) -> Result<(), Failure> {
        match self.numa() {
            Some(_) => Ok(()),
            None => Err(Failure::Usage(format!(
                "{ranks} ranks: expected run, chat, serve, logits, perplexity or bench"
            ))),
        }
    }
}

/// Memory in bytes to parse arguments, handle signals and open a model, besides the model itself.
const LEAST_MEMORY: usize = 8 << 20;

/// Sources that the program was built from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Build {
    /// Abbreviated git commit, `-changed` after it if files differ from it; `None` outside a clone.
    pub commit: Option<&'static str>,
    /// Number of commits up to it.
    pub number: Option<&'static str>,
}

/// Build of this process; [`main`] sets it.
static BUILD: OnceLock<Build> = OnceLock::new();

/// Returns the sources that the program was built from.
fn build() -> Build {
    BUILD.get().copied().unwrap_or_default()
}

/// Runs the program with these arguments, the program's name first, and returns its exit code.
pub fn main(args: impl Iterator<Item = OsString>, build: Build) -> ExitCode {
    run(args, build).into()
}

/// Does the same as [`main`] for a program that goes on, which wants the exit code as a number.
pub fn run(args: impl Iterator<Item = OsString>, build: Build) -> u8 {
    // a second run in one process has the same build
    let _ = BUILD.set(build);
    install_panic_hook();
    ranks::run(|| program(args))
}

fn program(args: impl Iterator<Item = OsString>) -> u8 {
    guard_maps(1);
    // with less memory not even an error message is certain
    if let Err(error) = octavo_kernels::room(LEAST_MEMORY) {
        return Failure::Input(format!(
            "{error}: expected a limit of memory that leaves more"
        ))
        .report();
    }
    let mut command = command();
    command.build();
    let args = match argv::expand(&command, args) {
        Ok(args) => args,
        Err(failure) => return failure.report(),
    };
    let completed = environment::complete(&command, args, environment::value_of);
    let environment::Completed { args, variables } = match completed {
        Ok(completed) => completed,
        Err(line) => return Failure::Usage(line).report(),
    };
    let parsed = command
        .clone()
        .try_get_matches_from(&args)
        .and_then(|found| Cli::from_arg_matches(&found));
    let result = match parsed {
        Ok(cli) => terminal::set_up(cli.messages.level(), cli.messages.log_file.as_deref())
            .and_then(|()| {
                hub::set_up(cli.hub);
                dispatch(cli.command)
            }),
        Err(error) => match argv::needed::explain(&command, &args, &error) {
            Some(line) => Err(Failure::Usage(line)),
            None => return report::usage(&error, &variables),
        },
    };
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}

/// Builds the whole command line.
fn command() -> clap::Command {
    numbers_below_0(Cli::command())
}

/// Returns the command `octavo serve`, with the options of all commands.
fn serve_command() -> clap::Command {
    let mut command = command();
    command.build();
    let serve = command.find_subcommand("serve").cloned();
    serve.expect("it is one of the commands")
}

/// Makes a negative number after an option its value, so that the option reports its range: no
/// option has a digit as its name.
fn numbers_below_0(command: clap::Command) -> clap::Command {
    let command =
        command.mut_args(
            |arg| match arg.get_action().takes_values() && !arg.is_positional() {
                true => arg.allow_negative_numbers(true),
                false => arg,
            },
        );
    command.mut_subcommands(numbers_below_0)
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    if command.prints() {
        terminal::check_stdout()?;
    }
    if let Some(tp_group) = ranks::tp_group() {
        command.check_ranks(tp_group.ranks())?;
    }
    let numa = command.numa().and_then(|args| args.numa);
    let others = numa.map(ranks::Numa::start).transpose()?;
    if command.numa().is_some_and(|args| args.nccl) && ranks::tp_group().is_none() {
        let expected = "expected several ranks (--numa ranks=N, or mpirun)";
        return Err(Failure::Usage(format!("--nccl: {expected}, found one")));
    }
    terminal::detail(&format!("octavo: version {}", env!("CARGO_PKG_VERSION")));
    let start = std::time::Instant::now();
    let result = execute(command);
    output::tell_of_left_overs();
    let seconds = start.elapsed().as_secs_f64();
    terminal::detail(&format!("octavo: ended after {seconds:.1} s"));
    if let Some(others) = others {
        others.stop();
    }
    result
}

fn execute(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Embed(args) => embed::run(&args),
        Command::Rerank(args) => rerank::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::QuantReport(mut args) => {
            hub::fetch(&mut args.model)?;
            quant_report::run(&args)
        }
        Command::Convert(mut args) => {
            hub::fetch(&mut args.input)?;
            convert::run(&args)
        }
        Command::Quantize(mut args) => {
            hub::fetch(&mut args.input)?;
            quantize::run(&args)
        }
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Gguf(args) => gguf::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Pull(args) => hub::pull(&args),
        Command::List(args) => hub::list(&args),
        Command::Rm(args) => hub::rm(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { command } => man(&command),
    }
}

fn completions(shell: Shell) -> Result<Exit, Failure> {
    // written to memory first: the generator panics if it cannot write
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "octavo", &mut script);
    terminal::print(&script)?;
    Ok(Exit::Done)
}

fn man(names: &[String]) -> Result<Exit, Failure> {
    let mut octavo = command();
    octavo.build();
    let mut command = &octavo;
    for name in names {
        command = command.find_subcommand(name).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
            let expected = match names.is_empty() {
                true => "no further command".to_owned(),
                false => format!("one of {}", names.join(", ")),
            };
            Failure::Usage(format!("man: {name}: expected {expected}"))
        })?;
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    terminal::print(&page)?;
    Ok(Exit::Done)
}

/// From now on, a model file that is truncated while it is mapped ends the program with one line
/// and this exit code.
pub(crate) fn guard_maps(code: u8) {
    if let Err(error) = gguf_rs_lite::guard_maps("octavo: error: ", code) {
        terminal::warn([format!(
            "a model file that changes while it is in use will end the program: {error}"
        )]);
    }
}

/// Reports a panic, which is a fault of the program, in one line; then the usual unwinding ends
/// with exit code 101.
fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let what = payload
            .downcast_ref::<&str>()
            .copied()
            .or(payload.downcast_ref::<String>().map(String::as_str));
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let what = what.unwrap_or("unknown");
        terminal::tell(&format!(
            "octavo: internal error: {what} ({place}); this is a bug: please report it at \
             {}/issues",
            env!("CARGO_PKG_REPOSITORY")
        ));
        ranks::after_panic();
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        command().debug_assert();
    }
}
