//! Queries: filter, sort and paginate resources (RFC 7644, 3.4.2).

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tocsin_directory::{CachedEntry, Scope, filter::Filter as Lookup};
use tocsin_model::time::Timestamp;

use super::{
    error::ScimError,
    filter::{self, Filter, Work, values},
    schema::{Kind, Path, RESOURCES, ResourceType},
    selection::Selection,
    service::{ScimService, is_of},
};

/// Maximum resources of a page, which is also the default.
pub(super) const PAGE_MAX: usize = 1_000;
const PAGE: usize = 100;
/// Work of filters after which a list gives way to others.
const UNINTERRUPTED_WORK: u64 = 1 << 20;
/// Most resources that are sorted.
const SORTED_MAX: usize = 50_000;

/// A query, from the URL or the body.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    filter: Option<String>,
    sort_by: Option<String>,
    sort_order: Option<String>,
    start_index: Option<Number>,
    count: Option<Number>,
    attributes: Option<Names>,
    excluded_attributes: Option<Names>,
}

/// A number, as a number or as text.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "should be a whole number")]
enum Number {
    Number(i64),
    Text(String),
}

/// Names, as a list or with commas between.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "should be a list of names, or a text with commas between them")]
enum Names {
    List(Vec<String>),
    Text(String),
}

impl Names {
    fn text(&self) -> String {
        match self {
            Names::List(names) => names.join(","),
            Names::Text(text) => text.clone(),
        }
    }
}

impl Number {
    fn value(&self, name: &str) -> Result<i64, ScimError> {
        match self {
            Number::Number(value) => Ok(*value),
            Number::Text(text) => text.parse().map_err(|_| {
                ScimError::bad("invalidValue", format!("`{name}` is `{text}`, but should be a whole number"))
            }),
        }
    }
}

impl Asked {
    pub(super) fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// The selection of attributes.
    pub(super) fn selection(&self, kind: &'static ResourceType) -> Result<Selection, ScimError> {
        let text = |names: &Option<Names>| names.as_ref().map(Names::text);
        Selection::read(text(&self.attributes).as_deref(), text(&self.excluded_attributes).as_deref(), kind)
    }

    fn query(&self, kind: &'static ResourceType) -> Result<Query, ScimError> {
        let unknown = |name: &str| ScimError::bad("invalidPath", format!("a {} has no attribute `{name}`", kind.name));
        let sort_by =
            self.sort_by.as_deref().map(|name| kind.resolve(name).ok_or_else(|| unknown(name))).transpose()?;
        let filter = self.filter.as_deref().map(|text| filter::read(text, kind)).transpose()?;
        self.query_of(filter, sort_by, self.selection(kind)?)
    }

    /// The part of a search through all kinds that is about one of them.
    fn query_in_all(&self, kind: &'static ResourceType) -> Result<Query, ScimError> {
        let unknown = |name: &str| ScimError::bad("invalidPath", format!("no resource has an attribute `{name}`"));
        let sort_by =
            self.sort_by.as_deref().map(|name| kind.resolve_in_all(name).ok_or_else(|| unknown(name))).transpose()?;
        let filter = self.filter.as_deref().map(|text| filter::read_in_all(text, kind)).transpose()?;
        let text = |names: &Option<Names>| names.as_ref().map(Names::text);
        let (only, without) = (text(&self.attributes), text(&self.excluded_attributes));
        self.query_of(filter, sort_by, Selection::read_in_all(only.as_deref(), without.as_deref(), kind)?)
    }

