//! Documents of NotifyBC records: writes with their native rows, and reads.

use rusqlite::{Connection, Row, params_from_iter, types::Value};
use serde_json::json;
use tocsin_model::{
    consent::{Consent, ConsentChange, ConsentState},
    id::SubscriptionId,
    lifecycle::ChangeOrigin,
    notifybc::{APPLICATION, CLASS, Collection, DEVICE, name, subscriber_id},
    subscriber::{Device, DeviceState, Profile},
    subscription::{Subscription, SubscriptionParams},
    time::Timestamp,
};

use super::{notifybc_rows::collection_number, subscriber_rows::spelling_hash, transaction::RecordsTransaction};
use crate::{
    audit::{self, Image},
    bounded_scan::{SCANNED_ROWS_MAX, ScanPage},
    error::StoreError,
    records::{
        DocumentKeys, DocumentScan, DocumentVersion, KeyFilter, NativeSubscription, NewSubscriber, NewSubscription,
        PAGE_BODIES_BYTES_MAX, Precondition, PutDocument, StoredDocument, SubscriptionChange, Written, document_noun,
        no_subscription, recorded_act,
    },
    sqlite::{
        records::{consent_rows, subscriber_rows, subscribers, subscriptions},
        statements::{execute, number_at, query_one, signed},
        writer::store_error,
    },
};

const COLUMNS: &str = "d.id, d.body, d.service, d.channel, d.address, d.user_id, d.state, d.unique_key, d.revision,
    d.created_at, d.updated_at, d.subscription";

fn document_of(row: &Row<'_>) -> rusqlite::Result<StoredDocument> {
    let key =
        |column: usize| Ok::<_, rusqlite::Error>(Some(row.get::<_, String>(column)?).filter(|key| !key.is_empty()));
    Ok(StoredDocument {
        id: row.get(0)?,
        body: row.get(1)?,
        keys: DocumentKeys {
            service: key(2)?,
            channel: key(3)?,
            address: key(4)?,
            user: key(5)?,
            state: key(6)?,
            unique: row.get(7)?,
        },
        revision: number_at(row, 8)?,
        created_at: Timestamp(row.get(9)?),
        updated_at: Timestamp(row.get(10)?),
        number: row.get::<_, Option<i64>>(11)?.map(|number| SubscriptionId(number.cast_unsigned())),
    })
}

/// Place, revision and native subscription of a document.
struct DocumentRow {
    place: i64,
    revision: u64,
    number: Option<SubscriptionId>,
}

fn find_row(connection: &Connection, collection: Collection, id: &str) -> Result<Option<DocumentRow>, StoreError> {
    let sql = "SELECT place, revision, subscription FROM notifybc_documents WHERE collection = ?1 AND id = ?2";
    query_one(connection, sql, (collection_number(collection), id), |row| {
        let number = row.get::<_, Option<i64>>(2)?.map(|number| SubscriptionId(number.cast_unsigned()));
        Ok(DocumentRow { place: row.get(0)?, revision: number_at(row, 1)?, number })
    })
}

/// Maximum number of documents of one call that is written in a group with others.
pub(super) const GROUPED_DOCUMENTS_MAX: usize = 16;

/// Documents of one call.
pub(super) struct DocumentPuts {
    pub(super) puts: Vec<PutDocument>,
    pub(super) now: Timestamp,
}

/// Kind of a document in the audit log. Bodies can be secret, so its images have the revision and state only.
fn image_kind(collection: Collection) -> String {
    format!("notifybc_{}", collection.name())
}

pub(super) fn put_many(
    tx: &mut RecordsTransaction<'_>,
    puts: &[PutDocument],
    now: Timestamp,
) -> Result<Vec<Written<DocumentVersion>>, StoreError> {
    puts.iter().map(|new| put(tx, new, now)).collect()
}

