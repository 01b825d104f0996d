//! Entries that are kept at hand, and what was found of late. What a commit changes is true here before its caller hears
//! of it.
//!
//! A reader may bring what it read only if nothing of it changed meanwhile. To know that, each change has a moment, and each
//! of some stripes of numbers the moment of its last change.

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
use tocsin_store::entries::{EntryKey, EntryNumber, Node};

use crate::{entry::Entry, password::Credential, schema::Schema};

/// An entry, and how a face writes it.
#[derive(Debug)]
pub struct Shown {
    /// The entry.
    pub entry: Entry,
    /// As a face writes it, once one has.
    pub rendering: OnceLock<Rendering>,
    /// About how many bytes it takes up, once that was counted.
    pub(crate) bytes: OnceLock<usize>,
    /// Of a subscriber's, as it is stored: what it becomes can be worked out of it.
    pub(crate) source: Option<Source>,
}

/// What of a subscriber is not seen in its entry, and what changes with its attributes.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its attributes as JSON.
    pub(crate) attributes: Arc<str>,
    /// Whether it was placed in the tree.
    pub(crate) is_placed: bool,
    /// Whether it is enabled.
    pub(crate) enabled: bool,
}

impl Shown {
    /// An entry that nobody has written yet.
    pub fn of(entry: Entry) -> Shown {
        Shown { entry, rendering: OnceLock::new(), bytes: OnceLock::new(), source: None }
    }

    /// About how many bytes the entry takes up.
    pub fn bytes(&self) -> usize {
        *self.bytes.get_or_init(|| self.entry.bytes())
    }

    /// The entry of what is stored.
    pub(crate) fn stored(entry: Entry, node: &Node) -> Shown {
        let Node::Subscriber(subscriber, placement) = node else { return Shown::of(entry) };
        let profile = &subscriber.profile;
        let json = serde_json::to_string(&profile.attributes).expect("maps with text keys and finite numbers are JSON");
        let source = Source { attributes: json.into(), is_placed: placement.is_some(), enabled: profile.enabled };
        Shown { source: Some(source), ..Shown::of(entry) }
    }
}

/// An entry as it will be after a commit, built before it. Its number is told by the commit.
#[derive(Debug)]
pub(crate) struct Prebuilt {
    shown: Mutex<Option<Shown>>,
    /// By which its keys were made.
    schema: Arc<Schema>,
}

impl Prebuilt {
    pub(crate) fn of(shown: Shown, schema: Arc<Schema>) -> Arc<Prebuilt> {
        Arc::new(Prebuilt { shown: Mutex::new(Some(shown)), schema })
    }

    /// Whether its keys were made by this schema.
    pub(crate) fn holds(&self, schema: &Arc<Schema>) -> bool {
        Arc::ptr_eq(&self.schema, schema)
    }

    /// The entry, once.
    pub(crate) fn take(&self, number: EntryNumber) -> Option<Arc<Shown>> {
        let mut shown = self.shown.lock().take()?;
        shown.entry.number = number;
        Some(Arc::new(shown))
    }
}

/// The attributes of an entry as a face writes them, one after the other.
#[derive(Debug)]
pub struct Rendering {
    /// All of them.
    pub bytes: Box<[u8]>,
    /// Where each of them ends.
    pub ends: Box<[u32]>,
}

/// When something was read, by the count of changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

#[derive(Clone)]
struct ByBytes;

impl Weighter<EntryNumber, Arc<Shown>> for ByBytes {
    fn weight(&self, _: &EntryNumber, shown: &Arc<Shown>) -> u64 {
        // The rendering and the source are together about as large as the entry.
        2 * shown.bytes() as u64
    }
}

const STRIPES: usize = 1 << 12;
/// Names, and keys with what was found, that are kept for each 4 KiB of entries.
const BYTES_FOR_A_NAME: u64 = 4_096;

pub(crate) struct Kept {
    entries: Cache<EntryNumber, Arc<Shown>, ByBytes>,
    /// Names as they were asked for, with the numbers and the hashes of their normal forms.
    names: Cache<Box<str>, (EntryNumber, u64)>,
    found: Cache<EntryKey, Arc<[EntryNumber]>>,
    /// With what holders of entries prove themselves: hashes of passwords, as they are stored.
    credentials: Cache<EntryNumber, Arc<Credential>>,
    stripes: Box<[Mutex<u64>]>,
    moment: AtomicU64,
    /// What was read before this moment is not kept.
    floor: AtomicU64,
    hasher: FixedState,
}

impl Kept {
    pub(crate) fn new(bytes: u64) -> Kept {
        let count = usize::try_from(bytes / BYTES_FOR_A_NAME).unwrap_or(usize::MAX).max(16);
        Kept {
            entries: Cache::with(count, bytes, ByBytes, DefaultHashBuilder::default(), Default::default()),
            names: Cache::new(count * 2),
            found: Cache::new(count * 2),
            credentials: Cache::new(count),
            stripes: (0..STRIPES).map(|_| Mutex::new(0)).collect(),
            moment: AtomicU64::new(1),
            floor: AtomicU64::new(0),
            hasher: FixedState::default(),
        }
    }

    /// To be asked before anything is read that is to be kept.
    pub(crate) fn moment(&self) -> Moment {
        Moment(self.moment.load(Ordering::SeqCst))
    }

