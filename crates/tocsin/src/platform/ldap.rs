//! Directory and its LDAP face, if configured.

use std::sync::{Arc, OnceLock, Weak};

use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tocsin_directory::{
    Directory, Lifetimes, Options,
    entry::{AddressCheck, Shape},
    password::Lockout,
};
use tocsin_face_http::{OpenDirectory, ScimOptions};
use tocsin_face_ldap::{CertificateRule, LdapOptions, Operators, RateLimit, TlsStart, Validity, authorities};
use tocsin_model::mailbox::MailChannels;
use tocsin_pipeline::Pipeline;
use tocsin_service::{Caller, Scope, Service, resources::Resource};
use tocsin_store::{entries::Entries, records::ApplicationStore};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::listeners::server_tls;
use crate::{
    configuration::{Configuration, Ldap},
    failure::{Failure, Outcome},
    local_change::now,
};

/// LDAP face that is ready to start: its addresses are bound and its configuration is valid.
pub(super) struct PreparedLdapFace {
    listeners: Vec<(TcpListener, TlsStart)>,
    directory: Directory,
    options: LdapOptions,
    cache_bytes: u64,
}

/// Bound addresses and certificate of the LDAP face, before the directory is opened.
pub(super) struct LdapListeners {
    listeners: Vec<(TcpListener, TlsStart)>,
    tls: Option<Arc<rustls::ServerConfig>>,
}

/// Binds the configured addresses; `None` if no directory is configured.
///
/// # Errors
/// If an address is invalid or in use, or certificate or key cannot be read.
pub(super) async fn listen(options: &Ldap) -> Outcome<Option<LdapListeners>> {
    if options.listen.is_empty() && options.listen_tls.is_empty() && !options.scim {
        return Ok(None);
    }
    let tls = tls(options)?;
    let mut listeners = Vec::new();
    for (text, opening) in [(&options.listen, TlsStart::Plain), (&options.listen_tls, TlsStart::Tls)] {
        if text.is_empty() {
            continue;
        }
        let listener = TcpListener::bind(text).await.map_err(|error| {
            Failure::failed(format!("cannot listen for LDAP at `{text}`; check the address, and that the port is free"))
                .because(&error)
        })?;
        listeners.push((listener, opening));
    }
    Ok(Some(LdapListeners { listeners, tls }))
}

