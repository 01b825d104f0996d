//! The port of the flow. Its central promise: the result of a step and the acknowledgement of its input are one commit.
//!
//! A step takes claimed input, and commits what it made of it together with the mark that the input is done. A crash
//! before the commit repeats the step, a crash after it does not. Whoever holds a claim that was lost in the meantime
//! commits nothing ([`StoreError::Fenced`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tocsin_model::{
    conduct::Priority,
    event::{EventBatch, PackedEvents},
    id::{ChangeSequence, EventBatchId, Name, NotificationBatchId, NotificationId, WorkItemId},
    notification::{NotificationHead, Notifications},
    receipt::{Attempt, Outcome},
    state::StatePage,
    time::Timestamp,
};

use crate::{error::StoreError, look::Looked};

pub use activity::{Activity, ActivityRow, Count, Progress, Spread, Stream, Timing, Window};
pub use course::Course;
pub use firings::{Firing, FiringFilter, FiringStatus, NewFiring, Refired, RuleStop};
pub use marks::SourceKey;
pub use quanta::{NewQuantum, Quantum, TakenUp};
pub use resends::{NewResend, Reopened, Resend, Resent};
pub use schedules::{EventPage, ScheduleKey, ScheduleRun};
pub use switches::{Component, ComponentError, Role, Switch, SwitchState};
pub use tocsin_model::mark::Mark;

pub(crate) mod course; // where some work stands on its way
mod resends; // what had failed is sent again
mod firings; // rules that did not fire, and those that are stopped
mod schedules; // how far the schedules of rules have come
mod switches; // what an operator has switched off
pub(crate) mod activity; // what happened in each minute: the sums of which reports are made
pub(crate) mod quanta; // turns of the matcher
mod marks; // how far sources have come

/// The bounds of a journal. At each of them [`Journal::accept`] answers `Full` before it stores anything; steps are
/// committed nevertheless, so that what was accepted drains. Submissions already on their way when a bound is reached
/// still pass.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalOptions {
    /// Event batches that may wait to be matched. Default: 1,000,000.
    pub event_batches_waiting_max: u64,
    /// Packed bytes of events that may wait to be matched. Default: 1 GiB.
    pub event_bytes_waiting_max: u64,
    /// Notifications that may wait to be sent. Default: 10,000,000.
    pub notifications_waiting_max: u64,
    /// Bytes that stay free on the file system of the journal, for the steps that drain it. Default: 256 MiB; 0 switches
    /// the guard off. Backends without a file system of their own ignore it.
    pub free_bytes_min: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        JournalOptions {
            event_batches_waiting_max: 1_000_000,
            event_bytes_waiting_max: 1 << 30,
            notifications_waiting_max: 10_000_000,
            free_bytes_min: 256 << 20,
        }
    }
}

impl JournalOptions {
    /// Whether a batch may be accepted on top of this backlog.
    pub(crate) fn check(&self, backlog: &Backlog, batch: &NewEventBatch) -> Result<(), StoreError> {
        let bytes = batch.events.bytes().len() as u64;
        if backlog.event_batches >= self.event_batches_waiting_max {
            return Err(StoreError::Full(format!("{} event batches wait to be matched", backlog.event_batches)));
        }
        // An empty spool takes any batch, however large: it could never be accepted otherwise.
        if backlog.event_bytes > 0 && backlog.event_bytes.saturating_add(bytes) > self.event_bytes_waiting_max {
            return Err(StoreError::Full(format!("{} bytes of events wait to be matched", backlog.event_bytes)));
        }
        if backlog.notifications >= self.notifications_waiting_max {
            return Err(StoreError::Full(format!("{} notifications wait to be sent", backlog.notifications)));
        }
        Ok(())
    }
}

/// A batch of events that asks to be accepted.
#[derive(Debug, Clone)]
pub struct NewEventBatch {
    /// See [`EventBatch`].
    pub application: Name,
    /// See [`EventBatch`].
    pub version: u32,
    /// See [`EventBatch`].
    pub class: Name,
    /// See [`EventBatch`].
    pub source: Name,
    /// See [`EventBatch`].
    pub received_at: Timestamp,
    /// See [`EventBatch`].
    pub accepted_at: Timestamp,
    /// The newest change of the records when it was submitted. One that was accepted before and sees more lifts it to its
    /// own place, so that batches stand among the changes in the order of their numbers.
    pub sees: ChangeSequence,
    /// See [`EventBatch`].
    pub events: PackedEvents,
    /// Makes a repeated submission the same submission.
    pub idempotency: Option<Idempotency>,
    /// What its source remembers from now on, in the same commit. Of a submission that came before as well, but not of one
    /// whose key came before with other content.
    pub marks: Vec<Mark>,
}

