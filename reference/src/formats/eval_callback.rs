//! The text that `llama-eval-callback` prints: every tensor of one pass with its operation and
//! dims, the first and last three values of each dim to four decimals, and the sum of all.

use std::collections::HashMap;
use std::path::Path;

use super::{bad, whole};
use crate::Error;

/// Beginning of every tensor's first line.
pub(super) const MARK: &str = "common_debug_cb_eval:";

/// Maximum rounding error of a printed value: half of the last decimal.
pub const PRINTED: f64 = 0.5e-4;

/// One printed tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Printed {
    /// llama.cpp's name with the layer, such as `Qcur-0`.
    pub name: String,
    /// Operation that computed it, such as `MUL_MAT`.
    pub op: String,
    /// Number of earlier tensors with this name, not counting views of other shape.
    pub occurrence: usize,
    /// ggml's dims, innermost first.
    pub dims: [usize; 4],
    /// Indices in dims order, and value.
    pub values: Vec<([usize; 4], f64)>,
    /// The sum of all values, as llama.cpp adds them up in f32.
    pub sum: Option<f64>,
}

/// Operations that change a tensor's shape but not its values.
const VIEWS: [&str; 6] = ["RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE", "CONT", "NONE"];

/// Prefix of tensors that are views by name but select values: the first experts of a full sort.
const CHOICE: &str = "ffn_moe_topk-";

/// Returns whether a tensor is another one in a new shape. A copy that makes the heads of a
/// permuted tensor contiguous is not: its values are in a new order, in which they are printed for
/// the first time.
fn is_view(head: &Header<'_>) -> bool {
    let is_new = head.op == "CONT" && head.first.ends_with(" (permuted)");
    VIEWS.contains(&head.op) && !is_new && !head.name.starts_with(CHOICE)
}

/// Contents of the file, without views.
#[derive(Debug)]
pub struct Recording {
    /// Tensors in order of computation.
    pub tensors: Vec<Printed>,
    /// Name of an incompletely printed tensor at the end of the file: the program exits without
    /// waiting for its printing thread. Not one of `tensors`.
    pub cut_off: Option<String>,
}

/// Reads all tensors.
///
/// # Errors
/// Names the file and line.
pub fn read(path: &Path) -> Result<Recording, Error> {
    let bytes = whole(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let (text, cut_off) = split_cut_off(&text);
    let tensors = parse(path, text)?;
    Ok(Recording { tensors, cut_off })
}

/// Splits off an incomplete last tensor; returns the text before it and its name.
fn split_cut_off(text: &str) -> (&str, Option<String>) {
    let Some(mark) = text.rfind(MARK) else {
        return (text, None);
    };
    let (before, last) = (&text[..mark], &text[mark + MARK.len()..]);
    let is_whole = |line: &str| line.trim_start().starts_with("sum = ");
    if last
        .split_inclusive('\n')
        .any(|line| is_whole(line) && line.ends_with('\n'))
    {
        return (text, None);
    }
    let name = last.split(" = ").next().unwrap_or_default().trim();
    (before, Some(name.to_owned()))
}

fn parse(path: &Path, text: &str) -> Result<Vec<Printed>, Error> {
    let mut all: Vec<Printed> = Vec::new();
    let mut seen: HashMap<String, usize> = HashMap::new();
    // position of the next row; `None` while lines of a view or of other output are skipped
    let mut at: Option<[usize; 4]> = None;
    for (number, line) in text.lines().enumerate() {
        let place = || format!("line {}", number + 1);
        if let Some((_, head)) = line.split_once(MARK) {
            let head = header(head).ok_or_else(|| {
                bad(
                    path,
                    &place(),
                    "NAME = (TYPE) OP(...) = {dims}",
                    line.trim(),
                )
            })?;
            at = None;
            if !is_view(&head) {
                let count = seen.entry(head.name.to_owned()).or_default();
                all.push(Printed {
                    name: head.name.to_owned(),
                    op: head.op.to_owned(),
                    occurrence: *count,
                    dims: head.dims,
                    values: Vec::new(),
                    sum: None,
                });
                *count += 1;
                at = Some([0; 4]);
            }
            continue;
        }
        let (Some(next), Some(tensor)) = (&mut at, all.last_mut()) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let content = line.trim();
        if let Some(sum) = content.strip_prefix("sum = ") {
            tensor.sum = sum.parse().ok();
            // a fourth dim repeats values and sum; each sum covers all values
            next[3] += 1;
            next[2] = 0;
        } else if content == "...," {
            let dim = if indent >= 12 { 1 } else { 2 };
            next[dim] = tensor.dims[dim].saturating_sub(3);
        } else if content.starts_with('[') && content.len() > 1 {
            row(content, *next, tensor)
                .ok_or_else(|| bad(path, &place(), "[ numbers ],", content))?;
            next[1] += 1;
        } else if content == "]," {
            next[1] = 0;
            next[2] += 1;
        }
    }
    if all.is_empty() {
        return Err(bad(path, "text", format!("lines with {MARK}"), "none"));
    }
    Ok(all)
}

/// First line of a tensor.
struct Header<'a> {
    name: &'a str,
    op: &'a str,
    /// First operand.
    first: &'a str,
    dims: [usize; 4],
}

