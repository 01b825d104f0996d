//! Images of records for the audit log. They are made only for changes that are audited.

use rusqlite::Connection;
use serde_json::{Value as Json, json};
use tocsin_model::{
    filter::Filter, id::SubscriptionId, segment::Segment, subscriber::Subscriber, subscription::Subscription,
    suppression::Suppression,
};

use crate::{
    audit::{Image, changed, is_recording},
    entries::{EntryNode, EntryNumber, Object},
    error::StoreError,
    records::{ApiKey, Session, User},
    sqlite::{
        records::subscriber_rows,
        statements::{query_one, signed},
    },
};

fn value(serializable: &impl serde::Serialize) -> Json {
    serde_json::to_value(serializable).unwrap_or_default()
}

pub(super) fn subscriber(before: Option<&Subscriber>, after: Option<&Subscriber>) {
    let Some(id) = after.or(before).map(|found| &found.id) else { return };
    let image = |found: &Subscriber| {
        let mut image = value(&found.profile);
        if let Json::Object(members) = &mut image {
            members.insert("devices".to_owned(), value(&found.devices));
            members.insert("preferences".to_owned(), value(&found.preferences));
            members.insert("revision".to_owned(), found.revision.into());
        }
        image
    };
    changed(|| Image::of("subscriber", id, before.map(image), after.map(image)));
}

/// A modified subscriber of a prepared change, by number. The images have the changed attributes only.
pub(super) fn attributes(connection: &Connection, number: u64, before: Json, after: &str) -> Result<(), StoreError> {
    if !is_recording() {
        return Ok(());
    }
    let sql = "SELECT id FROM subscribers WHERE number = ?1";
    let id: Option<String> = query_one(connection, sql, [signed(number)], |row| row.get(0))?;
    let mut after: Json = serde_json::from_str(after).unwrap_or_default();
    if let (Json::Object(before), Json::Object(after)) = (&before, &mut after) {
        after.retain(|name, _| before.contains_key(name));
    }
    let image = |attributes: Json| Some(json!({ "attributes": attributes }));
    changed(|| Image::of("subscriber", id.unwrap_or_default(), image(before), image(after)));
    Ok(())
}

fn subscription_json(found: &Subscription) -> Json {
    json!({
        "application": found.application.as_str(),
        "class": found.class.as_str(),
        "subscriber": found.subscriber.as_str(),
        "key": found.key,
        "device": found.device.as_ref().map(|device| device.as_str()),
        "enabled": found.enabled,
        "values": serde_json::from_str::<Json>(&found.values).unwrap_or_default(),
        "filter": found.terms.filter.as_ref().map(Filter::to_string),
        "schedule": found.terms.schedule,
        "snoozed_until": found.terms.snoozed_until.map(|until| until.to_string()),
        "consent": found.consent.map(|state| state.word()),
        "revision": found.revision,
    })
}

/// The image of a changed subscription.
pub(super) fn subscription(id: SubscriptionId, before: Option<&Subscription>, after: Option<&Subscription>) {
    if after != before {
        changed(|| Image::of("subscription", id, before.map(subscription_json), after.map(subscription_json)));
    }
}

pub(super) fn segment(before: Option<&Segment>, after: Option<&Segment>) {
    let Some(name) = after.or(before).map(|found| &found.name) else { return };
    let image = |found: &Segment| {
        let Segment { description, filter, revision, .. } = found;
        json!({ "description": description, "filter": filter, "revision": revision })
    };
    changed(|| Image::of("segment", name, before.map(image), after.map(image)));
}

pub(super) fn suppression(target: &str, before: Option<&Suppression>, after: Option<&Suppression>) {
    let image = |found: &Suppression| {
        json!({
            "address": found.address,
            "cause": found.cause.word(),
            "in_force": found.in_force,
            "origin": found.origin,
            "detail": found.detail,
            "since": found.since.to_string(),
            "expires_at": found.expires_at.map(|end| end.to_string()),
        })
    };
    changed(|| Image::of("suppression", target, before.map(image), after.map(image)));
}

