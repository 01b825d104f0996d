//! Authenticated callers: their scopes, the resources that their key is limited to, and the end of their credential.

use std::{sync::Arc, time::Duration};

use tocsin_model::{actor::Actor, problem::CredentialError, time::Timestamp};
use tocsin_store::records::ApiKey;

use super::scopes::{Scope, Scopes};
use crate::{error::ServiceError, resources::Resource};

/// An authenticated caller. Only [`Service::authenticate`](crate::Service::authenticate) and
/// [`Service::authenticate_session`](crate::Service::authenticate_session) make one.
#[derive(Debug, Clone)]
pub struct Caller {
    key: Arc<str>,
    /// Credential by which it is looked up again.
    pub(super) credential: Credential,
    scopes: Scopes,
    /// Resources that the key is limited to; `None`: unlimited.
    resources: Option<Arc<[Resource]>>,
    pub(super) expires_at: Option<Timestamp>,
}

/// Credential of a caller.
#[derive(Debug, Clone)]
pub(super) enum Credential {
    /// The hash of a key.
    Key([u8; 32]),
    Session(SessionCredential),
}

/// Session of a user.
#[derive(Debug, Clone)]
pub struct SessionCredential {
    /// Public id.
    pub id: Arc<str>,
    /// Name of the user.
    pub user: Arc<str>,
    /// Time until which operations that demand a recent proof of identity are allowed.
    pub reauthenticated_until: Timestamp,
}

/// Reason why a credential became invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialEnd {
    /// The key or session was removed, or the user was disabled.
    Revoked,
    /// The key or session expired.
    Expired,
    /// Scopes, resources or expiry of the key, or the roles of the user changed.
    Changed,
}

impl CredentialEnd {
    /// Canonical spelling.
    pub fn word(self) -> &'static str {
        match self {
            CredentialEnd::Revoked => "revoked",
            CredentialEnd::Expired => "expired",
            CredentialEnd::Changed => "changed",
        }
    }
}

impl From<CredentialEnd> for ServiceError {
    fn from(end: CredentialEnd) -> Self {
        let (cause, reason) = match end {
            CredentialEnd::Revoked => (CredentialError::Revoked, "the key or session was revoked while it was in use"),
            CredentialEnd::Expired => {
                (CredentialError::Expired, "the key, token or session expired while it was in use")
            }
            CredentialEnd::Changed => (
                CredentialError::Changed,
                "the rights of the key or user were changed while it was in use: send the request again",
            ),
        };
        ServiceError::Unauthenticated(cause, reason)
    }
}

impl Caller {
    pub(super) fn of(key: &ApiKey) -> Caller {
        let (scopes, resources) = (Scopes::of(&key.scopes), resources_of(key));
        let (key_id, credential) = (key.id.as_str().into(), Credential::Key(key.hash));
        Caller { key: key_id, credential, scopes, resources, expires_at: key.expires_at }
    }

    pub(super) fn of_session(session: SessionCredential, scopes: Scopes) -> Caller {
        let key = format!("user:{}", session.user).into();
        Caller { key, credential: Credential::Session(session), scopes, resources: None, expires_at: None }
    }

    /// The public part of the key, or `user:NAME` of a session: stored as the author of changes.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The actor of the caller's changes.
    pub fn actor(&self) -> Actor {
        match &self.credential {
            Credential::Key(_) => Actor::Key(self.key.clone()),
            Credential::Session(session) => Actor::User(session.user.clone()),
        }
    }

    /// The session of the caller; `None`: it has a key.
    pub fn session(&self) -> Option<&SessionCredential> {
        match &self.credential {
            Credential::Key(_) => None,
            Credential::Session(session) => Some(session),
        }
    }