fn put(
    tx: &mut RecordsTransaction<'_>,
    new: &PutDocument,
    now: Timestamp,
) -> Result<Written<DocumentVersion>, StoreError> {
    let PutDocument { collection, id, body, keys, expect, native, created_at, updated_at } = new;
    let collection = *collection;
    let number = collection_number(collection);
    let keys = keys.clone().normalized();
    tx.origin = ChangeOrigin::default();
    let old = find_row(tx.connection, collection, id)?;
    if let Err(refused) = expect.check(old.as_ref().map(|old| old.revision), || document_noun(collection, id)) {
        return Ok(Err(refused));
    }
    if let Some(unique) = &keys.unique {
        let sql = "SELECT place FROM notifybc_documents WHERE collection = ?1 AND unique_key = ?2";
        let holder = query_one(tx.connection, sql, (number, unique), |row| row.get::<_, i64>(0))?;
        if holder.is_some_and(|holder| old.as_ref().is_none_or(|old| old.place != holder)) {
            return Ok(Err(StoreError::Taken(document_noun(collection, unique))));
        }
    }
    let known = old.as_ref().and_then(|old| old.number);
    let native = match native {
        Some(native) => match put_native(tx, id, native.clone(), known, now)? {
            Ok(native) => Some(native),
            Err(refused) => return Ok(Err(refused)),
        },
        None => {
            if let Some(known) = known {
                tx.log_made()?;
                remove_native(tx, id, known, now)?;
            }
            None
        }
    };
    let revision = old.as_ref().map_or(1, |old| old.revision + 1);
    let sql = "INSERT INTO notifybc_documents (collection, id, body, service, channel, address, address_hash,
            user_id, state, unique_key, subscription, created_at, updated_at, revision)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
        ON CONFLICT (collection, id) DO UPDATE SET body = excluded.body, service = excluded.service,
            channel = excluded.channel, address = excluded.address, address_hash = excluded.address_hash,
            user_id = excluded.user_id, state = excluded.state, unique_key = excluded.unique_key,
            subscription = excluded.subscription, created_at = excluded.created_at, updated_at = excluded.updated_at,
            revision = excluded.revision";
    let text = |key: &Option<String>| key.clone().unwrap_or_default();
    let row = (
        number,
        id,
        &**body,
        text(&keys.service),
        text(&keys.channel),
        text(&keys.address),
        keys.address.as_deref().map(spelling_hash),
        text(&keys.user),
        text(&keys.state),
        &keys.unique,
        native.map(|native| signed(native.0)),
        created_at.0,
        updated_at.0,
        signed(revision),
    );
    execute(tx.connection, sql, row)?;
    audit::changed(|| {
        let after = json!({ "revision": revision, "state": text(&keys.state) });
        let before = old.as_ref().map(|old| json!({ "revision": old.revision }));
        Image::of(&image_kind(collection), id, before, Some(after))
    });
    Ok(Ok(DocumentVersion { revision, number: native }))
}