/// TLS configuration, if configured, with optional client certificates.
fn tls(options: &Ldap) -> Outcome<Option<Arc<rustls::ServerConfig>>> {
    let takes_clients = !options.tls_client_ca.as_os_str().is_empty();
    if options.tls_certificate.as_os_str().is_empty() {
        let needs =
            "ldap.listen_tls, ldap.require_tls and ldap.tls_client_ca need ldap.tls_certificate and ldap.tls_key";
        return match !options.listen_tls.is_empty() || options.require_tls || takes_clients {
            true => Err(Failure::usage(needs)),
            false => Ok(None),
        };
    }
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::usage(format!("{what}: {error}"));
    let chain = CertificateDer::pem_file_iter(&options.tls_certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed("ldap.tls_certificate", &error))?;
    let key = PrivateKeyDer::from_pem_file(&options.tls_key).map_err(|error| failed("ldap.tls_key", &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let revoked = Some(&*options.tls_client_crls).filter(|file| !file.as_os_str().is_empty());
    let clients = match (takes_clients, revoked) {
        (true, _) => authorities(&options.tls_client_ca, revoked, &provider)
            .map_err(|error| failed("ldap.tls_client_ca and ldap.tls_client_crls", &error))?,
        (false, None) => WebPkiClientVerifier::no_client_auth(),
        (false, Some(_)) => return Err(Failure::usage("ldap.tls_client_crls needs ldap.tls_client_ca")),
    };
    let configured = server_tls(chain, key, clients);
    Ok(Some(configured.map_err(|error| failed("ldap.tls_certificate and ldap.tls_key", &error))?))
}

/// Rules that map client certificates to entries, if client certificates are accepted.
fn certificate_rules(ldap: &Ldap) -> Outcome<Vec<CertificateRule>> {
    if ldap.tls_client_ca.as_os_str().is_empty() {
        return Ok(Vec::new());
    }
    let schema = tocsin_directory::schema::Schema::standard();
    let read = |text: &String| {
        CertificateRule::read(text, &schema)
            .map_err(|why| Failure::usage(format!("ldap.certificate_rules: `{text}` {why}")))
    };
    ldap.certificate_rules.iter().map(read).collect()
}

/// Opens the directory.
///
/// # Errors
/// If the configuration is invalid, or the store does not respond.
pub(super) async fn open(
    configuration: &Configuration,
    entries: Arc<dyn Entries>,
    channels: CurrentMailChannels,
) -> Outcome<Directory> {
    let opened = Directory::open(entries, options(configuration, channels)?, Arc::new(now)).await;
    opened.map_err(|refusal| Failure::usage(format!("cannot open the directory; check [ldap]: {}", refusal.message)))
}

/// Opens the directory for each export, also if no directory is configured.
///
/// # Errors
/// If the configuration is invalid.
pub(super) fn opener(
    configuration: &Configuration,
    entries: Arc<dyn Entries>,
    channels: CurrentMailChannels,
) -> Outcome<OpenDirectory> {
    // An export reads pages from the store and needs no cache.
    let options = Options { cache_bytes: 0, ..options(configuration, channels)? };
    Ok(Arc::new(move || {
        let (entries, options) = (entries.clone(), options.clone());
        Box::pin(Directory::open_for_export(entries, options, Arc::new(now)))
    }))
}

fn options(configuration: &Configuration, channels: CurrentMailChannels) -> Outcome<Options> {
    let ldap = &configuration.ldap;
    Ok(Options {
        suffix: ldap.suffix.clone(),
        shape: shape(&ldap.device_attributes, channels)?,
        access: ldap.access.clone(),
        lockout: Lockout { failures: ldap.lockout_failures, duration: ldap.lockout_duration.0 },
        password_policy: ldap.password_policy.clone(),
        lifetimes: Lifetimes {
            at_first: ldap.dynamic_ttl.0,
            least: ldap.dynamic_ttl_min.0,
            most: ldap.dynamic_ttl_max.0,
        },
        cache_bytes: ldap.cache.0,
    })
}

/// Opens the directory before the pipeline starts, so that errors are reported early.
///
/// # Errors
/// If the configuration is invalid, or the store does not respond.
pub(super) async fn prepare(
    doors: LdapListeners,
    configuration: &Configuration,
    entries: Arc<dyn Entries>,
    channels: CurrentMailChannels,
) -> Outcome<PreparedLdapFace> {
    let ldap = &configuration.ldap;
    let directory = open(configuration, entries, channels).await?;
    let rate = |per_second| RateLimit::new(per_second, ldap.requests_burst_seconds);
    let options = LdapOptions {
        connections_max: ldap.connections_max as usize,
        connections_per_address_max: ldap.connections_per_address_max as usize,
        identity_rate: rate(ldap.requests_per_identity_max),
        address_rate: rate(ldap.requests_per_address_max),
        message_bytes_max: usize::try_from(ldap.message_max.0).unwrap_or(usize::MAX),
        pending_max: ldap.pending_max.max(1) as usize,
        patience: ldap.patience.0,
        idle_timeout: ldap.idle_timeout.0,
        size_limit: ldap.size_limit,
        time_limit: ldap.time_limit.0,
        followers_max: ldap.followers_max as usize,
        anonymous: ldap.anonymous,
        tls: doors.tls,
        certificate_rules: certificate_rules(ldap)?,
        require_tls: ldap.require_tls,
        ..LdapOptions::default()
    };
    Ok(PreparedLdapFace { listeners: doors.listeners, directory, options, cache_bytes: ldap.cache.0 })
}

impl PreparedLdapFace {
    /// The directory.
    pub(super) fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// SCIM view of the directory, if enabled.
    pub(super) fn scim(&self, configuration: &Configuration) -> Outcome<Option<ScimOptions>> {
        let public_url = super::public_url(&configuration.http.public_url)?;
        let options = ScimOptions { directory: self.directory.clone(), public_url };
        Ok(configuration.ldap.scim.then_some(options))
    }
}

/// Starts serving.
pub(super) fn start(prepared: PreparedLdapFace, service: Arc<Service>, stopping: CancellationToken) -> JoinHandle<()> {
    let PreparedLdapFace { listeners, directory, options, cache_bytes } = prepared;
    let (kept, ended) = (directory.clone(), stopping.clone());
    tokio::spawn(async move { ended.run_until_cancelled(maintain(kept, cache_bytes)).await });
    tokio::spawn(tocsin_face_ldap::serve(listeners, directory, Arc::new(OperatorKeys(service)), options, stopping))
}

/// Background maintenance: builds missing indexes, fills the cache, deletes expired entries.
async fn maintain(directory: Directory, cache_bytes: u64) {
    if let Err(error) = directory.build_indexes().await {
        tracing::error!(%error, "cannot build the indexes of the directory; searches scan all entries");
    }
    let warmed = async {
        if let Err(error) = directory.warm(cache_bytes / 10 * 9).await {
            tracing::warn!(%error, "cannot fill the directory cache");
        }
    };
    tokio::join!(warmed, directory.keep_expiring());
}

fn shape(pairs: &[String], channels: CurrentMailChannels) -> Outcome<Shape> {
    let wrong = |text: &str| {
        Failure::usage(format!(
            "ldap.device_attributes: `{text}` is not an attribute with its channel, such as mail=email"
        ))
    };
    let schema = tocsin_directory::schema::Schema::standard();
    let read = |text: &String| {
        let (name, channel) = text.split_once('=').ok_or_else(|| wrong(text))?;
        let kind = schema.attribute(name).map_err(|_| wrong(text))?;
        Ok((kind.key.clone(), channel.parse().map_err(|_| wrong(text))?))
    };
    let devices = pairs.iter().map(read).collect::<Outcome<_>>()?;
    let check_address = AddressCheck::new(move |channel, address| {
        tocsin_service::subscribers::check_address(&channels.now(), channel, address)
    });
    Ok(Shape { devices, check_address })
}

/// Channels that send mail: of the stored applications, until the pipeline runs.
#[derive(Clone, Default)]
pub(super) struct CurrentMailChannels {
    stored: MailChannels,
    pipeline: Arc<OnceLock<Weak<Pipeline>>>,
}

impl CurrentMailChannels {
    /// Reads the channels of the stored definitions.
    ///
    /// # Errors
    /// If the records do not respond.
    pub(super) async fn stored(records: &dyn ApplicationStore) -> Outcome<CurrentMailChannels> {
        let stored = records.applications().await;
        let stored = stored.map_err(|error| Failure::failed("the records do not respond").because(&error))?;
        // A secret may be missing here, and a newer definition unreadable: its addresses are checked less strictly.
        let read = |text: &str| tocsin_model::definition::read(text, &|_| Some(String::new())).ok();
        let applications: Vec<_> = stored.iter().filter_map(|version| read(&version.text)).collect();
        let channels = applications.iter().flat_map(|application| &application.channels);
        let stored = MailChannels::of(channels.map(|(name, channel)| (name, &channel.protocol)));
        Ok(CurrentMailChannels { stored, pipeline: Arc::default() })
    }

    /// Switches to the channels of the running pipeline.
    pub(super) fn use_pipeline(&self, pipeline: &Arc<Pipeline>) {
        // Set once, at the start.
        let _ = self.pipeline.set(Arc::downgrade(pipeline));
    }

    fn now(&self) -> MailChannels {
        let running = self.pipeline.get().and_then(Weak::upgrade);
        running.map_or_else(|| self.stored.clone(), |pipeline| pipeline.mail_channels())
    }
}

/// Directory operators: keys that may change subscribers. A key limited to containers acts below these; a key limited
/// to other resources only does not bind.
struct OperatorKeys(Arc<Service>);

impl Operators for OperatorKeys {
    fn operator(&self, key: &str) -> Option<Validity> {
        let caller = self.0.authenticate(key).ok()?;
        caller.needs(Scope::SubscribersWrite).ok()?;
        // An empty list would be unlimited.
        let is_operator = !caller.is_limited() || !containers_of(&caller).is_empty();
        is_operator.then(|| Validity { ends_in: caller.remaining_validity(now()) })
    }

    fn containers(&self, key: &str) -> Option<Vec<String>> {
        let caller = self.0.authenticate(key).ok()?;
        let containers = containers_of(&caller);
        (!caller.is_limited() || !containers.is_empty()).then_some(containers)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.0.key_changes()
    }
}

/// Containers that a key is limited to.
fn containers_of(caller: &Caller) -> Vec<String> {
    let container = |resource: &Resource| match resource {
        Resource::Container(name) => Some(name.clone()),
        _ => None,
    };
    caller.resources().iter().filter_map(container).collect()
}
