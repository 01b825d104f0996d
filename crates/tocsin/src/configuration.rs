//! What the server runs with. Defaults, then one TOML file, then variables (`OTEL_*`, `TOCSIN_*`), then flags; the later
//! wins.
//!
//! The structs here are the one source: their docstrings, types and defaults make the reference page, the commented
//! file that `init` writes, and what `tocsin config` prints.

mod layers; // four layers become one configuration, each value with its source
mod otel; // what the variables of OpenTelemetry say
mod ranges; // permitted ranges of the numeric keys
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
    /// The LDAP face, and the directory behind it.
    pub ldap: Ldap,
    /// The store of applications, subscribers, subscriptions and keys.
    pub records: Records,
    /// The store of events, notifications and receipts.
    pub journal: Journal,
    /// The store of the feeds that subscribers read.
    pub inbox: Inbox,
    /// Rows that devices keep replicas of.
    pub sync: Sync,
    /// The store of the messages of exchanges.
    pub spool: Spool,
    /// The steps from an event to its receipts.
    pub pipeline: Pipeline,
    /// What channels may do.
    pub delivery: Delivery,
    /// What sources may do.
    pub sources: Sources,
    /// What bounces and complaints make of an address.
    pub suppression: Suppression,
    /// The log, on standard error.
    pub log: Log,
    /// Figures for Prometheus.
    pub metrics: Metrics,
    /// Spans for a collector of traces.
    pub telemetry: Telemetry,
    /// See [`Capacity`].
    pub capacity: Capacity,
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
    /// Where people reach this server from outside, through the proxy, such as `https://tocsin.example.org`: links in
    /// mails begin with it. Without it mails carry no link to unsubscribe.
    pub public_url: String,
    /// Most connections. One more is answered 503, unless it asks for `/livez` or `/readyz`.
    pub connections_max: u32,
    /// Most connections from one address; one more is answered 503. Behind a proxy all connections come from its address.
    pub connections_per_address_max: u32,
    /// Connections beyond `connections_max` that are read at the same time, so that `/livez` and `/readyz` are answered.
    pub health_connections: u32,
    /// Longest time for the head of a request, and longest idle time of a connection.
    pub header_timeout: Period,
    /// Longest pause of a body. A body that is read whole must also arrive with at least 1 KiB a second after that time.
    pub body_idle_timeout: Period,
    /// Longest time in which a client reads nothing of an answer; then its connection is closed.
    pub write_timeout: Period,
    /// Memory for request bodies that are read whole, all together; streams do not count. A request for which there is no
    /// room waits.
    pub body_memory_max: Size,
    /// Most requests a second of one key or token, in the long run; one more is answered 429. 0: no limit. Each has its own, so
    /// that one which sends too much takes nothing from the others.
    pub requests_per_key_max: u32,
    /// Most requests a second from one address (IPv6: one /64 network) without a good key, `/livez` and `/readyz` not counted;
    /// one more is answered 429. 0: no limit. Behind a proxy all requests come from its address.
    pub requests_per_address_max: u32,
    /// Requests of so many seconds may come at once after a pause.
    pub requests_burst_seconds: u32,
    /// Origins whose pages may read feeds with an inbox token, such as `https://shop.example.org`. None unless they are named
    /// here; pages behind the same name as the server need none.
    pub allow_origins: Vec<String>,
    /// Most streams of feeds (`…/inbox/stream`) that are open at the same time; one more is told 429. Each takes up a
    /// connection.
    pub streams_max: u32,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: SocketAddr::from(([127, 0, 0, 1], 8480)),
            public_url: String::new(),
            connections_max: 10_000,
            connections_per_address_max: 5_000,
            health_connections: 16,
            header_timeout: Period::seconds(30),
            body_idle_timeout: Period::seconds(30),
            write_timeout: Period::seconds(30),
            body_memory_max: Size(512 << 20),
            requests_per_key_max: 0,
            requests_per_address_max: 200,
            requests_burst_seconds: 10,
            allow_origins: Vec::new(),
            streams_max: 5_000,
        }
    }
}

