//! Matches a pattern in time linear in the text, for any text.
//!
//! A pattern of the subset looks only forward, so "where does the match starting here end, and
//! which alternative wins" is a function of the position alone. It is computed for every position
//! from the last to the first: the pattern becomes a graph of nodes, and a node's value at a
//! position (the end of its leftmost-first match, or none) needs only values at the same position
//! and at the next one. Two rows of values are enough; there is no backtracking and no recursion
//! over the text.

use std::collections::VecDeque;

use super::parse::{Ast, Class};
use crate::tokenizer::unicode::{CategorySet, categories};

/// No match.
const NONE: u32 = u32::MAX;

/// Shortest run of one class that is matched by a counter instead of separate nodes.
const COUNTED_RUN: u32 = 4;

type NodeId = usize;

#[derive(Debug, Clone, Copy)]
enum Node {
    /// Ends the match.
    Accept,
    /// Matches a character of a class, then `next`.
    Char { class: u8, next: NodeId },
    /// Matches `first`, or else `second`.
    Split { first: NodeId, second: NodeId },
    /// Matches `next`, if `what` matches (or does not).
    Look {
        negated: bool,
        what: NodeId,
        next: NodeId,
    },
    /// Matches `next`, at the end of the piece.
    End { next: NodeId },
    /// Matches exactly `rings[ring].len()` characters of a class, then `next`.
    Run {
        class: u8,
        ring: usize,
        next: NodeId,
    },
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Program {
    /// Nodes, each after the nodes of the same position that it reads.
    nodes: Vec<Node>,
    start: NodeId,
    /// Lengths of the counted runs.
    rings: Vec<usize>,
    /// Classes of each ASCII character; bit `i` is class `i`.
    ascii: [u64; 128],
    /// Classes of other characters, by category bit (the last entry: no category).
    by_category: [u64; 6],
    /// Classes with ranges outside ASCII, tested one by one.
    ranged: Vec<(u64, Class)>,
}

/// Error of compiling a pattern; only tests can see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum CompileError {
    #[error("the body of a repetition may match nothing")]
    EmptyLoop,
    #[error("more than 64 character classes")]
    TooManyClasses,
}

/// Rows and rings, reused across pieces.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    here: Vec<u32>,
    after: Vec<u32>,
    rings: Vec<Ring>,
    ends: Vec<u32>,
}

/// Recent values of a node, to read the value a whole run ahead.
#[derive(Debug, Default)]
struct Ring {
    /// Number of characters from here on that are in the class.
    run: usize,
    values: VecDeque<u32>,
}

impl Program {
    /// Compiles a pattern.
    pub(super) fn new(ast: &Ast) -> Result<Program, CompileError> {
        let mut builder = Builder::default();
        let accept = builder.add(Node::Accept);
        let start = builder.compile(ast, accept)?;
        let (nodes, start) = builder.in_order(start);
        let mut program = Program {
            nodes,
            start,
            rings: builder.rings,
            ascii: [0; 128],
            by_category: [0; 6],
            ranged: Vec::new(),
        };
        program.tabulate(builder.classes);
        Ok(program)
    }

    fn tabulate(&mut self, classes: Vec<Class>) {
        let categories = categories();
        for (index, class) in classes.into_iter().enumerate() {
            let bit = 1_u64 << index;
            for cp in (0..128_u32).filter(|cp| class.contains(*cp, categories.of(*cp))) {
                self.ascii[cp as usize] |= bit;
            }
            if class.by_category() {
                for (i, mask) in self.by_category.iter_mut().enumerate() {
                    // Code point that stands for all outside ASCII: it is in no range.
                    if class.contains(u32::MAX, if i < 5 { 1 << i } else { 0 }) {
                        *mask |= bit;
                    }
                }
            } else {
                self.ranged.push((bit, class));
            }
        }
    }

    /// Returns the classes of `cp`.
    fn classes_of(&self, cp: u32) -> u64 {
        if let Some(mask) = self.ascii.get(cp as usize) {
            return *mask;
        }
        let category: CategorySet = categories().of(cp);
        let mut mask = self.by_category[(category.trailing_zeros() as usize).min(5)];
        for (bit, class) in &self.ranged {
            if class.contains(cp, category) {
                mask |= bit;
            }
        }
        mask
    }

