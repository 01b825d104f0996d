//! Unsubscribe links of mails: a confirmation page, and one-click unsubscription (RFC 8058). Both need no key; the link
//! is the permission.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use tocsin_service::ServiceError;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{app::App, problems::Failure, request::Segments, responses::Failures, status_page};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(ask, unsubscribe))
}

/// Confirmation page for ending a subscription. Changes nothing, since mail scanners follow links.
#[utoipa::path(get, path = "/unsubscribe/{token}", tag = "unsubscribe", security(()), params(("token" = String, Path, description = "From a mail's `List-Unsubscribe`")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn ask(State(app): State<Arc<App>>, Segments(token): Segments<String>) -> Result<Response, Failure> {
    match app.service.unsubscribing(&token).await {
        Ok(leave) => Ok(page(StatusCode::OK, status_page::unsubscribe(leave.of.as_ref()))),
        Err(error) => unknown(error),
    }
}

/// Ends the subscription at once (RFC 8058). Idempotent; the body is ignored.
#[utoipa::path(post, path = "/unsubscribe/{token}", tag = "unsubscribe", security(()), params(("token" = String, Path, description = "From a mail's `List-Unsubscribe`")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn unsubscribe(State(app): State<Arc<App>>, Segments(token): Segments<String>) -> Result<Response, Failure> {
    match app.service.unsubscribing(&token).await {
        Ok(leave) => {
            app.service.unsubscribe(&leave).await?;
            Ok(page(StatusCode::OK, status_page::unsubscribed()))
        }
        Err(error) => unknown(error),
    }
}

fn unknown(error: ServiceError) -> Result<Response, Failure> {
    match error {
        ServiceError::Missing(_) => Ok(page(StatusCode::NOT_FOUND, status_page::unknown_link())),
        error => Err(error.into()),
    }
}

fn page(status: StatusCode, text: String) -> Response {
    let headers: [(HeaderName, _); 3] = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        // The address of the page is the permission.
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (status, headers, text).into_response()
}
