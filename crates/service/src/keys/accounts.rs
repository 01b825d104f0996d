//! Users and sessions in memory, so that a request with a session costs one hash and one lookup.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::time::Timestamp;
use tocsin_pipeline::Clock;
use tocsin_store::{
    error::StoreError,
    records::{Session, User, UserStore},
};

use super::{
    caller::{Caller, CredentialEnd, SessionCredential},
    scopes::{Scope, Scopes},
};
use crate::{error::ServiceError, roles::find_role};

/// Time without a request after which a session ends.
pub const SESSION_IDLE_MAX: Duration = Duration::from_secs(12 * 60 * 60);
/// Lifetime of a session.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time after a proof of identity in which operations that demand one are allowed.
pub const REAUTHENTICATION_LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Time in which the former token of a renewed session is accepted, for requests that are on their way.
const FORMER_TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// Interval at which the last uses of sessions are stored, and expired sessions are removed.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The users and sessions in memory.
pub(crate) struct Accounts {
    pub(crate) store: Arc<dyn UserStore>,
    /// Serializes changes, so that two of them cannot together remove the last admin.
    pub(crate) changing: tokio::sync::Mutex<()>,
    known: RwLock<AccountCache>,
}

#[derive(Default)]
struct AccountCache {
    users: BTreeMap<Arc<str>, Arc<User>>,
    /// By id.
    sessions: HashMap<Arc<str>, Arc<LiveSession>>,
    /// Ids by the hash of the token.
    ids: HashMap<[u8; 32], Arc<str>>,
    /// The same of the former tokens of renewed sessions, until a time.
    former_ids: HashMap<[u8; 32], (Arc<str>, Timestamp)>,
}

/// A session with the time of its last use, which is stored later.
struct LiveSession {
    stored: Session,
    last_used_at: AtomicI64,
    /// Whether the roles of the user changed since the token was made.
    is_renewal_due: AtomicBool,
}

impl LiveSession {
    fn of(stored: Session, is_renewal_due: bool) -> Arc<LiveSession> {
        let last_used_at = AtomicI64::new(stored.last_used_at.0);
        Arc::new(LiveSession { stored, last_used_at, is_renewal_due: AtomicBool::new(is_renewal_due) })
    }

    fn last_used_at(&self) -> Timestamp {
        Timestamp(self.last_used_at.load(Ordering::Relaxed))
    }

    fn ends_at(&self) -> Timestamp {
        (self.last_used_at() + SESSION_IDLE_MAX).min(self.stored.expires_at)
    }

    fn now(&self) -> Session {
        Session { last_used_at: self.last_used_at(), ..self.stored.clone() }
    }
}

impl Accounts {
    pub(crate) async fn load(store: Arc<dyn UserStore>) -> Result<Arc<Accounts>, StoreError> {
        let (users, sessions) = (store.users().await?, store.sessions().await?);
        let accounts = Accounts { store, changing: tokio::sync::Mutex::default(), known: RwLock::default() };
        users.into_iter().for_each(|user| accounts.keep_user(user));
        sessions.into_iter().for_each(|session| accounts.keep_session(session));
        Ok(Arc::new(accounts))
    }

    pub(crate) fn users(&self) -> Vec<Arc<User>> {
        self.known.read().users.values().cloned().collect()
    }

    pub(crate) fn user(&self, name: &str) -> Option<Arc<User>> {
        self.known.read().users.get(name).cloned()
    }

    pub(crate) fn has_users(&self) -> bool {
        !self.known.read().users.is_empty()
    }

    /// All sessions that have not ended, oldest first.
    pub(crate) fn sessions(&self, now: Timestamp) -> Vec<Session> {
        let known = self.known.read();
        let mut open: Vec<Session> =
            known.sessions.values().filter(|live| live.ends_at() > now).map(|live| live.now()).collect();
        open.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        open
    }

    pub(crate) fn session(&self, id: &str) -> Option<Session> {
        self.known.read().sessions.get(id).map(|live| live.now())
    }

    /// Takes over a stored user.
    pub(crate) fn keep_user(&self, user: User) {
        self.known.write().users.insert(user.name.as_str().into(), Arc::new(user));
    }

    /// Takes over a removed user, with its sessions.
    pub(crate) fn drop_user(&self, name: &str) {
        let mut known = self.known.write();
        known.users.remove(name);
        known.retain_sessions(|session| session.user != name);
    }

    /// Takes over a stored session. The former token of a renewed one ends.
    pub(crate) fn keep_session(&self, session: Session) {
        let mut known = self.known.write();
        let id: Arc<str> = session.id.as_str().into();
        let hash = session.hash;
        let former = known.sessions.insert(id.clone(), LiveSession::of(session, false));
        if let Some(former) = former {
            known.ids.remove(&former.stored.hash);
        }
        known.ids.insert(hash, id);
    }

    /// Takes over a session with a new token. The former one is accepted for a minute.
    pub(crate) fn keep_renewed_session(&self, session: Session, now: Timestamp) {
        let mut known = self.known.write();
        known.former_ids.retain(|_, (_, until)| *until > now);
        let former = known.sessions.get(session.id.as_str()).map(|live| live.stored.hash);
        if let Some(former) = former {
            known.former_ids.insert(former, (session.id.as_str().into(), now + FORMER_TOKEN_LIFETIME));
        }
        drop(known);
        self.keep_session(session);
    }

    /// Marks the sessions of a user, whose roles changed, for a new token.
    pub(crate) fn renew_sessions_of(&self, user: &str) {
        let known = self.known.read();
        for live in known.sessions.values().filter(|live| live.stored.user == user) {
            live.is_renewal_due.store(true, Ordering::Relaxed);
        }
    }

