//! Content of sent notifications, rendered again; its HTML alone, for a frame of the console.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tocsin_model::{content::Content, id::NotificationId, time::Timestamp};
use tocsin_service::{ServiceError, content::RenderedContent};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Segments, id},
    responses::{Failures, json},
};

/// Policy of HTML from templates: no script, no request, no access to the console. Pages of this server may frame it.
const HTML_POLICY: &str =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(content)).routes(routes!(html)).routes(routes!(preview_html))
}

/// The content of a notification, rendered again from the version that made it, as of its last attempt, for its present
/// recipient. Changes of the recipient since then show.
#[utoipa::path(get, path = "/v1/notifications/{id}/content", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = RenderedContentBody), Failures))]
async fn content(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.notification_content(&caller, id::<NotificationId>(&number)?).await?;
    let mut response = json(StatusCode::OK, &RenderedContentBody::from(found));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// The HTML part of the content of a notification, for a sandboxed frame: its policy allows styles and embedded images
/// only.
#[utoipa::path(get, path = "/v1/previews/{id}/html", tag = "operations", params(("id" = String, Path, description = "A notification, such as `n-3-41`")), responses((status = 200, body = String, content_type = "text/html"), Failures))]
async fn html(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(number): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.notification_content(&caller, id::<NotificationId>(&number)?).await?;
    let html = found.rendered.ok().and_then(|preview| preview.content.html);
    let html = html.ok_or_else(|| ServiceError::Missing(format!("an HTML part of the notification {}", found.id)))?;
    Ok(framed(html))
}

/// The HTML part of a recent preview, for a sandboxed frame, as above. It is kept for ten minutes, for the caller that made
/// the preview.
#[utoipa::path(get, path = "/v1/preview-html/{id}", tag = "operations", params(("id" = String, Path)), responses((status = 200, body = String, content_type = "text/html"), Failures))]
async fn preview_html(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(id): Segments<String>,
) -> Result<Response, Failure> {
    Ok(framed(app.service.find_preview_html(&caller, &id)?.to_string()))
}

/// HTML from templates, for a sandboxed frame.
fn framed(html: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(HTML_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("SAMEORIGIN")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (StatusCode::OK, headers, html).into_response()
}

/// A notification rendered again.
#[derive(Serialize, ToSchema)]
struct RenderedContentBody {
    notification: String,
    /// The version that made it.
    version: u32,
    /// Channel of the device; without a device, that of the notification batch.
    channel: String,
    /// Device for which it was rendered.
    device: Option<String>,
    address: Option<String>,
    locale: Option<String>,
    /// Time as of which it was rendered: that of the last attempt, else the present.
    #[schema(value_type = String, format = DateTime)]
    rendered_as_of: Timestamp,
    parts: Vec<PartBody>,
    /// Path of the HTML part alone, for a sandboxed frame.
    html: Option<String>,
    /// Why it cannot be rendered.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// A part of a content.
#[derive(Serialize, ToSchema)]
struct PartBody {
    /// `subject`, `text`, `html`, `json`, `sms`, or the name of a header or mail field.
    part: String,
    content: String,
}

impl From<RenderedContent> for RenderedContentBody {
    fn from(found: RenderedContent) -> Self {
        let notification = found.id.to_string();
        let mut body = RenderedContentBody {
            version: found.version,
            channel: found.channel.to_string(),
            device: None,
            address: None,
            locale: found.locale,
            rendered_as_of: found.rendered_as_of,
            parts: Vec::new(),
            html: None,
            failure: None,
            notification,
        };
        match found.rendered {
            Ok(preview) => {
                body.html = preview.content.html.is_some().then(|| format!("/v1/previews/{}/html", body.notification));
                body.channel = preview.channel.to_string();
                body.device = Some(preview.device.to_string());
                body.address = Some(preview.address);
                body.parts = parts(preview.content);
            }
            Err(reason) => body.failure = Some(reason.text),
        }
        body
    }
}

fn parts(content: Content) -> Vec<PartBody> {
    let Content { subject, text, html, json, sms, headers, mail } = content;
    let named = [("subject", subject), ("text", text), ("html", html), ("json", json), ("sms", sms)];
    let named = named.into_iter().filter_map(|(part, content)| Some((part.to_owned(), content?)));
    let mail = mail.into_iter().map(|(field, value)| (field.name().to_owned(), value));
    named.chain(headers).chain(mail).map(|(part, content)| PartBody { part, content }).collect()
}
