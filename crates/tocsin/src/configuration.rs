//! Server configuration: defaults, overridden by one TOML file, then environment variables (`OTEL_*`, `TOCSIN_*`), then
//! flags.
//!
//! The structs are the single source: their doc comments, types and defaults generate the reference page, the commented
//! file of `init`, and the output of `tocsin config`.

mod layers; // merge of the four layers, with the source of each value
mod otel; // OpenTelemetry environment variables as configuration keys
mod ranges; // permitted ranges of the numeric keys
mod reference; // generator of the reference page and the commented file
mod table; // table of all keys with type, default and description, derived from the structs
mod units; // values with units such as `30s` and `64MiB`, and secrets

use std::{net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use layers::{ConfigurationArgs, Layers, MergedConfiguration, Setting, Source, file_of, load};
pub use reference::{commented_file, reference_page};
pub use table::{Key, keys};
pub use units::{Period, Secret, Size};

/// Complete configuration of a server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Location of the stores.
    pub data: Data,
    /// HTTP face.
    pub http: Http,
    /// LDAP face and directory.
    pub ldap: Ldap,
    /// NotifyBC interface.
    pub notifybc: Notifybc,
    /// Store of applications, subscribers, subscriptions and keys.
    pub records: Records,
    /// Store of events, notifications and receipts.
    pub journal: Journal,
    /// Store of the inboxes.
    pub inbox: Inbox,
    /// Rows that devices replicate.
    pub sync: Sync,
    /// Store of exchange messages.
    pub spool: Spool,
    /// Steps from an event to its receipts.
    pub pipeline: Pipeline,
    /// Permissions of channels.
    pub delivery: Delivery,
    /// Permissions of sources.
    pub sources: Sources,
    /// Rules for suppressing addresses after bounces and complaints.
    pub suppression: Suppression,
    /// Log of the changes that callers make.
    pub audit: Audit,
    /// Evidence of consents, and confirmations of other installations.
    pub consent: Consent,
    /// Hosted pages that subscribers see.
    pub pages: Pages,
    /// Logins of the web console through an OpenID provider.
    pub oidc: Oidc,
    /// Feedback by mail: bounces, complaints and unsubscriptions at signed return addresses.
    pub feedback: Feedback,
    /// Log, on standard error.
    pub log: Log,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Trace export to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// See [`Capacity`].
    pub capacity: Capacity,
    /// Threads of the process.
    pub runtime: Runtime,
}

/// Location of the stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// Data folder, for one server at a time. Created if missing, accessible by its owner only.
    pub folder: PathBuf,
}

impl Default for Data {
    fn default() -> Self {
        Data { folder: "tocsin-data".into() }
    }
}

/// HTTP face.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Listening address and port. Port 0 selects a free port. The default is reachable from this machine only; put a
    /// TLS proxy in front before listening at other addresses.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// Public URL of this server, through the proxy, such as `https://tocsin.example.org`: prefix of links in mails.
    /// Without it mails have no unsubscribe link.
    pub public_url: String,
    /// Maximum number of connections. Further ones get 503, except for `/livez` and `/readyz`.
    pub connections_max: u32,
    /// Maximum number of connections from one address; further ones get 503. Behind a proxy all connections have its
    /// address.
    pub connections_per_address_max: u32,
    /// Connections beyond `connections_max` that are served concurrently, so that `/livez` and `/readyz` respond.
    pub health_connections: u32,
    /// Maximum time to receive the head of a request, and maximum idle time of a connection.
    pub header_timeout: Period,
    /// Maximum pause within a request body. A body that is read into memory must also arrive with at least 1 KiB per
    /// second after that time.
    pub body_idle_timeout: Period,
    /// Maximum time in which a client reads nothing of a response; then its connection is closed.
    pub write_timeout: Period,
    /// Total memory for request bodies that are read into memory; streams do not count. A request that does not fit
    /// waits.
    pub body_memory_max: Size,
    /// Maximum sustained requests per second of one key or token; further ones get 429. 0: no limit. Each key has its
    /// own limit, so that one client cannot starve the others.
    pub requests_per_key_max: u32,
    /// Maximum requests per second from one address (IPv6: one /64 network) without a valid key, except `/livez` and
    /// `/readyz`; further ones get 429. 0: no limit. Behind a proxy all requests have its address.
    pub requests_per_address_max: u32,
    /// Burst after a pause: the requests of this many seconds may arrive at once.
    pub requests_burst_seconds: u32,
    /// Origins of web pages that may read inboxes with an inbox token, such as `https://shop.example.org`. Default:
    /// none. Pages with the same origin as the server need no entry.
    pub allow_origins: Vec<String>,
    /// Maximum number of open inbox streams (`…/inbox/stream`); further ones get 429. Each stream uses one connection.
    pub streams_max: u32,
    /// Whether the web console is served, at `/console/`.
    pub console: bool,
    /// Whether the status page, `/status`, is public. It shows totals, applications, sources and the version.
    pub public_status: bool,
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
            console: true,
            public_status: true,
        }
    }
}

