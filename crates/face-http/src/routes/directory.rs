use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tocsin_directory::{ExportPage, ldap_error::LdapError};
use tocsin_service::{Scope, ServiceError};
use tocsin_store::entries::EntryNumber;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{app::App, problems::Failure, request::Authorized, responses::Failures};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(export))
}

/// The next part of an export.
enum Next {
    Page(ExportPage),
    After(EntryNumber),
    End,
}

/// All entries of the directory as LDIF (RFC 2849), without passwords: in order of creation, subscribers last. Entries that
/// change during the export may be in it as they were before or after.
#[utoipa::path(get, path = "/v1/directory/export", tag = "import and export", responses((status = 200, body = String, content_type = "text/plain"), Failures))]
async fn export(State(app): State<Arc<App>>, Authorized(caller): Authorized) -> Result<Response, Failure> {
    caller.needs_everywhere(Scope::SubscribersRead)?;
    let unavailable = |refusal: LdapError| ServiceError::Unavailable(refusal.message.into());
    let open = app.directory.as_ref().ok_or_else(|| ServiceError::Missing("a directory".to_owned()))?;
    let directory = open().await.map_err(unavailable)?;
    // An error in the first page is still a problem document.
    let first = directory.export_page(None).await.map_err(unavailable)?;
    let pages = stream::try_unfold(Next::Page(first), move |next| {
        let directory = directory.clone();
        async move {
            let page = match next {
                Next::Page(page) => page,
                Next::After(entry) => directory.export_page(Some(entry)).await.map_err(|error| {
                    // The connection is closed, so that the client notices the truncation.
                    tracing::error!(%error, "an export of the directory failed");
                    std::io::Error::other(error.to_string())
                })?,
                Next::End => return Ok::<_, std::io::Error>(None),
            };
            Ok(Some((Bytes::from(page.ldif), page.next.map_or(Next::End, Next::After))))
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"directory.ldif\""),
    ];
    Ok((headers, Body::from_stream(pages)).into_response())
}
