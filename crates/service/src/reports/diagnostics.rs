//! Activity by interval, event class, source, notification class, subscription class and channel.
//!
//! Each step counts in the interval in which it happened: a batch accepted in one and matched in the next is counted
//! as collected in the first and as made in the second.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{id::Name, time::Timestamp};
use tocsin_store::journal::{Activity, Count, Stream, Timing, Window};

use super::{
    Cell, Column, Report, ReportRequest, Table,
    request::{MINUTE, is_or_any, share},
    table::column,
};
use crate::{Service, error::ServiceError};

pub(super) const EVENT_CLASS: &[Column] = &[
    column("interval_from", "Start of the interval."),
    column("interval_to", "End of the interval."),
    column("application", "The application."),
    column("class", "The event class."),
    column("event_batches", "Number of event batches accepted."),
    column("events", "Number of events accepted."),
    column("event_batches_unfinished", "Number of event batches that could not be matched and were set aside."),
    column("events_per_batch", "Mean number of events per batch."),
    column("events_per_second", "Mean rate of accepted events."),
    column("collection_ms", "Mean time from the first byte of a batch to its acceptance."),
    column("pickup_wait_ms", "Mean time from the acceptance of a batch to the start of its quantum."),
    column("generation_ms", "Mean time from the acceptance of events to the creation of their notification batch."),
    column("wait_until_distribution_ms", "Mean time from the creation of a notification batch to its first attempt."),
    column("delivery_ms", "Mean time from the first attempt of a notification batch to its last response."),
];

pub(super) const SOURCE: &[Column] = &[
    column("interval_from", "Start of the interval."),
    column("interval_to", "End of the interval."),
    column("application", "The application."),
    column("source", "The source."),
    column("class", "The event class."),
    column("event_batches", "Number of event batches submitted by the source."),
    column("events", "Number of events submitted by the source."),
    column("event_bytes", "Packed size of the events, in bytes."),
    column("events_per_batch", "Mean number of events per batch."),
    column("events_per_second", "Mean rate of submitted events."),
    column("collection_ms", "Mean time from the first byte of a batch to its acceptance."),
    column("event_batches_failed", "Number of its event batches that were set aside."),
    column("last_at", "Time of the last event batch of the source."),
];

pub(super) const NOTIFICATION_CLASS: &[Column] = &[
    column("interval_from", "Start of the interval."),
    column("interval_to", "End of the interval."),
    column("application", "The application."),
    column("class", "The notification class."),
    column("notification_batches", "Number of notification batches created."),
    column("notifications", "Number of notifications created."),
    column("notifications_per_batch", "Mean number of notifications per batch."),
    column("notification_batches_delivered", "Number of notification batches completed: all notifications are closed."),
    column("delivered", "Number of notifications delivered."),
    column("refused", "Number of notifications rejected permanently."),
    column("expired", "Number of notifications expired."),
    column("suspended", "Number of notifications suspended for an operator in this time."),
    column("success_percent", "Share of `delivered` in the sum of `delivered`, `refused` and `expired`."),
    column("generation_ms", "Mean time from the acceptance of events to the creation of their notification batch."),
    column("wait_until_distribution_ms", "Mean time from the creation of a notification batch to its first attempt."),
    column("delivery_ms", "Mean time from the first attempt of a notification batch to its last response."),
];

pub(super) const SUBSCRIPTION_CLASS: &[Column] = &[
    column("interval_from", "Start of the interval."),
    column("interval_to", "End of the interval."),
    column("application", "The application."),
    column("class", "The subscription class; null if the application no longer has the rule."),
    column("rule", "The rule."),
    column("firings", "Number of notification batches that the rule created."),
    column("firings_failed", "Number of firings that failed."),
    column("firings_skipped", "Number of firings that were skipped."),
    column("notifications", "Number of notifications created."),
    column("firing_ms", "Mean time from the acceptance of events to the creation of their notification batch."),
    column("firing_p95_ms", "95th percentile of this time."),
    column("delivered", "Number of notifications delivered."),
    column("failed", "Number of notifications that were rejected or expired."),
];