/// Parses `NAME = (TYPE) OP(FIRST{a, b, c, d}, ...) = {a, b, c, d}`.
fn header(head: &str) -> Option<Header<'_>> {
    let (name, rest) = head.split_once(" = (")?;
    let (_, rest) = rest.split_once(')')?;
    let (op, rest) = rest.split_once('(')?;
    let (from, dims) = rest.rsplit_once("= {")?;
    let mut numbers = dims
        .trim_end()
        .strip_suffix('}')?
        .split(',')
        .map(|n| n.trim().parse::<usize>().ok());
    let mut next = || numbers.next()?;
    Some(Header {
        name: name.trim(),
        op: op.trim(),
        first: from.split('{').next()?,
        dims: [next()?, next()?, next()?, next()?],
    })
}

fn row(content: &str, at: [usize; 4], tensor: &mut Printed) -> Option<()> {
    let inside = content
        .strip_prefix('[')?
        .strip_suffix("],")
        .or_else(|| content.strip_prefix('[')?.strip_suffix(']'))?;
    let mut channel = 0;
    for word in inside.split(',').map(str::trim) {
        if word == "..." {
            channel = tensor.dims[0].checked_sub(3)?;
            continue;
        }
        let index = [channel, at[1], at[2], at[3]];
        if index.iter().zip(&tensor.dims).any(|(i, dim)| i >= dim) {
            return None;
        }
        tensor.values.push((index, word.parse().ok()?));
        channel += 1;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
llama_context: something else [ 1 ]
common_debug_cb_eval:                   Qcur-0 = (f32)    MUL_MAT(w{8, 8, 1, 1}, x{8, 2, 1, 1}}) = {8, 2, 1, 1}
    [
        [
            [      1.0000,       2.0000,      -3.0000,    ...,       4.5000,          nan,       0.0001  ],
            [      6.0000,       0.0000,       0.0000,    ...,       0.0000,       0.0000,       7.0000  ],
        ],
    ]
    sum = 12.500000
common_debug_cb_eval:                   Qcur-0 = (f32)    RESHAPE(Qcur-0{8, 2, 1, 1}, }) = {4, 2, 2, 1}
    [
        [
            [      9.0000,       9.0000,       9.0000,       9.0000  ],
        ],
    ]
    sum = 1.000000
common_debug_cb_eval:                   Qcur-0 = (f32)       ROPE(Qcur-0{1, 7, 7, 1}, p{7, 1, 1, 1}}) = {1, 7, 7, 1}
    [
        [
            [      1.0000  ],
            [      2.0000  ],
            [      3.0000  ],
            ..., 
            [      4.0000  ],
            [      5.0000  ],
            [      6.0000  ],
        ],
        ..., 
        [
            [      7.0000  ],
        ],
    ]
    sum = 28.000000
