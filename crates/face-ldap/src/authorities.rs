//! Verification of client certificates: trusted authorities and their certificate revocation lists (RFC 5280, section
//! 5).
//!
//! Revocation lists are reissued every few hours or days. The file is checked at each client certificate and read again
//! if it changed.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use parking_lot::Mutex;
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

/// Maximum size of the file of lists, in bytes.
const LISTS_BYTES_MAX: u64 = 64 << 20;

/// Creates the verifier of client certificates; a client without one can authenticate otherwise.
///
/// `revoked` is a PEM file with the list of every authority in a chain. A certificate is rejected if it is revoked, or
/// if the list of its authority is missing or out of date.
///
/// # Errors
/// A file cannot be read, or lacks the expected contents.
pub fn authorities(
    file: &Path,
    revoked: Option<&Path>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file)? {
        roots.add(certificate?)?;
    }
    let authorities = Authorities { roots: roots.into(), provider: provider.clone() };
    let Some(revoked) = revoked else { return authorities.verifier(Vec::new()) };
    let version = version(revoked)?;
    let base = authorities.verifier(lists(revoked)?)?;
    let newest = Mutex::new((version, base.clone()));
    Ok(Arc::new(RevocationVerifier { file: revoked.to_owned(), authorities, base, newest }))
}

#[derive(Debug)]
struct Authorities {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl Authorities {
    fn verifier(
        &self,
        revoked: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn Error>> {
        let builder = WebPkiClientVerifier::builder_with_provider(self.roots.clone(), self.provider.clone());
        Ok(builder.with_crls(revoked).enforce_revocation_expiration().allow_unauthenticated().build()?)
    }
}

/// Modification time and size of a file.
type Version = (SystemTime, u64);

fn version(file: &Path) -> io::Result<Version> {
    let metadata = fs::metadata(file)?;
    Ok((metadata.modified()?, metadata.len()))
}

fn lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, Box<dyn Error>> {
    let bytes = fs::metadata(file)?.len();
    if bytes > LISTS_BYTES_MAX {
        return Err(format!("the revocation lists have {bytes} bytes; the maximum is {LISTS_BYTES_MAX}").into());
    }
    let lists = CertificateRevocationListDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    match lists.is_empty() {
        true => Err("the file contains no revocation list; write lists as PEM, with BEGIN X509 CRL".into()),
        false => Ok(lists),
    }
}

/// Verifier that applies the newest revocation lists.
#[derive(Debug)]
struct RevocationVerifier {
    file: PathBuf,
    authorities: Authorities,
    /// Answers everything unrelated to revocation.
    base: Arc<dyn ClientCertVerifier>,
    newest: Mutex<(Version, Arc<dyn ClientCertVerifier>)>,
}

impl RevocationVerifier {
    /// If the new lists are invalid, the previous ones stay in use.
    fn newest(&self) -> Arc<dyn ClientCertVerifier> {
        let mut newest = self.newest.lock();
        match version(&self.file) {
            Ok(version) if version == newest.0 => {}
            Ok(version) => match lists(&self.file).and_then(|lists| self.authorities.verifier(lists)) {
                Ok(verifier) => *newest = (version, verifier),
                Err(error) => {
                    // Logged once per version of the file.
                    newest.0 = version;
                    tracing::error!(file = %self.file.display(), %error, "lists of revoked certificates cannot be read");
                }
            },
            Err(error) => {
                tracing::error!(file = %self.file.display(), %error, "the file of revocation lists is missing");
            }
        }
        newest.1.clone()
    }
}

impl ClientCertVerifier for RevocationVerifier {
    fn offer_client_auth(&self) -> bool {
        self.base.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.base.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.base.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.newest().verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.base.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.base.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.base.supported_verify_schemes()
    }
}
