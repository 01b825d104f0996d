use std::time::Duration;

use tocsin_model::receipt::{Disposition, Reason};

/// Shortest pause after a store failure.
const PAUSE: Duration = Duration::from_secs(5);

/// A store failure is internal and may be temporary: disk space can be freed.
pub(super) fn classify(reason: &Reason) -> Disposition {
    Disposition::Deferred { reason: reason.clone(), retry_after: Some(PAUSE) }
}
