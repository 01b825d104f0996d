use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Serialize;
use tocsin_model::{
    id::Name,
    receipt::{Disposition, Reason},
    time::Timestamp,
};
use tocsin_service::preview::{About, Previewed, TestSent};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Segments, id},
    responses::{Failures, json},
    wire::previews::NotificationPreviewDraft,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(preview)).routes(routes!(send_test))
}

/// Previews a notification: each part with its template and the places that were searched for it. Sends nothing and
/// stores nothing; the HTML part is kept in memory for ten minutes, at the path `html`.
///
/// The event is a stored one or one that is written; the subscriber too. With `definition` it shows templates that are
/// not applied yet.
#[utoipa::path(post, path = "/v1/applications/{application}/preview", tag = "applications", params(("application" = String, Path)), request_body = NotificationPreviewDraft, responses((status = 200, body = PreviewBody), Failures))]
async fn preview(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(draft): JsonBody<NotificationPreviewDraft>,
) -> Result<Response, Failure> {
    let found = app.service.preview(&caller, &id::<Name>(&name)?, draft.into()).await?;
    let mut body = PreviewBody::from(found);
    if let Some(html) = body.html_part() {
        let id = app.service.keep_preview_html(&caller, html)?;
        body.html = Some(format!("/v1/preview-html/{id}"));
    }
    Ok(json(StatusCode::OK, &body))
}

/// Sends one test message and waits for the server's response. It is not stored and not retried.
#[utoipa::path(post, path = "/v1/applications/{application}/send-test", tag = "applications", params(("application" = String, Path)), request_body = NotificationPreviewDraft, responses((status = 200, body = TestSentBody), Failures))]
async fn send_test(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    JsonBody(draft): JsonBody<NotificationPreviewDraft>,
) -> Result<Response, Failure> {
    let sent = app.service.send_test(&caller, &id::<Name>(&name)?, draft.into()).await?;
    Ok(json(StatusCode::OK, &TestSentBody::from(sent)))
}

/// Inputs of a preview or test.
#[derive(Serialize, ToSchema)]
#[schema(as = NotificationAbout)]
struct AboutBody {
    rule: String,
    /// The notification class.
    class: String,
    /// The event, if it is stored.
    event: Option<String>,
    /// The subscription, if it is stored.
    subscription: Option<String>,
    subscriber: String,
    locale: Option<String>,
    channel: String,
    address: String,
}

/// Preview of a notification.
#[derive(Serialize, ToSchema)]
#[schema(as = NotificationPreview)]
pub(super) struct PreviewBody {
    #[serde(flatten)]
    about: AboutBody,
    /// The fields of the notification, including computed fields.
    #[schema(value_type = Object)]
    fields: serde_json::Map<String, serde_json::Value>,
    /// The keys under which each part is looked for, in order.
    looked_for: Vec<String>,
    parts: Vec<PreviewPartBody>,
    /// Size of the SMS text.
    #[serde(skip_serializing_if = "Option::is_none")]
    sms: Option<ShortMessageBody>,
    /// Why there is nothing to show, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Path of the HTML part for a sandboxed frame, for ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    html: Option<String>,
    /// Warnings of probable mistakes.
    warnings: Vec<String>,
}

/// One part of a preview.
#[derive(Serialize, ToSchema)]
#[schema(as = NotificationPart)]
struct PreviewPartBody {
    /// `subject`, `text`, `html`, `json`, `sms` or `header`.
    part: &'static str,
    /// The name of a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    header: Option<String>,
    /// The key of the template that serves; null for a text that was made from the HTML.
    template: Option<String>,
    /// The rendered text.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Why it gives nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Encoding and size of an SMS text.
#[derive(Serialize, ToSchema)]
#[schema(as = ShortMessage)]
struct ShortMessageBody {
    /// `gsm`, or `ucs2` if a letter needs it.
    alphabet: &'static str,
    /// Septets, or units of UCS-2.
    units: usize,
    /// Number of SMS segments.
    segments: usize,
}

/// Result of a test message.
#[derive(Serialize, ToSchema)]
#[schema(as = TestSent)]
pub(super) struct TestSentBody {
    #[serde(flatten)]
    about: AboutBody,
    /// `delivered`, `deferred` or `refused`.
    outcome: &'static str,
    /// Response of the server, or why the message was not delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Time at which it was sent.
    #[schema(value_type = String)]
    sent_at: Timestamp,
    /// When the answer was complete.
    #[schema(value_type = String)]
    answered_at: Timestamp,
}

impl From<About> for AboutBody {
    fn from(about: About) -> Self {
        AboutBody {
            rule: about.rule.to_string(),
            class: about.class.to_string(),
            event: about.event.map(|id| id.to_string()),
            subscription: about.subscription.map(|id| id.to_string()),
            subscriber: about.subscriber.to_string(),
            locale: about.locale,
            channel: about.channel.to_string(),
            address: about.address,
        }
    }
}

impl From<Previewed> for PreviewBody {
    fn from(found: Previewed) -> Self {
        let parts = found.parts.into_iter().map(|part| {
            let (content, error) = match part.content {
                Ok(content) => (Some(content), None),
                Err(error) => (None, Some(error.to_string())),
            };
            PreviewPartBody { part: part.part.name(), header: part.header, template: part.template, content, error }
        });
        PreviewBody {
            about: found.about.into(),
            fields: found.fields,
            looked_for: found.looked_for,
            parts: parts.collect(),
            sms: found.sms.map(|sms| ShortMessageBody {
                alphabet: if sms.is_gsm { "gsm" } else { "ucs2" },
                units: sms.units,
                segments: sms.segments,
            }),
            failure: found.failure,
            html: None,
            warnings: found.warnings,
        }
    }
}

impl PreviewBody {
    fn html_part(&self) -> Option<&str> {
        self.parts.iter().find(|part| part.part == "html").and_then(|part| part.content.as_deref())
    }
}

impl From<TestSent> for TestSentBody {
    fn from(sent: TestSent) -> Self {
        let reply = |reason: Reason| Some(reason.text);
        let (outcome, reason) = match sent.disposition {
            Disposition::Delivered { reply } => ("delivered", Some(reply).filter(|reply| !reply.is_empty())),
            Disposition::Deferred { reason, .. } => ("deferred", reply(reason)),
            Disposition::Refused { reason } => ("refused", reply(reason)),
        };
        TestSentBody { about: sent.about.into(), outcome, reason, sent_at: sent.sent_at, answered_at: sent.answered_at }
    }
}
