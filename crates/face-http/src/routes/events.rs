use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::{percent, trace_context::TraceContext};
use tocsin_service::{
    ServiceError,
    events::{CloudEvent, SubmittedLines, is_json, read_cloud_events},
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{
        Authorized, BATCH_BYTES_MAX, Parameters, Segments, idempotency_key, media_type, parts, stream_body, take_body,
        trace_context,
    },
    responses::{Failures, json},
    wire::{AcceptedEventsBody, SubmittedLinesBody, submitted},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(submit)).routes(routes!(submit_cloud_events))
}

const LINES: [&str; 3] = ["application/x-ndjson", "application/ndjson", "application/jsonl"];

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SubmitParameters {
    /// The source that submits them; by default the only one of the key, else the only one of the application, else
    /// `api`.
    #[serde(default)]
    source: Option<String>,
}

/// Submits events: one JSON object, an array of them (all or nothing), or one in each line (application/x-ndjson, in
/// batches of 1,000; what precedes a bad line is accepted). When the answer comes, they are durable. CloudEvents in
/// binary mode (`ce-` headers) are refused here: their route has no class.
#[utoipa::path(post, path = "/v1/applications/{application}/events/{class}", tag = "events",
    params(("application" = String, Path), ("class" = String, Path), SubmitParameters,
        ("Idempotency-Key" = Option<String>, Header, description = "The same key with the same content is the same submission; at most 255 characters"),
        ("traceparent" = Option<String>, Header, description = "Where the events stand in a trace (W3C Trace Context); kept with them and sent on. One that is none is passed over"),
        ("tracestate" = Option<String>, Header, description = "What goes with it")),
    request_body(content((serde_json::Value = "application/json"), (String = "application/x-ndjson"))),
    responses((status = 202, body = AcceptedEventsBody, description = "Accepted; for lines: batches, events, duplicates"), Failures))]
async fn submit(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, class)): Segments<(String, String)>,
    Parameters(parameters): Parameters<SubmitParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let intake = app.service.intake(&caller, &application, &class, parameters.source.as_deref())?;
    let (headers, body) = parts(request);
    refuse_cloud_event(&headers, &application)?;
    let key = idempotency_key(&headers)?;
    let intake = intake.traced(trace_context(&headers));
    let given = media_type(&headers);
    if given == "application/json" {
        let taken = take_body(&app, &headers, body, BATCH_BYTES_MAX).await?;
        let answer = submitted(app.service.submit(intake, taken.bytes.clone(), key).await?);
        return Ok((
            StatusCode::ACCEPTED,
            [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
            answer,
        )
            .into_response());
    }
    if LINES.contains(&given.as_str()) {
        return lines_answer(app.service.submit_lines(intake, stream_body(body), key).await);
    }
    Err(Failure::unsupported(&given, &["application/json", LINES[0]]))
}

/// Rejects a CloudEvent in binary mode at the route of a class, which would lose its id and source.
fn refuse_cloud_event(headers: &HeaderMap, application: &str) -> Result<(), Failure> {
    let attributes = ["ce-specversion", "ce-id", "ce-source", "ce-type"];
    let Some(found) = attributes.into_iter().find(|name| headers.contains_key(*name)) else { return Ok(()) };
    let problem = tocsin_model::problem::Problem::new(
        tocsin_model::problem::Code::NotApplicable,
        found,
        "is an attribute of a CloudEvent, and this route has none",
    );
    let hint = format!(
        "submit CloudEvents to `/v1/applications/{application}/events`, where `ce-type` names the class; without `ce-` \
         headers the body is an event of this class"
    );
    Err(ServiceError::Invalid(vec![problem.hint(hint)]).into())
}

fn lines_answer(mut answer: SubmittedLines) -> Result<Response, Failure> {
    let body = SubmittedLinesBody::from(&answer);
    match answer.stopped.take() {
        None => Ok(json(StatusCode::ACCEPTED, &body)),
        Some(error) => Err(Failure::from(error)
            .with("batches", body.batches)
            .with("events", body.events)
            .with("duplicates", body.duplicates)),
    }
}

/// Submits CloudEvents 1.0: structured, as a batch, or binary (`ce-` headers). `type` names the class: exactly, or by
/// what follows its last dot. An event that came before, by `source` and `id`, is not added again.
#[utoipa::path(post, path = "/v1/applications/{application}/events", tag = "events",
    params(("application" = String, Path), SubmitParameters),
    request_body(content((serde_json::Value = "application/cloudevents+json"), (Vec<serde_json::Value> = "application/cloudevents-batch+json"), (serde_json::Value = "application/json"))),
    responses((status = 202, body = AcceptedEventsBody, description = "Accepted; for a batch: batches, events, duplicates"), Failures))]
