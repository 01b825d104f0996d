//! API keys: authentication and authorization of callers.
//!
//! A key is `tocsin_<id>_<secret>` with a secret of 256 random bits; only its SHA-256 is stored. All keys are held in
//! memory, so that a request costs one hash and one lookup; they are reloaded when the records change.

mod scopes; // scopes, and sets of them
mod caller; // authenticated callers
mod known_keys; // cache of all keys
mod accounts; // cache of all users and sessions
mod uses; // last uses of keys

use std::time::Duration;

use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::{
    problem::{Code, CredentialError, Problem},
    time::Timestamp,
};
use tocsin_store::records::{ApiKey, ApiKeyStore, ApiKeyUse};
use tokio::sync::watch;

pub(crate) use self::{
    accounts::{Accounts, keep_up, new_token, scopes_of, token_hash},
    known_keys::{Keys, follow_changes},
    uses::{KeyUses, keep_storing},
};
pub use self::{
    accounts::{REAUTHENTICATION_LIFETIME, SESSION_IDLE_MAX, SESSION_LIFETIME},
    caller::{Caller, CredentialEnd, SessionCredential},
    scopes::Scope,
};
use self::{
    caller::{Credential, resources_of},
    scopes::Scopes,
};
use crate::{
    Service,
    error::ServiceError,
    resources::{RESOURCE_FORMS, RESOURCES_MAX, Resource},
    roles::{find_role, known_roles},
};

/// Interval at which the clock is read while waiting for an expiry, as the clock can be set.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(30);

/// Longest time for which a rotated key stays valid.
const OVERLAP_MAX: Duration = Duration::from_secs(30 * 86_400);

/// A request for a key.
#[derive(Debug, Clone, PartialEq)]
pub struct NewKey {
    /// Description.
    pub description: String,
    /// Scopes, as words.
    pub scopes: Vec<String>,
    /// Names of roles, whose scopes are added.
    pub roles: Vec<String>,
    /// Resources that it is limited to, as [`Resource`] parses them; empty: those of the creating key, or unlimited.
    pub resources: Vec<String>,
    /// Expiry; `None`: that of the creating key, or never.
    pub expires_at: Option<Timestamp>,
}

/// A new key. Its text is returned only here.
#[derive(Debug, Clone)]
pub struct MadeKey {
    /// The stored part.
    pub kept: ApiKey,
    /// The text of the key.
    pub text: String,
}

/// Makes the first key of an installation, with the scope `admin`; `None` if there are keys already. The key's text
/// is passed to `keep` before its hash is stored, so that a crash in between cannot leave a key without a known text.
///
/// # Errors
/// The records are unavailable, there is no randomness, or `keep` fails; then nothing is stored.
pub async fn first_key<E: From<ServiceError>>(
    records: &dyn ApiKeyStore,
    now: Timestamp,
    keep: impl FnOnce(&str) -> Result<(), E>,
) -> Result<Option<String>, E> {
    if !records.api_keys().await.map_err(ServiceError::from)?.is_empty() {
        return Ok(None);
    }
    let made = generate("first admin key", vec![Scope::Admin.word().to_owned()], Vec::new(), None, now)?;
    keep(&made.text)?;
    records.put_api_key(made.kept).await.map_err(ServiceError::from)?;
    Ok(Some(made.text))
}

fn generate(
    description: &str,
    scopes: Vec<String>,
    resources: Vec<String>,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<MadeKey, ServiceError> {
    let mut random = [0u8; 36];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| ServiceError::Unavailable("the system gives no random numbers".into()))?;
    let (id, secret) = random.split_at(4);
    let id = hex::encode(id);
    let text = format!("tocsin_{id}_{}", hex::encode(secret));
    let (hash, description) = (hash(&text), description.to_owned());
    let kept = ApiKey { id, hash, description, scopes, resources, created_at: now, expires_at };
    Ok(MadeKey { kept, text })
}

