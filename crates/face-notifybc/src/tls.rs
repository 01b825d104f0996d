//! TLS of the listener, and client certificates of the configured authority.
//!
//! A certificate that does not verify is no error: its request has no identity from it. So the handshake accepts any
//! certificate whose key the client has, and the chain is verified afterwards.

use std::sync::Arc;

use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tocsin_notifybc::configuration::Tls;
use tokio_rustls::TlsAcceptor;
use x509_cert::{
    Certificate,
    der::{Decode, asn1::Any},
};

/// Object identifier of the common name.
const COMMON_NAME: &str = "2.5.4.3";

/// TLS options that are unusable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Key or certificate is missing.
    #[error("`tls.key` and `tls.cert` are needed")]
    Incomplete,
    /// A PEM text is malformed, or the key does not belong to the certificate.
    #[error("`tls`: {0}")]
    Unusable(String),
}

/// TLS of a listener.
#[derive(Clone)]
pub struct TlsListener {
    pub(crate) acceptor: TlsAcceptor,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

impl TlsListener {
    /// TLS by the configuration; `None`: it is not enabled.
    ///
    /// # Errors
    /// A text is missing or malformed.
    pub fn of(options: &Tls) -> Result<Option<TlsListener>, TlsError> {
        if !options.is_enabled {
            return Ok(None);
        }
        let unusable = |error: &dyn std::fmt::Display| TlsError::Unusable(error.to_string());
        let (Some(key), Some(certificate)) = (&options.key, &options.cert) else { return Err(TlsError::Incomplete) };
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| unusable(&error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = match &options.ca {
            Some(authority) if options.client_certificates => Some(verifier(authority, &provider)?),
            _ => None,
        };
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?;
        let builder = match &clients {
            Some(verifier) => builder.with_client_cert_verifier(Arc::new(AnyCertificate(verifier.clone()))),
            None => builder.with_no_client_auth(),
        };
        let server = builder.with_single_cert(chain, key).map_err(|error| unusable(&error))?;
        Ok(Some(TlsListener { acceptor: TlsAcceptor::from(Arc::new(server)), clients }))
    }

    /// The common name of a client certificate that verifies against the authority.
    pub(crate) fn verified_name(&self, chain: Option<&[CertificateDer<'_>]>) -> Option<String> {
        let (first, others) = chain?.split_first()?;
        self.clients.as_ref()?.verify_client_cert(first, others, UnixTime::now()).ok()?;
        common_name(first)
    }
}

fn certificates(text: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    read.map_err(|error| TlsError::Unusable(error.to_string()))
}

fn verifier(authority: &str, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(|error| TlsError::Unusable(error.to_string()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    builder.allow_unauthenticated().build().map_err(|error| TlsError::Unusable(error.to_string()))
}

/// The most specific common name of the subject.
fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let names = certificate.tbs_certificate.subject.0;
    let mut parts = names.iter().rev().flat_map(|name| name.0.iter());
    let part = parts.find(|part| part.oid.to_string() == COMMON_NAME)?;
    text(&part.value)
}

fn text(value: &Any) -> Option<String> {
    String::from_utf8(value.value().to_vec()).ok()
}

/// Accepts any client certificate whose key the client has.
#[derive(Debug)]
struct AnyCertificate(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AnyCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A hint would keep clients from sending a certificate of another authority, which is harmless too.
        self.0.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
    }

    #[test]
    fn s3_the_name_of_a_client_certificate_counts_only_if_it_verifies() {
        let (own, other) = (authority("own"), authority("other"));
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("parameters");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ann");
        let signed = |by: &CertifiedIssuer<'static, KeyPair>| params.signed_by(&key, by).expect("a certificate");
        let certificate = signed(&own);
        let options = Tls {
            is_enabled: true,
            client_certificates: true,
            key: Some(key.serialize_pem()),
            cert: Some(certificate.pem()),
            ca: Some(own.pem()),
        };
        let listener = TlsListener::of(&options).expect("usable").expect("enabled");
        assert_eq!(listener.verified_name(Some(&[certificate.der().clone()])).as_deref(), Some("ann"));
        assert_eq!(listener.verified_name(Some(&[signed(&other).der().clone()])), None);
        assert_eq!(listener.verified_name(None), None);
        let plain = TlsListener::of(&Tls { client_certificates: false, ..options.clone() }).expect("usable");
        assert_eq!(plain.expect("enabled").verified_name(Some(&[certificate.der().clone()])), None);
        assert!(TlsListener::of(&Tls { cert: None, ..options.clone() }).is_err());
        assert!(TlsListener::of(&Tls { is_enabled: false, ..options }).expect("off").is_none());
    }
}
