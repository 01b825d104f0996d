//! Encrypts a text for one browser: RFC 8291 over RFC 8188, as a single record.

use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    hmac,
    rand::{SecureRandom, SystemRandom},
};

use super::subscription::Keys;

/// Record size: the maximum that push services must accept.
const RECORD_BYTES: u32 = 4_096;
/// Salt, record size, and the length and bytes of our public key.
const HEAD_BYTES: usize = 16 + 4 + 1 + 65;
/// The tag, and the byte that ends the text.
const TAIL_BYTES: usize = 16 + 1;
/// Longest text that push services must accept (RFC 8030, 7.2; RFC 8291, 4).
pub(super) const TEXT_BYTES_MAX: usize = RECORD_BYTES as usize - HEAD_BYTES - TAIL_BYTES;

/// Encrypts a text for a browser, each time with a new key pair.
///
/// # Errors
/// The browser's key is not a point of the curve, or the system has no random numbers.
pub(super) fn encrypt(text: &[u8], browser: &Keys) -> Result<Vec<u8>, &'static str> {
    let random = SystemRandom::new();
    let mut salt = [0; 16];
    random.fill(&mut salt).map_err(|_| "the system has no random numbers")?;
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(|_| "the system has no random numbers")?;
    let public = private.compute_public_key().map_err(|_| "the system has no random numbers")?;
    let theirs = UnparsedPublicKey::new(&ECDH_P256, &browser.public);
    agree_ephemeral(private, &theirs, |shared| seal(text, browser, public.as_ref(), shared, &salt))
        .map_err(|_| "`keys.p256dh` is not a point of the curve P-256")
}

/// Builds the body from the shared secret.
pub(super) fn seal(text: &[u8], browser: &Keys, public: &[u8], shared: &[u8], salt: &[u8; 16]) -> Vec<u8> {
    let info = [b"WebPush: info\0", browser.public.as_slice(), public].concat();
    let input: [u8; 32] = derive(&browser.auth, shared, &info);
    let key: [u8; 16] = derive(salt, &input, b"Content-Encoding: aes128gcm\0");
    let nonce: [u8; 12] = derive(salt, &input, b"Content-Encoding: nonce\0");
    let mut body = Vec::with_capacity(HEAD_BYTES + text.len() + TAIL_BYTES);
    body.extend_from_slice(salt);
    body.extend_from_slice(&RECORD_BYTES.to_be_bytes());
    body.push(65);
    body.extend_from_slice(public);
    let mut record = [text, &[2]].concat();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("16 bytes are a key of AES-128"));
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)
        .expect("a record is shorter than what AES-GCM takes");
    body.extend_from_slice(&record);
    body
}

/// HKDF with SHA-256 (RFC 5869), for up to 32 bytes.
fn derive<const N: usize>(salt: &[u8], input: &[u8], info: &[u8]) -> [u8; N] {
    let extracted = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), input);
    let expanding = hmac::Key::new(hmac::HMAC_SHA256, extracted.as_ref());
    let expanded = hmac::sign(&expanding, &[info, &[1]].concat());
    expanded.as_ref()[..N].try_into().expect("as many bytes as were asked for")
}
