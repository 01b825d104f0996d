//! The JSON that goes out, and the small bodies that come in. Subscribers and subscriptions have their forms in the
//! service, because imports and exports share them.

mod applications; // what is stored, what an apply changes, what a check found
mod rules; // how they are answered
mod events; // submissions and event batches
mod notifications; // their batches, attempts and outcomes
mod traces; // the whole story of one thing
mod status; // how the platform does
mod suspensions; // what waits for an operator
mod keys; // of the API

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
    /// Where, as a dotted path; empty for the whole.
    path: String,
    /// Line, from 1.
    line: Option<u32>,
    /// Column, from 1.
    column: Option<u32>,
    /// What is wrong.
    message: String,
    /// What would be right.
    hint: Option<String>,
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1_000.0
}

/// A channel's sign of life.
#[derive(Serialize, ToSchema)]
pub(crate) struct ChannelProbeBody {
    pub(crate) channel: String,
    pub(crate) ok: bool,
    /// The far side's words, or what is wrong.
    pub(crate) text: String,
}

/// Whether the platform can serve, and why not.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    pub(crate) ready: bool,
    pub(crate) reasons: Vec<String>,
    /// Faults with which the platform can serve all the same; its status is 200 nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}
