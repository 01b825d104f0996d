//! Dry run of a change: all checks in a read transaction, without a write.

use tocsin_model::time::Timestamp;
use tocsin_store::{
    entries::{
        DiskCheck, EntryNode, EntryNumber, EntryReader, EntryWriter, Object, Placement, RowChange, StoredObject,
    },
    error::StoreError,
    records::{NewSubscriber, Precondition},
};

use super::preconditions::Preconditions;
use crate::{directory::Directory, ldap_error::LdapError};

/// Entry writer that discards all writes.
struct DryRun<'a>(&'a dyn EntryReader);

/// Number of an entry that a dry run would add.
const UNSTORED: EntryNumber = EntryNumber(i64::MAX);

impl EntryWriter for DryRun<'_> {
    fn reader(&self) -> &dyn EntryReader {
        self.0
    }

    fn put_object(&mut self, _new: Object, _now: Timestamp) -> Result<EntryNumber, StoreError> {
        Ok(UNSTORED)
    }

    fn change_object(&mut self, _old: &StoredObject, _new: Object, _now: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    fn change_rows(&mut self, _old: &StoredObject, _change: &RowChange, _now: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_subscriber(
        &mut self,
        _new: NewSubscriber,
        _placement: Option<Placement>,
        _expect: Precondition,
        _now: Timestamp,
    ) -> Result<EntryNumber, StoreError> {
        Ok(UNSTORED)
    }

    fn change_subscriber(
        &mut self,
        _old: &EntryNode,
        _new: NewSubscriber,
        _placement: Option<Placement>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove(&mut self, _number: EntryNumber, _now: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_credential(&mut self, _number: EntryNumber, _credential: Option<&str>) -> Result<(), StoreError> {
        Ok(())
    }

    fn cut_entry_feed(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_definition(&mut self, _identifier: &str, _text: Option<&str>) -> Result<(), StoreError> {
        Ok(())
    }

    fn index_page(&mut self, _after: Option<EntryNumber>, _limit: usize) -> Result<Option<EntryNumber>, StoreError> {
        Ok(None)
    }

    fn set_indexes(&mut self, _indexes: &[String]) -> Result<(), StoreError> {
        Ok(())
    }
}

impl Directory {
    /// Runs a change in a write transaction, or its checks in a read transaction if the terms ask for a dry run.
    pub(super) async fn change_or_check<T: Send + 'static>(
        &self,
        terms: &Preconditions,
        room: DiskCheck,
        job: impl FnOnce(&mut dyn EntryWriter) -> Result<T, LdapError> + Send + 'static,
    ) -> Result<T, LdapError> {
        match terms.dry_run {
            true => self.read(move |branches| job(&mut DryRun(branches))).await,
            false => self.change(room, job).await,
        }
    }
}
