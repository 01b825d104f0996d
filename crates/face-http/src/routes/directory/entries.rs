//! Entries: search, read, store, change, rename, remove, passwords.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use tocsin_directory::{
    ChildCount, Modification, ModifyType, Preconditions, ReadEntries, Scope, Selection,
    access::Grants,
    entry::Entry,
    filter::Filter,
    ldap_error::{Code, LdapError},
};
use tocsin_model::problem::{self, Problem};
use tocsin_service::{ServiceError, page};
use tocsin_store::entries::EntryNumber;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::client::DirectoryClient;
use crate::{
    app::App,
    problems::{Failure, MALFORMED_QUERY},
    request::{Condition, JsonBody, MergePatch, Parameters, Segments},
    responses::{Failures, json, located, segment, tagged},
    wire::directory::{
        DryRunBody, EntriesBody, EntryBody, EntryDraftBody, EntryPatchBody, PasswordBody, PasswordSetBody, RenameBody,
        draft_of, patch_of,
    },
};

/// Maximum number of entries that one page examines.
const EXAMINED_MAX: usize = 50_000;
/// Time after which a page ends.
const PAGE_TIME_MAX: Duration = Duration::from_secs(1);
/// Bytes of entries after which a page ends.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Up to this number children are counted.
const CHILDREN_MAX: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(read, replace, change, remove))
        .routes(routes!(rename))
        .routes(routes!(set_password))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchParameters {
    /// Distinguished name of the entry at which the search begins; default: the suffix, or the container of a limited key.
    #[serde(default)]
    base: Option<String>,
    /// `base`: the base alone; `one`: its direct children; `subtree`: the base and all entries below it (default).
    #[serde(default)]
    scope: Option<String>,
    /// Filter of RFC 4515, such as `(&(objectClass=person)(cn=a*))`; default: all entries.
    #[serde(default)]
    filter: Option<String>,
    /// Attributes, with commas between: `*` all user attributes (default), `+` all operational ones, `1.1` none, names
    /// such as `memberOf`.
    #[serde(default)]
    attributes: Option<String>,
    /// Whether direct children are counted.
    #[serde(default)]
    children: bool,
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// The `next` of the page before.
    #[serde(default)]
    after: Option<String>,
}

fn names(text: Option<&str>) -> Vec<String> {
    let names = text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

pub(super) fn scope(text: Option<&str>) -> Result<Scope, ServiceError> {
    match text {
        Some("base") => Ok(Scope::Base),
        Some("one") => Ok(Scope::One),
        None | Some("subtree" | "sub") => Ok(Scope::Subtree),
        Some(other) => {
            let problem = Problem::new(problem::Code::UnknownValue, "scope", format!("`{other}` is not a scope"));
            Err(problem.param("value", other.to_owned()).hint("scopes are `base`, `one` and `subtree`").into())
        }
    }
}

pub(super) fn filter(text: Option<&str>) -> Result<Filter, ServiceError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(Filter::Present("objectClass".to_owned())) };
    let wrong = |why| Problem::new(problem::Code::InvalidSyntax, "filter", why).param("language", "ldap");
    Ok(Filter::parse(text).map_err(wrong)?)
}

