//! Feedback by mail: return addresses, and the SMTP and LMTP server that accepts mail to them.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use async_trait::async_trait;
use rustls::{
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tocsin_delivery::TokenSigner;
use tocsin_feedback::return_address::{Position, VerifyError};
use tocsin_mail_in::{Access, Envelope, ErrorReply, Handler, Server, ServerLimits, ServerSettings};
use tocsin_model::mailbox::Mailbox;
use tocsin_service::{Service, ServiceError};
use tokio::net::TcpListener;

use super::listeners::server_tls;
use crate::{
    configuration::Feedback,
    failure::{Failure, Outcome},
};

/// Most recipients of a mail. A bounce has one.
const RECIPIENTS_MAX: usize = 20;

/// Adds the configured return addresses.
///
/// # Errors
/// If a domain or an address is invalid.
pub(super) fn token_signer(options: &Feedback, secret: &[u8; 32]) -> Outcome<TokenSigner> {
    let mut signer = TokenSigner::new(secret);
    let given = [("feedback.domain", &options.domain), ("feedback.address", &options.address)];
    let given = given.into_iter().chain(options.accept.iter().map(|text| ("feedback.accept", text)));
    for (key, text) in given.filter(|(_, text)| !text.is_empty()) {
        let wrong = |expected: &str| Failure::usage(format!("{key}: `{text}` is not {expected}"));
        let is_address = text.contains('@');
        signer = match (key, is_address) {
            ("feedback.domain", true) => return Err(wrong("a domain such as bounces.example.org")),
            ("feedback.address", false) => return Err(wrong("a mail address such as bounces@example.org")),
            (_, true) => signer.with_return_addresses(text, Position::Subaddress),
            // Only the domain of the base address is used.
            (_, false) => signer.with_return_addresses(&format!("any@{text}"), Position::WholeLocalPart),
        }
        .map_err(|_| wrong("a domain or a mail address"))?;
    }
    if let Some((local, _)) = options.address.rsplit_once('@')
        && local.len() > LOCAL_MAX
    {
        let what = format!("feedback.address: `{local}` leaves no room for the signed part; at most {LOCAL_MAX} bytes");
        return Err(Failure::usage(what));
    }
    Ok(signer)
}

/// Longest local part of a base address that leaves room for the signed part.
const LOCAL_MAX: usize = 20;

/// The bound address of the server, before the service is opened.
pub(super) struct FeedbackListener {
    listener: TcpListener,
    host: String,
    access: Access,
    limits: ServerLimits,
    complaints: BTreeSet<String>,
}

/// Binds the configured address; `None` if there is none.
///
/// # Errors
/// If the address is invalid or in use, there is no return address, or certificate or key cannot be read.
pub(super) async fn listen(options: &Feedback) -> Outcome<Option<FeedbackListener>> {
    if options.listen.is_empty() {
        return Ok(None);
    }
    let domain = match (options.domain.as_str(), options.address.rsplit_once('@')) {
        ("", Some((_, domain))) => domain,
        ("", None) => return Err(Failure::usage("feedback.listen needs feedback.domain or feedback.address")),
        (domain, _) => domain,
    };
    let complaints = options.complaints.iter().map(|text| {
        let mailbox = Mailbox::parse(text).map(|mailbox| mailbox.canonical());
        mailbox.map_err(|_| Failure::usage(format!("feedback.complaints: `{text}` is not a mail address")))
    });
    let complaints = complaints.collect::<Outcome<_>>()?;
    let host = if options.host.is_empty() { domain } else { &options.host };
    let access = Access { tls: tls(&options.tls_certificate, &options.tls_key)?, ..Access::default() };
    let listener = TcpListener::bind(&options.listen).await.map_err(|error| {
        let text = &options.listen;
        let what = format!("cannot listen for feedback at `{text}`; check feedback.listen, and that the port is free");
        Failure::failed(what).because(&error)
    })?;
    let limits = ServerLimits {
        connections_max: options.connections_max as usize,
        connections_per_address_max: options.connections_per_address_max as usize,
        mail_bytes_max: usize::try_from(options.mail_max.0).unwrap_or(usize::MAX),
        recipients_max: RECIPIENTS_MAX,
        idle: options.idle_timeout.0,
        ..ServerLimits::default()
    };
    Ok(Some(FeedbackListener { listener, host: host.to_owned(), access, limits, complaints }))
}

fn tls(certificate: &Path, key: &Path) -> Outcome<Option<Arc<rustls::ServerConfig>>> {
    if certificate.as_os_str().is_empty() {
        return Ok(None);
    }
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::usage(format!("{what}: {error}"));
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed("feedback.tls_certificate", &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed("feedback.tls_key", &error))?;
    let configured = server_tls(chain, key, WebPkiClientVerifier::no_client_auth());
    Ok(Some(configured.map_err(|error| failed("feedback.tls_certificate and feedback.tls_key", &error))?))
}

/// Starts the server.
///
/// # Errors
/// If the socket has no address any more.
pub(super) fn start(prepared: FeedbackListener, service: Arc<Service>) -> Outcome<Server> {
    let FeedbackListener { listener, host, access, limits, complaints } = prepared;
    let handler = Arc::new(FeedbackHandler { service, complaints });
    let server = Server::serve(listener, ServerSettings { host, access, limits, handler });
    let server = server.map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))?;
    tracing::info!(address = %server.address(), "accepts bounces and other feedback by mail");
    Ok(server)
}

/// Accepts mail to return addresses, and complaints.
struct FeedbackHandler {
    service: Arc<Service>,
    /// Addresses for complaints, in their compared form.
    complaints: BTreeSet<String>,
}

impl FeedbackHandler {
    fn is_for_complaints(&self, recipient: &str) -> bool {
        Mailbox::parse(recipient).is_ok_and(|mailbox| self.complaints.contains(&mailbox.canonical()))
    }

    async fn take(&self, recipients: &[String], mail: Vec<u8>) -> Result<(), ServiceError> {
        if recipients.iter().any(|recipient| self.is_for_complaints(recipient)) {
            self.service.take_complaint_mail(mail.clone()).await?;
        }
        self.service.take_feedback_mail(recipients, mail).await.map(drop)
    }
}

#[async_trait]
impl Handler for FeedbackHandler {
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        if self.is_for_complaints(recipient) {
            return Ok(());
        }
        let Err(error) = self.service.verify_return_address(recipient) else { return Ok(()) };
        let reason = match error {
            VerifyError::Foreign => "foreign",
            VerifyError::Signature => "forged",
            VerifyError::Expired => "expired",
            VerifyError::Early => "early",
        };
        metrics::counter!("tocsin_feedback_refused_total", "reason" => reason).increment(1);
        Err(ErrorReply::new(550, "5.1.1", error.to_string()))
    }

    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply> {
        match self.take(&envelope.to, mail).await {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::error!(%error, "feedback by mail cannot be stored; its server sends it again");
                Err(ErrorReply::new(451, "4.3.0", "the mail cannot be stored now, try again later"))
            }
        }
    }
}
