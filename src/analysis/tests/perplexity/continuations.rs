//! Log-likelihoods of continuations: those of the whole texts, whatever they share.

use octavo_analysis::eval::{Continuation, Likelihood, continuations};

use super::*;

/// Scores one text by all of its logits.
fn by_definition(engine: &Engine, one: &Continuation) -> Likelihood {
    let text = [&one.context[..], &one.tokens].concat();
    let mut session = engine.session();
    let logits = session.eval(&text, Phase::Prefill, LogitsFor::All);
    let logits = logits.expect("it fits");
    let mut scored = Likelihood {
        logprob: 0.0,
        is_greedy: true,
    };
    for at in one.context.len()..text.len() {
        let row = logits.row(at - 1);
        let logit = row[text[at] as usize];
        scored.logprob += f64::from(logit) - log_sum_exp(row);
        scored.is_greedy &= row.iter().all(|other| *other <= logit);
    }
    scored
}

#[test]
fn continuations_have_the_likelihoods_of_whole_texts() {
    let engine = engine(&ModelSource::Demo, 256);
    let encode = |text: &str| encode(engine.tokenizer(), text.as_bytes()).expect("it is encoded");
    let mut all = Vec::new();
    for context in ["1+1=", "1+2=", "1+", "Once upon a time"] {
        for tokens in ["2", "3", "2 2", "", "there was a cat"] {
            all.push(Continuation {
                context: encode(context),
                tokens: encode(tokens),
            });
        }
    }
    let found = continuations(&engine, &all, &|| false).expect("all are scored");
    for (found, one) in found.iter().zip(&all) {
        let expected = by_definition(&engine, one);
        assert_eq!(found.is_greedy, expected.is_greedy, "{one:?}");
        assert!((found.logprob - expected.logprob).abs() < 1e-9, "{one:?}");
    }
    assert!(found.iter().any(|one| !one.is_greedy) && found[0].is_greedy);
    let stopped = continuations(&engine, &all, &|| true);
    assert!(matches!(stopped, Err(Error::Cancelled)));
    let without = [Continuation {
        context: Vec::new(),
        tokens: vec![1],
    }];
    let refused = continuations(&engine, &without, &|| false);
    assert!(matches!(refused, Err(Error::NoContext)));
}
