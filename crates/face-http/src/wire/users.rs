//! Users of the console, their sessions and logins.

use serde::{Deserialize, Deserializer, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::{
    sessions::{OneTimeLink, Session},
    users::{NewUser, User, UserChange},
};
use utoipa::ToSchema;

/// A user of the console.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserBody {
    /// Login name.
    name: String,
    /// Name for display.
    display_name: String,
    /// Email address.
    email: Option<String>,
    /// Names of roles.
    roles: Vec<String>,
    /// Whether the user can log in with a password.
    has_password: bool,
    /// Subject at the OpenID provider.
    oidc_subject: Option<String>,
    /// Language of the console.
    language: Option<String>,
    /// Time zone of the console.
    time_zone: Option<String>,
    /// Whether logins are rejected.
    disabled: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    last_login_at: Option<Timestamp>,
    revision: u64,
}

impl From<&User> for UserBody {
    fn from(user: &User) -> Self {
        let user = user.clone();
        UserBody {
            has_password: user.password.is_some(),
            name: user.name,
            display_name: user.display_name,
            email: user.email,
            roles: user.roles,
            oidc_subject: user.oidc_subject,
            language: user.language,
            time_zone: user.time_zone,
            disabled: user.disabled,
            created_at: user.created_at,
            updated_at: user.updated_at,
            last_login_at: user.last_login_at,
            revision: user.revision,
        }
    }
}

/// Request for a user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUserBody {
    /// Login name: 1 to 64 letters, digits, `.`, `_`, `@`, `+` and `-`; stored in lower case.
    name: String,
    /// Name for display; default: the login name.
    #[serde(default)]
    display_name: Option<String>,
    /// Email address.
    #[serde(default)]
    email: Option<String>,
    /// Names of roles; `/v1/roles` lists them.
    #[serde(default)]
    roles: Vec<String>,
    /// Password of at least 12 characters; without it the user logs in through the OpenID provider or by a link.
    #[serde(default)]
    password: Option<String>,
    /// Subject at the OpenID provider.
    #[serde(default)]
    oidc_subject: Option<String>,
    /// Language of the console, such as `de`.
    #[serde(default)]
    language: Option<String>,
    /// Time zone of the console, such as `Europe/Vienna`.
    #[serde(default)]
    time_zone: Option<String>,
}

impl From<NewUserBody> for NewUser {
    fn from(body: NewUserBody) -> Self {
        let NewUserBody { name, display_name, email, roles, password, oidc_subject, language, time_zone } = body;
        NewUser { name, display_name, email, roles, password, oidc_subject, language, time_zone }
    }
}

/// Members of a user to change; `null` removes a value.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserChangeBody {
    /// Name for display.
    #[serde(default)]
    display_name: Option<String>,
    /// Email address.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    email: Option<Option<String>>,
    /// Names of roles.
    #[serde(default)]
    roles: Option<Vec<String>>,
    /// Whether logins are rejected; the sessions of the user end.
    #[serde(default)]
    disabled: Option<bool>,
    /// Subject at the OpenID provider.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    oidc_subject: Option<Option<String>>,
    /// Language of the console.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    language: Option<Option<String>>,
    /// Time zone of the console.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    time_zone: Option<Option<String>>,
}

/// Reads a member that is present, also as null.
fn given<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(reader).map(Some)
}

impl From<UserChangeBody> for UserChange {
    fn from(body: UserChangeBody) -> Self {
        let UserChangeBody { display_name, email, roles, disabled, oidc_subject, language, time_zone } = body;
        UserChange { display_name, email, roles, disabled, oidc_subject, language, time_zone }
    }
}

/// A new password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewPasswordBody {
    /// Password of at least 12 characters.
    pub(crate) password: String,
    /// Present password, which users give for their own.
    #[serde(default)]
    pub(crate) current_password: Option<String>,
}

/// Possible logins.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionOptionsBody {
    /// Whether there is no user yet: a setup link creates the first one.
    pub(crate) setup_required: bool,
    /// Whether users log in with a password.
    pub(crate) password: bool,
    /// Login through the OpenID provider, if configured.
    pub(crate) oidc: Option<OidcOptionsBody>,
}

/// Login through the OpenID provider.
#[derive(Serialize, ToSchema)]
pub(crate) struct OidcOptionsBody {
    /// Name of the provider for display.
    pub(crate) name: String,
    /// Address that starts the login.
    pub(crate) start_url: String,
}

