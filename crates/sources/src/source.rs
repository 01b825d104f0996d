//! What every kind promises: portions of events in order, each with the marks that say how far the source has come.

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
use tocsin_delivery::{Clock, files::Files, networks::Networks, programs::Programs};
use tocsin_model::{event::PackedEvents, field::Fields, id::Name, mark::Mark, problem::Problem, time::Timestamp};

/// Most events of one portion.
pub const PORTION_EVENTS_MAX: usize = 1_000;
/// A portion ends with the event that brings it to this many bytes.
pub const PORTION_BYTES_MAX: usize = 1 << 20;

/// What a source may use of this installation.
#[derive(Clone)]
pub struct Context {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Folders that the server has for sources lie below it.
    pub data_folder: PathBuf,
    /// Which non-public networks and hosts sources may ask.
    pub networks: Networks,
    /// Which programs they may start.
    pub programs: Programs,
    /// Files that they may read if their options name them: certificates, keys, credentials.
    pub files: Files,
    /// Which folders they may empty.
    pub folders: Folders,
    /// Where they may listen.
    pub listeners: Listeners,
}

/// Where sources may listen. A definition may come over the network from whoever holds a key, so only the operator of the
/// machine can let others than its own programs in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listeners {
    /// Addresses with ports; one without an address (`0.0.0.0`, `[::]`) stands for all of them.
    pub allow: Vec<SocketAddr>,
}

/// Ports below it are those of the system's services.
const OWN_PORTS: u16 = 1_024;

impl Listeners {
    /// Whether a source may listen there. The error says why not.
    pub fn judge(&self, address: SocketAddr) -> Result<(), String> {
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

/// The folders that sources may take files from. A definition may come over the network from whoever holds a key, and a
/// source renames what it reads, so only the operator of the machine can open folders outside the data folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Folders {
    /// Folders, with all below them.
    pub allow: Vec<PathBuf>,
}

impl Folders {
    /// Where a source finds its files: below `drop` in the data folder, or in a folder that is open. The error says why
    /// not.
    pub fn judge(&self, folder: &Path, data_folder: &Path) -> Result<PathBuf, String> {
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
                "{} may not be emptied by a source; `sources.allow_folders` in the configuration can open it",
                found.display()
            )),
        }
    }
}

/// What a source is to do.
#[derive(Clone)]
pub struct Setting {
    /// Its application, or the exchange whose location it is.
    pub application: Name,
    /// Its name.
    pub name: Name,
    /// The name under which far sides know it, where they keep something for it: one for each source of this server.
    pub far_name: String,
    /// What it gives.
    pub gives: Gives,
    /// Its options, as the definition gives them.
    pub options: serde_json::Map<String, serde_json::Value>,
    /// What it may use.
    pub context: Context,
}

/// What a source makes of what it takes.
#[derive(Debug, Clone)]
pub enum Gives {
    /// Events of a class with these fields.
    Events(Fields),
    /// Messages as they come. A file of more than so many bytes is refused; what is longer elsewhere is given all the same.
    Messages {
        /// See above.
        bytes_max: usize,
    },
}

impl Gives {
    /// The fields of events.
    pub(crate) fn fields(&self) -> Fields {
        match self {
            Gives::Events(fields) => fields.clone(),
            Gives::Messages { .. } => Fields::default(),
        }
    }
}

/// Something that came, as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// The media type, where the far side says it.
    pub content_type: String,
    /// What the far side says of it, names in lower case.
    pub headers: Vec<(String, String)>,
    /// What it says.
    pub body: Bytes,
}

/// Some events or messages, and what to remember when they are accepted.
#[derive(Debug, Clone, Default)]
pub struct Portion {
    /// The events; there may be none.
    pub events: PackedEvents,
    /// The messages, of a source that gives these.
    pub messages: Vec<Message>,
    /// To be stored in one commit with them.
    pub marks: Vec<Mark>,
    /// Since when the oldest of them could have been taken; `None`: that is not known.
    pub since: Option<Timestamp>,
    /// When the first of them was here, before it was read; `None`: when the portion was given.
    pub received_at: Option<Timestamp>,
    /// How much waits at the far side behind this portion, in its own units (files, messages); `None`: unknown.
    pub waiting: Option<u64>,
    /// What could not be taken, and will not be given again.
    pub refused: Vec<Refusal>,
}