    /// Splits `text[from..to]` into matches and the gaps between them, and appends the end of each
    /// piece. White space outside ASCII must have been replaced by U+000B.
    pub(super) fn split(
        &self,
        text: &[u32],
        from: usize,
        to: usize,
        scratch: &mut Scratch,
        cuts: &mut Vec<usize>,
    ) {
        let piece = text.get(from..to).unwrap_or_default();
        self.match_ends(piece, scratch);
        let mut cut = |end: usize| {
            let last = cuts.last().copied().unwrap_or(0).max(from);
            if from + end > last {
                cuts.push(from + end);
            }
        };
        let (mut at, mut done) = (0, 0);
        while let Some(end) = scratch.ends.get(at) {
            let end = *end as usize;
            if end == NONE as usize {
                at += 1;
                continue;
            }
            if at > done {
                cut(at);
            }
            cut(end);
            done = end;
            // An empty match still splits; the search continues one character later.
            at = end.max(at + 1);
        }
        cut(piece.len());
    }

    /// Computes `scratch.ends`: for each position the end of the match that starts there.
    fn match_ends(&self, piece: &[u32], scratch: &mut Scratch) {
        let Scratch {
            here,
            after,
            rings,
            ends,
        } = scratch;
        let n = piece.len();
        here.clear();
        here.resize(self.nodes.len(), NONE);
        after.clear();
        after.resize(self.nodes.len(), NONE);
        ends.clear();
        ends.resize(n + 1, NONE);
        rings.resize_with(self.rings.len(), Ring::default);
        for (ring, len) in rings.iter_mut().zip(&self.rings) {
            ring.run = 0;
            ring.values.clear();
            ring.values.resize(*len, NONE);
        }
        for place in (0..=n).rev() {
            std::mem::swap(here, after);
            let mask = piece.get(place).map_or(0, |cp| self.classes_of(*cp));
            self.row(place, place == n, mask, here, after, rings);
            ends[place] = here[self.start];
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "texts are shorter than 2^32 - 1 characters"
    )]
    fn row(
        &self,
        place: usize,
        at_end: bool,
        mask: u64,
        here: &mut [u32],
        after: &[u32],
        rings: &mut [Ring],
    ) {
        for (i, node) in self.nodes.iter().enumerate() {
            here[i] = match *node {
                Node::Accept => place as u32,
                Node::Char { class, next } => {
                    if mask >> class & 1 == 1 {
                        after[next]
                    } else {
                        NONE
                    }
                }
                Node::Split { first, second } => {
                    if here[first] == NONE {
                        here[second]
                    } else {
                        here[first]
                    }
                }
                Node::Look {
                    negated,
                    what,
                    next,
                } => {
                    if (here[what] == NONE) == negated {
                        here[next]
                    } else {
                        NONE
                    }
                }
                Node::End { next } => {
                    if at_end {
                        here[next]
                    } else {
                        NONE
                    }
                }
                Node::Run { class, ring, next } => {
                    rings[ring].step(mask >> class & 1 == 1, here[next])
                }
            };
        }
    }
}

impl Ring {
    /// Moves one position back: `inside` = the character here is in the class, `next` = the value
    /// of the following node, here.
    fn step(&mut self, inside: bool, next: u32) -> u32 {
        self.run = if inside { self.run + 1 } else { 0 };
        let ahead = self.values.pop_back().unwrap_or(NONE);
        self.values.push_front(next);
        if self.run > 0 && self.run >= self.values.len() {
            ahead
        } else {
            NONE
        }
    }
}

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    classes: Vec<Class>,
    rings: Vec<usize>,
}

impl Builder {
    fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn class(&mut self, class: &Class) -> Result<u8, CompileError> {
        let index = self
            .classes
            .iter()
            .position(|c| c == class)
            .unwrap_or_else(|| {
                self.classes.push(class.clone());
                self.classes.len() - 1
            });
        u8::try_from(index)
            .ok()
            .filter(|i| *i < 64)
            .ok_or(CompileError::TooManyClasses)
    }

