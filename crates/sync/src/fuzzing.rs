//! Cursors of devices, for fuzz targets.

use tocsin_store::collections::Place;

use crate::cursor::Seal;

/// Whether a server accepts a text as a cursor or as a point of history of a device.
pub fn is_accepted(text: &str) -> bool {
    let seal = Seal::new(&[7; 32]);
    seal.place(1, text).is_ok() || seal.read_point(1, text).is_ok()
}

/// A cursor that it accepts.
pub fn cursor() -> String {
    Seal::new(&[7; 32]).cursor(1, Place::NOWHERE, "p")
}
