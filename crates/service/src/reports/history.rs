//! Report of totals, by period.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::time::Timestamp;
use tocsin_store::journal::{Activity, Count, Timing};

use super::{Column, Report, ReportRequest, Table, diagnostics, share, table::column};
use crate::{Service, error::ServiceError};

const DAY: Duration = Duration::from_secs(86_400);

pub(super) const LIST: &[Column] = &[
    column("period_from", "When the period begins."),
    column("period_to", "When it ends."),
    column("event_batches", "Event batches accepted."),
    column("events", "Events accepted."),
    column("events_per_second", "Events in a second, on average."),
    column("notification_batches", "Notification batches made."),
    column("notifications", "Notifications made."),
    column("notifications_per_event", "Notifications of an event, on average."),
    column("attempts", "Attempts that contacted a receiver."),
    column("delivered", "Notifications delivered."),
    column("failed", "Notifications that were refused or too late."),
    column("suspended", "Notifications that began to wait for an operator."),
    column("firings_missed", "Firings that failed or were skipped."),
    column("end_to_end_ms", "From the acceptance of events to a delivery, on average."),
];

impl Service {
    pub(super) async fn administration_history(&self, asked: &ReportRequest) -> Result<Report, ServiceError> {
        let window = self.window(asked, DAY)?;
        let mut periods: BTreeMap<Timestamp, Activity> = BTreeMap::new();
        for row in self.journal.activity(&window, asked.application.as_ref()).await? {
            periods.entry(row.from).or_default().add(&row.activity);
        }
        let mut table = Table::new("periods", LIST);
        for (from, activity) in &periods {
            let (to, length) = diagnostics::ends(&window, *from);
            let (events, made) = (activity.count(Count::Events), activity.count(Count::Notifications));
            table.push([
                (*from).into(),
                to.into(),
                activity.count(Count::EventBatches).into(),
                events.into(),
                (events as f64 / length.as_secs_f64()).into(),
                activity.count(Count::NotificationBatches).into(),
                made.into(),
                share(made, events).into(),
                activity.attempts().into(),
                activity.count(Count::Delivered).into(),
                (activity.count(Count::Refused) + activity.count(Count::Expired)).into(),
                activity.count(Count::Suspended).into(),
                (activity.count(Count::FiringsFailed) + activity.count(Count::FiringsSkipped)).into(),
                diagnostics::average(activity, Timing::EndToEnd),
            ]);
        }
        Ok(table.alone().of_window(&window))
    }
}