/// What makes a repeated submission recognisable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The key, already made unique to its caller (a hash of application, source and the caller's own key).
    pub key: [u8; 16],
    /// A hash of what was submitted under it.
    pub content: [u8; 16],
    /// Until when the key is remembered.
    pub until: Timestamp,
}

/// The journal's answer to a submission. In each case but the last the events are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// It is a new batch.
    New(EventBatchId),
    /// The same key and content came before and became this batch; nothing was added.
    Duplicate(EventBatchId),
    /// The key came before with other content; nothing was added.
    KeyReused(EventBatchId),
}

impl Accepted {
    /// The batch that holds the events.
    pub fn id(self) -> EventBatchId {
        match self {
            Accepted::New(id) | Accepted::Duplicate(id) | Accepted::KeyReused(id) => id,
        }
    }
}

/// A right to work on something, until the lease ends. The token rises with each claim of the same thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim<Id> {
    /// What is claimed.
    pub id: Id,
    /// The fencing token.
    pub token: u64,
}

/// An event batch to match.
#[derive(Debug, Clone)]
pub struct ClaimedEvents {
    /// The right to it.
    pub claim: Claim<EventBatchId>,
    /// The batch.
    pub batch: EventBatch,
}

/// The notifications of one batch, or some of them, that are due through one channel.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkItem {
    /// The right to it.
    pub claim: Claim<WorkItemId>,
    /// The batch whose notifications they are.
    pub batch: NotificationBatchId,
    /// Which of them, ascending; `None` means all. Those that an earlier holder of the item has dealt with are left out
    /// (see [`Step::held`]); if it had dealt with all, none are left, and the item only wants to be finished.
    pub ordinals: Option<Vec<u32>>,
    /// How many attempts each of them has had.
    pub attempts: u32,
    /// When it was due.
    pub due_at: Timestamp,
    /// Where it stands.
    pub course: Course,
}

/// A notification batch that a step makes, with its first work item due at once.
#[derive(Debug, Clone)]
pub struct NewNotificationBatch {
    /// What they have in common.
    pub head: NotificationHead,
    /// How many there are.
    pub count: u32,
    /// `Notifications::pack`ed; the backend compresses.
    pub packed: Bytes,
    /// Which work goes first.
    pub priority: Priority,
    /// If they cannot be sent for a reason known already, they are suspended with it and no work item is made.
    pub suspended: Option<String>,
    /// The event batch of the due time whose run made it, where its notifications are of other events.
    pub run: Option<EventBatchId>,
}

/// A notification batch as the journal holds it.
#[derive(Debug, Clone)]
pub struct StoredNotificationBatch {
    /// Its number.
    pub id: NotificationBatchId,
    /// What they have in common.
    pub head: NotificationHead,
    /// The notifications.
    pub notifications: Notifications,
}

/// A chunk of attempts at the notifications of one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptChunk {
    /// The batch.
    pub batch: NotificationBatchId,
    /// The channel that was tried: the batch's own, or one of its fallbacks.
    pub channel: Name,
    /// The attempts; shared with who keeps them until they are committed.
    pub attempts: Arc<Vec<Attempt>>,
}

/// Notifications of one batch that are to be tried again at the same time.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// The batch.
    pub batch: NotificationBatchId,
    /// Its channel.
    pub application: Name,
    /// Its channel.
    pub channel: Name,
    /// Which of them, ascending, not empty.
    pub ordinals: Vec<u32>,
    /// How many attempts each has had.
    pub attempts: u32,
    /// When.
    pub due_at: Timestamp,
    /// Where they stand then.
    pub course: Course,
}

/// Notifications of one batch that wait for an operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Suspension {
    /// The batch.
    pub batch: NotificationBatchId,
    /// Its application.
    pub application: Name,
    /// Its channel.
    pub channel: Name,
    /// Which of them, ascending, not empty.
    pub ordinals: Vec<u32>,
    /// How many attempts each has had.
    pub attempts: u32,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// Where they stood, and stand when they are resumed.
    pub course: Course,
}

