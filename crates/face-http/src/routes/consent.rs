//! Consent: requests and confirmations of sign-up forms, state and evidence of subscriptions.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::id::{SubscriberId, SubscriptionId};
use tocsin_service::page;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, id, json_body, parts, read_json},
    responses::{Failures, json},
    wire::{
        List,
        consent::{
            ConfirmBody, ConfirmationBody, ConsentChangeBody, ConsentReceiptBody, ConsentRequestBody,
            ConsentStatusBody, EvidenceBody, ResendBody,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(request_by_form))
        .routes(routes!(confirm_by_form))
        .routes(routes!(resend_by_form))
        .routes(routes!(public_key))
        .routes(routes!(read))
        .routes(routes!(request))
        .routes(routes!(confirm))
        .routes(routes!(withdraw))
        .routes(routes!(of_subscriber))
}

/// Requests the consent of a person, for a sign-up form. The answer is the same whether the person is subscribed or not.
#[utoipa::path(post, path = "/v1/consent/requests", tag = "consent", request_body = ConsentRequestBody, responses((status = 202, body = ConsentReceiptBody), Failures))]
async fn request_by_form(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let taken = json_body(&app, &headers, body).await?;
    let form: ConsentRequestBody<'_> = read_json(&taken.bytes)?;
    let receipt = app.service.request_by_form(&caller, form.into()).await?;
    Ok(json(StatusCode::ACCEPTED, &ConsentReceiptBody::from(receipt)))
}

/// Confirms by the code of the message. One error for a wrong, expired or exhausted code.
#[utoipa::path(post, path = "/v1/consent/confirmations", tag = "consent", request_body = ConfirmationBody, responses((status = 204), Failures))]
async fn confirm_by_form(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(ConfirmationBody { request, code, remote }): JsonBody<ConfirmationBody>,
) -> Result<Response, Failure> {
    app.service.confirm_by_form(&caller, &request, &code, remote).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Sends the message of a request again, within the limits of its class. The answer is always the same.
#[utoipa::path(post, path = "/v1/consent/resends", tag = "consent", request_body = ResendBody, responses((status = 202), Failures))]
async fn resend_by_form(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(ResendBody { request, remote }): JsonBody<ResendBody>,
) -> Result<Response, Failure> {
    app.service.resend_by_form(&caller, &request, remote).await?;
    Ok(StatusCode::ACCEPTED.into_response())
}

/// Public key with which other installations encrypt confirmations, in PEM. Its holders can confirm any address.
#[utoipa::path(get, path = "/v1/consent/key", tag = "consent", responses((status = 200, body = String, content_type = "application/x-pem-file"), Failures))]
async fn public_key(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let key = app.service.consent_public_key(&caller)?.to_owned();
    Ok(([(header::CONTENT_TYPE, "application/x-pem-file")], key).into_response())
}

/// Consent of a subscription, with its evidence.
#[utoipa::path(get, path = "/v1/subscriptions/{id}/consent", tag = "consent", params(("id" = String, Path)), responses((status = 200, body = ConsentStatusBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.consent_of(&caller, id::<SubscriptionId>(&number)?).await?;
    Ok(json(StatusCode::OK, &ConsentStatusBody::from(found)))
}

/// Requests the consent of a subscription, or sends its message again.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/consent/request", tag = "consent", params(("id" = String, Path)), request_body = ConsentChangeBody, responses((status = 200, body = ConsentStatusBody), Failures))]
async fn request(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    JsonBody(body): JsonBody<ConsentChangeBody>,
) -> Result<Response, Failure> {
    let found = app.service.request_consent(&caller, id::<SubscriptionId>(&number)?, body.remote).await?;
    Ok(json(StatusCode::OK, &ConsentStatusBody::from(found)))
}

/// Confirms a subscription by the code of its message; with the scope `consent:write` also by a proof.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/consent/confirm", tag = "consent", params(("id" = String, Path)), request_body = ConfirmBody, responses((status = 200, body = ConsentStatusBody), Failures))]
async fn confirm(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    JsonBody(body): JsonBody<ConfirmBody>,
) -> Result<Response, Failure> {
    let found = app.service.confirm_consent(&caller, id::<SubscriptionId>(&number)?, body.into()).await?;
    Ok(json(StatusCode::OK, &ConsentStatusBody::from(found)))
}

/// Withdraws the consent of a subscription, and disables it. Idempotent.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/consent/withdraw", tag = "consent", params(("id" = String, Path)), request_body = ConsentChangeBody, responses((status = 200, body = ConsentStatusBody), Failures))]
async fn withdraw(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
    JsonBody(body): JsonBody<ConsentChangeBody>,
) -> Result<Response, Failure> {
    let found = app.service.withdraw_consent(&caller, id::<SubscriptionId>(&number)?, body.into()).await?;
    Ok(json(StatusCode::OK, &ConsentStatusBody::from(found)))
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
}

/// Evidence of a subscriber over all subscriptions, also removed ones, oldest first.
#[utoipa::path(get, path = "/v1/subscribers/{id}/consent", tag = "consent", params(("id" = String, Path), ListParameters), responses((status = 200, body = List<EvidenceBody>), Failures))]
async fn of_subscriber(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(subscriber): Segments<String>,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let subscriber = id::<SubscriberId>(&subscriber)?;
    let found = app.service.evidence_of_subscriber(&caller, &subscriber, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(EvidenceBody::from))))
}
