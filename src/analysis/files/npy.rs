//! The headers of NumPy files (`numpy.lib.format`): magic, version, and a Python dictionary of
//! type, order and shape.

use safetensors::Dtype;

use super::Error;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Bytes of which the header's length is a multiple.
const ALIGNMENT: usize = 64;

/// Array types and NumPy's names of them, little-endian.
const TYPES: [(Dtype, &str); 8] = [
    (Dtype::F32, "<f4"),
    (Dtype::F16, "<f2"),
    (Dtype::F64, "<f8"),
    (Dtype::I8, "|i1"),
    (Dtype::I16, "<i2"),
    (Dtype::I32, "<i4"),
    (Dtype::I64, "<i8"),
    (Dtype::U8, "|u1"),
];

/// Returns NumPy's name of a type; `None` for BF16, which it lacks.
pub(super) fn descr(dtype: Dtype) -> Option<&'static str> {
    TYPES.iter().find(|row| row.0 == dtype).map(|row| row.1)
}

/// Returns the header of an array in C order.
pub(super) fn header(descr: &str, shape: &[usize]) -> Vec<u8> {
    let dims: Vec<String> = shape.iter().map(|n| format!("{n},")).collect();
    let shape = match dims.len() {
        1 => dims.join(" "),
        _ => dims.join(" ").trim_end_matches(',').to_owned(),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // magic, version and length take ten bytes; a line break is the last one
    let end = (10 + text.len() + 1).next_multiple_of(ALIGNMENT);
    text.push_str(&" ".repeat(end - 10 - text.len() - 1));
    text.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// Type, shape and place of the data in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) start: usize,
}

/// Reads the header of a file.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<Header, Error> {
    let bad = |expected, got: &str| Error::Npy {
        file: file.to_owned(),
        expected,
        got: got.chars().take(80).collect(),
    };
    let rest = bytes.strip_prefix(MAGIC);
    let (version, rest) = rest
        .and_then(|rest| rest.split_first_chunk::<2>())
        .ok_or_else(|| bad("a NumPy file", "another beginning"))?;
    let short = || bad("a whole header", "the end of the file");
    let (len, rest) = match version[0] {
        1 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        2 | 3 => {
            let (len, rest) = rest.split_first_chunk().ok_or_else(short)?;
            (u32::from_le_bytes(*len) as usize, rest)
        }
        other => return Err(bad("format 1, 2 or 3", &other.to_string())),
    };
    let text = rest.get(..len).ok_or_else(short)?;
    let text = String::from_utf8_lossy(text);
    let field = |name: &str| {
        let (_, after) = text.split_once(&format!("'{name}':"))?;
        Some(after.trim_start())
    };
    let missing = || bad("descr, fortran_order and shape in the header", &text);
    let name = field("descr")
        .and_then(|rest| rest.strip_prefix('\'')?.split('\'').next())
        .ok_or_else(missing)?;
    let dtype = TYPES.iter().find(|row| row.1 == name).map(|row| row.0);
    let dtype = dtype.ok_or_else(|| {
        let types = "one of <f4, <f2, <f8, |i1, <i2, <i4, <i8 and |u1";
        bad(types, name)
    })?;
    if !field("fortran_order")
        .ok_or_else(missing)?
        .starts_with("False")
    {
        return Err(bad("rows in C order", "Fortran order"));
    }
    let dims = field("shape")
        .and_then(|rest| rest.strip_prefix('(')?.split(')').next())
        .ok_or_else(missing)?;
    let dims = dims.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape: Result<Vec<u64>, _> = dims.map(str::parse).collect();
    Ok(Header {
        dtype,
        shape: shape.map_err(|_| bad("a shape of numbers", &text))?,
        start: bytes.len() - rest.len() + len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_numpys() {
        // as numpy.save writes them
        let one = header("<f4", &[3]);
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(&one[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!(one.len(), 128);
        assert_eq!(one[10..10 + text.len()], *text.as_bytes());
        assert!(one.ends_with(b" \n"));
        for shape in [&[][..], &[0], &[3], &[2, 3], &[4, 2, 3]] {
            let head = header("|i1", shape);
            assert!(head.len().is_multiple_of(ALIGNMENT));
            let expected = Header {
                dtype: Dtype::I8,
                shape: shape.iter().map(|&n| n as u64).collect(),
                start: head.len(),
            };
            assert_eq!(read("a", &head).expect("a header"), expected);
        }
    }

    #[test]
    fn other_files_are_refused() {
        let error = |bytes: &[u8]| read("a.npy", bytes).unwrap_err().to_string();
        let text = |from: &str, to: &str| {
            let head = header("<f4", &[2, 3]);
            let text = String::from_utf8_lossy(&head[10..]).replace(from, to);
            [&head[..10], text.as_bytes()].concat()
        };
        assert_eq!(
            error(b"GGUF"),
            "a.npy: expected a NumPy file, got another beginning"
        );
        assert!(error(&header("<f4", &[2])[..40]).ends_with("got the end of the file"));
        assert!(error(&text("<f4", ">f4")).ends_with("and |u1, got >f4"));
        assert!(
            error(&text("False", "True ")).ends_with("expected rows in C order, got Fortran order")
        );
        assert!(error(&text("(2, 3)", "(2, x)")).contains("expected a shape of numbers"));
        assert!(error(&text("'shape'", "'shope'")).contains("expected descr, fortran_order"));
    }
}