/// A suspension with the number by which it is resumed or ended.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSuspension {
    /// Its number.
    pub id: u64,
    /// What is suspended and why.
    pub suspension: Suspension,
}

/// What an operator does with suspensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// They become due again, with a fresh retry schedule.
    Resume,
    /// They are closed without being sent.
    End,
}

/// Which suspensions: all that meet every given condition.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SuspensionFilter {
    /// Only this one.
    pub id: Option<u64>,
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this channel.
    pub channel: Option<Name>,
    /// Only of this batch.
    pub batch: Option<NotificationBatchId>,
    /// Only of this notification class.
    pub class: Option<Name>,
    /// Only those whose reason contains this text; letters of ASCII in either case.
    pub reason: Option<String>,
    /// Only those that were suspended before this time.
    pub before: Option<Timestamp>,
}

/// The result of a step and the acknowledgement of its input: all of it is stored, or nothing.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// Event batches that are matched now.
    pub matched: Vec<Claim<EventBatchId>>,
    /// Event batches that could not be matched, and why; they are set aside, listed and kept.
    pub failed: Vec<(Claim<EventBatchId>, String)>,
    /// Work items that are finished now. Those of their notifications without a closing attempt, retry or suspension
    /// are lost, so a step accounts for each.
    pub finished: Vec<Claim<WorkItemId>>,
    /// Work items whose claims must still hold, though they are not finished by this step. Those of their notifications
    /// for which this step has an attempt with a number above the item's `attempts` are dealt with: they are not handed
    /// out with this item again, whatever the outcome was.
    pub held: Vec<Claim<WorkItemId>>,
    /// New notification batches.
    pub batches: Vec<NewNotificationBatch>,
    /// Attempts.
    pub receipts: Vec<ReceiptChunk>,
    /// New work items for a later time.
    pub retries: Vec<Retry>,
    /// What waits for an operator.
    pub suspensions: Vec<Suspension>,
    /// Rules that did not fire for batches of this step.
    pub firings: Vec<NewFiring>,
    /// Firings that happen after all, with the notification batches of this step.
    pub refired: Vec<Refired>,
    /// Rules that are stopped from now on.
    pub stops: Vec<RuleStop>,
    /// What matching remembers from now on, with the application whose it is: each page in place of the one before, and
    /// an empty one for none.
    pub states: Vec<(Name, StatePage)>,
    /// What rules read of chronicles for event batches that are matched now: kept with them, in
    /// [`EventBatch::chronicled`].
    pub chronicled: Vec<(EventBatchId, Bytes)>,
    /// Event batches that go on with what this step has begun, such as the rest of a long run of a schedule. They are
    /// accepted with it, whatever waits already; their idempotency does not count.
    pub continued: Vec<NewEventBatch>,
    /// How far a request to send again comes with this step.
    pub resent: Option<Resent>,
    /// What is told of the quantum whose event batches are matched or set aside by this step.
    pub quantum: Option<NewQuantum>,
}

impl Step {
    /// The latest time that the step knows of: when its input was claimed, its batches were matched, its attempts were
    /// answered. What it marks as matched or closed is marked with this time.
    pub(crate) fn time(&self, claimed_at: Timestamp) -> Timestamp {
        let matched = self.batches.iter().map(|batch| batch.head.matched_at);
        let answered = self.receipts.iter().flat_map(|chunk| &*chunk.attempts).map(|attempt| attempt.answered_at);
        let resent = self.resent.iter().map(|resent| resent.now);
        matched.chain(answered).chain(resent).fold(claimed_at, Timestamp::max)
    }
}

/// How much earlier [`Journal::place_at`] looks, since clocks may go back a little.
pub(crate) const CLOCK_LEEWAY: Duration = Duration::from_secs(1);

/// Cuts some notifications out of a suspension, which keeps the others. `None`: it has none of them; whole: it has no others.
pub(crate) fn cut_out(suspension: &mut Suspension, ordinals: &[u32]) -> Option<Option<Suspension>> {
    let (meant, others): (Vec<u32>, Vec<u32>) =
        suspension.ordinals.iter().copied().partition(|ordinal| ordinals.contains(ordinal));
    match (meant.is_empty(), others.is_empty()) {
        (true, _) => None,
        (_, true) => Some(None),
        _ => {
            suspension.ordinals = others;
            Some(Some(Suspension { ordinals: meant, ..suspension.clone() }))
        }
    }
}

