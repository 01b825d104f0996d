use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId},
    problem::Code,
};
use tocsin_service::{
    RunMode, ServiceError,
    exports::ExportStream,
    imports::{Format, Imported, Input},
};
use tocsin_store::records::SubscriptionFilter;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{Failure, ProblemBody},
    request::{Authorized, DryRunParameters, Parameters, media_type, parts, stream_body},
    responses::Failures,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(import_subscribers))
        .routes(routes!(import_subscriptions))
        .routes(routes!(export_subscribers))
        .routes(routes!(export_subscriptions))
        .routes(routes!(import_suppressions))
        .routes(routes!(export_suppressions))
}

const NDJSON: &str = "application/x-ndjson";

/// The form of the lines of a request, and their character encoding if its media type names it.
fn import_input(headers: &HeaderMap, mode: RunMode) -> Result<Input, Failure> {
    let format = match media_type(headers).as_str() {
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" => Format::Ndjson,
        "text/csv" => Format::Csv,
        given => return Err(Failure::unsupported(given, &[NDJSON, "text/csv"])),
    };
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Ok(Input { format, mode, charset: content_type.and_then(tocsin_model::charset::of_media_type) })
}

/// The last line of an import's answer.
#[derive(Serialize, ToSchema)]
struct ImportedBody {
    /// Lines that held something, the header not counted.
    lines: u64,
    /// Number of stored lines; of a dry run, of the valid ones.
    stored: u64,
    failed: u64,
    /// Lines with warnings: one of an export does not fit the present version of its application in every part, or a
    /// schedule is over.
    #[serde(skip_serializing_if = "is_zero")]
    warned: u64,
    /// Whether nothing was changed, as requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dry_run: bool,
    /// Why it ended before the stream did.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ProblemBody>,
}

/// A line of an import's answer: one that was refused.
#[derive(Serialize)]
struct RefusedLine {
    line: u64,
    error: ProblemBody,
}

/// A line of an import's answer: one of an export, with what was passed over.
#[derive(Serialize)]
struct WarnedLine {
    line: u64,
    warnings: Vec<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn imported_answer(imported: Imported, dry_run: bool) -> Result<Response, Failure> {
    let Imported { lines, stored, failed, refusals, warned, warnings, stopped } = imported;
    let error = match stopped {
        // Nothing has happened yet, so the answer can be a plain problem.
        Some(error) if lines == 0 => return Err(error.into()),
        stopped => stopped.map(|error| Failure::from(error).into_body()),
    };
    let mut out = Vec::new();
    let mut line = |body: &dyn erased::Json| {
        body.write(&mut out);
        out.push(b'\n');
    };
    for refusal in refusals {
        let error = Failure::from(ServiceError::Invalid(refusal.problems)).into_body();
        line(&RefusedLine { line: refusal.line, error });
    }
    for warned in warnings {
        let warnings = warned.problems.iter().map(ToString::to_string).collect();
        line(&WarnedLine { line: warned.line, warnings });
    }
    line(&ImportedBody { lines, stored, failed, warned, dry_run, error });
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON))], out).into_response())
}

/// Lets lines of different types pass through one function.
mod erased {
    pub(super) trait Json {
        fn write(&self, out: &mut Vec<u8>);
    }

    impl<T: serde::Serialize> Json for T {
        fn write(&self, out: &mut Vec<u8>) {
            serde_json::to_writer(out, self).expect("what is answered is always JSON");
        }
    }
}

/// Stores subscribers from a stream of lines; a line replaces the subscriber of its id. CSV has the columns `id`,
/// `enabled`, `locale`, `time_zone`, `attributes.<name>` and `device.<name>.channel|address|state`. The answer has a line
/// for each of the first 1,000 refused lines, and one with the counts at the end. A line with a `revision`, as an export
/// writes it, may be older than the present version of an application: what does not fit it is passed over, and the answer
/// has a line with `warnings`.
#[utoipa::path(post, path = "/v1/import/subscribers", tag = "import and export", params(DryRunParameters), request_body(content((String = "application/x-ndjson"), (String = "text/csv"))), responses((status = 200, body = ImportedBody, content_type = "application/x-ndjson"), Failures))]
async fn import_subscribers(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let (input, lines) = (import_input(&headers, asked.mode())?, stream_body(body));
    let imported = app.service.import_subscribers(&caller, input, lines).await?;
    imported_answer(imported, asked.dry_run)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ImportParameters {
    /// The application of all lines; default: each line names its own.
    #[serde(default)]
    application: Option<String>,
    /// The subscription class of all lines; default: each line names its own.
    #[serde(default)]
    class: Option<String>,
    /// Whether the import makes no events of event classes with `on: subscription...`; default false.
    #[serde(default)]
    quiet: bool,
    /// Whether the lines are only checked; default false. What only the store finds, such as an unknown subscriber, is
    /// not checked.
    #[serde(default)]
    dry_run: bool,
}

/// Stores subscriptions from a stream of lines; a line with a key replaces the subscription of its subscriber, class and
/// key. CSV has the columns `application`, `class`, `subscriber`, `key`, `device`, `enabled` and `values.<field>`.
#[utoipa::path(post, path = "/v1/import/subscriptions", tag = "import and export", params(ImportParameters), request_body(content((String = "application/x-ndjson"), (String = "text/csv"))), responses((status = 200, body = ImportedBody, content_type = "application/x-ndjson"), Failures))]
async fn import_subscriptions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ImportParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let ImportParameters { application, class, quiet, dry_run } = asked;
    let input = import_input(&headers, RunMode::of(dry_run))?;
    let (application, class, lines) = (application.as_deref(), class.as_deref(), stream_body(body));
    let imported = app.service.import_subscriptions(&caller, application, class, quiet, input, lines).await?;
    imported_answer(imported, dry_run)
}

