//! Presents a model stored in other files as an open GGUF file: keys and tensors are declared, the
//! bytes are not copied.

use crate::gguf::{Gguf, Part};
use crate::map::Bytes;
use crate::{
    Error, OpenOptions, OwnedValue, RowSource, TensorInfo, TensorType, Writer, error, layout,
};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A file whose bytes several tensors share.
#[derive(Clone)]
pub struct SharedFile {
    name: String,
    bytes: Arc<Bytes>,
}

impl SharedFile {
    /// Opens a file; `opts.mmap` selects mapping or reading.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NotAFile`], [`Error::NoMemory`].
    pub fn open(path: &Path, opts: &OpenOptions) -> Result<SharedFile, Error> {
        Ok(SharedFile {
            name: error::label(path),
            bytes: Arc::new(Bytes::open(path, opts.mmap)?),
        })
    }

    /// Returns the path, for messages: control characters are escaped.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns all of its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.whole()
    }

    /// Checks that it has not changed since it was opened; see [`Gguf::check`].
    ///
    /// # Errors
    /// [`Error::Changed`].
    pub fn check(&self) -> Result<(), Error> {
        self.bytes.check()
    }

    /// Tells the system that the mapped pages inside `range` are not needed soon.
    pub fn release(&self, range: Range<usize>) {
        self.bytes.release(range.start, range.end);
    }
}

/// Collects keys and tensors; see [`View::open`].
pub struct View {
    name: String,
    keys: Writer<'static>,
    tensors: Vec<(TensorInfo, Part)>,
}

impl View {
    /// Creates a model without keys and tensors; messages call it `name`.
    pub fn new(name: &Path) -> View {
        View {
            name: error::label(name),
            keys: Writer::new(),
            tensors: Vec::new(),
        }
    }

    /// Sets a key; an existing one gets the new value.
    pub fn set(&mut self, key: &str, value: impl Into<OwnedValue>) -> &mut Self {
        self.keys.set(key, value);
        self
    }

