//! The routes: one file for each area, each route with its documentation.

mod applications;
mod audit;
mod chronicles;
mod consent;
mod content;
mod console;
mod drain;
mod events;
mod explain;
mod feedback;
mod backtests;
mod broadcasts;
mod inbox_broadcasts;
mod delayed;
mod firings;
mod inbox;
mod keys;
mod capacity;
mod maintenance;
mod openid;
mod operations;
mod pages;
mod preview;
mod reports;
mod resends;
mod push_keys;
mod receivers;
mod replicas;
mod rows;
mod rules;
mod destinations;
mod mail_senders;
mod directory;
mod endpoints;
mod exchange_checks;
mod exchanges;
mod messages;
mod schedules;
mod search;
mod event_stream; // server-sent events
mod live;
mod searches;
mod series;
mod session;
mod sources;
mod segments;
mod subscribers;
mod sync;
mod subscriptions;
mod suppressions;
mod switches;
mod tracked;
mod transfer;
mod users;
mod unsubscriptions;

use std::sync::Arc;

use axum::{
    Router,
    http::Uri,
    response::{IntoResponse, Response},
};
use utoipa_axum::router::OpenApiRouter;

use crate::{app::App, edge, openapi::base::base, pages as hosted, problems::Failure, scim};

/// All documented routes.
pub(crate) fn documented() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(base())
        .merge(applications::routes())
        .merge(rules::routes())
        .merge(backtests::routes())
        .merge(preview::routes())
        .merge(firings::routes())
        .merge(delayed::routes())
        .merge(events::routes())
        .merge(subscribers::routes())
        .merge(segments::routes())
        .merge(subscriptions::routes())
        .merge(consent::routes())
        .merge(suppressions::routes())
        .merge(feedback::routes())
        .merge(destinations::routes())
        .merge(mail_senders::routes())
        .merge(endpoints::routes())
        .merge(schedules::routes())
        .merge(sources::routes())
        .merge(chronicles::routes())
        .merge(transfer::routes())
        .merge(directory::routes())
        .merge(operations::routes())
        .merge(explain::routes())
        .merge(searches::routes())
        .merge(search::routes())
        .merge(series::routes())
        .merge(live::routes())
        .merge(content::routes())
        .merge(reports::routes())
        .merge(switches::routes())
        .merge(drain::routes())
        .merge(maintenance::routes())
        .merge(capacity::routes())
        .merge(exchanges::routes())
        .merge(exchange_checks::routes())
        .merge(messages::routes())
        .merge(tracked::routes())
        .merge(resends::routes())
        .merge(keys::routes())
        .merge(audit::routes())
        .merge(session::routes())
        .merge(openid::routes())
        .merge(users::routes())
        .merge(inbox::routes())
        .merge(inbox_broadcasts::routes())
        .merge(broadcasts::routes())
        .merge(rows::routes())
        .merge(replicas::routes())
        .merge(sync::routes())
        .merge(push_keys::routes())
        .merge(receivers::routes())
        .merge(unsubscriptions::routes())
        .merge(hosted::confirm::routes())
        .merge(hosted::unsubscribe::routes())
        .merge(hosted::preferences::routes())
        .merge(scim::routes())
        .merge(pages::routes())
}

/// Everything that is served.
pub(crate) fn router(app: Arc<App>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .merge(pages::files())
        .merge(console::files())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // A single layer, since each layer costs every request a copy of the service.
        .layer(axum::middleware::from_fn_with_state(app.clone(), edge::edge))
        .with_state(app)
}

async fn no_route(uri: Uri) -> Response {
    if scim::is_scim_path(uri.path()) {
        scim::no_route(uri.path())
    } else {
        Failure::no_route(uri.path()).into_response()
    }
}

async fn no_method(uri: Uri) -> Response {
    if scim::is_scim_path(uri.path()) { scim::no_method() } else { Failure::method_not_allowed().into_response() }
}