/// The LDAP face, and the directory behind it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ldap {
    /// Address and port to listen at, such as `127.0.0.1:389`. If this and `listen_tls` are empty, there is no LDAP face, and
    /// without `scim` no directory.
    pub listen: String,
    /// Address and port for TLS from the first byte (`ldaps`), such as `0.0.0.0:636`; empty: none. It stands alone or beside
    /// `listen`.
    pub listen_tls: String,
    /// Whether provisioning clients see the directory by SCIM 2.0, at `/scim/v2` of the HTTP face.
    pub scim: bool,
    /// The certificate with its chain, a PEM file. With it clients may begin TLS.
    pub tls_certificate: PathBuf,
    /// Its key, a PEM file.
    pub tls_key: PathBuf,
    /// The authorities whose certificates clients may prove themselves with (SASL EXTERNAL), a PEM file; empty: none.
    pub tls_client_ca: PathBuf,
    /// What these authorities revoked, a PEM file with the list of each (RFC 5280); it is read again when it changes. Empty:
    /// nothing is revoked.
    pub tls_client_crls: PathBuf,
    /// Which entry a client is by its certificate: `subject`, `entry uid={cn},ou=people,dc=example,dc=org` or
    /// `search mail={email}`; the first that finds an entry decides.
    pub certificate_rules: Vec<String>,
    /// Whether passwords are refused without TLS.
    pub require_tls: bool,
    /// The name of the directory's first entry. Fixed once there are entries below it.
    pub suffix: String,
    /// Who may do what, such as `to attrs=mail by self write by users read`; the first rule that is met decides. None: a
    /// bound user reads all entries but no passwords, and changes their own entry; only operators add entries.
    pub access: Vec<String>,
    /// Attributes that are the addresses of devices, with the channel: `mail=email`.
    pub device_attributes: Vec<String>,
    /// Whether clients may ask without saying who they are, as far as the access rules allow.
    pub anonymous: bool,
    /// So many wrong passwords in a row lock an entry; 0: never.
    pub lockout_failures: u32,
    /// How long it is locked; 0: until somebody unlocks it.
    pub lockout_duration: Period,
    /// What is asked of passwords, such as `to dn="ou=staff,dc=example,dc=org" pwdMinLength=12 pwdInHistory=5 pwdMaxAge=90d`;
    /// the first rule of an entry's place decides.
    pub password_policy: Vec<String>,
    /// How long an entry of the class `dynamicObject` lives that is not refreshed.
    pub dynamic_ttl: Period,
    /// A refresh that asks for less gets this.
    pub dynamic_ttl_min: Period,
    /// A refresh that asks for more is refused.
    pub dynamic_ttl_max: Period,
    /// About how much memory entries may take that are kept at hand.
    pub cache: Size,
    /// Most connections; one more is closed at once.
    pub connections_max: u32,
    /// Most connections from one address.
    pub connections_per_address_max: u32,
    /// Most requests of one connection that are under way; one more is told `busy`.
    pub pending_max: u32,
    /// Longest message. Whoever has not said who they are may send 256 KiB.
    pub message_max: Size,
    /// How long half a message may take, and how long a client may not read.
    pub patience: Period,
    /// How long a connection may be idle.
    pub idle_timeout: Period,
    /// Most entries of one search; operators have no bound.
    pub size_limit: u32,
    /// Longest time of one search; operators have no bound.
    pub time_limit: Period,
    /// Most searches that follow what changes (RFC 4533); one more is told `busy`.
    pub followers_max: u32,
}

impl Default for Ldap {
    fn default() -> Self {
        Ldap {
            listen: String::new(),
            listen_tls: String::new(),
            scim: false,
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            tls_client_ca: PathBuf::new(),
            tls_client_crls: PathBuf::new(),
            certificate_rules: vec!["subject".into()],
            require_tls: false,
            suffix: "o=tocsin".into(),
            access: Vec::new(),
            device_attributes: vec!["mail=email".into(), "mobile=sms".into()],
            anonymous: true,
            lockout_failures: 10,
            lockout_duration: Period::seconds(900),
            password_policy: Vec::new(),
            dynamic_ttl: Period::seconds(86_400),
            dynamic_ttl_min: Period::seconds(1),
            dynamic_ttl_max: Period::seconds(365 * 86_400),
            cache: Size(256 << 20),
            connections_max: 10_000,
            connections_per_address_max: 1_000,
            pending_max: 64,
            message_max: Size(16 << 20),
            patience: Period::seconds(10),
            idle_timeout: Period::seconds(900),
            size_limit: 10_000,
            time_limit: Period::seconds(60),
            followers_max: 64,
        }
    }
}