pub(super) const CHANNEL: &[Column] = &[
    column("interval_from", "Start of the interval."),
    column("interval_to", "End of the interval."),
    column("application", "The application."),
    column("channel", "The channel."),
    column("notification_batches_delivered", "Number of notification batches completed: all notifications are closed."),
    column("attempts", "Number of attempts that contacted the receiver."),
    column("delivered", "Number of successful attempts."),
    column("failed", "Number of failed attempts."),
    column("deferred", "Number of attempts that failed temporarily and are retried."),
    column("refused", "Number of attempts that were rejected permanently."),
    column("expired", "Number of notifications expired."),
    column("suspended", "Number of notifications suspended for an operator in this time."),
    column("success_percent", "Share of successful attempts."),
    column("delivered_per_second", "Mean rate of deliveries."),
    column("wait_until_distribution_ms", "Mean time from the creation of a notification batch to its first attempt."),
    column("answer_ms", "Mean time from an attempt to the response of the receiver."),
    column("answer_p95_ms", "95th percentile of this time."),
];

/// Activity by name and beginning of the interval.
type Intervals<const N: usize> = BTreeMap<([Name; N], Timestamp), Activity>;

impl Service {
    /// Sums of a window, by the names that `key` returns for a stream.
    async fn intervals<const N: usize>(
        &self,
        request: &ReportRequest,
        key: impl Fn(&Stream) -> Option<[Name; N]>,
    ) -> Result<(Window, Intervals<N>), ServiceError> {
        let window = request.window(MINUTE, self.clock.now())?;
        let mut intervals: Intervals<N> = BTreeMap::new();
        for row in self.activity_log.activity(&window, request.application.as_ref()).await? {
            if let Some(key) = key(&row.stream) {
                intervals.entry((key, row.from)).or_default().add(&row.activity);
            }
        }
        Ok((window, intervals))
    }

