//! API keys: authentication and authorization of callers.
//!
//! A key is `tocsin_<id>_<secret>` with a secret of 256 random bits; only its SHA-256 is stored. All keys are held in
//! memory, so that a request costs one hash and one lookup; they are reloaded when the records change.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::ArcSwap;
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::{
    problem::{Code, CredentialError, Problem},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{ApiKey, ApiKeyStore},
};
use tokio::sync::watch;

use crate::{
    Service,
    error::ServiceError,
    resources::{RESOURCE_FORMS, RESOURCES_MAX, Resource},
    roles::{find_role, known_roles},
};

/// Interval at which the clock is read while waiting for an expiry, as the clock can be set.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(30);

/// A scope of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Everything.
    Admin,
    /// Read applications, check definitions.
    ApplicationsRead,
    /// Apply and remove applications.
    ApplicationsWrite,
    /// Read subscribers, devices and subscriptions; export.
    SubscribersRead,
    /// Change subscribers, devices and subscriptions; import.
    SubscribersWrite,
    /// Submit events.
    EventsWrite,
    /// Read status, batches, notifications, traces and suspensions.
    OperationsRead,
    /// Resume, end, match again, probe.
    OperationsWrite,
    /// List, make and revoke keys.
    KeysWrite,
    /// Read the feeds of all subscribers, and broadcasts.
    InboxRead,
    /// Mark feed items, issue inbox tokens, and send broadcasts.
    InboxWrite,
    /// Report bounces and complaints, and nothing else: for the webhook of a provider.
    BouncesWrite,
    /// Read rows of collections, replica devices, and conflicts.
    SyncRead,
    /// Change rows, register devices for replicas, and stop them.
    SyncWrite,
    /// Send messages through the receive ports of exchanges, and read their replies.
    MessagesWrite,
}

impl Scope {
    /// All of them.
    pub const ALL: [Scope; 15] = [
        Scope::Admin,
        Scope::ApplicationsRead,
        Scope::ApplicationsWrite,
        Scope::SubscribersRead,
        Scope::SubscribersWrite,
        Scope::EventsWrite,
        Scope::OperationsRead,
        Scope::OperationsWrite,
        Scope::KeysWrite,
        Scope::InboxRead,
        Scope::InboxWrite,
        Scope::BouncesWrite,
        Scope::SyncRead,
        Scope::SyncWrite,
        Scope::MessagesWrite,
    ];

    /// Canonical spelling.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Admin => "admin",
            Scope::ApplicationsRead => "applications:read",
            Scope::ApplicationsWrite => "applications:write",
            Scope::SubscribersRead => "subscribers:read",
            Scope::SubscribersWrite => "subscribers:write",
            Scope::EventsWrite => "events:write",
            Scope::OperationsRead => "operations:read",
            Scope::OperationsWrite => "operations:write",
            Scope::KeysWrite => "keys:write",
            Scope::InboxRead => "inbox:read",
            Scope::InboxWrite => "inbox:write",
            Scope::BouncesWrite => "bounces:write",
            Scope::SyncRead => "sync:read",
            Scope::SyncWrite => "sync:write",
            Scope::MessagesWrite => "messages:write",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Scopes(u16);

impl Scopes {
    /// Unknown words, such as scopes of a newer version, are ignored.
    fn of(words: &[String]) -> Scopes {
        Scopes(Scope::ALL.into_iter().filter(|scope| words.iter().any(|word| word == scope.word())).map(bit).sum())
    }

    fn of_all(scopes: &[Scope]) -> Scopes {
        Scopes(scopes.iter().fold(0, |bits, scope| bits | bit(*scope)))
    }

    fn contain(self, scope: Scope) -> bool {
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0
    }

    /// The first scope of another key that these lack.
    fn first_missing(self, other: Scopes) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| other.0 & bit(*scope) != 0 && !self.contain(*scope))
    }
}

fn bit(scope: Scope) -> u16 {
    1 << scope as u8
}

/// An authenticated caller. Only [`Service::authenticate`] makes one.
#[derive(Debug, Clone)]
pub struct Caller {
    key: Arc<str>,
    /// Hash by which it is looked up again.
    hash: [u8; 32],
    scopes: Scopes,
    /// Resources that the key is limited to; `None`: unlimited.
    resources: Option<Arc<[Resource]>>,
    expires_at: Option<Timestamp>,
}

/// Reason why a credential became invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialEnd {
    /// The key was removed.
    Revoked,
    /// The key expired.
    Expired,
    /// Scopes, resources or expiry of the key changed.
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
            CredentialEnd::Revoked => (CredentialError::Revoked, "the key was revoked while it was in use"),
            CredentialEnd::Expired => (CredentialError::Expired, "the key or token expired while it was in use"),
            CredentialEnd::Changed => (
                CredentialError::Changed,
                "the rights of the key were changed while it was in use: send the request again",
            ),
        };
        ServiceError::Unauthenticated(cause, reason)
    }
}

impl Caller {
    fn of(key: &ApiKey) -> Caller {
        let (scopes, resources) = (Scopes::of(&key.scopes), resources_of(key));
        Caller { key: key.id.as_str().into(), hash: key.hash, scopes, resources, expires_at: key.expires_at }
    }

