use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tocsin_service::{
    ServiceError,
    endpoints::{self, EndpointFilter},
    page,
};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters},
    responses::{Failures, json},
    wire::{List, endpoints::FailingEndpointBody},
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// Filter by application.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    application: Option<Name>,
    /// Filter by channel.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    channel: Option<Name>,
    /// Only in this state: `failing`, `warned`, `disabled`.
    #[serde(default)]
    state: Option<String>,
}

/// Lists failing and disabled endpoints of devices, by application, channel and address.
#[utoipa::path(get, path = "/v1/endpoints", tag = "operations", params(ListParameters), responses((status = 200, body = List<FailingEndpointBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let read = |word: String| {
        endpoints::State::ALL.into_iter().find(|state| state.word() == word).ok_or_else(|| {
            let problem = Problem::new(Code::UnknownValue, "state", format!("`{word}` is not a state of an endpoint"))
                .param("value", word.to_string());
            ServiceError::Invalid(vec![problem.hint("states are failing, warned, disabled")])
        })
    };
    let state = asked.state.map(read).transpose()?;
    let filter = EndpointFilter { application: asked.application, channel: asked.channel, state };
    let found = app.service.endpoints(&caller, &filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(FailingEndpointBody::from))))
}
