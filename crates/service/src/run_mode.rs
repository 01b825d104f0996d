//! Whether an operation on many objects is carried out, or only counted.

/// Mode of an operation on many objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunMode {
    /// It is carried out.
    #[default]
    Apply,
    /// It is checked and counted, and changes nothing.
    DryRun,
}

impl RunMode {
    /// The mode of a request with this `dry_run`.
    pub fn of(dry_run: bool) -> RunMode {
        if dry_run { RunMode::DryRun } else { RunMode::Apply }
    }

    /// Whether nothing is changed.
    pub fn is_dry(self) -> bool {
        self == RunMode::DryRun
    }
}
