//! Signed cursors: positions of a device's reading, accepted only from the device that received them.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::hmac;
use serde::{Serialize, de::DeserializeOwned};
use tocsin_model::problem::{Code, Problem};
use tocsin_store::collections::{DeviceNumber, HistoryPoint, ReplicaCursor};

use crate::error::SyncError;

pub(crate) struct Seal(hmac::Key);

impl Seal {
    pub(crate) fn new(secret: &[u8; 32]) -> Seal {
        // A derived key, so that no other signature of the installation is a valid cursor.
        let master = hmac::Key::new(hmac::HMAC_SHA256, secret);
        Seal(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, b"cursors of replicas").as_ref()))
    }

    pub(crate) fn cursor(&self, device: DeviceNumber, place: ReplicaCursor, period: &str) -> String {
        self.close(&(device, place, period))
    }

    /// The position of a cursor, and the server period in which it was issued.
    ///
    /// # Errors
    /// `Invalid` if this server did not issue it to this device.
    pub(crate) fn place(&self, device: DeviceNumber, cursor: &str) -> Result<(ReplicaCursor, Box<str>), SyncError> {
        let of_now = || self.open::<(DeviceNumber, ReplicaCursor, Box<str>)>(cursor);
        // Cursors of servers without numbered periods.
        let of_before = || self.open::<(DeviceNumber, ReplicaCursor)>(cursor).map(|(of, place)| (of, place, "".into()));
        match of_now().or_else(of_before) {
            Some((of, place, period)) if of == device => Ok((place, period)),
            _ => Err(SyncError::from(
                Problem::new(Code::InvalidFormat, "cursor", "was not issued to this device; begin without a cursor")
                    .param("format", "cursor"),
            )),
        }
    }

    pub(crate) fn point(&self, device: DeviceNumber, point: &HistoryPoint) -> String {
        self.close(&("point", device, point))
    }

    /// The point in the server's history that was confirmed to this device.
    ///
    /// # Errors
    /// `Invalid` if this server did not issue it to this device.
    pub(crate) fn read_point(&self, device: DeviceNumber, text: &str) -> Result<HistoryPoint, SyncError> {
        match self.open::<(String, DeviceNumber, HistoryPoint)>(text) {
            Some((kind, of, point)) if kind == "point" && of == device => Ok(point),
            _ => Err(SyncError::from(
                Problem::new(
                    Code::InvalidFormat,
                    "edits.point",
                    "was not issued to this device; begin without a point",
                )
                .param("format", "cursor"),
            )),
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
    fn a_cursor_is_accepted_only_from_its_device() {
        let (seal, other) = (Seal::new(&[1; 32]), Seal::new(&[2; 32]));
        let cursor = seal.cursor(7, ReplicaCursor::START, "p");
        assert_eq!(seal.place(7, &cursor).expect("ours"), (ReplicaCursor::START, "p".into()));
        let old = seal.close(&(7, ReplicaCursor::START));
        assert_eq!(seal.place(7, &old).expect("ours"), (ReplicaCursor::START, "".into()));
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
