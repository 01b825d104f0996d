//! What entries prove themselves with: hashes of passwords, never passwords.
//!
//! New passwords are hashed by Argon2id. Hashes that come from another directory (`{SSHA}` and its relatives) are taken as
//! they are and asked as they are. Hashing takes tens of milliseconds, so it never runs on a thread that serves others, and
//! only a few run at the same time; who finds no place is told to come again.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use argon2::{
    Argon2, PasswordHash, PasswordHasher, PasswordVerifier,
    password_hash::{Salt, SaltString},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{
    digest,
    rand::{SecureRandom, SystemRandom},
};
use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tokio::sync::Semaphore;

use crate::refusal::{Code, Refusal};

/// Longest password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1_024;
/// Hashes that are worked out at the same time.
const HASHING_MAX: usize = 2;
/// Hashes that may wait to be worked out.
pub(crate) const WAITING_MAX: usize = 256;

/// Stands for the moment since when an entry is locked that somebody locked.
const LOCKED_BY_OTHERS: i64 = 0;

static HASHING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(HASHING_MAX)));
static WAITING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(WAITING_MAX)));

/// What is stored of a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// `$argon2id$…`, or `{SSHA}…` as it came from elsewhere.
    pub hash: String,
    /// When wrong passwords came since the last right one. This and the moments below are microseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_at: Vec<i64>,
    /// Since when no password is right, and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_at: Option<i64>,
    /// See `locked_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_until: Option<i64>,
    /// When it became the password of its entry; `None`: before that was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<i64>,
    /// Hashes of those before it, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<String>,
    /// When it was taken after its time was over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub graces: Vec<i64>,
    /// Whether its holder has to change it, since another gave it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
}

/// After how many wrong passwords an entry is locked, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lockout {
    /// How many; 0: never.
    pub failures: u32,
    /// How long; zero: until somebody unlocks it.
    pub duration: Duration,
}

impl Credential {
    /// What is known of a password of which only the hash is.
    pub(crate) fn of(hash: String) -> Credential {
        Credential {
            hash,
            failed_at: Vec::new(),
            locked_at: None,
            locked_until: None,
            changed_at: None,
            history: Vec::new(),
            graces: Vec::new(),
            reset: false,
        }
    }

    /// As whoever moves an entry gives it: taken as it is.
    pub(crate) fn given(&self) -> String {
        if self.hash.starts_with('{') { self.hash.clone() } else { format!("{{ARGON2}}{}", self.hash) }
    }

    /// Whether no password is right just now.
    pub(crate) fn is_locked(&self, now: Timestamp) -> bool {
        self.locked_until.is_some_and(|until| now.0 < until)
    }

    /// The hash of the password and of those before it, the newest first.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.hash).chain(&self.history)
    }

    /// Locks it until somebody unlocks it.
    pub(crate) fn lock(&mut self) {
        (self.locked_at, self.locked_until) = (Some(LOCKED_BY_OTHERS), Some(i64::MAX));
    }

    pub(crate) fn unlock(&mut self) {
        (self.locked_at, self.locked_until) = (None, None);
        self.failed_at.clear();
    }

    /// Whether it is locked by somebody, and not by wrong passwords.
    pub(crate) fn is_locked_by_others(&self) -> bool {
        self.locked_at == Some(LOCKED_BY_OTHERS)
    }

    /// As it is stored.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("text is JSON")
    }

    /// What was stored; `None` if it cannot be read.
    pub fn read(text: &str) -> Option<Credential> {
        serde_json::from_str(text).ok()
    }
}

/// Runs a job that takes long.
async fn apart<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let busy = || Refusal::new(Code::Busy, "too many passwords are being checked; try again");
    let _waiting = WAITING.clone().try_acquire_owned().map_err(|_| busy())?;
    let _hashing = HASHING.clone().acquire_owned().await.map_err(|_| busy())?;
    tokio::task::spawn_blocking(job)
        .await
        .map_err(|_| Refusal::new(Code::Other, "an internal error; the log tells more"))
}

/// Whether what a client gave is a hash in a scheme, and no password.
pub(crate) fn is_hash(given: &[u8]) -> bool {
    scheme_of(given).is_some()
}

fn scheme_of(given: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(given).ok()?.strip_prefix('{')?.split_once('}')
}

/// Makes of what a client gave what is stored: a hash is taken as it is.
///
/// # Errors
/// It is empty or too long, or in a scheme that is not known.
pub async fn protect(given: Vec<u8>) -> Result<Credential, Refusal> {
    if given.is_empty() || given.len() > PASSWORD_BYTES_MAX {
        let what = format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes");
        return Err(Refusal::new(Code::ConstraintViolation, what));
    }
    if let Some((scheme, rest)) = scheme_of(&given) {
        return match (Legacy::find(scheme), STANDARD.decode(rest)) {
            _ if scheme.eq_ignore_ascii_case("ARGON2") && PasswordHash::new(rest).is_ok() => {
                Ok(Credential::of(rest.to_owned()))
            }
            (Some(legacy), Ok(bytes)) if bytes.len() >= legacy.algorithm().output_len() => {
                Ok(Credential::of(String::from_utf8(given).expect("it was text")))
            }
            _ => {
                let schemes = "{SSHA}, {SHA}, {SSHA256}, {SHA256}, {SSHA512}, {SHA512} and {ARGON2}";
                Err(Refusal::new(
                    Code::ConstraintViolation,
                    format!("the hash of this password is not readable; the schemes are {schemes}"),
                ))
            }
        };
    }
    apart(move || hash(&given)).await?
}

