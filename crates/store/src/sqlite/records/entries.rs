//! Directory entries on SQLite: objects, placements of subscribers, and index keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use rusqlite::{Connection, Row};
use tocsin_model::{id::SubscriberId, subscriber::Subscriber, time::Timestamp, value::Value};

use crate::{
    audit,
    entries::{
        EntryChange, EntryFeed, EntryKey, EntryNode, EntryNumber, EntryReader, EntryState, EntryWriter, LoginNames,
        Object, Placement, ROW_ATTRIBUTES, RowChange, StoredObject,
    },
    error::StoreError,
    records::{NewSubscriber, Precondition},
    sqlite::{
        records::{
            entry_changes::{change, check_login, holder, index_diff, invalidate_indexes, put_credential, put_key},
            entry_log::start_new_log,
            images, subscriber_rows, subscribers,
            transaction::RecordsTransaction,
        },
        statements::{execute, json, json_at, number_at, query_all, query_one, signed},
        writer::store_error,
    },
};

pub(crate) struct Writer<'a, 'b>(pub(super) &'a mut RecordsTransaction<'b>);

const OBJECT: &str = "SELECT number, parent, rdn, rdn_key, attributes, created_at, updated_at, revision FROM entries";

fn object_of(row: &Row<'_>) -> rusqlite::Result<StoredObject> {
    let parent: i64 = row.get(1)?;
    Ok(StoredObject {
        number: EntryNumber(row.get(0)?),
        object: Object {
            parent: (parent != 0).then_some(EntryNumber(parent)),
            rdn: row.get(2)?,
            rdn_key: row.get(3)?,
            attributes: json_at(row, 4)?,
        },
        created_at: Timestamp(row.get(5)?),
        updated_at: Timestamp(row.get(6)?),
        revision: number_at(row, 7)?,
    })
}

fn subscriber_sql(condition: &str) -> String {
    format!(
        "SELECT {}, s.parent, s.rdn, s.rdn_key, s.classes FROM subscribers s WHERE {condition}",
        subscriber_rows::COLUMNS
    )
}

/// Subscriber without its devices, and its placement.
fn placed_of(row: &Row<'_>) -> rusqlite::Result<(Subscriber, Option<Placement>)> {
    let placement = match row.get::<_, Option<i64>>(10)? {
        Some(parent) => Some(Placement {
            parent: EntryNumber(parent),
            rdn: row.get(11)?,
            rdn_key: row.get(12)?,
            classes: row.get(13)?,
        }),
        None => None,
    };
    Ok((subscriber_rows::subscriber_of(row)?, placement))
}

fn with_devices(
    connection: &Connection,
    found: Option<(Subscriber, Option<Placement>)>,
) -> Result<Option<EntryNode>, StoreError> {
    let Some((mut subscriber, placement)) = found else { return Ok(None) };
    subscriber.devices = subscriber_rows::devices(connection, subscriber.number.0)?;
    Ok(Some(EntryNode::Subscriber(Box::new(subscriber), placement)))
}

fn node(connection: &Connection, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
    with_rows(connection, head(connection, number)?)
}

/// Entry without the row values of an object.
fn head(connection: &Connection, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
    match number.subscriber() {
        Some(number) => {
            let sql = subscriber_sql("s.number = ?1");
            with_devices(connection, query_one(connection, &sql, [signed(number.0)], placed_of)?)
        }
        None => {
            let sql = format!("{OBJECT} WHERE number = ?1");
            Ok(query_one(connection, &sql, [number.0], object_of)?.map(EntryNode::Object))
        }
    }
}

/// Adds the row values of an object.
fn with_rows(connection: &Connection, found: Option<EntryNode>) -> Result<Option<EntryNode>, StoreError> {
    let Some(EntryNode::Object(mut stored)) = found else { return Ok(found) };
    let sql = "SELECT name, value FROM entry_values WHERE entry = ?1 ORDER BY name, value";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, Value::Text(row.get::<_, Arc<str>>(1)?)));
    let mut rows = BTreeMap::<String, Vec<Value>>::new();
    for (name, value) in query_all(connection, sql, [stored.number.0], read)? {
        rows.entry(name).or_default().push(value);
    }
    for (name, mut values) in rows {
        let value = if values.len() == 1 { values.remove(0) } else { Value::List(values.into()) };
        stored.object.attributes.insert(name, value);
    }
    Ok(Some(EntryNode::Object(stored)))
}

