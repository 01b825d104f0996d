//! The interface of all kinds of sources: batches of events in order, with marks (checkpoints).

use std::{
    fmt,
    net::SocketAddr,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tocsin_connect::{Clock, files::Files, networks::Networks, programs::Programs};
use tocsin_model::{
    event::PackedEvents,
    field::Fields,
    id::Name,
    mark::Mark,
    problem::{Code, Problem},
    time::Timestamp,
};

/// Most events of one batch.
pub const BATCH_EVENTS_MAX: usize = 1_000;
/// A batch ends with the event that reaches this many bytes.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// The environment of sources on this server.
#[derive(Clone)]
pub struct Context {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The parent of the server's folders for sources.
    pub data_folder: PathBuf,
    /// The non-public networks and hosts that sources may connect to.
    pub networks: Networks,
    /// The programs that they may start.
    pub programs: Programs,
    /// The files that they may read if their options name them: certificates, keys, credentials.
    pub files: Files,
    /// The folders whose files they may take.
    pub folders: Folders,
    /// The addresses that they may listen on.
    pub listeners: Listeners,
}

/// The addresses that sources may listen on. Definitions can be uploaded by any holder of a key, so only the server's
/// operator may open ports to other hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listeners {
    /// Addresses with ports; a wildcard address (`0.0.0.0`, `[::]`) allows all addresses.
    pub allow: Vec<SocketAddr>,
}

/// Lower ports are reserved for system services.
const OWN_PORTS: u16 = 1_024;

impl Listeners {
    /// Checks whether a source may listen on an address. The error is the reason.
    pub fn check_address(&self, address: SocketAddr) -> Result<(), String> {
        let is_own = address.ip().to_canonical().is_loopback() && (address.port() >= OWN_PORTS || address.port() == 0);
        let is_open = |open: &SocketAddr| {
            let is_there =
                open.ip() == address.ip() || open.ip().is_unspecified() && (open.is_ipv6() || address.is_ipv4());
            is_there && open.port() == address.port()
        };
        match is_own || self.allow.iter().any(is_open) {
            true => Ok(()),
            false => Err(format!(
                "a source may not listen at {address}; `sources.allow_listen` in the configuration can open it"
            )),
        }
    }
}

/// The folders that sources may take files from. Definitions can be uploaded by any holder of a key, and a source
/// renames files, so only the server's operator may open folders outside the data folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Folders {
    /// Folders, with all below them.
    pub allow: Vec<PathBuf>,
}

impl Folders {
    /// Resolves the folder of a source: below `drop` in the data folder, or in an allowed folder. The error is the
    /// reason why it is not allowed.
    pub fn resolve_allowed(&self, folder: &Path, data_folder: &Path) -> Result<PathBuf, String> {
        if folder.is_relative() {
            let inside = folder.components().all(|part| matches!(part, Component::Normal(_)));
            return match inside && folder.components().next().is_some() {
                true => Ok(data_folder.join("drop").join(folder)),
                false => Err("leads out of the folder `drop` of the data folder".to_owned()),
            };
        }
        let found = folder.canonicalize().map_err(|error| format!("{} is not there: {error}", folder.display()))?;
        let allows = |allowed: &PathBuf| allowed.canonicalize().is_ok_and(|allowed| found.starts_with(allowed));
        match self.allow.iter().any(allows) {
            true => Ok(found),
            false => Err(format!(
                "{} is not open to sources; `sources.allow_folders` in the configuration can open it",
                found.display()
            )),
        }
    }
}

/// The settings of a source.
#[derive(Clone)]
pub struct SourceSettings {
    /// The application, or the exchange of its location.
    pub application: Name,
    /// The name of the source.
    pub name: Name,
    /// Name for remote servers that store state for it: unique among the sources of this server.
    pub remote_name: String,
    /// The kind of its output.
    pub output: SourceOutput,
    /// The options, from the definition.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// The environment of the source.
    pub context: Context,
}

/// The output of a source.
#[derive(Debug, Clone)]
pub enum SourceOutput {
    /// Events of a class with these fields.
    Events(Fields),
    /// Messages as received. Larger files are rejected; in other kinds, larger messages are delivered nevertheless.
    Messages {
        /// The size limit of files.
        bytes_max: usize,
    },
}

impl SourceOutput {
    /// The fields of events.
    pub(crate) fn fields(&self) -> Fields {
        match self {
            SourceOutput::Events(fields) => fields.clone(),
            SourceOutput::Messages { .. } => Fields::default(),
        }
    }
}

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The media type, where the server reports it.
    pub content_type: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body of the message.
    pub body: Bytes,
}

