//! Consent of subscriptions, with its evidence. The state is also a column of the subscription, which keeps it disabled
//! while it is not confirmed.

use rusqlite::{Connection, Row};
use tocsin_model::{
    consent::{
        ADDRESS_SUBSCRIBER, Confirmation, Consent, ConsentAct, ConsentChange, ConsentMethod, ConsentRequest,
        ConsentState, Evidence, EvidenceRecord, InitialConsent, Requested,
    },
    id::SubscriptionId,
    subscriber::Subscriber,
    subscription::Subscription,
    time::Timestamp,
};

use super::transaction::RecordsTransaction;
use crate::{
    error::StoreError,
    records::{
        ConfirmConsent, EvidenceOf, NewConsented, NewSubscription, Precondition, Written, address_of, confirmed_device,
        no_subscriber, no_subscription, recorded_act,
    },
    sqlite::{
        records::{
            consent_rows::{consent_changed, find, write},
            subscriber_rows, subscribers, subscriptions,
        },
        statements::{conversion_failed, execute, name_at, number_at, parsed_at, query_all, query_one, signed},
    },
};

/// Stores consent and state of a subscription, with the evidence.
fn apply(
    tx: &mut RecordsTransaction<'_>,
    before: &Subscription,
    consent: &Consent,
    act: ConsentAct,
    evidence: Evidence,
    now: Timestamp,
) -> Result<(), StoreError> {
    write(tx.connection, before.id, consent)?;
    subscriptions::set_consent(tx, before.id, consent.state, now)?;
    let (subscription, after) = (before.id, Some(consent.state));
    let is_new = before.revision == 1 && before.consent.is_none() && before.created_at == now;
    let change = ConsentChange { subscription, before: before.consent, after, act, is_new, evidence };
    consent_changed(tx, &change, now)
}

fn subscriber_of(connection: &Connection, subscription: &Subscription) -> Result<Subscriber, StoreError> {
    let id = &subscription.subscriber;
    subscriber_rows::find(connection, id)?.ok_or_else(|| no_subscriber(id))
}

pub(super) fn put_many(
    tx: &mut RecordsTransaction<'_>,
    new: Vec<NewConsented>,
    now: Timestamp,
) -> Result<Vec<Written<(SubscriptionId, Requested)>>, StoreError> {
    let mut written = Vec::with_capacity(new.len());
    for new in new {
        tx.origin = new.origin();
        let NewConsented { subscription, consent, keeps_confirmed, quiet: _ } = new;
        written.push(put(tx, subscription, consent, keeps_confirmed, now)?);
    }
    Ok(written)
}

fn put(
    tx: &mut RecordsTransaction<'_>,
    line: NewSubscription,
    initial: InitialConsent,
    keeps_confirmed: bool,
    now: Timestamp,
) -> Result<Written<(SubscriptionId, Requested)>, StoreError> {
    let stored = subscriptions::find_same_key(tx.connection, &line)?;
    let is_confirmed = stored.as_ref().is_some_and(|stored| stored.consent.is_some_and(ConsentState::permits));
    if let Some(stored) = stored.as_ref().filter(|_| is_confirmed && keeps_confirmed) {
        return Ok(Ok((stored.id, Requested::AlreadyConfirmed)));
    }
    if let (Some(stored), InitialConsent::Requested(request)) = (&stored, &initial)
        && let Some(mut consent) = find(tx.connection, stored.id)?
        && let soon @ Requested::TooSoon(_) = consent.request(request, None, now)
    {
        // What its open link confirms must not change without another message.
        return Ok(Ok((stored.id, soon)));
    }
    let becomes_confirmed = match &initial {
        InitialConsent::Recorded(state, _) => state.permits(),
        InitialConsent::Requested(_) => is_confirmed,
    };
    let enabled = if becomes_confirmed { line.enabled } else { Some(false) };
    let line = NewSubscription { enabled, ..line };
    let id = match subscriptions::put_many(tx, std::slice::from_ref(&line), now)?.into_iter().next() {
        Some(Ok(id)) => id,
        Some(Err(error)) => return Ok(Err(error)),
        None => return Ok(Err(no_subscriber(&line.subscriber))),
    };
    subscriptions::device_changed(tx, id, now)?;
    let present = subscriptions::find(tx.connection, id)?.ok_or_else(|| no_subscription(id))?;
    let is_new = stored.is_none();
    let repeats = stored.is_some_and(|stored| {
        (&stored.values, &stored.terms, &stored.device) == (&present.values, &present.terms, &present.device)
    });
    let requested = match initial {
        InitialConsent::Requested(_) if is_confirmed => match present.consent {
            Some(ConsentState::Pending) => Requested::Started,
            _ => Requested::AlreadyConfirmed,
        },
        InitialConsent::Requested(request) => {
            let repeats = repeats && request.repeats;
            request_of(tx, &present, ConsentRequest { repeats, ..request }, now)?
        }
        InitialConsent::Recorded(state, evidence) => {
            let known = find(tx.connection, id)?;
            if known.as_ref().is_none_or(|known| known.state != state) {
                let mut consent = known.unwrap_or_else(|| Consent::new(state, now));
                consent.record(state);
                write(tx.connection, id, &consent)?;
                let enabled = state.permits() && line.enabled.unwrap_or(true);
                subscriptions::record_consent(tx, id, state, enabled, now)?;
                let act = recorded_act(state);
                let (before, after) = (present.consent, Some(state));
                let change = ConsentChange { subscription: id, before, after, act, is_new, evidence };
                consent_changed(tx, &change, now)?;
            }
            Requested::AlreadyConfirmed
        }
    };
    Ok(Ok((id, requested)))
}