fn hash(key: &str) -> [u8; 32] {
    digest::digest(&digest::SHA256, key.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl Service {
    /// Authenticates a key.
    ///
    /// # Errors
    /// `Unauthenticated`: the key is unknown, revoked or expired.
    pub fn authenticate(&self, key: &str) -> Result<Caller, ServiceError> {
        let known = self.keys.known.load();
        let caller = known
            .get(&hash(key))
            .ok_or(ServiceError::Unauthenticated(CredentialError::Unknown, "the key is not known"))?;
        match caller.expires_at {
            Some(end) if end <= self.clock.now() => {
                Err(ServiceError::Unauthenticated(CredentialError::Expired, "the key has expired"))
            }
            _ => Ok(caller.clone()),
        }
    }

    /// Authenticates the session of a user by its token, with the scopes that its roles have now.
    ///
    /// # Errors
    /// `Unauthenticated`: the session has ended, or the user is disabled.
    pub fn authenticate_session(&self, token: &str) -> Result<Caller, ServiceError> {
        self.accounts.authenticate(token, self.clock.now()).map_err(|end| match end {
            CredentialEnd::Expired => {
                ServiceError::Unauthenticated(CredentialError::Expired, "the session has expired: log in again")
            }
            _ => ServiceError::Unauthenticated(CredentialError::Unknown, "the session has ended: log in again"),
        })
    }

    /// Description of a key by its id, also of a removed one, or display name of `user:NAME`; `None`: it has none, or
    /// there was no such key or user.
    pub fn key_name(&self, id: &str) -> Option<String> {
        if let Some(user) = id.strip_prefix("user:") {
            return self.accounts.user(user).map(|user| user.display_name.clone());
        }
        self.keys.names.load().get(id).cloned()
    }

    /// Why a caller's key or session became invalid; `None`: it is valid. Costs one lookup in memory.
    pub fn key_end(&self, caller: &Caller) -> Option<CredentialEnd> {
        let hash = match &caller.credential {
            Credential::Key(hash) => hash,
            Credential::Session(session) => {
                return match self.accounts.caller(&session.id, self.clock.now()) {
                    Ok(now) => (!now.has_rights_of(caller)).then_some(CredentialEnd::Changed),
                    Err(end) => Some(end),
                };
            }
        };
        if caller.expires_at.is_some_and(|end| end <= self.clock.now()) {
            return Some(CredentialEnd::Expired);
        }
        match self.keys.known.load().get(hash) {
            None => Some(CredentialEnd::Revoked),
            Some(now) if now.has_rights_of(caller) => None,
            Some(_) => Some(CredentialEnd::Changed),
        }
    }

    /// Waits until a caller's key or session becomes invalid.
    pub async fn key_ended(&self, caller: &Caller) -> CredentialEnd {
        let mut changes = self.key_changes();
        loop {
            changes.borrow_and_update();
            if let Some(end) = self.key_end(caller) {
                return end;
            }
            tokio::select! {
                // The sender lives as long as the service.
                _ = changes.changed() => {}
                () = self.until(self.credential_end(caller)) => {}
            }
        }
    }

    /// The time at which a caller's key or session expires, as far as it is known now.
    fn credential_end(&self, caller: &Caller) -> Option<Timestamp> {
        match &caller.credential {
            Credential::Key(_) => caller.expires_at,
            Credential::Session(session) => self.accounts.ends_at(&session.id),
        }
    }

    /// Waits until a time, or indefinitely. May return early, as the clock can be set: the caller checks the time
    /// again.
    pub(crate) async fn until(&self, end: Option<Timestamp>) {
        match end {
            Some(end) => tokio::time::sleep(end.since(self.clock.now()).min(CLOCK_READ_EVERY)).await,
            None => std::future::pending().await,
        }
    }

    /// Subscribes to changes of keys, sent after [`Service::authenticate`] applies them.
    pub fn key_changes(&self) -> watch::Receiver<u64> {
        self.keys.read.subscribe()
    }

    /// Lists keys, oldest first, without secrets; for a limited key those within its resources.
    ///
    /// # Errors
    /// The scope `keys:write` is missing, or the records are unavailable.
    pub async fn api_keys(&self, caller: &Caller) -> Result<Vec<ApiKey>, ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let mut keys = self.api_key_store.api_keys().await?;
        keys.retain(|key| caller.may_list_key(key));
        Ok(keys)
    }

    /// Makes a key. A caller cannot give rights that it lacks: no other scope, no other resource, no longer lifetime.
    ///
    /// # Errors
    /// A scope or resource that the caller does not hold; a scope, role or resource that does not exist; the records do not
    /// answer.
    pub async fn make_api_key(&self, caller: &Caller, new: NewKey) -> Result<MadeKey, ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let now = self.clock.now();
        caller.needs_recent_login(now)?;
        let mut problems = Vec::new();
        if new.description.chars().count() > 255 {
            problems.push(
                Problem::new(Code::TooLong, "description", "is longer than 255 characters")
                    .param("limit", 255)
                    .param("unit", "characters"),
            );
        }
        if new.scopes.is_empty() && new.roles.is_empty() {
            problems.push(
                Problem::new(Code::Required, "scopes", "names no scope, and there is no role").hint(known_scopes()),
            );
        }
        if new.expires_at.is_some_and(|end| end <= now) {
            problems.push(Problem::new(Code::InThePast, "expires_at", "lies in the past"));
        }
        if let (Some(end), Some(own)) = (new.expires_at, caller.expires_at)
            && end > own
        {
            let problem = Problem::new(
                Code::OutOfRange,
                "expires_at",
                format!("is later than {own}, when the key that makes it expires"),
            );
            problems.push(problem.hint("give an earlier time, or leave it out"));
        }
        let asked = requested_scopes(&new, &mut problems);
        let resources = requested_resources(&new, &asked, &mut problems);
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        // By default a limited key makes keys with its own limits.
        let resources = if resources.is_empty() { caller.resources().to_vec() } else { resources };
        caller.covers(Scopes::of_all(&asked), Some(&*resources).filter(|resources| !resources.is_empty()))?;
        let scopes = asked.into_iter().map(|scope| scope.word().to_owned()).collect();
        let resources = resources.iter().map(Resource::to_string).collect();
        let made = generate(&new.description, scopes, resources, new.expires_at.or(caller.expires_at), now)?;
        // A key that is revoked at the same time makes no other key after that.
        let _one_at_a_time = self.keys.changing.lock().await;
        if self.key_end(caller).is_some() {
            return Err(ServiceError::Unauthenticated(CredentialError::Unknown, "the key is not known any more"));
        }
        self.api_key_store.put_api_key(made.kept.clone()).await?;
        self.keys.refresh().await?;
        tracing::info!(key = made.kept.id, by = caller.key(), "made an API key");
        Ok(made)
    }

    /// Marks that a caller used its key. `from`: the address of the client. Sessions have their own last use.
    pub fn mark_key_used(&self, caller: &Caller, from: Option<String>) {
        if matches!(caller.credential, Credential::Key(_)) {
            self.key_uses.mark(&caller.key_id(), self.clock.now(), from);
        }
    }

    /// Last use of a key, to a minute; `None`: it was never used.
    pub fn key_use(&self, id: &str) -> Option<ApiKeyUse> {
        self.key_uses.of(id)
    }

    /// Replaces a key by a new one with the same description, rights and expiry. The old one expires after `overlap`;
    /// at zero it is removed. Returns the new key, and the expiry of the old one.
    ///
    /// # Errors
    /// As [`Service::make_api_key`] and [`Service::remove_api_key`]; the overlap is longer than 30 days.
    pub async fn rotate_api_key(
        &self,
        caller: &Caller,
        id: &str,
        overlap: Duration,
    ) -> Result<(MadeKey, Option<Timestamp>), ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let now = self.clock.now();
        caller.needs_recent_login(now)?;
        if overlap > OVERLAP_MAX {
            return Err(ServiceError::invalid(Code::OutOfRange, "overlap", "is longer than 30 days"));
        }
        let _one_at_a_time = self.keys.changing.lock().await;
        let keys = self.api_key_store.api_keys().await?;
        let sought = keys.into_iter().find(|key| key.id == id && caller.may_list_key(key));
        let sought = sought.ok_or_else(|| ServiceError::Missing(format!("API key `{id}`")))?;
        if sought.id != caller.key() {
            caller.covers(Scopes::of(&sought.scopes), resources_of(&sought).as_deref())?;
        }
        if sought.expires_at.is_some_and(|end| end <= now) {
            return Err(ServiceError::invalid(Code::Expired, "", "the key has expired; create another one"));
        }
        let ApiKey { description, scopes, resources, expires_at, .. } = sought;
        let made = generate(&description, scopes, resources, expires_at, now)?;
        self.api_key_store.put_api_key(made.kept.clone()).await?;
        let end = match overlap.is_zero() {
            true => {
                self.api_key_store.remove_api_key(id).await?;
                None
            }
            false => {
                let end = expires_at.map_or(now + overlap, |end| end.min(now + overlap));
                self.api_key_store.set_api_key_expiry(id, Some(end)).await?;
                Some(end)
            }
        };
        self.keys.refresh().await?;
        tracing::info!(key = id, by = caller.key(), new = made.kept.id, "rotated an API key");
        Ok((made, end))
    }

    /// Revokes a key: here from the next request on, on other nodes within a second.
    ///
    /// # Errors
    /// There is none of this id; it has rights that the caller has not, and is not the caller's own; it is the last with the
    /// scope `admin` that still holds; or the records are unavailable.
    pub async fn remove_api_key(&self, caller: &Caller, id: &str) -> Result<(), ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let _one_at_a_time = self.keys.changing.lock().await;
        let now = self.clock.now();
        let is_admin =
            |key: &ApiKey| Scopes::of(&key.scopes).contain(Scope::Admin) && key.expires_at.is_none_or(|end| end > now);
        let keys = self.api_key_store.api_keys().await?;
        let sought = keys.iter().find(|key| key.id == id && caller.may_list_key(key));
        let sought = sought.ok_or_else(|| ServiceError::Missing(format!("API key `{id}`")))?;
        if sought.id != caller.key() {
            caller.covers(Scopes::of(&sought.scopes), resources_of(sought).as_deref())?;
        }
        let mut admins = keys.iter().filter(|key| is_admin(key));
        if admins.next().is_some_and(|first| first.id == id) && admins.next().is_none() {
            return Err(ServiceError::LastAdmin(id.to_owned()));
        }
        self.api_key_store.remove_api_key(id).await?;
        self.keys.refresh().await?;
        tracing::info!(key = id, by = caller.key(), "removed an API key");
        Ok(())
    }
}

