//! Shared state of the routes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusHandle;
use tocsin_directory::Directory;
use tocsin_http_server::embedded::EmbeddedFile;
use tocsin_service::{Service, receivers::Receivers};
use tocsin_sync::Replicas;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    options::{OpenDirectory, OpenidOptions, ScimOptions},
    pages::hosted::HostedPages,
    rate_limits::RateLimits,
    request_metrics::Measures,
};

/// Shared state of the routes.
pub(crate) struct App {
    pub(crate) service: Arc<Service>,
    pub(crate) metrics: Option<PrometheusHandle>,
    /// The sync service, if enabled.
    pub(crate) sync: Option<Arc<Replicas>>,
    /// The receivers of webhooks, if enabled.
    pub(crate) receivers: Option<Arc<Receivers>>,
    /// Memory for request bodies, in KiB.
    pub(crate) body_room: Arc<Semaphore>,
    /// Maximum pause of a request body.
    pub(crate) body_idle_timeout: Duration,
    /// The directory for SCIM, if enabled.
    pub(crate) scim: Option<ScimOptions>,
    /// The directory, if configured.
    pub(crate) entries: Option<Directory>,
    /// Permit for an import into the directory.
    pub(crate) directory_imports: Arc<Semaphore>,
    /// Opens the directory for exports.
    pub(crate) directory: Option<OpenDirectory>,
    pub(crate) rate_limits: RateLimits,
    pub(crate) measures: Measures,
    /// Permits for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Origins whose pages may use the browser routes.
    pub(crate) origins: Arc<[String]>,
    /// Interval of heartbeats on event streams.
    pub(crate) heartbeat: Duration,
    /// Timeout of a blocked write.
    pub(crate) write_timeout: Duration,
    /// Renders the OpenAPI document.
    pub(crate) openapi: fn() -> Bytes,
    /// Files of the web console, if enabled.
    pub(crate) console: Option<&'static [EmbeddedFile]>,
    /// The script of the web components, if it is embedded.
    pub(crate) web_components: Option<&'static EmbeddedFile>,
    /// Whether the status page is public.
    pub(crate) public_status: bool,
    /// Whether browsers reach the server over TLS, by its public URL.
    pub(crate) is_https: bool,
    /// Origin of the public URL.
    pub(crate) public_origin: Option<String>,
    /// Logins through an OpenID provider.
    pub(crate) openid: Option<OpenidOptions>,
    /// Whether the NotifyBC interface is enabled.
    pub(crate) has_notifybc: bool,
    /// Hosted pages.
    pub(crate) pages: Arc<HostedPages>,
    /// Cancelled at shutdown, which ends the event streams.
    pub(crate) stopping: CancellationToken,
}

pub(crate) type State = axum::extract::State<Arc<App>>;
