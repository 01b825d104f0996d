//! Rows of NotifyBC documents, kept with changes of their native subscriptions.

use rusqlite::Connection;
use tocsin_model::{
    consent::ConsentState,
    id::{Name, SubscriberId},
    notifybc::{APPLICATION, CLASS, Collection, SUBSCRIBER, SubscriptionState},
    time::Timestamp,
};

use super::{subscriber_rows::spelling_hash, transaction::RecordsTransaction};
use crate::{
    error::StoreError,
    records::with_address,
    sqlite::statements::{execute, query_all, query_one, signed},
};

/// Number of a collection in tables.
pub(super) const fn collection_number(collection: Collection) -> i64 {
    match collection {
        Collection::Subscription => 0,
        Collection::Notification => 1,
        Collection::Configuration => 2,
        Collection::Bounce => 3,
        Collection::Administrator => 4,
        Collection::AccessToken => 5,
        Collection::UserCredential => 6,
        Collection::Rss => 7,
    }
}

/// Whether subscriptions of a class can have documents.
fn has_documents(tx: &RecordsTransaction<'_>, class: i64) -> Result<bool, StoreError> {
    if let Some(known) = tx.notifybc_class.get() {
        return Ok(known == Some(class));
    }
    let sql = "SELECT number FROM classes WHERE application = ?1 AND name = ?2";
    let number = query_one(tx.connection, sql, (APPLICATION, CLASS), |row| row.get(0))?;
    tx.notifybc_class.set(Some(number));
    Ok(number == Some(class))
}

/// State of a document by its native subscription.
pub(super) fn state_of(is_active: bool, consent: Option<ConsentState>) -> SubscriptionState {
    match consent {
        _ if is_active => SubscriptionState::Confirmed,
        Some(ConsentState::Pending) => SubscriptionState::Unconfirmed,
        _ => SubscriptionState::Deleted,
    }
}

/// Stores the state of a subscription in its document. Every change of the state of a subscription passes through here.
pub(super) fn state_changed(
    tx: &RecordsTransaction<'_>,
    (subscription, class): (u64, i64),
    state: SubscriptionState,
    now: Timestamp,
) -> Result<(), StoreError> {
    if !has_documents(tx, class)? {
        return Ok(());
    }
    let sql = "UPDATE notifybc_documents SET state = ?2, updated_at = ?3, revision = revision + 1
        WHERE subscription = ?1 AND state <> ?2";
    execute(tx.connection, sql, (signed(subscription), state.word(), now.0)).map(|_| ())
}

/// Assigns a new subscription to the document of its key, whose former subscription was removed.
pub(super) fn subscription_made(
    tx: &RecordsTransaction<'_>,
    (subscription, class): (u64, i64),
    key: Option<&str>,
    is_active: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(key) = key else { return Ok(()) };
    tx.notifybc_class.set(None);
    if !has_documents(tx, class)? {
        return Ok(());
    }
    let sql = "UPDATE notifybc_documents SET subscription = ?3, state = ?4, updated_at = ?5, revision = revision + 1
        WHERE collection = ?1 AND id = ?2";
    let state = state_of(is_active, None).word();
    let collection = collection_number(Collection::Subscription);
    execute(tx.connection, sql, (collection, key, signed(subscription), state, now.0)).map(|_| ())
}

/// Stores a new address of a device in the documents of the subscriptions that name it.
pub(super) fn address_changed(
    tx: &RecordsTransaction<'_>,
    subscriber: u64,
    (device, address): (&Name, &str),
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = "SELECT d.place, d.body FROM subscriptions s JOIN notifybc_documents d ON d.subscription = s.id
        WHERE s.subscriber = ?1 AND s.device = ?2";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    for (place, body) in query_all(tx.connection, sql, (signed(subscriber), device.as_str()), read)? {
        let key = address.to_lowercase();
        let sql = "UPDATE notifybc_documents
            SET body = ?2, address = ?3, address_hash = ?4, updated_at = ?5, revision = revision + 1 WHERE place = ?1";
        let hash = spelling_hash(&key);
        execute(tx.connection, sql, (place, &*with_address(&body, address)?, key, hash, now.0))?;
    }
    Ok(())
}

/// Deletes the documents of an erased person: those of its subscriptions, and those with one of its addresses that no
/// other subscriber has. Must be called before the subscriber is removed.
pub(super) fn erase(
    connection: &Connection,
    (id, number): (&SubscriberId, u64),
    addresses: &[String],
) -> Result<(), StoreError> {
    let sql = "DELETE FROM notifybc_documents
        WHERE subscription IN (SELECT id FROM subscriptions WHERE subscriber = ?1)";
    execute(connection, sql, [signed(number)])?;
    if let Some(record) = id.as_str().strip_prefix(SUBSCRIBER) {
        let sql = "DELETE FROM notifybc_documents WHERE collection = ?1 AND id = ?2";
        execute(connection, sql, (collection_number(Collection::Subscription), record))?;
    }
    for address in addresses {
        let key = address.to_lowercase();
        for collection in Collection::ALL.map(collection_number) {
            let sql = "DELETE FROM notifybc_documents WHERE collection = ?1 AND address_hash = ?2 AND address = ?3";
            execute(connection, sql, (collection, spelling_hash(&key), &key))?;
        }
    }
    Ok(())
}
