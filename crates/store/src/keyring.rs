//! Encryption of secrets at rest (envelope encryption). Each text is sealed with a random key of its own, which is
//! sealed with a key of the ring. Rotating the ring's key therefore reseals small keys only, and no ring key encrypts
//! much data.
//!
//! AES-256-GCM from `ring`. A sealed text names its key: `sealed:1:KEY:...`.

use std::{collections::BTreeMap, fmt, sync::Arc};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom, SystemRandom},
};

use crate::error::StoreError;

/// Prefix of a sealed text. No application definition begins like this: a definition is YAML with a mapping at the
/// top.
const SEALED: &str = "sealed:1:";
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;

/// Named keys. The first key seals; all keys open.
#[derive(Clone, Default)]
pub struct Keyring(Option<Arc<Keys>>);

struct Keys {
    first: String,
    keys: BTreeMap<String, [u8; KEY_BYTES]>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&String> = self.0.iter().flat_map(|keys| keys.keys.keys()).collect();
        f.debug_tuple("Keyring").field(&names).finish()
    }
}

impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => one.first == other.first && one.keys == other.keys,
            _ => false,
        }
    }
}

impl Eq for Keyring {}

/// The text of a keyring is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct KeyringError {
    /// Line number, from 1.
    pub line: usize,
    /// Expected form.
    pub what: &'static str,
}

impl Keyring {
    /// Reads one key per line: `NAME` and 64 hexadecimal digits. Empty lines and lines that begin with `#` are
    /// ignored. Without any key, nothing is sealed.
    ///
    /// # Errors
    /// A line has another form, or a name occurs twice.
    pub fn read(text: &str) -> Result<Keyring, KeyringError> {
        let mut keys = BTreeMap::new();
        let mut first = None;
        for (at, line) in text.lines().map(str::trim).enumerate() {
            let wrong = |what| KeyringError { line: at + 1, what };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, digits) =
                line.split_once(char::is_whitespace).ok_or(wrong("give a name, a blank and the key"))?;
            let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !is_name || name.len() > 40 {
                return Err(wrong("a name has letters, digits and hyphens, at most 40"));
            }
            let key = key_of(digits.trim())
                .ok_or(wrong("a key has 64 hexadecimal digits; `openssl rand -hex 32` makes one"))?;
            if keys.insert(name.to_owned(), key).is_some() {
                return Err(wrong("this name is there twice"));
            }
            first.get_or_insert_with(|| name.to_owned());
        }
        Ok(Keyring(first.map(|first| Arc::new(Keys { first, keys }))))
    }

    /// Whether there is a key to seal with.
    pub fn seals(&self) -> bool {
        self.0.is_some()
    }

    /// Seals a text with the first key; without keys the text is returned unchanged.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn seal(&self, text: &str) -> Result<String, StoreError> {
        let Some(keys) = &self.0 else { return Ok(text.to_owned()) };
        let mut own = [0; KEY_BYTES];
        random(&mut own)?;
        let mut sealed = encrypt(&keys.keys[&keys.first], &own)?;
        sealed.extend(encrypt(&own, text.as_bytes())?);
        Ok(format!("{SEALED}{}:{}", keys.first, hex::encode(sealed)))
    }

    /// Opens a sealed text; a text that is not sealed is returned unchanged.
    ///
    /// # Errors
    /// `Unavailable` if its key is not in the keyring, `Damaged` if the sealed text was altered.
    pub fn open(&self, text: String) -> Result<String, StoreError> {
        let Some((name, digits)) = text.strip_prefix(SEALED).and_then(|rest| rest.split_once(':')) else {
            return Ok(text);
        };
        let key = self.0.as_ref().and_then(|keys| keys.keys.get(name)).ok_or_else(|| {
            StoreError::unavailable(format!(
                "a stored secret is sealed with the key `{name}`, which is not among the keys given"
            ))
        })?;
        let damaged = || StoreError::Damaged("a sealed text".to_owned());
        let bytes = hex::decode(digits).map_err(|_| damaged())?;
        let (own, text) = bytes.split_at_checked(NONCE_LEN + KEY_BYTES + TAG_BYTES).ok_or_else(damaged)?;
        let own = decrypt(key, own).and_then(|own| <[u8; KEY_BYTES]>::try_from(own).ok()).ok_or_else(damaged)?;
        String::from_utf8(decrypt(&own, text).ok_or_else(damaged)?).map_err(|_| damaged())
    }

    /// Whether a text is sealed with the first key, or unsealed if there are no keys.
    pub fn is_current(&self, text: &str) -> bool {
        match &self.0 {
            None => true,
            Some(keys) => text.strip_prefix(SEALED).is_some_and(|rest| rest.starts_with(&format!("{}:", keys.first))),
        }
    }
}

