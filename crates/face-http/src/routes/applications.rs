use std::{collections::BTreeSet, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_model::id::Name;
use tocsin_service::{
    Page, ServiceError,
    applications::{ApplyOptions, Expected},
};
use tocsin_store::records::ApplicationVersion;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::{CONFIRMATION_REQUIRED, Failure, MALFORMED_BODY},
    request::{
        Authorized, Condition, Parameters, SINGLE_BYTES_MAX, Segments, WholeListParameters, id, media_type, parts,
        take_body,
    },
    responses::{Failures, json, located, tagged},
    wire::{ApplicationBody, AppliedBody, ChannelProbeBody, CheckedBody, List, RematchedBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(check))
        .routes(routes!(read, apply, remove))
        .routes(routes!(history))
        .routes(routes!(rematch))
        .routes(routes!(probe))
}

const YAML: [&str; 4] = ["application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"];

pub(super) async fn yaml(app: &App, request: Request) -> Result<String, Failure> {
    let (headers, body) = parts(request);
    let given = media_type(&headers);
    if !YAML.contains(&given.as_str()) {
        return Err(Failure::unsupported(&given, &YAML));
    }
    let taken = take_body(app, &headers, body, SINGLE_BYTES_MAX).await?;
    String::from_utf8(taken.bytes.into()).map_err(|_| Failure::new(MALFORMED_BODY, "the definition is not UTF-8"))
}

/// The version that an apply expects; `present` returns the current one.
pub(super) async fn expected_version(
    headers: &HeaderMap,
    present: impl Future<Output = Result<u64, ServiceError>>,
) -> Result<Expected, Failure> {
    Ok(match Condition::of(headers, present).await? {
        Condition::None => Expected::Any,
        Condition::Exists => Expected::Some,
        Condition::Absent => Expected::Version(0),
        Condition::Revision(version) => Expected::Version(u32::try_from(version).unwrap_or(u32::MAX)),
    })
}

/// The applications, by name.
#[utoipa::path(get, path = "/v1/applications", tag = "applications", params(WholeListParameters), responses((status = 200, body = List<ApplicationBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<WholeListParameters>,
) -> Result<Response, Failure> {
    let found = app.service.applications(&caller).await?;
    let page = Page::of_whole(found, asked.after.as_deref(), asked.limit, |(stored, _)| stored.name.to_string())?;
    let page = page.map(|(stored, running)| {
        let author_name = app.service.key_name(&stored.author);
        ApplicationBody::new(stored, running.as_deref(), author_name, false)
    });
    Ok(json(StatusCode::OK, &List::from(page)))
}

/// One application, with its definition. Its tag is its version.
#[utoipa::path(get, path = "/v1/applications/{application}", tag = "applications", params(("application" = String, Path)), responses((status = 200, body = ApplicationBody), Failures))]
async fn read(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let (stored, running) = app.service.application(&caller, &id::<Name>(&name)?).await?;
    let (version, author_name) = (stored.version, app.service.key_name(&stored.author));
    Ok(tagged(StatusCode::OK, version.into(), &ApplicationBody::new(stored, running.as_deref(), author_name, true)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ApplyParameters {
    /// Dry run: only report what would happen.
    #[serde(default)]
    #[param(required = false)]
    dry_run: bool,
    /// Names of objects that may be dropped, separated by commas.
    #[serde(default)]
    #[param(required = false)]
    allow_drop: String,
}

/// Applies a definition. The same text again changes nothing. A change that would drop stored data is refused (409
/// `would-drop-data`) unless each object is allowed by name.
#[utoipa::path(put, path = "/v1/applications/{application}", tag = "applications", params(("application" = String, Path), ApplyParameters), request_body(content = String, content_type = "application/yaml"), responses((status = 200, body = AppliedBody, description = "It runs, or would run"), (status = 201, body = AppliedBody, description = "It is new and runs"), Failures))]
async fn apply(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(parameters): Parameters<ApplyParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let expected = expected_version(request.headers(), app.service.application_version(&caller, &name)).await?;
    let text = yaml(&app, request).await?;
    let allow_drops: BTreeSet<String> =
        parameters.allow_drop.split(',').map(str::trim).filter(|path| !path.is_empty()).map(str::to_owned).collect();
    let options = ApplyOptions { dry_run: parameters.dry_run, allow_drops, expected };
    let applied = app.service.apply(&caller, &name, text, options).await?;
    let (version, created) = (applied.version, applied.created && !parameters.dry_run);
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let response = tagged(status, version.into(), &AppliedBody::from(applied));
    Ok(if created { located(response, format!("/v1/applications/{name}")) } else { response })
}

/// Checks a definition and reports all its problems and changes, without applying it.
#[utoipa::path(post, path = "/v1/applications/check", tag = "applications", request_body(content = String, content_type = "application/yaml"), responses((status = 200, body = CheckedBody), Failures))]
async fn check(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    request: Request,
) -> Result<Response, Failure> {
    let text = yaml(&app, request).await?;
    let checked = app.service.check_application(&caller, text).await?;
    Ok(json(StatusCode::OK, &CheckedBody::from(checked)))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveParameters {
    /// The application's name once more.
    #[serde(default)]
    confirm: String,
}

/// Removes an application with its subscriptions. Its history stays.
#[utoipa::path(delete, path = "/v1/applications/{application}", tag = "applications", params(("application" = String, Path), RemoveParameters), responses((status = 204), Failures))]
async fn remove(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(parameters): Parameters<RemoveParameters>,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    if parameters.confirm != name.as_str() {
        let detail = format!("this removes `{name}` and its subscriptions; to go on, add `?confirm={name}`");
        return Err(Failure::new(CONFIRMATION_REQUIRED, detail));
    }
    app.service.remove_application(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// All versions, newest first. They stay when the application is removed.
#[utoipa::path(get, path = "/v1/applications/{application}/history", tag = "applications", params(("application" = String, Path), WholeListParameters), responses((status = 200, body = List<ApplicationBody>), Failures))]
async fn history(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<WholeListParameters>,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let (versions, running) = app.service.application_history(&caller, &name).await?;
    let newest_first = |stored: &ApplicationVersion| format!("{:010}", u32::MAX - stored.version);
    let page = Page::of_whole(versions, asked.after.as_deref(), asked.limit, newest_first)?;
    let page = page.map(|stored| {
        let author_name = app.service.key_name(&stored.author);
        ApplicationBody::new(stored, running.as_deref(), author_name, true)
    });
    Ok(json(StatusCode::OK, &List::from(page)))
}

/// Sends failed event batches to be matched again.
#[utoipa::path(post, path = "/v1/applications/{application}/rematch", tag = "operations", params(("application" = String, Path)), responses((status = 200, body = RematchedBody), Failures))]
async fn rematch(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let batches = app.service.rematch(&caller, &id::<Name>(&name)?).await?;
    Ok(json(StatusCode::OK, &RematchedBody { batches }))
}

/// Probes every channel.
#[utoipa::path(post, path = "/v1/applications/{application}/channels/probe", tag = "operations", params(("application" = String, Path)), responses((status = 200, body = Vec<ChannelProbeBody>), Failures))]
async fn probe(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let probes = app.service.probe_channels(&caller, &id::<Name>(&name)?).await?;
    let body = |(channel, answer): (Name, Result<String, String>)| {
        let ok = answer.is_ok();
        let (Ok(text) | Err(text)) = answer;
        ChannelProbeBody { channel: channel.to_string(), ok, text }
    };
    Ok(json(StatusCode::OK, &probes.into_iter().map(body).collect::<Vec<_>>()))
}
