//! A gate that an event passes on its way to a notification, or not.

use tocsin_matching::trial::Condition;
use tocsin_model::{id::ChangeSequence, reason_code::ReasonCode, time::Timestamp};

/// The gates, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GateKind {
    /// The event is accepted and matched.
    Event,
    /// The rule is enabled and not stopped.
    Rule,
    /// The subscription exists and is active.
    Subscription,
    /// The consent of the subscription.
    Consent,
    /// The audience of the rule.
    Audience,
    /// The condition of the rule.
    Condition,
    /// The own filter of the subscription.
    Filter,
    /// The state of the rule for the subscription.
    State,
    /// The delay of the rule.
    Delay,
    /// The notification is made.
    Notification,
    /// The notification has not expired, and the subscription is active.
    Recipient,
    /// Preferences of the subscriber.
    Preferences,
    /// Choice of the device.
    Device,
    /// Suppressed addresses.
    Suppression,
    /// Quiet hours and send hours.
    Hours,
    /// Digest window.
    Digest,
    /// Switches, circuit breaker and paused destinations.
    Limits,
    /// Attempts and their responses.
    Dispatch,
}

impl GateKind {
    /// All gates, in order.
    pub const ALL: [GateKind; 18] = [
        GateKind::Event,
        GateKind::Rule,
        GateKind::Subscription,
        GateKind::Consent,
        GateKind::Audience,
        GateKind::Condition,
        GateKind::Filter,
        GateKind::State,
        GateKind::Delay,
        GateKind::Notification,
        GateKind::Recipient,
        GateKind::Preferences,
        GateKind::Device,
        GateKind::Suppression,
        GateKind::Hours,
        GateKind::Digest,
        GateKind::Limits,
        GateKind::Dispatch,
    ];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            GateKind::Event => "event",
            GateKind::Rule => "rule",
            GateKind::Subscription => "subscription",
            GateKind::Consent => "consent",
            GateKind::Audience => "audience",
            GateKind::Condition => "condition",
            GateKind::Filter => "filter",
            GateKind::State => "state",
            GateKind::Delay => "delay",
            GateKind::Notification => "notification",
            GateKind::Recipient => "recipient",
            GateKind::Preferences => "preferences",
            GateKind::Device => "device",
            GateKind::Suppression => "suppression",
            GateKind::Hours => "hours",
            GateKind::Digest => "digest",
            GateKind::Limits => "limits",
            GateKind::Dispatch => "dispatch",
        }
    }
}

/// Verdict of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateVerdict {
    /// Passed.
    Passed,
    /// Not passed, or not yet.
    Blocked,
    /// Not known.
    Unknown,
}

impl GateVerdict {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            GateVerdict::Passed => "passed",
            GateVerdict::Blocked => "blocked",
            GateVerdict::Unknown => "unknown",
        }
    }
}

/// The time of the data of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsOf {
    /// The snapshot of the event.
    Event,
    /// The journal: what the matcher or a worker recorded.
    Recorded,
    /// The present state.
    Now,
}

impl AsOf {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            AsOf::Event => "event",
            AsOf::Recorded => "recorded",
            AsOf::Now => "now",
        }
    }

    /// The time of records that are read at a snapshot, or now.
    pub(super) fn of(snapshot: Option<ChangeSequence>) -> AsOf {
        if snapshot.is_some() { AsOf::Event } else { AsOf::Now }
    }
}

/// The object to change, to change the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateObject {
    /// Its kind, such as `rule`, `subscription`, `channel`.
    pub kind: &'static str,
    /// Its id or name.
    pub id: String,
}

/// A gate.
#[derive(Debug, Clone)]
pub struct Gate {
    /// Its kind.
    pub kind: GateKind,
    /// Its verdict.
    pub verdict: GateVerdict,
    /// Whether the result of the path follows from it.
    pub deciding: bool,
    /// The time of its data.
    pub as_of: AsOf,
    /// Code of the reason, unless it passed.
    pub code: Option<ReasonCode>,
    /// Text of the reason.
    pub text: String,
    /// Values that it read: name, and value as JSON.
    pub values: Vec<(String, String)>,
    /// The time until which it blocks.
    pub until: Option<Timestamp>,
    /// Conditions of a rule or filter.
    pub conditions: Vec<Condition>,
    /// The object that it is about.
    pub object: Option<GateObject>,
}

impl Gate {
    pub(super) fn new(kind: GateKind, verdict: GateVerdict, as_of: AsOf, text: impl Into<String>) -> Gate {
        Gate {
            kind,
            verdict,
            deciding: false,
            as_of,
            code: None,
            text: text.into(),
            values: Vec::new(),
            until: None,
            conditions: Vec::new(),
            object: None,
        }
    }

    pub(super) fn passed(kind: GateKind, as_of: AsOf, text: impl Into<String>) -> Gate {
        Gate::new(kind, GateVerdict::Passed, as_of, text)
    }

    pub(super) fn blocked(kind: GateKind, as_of: AsOf, code: ReasonCode, text: impl Into<String>) -> Gate {
        Gate { code: Some(code), ..Gate::new(kind, GateVerdict::Blocked, as_of, text) }
    }

    pub(super) fn unknown(kind: GateKind, as_of: AsOf, code: ReasonCode, text: impl Into<String>) -> Gate {
        Gate { code: Some(code), ..Gate::new(kind, GateVerdict::Unknown, as_of, text) }
    }

    /// Adds the object.
    pub(super) fn object(self, kind: &'static str, id: impl ToString) -> Gate {
        Gate { object: Some(GateObject { kind, id: id.to_string() }), ..self }
    }

    /// Adds a value.
    pub(super) fn value(mut self, name: &str, value: impl serde::Serialize) -> Gate {
        self.values.push((name.to_owned(), serde_json::to_string(&value).unwrap_or_default()));
        self
    }

    /// Adds the time until which it blocks.
    pub(super) fn until(self, until: Option<Timestamp>) -> Gate {
        Gate { until, ..self }
    }

    /// Adds conditions.
    pub(super) fn conditions(self, conditions: Vec<Condition>) -> Gate {
        Gate { conditions, ..self }
    }

    /// The gate as the journal proves it: passed, whatever its evaluation as of now gives.
    pub(super) fn proved(self) -> Gate {
        match self.verdict {
            GateVerdict::Passed => self,
            GateVerdict::Blocked | GateVerdict::Unknown => Gate {
                verdict: GateVerdict::Passed,
                as_of: AsOf::Recorded,
                code: None,
                text: format!("passed when the event was matched; now: {}", self.text),
                until: None,
                ..self
            },
        }
    }
}