/// Splits attributes into plain ones and row values.
fn split_rows(attributes: &BTreeMap<String, Value>) -> (BTreeMap<&str, &Value>, BTreeSet<(&str, &str)>) {
    let (mut rest, mut rows) = (BTreeMap::new(), BTreeSet::new());
    for (name, value) in attributes {
        let items = match value {
            Value::List(items) => &items[..],
            one => std::slice::from_ref(one),
        };
        let texts: Option<Vec<&str>> = items.iter().map(Value::as_text).collect();
        match texts {
            Some(texts) if ROW_ATTRIBUTES.contains(&name.as_str()) => {
                rows.extend(texts.into_iter().map(|text| (name.as_str(), text)));
            }
            _ => drop(rest.insert(name.as_str(), value)),
        }
    }
    (rest, rows)
}

fn put_row(connection: &Connection, entry: EntryNumber, name: &str, value: &str) -> Result<(), StoreError> {
    let sql = "INSERT INTO entry_values (entry, name, value) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    execute(connection, sql, (entry.0, name, value)).map(|_| ())
}

fn remove_row(connection: &Connection, entry: EntryNumber, name: &str, value: &str) -> Result<(), StoreError> {
    let sql = "DELETE FROM entry_values WHERE entry = ?1 AND name = ?2 AND value = ?3";
    execute(connection, sql, (entry.0, name, value)).map(|_| ())
}

