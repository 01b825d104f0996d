//! Users of the console and their sessions, in memory.

use async_trait::async_trait;
use tocsin_model::time::Timestamp;

use super::MemoryRecords;
use crate::{
    error::StoreError,
    records::{Precondition, SESSIONS_OF_USER_MAX, Session, USERS_MAX, User, UserStore, user_noun},
};

#[async_trait]
impl UserStore for MemoryRecords {
    async fn users(&self) -> Result<Vec<User>, StoreError> {
        Ok(self.state.lock().accounts.users.values().cloned().collect())
    }

    async fn put_user(&self, user: User, expect: Precondition, now: Timestamp) -> Result<User, StoreError> {
        self.change(|state| {
            let users = &mut state.accounts.users;
            let old = users.get(&user.name);
            expect.check(old.map(|old| old.revision), || user_noun(&user.name))?;
            let has_subject = |other: &&User| other.oidc_subject == user.oidc_subject && other.name != user.name;
            if let Some(other) = users.values().find(has_subject).filter(|_| user.oidc_subject.is_some()) {
                return Err(StoreError::Taken(format!("the OpenID subject of {}", user_noun(&other.name))));
            }
            let stored = match old {
                Some(old) => user.over(old, now),
                None if users.len() >= USERS_MAX => {
                    return Err(StoreError::Full(format!("there are {USERS_MAX} users")));
                }
                None => User { created_at: now, updated_at: now, last_login_at: None, revision: 1, ..user },
            };
            users.insert(stored.name.clone(), stored.clone());
            Ok(stored)
        })
    }

    async fn remove_user(&self, name: &str) -> Result<(), StoreError> {
        self.change(|state| {
            state.accounts.sessions.retain(|_, session| session.user != name);
            state.accounts.users.remove(name).map(drop).ok_or_else(|| StoreError::Missing(user_noun(name)))
        })
    }

    async fn sessions(&self) -> Result<Vec<Session>, StoreError> {
        Ok(self.state.lock().accounts.sessions.values().cloned().collect())
    }

    async fn put_session(&self, session: Session) -> Result<Vec<String>, StoreError> {
        self.change(|state| {
            let accounts = &mut state.accounts;
            if let Some(present) = accounts.sessions.values_mut().find(|present| present.id == session.id) {
                let Session { hash, last_used_at, expires_at, reauthenticated_at, .. } = session;
                *present = Session { hash, last_used_at, expires_at, reauthenticated_at, ..present.clone() };
                return Ok(Vec::new());
            }
            let user = accounts.users.get_mut(&session.user);
            user.ok_or_else(|| StoreError::Missing(user_noun(&session.user)))?.last_login_at = Some(session.created_at);
            let of_user = accounts.sessions.values().filter(|present| present.user == session.user);
            let mut present: Vec<_> = of_user.map(|present| (present.last_used_at, present.id.clone())).collect();
            present.sort_by(|a, b| b.cmp(a));
            let ended = present.split_off(present.len().min(SESSIONS_OF_USER_MAX - 1));
            let ended: Vec<String> = ended.into_iter().map(|(_, id)| id).collect();
            accounts.sessions.retain(|_, present| !ended.contains(&present.id));
            accounts.sessions.insert((session.created_at, session.id.clone()), session);
            Ok(ended)
        })
    }

    async fn touch_sessions(&self, used: Vec<(String, Timestamp)>) -> Result<(), StoreError> {
        self.change(|state| {
            for (id, at) in used {
                let found = state.accounts.sessions.values_mut().find(|session| session.id == id);
                if let Some(session) = found {
                    session.last_used_at = at;
                }
            }
            Ok(())
        })
    }

    async fn remove_sessions(&self, ids: Vec<String>) -> Result<(), StoreError> {
        self.change(|state| {
            state.accounts.sessions.retain(|_, session| !ids.contains(&session.id));
            Ok(())
        })
    }
}
