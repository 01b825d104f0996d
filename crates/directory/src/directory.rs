//! The directory service: resolves names, caches entries, and keeps the caches consistent with the store's commits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::Bound,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tocsin_model::{time::Timestamp, value::Value};
use tocsin_store::{
    entries::{
        DiskCheck, Entries, EntryChange, EntryKey, EntryNode, EntryNumber, EntryReader, EntryState, EntryWatcher,
        EntryWriter, LoginNames, Object, PreparedEntry,
    },
    error::StoreError,
};
use tokio::sync::watch;

use crate::{
    access::{Access, AuthzId, is_child},
    bound_identity::Register,
    change::{LOGIN, Lifetimes, NEVER},
    dn::{Dn, Rdn},
    entry::{self, EntryPosition, Shape, view},
    entry_cache::{CachedEntry, EntryCache, EntryCacheGeneration, PendingEntry},
    ldap_error::{Code, LdapError},
    password::Lockout,
    plan,
    policy::Policies,
    schema::{Kind, Schema},
};

/// Container of subscribers without a placement, below the suffix.
pub const PEOPLE: &str = "ou=people";
/// Entries per commit while an index is built.
const INDEXED_AT_ONCE: usize = 500;
/// Maximum container positions in the cache.
const PLACES_MAX: usize = 65_536;

/// Configuration of the directory.
#[derive(Debug, Clone)]
pub struct Options {
    /// DN of the suffix entry, such as `dc=example,dc=org`.
    pub suffix: String,
    /// Mapping of subscribers to attributes.
    pub shape: Shape,
    /// Access rules; if empty, the default rules apply.
    pub access: Vec<String>,
    /// Number of wrong passwords that lock an entry, and the duration of the lock.
    pub lockout: Lockout,
    /// Password policy rules, such as `to * pwdMinLength=12`; the first rule that matches the entry applies.
    pub password_policy: Vec<String>,
    /// Lifetimes of dynamic entries (RFC 2589).
    pub lifetimes: Lifetimes,
    /// Approximate memory of the entry cache, in bytes.
    pub cache_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            suffix: "o=site".to_owned(),
            shape: Shape::default(),
            access: Vec::new(),
            lockout: Lockout { failures: 0, duration: Duration::ZERO },
            password_policy: Vec::new(),
            lifetimes: Lifetimes::default(),
            cache_bytes: 1 << 20,
        }
    }
}

/// Clock of the process.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The directory service.
#[derive(Clone)]
pub struct Directory {
    pub(crate) entries: Arc<dyn Entries>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) clock: Clock,
}

/// Cache of the positions of container entries.
#[derive(Default)]
struct PositionCache {
    by_number: HashMap<EntryNumber, Arc<EntryPosition>>,
    /// By normalized DN.
    by_key: HashMap<String, Arc<EntryPosition>>,
}

impl PositionCache {
    fn insert(&mut self, place: Arc<EntryPosition>) {
        if self.by_number.len() >= PLACES_MAX {
            *self = PositionCache::default();
        }
        self.by_key.insert(place.key.clone(), place.clone());
        self.by_number.insert(place.number, place);
    }

    fn remove(&mut self, number: EntryNumber) {
        if let Some(place) = self.by_number.remove(&number) {
            self.by_key.remove(&place.key);
        }
    }
}

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
    people: OnceLock<EntryNumber>,
    places: RwLock<PositionCache>,
    /// Subscribers known to have child entries.
    parents: RwLock<HashSet<EntryNumber>>,
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
    building: tokio::sync::Mutex<()>,
    /// Limits concurrent long filter evaluations.
    pub(crate) evaluations: tokio::sync::Semaphore,
}

/// Maximum concurrent long filter evaluations. Others wait, within the time limit of their search.
const EVALUATIONS_MAX: usize = 2;

impl Directory {
    /// Opens the directory over a store. Creates the suffix entry and the container of unplaced subscribers if they are
    /// missing, and subscribes its caches to the store.
    ///
    /// # Errors
    /// The suffix or a rule is invalid; the store fails.
    pub async fn open(entries: Arc<dyn Entries>, options: Options, clock: Clock) -> Result<Directory, LdapError> {
        let (directory, indexes) = Directory::prepare(entries, options, clock).await?;
        directory.entries.watch(directory.inner.clone());
        directory.make_first_entries().await?;
        if indexes.is_empty() {
            // Subscribers changed while no directory recorded it.
            directory.change(DiskCheck::Skipped, |tree| Ok(tree.cut_entry_feed()?)).await?;
        }
        if indexes.iter().cloned().collect::<BTreeSet<_>>() == directory.configured_indexes() {
            directory.inner.ready.store(Arc::new(directory.configured_indexes()));
        }
        Ok(directory)
    }

