//! Which files of a repository are a model, chosen as llama.cpp does.

use crate::name::FileSelector;

/// Endings of a model's files in a repository without GGUF files: of weights, settings, vocabulary.
const FOLDER_FILES: [&str; 5] = [".safetensors", ".json", ".jinja", ".model", ".txt"];

/// Words in the names of files that are no models by themselves.
const SIBLINGS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Quantizations to take if none is named, the best first.
const USUAL: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// The name of a GGUF file, taken apart.
struct GgufName<'a> {
    /// The path without the part number and the ending.
    stem: &'a str,
    /// Part number from 1, and number of parts.
    part: (u32, u32),
}

impl GgufName<'_> {
    fn of(path: &str) -> Option<GgufName<'_>> {
        let stem = path.strip_suffix(".gguf")?;
        let number = |text: &str| (text.len() == 5).then(|| text.parse().ok())?;
        let split = stem.rsplit_once("-of-").and_then(|(rest, count)| {
            let (rest, no) = rest.rsplit_once('-')?;
            Some((rest, number(no)?, number(count)?))
        });
        Some(match split {
            Some((stem, no, count)) => GgufName {
                stem,
                part: (no, count),
            },
            None => GgufName { stem, part: (1, 1) },
        })
    }

    /// Returns the quantization at the end of the name, in upper case.
    fn quantization(&self) -> Option<String> {
        let at = self.stem.rfind(['-', '.', '/'])?;
        let tag = &self.stem[at + 1..];
        let is_tag = !tag.is_empty()
            && !self.stem[at..].starts_with('/')
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_tag.then(|| tag.to_ascii_uppercase())
    }
}

/// Returns the quantization that a file's name ends with, in upper case.
pub(crate) fn quantization(path: &str) -> Option<String> {
    GgufName::of(path)?.quantization()
}

/// Returns whether a file is a model, and of a split model its first part.
pub(crate) fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_sibling = SIBLINGS.iter().any(|word| name.contains(word));
    GgufName::of(path).is_some_and(|name| name.part.0 == 1) && !is_sibling
}

/// Returns the file that is asked for; `None` if there is none.
pub(crate) fn model<'a>(paths: &[&'a str], selector: &FileSelector) -> Option<&'a str> {
    let of_tag = |tag: &str| {
        let tag = tag.to_ascii_lowercase();
        let has = |path: &&&str| {
            let path = path.to_ascii_lowercase();
            let ends = ["-", "."].map(|end| format!("{tag}{end}"));
            ends.iter().any(|end| path.contains(end.as_str()))
        };
        paths
            .iter()
            .filter(|path| is_model(path))
            .find(has)
            .copied()
    };
    match selector {
        FileSelector::Path(path) => paths.iter().find(|one| *one == path).copied(),
        FileSelector::Quantization(Some(tag)) => of_tag(tag),
        FileSelector::Quantization(None) => USUAL
            .iter()
            .find_map(|tag| of_tag(tag))
            .or_else(|| paths.iter().find(|path| is_model(path)).copied()),
    }
}

/// Returns all parts of a model, in order: the file alone if it is not split.
pub(crate) fn parts<'a>(paths: &[&'a str], model: &'a str) -> Vec<&'a str> {
    let Some(first) = GgufName::of(model).filter(|name| name.part.1 > 1) else {
        return vec![model];
    };
    let is_part = |path: &&&str| {
        let name = GgufName::of(path);
        name.is_some_and(|name| name.stem == first.stem && name.part.1 == first.part.1)
    };
    let mut parts: Vec<&str> = paths.iter().filter(is_part).copied().collect();
    parts.sort_unstable();
    parts
}

/// Returns the addresses of all parts of a model, in order.
pub(crate) fn parts_at(url: &str) -> Vec<String> {
    let (path, query) = match url.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (url, String::new()),
    };
    match GgufName::of(path).filter(|name| name.part.1 > 1) {
        Some(GgufName {
            stem,
            part: (_, count),
        }) => (1..=count)
            .map(|no| format!("{stem}-{no:05}-of-{count:05}.gguf{query}"))
            .collect(),
        None => vec![url.to_owned()],
    }
}

