//! TLS: the server's certificate and its key, from PEM files, which can be read again while the
//! server runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key. Clones share what is read again.
#[derive(Clone)]
pub struct Tls(Arc<Files>);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

/// Reasons that a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file has something else than it should.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Description of what should be in it.
        expected: String,
        /// Description of what is in it.
        found: String,
    },
}

impl Tls {
    /// Reads a certificate, with those of the authorities between it and the root after it, and its
    /// unencrypted private key: PEM files, which may be the same one.
    ///
    /// # Errors
    /// If a file cannot be read, has no such thing in it, or the key is not the certificate's.
    pub fn load(certificate: &Path, key: &Path) -> Result<Tls, TlsError> {
        let config = read(certificate, key)?;
        Ok(Tls(Arc::new(Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            config: RwLock::new(Arc::new(config)),
        })))
    }

    /// Reads the files again, for new connections.
    ///
    /// # Errors
    /// As of [`Tls::load`]; the certificate before stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.0.certificate, &self.0.key)?;
        // a configuration is replaced as a whole
        *self
            .0
            .config
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        Ok(())
    }

    /// Returns what performs the handshake of the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = self.0.config.read();
        TlsAcceptor::from(Arc::clone(&config.unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("certificate", &self.0.certificate)
            .field("key", &self.0.key)
            .finish_non_exhaustive()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let certificates = certificates(certificate)?;
    let private = private_key(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers of both versions")
        .with_no_client_auth()
        .with_single_cert(certificates, private);
    let mut config = config.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => content(
            key,
            &format!("the key of the certificate in {}", certificate.display()),
            "another key",
        ),
        rustls::Error::InvalidCertificate(error) => {
            let found = format!("one that cannot be used ({error:?})");
            content(certificate, "an X.509 certificate", &found)
        }
        error => content(
            key,
            "a private key (RSA, ECDSA or Ed25519)",
            &error.to_string(),
        ),
    })?;
    // HTTP/2 has no limits of time for single requests: docs/decisions/serving.md
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bytes_of(path)?;
    let all: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&bytes).collect();
    let expected = "a certificate in PEM form";
    let all = all.map_err(|error| content(path, expected, &error.to_string()))?;
    match all.is_empty() {
        true => Err(content(path, expected, found_in(&bytes))),
        false => Ok(all),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = bytes_of(path)?;
    let expected = "a private key in PEM form, not encrypted";
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        PemError::NoItemsFound => content(path, expected, found_in(&bytes)),
        error => content(path, expected, &error.to_string()),
    })
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Describes a file that has not what is wanted.
fn found_in(bytes: &[u8]) -> &'static str {
    let has = |text: &str| {
        bytes
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    if bytes.is_empty() {
        "an empty file"
    } else if has("ENCRYPTED") {
        "an encrypted key"
    } else if has("PRIVATE KEY-----") {
        "a private key"
    } else if has("-----BEGIN CERTIFICATE-----") {
        "a certificate"
    } else if has("-----BEGIN ") {
        "something else in PEM form"
    } else {
        "no PEM"
    }
}

fn content(path: &Path, expected: &str, found: &str) -> TlsError {
    TlsError::Content {
        path: path.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
    }
}
