//! Options of the face.

use std::{pin::Pin, sync::Arc, time::Duration};

use metrics_exporter_prometheus::PrometheusHandle;
use tocsin_directory::{Directory, ldap_error::LdapError};
use tocsin_http_server::{connections::ConnectionOptions, embedded::EmbeddedFile};
use tocsin_openid::Provider;
use tocsin_service::receivers::Receivers;
use tocsin_sync::Replicas;

use tocsin_pace::rate_limit::RateLimit;

use crate::pages::hosted::HostedPages;

/// The bounds of the face. Sizes are in bytes.
#[derive(Clone)]
pub struct HttpOptions {
    /// Limits and times of connections. One beyond the limits gets 503 and is closed, except for health checks. A body
    /// that is read whole must arrive with 1,024 bytes a second.
    pub connections: ConnectionOptions,
    /// Most bytes of all request bodies in memory at the same time; streams do not count.
    pub body_memory_max: usize,
    /// Most requests of a key or token; one more is answered 429.
    pub key_rate: Option<RateLimit>,
    /// Most requests of an address (IPv6: of one /64 network) without a valid key.
    pub address_rate: Option<RateLimit>,
    /// Origins whose pages may read feeds, such as `https://shop.example.org`.
    pub origins: Vec<String>,
    /// Maximum open event streams; further ones get 429.
    pub streams_max: usize,
    /// Interval of heartbeats on idle event streams.
    pub stream_heartbeat: Duration,
    /// Renders `/metrics`; without it, the route answers 404.
    pub metrics: Option<PrometheusHandle>,
    /// The sync service; without it, its routes answer 404.
    pub sync: Option<Arc<Replicas>>,
    /// The receivers of webhooks; without them, their routes answer 404.
    pub receivers: Option<Arc<Receivers>>,
    /// The directory for SCIM; without it, its routes answer 404.
    pub scim: Option<ScimOptions>,
    /// The directory for its routes; without it, they answer 404.
    pub entries: Option<Directory>,
    /// Opens the directory for exports; without it, the route answers 404.
    pub directory: Option<OpenDirectory>,
    /// Files of the web console; without them, its paths answer 404.
    pub console: Option<&'static [EmbeddedFile]>,
    /// The script of the web components, for pages of any origin; without it, its path answers 404.
    pub web_components: Option<&'static EmbeddedFile>,
    /// Whether the status page is served, without a key; otherwise its path answers 404.
    pub public_status: bool,
    /// The address under which browsers reach the face, such as `https://tocsin.example`.
    pub public_url: Option<String>,
    /// Logins of the console through an OpenID provider.
    pub openid: Option<OpenidOptions>,
    /// Whether the NotifyBC interface is enabled, for the console.
    pub has_notifybc: bool,
    /// Hosted pages that subscribers see.
    pub pages: Arc<HostedPages>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            connections: ConnectionOptions::default(),
            body_memory_max: 512 * 1024 * 1024,
            key_rate: None,
            address_rate: None,
            origins: Vec::new(),
            streams_max: 5_000,
            stream_heartbeat: Duration::from_secs(15),
            metrics: None,
            sync: None,
            receivers: None,
            scim: None,
            entries: None,
            directory: None,
            console: None,
            web_components: None,
            public_status: true,
            public_url: None,
            openid: None,
            has_notifybc: false,
            pages: Arc::default(),
        }
    }
}

/// Logins of the console through an OpenID provider.
#[derive(Clone)]
pub struct OpenidOptions {
    /// The provider.
    pub provider: Arc<Provider>,
    /// Name of the provider for display.
    pub name: String,
    /// Whether local passwords are rejected.
    pub only: bool,
}

/// SCIM over a directory.
#[derive(Clone)]
pub struct ScimOptions {
    /// The entries.
    pub directory: Directory,
    /// The address under which clients reach the face, such as `https://tocsin.example`; without it, the `Host` of the request.
    pub public_url: Option<String>,
}

/// Opens the directory for an export.
pub type OpenDirectory =
    Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Directory, LdapError>> + Send>> + Send + Sync>;