/// A batch of events or messages, and the checkpoints to store with it.
#[derive(Debug, Clone, Default)]
pub struct SourceBatch {
    /// The events; possibly none.
    pub events: PackedEvents,
    /// The messages, of a source of messages.
    pub messages: Vec<Message>,
    /// The marks (checkpoints), to be stored in one commit with the batch.
    pub marks: Vec<Mark>,
    /// The time from which the oldest item could have been taken; `None` if unknown.
    pub since: Option<Timestamp>,
    /// The time when the first item was received, before parsing; `None`: when the batch was delivered.
    pub received_at: Option<Timestamp>,
    /// The backlog at the server after this batch, in its own units (files, messages); `None` if unknown.
    pub waiting: Option<u64>,
    /// Items that were rejected, and will not be delivered again.
    pub refused: Vec<RejectedItem>,
}

/// Reads a mark as JSON. An unreadable mark is an error: without it, a source would lose items, or take all of them
/// again.
pub(crate) fn stored<T: DeserializeOwned>(marks: &[Mark], part: &str) -> Result<Option<T>, Vec<Problem>> {
    let found = marks.iter().find(|mark| &*mark.part == part);
    found.and_then(read_mark).transpose()
}

/// Parses the value of a mark, if it has one.
pub(crate) fn read_mark<T: DeserializeOwned>(mark: &Mark) -> Option<Result<T, Vec<Problem>>> {
    let read = serde_json::from_slice(mark.value.as_ref()?);
    Some(read.map_err(|error| {
        let text = format!("cannot continue: the stored mark of `{}` cannot be read: {error}", mark.part);
        vec![
            Problem::new(Code::DamagedData, "", text)
                .hint("use the version that stored it; or rename the source, and it starts anew"),
        ]
    }))
}

/// An item that is not a valid event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedItem {
    /// The reason.
    pub reason: String,
    /// The item; truncated if it is long.
    pub item: Bytes,
}

/// Most bytes kept of a rejected item.
const REFUSED_BYTES_MAX: usize = 4 << 10;

impl RejectedItem {
    /// A rejected item with all its problems.
    pub(crate) fn new(problems: &[Problem], item: impl Into<Bytes>) -> RejectedItem {
        let reason = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let item: Bytes = item.into();
        RejectedItem { reason, item: item.slice(..item.len().min(REFUSED_BYTES_MAX)) }
    }
}

/// An error of a source. It is reopened later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceError {
    /// The message.
    pub text: String,
    /// The pause that the server asks for.
    pub retry_after: Option<Duration>,
}

impl SourceError {
    /// The failed action, and the error.
    pub fn new(what: impl fmt::Display, error: impl fmt::Display) -> SourceError {
        SourceError::of(format!("{what}: {error}"))
    }

    /// A message.
    pub fn of(text: impl Into<String>) -> SourceError {
        SourceError { text: text.into(), retry_after: None }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A running source. It is used by one task; dropping it, or the future of `next`, at any time loses nothing.
#[async_trait]
pub trait OpenSource: Send {
    /// Waits for the next batch. A batch without events and marks only signals that the source works.
    ///
    /// # Errors
    /// The source failed; it is dropped, and reopened after a pause.
    async fn next(&mut self) -> Result<SourceBatch, SourceError>;

    /// Confirms that the last batch is stored with its marks; the source acknowledges it to the server. After a crash
    /// in between, this is not called: the marks contain the pending acknowledgements.
    ///
    /// # Errors
    /// As of `next`.
    async fn accepted(&mut self) -> Result<(), SourceError>;

    /// Disconnects from the server before the source is dropped, where the protocol requires it.
    async fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_must_be_allowed() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let listeners = Listeners { allow: vec![address("0.0.0.0:25"), address("192.0.2.1:2525")] };
        for open in ["127.0.0.1:2525", "[::1]:1024", "127.0.0.1:0", "0.0.0.0:25", "192.0.2.7:25", "192.0.2.1:2525"] {
            assert_eq!(listeners.check_address(address(open)), Ok(()), "{open}");
        }
        for closed in ["[::]:25", "0.0.0.0:2525", "192.0.2.2:2525", "127.0.0.1:587", "0.0.0.0:0"] {
            assert!(listeners.check_address(address(closed)).is_err(), "{closed}");
        }
    }

    #[test]
    fn only_allowed_folders_are_read() {
        let root = tempfile::tempdir().expect("a folder");
        let path = |name: &str| root.path().join(name);
        for name in ["data", "in/quakes", "other"] {
            std::fs::create_dir_all(path(name)).expect("made");
        }
        std::os::unix::fs::symlink(path("other"), path("in/link")).expect("linked");
        let folders = Folders { allow: vec![path("in")] };
        let resolve_allowed = |folder: &Path| folders.resolve_allowed(folder, &path("data"));
        assert_eq!(resolve_allowed(Path::new("quakes/today")), Ok(path("data/drop/quakes/today")));
        assert!(resolve_allowed(&path("in/quakes")).is_ok() && resolve_allowed(&path("in")).is_ok());
        for closed in ["", ".", "..", "../data", "a/../../b"] {
            assert!(resolve_allowed(Path::new(closed)).is_err(), "{closed}");
        }
        for closed in ["other", "in/link", "in/../other", "data", "gone"] {
            assert!(resolve_allowed(&path(closed)).is_err(), "{closed}");
        }
    }
}