/// Stores the native rows of a document. An existing subscription is changed where it is, also under another
/// subscriber, which a merge can give it.
fn put_native(
    tx: &mut RecordsTransaction<'_>,
    id: &str,
    native: NativeSubscription,
    known: Option<SubscriptionId>,
    now: Timestamp,
) -> Result<Written<SubscriptionId>, StoreError> {
    tx.origin = crate::records::origin(&native.evidence);
    if let Some(known) = known
        && let Some(present) = subscriptions::find(tx.connection, known)?
    {
        return change_native(tx, present, native, now);
    }
    let owner = match subscriber_id(id) {
        Ok(owner) => owner,
        // Refused alone, since an error would fail the whole group.
        Err(error) => return Ok(Err(StoreError::unavailable(error))),
    };
    let device = Device { channel: native.channel, address: native.address, state: DeviceState::Active };
    let line = NewSubscription {
        application: name(APPLICATION),
        class: name(CLASS),
        subscriber: owner.clone(),
        key: Some(id.to_owned()),
        device: Some(name(DEVICE)),
        enabled: Some(native.enabled && native.state.permits()),
        values: native.values,
        terms: SubscriptionParams { filter: native.filter, ..SubscriptionParams::default() },
    };
    // Most documents are new, and the look-up of a subscriber is cheap.
    let has_owner = subscriber_rows::number(tx.connection, &owner)?.is_some();
    let same_key = if has_owner { subscriptions::find_same_key(tx.connection, &line)? } else { None };
    if let Some(present) = same_key {
        // A native import made it before the document.
        let Device { channel, address, .. } = device;
        let (values, filter) = (line.values, line.terms.filter);
        let NativeSubscription { state, enabled, evidence, .. } = native;
        let native = NativeSubscription { channel, address, values, filter, state, enabled, evidence };
        return change_native(tx, present, native, now);
    }
    let consent = consent_of(None, native.state, &device, now);
    let subscriber = NewSubscriber {
        kept: Default::default(),
        id: owner,
        profile: Profile::default(),
        devices: Some(vec![(name(DEVICE), device)]),
        preferences: None,
    };
    let subscriber = match subscribers::put(tx, subscriber, Precondition::Any, now) {
        Ok(stored) => stored.number,
        // Detected before anything is written.
        Err(refused @ StoreError::Taken(_)) => return Ok(Err(refused)),
        Err(error) => return Err(error),
    };
    let number = subscriptions::insert_of_document(tx, &line, subscriber, native.state, now)?;
    tx.subscription_made(number.0);
    consent_rows::write(tx.connection, number, &consent)?;
    let change = ConsentChange {
        subscription: number,
        before: None,
        after: Some(native.state),
        act: recorded_act(native.state),
        is_new: true,
        evidence: native.evidence,
    };
    consent_rows::consent_changed(tx, &change, now)?;
    Ok(Ok(number))
}

/// Consent of a native subscription, for the address of its device.
fn consent_of(known: Option<Consent>, state: ConsentState, device: &Device, now: Timestamp) -> Consent {
    let mut consent = known.unwrap_or_else(|| Consent::new(state, now));
    consent.address = Some((device.channel.clone(), device.address.clone()));
    match state {
        ConsentState::Pending => (consent.state, consent.was_confirmed) = (state, false),
        ConsentState::Confirmed | ConsentState::Withdrawn => consent.record(state),
    }
    consent
}

fn change_native(
    tx: &mut RecordsTransaction<'_>,
    present: Subscription,
    native: NativeSubscription,
    now: Timestamp,
) -> Result<Written<SubscriptionId>, StoreError> {
    tx.log_made()?;
    let NativeSubscription { channel, address, values, filter, state, enabled, evidence } = native;
    let (id, owner) = (present.id, present.subscriber.clone());
    let device_name = present.device.clone().unwrap_or_else(|| name(DEVICE));
    let subscriber = subscriber_rows::find(tx.connection, &owner)?.ok_or_else(|| no_subscription(id))?;
    let device = Device { channel, address, state: DeviceState::Active };
    // Before the device, so that its new address is the one of the consent.
    let known = consent_rows::find(tx.connection, id)?;
    consent_rows::write(tx.connection, id, &consent_of(known, state, &device, now))?;
    let held = subscriber.devices.get(&device_name);
    if held.is_none_or(|held| (&held.channel, &held.address) != (&device.channel, &device.address)) {
        subscribers::put_device(tx, &owner, device_name.clone(), device, false, now)?;
    }
    let is_same = present.consent == Some(state);
    let change = SubscriptionChange {
        device: Some(device_name),
        enabled: is_same.then_some(enabled && state.permits()),
        values,
        terms: SubscriptionParams { filter, ..present.terms.clone() },
    };
    subscriptions::update(tx, id, &change, Precondition::Any, now)?;
    if !is_same {
        subscriptions::record_consent(tx, id, state, enabled && state.permits(), now)?;
        let (before, after, act) = (present.consent, Some(state), recorded_act(state));
        let change = ConsentChange { subscription: id, before, after, act, is_new: false, evidence };
        consent_rows::consent_changed(tx, &change, now)?;
    }
    Ok(Ok(id))
}

