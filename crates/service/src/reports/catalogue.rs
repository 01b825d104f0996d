//! Catalogue of reports, with the parameters of each.

use tocsin_model::problem::{Code, Problem};

use super::{
    Column, ReportRequest, diagnostics, event_batches, failures, history, notification_batches, quanta, schedules,
    snapshots, subscription, timings,
};
use crate::error::ServiceError;

/// Description of a report.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// Description.
    pub description: &'static str,
    /// Parameters.
    pub parameters: &'static [Parameter],
    /// Tables: name and columns of each.
    pub tables: &'static [(&'static str, &'static [Column])],
}

/// A parameter of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// Id; required by the reports that use it.
    Id,
    /// See [`ReportRequest::application`].
    Application,
    /// See [`ReportRequest::class`].
    Class,
    /// See [`ReportRequest::rule`].
    Rule,
    /// See [`ReportRequest::channel`].
    Channel,
    /// See [`ReportRequest::source`].
    Source,
    /// See [`ReportRequest::status`].
    Status,
    /// See [`ReportRequest::from`] and [`ReportRequest::to`].
    Time,
    /// See [`ReportRequest::interval`].
    Interval,
    /// See [`ReportRequest::before`].
    Before,
    /// See [`ReportRequest::limit`].
    Limit,
}

use Parameter::{Application, Before, Channel, Class, Id, Interval, Limit, Rule, Source, Status, Time};

impl Parameter {
    /// Name in a query string.
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Id => &["id"],
            Application => &["application"],
            Class => &["class"],
            Rule => &["rule"],
            Channel => &["channel"],
            Source => &["source"],
            Status => &["status"],
            Time => &["from", "to"],
            Interval => &["interval"],
            Before => &["before"],
            Limit => &["limit"],
        }
    }

    fn is_requested(self, request: &ReportRequest) -> bool {
        match self {
            Id => request.id.is_some(),
            Application => request.application.is_some(),
            Class => request.class.is_some(),
            Rule => request.rule.is_some(),
            Channel => request.channel.is_some(),
            Source => request.source.is_some(),
            Status => request.status.is_some(),
            Time => request.from.is_some() || request.to.is_some(),
            Interval => request.interval.is_some(),
            Before => request.before.is_some(),
            Limit => request.limit.is_some(),
        }
    }
}

const PARAMETERS: [Parameter; 11] =
    [Id, Application, Class, Rule, Channel, Source, Status, Time, Interval, Before, Limit];

impl Description {
    /// Whether it is paginated while reading. Other reports are computed as a whole, then cut.
    pub(super) fn is_listed(&self) -> bool {
        matches!(
            self.name,
            "quantum-list"
                | "event-batch-list"
                | "event-batch-details"
                | "notification-batch-list"
                | "notification-batch-details"
                | "failed-notifications"
                | "scheduled-runs"
                | "subscription"
        )
    }

    /// Checks that only supported parameters are given, and that a required id is present.
    pub(super) fn check(&self, request: &ReportRequest) -> Result<(), ServiceError> {
        let known: Vec<&str> = self.parameters.iter().flat_map(|known| known.words()).copied().collect();
        let unknown =
            PARAMETERS.into_iter().filter(|found| found.is_requested(request) && !self.parameters.contains(found));
        let mut problems: Vec<Problem> = unknown
            .map(|found| {
                let text = format!("means nothing to the report `{}`", self.name);
                Problem::new(Code::NotApplicable, found.words()[0], text).hint(format!("it knows {}", known.join(", ")))
            })
            .collect();
        if self.parameters.contains(&Id) && request.id.is_none() {
            problems.push(
                Problem::new(Code::Required, "id", "is missing")
                    .hint("give the id of the quantum, batch or subscription"),
            );
        }
        if problems.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(problems)) }
    }
}

