use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::{Code, Problem},
    suppression::{Cause, Target},
};
use tocsin_service::{
    Caller, ServiceError, page,
    suppressions::{ReportDraft, Reported, address_target, channel_target, known_protocol},
};
use tocsin_store::records::SuppressionFilter;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, id},
    responses::{Failures, created, json},
    wire::{
        List,
        suppressions::{SuppressionBody, SuppressionDraft, SuppressionReportDraft},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(report))
        .routes(routes!(read_address, put_address, remove_address))
        .routes(routes!(read_channel, remove_channel))
        .routes(routes!(read_device, put_device, remove_device))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// Only addresses of this protocol.
    #[serde(default)]
    protocol: Option<String>,
    /// Only devices of this subscriber.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Filter by cause: `soft_bounce`, `manual`, `hard_bounce`, `unsubscribed`, `complaint`.
    #[serde(default)]
    cause: Option<String>,
    /// Filter by state: active, or with `false` only counted bounces.
    #[serde(default)]
    in_force: Option<bool>,
    /// Filter by text in the address or the subscriber id.
    #[serde(default)]
    contains: Option<String>,
}

/// Reads what is wanted of a list.
pub(super) fn filter(
    app: &App,
    protocol: Option<&str>,
    subscriber: Option<SubscriberId>,
    cause: Option<&str>,
    in_force: Option<bool>,
    contains: Option<String>,
) -> Result<SuppressionFilter, Failure> {
    let mut problems = Vec::new();
    let protocol = protocol.and_then(|text| known_protocol(text, &mut problems));
    let cause = cause.and_then(|word| {
        word.parse::<Cause>()
            .map_err(|()| {
                let words = Cause::ALL.map(Cause::word).join(", ");
                let problem = Problem::new(Code::UnknownValue, "cause", format!("`{word}` is not a cause"))
                    .param("value", word.to_string());
                problems.push(problem.hint(format!("causes are {words}")));
            })
            .ok()
    });
    match problems.is_empty() {
        true => Ok(SuppressionFilter { protocol, subscriber, cause, in_force, contains, now: app.service.now() }),
        false => Err(ServiceError::Invalid(problems).into()),
    }
}

/// Lists suppressed addresses and devices, and those with counted bounces, by protocol and address.
#[utoipa::path(get, path = "/v1/suppressions", tag = "suppressions", params(ListParameters), responses((status = 200, body = List<SuppressionBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let ListParameters { protocol, subscriber, cause, in_force, contains, .. } = asked;
    let filter = filter(&app, protocol.as_deref(), subscriber, cause.as_deref(), in_force, contains)?;
    let found = app.service.suppressions(&caller, filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SuppressionBody::from))))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReportsBody {
    /// Up to 1,000 reports; each is processed independently.
    reports: Vec<SuppressionReportDraft>,
}