/// Searches the directory, in order of creation, subscribers last. A page examines at most 50,000 entries for a second:
/// one that is not full may have a `next`.
#[utoipa::path(get, path = "/v1/directory/entries", tag = "directory", params(SearchParameters), responses((status = 200, body = EntriesBody), Failures))]
async fn list(client: DirectoryClient, Parameters(asked): Parameters<SearchParameters>) -> Result<Response, Failure> {
    let DirectoryClient { directory, requester, .. } = client.reading()?;
    let (limit, scope, filter) =
        (page::limit(asked.limit)?, scope(asked.scope.as_deref())?, filter(asked.filter.as_deref())?);
    let after = asked.after.as_deref().map(cursor).transpose()?;
    let base = asked.base.as_deref().filter(|base| !base.is_empty());
    let base = base.or(requester.within.first().map(String::as_str)).unwrap_or(directory.suffix());
    let base = directory.find_for(&requester, base).await.map_err(|error| Failure::of_directory("base", error))?;
    let schema = directory.schema();
    let selection = Selection::read(&names(asked.attributes.as_deref()), false, &schema);
    let mut search = directory.search(&requester, base, scope, &filter).await?;
    search.in_scan_order();
    if let Some(after) = after {
        search.skip_to(after);
    }
    let (mut grants, began) = (Grants::default(), Instant::now());
    let (mut found, mut bytes, mut last, mut next) = (Vec::new(), 0, None, None);
    'pages: while let Some(page) = search.next().await? {
        for shown in page {
            let grant = grants.of(directory.access(), &requester, &shown.entry);
            if grant.may_disclose() && search.is_met_by_async(&shown, &grant).await? {
                if found.len() == limit || bytes > PAGE_BYTES_MAX {
                    next = last;
                    break 'pages;
                }
                bytes += shown.bytes();
                found.push((shown.clone(), grant));
            }
            last = Some(shown.entry.number);
        }
        if search.scanned() >= EXAMINED_MAX || began.elapsed() > PAGE_TIME_MAX {
            next = last;
            break;
        }
    }
    let mut counts: Vec<Option<ChildCount>> = vec![None; found.len()];
    if asked.children {
        let numbers = found.iter().map(|(shown, _)| shown.entry.number).collect();
        counts = directory.count_children(numbers, CHILDREN_MAX).await?.into_iter().map(Some).collect();
    }
    let mut items = Vec::with_capacity(found.len());
    for ((shown, grant), count) in found.into_iter().zip(counts) {
        let computed = directory.computed_attributes(&requester, &shown.entry, &selection).await?;
        let attributes = selection.of(&shown.entry, computed, &grant, &schema);
        items.push(EntryBody::of(&shown.entry, attributes, count));
    }
    let next = next.map(Entry::uuid_of);
    Ok(json(StatusCode::OK, &EntriesBody { items, next, scanned: search.scanned() }))
}

