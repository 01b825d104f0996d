//! The state of users and sessions.

use std::collections::BTreeMap;

use tocsin_model::time::Timestamp;

use crate::records::{Session, User};

/// Users by name, and sessions by creation time and id.
#[derive(Default)]
pub(super) struct Accounts {
    pub(super) users: BTreeMap<String, User>,
    pub(super) sessions: BTreeMap<(Timestamp, String), Session>,
}
