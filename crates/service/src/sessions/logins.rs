//! State of logins in memory: counts of failures, and the links in force; the client of a login.

use std::net::IpAddr;

use parking_lot::Mutex;

use super::{links::Links, lockout::Lockout};

/// State of logins in memory.
#[derive(Default)]
pub(crate) struct Logins {
    pub(super) lockout: Lockout,
    pub(super) links: Mutex<Links>,
}

/// Client of a login.
#[derive(Debug, Clone, Default)]
pub struct LoginClient {
    /// Address, if known.
    pub address: Option<IpAddr>,
    /// `User-Agent`, if given.
    pub user_agent: Option<String>,
}
