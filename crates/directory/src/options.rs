//! Configuration of the directory.

use std::{sync::Arc, time::Duration};

use tocsin_model::time::Timestamp;

use crate::{entry::Shape, password::Lockout};

/// Clock of the process.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Configuration of the directory.
#[derive(Debug, Clone)]
pub struct Options {
    /// DN of the suffix entry, such as `dc=example,dc=org`.
    pub suffix: String,
    /// Mapping of subscribers to attributes.
    pub shape: Shape,
    /// Access rules; if empty, the default rules apply.
    pub access: Vec<String>,
    /// Number of wrong passwords that lock an entry, and the duration of the lock.
    pub lockout: Lockout,
    /// Password policy rules, such as `to * pwdMinLength=12`; the first rule that matches the entry applies.
    pub password_policy: Vec<String>,
    /// Lifetimes of dynamic entries (RFC 2589).
    pub lifetimes: Lifetimes,
    /// Approximate memory of the entry cache, in bytes.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            suffix: "o=site".to_owned(),
            shape: Shape::default(),
            access: Vec::new(),
            lockout: Lockout { failures: 0, duration: Duration::ZERO },
            password_policy: Vec::new(),
            lifetimes: Lifetimes::default(),
            cache_bytes: 1 << 20,
        }
    }
}

/// Lifetimes of dynamic entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// Initial lifetime.
    pub at_first: Duration,
    /// Minimum lifetime; shorter requests get this one.
    pub least: Duration,
    /// Maximum lifetime; longer requests are rejected.
    pub most: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Lifetimes { at_first: day, least: Duration::from_secs(1), most: 365 * day }
    }
}
