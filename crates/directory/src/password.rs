//! Password storage: salted hashes, never passwords.
//!
//! New passwords are hashed by Argon2id. Hashes imported from another directory (`{SSHA}` and similar schemes,
//! `{ARGON2}`) are stored unchanged if their parameters are within bounds. Hashing takes tens of milliseconds and runs
//! on blocking threads: two at a time, and only one that costs more than our own. Further ones wait in a bounded queue;
//! above the bound they fail with `busy`. Each check takes at least as long as one of our own hashes.

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

use crate::{
    ldap_error::{Code, LdapError},
    schema::{AttributeType, PASSWORD, Schema},
};

/// Attribute of a forced change.
pub(crate) const RESET: &str = "pwdreset";
/// Attribute of the lock time.
pub(crate) const LOCKED: &str = "pwdaccountlockedtime";
/// Attribute of the last change.
pub(crate) const CHANGED: &str = "pwdchangedtime";
/// Attribute of the grace logins.
pub(crate) const GRACES: &str = "pwdgraceusetime";

/// Whether a modification concerns the password or its state.
pub(crate) fn concerns_password(name: &str, schema: &Schema) -> bool {
    schema.attribute(name).is_ok_and(|kind| matches!(&*kind.key, PASSWORD | RESET | LOCKED))
}

/// Whether an attribute is password state.
pub fn is_password_state(kind: &AttributeType) -> bool {
    matches!(&*kind.key, RESET | LOCKED | CHANGED | GRACES)
}

/// Maximum length of a password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1_024;
/// Maximum concurrent hash computations.
const HASHING_MAX: usize = 2;
/// Maximum waiting hash computations.
pub(crate) const WAITING_MAX: usize = 256;

/// Value of `locked_at` that marks a lock by an administrator.
const LOCKED_BY_OTHERS: i64 = 0;

/// Maximum memory of a hash, in KiB.
const MEMORY_KIB_MAX: u32 = 128 << 10;
/// Maximum passes of a hash.
const PASSES_MAX: u32 = 16;
/// Maximum lanes of a hash.
const LANES_MAX: u32 = 16;
/// Maximum work of a hash: memory in KiB times passes.
const WORK_MAX: u64 = 512 << 10;
/// Allowed salt length, in decoded bytes.
const SALT_BYTES: std::ops::RangeInclusive<usize> = 8..=64;
/// Allowed output length, in bytes.
const OUTPUT_BYTES: std::ops::RangeInclusive<usize> = 16..=64;
/// Maximum waiting checks of costly hashes, lower than the total so that usual ones always find a place.
const COSTLY_WAITING_MAX: usize = 32;

/// Permits one costly hash at a time, so that others always find a place.
static COSTLY: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(1)));
static COSTLY_WAITING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(COSTLY_WAITING_MAX)));
static HASHING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(HASHING_MAX)));
static WAITING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(WAITING_MAX)));

/// Stored state of a password.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// `$argon2id$…`, or an imported hash such as `{SSHA}…`.
    pub hash: String,
    /// Times of wrong passwords since the last right one. This and the times below are in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_at: Vec<i64>,
    /// Time since when the entry is locked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_at: Option<i64>,
    /// Time when the lock ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_until: Option<i64>,
    /// Time when the password was set; `None`: before this was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<i64>,
    /// Hashes of former passwords, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<String>,
    /// Times of grace logins after the password expired.
    #[serde(rename = "graces", default, skip_serializing_if = "Vec::is_empty")]
    pub grace_use_times: Vec<i64>,
    /// Whether the password must be changed, since an administrator set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reset: bool,
}

/// Lockout policy: number of wrong passwords, and duration of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lockout {
    /// Number of wrong passwords; 0: never.
    pub failures: u32,
    /// Duration; zero: until an administrator unlocks the entry.
    pub duration: Duration,
}

impl Credential {
    /// A credential of which only the hash is known.
    pub(crate) fn of(hash: String) -> Credential {
        Credential {
            hash,
            failed_at: Vec::new(),
            locked_at: None,
            locked_until: None,
            changed_at: None,
            history: Vec::new(),
            grace_use_times: Vec::new(),
            reset: false,
        }
    }