fn key_of(digits: &str) -> Option<[u8; KEY_BYTES]> {
    hex::decode(digits).ok()?.try_into().ok()
}

fn random(bytes: &mut [u8]) -> Result<(), StoreError> {
    SystemRandom::new().fill(bytes).map_err(|_| StoreError::unavailable("the system has no random numbers"))
}

fn cipher(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key has the length of its cipher"))
}

/// Encrypts with a random nonce; returns the nonce, the ciphertext and the tag.
fn encrypt(key: &[u8; KEY_BYTES], bytes: &[u8]) -> Result<Vec<u8>, StoreError> {
    let mut nonce = [0; NONCE_LEN];
    random(&mut nonce)?;
    let mut sealed = bytes.to_vec();
    let done = cipher(key).seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed);
    done.map_err(|_| StoreError::unavailable("the text is too long to be sealed"))?;
    Ok([&nonce[..], &sealed].concat())
}

fn decrypt(key: &[u8; KEY_BYTES], sealed: &[u8]) -> Option<Vec<u8>> {
    let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
    let mut bytes = sealed.to_vec();
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let length = cipher(key).open_in_place(nonce, Aad::empty(), &mut bytes).ok()?.len();
    bytes.truncate(length);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, digit: char) -> String {
        format!("{name} {}", digit.to_string().repeat(64))
    }

    #[test]
    fn only_the_sealing_key_opens_a_text() {
        let (old, new) = (key("monday", '1'), key("tuesday", '2'));
        let ring = Keyring::read(&format!("# keys\n{old}\n")).expect("keys");
        let sealed = ring.seal("password: geheim").expect("sealed");
        assert!(sealed.starts_with("sealed:1:monday:") && !sealed.contains("geheim"));
        assert_ne!(sealed, ring.seal("password: geheim").expect("sealed"), "each has a key of its own");
        assert_eq!(ring.open(sealed.clone()).expect("opened"), "password: geheim");
        let both = Keyring::read(&format!("{new}\n{old}")).expect("keys");
        assert_eq!(both.open(sealed.clone()).expect("opened"), "password: geheim");
        assert!(ring.is_current(&sealed) && !both.is_current(&sealed) && !both.is_current("plain"));
        let other = Keyring::read(&new).expect("keys");
        assert!(matches!(other.open(sealed.clone()), Err(StoreError::Unavailable(_))));
        assert!(matches!(Keyring::default().open(sealed.clone()), Err(StoreError::Unavailable(_))));
        let mut damaged = sealed;
        let last = if damaged.pop() == Some('0') { '1' } else { '0' };
        damaged.push(last);
        assert!(matches!(ring.open(damaged), Err(StoreError::Damaged(_))));
        assert!(matches!(ring.open("sealed:1:monday:ab".to_owned()), Err(StoreError::Damaged(_))));
    }

    #[test]
    fn without_keys_nothing_is_sealed() {
        let none = Keyring::read("# none yet\n\n").expect("no keys");
        assert_eq!(none, Keyring::default());
        assert_eq!(none.seal("a").expect("as it is"), "a");
        assert!(none.is_current("a"));
        assert_eq!(format!("{:?}", Keyring::read(&key("monday", '1')).expect("keys")), "Keyring([\"monday\"])");
    }

    #[test]
    fn an_invalid_line_is_reported_by_number() {
        let twice = format!("{}\n{}", key("a", '1'), key("a", '2'));
        for (text, line) in [("a", 1), ("\na 12", 2), ("a/b 12", 1), (twice.as_str(), 2)] {
            assert_eq!(Keyring::read(text).expect_err("wrong").line, line, "{text}");
        }
    }
}
