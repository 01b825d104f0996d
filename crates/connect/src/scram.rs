//! SCRAM authentication (RFC 5802) with SHA-256 (RFC 7677) or SHA-512. Crates: docs/decisions/0042.

use std::{borrow::Cow, num::NonZeroU32};

use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{
    digest, hmac, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};

/// Iterations that a server may ask for: fewer make the password easy to guess, more cost too much time.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;

/// The hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha512 => &digest::SHA512,
        }
    }

    fn hmac(self) -> hmac::Algorithm {
        match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha512 => hmac::HMAC_SHA512,
        }
    }

    fn rounds(self) -> pbkdf2::Algorithm {
        match self {
            Hash::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Hash::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }
}

/// A name or password in the form in which it is hashed (SASLprep, RFC 4013); `None` if it has a prohibited character.
pub fn prepared(text: &str) -> Option<Cow<'_, str>> {
    stringprep::saslprep(text).ok()
}

/// Nonce for a [`Hello`]; none if the system has no random numbers.
pub fn nonce() -> Option<String> {
    let mut bytes = [0; 18];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(BASE64_STANDARD.encode(bytes))
}

/// The client-first message.
pub struct Hello {
    hash: Hash,
    bare: String,
    nonce: String,
}

/// The client-final message, and the server signature expected in return.
pub struct Proof {
    /// The text of the message.
    pub message: String,
    /// Key of the server signature.
    server_key: hmac::Key,
    exchange: String,
}

impl Proof {
    /// Whether the server-final message proves that the server knows the password.
    pub fn is_answered_by(&self, message: &str) -> bool {
        let signature = message.strip_prefix("v=").and_then(|text| BASE64_STANDARD.decode(text).ok());
        signature.is_some_and(|signature| hmac::verify(&self.server_key, self.exchange.as_bytes(), &signature).is_ok())
    }
}

impl Hello {
    /// The first message for a user, whose name is [`prepared`]. `nonce` must be new each time.
    pub fn new(hash: Hash, username: &str, nonce: &str) -> Hello {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        Hello { hash, bare: format!("n={name},r={nonce}"), nonce: nonce.to_owned() }
    }

    /// The text of the message.
    pub fn message(&self) -> String {
        format!("n,,{}", self.bare)
    }

    /// Answers the server-first message (RFC 5802, 3). The password is [`prepared`].
    ///
    /// # Errors
    /// The defect of the challenge.
    pub fn client_proof(&self, password: &str, challenge: &str) -> Result<Proof, String> {
        let wrong = || format!("this is not a SCRAM challenge: {challenge}");
        let mut parts = challenge.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or_else(wrong);
        let (nonce, salt, iterations) = (part("r=")?, part("s=")?, part("i=")?);
        let salt = BASE64_STANDARD.decode(salt).map_err(|_| wrong())?;
        let iterations: u32 = iterations.parse().map_err(|_| wrong())?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("the server's SCRAM challenge has another nonce".into());
        }
        let rounds =
            NonZeroU32::new(iterations).filter(|rounds| ITERATIONS.contains(&rounds.get())).ok_or_else(|| {
                let (least, most) = (ITERATIONS.start(), ITERATIONS.end());
                format!("the server asks for {iterations} rounds of SCRAM; from {least} to {most} are sound")
            })?;
        let mut salted = vec![0; self.hash.digest().output_len()];
        pbkdf2::derive(self.hash.rounds(), rounds, &salt, password.as_bytes(), &mut salted);
        let mac = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(self.hash.hmac(), key), text);
        let client_key = mac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let all = format!("{},{challenge},{without_proof}", self.bare);
        let signature = mac(digest::digest(self.hash.digest(), client_key.as_ref()).as_ref(), all.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, mask)| key ^ mask).collect();
        let server_key = hmac::Key::new(self.hash.hmac(), mac(&salted, b"Server Key").as_ref());
        let message = format!("{without_proof},p={}", BASE64_STANDARD.encode(proof));
        Ok(Proof { message, server_key, exchange: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scram_as_in_its_standard() {
        // The exchange of RFC 7677, 3.
        let hello = Hello::new(Hash::Sha256, "user", "rOprNGfwEbeRWgbNEkqO");
        assert_eq!(hello.message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let challenge = format!("r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096");
        let proof = hello.client_proof("pencil", &challenge).expect("a proof");
        assert_eq!(proof.message, format!("c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
        assert!(proof.is_answered_by("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        for wrong in ["v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=", "v=!", "e=other-error", ""] {
            assert!(!proof.is_answered_by(wrong), "{wrong}");
        }
    }

    #[test]
    fn names_and_passwords_are_prepared() {
        let check = |text: &str, expected: Option<&str>| assert_eq!(prepared(text).as_deref(), expected, "{text:?}");
        // From RFC 4013, 3.
        check("I\u{ad}X", Some("IX"));
        check("user", Some("user"));
        check("USER", Some("USER"));
        check("\u{aa}", Some("a"));
        check("\u{2168}", Some("IX"));
        check("\u{7}", None);
        check("\u{627}1", None);
        // A letter in two forms.
        check("Bu\u{308}ro", Some("Büro"));
        check("\u{7f}", None);
    }

    #[test]
    fn challenges_that_are_not_sound() {
        let hello = Hello::new(Hash::Sha512, "a,b=c", "abc");
        assert_eq!(hello.bare, "n=a=2Cb=3Dc,r=abc");
        for wrong in [
            "",
            "r=abc",
            "r=abc,s=AA==,i=4096",
            "r=xyz1,s=AA==,i=4096",
            "r=abc1,s=!,i=4096",
            "r=abc1,s=AA==,i=1",
            "r=abc1,s=AA==,i=99999999",
            "m=x,r=abc1,s=AA==,i=4096",
        ] {
            assert!(hello.client_proof("x", wrong).is_err(), "{wrong}");
        }
    }
}
