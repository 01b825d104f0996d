//! JSON bodies of requests and responses. Lines of imports and exports have the same members; their types are in the
//! service.

mod applications; // stored applications, apply results, check results
mod rules; // evaluation plans of rules
mod events; // submissions and event batches
mod notifications; // notification batches, attempts and outcomes
mod traces; // traces of one object
mod status; // status of the platform
mod reasons; // codes and parameters of stored reasons
mod suspensions; // suspensions
mod keys; // API keys

pub(crate) mod attention; // problems that need an operator
pub(crate) mod broadcasts; // broadcasts: drafts, counts, progress, results by recipient
pub(crate) mod destinations; // state of destinations
pub(crate) mod mail_senders; // identities of mail channels
pub(crate) mod endpoints; // failing endpoints of devices
pub(crate) mod exchanges; // throttles and receive locations
pub(crate) mod previews; // input of previews and test messages
pub(crate) mod resends; // requests to send failed notifications again
pub(crate) mod backtests; // two versions of a rule over stored events
pub(crate) mod explanations; // why a notification was sent, or was not
pub(crate) mod rule_tests; // input of rule tests
pub(crate) mod schedules; // previews and progress of schedules
pub(crate) mod capacity; // capacity plans, vectors, published examples, derived profiles
pub(crate) mod maintenance; // backups, drills, configuration, examination, log
pub(crate) mod directory; // entries, schema and access rules of the directory
pub(crate) mod users; // users of the console, sessions, logins
pub(crate) mod segments; // segments, previews, memberships
pub(crate) mod sources; // status of event sources
pub(crate) mod subscribers; // subscribers and their devices
pub(crate) mod subscriptions; // subscriptions, filters, schedules
pub(crate) mod feedback; // log of feedback, results of a mail
pub(crate) mod consent; // requests for consent, confirmations, evidence
pub(crate) mod suppressions; // suppressions, reports of bounces and complaints
pub(crate) mod switches; // switched-off components
pub(crate) mod sync; // rows of collections, devices that keep replicas
pub(crate) mod merges; // subscribers that become parts of others
pub(crate) mod inbox; // items, their changes, inbox broadcasts

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use self::{
    applications::*, events::*, keys::*, notifications::*, rules::*, status::*, suspensions::*, traces::*,
};

pub(crate) use crate::error_codes::ProblemItem;

/// A page of a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct List<T> {
    /// The things, in the list's order.
    pub(crate) items: Vec<T>,
    /// Give this as `after` (or `before`, for lists that begin with the newest) for the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

impl<T> From<tocsin_service::Page<T>> for List<T> {
    fn from(page: tocsin_service::Page<T>) -> Self {
        List { items: page.items, next: page.next }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}

/// Result of probing a channel.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChannelProbeBody {
    pub(crate) channel: String,
    pub(crate) ok: bool,
    /// The server's response, or the error.
    pub(crate) text: String,
}

/// Whether the platform can serve, and why not.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<String>,
    /// Degradations that do not prevent service; the HTTP status stays 200.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}
