//! Which experts two computations give tokens to. A choice turns over where scores are all but
//! equal, and whatever follows from it differs then: so it is told apart from the values.

use std::collections::HashSet;

use serde::Serialize;

use super::near_tie::Tie;
use octavo_model::OwnedTap;
use octavo_model::taps::FFN_MOE_TOPK;

/// The choices of experts of two computations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Routing {
    /// Whether the second went on with the choices of the first.
    pub same_routing: bool,
    /// Choices compared: one for each token in each layer with experts.
    pub choices: usize,
    /// More of them that a recording left out: it has those of the first and the last tokens.
    pub unrecorded: usize,
    /// Those that differ.
    pub differing: usize,
    /// Of these, those with the same experts in another order.
    pub reordered: usize,
    /// Of these, those that may follow from what differs before ([`Cause::Following`]).
    pub following: usize,
    /// Of these, those that no scores explain: they are further apart than their errors.
    pub unexplained: usize,
    /// The layers in which choices differ, in order.
    pub layers: Vec<LayerRouting>,
    /// The first choice that differs.
    pub first: Option<Choice>,
}

/// A layer in which tokens go to other experts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerRouting {
    /// The tensor, with the layer: `ffn_moe_topk-1`.
    pub name: String,
    /// The layer.
    pub layer: Option<usize>,
    /// Tokens whose choice differs.
    pub tokens: usize,
    /// Of these, those whose choice no scores explain.
    pub unexplained: usize,
    /// The first of them.
    pub first: Choice,
}

/// What two computations chose for one token in one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The tensor, with the layer.
    pub name: String,
    /// The layer.
    pub layer: Option<usize>,
    /// The token's position.
    pub position: usize,
    /// The first's experts, best first.
    pub a: Vec<u32>,
    /// The second's.
    pub b: Vec<u32>,
    /// Why it is another.
    pub cause: Cause,
    /// The scores of what changed places; nothing where what was chosen is no choice at all, such
    /// as one expert twice.
    pub tie: Option<Tie>,
}

/// Why two computations chose other experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Scores are as close to each other as their errors, and nothing before explains these.
    NearTie,
    /// As close as their errors, which may follow from something before: from another choice, or
    /// from a tensor outside its bound.
    Following,
    /// Scores are further apart than their errors: the choice itself is wrong.
    Unexplained,
}

impl Cause {
    /// `differs`: the scores may follow from what differs before.
    pub(super) fn of(tie: Option<&Tie>, differs: bool) -> Cause {
        match tie {
            Some(tie) if !tie.is_near() => Cause::Unexplained,
            None => Cause::Unexplained,
            Some(_) if differs => Cause::Following,
            Some(_) => Cause::NearTie,
        }
    }
}

/// Whether a tensor holds the experts of each token.
pub(super) fn is_choice(tap: &OwnedTap) -> bool {
    tap.name == FFN_MOE_TOPK
}

/// One token's experts by two computations.
pub(super) struct Pair<'a> {
    pub(super) position: usize,
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
}

impl Routing {
    /// Of nothing so far.
    pub(super) fn new(same_routing: bool) -> Routing {
        Routing {
            same_routing,
            ..Routing::default()
        }
    }

    /// Takes in a layer's choices; `why` says of those that differ why they do.
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
