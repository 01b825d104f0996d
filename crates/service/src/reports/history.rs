//! Report of totals, by period.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::time::Timestamp;
use tocsin_store::journal::{Activity, Count, Timing};

use super::{Column, Report, ReportRequest, Table, diagnostics, request::share, table::column};
use crate::{Service, error::ServiceError};

const DAY: Duration = Duration::from_secs(86_400);

pub(super) const LIST: &[Column] = &[
    column("period_from", "Start of the period."),
    column("period_to", "End of the period."),
    column("event_batches", "Number of event batches accepted."),
    column("events", "Number of events accepted."),
    column("events_per_second", "Mean rate of accepted events."),
    column("notification_batches", "Number of notification batches created."),
    column("notifications", "Number of notifications created."),
    column("notifications_per_event", "Mean number of notifications per event."),
    column("attempts", "Number of attempts that contacted a receiver."),
    column("delivered", "Number of notifications delivered."),
    column("failed", "Number of notifications that were rejected or expired."),
    column("suspended", "Number of notifications suspended for an operator in this time."),
    column("firings_missed", "Number of firings that failed or were skipped."),
    column("end_to_end_ms", "Mean time from the acceptance of an event to the delivery of a notification."),
];

impl Service {
    pub(super) async fn administration_history(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let window = request.window(DAY, self.clock.now())?;
        let mut periods: BTreeMap<Timestamp, Activity> = BTreeMap::new();
        for row in self.activity_log.activity(&window, request.application.as_ref()).await? {
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
