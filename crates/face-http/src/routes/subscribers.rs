use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::{Code, Problem},
};
use tocsin_service::{
    ServiceError,
    merges::Proof,
    page,
    persons::ErasureProgress,
    subscribers::{DeviceDraft, Put},
};
use tocsin_store::records::SubscriberFilter;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Condition, JsonBody, MergePatch, Parameters, Segments, id, member_id},
    responses::{Failures, created, json, located, segment, tagged},
    wire::{
        List,
        merges::{MergeBody, MergeDraft, VerificationTokenBody, VerificationTokenDraft},
        subscribers::{DeviceDraftBody, SubscriberBody, SubscriberDraft},
    },
};

/// Maximum attempts to store a device while other changes of its subscriber change the revision.
const TRIES_MAX: usize = 32;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(export_person))
        .routes(routes!(erase_person))
        .routes(routes!(list, create))
        .routes(routes!(read, replace, patch, remove))
        .routes(routes!(put_device, remove_device))
        .routes(routes!(verification_token))
        .routes(routes!(merge))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// Filter by prefix of the id.
    #[serde(default)]
    id_prefix: Option<String>,
    /// Filter by address of a device.
    #[serde(default)]
    address: Option<String>,
    /// Filter by locale.
    #[serde(default)]
    locale: Option<String>,
    /// Filter by state: enabled or disabled.
    #[serde(default)]
    enabled: Option<bool>,
    /// `name:value`: filter by attribute; the attribute equals the value, or is a list that contains it.
    #[serde(default)]
    attribute: Option<String>,
}

pub(super) fn filter(
    id_prefix: Option<String>,
    address: Option<String>,
    locale: Option<String>,
    enabled: Option<bool>,
    attribute: Option<String>,
) -> Result<SubscriberFilter, Failure> {
    let attribute = match attribute {
        None => None,
        Some(text) => match text.split_once(':') {
            Some((name, value)) => Some((name.to_owned(), value.to_owned())),
            None => {
                return Err(ServiceError::from(
                    Problem::new(Code::InvalidFormat, "attribute", "should be `name:value`")
                        .param("format", "attribute"),
                )
                .into());
            }
        },
    };
    Ok(SubscriberFilter { id_prefix, address, locale, enabled, attribute })
}

/// Subscribers, in the order of their ids. A page looks at 10,000 rows at most where no index
/// answers the filter; one that is not full may have a `next`.
#[utoipa::path(get, path = "/v1/subscribers", tag = "subscribers", params(ListParameters), responses((status = 200, body = List<SubscriberBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let filter = filter(asked.id_prefix, asked.address, asked.locale, asked.enabled, asked.attribute)?;
    let found = app.service.subscribers(&caller, &filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(SubscriberBody::from))))
}

/// Makes a subscriber.
#[utoipa::path(post, path = "/v1/subscribers", tag = "subscribers", request_body = SubscriberDraft, responses((status = 201, body = SubscriberBody), Failures))]
async fn create(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(draft): JsonBody<SubscriberDraft>,
) -> Result<Response, Failure> {
    let (stored, _) = app.service.put_subscriber(&caller, None, draft.into(), Put::Create).await?;
    let path = format!("/v1/subscribers/{}", segment(&stored.id));
    Ok(located(tagged(StatusCode::CREATED, stored.revision, &SubscriberBody::from(stored)), path))
}

/// One subscriber. Its tag is its revision.
#[utoipa::path(get, path = "/v1/subscribers/{id}", tag = "subscribers", params(("id" = String, Path)), responses((status = 200, body = SubscriberBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.subscriber(&caller, &id::<SubscriberId>(&name)?).await?;
    Ok(tagged(StatusCode::OK, found.revision, &SubscriberBody::from(found)))
}

