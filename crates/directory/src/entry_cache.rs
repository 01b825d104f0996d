//! Cache of entries, credentials and search results. A commit updates it before the commit is acknowledged.
//!
//! A reader may insert what it read only if that did not change in the meantime. Each change therefore has a
//! generation, and each stripe of entry numbers holds the generation of its last change.

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use quick_cache::{DefaultHashBuilder, Weighter, sync::Cache};
use tocsin_store::entries::{EntryKey, EntryNode, EntryNumber};

use crate::{entry::Entry, password::Credential, schema::Schema};

/// A cached entry, with its protocol encoding.
#[derive(Debug)]
pub struct CachedEntry {
    /// The entry.
    pub entry: Entry,
    /// The encoding by a protocol server, once computed.
    pub rendering: OnceLock<Rendering>,
    /// Approximate size in bytes, once computed.
    pub(crate) bytes: OnceLock<usize>,
    /// Stored form of a subscriber, from which a modification can be computed.
    pub(crate) source: Option<Source>,
}

/// Fields of a subscriber that its entry does not show, needed to compute a modification.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its attributes as JSON.
    pub(crate) attributes: Arc<str>,
    /// Whether it was placed in the tree.
    pub(crate) is_placed: bool,
    /// Whether it is enabled.
    pub(crate) enabled: bool,
}

impl CachedEntry {
    /// Wraps an entry that is not encoded yet.
    pub fn of(entry: Entry) -> CachedEntry {
        CachedEntry { entry, rendering: OnceLock::new(), bytes: OnceLock::new(), source: None }
    }

    /// Approximate size of the entry, in bytes.
    pub fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.entry.bytes())
    }

    /// Wraps the entry of a stored row.
    pub(crate) fn stored(entry: Entry, node: &EntryNode) -> CachedEntry {
        let EntryNode::Subscriber(subscriber, placement) = node else { return CachedEntry::of(entry) };
        let profile = &subscriber.profile;
        let json = serde_json::to_string(&profile.attributes).expect("maps with text keys and finite numbers are JSON");
        let source = Source { attributes: json.into(), is_placed: placement.is_some(), enabled: profile.enabled };
        CachedEntry { source: Some(source), ..CachedEntry::of(entry) }
    }
}

/// An entry as it will be after a commit, built before it. The commit assigns its number.
#[derive(Debug)]
pub(crate) struct PendingEntry {
    shown: Mutex<Option<CachedEntry>>,
    /// Schema under which its index keys were made.
    schema: Arc<Schema>,
}

impl PendingEntry {
    pub(crate) fn of(shown: CachedEntry, schema: Arc<Schema>) -> Arc<PendingEntry> {
        Arc::new(PendingEntry { shown: Mutex::new(Some(shown)), schema })
    }

    /// Whether its index keys were made under this schema.
    pub(crate) fn has_schema(&self, schema: &Arc<Schema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
    }

    /// Takes the entry, with the number that the commit assigned.
    pub(crate) fn take(&self, number: EntryNumber) -> Option<Arc<CachedEntry>> {
        let mut shown = self.shown.lock().take()?;
        shown.entry.number = number;
        Some(Arc::new(shown))
    }
}

/// Encoded attributes of an entry, one after the other.
#[derive(Debug)]
pub struct Rendering {
    /// The encoded bytes.
    pub bytes: Box<[u8]>,
    /// End offset of each attribute.
    pub ends: Box<[u32]>,
}

/// Generation of the cache, incremented by each change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryCacheGeneration(u64);

#[derive(Clone)]
struct ByBytes;

impl Weighter<EntryNumber, Arc<CachedEntry>> for ByBytes {
    fn weight(&self, _: &EntryNumber, shown: &Arc<CachedEntry>) -> u64 {
        // The encoding and the stored form together are about as large as the entry.
        2 * shown.bytes() as u64
    }
}

const STRIPES: usize = 1 << 12;
/// Cache memory per cached name or search result, in bytes of the entry cache.
const BYTES_FOR_A_NAME: u64 = 4_096;