/// Removes the native rows of a document. A subscriber stays if it has other subscriptions, or is that of a person.
fn remove_native(
    tx: &mut RecordsTransaction<'_>,
    id: &str,
    number: SubscriptionId,
    now: Timestamp,
) -> Result<(), StoreError> {
    if subscriptions::find(tx.connection, number)?.is_some() {
        subscriptions::end(tx, number, Precondition::Any, now)?;
    }
    let Ok(owner) = subscriber_id(id) else { return Ok(()) };
    let Some(subscriber) = subscriber_rows::number(tx.connection, &owner)? else { return Ok(()) };
    let sql = "SELECT 1 FROM subscriptions WHERE subscriber = ?1 LIMIT 1";
    match query_one(tx.connection, sql, [signed(subscriber)], |_| Ok(()))? {
        Some(()) => Ok(()),
        None => subscribers::remove(tx, &owner, Precondition::Any, now),
    }
}

pub(super) fn remove_many(
    tx: &mut RecordsTransaction<'_>,
    collection: Collection,
    ids: &[String],
    now: Timestamp,
) -> Result<usize, StoreError> {
    let mut removed = 0;
    for id in ids {
        let Some(old) = find_row(tx.connection, collection, id)? else { continue };
        execute(tx.connection, "DELETE FROM notifybc_documents WHERE place = ?1", [old.place])?;
        let before = Some(json!({ "revision": old.revision }));
        audit::changed(|| Image::of(&image_kind(collection), id, before, None));
        if let Some(number) = old.number {
            remove_native(tx, id, number, now)?;
        }
        removed += 1;
    }
    Ok(removed)
}

pub(super) fn find(
    connection: &Connection,
    collection: Collection,
    id: &str,
) -> Result<Option<StoredDocument>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM notifybc_documents d WHERE d.collection = ?1 AND d.id = ?2");
    query_one(connection, &sql, (collection_number(collection), id), document_of)
}

pub(super) fn find_by_unique(
    connection: &Connection,
    collection: Collection,
    unique: &str,
) -> Result<Option<StoredDocument>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM notifybc_documents d WHERE d.collection = ?1 AND d.unique_key = ?2");
    query_one(connection, &sql, (collection_number(collection), unique), document_of)
}

pub(super) fn ids_of(connection: &Connection, numbers: &[SubscriptionId]) -> Result<Vec<Option<String>>, StoreError> {
    let sql = "SELECT id FROM notifybc_documents WHERE subscription = ?1";
    numbers.iter().map(|number| query_one(connection, sql, [signed(number.0)], |row| row.get(0))).collect()
}

/// Distinct services of confirmed subscriptions: one look-up in the index by service for each service.
pub(super) fn confirmed_services(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let collection = collection_number(Collection::Subscription);
    let confirmed =
        "SELECT 1 FROM notifybc_documents WHERE collection = ?1 AND service = ?2 AND state = 'confirmed' LIMIT 1";
    let mut found = Vec::new();
    for service in distinct(connection, "service", collection, usize::MAX)? {
        if query_one(connection, confirmed, (collection, &service), |_| Ok(()))?.is_some() {
            found.push(service);
        }
    }
    Ok(found)
}

/// Up to `limit` distinct values of an indexed column, in order, without the empty one.
fn distinct(connection: &Connection, column: &str, collection: i64, limit: usize) -> Result<Vec<String>, StoreError> {
    let sql = format!("SELECT min({column}) FROM notifybc_documents WHERE collection = ?1 AND {column} > ?2");
    let mut found: Vec<String> = Vec::new();
    while found.len() < limit {
        let last = found.last().map_or("", String::as_str);
        let next = query_one(connection, &sql, (collection, last), |row| row.get::<_, Option<String>>(0))?.flatten();
        let Some(next) = next else { break };
        found.push(next);
    }
    Ok(found)
}