    /// The public part of the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The same, shared.
    pub fn key_id(&self) -> Arc<str> {
        self.key.clone()
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
    fn covers(&self, scopes: Scopes, resources: Option<&[Resource]>) -> Result<(), ServiceError> {
        if let Some(scope) = self.scopes.first_missing(scopes) {
            return Err(ServiceError::Forbidden(scope));
        }
        match resources {
            _ if !self.is_limited() => Ok(()),
            Some(resources) if resources.iter().all(|resource| self.reaches(resource)) => Ok(()),
            _ => Err(self.limited("it gives no access to other resources; give `resources` within these")),
        }
    }
}

/// Resources of a stored key. One that this version cannot read gives no access; it never makes a key unlimited.
fn resources_of(key: &ApiKey) -> Option<Arc<[Resource]>> {
    let read = || key.resources.iter().filter_map(|text| text.parse().ok()).collect();
    (!key.resources.is_empty()).then(read)
}

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

/// The keys in memory, by hash. A lookup by hash reveals nothing about partly correct keys (no timing side channel).
pub(crate) struct Keys {
    api_key_store: Arc<dyn ApiKeyStore>,
    /// Counts the reloads.
    read: watch::Sender<u64>,
    /// Serializes removals, so that two cannot together remove the last admin key.
    removing: tokio::sync::Mutex<()>,
    known: ArcSwap<HashMap<[u8; 32], Caller>>,
    /// Descriptions by id, also of removed keys.
    names: ArcSwap<HashMap<String, String>>,
}

impl Keys {
    pub(crate) async fn load(api_key_store: Arc<dyn ApiKeyStore>) -> Result<Arc<Keys>, StoreError> {
        let keys = Arc::new(Keys {
            api_key_store,
            read: watch::Sender::new(0),
            removing: tokio::sync::Mutex::default(),
            known: ArcSwap::default(),
            names: ArcSwap::default(),
        });
        keys.refresh().await?;
        Ok(keys)
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let (keys, removed) = (self.api_key_store.api_keys().await?, self.api_key_store.removed_api_keys().await?);
        let known = keys.iter().map(|key| (key.hash, Caller::of(key))).collect();
        let names = removed.into_iter().chain(keys.into_iter().map(|key| (key.id, key.description)));
        let names = names.filter(|(_, description)| !description.trim().is_empty()).collect();
        self.known.store(Arc::new(known));
        self.names.store(Arc::new(names));
        self.read.send_modify(|count| *count += 1);
        Ok(())
    }
}

/// Reloads the keys whenever they change. Ends when the keys are dropped.
pub(crate) fn follow_changes(keys: &Arc<Keys>) {
    let mut changes = keys.api_key_store.newest_key_change();
    let keys: Weak<Keys> = Arc::downgrade(keys);
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let Some(keys) = keys.upgrade() else { return };
            if let Err(error) = keys.refresh().await {
                tracing::warn!(%error, "could not read changed API keys; will try again");
                changes.mark_changed();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    });
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

    /// Description of a key by its id, also of a removed one; `None`: it has no description, or there was no such key.
    pub fn key_name(&self, id: &str) -> Option<String> {
        self.keys.names.load().get(id).cloned()
    }

    /// Why a caller's key became invalid; `None`: it is valid. Costs one lookup in memory.
    pub fn key_end(&self, caller: &Caller) -> Option<CredentialEnd> {
        if caller.expires_at.is_some_and(|end| end <= self.clock.now()) {
            return Some(CredentialEnd::Expired);
        }
        match self.keys.known.load().get(&caller.hash) {
            None => Some(CredentialEnd::Revoked),
            Some(now) if now.has_rights_of(caller) => None,
            Some(_) => Some(CredentialEnd::Changed),
        }
    }

    /// Waits until a caller's key becomes invalid.
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
                () = self.until(caller.expires_at) => {}
            }
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
        self.api_key_store.put_api_key(made.kept.clone()).await?;
        self.keys.refresh().await?;
        tracing::info!(key = made.kept.id, by = caller.key(), "made an API key");
        Ok(made)
    }

    /// Revokes a key: here from the next request on, on other nodes within a second.
    ///
    /// # Errors
    /// There is none of this id; it has rights that the caller has not, and is not the caller's own; it is the last with the
    /// scope `admin` that still holds; or the records are unavailable.
    pub async fn remove_api_key(&self, caller: &Caller, id: &str) -> Result<(), ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let _one_at_a_time = self.keys.removing.lock().await;
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

impl Caller {
    /// Whether two keys have the same rights.
    fn has_rights_of(&self, other: &Caller) -> bool {
        (self.scopes, &self.resources, self.expires_at) == (other.scopes, &other.resources, other.expires_at)
    }

    /// Whether the caller sees a key in lists: a limited one sees those within its resources, and itself.
    fn may_list_key(&self, key: &ApiKey) -> bool {
        let is_within = || resources_of(key).is_some_and(|all| all.iter().all(|resource| self.reaches(resource)));
        !self.is_limited() || key.id == self.key() || is_within()
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

    #[test]
    fn admin_holds_every_scope_and_others_only_their_own() {
        let admin = Scopes::of(&["admin".into()]);
        let publisher = Scopes::of(&["events:write".into(), "future:fly".into()]);
        for scope in Scope::ALL {
            assert!(admin.contain(scope));
            assert_eq!(publisher.contain(scope), scope == Scope::EventsWrite, "{}", scope.word());
        }
    }
}