/// Reads a mark that is JSON. A mark that is there and cannot be read is an error: a source that went on without it would lose
/// what came since, or take all of it again.
pub(crate) fn stored<T: DeserializeOwned>(marks: &[Mark], part: &str) -> Result<Option<T>, Vec<Problem>> {
    let found = marks.iter().find(|mark| &*mark.part == part);
    found.and_then(read_mark).transpose()
}

/// Reads the value of a mark, if it has one.
pub(crate) fn read_mark<T: DeserializeOwned>(mark: &Mark) -> Option<Result<T, Vec<Problem>>> {
    let read = serde_json::from_slice(mark.value.as_ref()?);
    Some(read.map_err(|error| {
        let text = format!("cannot go on: what is stored of `{}` cannot be read: {error}", mark.part);
        vec![
            Problem::at("", text)
                .hint("a version that stored it can; or give the source another name, and it begins anew"),
        ]
    }))
}

/// Something that is no event of the class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong with it.
    pub reason: String,
    /// What came; cut if it is long.
    pub item: Bytes,
}

/// Of a refused item so much is kept.
const REFUSED_BYTES_MAX: usize = 4 << 10;

impl Refusal {
    /// An item with all that is wrong with it.
    pub(crate) fn new(problems: &[Problem], item: impl Into<Bytes>) -> Refusal {
        let reason = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        let item: Bytes = item.into();
        Refusal { reason, item: item.slice(..item.len().min(REFUSED_BYTES_MAX)) }
    }
}

/// Why a source cannot go on now. It is opened again later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What is in the way.
    pub text: String,
    /// How long the far side asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl Trouble {
    /// What was done, and what went wrong.
    pub fn new(what: impl fmt::Display, error: impl fmt::Display) -> Trouble {
        Trouble::of(format!("{what}: {error}"))
    }

    /// What is in the way.
    pub fn of(text: impl Into<String>) -> Trouble {
        Trouble { text: text.into(), retry_after: None }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A source that runs. It is asked by one task; dropping it, or what `next` returned, at any time loses nothing.
#[async_trait]
pub trait OpenSource: Send {
    /// Waits for what comes next. A portion without events and marks says only that all is well.
    ///
    /// # Errors
    /// What is in the way; then the source is dropped, and opened anew after a pause.
    async fn next(&mut self) -> Result<Portion, Trouble>;

    /// Hears that the last portion is durable with its marks, and lets the far side know. After a crash in between it is
    /// not called: the marks say what is left to do.
    ///
    /// # Errors
    /// As of `next`.
    async fn accepted(&mut self) -> Result<(), Trouble>;

    /// Lets go of the far side before the source is dropped, where it should know.
    async fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_listen_where_they_may() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let listeners = Listeners { allow: vec![address("0.0.0.0:25"), address("192.0.2.1:2525")] };
        for open in ["127.0.0.1:2525", "[::1]:1024", "127.0.0.1:0", "0.0.0.0:25", "192.0.2.7:25", "192.0.2.1:2525"] {
            assert_eq!(listeners.judge(address(open)), Ok(()), "{open}");
        }
        for closed in ["[::]:25", "0.0.0.0:2525", "192.0.2.2:2525", "127.0.0.1:587", "0.0.0.0:0"] {
            assert!(listeners.judge(address(closed)).is_err(), "{closed}");
        }
    }

    #[test]
    fn only_open_folders_are_emptied() {
        let root = tempfile::tempdir().expect("a folder");
        let path = |name: &str| root.path().join(name);
        for name in ["data", "in/quakes", "other"] {
            std::fs::create_dir_all(path(name)).expect("made");
        }
        std::os::unix::fs::symlink(path("other"), path("in/link")).expect("linked");
        let folders = Folders { allow: vec![path("in")] };
        let judge = |folder: &Path| folders.judge(folder, &path("data"));
        assert_eq!(judge(Path::new("quakes/today")), Ok(path("data/drop/quakes/today")));
        assert!(judge(&path("in/quakes")).is_ok() && judge(&path("in")).is_ok());
        for closed in ["", ".", "..", "../data", "a/../../b"] {
            assert!(judge(Path::new(closed)).is_err(), "{closed}");
        }
        for closed in ["other", "in/link", "in/../other", "data", "gone"] {
            assert!(judge(&path(closed)).is_err(), "{closed}");
        }
    }
}
