//! Reports: what happened, by quantum, batch, class, channel and time, and what the state is right now.
//!
//! Every report is a few tables with named columns, so that each face shows all of them in one way. They are made of what
//! the journal sums up in the commits of the flow, and of heads of batches: none reads more than it shows, but for lists
//! with a filter, which look through at most [`LOOKED_THROUGH_MAX`] heads and say where to go on.

mod catalogue; // which there are, and what may be asked of each
mod quanta; // turns of the matcher
mod event_batches;
mod notification_batches;
mod diagnostics; // by class, source and channel, interval by interval
mod failures; // what was not delivered, with the far side's words
mod timings; // how long the parts of the way took, by percentile
mod history; // how much there was, period by period
mod snapshots; // the state right now
mod schedules; // what schedules did, and will do
mod subscription; // what one subscription was told

mod table; // tables with cells
mod walk; // pages of lists, newest first, and their cursors

use std::{num::NonZeroU64, time::Duration};

use tocsin_model::{id::Name, problem::Problem, time::Timestamp};
use tocsin_store::journal::Window;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
};

pub use catalogue::{CATALOGUE, Description, Parameter};
pub use table::{Cell, Column, Report, Table};

/// Most heads of batches that one report looks through.
pub const LOOKED_THROUGH_MAX: usize = 10_000;
/// Most intervals of one report.
pub const INTERVALS_MAX: u64 = 1_500;
/// The intervals of a report that names no time.
const INTERVALS: u32 = 5;
const MINUTE: Duration = Duration::from_secs(60);

/// What is asked of a report. Each report says which of these mean something to it; others are refused.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Question {
    /// Of which thing: a quantum, a batch or a subscription.
    pub id: Option<String>,
    /// Only of this application.
    pub application: Option<Name>,
    /// Only of this class.
    pub class: Option<Name>,
    /// Only of this rule.
    pub rule: Option<Name>,
    /// Only of this channel.
    pub channel: Option<Name>,
    /// Only of this source.
    pub source: Option<Name>,
    /// Only in this state.
    pub status: Option<String>,
    /// From this time on; reports with intervals begin at the minute that it is in.
    pub from: Option<Timestamp>,
    /// Before this time; reports with intervals end at the end of the minute that it is in.
    pub to: Option<Timestamp>,
    /// The length of an interval; whole minutes.
    pub interval: Option<Duration>,
    /// The `next` of the answer before.
    pub before: Option<String>,
    /// Most rows.
    pub limit: Option<usize>,
}