    fn query_of(
        &self,
        filter: Option<Filter>,
        sort_by: Option<Path>,
        selection: Selection,
    ) -> Result<Query, ScimError> {
        let number = |value: &Option<Number>, name| value.as_ref().map(|value| value.value(name)).transpose();
        let descending = match self.sort_order.as_deref() {
            None | Some("ascending") => false,
            Some("descending") => true,
            Some(other) => {
                let what = format!("`sortOrder` is `{other}`, but should be ascending or descending");
                return Err(ScimError::bad("invalidValue", what));
            }
        };
        let positive = |value: i64| usize::try_from(value).unwrap_or(0);
        Ok(Query {
            filter,
            sort_by: sort_by.map(|path| (path, descending)),
            start: positive(number(&self.start_index, "startIndex")?.unwrap_or(1)).max(1),
            count: number(&self.count, "count")?.map_or(PAGE, positive).min(PAGE_MAX),
            selection,
        })
    }
}

struct Query {
    filter: Option<Filter>,
    /// By what, and whether the other way round.
    sort_by: Option<(Path, bool)>,
    /// The first of the page, from 1.
    start: usize,
    count: usize,
    selection: Selection,
}

/// Result of a query.
#[derive(Default)]
struct ListResult {
    total: usize,
    page: Vec<Arc<CachedEntry>>,
    /// All, with what they are sorted by.
    sorted: Vec<(SortKey, Arc<CachedEntry>)>,
    /// Work of the filter since others could run.
    work: u64,
}

/// Resources without a value sort last, or first in descending order (RFC 7644, 3.4.2.3).
type SortKey = (bool, String);

impl ScimService {
    /// A page of the resources of a kind.
    pub(super) async fn list(&self, kind: &'static ResourceType, asked: &Asked) -> Result<Json, ScimError> {
        let query = asked.query(kind)?;
        let found = self.found(kind, &query).await?;
        let mut resources = Vec::with_capacity(found.page.len());
        for shown in &found.page {
            resources.push(Json::Object(self.selected(kind, &shown.entry, &query.selection).await?));
        }
        Ok(list_response(found.total, query.start, resources))
    }

    /// A page of all resources, of one kind after the other. A resource has no value of an attribute of another kind.
    pub(super) async fn list_all(&self, asked: &Asked) -> Result<Json, ScimError> {
        let (mut total, mut resources, mut start) = (0, Vec::new(), 1);
        for kind in RESOURCES {
            let mut query = asked.query_in_all(kind)?;
            start = query.start;
            query.start = start.saturating_sub(total).max(1);
            query.count = if start > total { query.count } else { query.count.saturating_sub(resources.len()) };
            let found = self.found(kind, &query).await?;
            total += found.total;
            for shown in &found.page {
                resources.push(Json::Object(self.selected(kind, &shown.entry, &query.selection).await?));
            }
        }
        Ok(list_response(total, start, resources))
    }

    async fn found(&self, kind: &'static ResourceType, query: &Query) -> Result<ListResult, ScimError> {
        let mut found = ListResult::default();
        if let Some(id) = query.filter.as_ref().and_then(Filter::only_id) {
            if let Ok(shown) = self.find(kind, id).await {
                self.take(kind, query, shown, &mut found).await?;
            }
        } else {
            let lookup = self.lookup(kind, query).await?;
            let base = self.directory.find(self.directory.suffix()).await?;
            let mut search = self.directory.search(&self.requester, base, Scope::Subtree, &lookup).await?;
            while let Some(page) = search.next().await? {
                for shown in page.into_iter().filter(|shown| is_of(kind, &shown.entry)) {
                    self.take(kind, query, shown, &mut found).await?;
                }
            }
        }
        if let Some((_, descending)) = query.sort_by {
            found.sorted.sort_by(|(one, _), (other, _)| if descending { other.cmp(one) } else { one.cmp(other) });
            let sorted = found.sorted.drain(..).skip(query.start - 1).take(query.count);
            found.page = sorted.map(|(_, shown)| shown).collect();
        }
        Ok(found)
    }

