//! Unsubscription in bulk, and its undo.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{problem::Problem, time::Timestamp};
use tocsin_service::unsubscribe::{Undone, Unsubscribed, UnsubscriptionDraft};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody},
    responses::{Failures, json},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(unsubscribe)).routes(routes!(undo))
}

/// The subscriptions to end: those that are sent to an `address`, those of a `subscriber`, or one `subscription`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Unsubscription)]
struct UnsubscriptionItem {
    /// Address of devices.
    #[serde(default)]
    address: Option<String>,
    /// Id of a subscriber.
    #[serde(default)]
    subscriber: Option<String>,
    /// Id of a subscription, such as `s-15`.
    #[serde(default)]
    subscription: Option<String>,
    /// Only subscriptions of this application.
    #[serde(default)]
    application: Option<String>,
    /// For an undo: time of the unsubscription; the last one if not given.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    at: Option<Timestamp>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Unsubscriptions)]
struct UnsubscriptionsBody {
    /// Up to 1,000 items.
    unsubscriptions: Vec<UnsubscriptionItem>,
}

impl UnsubscriptionsBody {
    fn drafts(self) -> Vec<UnsubscriptionDraft> {
        let draft = |item: UnsubscriptionItem| UnsubscriptionDraft {
            address: item.address,
            subscriber: item.subscriber,
            subscription: item.subscription,
            application: item.application,
            at: item.at,
        };
        self.unsubscriptions.into_iter().map(draft).collect()
    }
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = UnsubscribedItem)]
enum UnsubscribedItem {
    Ended {
        /// Number of subscribers found.
        subscribers: usize,
        /// The subscriptions that were ended.
        subscriptions: Vec<String>,
        /// Time of the unsubscription, for its undo.
        #[schema(value_type = String, format = DateTime)]
        at: Timestamp,
    },
    Refused {
        /// Why nothing was changed.
        #[schema(value_type = Vec<crate::wire::ProblemItem>)]
        problems: Vec<Problem>,
    },
}

#[derive(Serialize, ToSchema)]
#[schema(as = UnsubscribedItems)]
struct UnsubscribedBody {
    /// A result for each item, in order.
    items: Vec<UnsubscribedItem>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = UndoneItem)]
enum UndoneItem {
    Restored {
        /// Number of subscriptions that were enabled again.
        restored: usize,
    },
    Refused {
        /// Why nothing was changed.
        #[schema(value_type = Vec<crate::wire::ProblemItem>)]
        problems: Vec<Problem>,
    },
}

#[derive(Serialize, ToSchema)]
#[schema(as = UndoneItems)]
struct UndoneBody {
    /// A result for each item, in order.
    items: Vec<UndoneItem>,
}

/// Ends subscriptions of many addresses, subscribers or subscriptions. An invalid item does not stop the others; a
/// repetition ends what is left.
#[utoipa::path(post, path = "/v1/unsubscriptions", tag = "subscriptions", request_body(content = UnsubscriptionsBody, example = json!({"unsubscriptions": [{"address": "ann@example.org"}, {"subscriber": "bob", "application": "quakes"}]})), responses((status = 200, body = UnsubscribedBody), Failures))]
async fn unsubscribe(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(body): JsonBody<UnsubscriptionsBody>,
) -> Result<Response, Failure> {
    let results = app.service.unsubscribe_many(&caller, body.drafts()).await?;
    let item = |result| match result {
        Unsubscribed::Ended { subscribers, subscriptions, at } => UnsubscribedItem::Ended {
            subscribers,
            subscriptions: subscriptions.iter().map(ToString::to_string).collect(),
            at,
        },
        Unsubscribed::Refused(problems) => UnsubscribedItem::Refused { problems },
    };
    Ok(json(StatusCode::OK, &UnsubscribedBody { items: results.into_iter().map(item).collect() }))
}

/// Undoes unsubscriptions, also those by links and pages. Enables the subscriptions that were ended at the given time, or
/// last, and not changed since.
#[utoipa::path(post, path = "/v1/unsubscriptions/undo", tag = "subscriptions", request_body(content = UnsubscriptionsBody, example = json!({"unsubscriptions": [{"subscriber": "bob"}]})), responses((status = 200, body = UndoneBody), Failures))]
async fn undo(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(body): JsonBody<UnsubscriptionsBody>,
) -> Result<Response, Failure> {
    let results = app.service.undo_unsubscriptions(&caller, body.drafts()).await?;
    let item = |result| match result {
        Undone::Restored(restored) => UndoneItem::Restored { restored },
        Undone::Refused(problems) => UndoneItem::Refused { problems },
    };
    Ok(json(StatusCode::OK, &UndoneBody { items: results.into_iter().map(item).collect() }))
}