    /// Opens the directory for one export, beside another instance or without one. Its caches do not follow later
    /// changes. Creates the suffix entry and the container of unplaced subscribers if they are missing.
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub async fn open_for_export(
        entries: Arc<dyn Entries>,
        options: Options,
        clock: Clock,
    ) -> Result<Directory, LdapError> {
        let (directory, _) = Directory::prepare(entries, options, clock).await?;
        directory.make_first_entries().await?;
        Ok(directory)
    }

    /// Reads the stored schema and the options. Returns the names of the stored indexes too.
    async fn prepare(
        entries: Arc<dyn Entries>,
        options: Options,
        clock: Clock,
    ) -> Result<(Directory, Vec<String>), LdapError> {
        let stored = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        entries
            .read(Box::new({
                let stored = stored.clone();
                move |branches| {
                    *stored.lock() = (branches.definitions()?, branches.indexes()?);
                    Ok(())
                }
            }))
            .await?;
        let (definitions, indexes) = std::mem::take(&mut *stored.lock());
        let mut schema = Schema::standard();
        for (identifier, text) in &definitions {
            if let Err(error) = schema.define(kind_of(identifier), text) {
                tracing::error!(identifier, %error, "a schema definition is invalid and is ignored");
            }
        }
        let invalid = |what: String| LdapError::new(Code::InvalidDnSyntax, what);
        let suffix = Dn::parse(&options.suffix).map_err(|error| invalid(format!("the suffix: {error}")))?;
        if suffix.0.is_empty() {
            return Err(invalid("the suffix is empty; give a name such as dc=example,dc=org".to_owned()));
        }
        let access = Access::read(&options.access, &schema)
            .map_err(|why| LdapError::new(Code::Other, format!("the access rule {why}")))?;
        let policies = Policies::read(&options.password_policy, options.lockout, &schema)
            .map_err(|why| LdapError::new(Code::Other, format!("the password policy {why}")))?;
        let inner = Arc::new(Inner {
            access,
            shape: options.shape,
            policies,
            lifetimes: options.lifetimes,
            next_end: watch::Sender::new(NEVER),
            suffix_text: suffix.0.iter().map(|rdn| rdn.text.as_str()).collect::<Vec<_>>().join(","),
            suffix_key: schema.normal_dn(&suffix),
            suffix,
            people: OnceLock::new(),
            places: RwLock::default(),
            parents: RwLock::default(),
            bound: Arc::default(),
            clock: clock.clone(),
            building: tokio::sync::Mutex::default(),
            evaluations: tokio::sync::Semaphore::new(EVALUATIONS_MAX),
            bell: watch::Sender::new(()),
            cache: EntryCache::new(options.cache_bytes),
            ready: ArcSwap::from_pointee(BTreeSet::new()),
            schema: ArcSwap::from_pointee(schema),
        });
        Ok((Directory { entries, inner, clock }, indexes))
    }

    /// DN of the suffix entry.
    pub fn suffix(&self) -> &str {
        &self.inner.suffix_text
    }

    /// The current schema.
    pub fn schema(&self) -> Arc<Schema> {
        self.inner.schema.load_full()
    }

    /// The access rules.
    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// Number of cached entries and their approximate size in bytes.
    pub fn cache_size(&self) -> (usize, u64) {
        self.inner.cache.size()
    }

    /// Clears the entry cache.
    pub fn clear_cache(&self) {
        self.inner.cache.clear(self.inner.cache.next_generation());
    }

