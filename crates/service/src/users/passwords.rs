//! Passwords of users: Argon2id hashes, and the policy for new ones.
//!
//! The strength is estimated by zxcvbn, which knows the 30,000 most common passwords, names, words, dates and rows of
//! keys, and their usual variations. A list of the 10,000 most common passwords alone has hardly one of 12 characters.

use std::sync::LazyLock;

use argon2::{
    Argon2,
    password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, Salt, SaltString},
};
use ring::rand::{SecureRandom, SystemRandom};
use tocsin_model::problem::{Code, Problem};
use tokio::sync::Semaphore;

use crate::error::ServiceError;

/// Minimum length of a password, in characters.
pub const PASSWORD_CHARS_MIN: usize = 12;
/// Maximum length of a password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1_024;
/// Estimated number of guesses below which a password is rejected.
const GUESSES_MIN: u64 = 1_000_000;
/// Minimum number of characters beside texts about the user.
const REST_CHARS_MIN: usize = 6;
/// Maximum number of hashes computed at once: each takes 19 MiB.
const HASHING_MAX: usize = 2;
/// Maximum number of hashes that wait.
const WAITING_MAX: usize = 64;

static HASHING: Semaphore = Semaphore::const_new(HASHING_MAX);
static WAITING: Semaphore = Semaphore::const_new(WAITING_MAX);

/// Checks a new password; `about`: texts that must not be its main part, such as the name of the user.
pub(crate) fn weakness(password: &str, about: &[&str]) -> Option<Problem> {
    let given = password.chars().count();
    if given < PASSWORD_CHARS_MIN {
        let message = format!("is shorter than {PASSWORD_CHARS_MIN} characters");
        return Some(
            Problem::new(Code::WeakPassword, "password", message)
                .hint("three or four unrelated words are a good password"),
        );
    }
    if password.len() > PASSWORD_BYTES_MAX {
        let message = format!("is longer than {PASSWORD_BYTES_MAX} bytes");
        let problem = Problem::new(Code::TooLong, "password", message);
        return Some(problem.param("limit", PASSWORD_BYTES_MAX).param("unit", "bytes"));
    }
    let own: Vec<&str> = about.iter().copied().chain(["tocsin"]).filter(|text| !text.is_empty()).collect();
    let is_weak = rest_of(password, &own) < REST_CHARS_MIN || zxcvbn::zxcvbn(password, &own).guesses() < GUESSES_MIN;
    is_weak.then(|| {
        Problem::new(Code::WeakPassword, "password", "is a common password, or easy to guess")
            .hint("add unrelated words; rows of keys, years and repetitions help little")
    })
}

/// Number of characters beside texts about the user. Short texts are parts of many words and do not count.
fn rest_of(password: &str, about: &[&str]) -> usize {
    let mut about: Vec<String> = about.iter().map(|text| text.to_lowercase()).filter(|text| text.len() >= 3).collect();
    about.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let rest = about.iter().fold(password.to_lowercase(), |rest, text| rest.replace(text.as_str(), ""));
    rest.chars().count()
}

/// Hashes a password.
pub(crate) async fn hash(password: String) -> Result<String, ServiceError> {
    apart(move || hash_now(&password)).await?
}

/// Verifies a password. Without a hash it takes as long, and the result is false.
pub(crate) async fn verify(hash: Option<String>, password: String) -> Result<bool, ServiceError> {
    static DUMMY: LazyLock<String> = LazyLock::new(|| hash_now("dummy").unwrap_or_default());
    apart(move || {
        let is_user = hash.is_some() && password.len() <= PASSWORD_BYTES_MAX;
        let hash = hash.filter(|_| is_user).unwrap_or_else(|| DUMMY.clone());
        let is_right = PasswordHash::new(&hash)
            .is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok());
        is_right && is_user
    })
    .await
}

fn hash_now(password: &str) -> Result<String, ServiceError> {
    let failed = |error: String| ServiceError::Unavailable(format!("the password cannot be hashed: {error}").into());
    let mut random = [0; 16];
    SystemRandom::new().fill(&mut random).map_err(|error| failed(error.to_string()))?;
    let salt = SaltString::encode_b64(&random).map_err(|error| failed(error.to_string()))?;
    let hash = Argon2::default().hash_password(password.as_bytes(), Salt::from(&salt));
    hash.map(|hash| hash.to_string()).map_err(|error| failed(error.to_string()))
}

/// Runs a hash on a thread of its own, a few at a time.
async fn apart<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Result<T, ServiceError> {
    let Ok(_waiting) = WAITING.try_acquire() else {
        let reason = "too many passwords are being checked".to_owned();
        return Err(ServiceError::TooMany { reason, retry_after: std::time::Duration::from_secs(2) });
    };
    let _permit = HASHING.acquire().await.expect("the semaphore is never closed");
    tokio::task::spawn_blocking(job).await.map_err(|error| ServiceError::Unavailable(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_common_and_own_passwords_are_rejected() {
        let about = ["ada", "Ada Lovelace", "ada@example.org"];
        for weak in [
            "",
            "elevenchars",
            "password1234",
            "Password1234",
            "qwertyuiop12",
            "123456789012",
            "aaaaaaaaaaaaaaaa",
            "iloveyou1234",
            "Ada Lovelace1",
            "tocsintocsin",
            "ada-ada-ada-ada",
            "ada@example.org!",
        ] {
            let code = weakness(weak, &about).map(|problem| problem.code);
            assert_eq!(code, Some(Code::WeakPassword), "{weak}");
        }
        let long = "x7".repeat(PASSWORD_BYTES_MAX);
        assert_eq!(weakness(&long, &about).map(|problem| problem.code), Some(Code::TooLong));
        for good in ["correct horse battery staple", "vKq3-9fLw-72Pd", "Bäume wachsen nachts"] {
            assert_eq!(weakness(good, &about), None, "{good}");
        }
    }

    #[tokio::test]
    async fn a_password_matches_its_own_hash_only() {
        let stored = hash("correct horse battery".to_owned()).await.expect("hashed");
        assert!(stored.starts_with("$argon2id$"));
        assert_ne!(stored, hash("correct horse battery".to_owned()).await.expect("hashed"), "each has its own salt");
        assert!(verify(Some(stored.clone()), "correct horse battery".to_owned()).await.expect("verified"));
        assert!(!verify(Some(stored), "correct horse batterz".to_owned()).await.expect("verified"));
        for none in [None, Some("not a hash".to_owned())] {
            assert!(!verify(none, "dummy".to_owned()).await.expect("verified"));
        }
    }
}
