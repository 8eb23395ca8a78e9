//! Opens a corpus of hostile files, each of which must get its verdict: the same mapped, read and
//! from memory, within a second, without a panic, as a one-line message, and with at most the
//! file's size and 64 MiB of memory.

use crate::allocations;
use crate::corpus::{base, corpus};
use crate::raw::{Random, open, verdict};
use cpu_time::ThreadTime;
use gguf_rs_lite::{Gguf, OpenOptions, Value};
use std::time::Duration;

/// Accesses everything an open file offers.
fn walk(file: &Gguf) {
    for (key, value) in file.keys() {
        assert!(file.get(key).is_some(), "{key:?}");
        if let Value::Array(a) = value {
            assert_eq!(a.iter().count(), a.len());
        }
        assert!(
            [
                file.u32(key).is_err(),
                file.str(key).is_err(),
                file.array(key).is_err()
            ]
            .contains(&true)
        );
    }
    for t in file.tensors() {
        file.want(t);
        file.ahead(t, usize::MAX);
        assert_eq!(file.data(t).len() as u64, t.bytes);
        assert!(file.tensor(&t.name).is_some());
        file.release(t);
    }
}

#[test]
fn every_hostile_file_gets_its_verdict_in_every_way_of_opening() {
    let corpus = corpus();
    assert!(corpus.len() >= 200, "{} files", corpus.len());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile\n.gguf");
    for case in &corpus {
        std::fs::write(&path, &case.bytes).expect("writes");
        let started = ThreadTime::now();
        let mapped = Gguf::open(&path, &OpenOptions::default());
        let took = started.elapsed();
        assert!(took < Duration::from_secs(1), "{}: {took:?}", case.name);
        let read = Gguf::open(
            &path,
            &OpenOptions {
                mmap: false,
                strict: false,
            },
        );
        let memory = open(&case.bytes, false);
        let got = verdict(&mapped);
        assert!(
            case.want.split('|').any(|w| w == got),
            "{}: {:?}, expected {}",
            case.name,
            mapped.err(),
            case.want
        );
        assert_eq!(got, verdict(&read), "{}", case.name);
        assert_eq!(got, verdict(&memory), "{}", case.name);
        match (&mapped, &memory) {
            (Err(e), Err(m)) => {
                let (e, m) = (e.to_string(), m.to_string());
                assert!(
                    !e.contains('\n') && e.len() < 400 + path.as_os_str().len(),
                    "{}: {e:?}",
                    case.name
                );
                let start = format!("{}: ", path.display()).replace('\n', "\\n");
                assert_eq!(
                    e.strip_prefix(&start),
                    m.strip_prefix("test.gguf: "),
                    "{}",
                    case.name
                );
            }
            _ => [&mapped, &read, &memory]
                .into_iter()
                .flatten()
                .for_each(walk),
        }
    }
}

#[test]
fn opening_a_hostile_file_takes_little_memory() {
    const EXTRA: usize = 64 << 20;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("hostile.gguf");
    let mut worst = (0, String::new());
    for case in corpus() {
        std::fs::write(&path, &case.bytes).expect("writes");
        for mmap in [true, false] {
            let (_, used) = allocations::measure(|| {
                Gguf::open(
                    &path,
                    &OpenOptions {
                        mmap,
                        strict: false,
                    },
                )
            });
            let allowed = case.bytes.len() + EXTRA;
            assert!(
                used.peak <= allowed,
                "{}: {} bytes of heap at once",
                case.name,
                used.peak
            );
            // the largest allocation is the file itself, or a bounded list of its contents
            let piece = case.bytes.len().max(16 << 20);
            assert!(
                used.largest <= piece,
                "{}: one allocation of {} bytes",
                case.name,
                used.largest
            );
            if used.peak.saturating_sub(case.bytes.len()) > worst.0 {
                worst = (used.peak - case.bytes.len(), case.name.clone());
            }
        }
    }
    println!(
        "most heap beyond the file: {} bytes, by {:?}",
        worst.0, worst.1
    );
}

#[test]
fn random_mutations_never_panic() {
    let base = base().bytes;
    let directory = base.len() as u64 - 418;
    let mut rng = Random(7);
    for _ in 0..50_000 {
        let mut bytes = base.clone();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(directory) as usize;
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.next() as u8,
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
                _ => bytes.truncate(bytes.len() - rng.below(20) as usize),
            }
            bytes.resize(bytes.len().max(directory as usize), 0);
        }
        if let Ok(file) = open(&bytes, false) {
            walk_lightly(&file);
        }
    }
}

fn walk_lightly(file: &Gguf) {
    for (_, value) in file.keys() {
        if let Value::Array(a) = value {
            assert_eq!(a.iter().count(), a.len());
        }
    }
    assert!(
        file.tensors()
            .iter()
            .all(|t| file.data(t).len() as u64 == t.bytes)
    );
}

/// Writes seeds: run `cargo test -p gguf-rs-lite --test gguf fuzz_seeds -- --ignored` before
/// fuzzing `gguf_open`.
#[test]
#[ignore = "writes fuzz/corpus/gguf_open"]
fn fuzz_seeds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/gguf_open");
    std::fs::create_dir_all(folder).expect("a folder");
    let small = corpus()
        .into_iter()
        .filter(|case| case.bytes.len() < 10_000);
    for (i, case) in small.enumerate() {
        std::fs::write(format!("{folder}/hostile-{i:04}"), case.bytes).expect("writes");
    }
}