/// Returns the sibling of a model whose name contains `word`, such as its image encoder (`mmproj`):
/// the one that shares most folders with it, then the one of the nearest number of bits.
pub(crate) fn sibling<'a>(paths: &[&'a str], model: &str, word: &str) -> Option<&'a str> {
    let bits = |path: &str| -> i64 {
        let tag = quantization(path).unwrap_or_default();
        let digits = tag.find(|c: char| c.is_ascii_digit()).map(|at| &tag[at..]);
        let digits = digits.map(|text| text.split(|c: char| !c.is_ascii_digit()).next());
        digits.flatten().and_then(|n| n.parse().ok()).unwrap_or(0)
    };
    let folders = |path: &'_ str| -> Vec<String> {
        let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        parts.pop();
        parts
    };
    let of_model = folders(model);
    let fits = |path: &&&str| {
        path.ends_with(".gguf") && path.contains(word) && of_model.starts_with(&folders(path))
    };
    let distance = |path: &&str| {
        let depth = folders(path).len();
        (usize::MAX - depth, (bits(path) - bits(model)).abs())
    };
    paths.iter().filter(fits).copied().min_by_key(distance)
}

/// Returns whether a file belongs to a model folder: it lies in it, or in the folder of a module
/// after the model, which sentence-transformers calls `1_Pooling` or alike.
pub(crate) fn is_of_folder(path: &str) -> bool {
    if !FOLDER_FILES.iter().any(|ending| path.ends_with(ending)) {
        return false;
    }
    let Some((folder, file)) = path.split_once('/') else {
        return true;
    };
    let is_module = |(number, class): (&str, &str)| {
        let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        is_number && !class.is_empty() && class.bytes().all(|b| b.is_ascii_alphabetic())
    };
    !file.contains('/') && folder.split_once('_').is_some_and(is_module)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 9] = [
        "README.md",
        "m-F16.gguf",
        "m-Q8_0.gguf",
        "m-q4_k_m.gguf",
        "big/m-Q6_K-00002-of-00002.gguf",
        "big/m-Q6_K-00001-of-00002.gguf",
        "mmproj-m-F16.gguf",
        "mmproj-m-Q8_0.gguf",
        "m.imatrix.gguf",
    ];

    fn by_tag(tag: Option<&str>) -> FileSelector {
        FileSelector::Quantization(tag.map(str::to_owned))
    }

    #[test]
    fn the_usual_quantizations_come_first() {
        assert_eq!(model(&PATHS, &by_tag(None)), Some("m-q4_k_m.gguf"));
        assert_eq!(model(&PATHS[..3], &by_tag(None)), Some("m-Q8_0.gguf"));
        assert_eq!(model(&PATHS[..2], &by_tag(None)), Some("m-F16.gguf"));
        assert_eq!(model(&PATHS[..1], &by_tag(None)), None);
        assert_eq!(
            model(&PATHS[6..], &by_tag(None)),
            None,
            "no model by itself"
        );
    }

    #[test]
    fn a_quantization_is_found_whatever_its_case_and_a_split_model_is_whole() {
        assert_eq!(model(&PATHS, &by_tag(Some("q8_0"))), Some("m-Q8_0.gguf"));
        assert_eq!(model(&PATHS, &by_tag(Some("Q5_K_M"))), None);
        let first = model(&PATHS, &by_tag(Some("Q6_K"))).expect("it is there");
        assert_eq!(first, "big/m-Q6_K-00001-of-00002.gguf");
        let whole = [
            "big/m-Q6_K-00001-of-00002.gguf",
            "big/m-Q6_K-00002-of-00002.gguf",
        ];
        assert_eq!(parts(&PATHS, first), whole);
        assert_eq!(parts(&PATHS, "m-Q8_0.gguf"), ["m-Q8_0.gguf"]);
        let urls = parts_at("https://a.b/m-00001-of-00002.gguf?x=1");
        assert_eq!(urls[1], "https://a.b/m-00002-of-00002.gguf?x=1");
        assert_eq!(urls.len(), 2);
    }

    #[test]
    fn the_nearest_sibling_is_taken() {
        let of = |model: &str| sibling(&PATHS, model, "mmproj");
        assert_eq!(of("m-Q8_0.gguf"), Some("mmproj-m-Q8_0.gguf"));
        assert_eq!(of("m-F16.gguf"), Some("mmproj-m-F16.gguf"));
        assert_eq!(
            of("big/m-Q6_K-00001-of-00002.gguf"),
            Some("mmproj-m-Q8_0.gguf")
        );
        assert_eq!(sibling(&PATHS, "m-F16.gguf", "mtp-"), None);
        let deeper = ["mmproj-F16.gguf", "big/mmproj-BF16.gguf"];
        assert_eq!(
            sibling(&deeper, "big/m-F16.gguf", "mmproj"),
            Some("big/mmproj-BF16.gguf")
        );
        assert_eq!(
            sibling(&deeper, "m-F16.gguf", "mmproj"),
            Some("mmproj-F16.gguf")
        );
    }
}