    /// The hash in the form in which an export or import carries it.
    pub(crate) fn exported_hash(&self) -> String {
        if self.hash.starts_with('{') { self.hash.clone() } else { format!("{{ARGON2}}{}", self.hash) }
    }

    /// Whether every password is rejected now.
    pub(crate) fn is_locked(&self, now: Timestamp) -> bool {
        self.locked_until.is_some_and(|until| now.0 < until)
    }

    /// Hashes of the current and the former passwords, newest first.
    pub(crate) fn hashes(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.hash).chain(&self.history)
    }

    /// Locks the entry until an administrator unlocks it.
    pub(crate) fn lock(&mut self) {
        (self.locked_at, self.locked_until) = (Some(LOCKED_BY_OTHERS), Some(i64::MAX));
    }

    pub(crate) fn unlock(&mut self) {
        (self.locked_at, self.locked_until) = (None, None);
        self.failed_at.clear();
    }

    /// Whether an administrator locked it, and not wrong passwords.
    pub(crate) fn is_locked_by_others(&self) -> bool {
        self.locked_at == Some(LOCKED_BY_OTHERS)
    }

    /// Serializes the credential.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("text is JSON")
    }

    /// Parses a stored credential; `None` if it is malformed.
    pub fn read(text: &str) -> Option<Credential> {
        serde_json::from_str(text).ok()
    }
}

/// Cost class of checking a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cost {
    /// At most about the cost of our own hash.
    Usual,
    /// More, within the bounds.
    High,
}

/// Runs a long computation on a blocking thread.
async fn apart<T: Send + 'static>(cost: Cost, job: impl FnOnce() -> T + Send + 'static) -> Result<T, LdapError> {
    let busy = || LdapError::new(Code::Busy, "too many passwords are being checked; try again");
    let _costly = match cost {
        Cost::Usual => None,
        Cost::High => {
            let waiting = COSTLY_WAITING.clone().try_acquire_owned().map_err(|_| busy())?;
            Some((COSTLY.clone().acquire_owned().await.map_err(|_| busy())?, waiting))
        }
    };
    let _waiting = WAITING.clone().try_acquire_owned().map_err(|_| busy())?;
    let _hashing = HASHING.clone().acquire_owned().await.map_err(|_| busy())?;
    tokio::task::spawn_blocking(job)
        .await
        .map_err(|_| LdapError::new(Code::Other, "internal error; see the log of the server"))
}

/// Whether a client sent a hash with a scheme instead of a password.
pub(crate) fn is_hash(given: &[u8]) -> bool {
    scheme_of(given).is_some()
}

fn scheme_of(given: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(given).ok()?.strip_prefix('{')?.split_once('}')
}

/// Hashes a password for storage; a hash is stored unchanged.
///
/// # Errors
/// The password is empty or too long, or the scheme is unknown.
pub async fn protect(given: Vec<u8>) -> Result<Credential, LdapError> {
    if given.is_empty() || given.len() > PASSWORD_BYTES_MAX {
        let what = format!("a password has 1 to {PASSWORD_BYTES_MAX} bytes");
        return Err(LdapError::new(Code::ConstraintViolation, what));
    }
    if let Some((scheme, rest)) = scheme_of(&given) {
        let refused = |what: String| LdapError::new(Code::ConstraintViolation, what);
        if scheme.eq_ignore_ascii_case("ARGON2") {
            let read =
                Imported::read(rest).map_err(|why| refused(format!("the Argon2 hash of this password {why}")))?;
            return Ok(Credential::of(read.text.to_owned()));
        }
        return match Legacy::find(scheme).is_some_and(|legacy| legacy.parts(rest).is_some()) {
            true => Ok(Credential::of(String::from_utf8(given).expect("it was text"))),
            false => {
                let schemes = "{SSHA}, {SHA}, {SSHA256}, {SHA256}, {SSHA512}, {SHA512} and {ARGON2}";
                Err(refused(format!(
                    "the hash of this password has an unknown or malformed scheme; the schemes are {schemes}"
                )))
            }
        };
    }
    apart(Cost::Usual, move || hash(&given)).await?
}

/// An Argon2 hash in PHC string format whose parameters are within the bounds.
struct Imported<'a> {
    text: &'a str,
    hash: PasswordHash<'a>,
    /// Memory in KiB, times passes.
    work: u64,
}

