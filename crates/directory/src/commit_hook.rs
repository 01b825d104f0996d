//! Commit hook: the store calls it for each change of entries, inside the commit and before the commit is acknowledged.
//!
//! It supplies the index keys, keeps login names unique and references intact, and invalidates what a change outdates:
//! cached entries, positions, search results and bound identities. So a caller whose commit was acknowledged reads its
//! own change, and a bind that a change ended is not used again. It is the only call from the store upwards.

use std::ops::Bound;

use tocsin_store::{
    entries::{
        EntryChange, EntryKey, EntryNode, EntryNumber, EntryReader, EntryState, EntryWatcher, EntryWriter, LoginNames,
        PreparedEntry,
    },
    error::StoreError,
};

use crate::{
    change::LOGIN,
    entry,
    entry_cache::PendingEntry,
    plan,
    schema::{FINDING, MEMBERS},
    tree::{Inner, PositionCache},
};

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

/// Identities that a commit affects.
enum Touched {
    /// All identities.
    All,
    /// Identities of these entries.
    Some(Vec<EntryNumber>),
}

impl Inner {
    /// The identities that a commit affects. `moved`: the DNs of entries outside the changes changed too.
    fn touched_identities(&self, changes: &[EntryChange], moved: bool) -> Touched {
        let of_groups = self.access.names_groups();
        let is_of_groups = |change: &EntryChange| {
            change.keys.iter().any(|key| MEMBERS.contains(&&*key.index) || FINDING == &*key.index)
        };
        if moved || of_groups && changes.iter().any(is_of_groups) {
            return Touched::All;
        }
        // A prepared change touches attributes only, which can affect memberships of dynamic groups.
        let counts = |change: &&EntryChange| of_groups || !matches!(change.now, EntryState::Prepared(_));
        Touched::Some(changes.iter().filter(counts).map(|change| change.number).collect())
    }

    /// Marks identities as stale.
    fn mark_bound(&self, touched: Touched) {
        match touched {
            _ if self.bound.is_empty() => {}
            Touched::All => self.bound.mark_all(),
            Touched::Some(numbers) => numbers.into_iter().for_each(|number| self.bound.mark_stale(number)),
        }
    }

    fn mark_credentials(&self, entries: &[EntryNumber]) {
        if !self.bound.is_empty() {
            entries.iter().for_each(|entry| self.bound.mark_stale(*entry));
        }
    }
}
