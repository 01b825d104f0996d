//! The directory that faces ask: resolves names, keeps entries at hand, and keeps both true by what the store tells.

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
        Branches, Built, Entries, EntryChange, EntryKey, EntryNumber, EntryWatcher, LoginNames, Node, Now, Object,
        Room, Tree,
    },
    error::StoreError,
};
use tokio::sync::watch;

use crate::{
    access::{Access, Asker, is_child},
    change::{LOGIN, Lifetimes, NEVER},
    dn::{Dn, Rdn},
    entry::{self, Place, Shape, view},
    kept::{Kept, Moment, Prebuilt, Shown},
    password::Lockout,
    plan,
    policy::Policies,
    refusal::{Code, Refusal},
    schema::{Kind, Schema},
    standing::Register,
};

/// Where a subscriber stands that was not placed, below the suffix.
pub const PEOPLE: &str = "ou=people";
/// Entries whose keys are written in one commit, while an index is built.
const INDEXED_AT_ONCE: usize = 500;
/// Most containers whose places are kept.
const PLACES_MAX: usize = 65_536;

/// How the directory is.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of the first entry, such as `dc=example,dc=org`.
    pub suffix: String,
    /// How subscribers are shown.
    pub shape: Shape,
    /// Who may do what; none: the default rules.
    pub access: Vec<String>,
    /// After how many wrong passwords an entry is locked, and for how long.
    pub lockout: Lockout,
    /// What is asked of passwords, such as `to * pwdMinLength=12`; the first rule of a place decides.
    pub password_policy: Vec<String>,
    /// How long entries live that end by themselves.
    pub lifetimes: Lifetimes,
    /// About how much memory entries may take that are kept at hand.
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

/// The clock of the process.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The directory.
#[derive(Clone)]
pub struct Directory {
    pub(crate) entries: Arc<dyn Entries>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) clock: Clock,
}

/// Where entries stand that have others below them.
#[derive(Default)]
struct Places {
    by_number: HashMap<EntryNumber, Arc<Place>>,
    /// By their names in normal form.
    by_key: HashMap<String, Arc<Place>>,
}

