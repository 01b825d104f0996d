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
    use super::*;

    /// Made by `openssl genrsa 2048`, for this test only.
    const KEY: &str = include_str!("testdata/consent-key.pem");
    /// `ann@example.org 12345`, encrypted by `openssl pkeyutl -pkeyopt rsa_padding_mode:oaep`.
    const ENCRYPTED: &str = include_str!("testdata/confirmation.b64");

    #[test]
    fn a_confirmation_encrypted_by_openssl_is_decrypted() {
        let key = ConsentKey::from_pem(KEY).expect("a key");
        assert!(key.public_pem().starts_with("-----BEGIN PUBLIC KEY-----"));
        let decrypted = key.decrypt(ENCRYPTED).expect("a confirmation");
        assert_eq!((decrypted.address.as_str(), decrypted.code.as_str()), ("ann@example.org", "12345"));
    }

    #[test]
    fn other_texts_are_refused() {
        let key = ConsentKey::from_pem(KEY).expect("a key");
        let code = |text: &str| key.decrypt(text).map_err(|problem| problem.code);
        let mut bytes = BASE64_STANDARD.decode(ENCRYPTED.trim()).expect("base64");
        bytes[9] ^= 1;
        assert_eq!(code(&BASE64_STANDARD.encode(&bytes)), Err(Code::InvalidFormat));
        assert_eq!(code("!"), Err(Code::InvalidFormat));
        assert_eq!(code(""), Err(Code::InvalidFormat));
        assert_eq!(code(&"A".repeat(CIPHERTEXT_MAX + 1)), Err(Code::TooLong));
        assert!(matches!(ConsentKey::from_pem("x"), Err(ConsentKeyError::Unreadable)));
        assert!(!format!("{key:?}").contains("BEGIN"));
    }
}
