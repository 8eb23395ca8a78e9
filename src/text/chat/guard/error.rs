//! Errors of templates that ask for what Python refuses.

use minijinja::{Error, ErrorKind};

pub(super) fn invalid(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}