/// NotifyBC interface.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Notifybc {
    /// NotifyBC configuration document, a JSON file. Its keys `host` and `port` are the listening address. Empty: there
    /// is no NotifyBC interface.
    pub config: PathBuf,
    /// Whether a GET of an unsubscription link unsubscribes at once, as in NotifyBC. Otherwise it shows a page that
    /// asks first, since link scanners of mail servers fetch links. `confirmOnGet` of a configuration has precedence.
    pub strict: bool,
}

/// LDAP face and directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ldap {
    /// Listening address and port, such as `127.0.0.1:389`. If this and `listen_tls` are empty, there is no LDAP face,
    /// and without `scim` no directory.
    pub listen: String,
    /// Listening address and port for implicit TLS (`ldaps`), such as `0.0.0.0:636`; empty: none. Independent of
    /// `listen`.
    pub listen_tls: String,
    /// Whether provisioning clients can use the directory by SCIM 2.0, at `/scim/v2` of the HTTP face.
    pub scim: bool,
    /// PEM file with the certificate and its chain. Enables StartTLS.
    pub tls_certificate: PathBuf,
    /// PEM file with the private key of the certificate.
    pub tls_key: PathBuf,
    /// PEM file with the authorities of client certificates (SASL EXTERNAL); empty: none.
    pub tls_client_ca: PathBuf,
    /// PEM file with the certificate revocation lists of these authorities (RFC 5280), reloaded when it changes. Empty:
    /// nothing is revoked.
    pub tls_client_crls: PathBuf,
    /// Rules that map a client certificate to an entry: `subject`, `entry uid={cn},ou=people,dc=example,dc=org` or
    /// `search mail={email}`; the first rule that finds an entry applies.
    pub certificate_rules: Vec<String>,
    /// Whether passwords are refused without TLS.
    pub require_tls: bool,
    /// DN of the directory's suffix entry. Cannot be changed once there are entries below it.
    pub suffix: String,
    /// Access rules, such as `to attrs=mail by self write by users read`; the first matching rule applies. Without
    /// rules a bound user can read all entries except passwords and change their own entry; only operators can add
    /// entries.
    pub access: Vec<String>,
    /// Attributes that hold the addresses of devices, with the channel: `mail=email`.
    pub device_attributes: Vec<String>,
    /// Whether anonymous clients may search, as far as the access rules allow.
    pub anonymous: bool,
    /// Number of consecutive wrong passwords that locks an entry; 0: never.
    pub lockout_failures: u32,
    /// Duration of a lock; 0: until an operator unlocks the entry.
    pub lockout_duration: Period,
    /// Password policies, such as `to dn="ou=staff,dc=example,dc=org" pwdMinLength=12 pwdInHistory=5 pwdMaxAge=90d`;
    /// the first rule whose subtree contains the entry applies.
    pub password_policy: Vec<String>,
    /// Default time to live of an entry of class `dynamicObject` (RFC 2589).
    pub dynamic_ttl: Period,
    /// Minimum time to live that a refresh can request; shorter requests get this.
    pub dynamic_ttl_min: Period,
    /// Maximum time to live that a refresh can request; longer requests are refused.
    pub dynamic_ttl_max: Period,
    /// Approximate size of the entry cache.
    pub cache: Size,
    /// Maximum number of connections; further ones are closed at once.
    pub connections_max: u32,
    /// Maximum number of connections from one address (IPv6: one /64 network).
    pub connections_per_address_max: u32,
    /// Maximum sustained requests per second of one bound identity, over all its connections; further ones get `busy`.
    /// 0: no limit. Each API key is an identity of its own.
    pub requests_per_identity_max: u32,
    /// Maximum requests per second from one address (IPv6: one /64 network) without a bind, failed binds included;
    /// further ones get `busy`. 0: no limit. Behind a proxy all requests have its address.
    pub requests_per_address_max: u32,
    /// Burst after a pause: the requests of this many seconds may arrive at once.
    pub requests_burst_seconds: u32,
    /// Maximum number of pending requests of one connection; further ones get `busy`.
    pub pending_max: u32,
    /// Maximum message size. Clients without a bind are limited to 256 KiB.
    pub message_max: Size,
    /// Maximum time to receive a message, and maximum time in which a client reads nothing.
    pub patience: Period,
    /// Maximum idle time of a connection.
    pub idle_timeout: Period,
    /// Maximum number of entries of one search; operators have no limit.
    pub size_limit: u32,
    /// Maximum duration of one search; operators have no limit.
    pub time_limit: Period,
    /// Maximum number of persistent searches (RFC 4533); further ones get `busy`.
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
            requests_per_identity_max: 0,
            requests_per_address_max: 200,
            requests_burst_seconds: 10,
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

