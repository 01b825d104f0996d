//! Cursors: places in a device's reading, sealed so that only what we gave out comes back, and only to its device.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use tocsin_store::collections::{DeviceNumber, Place};

use crate::SyncError;

pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(secret: &[u8; 32]) -> Seal {
        // A key of its own, so that no other signature of the installation passes for a cursor.
        let master = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Seal(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, b"cursors of replicas").as_ref()))
    }

    pub(crate) fn cursor(&self, device: DeviceNumber, place: Place) -> String {
        let body = serde_json::to_vec(&(device, place)).expect("numbers are JSON");
        let tag = hmac::sign(&self.0, &body);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&body), URL_SAFE_NO_PAD.encode(tag))
    }

    /// The place that a cursor of this device means.
    ///
    /// # Errors
    /// `Invalid` if we did not make it, or made it for another device.
    pub(crate) fn place(&self, device: DeviceNumber, cursor: &str) -> Result<Place, SyncError> {
        let opened = cursor.split_once('.').and_then(|(body, tag)| {
            let (body, tag) = (URL_SAFE_NO_PAD.decode(body).ok()?, URL_SAFE_NO_PAD.decode(tag).ok()?);
            hmac::verify(&self.0, &body, &tag).ok()?;
            serde_json::from_slice::<(DeviceNumber, Place)>(&body).ok()
        });
        match opened {
            Some((of, place)) if of == device => Ok(place),
            _ => Err(SyncError::invalid("cursor", "is none that this device was given")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_to_a_device_comes_back() {
        let (seal, other) = (Seal::new(&[1; 32]), Seal::new(&[2; 32]));
        let cursor = seal.cursor(7, Place::NOWHERE);
        assert_eq!(seal.place(7, &cursor).expect("ours"), Place::NOWHERE);
        assert!(seal.place(8, &cursor).is_err());
        assert!(other.place(7, &cursor).is_err());
        for at in 0..cursor.len() {
            let mut forged = cursor.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(seal.place(7, &String::from_utf8(forged).expect("text")).is_err());
        }
        assert!(seal.place(7, "").is_err());
    }
}