    pub(crate) fn entry(&self, number: EntryNumber) -> Option<Arc<Shown>> {
        self.entries.get(&number)
    }

    /// The entry that was once found under a name, if it still has it.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Shown>> {
        let (number, hash) = self.names.get(name)?;
        self.entry(number).filter(|shown| self.hash(&shown.entry.key) == hash)
    }

    pub(crate) fn found(&self, key: &EntryKey) -> Option<Arc<[EntryNumber]>> {
        self.found.get(key)
    }

    pub(crate) fn credential(&self, number: EntryNumber) -> Option<Arc<Credential>> {
        self.credentials.get(&number)
    }

    /// Keeps what the holder of an entry proves itself with, if it was read since a moment.
    pub(crate) fn keep_credential(&self, number: EntryNumber, credential: Arc<Credential>, since: Moment) {
        self.if_unchanged(self.credential_hash(number), since, || self.credentials.insert(number, credential));
    }

    /// Keeps an entry that was read since a moment.
    pub(crate) fn keep(&self, shown: Arc<Shown>, since: Moment) {
        let number = shown.entry.number;
        self.if_unchanged(self.hash(&number), since, || self.entries.insert(number, shown));
    }

    /// Keeps under which name an entry was asked for.
    pub(crate) fn keep_name(&self, name: &str, entry: &Entry) {
        self.names.insert(name.into(), (entry.number, self.hash(&entry.key)));
    }

    pub(crate) fn keep_found(&self, key: EntryKey, numbers: Arc<[EntryNumber]>, since: Moment) {
        self.if_unchanged(self.hash(&key), since, || self.found.insert(key, numbers));
    }

    /// Begins a change.
    pub(crate) fn next_moment(&self) -> Moment {
        Moment(self.moment.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// An entry is like this from a moment on; `None`: gone, or not known.
    pub(crate) fn change(&self, number: EntryNumber, now: Option<Arc<Shown>>, at: Moment) {
        let mut last = self.stripe(self.hash(&number)).lock();
        *last = at.0;
        match now {
            Some(shown) => self.entries.insert(number, shown),
            None => drop(self.entries.remove(&number)),
        }
    }

    /// What is found under a key changed.
    pub(crate) fn forget_found(&self, key: &EntryKey, at: Moment) {
        let mut last = self.stripe(self.hash(key)).lock();
        *last = at.0;
        self.found.remove(key);
    }

    /// The holder of an entry proves itself in another way.
    pub(crate) fn forget_credential(&self, number: EntryNumber, at: Moment) {
        let mut last = self.stripe(self.credential_hash(number)).lock();
        *last = at.0;
        self.credentials.remove(&number);
    }

    /// Nothing is as it was.
    pub(crate) fn forget_all(&self, at: Moment) {
        self.floor.store(at.0, Ordering::SeqCst);
        // Whoever found the floor below what it read has put it in by then.
        self.stripes.iter().for_each(|stripe| drop(stripe.lock()));
        self.entries.clear();
        self.names.clear();
        self.found.clear();
        self.credentials.clear();
    }

    /// How many entries, and about how many bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.entries.len(), self.entries.weight())
    }

    /// When all was forgotten the last time.
    pub(crate) fn floor(&self) -> Moment {
        Moment(self.floor.load(Ordering::SeqCst))
    }

    fn if_unchanged(&self, hash: u64, since: Moment, keep: impl FnOnce()) {
        let last = self.stripe(hash).lock();
        if *last <= since.0 && self.floor.load(Ordering::SeqCst) <= since.0 {
            keep();
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

    fn shown(number: i64, key: &str) -> Arc<Shown> {
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
        Arc::new(Shown::of(entry))
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let kept = Kept::new(1 << 20);
        let before = kept.moment();
        kept.keep(shown(1, "cn=a"), before);
        kept.keep_name("CN=A", &shown(1, "cn=a").entry);
        assert!(kept.named("CN=A").is_some());
        kept.change(EntryNumber(1), Some(shown(1, "cn=b")), kept.next_moment());
        assert!(kept.named("CN=A").is_none(), "it has another name");
        kept.keep(shown(1, "cn=a"), before);
        assert_eq!(kept.entry(EntryNumber(1)).expect("kept").entry.key, "cn=b");
        kept.forget_all(kept.next_moment());
        kept.keep(shown(2, "cn=c"), before);
        assert!(kept.entry(EntryNumber(2)).is_none());
        kept.keep(shown(2, "cn=c"), kept.moment());
        assert_eq!(kept.size().0, 1);
    }

    #[test]
    fn what_proved_somebody_before_a_change_proves_nothing_after_it() {
        let kept = Kept::new(1 << 20);
        let (ann, before) = (EntryNumber(-1), kept.moment());
        let hash = |text: &str| Arc::new(Credential::of(text.to_owned()));
        kept.keep_credential(ann, hash("old"), before);
        assert_eq!(kept.credential(ann), Some(hash("old")));
        kept.forget_credential(ann, kept.next_moment());
        assert_eq!(kept.credential(ann), None);
        kept.keep_credential(ann, hash("old"), before);
        assert_eq!(kept.credential(ann), None, "it was read before the change");
        kept.keep_credential(ann, hash("new"), kept.moment());
        assert_eq!(kept.credential(ann), Some(hash("new")));
        kept.forget_all(kept.next_moment());
        assert_eq!(kept.credential(ann), None);
    }
}
