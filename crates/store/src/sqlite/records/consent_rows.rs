//! Rows of consents and of their evidence.

use rusqlite::{Connection, Row};
use tocsin_model::{
    consent::{Consent, ConsentChange, ConsentState, Evidence},
    id::SubscriptionId,
    lifecycle::ChangeOrigin,
    time::Timestamp,
};

use super::{lifecycle, transaction::RecordsTransaction};
use crate::{
    error::StoreError,
    records::{lifecycle_change, origin},
    sqlite::statements::{conversion_failed, execute, name_at, number_at, query_one, signed},
};

const COLUMNS: &str = "state, request, requested_at, sent_at, counted_from, messages, attempts, expires_at, code,
    channel, address, was_confirmed";

/// Number of a state in tables.
pub(super) fn state_number(state: ConsentState) -> i64 {
    match state {
        ConsentState::Pending => 0,
        ConsentState::Confirmed => 1,
        ConsentState::Withdrawn => 2,
    }
}

/// State in a column, if it is not null.
pub(super) fn state_at(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ConsentState>> {
    match row.get::<_, Option<i64>>(column)? {
        None => Ok(None),
        Some(0) => Ok(Some(ConsentState::Pending)),
        Some(1) => Ok(Some(ConsentState::Confirmed)),
        Some(2) => Ok(Some(ConsentState::Withdrawn)),
        Some(state) => Err(rusqlite::Error::IntegralValueOutOfRange(column, state)),
    }
}

fn consent_of(row: &Row<'_>) -> rusqlite::Result<Consent> {
    let state = state_at(row, 0)?;
    let channel: Option<String> = row.get(9)?;
    let address = match channel {
        Some(_) => Some((name_at(row, 9)?, row.get(10)?)),
        None => None,
    };
    Ok(Consent {
        state: state.ok_or_else(|| conversion_failed(0, StoreError::Damaged("the state of a consent".to_owned())))?,
        request: number_at(row, 1)?,
        requested_at: Timestamp(row.get(2)?),
        sent_at: Timestamp(row.get(3)?),
        counted_from: Timestamp(row.get(4)?),
        messages: row.get(5)?,
        attempts: row.get(6)?,
        expires_at: row.get::<_, Option<i64>>(7)?.map(Timestamp),
        code: row.get(8)?,
        address,
        was_confirmed: row.get(11)?,
    })
}

pub(super) fn find(connection: &Connection, id: SubscriptionId) -> Result<Option<Consent>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM consents WHERE subscription = ?1");
    query_one(connection, &sql, [signed(id.0)], consent_of)
}

pub(super) fn write(connection: &Connection, id: SubscriptionId, consent: &Consent) -> Result<(), StoreError> {
    let (channel, address) = match &consent.address {
        Some((channel, address)) => (Some(channel.as_str()), Some(address.as_str())),
        None => (None, None),
    };
    execute(
        connection,
        "INSERT INTO consents (subscription, state, request, requested_at, sent_at, counted_from, messages, attempts,
                expires_at, code, channel, address, was_confirmed)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
            ON CONFLICT (subscription) DO UPDATE SET state = excluded.state, request = excluded.request,
                requested_at = excluded.requested_at, sent_at = excluded.sent_at, counted_from = excluded.counted_from,
                messages = excluded.messages, attempts = excluded.attempts, expires_at = excluded.expires_at,
                code = excluded.code, channel = excluded.channel, address = excluded.address,
                was_confirmed = excluded.was_confirmed",
        (
            signed(id.0),
            state_number(consent.state),
            signed(consent.request),
            consent.requested_at.0,
            consent.sent_at.0,
            consent.counted_from.0,
            consent.messages,
            consent.attempts,
            consent.expires_at.map(|end| end.0),
            consent.code.as_deref(),
            channel,
            address,
            consent.was_confirmed,
        ),
    )
    .map(|_| ())
}

/// Stores the evidence of a change. Every change of a subscription's consent passes through here, after its row is
/// written and before a removed one is deleted.
pub(super) fn consent_changed(
    tx: &mut RecordsTransaction<'_>,
    change: &ConsentChange,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Evidence { way, by, address, text, version, remote, proof, at } = &change.evidence;
    let text = text.as_deref().map(|text| text_number(tx.connection, text)).transpose()?;
    execute(
        tx.connection,
        "INSERT INTO consent_evidence (subscriber, subscription, class, act, at, way, acted_by, channel, address,
                address_hash, text, version, remote, proof)
            SELECT subscriber, id, class, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12
            FROM subscriptions WHERE id = ?1",
        (
            signed(change.subscription.0),
            change.act.word(),
            at.unwrap_or(now).0,
            way.word(),
            by,
            address.as_ref().map(|to| to.channel.as_str()),
            address.as_ref().map(|to| to.address.as_str()),
            address.as_ref().map(|to| to.hash.as_str()),
            text,
            version.as_deref(),
            remote.as_deref(),
            proof.as_deref(),
        ),
    )?;
    match lifecycle_change(change) {
        Some(of) => {
            let by = ChangeOrigin { quiet: tx.origin.quiet, ..origin(&change.evidence) };
            lifecycle::record_by(tx, of, change.subscription.0, None, &by, now)
        }
        None => Ok(()),
    }
}

/// Number of a text, which many evidences share.
fn text_number(connection: &Connection, text: &str) -> Result<i64, StoreError> {
    let sql = "SELECT number FROM consent_texts WHERE text = ?1";
    if let Some(number) = query_one(connection, sql, [text], |row| row.get(0))? {
        return Ok(number);
    }
    execute(connection, "INSERT INTO consent_texts (text) VALUES (?1)", [text])?;
    Ok(connection.last_insert_rowid())
}

/// Deletes the consent of a removed subscription; its evidence stays.
pub(super) fn forget(connection: &Connection, id: u64) -> Result<(), StoreError> {
    execute(connection, "DELETE FROM consents WHERE subscription = ?1", [signed(id)]).map(|_| ())
}

/// Assigns the evidence of a merged subscriber to the account.
pub(super) fn move_to_account(connection: &Connection, from: u64, into: u64) -> Result<(), StoreError> {
    let sql = "UPDATE consent_evidence SET subscriber = ?2 WHERE subscriber = ?1";
    execute(connection, sql, (signed(from), signed(into))).map(|_| ())
}

/// Removes what names a person from its evidence. The hash of each address stays.
pub(super) fn erase(connection: &Connection, subscriber: u64, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE consent_evidence
        SET subscriber = 0, address = NULL, remote = NULL, proof = NULL, erased_at = ?2 WHERE subscriber = ?1";
    execute(connection, sql, (signed(subscriber), now.0)).map(|_| ())
}
