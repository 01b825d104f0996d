//! Confirmations encrypted by another installation: RSA-OAEP of an address and a code, which that installation has sent
//! to the address already. So one code confirms at several installations.

use base64::{Engine, prelude::BASE64_STANDARD};
use rsa::{
    Oaep, RsaPrivateKey,
    pkcs1::DecodeRsaPrivateKey,
    pkcs8::{DecodePrivateKey, EncodePublicKey, LineEnding},
    rand_core::OsRng,
    traits::PublicKeyParts,
};
use sha1::Sha1;
use tocsin_model::problem::{Code, Problem};

/// Smallest key, in bits.
const KEY_BITS_MIN: usize = 2_048;
/// Largest key, in bits.
const KEY_BITS_MAX: usize = 8_192;
/// Largest ciphertext in base64, in bytes.
const CIPHERTEXT_MAX: usize = 2_048;

/// Private key of an installation, shared by the installations that accept the same confirmations.
pub struct ConsentKey {
    key: RsaPrivateKey,
    public: String,
}

impl std::fmt::Debug for ConsentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConsentKey")
    }
}

/// A text that is not a usable private key.
#[derive(Debug, thiserror::Error)]
pub enum ConsentKeyError {
    /// It is not a private key in PEM.
    #[error("is not an RSA private key in PEM (PKCS #8 or PKCS #1)")]
    Unreadable,
    /// It has another size.
    #[error("has {0} bits; give a key of {KEY_BITS_MIN} to {KEY_BITS_MAX} bits")]
    Size(usize),
}

/// The content of an encrypted confirmation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decrypted {
    pub(crate) address: String,
    pub(crate) code: String,
}

impl ConsentKey {
    /// Reads a private key in PEM.
    ///
    /// # Errors
    /// The text is no such key, or its size is not allowed.
    pub fn from_pem(text: &str) -> Result<ConsentKey, ConsentKeyError> {
        let key = RsaPrivateKey::from_pkcs8_pem(text.trim()).or_else(|_| RsaPrivateKey::from_pkcs1_pem(text.trim()));
        let key = key.map_err(|_| ConsentKeyError::Unreadable)?;
        let bits = key.size() * 8;
        if !(KEY_BITS_MIN..=KEY_BITS_MAX).contains(&bits) {
            return Err(ConsentKeyError::Size(bits));
        }
        let public = key.to_public_key().to_public_key_pem(LineEnding::LF).map_err(|_| ConsentKeyError::Unreadable)?;
        Ok(ConsentKey { key, public })
    }

    /// The public key in PEM (SPKI), with which other installations encrypt. Not for the public: its holder can confirm
    /// any address.
    pub fn public_pem(&self) -> &str {
        &self.public
    }

    /// Decrypts base64 of RSA-OAEP with SHA-1 of `<address> <code>`. Takes milliseconds of processor time.
    pub(crate) fn decrypt(&self, encrypted: &str) -> Result<Decrypted, Problem> {
        let wrong = || {
            let message = "is not base64 of an address and a code, encrypted with the public key of this installation";
            Problem::new(Code::InvalidFormat, "encrypted", message).param("format", "rsa_oaep")
        };
        if encrypted.len() > CIPHERTEXT_MAX {
            return Err(Problem::too_long("encrypted", encrypted.len(), CIPHERTEXT_MAX));
        }
        let bytes = BASE64_STANDARD.decode(encrypted.trim()).map_err(|_| wrong())?;
        let plain = self.key.decrypt_blinded(&mut OsRng, Oaep::new::<Sha1>(), &bytes).map_err(|_| wrong())?;
        let plain = String::from_utf8(plain).map_err(|_| wrong())?;
        let mut words = plain.split_ascii_whitespace();
        let (Some(address), Some(code)) = (words.next(), words.next()) else { return Err(wrong()) };
        Ok(Decrypted { address: address.to_owned(), code: code.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use rsa::{RsaPublicKey, pkcs8::DecodePublicKey};
    use tocsin_test_peers::{Peer, missing};

    use super::*;

    const CONFIRMATION: &[u8] = b"ann@example.org 12345";

    fn is_the_confirmation(decrypted: &Decrypted) -> bool {
        (decrypted.address.as_str(), decrypted.code.as_str()) == ("ann@example.org", "12345")
    }

    #[test]
    fn a_confirmation_encrypted_by_openssl_is_decrypted() {
        if missing(&[Peer::Openssl]) {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let run = |arguments: &[&str], input: &[u8]| {
            let mut openssl = Command::new(Peer::Openssl.path());
            openssl.args(arguments).current_dir(&folder).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = openssl.stderr(Stdio::null()).spawn().expect("openssl runs");
            child.stdin.take().expect("piped").write_all(input).expect("it reads");
            let done = child.wait_with_output().expect("it ends");
            assert!(done.status.success(), "openssl {arguments:?}");
            done.stdout
        };
        let pem = run(&["genrsa", "2048"], b"");
        let key = ConsentKey::from_pem(&String::from_utf8(pem).expect("PEM")).expect("a key");
        assert!(key.public_pem().starts_with("-----BEGIN PUBLIC KEY-----"));
        std::fs::write(folder.path().join("public.pem"), key.public_pem()).expect("a file");
        let options = ["rsa_padding_mode:oaep", "rsa_oaep_md:sha1"];
        let encrypt = ["pkeyutl", "-encrypt", "-pubin", "-inkey", "public.pem", "-pkeyopt", options[0], "-pkeyopt"];
        let encrypted = run(&[&encrypt[..], &options[1..]].concat(), CONFIRMATION);
        let decrypted = key.decrypt(&BASE64_STANDARD.encode(encrypted)).expect("a confirmation");
        assert!(is_the_confirmation(&decrypted), "{decrypted:?}");
    }

    #[test]
    fn other_texts_are_refused() {
        use rsa::pkcs8::EncodePrivateKey;

        let pem = RsaPrivateKey::new(&mut OsRng, KEY_BITS_MIN).expect("a key").to_pkcs8_pem(LineEnding::LF);
        let key = ConsentKey::from_pem(&pem.expect("PEM")).expect("a key");
        let public = RsaPublicKey::from_public_key_pem(key.public_pem()).expect("a public key");
        let code = |bytes: &[u8]| key.decrypt(&BASE64_STANDARD.encode(bytes)).map_err(|problem| problem.code);
        let encrypted = |text: &[u8]| public.encrypt(&mut OsRng, Oaep::new::<Sha1>(), text).expect("encrypted");
        let mut bytes = encrypted(CONFIRMATION);
        assert!(code(&bytes).is_ok_and(|decrypted| is_the_confirmation(&decrypted)));
        bytes[9] ^= 1;
        assert_eq!(code(&bytes), Err(Code::InvalidFormat));
        for wrong in [&b"ann@example.org"[..], b"", b"\xff 1"] {
            assert_eq!(code(&encrypted(wrong)), Err(Code::InvalidFormat));
        }
        let code = |text: &str| key.decrypt(text).map_err(|problem| problem.code);
        assert_eq!(code("!"), Err(Code::InvalidFormat));
        assert_eq!(code(""), Err(Code::InvalidFormat));
        assert_eq!(code(&"A".repeat(CIPHERTEXT_MAX + 1)), Err(Code::TooLong));
        assert!(matches!(ConsentKey::from_pem("x"), Err(ConsentKeyError::Unreadable)));
        assert!(!format!("{key:?}").contains("BEGIN"));
    }
}