/// Store of applications, subscribers, subscriptions and keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Records {
    /// Reserved free disk space; below it new subscribers, devices and subscriptions get 503. 0 disables the check.
    pub disk_reserve: Size,
    /// Number of reader threads.
    pub readers: u32,
    /// Keys that encrypt definitions and the installation secret at rest: one line per key, a name and 64 hexadecimal
    /// digits. The first key encrypts, all keys decrypt; a start re-encrypts with the first key. Without keys nothing
    /// is encrypted.
    pub keys: Secret,
    /// File with these keys, used if `keys` is empty.
    pub keys_file: String,
}

impl Default for Records {
    fn default() -> Self {
        Records { disk_reserve: Size(64 << 20), readers: 2, keys: Secret::default(), keys_file: String::new() }
    }
}

/// Store of events, notifications and receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Journal {
    /// Reserved free disk space; below it events get 503, while stored work is still delivered. 0 disables the check.
    pub disk_reserve: Size,
    /// Maximum number of event batches that wait to be matched; further ones get 503.
    pub waiting_batches_max: u64,
    /// Maximum size of packed events that wait to be matched; further ones get 503.
    pub waiting_bytes_max: Size,
    /// Maximum number of notifications that wait to be sent; above it events get 503.
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

/// Store of the inboxes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Inbox {
    /// Reserved free disk space; below it new items wait and broadcasts get 503. 0 disables the check.
    pub disk_reserve: Size,
    /// Number of reader threads.
    pub readers: u32,
}

impl Default for Inbox {
    fn default() -> Self {
        Inbox { disk_reserve: Size(64 << 20), readers: 2 }
    }
}

