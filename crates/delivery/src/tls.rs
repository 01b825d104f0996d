//! Whom we trust: the system's certificates, and those in a file that the operator names. There is no way to trust all.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tocsin_model::problem::Problem;

/// What a TLS client needs to verify the far side. `path` names the option `ca_file` in problems.
pub(crate) fn trust(ca_file: Option<&Path>, path: &str) -> Result<Arc<ClientConfig>, Problem> {
    let mut roots = RootCertStore::empty();
    // Unreadable system certificates are not a problem as such: verification then fails, with its own reason.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(file) = ca_file {
        let unusable =
            |error: &dyn std::fmt::Display| Problem::at(path, format!("{} cannot be used: {error}", file.display()));
        let certificates: Vec<_> =
            CertificateDer::pem_file_iter(file).and_then(Iterator::collect).map_err(|error| unusable(&error))?;
        if certificates.is_empty() {
            return Err(unusable(&"it holds no certificate").hint("it must hold certificates in PEM form"));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