async fn submit_cloud_events(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(application): Segments<String>,
    Parameters(parameters): Parameters<SubmitParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let given = media_type(&headers);
    let source = parameters.source.as_deref();
    let batch = given == "application/cloudevents-batch+json";
    let structured = given == "application/cloudevents+json";
    let is_binary = headers.contains_key("ce-specversion") || headers.contains_key("ce-type");
    // Without `Content-Type` the data is of the default type, JSON, or missing.
    if !batch && !structured && (!is_binary || !(given.is_empty() || is_json(&given))) {
        let known =
            ["application/cloudevents+json", "application/cloudevents-batch+json", "application/json with ce- headers"];
        return Err(Failure::unsupported(&given, &known));
    }
    let taken = take_body(&app, &headers, body, BATCH_BYTES_MAX).await?;
    let mut events = if batch || structured {
        let bytes = taken.bytes.clone();
        if bytes.len() > 64 * 1024 {
            let reading = tokio::task::spawn_blocking(move || read_cloud_events(&bytes, batch));
            reading.await.map_err(|error| ServiceError::Unavailable(error.into()))??
        } else {
            read_cloud_events(&bytes, batch)?
        }
    } else {
        vec![binary_cloud_event(&headers, taken.bytes.clone())?]
    };
    // The trace context of an event takes precedence over that of the request.
    let of_request = trace_context(&headers);
    for event in &mut events {
        event.trace = event.trace.take().or_else(|| of_request.clone());
    }
    let answer = app.service.submit_cloud_events(&caller, &application, source, events).await?;
    match answer.batches.as_slice() {
        [only] if !batch => {
            let single =
                tocsin_service::events::Submitted { batch: *only, events: 1, duplicate: answer.duplicates > 0 };
            Ok((
                StatusCode::ACCEPTED,
                [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
                submitted(single),
            )
                .into_response())
        }
        _ => lines_answer(answer),
    }
}

fn binary_cloud_event(headers: &HeaderMap, data: axum::body::Bytes) -> Result<CloudEvent, Failure> {
    let mut problems = Vec::new();
    let mut attribute = |name: &str| match headers.get(name).map(|value| percent_decoded(value.as_bytes())) {
        Some(_) if headers.get_all(name).iter().count() > 1 => {
            problems.push(tocsin_model::problem::Problem::new(
                tocsin_model::problem::Code::Duplicate,
                name,
                "is given more than once",
            ));
            String::new()
        }
        Some(Some(text)) => text,
        Some(None) => {
            problems.push(
                tocsin_model::problem::Problem::new(
                    tocsin_model::problem::Code::InvalidFormat,
                    name,
                    "is not percent-encoded UTF-8",
                )
                .param("format", "percent_encoding"),
            );
            String::new()
        }
        None => {
            problems.push(tocsin_model::problem::Problem::new(
                tocsin_model::problem::Code::Required,
                name,
                "is required: give the header",
            ));
            String::new()
        }
    };
    let version = attribute("ce-specversion");
    let (id, source, kind) = (attribute("ce-id"), attribute("ce-source"), attribute("ce-type"));
    if !version.is_empty() && version != "1.0" {
        let problem = tocsin_model::problem::Problem::new(
            tocsin_model::problem::Code::Unsupported,
            "ce-specversion",
            format!("is `{version}`"),
        )
        .param("value", version.to_string());
        problems.push(problem.hint("this platform speaks CloudEvents 1.0"));
    }
    if problems.is_empty() {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let parent = header("ce-traceparent");
        let trace = parent.and_then(|parent| TraceContext::read(parent, header("ce-tracestate")));
        // No data is an event without values.
        let data = if data.is_empty() { axum::body::Bytes::from_static(b"{}") } else { data };
        Ok(CloudEvent { source, id, kind, data, trace })
    } else {
        Err(ServiceError::Invalid(problems).into())
    }
}

/// The value of a header of the HTTP binding of CloudEvents, section 3.1.3.2: percent-encoded, perhaps quoted.
fn percent_decoded(value: &[u8]) -> Option<String> {
    let unquoted = match value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")) {
        Some(quoted) => Cow::Owned(unescaped(quoted)?),
        None => Cow::Borrowed(value),
    };
    String::from_utf8(percent::decoded(&unquoted)?).ok()
}

/// Content of a quoted string (RFC 9110, section 5.6.4).
fn unescaped(quoted: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = quoted.iter();
    let next = || {
        Some(match *bytes.next()? {
            b'\\' => bytes.next().copied(),
            byte => Some(byte),
        })
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_cloud_events_are_unquoted_then_decoded() {
        let check = |value: &str, expected: Option<&str>| {
            assert_eq!(percent_decoded(value.as_bytes()).as_deref(), expected, "{value}");
        };
        check("Euro%20%E2%82%AC%20%F0%9F%98%80", Some("Euro € 😀"));
        check("\"a \\\"b\\\" \\%63\"", Some("a \"b\" c"));
        for wrong in ["100%", "%zz", "%ff", "\"a\\\""] {
            check(wrong, None);
        }
    }
}