pub(super) fn export_format(asked: Option<&str>, headers: &HeaderMap) -> Result<Format, Failure> {
    match asked {
        Some("ndjson") => return Ok(Format::Ndjson),
        Some("csv") => return Ok(Format::Csv),
        Some(_) => {
            return Err(ServiceError::invalid(Code::UnknownValue, "format", "should be `ndjson` or `csv`").into());
        }
        None => {}
    }
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    Ok(if accept.contains("text/csv") { Format::Csv } else { Format::Ndjson })
}

pub(super) fn exported_answer(stream: ExportStream, format: Format, name: &str) -> Response {
    let (kind, ending) = match format {
        Format::Ndjson => (NDJSON, "ndjson"),
        Format::Csv => ("text/csv; charset=utf-8; header=present", "csv"),
    };
    // An error in the middle closes the connection, so that the client notices the truncation.
    let body = Body::from_stream(
        stream.map(|chunk| chunk.inspect_err(|error| tracing::error!(%error, "an export broke off"))),
    );
    let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}.{ending}\"")).expect("a plain name");
    let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CONTENT_DISPOSITION, disposition)];
    (headers, body).into_response()
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportSubscribersParameters {
    /// `ndjson` or `csv`; default: by `Accept`.
    #[serde(default)]
    format: Option<String>,
    /// Only subscribers whose id has this prefix.
    #[serde(default)]
    id_prefix: Option<String>,
    /// Only subscribers with a device of this address.
    #[serde(default)]
    address: Option<String>,
    /// Only subscribers of this locale.
    #[serde(default)]
    locale: Option<String>,
    /// Only enabled, or only disabled, subscribers.
    #[serde(default)]
    enabled: Option<bool>,
    /// `name:value`: only subscribers whose attribute equals the value, or is a list that contains it.
    #[serde(default)]
    attribute: Option<String>,
}

/// All subscribers, as lines that an import reads.
#[utoipa::path(get, path = "/v1/export/subscribers", tag = "import and export", params(ExportSubscribersParameters), responses((status = 200, content((String = "application/x-ndjson"), (String = "text/csv"))), Failures))]
async fn export_subscribers(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ExportSubscribersParameters>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let format = export_format(asked.format.as_deref(), &headers)?;
    let filter =
        super::subscribers::filter(asked.id_prefix, asked.address, asked.locale, asked.enabled, asked.attribute)?;
    let stream = app.service.export_subscribers(&caller, filter, format).await?;
    Ok(exported_answer(stream, format, "subscribers"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportSubscriptionsParameters {
    /// `ndjson` or `csv`; default: by `Accept`. CSV needs application and class.
    #[serde(default)]
    format: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by subscriber.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Filter by key.
    #[serde(default)]
    key: Option<String>,
    /// Filter by state: enabled or disabled.
    #[serde(default)]
    enabled: Option<bool>,
}

/// All subscriptions, as lines that an import reads.
#[utoipa::path(get, path = "/v1/export/subscriptions", tag = "import and export", params(ExportSubscriptionsParameters), responses((status = 200, content((String = "application/x-ndjson"), (String = "text/csv"))), Failures))]
async fn export_subscriptions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ExportSubscriptionsParameters>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let format = export_format(asked.format.as_deref(), &headers)?;
    let ExportSubscriptionsParameters { application, class, subscriber, key, enabled, .. } = asked;
    let filter = SubscriptionFilter { application, class, subscriber, key, enabled };
    let stream = app.service.export_subscriptions(&caller, filter, format).await?;
    Ok(exported_answer(stream, format, "subscriptions"))
}

/// Stores suppressions from a stream of lines; a line takes the place of what was known of its address or device. CSV has
/// the columns `protocol`, `address`, `subscriber`, `device`, `cause`, `origin`, `detail`, `since` and `expires_at`.
#[utoipa::path(post, path = "/v1/import/suppressions", tag = "import and export", params(DryRunParameters), request_body(content((String = "application/x-ndjson"), (String = "text/csv"))), responses((status = 200, body = ImportedBody, content_type = "application/x-ndjson"), Failures))]
async fn import_suppressions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<DryRunParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let (headers, body) = parts(request);
    let (input, lines) = (import_input(&headers, asked.mode())?, stream_body(body));
    let imported = app.service.import_suppressions(&caller, input, lines).await?;
    imported_answer(imported, asked.dry_run)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportSuppressionsParameters {
    /// `ndjson` or `csv`; default: by `Accept`.
    #[serde(default)]
    format: Option<String>,
    /// Only addresses of this protocol.
    #[serde(default)]
    protocol: Option<String>,
    /// Only devices of this subscriber.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Filter by cause.
    #[serde(default)]
    cause: Option<String>,
}

/// All active suppressions, in the import format. Targets with only counted bounces are left out.
#[utoipa::path(get, path = "/v1/export/suppressions", tag = "import and export", params(ExportSuppressionsParameters), responses((status = 200, content((String = "application/x-ndjson"), (String = "text/csv"))), Failures))]
async fn export_suppressions(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ExportSuppressionsParameters>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let format = export_format(asked.format.as_deref(), &headers)?;
    let ExportSuppressionsParameters { protocol, subscriber, cause, .. } = asked;
    let filter =
        super::suppressions::filter(&app, protocol.as_deref(), subscriber, cause.as_deref(), Some(true), None)?;
    let stream = app.service.export_suppressions(&caller, filter, format)?;
    Ok(exported_answer(stream, format, "suppressions"))
}
