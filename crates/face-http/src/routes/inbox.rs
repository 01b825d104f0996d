//! The feed of a subscriber: pages, marks, and a stream of what changes.

mod stream; // server-sent events

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::{
    id::{Name, SubscriberId},
    inbox::{InboxItemFilter, ItemId, Mark},
    problem::{Code, Problem},
};
use tocsin_service::{
    ServiceError,
    inbox::{Feed, Intent},
    page,
};
use tocsin_store::inbox::FeedFilter;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, InboxAccess, JsonBody, Parameters, Segments, id},
    responses::{Failures, json},
    wire::{
        List,
        inbox::{ItemBody, MarkBody, MarkedBody, NewTokenBody, TokenBody, UnreadBody, mark_of},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(unread))
        .routes(routes!(mark_some))
        .routes(routes!(make_token))
        .routes(routes!(stream::stream))
        .routes(routes!(read, remove))
        .routes(routes!(put_read, remove_read))
        .routes(routes!(put_archived, remove_archived))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FeedParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// `current` (not archived; the default), `unread`, `read`, `archived` or `all`.
    #[serde(default)]
    state: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by notification class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by channel.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// An inbox token, where no header can be set.
    #[serde(default, rename = "token")]
    #[param(rename = "token")]
    _token: Option<String>,
}

/// The token may stand in any query.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TokenParameters {
    /// An inbox token, where no header can be set.
    #[serde(default, rename = "token")]
    #[param(rename = "token")]
    _token: Option<String>,
}

fn state_filter(word: Option<&str>) -> Result<InboxItemFilter, Failure> {
    let Some(word) = word else { return Ok(InboxItemFilter::default()) };
    InboxItemFilter::ALL.into_iter().find(|item_filter| item_filter.word() == word).ok_or_else(|| {
        let words: Vec<&str> = InboxItemFilter::ALL.into_iter().map(InboxItemFilter::word).collect();
        ServiceError::from(
            Problem::new(Code::UnknownValue, "state", format!("`{word}` is none of {}", words.join(", ")))
                .param("value", word.to_string()),
        )
        .into()
    })
}

async fn open(
    app: &App,
    InboxAccess(visitor): &InboxAccess,
    subscriber: &str,
    intent: Intent,
) -> Result<Feed, Failure> {
    Ok(app.service.open_feed(visitor, &id::<SubscriberId>(subscriber)?, intent).await?)
}

/// A feed, newest first: the subscriber's own items, and the broadcasts that it sees.
#[utoipa::path(get, path = "/v1/subscribers/{id}/inbox", tag = "inbox", params(("id" = String, Path), FeedParameters), responses((status = 200, body = List<ItemBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(subscriber): Segments<String>,
    Parameters(asked): Parameters<FeedParameters>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Read).await?;
    let limit = page::limit(asked.limit)?;
    let FeedParameters { state, application, class, channel, after, .. } = asked;
    let filter = FeedFilter { item_filter: state_filter(state.as_deref())?, application, class, channel };
    let found = app.service.feed_items(&feed, &filter, after.as_deref(), limit).await?;
    Ok(private(json(StatusCode::OK, &List::from(found.map(|item| ItemBody::new(&item, feed.locale()))))))
}

/// Number of unread items: neither read nor archived.
#[utoipa::path(get, path = "/v1/subscribers/{id}/inbox/unread", tag = "inbox", params(("id" = String, Path), TokenParameters), responses((status = 200, body = UnreadBody), Failures))]
async fn unread(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(subscriber): Segments<String>,
    Parameters(TokenParameters { .. }): Parameters<TokenParameters>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Read).await?;
    let unread = app.service.feed_unread(&feed).await?;
    Ok(private(json(StatusCode::OK, &UnreadBody { unread })))
}

/// One item.
#[utoipa::path(get, path = "/v1/subscribers/{id}/inbox/{item}", tag = "inbox", params(("id" = String, Path), ("item" = String, Path), TokenParameters), responses((status = 200, body = ItemBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments((subscriber, item)): Segments<(String, String)>,
    Parameters(TokenParameters { .. }): Parameters<TokenParameters>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Read).await?;
    let found = app.service.feed_item(&feed, id::<ItemId>(&item)?).await?;
    Ok(private(json(StatusCode::OK, &ItemBody::new(&found, feed.locale()))))
}

/// Marks an item as read. Idempotent.
#[utoipa::path(put, path = "/v1/subscribers/{id}/inbox/{item}/read", tag = "inbox", params(("id" = String, Path), ("item" = String, Path)), responses((status = 200, body = ItemBody), Failures))]
async fn put_read(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(segments): Segments<(String, String)>,
) -> Result<Response, Failure> {
    mark_one(&app, &visiting, segments, Mark::Read).await
}