/// Rows that devices replicate, and limits of the device load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sync {
    /// Reserved free disk space; below it edits and rows get 503. 0 disables the check.
    pub disk_reserve: Size,
    /// Number of reader threads.
    pub readers: u32,
    /// Maximum number of edit blocks unpacked and checked concurrently.
    pub uploads: u32,
    /// Maximum number of edit blocks applied concurrently. They share commits, so the optimum is slightly above the
    /// number of cores.
    pub reconciles: u32,
    /// `auto`: adaptive concurrency up to `reconciles`, controlled by throughput and latency; `fixed`: always
    /// `reconciles`.
    pub reconciles_sizing: PoolSizing,
    /// Maximum number of row blocks read and packed concurrently.
    pub downloads: u32,
    /// Maximum number of requests that wait for each of these pools; further ones get 503 with a retry time.
    pub waiting_max: u32,
    /// Maximum number of devices with an open long poll; further ones get 503 and poll instead.
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

/// Sizing of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolSizing {
    /// Adaptive concurrency up to the limit.
    Auto,
    /// Always the limit.
    Fixed,
}

/// Store of exchange messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spool {
    /// Reserved free disk space; below it new messages get 503, while stored ones are processed. 0 disables the check.
    pub disk_reserve: Size,
    /// Process memory above which receive ports respond 503 and send ports reduce their read-ahead. 0: nine tenths of
    /// the memory of the machine or of the control group.
    pub memory_max: Size,
    /// Number of reader threads per partition.
    pub readers: u32,
    /// Number of database files that the messages are distributed over, 1 to 16, each with its own writer and syncs. An
    /// increase keeps existing messages in place. A decrease is refused at the start while the removed partitions
    /// contain messages.
    pub partitions: u8,
    /// Maximum compressed size of tracked data; above it the data that expires first is deleted early.
    pub tracking_max: Size,
    /// Maximum number of messages in receive pipelines, over all exchanges. 0: adaptive concurrency.
    pub receive_workers: u32,
    /// Maximum number of messages in routing; 0: adaptive concurrency.
    pub route_workers: u32,
    /// Maximum number of messages in send pipelines, without those that wait for a receiver; 0: adaptive concurrency.
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

/// Steps from an event to its receipts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pipeline {
    /// Maximum number of event batches that are matched and committed together, as one quantum.
    pub quantum_batches: u32,
    /// Approximate maximum size of the packed events of a quantum. A single batch is always accepted, whatever its
    /// size.
    pub quantum_bytes: Size,
    /// Number of shards of each application's match index, each with its own thread; at most 64. 0: one per core, up to
    /// 8.
    pub match_shards: u32,
    /// Maximum number of applications matched concurrently. Applications whose last quantum took `pipeline.slow_rule`
    /// or longer use at most half of them, so that slow applications leave capacity for the others.
    pub match_concurrency: u32,
    /// Maximum number of notifications of a channel that are formatted or in flight, plus a quarter as many of urgent
    /// and high priority.
    pub in_flight_per_channel: u32,
    /// Maximum number of unrecorded dispositions; reaching it records them at once.
    pub receipts_chunk: u32,
    /// Maximum time until a disposition is recorded. After a crash, unrecorded deliveries are repeated.
    pub receipts_delay: Period,
    /// Duration from which a rule firing is listed as slow (`tocsin firings slow`); at least 1 ms.
    pub slow_rule: Period,
    /// Maximum number of subscriptions of a due rule that are indexed at a time. Larger runs are split.
    pub run_subscriptions: u32,
    /// Maximum number of notifications of a run of a due rule per quantum, so that events are matched in between.
    pub run_notifications: u32,
    /// Interval of the search for expired batches.
    pub upkeep_interval: Period,
    /// Maximum number of batches that one step of retention deletes, so that the pipeline is not delayed.
    pub prune_batches: u32,
    /// Hours of the day in which retention deletes batches, such as `["01:00-05:00"]` or `["22:00-06:00 mo-fr"]`; an
    /// empty list permits every hour.
    pub retention_hours: Vec<String>,
    /// IANA time zone of these hours.
    pub retention_time_zone: String,
    /// Days for which the activity sums of reports are kept.
    pub activity_days: u32,
    /// Maximum time in which a stopping server finishes work in flight; the rest is repeated after the next start.
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

