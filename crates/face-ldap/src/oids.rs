//! Object identifiers of controls and extended operations.

pub(crate) const PAGED_RESULTS: &str = "1.2.840.113556.1.4.319";
pub(crate) const MANAGE_DSA_IT: &str = "2.16.840.1.113730.3.4.2";
pub(crate) const WHO_AM_I: &str = "1.3.6.1.4.1.4203.1.11.3";
pub(crate) const REFRESH: &str = "1.3.6.1.4.1.1466.101.119.1";
pub(crate) const MODIFY_PASSWORD: &str = "1.3.6.1.4.1.4203.1.11.1";
pub(crate) const ASSERTION: &str = "1.3.6.1.1.12";
pub(crate) const PRE_READ: &str = "1.3.6.1.1.13.1";
pub(crate) const POST_READ: &str = "1.3.6.1.1.13.2";
pub(crate) const SORT: &str = "1.2.840.113556.1.4.473";
pub(crate) const SYNC_REQUEST: &str = "1.3.6.1.4.1.4203.1.9.1.1";
pub(crate) const SYNC_STATE: &str = "1.3.6.1.4.1.4203.1.9.1.2";
pub(crate) const SYNC_DONE: &str = "1.3.6.1.4.1.4203.1.9.1.3";
pub(crate) const SYNC_INFO: &str = "1.3.6.1.4.1.4203.1.9.1.4";
pub(crate) const SORTED: &str = "1.2.840.113556.1.4.474";
pub(crate) const CANCEL: &str = "1.3.6.1.1.8";
pub(crate) const START_TLS: &str = "1.3.6.1.4.1.1466.20037";
pub(crate) const PASSWORD_POLICY: &str = "1.3.6.1.4.1.42.2.27.8.5.1";

/// Supported controls.
pub(crate) const CONTROLS: &[&str] =
    &[PAGED_RESULTS, MANAGE_DSA_IT, ASSERTION, PRE_READ, POST_READ, SORT, SYNC_REQUEST, PASSWORD_POLICY];

/// Supported extended operations, besides StartTLS if there is a certificate.
pub(crate) const EXTENSIONS: &[&str] = &[WHO_AM_I, MODIFY_PASSWORD, CANCEL, REFRESH];