/// Every report, in the order of the flow.
pub const CATALOGUE: &[Description] = &[
    Description {
        name: "quantum-list",
        description: "Quanta of the matcher, newest first: times, event and notification counts, and missed firings. `status` \
                      is `failed` or `skipped`.",
        parameters: &[Time, Status, Before, Limit],
        tables: &[("quanta", quanta::LIST)],
    },
    Description {
        name: "quantum-details",
        description: "One quantum of the matcher: its event batches, its missed firings, and the notification \
                      batches that it created.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("quantum", quanta::LIST),
            ("event_batches", event_batches::LIST),
            ("firings_missed", quanta::FIRINGS),
            ("notification_batches", notification_batches::LIST),
        ],
    },
    Description {
        name: "event-batch-list",
        description: "Event batches, newest first, with their collection times and outcomes.",
        parameters: &[Application, Class, Source, Status, Time, Before, Limit],
        tables: &[("event_batches", event_batches::LIST)],
    },
    Description {
        name: "event-batch-details",
        description: "One event batch, its notification batches with their three latencies, and its \
                      events.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("event_batch", event_batches::LIST),
            ("notification_batches", notification_batches::LIST),
            ("events", event_batches::EVENTS),
        ],
    },
    Description {
        name: "notification-batch-list",
        description: "Notification batches, newest first: generation, wait until distribution, delivery and progress. \
                      `status` is `open` or `closed`.",
        parameters: &[Application, Class, Rule, Channel, Status, Time, Before, Limit],
        tables: &[("notification_batches", notification_batches::LIST)],
    },
    Description {
        name: "notification-batch-details",
        description: "One notification batch: its channels and its notifications.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("notification_batch", notification_batches::LIST),
            ("channels", notification_batches::CHANNELS),
            ("notifications", notification_batches::NOTIFICATIONS),
        ],
    },
    Description {
        name: "event-class",
        description: "Event counts and latencies of each stage, by event class and interval.",
        parameters: &[Application, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::EVENT_CLASS)],
    },
    Description {
        name: "source",
        description: "Submitted events and collection times, by source and interval.",
        parameters: &[Application, Source, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::SOURCE)],
    },
    Description {
        name: "notification-class",
        description: "Notifications created, delivered and failed, by notification class and interval.",
        parameters: &[Application, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::NOTIFICATION_CLASS)],
    },
    Description {
        name: "subscription-class",
        description: "Latency of rules, and outcomes of their notifications, by subscription class, rule and interval.",
        parameters: &[Application, Class, Rule, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::SUBSCRIPTION_CLASS)],
    },
    Description {
        name: "channel",
        description: "Batches, attempts, outcomes and response times, by channel and interval.",
        parameters: &[Application, Channel, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::CHANNEL)],
    },
    Description {
        name: "failed-notifications",
        description: "Notifications that were rejected or expired, newest batch first, with the replies of the \
                      receivers.",
        parameters: &[Application, Class, Rule, Channel, Time, Before, Limit],
        tables: &[("notifications", failures::LIST)],
    },
    Description {
        name: "timings",
        description: "Percentiles of the latency of each stage in a time range, by application.",
        parameters: &[Application, Time, Before, Limit],
        tables: &[("timings", timings::LIST)],
    },
    Description {
        name: "administration-history",
        description: "Totals of events, notifications and attempts by period; the default period is a day.",
        parameters: &[Application, Time, Interval, Before, Limit],
        tables: &[("periods", history::LIST)],
    },
    Description {
        name: "snapshot-applications",
        description: "Current state of every application, with its index and last activity.",
        parameters: &[Application, Before, Limit],
        tables: &[("applications", snapshots::APPLICATIONS)],
    },
    Description {
        name: "snapshot-sources",
        description: "Current state of every source, with its last submission.",
        parameters: &[Application, Source, Before, Limit],
        tables: &[("sources", snapshots::SOURCES)],
    },
    Description {
        name: "snapshot-events",
        description: "Current state of every event class, with its last event.",
        parameters: &[Application, Class, Before, Limit],
        tables: &[("event_classes", snapshots::EVENTS)],
    },
    Description {
        name: "snapshot-subscriptions",
        description: "Current number of subscriptions of every subscription class, with the last addition.",
        parameters: &[Application, Class, Before, Limit],
        tables: &[("subscription_classes", snapshots::SUBSCRIPTIONS)],
    },
    Description {
        name: "snapshot-channels",
        description: "Current state of every channel, with its last activity and failing destinations.",
        parameters: &[Application, Channel, Before, Limit],
        tables: &[("channels", snapshots::CHANNELS)],
    },
    Description {
        name: "schedules",
        description: "Progress of the schedules of an application, and their next due times.",
        parameters: &[Application, Rule, Before, Limit],
        tables: &[("schedules", schedules::LIST)],
    },
    Description {
        name: "scheduled-runs",
        description: "Scheduled runs of an application, newest first, with the notifications that they created.",
        parameters: &[Application, Time, Before, Limit],
        tables: &[("runs", schedules::RUNS)],
    },
    Description {
        name: "subscription",
        description: "Newest notifications of one subscription, and its next due times.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("subscription", subscription::ITSELF),
            ("notifications", subscription::NOTIFICATIONS),
            ("next_runs", subscription::NEXT),
        ],
    },
];
