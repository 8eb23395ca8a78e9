//! The three formats of llama-perplexity's tasks.

use super::select::{in_random_order, sample};
use super::{TaskError, TaskKind};

/// A question with its answers, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Number in the file, from 1.
    pub number: usize,
    /// Text of each answer, with the question.
    pub texts: Vec<Vec<u8>>,
    /// For Winogrande, the beginning of each text up to the end of the word that was put in.
    pub beginnings: Vec<Vec<u8>>,
    /// Whether each answer is right.
    pub correct: Vec<bool>,
}

/// Reads the tasks of a file, and chooses at most `n` as llama-perplexity does; 0 stands for all.
///
/// # Errors
/// The first line, byte or task that is not as it should be.
pub fn read_tasks(kind: TaskKind, text: &[u8], n: usize) -> Result<Vec<Task>, TaskError> {
    let tasks = match kind {
        TaskKind::HellaSwag => hellaswag(text)?,
        TaskKind::Winogrande => winogrande(text)?,
        TaskKind::MultipleChoice => multiple_choice(text)?,
    };
    if tasks.is_empty() {
        return Err(TaskError::None);
    }
    let n = if n == 0 { tasks.len() } else { n };
    let chosen = match kind {
        TaskKind::HellaSwag => in_random_order(tasks.len(), n),
        TaskKind::Winogrande | TaskKind::MultipleChoice => sample(tasks.len(), n),
    };
    Ok(chosen.into_iter().map(|i| tasks[i].clone()).collect())
}

/// Returns the lines of a text; one line feed at its end begins no further line.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    lines
}

/// Lines of a HellaSwag task: the context, the index of the right ending, and four endings.
const HELLASWAG_LINES: usize = 6;

fn hellaswag(text: &[u8]) -> Result<Vec<Task>, TaskError> {
    let lines = lines(text);
    if !lines.len().is_multiple_of(HELLASWAG_LINES) {
        return Err(TaskError::Lines { got: lines.len() });
    }
    let task = |(i, lines): (usize, &[&[u8]])| {
        let gold = std::str::from_utf8(lines[1]).ok();
        let gold: Option<usize> = gold.and_then(|text| text.trim().parse().ok());
        let gold = gold
            .filter(|gold| *gold < 4)
            .ok_or_else(|| TaskError::Line {
                line: i * HELLASWAG_LINES + 2,
                expected: "the index of the right ending, 0 to 3",
                got: String::from_utf8_lossy(lines[1]).into_owned(),
            })?;
        Ok(Task {
            number: i + 1,
            texts: lines[2..].iter().map(|end| joined(lines[0], end)).collect(),
            beginnings: Vec::new(),
            correct: (0..4).map(|answer| answer == gold).collect(),
        })
    };
    lines
        .chunks(HELLASWAG_LINES)
        .enumerate()
        .map(task)
        .collect()
}

/// Returns a context and its continuation, with a space between them.
fn joined(context: &[u8], end: &[u8]) -> Vec<u8> {
    [context, b" ", end].concat()
}

/// Reads lines of a number, a sentence with `_` in it, two words and the number of the right one. A
/// last line without a line feed is left out, as llama-perplexity does.
fn winogrande(text: &[u8]) -> Result<Vec<Task>, TaskError> {
    let mut tasks = Vec::new();
    let mut lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').collect();
    lines.pop();
    for (i, line) in lines.iter().enumerate() {
        let bad = |expected| TaskError::Line {
            line: i + 1,
            expected,
            got: String::from_utf8_lossy(line).into_owned(),
        };
        let fields = || bad("a number, a sentence, two words and 1 or 2, separated by commas");
        let [_, sentence, first, second, answer] = columns(line).ok_or_else(fields)?;
        let sentence = match sentence.strip_prefix(b"\"") {
            Some(rest) => rest.split_last().map_or(rest, |(_, rest)| rest),
            None => sentence,
        };
        let gap = sentence.iter().position(|byte| *byte == b'_');
        let gap = gap.ok_or_else(|| bad("a sentence with _ in it"))?;
        let answer = String::from_utf8_lossy(answer);
        let answer = answer.trim().parse().ok().filter(|n| (1..=2).contains(n));
        let answer: usize = answer.ok_or_else(|| bad("1 or 2 as the right word"))?;
        let (before, after) = (&sentence[..gap], &sentence[gap + 1..]);
        let words = [first, second];
        tasks.push(Task {
            number: i + 1,
            texts: words.map(|word| [before, word, after].concat()).to_vec(),
            beginnings: words.map(|word| [before, word].concat()).to_vec(),
            correct: vec![answer == 1, answer == 2],
        });
    }
    Ok(tasks)
}

