//! Hands the outputs of a step to their texts, several at a time: sampling from a large vocabulary
//! takes as long as some of the model's layers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::decoder::Vocabulary;
use crate::model_runner::Output;
use crate::sample::OutputValue;

use super::branch::Branch;
use super::request::RequestId;

/// The outputs of a step by branch id, each branch's in the order of the step, with the index of
/// its beam.
pub(super) type ByBranch<'a> = BTreeMap<RequestId, Vec<(usize, Output<'a>)>>;

/// Gives every branch its outputs, on at most this many threads, including the calling one. The
/// result of a branch depends on nothing but itself.
pub(super) fn hand_out<V: Vocabulary + Sync>(
    outputs: ByBranch<'_>,
    branches: &mut BTreeMap<RequestId, Branch>,
    vocabulary: &V,
    threads: NonZeroUsize,
) {
    let is_long = |of: &&Vec<(usize, Output<'_>)>| {
        let mut values = of.iter().map(|(_, output)| &output.value);
        values.any(|value| matches!(value, OutputValue::Logits(_)))
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
            for (beam, output) in outputs {
                branch.take(beam, output.position, output.value, vocabulary);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..helpers {
            // where the system has no thread left, the others do its part
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
