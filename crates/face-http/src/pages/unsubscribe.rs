//! The unsubscribe page of a mail's link, and one-click unsubscription (RFC 8058). Both need no key; the link is the
//! permission.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{RawQuery, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use minijinja::context;
use tocsin_service::{
    ServiceError,
    unsubscribe::{UnsubscribeAction, Unsubscribing},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{form::Form, layout::Page};
use crate::{app::App, problems::Failure, request::Segments, responses::Failures};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show, submit))
}

/// The word of an undo in `action` and `done`.
const UNDO: &str = "undo";

/// Page for ending a subscription. Changes nothing, since mail scanners follow links.
#[utoipa::path(get, path = "/unsubscribe/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From a mail's `List-Unsubscribe`"), ("done" = Option<String>, Query, description = "The change just made"), ("undo" = Option<String>, Query, description = "Token of its undo")), responses((status = 200, body = String, content_type = "text/html"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn show(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Segments(token): Segments<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let leave = match app.service.unsubscribing(&token).await {
        Ok(leave) => leave,
        Err(error) => return Ok(Page::of(&app, &headers, None).failed(error)),
    };
    let query = Form::parse(query.unwrap_or_default().as_bytes());
    let state = PageState {
        done: query.value("done").and_then(known_change),
        undo: query.value("undo").filter(|undo| app.service.is_undo(&leave, undo)).map(str::to_owned),
        status: StatusCode::OK,
        expired: false,
    };
    Ok(page(&app, &headers, &token, &leave, state).await)
}

/// Ends the subscription at once (RFC 8058), or applies the `action` of the page. Idempotent.
#[utoipa::path(post, path = "/unsubscribe/{token}", tag = "pages", security(()), params(("token" = String, Path, description = "From a mail's `List-Unsubscribe`")), responses((status = 200, body = String, content_type = "text/html"), (status = 303, description = "An action of the page was applied"), (status = 403, body = String, content_type = "text/html", description = "The form is not of this page, or too old"), (status = 404, body = String, content_type = "text/html", description = "No link of ours"), Failures))]
async fn submit(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Segments(token): Segments<String>,
    body: Body,
) -> Result<Response, Failure> {
    let leave = match app.service.unsubscribing(&token).await {
        Ok(leave) => leave,
        Err(error) => return Ok(Page::of(&app, &headers, None).failed(error)),
    };
    let failed = |error: ServiceError| Page::of(&app, &headers, application(&leave)).failed(error);
    let form = match Form::read(&app, &headers, body).await {
        Ok(form) => form,
        Err(failure) => return Ok(Page::of(&app, &headers, application(&leave)).refused(failure)),
    };
    let Some(action) = form.value("action") else {
        // One click of a mail program or of the page. RFC 8058: no redirect.
        let undo = match app.service.unsubscribe(&leave).await {
            Ok(undo) => undo,
            Err(error) => return Ok(failed(error)),
        };
        let leave = match app.service.unsubscribing(&token).await {
            Ok(leave) => leave,
            Err(error) => return Ok(failed(error)),
        };
        let done = Some(UnsubscribeAction::This.word());
        let state = PageState { done, undo, status: StatusCode::OK, expired: false };
        return Ok(page(&app, &headers, &token, &leave, state).await);
    };
    if let Err(wait) = app.pages.count_change(&token) {
        return Ok(Page::of(&app, &headers, application(&leave)).too_many(wait));
    }
    if !app.service.is_form(&token, form.value("form").unwrap_or_default()) {
        let state = PageState { done: None, undo: None, status: StatusCode::FORBIDDEN, expired: true };
        return Ok(page(&app, &headers, &token, &leave, state).await);
    }
    let undo = form.value("undo");
    let changed = match (action, UnsubscribeAction::named(action)) {
        (UNDO, _) => {
            let undone = app.service.undo_unsubscription(&leave, undo.unwrap_or_default()).await;
            undone.map(|_| (UNDO, None))
        }
        (_, Some(action)) => {
            let undo = app.service.apply_unsubscribe_action(&leave, action, undo).await;
            undo.map(|undo| (action.word(), undo))
        }
        (_, None) => Err(ServiceError::Missing("this action".to_owned())),
    };
    let page = Page::of(&app, &headers, application(&leave));
    match changed {
        Ok((done, undo)) => {
            let undo = undo.map_or(String::new(), |undo| format!("&undo={undo}"));
            Ok(page.see_other(&format!("/unsubscribe/{token}?done={done}{undo}")))
        }
        Err(error) => Ok(page.failed(error)),
    }
}

/// State of the page beside that of the subscription.
struct PageState {
    /// The change just made.
    done: Option<&'static str>,
    undo: Option<String>,
    status: StatusCode,
    /// Whether a form was too old.
    expired: bool,
}

fn known_change(word: &str) -> Option<&'static str> {
    if word == UNDO { Some(UNDO) } else { UnsubscribeAction::named(word).map(UnsubscribeAction::word) }
}

fn application(leave: &Unsubscribing) -> Option<&tocsin_model::id::Name> {
    leave.of().map(|(application, _)| application)
}

async fn page(app: &App, headers: &HeaderMap, token: &str, leave: &Unsubscribing, state: PageState) -> Response {
    let page = Page::of(app, headers, application(leave));
    let view = match app.service.unsubscribe_view(leave).await {
        Ok(view) => view,
        Err(error) => return page.failed(error),
    };
    let Some(view) = view else {
        return page.message(StatusCode::OK, "unsubscribe.done.title", "unsubscribe.gone");
    };
    let (title, description) = page.titles(&view.texts, &view.title, None);
    let PageState { done, undo, status, expired } = state;
    // The notice of a change that was undone elsewhere in the meantime would be wrong.
    let done = done.filter(|done| *done != UnsubscribeAction::This.word() || !view.active);
    let variables = context! {
        title,
        description,
        application => view.application,
        active => view.active,
        digest => view.digest,
        only_critical => view.only_critical,
        paused_until => view.paused_until.map(|end| page.date(end, None)),
        done,
        undo,
        expired,
        form => app.service.form_token(token),
    };
    page.response(status, "unsubscribe.html", variables)
}
