//! API keys.

use serde::Deserialize;
use serde::Serialize;
use tocsin_model::time::Timestamp;
use tocsin_service::{keys::MadeKey, roles::Role};
use tocsin_store::records::ApiKey;
use utoipa::ToSchema;

/// An API key, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyBody {
    id: String,
    description: String,
    scopes: Vec<String>,
    /// The resources that it is limited to; empty: it is unlimited.
    resources: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// The whole key, shown this once.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

impl From<ApiKey> for KeyBody {
    fn from(key: ApiKey) -> Self {
        KeyBody {
            id: key.id,
            description: key.description,
            scopes: key.scopes,
            resources: key.resources,
            created_at: key.created_at,
            expires_at: key.expires_at,
            key: None,
        }
    }
}

impl From<MadeKey> for KeyBody {
    fn from(made: MadeKey) -> Self {
        KeyBody { key: Some(made.text), ..made.kept.into() }
    }
}

/// Request for an API key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewKeyBody {
    /// Purpose.
    #[serde(default)]
    pub(crate) description: String,
    /// Scopes: `admin`, `applications:read`, `applications:write`, `subscribers:read`, `subscribers:write`,
    /// `events:write`, `operations:read`, `operations:write`, `keys:write`, `bounces:write`, `inbox:read`,
    /// `inbox:write`, `messages:write`, `sync:read`, `sync:write`.
    #[serde(default)]
    pub(crate) scopes: Vec<String>,
    /// Roles, whose scopes are added; `/v1/roles` lists them.
    #[serde(default)]
    pub(crate) roles: Vec<String>,
    /// Resources that it is limited to: `application:NAME`, `source:APPLICATION/NAME`, `exchange:NAME`,
    /// `port:EXCHANGE/NAME`, `container:DN`. Default: those of the creating key.
    #[serde(default)]
    pub(crate) resources: Vec<String>,
    /// Expiry; default: that of the creating key.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) expires_at: Option<Timestamp>,
}

/// A named set of scopes.
#[derive(Serialize, ToSchema)]
pub(crate) struct RoleBody {
    name: &'static str,
    /// Users of the scope.
    about: &'static str,
    scopes: Vec<&'static str>,
}

impl From<&Role> for RoleBody {
    fn from(role: &Role) -> Self {
        let scopes = role.scopes.iter().map(|scope| scope.word()).collect();
        RoleBody { name: role.name, about: role.about, scopes }
    }
}
