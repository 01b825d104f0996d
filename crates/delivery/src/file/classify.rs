use std::{io, path::Path};

use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// An error of the file system is trouble of our own, and may pass: a disk can be freed.
pub(super) fn classify(path: &Path, error: &io::Error) -> Disposition {
    Disposition::Deferred { reason: reason(path, error), retry_after: None }
}

pub(super) fn reason(path: &Path, error: &io::Error) -> Reason {
    Reason::new(ReasonKind::Internal, format!("{} cannot be written: {error}", path.display()))
}