/// Permissions of channels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Delivery {
    /// Networks that every channel may reach although they are private or loopback, such as `10.1.0.0/16` or
    /// `127.0.0.1`. A channel's options can allow more.
    pub allow_networks: Vec<String>,
    /// Host names that every channel may reach whatever their addresses.
    pub allow_hosts: Vec<String>,
    /// Programs that channels with the protocol `process` may start, and folders whose programs they may start.
    /// Default: none, because any holder of a key can apply a definition.
    pub allow_programs: Vec<PathBuf>,
    /// Files that definitions may reference, and folders whose files they may reference: certificates, keys, tokens and
    /// credentials of channels, sources and exchanges. Files of the data folder are always excluded. Default: none,
    /// because any holder of a key can apply a definition.
    pub allow_files: Vec<PathBuf>,
    /// Folders outside the data folder that channels with the protocol `file` may write to, including subfolders.
    /// Default: none, because any holder of a key can apply a definition.
    pub allow_folders: Vec<PathBuf>,
}

/// Permissions of sources.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sources {
    /// Folders from which sources of kind `directory` may take files, and whose SQLite databases sources may query,
    /// including subfolders. Default: only the folder `drop` in the data folder, because any holder of a key can apply
    /// a definition.
    pub allow_folders: Vec<PathBuf>,
    /// Addresses at which sources of kind `mail` may listen, such as `0.0.0.0:25`, which means port 25 of every
    /// address. Default: loopback addresses only, with ports from 1024.
    pub allow_listen: Vec<SocketAddr>,
}

/// Log of the changes that callers make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Retention of the entries.
    pub keep: Period,
}

impl Default for Audit {
    fn default() -> Self {
        Audit { keep: Period::seconds(400 * 86_400) }
    }
}

/// Evidence of consents, and confirmations of other installations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Consent {
    /// Retention of the evidence after its person was erased; 0s: none is kept. Without the person, it has a keyed hash
    /// in place of the address.
    pub evidence_kept: Period,
    /// File with an RSA private key in PEM: confirmations that another installation encrypted with its public key are
    /// accepted. Empty: none are.
    pub key_file: PathBuf,
}

impl Default for Consent {
    fn default() -> Self {
        Consent { evidence_kept: Period::seconds(3 * 365 * 86_400), key_file: PathBuf::new() }
    }
}

/// Hosted pages that subscribers see: the preference page, the unsubscribe page and the confirmation page. `pages` of an
/// application applies before.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pages {
    /// Name of the sender, the heading of each page; empty: the word for notifications in the language of the reader.
    pub name: String,
    /// HTTPS address of a logo; empty: none. Browsers load it from there.
    pub logo: String,
    /// Colour of buttons and links, such as `#0a6ebd`; empty: blue. Its contrast is corrected for light and dark screens.
    pub accent: String,
    /// Text at the end of each page, such as the postal address; empty: none.
    pub footer: String,
    /// HTTPS address of the imprint; empty: none.
    pub imprint: String,
    /// Folder with texts in further languages, or replaced texts: `pt-BR.json`, `de.json`; empty: English, German and
    /// French.
    pub languages: PathBuf,
}

/// Logins of the web console through an OpenID provider (OpenID Connect). It needs `http.public_url`; the redirect URI
/// to register is `/v1/session/oidc/callback` below it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Oidc {
    /// URL of the issuer, such as `https://id.example.org/realms/staff`; empty: no logins through a provider.
    pub issuer: String,
    /// Name of the provider on the login page.
    pub name: String,
    /// Client id at the provider.
    pub client_id: String,
    /// File with the client secret; empty: a public client.
    pub client_secret_file: PathBuf,
    /// Scopes beside `openid`.
    pub scopes: Vec<String>,
    /// Claim of the ID token whose values map to roles, such as `groups`; with dots also a path, such as
    /// `realm_access.roles`.
    pub roles_claim: String,
    /// Roles by claim value, as `VALUE=ROLE`, such as `tocsin-admins=admin`; a login replaces the roles of the user.
    /// Empty: roles are given to users here, whose `oidc_subject` is set.
    pub roles: Vec<String>,
    /// Whether passwords are rejected. Links of `tocsin console open` remain.
    pub only: bool,
}

