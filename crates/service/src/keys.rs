//! API keys: who is calling, and what that caller may do.
//!
//! A key is `tocsin_<id>_<secret>` with a secret of 256 random bits; only its SHA-256 is kept. All keys are held in
//! memory, so that a request costs one hash and one look-up; they are read again when the records tell of a change.

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
use tocsin_model::{hexadecimal::digits_of, problem::Problem, time::Timestamp};
use tocsin_store::{
    error::StoreError,
    records::{ApiKey, Records},
};

use crate::{
    Service,
    error::ServiceError,
    roles::{find_role, known_roles},
};

/// Something that a key may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scope {
    /// Everything.
    Admin,
    /// See applications, check definitions.
    ApplicationsRead,
    /// Apply and remove applications.
    ApplicationsWrite,
    /// See subscribers, devices and subscriptions; export.
    SubscribersRead,
    /// Change subscribers, devices and subscriptions; import.
    SubscribersWrite,
    /// Submit events.
    EventsWrite,
    /// See status, batches, notifications, traces and suspensions.
    OperationsRead,
    /// Resume, end, match again, probe.
    OperationsWrite,
    /// List, make and remove keys.
    KeysWrite,
    /// See the feeds of all subscribers, and broadcasts.
    InboxRead,
    /// Mark what is in them, let subscribers read their own, and broadcast.
    InboxWrite,
    /// Report bounces and complaints, and nothing else: for the webhook of a provider.
    BouncesWrite,
    /// See rows of collections, the devices that keep replicas of them, and conflicts.
    SyncRead,
    /// Change rows, let devices keep replicas, and stop them.
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

    /// Its one spelling.
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
    /// Words that are not scopes, such as those of a newer version, give nothing.
    fn of(words: &[String]) -> Scopes {
        Scopes(Scope::ALL.into_iter().filter(|scope| words.iter().any(|word| word == scope.word())).map(bit).sum())
    }

    fn contain(self, scope: Scope) -> bool {
        self.0 & (bit(scope) | bit(Scope::Admin)) != 0
    }
}

fn bit(scope: Scope) -> u16 {
    1 << scope as u8
}

/// Someone who showed a good key. Only [`Service::authenticate`] makes one.
#[derive(Debug, Clone)]
pub struct Caller {
    key: Arc<str>,
    scopes: Scopes,
    expires_at: Option<Timestamp>,
}

impl Caller {
    /// The public part of the key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether the caller may do this.
    ///
    /// # Errors
    /// `Forbidden`, naming the scope.
    pub fn needs(&self, scope: Scope) -> Result<(), ServiceError> {
        if self.scopes.contain(scope) { Ok(()) } else { Err(ServiceError::Forbidden(scope)) }
    }
}

/// A key that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct NewKey {
    /// What it is for.
    pub description: String,
    /// What it may do, as words.
    pub scopes: Vec<String>,
    /// Names of roles, whose scopes it gets as well.
    pub roles: Vec<String>,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
}

/// A key that was just made. Its text is shown this once.
#[derive(Debug, Clone)]
pub struct MadeKey {
    /// What is kept of it.
    pub kept: ApiKey,
    /// The whole key.
    pub text: String,
}

/// Makes the first key of an installation, with the scope `admin`; `None` if there are keys already. The key's text is
/// given to `keep` before its hash is stored, so that a crash in between leaves no key that nobody knows.
///
/// # Errors
/// The records do not answer, there is no randomness, or `keep` fails; then nothing is stored.
pub async fn first_key<E: From<ServiceError>>(
    records: &dyn Records,
    now: Timestamp,
    keep: impl FnOnce(&str) -> Result<(), E>,
) -> Result<Option<String>, E> {
    if !records.api_keys().await.map_err(ServiceError::from)?.is_empty() {
        return Ok(None);
    }
    let made = generate("first admin key", vec![Scope::Admin.word().to_owned()], None, now)?;
    keep(&made.text)?;
    records.put_api_key(made.kept).await.map_err(ServiceError::from)?;
    Ok(Some(made.text))
}

fn generate(
    description: &str,
    scopes: Vec<String>,
    expires_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<MadeKey, ServiceError> {
    let mut random = [0u8; 36];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| ServiceError::Unavailable("the system gives no random numbers".into()))?;
    let (id, secret) = random.split_at(4);
    let id = digits_of(id);
    let text = format!("tocsin_{id}_{}", digits_of(secret));
    let kept =
        ApiKey { id, hash: hash(&text), description: description.to_owned(), scopes, created_at: now, expires_at };
    Ok(MadeKey { kept, text })
}