/// The store of applications, subscribers, subscriptions and keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Records {
    /// Space that must stay free on the disk; below it new subscribers, devices and subscriptions are answered with 503
    /// until there is room again. 0 switches the guard off.
    pub disk_reserve: Size,
    /// Threads that read.
    pub readers: u32,
    /// Keys that seal definitions and the secret of the installation before they are stored: a line for each, a name and 64
    /// hexadecimal digits. The first seals, all of them open; after a start nothing is sealed with another than the first.
    /// Nothing is sealed if there are none.
    pub keys: Secret,
    /// A file that holds them, where `keys` is empty.
    pub keys_file: String,
}

impl Default for Records {
    fn default() -> Self {
        Records { disk_reserve: Size(64 << 20), readers: 2, keys: Secret::default(), keys_file: String::new() }
    }
}

/// The store of events, notifications and receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// Space that must stay free on the disk; below it events are answered with 503 until there is room again, while what
    /// is stored goes on to be delivered. 0 switches the guard off.
    pub disk_reserve: Size,
    /// Event batches that may wait to be matched; more are answered with 503.
    pub waiting_batches_max: u64,
    /// Packed events that may wait to be matched; more are answered with 503.
    pub waiting_bytes_max: Size,
    /// Notifications that may wait to be sent; with more, events are answered with 503.
    pub waiting_notifications_max: u64,
}

impl Default for Journal {
    fn default() -> Self {
        Journal {
            disk_reserve: Size(256 << 20),
            waiting_batches_max: 1_000_000,
            waiting_bytes_max: Size(1 << 30),
            waiting_notifications_max: 10_000_000,
        }
    }
}

/// The store of the feeds that subscribers read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Inbox {
    /// Space that must stay free on the disk; below it new items wait and broadcasts are answered with 503 until there is
    /// room again. 0 switches the guard off.
    pub disk_reserve: Size,
    /// Threads that read.
    pub readers: u32,
}

impl Default for Inbox {
    fn default() -> Self {
        Inbox { disk_reserve: Size(64 << 20), readers: 2 }
    }
}

/// Rows that devices keep replicas of, and how many devices are served at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sync {
    /// Space that must stay free on the disk; below it edits and rows are answered with 503 until there is room again. 0 switches
    /// the guard off.
    pub disk_reserve: Size,
    /// Threads that read.
    pub readers: u32,
    /// Blocks of edits that are unpacked and checked at a time.
    pub uploads: u32,
    /// Blocks of edits that meet the rows at a time, at most. They share commits, so a few more than there are cores do most.
    pub reconciles: u32,
    /// `auto`: it is found out how many of `reconciles` help, by how many are done and how long each takes; `fixed`: always as
    /// many.
    pub reconciles_sizing: PoolSizing,
    /// Blocks of rows that are read and packed at a time.
    pub downloads: u32,
    /// Requests that wait for each of these; one more is told 503, with a time to come again.
    pub waiting_max: u32,
    /// Devices that wait for news; one more is told 503, and comes now and then instead.
    pub watchers_max: u32,
}

impl Default for Sync {
    fn default() -> Self {
        Sync {
            disk_reserve: Size(64 << 20),
            readers: 2,
            uploads: 4,
            reconciles: 20,
            reconciles_sizing: PoolSizing::Auto,
            downloads: 4,
            waiting_max: 2_000,
            watchers_max: 10_000,
        }
    }
}

/// How many places a pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolSizing {
    /// As many as help, and never more than its bound.
    Auto,
    /// As many as its bound.
    Fixed,
}

/// The store of the messages of exchanges.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Space that must stay free on the disk; below it new messages are answered with 503 until there is room again, while
    /// those that are stored go on. 0 switches the guard off.
    pub disk_reserve: Size,
    /// With more memory in the process the receive ports of exchanges answer 503, and send ports read less ahead. 0: nine
    /// tenths of what the machine, or the control group of the process, has.
    pub memory_max: Size,
    /// Threads that read, of each partition.
    pub readers: u32,
    /// How many files the messages are spread over, from 1 to 16, each with a writer and fsyncs of its own. More keep what is
    /// there where it is. Fewer are refused at the start while there are messages in those that go.
    pub partitions: u8,
    /// Most bytes of what is tracked of messages, compressed; beyond it what would go first goes before its time.
    pub tracking_max: Size,
    /// Messages at the steps of receive ports at the same time, of all exchanges. 0: the server finds by itself how many help.
    pub receive_workers: u32,
    /// Messages whose routes are looked for at the same time; 0 as above.
    pub route_workers: u32,
    /// Messages at the steps of send ports at the same time; 0 as above. Those that wait for a far side do not count.
    pub send_workers: u32,
}