/// What an operator's word adds to the attempts at a suspended notification: it closes it.
pub(crate) fn ended(suspension: &Suspension, ordinal: u32, now: Timestamp) -> Attempt {
    Attempt {
        ordinal,
        number: suspension.attempts.saturating_add(1),
        formatted_at: now,
        sent_at: now,
        answered_at: now,
        outcome: Outcome::Ended,
        reply: "ended by an operator".to_owned(),
    }
}

/// How much work lies ahead, of all channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkAhead {
    /// Work items that are due, claimed or not.
    pub due: u64,
    /// Those that wait for a time to come.
    pub later: u64,
    /// The first of those times.
    pub next: Option<Timestamp>,
}

/// What waits and what is being worked on, as counters that cost nothing to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Event batches not yet matched.
    pub event_batches: u64,
    /// Events in them.
    pub events: u64,
    /// Packed bytes of them.
    pub event_bytes: u64,
    /// Event batches set aside because matching failed.
    pub failed_batches: u64,
    /// Notifications in work items that are due, claimed or waiting for their retry.
    pub notifications: u64,
    /// Work items.
    pub work_items: u64,
    /// Notifications that wait for an operator.
    pub suspended: u64,
    /// When the oldest unmatched event batch was accepted.
    pub oldest_event: Option<Timestamp>,
}

/// Totals since the journal was made, for status and reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Event batches accepted.
    pub event_batches: u64,
    /// Events accepted.
    pub events: u64,
    /// Notification batches made.
    pub notification_batches: u64,
    /// Notifications made.
    pub notifications: u64,
    /// Attempts by outcome, in the order of `Outcome::ALL`.
    pub attempts: [u64; Outcome::ALL.len()],
}

/// How far an event batch has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventBatchState {
    /// Waits to be matched.
    Accepted,
    /// Matched at this time.
    Matched(Timestamp),
    /// Set aside, with the reason.
    Failed(String),
}

impl EventBatchState {
    /// As people read it.
    pub const fn word(&self) -> &'static str {
        match self {
            EventBatchState::Accepted => "accepted",
            EventBatchState::Matched(_) => "matched",
            EventBatchState::Failed(_) => "failed",
        }
    }
}

/// What was finished before which time is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutoffs {
    /// Where nothing else is said.
    pub before: Timestamp,
    /// Event batches, by application and class.
    pub events: BTreeMap<(Name, Name), Timestamp>,
    /// Notification batches, by application and class.
    pub notifications: BTreeMap<(Name, Name), Timestamp>,
    /// The sums of minutes, of which reports are made.
    pub activity: Timestamp,
}

impl Cutoffs {
    /// One time for everything.
    pub fn all(before: Timestamp) -> Cutoffs {
        Cutoffs { before, events: BTreeMap::new(), notifications: BTreeMap::new(), activity: before }
    }

    pub(crate) fn of_events(&self, application: Name, class: Name) -> Timestamp {
        self.events.get(&(application, class)).copied().unwrap_or(self.before)
    }

    pub(crate) fn of_notifications(&self, application: Name, class: Name) -> Timestamp {
        self.notifications.get(&(application, class)).copied().unwrap_or(self.before)
    }
}

/// Follows arrivals: each receiver wakes up after its number has grown. The numbers mean nothing else.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// Grows when event batches arrive.
    pub events: tokio::sync::watch::Receiver<u64>,
    /// Grows when work becomes due or is released.
    pub work: tokio::sync::watch::Receiver<u64>,
}

/// Event batches that are not handed out for now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Except {
    /// Batches of these applications.
    pub applications: BTreeSet<Name>,
    /// Batches of these classes, each with its application.
    pub classes: BTreeSet<(Name, Name)>,
}

impl Except {
    /// Whether batches of a class are among them.
    pub fn has(&self, application: &Name, class: &Name) -> bool {
        self.applications.contains(application)
            || !self.classes.is_empty() && self.classes.contains(&(application.clone(), class.clone()))
    }
}

