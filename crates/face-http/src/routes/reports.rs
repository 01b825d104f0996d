use std::{sync::Arc, time::Duration};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tocsin_model::{
    definition::parse_duration,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{
    ServiceError,
    reports::{CATALOGUE, Cell, Column, Description, Report, ReportRequest, Table},
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters, Segments},
    responses::{Failures, json},
    wire::{List, Named, attention::AttentionBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(catalogue)).routes(routes!(report)).routes(routes!(attention))
}

/// List the problems that need an operator now, the most urgent first.
#[utoipa::path(get, path = "/v1/attention", tag = "operations", responses((status = 200, body = List<AttentionBody>), Failures))]
async fn attention(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    let found = app.service.attention(&caller).await?;
    let items = found.into_iter().map(AttentionBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Lists the reports with their parameters and columns.
#[utoipa::path(get, path = "/v1/reports", tag = "operations", responses((status = 200, body = List<DescriptionBody>), Failures))]
async fn catalogue(Authorized(_caller): Authorized) -> Result<Response, Failure> {
    let items = CATALOGUE.iter().map(DescriptionBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct QuestionParameters {
    /// The subject: a quantum, a batch or a subscription.
    #[serde(default)]
    id: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by class.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    class: Option<Name>,
    /// Filter by rule.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    rule: Option<Name>,
    /// Filter by channel.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// Filter by source.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    source: Option<Name>,
    /// Only in this state.
    #[serde(default)]
    status: Option<String>,
    /// From this time on; reports with intervals begin at the minute that it is in.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Before this time; reports with intervals end at the end of the minute that it is in.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The length of an interval, such as `1m`, `15m` or `1d`.
    #[serde(default)]
    interval: Option<String>,
    /// The `next` of the answer before.
    #[serde(default)]
    before: Option<String>,
    /// Most rows; 1 to 1,000, default 100.
    #[serde(default)]
    limit: Option<usize>,
}

impl QuestionParameters {
    fn question(self) -> Result<ReportRequest, Failure> {
        let QuestionParameters {
            id, application, class, rule, channel, source, status, from, to, before, limit, ..
        } = self;
        let read = |text: String| -> Result<Duration, ServiceError> {
            parse_duration(&text).map_err(|error| {
                ServiceError::from(
                    Problem::new(Code::InvalidFormat, "interval", error.to_string()).param("format", "duration"),
                )
            })
        };
        let interval = self.interval.map(read).transpose()?;
        Ok(ReportRequest { id, application, class, rule, channel, source, status, from, to, interval, before, limit })
    }
}

/// Runs a report. `GET /v1/reports` lists them.
#[utoipa::path(get, path = "/v1/reports/{name}", tag = "operations", params(("name" = String, Path), QuestionParameters), responses((status = 200, body = ReportBody), Failures))]
async fn report(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
    Parameters(asked): Parameters<QuestionParameters>,
) -> Result<Response, Failure> {
    let found = app.service.report(&caller, &name, &asked.question()?).await?;
    Ok(json(StatusCode::OK, &ReportBody::from(found)))
}

/// Description of a report.
#[derive(Serialize, ToSchema)]
#[schema(as = ReportDescription)]
struct DescriptionBody {
    name: &'static str,
    description: &'static str,
    /// Its parameters.
    parameters: Vec<&'static str>,
    tables: Vec<TableDescriptionBody>,
}

/// A table of a report.
#[derive(Serialize, ToSchema)]
#[schema(as = ReportTableDescription)]
struct TableDescriptionBody {
    name: &'static str,
    columns: Vec<ColumnBody>,
}

/// A column of a table.
#[derive(Serialize, ToSchema)]
#[schema(as = ReportColumn)]
struct ColumnBody {
    name: &'static str,
    description: &'static str,
}

impl From<&Description> for DescriptionBody {
    fn from(found: &Description) -> Self {
        let column = |column: &Column| ColumnBody { name: column.name, description: column.description };
        let tables = found
            .tables
            .iter()
            .map(|(name, columns)| TableDescriptionBody { name, columns: columns.iter().map(column).collect() });
        DescriptionBody {
            name: found.name,
            description: found.description,
            parameters: found.parameters.iter().flat_map(|parameter| parameter.words()).copied().collect(),
            tables: tables.collect(),
        }
    }
}

/// A report: tables whose rows have a value for each column, null where there is none.
#[derive(Serialize, ToSchema)]
#[schema(as = Report)]
struct ReportBody {
    name: &'static str,
    tables: Vec<TableBody>,
    /// The begin of the time that the figures are of, where a report has intervals: a whole minute.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Timestamp>,
    /// Its end.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Timestamp>,
    /// Give this as `before` for more.
    next: Option<String>,
}

/// A table of a report.
#[derive(Serialize, ToSchema)]
#[schema(as = ReportTable)]
struct TableBody {
    name: &'static str,
    /// The names of the columns, in order.
    columns: Vec<&'static str>,
    /// The values by the names of their columns.
    #[schema(value_type = Vec<Object>)]
    rows: Vec<Map<String, Json>>,
}

impl From<Report> for ReportBody {
    fn from(found: Report) -> Self {
        let Report { name, tables, window, next } = found;
        let (from, to) = (window.map(|window| window.0), window.map(|window| window.1));
        ReportBody { name, tables: tables.into_iter().map(TableBody::from).collect(), from, to, next }
    }
}

impl From<Table> for TableBody {
    fn from(table: Table) -> Self {
        let Table { name, columns, rows } = table;
        let row = |row: Vec<Cell>| {
            columns.iter().zip(row).map(|(column, cell)| (column.name.to_owned(), cell_json(cell))).collect()
        };
        TableBody {
            name,
            columns: columns.iter().map(|column| column.name).collect(),
            rows: rows.into_iter().map(row).collect(),
        }
    }
}

fn cell_json(cell: Cell) -> Json {
    match cell {
        Cell::None => Json::Null,
        Cell::Flag(flag) => flag.into(),
        Cell::Count(count) => count.into(),
        Cell::Number(number) => number.into(),
        Cell::Took(took) => (took.as_micros() as f64 / 1_000.0).into(),
        Cell::At(at) => at.to_string().into(),
        Cell::Text(text) => text.into(),
        Cell::Fields(fields) => serde_json::to_value(Named(fields)).expect("values are always JSON"),
    }
}
