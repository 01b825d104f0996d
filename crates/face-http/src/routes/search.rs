use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{extract::State, http::StatusCode, response::Response};
use serde::{Deserialize, Serialize};
use tocsin_directory::{
    Directory, Scope as EntryScope,
    access::{AuthzId, Grants},
    filter::Filter,
    ldap_error::LdapError,
};
use tocsin_service::{
    Caller, Scope,
    search::{HITS_MAX, Hit, Hits, segment},
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters},
    responses::{Failures, json},
};

/// Attributes by which entries are found, where they are indexed.
const NAMES: [&str; 5] = ["cn", "uid", "ou", "mail", "displayName"];
/// Maximum number of entries that a search examines.
const EXAMINED_MAX: usize = 2_000;
/// Time after which a search of entries ends.
const TIME_MAX: Duration = Duration::from_millis(50);

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(search))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchParameters {
    /// An id, such as `n-3-41`; the beginning of a name or of a subscriber id; a whole address or distinguished name.
    q: String,
}

/// Objects by id, name or address, at most 20 of a kind. Only those that the caller may read are found; each kind is
/// answered by an index.
#[utoipa::path(get, path = "/v1/search", tag = "operations", params(SearchParameters), responses((status = 200, body = HitsBody), Failures))]
async fn search(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(SearchParameters { q }): Parameters<SearchParameters>,
) -> Result<Response, Failure> {
    let text = q.trim();
    let mut hits = app.service.search(&caller, text).await?;
    find_devices(&app, &caller, text, &mut hits);
    if let (Some(directory), Ok(())) = (&app.entries, caller.needs_everywhere(Scope::SubscribersRead)) {
        let found = find_entries(directory, &caller, text, &mut hits).await;
        found.map_err(|error| Failure::of_directory("q", error))?;
    }
    Ok(json(StatusCode::OK, &HitsBody::from(hits)))
}

/// A device with a replica, by its whole id.
fn find_devices(app: &App, caller: &Caller, text: &str, hits: &mut Hits) {
    let (Some(sync), true) = (&app.sync, text.starts_with("d-")) else { return };
    if caller.needs_everywhere(Scope::SyncRead).is_err() {
        return;
    }
    let found = sync.all_devices().into_iter().filter(|device| &*device.id == text);
    hits.add(found.map(|device| Hit {
        kind: "sync_device",
        id: device.id.to_string(),
        title: format!("{} of {}", device.name, device.subscriber),
        within: Some(device.application.to_string()),
        link: "/v1/sync/devices".to_owned(),
    }));
}

/// Entries by distinguished name, or by the beginning of a name.
async fn find_entries(directory: &Directory, caller: &Caller, text: &str, hits: &mut Hits) -> Result<(), LdapError> {
    let requester = AuthzId { manages: true, dn: caller.key().to_owned(), ..AuthzId::default() };
    let hit = |dn: &str| Hit {
        kind: "entry",
        id: dn.to_owned(),
        title: dn.to_owned(),
        within: None,
        link: format!("/v1/directory/entries/{}", segment(dn)),
    };
    if text.contains('=') {
        let found = directory.find_for(&requester, text).await;
        hits.add(found.ok().map(|found| hit(&found.entry.dn)));
        return Ok(());
    }
    let start = Some(text.as_bytes().to_vec());
    let prefix = |name: &&str| Filter::Substrings((*name).to_owned(), start.clone(), Vec::new(), None);
    let filter = Filter::Or(NAMES.iter().map(prefix).collect());
    let base = directory.find_for(&requester, directory.suffix()).await?;
    let mut search = directory.search(&requester, base, EntryScope::Subtree, &filter).await?;
    let (mut grants, mut found, began) = (Grants::default(), Vec::new(), Instant::now());
    'pages: while let Some(page) = search.next().await? {
        for shown in page {
            let grant = grants.of(directory.access(), &requester, &shown.entry);
            if grant.may_disclose() && search.is_met_by_async(&shown, &grant).await? {
                found.push(hit(&shown.entry.dn));
                if found.len() > HITS_MAX {
                    break 'pages;
                }
            }
        }
        if search.scanned() >= EXAMINED_MAX || began.elapsed() > TIME_MAX {
            hits.complete = false;
            break;
        }
    }
    hits.add(found);
    Ok(())
}

/// Result of a search.
#[derive(Serialize, ToSchema)]
#[schema(as = SearchResult)]
struct HitsBody {
    items: Vec<HitBody>,
    /// Whether there are no other hits.
    complete: bool,
}

/// An object that was found.
#[derive(Serialize, ToSchema)]
#[schema(as = SearchHit)]
struct HitBody {
    /// `event`, `event_batch`, `notification`, `notification_batch`, `subscription`, `message`, `broadcast`,
    /// `subscriber`, `device`, `sync_device`, `entry`, `application`, `rule`, `channel`, `exchange` or `segment`.
    kind: &'static str,
    /// Id; for rules and channels `APPLICATION/NAME`, for devices `SUBSCRIBER/NAME`.
    id: String,
    /// Text for readers.
    title: String,
    /// Application or exchange that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    /// Path of the object in this interface.
    link: String,
}

impl From<Hits> for HitsBody {
    fn from(Hits { items, complete }: Hits) -> Self {
        let items =
            items.into_iter().map(|Hit { kind, id, title, within, link }| HitBody { kind, id, title, within, link });
        HitsBody { items: items.collect(), complete }
    }
}
