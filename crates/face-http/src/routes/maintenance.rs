//! Maintenance of the server: backups, restore drills, configuration, examination, log.

use std::{sync::Arc, time::Instant};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tocsin_service::{
    ServiceError, page,
    server_log::{LogLevel, LogQuery},
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, JsonBody, Parameters, Segments, id},
    responses::{Failures, json, located},
    wire::{
        List,
        maintenance::{
            BackupsBody, ConfigurationBody, DrillBody, ExaminationBody, LogBody, NewDrillBody, VerifiedBackupBody,
            drill_id,
        },
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(backups))
        .routes(routes!(verify))
        .routes(routes!(drills, start_drill))
        .routes(routes!(drill))
        .routes(routes!(configuration))
        .routes(routes!(doctor))
        .routes(routes!(log))
}

/// The backups in the data folder, newest first.
#[utoipa::path(get, path = "/v1/backups", tag = "maintenance", responses((status = 200, body = BackupsBody), Failures))]
async fn backups(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let (folder, found) = app.service.backups(&caller).await?;
    Ok(json(StatusCode::OK, &BackupsBody::of(&folder, found)))
}

/// Verifies a backup: reads all its files and compares their checksums. Takes as long as reading them.
#[utoipa::path(post, path = "/v1/backups/{name}/verify", tag = "maintenance", params(("name" = String, Path)), responses((status = 200, body = VerifiedBackupBody), Failures))]
async fn verify(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let name = id::<Name>(&name)?;
    let verified = app.service.verify_backup(&caller, &name).await?;
    Ok(json(StatusCode::OK, &VerifiedBackupBody::of(&name, verified)))
}

/// Starts a restore drill: restores a backup into a temporary folder, examines it, opens it as a server would, and removes
/// it. Without `backup` one is taken first. One drill runs at a time.
#[utoipa::path(post, path = "/v1/restore-drills", tag = "maintenance", request_body = NewDrillBody, responses((status = 202, body = DrillBody), Failures))]
async fn start_drill(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    JsonBody(asked): JsonBody<NewDrillBody>,
) -> Result<Response, Failure> {
    let drill = app.service.start_drill(&caller, asked.backup)?;
    let path = format!("/v1/restore-drills/{}", drill_id(drill.number));
    Ok(located(json(StatusCode::ACCEPTED, &DrillBody::from(drill)), path))
}

/// The restore drills since the start of the server, newest first, at most 20.
#[utoipa::path(get, path = "/v1/restore-drills", tag = "maintenance", responses((status = 200, body = List<DrillBody>), Failures))]
async fn drills(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let items = app.service.restore_drills(&caller)?.into_iter().map(DrillBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// One restore drill.
#[utoipa::path(get, path = "/v1/restore-drills/{id}", tag = "maintenance", params(("id" = String, Path)), responses((status = 200, body = DrillBody), Failures))]
async fn drill(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(text): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.restore_drills(&caller)?.into_iter().find(|drill| drill_id(drill.number) == text);
    let drill = found.ok_or_else(|| ServiceError::Missing(format!("the restore drill `{text}`")))?;
    Ok(json(StatusCode::OK, &DrillBody::from(drill)))
}

/// The effective configuration with the source of each value. Secrets are masked.
#[utoipa::path(get, path = "/v1/configuration", tag = "maintenance", responses((status = 200, body = ConfigurationBody), Failures))]
async fn configuration(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let found = app.service.effective_configuration(&caller)?;
    Ok(json(StatusCode::OK, &ConfigurationBody::from(found)))
}

/// Examines the machine, the data folder and the server, with advice for each finding. Takes some seconds, and writes and
/// removes a test file to measure the disk.
#[utoipa::path(get, path = "/v1/doctor", tag = "maintenance", responses((status = 200, body = ExaminationBody), Failures))]
async fn doctor(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let began = Instant::now();
    let findings = app.service.examine(&caller).await?;
    Ok(json(StatusCode::OK, &ExaminationBody::of(findings, began.elapsed())))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogParameters {
    /// Lowest severity: `error`, `warn`, `info`, `debug` or `trace`; default: all.
    #[serde(default)]
    level: Option<String>,
    /// Text in the message, the module or a field, in any case.
    #[serde(default)]
    contains: Option<String>,
    /// The `last` of the answer before: only lines after it. Default: the newest lines.
    #[serde(default)]
    after: Option<u64>,
    /// Maximum number of lines, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
}

/// The newest lines of the server's log, oldest first, from a ring of 10,000 in memory. Secrets are masked. The level of
/// the log is that of the configuration (`log.level`).
#[utoipa::path(get, path = "/v1/log", tag = "maintenance", params(LogParameters), responses((status = 200, body = LogBody), Failures))]
async fn log(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<LogParameters>,
) -> Result<Response, Failure> {
    let read = |word: &String| {
        let found = LogLevel::ALL.into_iter().find(|level| level.word() == word);
        found.ok_or_else(|| {
            let problem = Problem::new(Code::UnknownValue, "level", format!("`{word}` is not a level"));
            let problem = problem.param("value", word.clone());
            ServiceError::from(problem.hint("levels are `error`, `warn`, `info`, `debug` and `trace`"))
        })
    };
    let level = asked.level.as_ref().map(read).transpose()?;
    let contains = asked.contains.filter(|text| !text.is_empty());
    let query = LogQuery { level, contains, after: asked.after, limit: page::limit(asked.limit)? };
    Ok(json(StatusCode::OK, &LogBody::from(app.service.server_log(&caller, &query)?)))
}
