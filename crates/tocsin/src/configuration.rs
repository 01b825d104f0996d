//! What the server runs with. Defaults, then one TOML file, then `TOCSIN_*` variables, then flags; the later wins.
//!
//! The structs here are the one source: their docstrings, types and defaults make the reference page, the commented
//! file that `init` writes, and what `tocsin config` prints.

mod layers; // four layers become one configuration, each value with its source
mod reference; // the reference page and the commented file
mod table; // every key with its type, default and meaning, read from the structs
mod units; // `30s`, `64MiB`, and values that are not shown

use std::{net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use layers::{ConfigurationArgs, Layered, Layers, Setting, Source, file_of, load};
pub use reference::{commented_file, reference_page};
pub use table::{Key, keys};
pub use units::{Period, Secret, Size};

/// Everything that can be configured of a server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Where the server keeps what must survive.
    pub data: Data,
    /// The HTTP face.
    pub http: Http,
    /// The store of applications, subscribers, subscriptions and keys.
    pub records: Records,
    /// The store of events, notifications and receipts.
    pub journal: Journal,
    /// The steps from an event to its receipts.
    pub pipeline: Pipeline,
    /// What channels may do.
    pub delivery: Delivery,
    /// The log, on standard error.
    pub log: Log,
    /// Figures for Prometheus.
    pub metrics: Metrics,
    /// Threads of the process.
    pub runtime: Runtime,
}

/// Where the server keeps what must survive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// The data folder. One server at a time; made if missing, readable by its owner only.
    pub folder: PathBuf,
}

impl Default for Data {
    fn default() -> Self {
        Data { folder: "tocsin-data".into() }
    }
}

/// The HTTP face.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Address and port to listen at. Port 0 takes a free one. Only this machine reaches the default; put a proxy that
    /// speaks TLS in front before listening at other addresses.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Largest body of a request about one thing.
    pub body_max: Size,
    /// Largest body of a batch of events.
    pub batch_body_max: Size,
    /// Longest line of a streamed body; streams themselves may have any length.
    pub line_max: Size,
    /// Most requests being answered at the same time; more wait for their turn.
    pub requests_max: u32,
    /// A request that takes longer is given up. Streams may take longer as long as they move.
    pub request_timeout: Period,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: SocketAddr::from(([127, 0, 0, 1], 8480)),
            body_max: Size(1 << 20),
            batch_body_max: Size(64 << 20),
            line_max: Size(1 << 20),
            requests_max: 1024,
            request_timeout: Period::seconds(60),
        }
    }
}

/// The store of applications, subscribers, subscriptions and keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Records {
    /// Memory for pages of the database, for each of its connections.
    pub cache: Size,
    /// Connections for reading.
    pub readers: u32,
}

impl Default for Records {
    fn default() -> Self {
        Records { cache: Size(16 << 20), readers: 2 }
    }
}

/// The store of events, notifications and receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// Memory for pages of the database, for each of its connections.
    pub cache: Size,
    /// Connections for reading.
    pub readers: u32,
    /// Space that must stay free on the disk; below it events are answered with 503 until there is room again.
    pub disk_reserve: Size,
    /// Packed events that may wait for the matcher; above it events are answered with 429.
    pub unmatched_max: Size,
}

impl Default for Journal {
    fn default() -> Self {
        Journal { cache: Size(16 << 20), readers: 2, disk_reserve: Size(256 << 20), unmatched_max: Size(1 << 30) }
    }
}

/// The steps from an event to its receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pipeline {
    /// Most event batches matched in one turn.
    pub match_batches: u32,
    /// Packed bytes of events matched in one turn, roughly.
    pub match_bytes: Size,
    /// How long the matcher may hold event batches without a sign of life.
    pub match_lease: Period,
    /// Most attempts in one commit of receipts.
    pub receipts_chunk: u32,
    /// Receipts are committed at the latest after this time, so a crash repeats at most the sends of this time.
    pub receipts_delay: Period,
    /// How long a stopping server finishes what is in flight before it gives the rest back.
    pub drain_patience: Period,
}

impl Default for Pipeline {
    fn default() -> Self {
        Pipeline {
            match_batches: 256,
            match_bytes: Size(8 << 20),
            match_lease: Period::seconds(60),
            receipts_chunk: 500,
            receipts_delay: Period::millis(25),
            drain_patience: Period::seconds(30),
        }
    }
}

/// What channels may do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Delivery {
    /// Networks that channels may reach although they are private or this machine itself, as CIDR such as
    /// `10.1.0.0/16` or `127.0.0.1/32`. Addresses that subscribers give can never name other private ones.
    pub allow_networks: Vec<String>,
    /// Folders that channels of the protocol `file` may write to. Without any, only `files` in the data folder.
    pub allow_folders: Vec<PathBuf>,
}

/// The log, on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or different for each part, such as
    /// `info,tocsin_delivery=debug`.
    pub level: String,
    /// `text` for people, `json` for machines: one object a line.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".into(), format: LogFormat::Text }
    }
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Figures for Prometheus.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether `/metrics` answers without a key.
    pub open: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { open: true }
    }
}

/// Threads of the process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Threads that carry requests and deliveries; 0 means one for each core, at least 2.
    pub threads: u32,
}
