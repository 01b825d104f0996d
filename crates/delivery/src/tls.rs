//! TLS configuration: trust anchors are the system's certificates and those in a file that the operator names.
//! Verification cannot be disabled.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, ServerConfig,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tocsin_model::problem::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::files::Files;

/// A connection, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// TLS client configuration that verifies the server. `path` names the option `ca_file` in problems.
///
/// # Errors
/// The file cannot be used.
pub fn client_config(files: &Files, ca_file: Option<&Path>, path: &str) -> Result<Arc<ClientConfig>, Problem> {
    Ok(Arc::new(verifier(files, ca_file, path)?.with_no_client_auth()))
}

/// As `trust`, with a client certificate, read from the files of the options `certificate_file` and `key_file`.
///
/// # Errors
/// One of the files cannot be used.
pub fn trust_and_prove(
    files: &Files,
    ca_file: Option<&Path>,
    certificate_file: &Path,
    key_file: &Path,
) -> Result<Arc<ClientConfig>, Problem> {
    let (certificates, key) = load_certificate(files, certificate_file, key_file)?;
    let config = verifier(files, ca_file, "ca_file")?.with_client_auth_cert(certificates, key);
    Ok(Arc::new(config.map_err(|error| unusable("certificate_file", certificate_file, &error))?))
}

/// TLS server configuration with the certificate from the files of the options `certificate_file` and `key_file`.
///
/// # Errors
/// One of the files cannot be used.
pub fn server_config(files: &Files, certificate_file: &Path, key_file: &Path) -> Result<Arc<ServerConfig>, Problem> {
    let (certificates, key) = load_certificate(files, certificate_file, key_file)?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_no_client_auth()
        .with_single_cert(certificates, key);
    Ok(Arc::new(config.map_err(|error| unusable("certificate_file", certificate_file, &error))?))
}

/// A certificate chain and the key of its first certificate.
fn load_certificate(
    files: &Files,
    certificate_file: &Path,
    key_file: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Problem> {
    let read = |option: &str, file: &Path| files.read(file).map_err(|why| Problem::new(Code::Unreadable, option, why));
    let chain = read("certificate_file", certificate_file)?;
    let certificates = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| unusable("certificate_file", certificate_file, &error))?;
    let key = PrivateKeyDer::from_pem_slice(&read("key_file", key_file)?);
    let key = key.map_err(|error| unusable("key_file", key_file, &error))?;
    Ok((certificates, key))
}

fn unusable(option: &str, file: &Path, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Code::Unreadable, option, format!("{} cannot be used: {error}", file.display()))
}

fn verifier(
    files: &Files,
    ca_file: Option<&Path>,
    path: &str,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Problem> {
    let mut roots = RootCertStore::empty();
    // Unreadable system certificates are no error here: verification fails later, with its own reason.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = ca_file {
        let unusable = |error: &dyn std::fmt::Display| unusable(path, file, error);
        let text = files.read(file).map_err(|why| Problem::new(Code::Unreadable, path, why))?;
        let certificates: Vec<_> =
            CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(|error| unusable(&error))?;
        if certificates.is_empty() {
            return Err(unusable(&"it holds no certificate").hint("it must hold certificates in PEM form"));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    Ok(ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots))
}

/// Advice for an operator about a failed TLS handshake.
pub(crate) fn handshake_hint(error: &str) -> &'static str {
    match error.contains("CaUsedAsEndEntity") {
        true => {
            "the certificate of the server is that of an authority (`CA:TRUE`, RFC 5280, 4.2.1.9); a server needs one with \
             `CA:FALSE`"
        }
        false => "`ca_file` names further certificates to trust",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_an_authority_is_called_so() {
        let error = "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))";
        assert!(handshake_hint(error).contains("CA:FALSE"));
        assert!(handshake_hint("invalid peer certificate: UnknownIssuer").contains("`ca_file`"));
    }
}
