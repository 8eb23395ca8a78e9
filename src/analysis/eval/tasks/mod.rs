//! Tasks with a choice of answers, by llama-perplexity's rules: HellaSwag, Winogrande, and other
//! questions with one right answer. The answer with the highest mean log-probability is chosen.
//!
//! The beginning that the answers of a task have in common is computed once, and many tasks in a
//! step.

mod files;
mod select;

use std::collections::HashMap;

use octavo_engine::{ChoiceRow, Choices, Engine, Error as EngineError};
use octavo_text::tokenizer::Tokenizer;

pub use files::{Task, read_tasks};

use super::base::Norm;
use super::pass::for_each;
use super::{Error, Options, encode};

/// Kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Endings of a story; the mean is over all tokens that the four do not share.
    HellaSwag,
    /// Words for a gap; the mean is over what follows the word, but for the last token.
    Winogrande,
    /// Answers to a question; the mean is over all tokens that the answers do not share.
    MultipleChoice,
}

/// A file of tasks that cannot be read, or a task that cannot be scored.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// No task.
    #[error("expected one task at least, got none")]
    None,
    /// A number of lines that is no multiple of six.
    #[error("expected six lines for each task, got {got} lines")]
    Lines {
        /// Lines of the file.
        got: usize,
    },
    /// A line that is not as it should be.
    #[error("line {line}: expected {expected}, got {got:?}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Expected content.
        expected: &'static str,
        /// The line.
        got: String,
    },
    /// A binary file that is too short.
    #[error("the file ends inside a task: expected more at byte {at}")]
    Cut {
        /// Offset of what is missing.
        at: usize,
    },
    /// More answers than a task may have.
    #[error("byte {at}: expected at most 100 answers, got {got}")]
    Answers {
        /// Offset of the number.
        at: usize,
        /// Number of answers.
        got: u32,
    },
    /// A question without text, answers, or text of an answer.
    #[error("task {task}: expected a question and answers that are not empty")]
    Empty {
        /// Number of the task, from 1.
        task: usize,
    },
    /// Answers that do not begin with the same token.
    #[error("task {task}: expected answers that begin with the same token, got others")]
    Beginning {
        /// Number of the task, from 1.
        task: usize,
    },
}

/// A token to score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    /// Answer whose score it belongs to.
    answer: usize,
    token: u32,
    /// Continuation and token in it whose logits predict the token; `None` for the last token that
    /// all answers share.
    after: Option<(usize, usize)>,
}

/// A task as tokens.
#[derive(Clone, Debug)]
pub struct Question {
    number: usize,
    /// Tokens that all answers begin with.
    prefix: Vec<u32>,
    /// The other tokens of each, as far as they are computed.
    tails: Vec<Vec<u32>>,
    targets: Vec<Target>,
    kind: TaskKind,
    correct: Vec<bool>,
}

impl Question {
    /// Tokenizes a task.
    ///
    /// # Errors
    /// A text that cannot be tokenized, or answers that begin with different tokens.
    pub fn new(tokenizer: &Tokenizer, kind: TaskKind, task: &Task) -> Result<Question, Error> {
        let texts = task.texts.iter().map(|text| encode(tokenizer, text));
        let texts: Vec<Vec<u32>> = texts.collect::<Result<_, _>>()?;
        let shared = shared_beginning(&texts);
        if shared == 0 {
            let task = task.number;
            return Err(TaskError::Beginning { task }.into());
        }
        let targets = match kind {
            TaskKind::Winogrande => {
                let ends = task.beginnings.iter().map(|text| encode(tokenizer, text));
                let ends: Vec<usize> = ends
                    .map(|tokens| tokens.map(|tokens| tokens.len()))
                    .collect::<Result<_, _>>()?;
                after_the_word(&texts, shared, &ends)
            }
            TaskKind::HellaSwag | TaskKind::MultipleChoice => after_the_beginning(&texts, shared),
        };
        let computed = |answer: usize| {
            let of_answer = targets.iter().filter_map(|target| target.after);
            let of_answer = of_answer.filter(|(tail, _)| *tail == answer);
            of_answer.map(|(_, token)| token + 1).max().unwrap_or(0)
        };
        let tails = texts.iter().enumerate();
        let tails = tails.map(|(i, text)| text[shared..shared + computed(i)].to_vec());
        Ok(Question {
            number: task.number,
            prefix: texts[0][..shared].to_vec(),
            tails: tails.collect(),
            targets,
            kind,
            correct: task.correct.clone(),
        })
    }

    /// Returns the number of the task in its file, from 1.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the positions that the longest answer takes.
    pub fn positions(&self) -> usize {
        let tails = self.tails.iter().map(Vec::len);
        self.prefix.len() + tails.max().unwrap_or(0)
    }

    /// Returns the number of answers.
    pub fn answers(&self) -> usize {
        self.tails.len()
    }

    /// Chooses by the log-probabilities of the targets.
    fn answer(&self, logprobs: &[f64]) -> Answer {
        let mut scores = vec![0.0; self.tails.len()];
        let mut counts = vec![0usize; self.tails.len()];
        for (target, logprob) in self.targets.iter().zip(logprobs) {
            scores[target.answer] += logprob;
            counts[target.answer] += 1;
        }
        for (score, n) in scores.iter_mut().zip(counts) {
            *score /= n as f64;
        }
        // of equal scores the first, but of Winogrande's the second; NaN, of a text that ends with
        // the word, is never higher
        let chosen = match self.kind {
            TaskKind::Winogrande if scores[0] > scores[1] => 0,
            TaskKind::Winogrande => 1,
            _ => (1..scores.len()).fold(0, |best, i| match scores[i] > scores[best] {
                true => i,
                false => best,
            }),
        };
        Answer {
            number: self.number,
            is_correct: self.correct.get(chosen) == Some(&true),
            chosen,
            scores,
        }
    }
}

