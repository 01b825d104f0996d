//! Device cursors, for fuzz targets.

use tocsin_store::collections::ReplicaCursor;

use crate::cursor::Seal;

/// Whether a server accepts a text as a device cursor or history point.
pub fn is_accepted(text: &str) -> bool {
    let seal = Seal::new(&[7; 32]);
    seal.place(1, text).is_ok() || seal.read_point(1, text).is_ok()
}

/// An accepted cursor.
pub fn cursor() -> String {
    Seal::new(&[7; 32]).cursor(1, ReplicaCursor::START, "p")
}