    pub(super) async fn event_class_diagnostics(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| {
            let (application, class) = match stream {
                Stream::Events { application, class, .. } => (application, class),
                Stream::Notifications { application, event_class, .. } => (application, event_class),
                Stream::Firings { .. } => return None,
            };
            is_or_any(&request.class, class).then(|| [application.clone(), class.clone()])
        };
        let (window, intervals) = self.intervals(request, key).await?;
        let mut table = Table::new("intervals", EVENT_CLASS);
        for (([application, class], from), activity) in &intervals {
            let (to, length) = ends(&window, *from);
            let (batches, events) = (activity.count(Count::EventBatches), activity.count(Count::Events));
            table.push([
                (*from).into(),
                to.into(),
                application.into(),
                class.into(),
                batches.into(),
                events.into(),
                activity.count(Count::FailedBatches).into(),
                share(events, batches).into(),
                (events as f64 / length.as_secs_f64()).into(),
                average(activity, Timing::Collection),
                average(activity, Timing::Pickup),
                average(activity, Timing::Generation),
                average(activity, Timing::Wait),
                average(activity, Timing::Delivery),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }

    pub(super) async fn source_diagnostics(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Events { application, class, source }
                if is_or_any(&request.source, source) && is_or_any(&request.class, class) =>
            {
                Some([application.clone(), source.clone(), class.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(request, key).await?;
        let mut table = Table::new("intervals", SOURCE);
        for (([application, source, class], from), activity) in &intervals {
            let (to, length) = ends(&window, *from);
            let (batches, events) = (activity.count(Count::EventBatches), activity.count(Count::Events));
            table.push([
                (*from).into(),
                to.into(),
                application.into(),
                source.into(),
                class.into(),
                batches.into(),
                events.into(),
                activity.count(Count::EventBytes).into(),
                share(events, batches).into(),
                (events as f64 / length.as_secs_f64()).into(),
                average(activity, Timing::Collection),
                activity.count(Count::FailedBatches).into(),
                activity.last_at.into(),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }

    pub(super) async fn notification_class_diagnostics(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, class, .. } if is_or_any(&request.class, class) => {
                Some([application.clone(), class.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(request, key).await?;
        let mut table = Table::new("intervals", NOTIFICATION_CLASS);
        for (([application, class], from), activity) in &intervals {
            let (batches, made) = (activity.count(Count::NotificationBatches), activity.count(Count::Notifications));
            let (delivered, refused) = (activity.count(Count::Delivered), activity.count(Count::Refused));
            let expired = activity.count(Count::Expired);
            table.push([
                (*from).into(),
                ends(&window, *from).0.into(),
                application.into(),
                class.into(),
                batches.into(),
                made.into(),
                share(made, batches).into(),
                activity.count(Count::ClosedBatches).into(),
                delivered.into(),
                refused.into(),
                expired.into(),
                activity.count(Count::Suspended).into(),
                share(delivered * 100, delivered + refused + expired).into(),
                average(activity, Timing::Generation),
                average(activity, Timing::Wait),
                average(activity, Timing::Delivery),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }

    pub(super) async fn subscription_class_diagnostics(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, rule, .. } | Stream::Firings { application, rule } => {
                is_or_any(&request.rule, rule).then(|| [application.clone(), rule.clone()])
            }
            Stream::Events { .. } => None,
        };
        let (window, intervals) = self.intervals(request, key).await?;
        let mut table = Table::new("intervals", SUBSCRIPTION_CLASS);
        for (([application, rule], from), activity) in &intervals {
            let compiled = self.pipeline.application(application);
            let class = compiled.as_ref().and_then(|compiled| compiled.application.rules.get(rule));
            let class = class.map(|rule| &rule.subscription);
            if request.class.is_some() && request.class.as_ref() != class {
                continue;
            }
            table.push([
                (*from).into(),
                ends(&window, *from).0.into(),
                application.into(),
                class.into(),
                rule.into(),
                activity.count(Count::NotificationBatches).into(),
                activity.count(Count::FiringsFailed).into(),
                activity.count(Count::FiringsSkipped).into(),
                activity.count(Count::Notifications).into(),
                average(activity, Timing::Generation),
                activity.timing(Timing::Generation).percentile(0.95).into(),
                activity.count(Count::Delivered).into(),
                (activity.count(Count::Refused) + activity.count(Count::Expired)).into(),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }

    pub(super) async fn channel_diagnostics(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, channel, .. } if is_or_any(&request.channel, channel) => {
                Some([application.clone(), channel.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(request, key).await?;
        let mut table = Table::new("intervals", CHANNEL);
        for (([application, channel], from), activity) in &intervals {
            let (to, length) = ends(&window, *from);
            let (attempts, delivered) = (activity.attempts(), activity.count(Count::Delivered));
            table.push([
                (*from).into(),
                to.into(),
                application.into(),
                channel.into(),
                activity.count(Count::ClosedBatches).into(),
                attempts.into(),
                delivered.into(),
                (attempts - delivered).into(),
                activity.count(Count::Deferred).into(),
                activity.count(Count::Refused).into(),
                activity.count(Count::Expired).into(),
                activity.count(Count::Suspended).into(),
                share(delivered * 100, attempts).into(),
                (delivered as f64 / length.as_secs_f64()).into(),
                average(activity, Timing::Wait),
                average(activity, Timing::Answer),
                activity.timing(Timing::Answer).percentile(0.95).into(),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }
}

/// End and length of an interval; the last may be shorter.
pub(super) fn ends(window: &Window, from: Timestamp) -> (Timestamp, Duration) {
    let to = (from + window.interval).min(window.to);
    (to, to.since(from))
}

pub(super) fn average(activity: &Activity, timing: Timing) -> Cell {
    activity.timing(timing).average().into()
}