pub(super) fn scan(
    connection: &Connection,
    scan: &DocumentScan,
) -> Result<ScanPage<StoredDocument, String>, StoreError> {
    let DocumentScan { collection, filter, after, limit } = scan;
    let after = after.as_deref().unwrap_or_default();
    let mut page = Page { filter, limit: *limit, found: Vec::new(), scanned: 0, bytes: 0, reached: None };
    if filter.is_void() {
        return Ok(page.cut(false));
    }
    if let Some(ids) = &filter.ids {
        let mut ids: Vec<&String> = ids.iter().filter(|id| id.as_str() > after).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            if page.is_full() {
                return Ok(page.cut(true));
            }
            match find(connection, *collection, id)? {
                Some(found) => page.add(found),
                None => page.skip(id),
            }
        }
        return Ok(page.cut(false));
    }
    let candidates = Candidates::of(connection, *collection, filter)?;
    let sql = candidates.page(SCANNED_ROWS_MAX);
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let values = candidates.values(after);
    let mut rows = statement.query(params_from_iter(values)).map_err(store_error)?;
    while let Some(row) = rows.next().map_err(store_error)? {
        page.add(document_of(row).map_err(store_error)?);
        if page.is_full() {
            return Ok(page.cut(true));
        }
    }
    Ok(page.cut(false))
}

/// A page that is being read.
struct Page<'a> {
    filter: &'a KeyFilter,
    limit: usize,
    found: Vec<StoredDocument>,
    scanned: usize,
    bytes: usize,
    reached: Option<String>,
}

impl Page<'_> {
    fn add(&mut self, document: StoredDocument) {
        self.scanned += 1;
        self.reached = Some(document.id.clone());
        if self.filter.permits(&document.id, &document.keys) {
            self.bytes += document.body.len();
            self.found.push(document);
        }
    }

    fn skip(&mut self, id: &str) {
        self.scanned += 1;
        self.reached = Some(id.to_owned());
    }

    /// Whether one of the bounds is reached, with one document beyond the limit.
    fn is_full(&self) -> bool {
        self.found.len() > self.limit || self.scanned >= SCANNED_ROWS_MAX || self.bytes >= PAGE_BODIES_BYTES_MAX
    }

    fn cut(self, has_more: bool) -> ScanPage<StoredDocument, String> {
        let reached = self.reached.filter(|_| has_more);
        ScanPage::cut(self.found, self.limit, reached, |found: &StoredDocument| found.id.clone())
    }
}

/// Maximum number of index ranges that one scan merges.
const RANGES_MAX: usize = 64;

/// Candidate rows of a filter: ranges of one index. All but those by address are in the order of ids.
struct Candidates {
    collection: i64,
    /// Conditions of each range, over the parameters after `?2`.
    ranges: Vec<String>,
    values: Vec<Value>,
}

impl Candidates {
    /// Ranges of the most selective index for which the filter has values: by address, user, service or state.
    /// Otherwise all documents of the collection.
    fn of(connection: &Connection, collection: Collection, filter: &KeyFilter) -> Result<Candidates, StoreError> {
        let collection = collection_number(collection);
        let mut candidates = Candidates { collection, ranges: Vec::new(), values: Vec::new() };
        // An absent address or user is in no index.
        let indexed = |values: &Option<Vec<String>>| {
            values.clone().map(distinct_values).filter(|values| values.iter().all(|value| !value.is_empty()))
        };
        let states = || match &filter.states {
            Some(states) => Ok(distinct_values(states.clone())),
            None => {
                let mut states = distinct(connection, "state", collection, RANGES_MAX + 1)?;
                states.push(String::new());
                Ok::<_, StoreError>(states)
            }
        };
        if let Some(addresses) = indexed(&filter.addresses) {
            let states = states()?;
            if addresses.len() * states.len() <= RANGES_MAX {
                for address in &addresses {
                    for state in &states {
                        let hash = candidates.bind(Value::Integer(spelling_hash(address)));
                        let state = candidates.bind(Value::Text(state.clone()));
                        candidates.ranges.push(format!("address_hash = {hash} AND state = {state}"));
                    }
                }
                return Ok(candidates);
            }
        }
        if let Some(users) = indexed(&filter.users).filter(|users| users.len() <= RANGES_MAX) {
            for user in users {
                let user = candidates.bind(Value::Text(user));
                candidates.ranges.push(format!("user_id = {user} AND user_id <> ''"));
            }
            return Ok(candidates);
        }
        if let Some(services) = filter.services.clone().map(distinct_values) {
            let states = states()?;
            if services.len() * states.len() <= RANGES_MAX {
                for service in &services {
                    for state in &states {
                        let service = candidates.bind(Value::Text(service.clone()));
                        let state = candidates.bind(Value::Text(state.clone()));
                        candidates.ranges.push(format!("service = {service} AND state = {state}"));
                    }
                }
                return Ok(candidates);
            }
        }
        if let Some(states) = filter.states.clone().map(distinct_values).filter(|states| states.len() <= RANGES_MAX) {
            for state in states {
                let state = candidates.bind(Value::Text(state));
                candidates.ranges.push(format!("state = {state}"));
            }
            return Ok(candidates);
        }
        candidates.ranges.push("1".to_owned());
        Ok(candidates)
    }