impl Default for Spool {
    fn default() -> Self {
        Spool {
            disk_reserve: Size(64 << 20),
            memory_max: Size(0),
            readers: 2,
            partitions: 1,
            tracking_max: Size(1 << 30),
            receive_workers: 0,
            route_workers: 0,
            send_workers: 0,
        }
    }
}

/// The steps from an event to its receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pipeline {
    /// Most event batches that are matched and committed together, as one quantum.
    pub quantum_batches: u32,
    /// About how many packed bytes of events a quantum may hold. One batch is always taken, however large.
    pub quantum_bytes: Size,
    /// Shards of each application's match index, each with a thread of its own; at most 64. 0 means one for each core, up
    /// to 8.
    pub match_shards: u32,
    /// Most applications that are matched at the same time. Those whose last quantum took `pipeline.slow_rule` or longer are
    /// half of them at most, so that slow applications leave room for the others.
    pub match_concurrency: u32,
    /// Most notifications of a channel that are formatted or on their way at the same time; and a quarter as many that are
    /// urgent or high.
    pub in_flight_per_channel: u32,
    /// Most dispositions that wait to be recorded; reaching it records them at once.
    pub receipts_chunk: u32,
    /// How long a disposition may wait to be recorded. A crash sends again what was not recorded.
    pub receipts_delay: Period,
    /// From which time on a firing of a rule is listed as slow (`tocsin firings slow`); 1 ms or more.
    pub slow_rule: Period,
    /// Most subscriptions of a due rule that are in its index at the same time. A run of more is done in parts.
    pub run_subscriptions: u32,
    /// After so many notifications the rest of a run of a due rule waits for the next quantum, so that events are matched
    /// between.
    pub run_notifications: u32,
    /// How often finished batches past their retention are looked for.
    pub upkeep_interval: Period,
    /// Batches that one step of retention removes, so that it never holds up the flow.
    pub prune_batches: u32,
    /// The hours of a day at which retention removes batches, such as `["01:00-05:00"]` or `["22:00-06:00 mo-fr"]`; at any
    /// hour if the list is empty.
    pub retention_hours: Vec<String>,
    /// Whose clock that is: the IANA name of a time zone.
    pub retention_time_zone: String,
    /// How many days the sums are kept of which reports are made.
    pub activity_days: u32,
    /// How long a stopping server finishes what is in flight before it leaves the rest to the next start.
    pub drain_patience: Period,
}

impl Default for Pipeline {
    fn default() -> Self {
        Pipeline {
            quantum_batches: 256,
            quantum_bytes: Size(4 << 20),
            match_shards: 0,
            match_concurrency: 32,
            in_flight_per_channel: 10_000,
            receipts_chunk: 2_048,
            receipts_delay: Period::millis(25),
            slow_rule: Period::seconds(1),
            run_subscriptions: 50_000,
            run_notifications: 500_000,
            upkeep_interval: Period::seconds(60),
            prune_batches: 200,
            retention_hours: Vec::new(),
            retention_time_zone: "UTC".to_owned(),
            activity_days: 90,
            drain_patience: Period::seconds(30),
        }
    }
}

/// What channels may do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Delivery {
    /// Networks that every channel may reach although they are private or this machine itself, such as `10.1.0.0/16` or
    /// `127.0.0.1`. A channel's own options may allow more.
    pub allow_networks: Vec<String>,
    /// Host names that every channel may reach wherever they lead.
    pub allow_hosts: Vec<String>,
    /// Programs that channels with the protocol `process` may start, and folders whose programs they may start. None
    /// unless they are named here: a definition may come from whoever holds a key.
    pub allow_programs: Vec<PathBuf>,
    /// Files that definitions may name, and folders whose files they may name: certificates, keys, tokens and credentials of
    /// channels, sources and exchanges. None unless they are named here, and never those of the data folder: a definition may
    /// come from whoever holds a key.
    pub allow_files: Vec<PathBuf>,
    /// Folders outside the data folder that channels with the protocol `file` may write to, with all below them. None
    /// unless they are named here: a definition may come from whoever holds a key.
    pub allow_folders: Vec<PathBuf>,
}

