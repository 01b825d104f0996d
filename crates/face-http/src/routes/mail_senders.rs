use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use tocsin_model::id::Name;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Segments, id},
    responses::{Failures, json},
    wire::{List, mail_senders::MailSenderBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists the identities of an application's mail channels: domains, hosts and DKIM records. One page.
#[utoipa::path(get, path = "/v1/applications/{application}/mail-senders", tag = "operations", params(("application" = String, Path)), responses((status = 200, body = List<MailSenderBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.mail_senders(&caller, &id::<Name>(&name)?).await?;
    let items = found.into_iter().map(|(channel, sender)| MailSenderBody::new(channel, sender)).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}
