//! Activity by interval, event class, source, notification class, subscription class and channel.
//!
//! Each step counts in the interval in which it happened: a batch accepted in one and matched in the next is counted
//! as collected in the first and as made in the second.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{id::Name, time::Timestamp};
use tocsin_store::journal::{Activity, Count, Stream, Timing, Window};

use super::{Cell, Column, MINUTE, Report, ReportRequest, Table, is_or_any, share, table::column};
use crate::{Service, error::ServiceError};

pub(super) const EVENT_CLASS: &[Column] = &[
    column("interval_from", "When the interval begins."),
    column("interval_to", "When it ends."),
    column("application", "The application."),
    column("class", "The event class."),
    column("event_batches", "Event batches collected."),
    column("events", "Events collected."),
    column("event_batches_unfinished", "Event batches that were set aside, because they could not be matched."),
    column("events_per_batch", "Events of a batch, on average."),
    column("events_per_second", "Events collected in a second, on average over the interval."),
    column("collection_ms", "From the first byte of a batch to its acceptance, on average."),
    column("pickup_wait_ms", "From the acceptance of a batch until a quantum took it up, on average."),
    column("generation_ms", "From the acceptance of events to their notification batch, on average."),
    column("wait_until_distribution_ms", "From the making of a notification batch to its first hand-over, on average."),
    column("delivery_ms", "From the first hand-over of a notification batch to its last answer, on average."),
];

pub(super) const SOURCE: &[Column] = &[
    column("interval_from", "When the interval begins."),
    column("interval_to", "When it ends."),
    column("application", "The application."),
    column("source", "The source."),
    column("class", "The event class."),
    column("event_batches", "Event batches that it submitted."),
    column("events", "Events that it submitted."),
    column("event_bytes", "Their packed bytes."),
    column("events_per_batch", "Events of a batch, on average."),
    column("events_per_second", "Events in a second, on average over the interval."),
    column("collection_ms", "From the first byte of a batch to its acceptance, on average."),
    column("event_batches_failed", "Batches of it that were set aside."),
    column("last_at", "When something of it happened last."),
];

pub(super) const NOTIFICATION_CLASS: &[Column] = &[
    column("interval_from", "When the interval begins."),
    column("interval_to", "When it ends."),
    column("application", "The application."),
    column("class", "The notification class."),
    column("notification_batches", "Notification batches made."),
    column("notifications", "Notifications made."),
    column("notifications_per_batch", "Notifications of a batch, on average."),
    column("notification_batches_delivered", "Notification batches of which the last notification was closed."),
    column("delivered", "Notifications delivered."),
    column("refused", "Notifications refused for good."),
    column("expired", "Notifications that were too late."),
    column("suspended", "Notifications that began to wait for an operator."),
    column("success_percent", "Delivered among those delivered, refused and too late."),
    column("generation_ms", "From the acceptance of events to their notification batch, on average."),
    column("wait_until_distribution_ms", "From the making of a batch to its first hand-over, on average."),
    column("delivery_ms", "From the first hand-over of a batch to its last answer, on average."),
];

pub(super) const SUBSCRIPTION_CLASS: &[Column] = &[
    column("interval_from", "When the interval begins."),
    column("interval_to", "When it ends."),
    column("application", "The application."),
    column("class", "The subscription class; nothing of a rule that the application does not have any more."),
    column("rule", "The rule."),
    column("firings", "Firings that made a notification batch, each batch counted."),
    column("firings_failed", "Firings that failed."),
    column("firings_skipped", "Firings that were skipped."),
    column("notifications", "Notifications made."),
    column("firing_ms", "From the acceptance of events to their notification batch, on average."),
    column("firing_p95_ms", "The same, which 95 of 100 did not exceed."),
    column("delivered", "Notifications delivered."),
    column("failed", "Notifications that were refused or too late."),
];

pub(super) const CHANNEL: &[Column] = &[
    column("interval_from", "When the interval begins."),
    column("interval_to", "When it ends."),
    column("application", "The application."),
    column("channel", "The channel."),
    column("notification_batches_delivered", "Notification batches of which the last notification was closed."),
    column("attempts", "Attempts that contacted the receiver."),
    column("delivered", "Attempts that delivered."),
    column("failed", "Attempts that did not."),
    column("deferred", "Attempts that will be repeated."),
    column("refused", "Attempts that were refused for good."),
    column("expired", "Notifications that were too late."),
    column("suspended", "Notifications that began to wait for an operator."),
    column("success_percent", "Attempts that delivered among all attempts."),
    column("delivered_per_second", "Deliveries in a second, on average over the interval."),
    column("wait_until_distribution_ms", "From the making of a batch to its first hand-over, on average."),
    column("answer_ms", "From the hand-over of a notification to the answer, on average."),
    column("answer_p95_ms", "The same, which 95 of 100 did not exceed."),
];

/// Activity by name and beginning of the interval.
type Intervals<const N: usize> = BTreeMap<([Name; N], Timestamp), Activity>;

impl Service {
    /// Sums of a window, by the names that `key` returns for a stream.
    async fn intervals<const N: usize>(
        &self,
        asked: &ReportRequest,
        key: impl Fn(&Stream) -> Option<[Name; N]>,
    ) -> Result<(Window, Intervals<N>), ServiceError> {
        let window = self.window(asked, MINUTE)?;
        let mut intervals: Intervals<N> = BTreeMap::new();
        for row in self.journal.activity(&window, asked.application.as_ref()).await? {
            if let Some(key) = key(&row.stream) {
                intervals.entry((key, row.from)).or_default().add(&row.activity);
            }
        }
        Ok((window, intervals))
    }

    pub(super) async fn event_class_diagnostics(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| {
            let (application, class) = match stream {
                Stream::Events { application, class, .. } => (application, class),
                Stream::Notifications { application, event_class, .. } => (application, event_class),
                Stream::Firings { .. } => return None,
            };
            is_or_any(&asked.class, class).then(|| [application.clone(), class.clone()])
        };
        let (window, intervals) = self.intervals(asked, key).await?;
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

    pub(super) async fn source_diagnostics(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Events { application, class, source }
                if is_or_any(&asked.source, source) && is_or_any(&asked.class, class) =>
            {
                Some([application.clone(), source.clone(), class.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(asked, key).await?;
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

    pub(super) async fn notification_class_diagnostics(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, class, .. } if is_or_any(&asked.class, class) => {
                Some([application.clone(), class.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(asked, key).await?;
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

    pub(super) async fn subscription_class_diagnostics(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, rule, .. } | Stream::Firings { application, rule } => {
                is_or_any(&asked.rule, rule).then(|| [application.clone(), rule.clone()])
            }
            Stream::Events { .. } => None,
        };
        let (window, intervals) = self.intervals(asked, key).await?;
        let mut table = Table::new("intervals", SUBSCRIPTION_CLASS);
        for (([application, rule], from), activity) in &intervals {
            let compiled = self.pipeline.application(application);
            let class = compiled.as_ref().and_then(|compiled| compiled.application.rules.get(rule));
            let class = class.map(|rule| &rule.subscription);
            if asked.class.is_some() && asked.class.as_ref() != class {
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

    pub(super) async fn channel_diagnostics(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let key = |stream: &Stream| match stream {
            Stream::Notifications { application, channel, .. } if is_or_any(&asked.channel, channel) => {
                Some([application.clone(), channel.clone()])
            }
            _ => None,
        };
        let (window, intervals) = self.intervals(asked, key).await?;
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
