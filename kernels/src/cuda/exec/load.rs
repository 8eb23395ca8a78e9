//! Fills an executor's device memory; several threads pack weights while others are uploaded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use super::plan::{Placed, Plan, Source, vector_of};
use crate::cuda::pack::{Packed, is_packed, pack_experts};
use crate::cuda::{Device, Error, Ptr};
use crate::program::Program;
use octavo_quant::TensorType;

/// Packs and uploads every weight; see [`Executor::new`](super::Executor::new) for `progress`.
pub(super) fn weights(
    device: &mut impl Device,
    plan: &Plan,
    base: Ptr,
    sources: &[Source],
    threads: usize,
    progress: &mut dyn FnMut(Option<usize>, u64, u64),
) -> Result<(), Error> {
    let total = plan
        .placed
        .iter()
        .map(|p| p.source.bytes.n_bytes() as u64)
        .sum();
    let mut done = 0;
    progress(None, done, total);
    let next = AtomicUsize::new(0);
    // a rendezvous channel: at most one packed weight per thread, plus one, is in memory
    let (sender, receiver) = mpsc::sync_channel(0);
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(placed) = plan.placed.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // the receiver is gone after an error
                    if sender.send((placed, packed(placed))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        // owned here, so that it is dropped, and waiting threads are released, when an error
        // returns early
        let receiver = receiver;
        for (placed, packed) in &receiver {
            device.upload(base.offset(placed.at), &packed.bytes)?;
            done += placed.source.bytes.n_bytes() as u64;
            let same = |s: &Source| Arc::ptr_eq(&s.bytes, &placed.source.bytes);
            progress(sources.iter().position(same), done, total);
        }
        Ok(())
    })
}

fn packed(placed: &Placed) -> Packed {
    let Source {
        ty,
        rows,
        cols,
        ref bytes,
        ..
    } = placed.source;
    let mut room = Vec::new();
    let bytes = bytes.once(&mut room);
    let packed = if is_packed(ty) {
        pack_experts(ty, placed.experts, rows, cols, bytes)
    } else {
        let mut values = vec![0f32; rows * cols];
        octavo_quant::dequantize(ty, bytes, &mut values).expect("the plan checked type and size");
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        pack_experts(TensorType::F32, placed.experts, rows, cols, &bytes)
    };
    packed.expect("the plan checked type and size")
}

/// Uploads norm weights, biases, sinks, and the RoPE cosines and sines of every position.
pub(super) fn constants(
    device: &mut impl Device,
    program: &Program,
    plan: &Plan,
    base: Ptr,
    positions: usize,
) -> Result<(), Error> {
    let mut put = |at: u64, words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        device.upload(base.offset(at), &bytes)
    };
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    for (at, instruction) in program.ops.iter().enumerate() {
        // those of the host have no place
        let place = plan.vectors.get(&at);
        if let (Some(place), Some(values)) = (place, vector_of(&instruction.op, positions)) {
            put(*place, &bits(&values))?;
        }
    }
    for (rope, place) in program.ropes.iter().zip(&plan.angles) {
        let (cosines, sines): (Vec<f32>, Vec<f32>) = (0..positions)
            .flat_map(|p| rope.angles([p as u32; 3]))
            .unzip();
        put(place.cosines, &bits(&cosines))?;
        put(place.sines, &bits(&sines))?;
        if let Some(at) = place.axes {
            let axes: Vec<u32> = rope.axes.iter().map(|axis| *axis as u32).collect();
            put(at, &axes)?;
        }
    }
    Ok(())
}