/// Stores a subscriber, whether there is one or not. Left-out devices stay as they are.
#[utoipa::path(put, path = "/v1/subscribers/{id}", tag = "subscribers", params(("id" = String, Path), ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body = SubscriberDraft, responses((status = 200, body = SubscriberBody), (status = 201, body = SubscriberBody), Failures))]
async fn replace(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    headers: HeaderMap,
    JsonBody(draft): JsonBody<SubscriberDraft>,
) -> Result<Response, Failure> {
    let subscriber = id::<SubscriberId>(&name)?;
    let present = || app.service.subscriber_revision(&caller, &subscriber);
    let condition = Condition::of(&headers, present()).await?;
    let put = condition.put(present()).await?;
    let stored = app.service.put_subscriber(&caller, Some(&subscriber), draft.into(), put).await;
    let (stored, is_new) = stored.map_err(|error| condition.unmet(error))?;
    Ok(tagged(created(is_new), stored.revision, &SubscriberBody::from(stored)))
}

/// Changes a subscriber by a merge patch (RFC 7396).
#[utoipa::path(patch, path = "/v1/subscribers/{id}", tag = "subscribers", params(("id" = String, Path), ("If-Match" = Option<String>, Header)), request_body(content = serde_json::Value, content_type = "application/merge-patch+json"), responses((status = 200, body = SubscriberBody), Failures))]
async fn patch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    headers: HeaderMap,
    MergePatch(patch): MergePatch,
) -> Result<Response, Failure> {
    let subscriber = id::<SubscriberId>(&name)?;
    let revision = Condition::revision(&headers, app.service.subscriber_revision(&caller, &subscriber)).await?;
    let stored = app.service.patch_subscriber(&caller, &subscriber, &patch, revision).await?;
    Ok(tagged(StatusCode::OK, stored.revision, &SubscriberBody::from(stored)))
}