fn child(connection: &Connection, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError> {
    with_rows(connection, child_head(connection, parent, rdn_key)?)
}

fn child_head(
    connection: &Connection,
    parent: Option<EntryNumber>,
    rdn_key: &str,
) -> Result<Option<EntryNode>, StoreError> {
    let above = parent.map_or(0, |parent| parent.0);
    let sql = format!("{OBJECT} WHERE parent = ?1 AND rdn_key = ?2");
    if let Some(object) = query_one(connection, &sql, (above, rdn_key), object_of)? {
        return Ok(Some(EntryNode::Object(object)));
    }
    let sql = subscriber_sql("s.parent = ?1 AND s.rdn_key = ?2");
    with_devices(connection, query_one(connection, &sql, (above, rdn_key), placed_of)?)
}

fn page(
    connection: &Connection,
    parent: Option<EntryNumber>,
    unplaced: bool,
    after: Option<EntryNumber>,
    limit: usize,
) -> Result<Vec<EntryNode>, StoreError> {
    if let Some(parent) = parent {
        // By number, from the index of children.
        let numbers = children(connection, parent, unplaced, after, limit)?;
        let nodes = numbers.into_iter().map(|number| node(connection, number));
        return Ok(nodes.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
    }
    let mut page = Vec::new();
    let after = after.map_or(0, |after| after.0);
    if after >= 0 {
        let sql = format!("{OBJECT} WHERE number > ?1 ORDER BY number LIMIT ?2");
        for found in query_all(connection, &sql, (after, signed(limit as u64)), object_of)? {
            page.extend(with_rows(connection, Some(EntryNode::Object(found)))?);
        }
    }
    if page.len() == limit {
        return Ok(page);
    }
    let after = if after < 0 { after.saturating_neg() } else { 0 };
    let rest = (limit - page.len()) as u64;
    let sql = subscriber_sql("s.number > ?1 ORDER BY s.number LIMIT ?2");
    for found in query_all(connection, &sql, (after, signed(rest)), placed_of)? {
        page.extend(with_devices(connection, Some(found))?);
    }
    Ok(page)
}

fn children(
    connection: &Connection,
    parent: EntryNumber,
    unplaced: bool,
    after: Option<EntryNumber>,
    limit: usize,
) -> Result<Vec<EntryNumber>, StoreError> {
    let after = after.map_or(0, |after| after.0);
    let most = signed(limit as u64);
    let mut found = Vec::new();
    if after >= 0 {
        let sql = "SELECT number FROM entries WHERE parent = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
        found = query_all(connection, sql, (parent.0, after, most), |row| row.get(0).map(EntryNumber))?;
    }
    if found.len() == limit {
        return Ok(found);
    }
    let after = if after < 0 { after.saturating_neg() } else { 0 };
    let read = |row: &Row<'_>| row.get::<_, i64>(0);
    let sql = "SELECT number FROM subscribers WHERE parent = ?1 AND number > ?2 ORDER BY number LIMIT ?3";
    let mut subscribers = query_all(connection, sql, (parent.0, after, most), read)?;
    if unplaced {
        let sql = "SELECT number FROM subscribers WHERE parent IS NULL AND number > ?1 ORDER BY number LIMIT ?2";
        subscribers.extend(query_all(connection, sql, (after, most), read)?);
        subscribers.sort_unstable();
    }
    let rest = limit - found.len();
    found.extend(subscribers.into_iter().take(rest).map(|number| EntryNumber(-number)));
    Ok(found)
}

fn found(
    connection: &Connection,
    index: &str,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    limit: usize,
) -> Result<Option<Vec<EntryNumber>>, StoreError> {
    let read = |row: &Row<'_>| row.get(0).map(EntryNumber);
    let most = signed(limit as u64 + 1);
    let mut numbers = match (from, to) {
        (Bound::Included(from), Bound::Included(to)) if from == to => {
            let sql = "SELECT entry FROM entry_keys WHERE name = ?1 AND key = ?2 LIMIT ?3";
            query_all(connection, sql, (index, from, most), read)?
        }
        (from, to) => {
            let (low, above) = match from {
                Bound::Included(from) => (from, ">="),
                Bound::Excluded(from) => (from, ">"),
                Bound::Unbounded => (&[][..], ">="),
            };
            let (high, below) = match to {
                Bound::Included(to) => (Some(to), "AND key <= ?3"),
                Bound::Excluded(to) => (Some(to), "AND key < ?3"),
                Bound::Unbounded => (None, "AND ?3 IS NULL"),
            };
            let sql = format!("SELECT entry FROM entry_keys WHERE name = ?1 AND key {above} ?2 {below} LIMIT ?4");
            query_all(connection, &sql, (index, low, high, most), read)?
        }
    };
    if numbers.len() > limit {
        return Ok(None);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(Some(numbers))
}

impl EntryReader for Connection {
    fn node(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
        node(self, number)
    }

    fn subscriber(&self, id: &SubscriberId) -> Result<Option<EntryNode>, StoreError> {
        with_devices(self, query_one(self, &subscriber_sql("s.id = ?1"), [id.as_str()], placed_of)?)
    }

    fn child(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError> {
        child(self, parent, rdn_key)
    }

    fn head(&self, number: EntryNumber) -> Result<Option<EntryNode>, StoreError> {
        head(self, number)
    }

    fn child_head(&self, parent: Option<EntryNumber>, rdn_key: &str) -> Result<Option<EntryNode>, StoreError> {
        child_head(self, parent, rdn_key)
    }

    fn row_values(&self, number: EntryNumber, name: &str, limit: usize) -> Result<Vec<Box<str>>, StoreError> {
        let sql = "SELECT value FROM entry_values WHERE entry = ?1 AND name = ?2 ORDER BY value LIMIT ?3";
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        query_all(self, sql, (number.0, name, most), |row| row.get(0))
    }

    fn has_row_value(&self, number: EntryNumber, name: &str, value: &str) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM entry_values WHERE entry = ?1 AND name = ?2 AND value = ?3";
        Ok(query_one(self, sql, (number.0, name, value), |_| Ok(()))?.is_some())
    }

    fn children(
        &self,
        parent: EntryNumber,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNumber>, StoreError> {
        children(self, parent, unplaced, after, limit)
    }

    fn with_children(&self, numbers: &[EntryNumber]) -> Result<Vec<EntryNumber>, StoreError> {
        let mut found = Vec::new();
        for number in numbers {
            let is_above = |table: &str| {
                let sql = format!("SELECT 1 FROM {table} WHERE parent = ?1 LIMIT 1");
                Ok::<_, StoreError>(query_one(self, &sql, [number.0], |_| Ok(()))?.is_some())
            };
            if is_above("entries")? || is_above("subscribers")? {
                found.push(*number);
            }
        }
        Ok(found)
    }

    fn is_found(&self, key: &EntryKey, number: EntryNumber) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM entry_keys WHERE name = ?1 AND key = ?2 AND entry = ?3";
        Ok(query_one(self, sql, (&*key.index, &*key.key, number.0), |_| Ok(()))?.is_some())
    }

    fn page(
        &self,
        parent: Option<EntryNumber>,
        unplaced: bool,
        after: Option<EntryNumber>,
        limit: usize,
    ) -> Result<Vec<EntryNode>, StoreError> {
        page(self, parent, unplaced, after, limit)
    }

    fn found(
        &self,
        index: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Option<Vec<EntryNumber>>, StoreError> {
        found(self, index, from, to, limit)
    }

    fn first(&self, index: &str, limit: usize) -> Result<Vec<EntryNumber>, StoreError> {
        let sql = "SELECT entry FROM entry_keys WHERE name = ?1 AND key > x'' ORDER BY key, entry LIMIT ?2";
        query_all(self, sql, (index, signed(limit as u64)), |row| row.get(0).map(EntryNumber))
    }

    fn entry_feed(&self) -> Result<EntryFeed, StoreError> {
        let sql = "SELECT coalesce(min(place) - 1, 0), coalesce(max(place), 0) FROM entry_changes";
        let read = |row: &Row<'_>| Ok(EntryFeed { since: number_at(row, 0)?, last: number_at(row, 1)? });
        Ok(query_one(self, sql, (), read)?.unwrap_or(EntryFeed { since: 0, last: 0 }))
    }

    fn entries_changed(&self, after: u64, limit: usize) -> Result<Vec<(u64, EntryNumber)>, StoreError> {
        let sql = "SELECT place, entry FROM entry_changes WHERE place > ?1 AND entry <> 0 ORDER BY place LIMIT ?2";
        let read = |row: &Row<'_>| Ok((number_at(row, 0)?, EntryNumber(row.get(1)?)));
        query_all(self, sql, (signed(after), signed(limit as u64)), read)
    }

    fn credential(&self, number: EntryNumber) -> Result<Option<String>, StoreError> {
        query_one(self, "SELECT credential FROM credentials WHERE holder = ?1", [holder(number)], |row| row.get(0))
    }

    fn credentials(&self, after: Option<EntryNumber>, limit: usize) -> Result<Vec<(EntryNumber, String)>, StoreError> {
        let sql = "SELECT holder, credential FROM credentials WHERE holder < ?1 ORDER BY holder DESC LIMIT ?2";
        let after = after.map_or(i64::MAX, holder);
        query_all(self, sql, (after, signed(limit as u64)), |row| {
            Ok((EntryNumber(-row.get::<_, i64>(0)?), row.get(1)?))
        })
    }

    fn definitions(&self) -> Result<Vec<(String, String)>, StoreError> {
        let sql = "SELECT identifier, text FROM definitions ORDER BY place";
        query_all(self, sql, (), |row| Ok((row.get(0)?, row.get(1)?)))
    }

    fn indexes(&self) -> Result<Vec<String>, StoreError> {
        query_all(self, "SELECT name FROM entry_indexes ORDER BY name", (), |row| row.get(0))
    }
}

impl EntryWriter for Writer<'_, '_> {
    fn reader(&self) -> &dyn EntryReader {
        self.0.connection
    }

    fn put_object(&mut self, new: Object, now: Timestamp) -> Result<EntryNumber, StoreError> {
        check_login(self.0, None, LoginNames::Attributes { before: None, now: &new.attributes })?;
        let connection = self.0.connection;
        let above = new.parent.map_or(0, |parent| parent.0);
        let (rest, rows) = split_rows(&new.attributes);
        execute(
            connection,
            "INSERT INTO entries (parent, rdn, rdn_key, attributes, created_at, updated_at, revision)
                VALUES (?1, ?2, ?3, ?4, ?5, ?5, 1)",
            (above, &new.rdn, &new.rdn_key, json(&rest), now.0),
        )?;
        let number = EntryNumber(connection.last_insert_rowid());
        images::object(connection, None, Some(&new))?;
        for (name, value) in rows {
            put_row(connection, number, name, value)?;
        }
        let made = StoredObject { number, object: new, created_at: now, updated_at: now, revision: 1 };
        change(self.0, None, Some(EntryNode::Object(made)))?;
        Ok(number)
    }

    fn change_object(&mut self, old: &StoredObject, new: Object, now: Timestamp) -> Result<(), StoreError> {
        let names = LoginNames::Attributes { before: Some(&old.object.attributes), now: &new.attributes };
        check_login(self.0, Some(old.number), names)?;
        images::object(self.0.connection, Some(&old.object), Some(&new))?;
        let ((_, before), (rest, rows)) = (split_rows(&old.object.attributes), split_rows(&new.attributes));
        for (name, value) in before.difference(&rows) {
            remove_row(self.0.connection, old.number, name, value)?;
        }
        for (name, value) in rows.difference(&before) {
            put_row(self.0.connection, old.number, name, value)?;
        }
        execute(
            self.0.connection,
            "UPDATE entries SET parent = ?2, rdn = ?3, rdn_key = ?4, attributes = ?5, updated_at = ?6, revision = ?7
                WHERE number = ?1",
            (
                old.number.0,
                new.parent.map_or(0, |parent| parent.0),
                &new.rdn,
                &new.rdn_key,
                json(&rest),
                now.0,
                signed(old.revision + 1),
            ),
        )?;
        let changed = StoredObject { object: new, updated_at: now, revision: old.revision + 1, ..old.clone() };
        change(self.0, Some(&EntryNode::Object(old.clone())), Some(EntryNode::Object(changed)))
    }

    fn change_rows(&mut self, old: &StoredObject, change: &RowChange, now: Timestamp) -> Result<(), StoreError> {
        let RowChange { name, added, removed, gone, made } = change;
        let connection = self.0.connection;
        images::row_values(connection, &old.object, name, added, removed)?;
        for value in removed {
            remove_row(connection, old.number, name, value)?;
        }
        for value in added {
            put_row(connection, old.number, name, value)?;
        }
        let sql = "UPDATE entries SET updated_at = ?2, revision = ?3 WHERE number = ?1";
        execute(connection, sql, (old.number.0, now.0, signed(old.revision + 1)))?;
        let keys = [&gone[..], made].concat();
        let change = EntryChange { number: old.number, keys, renamed: false, now: EntryState::Unread };
        match self.0.watcher.is_some() {
            true => index_diff(self.0, gone, made, change),
            false => invalidate_indexes(self.0),
        }
    }

    fn put_subscriber(
        &mut self,
        new: NewSubscriber,
        placement: Option<Placement>,
        expect: Precondition,
        now: Timestamp,
    ) -> Result<EntryNumber, StoreError> {
        Ok(subscribers::put_placed(self.0, new, placement, expect, now)?.number.into())
    }

    fn change_subscriber(
        &mut self,
        old: &EntryNode,
        new: NewSubscriber,
        placement: Option<Placement>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        subscribers::change_placed(self.0, old, new, placement, now)
    }

    fn remove(&mut self, number: EntryNumber, now: Timestamp) -> Result<(), StoreError> {
        let Some(found) = self.0.connection.node(number)? else { return Ok(()) };
        match &found {
            EntryNode::Subscriber(subscriber, _) => {
                subscribers::remove(self.0, &subscriber.id, Precondition::Present, now)
            }
            EntryNode::Object(removed) => {
                images::object(self.0.connection, Some(&removed.object), None)?;
                execute(self.0.connection, "DELETE FROM entries WHERE number = ?1", [number.0])?;
                execute(self.0.connection, "DELETE FROM entry_values WHERE entry = ?1", [number.0])?;
                self.put_credential(number, None)?;
                change(self.0, Some(&found), None)
            }
        }
    }

    fn put_credential(&mut self, number: EntryNumber, credential: Option<&str>) -> Result<(), StoreError> {
        if audit::is_recording()
            && let Some(holder) = node(self.0.connection, number)?
        {
            images::credential(self.0.connection, &holder, credential.is_some())?;
        }
        put_credential(self.0, number, credential)
    }

    fn cut_entry_feed(&mut self) -> Result<(), StoreError> {
        start_new_log(self.0.connection)
    }

    fn put_definition(&mut self, identifier: &str, text: Option<&str>) -> Result<(), StoreError> {
        match text {
            Some(text) => execute(
                self.0.connection,
                "INSERT INTO definitions (identifier, text) VALUES (?1, ?2)
                    ON CONFLICT DO UPDATE SET text = excluded.text",
                (identifier, text),
            ),
            None => execute(self.0.connection, "DELETE FROM definitions WHERE identifier = ?1", [identifier]),
        }
        .map(|_| ())
    }

    fn index_page(&mut self, after: Option<EntryNumber>, limit: usize) -> Result<Option<EntryNumber>, StoreError> {
        let Some(watcher) = self.0.watcher.clone() else { return Ok(None) };
        let page = self.0.connection.page(None, true, after, limit)?;
        for node in &page {
            for key in watcher.keys(node) {
                put_key(self.0.connection, &key, node.number())?;
            }
        }
        Ok(page.last().filter(|_| page.len() == limit).map(EntryNode::number))
    }

    fn set_indexes(&mut self, indexes: &[String]) -> Result<(), StoreError> {
        let connection = self.0.connection;
        let names = json(indexes);
        let gone = "NOT IN (SELECT value FROM json_each(?1))";
        execute(connection, &format!("DELETE FROM entry_indexes WHERE name {gone}"), [&names])?;
        if indexes.is_empty() {
            // Without a condition, SQLite drops whole pages instead of rows.
            connection.execute_batch("DELETE FROM entry_keys").map_err(store_error)?;
        } else {
            execute(connection, &format!("DELETE FROM entry_keys WHERE name {gone}"), [&names])?;
        }
        let sql = "INSERT INTO entry_indexes (name) SELECT value FROM json_each(?1) WHERE true ON CONFLICT DO NOTHING";
        execute(connection, sql, [&names])?;
        self.0.indexed = !indexes.is_empty();
        Ok(())
    }
}
