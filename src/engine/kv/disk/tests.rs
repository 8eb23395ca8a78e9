//! The folder without a model: what was damaged is never read, and there is never too much.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::*;
use crate::kv::PAGE;

const MODEL: Digest = [7; 32];

fn sizes() -> PageSizes {
    PageSizes {
        groups: vec![24, 10],
        state: 12,
    }
}

fn key(n: u32) -> PageKey {
    PageKey {
        tokens: std::array::from_fn(|i| n * 100 + i as u32),
        generated: 0,
        adapters: [0; 32],
    }
}

fn digest(n: u32) -> Digest {
    let mut digest = [0; 32];
    digest[..4].copy_from_slice(&n.to_le_bytes());
    digest
}

/// Both groups of page `n`, and its state if it is even.
fn page(n: u32) -> SavedPage {
    let groups = PageParts::group(0).with(PageParts::group(1));
    let parts = match n.is_multiple_of(2) {
        true => groups.with(PageParts::STATE),
        false => groups,
    };
    let bytes = sizes().of(parts).expect("parts of these sizes");
    SavedPage {
        digest: digest(n),
        key: key(n),
        parts,
        bytes: (0..bytes).map(|i| (i as u32 * 31 + n) as u8).collect(),
    }
}

fn open_with(dir: &std::path::Path, max_bytes: u64, identity: Digest) -> DiskCache {
    let options = PromptCacheOptions {
        dir: dir.to_owned(),
        max_bytes,
    };
    DiskCache::open(&options, identity, sizes()).expect("a folder")
}

fn open(dir: &std::path::Path) -> DiskCache {
    open_with(dir, 1 << 20, MODEL)
}

/// Writes pages as one file and waits for it.
fn write(dir: &std::path::Path, pages: &[u32]) {
    open(dir).write(pages.iter().map(|&n| page(n)).collect());
}

/// Reads all of a page and checks its bytes; returns whether it is there.
fn has(cache: &DiskCache, n: u32) -> bool {
    let expected = page(n);
    let read = cache.read(&digest(n), &key(n), expected.parts);
    if let Some(parts) = &read {
        let cut = sizes()
            .cut(expected.parts, &expected.bytes)
            .map(|cut| cut.len());
        assert_eq!(Some(parts.len()), cut, "page {n} has other parts");
        for own in sizes()
            .cut(expected.parts, &expected.bytes)
            .into_iter()
            .flatten()
        {
            let found = parts.iter().find(|(part, _)| *part == own.0);
            let found = found.map(|(_, bytes)| &bytes[..]);
            assert_eq!(found, Some(own.1), "page {n} has other bytes");
        }
    }
    read.is_some()
}

fn files(dir: &std::path::Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).expect("a folder");
    files.map(|entry| entry.expect("a file").path()).collect()
}

#[test]
fn pages_are_there_after_a_restart_and_for_other_programs() {
    let dir = tempfile::tempdir().expect("a folder");
    let early = open(dir.path());
    write(dir.path(), &[1, 2, 3]);
    for cache in [&open(dir.path()), &early] {
        cache.refresh();
        assert!((1..4).all(|n| has(cache, n)) && !has(cache, 4));
        assert!(cache.parts(&digest(2), false).has(PageParts::STATE));
        assert!(!cache.parts(&digest(1), false).has(PageParts::STATE));
        assert_eq!(cache.stats().files, 1);
    }
    // a state that is not there is not read, though the rest is
    let all = page(2).parts;
    assert!(early.read(&digest(1), &key(1), all).is_none());
    // other tokens under the same digest are another page
    assert!(early.read(&digest(1), &key(9), page(1).parts).is_none());
}

#[test]
fn parts_of_a_page_may_be_in_two_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let whole = page(2);
    let cut = sizes();
    let cut = cut.cut(whole.parts, &whole.bytes).expect("three parts");
    for (part, bytes) in cut {
        let own = SavedPage {
            parts: part,
            bytes: bytes.to_vec(),
            ..whole.clone()
        };
        open(dir.path()).write(vec![own]);
    }
    assert_eq!(files(dir.path()).len(), 3);
    assert!(has(&open(dir.path()), 2));
}

/// Each byte of a file in turn, in its head, tokens, checksums and pages.
#[test]
fn a_byte_that_changed_is_never_read_and_its_file_goes() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &[1, 2]);
    let path = files(dir.path()).pop().expect("a file");
    let good = fs::read(&path).expect("it is readable");
    let mut foreign = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, &bad).expect("it is writable");
        let cache = open(dir.path());
        // a page is checked when it is read, all others before
        let read = [1, 2].map(|n| has(&cache, n));
        assert_ne!(
            read,
            [true; 2],
            "byte {at} of {} changed unseen",
            good.len()
        );
        if path.exists() {
            // another version
            assert!((8..12).contains(&at), "byte {at}");
            foreign += 1;
        } else {
            assert_eq!(cache.stats().damaged_files, 1, "byte {at}");
        }
    }
    assert_eq!(foreign, 4);
}

