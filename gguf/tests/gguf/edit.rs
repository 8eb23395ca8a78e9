//! Edits of keys: in place where nothing moves, else as a new file.

use gguf_rs_lite::{Gguf, KeyEdit, OpenOptions, OwnedValue, TensorType, Writer};
use std::path::{Path, PathBuf};

fn set(key: &str, value: impl Into<OwnedValue>) -> KeyEdit {
    KeyEdit::Set(key.to_owned(), value.into())
}

fn rename(from: &str, to: &str) -> KeyEdit {
    let (from, to) = (from.to_owned(), to.to_owned());
    KeyEdit::Rename { from, to }
}

/// Writes a file with three keys and a tensor.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    let mut writer = Writer::new();
    writer
        .set("a", 7u32)
        .set("b", "text")
        .set("c", vec![1.5f32, 2.5])
        .tensor("t", &[2, 2], TensorType::F32, vec![9; 16]);
    writer.write_file(&path).expect("written");
    path
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).expect("sound")
}

/// Returns the message that refuses edits.
fn refused(path: &Path, edits: &[KeyEdit]) -> String {
    open(path).edit(edits).err().expect("an error").to_string()
}

#[test]
fn what_takes_as_many_bytes_is_changed_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let before = std::fs::read(&path).expect("read");
    let gguf = open(&path);
    let edits = [
        set("a", 8i64),
        set("b", "TEXT"),
        set("c", vec![1.5f32, -2.5]),
        rename("a", "z"),
    ];
    let edited = gguf.edit(&edits).expect("edits");
    assert_eq!(edited.moves(), None);
    let in_place = edited.in_place().expect("nothing moves");
    // from the name to the 8, with the type between them; four letters; the sign of a float
    assert_eq!(in_place.bytes(), (1 + 4 + 1) + 4 + 1);
    drop(gguf);
    in_place.write(&path).expect("written");
    let after = std::fs::read(&path).expect("read");
    assert_eq!(after.len(), before.len());
    let gguf = open(&path);
    assert_eq!(gguf.u32("z").expect("a number"), Some(8));
    assert_eq!(gguf.str("b").expect("text"), Some("TEXT"));
    let c = gguf.array("c").expect("an array").expect("there");
    assert_eq!(c.f32s().expect("floats").collect::<Vec<_>>(), [1.5, -2.5]);
    assert_eq!(gguf.data(&gguf.tensors()[0]), [9; 16]);
    // back, and the file is what it was
    let back = [
        rename("z", "a"),
        set("a", 7u32),
        set("b", "text"),
        set("c", vec![1.5f32, 2.5]),
    ];
    let in_place = gguf
        .edit(&back)
        .expect("edits")
        .in_place()
        .expect("nothing moves");
    drop(gguf);
    in_place.write(&path).expect("written");
    assert_eq!(std::fs::read(&path).expect("read"), before);
}

#[test]
fn what_moves_bytes_goes_to_a_new_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let out = folder.path().join("out.gguf");
    for (edits, moves, keys) in [
        (vec![set("b", "longer")], "b", "a=7 b=longer c"),
        (vec![set("d", true)], "d", "a=7 b=text c d"),
        (vec![KeyEdit::Remove("a".to_owned())], "a", "b=text c"),
        (vec![KeyEdit::Remove("c".to_owned())], "c", "a=7 b=text"),
        (vec![rename("b", "bb")], "bb", "a=7 bb=text c"),
        (
            vec![set("general.alignment", 64u32)],
            "general.alignment",
            "a=7 b=text c general.alignment",
        ),
    ] {
        let gguf = open(&path);
        let edited = gguf.edit(&edits).expect("edits");
        assert_eq!(edited.moves(), Some(moves), "{edits:?}");
        edited.write_file(&out).expect("written");
        let gguf = open(&out);
        let shown = gguf
            .keys()
            .map(|(key, value)| match (value.as_int(), gguf.str(key)) {
                (Some(7), _) => "a=7".to_owned(),
                (_, Ok(Some(text))) => format!("{key}={text}"),
                _ => key.to_owned(),
            });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), keys);
        assert_eq!(gguf.data(&gguf.tensors()[0]), [9; 16]);
        assert!(
            open(&path)
                .edit(&edits)
                .expect("edits")
                .in_place()
                .is_none()
        );
    }
    // an alignment that is only another number would move the data all the same
    let aligned = open(&out);
    assert_eq!(aligned.alignment(), 64);
    let back = aligned
        .edit(&[set("general.alignment", 32u32)])
        .expect("edits");
    assert_eq!(back.moves(), Some("general.alignment"));
}

#[test]
fn wrong_edits_are_refused_by_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let file = path.display().to_string();
    for (edit, says) in [
        (
            set("a", "seven"),
            "key \"a\" is of type u32: cannot be given a string",
        ),
        (set("a", -1i64), "key \"a\": value -1 does not fit u32"),
        (
            set("c", vec![1u32]),
            "key \"c\" is of type an array of f32: cannot be given an array of u32",
        ),
        (
            set("general.alignment", 3u32),
            "general.alignment is 3, expected a power of two",
        ),
        (
            set("general.alignment", "x"),
            "key \"general.alignment\": expected u32, got string",
        ),
        (KeyEdit::Remove("x".to_owned()), "key \"x\" is not there"),
        (rename("x", "y"), "key \"x\" is not there"),
        (rename("a", "b"), "key \"b\" appears twice"),
        (set("", 1u32), "key number 3 is empty"),
        (
            set("split.count", 3u16),
            "key \"split.count\" says how the model is split",
        ),
    ] {
        let error = refused(&path, &[edit]);
        assert!(error.starts_with(&file) && error.contains(says), "{error}");
    }
}

#[test]
fn a_file_that_changed_meanwhile_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = model(folder.path());
    let gguf = open(&path);
    let in_place = gguf.edit(&[set("a", 8u32)]).expect("an edit").in_place();
    let in_place = in_place.expect("nothing moves");
    drop(gguf);
    let mut other = std::fs::read(&path).expect("read");
    let at = other
        .windows(4)
        .position(|w| w == [7, 0, 0, 0])
        .expect("the value");
    other[at] = 6;
    std::fs::write(&path, &other).expect("written");
    let error = in_place.write(&path).unwrap_err().to_string();
    assert!(error.contains("changed while it was in use"), "{error}");
    assert_eq!(std::fs::read(&path).expect("read"), other);
}
