//! The tree: resolves names to entries, and caches entries and the positions of containers.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use parking_lot::RwLock;
use tocsin_model::time::Timestamp;
use tocsin_store::{
    entries::{EntryNode, EntryNumber, EntryReader},
    error::StoreError,
};
use tokio::sync::watch;

use crate::{
    access::{Access, AuthzId, is_child},
    bound_identity::Register,
    dn::{Dn, Rdn},
    entry::{self, EntryPosition, Shape, view},
    entry_cache::{CachedEntry, EntryCache, EntryCacheGeneration},
    ldap_error::{Code, LdapError},
    options::{Clock, Lifetimes},
    plan,
    policy::Policies,
    schema::Schema,
    syntax::Rule,
};

/// Container of subscribers without a placement, below the suffix.
pub(crate) const PEOPLE: &str = "ou=people";
/// Maximum container positions in the cache.
const PLACES_MAX: usize = 65_536;
/// Later than any expiry.
pub(crate) const NEVER: Timestamp = Timestamp(i64::MAX);

/// State that all clones of the directory share: configuration, schema and caches.
pub(crate) struct Inner {
    pub(crate) schema: ArcSwap<Schema>,
    pub(crate) access: Access,
    pub(crate) shape: Shape,
    pub(crate) policies: Policies,
    pub(crate) lifetimes: Lifetimes,
    /// Expiry of the next dynamic entry, as far as known.
    pub(crate) next_end: watch::Sender<Timestamp>,
    pub(crate) suffix: Dn,
    pub(crate) suffix_text: String,
    pub(crate) suffix_key: String,
    pub(crate) people: OnceLock<EntryNumber>,
    pub(crate) places: RwLock<PositionCache>,
    /// Subscribers known to have child entries.
    pub(crate) parents: RwLock<HashSet<EntryNumber>>,
    pub(crate) cache: EntryCache,
    /// Indexes that are complete.
    pub(crate) ready: ArcSwap<BTreeSet<String>>,
    /// Notifies on each commit that changes entries.
    pub(crate) bell: watch::Sender<()>,
    /// Registry of bound identities.
    pub(crate) bound: Arc<Register>,
    /// Clock of the process.
    pub(crate) clock: Clock,
    /// Held while indexes are built.
    pub(crate) building: tokio::sync::Mutex<()>,
    /// Limits concurrent long filter evaluations.
    pub(crate) evaluations: tokio::sync::Semaphore,
}

/// Cache of the positions of container entries.
#[derive(Default)]
pub(crate) struct PositionCache {
    pub(crate) by_number: HashMap<EntryNumber, Arc<EntryPosition>>,
    /// By normalized DN.
    pub(crate) by_key: HashMap<String, Arc<EntryPosition>>,
}

impl PositionCache {
    pub(crate) fn insert(&mut self, place: Arc<EntryPosition>) {
        if self.by_number.len() >= PLACES_MAX {
            *self = PositionCache::default();
        }
        self.by_key.insert(place.key.clone(), place.clone());
        self.by_number.insert(place.number, place);
    }

    pub(crate) fn remove(&mut self, number: EntryNumber) {
        if let Some(place) = self.by_number.remove(&number) {
            self.by_key.remove(&place.key);
        }
    }
}

/// Parses a DN.
pub(crate) fn parse(dn: &str) -> Result<Dn, LdapError> {
    Dn::parse(dn)
        .map_err(|error| LdapError::new(Code::InvalidDnSyntax, format!("the distinguished name is malformed: {error}")))
}

impl Inner {
    /// Whether an entry is the container of unplaced subscribers.
    pub(crate) fn is_people(&self, number: EntryNumber) -> bool {
        self.people.get() == Some(&number)
    }

    /// Resolves a name from the suffix down. Returns the entry and the position of its parent.
    pub(crate) fn walk(
        &self,
        branches: &dyn EntryReader,
        dn: &Dn,
    ) -> Result<(EntryNode, Option<Arc<EntryPosition>>), LdapError> {
        let (node, above) = self.walk_head(branches, dn)?;
        match &node {
            EntryNode::Subscriber(..) => Ok((node, above)),
            EntryNode::Object(object) => {
                let gone = || LdapError::new(Code::NoSuchObject, "there is no such entry");
                Ok((branches.node(object.number)?.ok_or_else(gone)?, above))
            }
        }
    }

