//! Time series for charts.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::{
    definition::parse_duration,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};
use tocsin_service::{
    ServiceError,
    series::{Series, SeriesDescription, SeriesQuery, SeriesSet},
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters},
    responses::{Failures, json},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(series)).routes(routes!(names))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SeriesParameters {
    /// Names of series, separated by commas; at most 20.
    #[serde(default)]
    names: String,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by event class for series of events, by notification class for those of notifications.
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
    /// Start of the period; default: an hour before the end.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// End of the period, exclusive; default: now.
    #[serde(default)]
    #[param(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// Length of an interval, such as `10s`, `1m` or `1h`; the default gives at most 400 points.
    #[serde(default)]
    step: Option<String>,
}

/// Values of series by interval, at most 2,000 points each. Sums and durations are kept by minute as long as reports.
/// Gauges, and sums without filters in intervals below a minute, are of the last hour, from samples every 10 seconds
/// since the start of the server.
#[utoipa::path(get, path = "/v1/series", tag = "operations", params(SeriesParameters), responses((status = 200, body = SeriesSetBody), Failures))]
async fn series(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<SeriesParameters>,
) -> Result<Response, Failure> {
    let SeriesParameters { names, application, class, rule, channel, from, to, step } = asked;
    let read = |text: String| {
        parse_duration(&text).map_err(|error| {
            let problem = Problem::new(Code::InvalidFormat, "step", error.to_string()).param("format", "duration");
            ServiceError::from(problem)
        })
    };
    let step = step.map(read).transpose()?;
    let query = SeriesQuery { names, application, class, rule, channel, from, to, step };
    let found = app.service.series(&caller, &query).await?;
    Ok(json(StatusCode::OK, &SeriesSetBody::from(found)))
}

/// Lists the series with their units and filters.
#[utoipa::path(get, path = "/v1/series/names", tag = "operations", responses((status = 200, body = List<SeriesNameBody>), Failures))]
async fn names(State(app): State<Arc<App>>, Authorized(_caller): Authorized) -> Result<Response, Failure> {
    let items = app.service.series_names().iter().map(SeriesNameBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

/// Series over common intervals.
#[derive(Serialize, ToSchema)]
struct SeriesSetBody {
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// Length of an interval, in seconds.
    step: u64,
    /// Starts of the intervals, in seconds since 1970.
    times: Vec<i64>,
    /// In the order of the request.
    series: Vec<SeriesBody>,
}

/// Values by interval.
#[derive(Serialize, ToSchema)]
struct SeriesBody {
    name: String,
    /// `count`, `bytes`, `ms`, `seconds`, `percent` or `factor`.
    unit: &'static str,
    /// `sum`, `duration` or `gauge`.
    kind: &'static str,
    /// Value of each interval; null if it is unknown, or nothing was measured.
    values: Vec<Option<f64>>,
}

impl From<SeriesSet> for SeriesSetBody {
    fn from(set: SeriesSet) -> Self {
        SeriesSetBody {
            times: set.times().map(|time| time.0.div_euclid(1_000_000)).collect(),
            from: set.from,
            to: set.to,
            step: set.step.as_secs(),
            series: set.series.into_iter().map(SeriesBody::from).collect(),
        }
    }
}

impl From<Series> for SeriesBody {
    fn from(Series { description, values }: Series) -> Self {
        let (unit, kind) = (description.unit.word(), description.kind.word());
        SeriesBody { name: description.name.clone(), unit, kind, values }
    }
}

/// Description of a series.
#[derive(Serialize, ToSchema)]
struct SeriesNameBody {
    name: String,
    kind: &'static str,
    unit: &'static str,
    description: String,
    /// Parameters that filter it.
    filters: Vec<&'static str>,
    /// Shortest interval, in seconds.
    step_min: u64,
}

impl From<&SeriesDescription> for SeriesNameBody {
    fn from(found: &SeriesDescription) -> Self {
        SeriesNameBody {
            name: found.name.clone(),
            kind: found.kind.word(),
            unit: found.unit.word(),
            description: found.description.clone(),
            filters: found.filters.to_vec(),
            step_min: found.step_min().as_secs(),
        }
    }
}