/// Cuts a line at its first four commas that are not in quotation marks.
fn columns(line: &[u8]) -> Option<[&[u8]; 5]> {
    let mut is_quoted = false;
    let mut commas = Vec::new();
    for (i, byte) in line.iter().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted && commas.len() < 4 => commas.push(i),
            _ => {}
        }
    }
    let [a, b, c, d] = commas[..] else {
        return None;
    };
    Some([
        &line[..a],
        &line[a + 1..b],
        &line[b + 1..c],
        &line[c + 1..d],
        &line[d + 1..],
    ])
}

/// Most answers of a task, as in llama-perplexity.
const MAX_ANSWERS: u32 = 100;

/// Reads the binary format of ikawrakow's validation datasets: the number of tasks, the offset of
/// each, and for each the question and two lists of answers with labels, of which the first list
/// has one right answer.
fn multiple_choice(bytes: &[u8]) -> Result<Vec<Task>, TaskError> {
    let mut head = Bytes { all: bytes, at: 0 };
    let n = head.u32()?;
    // each has an offset of four bytes at least
    if (bytes.len() / 4) < n as usize {
        return Err(head.cut());
    }
    let offsets: Vec<u32> = (0..n).map(|_| head.u32()).collect::<Result<_, _>>()?;
    let task = |(i, at): (usize, u32)| {
        let mut bytes = Bytes {
            all: bytes,
            at: at as usize,
        };
        let question = bytes.text()?;
        let (answers, labels) = bytes.answers()?;
        // answers of which several are right; they are not scored
        bytes.answers()?;
        if question.is_empty() || answers.is_empty() || answers.iter().any(|a| a.is_empty()) {
            return Err(TaskError::Empty { task: i + 1 });
        }
        Ok(Task {
            number: i + 1,
            texts: answers.iter().map(|a| joined(question, a)).collect(),
            beginnings: Vec::new(),
            correct: labels.iter().map(|label| *label == 1).collect(),
        })
    };
    offsets.into_iter().enumerate().map(task).collect()
}