impl<'a> Imported<'a> {
    /// Parses a hash. Nothing is computed before its parameters are checked.
    fn read(text: &'a str) -> Result<Imported<'a>, String> {
        let unreadable = |_| "is not of the form `$argon2id$v=19$m=65536,t=3,p=4$salt$hash`".to_owned();
        let hash = PasswordHash::new(text).map_err(unreadable)?;
        argon2::Algorithm::try_from(hash.algorithm)
            .map_err(|_| format!("has the algorithm `{}`; it is argon2id, argon2i or argon2d", hash.algorithm))?;
        if hash.version.is_some_and(|version| argon2::Version::try_from(version).is_err()) {
            return Err("has an unknown version; the versions are 16 and 19".to_owned());
        }
        let params = argon2::Params::try_from(&hash).map_err(|_| "has parameters that are not valid".to_owned())?;
        let bound = |name: &str, found: u32, most: u32| match found > most {
            true => Err(format!("has {name}={found}; at most {most} is allowed. Hash the password again")),
            false => Ok(()),
        };
        bound("m", params.m_cost(), MEMORY_KIB_MAX)?;
        bound("t", params.t_cost(), PASSES_MAX)?;
        bound("p", params.p_cost(), LANES_MAX)?;
        let work = u64::from(params.m_cost()) * u64::from(params.t_cost());
        if work > WORK_MAX {
            return Err(format!("has m*t={work}; at most {WORK_MAX} is allowed. Hash the password again"));
        }
        let mut bytes = [0; 64];
        let salt = hash.salt.and_then(|salt| salt.decode_b64(&mut bytes).ok()).map_or(0, <[u8]>::len);
        if !SALT_BYTES.contains(&salt) {
            return Err(format!("has a salt of {salt} bytes; 8 to 64 are allowed"));
        }
        let output = hash.hash.map_or(0, |output| output.len());
        if !OUTPUT_BYTES.contains(&output) {
            return Err(format!("has an output of {output} bytes; 16 to 64 are allowed"));
        }
        Ok(Imported { text, hash, work })
    }

    /// Whether a check costs less than one of our own, so that the dummy hash is computed too.
    fn is_cheap(&self) -> bool {
        self.work < own_work()
    }

    fn cost(&self) -> Cost {
        if self.work > own_work() { Cost::High } else { Cost::Usual }
    }
}

/// Work of our own hash.
fn own_work() -> u64 {
    u64::from(argon2::Params::DEFAULT_M_COST) * u64::from(argon2::Params::DEFAULT_T_COST)
}

fn hash(password: &[u8]) -> Result<Credential, LdapError> {
    let failed = |_| LdapError::new(Code::Other, "the password could not be hashed");
    let mut random = [0; 16];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| LdapError::new(Code::Unavailable, "the system's random number generator failed"))?;
    let salt = SaltString::encode_b64(&random).map_err(failed)?;
    let hash = Argon2::default().hash_password(password, Salt::from(&salt)).map_err(failed)?;
    Ok(Credential::of(hash.to_string()))
}

/// Verifies a password against a credential.
///
/// A missing entry, an entry without a password and a hash of another scheme take at least as long as our own hash. A
/// stored hash beyond the bounds matches no password; it is not computed.
///
/// # Errors
/// Too many checks are waiting.
pub async fn verify(credential: Option<Credential>, password: Vec<u8>) -> Result<bool, LdapError> {
    static DUMMY: LazyLock<String> = LazyLock::new(|| hash(b"dummy").map(|made| made.hash).unwrap_or_default());
    let hash = credential.map(|credential| credential.hash);
    let imported = hash.as_deref().filter(|hash| hash.starts_with('$')).map(Imported::read);
    if let Some(Err(why)) = &imported {
        tracing::warn!("a password cannot be verified: the stored hash {why}; set a new password");
    }
    let cost = imported.and_then(Result::ok).map_or(Cost::Usual, |imported| imported.cost());
    apart(cost, move || compare(hash.as_deref(), &password, &DUMMY).0).await
}

