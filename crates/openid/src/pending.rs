//! Logins in progress, in memory: from the redirect to the provider until its callback.

use std::{collections::HashMap, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    digest::{SHA256, digest},
    rand::{SecureRandom, SystemRandom},
};
use tocsin_model::time::Timestamp;

use crate::provider::{LoginRequest, OpenidError};

/// Time that a user has for a login at the provider.
const LIFETIME: Duration = Duration::from_secs(10 * 60);
/// Maximum number of logins in progress; the oldest make room.
const PENDING_MAX: usize = 10_000;

/// A login in progress.
pub(crate) struct PendingLogin {
    pub(crate) request: LoginRequest,
    pub(crate) nonce: String,
    /// Code verifier of PKCE.
    pub(crate) verifier: String,
    pub(crate) started_at: Timestamp,
}

/// The logins in progress, by state.
#[derive(Default)]
pub(crate) struct PendingLogins(HashMap<String, PendingLogin>);

impl PendingLogins {
    pub(crate) fn add(&mut self, state: String, login: PendingLogin) {
        if self.0.len() >= PENDING_MAX {
            let now = login.started_at;
            self.0.retain(|_, other| other.started_at + LIFETIME > now);
            let oldest = self.0.iter().min_by_key(|(_, other)| other.started_at).map(|(state, _)| state.clone());
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= PENDING_MAX) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(state, login);
    }

    /// Takes a login: its state works once.
    pub(crate) fn take(&mut self, state: &str, now: Timestamp) -> Option<PendingLogin> {
        self.0.remove(state).filter(|login| login.started_at + LIFETIME > now)
    }
}

/// 32 random bytes as text.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn random_text() -> Result<String, OpenidError> {
    let mut random = [0u8; 32];
    let failed = |_| OpenidError::Unavailable("the system has no random numbers".to_owned());
    SystemRandom::new().fill(&mut random).map_err(failed)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(random))
}

/// The code challenge of a verifier (RFC 7636, 4.2).
pub(crate) fn challenge(verifier: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
}