/// A login with name and password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginBody {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// The token of a login link.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginTokenBody {
    /// Fragment of the link.
    pub(crate) token: String,
}

/// A proof of identity: the password, or the token of a login link for the same user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReauthenticationBody {
    #[serde(default)]
    pub(crate) password: Option<String>,
    #[serde(default)]
    pub(crate) token: Option<String>,
}

/// The first user, who gets the role `admin`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetupBody {
    /// Fragment of the setup link.
    pub(crate) token: String,
    /// Login name.
    pub(crate) name: String,
    /// Password of at least 12 characters.
    pub(crate) password: String,
    /// Name for display; default: the login name.
    #[serde(default)]
    pub(crate) display_name: Option<String>,
    /// Email address.
    #[serde(default)]
    pub(crate) email: Option<String>,
    /// Language of the console.
    #[serde(default)]
    pub(crate) language: Option<String>,
    /// Time zone of the console.
    #[serde(default)]
    pub(crate) time_zone: Option<String>,
}

/// The caller: a user with a session, or a key.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionBody {
    /// `user` or `key`.
    pub(crate) kind: &'static str,
    /// Login name of the user, or id of the key.
    pub(crate) name: String,
    /// Name of the user, or description of the key.
    pub(crate) display_name: String,
    /// Names of roles; empty for a key.
    pub(crate) roles: Vec<String>,
    /// Scopes; `admin` includes all others.
    pub(crate) scopes: Vec<&'static str>,
    /// Resources that a key is limited to; empty: it is unlimited.
    pub(crate) resources: Vec<String>,
    /// Value of the header `X-Tocsin-CSRF` of every request that is not a GET.
    pub(crate) csrf: Option<String>,
    /// Language of the user.
    pub(crate) language: Option<String>,
    /// Time zone of the user.
    pub(crate) time_zone: Option<String>,
    /// Whether the user can prove its identity with a password.
    pub(crate) has_password: bool,
    /// Time until which operations that demand a recent proof of identity are possible.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) reauthenticated_until: Option<Timestamp>,
    /// End of the session, unless it is used again, or of the key.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub(crate) expires_at: Option<Timestamp>,
    /// Address that ends the session at the OpenID provider, to open after the logout here.
    pub(crate) logout_url: Option<String>,
    /// Id of the session.
    pub(crate) session_id: Option<String>,
    pub(crate) server: ServerBody,
}

/// The server and its parts.
#[derive(Serialize, ToSchema)]
pub(crate) struct ServerBody {
    pub(crate) version: &'static str,
    /// Random identity of the installation.
    pub(crate) instance: String,
    /// Whether the directory is enabled.
    pub(crate) directory: bool,
    /// Whether exchanges are enabled.
    pub(crate) exchange: bool,
    /// Whether replicas of devices are enabled.
    pub(crate) sync: bool,
    /// Whether the NotifyBC interface is enabled.
    pub(crate) notifybc: bool,
}

/// A session of a user.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserSessionBody {
    id: String,
    user: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    last_used_at: Timestamp,
    /// Latest end; without a request for 12 hours it ends earlier.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    /// Address of the client at the login (IPv6: its /64 network).
    address: Option<String>,
    /// `User-Agent` at the login, shortened.
    user_agent: Option<String>,
    /// Whether it is the session of the caller.
    is_current: bool,
}

impl UserSessionBody {
    pub(crate) fn of(session: Session, current: Option<&str>) -> Self {
        UserSessionBody {
            is_current: current == Some(session.id.as_str()),
            id: session.id,
            user: session.user,
            created_at: session.created_at,
            last_used_at: session.last_used_at,
            expires_at: session.expires_at,
            address: session.address,
            user_agent: session.user_agent,
        }
    }
}

/// Request for a one-time link.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewLoginLinkBody {
    /// Login name; default: the only enabled administrator.
    #[serde(default)]
    pub(crate) user: Option<String>,
}

/// A one-time link of the console. It is valid once: a login link for five minutes, a setup link for an hour.
#[derive(Serialize, ToSchema)]
pub(crate) struct LoginLinkBody {
    /// `login`, or `setup` while there is no user.
    kind: &'static str,
    user: Option<String>,
    /// Path with the token in the fragment.
    path: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
}

impl From<OneTimeLink> for LoginLinkBody {
    fn from(link: OneTimeLink) -> Self {
        let kind = if link.user.is_some() { "login" } else { "setup" };
        LoginLinkBody { kind, path: link.path(), user: link.user, expires_at: link.expires_at }
    }
}
