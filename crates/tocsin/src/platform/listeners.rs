//! Options that listeners share: TLS, limits of connections.

use std::sync::Arc;

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::danger::ClientCertVerifier,
};
use tocsin_face_http::ConnectionOptions;

use crate::configuration::Configuration;

/// TLS of a listener with this certificate, which verifies clients as given.
pub(super) fn server_tls(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let configured = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_client_cert_verifier(clients).with_single_cert(chain, key));
    configured.map(Arc::new)
}

/// Limits and times of connections, which both HTTP faces have.
pub(super) fn connection_options(configuration: &Configuration) -> ConnectionOptions {
    let http = &configuration.http;
    ConnectionOptions {
        connections_max: http.connections_max as usize,
        connections_per_address_max: http.connections_per_address_max as usize,
        health_connections: http.health_connections as usize,
        header_timeout: http.header_timeout.0,
        body_idle_timeout: http.body_idle_timeout.0,
        write_timeout: http.write_timeout.0,
        drain_patience: configuration.pipeline.drain_patience.0,
    }
}