#[test]
fn a_file_that_is_cut_or_longer_is_never_read() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &[1, 2]);
    let path = files(dir.path()).pop().expect("a file");
    let good = fs::read(&path).expect("it is readable");
    for len in (0..good.len()).chain([good.len() + 1]) {
        let mut bad = good.clone();
        bad.resize(len, 0);
        fs::write(&path, &bad).expect("it is writable");
        let cache = open(dir.path());
        assert!(!has(&cache, 1) && !has(&cache, 2), "{len} bytes");
        assert!(!path.exists(), "{len} bytes");
    }
    // cut while a program has it open: what is left whole may be read, and no more
    for len in 0..good.len() {
        fs::write(&path, &good).expect("it is writable");
        let cache = open(dir.path());
        fs::write(&path, &good[..len]).expect("it is writable");
        has(&cache, 1);
        assert!(!has(&cache, 2), "{len} bytes");
        assert!(!path.exists(), "{len} bytes");
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("notes.txt"), "not ours").expect("it is writable");
    drop(open_with(dir.path(), 1 << 20, [8; 32]));
    let other = open_with(dir.path(), 1 << 20, [8; 32]);
    other.write(vec![page(1)]);
    drop(other);
    let cache = open(dir.path());
    assert!(!has(&cache, 1), "a page of another model");
    assert_eq!(files(dir.path()).len(), 2);
    // under the name of this model, it is still another's
    let foreign = files(dir.path());
    let foreign = foreign
        .iter()
        .find(|path| path.extension() == Some("kv".as_ref()));
    let own = dir.path().join(format!("{}-0.kv", folder::digits(&MODEL)));
    fs::rename(foreign.expect("its file"), &own).expect("it is movable");
    cache.refresh();
    assert!(!has(&cache, 1) && own.exists());
}

#[test]
fn the_least_recently_used_files_make_room() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &[1]);
    let bytes = open(dir.path()).stats().bytes;
    let start = SystemTime::now() - Duration::from_secs(3600);
    for n in 1..=5 {
        write(dir.path(), &[2 * n + 1]);
        for path in files(dir.path()) {
            let file = fs::File::options()
                .append(true)
                .open(&path)
                .expect("a file");
            let time = file
                .metadata()
                .and_then(|data| data.modified())
                .expect("a time");
            if time > start + Duration::from_secs(1000) {
                let time = start + Duration::from_secs(u64::from(n));
                file.set_modified(time).expect("a time");
            }
        }
    }
    // pages 1 and 3 are the oldest, and 3 has just been used
    let cache = open(dir.path());
    cache.touch(&digest(3));
    drop(cache);
    let cache = open_with(dir.path(), 4 * bytes, MODEL);
    cache.write(vec![page(13)]);
    drop(cache);
    let cache = open(dir.path());
    let left: Vec<u32> = (0..16).filter(|&n| has(&cache, n)).collect();
    assert_eq!(left, [3, 9, 11, 13]);
    assert_eq!(cache.stats().bytes, 4 * bytes);
    // what is larger than the folder may be is not written, and nothing goes for it
    let small = open_with(dir.path(), bytes - 1, MODEL);
    small.write(vec![page(15)]);
    drop(small);
    assert_eq!(files(dir.path()).len(), 4);
}

#[test]
fn what_a_killed_program_left_goes_and_what_is_being_written_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name);
    fs::write(path(".octavo-left.tmp"), "half").expect("it is writable");
    let written = fs::File::create(path(".octavo-new.tmp")).expect("it is writable");
    written.try_lock().expect("a lock");
    let cache = open(dir.path());
    assert!(!path(".octavo-left.tmp").exists() && path(".octavo-new.tmp").exists());
    assert_eq!(cache.stats().files, 0);
}

#[test]
fn a_file_that_vanishes_is_a_miss_and_a_full_disk_a_count() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &[1]);
    let cache = open(dir.path());
    let path = files(dir.path()).pop().expect("a file");
    fs::remove_file(path).expect("it is removable");
    assert!(!has(&cache, 1));
    assert_eq!((cache.stats().files, cache.stats().damaged_files), (0, 0));
    // nothing can be written to a folder that is gone
    fs::remove_dir_all(dir.path()).expect("it is removable");
    let counts = Arc::clone(&cache.counts);
    cache.write(vec![page(2)]);
    drop(cache);
    assert!(counts.failures.load(Ordering::Relaxed) > 0);
    assert!(lock(&counts.last_failure).is_some());
}

#[test]
fn waiting_pages_are_not_written_twice_and_not_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = open(dir.path());
    let held = lock(&cache.folder);
    drop(held);
    lock(&cache.folder).expect(&[page(2)]);
    assert!(!cache.parts(&digest(2), true).is_empty());
    assert!(cache.parts(&digest(2), false).is_empty() && !has(&cache, 2));
}

#[test]
fn digests_tell_apart_what_pages_depend_on() {
    let images = crate::ImageRegistry::default();
    let cache = |identity| {
        let dir = tempfile::tempdir().expect("a folder");
        open_with(dir.path(), 1, identity)
    };
    let (one, other) = (cache(MODEL), cache([8; 32]));
    let roots = [
        one.root(None),
        one.root(Some("")),
        one.root(Some("a")),
        other.root(None),
    ];
    let keys = [
        key(1),
        PageKey {
            generated: 1 << (PAGE - 1),
            ..key(1)
        },
        PageKey {
            adapters: [1; 32],
            ..key(1)
        },
        key(2),
    ];
    let of = |root| keys.map(|key| page_digest(root, &key, &images).expect("a text"));
    let mut all: Vec<Digest> = roots.iter().flat_map(of).chain(roots).collect();
    let n = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), n);
    // an image that is known no more has no digest
    let mut image = key(1);
    image.tokens[3] = crate::image_registry::FIRST_IMAGE_TOKEN;
    assert_eq!(page_digest(&roots[0], &image, &images), None);
}