pub(crate) struct EntryCache {
    entries: Cache<EntryNumber, Arc<CachedEntry>, ByBytes>,
    /// DNs as clients spell them, with the entry number and the hash of the normal form.
    names: Cache<Box<str>, (EntryNumber, u64)>,
    found: Cache<EntryKey, Arc<[EntryNumber]>>,
    /// Stored credentials (password hashes).
    credentials: Cache<EntryNumber, Arc<Credential>>,
    stripes: Box<[Mutex<u64>]>,
    generation: AtomicU64,
    /// Reads from before this generation are not inserted.
    floor: AtomicU64,
    hasher: FixedState,
}

impl EntryCache {
    pub(crate) fn new(bytes: u64) -> EntryCache {
        let count = usize::try_from(bytes / BYTES_FOR_A_NAME).unwrap_or(usize::MAX).max(16);
        EntryCache {
            entries: Cache::with(count, bytes, ByBytes, DefaultHashBuilder::default(), Default::default()),
            names: Cache::new(count * 2),
            found: Cache::new(count * 2),
            credentials: Cache::new(count),
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            generation: AtomicU64::new(1),
            floor: AtomicU64::new(0),
            hasher: FixedState::default(),
        }
    }

    /// The current generation. Must be called before reading anything that is inserted later.
    pub(crate) fn generation(&self) -> EntryCacheGeneration {
        EntryCacheGeneration(self.generation.load(Ordering::SeqCst))
    }

    pub(crate) fn entry(&self, number: EntryNumber) -> Option<Arc<CachedEntry>> {
        self.entries.get(&number)
    }

    /// The entry found earlier under this spelling of its name, if it still has that name.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<CachedEntry>> {
        let (number, hash) = self.names.get(name)?;
        self.entry(number).filter(|shown| self.hash(&shown.entry.key) == hash)
    }

    pub(crate) fn found(&self, key: &EntryKey) -> Option<Arc<[EntryNumber]>> {
        self.found.get(key)
    }

    pub(crate) fn credential(&self, number: EntryNumber) -> Option<Arc<Credential>> {
        self.credentials.get(&number)
    }

    /// Inserts a credential unless it changed after a generation.
    pub(crate) fn insert_credential(
        &self,
        number: EntryNumber,
        credential: Arc<Credential>,
        since: EntryCacheGeneration,
    ) {
        self.if_unchanged(self.credential_hash(number), since, || self.credentials.insert(number, credential));
    }

    /// Inserts an entry unless it changed after a generation.
    pub(crate) fn insert(&self, shown: Arc<CachedEntry>, since: EntryCacheGeneration) {
        let number = shown.entry.number;
        self.if_unchanged(self.hash(&number), since, || self.entries.insert(number, shown));
    }

    /// Caches the spelling of a name under which an entry was requested.
    pub(crate) fn insert_name(&self, name: &str, entry: &Entry) {
        self.names.insert(name.into(), (entry.number, self.hash(&entry.key)));
    }

    pub(crate) fn insert_search(&self, key: EntryKey, numbers: Arc<[EntryNumber]>, since: EntryCacheGeneration) {
        self.if_unchanged(self.hash(&key), since, || self.found.insert(key, numbers));
    }

    /// Starts a change and returns its generation.
    pub(crate) fn next_generation(&self) -> EntryCacheGeneration {
        EntryCacheGeneration(self.generation.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Replaces an entry as of a generation; `None` removes it.
    pub(crate) fn change(&self, number: EntryNumber, now: Option<Arc<CachedEntry>>, at: EntryCacheGeneration) {
        let mut last = self.stripe(self.hash(&number)).lock();
        *last = at.0;
        match now {
            Some(shown) => self.entries.insert(number, shown),
            None => drop(self.entries.remove(&number)),
        }
    }

    /// Invalidates the search result of a key.
    pub(crate) fn invalidate_search(&self, key: &EntryKey, at: EntryCacheGeneration) {
        let mut last = self.stripe(self.hash(key)).lock();
        *last = at.0;
        self.found.remove(key);
    }

    /// Invalidates the credential of an entry.
    pub(crate) fn remove_credential(&self, number: EntryNumber, at: EntryCacheGeneration) {
        let mut last = self.stripe(self.credential_hash(number)).lock();
        *last = at.0;
        self.credentials.remove(&number);
    }

    /// Invalidates everything.
    pub(crate) fn clear(&self, at: EntryCacheGeneration) {
        self.floor.store(at.0, Ordering::SeqCst);
        // A reader that saw the old floor has inserted its value by then.
        self.stripes.iter().for_each(|stripe| drop(stripe.lock()));
        self.entries.clear();
        self.names.clear();
        self.found.clear();
        self.credentials.clear();
    }

    /// Number of entries and their approximate size in bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.entries.len(), self.entries.weight())
    }

    /// Generation of the last complete invalidation.
    pub(crate) fn floor(&self) -> EntryCacheGeneration {
        EntryCacheGeneration(self.floor.load(Ordering::SeqCst))
    }

    fn if_unchanged(&self, hash: u64, since: EntryCacheGeneration, insert: impl FnOnce()) {
        let last = self.stripe(hash).lock();
        if *last <= since.0 && self.floor.load(Ordering::SeqCst) <= since.0 {
            insert();
        }
    }

    fn credential_hash(&self, number: EntryNumber) -> u64 {
        self.hash(&("credential", number))
    }

    fn hash(&self, what: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(what)
    }

    fn stripe(&self, hash: u64) -> &Mutex<u64> {
        &self.stripes[hash as usize % STRIPES]
    }
}

