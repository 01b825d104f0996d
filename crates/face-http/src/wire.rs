//! JSON responses, and small request bodies. Subscribers and subscriptions have their representations in the service,
//! because imports and exports share them.

mod applications; // stored applications, apply results, check results
mod rules; // evaluation plans of rules
mod events; // submissions and event batches
mod notifications; // notification batches, attempts and outcomes
mod traces; // traces of one object
mod status; // status of the platform
mod suspensions; // suspensions
mod keys; // API keys

pub(crate) mod sync; // rows of collections, devices that keep replicas
pub(crate) mod merges; // subscribers that become parts of others
pub(crate) mod inbox; // items, their changes, broadcasts

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use self::{
    applications::*, events::*, keys::*, notifications::*, rules::*, status::*, suspensions::*, traces::*,
};

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

/// One thing that is wrong with the content.
#[derive(ToSchema)]
#[allow(dead_code)]
pub(crate) struct ProblemItem {
    /// Machine-readable code, which never changes its meaning.
    code: crate::error_codes::ProblemItemCode,
    /// Dotted path of the value; empty for the whole body.
    path: String,
    /// Line, from 1.
    line: Option<u32>,
    /// Column, from 1.
    column: Option<u32>,
    /// Error text.
    message: String,
    /// Parameters of the message, such as `limit`.
    params: Option<std::collections::BTreeMap<String, serde_json::Value>>,
    /// Suggested fix.
    hint: Option<String>,
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
