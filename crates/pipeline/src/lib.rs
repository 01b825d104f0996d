//! Carries batches of events to their receipts, one durable step at a time.
//!
//! Each step takes its input from the journal, does one thing, and commits its result together with the
//! acknowledgement of that input. A crash can repeat a step, so every step is safe to run twice; a repeated delivery
//! keeps its id. The crate knows nothing of SQL, sockets or templates; those live in the crates it drives.

pub mod accept_events; // step 1: a submission becomes an event batch
pub mod match_events; // step 2: the match index turns event batches into notification batches
mod deliver_work; // step 3: a work item is formatted and sent through its channel, which yields dispositions
mod load_work; // step 3, input: a work item with its batch, version and events
mod dispatch_items; // step 3, loop: notifications are decided on, formatted and handed to channel sessions
mod decide; // step 3, decision: send now, later or not at all, and to which device
mod suppress; // step 3, decision: cache of suppressed addresses
mod digest; // step 3, grouping: notifications that share one digest message
mod windows; // step 3, grouping: open digest windows
mod multicast; // step 3, grouping: one message for several recipients
mod render; // step 3, formatting: the message and its log entry
mod render_cache; // cache of rendered content that does not depend on the recipient
mod in_flight; // step 3, state: the work items of a channel in flight
mod delivery_tracker; // step 3, state: the disposition of each notification of a work item
mod delivery_results; // step 4, input: uncommitted results of a work item, and the step that commits them
mod record_receipts; // step 4: dispositions become receipts, retries and suspensions
mod resend; // operator request: failed notifications are sent again
mod broadcasts; // messages of people to an audience: matched in parts, paused, cancelled
mod temporary_index; // temporary index of some subscriptions, for scheduled runs and broadcasts
mod class_counters; // counters by application and class, with bounded label cardinality
mod spans; // trace spans of the steps (W3C Trace Context)
mod channel_alerts; // log lines for channels whose attempts all fail
pub mod feedback; // bounces, complaints and other reports: counts and suppressions
mod apply_feedback; // the same as operations of the running pipeline
mod disable_devices; // devices whose address the receiver rejected for good are disabled
mod endpoints; // endpoints that fail, and for how long
mod update_endpoints; // endpoints that fail for days are disabled
mod feeds; // writes to the feeds of the inbox
mod provider_days; // mails to mailbox providers by day, for mail channels
mod recall_watcher; // formatted messages are recalled by any commit that changes their recipient

pub mod compile; // a definition becomes rules, formatters and channels
pub mod resource_policy; // files and programs that channels and collections may use
mod variables; // variables of the environment in definitions
mod read_text; // reads the text of a definition without revealing values of the environment
mod direct; // messages that are sent at once, without the journal
pub mod sample; // preview and test message for a sample notification
pub mod latency; // latency percentiles of the steps
pub mod options; // limits and delays of the pipeline
mod preview; // preview of a stored notification
mod explain_delivery; // the decision before an attempt, check by check
pub mod versions; // cache of compiled versions, for batches that older versions packed

mod lanes; // lanes of ordered delivery: per-key ordering of notifications
mod rates; // throttles: how many notifications an application may make per period
mod rule_breaker; // circuit breaker for rules: isolated, stopped and skipped firings
mod follow_changes; // keeps the match index consistent with the change feed of the records
mod snapshot_tracker; // snapshot sequences of submissions in progress
mod view_subscribers; // subscribers as rules see them, at a snapshot sequence
mod shards; // the match index, partitioned over threads that share nothing
mod slow_firings; // log of rule firings that took long
mod schedules; // rules that are evaluated by a schedule
mod follow_lifecycle; // changes in the life of subscriptions become events
mod delays; // delayed rules: their notifications wait, are cancelled, or become due
mod targeted_run; // one rule, evaluated for given pairs of event and subscription
mod run_queries; // rules in SQL
mod switches; // components that an operator has switched off
mod run_sources; // runs the event sources of applications
mod suspects; // poison-message protection: sets aside work that crashes the process
mod active_version; // the running version of an application with its open channels
mod running; // the workers of the channels of an application
mod upkeep; // retention
mod erase_person; // erasure of a person from the journal

mod pipeline; // the running pipeline: start, changes, end, and the operations on it
mod flow; // state that all steps share
mod errors; // errors that a caller can handle
mod blocking; // CPU-bound work in asynchronous tasks

#[cfg(test)]
mod panics; // tests of matching that panics
#[cfg(test)]
mod tracking; // tests of work items in flight

pub use accept_events::{AcceptError, Submission};
pub use broadcasts::{AudienceCount, CompiledBroadcast};
pub use compile::Compiled;
pub use direct::{DirectError, DirectMessage};
pub use erase_person::JournalErasure;
pub use errors::{RefireError, RunError};
pub use explain_delivery::{DeliveryCheck, DeliveryFinding, DeliverySubject, NewNotification};
pub use flow::Opener;
pub use latency::Latencies;
pub use options::PipelineOptions;
pub use pipeline::{ApplicationStatus, Parts, Pipeline, Prepared, closed_sources};
pub use preview::Preview;
pub use read_text::{check_text, compile_sealed, compile_text, option_secrets};
pub use resend::{ResendCount, ResendRequest};
pub use run_queries::apply_chronicle_change;
pub use run_sources::{SourceState, SourceStatus};
pub use schedules::{MovedSchedule, ScheduleAction, ScheduleMoveError};
pub use shards::subject;
pub use slow_firings::{SLOW_FIRINGS_MAX, SlowFiring};
pub use switches::Switched;
pub use tocsin_connect::{
    Clock, SystemClock,
    spans::{Attribute, Span, SpanKind, Spans},
};
pub use tocsin_delivery::{Context, Destination, DestinationState, HeldBackMail, MailKey, MailSender};
pub use tocsin_sources::{Context as SourceContext, Folders, Listeners, feed::FeedReader};
pub use tocsin_sources::{
    check as check_source,
    rejected::RejectedLine,
    sample::{Sample, SampleItem, read_sample},
};
pub use versions::Versions;
pub use view_subscribers::view_subscribers;

pub(crate) use blocking::keep_busy;
pub(crate) use flow::Flow;