    /// Like `walk`, but reads an object without its row-stored values.
    pub(crate) fn walk_head(
        &self,
        branches: &dyn EntryReader,
        dn: &Dn,
    ) -> Result<(EntryNode, Option<Arc<EntryPosition>>), LdapError> {
        let schema = self.schema.load();
        let missing = |matched: &str| LdapError {
            matched: matched.to_owned(),
            ..LdapError::new(Code::NoSuchObject, "there is no such entry")
        };
        let own = dn.0.len().checked_sub(self.suffix.0.len());
        let Some((rdns, suffix)) = own.map(|own| dn.0.split_at(own)) else { return Err(missing("")) };
        if schema.normal_dn(&Dn(suffix.to_vec())) != self.suffix_key {
            return Err(missing(""));
        }
        // An entry with children cannot be removed and its number is never reused, so the cached position is valid.
        if let Some(place) = self.place_above(dn, &schema).filter(|_| !rdns.is_empty()) {
            let node = self.child(branches, &place, &rdns[0], &schema)?.ok_or_else(|| missing(&place.dn))?;
            return Ok((node, Some(place)));
        }
        let mut node = branches.child_head(None, &self.suffix_key)?.ok_or_else(|| missing(""))?;
        let mut above = None;
        for rdn in rdns.iter().rev() {
            let place = Arc::new(entry::place(&node, above.as_deref(), &schema));
            if place.number.subscriber().is_some() {
                self.parents.write().insert(place.number);
            }
            node = self.child(branches, &place, rdn, &schema)?.ok_or_else(|| missing(&place.dn))?;
            above = Some(place);
        }
        Ok((node, above))
    }

    /// Resolves a name to an entry that is visible to the requester, and the position of its parent. A hidden entry
    /// counts as missing.
    pub(crate) fn visible(
        &self,
        branches: &dyn EntryReader,
        requester: &AuthzId,
        dn: &Dn,
    ) -> Result<(EntryNode, Option<Arc<EntryPosition>>), LdapError> {
        let found = match self.walk(branches, dn) {
            Ok(found) => Some(found),
            Err(refusal) if refusal.code == Code::NoSuchObject => None,
            Err(refusal) => return Err(refusal),
        };
        let may_disclose = |(node, above): &(EntryNode, Option<Arc<EntryPosition>>)| {
            let key = entry::place(node, above.as_deref(), &self.schema.load()).key;
            requester.manages || self.access.grant_at(requester, &key, Some(node.number())).may_disclose()
        };
        found.filter(may_disclose).ok_or_else(|| self.absent(branches, requester, dn))
    }

    /// The error for a name without a visible entry. It is the same for hidden and missing entries, and names the
    /// nearest visible ancestor.
    pub(crate) fn absent(&self, branches: &dyn EntryReader, requester: &AuthzId, dn: &Dn) -> LdapError {
        let matched = self.nearest_visible(branches, requester, dn);
        matched.map_or_else(
            |error| error,
            |matched| LdapError { matched, ..LdapError::new(Code::NoSuchObject, "there is no such entry") },
        )
    }

    fn nearest_visible(&self, branches: &dyn EntryReader, requester: &AuthzId, dn: &Dn) -> Result<String, LdapError> {
        let schema = self.schema.load();
        let own = dn.0.len().checked_sub(self.suffix.0.len());
        let Some((rdns, suffix)) = own.map(|own| dn.0.split_at(own)) else { return Ok(String::new()) };
        if schema.normal_dn(&Dn(suffix.to_vec())) != self.suffix_key {
            return Ok(String::new());
        }
        let (mut matched, mut above) = (String::new(), None);
        let mut next = branches.child_head(None, &self.suffix_key)?;
        for rdn in rdns.iter().rev() {
            let Some(node) = next else { break };
            let place = entry::place(&node, above.as_ref(), &schema);
            if self.access.grant_at(requester, &place.key, Some(place.number)).may_disclose() {
                matched.clone_from(&place.dn);
            }
            next = self.child(branches, &place, rdn, &schema)?;
            above = Some(place);
        }
        Ok(matched)
    }