/// Returns how many tokens all texts begin with; of a text that is the beginning of another, all
/// but the last, so that every answer has a token of its own.
fn shared_beginning(texts: &[Vec<u32>]) -> usize {
    let shortest = texts.iter().map(Vec::len).min().unwrap_or(0);
    let is_shared = |at: &usize| texts.iter().all(|text| text[*at] == texts[0][*at]);
    let shared = (0..shortest).take_while(is_shared).count();
    shared.min(shortest.saturating_sub(1))
}

/// Returns every token after the shared beginning.
fn after_the_beginning(texts: &[Vec<u32>], shared: usize) -> Vec<Target> {
    let of_text = |(answer, text): (usize, &Vec<u32>)| {
        let tokens = text[shared..].to_vec();
        tokens
            .into_iter()
            .enumerate()
            .map(move |(i, token)| Target {
                answer,
                token,
                after: i.checked_sub(1).map(|before| (answer, before)),
            })
    };
    texts.iter().enumerate().flat_map(of_text).collect()
}

/// Number of tokens from the word on up to which Winogrande scores the word too.
const FEW_TOKENS: usize = 3;

/// Returns the tokens after the word, or with the word if few tokens follow the shared beginning;
/// the last token, which is a full stop, is left out if there are others.
///
/// If the word is scored, llama-perplexity takes the logits for the first token of the second text
/// from the end of the first text, and so do we.
fn after_the_word(texts: &[Vec<u32>], shared: usize, ends: &[usize]) -> Vec<Target> {
    let skips_word = texts.iter().all(|text| text.len() - shared > FEW_TOKENS);
    let mut targets = Vec::new();
    for (answer, text) in texts.iter().enumerate() {
        let first = match skips_word {
            true => ends[answer].clamp(shared, text.len()),
            false => shared,
        };
        let end = text.len() - usize::from(text.len() - first > 1);
        for (at, &token) in (first..end).zip(&text[first..end]) {
            let after = match at.checked_sub(shared + 1) {
                Some(before) => Some((answer, before)),
                None if answer == 1 => Some((0, texts[0].len() - shared - 1)),
                None => None,
            };
            targets.push(Target {
                answer,
                token,
                after,
            });
        }
    }
    targets
}

/// Outcome of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Number of the task in its file, from 1.
    pub number: usize,
    /// Mean log-probability of each answer.
    pub scores: Vec<f64>,
    /// Index of the answer that is chosen.
    pub chosen: usize,
    /// Whether it is right.
    pub is_correct: bool,
}

/// Number of tasks whose logits are scored before the next ones are computed.
const TOGETHER: usize = 128;

/// Answers questions, in order; `answered` gets each as soon as it is known. `cancelled` is asked
/// before each step.
///
/// # Errors
/// A task that does not fit the engine's context, a failure of the engine, or
/// [`Error::Cancelled`].
///
/// # Panics
/// If a question has more answers than the engine has sessions.
pub fn answer(
    engine: &Engine,
    questions: &[Question],
    options: &Options,
    cancelled: &dyn Fn() -> bool,
    answered: &mut dyn FnMut(Answer),
) -> Result<(), Error> {
    for some in questions.chunks(TOGETHER) {
        let tails = some.iter().map(|q| q.tails.iter().map(Vec::as_slice));
        let tails: Vec<Vec<&[u32]>> = tails.map(Iterator::collect).collect();
        let choices = some.iter().zip(&tails);
        let choices: Vec<Choices<'_>> = choices
            .map(|(question, tails)| Choices {
                prefix: &question.prefix,
                tails,
            })
            .collect();
        let mut logprobs: Vec<Vec<f64>> = some.iter().map(|q| vec![0.0; q.targets.len()]).collect();
        let wanted = wanted(some);
        let computed = engine.eval_choices(&choices, cancelled, &mut |rows| {
            score(&rows, &wanted, options.threads, &mut logprobs);
        });
        computed.map_err(|error| match error {
            EngineError::Stopped => Error::Cancelled,
            other => other.into(),
        })?;
        for (question, logprobs) in some.iter().zip(&logprobs) {
            answered(question.answer(logprobs));
        }
    }
    Ok(())
}

/// Targets of a row of logits, by their places in a question: question, continuation and token.
type Wanted = HashMap<(usize, Option<(usize, usize)>), Vec<(usize, u32)>>;

fn wanted(questions: &[Question]) -> Wanted {
    let mut wanted = Wanted::new();
    for (i, question) in questions.iter().enumerate() {
        for (at, target) in question.targets.iter().enumerate() {
            let row = wanted.entry((i, target.after)).or_default();
            row.push((at, target.token));
        }
    }
    wanted
}

/// Computes the log-probabilities that these rows predict.
fn score(rows: &[ChoiceRow<'_>], wanted: &Wanted, threads: usize, logprobs: &mut [Vec<f64>]) {
    let mut scored: Vec<Vec<(usize, f64)>> = vec![Vec::new(); rows.len()];
    for_each(threads, &mut scored, |i, scored| {
        let row = &rows[i];
        let after = row.tail.map(|tail| (tail, row.token));
        if let Some(targets) = wanted.get(&(row.text, after)) {
            let norm = Norm::of(row.logits);
            let ln_p = |token: u32| norm.ln_p(row.logits[token as usize]);
            scored.extend(targets.iter().map(|(at, token)| (*at, ln_p(*token))));
        }
    });
    for (row, scored) in rows.iter().zip(scored) {
        for (at, logprob) in scored {
            logprobs[row.text][at] = logprob;
        }
    }
}