/// Compares a password with a stored hash, and returns the Argon2 work done, in KiB times passes. Without a hash, or
/// with one cheaper than our own, the dummy hash is computed too.
fn compare(hash: Option<&str>, password: &[u8], dummy: &str) -> (bool, u64) {
    let beside = || {
        let is_dummy = |hash: PasswordHash<'_>| Argon2::default().verify_password(password, &hash).is_ok();
        std::hint::black_box(PasswordHash::new(dummy).is_ok_and(is_dummy));
        own_work()
    };
    let Some(hash) = hash else { return (false, beside()) };
    if let Some((scheme, rest)) = scheme_of(hash.as_bytes()) {
        let work = beside();
        return (Legacy::find(scheme).is_some_and(|legacy| legacy.verify(rest, password)), work);
    }
    let Ok(imported) = Imported::read(hash) else { return (false, beside()) };
    let work = if imported.is_cheap() { beside() } else { 0 };
    let is_right = Argon2::default().verify_password(password, &imported.hash).is_ok();
    (is_right, work + imported.work)
}

/// Generates a random password of at least this many characters.
///
/// # Errors
/// The system's random number generator failed.
pub(crate) fn generate_with_length(length_min: usize) -> Result<String, LdapError> {
    let mut made = generate()?;
    while made.len() < length_min {
        made.push_str(&generate()?);
    }
    Ok(made)
}

/// Generates a random, unguessable text.
///
/// # Errors
/// The system's random number generator failed.
pub fn generate() -> Result<String, LdapError> {
    let mut random = [0; 15];
    SystemRandom::new()
        .fill(&mut random)
        .map_err(|_| LdapError::new(Code::Unavailable, "the system's random number generator failed"))?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(random))
}

