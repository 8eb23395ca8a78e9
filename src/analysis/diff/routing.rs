//! Comparison of expert choices. A choice flips where router scores are nearly equal, and
//! everything computed from it differs then: so choices are reported separately from values.

use std::collections::HashSet;

use serde::Serialize;

use super::near_tie::Tie;
use octavo_model::OwnedTap;
use octavo_model::taps::FFN_MOE_TOPK;

/// Expert choices of two computations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Routing {
    /// Whether the second computation continued with the choices of the first.
    pub same_routing: bool,
    /// Choices compared: one for each token in each layer with experts.
    pub choices: usize,
    /// Further choices that a recording left out: it has those of the first and the last tokens.
    pub unrecorded: usize,
    /// Choices that differ.
    pub differing: usize,
    /// Differing choices with the same experts in another order.
    pub reordered: usize,
    /// Differing choices that may follow from an earlier difference ([`Cause::Following`]).
    pub following: usize,
    /// Differing choices that the scores do not explain: the gap is larger than their errors.
    pub unexplained: usize,
    /// Layers with differing choices, in order.
    pub layers: Vec<LayerRouting>,
    /// First choice that differs.
    pub first: Option<Choice>,
}

/// A layer in which choices differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerRouting {
    /// Tensor name with the layer: `ffn_moe_topk-1`.
    pub name: String,
    /// Layer number.
    pub layer: Option<usize>,
    /// Tokens whose choice differs.
    pub tokens: usize,
    /// Tokens whose differing choice the scores do not explain.
    pub unexplained: usize,
    /// First of the differing choices.
    pub first: Choice,
}

/// Expert choices of two computations for one token in one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Tensor name with the layer.
    pub name: String,
    /// Layer number.
    pub layer: Option<usize>,
    /// Position of the token.
    pub position: usize,
    /// The first's experts, best first.
    pub a: Vec<u32>,
    /// The second's experts, best first.
    pub b: Vec<u32>,
    /// Cause of the difference.
    pub cause: Cause,
    /// Score gap between the experts that differ; `None` for an invalid choice, such as one expert
    /// twice.
    pub tie: Option<Tie>,
}

/// Cause of differing expert choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Scores are as close to each other as their errors, and no earlier difference explains these.
    NearTie,
    /// Scores are as close as their errors, which may follow from an earlier difference: another
    /// choice, or a tensor outside its bound.
    Following,
    /// Scores are further apart than their errors: the choice itself is wrong.
    Unexplained,
}

impl Cause {
    /// Classifies a tie; `differs`: the scores may follow from an earlier difference.
    pub(super) fn of(tie: Option<&Tie>, differs: bool) -> Cause {
        match tie {
            Some(tie) if !tie.is_near() => Cause::Unexplained,
            None => Cause::Unexplained,
            Some(_) if differs => Cause::Following,
            Some(_) => Cause::NearTie,
        }
    }
}

/// Returns whether a tensor holds the experts of each token.
pub(super) fn is_choice(tap: &OwnedTap) -> bool {
    tap.name == FFN_MOE_TOPK
}

/// Expert choices of one token by two computations.
pub(super) struct Pair<'a> {
    pub(super) position: usize,
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
}

impl Routing {
    /// Creates an empty comparison.
    pub(super) fn new(same_routing: bool) -> Routing {
        Routing {
            same_routing,
            ..Routing::default()
        }
    }

    /// Adds a layer's choices; `why` gives the cause of each that differs.
    pub(super) fn add<'a>(
        &mut self,
        tap: &OwnedTap,
        pairs: impl Iterator<Item = Pair<'a>>,
        why: &mut dyn FnMut(&Pair<'_>) -> (Cause, Option<Tie>),
    ) {
        let mut layer: Option<LayerRouting> = None;
        for pair in pairs {
            self.choices += 1;
            if pair.a == pair.b {
                continue;
            }
            let (cause, tie) = why(&pair);
            let [a, b] = [pair.a, pair.b].map(|row| row.iter().map(|id| *id as u32).collect());
            let choice = Choice {
                name: tap.to_string(),
                layer: tap.layer,
                position: pair.position,
                a,
                b,
                cause,
                tie,
            };
            self.count(&choice);
            let layer = layer.get_or_insert_with(|| LayerRouting {
                name: choice.name.clone(),
                layer: choice.layer,
                tokens: 0,
                unexplained: 0,
                first: choice,
            });
            layer.tokens += 1;
            layer.unexplained += usize::from(cause == Cause::Unexplained);
        }
        self.layers.extend(layer);
    }

    fn count(&mut self, choice: &Choice) {
        let [a, b] = [&choice.a, &choice.b].map(|ids| ids.iter().collect::<HashSet<_>>());
        self.differing += 1;
        self.reordered += usize::from(a == b);
        self.following += usize::from(choice.cause == Cause::Following);
        self.unexplained += usize::from(choice.cause == Cause::Unexplained);
        if self.first.is_none() {
            self.first = Some(choice.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIE: Tie = Tie {
        apart: 1.0,
        allowed: 2.0,
        of_groups: false,
    };

    fn add(routing: &mut Routing, layer: usize, a: [[f32; 2]; 3], b: [[f32; 2]; 3]) {
        let tap = OwnedTap {
            name: FFN_MOE_TOPK.to_owned(),
            layer: Some(layer),
            nth: 0,
        };
        let pairs = a.iter().zip(&b).enumerate();
        let pairs = pairs.map(|(position, (a, b))| Pair { position, a, b });
        routing.add(&tap, pairs, &mut |pair| {
            let tie = (pair.position > 0).then_some(TIE);
            (Cause::of(tie.as_ref(), pair.position > 1), tie)
        });
    }

    #[test]
    fn choices_are_counted_by_layer_and_the_first_is_kept() {
        let mut routing = Routing::default();
        let same = [[1.0, 2.0], [3.0, 0.0], [2.0, 1.0]];
        add(&mut routing, 0, same, same);
        assert_eq!((routing.choices, routing.differing), (3, 0));
        assert!(routing.layers.is_empty() && routing.first.is_none());

        let other = [[1.0, 3.0], [0.0, 3.0], [2.0, 0.0]];
        add(&mut routing, 1, same, other);
        assert_eq!((routing.choices, routing.differing), (6, 3));
        let of = (routing.reordered, routing.following, routing.unexplained);
        assert_eq!(of, (1, 1, 1));
        let [layer] = &routing.layers[..] else {
            panic!("{:?}", routing.layers)
        };
        assert_eq!(
            (layer.name.as_str(), layer.tokens, layer.unexplained),
            ("ffn_moe_topk-1", 3, 1)
        );
        assert_eq!(routing.first.as_ref(), Some(&layer.first));
        let first = routing.first.expect("a choice");
        assert_eq!((first.position, first.cause), (0, Cause::Unexplained));
        assert_eq!((first.a, first.b), (vec![1, 2], vec![1, 3]));
    }

    #[test]
    fn scores_further_apart_than_their_errors_explain_nothing() {
        let far = Tie { apart: 3.0, ..TIE };
        for differs in [false, true] {
            assert_eq!(Cause::of(Some(&far), differs), Cause::Unexplained);
            assert_eq!(Cause::of(None, differs), Cause::Unexplained);
        }
        assert_eq!(Cause::of(Some(&TIE), false), Cause::NearTie);
        assert_eq!(Cause::of(Some(&TIE), true), Cause::Following);
        assert_eq!(Cause::of(Some(&Tie::UNSEEN), false), Cause::NearTie);
    }
}