    fn bind(&mut self, value: Value) -> String {
        self.values.push(value);
        format!("?{}", self.values.len() + 2)
    }

    /// Query for up to `limit` candidates by id. SQLite merges ranges that are in order row by row, and sorts the few
    /// rows of an address.
    fn page(&self, limit: usize) -> String {
        let range = |range: &String| {
            format!("SELECT place, id FROM notifybc_documents WHERE collection = ?1 AND {range} AND id > ?2")
        };
        let ranges = self.ranges.iter().map(range).collect::<Vec<_>>().join(" UNION ALL ");
        // CROSS JOIN fixes the join order, and with it the order by id.
        format!(
            "SELECT {COLUMNS} FROM (SELECT place, id FROM ({ranges} ORDER BY id LIMIT {limit})) f
                CROSS JOIN notifybc_documents d WHERE d.place = f.place ORDER BY f.id"
        )
    }

    fn values(&self, after: &str) -> Vec<Value> {
        [Value::Integer(self.collection), Value::Text(after.to_owned())]
            .into_iter()
            .chain(self.values.iter().cloned())
            .collect()
    }
}

fn distinct_values(mut values: Vec<String>) -> Vec<String> {
    values.sort_unstable();
    values.dedup();
    values
}

/// Number of documents. Reads the index entries of an unfiltered collection, and otherwise each candidate.
pub(super) fn count(connection: &Connection, collection: Collection, filter: &KeyFilter) -> Result<u64, StoreError> {
    if filter.is_void() {
        return Ok(0);
    }
    if *filter == KeyFilter::default() {
        let sql = "SELECT count(*) FROM notifybc_documents WHERE collection = ?1";
        return Ok(query_one(connection, sql, [collection_number(collection)], |row| number_at(row, 0))?.unwrap_or(0));
    }
    let mut count = 0;
    if let Some(ids) = &filter.ids {
        for id in distinct_values(ids.clone()) {
            let found = find(connection, collection, &id)?;
            count += u64::from(found.is_some_and(|found| filter.permits(&found.id, &found.keys)));
        }
        return Ok(count);
    }
    let candidates = Candidates::of(connection, collection, filter)?;
    for range in &candidates.ranges {
        let sql = format!(
            "SELECT id, service, channel, address, user_id, state FROM notifybc_documents
                WHERE collection = ?1 AND {range} AND id > ?2"
        );
        let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
        let bound = statement.parameter_count();
        let values = candidates.values("");
        let mut rows = statement.query(params_from_iter(values.into_iter().take(bound))).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            count += u64::from(has_keys(row, filter).map_err(store_error)?);
        }
    }
    Ok(count)
}

fn has_keys(row: &Row<'_>, filter: &KeyFilter) -> rusqlite::Result<bool> {
    let key = |column: usize| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str()?);
    let keys = [key(1)?, key(2)?, key(3)?, key(4)?, key(5)?];
    Ok(filter.permits_keys(key(0)?, keys.map(Some)))
}
