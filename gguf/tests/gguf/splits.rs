//! Models split over several files, valid and with false claims.

use crate::raw::{Raw, verdict};
use gguf_rs_lite::{Gguf, OpenOptions};
use std::path::{Path, PathBuf};

/// Split keys of one part: `None` leaves the key out.
#[derive(Clone)]
struct Part {
    no: Option<u16>,
    count: Option<u16>,
    total: Option<i32>,
    tensors: Vec<&'static str>,
}

fn part(no: u16, count: u16, tensors: &[&'static str]) -> Part {
    Part {
        no: Some(no),
        count: Some(count),
        total: Some(3),
        tensors: tensors.to_vec(),
    }
}

impl Part {
    /// Builds the file: each tensor holds eight floats, all of them the first letter of its name.
    fn bytes(&self) -> Vec<u8> {
        let n_keys = 1 + self.no.iter().len() + self.count.iter().len() + self.total.iter().len();
        let mut raw = Raw::new(3, self.tensors.len() as u64, n_keys as u64);
        raw.key(b"part.key", 4).u32(7);
        if let Some(no) = self.no {
            raw.key(b"split.no", 2).bytes(&no.to_le_bytes());
        }
        if let Some(count) = self.count {
            raw.key(b"split.count", 2).bytes(&count.to_le_bytes());
        }
        if let Some(total) = self.total {
            raw.key(b"split.tensors.count", 5)
                .bytes(&total.to_le_bytes());
        }
        for (i, name) in self.tensors.iter().enumerate() {
            raw.tensor(name.as_bytes(), &[8], 0, 32 * i as u64);
        }
        if !self.tensors.is_empty() {
            raw.pad(32);
        }
        for name in &self.tensors {
            raw.bytes(&[name.as_bytes()[0]; 32]);
        }
        raw.bytes
    }
}

fn name(folder: &Path, no: usize, count: usize) -> PathBuf {
    folder.join(format!("model-{no:05}-of-{count:05}.gguf"))
}

/// Writes the parts under their right names and opens the first.
fn open_all(parts: &[Part]) -> (tempfile::TempDir, Result<Gguf, gguf_rs_lite::Error>) {
    let folder = tempfile::tempdir().expect("a folder");
    for (i, part) in parts.iter().enumerate() {
        std::fs::write(name(folder.path(), i + 1, parts.len()), part.bytes()).expect("writes");
    }
    let result = Gguf::open(
        &name(folder.path(), 1, parts.len()),
        &OpenOptions::default(),
    );
    (folder, result)
}

fn good() -> [Part; 3] {
    [part(0, 3, &["a"]), part(1, 3, &["b", "c"]), part(2, 3, &[])]
}

#[test]
fn the_first_part_opens_all() {
    let (folder, file) = open_all(&good());
    let file = file.expect("opens");
    assert_eq!(file.part_names().count(), 3);
    assert_eq!(file.name(), name(folder.path(), 1, 3).to_string_lossy());
    let names: Vec<_> = file
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.part))
        .collect();
    assert_eq!(names, [("a", 0), ("b", 1), ("c", 1)]);
    for t in file.tensors() {
        assert_eq!(file.data(t), [t.name.as_bytes()[0]; 32], "{}", t.name);
        file.release(t);
        assert_eq!(file.tensor(&t.name), Some(t));
    }
    let on_disk: u64 = (1..=3)
        .map(|i| {
            std::fs::metadata(name(folder.path(), i, 3))
                .expect("metadata")
                .len()
        })
        .sum();
    assert_eq!(file.file_bytes(), on_disk);
}

#[test]
fn another_part_says_which_to_open() {
    let (folder, _) = open_all(&good());
    let error = Gguf::open(&name(folder.path(), 2, 3), &OpenOptions::default())
        .expect_err("the second part");
    let text = error.to_string();
    assert!(text.contains("part 2 of a model split in 3"), "{text}");
    assert!(
        text.ends_with(&name(folder.path(), 1, 3).to_string_lossy().into_owned()),
        "{text}"
    );
    let elsewhere = folder.path().join("renamed.gguf");
    std::fs::copy(name(folder.path(), 2, 3), &elsewhere).expect("copies");
    let text = Gguf::open(&elsewhere, &OpenOptions::default())
        .expect_err("a renamed part")
        .to_string();
    assert!(text.ends_with("-00001-of-00003.gguf"), "{text}");
}