impl Default for Oidc {
    fn default() -> Self {
        Oidc {
            issuer: String::new(),
            name: "OpenID".to_owned(),
            client_id: String::new(),
            client_secret_file: PathBuf::new(),
            scopes: vec!["profile".to_owned(), "email".to_owned()],
            roles_claim: "groups".to_owned(),
            roles: Vec::new(),
            only: false,
        }
    }
}

/// Rules for suppressing addresses after bounces and complaints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Suppression {
    /// Number of soft bounces within the window that suppresses an address; 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    pub soft_bounces: u32,
    /// Window in which soft bounces are counted.
    pub soft_bounce_window: Period,
    /// Duration of a suppression after soft bounces; 0s: until removed.
    pub soft_bounce_lasts: Period,
    /// Number of hard bounces within the window that suppresses an address; 0 to 100, 0: none.
    #[schemars(range(min = 0, max = 100))]
    pub hard_bounces: u32,
    /// Window in which hard bounces are counted.
    pub hard_bounce_window: Period,
    /// Duration of a suppression after a hard bounce; 0s: until removed.
    pub hard_bounce_lasts: Period,
    /// Number of challenges within the window that suppresses an address; 0 to 100, 0: none. A challenge asks the sender
    /// to prove that a person wrote the mail.
    #[schemars(range(min = 0, max = 100))]
    pub challenges: u32,
    /// Window in which challenges are counted.
    pub challenge_window: Period,
    /// Duration of a suppression after challenges; 0s: until removed.
    pub challenge_lasts: Period,
    /// Number of complaints within the window that suppresses an address; 0 to 100, 0: none.
    #[schemars(range(min = 0, max = 100))]
    pub complaints: u32,
    /// Window in which complaints are counted.
    pub complaint_window: Period,
    /// Suppression causes that notifications of critical classes ignore: `soft_bounce`, `manual`, both or none. Hard
    /// bounces, unsubscriptions and complaints are never ignored.
    pub critical_passes: Vec<Passable>,
}

impl Default for Suppression {
    fn default() -> Self {
        Suppression {
            soft_bounces: 5,
            soft_bounce_window: Period::seconds(14 * 86_400),
            soft_bounce_lasts: Period::seconds(30 * 86_400),
            hard_bounces: 1,
            hard_bounce_window: Period::seconds(86_400),
            hard_bounce_lasts: Period::seconds(0),
            challenges: 0,
            challenge_window: Period::seconds(30 * 86_400),
            challenge_lasts: Period::seconds(30 * 86_400),
            complaints: 1,
            complaint_window: Period::seconds(86_400),
            critical_passes: vec![Passable::SoftBounce],
        }
    }
}

