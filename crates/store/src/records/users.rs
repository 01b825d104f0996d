//! Users of the console and their sessions, as stored.

use tocsin_model::time::Timestamp;

/// Maximum number of users.
pub const USERS_MAX: usize = 10_000;

/// Maximum number of sessions of a user; a login beyond it ends the session that was used least recently.
pub const SESSIONS_OF_USER_MAX: usize = 20;

/// User of the console. It is not a subscriber.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Login name, in lower case.
    pub name: String,
    /// Name for display.
    pub display_name: String,
    /// Email address.
    pub email: Option<String>,
    /// Names of roles.
    pub roles: Vec<String>,
    /// Argon2id hash of the password, in PHC format.
    pub password: Option<String>,
    /// Subject of the user at the OpenID provider.
    pub oidc_subject: Option<String>,
    /// Language of the console, as a BCP 47 tag.
    pub language: Option<String>,
    /// Time zone of the console.
    pub time_zone: Option<String>,
    /// Whether logins are rejected.
    pub disabled: bool,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// Time of the last login.
    pub last_login_at: Option<Timestamp>,
    /// Revision, from 1; a login does not increase it.
    pub revision: u64,
}

impl std::fmt::Debug for User {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("User").field("name", &self.name).field("roles", &self.roles).finish_non_exhaustive()
    }
}

impl User {
    /// This user in place of a stored one. An unchanged user keeps its revision.
    pub(crate) fn over(self, old: &User, now: Timestamp) -> User {
        let User { created_at, updated_at, last_login_at, revision, .. } = *old;
        let same = User { created_at, updated_at, last_login_at, revision, ..self };
        if same == *old { same } else { User { updated_at: now, revision: revision + 1, ..same } }
    }
}

/// Session of a user, as stored: a hash, never the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Public id, by which it is listed and revoked.
    pub id: String,
    /// SHA-256 of the token.
    pub hash: [u8; 32],
    /// Name of the user.
    pub user: String,
    /// Time of the login.
    pub created_at: Timestamp,
    /// Time of the last request, to the minute.
    pub last_used_at: Timestamp,
    /// Absolute expiry.
    pub expires_at: Timestamp,
    /// Time of the last proof of identity.
    pub reauthenticated_at: Timestamp,
    /// Address of the client at the login.
    pub address: Option<String>,
    /// `User-Agent` of the client at the login, shortened.
    pub user_agent: Option<String>,
}

/// The error text of a user.
pub(crate) fn user_noun(name: &str) -> String {
    format!("user `{name}`")
}
