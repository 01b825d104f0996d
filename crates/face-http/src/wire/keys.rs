//! API keys.

use serde::Deserialize;
use serde::Serialize;
use tocsin_model::time::Timestamp;
use tocsin_service::{keys::MadeKey, roles::Role};
use tocsin_store::records::{ApiKey, ApiKeyUse};
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
    /// Last use over HTTP, to a minute; absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    last_used_at: Option<Timestamp>,
    /// Address of that use; of IPv6 its /64 network.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_from: Option<String>,
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
            last_used_at: None,
            last_used_from: None,
            key: None,
        }
    }
}

impl KeyBody {
    /// With its last use.
    pub(crate) fn used(self, used: Option<ApiKeyUse>) -> KeyBody {
        match used {
            Some(ApiKeyUse { at, from, .. }) => KeyBody { last_used_at: Some(at), last_used_from: from, ..self },
            None => self,
        }
    }
}

/// The rotation of a key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KeyRotation)]
pub(crate) struct KeyRotationBody {
    /// Time for which the old key stays valid, such as `24h`; default `24h`, at most `30d`; `0s` removes it.
    #[serde(default)]
    pub(crate) overlap: Option<String>,
}

/// A rotated key.
#[derive(Serialize, ToSchema)]
#[schema(as = RotatedKey)]
pub(crate) struct RotatedKeyBody {
    /// The new key.
    #[serde(flatten)]
    pub(crate) key: KeyBody,
    /// Id of the old key.
    pub(crate) replaces: String,
    /// Expiry of the old key; absent: it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) replaced_expires_at: Option<Timestamp>,
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
