//! Hands the outputs of a step to the texts they belong to, several at a time: to draw from a large
//! vocabulary takes as long as some of the model's layers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::runtime::{Output, Value};
use crate::sequence::Vocabulary;

use super::branch::Branch;
use super::request::RequestId;

/// An output, and of which of its branch's beams it is.
pub(super) struct BeamOutput<'a> {
    pub(super) beam: usize,
    pub(super) output: Output<'a>,
}

/// The outputs of a step, by the numbers of their branches, each in the order of the step.
pub(super) type ByBranch<'a> = BTreeMap<RequestId, Vec<BeamOutput<'a>>>;

/// Gives every branch its outputs, on so many threads at most, the calling one among them. What a
/// branch makes of them depends on nothing but itself.
pub(super) fn hand_out<V: Vocabulary + Sync>(
    outputs: ByBranch<'_>,
    branches: &mut BTreeMap<RequestId, Branch>,
    vocabulary: &V,
    threads: NonZeroUsize,
) {
    let is_long = |of: &&Vec<BeamOutput<'_>>| {
        let mut values = of.iter().map(|of| &of.output.value);
        values.any(|value| matches!(value, Value::Logits(_)))
    };
    let helpers = outputs.values().filter(is_long).count().min(threads.get());
    let mut branches = branches.iter_mut();
    let work = outputs.into_iter().map(|(id, outputs)| {
        let (_, branch) = branches
            .find(|(other, _)| **other == id)
            .expect("a branch of the plan");
        (branch, outputs)
    });
    let work = Mutex::new(work);
    let next = || work.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take_all = || {
        while let Some((branch, outputs)) = next() {
            for output in outputs {
                take(branch, output, vocabulary);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..helpers {
            // where the system has no thread left, those that are there do its part
            if thread::Builder::new()
                .spawn_scoped(scope, take_all)
                .is_err()
            {
                break;
            }
        }
        take_all();
    });
}

fn take(branch: &mut Branch, of: BeamOutput<'_>, vocabulary: &dyn Vocabulary) {
    let position = of.output.position;
    match of.output.value {
        Value::Argmax(token) => branch.take_argmax(position, token, vocabulary),
        Value::Logits(row) => branch.take_logits(of.beam, position, row, vocabulary),
    }
}
