//! Options of the HTTP server: where it listens, and for whom.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use octavo_server::{OpenedSocket, Options, Tls, check_listen};

use crate::failure::Failure;
use crate::{ranks, terminal};

/// Options of the HTTP server.
#[derive(Debug, Args)]
#[command(next_help_heading = "HTTP server")]
pub(super) struct ListenArgs {
    /// Address or host name to listen on; 0.0.0.0 is all addresses of this machine; a path that
    /// ends in .sock, or unix:PATH, is a Unix socket; several have commas between them
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Refuse requests that name another model
    #[arg(long)]
    strict_model: bool,
    /// Accept any model name (the default)
    #[arg(long, hide = true, conflicts_with = "strict_model")]
    any_model: bool,
    /// API key that requests must carry; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File with API keys, one per line
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    api_key_file: Option<PathBuf>,
    /// Certificate of the server in PEM form, with those of the authorities between it and the root
    /// after it: connections are encrypted; SIGHUP reads it again
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    ssl_cert_file: Option<PathBuf>,
    /// Private key of the certificate in PEM form, not encrypted
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    ssl_key_file: Option<PathBuf>,
    /// Allowed CORS origins, with their schemes and without paths; localhost allows all pages that
    /// this machine serves, * allows all
    #[arg(long, value_name = "ORIGIN", value_parser = origin, value_delimiter = ',')]
    cors_origin: Vec<String>,
    /// Another host name that requests may use for this server, besides its addresses and
    /// localhost, such as that of a reverse proxy; * allows any
    #[arg(long, value_name = "NAME", value_parser = host_name)]
    allow_host: Vec<String>,
    /// Path prefix of every route, such as /octavo, for a reverse proxy that passes paths on
    /// unchanged
    #[arg(long, value_name = "PATH", value_parser = prefix)]
    api_prefix: Option<String>,
    /// Names of the metrics at /metrics: octavo's own, or vLLM's as well, for routers and
    /// autoscalers that read those
    #[arg(long, value_name = "NAME", value_enum, default_value_t = MetricsPrefix::Octavo)]
    metrics_prefix: MetricsPrefix,
    /// Folder that keeps the responses of /v1/responses, so that they survive the server: the last
    /// 4096 of them, or 256 MiB [default: they are in memory only]
    #[arg(long, value_name = "FOLDER", value_hint = clap::ValueHint::DirPath)]
    response_store: Option<PathBuf>,
    /// Do not show the running requests at /slots
    #[arg(long)]
    no_slots: bool,
    /// Show them (the default)
    #[arg(long, hide = true, conflicts_with = "no_slots")]
    slots: bool,
    /// Folder for files of slots, which POST /slots/ID?action=save|restore writes and reads
    /// [default: none]
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub(super) slot_save_path: Option<PathBuf>,
    /// Maximum number of waiting requests; more are refused
    #[arg(long, value_name = "N", default_value_t = 128)]
    queue: u16,
    /// Seconds for running requests to finish after a stop signal
    #[arg(long, value_name = "S", default_value_t = 30)]
    drain: u16,
}

/// Prefix of the names of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MetricsPrefix {
    Octavo,
    Vllm,
}

impl ListenArgs {
    /// Returns the server's options.
    pub(super) fn options(&self) -> Result<Options, Failure> {
        let opened = OpenedSocket::from_env().map_err(|error| {
            let what = "LISTEN_FDS: expected listening TCP or Unix sockets, found another";
            Failure::Input(format!("{what}: {error}"))
        })?;
        Ok(Options {
            host: self.host.clone(),
            port: self.port,
            opened,
            tls: self.tls()?,
            strict_model: self.strict_model,
            keys: keys(self)?,
            response_store: self.response_store.clone(),
            slots: !self.no_slots,
            slot_folder: self.slot_save_path.clone(),
            origins: self.cors_origin.clone(),
            allowed_hosts: self.allow_host.clone(),
            prefix: self.api_prefix.clone().unwrap_or_default(),
            vllm_names: self.metrics_prefix == MetricsPrefix::Vllm,
            drain: Duration::from_secs(self.drain.into()),
            queue: self.queue.into(),
            ..Options::default()
        })
    }

    /// Reads the certificate.
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificate), Some(key)) = (&self.ssl_cert_file, &self.ssl_key_file) else {
            return Ok(None);
        };
        let loaded = Tls::load(certificate, key);
        loaded
            .map(Some)
            .map_err(|error| Failure::Input(format!("{error} (--ssl-cert-file, --ssl-key-file)")))
    }

    /// Checks that the address is free, because loading a model takes long.
    pub(super) fn check(&self, options: &Options) -> Result<(), Failure> {
        // of several ranks, one listens later
        if ranks::tp_group().is_some() || !options.opened.is_empty() {
            return Ok(());
        }
        let checked = check_listen(&self.host, self.port);
        checked.map_err(|error| Failure::Input(format!("{error} (--host, --port)")))
    }
}

/// Reads the certificate again, for new connections.
pub(super) fn reload(tls: &Tls) {
    match tls.reload() {
        Ok(()) => terminal::tell("octavo: the certificate was read again"),
        Err(error) => terminal::warn([format!("the certificate before stays in use: {error}")]),
    }
}

/// Parses a CORS origin: a scheme and a host, `localhost` or `*`.
fn origin(text: &str) -> Result<String, String> {
    let host = text.split_once("://").map(|(_, host)| host);
    let is_host = |host: &str| !host.is_empty() && !host.contains(['/', ' ']);
    match matches!(text, "*" | "localhost") || host.is_some_and(is_host) {
        true => Ok(text.to_owned()),
        false => Err(
            "expected a scheme and a host, such as https://example.org, localhost or *".to_owned(),
        ),
    }
}

/// Parses a host name without a port.
fn host_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(['/', ' ', ':', ',', '=']) {
        true => Err("expected a name such as example.org, without a port, or *".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn keys(listen: &ListenArgs) -> Result<Vec<String>, Failure> {
    let mut keys = listen.api_key.clone();
    if let Some(path) = &listen.api_key_file {
        let failed = |error| Failure::Input(format!("--api-key-file {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let lines = text.lines().map(str::trim);
        let own = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let before = keys.len();
        keys.extend(own.map(str::to_owned));
        if keys.len() == before {
            return Err(no_keys(path));
        }
    }
    match keys.iter().any(|key| key.trim().is_empty()) {
        true => Err(Failure::Usage(
            "--api-key: expected a key that is not empty".to_owned(),
        )),
        false => Ok(keys),
    }
}

/// Parses a path prefix; drops slashes at its end. Its characters need no escape.
fn prefix(text: &str) -> Result<String, String> {
    let path = text.trim_end_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let mut parts = path.strip_prefix('/').unwrap_or_default().split('/');
    match parts.all(|part| !part.is_empty() && part.chars().all(is_plain)) {
        true => Ok(path.to_owned()),
        false => Err("expected a path such as /octavo".to_owned()),
    }
}

fn no_keys(path: &Path) -> Failure {
    Failure::Input(format!(
        "--api-key-file {}: expected at least one key, one a line",
        path.display()
    ))
}
