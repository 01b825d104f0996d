//! AUTH PLAIN (RFC 4616): one user with a password.

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::digest;

/// Credentials of the user who may send.
#[derive(Clone)]
pub struct Login {
    /// The user name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl Login {
    /// Whether the client's response, in base 64, has the correct user name and password.
    pub(crate) fn is_valid(&self, answer: &str) -> bool {
        let Ok(plain) = STANDARD.decode(answer.trim()) else { return false };
        let parts: Vec<&[u8]> = plain.split(|byte| *byte == 0).collect();
        let [on_behalf, user, password] = parts[..] else { return false };
        // Hashes are compared, so that the time does not reveal the position of a difference.
        let hash = |text: &[u8]| digest::digest(&digest::SHA256, text);
        let is_same = |given: &[u8], own: &str| hash(given).as_ref() == hash(own.as_bytes()).as_ref();
        let (user, password) = (is_same(user, &self.user), is_same(password, &self.password));
        user & password && (on_behalf.is_empty() || is_same(on_behalf, &self.user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_correct_password_is_accepted() {
        let login = Login { user: "meters".to_owned(), password: "pass".to_owned() };
        let check = |answer: &str, expected| assert_eq!(login.is_valid(&STANDARD.encode(answer)), expected, "{answer}");
        check("\0meters\0pass", true);
        check("meters\0meters\0pass", true);
        check("other\0meters\0pass", false);
        check("\0meters\0Pass", false);
        check("\0meters", false);
        check("\0\0", false);
        assert!(!login.is_valid("not base 64"));
    }
}