pub(super) fn api_key(before: Option<&ApiKey>, after: Option<&ApiKey>) {
    let Some(id) = after.or(before).map(|found| &found.id) else { return };
    let image = |found: &ApiKey| {
        json!({
            "description": found.description,
            "scopes": found.scopes,
            "resources": found.resources,
            "expires_at": found.expires_at.map(|end| end.to_string()),
        })
    };
    changed(|| Image::of("key", id, before.map(image), after.map(image)));
}

pub(super) fn user(before: Option<&User>, after: Option<&User>) {
    let Some(name) = after.or(before).map(|found| &found.name) else { return };
    let image = |found: &User| {
        json!({
            "display_name": found.display_name,
            "email": found.email,
            "roles": found.roles,
            "has_password": found.password.is_some(),
            "oidc_subject": found.oidc_subject,
            "language": found.language,
            "time_zone": found.time_zone,
            "disabled": found.disabled,
            "revision": found.revision,
        })
    };
    changed(|| Image::of("user", name, before.map(image), after.map(image)));
}

pub(super) fn session(session: &Session) {
    changed(|| {
        let image = json!({
            "user": session.user,
            "expires_at": session.expires_at.to_string(),
            "address": session.address,
            "user_agent": session.user_agent,
        });
        Image::of("session", &session.id, None, Some(image))
    });
}

pub(super) fn session_end(id: &str) {
    changed(|| Image::of("session", id, Some(json!({})), None));
}

/// Distinguished name of an object, or of the object below which one is put.
fn dn(connection: &Connection, rdn: &str, mut parent: Option<EntryNumber>) -> Result<String, StoreError> {
    let mut name = rdn.to_owned();
    while let Some(above) = parent {
        let sql = "SELECT rdn, parent FROM entries WHERE number = ?1";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
        let Some((rdn, next)) = query_one(connection, sql, [above.0], read)? else { break };
        name.push(',');
        name.push_str(&rdn);
        parent = (next != 0).then_some(EntryNumber(next));
    }
    Ok(name)
}

pub(super) fn object(
    connection: &Connection,
    before: Option<&Object>,
    after: Option<&Object>,
) -> Result<(), StoreError> {
    let (true, Some(named)) = (is_recording(), after.or(before)) else { return Ok(()) };
    let dn = dn(connection, &named.rdn, named.parent)?;
    let image = |found: &Object| json!({ "rdn": &*found.rdn, "attributes": value(&found.attributes) });
    changed(|| Image::of("entry", dn, before.map(image), after.map(image)));
    Ok(())
}

/// Values of one attribute that were added to an object and removed from it.
pub(super) fn row_values(
    connection: &Connection,
    of: &Object,
    name: &str,
    added: &[Box<str>],
    removed: &[Box<str>],
) -> Result<(), StoreError> {
    if is_recording() {
        let dn = dn(connection, &of.rdn, of.parent)?;
        let image = |values: &[Box<str>]| Some(json!({ name: values }));
        changed(|| Image::of("entry", dn, image(removed), image(added)));
    }
    Ok(())
}

/// A password that was set for an entry, or removed.
pub(super) fn credential(connection: &Connection, holder: &EntryNode, is_set: bool) -> Result<(), StoreError> {
    let image = Some(json!({ "has_password": is_set }));
    match holder {
        EntryNode::Subscriber(found, _) => changed(|| Image::of("subscriber", &found.id, None, image)),
        EntryNode::Object(found) => {
            let dn = dn(connection, &found.object.rdn, found.object.parent)?;
            changed(|| Image::of("entry", dn, None, image));
        }
    }
    Ok(())
}

/// A subscriber by number, after a prepared add.
pub(super) fn made_subscriber(connection: &Connection, number: u64) -> Result<(), StoreError> {
    if is_recording() {
        let number = tocsin_model::id::SubscriberNumber(number);
        subscriber(None, subscriber_rows::find_numbered(connection, number)?.as_ref());
    }
    Ok(())
}
