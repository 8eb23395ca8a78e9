//! Constraints that allow everything for a while.

use super::*;

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
    let mut decoder = decoder(&[1], &options);
    decoder.constrain(Box::new(Waits(1)));
    assert_eq!(decoder.need(), OutputNeed::Argmax);
    decoder
        .feed(OutputValue::Argmax(3), &Letters)
        .expect("a token");
    assert_eq!(decoder.need(), OutputNeed::Logits);
    let mut logits = [0.0; 9];
    (logits[0], logits[2]) = (9.0, 8.0);
    let text = decoder.feed(OutputValue::Logits(&logits), &Letters);
    assert_eq!(text.expect("a token"), "a");
}
