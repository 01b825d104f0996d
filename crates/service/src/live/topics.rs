//! Topics of live streams, and the scopes that they require.

use crate::{
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Topic of a live stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Backlog and totals.
    Status,
    /// Number of problems that need an operator.
    Attention,
    /// Newest event batches.
    Batches,
    /// Newest notification batches.
    Notifications,
    /// Suspended notifications.
    Suspensions,
    /// Missed rule firings and stopped rules.
    Firings,
    /// Exchange messages.
    Messages,
    /// Sync.
    Sync,
    /// Newest entry of the audit log.
    Audit,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 9] = [
        Topic::Status,
        Topic::Attention,
        Topic::Batches,
        Topic::Notifications,
        Topic::Suspensions,
        Topic::Firings,
        Topic::Messages,
        Topic::Sync,
        Topic::Audit,
    ];

    /// Name of the topic.
    pub fn word(self) -> &'static str {
        match self {
            Topic::Status => "status",
            Topic::Attention => "attention",
            Topic::Batches => "batches",
            Topic::Notifications => "notifications",
            Topic::Suspensions => "suspensions",
            Topic::Firings => "firings",
            Topic::Messages => "messages",
            Topic::Sync => "sync",
            Topic::Audit => "audit",
        }
    }

    /// Whether it has a state of each application.
    pub(super) fn is_by_application(self) -> bool {
        matches!(self, Topic::Batches | Topic::Notifications)
    }

    pub(super) fn scope(self) -> Scope {
        match self {
            Topic::Sync => Scope::SyncRead,
            Topic::Audit => Scope::AuditRead,
            _ => Scope::OperationsRead,
        }
    }

    /// Checks that a caller may follow it.
    pub(super) fn check(self, caller: &Caller) -> Result<(), ServiceError> {
        caller.needs(self.scope())?;
        match caller.is_limited() && !self.is_by_application() {
            true => Err(caller.limited("this topic is of all applications")),
            false => Ok(()),
        }
    }
}