/// Reads a file from a place on.
struct Bytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    fn cut(&self) -> TaskError {
        TaskError::Cut { at: self.at }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], TaskError> {
        let rest = self.all.get(self.at..).and_then(|rest| rest.get(..n));
        let taken = rest.ok_or_else(|| self.cut())?;
        self.at += n;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, TaskError> {
        let bytes = self.take(4)?.try_into().map_err(|_| self.cut())?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn text(&mut self) -> Result<&'a [u8], TaskError> {
        let n = self.u32()?;
        self.take(n as usize)
    }

    fn answers(&mut self) -> Result<(Vec<&'a [u8]>, Vec<u32>), TaskError> {
        let at = self.at;
        let n = self.u32()?;
        if n > MAX_ANSWERS {
            return Err(TaskError::Answers { at, got: n });
        }
        let texts = (0..n).map(|_| self.text()).collect::<Result<_, _>>()?;
        let labels = (0..n).map(|_| self.u32()).collect::<Result<_, _>>()?;
        Ok((texts, labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: TaskKind, text: &[u8]) -> String {
        read_tasks(kind, text, 0).unwrap_err().to_string()
    }

    #[test]
    fn hellaswag_has_six_lines_for_each_task() {
        let text = b"A: b\n1\nc\nd\ne\nf\nG\n3\nh\ni\nj\nk";
        let mut tasks = read_tasks(TaskKind::HellaSwag, text, 0).expect("two tasks");
        tasks.sort_by_key(|task| task.number);
        assert_eq!(tasks[0].texts, [b"A: b c", b"A: b d", b"A: b e", b"A: b f"]);
        assert_eq!(tasks[0].correct, [false, true, false, false]);
        assert_eq!(tasks[1].texts[3], b"G k");
        assert!(error(TaskKind::HellaSwag, b"a\n1\nb\n").contains("expected six lines"));
        let wrong = error(TaskKind::HellaSwag, b"a\n4\nb\nc\nd\ne");
        assert_eq!(
            wrong,
            "line 2: expected the index of the right ending, 0 to 3, got \"4\""
        );
        assert_eq!(
            error(TaskKind::HellaSwag, b""),
            "expected one task at least, got none"
        );
    }

    #[test]
    fn winogrande_has_a_gap_and_two_words() {
        let text = b"0,Sarah beat Maria as _ won.,Sarah,Maria,1\n\
            1,\"So, _ said, no\",I,you,2\nleft out";
        let tasks = read_tasks(TaskKind::Winogrande, text, 0).expect("two tasks");
        assert_eq!(tasks.len(), 2);
        assert_eq!(tasks[0].texts[1], b"Sarah beat Maria as Maria won.");
        assert_eq!(tasks[0].beginnings[0], b"Sarah beat Maria as Sarah");
        assert_eq!(
            tasks[1].texts,
            [b"So, I said, no".to_vec(), b"So, you said, no".to_vec()]
        );
        assert_eq!(tasks[1].correct, [false, true]);
        for (text, says) in [
            (
                &b"0,a _ b,c,1\n"[..],
                "line 1: expected a number, a sentence, two words",
            ),
            (b"0,a b,c,d,1\n", "expected a sentence with _ in it"),
            (b"0,a _,c,d,3\n", "expected 1 or 2 as the right word"),
        ] {
            let found = error(TaskKind::Winogrande, text);
            assert!(found.contains(says), "{found}");
        }
    }

    fn choice(question: &str, answers: &[&str], right: usize) -> Vec<u8> {
        let text = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        let mut out = text(question);
        for answers in [answers, &[]] {
            out.extend((answers.len() as u32).to_le_bytes());
            answers.iter().for_each(|answer| out.extend(text(answer)));
            (0..answers.len()).for_each(|i| out.extend(u32::from(i == right).to_le_bytes()));
        }
        out
    }

    #[test]
    fn multiple_choice_is_binary() {
        let (a, b) = (
            choice("q", &["x", "y", "z"], 2),
            choice("r", &["no", "yes"], 0),
        );
        let start = 4 + 2 * 4;
        let mut file = 2u32.to_le_bytes().to_vec();
        file.extend((start as u32).to_le_bytes());
        file.extend(((start + a.len()) as u32).to_le_bytes());
        file.extend([&a[..], &b].concat());
        let tasks = read_tasks(TaskKind::MultipleChoice, &file, 0).expect("two tasks");
        assert_eq!(tasks[0].texts, [b"q x", b"q y", b"q z"]);
        assert_eq!(tasks[0].correct, [false, false, true]);
        assert_eq!(tasks[1].texts, [b"r no".to_vec(), b"r yes".to_vec()]);
        for cut in [2, 10, start + 3, file.len() - 1] {
            let found = error(TaskKind::MultipleChoice, &file[..cut]);
            assert!(found.starts_with("the file ends inside a task"), "{found}");
        }
        let many = [u32::MAX.to_le_bytes(); 3].concat();
        assert!(error(TaskKind::MultipleChoice, &many).starts_with("the file ends"));
        let mut wrong = file.clone();
        wrong[start + 5..start + 9].copy_from_slice(&101u32.to_le_bytes());
        let found = error(TaskKind::MultipleChoice, &wrong);
        assert_eq!(found, "byte 17: expected at most 100 answers, got 101");
    }
}
