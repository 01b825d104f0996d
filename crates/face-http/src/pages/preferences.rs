//! The preference page of a subscriber. It needs no key; the signed link is the permission.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use tocsin_service::{
    ServiceError,
    preference_page::{PreferenceAction, PreferenceOwner},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    form::Form,
    layout::Page,
    preference_form::{self, Entered, Notice},
};
use crate::{app::App, problems::Failure, request::Segments, responses::Failures};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show, submit))
}

/// The preference page. Changes nothing, since mail scanners follow links.
#[utoipa::path(get, path = "/p/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From `preferences_link` of a template"), ("done" = Option<String>, Query, description = "The change just made")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "The link is invalid or has expired"), Failures))]
async fn show(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Segments(token): Segments<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let page = Page::of(&app, &headers, None);
    let owner = match app.service.open_preferences(&token).await {
        Ok(owner) => owner,
        Err(error) => return Ok(page.failed(error)),
    };
    let query = Form::parse(query.unwrap_or_default().as_bytes());
    let done = query.value("done").filter(|done| page.has_text(&format!("preferences.done.{done}")));
    let notice = done.map_or(Notice::None, |done| Notice::Done(done.to_owned()));
    Ok(render(&app, &page, &token, &owner, None, notice, StatusCode::OK).await)
}

/// Changes preferences by the form or an `action` of the page.
#[utoipa::path(post, path = "/p/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From `preferences_link` of a template")), responses((status = 303, description = "Changed"), (status = 403, body = String, content_type = "text/html", description = "The form is not of this page, or too old"), (status = 404, body = String, content_type = "text/html", description = "The link is invalid or has expired"), (status = 409, body = String, content_type = "text/html", description = "The preferences were changed in the meantime"), (status = 422, body = String, content_type = "text/html", description = "A field is invalid"), Failures))]
async fn submit(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Segments(token): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let page = Page::of(&app, &headers, None);
    let owner = match app.service.open_preferences(&token).await {
        Ok(owner) => owner,
        Err(error) => return Ok(page.failed(error)),
    };
    if let Err(wait) = app.pages.count_change(&token) {
        return Ok(page.too_many(wait));
    }
    let form = match Form::read(&app, &headers, body).await {
        Ok(form) => form,
        Err(failure) => return Ok(page.refused(failure)),
    };
    let is_ours = app.service.is_form(&token, form.value("form").unwrap_or_default());
    let action = form.value("action").unwrap_or_default();
    let done = match action {
        "save" => {
            let entered = Entered::of(&form);
            if !is_ours {
                let status = StatusCode::FORBIDDEN;
                return Ok(render(&app, &page, &token, &owner, Some(entered), Notice::Expired, status).await);
            }
            let change = match entered.change() {
                Ok(change) => change,
                Err(fields) => {
                    let (notice, status) = (Notice::Invalid(fields), StatusCode::UNPROCESSABLE_ENTITY);
                    return Ok(render(&app, &page, &token, &owner, Some(entered), notice, status).await);
                }
            };
            match app.service.change_preferences(&owner, change, entered.revision).await {
                Ok(()) => "save",
                Err(ServiceError::Invalid(problems)) => {
                    let fields = problems.into_iter().map(|problem| problem.path).collect();
                    let (notice, status) = (Notice::Invalid(fields), StatusCode::UNPROCESSABLE_ENTITY);
                    return Ok(render(&app, &page, &token, &owner, Some(entered), notice, status).await);
                }
                Err(ServiceError::Changed(_)) => {
                    let status = StatusCode::CONFLICT;
                    return Ok(render(&app, &page, &token, &owner, Some(entered), Notice::Changed, status).await);
                }
                Err(error) => return Ok(page.failed(error)),
            }
        }
        _ if !is_ours => {
            let status = StatusCode::FORBIDDEN;
            return Ok(render(&app, &page, &token, &owner, None, Notice::Expired, status).await);
        }
        "remove_device" => {
            let device = form.value("device").and_then(|name| name.parse().ok());
            let Some(device) = device else { return Ok(page.unknown_link()) };
            match app.service.remove_shown_device(&owner, &device).await {
                Ok(()) => "remove_device",
                Err(error) => return Ok(page.failed(error)),
            }
        }
        word => {
            let Some(action) = PreferenceAction::named(word) else { return Ok(page.unknown_link()) };
            match app.service.apply_preference_action(&owner, action).await {
                Ok(()) => action.word(),
                Err(error) => return Ok(page.failed(error)),
            }
        }
    };
    Ok(page.see_other(&format!("/p/{token}?done={done}")))
}

/// The page, with what a refused form contained.
async fn render(
    app: &App,
    page: &Page,
    token: &str,
    owner: &PreferenceOwner,
    entered: Option<Entered>,
    notice: Notice,
    status: StatusCode,
) -> Response {
    let view = match app.service.preference_view(owner).await {
        Ok(view) => view,
        Err(error) => return page.failed(error),
    };
    let form = app.service.form_token(token);
    let variables = preference_form::variables(page, &app.pages, &view, entered.as_ref(), &notice, &form);
    page.response(status, "preferences.html", variables)
}
