//! Cursors: places in a device's reading, sealed so that only what we gave out comes back, and only to its device.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde::{Serialize, de::DeserializeOwned};
use tocsin_store::collections::{DeviceNumber, HistoryPoint, Place};

use crate::SyncError;

pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(secret: &[u8; 32]) -> Seal {
        // A key of its own, so that no other signature of the installation passes for a cursor.
        let master = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Seal(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, b"cursors of replicas").as_ref()))
    }

    pub(crate) fn cursor(&self, device: DeviceNumber, place: Place, period: &str) -> String {
        self.close(&(device, place, period))
    }

    /// The place that a cursor of this device means, and the period of the server in which it was given.
    ///
    /// # Errors
    /// `Invalid` if we did not make it, or made it for another device.
    pub(crate) fn place(&self, device: DeviceNumber, cursor: &str) -> Result<(Place, Box<str>), SyncError> {
        let of_now = || self.open::<(DeviceNumber, Place, Box<str>)>(cursor);
        // Cursors of servers that did not number their periods.
        let of_before = || self.open::<(DeviceNumber, Place)>(cursor).map(|(of, place)| (of, place, "".into()));
        match of_now().or_else(of_before) {
            Some((of, place, period)) if of == device => Ok((place, period)),
            _ => Err(SyncError::invalid("cursor", "is none that this device was given; begin without one")),
        }
    }

    pub(crate) fn point(&self, device: DeviceNumber, point: &HistoryPoint) -> String {
        self.close(&("point", device, point))
    }

    /// The point in the server's history that was confirmed to this device.
    ///
    /// # Errors
    /// `Invalid` if we did not make it, or made it for another device.
    pub(crate) fn read_point(&self, device: DeviceNumber, text: &str) -> Result<HistoryPoint, SyncError> {
        match self.open::<(String, DeviceNumber, HistoryPoint)>(text) {
            Some((kind, of, point)) if kind == "point" && of == device => Ok(point),
            _ => Err(SyncError::invalid("edits.point", "is none that this device was given; begin without one")),
        }
    }

    fn close(&self, body: &impl Serialize) -> String {
        let body = serde_json::to_vec(body).expect("numbers and texts are JSON");
        let tag = hmac::sign(&self.0, &body);
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&body), URL_SAFE_NO_PAD.encode(tag))
    }

    fn open<T: DeserializeOwned>(&self, text: &str) -> Option<T> {
        let (body, tag) = text.split_once('.')?;
        let (body, tag) = (URL_SAFE_NO_PAD.decode(body).ok()?, URL_SAFE_NO_PAD.decode(tag).ok()?);
        hmac::verify(&self.0, &body, &tag).ok()?;
        serde_json::from_slice(&body).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_to_a_device_comes_back() {
        let (seal, other) = (Seal::new(&[1; 32]), Seal::new(&[2; 32]));
        let cursor = seal.cursor(7, Place::NOWHERE, "p");
        assert_eq!(seal.place(7, &cursor).expect("ours"), (Place::NOWHERE, "p".into()));
        let old = seal.close(&(7, Place::NOWHERE));
        assert_eq!(seal.place(7, &old).expect("ours"), (Place::NOWHERE, "".into()));
        assert!(seal.place(8, &cursor).is_err());
        assert!(other.place(7, &cursor).is_err());
        for at in 0..cursor.len() {
            let mut forged = cursor.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(seal.place(7, &String::from_utf8(forged).expect("text")).is_err());
        }
        assert!(seal.place(7, "").is_err());
        let point = HistoryPoint { period: "p".into(), stamp: tocsin_model::collection::Stamp(5) };
        let text = seal.point(7, &point);
        assert_eq!(seal.read_point(7, &text).expect("ours"), point);
        assert!(seal.read_point(8, &text).is_err());
        assert!(seal.place(7, &text).is_err() && seal.read_point(7, &cursor).is_err());
    }
}
