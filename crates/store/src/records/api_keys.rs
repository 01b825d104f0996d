//! API keys as stored.

use tocsin_model::time::Timestamp;

/// Maximum number of removed keys whose descriptions are kept; the oldest are deleted.
pub(crate) const REMOVED_API_KEYS_MAX: usize = 10_000;

/// API key as stored: a hash, never the key itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Public part of the key, by which it is listed and removed.
    pub id: String,
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// Purpose of the key.
    pub description: String,
    /// Granted scopes, as `area:right`.
    pub scopes: Vec<String>,
    /// Resources that the key is limited to, as `kind:name`; empty: unlimited.
    pub resources: Vec<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Expiry.
    pub expires_at: Option<Timestamp>,
}

/// Last use of an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKeyUse {
    /// Public part of the key.
    pub id: String,
    /// Time.
    pub at: Timestamp,
    /// Address or network of the client, if known.
    pub from: Option<String>,
}
