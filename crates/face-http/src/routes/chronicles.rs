use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_model::id::Name;
use tocsin_service::{
    chronicles::{ChronicleEntry, ChronicleStatus},
    page,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters, Segments, id},
    responses::{Failures, json},
    wire::List,
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(entries))
}

/// A chronicle of an event class, and how full it is.
#[derive(Serialize, ToSchema)]
#[schema(as = Chronicle)]
struct ChronicleBody {
    /// The event class.
    class: String,
    /// Its name.
    name: String,
    /// Description of the stored aggregate.
    keeps: String,
    /// The fields of its key; none if it has one entry for all events.
    key: Vec<String>,
    /// Names of its values, such as `high`.
    gives: Vec<&'static str>,
    /// Number of keys.
    keys: usize,
    /// Most keys.
    keys_max: usize,
}

impl From<ChronicleStatus> for ChronicleBody {
    fn from(ChronicleStatus { chronicle, keys }: ChronicleStatus) -> Self {
        ChronicleBody {
            class: chronicle.class.to_string(),
            name: chronicle.name.to_string(),
            keeps: chronicle.keeps,
            key: chronicle.key.iter().map(Name::to_string).collect(),
            gives: chronicle.gives,
            keys,
            keys_max: chronicle.keys_max,
        }
    }
}

/// Present values of a chronicle for one key.
#[derive(Serialize, ToSchema)]
#[schema(as = ChronicleEntry)]
struct EntryBody {
    /// The key, by field.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    key: serde_json::Map<String, serde_json::Value>,
    /// Its values by name, such as `high`; null without a value.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    values: serde_json::Map<String, serde_json::Value>,
}

impl From<ChronicleEntry> for EntryBody {
    fn from(ChronicleEntry { key, values }: ChronicleEntry) -> Self {
        EntryBody { key, values }
    }
}

/// Lists the chronicles (per-key aggregates) of the running version.
#[utoipa::path(get, path = "/v1/applications/{application}/chronicles", tag = "operations", params(("application" = String, Path)), responses((status = 200, body = List<ChronicleBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments(name): Segments<String>,
) -> Result<Response, Failure> {
    let found = app.service.chronicles(&caller, &id::<Name>(&name)?).await?;
    let items = found.into_iter().map(ChronicleBody::from).collect();
    Ok(json(StatusCode::OK, &List { items, next: None }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EntryParameters {
    /// Only this key, as a JSON object of its fields: `{"symbol": "A"}`. A field that is left out is null.
    #[serde(default)]
    key: Option<String>,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
}

/// Lists the present values of a chronicle, for all keys or one.
#[utoipa::path(get, path = "/v1/applications/{application}/chronicles/{class}/{chronicle}", tag = "operations", params(("application" = String, Path), ("class" = String, Path), ("chronicle" = String, Path), EntryParameters), responses((status = 200, body = List<EntryBody>), Failures))]
async fn entries(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Segments((application, class, chronicle)): Segments<(String, String, String)>,
    Parameters(asked): Parameters<EntryParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let (class, chronicle) = (id::<Name>(&class)?, id::<Name>(&chronicle)?);
    let (key, after) = (asked.key.as_deref(), asked.after.as_deref());
    let application = id::<Name>(&application)?;
    let found = app.service.chronicle_entries(&caller, &application, (&class, &chronicle), key, after, limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(EntryBody::from))))
}
