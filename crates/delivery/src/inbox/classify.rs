use std::time::Duration;

use tocsin_model::receipt::{Disposition, Reason};

/// How long a store without room is let be, at least.
const PAUSE: Duration = Duration::from_secs(5);

/// Trouble of the store is our own, and may pass: a disk can be freed.
pub(super) fn classify(reason: &Reason) -> Disposition {
    Disposition::Deferred { reason: reason.clone(), retry_after: Some(PAUSE) }
}
