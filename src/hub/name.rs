//! Names of models that are not files: repositories of the hub, and addresses.

use std::path::Path;

use crate::Error;

/// A model by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteModel {
    /// A model of a repository.
    Repository {
        /// Repository, its user before a slash.
        repo: String,
        /// Branch, tag or commit; `main` if none is given.
        revision: Option<String>,
        /// Which of its files.
        file: FileSelector,
    },
    /// A file at an address.
    Url(String),
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSelector {
    /// The GGUF file of this quantization; `None` for Q4_K_M, else Q8_0, else the first one.
    Quantization(Option<String>),
    /// The file at this path.
    Path(String),
}

impl RemoteModel {
    /// Reads `hf:USER/REPO[@REVISION][:QUANT]`, `hf:USER/REPO/FILE[@REVISION]` or an `http` or
    /// `https` address; `None` if it is neither, and so the path of a file.
    ///
    /// # Errors
    /// If it begins as one of them, and is none.
    pub fn parse(name: &str) -> Result<Option<RemoteModel>, Error> {
        let is_address = |scheme: &str| name.starts_with(scheme) && name.len() > scheme.len();
        if is_address("https://") || is_address("http://") {
            return Ok(Some(RemoteModel::Url(name.to_owned())));
        }
        match name.strip_prefix("hf:") {
            Some(rest) => RemoteModel::repository(rest).map(Some),
            None => Ok(None),
        }
    }

    /// Reads a model's name as [`RemoteModel::parse`] does; `None` also if there is a file of that
    /// name.
    ///
    /// # Errors
    /// As [`RemoteModel::parse`].
    pub fn of(name: &Path) -> Result<Option<RemoteModel>, Error> {
        match name.to_str() {
            Some(text) if !name.exists() => RemoteModel::parse(text),
            _ => Ok(None),
        }
    }

    /// Reads `USER/REPO[@REVISION][:QUANT]` or `USER/REPO/FILE[@REVISION]`.
    ///
    /// # Errors
    /// If it is neither.
    pub fn repository(text: &str) -> Result<RemoteModel, Error> {
        let bad = || Error::Name {
            name: text.to_owned(),
        };
        let (rest, tag) = match text.rsplit_once(':') {
            Some((rest, tag)) => (rest, Some(tag)),
            None => (text, None),
        };
        let (path, revision) = match rest.rsplit_once('@') {
            Some((path, revision)) => (path, Some(revision)),
            None => (rest, None),
        };
        let mut parts = path.splitn(3, '/');
        let (user, repo) = parts.next().zip(parts.next()).ok_or_else(bad)?;
        let repo = format!("{user}/{repo}");
        let file = match (parts.next(), tag) {
            (Some(file), None) => FileSelector::Path(file.to_owned()),
            (None, tag) => FileSelector::Quantization(tag.map(str::to_owned)),
            (Some(_), Some(_)) => return Err(bad()),
        };
        let is_sound = is_repository(&repo)
            && revision.is_none_or(is_path)
            && match &file {
                FileSelector::Path(path) => is_path(path),
                FileSelector::Quantization(tag) => tag.as_deref().is_none_or(is_word),
            };
        let revision = revision.map(str::to_owned);
        match is_sound {
            true => Ok(RemoteModel::Repository {
                repo,
                revision,
                file,
            }),
            false => Err(bad()),
        }
    }
}

/// Returns whether this names a repository: words of letters, digits, `_`, `-` and `.` around one
/// slash, none of which begins or ends with a dot or dash.
pub(crate) fn is_repository(repo: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_part = |part: &str| {
        is_word(part) && is_edge(part.chars().next()) && is_edge(part.chars().next_back())
    };
    let mut parts = repo.split('/');
    let (user, name) = (parts.next(), parts.next());
    let no_dots = !repo.contains("..") && !repo.contains("--");
    no_dots && parts.next().is_none() && user.is_some_and(is_part) && name.is_some_and(is_part)
}

fn is_word(text: &str) -> bool {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !text.is_empty() && text.chars().all(is_of_word)
}

/// Returns whether this is a relative path that stays in its folder.
pub(crate) fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && !part.contains(['\\', ':', '\0', '\n', '\r'])
    };
    path.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Option<(String, Option<String>, FileSelector)> {
        match RemoteModel::parse(name).ok()?? {
            RemoteModel::Repository {
                repo,
                revision,
                file,
            } => Some((repo, revision, file)),
            RemoteModel::Url(_) => None,
        }
    }

    #[test]
    fn names_have_a_repository_and_more() {
        let by_tag = |tag: Option<&str>| FileSelector::Quantization(tag.map(str::to_owned));
        let at = |path: &str| FileSelector::Path(path.to_owned());
        for (name, revision, file) in [
            ("hf:u/r", None, by_tag(None)),
            ("hf:u/r:Q8_0", None, by_tag(Some("Q8_0"))),
            ("hf:u/r@v1.0:Q8_0", Some("v1.0"), by_tag(Some("Q8_0"))),
            ("hf:u/r/x.gguf", None, at("x.gguf")),
            ("hf:u/r/a/x.gguf@refs/pr/1", None, at("a/x.gguf")),
        ] {
            let got = read(name);
            let revision = match name.contains("refs/pr") {
                true => Some("refs/pr/1"),
                false => revision,
            };
            let expected = ("u/r".to_owned(), revision.map(str::to_owned), file);
            assert_eq!(got, Some(expected), "{name}");
        }
    }

    #[test]
    fn what_leaves_its_folder_is_no_name() {
        for name in [
            "hf:",
            "hf:u",
            "hf:u/",
            "hf:/r",
            "hf:u/r/../x",
            "hf:u/..",
            "hf:u/r/x.gguf:Q8_0",
            "hf:u/r:",
            "hf:u/r@",
            "hf:u r/x",
            "hf:u/r//x",
            "hf:-u/r",
            "hf:u/r@../../x",
        ] {
            assert!(RemoteModel::parse(name).is_err(), "{name}");
        }
        for name in ["model.gguf", "C:\\model.gguf", "hf", "./hf:x", ""] {
            assert_eq!(RemoteModel::parse(name).expect("a path"), None, "{name}");
        }
        let url = RemoteModel::parse("https://a.b/x.gguf").expect("an address");
        assert_eq!(url, Some(RemoteModel::Url("https://a.b/x.gguf".to_owned())));
    }
}
