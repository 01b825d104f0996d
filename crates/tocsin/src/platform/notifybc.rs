//! NotifyBC interface, if a NotifyBC configuration document is given.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde_json::Value;
use tocsin_face_notifybc::{KeySet, NotifybcOptions, RateLimit, TlsListener};
use tocsin_mail_in::{Access, Envelope, ErrorReply, Handler, Server, ServerLimits, ServerSettings};
use tocsin_notifybc::{
    configuration::{Configuration as Document, InboundSmtp},
    record,
};
use tocsin_service::{
    Service,
    notifybc::{Notifybc, NotifybcParts, definition},
};
use tocsin_store::records::Records;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::listeners::{connection_options, server_tls};
use crate::{
    configuration::{Configuration, Notifybc as Options},
    failure::{Failure, Outcome, read_text_file},
    first_key::write_private,
    local_change::now,
};

/// Time after which the own configurations are stored again if that failed.
const RETRY: Duration = Duration::from_secs(5);
/// File of the data folder with the secret of callbacks.
const CALLBACK_KEY_FILE: &str = "notifybc-callback.key";
/// Files beside the document with the parts of `tls` that it lacks.
const TLS_FILES: [(&str, &str); 3] = [("key", "key.pem"), ("cert", "cert.pem"), ("ca", "ca.pem")];

/// Most bytes of an inbound mail.
const MAIL_BYTES_MAX: usize = 1 << 20;

/// The interface before the stores are opened: its addresses are bound and its document is valid.
pub(super) struct PreparedNotifybc {
    listener: TcpListener,
    inbound: Option<(TcpListener, Access)>,
    document: Document,
    tls: Option<TlsListener>,
}

/// The running interface.
pub(super) struct RunningNotifybc {
    face: JoinHandle<()>,
    jobs: JoinHandle<()>,
    inbound: Option<Server>,
}

impl RunningNotifybc {
    /// Waits until the mails, requests and jobs in progress have ended. The interface ends with the token of its start.
    pub(super) async fn stop(self, patience: Duration) {
        if let Some(inbound) = self.inbound {
            inbound.close(patience).await;
        }
        let _ = tokio::time::timeout(patience, async { tokio::join!(self.face, self.jobs) }).await;
    }
}

/// Reads the document and binds its address; `None` if there is none.
///
/// # Errors
/// The document is not a JSON object, its TLS options are unusable, or the address is in use.
pub(super) async fn listen(options: &Options) -> Outcome<Option<PreparedNotifybc>> {
    if options.config.as_os_str().is_empty() {
        return Ok(None);
    }
    let document = read(options)?;
    let tls = TlsListener::of(&document.tls).map_err(|error| {
        Failure::usage(format!("the NotifyBC configuration {} is unusable", options.config.display())).because(&error)
    })?;
    let address = (document.host.as_str(), document.port);
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let what = format!(
            "cannot listen for the NotifyBC interface at {}:{}; check `host` and `port` of {}, and free the port",
            address.0,
            address.1,
            options.config.display()
        );
        Failure::failed(what).because(&error)
    })?;
    let inbound = listen_for_mail(&document.email.inbound).await?;
    Ok(Some(PreparedNotifybc { listener, inbound, document, tls }))
}

/// Binds the address for inbound mail; `None` if it is disabled or has no domain.
async fn listen_for_mail(options: &InboundSmtp) -> Outcome<Option<(TcpListener, Access)>> {
    if !options.is_enabled || options.domains.is_empty() {
        return Ok(None);
    }
    let tls = mail_tls(options)?;
    if options.is_secure && tls.is_none() {
        return Err(Failure::usage(
            "`email.inboundSmtpServer.options.secure` of the NotifyBC configuration needs `key` and `cert`",
        ));
    }
    let address = (options.host.as_deref().unwrap_or("0.0.0.0"), options.port.unwrap_or(0));
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let what = format!(
            "cannot listen for mail at {}:{}; check `email.inboundSmtpServer` of the NotifyBC configuration",
            address.0, address.1
        );
        Failure::failed(what).because(&error)
    })?;
    let access = Access { tls, implicit_tls: options.is_secure, ..Access::default() };
    Ok(Some((listener, access)))
}