/// Parses the resources of a requested key, without duplicates; invalid ones become problems.
fn requested_resources(new: &NewKey, scopes: &[Scope], problems: &mut Vec<Problem>) -> Vec<Resource> {
    let mut resources: Vec<Resource> = Vec::new();
    if new.resources.len() > RESOURCES_MAX {
        problems.push(
            Problem::new(Code::TooMany, "resources", format!("has more than {RESOURCES_MAX} resources"))
                .param("limit", RESOURCES_MAX),
        );
        return resources;
    }
    for (at, text) in new.resources.iter().enumerate() {
        match text.parse::<Resource>() {
            Ok(resource) if resources.contains(&resource) => {}
            Ok(resource) => resources.push(resource),
            Err(error) => {
                problems.push(
                    Problem::new(Code::InvalidFormat, format!("resources[{at}]"), error.to_string())
                        .param("format", "resource")
                        .hint(RESOURCE_FORMS),
                );
            }
        }
    }
    if !resources.is_empty() && scopes.contains(&Scope::Admin) {
        let problem = Problem::new(
            Code::ConflictingMembers,
            "resources",
            "cannot limit the scope `admin`, which includes backups of everything",
        );
        problems.push(problem.hint("give the scopes that it needs"));
    }
    resources
}

/// The scopes of a requested key with those of its roles, without duplicates; unknown words become problems.
fn requested_scopes(new: &NewKey, problems: &mut Vec<Problem>) -> Vec<Scope> {
    let mut asked = Vec::new();
    for (at, word) in new.scopes.iter().enumerate() {
        match Scope::ALL.into_iter().find(|scope| scope.word() == word) {
            Some(scope) => asked.push(scope),
            None => problems.push(
                Problem::new(Code::UnknownValue, format!("scopes[{at}]"), format!("`{word}` is not a scope"))
                    .param("value", word.to_string())
                    .hint(known_scopes()),
            ),
        }
    }
    for (at, name) in new.roles.iter().enumerate() {
        match find_role(name) {
            Some(role) => asked.extend(role.scopes),
            None => problems.push(
                Problem::new(Code::UnknownValue, format!("roles[{at}]"), format!("`{name}` is not a role"))
                    .param("value", name.to_string())
                    .hint(known_roles()),
            ),
        }
    }
    Scope::ALL.into_iter().filter(|scope| asked.contains(scope)).collect()
}

fn known_scopes() -> String {
    let words: Vec<&str> = Scope::ALL.into_iter().map(Scope::word).collect();
    format!("scopes are {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_256_secret_bits_and_is_kept_as_a_hash() {
        let made = generate("test", vec!["events:write".into()], vec![], None, Timestamp(0)).expect("a key");
        let [tocsin, id, secret] = made.text.split('_').collect::<Vec<_>>()[..] else { panic!("{}", made.text) };
        assert_eq!((tocsin, id, secret.len()), ("tocsin", made.kept.id.as_str(), 64));
        assert_eq!(made.kept.hash, hash(&made.text));
        let other = generate("test", vec![], vec![], None, Timestamp(0)).expect("a key");
        assert_ne!(other.text, made.text);
    }
}