/// Removes a subscriber with its devices and subscriptions.
#[utoipa::path(delete, path = "/v1/subscribers/{id}", tag = "subscribers", params(("id" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    request: Request,
) -> Result<Response, Failure> {
    let subscriber = id::<SubscriberId>(&name)?;
    let present = app.service.subscriber_revision(&caller, &subscriber);
    let revision = Condition::revision(request.headers(), present).await?;
    app.service.remove_subscriber(&caller, &subscriber, revision).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Stores one device.
#[utoipa::path(put, path = "/v1/subscribers/{id}/devices/{device}", tag = "subscribers", params(("id" = String, Path), ("device" = String, Path), ("If-Match" = Option<String>, Header)), request_body = DeviceDraftBody, responses((status = 200, body = SubscriberBody), (status = 201, body = SubscriberBody), Failures))]
async fn put_device(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((name, device)): Segments<(String, String)>,
    headers: HeaderMap,
    JsonBody(draft): JsonBody<DeviceDraftBody>,
) -> Result<Response, Failure> {
    let (subscriber, device) = (id::<SubscriberId>(&name)?, id::<Name>(&device)?);
    let condition = Condition::of(&headers, app.service.subscriber_revision(&caller, &subscriber)).await?;
    let draft = DeviceDraft::from(draft);
    let mut tries = 0;
    let (stored, is_new) = loop {
        // The tag is that of the subscriber; `*` is about the device.
        let requested = match condition {
            Condition::Exists => Some(true),
            Condition::Absent => Some(false),
            Condition::None | Condition::Revision(_) => None,
        };
        let revision = match (condition, requested) {
            (Condition::Revision(revision), _) => Some(revision),
            (_, None) => None,
            (_, Some(requested)) => {
                let (revision, is_there) = app.service.device_standing(&caller, &subscriber, &device).await?;
                if is_there != requested {
                    let standing = if is_there { "exists" } else { "does not exist" };
                    return Err(Failure::precondition(format!("the device `{device}` of `{subscriber}` {standing}")));
                }
                Some(revision)
            }
        };
        tries += 1;
        match app.service.put_device(&caller, &subscriber, &device, draft.clone(), revision).await {
            // The subscriber was changed concurrently, but no condition was given.
            Err(ServiceError::Changed(_)) if requested.is_some() && tries < TRIES_MAX => {}
            stored => break stored?,
        }
    };
    Ok(tagged(created(is_new), stored.revision, &SubscriberBody::from(stored)))
}

/// Removes one device.
#[utoipa::path(delete, path = "/v1/subscribers/{id}/devices/{device}", tag = "subscribers", params(("id" = String, Path), ("device" = String, Path), ("If-Match" = Option<String>, Header)), responses((status = 204), Failures))]
async fn remove_device(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((name, device)): Segments<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    let (subscriber, device) = (id::<SubscriberId>(&name)?, id::<Name>(&device)?);
    let present = app.service.subscriber_revision(&caller, &subscriber);
    let revision = Condition::revision(request.headers(), present).await?;
    let stored = app.service.remove_device(&caller, &subscriber, &device, revision).await?;
    Ok((StatusCode::NO_CONTENT, [(axum::http::header::ETAG, crate::responses::etag(stored.revision))]).into_response())
}

/// Creates a verification token for a device. Send it to the device, and nowhere else: the user who returns it receives
/// the messages of the device, which a merge of two subscribers requires.
#[utoipa::path(post, path = "/v1/subscribers/{id}/verification-token", tag = "subscribers", params(("id" = String, Path)), request_body = VerificationTokenDraft, responses((status = 201, body = VerificationTokenBody), Failures))]
async fn verification_token(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(asked): JsonBody<VerificationTokenDraft>,
) -> Result<Response, Failure> {
    let lasts = asked.expires_in.map(std::time::Duration::from_secs);
    let (subscriber, device) = (id::<SubscriberId>(&name)?, member_id::<Name>("device", &asked.device)?);
    let (verification_token, expires_at) =
        app.service.make_verification_token(&caller, &subscriber, &device, lasts).await?;
    Ok(json(StatusCode::CREATED, &VerificationTokenBody { verification_token, expires_at }))
}

/// Merges a subscriber that is known only by its addresses into this one. A repetition returns the earlier result.
#[utoipa::path(post, path = "/v1/subscribers/{id}/merge", tag = "subscribers", params(("id" = String, Path)), request_body = MergeDraft, responses((status = 200, body = MergeBody), Failures))]
async fn merge(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(asked): JsonBody<MergeDraft>,
) -> Result<Response, Failure> {
    let proof = match (asked.verification_token, asked.unverified) {
        (Some(token), false) => Proof::VerificationToken(token),
        (None, true) => Proof::OfCaller,
        (Some(_), true) => {
            return Err(ServiceError::from(
                Problem::new(Code::ConflictingMembers, "unverified", "excludes `verification_token`")
                    .param("with", "verification_token"),
            )
            .into());
        }
        (None, false) => {
            let message = "is missing; give the token that was sent to a device of `from`, or `unverified: true` if you \
                           verified otherwise that both are the same person";
            return Err(ServiceError::invalid(Code::Required, "verification_token", message).into());
        }
    };
    let (from, into) = (member_id::<SubscriberId>("from", &asked.from)?, id::<SubscriberId>(&name)?);
    let merged = app.service.merge_subscribers(&caller, &from, &into, &proof).await?;
    Ok(json(StatusCode::OK, &MergeBody::from(merged)))
}

/// All data about a person: subscriber, subscriptions, evidence of consents, suppressions, reports; with the scope
/// `inbox:read` also its inbox, with `operations:read` its events and notifications, with `sync:read` its rows.
#[utoipa::path(get, path = "/v1/subscribers/{id}/export", tag = "subscribers", params(("id" = String, Path)), responses((status = 200, body = serde_json::Value), Failures))]
async fn export_person(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(subscriber): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.export_person(&caller, &id::<SubscriberId>(&subscriber)?).await?;
    Ok(json(StatusCode::OK, &found))
}

/// Erases a person from the records, the inbox, the rows of collections and the journal. Evidence of consents stays
/// without the person. 202: the rest follows when messages in delivery are answered.
#[utoipa::path(post, path = "/v1/subscribers/{id}/erase", tag = "subscribers", params(("id" = String, Path)), responses((status = 202, body = serde_json::Value), (status = 204), Failures))]
async fn erase_person(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(subscriber): Segments<String>,
) -> Result<Response, Failure> {
    let progress = app.service.erase_person(&caller, &id::<SubscriberId>(&subscriber)?).await?;
    Ok(match progress {
        ErasureProgress::Done => StatusCode::NO_CONTENT.into_response(),
        ErasureProgress::Continues => json(StatusCode::ACCEPTED, &serde_json::json!({"complete": false})),
    })
}