impl Places {
    fn insert(&mut self, place: Arc<Place>) {
        if self.by_number.len() >= PLACES_MAX {
            *self = Places::default();
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
    /// When the next entry ends, as far as it is known.
    pub(crate) next_end: watch::Sender<Timestamp>,
    pub(crate) suffix: Dn,
    pub(crate) suffix_text: String,
    pub(crate) suffix_key: String,
    people: OnceLock<EntryNumber>,
    places: RwLock<Places>,
    /// Subscribers that have been seen to have entries below them.
    parents: RwLock<HashSet<EntryNumber>>,
    pub(crate) kept: Kept,
    /// The indexes that hold all entries.
    pub(crate) ready: ArcSwap<BTreeSet<String>>,
    /// Rings with each commit that changed entries.
    pub(crate) bell: watch::Sender<()>,
    /// The identities that are bound.
    pub(crate) bound: Arc<Register>,
    /// The clock of the process.
    pub(crate) clock: Clock,
    /// Held by whoever builds indexes.
    building: tokio::sync::Mutex<()>,
    /// Evaluations of filters that take long, at the same time.
    pub(crate) evaluations: tokio::sync::Semaphore,
}

/// Evaluations of filters that may take long at the same time. Others wait for their turn, within the time of their search.
const EVALUATIONS_MAX: usize = 2;

impl Directory {
    /// Opens the directory over a store, and makes its first entry and the container of those who were not placed if they
    /// are missing. From then on its caches follow the store.
    ///
    /// # Errors
    /// The suffix or a rule cannot be read; the store does not answer.
    pub async fn open(entries: Arc<dyn Entries>, options: Options, clock: Clock) -> Result<Directory, Refusal> {
        let stored = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        entries
            .look(Box::new({
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
                tracing::error!(identifier, %error, "a definition of the schema is not used");
            }
        }
        let invalid = |what: String| Refusal::new(Code::InvalidDnSyntax, what);
        let suffix = Dn::parse(&options.suffix).map_err(|error| invalid(format!("the suffix: {error}")))?;
        if suffix.0.is_empty() {
            return Err(invalid("the suffix is empty; give a name such as dc=example,dc=org".to_owned()));
        }
        let access = Access::read(&options.access, &schema)
            .map_err(|why| Refusal::new(Code::Other, format!("the access rule {why}")))?;
        let policies = Policies::read(&options.password_policy, options.lockout, &schema)
            .map_err(|why| Refusal::new(Code::Other, format!("the password policy {why}")))?;
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
            kept: Kept::new(options.cache_bytes),
            ready: ArcSwap::from_pointee(BTreeSet::new()),
            schema: ArcSwap::from_pointee(schema),
        });
        entries.watch(inner.clone());
        let directory = Directory { entries, inner, clock };
        directory.make_first_entries().await?;
        if indexes.is_empty() {
            // Others changed subscribers meanwhile, and nobody noted which.
            directory.change(Room::NotNeeded, |tree| Ok(tree.cut_entry_feed()?)).await?;
        }
        if indexes.iter().cloned().collect::<BTreeSet<_>>() == directory.wanted_indexes() {
            directory.inner.ready.store(Arc::new(directory.wanted_indexes()));
        }
        Ok(directory)
    }

    /// The name of the first entry.
    pub fn suffix(&self) -> &str {
        &self.inner.suffix_text
    }

    /// The schema as it is now.
    pub fn schema(&self) -> Arc<Schema> {
        self.inner.schema.load_full()
    }

    /// Who may do what.
    pub fn access(&self) -> &Access {
        &self.inner.access
    }

    /// How many entries are kept at hand, and about how many bytes they take.
    pub fn kept(&self) -> (usize, u64) {
        self.inner.kept.size()
    }

    /// Empties the cache of entries: they are read anew.
    pub fn forget_entries(&self) {
        self.inner.kept.forget_all(self.inner.kept.next_moment());
    }

    async fn make_first_entries(&self) -> Result<(), Refusal> {
        let (inner, now) = (self.inner.clone(), (self.clock)());
        let made = self
            .change(Room::NotNeeded, move |tree| {
                let schema = inner.schema.load();
                let first = match tree.branches().child(None, &inner.suffix_key)? {
                    Some(node) => node.number(),
                    None => tree
                        .put_object(first_entry(&inner.suffix, &inner.suffix_text, &inner.suffix_key, &schema), now)?,
                };
                match tree.branches().child(Some(first), PEOPLE)? {
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

    /// The indexes that the schema asks for.
    fn wanted_indexes(&self) -> BTreeSet<String> {
        plan::indexes(&self.inner.schema.load())
    }

    /// Builds the indexes that the schema asks for and that are not there, in small steps. Until it is done, searches that
    /// want them look at every entry.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn build_indexes(&self) -> Result<(), Refusal> {
        let _alone = self.inner.building.lock().await;
        let wanted = self.wanted_indexes();
        let ready = self.inner.ready.load_full();
        if *ready == wanted {
            return Ok(());
        }
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>();
        let kept = names(&ready.intersection(&wanted).cloned().collect());
        self.change(Room::NotNeeded, move |tree| Ok(tree.set_indexes(&kept)?)).await?;
        let mut after = None;
        loop {
            let next = self.change(Room::Needed, move |tree| Ok(tree.index_page(after, INDEXED_AT_ONCE)?)).await?;
            match next {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        let all = names(&wanted);
        self.change(Room::NotNeeded, move |tree| Ok(tree.set_indexes(&all)?)).await?;
        tracing::info!(indexes = wanted.len(), "the indexes of the directory are built");
        self.inner.ready.store(Arc::new(wanted));
        Ok(())
    }

    /// When entries were renamed, or the schema grew, the last time.
    pub fn renamed(&self) -> Moment {
        self.inner.kept.floor()
    }

    /// An entry that is kept at hand under exactly this name.
    pub fn at_hand(&self, dn: &str) -> Option<Arc<Shown>> {
        self.inner.kept.named(dn)
    }

    /// An entry by its name.
    ///
    /// # Errors
    /// The name cannot be read; there is none, with the nearest above that is there.
    pub async fn find(&self, dn: &str) -> Result<Arc<Shown>, Refusal> {
        if let Some(shown) = self.at_hand(dn) {
            return Ok(shown);
        }
        let parsed = parse(dn)?;
        let (inner, since) = (self.inner.clone(), self.inner.kept.moment());
        let shown = self
            .look(move |branches| {
                let (node, above) = inner.walk(branches, &parsed)?;
                let shown = inner.show(&node, above.as_deref(), since);
                if let Some(above) = above {
                    inner.keep_place(above, since);
                }
                Ok(shown)
            })
            .await?;
        self.inner.kept.keep_name(dn, &shown.entry);
        Ok(shown)
    }

    /// An entry by its name, if the asker sees it.
    ///
    /// # Errors
    /// The name cannot be read; there is none that the asker sees, with the nearest above that it does see.
    pub async fn find_for(&self, asker: &Asker, dn: &str) -> Result<Arc<Shown>, Refusal> {
        match self.find(dn).await {
            Ok(shown) if asker.manages || self.access().grant(asker, &shown.entry).sees() => Ok(shown),
            Err(refusal) if refusal.code != Code::NoSuchObject => Err(refusal),
            Ok(_) | Err(_) => Err(self.absent(asker, dn).await),
        }
    }

    /// The refusal for a name at which an asker sees no entry, whether there is none or it is hidden.
    pub async fn absent(&self, asker: &Asker, dn: &str) -> Refusal {
        let parsed = match parse(dn) {
            Ok(parsed) => parsed,
            Err(refusal) => return refusal,
        };
        let (inner, asker) = (self.inner.clone(), asker.clone());
        let made = self.look(move |branches| Ok(inner.absent(branches, &asker, &parsed))).await;
        made.unwrap_or_else(|refusal| refusal)
    }

    /// Keeps at hand what there is room for, newest last: what a start leaves cold.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn warm(&self, bytes_max: u64) -> Result<usize, Refusal> {
        let (mut after, mut count) = (None, 0);
        loop {
            let (inner, since) = (self.inner.clone(), self.inner.kept.moment());
            let page = self
                .look(move |branches| {
                    let page = branches.page(None, true, after, INDEXED_AT_ONCE)?;
                    for node in &page {
                        let above = inner.above(branches, node)?;
                        let shown = inner.show(node, above.as_deref(), since);
                        inner.kept.keep_name(&shown.entry.dn, &shown.entry);
                    }
                    Ok(page.iter().map(Node::number).collect::<Vec<_>>())
                })
                .await?;
            count += page.len();
            if page.len() < INDEXED_AT_ONCE || self.kept().1 >= bytes_max {
                return Ok(count);
            }
            after = page.last().copied();
        }
    }

    /// Looks at the store.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        job: impl FnOnce(&dyn Branches) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let answer = Arc::new(Mutex::new(None));
        let done = self
            .entries
            .look(Box::new({
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

    /// Changes the store; what the job refuses is undone.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        room: Room,
        job: impl FnOnce(&mut dyn Tree) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
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
                        // Whatever it says, its transaction is undone.
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

/// Reads a name.
pub(crate) fn parse(dn: &str) -> Result<Dn, Refusal> {
    Dn::parse(dn).map_err(|error| Refusal::new(Code::InvalidDnSyntax, format!("the name is not valid: {error}")))
}

/// How a definition is called in the store.
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
    /// Whether those who were not placed stand below an entry.
    pub(crate) fn is_people(&self, number: EntryNumber) -> bool {
        self.people.get() == Some(&number)
    }

    /// Follows a name from the first entry. Gives the entry, and where the one above is.
    pub(crate) fn walk(&self, branches: &dyn Branches, dn: &Dn) -> Result<(Node, Option<Arc<Place>>), Refusal> {
        let (node, above) = self.walk_head(branches, dn)?;
        match &node {
            Node::Subscriber(..) => Ok((node, above)),
            Node::Object(object) => {
                let gone = || Refusal::new(Code::NoSuchObject, "there is no such entry");
                Ok((branches.node(object.number)?.ok_or_else(gone)?, above))
            }
        }
    }

    /// The same; an object without the values that are rows.
    pub(crate) fn walk_head(&self, branches: &dyn Branches, dn: &Dn) -> Result<(Node, Option<Arc<Place>>), Refusal> {
        let schema = self.schema.load();
        let missing = |matched: &str| Refusal {
            matched: matched.to_owned(),
            ..Refusal::new(Code::NoSuchObject, "there is no such entry")
        };
        let own = dn.0.len().checked_sub(self.suffix.0.len());
        let Some((rdns, suffix)) = own.map(|own| dn.0.split_at(own)) else { return Err(missing("")) };
        if schema.normal_dn(&Dn(suffix.to_vec())) != self.suffix_key {
            return Err(missing(""));
        }
        // What stands below an entry keeps it from going, and its number is never used again: what is kept is enough.
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

    /// The entry of a name, and where the one above is, if the asker sees the entry. One that is hidden is as one that is absent.
    pub(crate) fn visible(
        &self,
        branches: &dyn Branches,
        asker: &Asker,
        dn: &Dn,
    ) -> Result<(Node, Option<Arc<Place>>), Refusal> {
        let found = match self.walk(branches, dn) {
            Ok(found) => Some(found),
            Err(refusal) if refusal.code == Code::NoSuchObject => None,
            Err(refusal) => return Err(refusal),
        };
        let sees = |(node, above): &(Node, Option<Arc<Place>>)| {
            let key = entry::place(node, above.as_deref(), &self.schema.load()).key;
            asker.manages || self.access.grant_at(asker, &key, Some(node.number())).sees()
        };
        found.filter(sees).ok_or_else(|| self.absent(branches, asker, dn))
    }

    /// The refusal for a name at which an asker sees no entry. It is the same whether there is none or it is hidden, and names the
    /// nearest entry above that the asker sees.
    pub(crate) fn absent(&self, branches: &dyn Branches, asker: &Asker, dn: &Dn) -> Refusal {
        let matched = self.nearest_visible(branches, asker, dn);
        matched.map_or_else(
            |error| error,
            |matched| Refusal { matched, ..Refusal::new(Code::NoSuchObject, "there is no such entry") },
        )
    }

    fn nearest_visible(&self, branches: &dyn Branches, asker: &Asker, dn: &Dn) -> Result<String, Refusal> {
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
            if self.access.grant_at(asker, &place.key, Some(place.number)).sees() {
                matched.clone_from(&place.dn);
            }
            next = self.child(branches, &place, rdn, &schema)?;
            above = Some(place);
        }
        Ok(matched)
    }

    /// The entry of a relative name below another; an object without the values that are rows.
    pub(crate) fn child(
        &self,
        branches: &dyn Branches,
        above: &Place,
        rdn: &Rdn,
        schema: &Schema,
    ) -> Result<Option<Node>, Refusal> {
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
        if matches!(exact, Some(Node::Subscriber(_, None))) {
            return Ok(exact);
        }
        // Perhaps it was written in another case.
        let Some(normal) = crate::syntax::Rule::CaseIgnore.normal(value, schema) else { return Ok(None) };
        for number in plan::equal(branches, "uid", &normal)?.unwrap_or_default() {
            match branches.node(number)? {
                Some(Node::Subscriber(found, None)) if entry::unplaced_rdn(&found.id, schema).1 == key => {
                    return Ok(Some(Node::Subscriber(found, None)));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Where the entry above another is.
    pub(crate) fn above(&self, branches: &dyn Branches, node: &Node) -> Result<Option<Arc<Place>>, Refusal> {
        let parent = match node {
            Node::Subscriber(_, None) => self.people.get().copied(),
            node => node.parent(),
        };
        parent.map(|parent| self.place(branches, parent)).transpose()
    }

    fn place(&self, branches: &dyn Branches, number: EntryNumber) -> Result<Arc<Place>, Refusal> {
        if let Some(known) = self.places.read().by_number.get(&number) {
            return Ok(known.clone());
        }
        if number.subscriber().is_some() {
            self.parents.write().insert(number);
        }
        let since = self.kept.moment();
        let node = match (branches.head(number)?, self.people.get()) {
            (Some(node), _) => node,
            // A subscriber can be removed by other ways than ours, which know nothing of what stands below it.
            (None, Some(people)) if number.subscriber().is_some() => return self.place(branches, *people),
            (None, _) => return Err(StoreError::Damaged(format!("the entry {} stands nowhere", number.0)).into()),
        };
        let above = self.above(branches, &node)?;
        let place = Arc::new(entry::place(&node, above.as_deref(), &self.schema.load()));
        self.keep_place(place.clone(), since);
        Ok(place)
    }

    fn keep_place(&self, place: Arc<Place>, since: Moment) {
        let mut places = self.places.write();
        if self.kept.moment() == since {
            places.insert(place);
        }
    }

    /// Where the entry above one of this name is, if that is known.
    pub(crate) fn place_above(&self, dn: &Dn, schema: &Schema) -> Option<Arc<Place>> {
        let (_, over) = dn.0.split_first()?;
        self.places.read().by_key.get(&schema.normal_dn(&Dn(over.to_vec()))).cloned()
    }

    /// A changed entry as it is shown, if it is known where the one above is.
    fn shown_anew(&self, node: &Node) -> Option<Arc<Shown>> {
        let parent = match node {
            Node::Subscriber(_, None) => self.people.get().copied(),
            node => node.parent(),
        };
        let above = self.places.read().by_number.get(&parent?).cloned()?;
        Some(Arc::new(Shown::stored(view(node, Some(&above), &self.schema.load(), &self.shape), node)))
    }

    /// Whether an entry that was shown before still stands below the name that the one above has now.
    fn stands(&self, shown: &Shown) -> bool {
        let above = shown.entry.parent.and_then(|parent| self.places.read().by_number.get(&parent).cloned());
        above.is_some_and(|above| is_child(&shown.entry.key, &above.key) && shown.entry.dn.ends_with(&above.dn))
    }

    /// An entry as it is shown, kept at hand if it did not change since a moment.
    pub(crate) fn show(&self, node: &Node, above: Option<&Place>, since: Moment) -> Arc<Shown> {
        let entry = view(node, above, &self.schema.load(), &self.shape);
        let shown = Arc::new(Shown::stored(entry, node));
        self.kept.keep(shown.clone(), since);
        shown
    }
}

impl EntryWatcher for Inner {
    fn keys(&self, node: &Node) -> Vec<EntryKey> {
        let schema = self.schema.load();
        plan::keys(&entry::attributes(node, &schema, &self.shape), &schema)
    }

    fn have_same_keys(&self, old: &Node, now: &Node) -> bool {
        plan::have_same_keys(old, now, &self.schema.load())
    }

    fn holds(&self, built: &Built) -> bool {
        built.downcast_ref::<Prebuilt>().is_some_and(|prebuilt| prebuilt.holds(&self.schema.load()))
    }

    fn follow(&self, tree: &mut dyn Tree, old: &Node, now: Option<&Node>) -> Result<(), StoreError> {
        self.follow_name(tree, old, now).map_err(|refusal| StoreError::unavailable(refusal.message))
    }

    fn taken_login(
        &self,
        branches: &dyn Branches,
        entry: Option<EntryNumber>,
        names: LoginNames<'_>,
    ) -> Result<Option<String>, StoreError> {
        self.login_of_another(branches, entry, names).map_err(|refusal| StoreError::unavailable(refusal.message))
    }

    fn may_be_taken(
        &self,
        branches: &dyn Branches,
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
        let at = self.kept.next_moment();
        self.note_ends(changes.iter().filter_map(|change| change.now.node()));
        // The names of all below change with the name of an entry; that happens seldom.
        let is_above = |number: EntryNumber| number.subscriber().is_none() || self.parents.read().contains(&number);
        let is_gone = |change: &EntryChange| matches!(change.now, Now::Gone);
        let was_above = |change: &EntryChange| is_gone(change) && self.parents.read().contains(&change.number);
        let moved = changes.iter().any(|change| change.renamed && is_above(change.number) || was_above(change));
        let touched = self.touched_identities(&changes, moved);
        if moved {
            *self.places.write() = Places::default();
            self.kept.forget_all(at);
        }
        for change in changes {
            change.keys.iter().for_each(|key| self.kept.forget_found(key, at));
            let shown = match change.now {
                Now::Gone => {
                    self.places.write().remove(change.number);
                    None
                }
                Now::Stored(node) => self.shown_anew(&node),
                // Whoever asks for it next reads it.
                Now::Unread => None,
                Now::Built(built) => {
                    let prebuilt = built.downcast_ref::<Prebuilt>();
                    prebuilt.and_then(|prebuilt| prebuilt.take(change.number)).filter(|shown| self.stands(shown))
                }
            };
            self.kept.change(change.number, shown, at);
        }
        // Once the caches are true: a marked identity is renewed from them at once.
        self.mark_bound(touched);
        self.bell.send_replace(());
    }

    fn credentials_changed(&self, entries: &[EntryNumber]) {
        let at = self.kept.next_moment();
        entries.iter().for_each(|entry| self.kept.forget_credential(*entry, at));
        self.mark_credentials(entries);
    }
}