/// TLS of inbound mail, if there is a certificate.
fn mail_tls(options: &InboundSmtp) -> Outcome<Option<Arc<rustls::ServerConfig>>> {
    let (Some(key), Some(certificate)) = (&options.key, &options.cert) else { return Ok(None) };
    let failed = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("`email.inboundSmtpServer.options` of the NotifyBC configuration: {error}"))
    };
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failed(&error))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| failed(&error))?;
    Ok(Some(server_tls(chain, key, WebPkiClientVerifier::no_client_auth()).map_err(|error| failed(&error))?))
}

/// Reads a configuration document, with the TLS files beside it.
fn read(options: &Options) -> Outcome<Document> {
    let path = options.config.as_path();
    let text = read_text_file("read the NotifyBC configuration", path)?;
    let invalid = |reason: String| {
        let shown = path.display();
        Failure::usage(format!("the NotifyBC configuration {shown} is not a JSON object: {reason}"))
    };
    let mut document: record::Document = serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    if let Some(Value::Object(tls)) = document.get_mut("tls")
        && tls.get("enabled").is_some_and(record::truthy)
    {
        let folder = path.parent().unwrap_or(Path::new(""));
        for (name, file) in TLS_FILES {
            let file = folder.join(file);
            if !tls.contains_key(name) && fs::exists(&file).unwrap_or(false) {
                let text = read_text_file("read a TLS file of the NotifyBC configuration", &file)?;
                tls.insert(name.to_owned(), Value::from(text));
            }
        }
    }
    if !options.strict {
        ask_before_unsubscribing(&mut document);
    }
    Ok(Document::parse(&document))
}

/// Makes the page that asks first the answer to a GET of an unsubscription link, unless the document decides it.
fn ask_before_unsubscribing(document: &mut record::Document) {
    let mut part = document;
    for name in ["subscription", "anonymousUnsubscription"] {
        let Value::Object(inner) = part.entry(name).or_insert_with(|| Value::Object(record::Document::new())) else {
            return;
        };
        part = inner;
    }
    part.entry("confirmOnGet").or_insert(Value::Bool(true));
}

/// Starts the interface: applies the definition of its channels, stores its own configurations, and serves.
///
/// # Errors
/// The definition cannot be applied.
pub(super) async fn start(
    prepared: PreparedNotifybc,
    configuration: &Configuration,
    service: Arc<Service>,
    records: Arc<dyn Records>,
    stopping: CancellationToken,
) -> Outcome<RunningNotifybc> {
    let PreparedNotifybc { listener, inbound, mut document, tls } = prepared;
    if document.callback_secret.is_none() {
        document.callback_secret = Some(callback_secret(&configuration.data.folder)?);
    }
    for reason in &document.ignored {
        tracing::warn!("NotifyBC configuration: {reason}");
    }
    definition::apply(&service, &document).await.map_err(|error| {
        Failure::failed(
            "cannot apply the definition of the NotifyBC interface; check `email` and `sms` of its document",
        )
        .because(&error)
    })?;
    let http = &configuration.http;
    let options = NotifybcOptions {
        tls,
        keys: document.oidc.clone().map(KeySet::new),
        now,
        connections: connection_options(configuration),
        address_rate: RateLimit::new(http.requests_per_address_max, http.requests_burst_seconds),
    };
    let domain = document.email.inbound.domains.first().cloned().unwrap_or_default();
    let notifybc = Notifybc::new(NotifybcParts { service, store: records, configuration: document });
    tokio::spawn(store_own_configurations(notifybc.clone(), stopping.clone()));
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "the NotifyBC interface listens");
    }
    let inbound = match inbound {
        Some((listener, access)) => Some(accept_mail(listener, access, domain, notifybc.clone())?),
        None => None,
    };
    let jobs = tokio::spawn(run_jobs(notifybc.clone(), stopping.clone()));
    let face = tokio::spawn(tocsin_face_notifybc::serve(listener, notifybc, options, stopping.cancelled_owned()));
    Ok(RunningNotifybc { face, jobs, inbound })
}