fn request_of(
    tx: &mut RecordsTransaction<'_>,
    present: &Subscription,
    request: ConsentRequest,
    now: Timestamp,
) -> Result<Requested, StoreError> {
    let address = address_of(&subscriber_of(tx.connection, present)?, present.device.as_ref());
    let (consent, requested) = match find(tx.connection, present.id)? {
        Some(mut consent) => {
            let requested = consent.request(&request, address, now);
            (consent, requested)
        }
        None => (Consent::requested(&request, address, now), Requested::Started),
    };
    let act = match requested {
        Requested::Started => ConsentAct::Requested,
        Requested::Resent => ConsentAct::Resent,
        Requested::TooSoon(_) | Requested::AlreadyConfirmed => return Ok(requested),
    };
    apply(tx, present, &consent, act, request.evidence, now)?;
    Ok(requested)
}

pub(super) fn request(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    request: ConsentRequest,
    now: Timestamp,
) -> Result<Requested, StoreError> {
    let present = subscriptions::find(tx.connection, id)?.ok_or_else(|| no_subscription(id))?;
    request_of(tx, &present, request, now)
}

pub(super) fn confirm(tx: &mut RecordsTransaction<'_>, confirm: ConfirmConsent) -> Result<Confirmation, StoreError> {
    let ConfirmConsent { id, proof, attempts_max, evidence, now } = confirm;
    let Some(present) = subscriptions::find(tx.connection, id)? else { return Ok(Confirmation::Void) };
    let Some(mut consent) = find(tx.connection, id)? else { return Ok(Confirmation::Void) };
    let subscriber = subscriber_of(tx.connection, &present)?;
    let address = address_of(&subscriber, present.device.as_ref());
    let confirmation = consent.confirm(proof, attempts_max, address.as_ref(), now);
    match confirmation {
        Confirmation::Confirmed => {}
        Confirmation::WrongCode => {
            write(tx.connection, id, &consent)?;
            return Ok(confirmation);
        }
        Confirmation::AlreadyConfirmed | Confirmation::Exhausted | Confirmation::Void => return Ok(confirmation),
    }
    if let Some((name, device)) = confirmed_device(&subscriber, present.device.as_ref(), consent.address.as_ref()) {
        subscribers::put_device(tx, &subscriber.id, name, device, false, now)?;
    }
    apply(tx, &present, &consent, ConsentAct::Confirmed, evidence, now)?;
    Ok(confirmation)
}

pub(super) fn withdraw(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    evidence: Evidence,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(present) = subscriptions::find(tx.connection, id)? else { return Ok(false) };
    let act = ConsentAct::Withdrawn;
    match find(tx.connection, id)? {
        Some(mut consent) => {
            if !consent.withdraw() {
                return Ok(false);
            }
            apply(tx, &present, &consent, act, evidence, now)?;
        }
        None => {
            if !present.is_active_or_snoozed() {
                return Ok(false);
            }
            subscriptions::switch(tx, id, false, now)?;
            let change = ConsentChange { subscription: id, before: None, after: None, act, is_new: false, evidence };
            consent_changed(tx, &change, now)?;
        }
    }
    Ok(true)
}

pub(super) fn restore(
    tx: &mut RecordsTransaction<'_>,
    id: SubscriptionId,
    evidence: Evidence,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(present) = subscriptions::find(tx.connection, id)? else { return Ok(false) };
    let act = ConsentAct::Restored;
    match find(tx.connection, id)? {
        Some(mut consent) => {
            let address = address_of(&subscriber_of(tx.connection, &present)?, present.device.as_ref());
            let Some(act) = consent.restore(address.as_ref(), now) else { return Ok(false) };
            apply(tx, &present, &consent, act, evidence, now)?;
        }
        None => {
            if present.is_active_or_snoozed() {
                return Ok(false);
            }
            subscriptions::switch(tx, id, true, now)?;
            let change = ConsentChange { subscription: id, before: None, after: None, act, is_new: false, evidence };
            consent_changed(tx, &change, now)?;
        }
    }
    Ok(true)
}

