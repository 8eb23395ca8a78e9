//! Models on several tensor parallel ranks, here threads of one process, each with a device of its
//! own: they compute the bits that one device computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use octavo_engine::GenerationParams as Generation;
use octavo_engine::backend::cuda::{self, Cuda};
use octavo_engine::backend::ranks::{OnDevice, Open, Opened, open_gpu, open_gpu_by_nccl};
use octavo_engine::{DeviceChoice, Engine, EngineOptions, ModelSource};
use octavo_fixtures::{shared, workspace_root};
use octavo_kernels::cuda::{Device, Gather, ThroughHost};
use octavo_kernels::{Collective, Threads};

use super::device;
use super::engine::Nobody;
use super::watched::Watched;
use crate::tensor_parallel::{self, assert_same_shown, on_ranks, shown};

/// More than a page, and no multiple of a kernel's tile.
const PROMPT: usize = 19;

/// Past the next page boundary; all but the first are replayed.
const GENERATED: usize = 16;

fn options() -> EngineOptions {
    EngineOptions {
        device: DeviceChoice::Cuda(0),
        threads: Some(1),
        // the prompt takes several steps
        batch: Some(11),
        ctx: Some(PROMPT + GENERATED),
        ..EngineOptions::default()
    }
}

/// Returns whether ranks have GPUs.
fn on_gpus() -> bool {
    std::env::var("OCTAVO_TEST_DEVICE").is_ok_and(|device| device == "gpu")
}

/// Returns the ways in which devices gather.
fn ways() -> Vec<Open> {
    match on_gpus() {
        true => vec![open, open_gpu_by_nccl],
        false => vec![open],
    }
}

/// Opens a rank's device, which gathers through the host: if tests run on GPUs a GPU of its own, as
/// far as there are enough.
fn open(link: &dyn Collective, first: usize) -> Result<Opened, cuda::Error> {
    if on_gpus() {
        return open_gpu(link, first);
    }
    let device = device().expect("there was one");
    Ok(Box::new(|link| {
        Ok(OnDevice {
            device,
            ranks: Arc::new(ThroughHost::new(link)),
        })
    }))
}