/// The secret that signs calls of the URL of a broadcast, if the document gives none: made at the first start, and
/// kept in a file of the data folder that only its owner can read.
fn callback_secret(folder: &Path) -> Outcome<String> {
    let path = folder.join(CALLBACK_KEY_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::file("read the secret of callbacks in", &path, &error)),
    }
    let mut bytes = [0; 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| Failure::failed("cannot make the secret of callbacks"))?;
    let secret = format!("whsec_{}", BASE64_STANDARD.encode(bytes));
    write_private(&path, &secret).map_err(|error| Failure::file("write the secret of callbacks to", &path, &error))?;
    Ok(secret)
}

/// Continues the broadcasts of an earlier process, and runs the scheduled jobs.
async fn run_jobs(notifybc: Arc<Notifybc>, stopping: CancellationToken) {
    match notifybc.resume_broadcasts().await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "broadcasts of the NotifyBC interface are continued"),
        Err(error) => tracing::error!(%error, "cannot continue the broadcasts of the NotifyBC interface"),
    }
    notifybc.run_jobs(stopping.cancelled_owned()).await;
}

/// Starts the server for unsubscriptions and bounces by mail.
fn accept_mail(listener: TcpListener, access: Access, host: String, notifybc: Arc<Notifybc>) -> Outcome<Server> {
    let limits = ServerLimits { mail_bytes_max: MAIL_BYTES_MAX, ..ServerLimits::default() };
    let handler = Arc::new(InboundHandler(notifybc));
    let server = Server::serve(listener, ServerSettings { host, access, limits, handler });
    let server = server.map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))?;
    tracing::info!(address = %server.address(), "the NotifyBC interface accepts mail");
    Ok(server)
}

/// Accepts mail to unsubscription and bounce addresses.
struct InboundHandler(Arc<Notifybc>);

#[async_trait]
impl Handler for InboundHandler {
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        self.0.check_inbound_recipient(recipient).map_err(|reason| ErrorReply::new(550, "5.1.1", reason))
    }

    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply> {
        let peer = Some(envelope.peer.ip());
        self.0.take_inbound_mail(&envelope.from, &envelope.to, mail, peer).await.map_err(|error| {
            let status = if error.status < 500 { "4.3.0" } else { "5.7.1" };
            ErrorReply::new(error.status, status, error.text)
        })
    }
}

/// Stores the configurations that the interface needs, again if the store is unavailable.
async fn store_own_configurations(notifybc: Arc<Notifybc>, stopping: CancellationToken) {
    while let Err(error) = notifybc.store_own_configurations().await {
        tracing::error!(%error, "cannot store the own configurations of the NotifyBC interface");
        tokio::select! {
            () = stopping.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s12_the_secret_of_callbacks_is_made_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let secret = callback_secret(folder.path()).expect("a secret");
        assert!(secret.starts_with("whsec_") && secret.len() > 40, "{}", secret.len());
        assert_eq!(callback_secret(folder.path()).expect("a secret"), secret);
    }

    #[test]
    fn s2_1_tls_files_beside_the_document_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notifybc.json");
        let write = |text: &str| fs::write(&path, text).expect("written");
        let read = || read(&Options { config: path.clone(), strict: true });
        fs::write(folder.path().join("key.pem"), "key").expect("written");
        fs::write(folder.path().join("cert.pem"), "cert").expect("written");
        write(r#"{"port": 3001, "tls": {"enabled": true, "cert": "own"}}"#);
        let document = read().expect("valid");
        assert_eq!((document.port, document.tls.is_enabled), (3001, true));
        assert_eq!((document.tls.key.as_deref(), document.tls.cert.as_deref()), (Some("key"), Some("own")));
        write(r#"{"tls": {"enabled": false}}"#);
        assert!(!read().expect("valid").tls.is_enabled);
        write("module.exports = {}");
        assert!(read().is_err_and(|failure| failure.message.contains("not a JSON object")));
    }

    #[test]
    fn s12_a_get_asks_first_unless_compatibility_is_strict() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("notifybc.json");
        let asks = |text: &str, strict: bool| {
            fs::write(&path, text).expect("written");
            let document = read(&Options { config: path.clone(), strict }).expect("valid");
            document.subscription(None).confirms_get
        };
        let decided = r#"{"subscription": {"anonymousUnsubscription": {"confirmOnGet": false}}}"#;
        let other = r#"{"subscription": {"anonymousUnsubscription": {"code": {"required": true}}}}"#;
        assert!(asks("{}", false) && asks(other, false));
        assert!(!asks("{}", true) && !asks(decided, false));
    }
}
