use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::audit::{AuditFilter, Document, Match};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::transfer::{export_format, exported_answer};
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, PageParameters, Parameters},
    responses::{Failures, json},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(audit)).routes(routes!(export_audit))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditParameters {
    /// Filter by actor: `key:ID`, `user:NAME`, `subscriber:ID`, `local`. A value that ends with `*` is a prefix.
    #[serde(default)]
    actor: Option<String>,
    /// Filter by action, such as `subscribers.put`, or by prefix, such as `subscribers.*`.
    #[serde(default)]
    action: Option<String>,
    /// Filter by object, such as `subscriber:ada`, or by prefix, such as `subscriber:*`.
    #[serde(default)]
    object: Option<String>,
    /// Filter by request id.
    #[serde(default)]
    request_id: Option<String>,
    /// Earliest time, inclusive.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Latest time, exclusive.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Maximum number of entries, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportAuditParameters {
    /// `ndjson` or `csv`; default: by `Accept`.
    #[serde(default)]
    format: Option<String>,
    /// Filter by actor, exactly, or by a prefix that ends with `*`.
    #[serde(default)]
    actor: Option<String>,
    /// Filter by action, likewise.
    #[serde(default)]
    action: Option<String>,
    /// Filter by object, likewise.
    #[serde(default)]
    object: Option<String>,
    /// Filter by request id.
    #[serde(default)]
    request_id: Option<String>,
    /// Earliest time, inclusive.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Latest time, exclusive.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
}

fn condition(text: Option<String>) -> Option<Match> {
    text.map(|text| Match::read(&text))
}

/// Changes that callers made, newest first. There is one item for each changed object of a commit, at most 100 of one.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(AuditParameters), responses((status = 200, body = List<AuditEntryBody>), Failures))]
async fn audit(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<AuditParameters>,
) -> Result<Response, Failure> {
    let AuditParameters { actor, action, object, request_id, from, to, limit, after } = asked;
    let page = PageParameters { limit, after };
    let (actor, action, object) = (condition(actor), condition(action), condition(object));
    let filter = AuditFilter { actor, action, object, request_id, from, to };
    let found = app.service.audit(&caller, &filter, page.after.as_deref(), page.limit()?).await?;
    let items = found.items.into_iter().map(AuditEntryBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: found.next }))
}

/// All entries of the audit log that meet the filter, newest first, as lines.
#[utoipa::path(get, path = "/v1/audit/export", tag = "audit", params(ExportAuditParameters), responses((status = 200, content((String = "application/x-ndjson"), (String = "text/csv"))), Failures))]
async fn export_audit(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ExportAuditParameters>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let ExportAuditParameters { format, actor, action, object, request_id, from, to } = asked;
    let format = export_format(format.as_deref(), &headers)?;
    let (actor, action, object) = (condition(actor), condition(action), condition(object));
    let filter = AuditFilter { actor, action, object, request_id, from, to };
    let stream = app.service.export_audit(&caller, filter, format)?;
    Ok(exported_answer(stream, format, "audit"))
}

/// A changed object.
#[derive(Serialize, ToSchema)]
#[schema(as = AuditEntry)]
struct AuditEntryBody {
    /// Name of the file and number in it, such as `records-12`.
    id: String,
    /// Time of the change.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// `key:ID`, `user:NAME`, `subscriber:ID`, `local`, or another caller, such as `ldap:DN`.
    actor: String,
    /// Client address.
    address: Option<String>,
    /// Name of the operation, such as `subscribers.put`.
    action: String,
    /// Kind and id of the object, such as `subscriber:ada`; without an image of it, the path of the request.
    object: Option<String>,
    /// The object before the change; null if it did not exist, or no image is kept. Secrets are `***`.
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    before: Option<serde_json::Value>,
    /// The object after the change; null if it does not exist any more, or no image is kept. Secrets are `***`.
    #[schema(value_type = Option<std::collections::BTreeMap<String, serde_json::Value>>)]
    after: Option<serde_json::Value>,
    /// Number of further objects of the same commit that have no item of their own.
    more: u64,
    /// Reason that the caller gave.
    reason: Option<String>,
    /// Id of the request, as in its response header `X-Request-Id`.
    request_id: Option<String>,
}

impl From<Document> for AuditEntryBody {
    fn from(found: Document) -> Self {
        let Document { id, at, actor, address, action, object, before, after, more, reason, request_id } = found;
        AuditEntryBody { id, at, actor, address, action, object, before, after, more, reason, request_id }
    }
}