#[cfg(test)]
mod tests {
    use tocsin_model::time::Timestamp;

    use super::*;

    fn shown(number: i64, key: &str) -> Arc<CachedEntry> {
        let entry = Entry {
            number: EntryNumber(number),
            parent: None,
            dn: key.into(),
            key: key.into(),
            attributes: Vec::new(),
            shown: 0,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            revision: 1,
        };
        Arc::new(CachedEntry::of(entry))
    }

    #[test]
    fn an_entry_read_before_a_change_is_not_cached_after_it() {
        let cache = EntryCache::new(1 << 20);
        let before = cache.generation();
        cache.insert(shown(1, "cn=a"), before);
        cache.insert_name("CN=A", &shown(1, "cn=a").entry);
        assert!(cache.named("CN=A").is_some());
        cache.change(EntryNumber(1), Some(shown(1, "cn=b")), cache.next_generation());
        assert!(cache.named("CN=A").is_none(), "it has another name");
        cache.insert(shown(1, "cn=a"), before);
        assert_eq!(cache.entry(EntryNumber(1)).expect("kept").entry.key, "cn=b");
        cache.clear(cache.next_generation());
        cache.insert(shown(2, "cn=c"), before);
        assert!(cache.entry(EntryNumber(2)).is_none());
        cache.insert(shown(2, "cn=c"), cache.generation());
        assert_eq!(cache.size().0, 1);
    }

    #[test]
    fn a_credential_read_before_a_change_is_not_cached_after_it() {
        let cache = EntryCache::new(1 << 20);
        let (ann, before) = (EntryNumber(-1), cache.generation());
        let hash = |text: &str| Arc::new(Credential::of(text.to_owned()));
        cache.insert_credential(ann, hash("old"), before);
        assert_eq!(cache.credential(ann), Some(hash("old")));
        cache.remove_credential(ann, cache.next_generation());
        assert_eq!(cache.credential(ann), None);
        cache.insert_credential(ann, hash("old"), before);
        assert_eq!(cache.credential(ann), None, "it was read before the change");
        cache.insert_credential(ann, hash("new"), cache.generation());
        assert_eq!(cache.credential(ann), Some(hash("new")));
        cache.clear(cache.next_generation());
        assert_eq!(cache.credential(ann), None);
    }
}
