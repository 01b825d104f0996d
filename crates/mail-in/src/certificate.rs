//! Who we are on encrypted connections.

use std::{path::Path, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// A chain of certificates and the key of its first, from files in PEM form.
///
/// # Errors
/// Which of the files is of no use (`certificate_file`, `key_file`), and why.
pub fn read(certificate_file: &Path, key_file: &Path) -> Result<Arc<ServerConfig>, (&'static str, String)> {
    let unusable = |option: &'static str, file: &Path, error: &dyn std::fmt::Display| {
        (option, format!("{} cannot be used: {error}", file.display()))
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(certificate_file)
        .and_then(Iterator::collect)
        .map_err(|error| unusable("certificate_file", certificate_file, &error))?;
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| unusable("key_file", key_file, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|error| unusable("certificate_file", certificate_file, &error))?;
    Ok(Arc::new(config))
}
