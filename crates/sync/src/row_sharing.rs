//! Rows shared through other rows: when the keys of a row change, so do those of the rows that name it.

use tocsin_model::{field::Row, id::Name};
use tocsin_store::{
    collections::{CollectionNumber, KeyNumber, StoredRow},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    catalogue::{Collections, Ready},
    partition,
};

/// Maximum rows updated through one row in a transaction.
pub(crate) const SHARED_ROWS_MAX: usize = 100_000;

/// Sharing of a row: its keys, ascending, and the rows through which it is shared.
pub(crate) type RowSharing = (Vec<KeyNumber>, Vec<(CollectionNumber, Box<str>)>);

/// Computes the sharing of a row with these values.
pub(crate) fn compute_sharing(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    ready: &Ready,
    row: &Row,
) -> Result<RowSharing, StoreError> {
    ready.check_current(ledger)?;
    let (partition, fields) = (&ready.definition.partition, &ready.definition.fields);
    let mut keys = Vec::new();
    for text in partition::own_keys(application, partition, fields, row) {
        keys.push(ledger.key(&text)?);
    }
    let mut joins = Vec::new();
    for (collection, id) in partition::joins(partition, fields, row) {
        let Some(other) = collections.get(collection.as_str()) else { continue };
        if let Some(other) = ledger.row(other.number, &id)? {
            keys.extend(other.keys);
        }
        joins.push((other.number, id.into_boxed_str()));
    }
    keys.sort_unstable();
    keys.dedup();
    Ok((keys, joins))
}

/// Recomputes the keys of a row and of those shared through it.
pub(crate) fn rekey(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    row: &StoredRow,
) -> Result<(), StoreError> {
    let mut room = SHARED_ROWS_MAX;
    rekey_within(ledger, application, collections, row, &mut room)
}

/// Updates the rows shared through a row whose keys changed.
pub(crate) fn update_shared_rows(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    (collection, id): (CollectionNumber, &str),
) -> Result<(), StoreError> {
    let mut room = SHARED_ROWS_MAX;
    update_shared_rows_within(ledger, application, collections, (collection, id), &mut room)
}

fn rekey_within(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    row: &StoredRow,
    room: &mut usize,
) -> Result<(), StoreError> {
    let (Some(ready), Some(body)) = (collections.of_number(row.collection), &row.body) else { return Ok(()) };
    let values = ready.definition.fields.row_from_stored(body);
    let values = values.map_err(|_| StoreError::Damaged(format!("the row `{}` of `{}`", row.id, ready.name)))?;
    let (keys, joins) = compute_sharing(ledger, application, collections, ready, &values)?;
    ledger.rekey(row, &keys, &joins)?;
    if keys != row.keys {
        update_shared_rows_within(ledger, application, collections, (row.collection, &row.id), room)?;
    }
    Ok(())
}

/// Collections are not shared through themselves, so the recursion ends.
fn update_shared_rows_within(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    (collection, id): (CollectionNumber, &str),
    room: &mut usize,
) -> Result<(), StoreError> {
    for row in ledger.shared_through(collection, id)? {
        *room = room.checked_sub(1).ok_or_else(|| {
            StoreError::Full(format!("more than {SHARED_ROWS_MAX} rows are shared through `{id}`; move it in steps"))
        })?;
        rekey_within(ledger, application, collections, &row, room)?;
    }
    Ok(())
}
