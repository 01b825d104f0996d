//! Port of the event flow. The result of a step and the acknowledgement of its input are one commit.
//!
//! A step claims input and commits its result together with the mark that the input is done. A crash before the
//! commit repeats the step; a crash after it does not. Claims carry a fencing token: a worker that lost its claim
//! cannot commit ([`StoreError::Fenced`](crate::error::StoreError::Fenced)).

// Types
pub(crate) mod work_state; // scheduling state of a work item
mod source_key; // key of a source's checkpoints
mod events; // event batches
mod work; // work items and the backlog
mod options; // bounds of the backlog
mod notifications; // notification batches and their attempts
mod suspensions; // suspended work
mod resends; // requests to send failed notifications again
mod firings; // rule firings that failed or were skipped, and stopped rules
mod switches; // components that an operator paused or disabled
pub(crate) mod quanta; // quanta: runs of the matcher
pub(crate) mod activity; // per-minute counters for reports
mod step; // a step of the event flow

// Facets
mod event_log; // event batches in the order of acceptance
mod open_work; // backlog, open work, wake-ups; read-only
mod work_queue; // claims, and the commit of steps
mod notification_log; // notification batches and attempts; read-only
mod rule_store; // rule firings, stopped rules, rule state
mod checkpoints; // checkpoints of sources
mod operator_actions; // suspensions, resends, switches
mod activity_log; // statistics; read-only
mod maintenance; // retention and the health check
mod schedules; // progress of rule schedules
mod mail_providers; // mails to mailbox providers by day
mod delays; // notifications of delayed rules that wait
mod broadcasts; // broadcasts and their progress
mod erasures; // erasure of a person

pub use activity::{Activity, ActivityRow, Count, DurationHistogram, Progress, Stream, Timing, Totals, Window};
pub use activity_log::{ActivityLog, QuantumQuery};
pub use broadcasts::{
    Broadcast, BroadcastChange, BroadcastFilter, BroadcastState, BroadcastStep, BroadcastTotals, Broadcasts, HELD,
    NewBroadcast, NextPart, RequestedState,
};
pub(crate) use broadcasts::{changed_state, no_broadcast};
pub use checkpoints::Checkpoints;
pub use delays::{CancelDelayed, Correlation, Delayed, DelayedFilter, Delays, DueDelays, NewDelayed};
pub use erasures::{ERASED, ErasedEvents, ErasedNotifications, ErasedPerson, Erasure, Erasures, PersonNames};
pub use event_log::{EventLog, EventRange};
pub use events::{ClaimedEvents, EventAcceptance, EventBatchState, EventPage, Idempotency, NewEventBatch};
pub use firings::{Firing, FiringFilter, FiringStatus, NewFiring, RefiredBatch, RuleStop};
pub use mail_providers::MailProviders;
pub(crate) use mail_providers::PROVIDER_DAYS_KEPT;
pub use maintenance::{Cutoffs, Maintenance};
pub use notification_log::NotificationLog;
pub(crate) use notifications::ended_attempt;
pub use notifications::{NewNotificationBatch, ReceiptChunk, Retry, StoredNotificationBatch, notification_of};
pub use open_work::{OpenWork, WindowWorkQuery};
pub use operator_actions::OperatorActions;
pub use options::JournalOptions;
pub use quanta::{NewQuantum, Quantum, QuantumInput};
pub use resends::{NewResend, ReopenedNotifications, Resend, ResendProgress};
pub use rule_store::RuleStore;
pub use schedules::{ScheduleKey, ScheduleRun, Schedules};
pub use source_key::SourceKey;
pub(crate) use step::CLOCK_LEEWAY;
pub use step::Step;
pub(crate) use suspensions::{APPLICATION_REMOVED, ENDED_BY_OPERATOR, split_suspension};
pub use suspensions::{EndedWork, Resolution, StoredSuspension, Suspension, SuspensionFilter};
pub use switches::{Component, ComponentError, Role, Switch, SwitchState};
pub use tocsin_model::mark::Mark;
pub use work::{Arrivals, Backlog, Claim, Except, WorkCounts, WorkItem};
pub use work_queue::{ClaimEvents, ClaimWindow, ClaimWork, WorkQueue};
pub use work_state::WorkState;

/// Port of the durable event flow: all facets, for wiring. A caller asks for the facet it uses, such as
/// `Arc<dyn WorkQueue>`.
///
/// Writes are durable when a method returns: they survive a crash of the process and of the machine. Methods may be
/// called from any task.
pub trait Journal:
    EventLog
    + WorkQueue
    + NotificationLog
    + RuleStore
    + Schedules
    + Delays
    + MailProviders
    + Broadcasts
    + Checkpoints
    + OperatorActions
    + ActivityLog
    + Maintenance
    + Erasures
{
}

impl<J> Journal for J where
    J: EventLog
        + WorkQueue
        + NotificationLog
        + RuleStore
        + Schedules
        + Delays
        + MailProviders
        + Broadcasts
        + Checkpoints
        + OperatorActions
        + ActivityLog
        + Maintenance
        + Erasures
{
}