    /// The session with this id, if it is marked for a new token. The mark is taken.
    pub(crate) fn take_renewal(&self, id: &str) -> Option<Session> {
        let known = self.known.read();
        let live = known.sessions.get(id)?;
        live.is_renewal_due.swap(false, Ordering::Relaxed).then(|| live.now())
    }

    /// Takes over removed sessions.
    pub(crate) fn drop_sessions(&self, ids: &[String]) {
        self.known.write().retain_sessions(|session| !ids.contains(&session.id));
    }

    /// The caller of a token, as of now. This use extends the session.
    pub(super) fn authenticate(&self, token: &str, now: Timestamp) -> Result<Caller, CredentialEnd> {
        let known = self.known.read();
        let hash = token_hash(token);
        let former = || known.former_ids.get(&hash).filter(|(_, until)| *until > now).map(|(id, _)| id);
        let id = known.ids.get(&hash).or_else(former).ok_or(CredentialEnd::Revoked)?;
        let live = known.sessions.get(id).ok_or(CredentialEnd::Revoked)?;
        let caller = known.caller(live, now)?;
        live.last_used_at.fetch_max(now.0, Ordering::Relaxed);
        Ok(caller)
    }

    /// The caller of a session, as of now.
    pub(super) fn caller(&self, id: &str, now: Timestamp) -> Result<Caller, CredentialEnd> {
        let known = self.known.read();
        known.caller(known.sessions.get(id).ok_or(CredentialEnd::Revoked)?, now)
    }

    /// The time at which a session ends, unless it is used again.
    pub(super) fn ends_at(&self, id: &str) -> Option<Timestamp> {
        self.known.read().sessions.get(id).map(|live| live.ends_at())
    }

    /// Stores the last uses, and removes expired sessions.
    async fn keep_up(&self, now: Timestamp) -> Result<(), StoreError> {
        let (mut used, mut over) = (Vec::new(), Vec::new());
        for live in self.known.read().sessions.values() {
            if live.ends_at() <= now {
                over.push(live.stored.id.clone());
            } else if live.last_used_at() > live.stored.last_used_at {
                used.push(live.now());
            }
        }
        if !used.is_empty() {
            let times = used.iter().map(|session| (session.id.clone(), session.last_used_at)).collect();
            self.store.touch_sessions(times).await?;
            let mut known = self.known.write();
            for session in used {
                // It may have ended, or have a new token by now.
                let is_same = |live: &&mut Arc<LiveSession>| live.stored.hash == session.hash;
                if let Some(live) = known.sessions.get_mut(session.id.as_str()).filter(is_same) {
                    let (used, is_due) = (live.last_used_at(), live.is_renewal_due.load(Ordering::Relaxed));
                    let stored = LiveSession::of(session, is_due);
                    stored.last_used_at.store(used.0, Ordering::Relaxed);
                    *live = stored;
                }
            }
        }
        if !over.is_empty() {
            self.store.remove_sessions(over.clone()).await?;
            self.drop_sessions(&over);
        }
        metrics::gauge!("tocsin_console_sessions").set(self.known.read().sessions.len() as f64);
        Ok(())
    }
}

impl AccountCache {
    fn retain_sessions(&mut self, is_kept: impl Fn(&Session) -> bool) {
        self.sessions.retain(|_, live| is_kept(&live.stored));
        let AccountCache { ids, former_ids, sessions, .. } = self;
        ids.retain(|_, id| sessions.contains_key(id));
        former_ids.retain(|_, (id, _)| sessions.contains_key(id));
    }

    fn caller(&self, live: &LiveSession, now: Timestamp) -> Result<Caller, CredentialEnd> {
        let session = &live.stored;
        if live.ends_at() <= now {
            return Err(CredentialEnd::Expired);
        }
        let user = self.users.get(session.user.as_str()).filter(|user| !user.disabled);
        let user = user.ok_or(CredentialEnd::Revoked)?;
        let credential = SessionCredential {
            id: session.id.as_str().into(),
            user: session.user.as_str().into(),
            reauthenticated_until: session.reauthenticated_at + REAUTHENTICATION_LIFETIME,
        };
        Ok(Caller::of_session(credential, scopes_of(&user.roles)))
    }
}

/// The scopes of roles. Roles that this version does not know give none.
pub(crate) fn scopes_of(roles: &[String]) -> Scopes {
    let scopes: Vec<Scope> =
        roles.iter().filter_map(|name| find_role(name)).flat_map(|role| role.scopes).copied().collect();
    Scopes::of_all(&scopes)
}

/// Keeps sessions up to date in the store. Ends when the accounts are dropped.
pub(crate) fn keep_up(accounts: &Arc<Accounts>, clock: Arc<dyn Clock>) {
    let accounts: Weak<Accounts> = Arc::downgrade(accounts);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            let Some(accounts) = accounts.upgrade() else { return };
            if let Err(error) = accounts.keep_up(clock.now()).await {
                tracing::warn!(%error, "could not store the last uses of sessions; will try again");
            }
        }
    });
}

/// A new token: 32 random bytes, as text for a cookie or a link.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn new_token() -> Result<String, ServiceError> {
    use base64::Engine as _;
    let mut random = [0u8; 32];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| ServiceError::Unavailable("the system gives no random numbers".into()))?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random))
}

/// The stored form of a token.
pub(crate) fn token_hash(token: &str) -> [u8; 32] {
    digest::digest(&digest::SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}
