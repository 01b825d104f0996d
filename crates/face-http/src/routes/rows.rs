//! Rows of collections, for all callers but devices, and edit conflicts.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::Stamp,
    id::{Name, StoredNumber},
    problem::{Code, Problem},
};
use tocsin_service::{Page, Scope, ServiceError, page};
use tocsin_sync::{
    SyncError,
    rows::{RefusedRow, RowChange, WriteMode},
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{
        Authorized, BATCH_BYTES_MAX, Condition, JsonBody, MergePatch, PageParameters, Parameters, Segments, id,
        media_type, parts, take_body,
    },
    responses::{Failures, json, tagged},
    wire::{
        List,
        sync::{CollectionBody, ConflictBody, PutBody, RowBody, RowLine},
    },
};

const NDJSON: &str = "application/x-ndjson";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(collections))
        .routes(routes!(list, put_many))
        .routes(routes!(read, put, patch, remove))
        .routes(routes!(conflicts))
        .routes(routes!(revert))
}

/// The collections of an application. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/applications/{application}/collections", tag = "sync", params(("application" = String, Path)), responses((status = 200, body = List<CollectionBody>), Failures))]
async fn collections(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(application): Segments<String>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let found = app.sync()?.collections_of(&id::<Name>(&application)?).await?;
    Ok(json(StatusCode::OK, &List { items: found.iter().map(CollectionBody::from).collect(), next: None }))
}

/// The rows of a collection, by their ids. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/applications/{application}/collections/{collection}/rows", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), PageParameters), responses((status = 200, body = List<RowBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, collection)): Segments<(String, String)>,
    Parameters(asked): Parameters<PageParameters>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let limit = asked.limit()?;
    let after: Option<String> = page::key_of(asked.after.as_deref())?;
    let rows = app.sync()?.rows(&id::<Name>(&application)?, &collection, after.as_deref(), limit + 1).await?;
    let page = Page::cut(rows, limit, |row| row.id.clone());
    Ok(json(StatusCode::OK, &List::from(page.map(RowBody::from))))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PutParameters {
    /// Whether valid rows are stored even if others are invalid; the response lists those. Default: all or none.
    #[serde(default)]
    partial: bool,
}

/// Most values and keys of the rows of one request. As trees they take about 400 MB.
const ROWS_VALUES_MAX: usize = 6_000_000;

/// Puts many rows, a line for each, in one commit: all or none, or with `partial` all valid rows. Needs the scope
/// `sync:write`.
#[utoipa::path(post, path = "/v1/applications/{application}/collections/{collection}/rows", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), PutParameters), request_body(content = RowLine, content_type = "application/x-ndjson"), responses((status = 200, body = PutBody), Failures))]
async fn put_many(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, collection)): Segments<(String, String)>,
    Parameters(PutParameters { partial }): Parameters<PutParameters>,
    request: Request,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    let (headers, body) = parts(request);
    let given = media_type(&headers);
    if given != NDJSON {
        return Err(Failure::unsupported(&given, &[NDJSON]));
    }
    let mut taken = take_body(&app, &headers, body, BATCH_BYTES_MAX).await?;
    taken.reserve_values(&app, ROWS_VALUES_MAX)?;
    let (bytes, application) = (tocsin_model::json::without_mark(&taken.bytes), id::<Name>(&application)?);
    if partial {
        let Lines { rows, places, mut refused } = Lines::read(bytes);
        let given = rows.len() + refused.len();
        let unfit = app.sync()?.put_rows(&application, &collection, rows, WriteMode::Those).await?;
        refused.extend(unfit.into_iter().map(|row| RefusedRow { at: places[row.at], ..row }));
        refused.sort_by_key(|row| row.at);
        return Ok(json(StatusCode::OK, &PutBody::new(given, refused)));
    }
    let lines = serde_json::Deserializer::from_slice(bytes).into_iter::<RowLine>();
    let rows = lines.map(|line| line.map(|line| (line.id, line.row))).collect::<Result<Vec<_>, _>>();
    let rows = rows.map_err(|error| Failure::from(tocsin_service::error::json_error(&error)))?;
    let given = rows.len();
    let refused = app.sync()?.put_rows(&application, &collection, rows, WriteMode::All).await?;
    Ok(json(StatusCode::OK, &PutBody::new(given, refused)))
}

/// The lines of a body, each independent: a malformed line does not affect the others.
#[derive(Default)]
struct Lines {
    rows: Vec<(String, Map<String, Json>)>,
    /// The lines of the rows, from 0.
    places: Vec<usize>,
    refused: Vec<RefusedRow>,
}

impl Lines {
    fn read(bytes: &[u8]) -> Lines {
        /// Identifies a line that is not a row.
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        let mut lines = Lines::default();
        let all = bytes.split(|byte| *byte == b'\n').enumerate();
        for (at, line) in all.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            match serde_json::from_slice::<RowLine>(line) {
                Ok(RowLine { id, row }) => {
                    lines.rows.push((id, row));
                    lines.places.push(at);
                }
                Err(error) => {
                    let id = serde_json::from_slice::<Named>(line).map(|named| named.id).unwrap_or_default();
                    let place = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
                    let problem = tocsin_service::error::json_problem(&error);
                    let problem = problem.position(place(at + 1), place(error.column()));
                    lines.refused.push(RefusedRow { at, id, problems: vec![problem] });
                }
            }
        }
        lines
    }
}

