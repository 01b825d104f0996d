//! The directory service: opens over a store, finds entries by name, and runs transactions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tocsin_model::value::Value;
use tocsin_store::{
    entries::{DiskCheck, Entries, EntryNode, EntryReader, EntryWriter, Object},
    error::StoreError,
};
use tokio::sync::watch;

use crate::{
    access::{Access, AuthzId},
    dn::Dn,
    entry_cache::{CachedEntry, EntryCache, EntryCacheGeneration},
    ldap_error::{Code, LdapError},
    options::{Clock, Options},
    plan,
    policy::Policies,
    schema::{Kind, Schema},
    tree::{Inner, NEVER, PEOPLE, parse},
};

/// Entries per commit while an index is built.
const INDEXED_AT_ONCE: usize = 500;

/// The directory service.
#[derive(Clone)]
pub struct Directory {
    pub(crate) entries: Arc<dyn Entries>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) clock: Clock,
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
            .map_err(|why| LdapError::new(Code::Other, format!("the access rule {why}")))?
            .with_addresses(options.shape.devices.iter().map(|(key, _)| &**key), &schema);
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
