use std::{io, path::Path};

use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// A file system error is an internal failure and may be temporary: disk space can be freed.
pub(super) fn classify(path: &Path, error: &io::Error) -> Disposition {
    Disposition::Deferred { reason: reason(path, error), retry_after: None }
}

pub(super) fn reason(path: &Path, error: &io::Error) -> Reason {
    Reason::new(ReasonKind::Internal, format!("{} cannot be written: {error}", path.display()))
}