fn hash(password: &[u8]) -> Result<Credential, Refusal> {
    let failed = |_| Refusal::new(Code::Other, "the password could not be hashed");
    let mut random = [0; 16];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| Refusal::new(Code::Unavailable, "the system has no random numbers"))?;
    let salt = SaltString::encode_b64(&random).map_err(failed)?;
    let hash = Argon2::default().hash_password(password, Salt::from(&salt)).map_err(failed)?;
    Ok(Credential::of(hash.to_string()))
}

/// Whether a password is the one that a credential was made of. Takes as long for an entry that has none, so that nobody
/// learns from the time who is there.
///
/// # Errors
/// Too many are being checked.
pub async fn verify(credential: Option<Credential>, password: Vec<u8>) -> Result<bool, Refusal> {
    static NOBODY: LazyLock<String> = LazyLock::new(|| hash(b"nobody").map(|made| made.hash).unwrap_or_default());
    if let Some(Credential { hash, .. }) = &credential
        && let Some((scheme, rest)) = hash.strip_prefix('{').and_then(|text| text.split_once('}'))
    {
        return Ok(Legacy::find(scheme).is_some_and(|legacy| legacy.verify(rest, &password)));
    }
    apart(move || {
        let is_known = credential.is_some();
        let hash = credential.map_or_else(|| NOBODY.clone(), |credential| credential.hash);
        let fits =
            PasswordHash::new(&hash).is_ok_and(|hash| Argon2::default().verify_password(&password, &hash).is_ok());
        is_known && fits
    })
    .await
}

/// A password that nobody can guess, of at least so many characters.
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn made_up_of(length_min: usize) -> Result<String, Refusal> {
    let mut made = made_up()?;
    while made.len() < length_min {
        made.push_str(&made_up()?);
    }
    Ok(made)
}

/// Something that nobody can guess.
///
/// # Errors
/// The system has no random numbers.
pub fn made_up() -> Result<String, Refusal> {
    let mut random = [0; 15];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| Refusal::new(Code::Unavailable, "the system has no random numbers"))?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random))
}

/// Schemes of RFC 3112's time, by which other directories keep passwords.
#[derive(Clone, Copy)]
enum Legacy {
    Sha1,
    Sha256,
    Sha512,
}

impl Legacy {
    fn find(scheme: &str) -> Option<Legacy> {
        match scheme.to_ascii_uppercase().as_str() {
            "SHA" | "SSHA" => Some(Legacy::Sha1),
            "SHA256" | "SSHA256" => Some(Legacy::Sha256),
            "SHA512" | "SSHA512" => Some(Legacy::Sha512),
            _ => None,
        }
    }

    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Legacy::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
            Legacy::Sha256 => &digest::SHA256,
            Legacy::Sha512 => &digest::SHA512,
        }
    }

    /// Behind the digest stands the salt.
    fn verify(self, encoded: &str, password: &[u8]) -> bool {
        let Ok(stored) = STANDARD.decode(encoded) else { return false };
        let Some((wanted, salt)) = stored.split_at_checked(self.algorithm().output_len()) else { return false };
        let found = digest::digest(self.algorithm(), &[password, salt].concat());
        // Both are digests, so the time of comparing tells nothing of the password.
        found.as_ref() == wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn a_password_is_known_by_its_hash() {
        run(async {
            let made = protect(b"open sesame".to_vec()).await.expect("hashed");
            assert!(made.hash.starts_with("$argon2id$"));
            let read = Credential::read(&made.to_text());
            assert_eq!(read.as_ref(), Some(&made));
            assert!(verify(read.clone(), b"open sesame".to_vec()).await.expect("checked"));
            assert!(!verify(read, b"open".to_vec()).await.expect("checked"));
            assert!(!verify(None, b"nobody".to_vec()).await.expect("checked"));
        });
    }

    #[test]
    fn hashes_from_elsewhere_are_taken_as_they_are() {
        run(async {
            let salted = [digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"pw0salt").as_ref(), b"salt"].concat();
            let given = format!("{{SSHA}}{}", STANDARD.encode(salted));
            let made = protect(given.clone().into_bytes()).await.expect("taken");
            assert_eq!(made.hash, given);
            assert!(verify(Some(made.clone()), b"pw0".to_vec()).await.expect("checked"));
            assert!(!verify(Some(made), b"pw1".to_vec()).await.expect("checked"));
            for wrong in ["{CRYPT}xx", "{SSHA}!", "{SSHA}c2hvcnQ=", "", &"x".repeat(2_000)] {
                assert!(protect(wrong.as_bytes().to_vec()).await.is_err(), "{wrong}");
            }
        });
    }
}
