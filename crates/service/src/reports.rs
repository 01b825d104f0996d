//! Reports on activity by quantum, batch, class, channel and time, and on the current state.
//!
//! Every report is a few tables with named columns, so that each front end can show all of them in the same way. They
//! are computed from the per-minute sums that the journal maintains in its commits, and from batch heads. A report
//! reads no more than it returns; only lists with a filter scan up to [`SCANNED_MAX`] heads and return a
//! cursor.

mod catalogue; // available reports and their parameters
mod quanta; // reports on quanta: runs of the matcher
mod event_batches; // reports on event batches
mod notification_batches; // reports on notification batches
mod diagnostics; // activity by class, source and channel, per interval
mod failures; // notifications that were not delivered, with the receiver's replies
mod timings; // latency percentiles by step
mod history; // totals by period
mod snapshots; // current state
mod schedules; // past and next runs of schedules
mod subscription; // notifications of one subscription

mod request; // parameters, with their defaults and limits
mod table; // tables of typed cells
mod walk; // paginated scans of lists, newest first

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
};

pub use catalogue::{CATALOGUE, Description, Parameter};
pub use request::{INTERVALS_MAX, ReportRequest, SCANNED_MAX};
pub use table::{Cell, Column, Report, Table};

impl Service {
    /// Runs a report.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; the report does not exist; a parameter is not supported; the id does
    /// not exist (any more).
    pub async fn report(&self, caller: &Caller, name: &str, request: &ReportRequest) -> Result<Report, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = CATALOGUE.iter().find(|found| found.name == name);
        let description = found.ok_or_else(|| ServiceError::Missing(format!("the report `{name}`")))?;
        description.check(request)?;
        let report = match name {
            "quantum-list" => self.quantum_list(request).await,
            "quantum-details" => self.quantum_details(request).await,
            "event-batch-list" => self.event_batch_list(request).await,
            "event-batch-details" => self.event_batch_details(request).await,
            "notification-batch-list" => self.notification_batch_list(request).await,
            "notification-batch-details" => self.notification_batch_details(request).await,
            "event-class" => self.event_class_diagnostics(request).await,
            "source" => self.source_diagnostics(request).await,
            "notification-class" => self.notification_class_diagnostics(request).await,
            "subscription-class" => self.subscription_class_diagnostics(request).await,
            "channel" => self.channel_diagnostics(request).await,
            "failed-notifications" => self.failed_notifications(request).await,
            "timings" => self.timings(request).await,
            "administration-history" => self.administration_history(request).await,
            "snapshot-applications" => self.snapshot_applications(request).await,
            "snapshot-sources" => self.snapshot_sources(request).await,
            "snapshot-events" => self.snapshot_events(request).await,
            "snapshot-subscriptions" => self.snapshot_subscriptions(request).await,
            "snapshot-channels" => self.snapshot_channels(request).await,
            "schedules" => self.schedules_report(caller, request).await,
            "scheduled-runs" => self.scheduled_runs(request).await,
            "subscription" => self.subscription_report(request).await,
            _ => unreachable!("every report of the catalogue is made here"),
        }?;
        if request.before.is_none() && report.tables.iter().all(|table| table.rows.is_empty()) {
            let ReportRequest { application, class, rule, channel, source, .. } = request;
            let (class, rule) = ((Part::Class, class.as_ref()), (Part::Rule, rule.as_ref()));
            let (channel, source) = ((Part::Channel, channel.as_ref()), (Part::Source, source.as_ref()));
            self.check_known(application.as_ref(), &[class, rule, channel, source]).await?;
        }
        let report = Report { name: description.name, ..report };
        if description.is_listed() { Ok(report) } else { report.page(request.before::<usize>()?, request.limit) }
    }
}