/// Loads an engine on one device, without ranks.
fn alone(source: &ModelSource, options: &EngineOptions, device: Box<dyn Device>) -> Engine {
    let engine = Engine::load_on(source, options, |gguf, model, limits| {
        let on = cuda::Options {
            kv_type: options.kv_type,
            limits: *limits,
            graphs: options.graphs,
            check_pages: true,
            threads: 1,
        };
        Ok(Box::new(Cuda::prepare(
            device,
            gguf,
            model,
            &on,
            &mut |_| {},
        )?))
    });
    engine.unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

/// Returns all logits of a prompt and of a generation after it, as bits.
fn bits(engine: &Engine) -> Vec<u32> {
    tensor_parallel::bits(engine, PROMPT, GENERATED)
}

/// Compares one device with those of several ranks, in every way of gathering; returns the numbers
/// of ranks that work.
fn compare(source: &ModelSource) -> Vec<usize> {
    let options = options();
    let Some(device) = device() else {
        return Vec::new();
    };
    let expected = bits(&alone(source, &options, device));
    let compare = |open| tensor_parallel::compare((source, &options, open), 2..=4, &expected, bits);
    let possible: Vec<_> = ways().into_iter().map(compare).collect();
    assert!(possible.iter().all(|p| *p == possible[0]), "{possible:?}");
    possible[0].clone()
}

/// Lengths of each of three ranks' parts.
const LENS: [[usize; 3]; 3] = [[5, 5, 5], [3, 70, 1], [4, 0, 9]];

/// Returns a rank's results of gathers of these lengths, where rank `r` sends `100 r`, `100 r + 1`
/// and so on.
fn gathered(link: Arc<dyn Collective>, open: Open) -> Vec<Vec<f32>> {
    let (rank, opened) = (link.rank(), open(&*link, 0).expect("a device"));
    let OnDevice { mut device, ranks } = opened(link).expect("they meet");
    let gathered = LENS.map(|lens| {
        let (n, total) = (lens[rank], lens.iter().sum::<usize>());
        let mine: Vec<f32> = (0..n).map(|i| (100 * rank + i) as f32).collect();
        let gather = Gather {
            mine: device.alloc(4 * n.max(1)).expect("memory"),
            all: device.alloc(4 * total).expect("memory"),
            lens: lens.to_vec(),
            by: ranks.clone(),
        };
        device
            .upload_floats(gather.mine, &mine)
            .expect("it is uploaded");
        // SAFETY: both allocations have room for these floats, and the first was written.
        unsafe { ranks.all_gather(&mut *device, &gather) }.expect("it is gathered");
        let mut bytes = vec![0; 4 * total];
        device
            .download(gather.all, &mut bytes)
            .expect("it comes back");
        let floats = bytes.as_chunks::<4>().0.iter();
        floats.map(|bytes| f32::from_le_bytes(*bytes)).collect()
    });
    // the device's captures must end before it leaves the other ranks
    drop(device);
    gathered.into()
}

/// Parts may have different lengths, also 0.
#[test]
fn ranks_with_devices_gather_parts_of_any_length() {
    if device().is_none() {
        return;
    }
    ways().into_iter().for_each(gather_parts_of_any_length);
}

fn gather_parts_of_any_length(open: Open) {
    let links = Threads::new(LENS[0].len());
    let all: Vec<_> = thread::scope(|scope| {
        let one = |link| scope.spawn(move || gathered(Arc::new(link), open));
        let started: Vec<_> = links.into_iter().map(one).collect();
        let ended = started
            .into_iter()
            .map(|rank| rank.join().expect("it ends"));
        ended.collect()
    });
    for (rank, all) in all.iter().enumerate() {
        for (lens, got) in LENS.iter().zip(all) {
            let parts = lens.iter().enumerate();
            let expected: Vec<f32> = parts
                .flat_map(|(of, n)| (0..*n).map(move |i| (100 * of + i) as f32))
                .collect();
            assert_eq!(*got, expected, "rank {rank}, parts of {lens:?}");
        }
    }
}

fn committed(name: &str) -> ModelSource {
    ModelSource::Path(workspace_root().join(format!("reference/models/{name}.gguf")))
}

#[test]
fn ranks_with_devices_change_no_bit() {
    if device().is_none() {
        return;
    }
    for source in [ModelSource::Demo, committed("rnd-llama-Q4_K_M")] {
        assert!(compare(&source).contains(&2), "{source:?} on 2 ranks");
    }
}

/// Experts, recurrent layers, windows, biases, sinks, scales and caps: everything that is divided
/// in a way of its own.
#[test]
fn other_architectures_change_no_bit_on_ranks() {
    let Some(folder) = shared("arch/models") else {
        return;
    };
    if device().is_none() {
        return;
    }
    let mut on = [0; 5];
    for name in [
        "qwen3moe-Q4_K_M",
        "gpt-oss-MXFP4_MOE",
        "qwen35-Q4_K_M",
        "mamba2-Q8_0",
        "falcon-h1-Q4_K_M",
        "gemma3-Q4_0",
        "phi3-Q4_K_M",
        "starcoder2-Q5_1",
    ] {
        let source = ModelSource::Path(folder.join(format!("{name}.gguf")));
        compare(&source).iter().for_each(|ranks| on[*ranks] += 1);
    }
    assert!(
        on[2] >= 5 && on[3] > 0 && on[4] > 0,
        "models by ranks: {on:?}"
    );
}

/// Captured or not, ranks generate the same as one device, which computes only the argmax; and
/// gathers are part of the replay, unless GPUs gather through the host.
#[test]
fn ranks_with_devices_generate_what_one_does() {
    generate_what_one_does::<false>();
    if on_gpus() {
        generate_what_one_does::<true>();
    }
}

fn generate_what_one_does<const BY_NCCL: bool>() {
    static REPLAYS: AtomicUsize = AtomicUsize::new(0);
    fn watched<const BY_NCCL: bool>(
        link: &dyn Collective,
        first: usize,
    ) -> Result<Opened, cuda::Error> {
        let opened = match BY_NCCL {
            true => open_gpu_by_nccl(link, first)?,
            false => open(link, first)?,
        };
        Ok(Box::new(|link| {
            let OnDevice { device, ranks } = opened(link)?;
            let mut device = Watched::new(device);
            device.all_replays = Some(&REPLAYS);
            let device = Box::new(device);
            Ok(OnDevice { device, ranks })
        }))
    }
    const TOKENS: usize = 12;
    let Some(one) = device() else { return };
    let source = ModelSource::Demo;
    let answer = |engine: &Engine| {
        let tokenizer = engine.tokenizer();
        let prompt = tokenizer.encode(b"1+1=", Default::default());
        let how = Generation {
            max_tokens: Some(TOKENS),
            ignore_eos: true,
            ..Generation::default()
        };
        let prompt = prompt.expect("a text");
        let mut session = engine.session();
        let out = session.generate(&prompt, &how, None, &mut Nobody);
        out.expect("it runs").text
    };
    let expected = answer(&alone(&source, &options(), one));
    for graphs in [false, true] {
        let options = EngineOptions {
            graphs,
            ..options()
        };
        REPLAYS.store(0, Ordering::Relaxed);
        on_ranks(2, &source, &options, watched::<BY_NCCL>, |engine| {
            let engine = engine.expect("it loads");
            assert_eq!(answer(&engine), expected, "captured: {graphs}");
            let described = engine.describe();
            assert!(
                described.starts_with("2 ranks, each: cuda, "),
                "{described}"
            );
        });
        // for each rank: the first token comes from the prompt, the second is computed without a
        // replay
        let replayed = graphs && (BY_NCCL || !on_gpus());
        let expected = if replayed { 2 * (TOKENS - 2) } else { 0 };
        assert_eq!(REPLAYS.load(Ordering::Relaxed), expected, "{graphs}");
    }
}

/// Taps of a step on several ranks get whole rows, the same as on one device.
#[test]
fn ranks_with_devices_show_whole_rows() {
    let Some(one) = device() else { return };
    let source = ModelSource::Demo;
    let expected = shown(&alone(&source, &options(), one));
    on_ranks(2, &source, &options(), open, |engine| {
        assert_same_shown(&shown(&engine.expect("the model loads")), &expected);
    });
}

/// Each rank has its part of weights and cache, and not more.
#[test]
fn ranks_with_devices_divide_the_weights() {
    let Some(one) = device() else { return };
    let source = ModelSource::Demo;
    let whole = alone(&source, &options(), one).memory();
    on_ranks(2, &source, &options(), open, |engine| {
        let part = engine.expect("the model loads").memory();
        assert_eq!(part.kv, whole.kv / 2);
        // each rank has the whole embedding table
        let most = whole.packed * 3 / 4;
        assert!(part.packed <= most, "{} of {}", part.packed, whole.packed);
    });
}

/// A rank without a device reports it, and no other rank waits for it.
#[test]
fn a_rank_without_a_device_ends_the_loading_of_all() {
    fn none(link: &dyn Collective, first: usize) -> Result<Opened, cuda::Error> {
        match link.rank() {
            1 => Err(cuda::Error::NoDriver),
            _ => open(link, first),
        }
    }
    if device().is_none() {
        return;
    }
    on_ranks(2, &ModelSource::Demo, &options(), none, |engine| {
        let error = engine.err().map(|error| error.to_string());
        assert_eq!(
            error.as_deref(),
            Some("rank 1 of 2: NVIDIA's driver (libcuda.so.1) was not found")
        );
    });
}