    /// The scopes in words; `admin` alone includes all others.
    pub fn scope_words(&self) -> Vec<&'static str> {
        Scope::ALL.into_iter().filter(|scope| self.scopes.has(*scope)).map(Scope::word).collect()
    }

    /// Whether the user proved its identity within the last minutes. A key always does.
    ///
    /// # Errors
    /// `ReauthenticationRequired`.
    pub fn needs_recent_login(&self, now: Timestamp) -> Result<(), ServiceError> {
        match self.session() {
            Some(session) if session.reauthenticated_until <= now => Err(ServiceError::ReauthenticationRequired),
            _ => Ok(()),
        }
    }

    /// The same, shared.
    pub fn key_id(&self) -> Arc<str> {
        self.key.clone()
    }

    /// Expiry of the key; `None`: it does not expire, or the caller has a session.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// The time until the key expires; `None`: it does not.
    pub fn remaining_validity(&self, now: Timestamp) -> Option<Duration> {
        self.expires_at.map(|end| end.since(now))
    }

    /// Whether the caller has a scope.
    ///
    /// # Errors
    /// `Forbidden`, naming the scope.
    pub fn needs(&self, scope: Scope) -> Result<(), ServiceError> {
        if self.scopes.contain(scope) { Ok(()) } else { Err(ServiceError::Forbidden(scope)) }
    }

    /// Whether the key is limited to resources.
    pub fn is_limited(&self) -> bool {
        self.resources.is_some()
    }

    /// Whether the key may use its scopes on this resource.
    pub fn reaches(&self, resource: &Resource) -> bool {
        self.resources.as_ref().is_none_or(|own| own.iter().any(|own| own.contains(resource)))
    }

    /// The resources that the key is limited to; empty for an unlimited key.
    pub fn resources(&self) -> &[Resource] {
        self.resources.as_deref().unwrap_or_default()
    }

    /// Whether the caller is not limited to resources, for operations that concern more than one.
    ///
    /// # Errors
    /// `Forbidden`, naming the scope, or `Limited`.
    pub fn needs_everywhere(&self, scope: Scope) -> Result<(), ServiceError> {
        self.needs(scope)?;
        if self.is_limited() { Err(self.limited("this concerns things of all applications")) } else { Ok(()) }
    }

    /// The error of a limited key.
    pub fn limited(&self, why: &str) -> ServiceError {
        let own: Vec<String> = self.resources().iter().map(Resource::to_string).collect();
        ServiceError::Limited(format!("the key is limited to {}: {why}", own.join(", ")))
    }

    /// Whether this caller may make, or revoke, a key with these rights (no privilege escalation).
    ///
    /// # Errors
    /// `Forbidden` names the scope that the caller lacks; `Limited`: the other key reaches more.
    pub(crate) fn covers(&self, scopes: Scopes, resources: Option<&[Resource]>) -> Result<(), ServiceError> {
        if let Some(scope) = self.scopes.first_missing(scopes) {
            return Err(ServiceError::Forbidden(scope));
        }
        match resources {
            _ if !self.is_limited() => Ok(()),
            Some(resources) if resources.iter().all(|resource| self.reaches(resource)) => Ok(()),
            _ => Err(self.limited("it gives no access to other resources; give `resources` within these")),
        }
    }

    /// Whether two keys have the same rights.
    pub(super) fn has_rights_of(&self, other: &Caller) -> bool {
        (self.scopes, &self.resources, self.expires_at) == (other.scopes, &other.resources, other.expires_at)
    }

    /// Whether the caller sees a key in lists: a limited one sees those within its resources, and itself.
    pub(super) fn may_list_key(&self, key: &ApiKey) -> bool {
        let is_within = || resources_of(key).is_some_and(|all| all.iter().all(|resource| self.reaches(resource)));
        !self.is_limited() || key.id == self.key() || is_within()
    }
}

/// Resources of a stored key. One that this version cannot read gives no access; it never makes a key unlimited.
pub(super) fn resources_of(key: &ApiKey) -> Option<Arc<[Resource]>> {
    let read = || key.resources.iter().filter_map(|text| text.parse().ok()).collect();
    (!key.resources.is_empty()).then(read)
}