";

    #[test]
    fn values_stand_at_their_indices_and_views_are_passed_by() {
        let all = parse(Path::new("t"), TEXT).expect("it is read");
        let heads: Vec<(&str, usize, [usize; 4])> = all
            .iter()
            .map(|t| (t.op.as_str(), t.occurrence, t.dims))
            .collect();
        assert_eq!(
            heads,
            [("MUL_MAT", 0, [8, 2, 1, 1]), ("ROPE", 1, [1, 7, 7, 1])]
        );
        let value =
            |t: usize, index: [usize; 4]| all[t].values.iter().find(|v| v.0 == index).map(|v| v.1);
        assert_eq!((all[0].values.len(), all[0].sum), (12, Some(12.5)));
        assert_eq!(
            (value(0, [2, 0, 0, 0]), value(0, [5, 0, 0, 0])),
            (Some(-3.0), Some(4.5))
        );
        assert!(value(0, [6, 0, 0, 0]).is_some_and(f64::is_nan));
        assert_eq!(
            (value(0, [7, 1, 0, 0]), value(0, [3, 0, 0, 0])),
            (Some(7.0), None)
        );
        assert_eq!(
            (
                value(1, [0, 2, 0, 0]),
                value(1, [0, 4, 0, 0]),
                value(1, [0, 0, 4, 0])
            ),
            (Some(3.0), Some(4.0), Some(7.0))
        );
    }

    #[test]
    fn what_puts_heads_beside_each_other_counts_and_other_copies_do_not() {
        let name = |from: &str| {
            let head =
                format!("kqv_out-0 = (f32)  CONT({from}{{4, 2, 3, 1}}, }}) = {{8, 3, 1, 1}}");
            is_view(&header(&head).expect("a head"))
        };
        assert!(!name("kqv-0 (permuted)"));
        assert!(name("Vcur-0 (permuted) (transposed)") && name("Qcur-0 (view)"));
    }

    #[test]
    fn choices_of_experts_count_although_they_are_views() {
        let text = "\
common_debug_cb_eval:  ffn_moe_argsort-1 = (i32)  ARGSORT(ffn_moe_probs-1{3, 1, 1, 1}, }) = {3, 1, 1, 1}
    [
        [
            [      2.0000,       0.0000,       1.0000  ],
        ],
    ]
    sum = 3.000000
common_debug_cb_eval:     ffn_moe_topk-1 = (i32)     VIEW(ffn_moe_argsort-1{3, 1, 1, 1}, }) = {2, 1, 1, 1}
    [
        [
            [      2.0000,       0.0000  ],
        ],
    ]
    sum = 2.000000
";
        let all = parse(Path::new("t"), text).expect("it is read");
        let [_, choice] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(choice.name, "ffn_moe_topk-1");
        assert_eq!(choice.values, [([0, 0, 0, 0], 2.0), ([1, 0, 0, 0], 0.0)]);
    }

    #[test]
    fn a_tensor_in_which_the_file_ends_is_left_out() {
        assert_eq!(split_cut_off(TEXT), (TEXT, None));
        let last = TEXT.rfind(MARK).expect("there is one");
        for end in last + 60..TEXT.len() {
            let (text, name) = split_cut_off(&TEXT[..end]);
            assert_eq!((text, name.as_deref()), (&TEXT[..last], Some("Qcur-0")));
        }
    }

    #[test]
    fn damage_is_an_error_with_its_line() {
        let path = Path::new("t");
        let error = |text: &str| parse(path, text).expect_err("it is broken").to_string();
        assert!(error("nothing here").contains("common_debug_cb_eval"));
        assert!(error(&TEXT.replace("{8, 2, 1, 1}\n", "{8, 2, 1}\n")).contains("line 2"));
        assert!(error(&TEXT.replace("-3.0000,", "-3.00x0,")).contains("line 5"));
        // more rows than the tensor has
        assert!(error(&TEXT.replacen("= {8, 2, 1, 1}", "= {8, 1, 1, 1}", 1)).contains("line 6"));
        for end in 0..TEXT.len() {
            let _ = parse(path, &TEXT[..end]);
        }
    }
}
