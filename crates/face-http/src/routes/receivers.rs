//! Webhooks of mail and SMS providers. The proof in the request authorizes it; no key is needed.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use tocsin_service::{
    ServiceError,
    receivers::{BODY_BYTES_MAX, FeedbackProvider, Keyword, ProviderError, Received, ReceiverError, Webhook},
};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{
        Failure, MALFORMED_BODY, UNAVAILABLE_CODE, WEBHOOK_CERTIFICATE, WEBHOOK_SIGNATURE, WEBHOOK_STALE,
        WEBHOOK_TOPIC, WEBHOOK_UNSIGNED,
    },
    request::{Segments, take_body},
    responses::{Failures, json},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(receive_by_query, receive))
}

/// Result of a webhook.
#[derive(Serialize, ToSchema)]
struct WebhookResult {
    /// Whether it was accepted before. It has no effect again.
    repeated: bool,
    /// Number of events that were applied.
    applied: usize,
    /// Number of events without an effect: they name no notification of the application, or no known device.
    ignored: usize,
    /// Keyword of a reply by SMS: `stop`, `start` or `help`.
    #[serde(skip_serializing_if = "Option::is_none")]
    keyword: Option<&'static str>,
    /// Text that answers the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
}

/// Receives a webhook of the provider behind a channel with the option `feedback`: bounces, complaints, delivery
/// receipts and replies. The provider's signature or credential authorizes it. `twilio` gets TwiML.
#[utoipa::path(post, path = "/v1/feedback/{application}/{channel}", tag = "feedback", security(()), params(("application" = String, Path), ("channel" = String, Path)), request_body(content = String, description = "The webhook of the provider", content_type = "application/json"), responses((status = 200, body = WebhookResult), Failures))]
async fn receive(
    State(app): State<Arc<App>>,
    Segments((application, channel)): Segments<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    answer(&app, &application, &channel, request).await
}

/// Receives a webhook with its parameters in the query, as `messagebird` sends status reports.
#[utoipa::path(get, path = "/v1/feedback/{application}/{channel}", tag = "feedback", security(()), params(("application" = String, Path), ("channel" = String, Path)), responses((status = 200, body = WebhookResult), Failures))]
async fn receive_by_query(
    State(app): State<Arc<App>>,
    Segments((application, channel)): Segments<(String, String)>,
    request: Request,
) -> Result<Response, Failure> {
    answer(&app, &application, &channel, request).await
}

async fn answer(app: &App, application: &str, channel: &str, request: Request) -> Result<Response, Failure> {
    let missing = || Failure::from(ServiceError::Missing(format!("a receiver of `{application}/{channel}`")));
    let receivers = app.receivers.as_ref().ok_or_else(missing)?;
    let (parts, body) = request.into_parts();
    let body = take_body(app, &parts.headers, body, BODY_BYTES_MAX).await?;
    let headers = fields(&parts.headers);
    // A HEAD has the effect of no webhook.
    if parts.method == Method::HEAD {
        return Err(Failure::method_not_allowed());
    }
    let webhook =
        Webhook { is_get: parts.method == Method::GET, query: parts.uri.query(), headers: &headers, body: &body.bytes };
    match receivers.receive(application, channel, &webhook).await {
        Ok(received) => Ok(accepted(received)),
        Err(error) => Err(refused(error, missing)),
    }
}

/// Header fields with values in visible ASCII; others are no part of a proof.
fn fields(headers: &HeaderMap) -> Vec<(&str, &str)> {
    headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect()
}

fn accepted(received: Received) -> Response {
    if received.provider == FeedbackProvider::Twilio {
        let message = received.answer.map(|text| format!("<Message>{}</Message>", escaped(&text))).unwrap_or_default();
        let body = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response>{message}</Response>\n");
        let content_type = [(header::CONTENT_TYPE, HeaderValue::from_static("text/xml; charset=utf-8"))];
        return (StatusCode::OK, content_type, body).into_response();
    }
    let Received { is_repeated: repeated, applied, ignored, keyword, answer: reply, .. } = received;
    let keyword = keyword.map(Keyword::word);
    json(StatusCode::OK, &WebhookResult { repeated, applied, ignored, keyword, reply })
}

/// A text for XML 1.0.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => out.push(c),
        }
    }
    out
}

fn refused(error: ReceiverError, missing: impl Fn() -> Failure) -> Failure {
    let text = error.to_string();
    match error {
        ReceiverError::Missing => missing(),
        ReceiverError::Method => Failure::method_not_allowed(),
        ReceiverError::InProgress => ServiceError::TooMany { reason: text, retry_after: Duration::from_secs(1) }.into(),
        ReceiverError::NoPublicUrl | ReceiverError::Unreachable(_) => Failure::new(UNAVAILABLE_CODE, text),
        ReceiverError::Refused(error) => match error {
            ProviderError::TooLarge(_) => Failure::too_large(BODY_BYTES_MAX),
            ProviderError::Format(_) => Failure::new(MALFORMED_BODY, text),
            ProviderError::Unsigned(_) => Failure::new(WEBHOOK_UNSIGNED, text),
            ProviderError::Signature => Failure::new(WEBHOOK_SIGNATURE, text),
            ProviderError::Stale => Failure::new(WEBHOOK_STALE, text),
            ProviderError::Certificate(_) => Failure::new(WEBHOOK_CERTIFICATE, text),
            ProviderError::Topic => Failure::new(WEBHOOK_TOPIC, text),
        },
        ReceiverError::Failed(error) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_text_in_xml() {
        assert_eq!(escaped("a<b> & \"c\"\u{0}\u{1b}\nd"), "a&lt;b&gt; &amp; \"c\"\nd");
    }
}
