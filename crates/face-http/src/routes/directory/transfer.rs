//! Import and export of entries as LDIF (RFC 2849).

use std::{io::Cursor, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Deserialize;
use tocsin_directory::{ExportPage, ldap_error::LdapError, ldif::LdifError};
use tocsin_model::problem::{Code, Problem};
use tocsin_service::{Scope, ServiceError};
use tocsin_store::{audit::inherit, entries::EntryNumber};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::client::DirectoryClient;
use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, BATCH_BYTES_MAX, Parameters, media_type, parts, take_body},
    responses::{Failures, json},
    wire::directory::DirectoryImportedBody,
};

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(export)).routes(routes!(import))
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

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ImportParameters {
    /// Whether the records are only checked. A record about an entry that the same file adds or removes is checked for
    /// its form and, if it adds an entry, against the schema.
    #[serde(default)]
    dry_run: bool,
}

/// Carries out the records of an LDIF file (RFC 2849) of at most 64 MiB, each in its own commit. Entries that exist stay
/// unchanged. A failed record is reported and stops no other. An import runs to its end if the client disconnects; one
/// runs at a time.
#[utoipa::path(post, path = "/v1/directory/import", tag = "import and export", params(ImportParameters), request_body(content = String, content_type = "text/plain"), responses((status = 200, body = DirectoryImportedBody), Failures))]
async fn import(
    State(app): State<Arc<App>>,
    client: DirectoryClient,
    Parameters(asked): Parameters<ImportParameters>,
    request: Request,
) -> Result<Response, Failure> {
    const MEDIA_TYPES: [&str; 3] = ["text/plain", "text/ldif", "application/ldif"];
    client.caller.needs_everywhere(Scope::SubscribersWrite)?;
    let (headers, body) = parts(request);
    let given = media_type(&headers);
    if !MEDIA_TYPES.contains(&given.as_str()) {
        return Err(Failure::unsupported(&given, &MEDIA_TYPES));
    }
    let running = app.directory_imports.clone().try_acquire_owned().map_err(|_| ServiceError::TooMany {
        reason: "another import of the directory is running".to_owned(),
        retry_after: Duration::from_secs(5),
    })?;
    let taken = take_body(&app, &headers, body, BATCH_BYTES_MAX).await?;
    let (directory, dry_run) = (client.directory, asked.dry_run);
    let work = tokio::spawn(inherit(async move {
        let _running = running;
        let (input, _room) = (Cursor::new(taken.bytes), taken.room);
        match dry_run {
            true => directory.check_import(input).await,
            false => directory.import(input, &mut |_| {}).await,
        }
    }));
    let imported = work.await.map_err(|_| Failure::internal())?.map_err(|error| {
        let problem = Problem::new(Code::InvalidSyntax, "", error.to_string()).param("language", "ldif");
        match error {
            LdifError::Reading(_) => Failure::internal(),
            _ => ServiceError::from(problem).into(),
        }
    })?;
    tracing::info!(by = client.caller.key(), dry_run, records = imported.done, "imported LDIF");
    Ok(json(StatusCode::OK, &DirectoryImportedBody::of(imported, dry_run)))
}