    async fn make_first_entries(&self) -> Result<(), LdapError> {
        let (inner, now) = (self.inner.clone(), (self.clock)());
        let made = self
            .change(DiskCheck::Skipped, move |tree| {
                let schema = inner.schema.load();
                let first = match tree.reader().child(None, &inner.suffix_key)? {
                    Some(node) => node.number(),
                    None => tree
                        .put_object(first_entry(&inner.suffix, &inner.suffix_text, &inner.suffix_key, &schema), now)?,
                };
                match tree.reader().child(Some(first), PEOPLE)? {
                    Some(node) => Ok(node.number()),
                    None => {
                        let attributes = attributes_of(&[("objectClass", "top organizationalUnit"), ("ou", "people")]);
                        let people =
                            Object { parent: Some(first), rdn: PEOPLE.into(), rdn_key: PEOPLE.into(), attributes };
                        Ok(tree.put_object(people, now)?)
                    }
                }
            })
            .await?;
        let _ = self.inner.people.set(made);
        Ok(())
    }

    /// Indexes that the schema requires.
    fn configured_indexes(&self) -> BTreeSet<String> {
        plan::indexes(&self.inner.schema.load())
    }

    /// Builds the missing indexes of the schema, in small transactions. Until an index is complete, searches scan all
    /// entries instead.
    ///
    /// # Errors
    /// The store fails.
    pub async fn build_indexes(&self) -> Result<(), LdapError> {
        let _alone = self.inner.building.lock().await;
        let indexes = self.configured_indexes();
        let ready = self.inner.ready.load_full();
        if *ready == indexes {
            return Ok(());
        }
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        let kept = names(&ready.intersection(&indexes).cloned().collect());
        self.change(DiskCheck::Skipped, move |tree| Ok(tree.set_indexes(&kept)?)).await?;
        let mut after = None;
        loop {
            let next =
                self.change(DiskCheck::Required, move |tree| Ok(tree.index_page(after, INDEXED_AT_ONCE)?)).await?;
            match next {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        let all = names(&indexes);
        self.change(DiskCheck::Skipped, move |tree| Ok(tree.set_indexes(&all)?)).await?;
        tracing::info!(indexes = indexes.len(), "the indexes of the directory are built");
        self.inner.ready.store(Arc::new(indexes));
        Ok(())
    }

    /// Cache generation of the last rename or schema change.
    pub fn renamed(&self) -> EntryCacheGeneration {
        self.inner.cache.floor()
    }

    /// The cached entry requested under exactly this spelling of the name.
    pub fn cached_entry(&self, dn: &str) -> Option<Arc<CachedEntry>> {
        self.inner.cache.named(dn)
    }

    /// Finds an entry by its name.
    ///
    /// # Errors
    /// The name is malformed; there is no such entry (with the nearest existing ancestor).
    pub async fn find(&self, dn: &str) -> Result<Arc<CachedEntry>, LdapError> {
        if let Some(shown) = self.cached_entry(dn) {
            return Ok(shown);
        }
        let parsed = parse(dn)?;
        let (inner, since) = (self.inner.clone(), self.inner.cache.generation());
        let shown = self
            .read(move |branches| {
                let (node, above) = inner.walk(branches, &parsed)?;
                let shown = inner.build_entry(&node, above.as_deref(), since);
                if let Some(above) = above {
                    inner.keep_place(above, since);
                }
                Ok(shown)
            })
            .await?;
        self.inner.cache.insert_name(dn, &shown.entry);
        Ok(shown)
    }

    /// Finds an entry by its name, if it is visible to the requester.
    ///
    /// # Errors
    /// The name is malformed; no such entry is visible (with the nearest visible ancestor).
    pub async fn find_for(&self, requester: &AuthzId, dn: &str) -> Result<Arc<CachedEntry>, LdapError> {
        match self.find(dn).await {
            Ok(shown) if requester.manages || self.access().grant(requester, &shown.entry).may_disclose() => Ok(shown),
            Err(refusal) if refusal.code != Code::NoSuchObject => Err(refusal),
            Ok(_) | Err(_) => Err(self.absent(requester, dn).await),
        }
    }

    /// The error for a name without a visible entry; it does not reveal whether the entry is hidden or missing.
    pub async fn absent(&self, requester: &AuthzId, dn: &str) -> LdapError {
        let parsed = match parse(dn) {
            Ok(parsed) => parsed,
            Err(refusal) => return refusal,
        };
        let (inner, requester) = (self.inner.clone(), requester.clone());
        let made = self.read(move |branches| Ok(inner.absent(branches, &requester, &parsed))).await;
        made.unwrap_or_else(|refusal| refusal)
    }

    /// Fills the cache after a start, up to a memory limit, newest entries last.
    ///
    /// # Errors
    /// The store fails.
    pub async fn warm(&self, bytes_max: u64) -> Result<usize, LdapError> {
        let (mut after, mut count) = (None, 0);
        loop {
            let (inner, since) = (self.inner.clone(), self.inner.cache.generation());
            let page = self
                .read(move |branches| {
                    let page = branches.page(None, true, after, INDEXED_AT_ONCE)?;
                    for node in &page {
                        let above = inner.above(branches, node)?;
                        let shown = inner.build_entry(node, above.as_deref(), since);
                        inner.cache.insert_name(&shown.entry.dn, &shown.entry);
                    }
                    Ok(page.iter().map(EntryNode::number).collect::<Vec<_>>())
                })
                .await?;
            count += page.len();
            if page.len() < INDEXED_AT_ONCE || self.cache_size().1 >= bytes_max {
                return Ok(count);
            }
            after = page.last().copied();
        }
    }

    /// Runs a read transaction.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn EntryReader) -> Result<T, LdapError> + Send + 'static,
    ) -> Result<T, LdapError> {
        let answer = Arc::new(Mutex::new(None));
        let done = self
            .entries
            .read(Box::new({
                let answer = answer.clone();
                move |branches| {
                    *answer.lock() = Some(job(branches));
                    Ok(())
                }
            }))
            .await;
        let answer = answer.lock().take();
        answer.unwrap_or_else(|| Err(done.err().unwrap_or_else(|| StoreError::unavailable("no answer")).into()))
    }

    /// Runs a write transaction; it is rolled back if the job returns an error.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        room: DiskCheck,
        job: impl FnOnce(&mut dyn EntryWriter) -> Result<T, LdapError> + Send + 'static,
    ) -> Result<T, LdapError> {
        let answer = Arc::new(Mutex::new(None));
        let done = self
            .entries
            .change(room, {
                let answer = answer.clone();
                Box::new(move |tree| match job(tree) {
                    Ok(done) => {
                        *answer.lock() = Some(Ok(done));
                        Ok(())
                    }
                    Err(refusal) => {
                        *answer.lock() = Some(Err(refusal));
                        // The message is not used; the error rolls the transaction back.
                        Err(StoreError::Changed("a request that was refused".to_owned()))
                    }
                })
            })
            .await;
        let answer = answer.lock().take();
        match (answer, done) {
            (Some(Err(refusal)), _) => Err(refusal),
            (Some(Ok(answer)), Ok(())) => Ok(answer),
            (_, Err(error)) => Err(error.into()),
            (None, Ok(())) => Err(StoreError::unavailable("no answer").into()),
        }
    }
}

