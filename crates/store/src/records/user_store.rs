//! Users of the console and their sessions.

use async_trait::async_trait;
use tocsin_model::time::Timestamp;

use crate::{
    error::StoreError,
    records::{
        Precondition,
        users::{Session, User},
    },
};

/// Users of the console and their sessions.
///
/// A write is durable when the call returns. Users and sessions are not part of the change log: callers keep a copy in
/// memory. There are at most [`USERS_MAX`](crate::records::USERS_MAX) users.
#[async_trait]
pub trait UserStore: Send + Sync + 'static {
    /// All users, by name.
    async fn users(&self) -> Result<Vec<User>, StoreError>;

    /// Stores a user under its name, and returns it as stored. The revision, the times of creation and change and the
    /// last login of `user` are ignored. `Taken`: another user has the same OpenID subject.
    async fn put_user(&self, user: User, expect: Precondition, now: Timestamp) -> Result<User, StoreError>;

    /// Removes a user with its sessions; `Missing` if there is none.
    async fn remove_user(&self, name: &str) -> Result<(), StoreError>;

    /// All sessions, oldest first, including expired ones.
    async fn sessions(&self) -> Result<Vec<Session>, StoreError>;

    /// Stores a session. A new one is a login: it sets the last login of its user, and ends the least recently used
    /// sessions of the user beyond the maximum, whose ids are returned. `Missing` if there is no such user.
    async fn put_session(&self, session: Session) -> Result<Vec<String>, StoreError>;

    /// Sets the last use of sessions, by id. Unknown ids are ignored.
    async fn touch_sessions(&self, used: Vec<(String, Timestamp)>) -> Result<(), StoreError>;

    /// Removes sessions by id. Idempotent.
    async fn remove_sessions(&self, ids: Vec<String>) -> Result<(), StoreError>;
}