/// Feedback by mail: bounces, complaints and unsubscriptions at signed return addresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Feedback {
    /// Domain of return addresses, such as `bounces.example.org`, all of whose mail arrives at this server: each mail
    /// has a sender such as `ab5…@bounces.example.org`. Empty: none.
    pub domain: String,
    /// Mail address of return addresses, such as `bounces@example.org`: each mail has a sender such as
    /// `bounces+ab5…@example.org`. With `domain`, it is accepted and not used for new mails. Empty: none.
    pub address: String,
    /// Further domains and addresses of return addresses that are accepted, such as former ones.
    pub accept: Vec<String>,
    /// Addresses at which complaints from the feedback loops of providers arrive, such as `fbl@bounces.example.org`. The
    /// reported mail names the return address.
    pub complaints: Vec<String>,
    /// Listening address and port of the SMTP and LMTP server for feedback, such as `0.0.0.0:25`. It accepts mail to
    /// return addresses and to those of `complaints` only. Empty: none.
    pub listen: String,
    /// Host name in the greeting. Default: `domain`, or the domain of `address`.
    pub host: String,
    /// PEM file with the certificate and its chain. Enables STARTTLS.
    pub tls_certificate: PathBuf,
    /// PEM file with the private key of the certificate.
    pub tls_key: PathBuf,
    /// Maximum number of connections; further ones get 421.
    pub connections_max: u32,
    /// Maximum number of connections from one address; further ones get 421.
    pub connections_per_address_max: u32,
    /// Maximum size of a mail; larger ones are refused with 552. The first MiB is examined.
    pub mail_max: Size,
    /// Maximum idle time of a connection.
    pub idle_timeout: Period,
}

impl Default for Feedback {
    fn default() -> Self {
        Feedback {
            domain: String::new(),
            address: String::new(),
            accept: Vec::new(),
            complaints: Vec::new(),
            listen: String::new(),
            host: String::new(),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            connections_max: 50,
            connections_per_address_max: 20,
            mail_max: Size(10 << 20),
            idle_timeout: Period::seconds(300),
        }
    }
}

/// Suppression cause that notifications of critical classes may ignore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Passable {
    /// Temporary delivery failures.
    SoftBounce,
    /// Suppressed by an operator.
    Manual,
}

/// Log, on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Log level: `error`, `warn`, `info`, `debug`, `trace`, or levels by module, such as `info,tocsin_delivery=debug`.
    pub level: String,
    /// Log format: `text`, or `json` with one object per line.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".into(), format: LogFormat::Text }
    }
}

/// Log format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Prometheus metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether `/metrics` is served. It requires no key.
    pub enabled: bool,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { enabled: true }
    }
}

/// Cost vectors of this server, for saturation monitoring.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Capacity {
    /// JSON file with the cost of each operation on this machine, as measured by `tocsin bench vectors`. With it the
    /// status shows the headroom of each role.
    pub vectors: PathBuf,
}

/// Trace export to an OpenTelemetry collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// OTLP/HTTP endpoint, such as `http://localhost:4318`; `/v1/traces` is appended. Without it no spans are exported.
    pub endpoint: String,
    /// Complete URL for spans, if it is not `/v1/traces` below an endpoint.
    pub traces_endpoint: String,
    /// Encoding of spans.
    pub protocol: OtlpProtocol,
    /// Compression of requests.
    pub compression: OtlpCompression,
    /// PEM file of additional trusted certificates for the collector.
    pub ca_file: String,
    /// Header fields for the collector, `name=value`, comma-separated; `%2C` encodes a comma in a value.
    pub headers: Secret,
    /// Service name of this server in traces.
    pub service_name: String,
    /// Additional resource attributes of this server, `name=value`, comma-separated:
    /// `deployment.environment.name=test`.
    pub resource_attributes: String,
    /// Fraction of events without a trace context that start a trace, 0 to 1. Events with a context are traced if their
    /// caller sampled it.
    pub sample_ratio: f64,
    /// Maximum number of queued spans; further ones are counted and dropped.
    pub queue_spans: u32,
    /// Maximum time that spans wait to be sent in a batch.
    pub delay: Period,
    /// Timeout of a request to the collector.
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

/// Encoding of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OtlpProtocol {
    /// JSON.
    #[serde(rename = "http/json")]
    Json,
    /// Protocol Buffers.
    #[serde(rename = "http/protobuf")]
    Protobuf,
}

/// Compression of requests to the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OtlpCompression {
    /// No compression.
    None,
    /// gzip.
    Gzip,
}

/// Threads of the process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// Number of threads for requests and deliveries; 0 means one per core, at least 2.
    pub threads: u32,
}
