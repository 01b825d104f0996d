//! Catalogue of reports, with the parameters of each.

use tocsin_model::problem::Problem;

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

    fn is_asked(self, asked: &ReportRequest) -> bool {
        match self {
            Id => asked.id.is_some(),
            Application => asked.application.is_some(),
            Class => asked.class.is_some(),
            Rule => asked.rule.is_some(),
            Channel => asked.channel.is_some(),
            Source => asked.source.is_some(),
            Status => asked.status.is_some(),
            Time => asked.from.is_some() || asked.to.is_some(),
            Interval => asked.interval.is_some(),
            Before => asked.before.is_some(),
            Limit => asked.limit.is_some(),
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
    pub(super) fn check(&self, asked: &ReportRequest) -> Result<(), ServiceError> {
        let known: Vec<&str> = self.parameters.iter().flat_map(|known| known.words()).copied().collect();
        let unknown = PARAMETERS.into_iter().filter(|found| found.is_asked(asked) && !self.parameters.contains(found));
        let mut problems: Vec<Problem> = unknown
            .map(|found| {
                let text = format!("means nothing to the report `{}`", self.name);
                Problem::at(found.words()[0], text).hint(format!("it knows {}", known.join(", ")))
            })
            .collect();
        if self.parameters.contains(&Id) && asked.id.is_none() {
            problems.push(Problem::at("id", "is missing").hint("give the id of the quantum, batch or subscription"));
        }
        if problems.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(problems)) }
    }
}

/// Every report, in the order of the flow.
pub const CATALOGUE: &[Description] = &[
    Description {
        name: "quantum-list",
        description: "Turns of the matcher, newest first: when, how long, how much, and what did not happen. `status` is \
                      `failed` or `skipped`.",
        parameters: &[Time, Status, Before, Limit],
        tables: &[("quanta", quanta::LIST)],
    },
    Description {
        name: "quantum-details",
        description: "One turn of the matcher: the event batches that it took up, the firings that it missed, and the \
                      notification batches that it made.",
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
        description: "Event batches, newest first, with the time of their collection and what became of them.",
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
        description: "Notification batches, newest first: generation, wait until distribution, delivery, and how far they \
                      have come. `status` is `open` or `closed`.",
        parameters: &[Application, Class, Rule, Channel, Status, Time, Before, Limit],
        tables: &[("notification_batches", notification_batches::LIST)],
    },
    Description {
        name: "notification-batch-details",
        description: "One notification batch: the channels through which it left, and its notifications.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("notification_batch", notification_batches::LIST),
            ("channels", notification_batches::CHANNELS),
            ("notifications", notification_batches::NOTIFICATIONS),
        ],
    },
    Description {
        name: "event-class",
        description: "By event class and interval: how much was collected, and how long the parts of the way took.",
        parameters: &[Application, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::EVENT_CLASS)],
    },
    Description {
        name: "source",
        description: "By source and interval: how much it submitted, and how long that took.",
        parameters: &[Application, Source, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::SOURCE)],
    },
    Description {
        name: "notification-class",
        description: "By notification class and interval: what was made, delivered and failed.",
        parameters: &[Application, Class, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::NOTIFICATION_CLASS)],
    },
    Description {
        name: "subscription-class",
        description: "By subscription class, rule and interval: how long its rules took, and what became of what they \
                      made.",
        parameters: &[Application, Class, Rule, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::SUBSCRIPTION_CLASS)],
    },
    Description {
        name: "channel",
        description: "By channel and interval: batches, attempts and their outcome, and how fast the receiver answers.",
        parameters: &[Application, Channel, Time, Interval, Before, Limit],
        tables: &[("intervals", diagnostics::CHANNEL)],
    },
    Description {
        name: "failed-notifications",
        description: "Notifications that were refused or too late, newest batch first, with the receiver's replies.",
        parameters: &[Application, Class, Rule, Channel, Time, Before, Limit],
        tables: &[("notifications", failures::LIST)],
    },
    Description {
        name: "timings",
        description: "How long the parts of the way took in a time, by percentile, for each application.",
        parameters: &[Application, Time, Before, Limit],
        tables: &[("timings", timings::LIST)],
    },
    Description {
        name: "administration-history",
        description: "How much there was of everything, period by period; days if nothing else is said.",
        parameters: &[Application, Time, Interval, Before, Limit],
        tables: &[("periods", history::LIST)],
    },
    Description {
        name: "snapshot-applications",
        description: "Every application now: its state, its index, and when something happened last.",
        parameters: &[Application, Before, Limit],
        tables: &[("applications", snapshots::APPLICATIONS)],
    },
    Description {
        name: "snapshot-sources",
        description: "Every source now: its state, and when it submitted last.",
        parameters: &[Application, Source, Before, Limit],
        tables: &[("sources", snapshots::SOURCES)],
    },
    Description {
        name: "snapshot-events",
        description: "Every event class now: its state, and when the last event came.",
        parameters: &[Application, Class, Before, Limit],
        tables: &[("event_classes", snapshots::EVENTS)],
    },
    Description {
        name: "snapshot-subscriptions",
        description: "Every subscription class now: how many subscriptions there are, and when one was added last.",
        parameters: &[Application, Class, Before, Limit],
        tables: &[("subscription_classes", snapshots::SUBSCRIPTIONS)],
    },
    Description {
        name: "snapshot-channels",
        description: "Every channel now: its state, what it did last, and where it has trouble.",
        parameters: &[Application, Channel, Before, Limit],
        tables: &[("channels", snapshots::CHANNELS)],
    },
    Description {
        name: "schedules",
        description: "How far the schedules of an application have come, and when they are due next.",
        parameters: &[Application, Rule, Before, Limit],
        tables: &[("schedules", schedules::LIST)],
    },
    Description {
        name: "scheduled-runs",
        description: "What schedules did: the runs of an application, newest first, with what they made.",
        parameters: &[Application, Time, Before, Limit],
        tables: &[("runs", schedules::RUNS)],
    },
    Description {
        name: "subscription",
        description: "Newest notifications of one subscription, and when it is due next.",
        parameters: &[Id, Before, Limit],
        tables: &[
            ("subscription", subscription::ITSELF),
            ("notifications", subscription::NOTIFICATIONS),
            ("next_runs", subscription::NEXT),
        ],
    },
];