    /// The child entry with a relative name; an object without its row-stored values.
    pub(crate) fn child(
        &self,
        branches: &dyn EntryReader,
        above: &EntryPosition,
        rdn: &Rdn,
        schema: &Schema,
    ) -> Result<Option<EntryNode>, LdapError> {
        let key = schema.normal_rdn(rdn);
        if let Some(found) = branches.child_head(Some(above.number), &key)? {
            return Ok(Some(found));
        }
        let [(name, value)] = rdn.assertions.as_slice() else { return Ok(None) };
        let is_uid = schema.attribute(name).is_ok_and(|kind| &*kind.key == "uid");
        if !is_uid || !self.is_people(above.number) {
            return Ok(None);
        }
        let id = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        let exact = match &id {
            Some(id) => branches.subscriber(id)?,
            None => None,
        };
        if matches!(exact, Some(EntryNode::Subscriber(_, None))) {
            return Ok(exact);
        }
        // The id may be spelled in another case.
        let Some(normal) = Rule::CaseIgnore.normal(value, schema) else { return Ok(None) };
        for number in plan::equal(branches, "uid", &normal)?.unwrap_or_default() {
            match branches.node(number)? {
                Some(EntryNode::Subscriber(found, None)) if entry::unplaced_rdn(&found.id, schema).1 == key => {
                    return Ok(Some(EntryNode::Subscriber(found, None)));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Position of the parent of an entry.
    pub(crate) fn above(
        &self,
        branches: &dyn EntryReader,
        node: &EntryNode,
    ) -> Result<Option<Arc<EntryPosition>>, LdapError> {
        let parent = match node {
            EntryNode::Subscriber(_, None) => self.people.get().copied(),
            node => node.parent(),
        };
        parent.map(|parent| self.place(branches, parent)).transpose()
    }

    fn place(&self, branches: &dyn EntryReader, number: EntryNumber) -> Result<Arc<EntryPosition>, LdapError> {
        if let Some(known) = self.places.read().by_number.get(&number) {
            return Ok(known.clone());
        }
        if number.subscriber().is_some() {
            self.parents.write().insert(number);
        }
        let since = self.cache.generation();
        let node = match (branches.head(number)?, self.people.get()) {
            (Some(node), _) => node,
            // The API can remove a subscriber without regard to entries below it.
            (None, Some(people)) if number.subscriber().is_some() => return self.place(branches, *people),
            (None, _) => return Err(StoreError::Damaged(format!("entry {} has no parent", number.0)).into()),
        };
        let above = self.above(branches, &node)?;
        let place = Arc::new(entry::place(&node, above.as_deref(), &self.schema.load()));
        self.keep_place(place.clone(), since);
        Ok(place)
    }

    pub(crate) fn keep_place(&self, place: Arc<EntryPosition>, since: EntryCacheGeneration) {
        let mut places = self.places.write();
        if self.cache.generation() == since {
            places.insert(place);
        }
    }

    /// Cached position of the parent of a name.
    pub(crate) fn place_above(&self, dn: &Dn, schema: &Schema) -> Option<Arc<EntryPosition>> {
        let (_, over) = dn.0.split_first()?;
        self.places.read().by_key.get(&schema.normal_dn(&Dn(over.to_vec()))).cloned()
    }

    /// The entry of a changed row, if the position of its parent is cached.
    pub(crate) fn rebuild_entry(&self, node: &EntryNode) -> Option<Arc<CachedEntry>> {
        let parent = match node {
            EntryNode::Subscriber(_, None) => self.people.get().copied(),
            node => node.parent(),
        };
        let above = self.places.read().by_number.get(&parent?).cloned()?;
        Some(Arc::new(CachedEntry::stored(view(node, Some(&above), &self.schema.load(), &self.shape), node)))
    }

    /// Whether a cached entry is still below the current name of its parent.
    pub(crate) fn is_current(&self, shown: &CachedEntry) -> bool {
        let above = shown.entry.parent.and_then(|parent| self.places.read().by_number.get(&parent).cloned());
        above.is_some_and(|above| is_child(&shown.entry.key, &above.key) && shown.entry.dn.ends_with(&above.dn))
    }

    /// Builds the entry of a row, and caches it unless it changed after a generation.
    pub(crate) fn build_entry(
        &self,
        node: &EntryNode,
        above: Option<&EntryPosition>,
        since: EntryCacheGeneration,
    ) -> Arc<CachedEntry> {
        let entry = view(node, above, &self.schema.load(), &self.shape);
        let shown = Arc::new(CachedEntry::stored(entry, node));
        self.cache.insert(shown.clone(), since);
        shown
    }
}