impl Service {
    /// Makes a report.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; there is no such report; something is asked that it does not know, or the
    /// thing is not there (any more).
    pub async fn report(&self, caller: &Caller, name: &str, asked: &Question) -> Result<Report, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = CATALOGUE.iter().find(|found| found.name == name);
        let description = found.ok_or_else(|| ServiceError::Missing(format!("the report `{name}`")))?;
        description.check(asked)?;
        let report = match name {
            "quantum-list" => self.quantum_list(asked).await,
            "quantum-details" => self.quantum_details(asked).await,
            "event-batch-list" => self.event_batch_list(asked).await,
            "event-batch-details" => self.event_batch_details(asked).await,
            "notification-batch-list" => self.notification_batch_list(asked).await,
            "notification-batch-details" => self.notification_batch_details(asked).await,
            "event-class" => self.event_class_diagnostics(asked).await,
            "source" => self.source_diagnostics(asked).await,
            "notification-class" => self.notification_class_diagnostics(asked).await,
            "subscription-class" => self.subscription_class_diagnostics(asked).await,
            "channel" => self.channel_diagnostics(asked).await,
            "failed-notifications" => self.failed_notifications(asked).await,
            "timings" => self.timings(asked).await,
            "administration-history" => self.administration_history(asked).await,
            "snapshot-applications" => self.snapshot_applications(asked).await,
            "snapshot-sources" => self.snapshot_sources(asked).await,
            "snapshot-events" => self.snapshot_events(asked).await,
            "snapshot-subscriptions" => self.snapshot_subscriptions(asked).await,
            "snapshot-channels" => self.snapshot_channels(asked).await,
            "schedules" => self.schedules_report(caller, asked).await,
            "scheduled-runs" => self.scheduled_runs(asked).await,
            "subscription" => self.subscription_report(asked).await,
            _ => unreachable!("every report of the catalogue is made here"),
        }?;
        if asked.before.is_none() && report.tables.iter().all(|table| table.rows.is_empty()) {
            let Question { application, class, rule, channel, source, .. } = asked;
            let (class, rule) = ((Part::Class, class.as_ref()), (Part::Rule, rule.as_ref()));
            let (channel, source) = ((Part::Channel, channel.as_ref()), (Part::Source, source.as_ref()));
            self.check_known(application.as_ref(), &[class, rule, channel, source]).await?;
        }
        let report = Report { name: description.name, ..report };
        if description.is_listed() { Ok(report) } else { report.page(asked.before::<usize>()?, asked.limit) }
    }

    /// The time of a report in intervals: the time that is asked for, widened to whole minutes since sums are kept by the
    /// minute, or the last few intervals.
    fn window(&self, asked: &Question, usual: Duration) -> Result<Window, ServiceError> {
        let interval = asked.interval.unwrap_or(usual);
        if interval.is_zero() || !interval.as_micros().is_multiple_of(MINUTE.as_micros()) {
            return Err(ServiceError::invalid(
                "interval",
                "is not a number of whole minutes, such as `1m`, `15m` or `1d`",
            ));
        }
        // The minute that goes on is included as far as it has come.
        let to = asked.to.map_or_else(|| minute_after(self.clock.now()), minute_at_or_after);
        let from = asked.from.map_or_else(|| to - interval * INTERVALS, minute_before);
        if from >= to {
            return Err(ServiceError::invalid("from", "is not before `to`"));
        }
        let window = Window { from, to, interval };
        let intervals = to.since(from).as_micros().div_ceil(interval.as_micros());
        if intervals > u128::from(INTERVALS_MAX) {
            let problem = Problem::at(
                "interval",
                format!("parts the time into {intervals} intervals; {INTERVALS_MAX} are allowed"),
            );
            return Err(ServiceError::Invalid(vec![problem.hint("make it longer, or the time shorter")]));
        }
        Ok(window)
    }

    /// The time of which a list tells; all if nothing is said.
    fn span(&self, asked: &Question) -> Result<(Timestamp, Timestamp), ServiceError> {
        let (from, to) = (asked.from.unwrap_or(Timestamp(0)), asked.to.unwrap_or(Timestamp(i64::MAX)));
        if from >= to {
            return Err(ServiceError::invalid("from", "is not before `to`"));
        }
        Ok((from, to))
    }
}

impl Question {
    /// The thing of which something is asked.
    fn thing<T: std::str::FromStr>(&self, what: &str) -> Result<T, ServiceError> {
        let id = self.id.as_deref().unwrap_or_default();
        id.parse().map_err(|_| ServiceError::invalid("id", format!("`{id}` is not {what}")))
    }

    fn limit(&self) -> Result<usize, ServiceError> {
        crate::page::limit(self.limit)
    }

    /// Where the answer before ended.
    fn before<T: std::str::FromStr>(&self) -> Result<Option<T>, ServiceError> {
        let read = |text: &String| {
            text.parse()
                .map_err(|_| ServiceError::invalid("before", format!("`{text}` is not the `next` of an answer")))
        };
        self.before.as_ref().map(read).transpose()
    }

    fn means(&self, application: &Name, class: Option<&Name>) -> bool {
        is_or_any(&self.application, application) && class.is_none_or(|class| is_or_any(&self.class, class))
    }
}

fn is_or_any(wanted: &Option<Name>, found: &Name) -> bool {
    wanted.as_ref().is_none_or(|wanted| wanted == found)
}

fn minute_before(time: Timestamp) -> Timestamp {
    Timestamp(time.0 - time.0.rem_euclid(60_000_000))
}

fn minute_at_or_after(time: Timestamp) -> Timestamp {
    let minute = minute_before(time);
    if minute == time { time } else { minute + MINUTE }
}

fn minute_after(time: Timestamp) -> Timestamp {
    minute_before(time) + MINUTE
}

/// A share of what there was none of is nothing.
fn share(of: u64, among: u64) -> Option<f64> {
    NonZeroU64::new(among).map(|among| of as f64 / among.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_whole() {
        assert_eq!(minute_before(Timestamp(119_999_999)), Timestamp(60_000_000));
        assert_eq!(minute_after(Timestamp(60_000_000)), Timestamp(120_000_000));
        assert_eq!(minute_at_or_after(Timestamp(60_000_000)), Timestamp(60_000_000));
        assert_eq!(minute_at_or_after(Timestamp(60_000_001)), Timestamp(120_000_000));
        assert_eq!((share(1, 0), share(1, 4)), (None, Some(0.25)));
    }
}