    /// Adds a tensor that is `range` of a file; `dims` in ggml's order, as in [`TensorInfo::dims`].
    ///
    /// # Errors
    /// An invalid shape, or one whose size differs from the range; a range outside the file.
    pub fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        file: &SharedFile,
        range: Range<usize>,
    ) -> Result<&mut Self, Error> {
        let info = self.info(&file.name, name, dims, ty)?;
        let got = range.end.saturating_sub(range.start) as u64;
        if got != info.bytes {
            let (file, tensor) = (file.name.clone(), name.to_owned());
            return Err(Error::TensorData {
                file,
                tensor,
                expected: info.bytes,
                got,
            });
        }
        if range.end > file.bytes().len() {
            let (end, len) = (range.end as u64, file.bytes().len() as u64);
            return Err(Error::TensorPastEnd {
                file: file.name.clone(),
                tensor: name.to_owned(),
                end,
                len,
            });
        }
        let bytes = Bytes::Shared(file.bytes.clone(), range);
        self.tensors.push((
            info,
            Part {
                name: file.name.clone(),
                bytes,
                data_start: 0,
            },
        ));
        Ok(self)
    }

    /// Adds a tensor whose rows are computed on demand; messages name `file` as its source.
    ///
    /// # Errors
    /// An invalid shape.
    pub fn made(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        file: &str,
        rows: Arc<dyn RowSource>,
    ) -> Result<&mut Self, Error> {
        let info = self.info(file, name, dims, ty)?;
        let size = || Error::TensorSize {
            file: file.to_owned(),
            tensor: name.to_owned(),
            dims: dims.to_vec(),
            ty,
        };
        let len = usize::try_from(info.bytes).map_err(|_| size())?;
        let bytes = Bytes::Made {
            rows,
            len,
            held: OnceLock::new(),
        };
        self.tensors.push((
            info,
            Part {
                name: file.to_owned(),
                bytes,
                data_start: 0,
            },
        ));
        Ok(self)
    }

    /// Sorts the tensors by a key of their names; those of one key keep their order.
    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&str) -> K) -> &mut Self {
        self.tensors.sort_by_key(|(info, _)| key(&info.name));
        for (part, (info, _)) in (1..).zip(&mut self.tensors) {
            info.part = part;
        }
        self
    }

    fn info(
        &self,
        file: &str,
        name: &str,
        dims: &[u64],
        ty: TensorType,
    ) -> Result<TensorInfo, Error> {
        let bytes = layout::tensor_bytes(file, name, dims, ty)?;
        // part 0 is the directory
        let part = self.tensors.len().saturating_add(1);
        Ok(TensorInfo {
            name: name.to_owned(),
            dims: dims.to_vec(),
            ty,
            offset: 0,
            bytes,
            part,
        })
    }

    /// Opens the model. Its tensors have no place in a GGUF file, so [`Gguf::file_offset`] is
    /// meaningless for them.
    ///
    /// # Errors
    /// An invalid key, a duplicate tensor name, or too many of either.
    pub fn open(self) -> Result<Gguf, Error> {
        let View {
            name,
            keys,
            tensors,
        } = self;
        let mut head = Vec::new();
        keys.write_to(&mut head)?;
        let bytes = Bytes::Held(head.into());
        let mut directory = crate::parse::parse(&name, &bytes, 0, false)?;
        crate::parse::limit(&name, "tensors", tensors.len() as u64, layout::MAX_TENSORS)?;
        let mut parts = vec![Part {
            name,
            bytes,
            data_start: 0,
        }];
        for (info, part) in tensors {
            directory.tensors.push(info);
            parts.push(part);
        }
        Gguf::assemble(parts, directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Counting(AtomicUsize);

    impl RowSource for Counting {
        fn fill(&self, first: u64, out: &mut [u8]) {
            self.0.fetch_add(1, Ordering::Relaxed);
            for (row, out) in out.chunks_exact_mut(8).enumerate() {
                out.fill(first as u8 + row as u8);
            }
        }
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, SharedFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        std::fs::File::create(&path)
            .unwrap()
            .write_all(bytes)
            .unwrap();
        let file = SharedFile::open(&path, &OpenOptions::default()).unwrap();
        (dir, file)
    }

    #[test]
    fn tensors_are_where_they_were_said_to_be() {
        let (_dir, file) = file(&(0..100).collect::<Vec<u8>>());
        let made = Arc::new(Counting(AtomicUsize::new(0)));
        let mut view = View::new(Path::new("folder"));
        view.set("general.architecture", "llama");
        view.tensor("b", &[2, 2], TensorType::F32, &file, 10..26)
            .unwrap();
        view.made("a", &[2, 3], TensorType::F32, file.name(), made.clone())
            .unwrap();
        let gguf = view.open().unwrap();
        assert_eq!(
            (gguf.name(), gguf.str("general.architecture").unwrap()),
            ("folder", Some("llama"))
        );
        let (a, b) = (gguf.tensor("a").unwrap(), gguf.tensor("b").unwrap());
        assert_eq!(gguf.data(b), &(10..26).collect::<Vec<u8>>());
        let (mut two, mut one) = ([0; 16], [0; 8]);
        gguf.read(a, 8, &mut two);
        gguf.read(b, 8, &mut one);
        assert_eq!((two[0], two[15], one[0]), (1, 2, 18));
        gguf.release(a);
        assert_eq!(
            made.0.load(Ordering::Relaxed),
            1,
            "rows are made when they are read"
        );
        let directory = 24 + (8 + "general.architecture".len() + 4) + (8 + "llama".len());
        assert_eq!(gguf.file_bytes(), (directory + 16 + 24) as u64);
        assert_eq!(gguf.data(a), [[0; 8], [1; 8], [2; 8]].concat());
        gguf.read(a, 0, &mut one);
        assert_eq!((one[0], gguf.data(a).len()), (0, 24));
        assert_eq!(
            made.0.load(Ordering::Relaxed),
            2,
            "all of them once, and never again"
        );
        assert_eq!(
            gguf.part_names().collect::<Vec<_>>(),
            ["folder", file.name()]
        );
    }

    #[test]
    fn sorted_tensors_keep_their_bytes() {
        let (_dir, file) = file(&(0..100).collect::<Vec<u8>>());
        let mut view = View::new(Path::new("folder"));
        for (name, start) in [("b", 8), ("aa", 4), ("a", 0), ("bb", 12)] {
            view.tensor(name, &[1], TensorType::F32, &file, start..start + 4)
                .unwrap();
        }
        view.sort_by_key(str::len);
        let gguf = view.open().unwrap();
        let read = |t: &TensorInfo| (t.name.clone(), gguf.data(t)[0]);
        let expected = [("b", 8), ("a", 0), ("aa", 4), ("bb", 12)].map(|(n, b)| (n.to_owned(), b));
        assert_eq!(
            gguf.tensors().iter().map(read).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (_dir, file) = file(&[0; 100]);
        let mut view = View::new(Path::new("folder"));
        let f32s = |dims: &[u64], range: Range<usize>| {
            let mut view = View::new(Path::new("folder"));
            view.tensor("t", dims, TensorType::F32, &file, range)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        assert!(
            f32s(&[2], 0..9)
                .unwrap_err()
                .ends_with("9 bytes were written, expected 8")
        );
        assert!(
            f32s(&[2], 96..104)
                .unwrap_err()
                .contains("ends at byte 104, the file at byte 100")
        );
        assert!(f32s(&[u64::MAX, 3], 0..8).is_err());
        view.tensor("t", &[1], TensorType::F32, &file, 0..4)
            .unwrap();
        view.tensor("t", &[1], TensorType::F32, &file, 4..8)
            .unwrap();
        assert!(
            view.open()
                .unwrap_err()
                .to_string()
                .contains("\"t\" appears twice")
        );
    }
}