/// Hash schemes of other directories, from before Argon2.
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

    /// The digest and the salt after it.
    fn parts(self, encoded: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut digest = STANDARD.decode(encoded).ok()?;
        let length = self.algorithm().output_len();
        let salt = (digest.len() >= length).then(|| digest.split_off(length))?;
        (salt.len() <= *SALT_BYTES.end()).then_some((digest, salt))
    }

    fn verify(self, encoded: &str, password: &[u8]) -> bool {
        let Some((requested, salt)) = self.parts(encoded) else { return false };
        let found = digest::digest(self.algorithm(), &[password, &salt].concat());
        // Both are digests, so the timing of the comparison reveals nothing about the password.
        found.as_ref() == requested
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn a_password_is_verified_by_its_hash() {
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
    fn imported_hashes_are_stored_unchanged() {
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

    const SALT: &str = "c29tZXNhbHRzb21lc2FsdA";
    const OUTPUT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    #[test]
    fn a7_the_parameters_of_an_imported_hash_are_bounded_at_entry() {
        run(async {
            let check = async |text: &str, expected: Option<&str>| {
                let done = protect(format!("{{ARGON2}}{text}").into_bytes()).await;
                match expected {
                    None => assert_eq!(done.expect("taken").hash, text),
                    Some(said) => {
                        let refusal = done.expect_err(text);
                        assert_eq!(refusal.code, Code::ConstraintViolation);
                        assert!(refusal.message.contains(said), "{text}: {}", refusal.message);
                    }
                }
            };
            let with = |params: &str| format!("$argon2id$v=19${params}${SALT}${OUTPUT}");
            check(&with("m=65536,t=3,p=4"), None).await;
            check(&with("m=102400,t=2,p=8"), None).await;
            check(&with("m=131072,t=4,p=1"), None).await;
            check(&with("m=4294967295,t=1,p=1"), Some("m=4294967295; at most 131072")).await;
            check(&with("m=19456,t=400,p=1"), Some("t=400; at most 16")).await;
            check(&with("m=131072,t=5,p=1"), Some("m*t=655360; at most 524288")).await;
            check(&with("m=65536,t=1,p=255"), Some("p=255; at most 16")).await;
            check(&with("m=19456,t=0,p=1"), Some("not valid")).await;
            check(&with("m=99999999999,t=1,p=1"), Some("")).await;
            check(&format!("$argon2id$v=19$m=19456,t=2,p=1${SALT}"), Some("output of 0 bytes")).await;
            check("$argon2id$v=19$m=19456,t=2,p=1", Some("salt of 0 bytes")).await;
            check(&format!("$argon2id$v=19$m=19456,t=2,p=1$YWJjZA${OUTPUT}"), Some("salt of 4 bytes")).await;
            check(&format!("$argon2id$v=21$m=19456,t=2,p=1${SALT}${OUTPUT}"), Some("version")).await;
            check(&format!("$scrypt$ln=30,r=8,p=1${SALT}${OUTPUT}"), Some("algorithm `scrypt`")).await;
            check(&format!("$pbkdf2-sha256$i=4000000000${SALT}${OUTPUT}"), Some("algorithm")).await;
        });
    }

    #[test]
    fn a7_a_stored_hash_beyond_the_bounds_matches_no_password_and_is_not_computed() {
        run(async {
            for params in ["m=4294967295,t=1,p=1", "m=19456,t=4294967295,p=1", "m=1048576,t=1,p=1"] {
                let stored = Credential::of(format!("$argon2id$v=19${params}${SALT}${OUTPUT}"));
                assert!(!verify(Some(stored), b"pw".to_vec()).await.expect("checked"), "{params}");
            }
        });
    }

    #[test]
    fn a7_a_costly_hash_does_not_block_usual_ones() {
        run(async {
            let costly =
                Imported::read("$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHRzb21lc2FsdA$AAAAAAAAAAAAAAAAAAAAAAAA");
            assert_eq!(costly.expect("within the bounds").cost(), Cost::High);
            let own = hash(b"pw").expect("hashed");
            assert_eq!(Imported::read(&own.hash).expect("ours").cost(), Cost::Usual);
            let one = COSTLY.clone().acquire_owned().await.expect("open");
            let mut waits = std::pin::pin!(apart(Cost::High, || ()));
            assert!(waits.as_mut().now_or_never().is_none(), "one costly hash at a time");
            assert!(verify(Some(own), b"pw".to_vec()).await.expect("checked"), "others find a place");
            drop(one);
            waits.await.expect("its turn comes");
        });
    }

    /// Counts work instead of time: a missing entry, one without a password and one with another scheme cost at least
    /// as much as our own hash.
    #[test]
    fn f10_a_wrong_password_takes_equal_work_for_known_and_unknown_entries() {
        let dummy = hash(b"dummy").expect("hashed").hash;
        let own = hash(b"right").expect("hashed").hash;
        let cheap = format!("$argon2id$v=19$m=8,t=1,p=1${SALT}${OUTPUT}");
        let sha = format!("{{SHA}}{}", STANDARD.encode(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"right")));
        assert_eq!(compare(Some(&*own), b"right", &dummy), (true, own_work()));
        assert_eq!(compare(Some(&*own), b"wrong", &dummy), (false, own_work()));
        assert_eq!(compare(None, b"wrong", &dummy), (false, own_work()), "nobody of that name");
        assert_eq!(compare(Some(&*sha), b"wrong", &dummy), (false, own_work()));
        assert_eq!(compare(Some(&*sha), b"right", &dummy), (true, own_work()));
        assert_eq!(compare(Some("unreadable"), b"wrong", &dummy), (false, own_work()));
        let (is_right, work) = compare(Some(&*cheap), b"wrong", &dummy);
        assert!(!is_right && (own_work()..own_work() + 64).contains(&work), "{work}");
        // The dummy must be one of our own hashes for the checks above to hold.
        assert_eq!(Imported::read(&dummy).expect("readable").work, own_work());
    }

    #[test]
    fn a11_each_scheme_takes_the_same_work() {
        use std::time::{Duration, Instant};
        run(async {
            let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, b"pw");
            let cheap = format!("$argon2id$v=19$m=8,t=1,p=1${SALT}${OUTPUT}");
            let own = hash(b"other").expect("hashed").hash;
            let all = [None, Some(format!("{{SHA}}{}", STANDARD.encode(digest))), Some(cheap), Some(own)];
            let mut least = vec![Duration::MAX; all.len()];
            let is_equal =
                |least: &[Duration]| *least.iter().min().expect("some") * 3 > *least.iter().max().expect("some");
            // The minimum becomes free of other load; without equal work it would differ by a factor of a hundred.
            for _ in 0..100 {
                if least[0] < Duration::MAX && is_equal(&least) {
                    break;
                }
                for (hash, least) in all.iter().zip(&mut least) {
                    let started = Instant::now();
                    verify(hash.clone().map(Credential::of), b"pw".to_vec()).await.expect("checked");
                    *least = (*least).min(started.elapsed());
                }
            }
            assert!(is_equal(&least), "{least:?}");
        });
    }
}