fn cursor(text: &str) -> Result<EntryNumber, Failure> {
    Entry::number_of(text)
        .ok_or_else(|| Failure::new(MALFORMED_QUERY, format!("`{text}` is not the `next` of a page of entries")))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EntryParameters {
    /// Attributes, with commas between: `*` all user attributes (default), `+` all operational ones, `1.1` none, names
    /// such as `memberOf`.
    #[serde(default)]
    attributes: Option<String>,
}

/// One entry, by its distinguished name. Its tag is its revision.
#[utoipa::path(get, path = "/v1/directory/entries/{dn}", tag = "directory", params(("dn" = String, Path), EntryParameters), responses((status = 200, body = EntryBody), Failures))]
async fn read(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    Parameters(asked): Parameters<EntryParameters>,
) -> Result<Response, Failure> {
    let client = client.reading()?;
    let shown = client.directory.find_for(&client.requester, &dn).await?;
    shown_entry(&client, StatusCode::OK, &shown.entry, asked.attributes.as_deref()).await
}

/// An entry as returned, with its tag.
async fn shown_entry(
    client: &DirectoryClient,
    status: StatusCode,
    entry: &Entry,
    attributes: Option<&str>,
) -> Result<Response, Failure> {
    let (directory, requester, schema) = (&client.directory, &client.requester, client.directory.schema());
    let selection = Selection::read(&names(attributes), false, &schema);
    let grant = directory.access().grant(requester, entry);
    let computed = directory.computed_attributes(requester, entry, &selection).await?;
    let count = directory.count_children(vec![entry.number], CHILDREN_MAX).await?.pop();
    let body = EntryBody::of(entry, selection.of(entry, computed, &grant, &schema), count);
    Ok(tagged(status, entry.revision, &body))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DryRunParameters {
    /// Whether the change is only checked.
    #[serde(default)]
    dry_run: bool,
}

/// The condition of a change; `dn`: the entry.
async fn condition(client: &DirectoryClient, headers: &HeaderMap, dn: &str) -> Result<Condition, Failure> {
    let present = async {
        let found = client.directory.find_for(&client.requester, dn).await;
        found.map(|shown| shown.entry.revision).map_err(Failure::from)
    };
    Condition::of(headers, present).await
}

/// The preconditions of a change of an existing entry.
async fn terms(
    client: &DirectoryClient,
    headers: &HeaderMap,
    dn: &str,
    asked: &DryRunParameters,
) -> Result<Preconditions, Failure> {
    let revision = match condition(client, headers, dn).await? {
        Condition::None | Condition::Exists => None,
        Condition::Revision(revision) => Some(revision),
        Condition::Absent => return Err(Failure::precondition("the entry exists")),
    };
    Ok(Preconditions { after: true, revision, dry_run: asked.dry_run, ..Preconditions::default() })
}

/// The answer to a change: the entry, or the result of a dry run.
async fn changed(
    client: &DirectoryClient,
    images: ReadEntries,
    terms: &Preconditions,
    is_new: bool,
) -> Result<Response, Failure> {
    if terms.dry_run {
        return Ok(json(StatusCode::OK, &DryRunBody { dry_run: true, created: is_new }));
    }
    let removed = || LdapError::new(Code::NoSuchObject, "the entry was removed by another request");
    let shown = images.after.ok_or_else(removed)?;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    let response = shown_entry(client, status, &shown.entry, None).await?;
    let path = format!("/v1/directory/entries/{}", segment(&shown.entry.dn));
    Ok(if is_new { located(response, path) } else { response })
}

/// Stores an entry as a whole, whether there is one or not. User attributes that are left out are removed, except the
/// password. With `dry_run=true` the change is only checked.
#[utoipa::path(put, path = "/v1/directory/entries/{dn}", tag = "directory", params(("dn" = String, Path), DryRunParameters, ("If-Match" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)), request_body = EntryDraftBody, responses((status = 200, body = EntryBody), (status = 201, body = EntryBody), Failures))]
async fn replace(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    Parameters(asked): Parameters<DryRunParameters>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<serde_json::Value>,
) -> Result<Response, Failure> {
    let client = client.writing()?;
    let attributes = draft_of(&body)?;
    let condition = condition(&client, &headers, &dn).await?;
    let mut terms = Preconditions { after: true, dry_run: asked.dry_run, ..Preconditions::default() };
    let (directory, requester) = (&client.directory, &client.requester);
    let mut is_new = match condition {
        Condition::Absent => true,
        Condition::Exists => false,
        Condition::Revision(revision) => {
            terms.revision = Some(revision);
            false
        }
        Condition::None => match directory.find_for(requester, &dn).await {
            Ok(_) => false,
            Err(error) if error.code == Code::NoSuchObject => true,
            Err(error) => return Err(error.into()),
        },
    };
    loop {
        let done = match is_new {
            true => directory.add(requester, &dn, attributes.clone(), terms.clone()).await,
            false => directory.replace(requester, &dn, attributes.clone(), terms.clone()).await,
        };
        match (done, condition) {
            (Ok(images), _) => return changed(&client, images, &terms, is_new).await,
            // Another request was faster.
            (Err(error), Condition::None) if is_new && error.code == Code::EntryAlreadyExists => is_new = false,
            (Err(error), Condition::Absent) if error.code == Code::EntryAlreadyExists => {
                return Err(Failure::precondition("the entry exists"));
            }
            (Err(error), Condition::Exists | Condition::Revision(_)) if error.code == Code::NoSuchObject => {
                return Err(Failure::precondition("the entry does not exist"));
            }
            (Err(error), _) => return Err(Failure::of_directory("attributes", error)),
        }
    }
}

/// Changes attributes of an entry: `attributes` replaces values, `modifications` are those of LDAP. All of them are
/// carried out, or none. With `dry_run=true` the change is only checked.
#[utoipa::path(patch, path = "/v1/directory/entries/{dn}", tag = "directory", params(("dn" = String, Path), DryRunParameters, ("If-Match" = Option<String>, Header)), request_body(content = EntryPatchBody, content_type = "application/merge-patch+json"), responses((status = 200, body = EntryBody), Failures))]
async fn change(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    Parameters(asked): Parameters<DryRunParameters>,
    headers: HeaderMap,
    MergePatch(body): MergePatch,
) -> Result<Response, Failure> {
    let client = client.writing()?;
    let modifications = patch_of(&body)?;
    let terms = terms(&client, &headers, &dn, &asked).await?;
    let done = client.directory.modify(&client.requester, &dn, modifications, terms.clone()).await;
    let images = done.map_err(|error| Failure::of_directory("attributes", error))?;
    changed(&client, images, &terms, false).await
}

/// Removes an entry without children; a subscriber with its devices and subscriptions. It also leaves its groups. With
/// `dry_run=true` the change is only checked.
#[utoipa::path(delete, path = "/v1/directory/entries/{dn}", tag = "directory", params(("dn" = String, Path), DryRunParameters, ("If-Match" = Option<String>, Header)), responses((status = 204), (status = 200, body = DryRunBody), Failures))]
async fn remove(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    Parameters(asked): Parameters<DryRunParameters>,
    request: Request,
) -> Result<Response, Failure> {
    let client = client.writing()?;
    let terms = terms(&client, request.headers(), &dn, &asked).await?;
    client.directory.remove(&client.requester, &dn, terms.clone()).await?;
    Ok(match terms.dry_run {
        true => json(StatusCode::OK, &DryRunBody { dry_run: true, created: false }),
        false => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Renames or moves an entry with all entries below it. Groups that name it are updated. With `dry_run=true` the change
/// is only checked.
#[utoipa::path(post, path = "/v1/directory/entries/{dn}/rename", tag = "directory", params(("dn" = String, Path), DryRunParameters, ("If-Match" = Option<String>, Header)), request_body = RenameBody, responses((status = 200, body = EntryBody), Failures))]
async fn rename(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    Parameters(asked): Parameters<DryRunParameters>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<RenameBody>,
) -> Result<Response, Failure> {
    let client = client.writing()?;
    let terms = terms(&client, &headers, &dn, &asked).await?;
    let (parent, delete_old) = (body.parent.as_deref(), body.delete_old.unwrap_or(true));
    let done = client.directory.rename(&client.requester, &dn, &body.rdn, delete_old, parent, terms.clone()).await;
    let images = done.map_err(|error| Failure::of_directory("rdn", error))?;
    changed(&client, images, &terms, false).await
}

/// Sets the password of an entry, as an administrator. Without a password in the body the server generates one.
#[utoipa::path(post, path = "/v1/directory/entries/{dn}/password", tag = "directory", params(("dn" = String, Path)), request_body = PasswordBody, responses((status = 200, body = PasswordSetBody), Failures))]
async fn set_password(
    client: DirectoryClient,
    Segments(dn): Segments<String>,
    JsonBody(body): JsonBody<PasswordBody>,
) -> Result<Response, Failure> {
    let DirectoryClient { directory, requester, .. } = client.writing()?;
    let generated = match body.password {
        None => Some(directory.generate_password(&dn)?),
        Some(_) => None,
    };
    let password = body.password.or(generated.clone()).unwrap_or_default();
    let replace = |attribute: &str, value: &str| Modification {
        act: ModifyType::Replace,
        attribute: attribute.to_owned(),
        values: vec![value.as_bytes().to_vec()],
    };
    let mut modifications = vec![replace("userPassword", &password)];
    if let Some(must_change) = body.must_change {
        modifications.push(replace("pwdReset", if must_change { "TRUE" } else { "FALSE" }));
    }
    let done = directory.modify(&requester, &dn, modifications, Preconditions::default()).await;
    done.map_err(|error| Failure::of_directory("password", error))?;
    let mut response = json(StatusCode::OK, &PasswordSetBody { password: generated });
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