/// Parses a DN.
pub(crate) fn parse(dn: &str) -> Result<Dn, LdapError> {
    Dn::parse(dn)
        .map_err(|error| LdapError::new(Code::InvalidDnSyntax, format!("the distinguished name is malformed: {error}")))
}

/// Key of a schema definition in the store.
pub(crate) fn identifier_of(kind: Kind, oid: &str) -> String {
    format!("{}:{oid}", kind.attribute())
}

fn kind_of(identifier: &str) -> Kind {
    if identifier.starts_with(Kind::Class.attribute()) { Kind::Class } else { Kind::Attribute }
}

fn attributes_of(pairs: &[(&str, &str)]) -> BTreeMap<String, Value> {
    let value = |text: &str| match text.contains(' ') {
        true => Value::List(text.split(' ').map(Value::from).collect()),
        false => Value::from(text),
    };
    pairs.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
}

fn first_entry(suffix: &Dn, text: &str, key: &str, schema: &Schema) -> Object {
    let mut attributes = BTreeMap::new();
    for (name, value) in &suffix.0[0].assertions {
        let name = schema.attribute(name).map_or(name.clone(), |kind| kind.name().to_owned());
        attributes.insert(name, Value::from(&*String::from_utf8_lossy(value)));
    }
    let class = match suffix.0[0].assertions[0].0.to_ascii_lowercase().as_str() {
        "o" | "organizationname" => "organization",
        "dc" | "domaincomponent" => "domain",
        "ou" | "organizationalunitname" => "organizationalUnit",
        "c" | "countryname" => "country",
        "l" | "localityname" => "locality",
        _ => "organization extensibleObject",
    };
    attributes.extend(attributes_of(&[("objectClass", &format!("top {class}"))]));
    Object { parent: None, rdn: text.into(), rdn_key: key.into(), attributes }
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
        let Some(normal) = crate::syntax::Rule::CaseIgnore.normal(value, schema) else { return Ok(None) };
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

    fn keep_place(&self, place: Arc<EntryPosition>, since: EntryCacheGeneration) {
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
    fn rebuild_entry(&self, node: &EntryNode) -> Option<Arc<CachedEntry>> {
        let parent = match node {
            EntryNode::Subscriber(_, None) => self.people.get().copied(),
            node => node.parent(),
        };
        let above = self.places.read().by_number.get(&parent?).cloned()?;
        Some(Arc::new(CachedEntry::stored(view(node, Some(&above), &self.schema.load(), &self.shape), node)))
    }

    /// Whether a cached entry is still below the current name of its parent.
    fn is_current(&self, shown: &CachedEntry) -> bool {
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

impl EntryWatcher for Inner {
    fn keys(&self, node: &EntryNode) -> Vec<EntryKey> {
        let schema = self.schema.load();
        plan::keys(&entry::attributes(node, &schema, &self.shape), &schema)
    }

    fn have_same_keys(&self, old: &EntryNode, now: &EntryNode) -> bool {
        plan::have_same_keys(old, now, &self.schema.load())
    }

    fn is_still_valid(&self, built: &PreparedEntry) -> bool {
        built.downcast_ref::<PendingEntry>().is_some_and(|prebuilt| prebuilt.has_schema(&self.schema.load()))
    }

    fn update_references(
        &self,
        tree: &mut dyn EntryWriter,
        old: &EntryNode,
        now: Option<&EntryNode>,
    ) -> Result<(), StoreError> {
        self.update_references(tree, old, now).map_err(|refusal| StoreError::unavailable(refusal.message))
    }

    fn find_login_conflict(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        names: LoginNames<'_>,
    ) -> Result<Option<String>, StoreError> {
        self.find_login_conflict(branches, entry, names).map_err(|refusal| StoreError::unavailable(refusal.message))
    }

    fn may_conflict(
        &self,
        branches: &dyn EntryReader,
        entry: Option<EntryNumber>,
        made: &[EntryKey],
    ) -> Result<bool, StoreError> {
        for key in made.iter().filter(|key| &*key.index == LOGIN) {
            let key = Bound::Included(&*key.key);
            let found = branches.found(LOGIN, key, key, 1)?;
            if found.is_none_or(|found| found.into_iter().any(|number| Some(number) != entry)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn changed(&self, changes: Vec<EntryChange>) {
        let at = self.cache.next_generation();
        self.record_end_times(changes.iter().filter_map(|change| change.now.node()));
        // A rename changes the DNs of all descendants; renames are rare.
        let is_above = |number: EntryNumber| number.subscriber().is_none() || self.parents.read().contains(&number);
        let is_gone = |change: &EntryChange| matches!(change.now, EntryState::Gone);
        let was_above = |change: &EntryChange| is_gone(change) && self.parents.read().contains(&change.number);
        let moved = changes.iter().any(|change| change.renamed && is_above(change.number) || was_above(change));
        let touched = self.touched_identities(&changes, moved);
        if moved {
            *self.places.write() = PositionCache::default();
            self.cache.clear(at);
        }
        for change in changes {
            change.keys.iter().for_each(|key| self.cache.invalidate_search(key, at));
            let shown = match change.now {
                EntryState::Gone => {
                    self.places.write().remove(change.number);
                    None
                }
                EntryState::Stored(node) => self.rebuild_entry(&node),
                // The next reader loads it.
                EntryState::Unread => None,
                EntryState::Prepared(built) => {
                    let prebuilt = built.downcast_ref::<PendingEntry>();
                    prebuilt.and_then(|prebuilt| prebuilt.take(change.number)).filter(|shown| self.is_current(shown))
                }
            };
            self.cache.change(change.number, shown, at);
        }
        // After the caches are updated, since a marked identity is renewed from them at once.
        self.mark_bound(touched);
        self.bell.send_replace(());
    }

    fn credentials_changed(&self, entries: &[EntryNumber]) {
        let at = self.cache.next_generation();
        entries.iter().for_each(|entry| self.cache.remove_credential(*entry, at));
        self.mark_credentials(entries);
    }
}