/// Whether any request has expired.
pub(super) fn is_any_expired(connection: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM consents WHERE expires_at <= ?1 LIMIT 1";
    Ok(query_one(connection, sql, [now.0], |_| Ok(()))?.is_some())
}

pub(super) fn expire(tx: &mut RecordsTransaction<'_>, now: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "SELECT subscription FROM consents WHERE expires_at <= ?1 ORDER BY expires_at, subscription LIMIT ?2";
    let expired = query_all(tx.connection, sql, (now.0, signed(limit as u64)), |row| number_at(row, 0))?;
    let count = expired.len();
    for id in expired.into_iter().map(SubscriptionId) {
        let Some(present) = subscriptions::find(tx.connection, id)? else {
            execute(tx.connection, "DELETE FROM consents WHERE subscription = ?1", [signed(id.0)])?;
            continue;
        };
        let evidence = Evidence::new(ConsentMethod::Expiry, "tocsin");
        let (before, act) = (present.consent, ConsentAct::Expired);
        consent_changed(
            tx,
            &ConsentChange { subscription: id, before, after: None, act, is_new: false, evidence },
            now,
        )?;
        subscriptions::remove(tx, id, Precondition::Any, now)?;
        let owner = &present.subscriber;
        let sql = "SELECT 1 FROM subscriptions WHERE subscriber = ?1 LIMIT 1";
        if owner.as_str().starts_with(ADDRESS_SUBSCRIBER)
            && query_one(tx.connection, sql, [signed(present.subscriber_number.0)], |_| Ok(()))?.is_none()
        {
            subscribers::remove(tx, owner, Precondition::Any, now)?;
        }
    }
    Ok(count)
}

pub(super) fn is_any_erased(connection: &Connection, before: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM consent_evidence WHERE erased_at <= ?1 LIMIT 1";
    Ok(query_one(connection, sql, [before.0], |_| Ok(()))?.is_some())
}

pub(super) fn prune(connection: &Connection, before: Timestamp, limit: usize) -> Result<usize, StoreError> {
    let sql = "DELETE FROM consent_evidence WHERE number IN
        (SELECT number FROM consent_evidence WHERE erased_at <= ?1 ORDER BY erased_at, number LIMIT ?2)";
    execute(connection, sql, (before.0, signed(limit as u64)))
}

fn record_of(row: &Row<'_>) -> rusqlite::Result<EvidenceRecord> {
    let word = |column: usize| StoreError::Damaged(format!("the column {column} of an evidence"));
    let name = |column: usize| match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => name_at(row, column).map(Some),
    };
    let subscriber = match row.get_ref(1)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(parsed_at(row, 1)?),
    };
    Ok(EvidenceRecord {
        number: number_at(row, 0)?,
        subscriber,
        subscription: SubscriptionId(number_at(row, 2)?),
        application: name_at(row, 3)?,
        class: name_at(row, 4)?,
        act: row.get_ref(5)?.as_str()?.parse().map_err(|()| conversion_failed(5, word(5)))?,
        at: Timestamp(row.get(6)?),
        way: row.get_ref(7)?.as_str()?.parse().map_err(|()| conversion_failed(7, word(7)))?,
        by: row.get(8)?,
        channel: name(9)?,
        address: row.get(10)?,
        address_hash: row.get(11)?,
        text: row.get(12)?,
        version: row.get(13)?,
        remote: row.get(14)?,
        proof: row.get(15)?,
        erased_at: row.get::<_, Option<i64>>(16)?.map(Timestamp),
    })
}

pub(super) fn evidence(
    connection: &Connection,
    of: &EvidenceOf,
    after: u64,
    limit: usize,
) -> Result<Vec<EvidenceRecord>, StoreError> {
    let (column, number) = match of {
        EvidenceOf::Subscription(id) => ("subscription", id.0),
        EvidenceOf::Subscriber(id) => match subscriber_rows::number(connection, id)? {
            Some(number) => ("subscriber", number),
            None => return Ok(Vec::new()),
        },
    };
    let sql = format!(
        "SELECT e.number, u.id, e.subscription, c.application, c.name, e.act, e.at, e.way, e.acted_by, e.channel,
                e.address, e.address_hash, t.text, e.version, e.remote, e.proof, e.erased_at
            FROM consent_evidence e JOIN classes c ON c.number = e.class
                LEFT JOIN subscribers u ON u.number = e.subscriber LEFT JOIN consent_texts t ON t.number = e.text
            WHERE e.{column} = ?1 AND e.number > ?2 ORDER BY e.number LIMIT ?3"
    );
    query_all(connection, &sql, (signed(number), signed(after), signed(limit as u64)), record_of)
}