fn hash(key: &str) -> [u8; 32] {
    digest::digest(&digest::SHA256, key.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The keys in memory, by hash. Looking one up by its hash tells nobody how much of a wrong key was right.
pub(crate) struct Keys {
    records: Arc<dyn Records>,
    /// One removal at a time, so that two do not each believe that the other's key stays.
    removing: tokio::sync::Mutex<()>,
    known: ArcSwap<HashMap<[u8; 32], Caller>>,
}

impl Keys {
    pub(crate) async fn load(records: Arc<dyn Records>) -> Result<Arc<Keys>, StoreError> {
        let keys = Arc::new(Keys { records, removing: tokio::sync::Mutex::default(), known: ArcSwap::default() });
        keys.refresh().await?;
        Ok(keys)
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let known = self.records.api_keys().await?.into_iter().map(|key| {
            let caller = Caller { key: key.id.into(), scopes: Scopes::of(&key.scopes), expires_at: key.expires_at };
            (key.hash, caller)
        });
        self.known.store(Arc::new(known.collect()));
        Ok(())
    }
}

/// Reads the keys again whenever one was made or removed. Ends when the keys are dropped.
pub(crate) fn follow_changes(keys: &Arc<Keys>) {
    let mut changes = keys.records.newest_key_change();
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
    /// Who shows this key.
    ///
    /// # Errors
    /// `Unauthenticated`: the key is unknown, was removed or is over.
    pub fn authenticate(&self, key: &str) -> Result<Caller, ServiceError> {
        let known = self.keys.known.load();
        let caller = known.get(&hash(key)).ok_or(ServiceError::Unauthenticated("the key is not known"))?;
        match caller.expires_at {
            Some(end) if end <= self.clock.now() => Err(ServiceError::Unauthenticated("the key has expired")),
            _ => Ok(caller.clone()),
        }
    }

    /// All keys, oldest first, without their secrets.
    ///
    /// # Errors
    /// The scope `keys:write` is missing, or the records do not answer.
    pub async fn api_keys(&self, caller: &Caller) -> Result<Vec<ApiKey>, ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        Ok(self.records.api_keys().await?)
    }

    /// Makes a key. Nobody can give what they do not hold themselves.
    ///
    /// # Errors
    /// A scope that the caller does not hold; a scope or role that does not exist; the records do not answer.
    pub async fn make_api_key(&self, caller: &Caller, new: NewKey) -> Result<MadeKey, ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let now = self.clock.now();
        let mut problems = Vec::new();
        if new.description.chars().count() > 255 {
            problems.push(Problem::at("description", "is longer than 255 characters"));
        }
        if new.scopes.is_empty() && new.roles.is_empty() {
            problems.push(Problem::at("scopes", "names no scope, and there is no role").hint(known_scopes()));
        }
        if new.expires_at.is_some_and(|end| end <= now) {
            problems.push(Problem::at("expires_at", "lies in the past"));
        }
        let asked = asked_scopes(&new, &mut problems);
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        for scope in &asked {
            caller.needs(*scope)?;
        }
        let scopes = asked.into_iter().map(|scope| scope.word().to_owned()).collect();
        let made = generate(&new.description, scopes, new.expires_at, now)?;
        self.records.put_api_key(made.kept.clone()).await?;
        self.keys.refresh().await?;
        tracing::info!(key = made.kept.id, by = caller.key(), "made an API key");
        Ok(made)
    }

    /// Removes a key; it works nowhere from within a second on, here from the next request on.
    ///
    /// # Errors
    /// There is none of this id; it is the last with the scope `admin` that still holds, without which nobody could
    /// make another; or the records do not answer.
    pub async fn remove_api_key(&self, caller: &Caller, id: &str) -> Result<(), ServiceError> {
        caller.needs(Scope::KeysWrite)?;
        let _one_at_a_time = self.keys.removing.lock().await;
        let now = self.clock.now();
        let is_admin =
            |key: &ApiKey| Scopes::of(&key.scopes).contain(Scope::Admin) && key.expires_at.is_none_or(|end| end > now);
        let keys = self.records.api_keys().await?;
        let mut admins = keys.iter().filter(|key| is_admin(key));
        if admins.next().is_some_and(|first| first.id == id) && admins.next().is_none() {
            return Err(ServiceError::LastAdmin(id.to_owned()));
        }
        self.records.remove_api_key(id).await?;
        self.keys.refresh().await?;
        tracing::info!(key = id, by = caller.key(), "removed an API key");
        Ok(())
    }
}

/// The scopes of a key that is asked for, its roles' too, each once; words that are none become problems.
fn asked_scopes(new: &NewKey, problems: &mut Vec<Problem>) -> Vec<Scope> {
    let mut asked = Vec::new();
    for (at, word) in new.scopes.iter().enumerate() {
        match Scope::ALL.into_iter().find(|scope| scope.word() == word) {
            Some(scope) => asked.push(scope),
            None => problems
                .push(Problem::at(format!("scopes[{at}]"), format!("`{word}` is not a scope")).hint(known_scopes())),
        }
    }
    for (at, name) in new.roles.iter().enumerate() {
        match find_role(name) {
            Some(role) => asked.extend(role.scopes),
            None => problems
                .push(Problem::at(format!("roles[{at}]"), format!("`{name}` is not a role")).hint(known_roles())),
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
        let made = generate("test", vec!["events:write".into()], None, Timestamp(0)).expect("a key");
        let [tocsin, id, secret] = made.text.split('_').collect::<Vec<_>>()[..] else { panic!("{}", made.text) };
        assert_eq!((tocsin, id, secret.len()), ("tocsin", made.kept.id.as_str(), 64));
        assert_eq!(made.kept.hash, hash(&made.text));
        let other = generate("test", vec![], None, Timestamp(0)).expect("a key");
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