#[test]
fn a_missing_or_misnamed_part_is_named() {
    let (folder, _) = open_all(&good());
    std::fs::remove_file(name(folder.path(), 3, 3)).expect("removes");
    let error = Gguf::open(&name(folder.path(), 1, 3), &OpenOptions::default())
        .expect_err("the third is gone");
    assert!(
        error
            .to_string()
            .ends_with("model-00003-of-00003.gguf: part 3 of 3 is missing"),
        "{error}"
    );
    let elsewhere = folder.path().join("renamed.gguf");
    std::fs::rename(name(folder.path(), 1, 3), &elsewhere).expect("renames");
    let result = Gguf::open(&elsewhere, &OpenOptions::default());
    assert_eq!(verdict(&result), "SplitName");
    let text = result.expect_err("misnamed").to_string();
    assert!(
        text.ends_with("must be named like NAME-00001-of-00003.gguf"),
        "{text}"
    );
    // names inside the file are not used: the parts are beside the first, whatever the folder is
    // called
    let result = Gguf::from_bytes(good()[0].bytes(), "memory", &OpenOptions::default());
    assert_eq!(verdict(&result), "SplitInMemory");
}

#[test]
fn lies_about_the_split_are_errors() {
    type Change = fn(&mut [Part; 3]);
    let cases: [(&str, &str, Change); 16] = [
        ("a part without its number", "SplitKey", |p| p[1].no = None),
        ("a part without the count", "SplitKey", |p| {
            p[1].count = None
        }),
        ("a part with another number", "SplitKey", |p| {
            p[1].no = Some(2)
        }),
        ("a part that is a first one", "SplitKey", |p| {
            p[1].no = Some(0)
        }),
        ("a part of another count", "SplitKey", |p| {
            p[2].count = Some(4)
        }),
        ("the first without its number", "SplitKey", |p| {
            p[0].no = None
        }),
        (
            "the first with a number beyond the count",
            "SplitKey",
            |p| p[0].no = Some(3),
        ),
        ("the first is not the first", "NotFirstPart", |p| {
            p[0].no = Some(1)
        }),
        ("a count that the name does not have", "SplitName", |p| {
            p[0].count = Some(2)
        }),
        ("a huge count", "Count", |p| p[0].count = Some(u16::MAX)),
        ("no number of tensors", "SplitKey", |p| p[0].total = None),
        ("too many tensors", "SplitKey", |p| p[0].total = Some(2)),
        ("too few tensors", "SplitKey", |p| p[0].total = Some(4)),
        ("a negative number of tensors", "KeyType", |p| {
            p[0].total = Some(-3)
        }),
        ("a tensor in two parts", "DuplicateTensor", |p| {
            p[1].tensors = vec!["a", "c"]
        }),
        ("a tensor twice in one part", "DuplicateTensor", |p| {
            p[1].tensors = vec!["c", "c"]
        }),
    ];
    for (what, want, change) in cases {
        let mut parts = good();
        change(&mut parts);
        let (_folder, result) = open_all(&parts);
        assert_eq!(verdict(&result), want, "{what}: {:?}", result.err());
        let text = result.expect_err("a lie").to_string();
        assert!(!text.contains('\n'), "{text}");
        if what == "a tensor in two parts" {
            assert!(
                text.contains("00002-of-00003") && text.contains("00001-of-00003"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_broken_part_is_named() {
    let (folder, _) = open_all(&good());
    let second = name(folder.path(), 2, 3);
    let bytes = std::fs::read(&second).expect("reads");
    std::fs::write(&second, &bytes[..bytes.len() - 1]).expect("writes");
    let error = Gguf::open(&name(folder.path(), 1, 3), &OpenOptions::default()).expect_err("cut");
    assert!(
        error
            .to_string()
            .contains("00002-of-00003.gguf: tensor \"c\": its data ends at"),
        "{error}"
    );
    std::fs::remove_file(&second).expect("removes");
    std::fs::create_dir(&second).expect("a folder in its place");
    let error = Gguf::open(&name(folder.path(), 1, 3), &OpenOptions::default());
    assert_eq!(verdict(&error), "NotAFile");
}

#[test]
fn a_count_of_none_or_one_is_a_whole_model() {
    for (no, count) in [
        (None, None),
        (None, Some(0)),
        (Some(0), Some(0)),
        (Some(5), Some(0)),
        (None, Some(1)),
        (Some(0), Some(1)),
    ] {
        let alone = Part {
            no,
            count,
            total: None,
            tensors: vec!["a"],
        };
        let result = Gguf::from_bytes(alone.bytes(), "memory", &OpenOptions::default());
        assert_eq!(verdict(&result), "ok", "{no:?} of {count:?}");
    }
    let alone = Part {
        no: Some(1),
        count: Some(1),
        total: None,
        tensors: vec![],
    };
    let result = Gguf::from_bytes(alone.bytes(), "memory", &OpenOptions::default());
    assert_eq!(verdict(&result), "SplitKey");
}

#[test]
fn odd_paths_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |path: &Path| verdict(&Gguf::open(path, &OpenOptions::default()));
    assert_eq!(open(folder.path()), "NotAFile");
    assert_eq!(open(&folder.path().join("none.gguf")), "Io");
    assert_eq!(open(Path::new("")), "Io");
    #[cfg(target_os = "linux")]
    assert_eq!(open(Path::new("/dev/zero")), "NotAFile");
}