    /// Returns a node that matches `ast` and then `next`.
    fn compile(&mut self, ast: &Ast, next: NodeId) -> Result<NodeId, CompileError> {
        match ast {
            Ast::Class(class) => {
                let class = self.class(class)?;
                Ok(self.add(Node::Char { class, next }))
            }
            Ast::Concat(parts) => parts
                .iter()
                .rev()
                .try_fold(next, |next, part| self.compile(part, next)),
            Ast::Alternate(branches) => {
                let mut result = None;
                for branch in branches.iter().rev() {
                    let first = self.compile(branch, next)?;
                    result = Some(match result {
                        None => first,
                        Some(second) => self.add(Node::Split { first, second }),
                    });
                }
                Ok(result.unwrap_or(next))
            }
            Ast::Look { negated, what } => {
                let accept = self.add(Node::Accept);
                let what = self.compile(what, accept)?;
                Ok(self.add(Node::Look {
                    negated: *negated,
                    what,
                    next,
                }))
            }
            Ast::End => Ok(self.add(Node::End { next })),
            Ast::Repeat { what, min, max } => self.repeat(what, *min, *max, next),
        }
    }

    fn repeat(
        &mut self,
        what: &Ast,
        min: u32,
        max: Option<u32>,
        next: NodeId,
    ) -> Result<NodeId, CompileError> {
        let mut next = next;
        match max {
            None if nullable(what) => return Err(CompileError::EmptyLoop),
            None => {
                // The loop's own node comes first, so that the body can lead back to it.
                let head = self.add(Node::Accept);
                let first = self.compile(what, head)?;
                self.nodes[head] = Node::Split {
                    first,
                    second: next,
                };
                if min == 1 {
                    return Ok(first);
                }
                next = head;
            }
            Some(max) => {
                let after = next;
                for _ in min..max {
                    let first = self.compile(what, next)?;
                    next = self.add(Node::Split {
                        first,
                        second: after,
                    });
                }
            }
        }
        match what {
            Ast::Class(class) if min >= COUNTED_RUN => {
                let class = self.class(class)?;
                self.rings.push(min as usize);
                Ok(self.add(Node::Run {
                    class,
                    ring: self.rings.len() - 1,
                    next,
                }))
            }
            _ => (0..min).try_fold(next, |next, _| self.compile(what, next)),
        }
    }

    /// Returns the nodes, ordered so that those read at the same position come first. Bodies of
    /// loops consume characters, so there is no cycle.
    fn in_order(&self, start: NodeId) -> (Vec<Node>, NodeId) {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut seen = vec![false; self.nodes.len()];
        for root in 0..self.nodes.len() {
            self.visit(root, &mut seen, &mut order);
        }
        let mut place = vec![0; self.nodes.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new;
        }
        let moved = |node: Node| match node {
            Node::Accept => Node::Accept,
            Node::Char { class, next } => Node::Char {
                class,
                next: place[next],
            },
            Node::Split { first, second } => Node::Split {
                first: place[first],
                second: place[second],
            },
            Node::Look {
                negated,
                what,
                next,
            } => Node::Look {
                negated,
                what: place[what],
                next: place[next],
            },
            Node::End { next } => Node::End { next: place[next] },
            Node::Run { class, ring, next } => Node::Run {
                class,
                ring,
                next: place[next],
            },
        };
        (
            order.iter().map(|old| moved(self.nodes[*old])).collect(),
            place[start],
        )
    }

    /// Visits depth first the nodes read at one position; recursion is as deep as the pattern,
    /// never as the text.
    fn visit(&self, node: NodeId, seen: &mut [bool], order: &mut Vec<NodeId>) {
        if std::mem::replace(&mut seen[node], true) {
            return;
        }
        let reads = match self.nodes[node] {
            Node::Accept | Node::Char { .. } => [None, None],
            Node::Split { first, second } => [Some(first), Some(second)],
            Node::Look { what, next, .. } => [Some(what), Some(next)],
            Node::End { next } | Node::Run { next, .. } => [Some(next), None],
        };
        for read in reads.into_iter().flatten() {
            self.visit(read, seen, order);
        }
        order.push(node);
    }
}

/// Returns whether a pattern may match without consuming.
fn nullable(ast: &Ast) -> bool {
    match ast {
        Ast::Class(_) => false,
        Ast::Concat(parts) => parts.iter().all(nullable),
        Ast::Alternate(branches) => branches.iter().any(nullable),
        Ast::Repeat { what, min, .. } => *min == 0 || nullable(what),
        Ast::Look { .. } | Ast::End => true,
    }
}
