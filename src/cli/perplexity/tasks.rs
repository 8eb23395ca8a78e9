//! Tasks with a choice of answers, printed as llama-perplexity does.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use octavo_analysis::eval::{self, Answer, Question, TaskKind, answer, read_tasks};
use octavo_engine::EngineOptions;
use octavo_model::Hparams;
use octavo_text::tokenizer::Tokenizer;
use serde_json::json;

use super::{PerplexityArgs, scoring};
use crate::failure::{Exit, Failure};
use crate::signal::Generating;
use crate::terminal::{self, Progress};
use crate::{answer as answers, load, prompt};

/// Options of tasks with a choice of answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tasks")]
pub(super) struct TaskArgs {
    /// HellaSwag: choose the endings of the stories in -f, in llama-perplexity's format
    #[arg(long, conflicts_with_all = ["winogrande", "multiple_choice"])]
    hellaswag: bool,
    /// Number of HellaSwag tasks, drawn at random
    #[arg(long, value_name = "N", default_value_t = 400, requires = "hellaswag")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    hellaswag_tasks: u32,
    /// Winogrande: choose the words for the gaps in -f, lines of comma-separated values
    #[arg(long, conflicts_with = "multiple_choice")]
    winogrande: bool,
    /// Number of Winogrande tasks, drawn at random; 0 is all
    #[arg(long, value_name = "N", default_value_t = 0, requires = "winogrande")]
    winogrande_tasks: u32,
    /// Choose among answers of which one is right: the binary file -f (-bf), such as those of
    /// ikawrakow/validation-datasets-for-llama.cpp
    #[arg(long)]
    multiple_choice: bool,
    /// Number of these tasks, drawn at random; 0 is all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        requires = "multiple_choice"
    )]
    multiple_choice_tasks: u32,
}

impl TaskArgs {
    /// Returns the kind of tasks, and how many at most (0 for all), if tasks are asked for.
    pub(super) fn kind(&self) -> Option<(TaskKind, usize)> {
        let kinds = [
            (self.hellaswag, TaskKind::HellaSwag, self.hellaswag_tasks),
            (self.winogrande, TaskKind::Winogrande, self.winogrande_tasks),
            (
                self.multiple_choice,
                TaskKind::MultipleChoice,
                self.multiple_choice_tasks,
            ),
        ];
        let set = kinds.into_iter().find(|(is_set, ..)| *is_set);
        set.map(|(_, kind, n)| (kind, n as usize))
    }
}

/// Sequences that are computed at a time, unless a task has more answers.
const SEQUENCES: usize = 64;

/// Positions for which there are pages at least.
const POSITIONS: usize = 4096;

/// Answers the tasks of a file.
pub(super) fn run(
    args: &PerplexityArgs,
    options: EngineOptions,
    kind: TaskKind,
    n: usize,
) -> Result<Exit, Failure> {
    let Some(file) = &args.file else {
        let expected = "tasks: expected -f FILE, which has them";
        return Err(Failure::Usage(expected.to_owned()));
    };
    let of_file = |error: eval::TaskError| Failure::Input(format!("{}: {error}", file.display()));
    let tasks = read_tasks(kind, &read(kind, file)?, n).map_err(of_file)?;
    let gguf = load::source_quietly(&args.model)?.open(args.compute.mmap())?;
    let tokenizer = Tokenizer::from_gguf(&gguf)?;
    let trained = Hparams::from_gguf(&gguf)?.n_ctx_train();
    let questions = tasks
        .iter()
        .map(|task| Question::new(&tokenizer, kind, task));
    let questions: Vec<Question> = questions
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::from(error).of(&file.display().to_string()))?;
    drop((gguf, tokenizer));
    let options = fitting(options, &questions, trained, file)?;
    let engine = load::engine_with(&args.model, options.clone())?;
    let generating = Generating::begin();
    let mut report = Report {
        kind,
        json: args.json,
        bar: Progress::tasks("answering"),
        total: questions.len(),
        answers: Vec::new(),
        correct: 0,
        failed: None,
    };
    report.begin()?;
    let cancelled = || generating.interrupted();
    let mut answered = |one: Answer| report.add(one);
    let result = answer(
        &engine,
        &questions,
        &scoring(&options),
        &cancelled,
        &mut answered,
    );
    report.bar.clear();
    if let Some(error) = report.failed {
        return Err(error.into());
    }
    match result {
        Err(eval::Error::Cancelled) => return Ok(Exit::Interrupted),
        other => other?,
    }
    let out = match args.json {
        true => {
            let mut object = report.as_json(&questions);
            object["version"] = answers::VERSION.into();
            object["backend"] = engine.describe().into();
            format!("{object}\n")
        }
        false => report.end(&questions),
    };
    terminal::print(out.as_bytes())?;
    Ok(Exit::Done)
}

/// Reads a file of tasks; of a text, one line feed at its end is dropped, as llama.cpp's `-f` does.
fn read(kind: TaskKind, file: &Path) -> Result<Vec<u8>, Failure> {
    match kind {
        TaskKind::MultipleChoice => prompt::read(file),
        TaskKind::HellaSwag | TaskKind::Winogrande => super::read(file),
    }
}

