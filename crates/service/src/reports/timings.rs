//! Latency percentiles by step.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::id::Name;
use tocsin_store::journal::{Activity, Timing};

use super::{Column, Report, ReportRequest, Table, table::column};
use crate::{Service, error::ServiceError};

/// Default period.
const USUAL: Duration = Duration::from_secs(3_600);

pub(super) const LIST: &[Column] = &[
    column("application", "The application."),
    column(
        "timing",
        "`collection`: from the first byte of an event batch to its acceptance; `pickup`: from there to the start of its \
         quantum; `generation`: from acceptance to a notification batch; `wait`: from there to its first attempt; \
         `delivery`: from there to its last response; `answer`: response time of one notification; `end_to_end`: from \
         acceptance to a delivery.",
    ),
    column("count", "Number of measurements."),
    column("average_ms", "Mean."),
    column("p50_ms", "Median."),
    column("p90_ms", "90th percentile."),
    column("p95_ms", "95th percentile."),
    column("p99_ms", "99th percentile."),
    column("max_ms", "Maximum."),
];

impl Service {
    pub(super) async fn timings(&self, request: &ReportRequest) -> Result<Report, ServiceError> {
        let to = request.to.unwrap_or_else(|| self.clock.now());
        let from = request.from.unwrap_or(to - USUAL);
        // One interval: the whole period, in minutes.
        let minutes = to.since(from).as_secs() / 60 + 2;
        let interval = Duration::from_secs(minutes * 60);
        let whole = ReportRequest { from: Some(from), to: request.to, interval: Some(interval), ..request.clone() };
        let window = whole.window(interval, self.clock.now())?;
        let mut applications: BTreeMap<Name, Activity> = BTreeMap::new();
        for row in self.activity_log.activity(&window, request.application.as_ref()).await? {
            applications.entry(row.stream.application().clone()).or_default().add(&row.activity);
        }
        let mut table = Table::new("timings", LIST);
        for (application, activity) in &applications {
            for timing in Timing::ALL {
                let spread = activity.timing(timing);
                let at = |fraction: f64| spread.percentile(fraction).into();
                table.push([
                    application.into(),
                    timing.word().into(),
                    spread.count.into(),
                    spread.average().into(),
                    at(0.5),
                    at(0.9),
                    at(0.95),
                    at(0.99),
                    at(1.0),
                ]);
            }
        }
        Ok(table.alone().of_window(&window))
    }
}
