use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tocsin_model::id::Name;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{InboxAccess, Segments, id},
    responses::{Failures, json},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(read))
}

/// VAPID keys of the web push channels.
#[derive(Serialize, ToSchema)]
struct WebPushKeys {
    /// The public VAPID key of each channel with the protocol `webpush`, in base64 for URLs.
    keys: BTreeMap<String, String>,
}

/// The public keys for `applicationServerKey` in browsers. Takes any API key or inbox token.
#[utoipa::path(get, path = "/v1/applications/{application}/web-push", tag = "inbox", params(("application" = String, Path)), responses((status = 200, body = WebPushKeys), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    InboxAccess(visitor): InboxAccess,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let keys = app.service.web_push_keys(&visitor, &id::<Name>(&name)?)?;
    Ok(json(StatusCode::OK, &WebPushKeys { keys }))
}