/// Returns the options of an engine with room for many answers at a time.
fn fitting(
    options: EngineOptions,
    questions: &[Question],
    trained: usize,
    file: &Path,
) -> Result<EngineOptions, Failure> {
    let longest = questions.iter().max_by_key(|question| question.positions());
    let needed = longest.map_or(0, Question::positions);
    let limit = match options.ctx {
        None | Some(0) => needed.max(options.batch().min(trained)),
        Some(ctx) => ctx,
    };
    if let Some(longest) = longest.filter(|_| needed > limit) {
        return Err(Failure::Input(format!(
            "{}: task {}: {needed} tokens: expected at most {limit}, which -c sets",
            file.display(),
            longest.number()
        )));
    }
    let most = questions.iter().map(Question::answers).max().unwrap_or(0);
    Ok(EngineOptions {
        ctx: Some(limit),
        sessions: SEQUENCES.max(most),
        kv_positions: Some(limit.max(POSITIONS)),
        ..options
    })
}

/// Prints answers as they come, and counts them.
struct Report {
    kind: TaskKind,
    json: bool,
    bar: Progress,
    total: usize,
    answers: Vec<Answer>,
    correct: usize,
    /// Error of stdout.
    failed: Option<std::io::Error>,
}

impl Report {
    fn begin(&self) -> std::io::Result<()> {
        let header = match self.kind {
            TaskKind::HellaSwag => "\ntask\tacc_norm\t95% confidence interval\n",
            TaskKind::Winogrande => return Ok(()),
            TaskKind::MultipleChoice => "\ntask\tacc_norm\n",
        };
        match self.json {
            true => Ok(()),
            false => terminal::print(header.as_bytes()),
        }
    }

    fn add(&mut self, one: Answer) {
        self.correct += usize::from(one.is_correct);
        self.answers.push(one);
        self.bar.at(self.answers.len() as u64, self.total as u64);
        if !self.json && self.failed.is_none() {
            let line = self.line();
            self.failed = terminal::print(line.as_bytes()).err();
        }
    }

    /// Formats the figures up to the last answer.
    fn line(&self) -> String {
        let n = self.answers.len();
        let share = self.correct as f64 / n as f64;
        let last = self.answers.last().map(|one| (&one.scores, one.chosen));
        match (self.kind, last) {
            (TaskKind::HellaSwag, _) => {
                let (low, high) = wilson(share, n);
                format!(
                    "{n}\t{:.8}%\t[{:.4}%, {:.4}%]\n",
                    100.0 * share,
                    100.0 * low,
                    100.0 * high
                )
            }
            (TaskKind::Winogrande, Some((scores, chosen))) => {
                let right = self.answers[n - 1].is_correct;
                let answer = if right { chosen + 1 } else { 2 - chosen };
                format!(
                    "{n}\t{:.4}\t{:10.6}  {:10.6}  {}  {answer}\n",
                    100.0 * share,
                    scores[0],
                    scores[1],
                    chosen + 1
                )
            }
            _ => format!("{n}\t{:.8}\n", 100.0 * share),
        }
    }

    /// Formats the final figures.
    fn end(&self, questions: &[Question]) -> String {
        let n = self.answers.len();
        let share = self.correct as f64 / n as f64;
        let chance = chance(questions);
        let mut out = String::from("\n");
        // writing to a String cannot fail
        let _ = match self.kind {
            TaskKind::HellaSwag => Ok(()),
            // as llama-perplexity, which states no result of fewer
            TaskKind::Winogrande if n < 100 => Ok(()),
            TaskKind::Winogrande => writeln!(
                out,
                "Final Winogrande score({n} tasks): {:.4} +/- {:.4}",
                100.0 * share,
                100.0 * deviation(share, n)
            ),
            TaskKind::MultipleChoice => writeln!(
                out,
                "Final result: {:.4} +/- {:.4}\nRandom chance: {:.4} +/- {:.4}",
                100.0 * share,
                100.0 * deviation(share, n),
                100.0 * chance,
                100.0 * deviation(chance, n)
            ),
        };
        out
    }

    fn as_json(&self, questions: &[Question]) -> serde_json::Value {
        let n = self.answers.len();
        let share = self.correct as f64 / n as f64;
        let (low, high) = wilson(share, n);
        let chance = chance(questions);
        let all = self.answers.iter().map(|one| {
            json!({
                "task": one.number,
                "scores": one.scores,
                "chosen": one.chosen,
                "correct": one.is_correct,
            })
        });
        json!({
            "kind": match self.kind {
                TaskKind::HellaSwag => "hellaswag",
                TaskKind::Winogrande => "winogrande",
                TaskKind::MultipleChoice => "multiple_choice",
            },
            "tasks": n,
            "correct": self.correct,
            "accuracy": { "value": share, "uncertainty": deviation(share, n) },
            "interval_95": [low, high],
            "chance": chance,
            "answers": all.collect::<Vec<_>>(),
        })
    }
}

/// Returns the share of right answers that guessing has, as llama-perplexity computes it: questions
/// over answers.
fn chance(questions: &[Question]) -> f64 {
    let answers: usize = questions.iter().map(Question::answers).sum();
    questions.len() as f64 / answers as f64
}

/// Returns the standard error of a share of `n`.
fn deviation(share: f64, n: usize) -> f64 {
    match n {
        0 | 1 => 0.0,
        n => (share * (1.0 - share) / (n - 1) as f64).sqrt(),
    }
}

/// Returns the 95 % interval of a share of `n` (Wilson 1927).
fn wilson(share: f64, n: usize) -> (f64, f64) {
    let za = 1.959_963_984_54;
    let n = n as f64;
    let z = za * za / n;
    let half = z * (n * (4.0 * share * (1.0 - share) + z)).sqrt() / (za + za);
    let bound = |half: f64| (share + z * 0.5 + half) / (1.0 + z);
    (bound(-half), bound(half))
}
