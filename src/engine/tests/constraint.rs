//! Constraints that allow everything for a while.

use octavo_engine::sample::{Constraint, ConstraintError, SamplerConfig, TokenSet};
use octavo_engine::sequence::{Bounds, Computed, GenerationParams, Sequence, Vocabulary, Want};

/// A vocabulary whose tokens are letters; 0 ends the text.
struct Letters;

impl Vocabulary for Letters {
    fn piece(&self, id: u32) -> &[u8] {
        &b"-abcd"[id as usize..=id as usize]
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }

    fn eog_ids(&self) -> &[u32] {
        &[0]
    }
}

/// Allows everything for this many tokens, and then only an `a`.
#[derive(Debug)]
struct Waits(usize);

impl Constraint for Waits {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        Ok((self.0 == 0).then(|| TokenSet::of([1])))
    }

    fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
        self.0 = self.0.saturating_sub(1);
        Ok(())
    }

    fn allows_all(&self) -> bool {
        self.0 > 0
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Waits(self.0))
    }
}

#[test]
fn a_constraint_that_waits_leaves_the_choice_to_the_device() {
    let options = GenerationParams {
        sampler: SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::default()
        },
        ..GenerationParams::default()
    };
    let bounds = Bounds {
        n_ctx: 8,
        n_vocab: 5,
    };
    let mut sequence = Sequence::new(&[1], &options, bounds, &Letters).expect("it fits");
    sequence.constrain(Box::new(Waits(1)));
    assert_eq!(sequence.want(), Want::Argmax);
    sequence
        .feed(Computed::Argmax(3), &Letters)
        .expect("a token");
    assert_eq!(sequence.want(), Want::Logits);
    let text = sequence.feed(Computed::Logits(&[9.0, 0.0, 8.0, 7.0, 6.0]), &Letters);
    assert_eq!(text.expect("a token"), "a");
}