/// Marks an item as unread.
#[utoipa::path(delete, path = "/v1/subscribers/{id}/inbox/{item}/read", tag = "inbox", params(("id" = String, Path), ("item" = String, Path)), responses((status = 200, body = ItemBody), Failures))]
async fn remove_read(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(segments): Segments<(String, String)>,
) -> Result<Response, Failure> {
    mark_one(&app, &visiting, segments, Mark::Unread).await
}

/// Puts an item into the archive.
#[utoipa::path(put, path = "/v1/subscribers/{id}/inbox/{item}/archived", tag = "inbox", params(("id" = String, Path), ("item" = String, Path)), responses((status = 200, body = ItemBody), Failures))]
async fn put_archived(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(segments): Segments<(String, String)>,
) -> Result<Response, Failure> {
    mark_one(&app, &visiting, segments, Mark::Archived).await
}

/// Takes an item out of the archive.
#[utoipa::path(delete, path = "/v1/subscribers/{id}/inbox/{item}/archived", tag = "inbox", params(("id" = String, Path), ("item" = String, Path)), responses((status = 200, body = ItemBody), Failures))]
async fn remove_archived(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(segments): Segments<(String, String)>,
) -> Result<Response, Failure> {
    mark_one(&app, &visiting, segments, Mark::Unarchived).await
}

/// Deletes an item permanently. A broadcast is deleted for this subscriber only. Deleting an absent item succeeds.
#[utoipa::path(delete, path = "/v1/subscribers/{id}/inbox/{item}", tag = "inbox", params(("id" = String, Path), ("item" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(segments): Segments<(String, String)>,
) -> Result<Response, Failure> {
    mark_one(&app, &visiting, segments, Mark::Deleted).await
}

async fn mark_one(
    app: &App,
    visiting: &InboxAccess,
    (subscriber, item): (String, String),
    mark: Mark,
) -> Result<Response, Failure> {
    let feed = open(app, visiting, &subscriber, Intent::Mark).await?;
    match app.service.mark_item(&feed, id::<ItemId>(&item)?, mark).await? {
        Some(item) => Ok(private(json(StatusCode::OK, &ItemBody::new(&item, feed.locale())))),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

/// Marks some items, or all that match a filter. Idempotent.
#[utoipa::path(post, path = "/v1/subscribers/{id}/inbox/mark", tag = "inbox", params(("id" = String, Path)), request_body = MarkBody, responses((status = 200, body = MarkedBody), Failures))]
async fn mark_some(
    State(app): State<Arc<App>>,
    visiting: InboxAccess,
    Segments(subscriber): Segments<String>,
    JsonBody(asked): JsonBody<MarkBody>,
) -> Result<Response, Failure> {
    let feed = open(&app, &visiting, &subscriber, Intent::Mark).await?;
    let mark = mark_of(&asked.mark).ok_or_else(|| {
        let words: Vec<&str> = Mark::ALL.into_iter().map(Mark::word).collect();
        ServiceError::invalid(Code::UnknownValue, "mark", format!("`{}` is none of {}", asked.mark, words.join(", ")))
    })?;
    let MarkBody { ids, all, state, application, class, channel, newest, .. } = asked;
    let chooses = state.is_some() || application.is_some() || class.is_some() || channel.is_some() || newest.is_some();
    let marked = match (ids, all) {
        (Some(ids), false) if !chooses => app.service.mark_items(&feed, ids, mark).await?.len() as u64,
        (None, true) => {
            let filter = FeedFilter { item_filter: state_filter(state.as_deref())?, application, class, channel };
            app.service.mark_all_items(&feed, &filter, newest, mark).await?
        }
        (Some(_), _) => {
            return Err(ServiceError::from(
                Problem::new(Code::ConflictingMembers, "ids", "goes without `all` and what narrows it")
                    .param("with", "all"),
            )
            .into());
        }
        (None, false) => return Err(ServiceError::invalid(Code::Required, "ids", "is required, or `all: true`").into()),
    };
    let unread = app.service.feed_unread(&feed).await?;
    Ok(private(json(StatusCode::OK, &MarkedBody { marked, unread })))
}

/// Creates an inbox token, which gives access to the feed of this subscriber only. For a page or an app, which must not
/// hold an API key.
#[utoipa::path(post, path = "/v1/subscribers/{id}/inbox/token", tag = "inbox", params(("id" = String, Path)), request_body = NewTokenBody, responses((status = 201, body = TokenBody), Failures))]
async fn make_token(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(subscriber): Segments<String>,
    JsonBody(asked): JsonBody<NewTokenBody>,
) -> Result<Response, Failure> {
    let lasts = asked.expires_in.map(Duration::from_secs);
    let made = app.service.make_pass(&caller, &id::<SubscriberId>(&subscriber)?, lasts, !asked.read_only).await?;
    let (token, expires_at) = made;
    Ok(private(json(StatusCode::CREATED, &TokenBody { token, expires_at })))
}

/// An answer that is for its reader alone.
fn private(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
