//! TLS configuration: trust anchors are the system's certificates and those in a file that the operator names.
//! Verification cannot be disabled.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore, ServerConfig,
    client::WantsClientCert,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_model::problem::{Code, Problem};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::files::Files;

/// A connection, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Options of connections that may be encrypted.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TlsOptions {
    /// Whether connections are encrypted.
    #[serde(rename = "tls")]
    pub is_required: bool,
    /// Certificates.
    #[serde(flatten)]
    pub certificates: CertificateOptions,
}

/// Options with the certificates of a client.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CertificateOptions {
    /// A file of additional certificates to trust, in PEM form.
    pub ca_file: Option<PathBuf>,
    /// A file with the client certificate and the intermediate ones, in PEM form, for servers that request one.
    pub certificate_file: Option<PathBuf>,
    /// A file with the private key of the certificate, in PEM form.
    pub key_file: Option<PathBuf>,
}

impl CertificateOptions {
    /// Every problem of these options.
    pub fn problems(&self) -> Vec<Problem> {
        let (path, text) = match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => ("key_file", "a certificate needs its private key"),
            (None, Some(_)) => ("certificate_file", "a private key needs its certificate"),
            _ => return Vec::new(),
        };
        vec![Problem::new(Code::MissingCounterpart, path, text)]
    }

    /// The configuration of a client, with its certificate if there is one.
    ///
    /// # Errors
    /// One of the files cannot be used.
    pub fn client_config(&self, files: &Files) -> Result<Arc<ClientConfig>, Problem> {
        match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => trust_and_prove(files, self.ca_file.as_deref(), certificate, key),
            _ => client_config(files, self.ca_file.as_deref(), "ca_file"),
        }
    }
}

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
pub fn handshake_hint(error: &str) -> &'static str {
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
    fn a_client_certificate_has_its_key() {
        let check = |certificate_file: Option<&str>, key_file: Option<&str>, expected: &str| {
            let options = CertificateOptions {
                ca_file: None,
                certificate_file: certificate_file.map(PathBuf::from),
                key_file: key_file.map(PathBuf::from),
            };
            let shown: Vec<String> = options.problems().iter().map(ToString::to_string).collect();
            assert_eq!(shown.join("\n"), expected);
        };
        check(None, None, "");
        check(Some("/c.pem"), Some("/k.pem"), "");
        check(Some("/c.pem"), None, "key_file: a certificate needs its private key");
        check(None, Some("/k.pem"), "certificate_file: a private key needs its certificate");
    }

    #[test]
    fn a_certificate_of_an_authority_is_called_so() {
        let error = "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))";
        assert!(handshake_hint(error).contains("CA:FALSE"));
        assert!(handshake_hint("invalid peer certificate: UnknownIssuer").contains("`ca_file`"));
    }
}