/// What sources may do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sources {
    /// Folders that sources of the kind `directory` may take files from, and in which databases of SQLite may be that sources
    /// ask, with all below them. Without any they have only the folder `drop` in the data folder: a definition may come from whoever holds a key.
    pub allow_folders: Vec<PathBuf>,
    /// Addresses at which sources of the kind `mail` may listen, such as `0.0.0.0:25`, which stands for port 25 of every
    /// address. Without any they may listen at loopback addresses only, with ports from 1024 on.
    pub allow_listen: Vec<SocketAddr>,
}

/// What bounces and complaints make of an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Suppression {
    /// So many soft bounces within the window suppress an address; from 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub soft_bounces: u32,
    /// The window in which soft bounces are counted.
    pub soft_bounce_window: Period,
    /// How long soft bounces suppress an address; 0s: until it is lifted.
    pub soft_bounce_lasts: Period,
    /// How long a hard bounce suppresses an address; 0s: until it is lifted.
    pub hard_bounce_lasts: Period,
    /// What notifications of critical classes pass: `soft_bounce`, `manual`, both or nothing. Nothing passes a hard bounce,
    /// an unsubscription or a complaint.
    pub critical_passes: Vec<Passable>,
}

impl Default for Suppression {
    fn default() -> Self {
        Suppression {
            soft_bounces: 5,
            soft_bounce_window: Period::seconds(14 * 86_400),
            soft_bounce_lasts: Period::seconds(30 * 86_400),
            hard_bounce_lasts: Period::seconds(0),
            critical_passes: vec![Passable::SoftBounce],
        }
    }
}

/// A cause that notifications of critical classes may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Passable {
    /// Messages came back for the time being.
    SoftBounce,
    /// An operator said so.
    Manual,
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
    /// Whether there is `/metrics`. It needs no key.
    pub enabled: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { enabled: true }
    }
}

/// What this server knows of its own costs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capacity {
    /// What one of each operation costs on this machine, as `tocsin bench vectors` measured it: a JSON file. With it the status
    /// says how far each role is from its bounds.
    pub vectors: PathBuf,
}

/// Spans for a collector of traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Where spans go by OTLP over HTTP, such as `http://localhost:4318`; `/v1/traces` is put behind it. Without it no spans
    /// are told.
    pub endpoint: String,
    /// The whole address for spans, where it is not `/v1/traces` below an endpoint.
    pub traces_endpoint: String,
    /// How spans are written.
    pub protocol: OtlpProtocol,
    /// How requests are packed.
    pub compression: OtlpCompression,
    /// A file of further certificates to trust at the collector, in PEM form.
    pub ca_file: String,
    /// Header fields for the collector, `name=value` with commas between; `%2C` stands for a comma in a value.
    pub headers: Secret,
    /// By which name traces know this server.
    pub service_name: String,
    /// What else is to be told of this server, `name=value` with commas between: `deployment.environment.name=test`.
    pub resource_attributes: String,
    /// How many of the events that come without a trace begin one, from 0 to 1. Those that come with one are told if their
    /// caller records it.
    pub sample_ratio: f64,
    /// Most spans that wait to be sent; more are counted and dropped.
    pub queue_spans: u32,
    /// How long spans wait for others to be sent with.
    pub delay: Period,
    /// How long the collector has for an answer.
    pub timeout: Period,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry {
            endpoint: String::new(),
            traces_endpoint: String::new(),
            protocol: OtlpProtocol::Json,
            compression: OtlpCompression::None,
            ca_file: String::new(),
            headers: Secret::default(),
            service_name: "tocsin".to_owned(),
            resource_attributes: String::new(),
            sample_ratio: 1.0,
            queue_spans: 8_192,
            delay: Period::seconds(1),
            timeout: Period::seconds(10),
        }
    }
}

/// How spans are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtlpProtocol {
    /// In JSON.
    #[serde(rename = "http/json")]
    Json,
    /// In Protocol Buffers.
    #[serde(rename = "http/protobuf")]
    Protobuf,
}

/// How requests to the collector are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OtlpCompression {
    /// Not at all.
    None,
    /// With gzip.
    Gzip,
}

/// Threads of the process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Threads that carry requests and deliveries; 0 means one for each core, at least 2.
    pub threads: u32,
}