/// A row. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/applications/{application}/collections/{collection}/rows/{id}", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), ("id" = String, Path)), responses((status = 200, body = RowBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, collection, row)): Segments<(String, String, String)>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let row = app.sync()?.row(&id::<Name>(&application)?, &collection, &row).await?;
    Ok(tagged(StatusCode::OK, row.version.0, &RowBody::from(row)))
}

/// Writes a row, which is made if it is not there. Fields that are not given take their default. Needs the scope `sync:write`.
#[utoipa::path(put, path = "/v1/applications/{application}/collections/{collection}/rows/{id}", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), ("id" = String, Path)), request_body(content = serde_json::Value, description = "The fields of the row"), responses((status = 200, body = RowBody), Failures))]
async fn put(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(segments): Segments<(String, String, String)>,
    headers: HeaderMap,
    JsonBody(values): JsonBody<Map<String, Json>>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    change(&app, segments, RowChange::Put(values), &headers).await
}

/// Changes fields of a row; null empties one. Needs the scope `sync:write`.
#[utoipa::path(patch, path = "/v1/applications/{application}/collections/{collection}/rows/{id}", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), ("id" = String, Path)), request_body(content = serde_json::Value, content_type = "application/merge-patch+json"), responses((status = 200, body = RowBody), Failures))]
async fn patch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(segments): Segments<(String, String, String)>,
    headers: HeaderMap,
    MergePatch(values): MergePatch,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    let Json::Object(values) = values else {
        return Err(ServiceError::from(
            Problem::new(Code::WrongType, "", "should be a JSON object with named members").param("expected", "object"),
        )
        .into());
    };
    change(&app, segments, RowChange::Patch(values), &headers).await
}

/// Removes a row. Replicas that have it drop it. What is not there is removed already. Needs the scope `sync:write`.
#[utoipa::path(delete, path = "/v1/applications/{application}/collections/{collection}/rows/{id}", tag = "sync", params(("application" = String, Path), ("collection" = String, Path), ("id" = String, Path)), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(segments): Segments<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    change(&app, segments, RowChange::Remove, &headers).await
}

async fn change(
    app: &App,
    (application, collection, row): (String, String, String),
    change: RowChange,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let (sync, application) = (app.sync()?, id::<Name>(&application)?);
    let present = async { Ok::<_, Failure>(sync.row(&application, &collection, &row).await?.version.0) };
    let expect = match Condition::of(headers, present).await? {
        Condition::None => None,
        Condition::Exists => match sync.row(&application, &collection, &row).await {
            Ok(row) => Some(row.version),
            Err(SyncError::Missing(what)) => return Err(Failure::precondition(format!("{what} does not exist"))),
            Err(error) => return Err(error.into()),
        },
        Condition::Absent => Some(Stamp(0)),
        Condition::Revision(revision) => Some(Stamp(revision)),
    };
    match sync.change_row(&application, &collection, &row, change, expect).await? {
        Some(row) => Ok(tagged(StatusCode::OK, row.version.0, &RowBody::from(row))),
        None => Ok(StatusCode::NO_CONTENT.into_response()),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ConflictParameters {
    /// Filter by collection.
    #[serde(default)]
    collection: Option<String>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default, alias = "after")]
    before: Option<String>,
}

/// Lists edit conflicts with the losing versions, newest first. Needs the scope `sync:read`.
#[utoipa::path(get, path = "/v1/applications/{application}/conflicts", tag = "sync", params(("application" = String, Path), ConflictParameters), responses((status = 200, body = List<ConflictBody>), Failures))]
async fn conflicts(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(application): Segments<String>,
    Parameters(asked): Parameters<ConflictParameters>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncRead)?;
    let limit = page::limit(asked.limit)?;
    let before = page::key_of(asked.before.as_deref())?.map(|StoredNumber(number)| number);
    let application = id::<Name>(&application)?;
    let found = app.sync()?.conflicts(&application, asked.collection.as_deref(), before, limit + 1).await?;
    let page = Page::cut(found, limit, |shown| shown.conflict.number.to_string());
    Ok(json(StatusCode::OK, &List::from(page.map(ConflictBody::from))))
}

/// Restores the losing version of a conflict as a new write. Needs the scope `sync:write`.
#[utoipa::path(post, path = "/v1/applications/{application}/conflicts/{number}/revert", tag = "sync", params(("application" = String, Path), ("number" = u64, Path)), responses((status = 204), Failures))]
async fn revert(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, number)): Segments<(String, String)>,
) -> Result<Response, Failure> {
    caller.needs(Scope::SyncWrite)?;
    app.sync()?.revert_conflict(&id::<Name>(&application)?, id::<StoredNumber>(&number)?.0).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