    /// Counts a resource that meets the filter, and keeps it if it is on the page.
    async fn take(
        &self,
        kind: &ResourceType,
        query: &Query,
        shown: Arc<CachedEntry>,
        found: &mut ListResult,
    ) -> Result<(), ScimError> {
        let sorted_by = query.sort_by.map(|(path, _)| path);
        if query.filter.is_some() || sorted_by.is_some() {
            let wants = |name: &str| {
                query.filter.as_ref().is_some_and(|filter| filter.references(name))
                    || sorted_by.is_some_and(|path| path.attribute.name == name)
            };
            let resource = self.resource(kind, &shown.entry, &wants).await?;
            if let Some(filter) = &query.filter {
                let is_met = {
                    let work = Work::default();
                    let is_met = filter.is_met_by(&resource, &work);
                    found.work += work.done() + 1;
                    work.check()?;
                    is_met
                };
                if found.work > UNINTERRUPTED_WORK {
                    found.work = 0;
                    tokio::task::yield_now().await;
                }
                if !is_met {
                    return Ok(());
                }
            }
            if let Some(path) = sorted_by {
                if found.sorted.len() >= SORTED_MAX {
                    return Err(ScimError::bad("tooMany", format!("more than {SORTED_MAX} resources are not sorted")));
                }
                found.sorted.push((sort_key(&resource, path), shown.clone()));
            }
        }
        found.total += 1;
        if sorted_by.is_none() && found.total >= query.start && found.page.len() < query.count {
            found.page.push(shown);
        }
        Ok(())
    }

    /// Narrows a query by the indexes of the directory.
    async fn lookup(&self, kind: &ResourceType, query: &Query) -> Result<Lookup, ScimError> {
        let all = match kind.name {
            "User" => Lookup::Present("objectClass".to_owned()),
            _ => {
                let of_class = |class: &&str| Lookup::Equal("objectClass".to_owned(), class.as_bytes().to_vec());
                Lookup::Or(super::group::KINDS.iter().map(of_class).collect())
            }
        };
        let Some(filter) = &query.filter else { return Ok(all) };
        let mut ids = Vec::new();
        filter.ids_of("groups", &mut ids);
        filter.ids_of("members", &mut ids);
        let mut names = std::collections::HashMap::new();
        for id in ids {
            let number = tocsin_directory::entry::Entry::number_of(&id);
            let shown = match number {
                Some(number) => self.directory.numbered(vec![number]).await?.pop(),
                None => None,
            };
            names.extend(shown.map(|shown| (id, shown.entry.dn.clone())));
        }
        let narrower = filter.narrower(&|id| names.get(id).cloned());
        Ok(match narrower {
            Some(narrower) => Lookup::And(vec![narrower, all]),
            None => all,
        })
    }
}

/// A page of so many.
pub(super) fn list_response(total: usize, start: usize, resources: Vec<Json>) -> Json {
    json!({
        "schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"],
        "totalResults": total, "startIndex": start, "itemsPerPage": resources.len(), "Resources": resources,
    })
}

fn sort_key(resource: &super::body::Resource, path: Path) -> SortKey {
    let found = values(resource, Path { part: None, ..path });
    let preferred = found.iter().find(|value| value.get("primary") == Some(&Json::Bool(true))).or(found.first());
    let part = path.part.map_or("value", |part| part.name);
    let value = preferred.map(|value| value.get(part).unwrap_or(value));
    let meant = path.part.unwrap_or(path.attribute);
    let exact = meant.exact;
    match value {
        // Texts of times have as many digits as they need, and do not sort as times do.
        Some(Json::String(text)) if meant.kind == Kind::DateTime => match text.parse::<Timestamp>() {
            Ok(Timestamp(micros)) => (false, format!("{:020}", i128::from(micros) - i128::from(i64::MIN))),
            Err(_) => (true, String::new()),
        },
        Some(Json::String(text)) if exact => (false, text.clone()),
        Some(Json::String(text)) => (false, text.to_lowercase()),
        Some(Json::Null) | None => (true, String::new()),
        Some(other) => (false, other.to_string()),
    }
}