/// The flow, durable. Every method may be called from any task.
///
/// What a method has acknowledged survives a crash of the process and of the machine.
#[async_trait]
pub trait Journal: Send + Sync + 'static {
    /// Stores a batch. Concurrent calls share one fsync.
    ///
    /// # Errors
    /// `Full` before anything is lost: the disk or a bound is reached. The caller's caller should try again later.
    async fn accept(&self, batch: NewEventBatch) -> Result<Accepted, StoreError>;

    /// Hands out unmatched event batches in the order of their acceptance, each to one matcher until `now + lease`,
    /// up to `batches` of them and not many more than `bytes` packed bytes (at least one if any waits). Those in `except`
    /// go on waiting; how many they are makes no difference to the cost.
    async fn claim_events(
        &self,
        batches: usize,
        bytes: usize,
        except: &Except,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<ClaimedEvents>, StoreError>;

    /// Hands out up to `limit` due work items of a channel, of the priority `least` or one that presses more, each to one worker:
    /// what has been due for longest first, where [`Priority::patience`] counts as later.
    ///
    /// A worker that neither finishes nor extends an item within `lease` loses it to another, so a step must be safe
    /// to run twice.
    async fn claim_work(
        &self,
        application: &Name,
        channel: &Name,
        least: Priority,
        limit: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// Hands out all due work items of a channel that wait for the window of a digest that closes at a time, or are of it,
    /// oldest first; as many as have up to `notifications` notifications, but at least one if there is any.
    async fn claim_window(
        &self,
        application: &Name,
        channel: &Name,
        window: Timestamp,
        notifications: usize,
        lease: Duration,
        now: Timestamp,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// The work items of a channel that wait for the window of a digest to close after `now`, by number, from after `after`,
    /// up to `limit`. The token of one that is not claimed is 0.
    async fn gathering(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
        after: WorkItemId,
        limit: usize,
    ) -> Result<Vec<WorkItem>, StoreError>;

    /// Prolongs a lease to `now + lease`.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn extend(&self, claim: Claim<WorkItemId>, lease: Duration, now: Timestamp) -> Result<(), StoreError>;

    /// Gives a claimed work item back, due at once or at `due_at`, as if it had not been claimed.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release(&self, claim: Claim<WorkItemId>, due_at: Option<Timestamp>) -> Result<(), StoreError>;

    /// Gives a claimed event batch back.
    ///
    /// # Errors
    /// `Fenced`: the claim is lost.
    async fn release_events(&self, claim: Claim<EventBatchId>) -> Result<(), StoreError>;

    /// Stores a step: all of it, or nothing. Gives the numbers of its new notification batches, in order.
    ///
    /// # Errors
    /// `Fenced`: one of its claims is lost; nothing was stored.
    async fn commit(&self, step: Step) -> Result<Vec<NotificationBatchId>, StoreError>;

    /// How much work is due by now, what workers have claimed among it, and how much waits for later. Looks at all of it.
    async fn work_ahead(&self, now: Timestamp) -> Result<WorkAhead, StoreError>;

    /// When the next work item of a channel that is not due yet becomes due.
    async fn next_due(
        &self,
        application: &Name,
        channel: &Name,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// The channels of an application for which work is open or suspended, by name; they need a worker even if the
    /// application does not define them (any more), since suspended work may be resumed.
    async fn open_channels(&self, application: &Name) -> Result<Vec<Name>, StoreError>;

    /// Wakes whoever waits for events or work. Receivers see every arrival after the call, none before it.
    fn arrivals(&self) -> Arrivals;

    /// What waits. Cheap.
    fn backlog(&self) -> Backlog;

    /// Totals since the journal was made. Cheap.
    fn totals(&self) -> Totals;

    /// An event batch, with its state.
    async fn event_batch(&self, id: EventBatchId) -> Result<Option<(EventBatch, EventBatchState)>, StoreError>;

    /// The newest event batches before `before` (or all), newest first, without their events, each with its count.
    async fn event_batches(
        &self,
        before: Option<EventBatchId>,
        limit: usize,
    ) -> Result<Vec<(EventBatch, EventBatchState)>, StoreError>;

    /// What the oldest event batch that waits to be matched sees; `None` if none waits, or its place is not known.
    async fn oldest_place(&self) -> Result<Option<ChangeSequence>, StoreError>;

    /// Sends failed event batches to be matched again. Gives how many there were.
    async fn rematch(&self, application: &Name) -> Result<u64, StoreError>;

    /// Firings that did not happen, oldest first, from after the number `after`.
    async fn firings(&self, filter: &FiringFilter, after: u64, limit: usize) -> Result<Vec<Firing>, StoreError>;

    /// Strikes firings off the list without firing them. Gives how many batches they were.
    async fn dismiss_firings(&self, filter: &FiringFilter) -> Result<u64, StoreError>;

    /// Stops a rule. One that is stopped already keeps its first stop.
    async fn stop_rule(&self, stop: RuleStop) -> Result<(), StoreError>;

    /// Lets a stopped rule fire again. Gives whether it was stopped.
    async fn resume_rule(&self, application: &Name, rule: &Name) -> Result<bool, StoreError>;

    /// All stopped rules, by application and name.
    async fn rule_stops(&self) -> Result<Vec<RuleStop>, StoreError>;

    /// What matching remembers for an application: up to `limit` pages from after the given one, in an order of the
    /// backend's own that never changes.
    async fn state_pages(
        &self,
        application: &Name,
        after: Option<&StatePage>,
        limit: usize,
    ) -> Result<Vec<StatePage>, StoreError>;

    /// Event batches of a class after one and before another, oldest first, whatever has become of them; up to about
    /// `bytes` packed bytes of them, but at least one if there is any. Those that were pruned are not there any more.
    async fn events_between(
        &self,
        application: &Name,
        class: &Name,
        after: EventBatchId,
        before: EventBatchId,
        bytes: usize,
    ) -> Result<EventPage, StoreError>;

    /// A place in the log before which nothing was accepted at this time or later, and not long before it. It relies on
    /// clocks that do not go back by more than a second.
    async fn place_at(&self, time: Timestamp) -> Result<EventBatchId, StoreError>;

    /// Stores how far schedules have come. With `due`, that event batch is accepted in the same commit, and the next runs
    /// of these schedules begin after it: their `after` is set to it. Gives its number.
    ///
    /// # Errors
    /// `Full`, as [`Journal::accept`] says; nothing was stored. Without `due` no bound is looked at.
    async fn record_runs(
        &self,
        due: Option<NewEventBatch>,
        runs: Vec<ScheduleRun>,
    ) -> Result<Option<EventBatchId>, StoreError>;

    /// How far the schedules of an application have come, by rule and schedule, from after `after`.
    async fn schedule_runs(
        &self,
        application: &Name,
        after: Option<&ScheduleKey>,
        limit: usize,
    ) -> Result<Vec<ScheduleRun>, StoreError>;

    /// How far one schedule has come, if it is known.
    async fn schedule_run(&self, application: &Name, schedule: &ScheduleKey)
    -> Result<Option<ScheduleRun>, StoreError>;

    /// Forgets how far a schedule has come, because nobody follows it any more.
    async fn forget_schedule(&self, application: &Name, schedule: &ScheduleKey) -> Result<(), StoreError>;

    /// Stores what a source remembers where no events come with it.
    async fn record_marks(&self, source: &SourceKey, marks: Vec<Mark>) -> Result<(), StoreError>;

    /// What a source remembers, by part, from after the part `after`, up to `limit`.
    async fn marks(&self, source: &SourceKey, after: Option<&str>, limit: usize) -> Result<Vec<Mark>, StoreError>;

    /// Forgets what the sources of an application remember.
    async fn forget_marks(&self, application: &Name) -> Result<(), StoreError>;

    /// A notification batch, unpacked.
    async fn notification_batch(&self, id: NotificationBatchId) -> Result<Option<StoredNotificationBatch>, StoreError>;

    /// The notification batches after `after` with events of a batch, or made by a run of its due times, oldest first, up to
    /// `limit`: heads and counts only.
    async fn notification_batches_of(
        &self,
        events: EventBatchId,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// The newest notification batches before `before` (or all), newest first: heads and counts only.
    async fn notification_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// The notification batches after `after`, oldest first, up to `limit`: heads and counts only.
    async fn notification_batches_after(
        &self,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead, u32)>, StoreError>;

    /// The notification batches of an application after `after` that have open work items, up to `limit` of them by
    /// number.
    async fn open_batches(
        &self,
        application: &Name,
        after: NotificationBatchId,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// All attempts at the notifications of a batch, in the order they were recorded.
    async fn attempts(&self, batch: NotificationBatchId) -> Result<Vec<Attempt>, StoreError>;

    /// The open work items of a batch, claimed or not, oldest first. The token of one that is not claimed is 0.
    async fn open_work(&self, batch: NotificationBatchId) -> Result<Vec<WorkItem>, StoreError>;

    /// Looks for up to `limit` suspensions, oldest first, from after the number `after`, among at most [`LOOKS_MAX`] rows.
    ///
    /// [`LOOKS_MAX`]: crate::look::LOOKS_MAX
    async fn look_for_suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<Looked<StoredSuspension, u64>, StoreError>;

    /// Suspensions, oldest first, from after the number `after`, among all.
    async fn suspensions(
        &self,
        filter: &SuspensionFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredSuspension>, StoreError> {
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let looked = self.look_for_suspensions(filter, after, limit - found.len()).await?;
            found.extend(looked.items);
            let Some(next) = looked.next else { break };
            after = next;
        }
        Ok(found)
    }

    /// Resumes or ends suspensions. Ended ones get a closing attempt with outcome `Ended`. Gives the number of
    /// notifications touched.
    async fn resolve(
        &self,
        filter: &SuspensionFilter,
        resolution: Resolution,
        now: Timestamp,
    ) -> Result<u64, StoreError>;

    /// Stores a request to send again what had failed. One whose key is known is not stored again. Gives what is stored, and
    /// whether it is new. It is carried out by steps ([`Step::resent`]), and forgotten by [`Journal::prune`] once it is.
    async fn begin_resend(&self, new: NewResend) -> Result<(Resend, bool), StoreError>;

    /// Requests to send again, or only those that are not carried out, oldest first, from after the number `after`.
    async fn resends(&self, unfinished: bool, after: u64, limit: usize) -> Result<Vec<Resend>, StoreError>;

    /// Puts an operator's edit into a suspension, or takes it away: it is sent in place of what was to be sent, once that is
    /// resumed. With `ordinals` only these of its notifications become a suspension of their own, if there are others. Gives
    /// the number of the suspension that is edited; `None`: there is no such suspension, or it has none of them.
    async fn edit_suspension(
        &self,
        id: u64,
        ordinals: Option<&[u32]>,
        edit: Option<Arc<str>>,
    ) -> Result<Option<u64>, StoreError>;

    /// Removes up to `limit` finished event batches and notification batches that were closed before the time for their
    /// class, whole with their receipts, class by class and the oldest first; and idempotency keys that are over at `now`,
    /// quanta and the sums of minutes before their time. Unsent, suspended and failed work stays, and so does the newest
    /// minute of each stream. Gives how many batches it removed; less than `limit` means that nothing more is to remove.
    async fn prune(&self, cutoffs: &Cutoffs, now: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// How many batches [`Journal::prune`] would remove, counted up to `most`.
    async fn prunable(&self, cutoffs: &Cutoffs, most: usize) -> Result<usize, StoreError>;

    /// What happened in a window, by stream and part, those without anything left out; of one application or of all.
    async fn activity(&self, window: &Window, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// The newest minute of each stream.
    async fn latest_activity(&self, application: Option<&Name>) -> Result<Vec<ActivityRow>, StoreError>;

    /// Quanta that ended from `from` on and before `to`, newest first, with numbers below `before`.
    async fn quanta(
        &self,
        from: Timestamp,
        to: Timestamp,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Quantum>, StoreError>;

    /// One quantum, if it is still kept.
    async fn quantum(&self, id: u64) -> Result<Option<Quantum>, StoreError>;

    /// How far notification batches have come, in the order asked; `None` for those that are not there.
    async fn progress(&self, batches: &[NotificationBatchId]) -> Result<Vec<Option<Progress>>, StoreError>;

    /// The newest notification batches before `before` (or all) in which some notification was refused or too late, newest
    /// first.
    async fn failed_batches(
        &self,
        before: Option<NotificationBatchId>,
        limit: usize,
    ) -> Result<Vec<(NotificationBatchId, NotificationHead)>, StoreError>;

    /// Switches something off, or otherwise than it was.
    async fn set_switch(&self, switch: Switch) -> Result<(), StoreError>;

    /// Switches something on again. Gives whether it was off.
    async fn remove_switch(&self, component: &Component) -> Result<bool, StoreError>;

    /// All that is switched off, by its text.
    async fn switches(&self) -> Result<Vec<Switch>, StoreError>;

    /// Writes and syncs a few bytes; says how long that took. For `doctor` and readiness.
    async fn probe(&self) -> Result<Duration, StoreError>;
}

/// A notification by its id, from its batch.
pub fn notification_of(batch: &StoredNotificationBatch, ordinal: u32) -> Option<NotificationId> {
    ((ordinal as usize) < batch.notifications.count()).then_some(NotificationId { batch: batch.id, ordinal })
}