/// Results of the reports, in their order.
#[derive(Serialize, ToSchema)]
struct ReportedBody {
    items: Vec<ReportedItem>,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum ReportedItem {
    Known {
        /// The suppression record of the address after the report.
        suppression: Box<SuppressionBody>,
    },
    Refused {
        /// Why the report was not taken.
        #[schema(value_type = Vec<crate::wire::ProblemItem>)]
        problems: Vec<Problem>,
    },
}

/// Reports bounces, complaints, and unsubscriptions at a provider. Needs only the scope `bounces:write`. An invalid
/// report does not stop the others.
#[utoipa::path(post, path = "/v1/suppressions/reports", tag = "suppressions", request_body(content = ReportsBody, example = json!({"reports": [{"kind": "bounce", "notification": "n-3-41", "status": "5.1.1", "detail": "550 5.1.1 no such user"}]})), responses((status = 200, body = ReportedBody), Failures))]
async fn report(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(ReportsBody { reports }): JsonBody<ReportsBody>,
) -> Result<Response, Failure> {
    let reports = reports.into_iter().map(ReportDraft::from).collect();
    let reported = app.service.report_suppressions(&caller, reports).await?;
    let item = |reported| match reported {
        Reported::Known(found) => ReportedItem::Known { suppression: Box::new((*found).into()) },
        Reported::Refused(problems) => ReportedItem::Refused { problems },
    };
    Ok(json(StatusCode::OK, &ReportedBody { items: reported.into_iter().map(item).collect() }))
}

fn device_target(subscriber: &str, device: &str) -> Result<Target, Failure> {
    Ok(Target::Device { subscriber: id::<SubscriberId>(subscriber)?, device: id::<Name>(device)? })
}

/// Returns the suppression record of an address.
#[utoipa::path(get, path = "/v1/suppressions/addresses/{protocol}/{address}", tag = "suppressions", params(("protocol" = String, Path), ("address" = String, Path)), responses((status = 200, body = SuppressionBody), Failures))]
async fn read_address(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((protocol, address)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let found = app.service.suppression(&caller, &address_target(&protocol, &address)?).await?;
    Ok(json(StatusCode::OK, &SuppressionBody::from(found)))
}

/// Suppresses an address for all devices that have it. Replaces its previous record, unless the cause of that one is
/// more severe: the response has the record that holds.
#[utoipa::path(put, path = "/v1/suppressions/addresses/{protocol}/{address}", tag = "suppressions", params(("protocol" = String, Path), ("address" = String, Path)), request_body(content = SuppressionDraft, example = json!({"detail": "asked by phone"})), responses((status = 200, body = SuppressionBody), (status = 201, body = SuppressionBody), Failures))]
async fn put_address(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((protocol, address)): Segments<(String, String)>,
    JsonBody(draft): JsonBody<SuppressionDraft>,
) -> Result<Response, Failure> {
    put(&app, &caller, address_target(&protocol, &address)?, draft).await
}

/// Removes the suppression of an address.
#[utoipa::path(delete, path = "/v1/suppressions/addresses/{protocol}/{address}", tag = "suppressions", params(("protocol" = String, Path), ("address" = String, Path)), responses((status = 204), Failures))]
async fn remove_address(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((protocol, address)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    app.service.remove_suppression(&caller, &address_target(&protocol, &address)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Returns the suppression record of an address on a channel: its owner replied with a keyword such as STOP.
#[utoipa::path(get, path = "/v1/suppressions/channels/{application}/{channel}/{address}", tag = "suppressions", params(("application" = String, Path), ("channel" = String, Path), ("address" = String, Path)), responses((status = 200, body = SuppressionBody), Failures))]
async fn read_channel(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, channel, address)): Segments<(String, String, String)>,
) -> Result<Response, Failure> {
    let found = app.service.suppression(&caller, &channel_target(&application, &channel, &address)?).await?;
    Ok(json(StatusCode::OK, &SuppressionBody::from(found)))
}

/// Removes the suppression of an address on a channel. Its owner can do so with a keyword such as START.
#[utoipa::path(delete, path = "/v1/suppressions/channels/{application}/{channel}/{address}", tag = "suppressions", params(("application" = String, Path), ("channel" = String, Path), ("address" = String, Path)), responses((status = 204), Failures))]
async fn remove_channel(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, channel, address)): Segments<(String, String, String)>,
) -> Result<Response, Failure> {
    app.service.remove_suppression(&caller, &channel_target(&application, &channel, &address)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Returns the suppression record of a device.
#[utoipa::path(get, path = "/v1/suppressions/devices/{subscriber}/{device}", tag = "suppressions", params(("subscriber" = String, Path), ("device" = String, Path)), responses((status = 200, body = SuppressionBody), Failures))]
async fn read_device(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((subscriber, device)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    let found = app.service.suppression(&caller, &device_target(&subscriber, &device)?).await?;
    Ok(json(StatusCode::OK, &SuppressionBody::from(found)))
}

/// Suppresses a device; with `address`, as long as the device has that address.
#[utoipa::path(put, path = "/v1/suppressions/devices/{subscriber}/{device}", tag = "suppressions", params(("subscriber" = String, Path), ("device" = String, Path)), request_body(content = SuppressionDraft, example = json!({"detail": "asked by phone"})), responses((status = 200, body = SuppressionBody), (status = 201, body = SuppressionBody), Failures))]
async fn put_device(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((subscriber, device)): Segments<(String, String)>,
    JsonBody(draft): JsonBody<SuppressionDraft>,
) -> Result<Response, Failure> {
    put(&app, &caller, device_target(&subscriber, &device)?, draft).await
}

/// Removes the suppression of a device.
#[utoipa::path(delete, path = "/v1/suppressions/devices/{subscriber}/{device}", tag = "suppressions", params(("subscriber" = String, Path), ("device" = String, Path)), responses((status = 204), Failures))]
async fn remove_device(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((subscriber, device)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    app.service.remove_suppression(&caller, &device_target(&subscriber, &device)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn put(app: &App, caller: &Caller, target: Target, draft: SuppressionDraft) -> Result<Response, Failure> {
    let (stored, is_new) = app.service.put_suppression(caller, target, draft.into()).await?;
    Ok(json(created(is_new), &SuppressionBody::from(stored)))
}
