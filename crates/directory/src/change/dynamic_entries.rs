//! Dynamic entries (RFC 2589), which expire unless they are refreshed.
//!
//! The expiry is stored in the entry. A refresh is therefore a modification and an expiry a removal, which persistent
//! searches, rules and deliveries see like any other.

use std::time::Duration;

use tocsin_model::{time::Timestamp, value::Value};
use tocsin_store::entries::{DiskCheck, EntryNode, EntryWriter};
use tokio::sync::watch;

use super::{rights::check_access, values::classes_of, write::store_attributes};
use crate::{
    access::AuthzId,
    directory::Directory,
    entry::{self, Attribute, Entry},
    ldap_error::{Code, LdapError},
    options::Lifetimes,
    schema::Schema,
    syntax::{generalized_time, instant},
    tree::NEVER,
    tree::{Inner, parse},
};

/// Attribute and index of the expiry.
pub(super) const ENDS: &str = "entryexpiretimestamp";
const ENDS_NAME: &str = "entryExpireTimestamp";
/// Attribute with the remaining lifetime.
const LEFT: &str = "entryttl";
/// Entries removed in one commit.
const PORTION: usize = 200;
/// Interval of checks after a failure, and for changes of the system clock.
const LOOKED_AGAIN: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

/// Next expiry after a batch.
enum Next {
    Never,
    /// At this time.
    At(Timestamp),
    /// Possibly at once.
    Perhaps,
}

/// Rejects a permanent entry below a dynamic one.
pub(super) fn check_place(above: &EntryNode, classes: &[&str], schema: &Schema) -> Result<(), LdapError> {
    if ends_at(above).is_some() && !schema.is_dynamic(classes) {
        let what = "the parent entry is dynamic, so this entry must be too: give it the class dynamicObject";
        return Err(LdapError::new(Code::ConstraintViolation, what));
    }
    Ok(())
}

/// Expiry of a stored entry.
pub(crate) fn ends_at(node: &EntryNode) -> Option<Timestamp> {
    let attributes = match node {
        EntryNode::Object(stored) => &stored.object.attributes,
        EntryNode::Subscriber(subscriber, _) => &subscriber.profile.attributes,
    };
    match attributes.get(ENDS_NAME)? {
        Value::List(items) => time(items.first()?),
        value => time(value),
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    match value {
        Value::Timestamp(time) => Some(*time),
        value => value.as_text().and_then(instant).map(Timestamp),
    }
}

/// Rounded up to whole seconds, the stored resolution.
fn end_after(life: Duration, now: Timestamp) -> String {
    generalized_time((now + life + SECOND - Duration::from_micros(1)).0)
}

impl Inner {
    /// The initial expiry of a new entry with these attributes, if it is dynamic.
    pub(super) fn first_end(
        &self,
        attributes: &[Attribute],
        schema: &Schema,
        now: Timestamp,
    ) -> Result<Option<Attribute>, LdapError> {
        if !schema.is_dynamic(&classes_of(attributes)) {
            return Ok(None);
        }
        Ok(Some(Attribute::of(schema.attribute(ENDS)?, end_after(self.lifetimes.at_first, now))))
    }

    /// Notifies the expiry task if an expiry is earlier than those known.
    pub(crate) fn record_end_times<'a>(&self, nodes: impl Iterator<Item = &'a EntryNode>) {
        let Some(soonest) = nodes.filter_map(ends_at).min() else { return };
        self.next_end.send_if_modified(|known| {
            let is_sooner = soonest < *known;
            *known = soonest.min(*known);
            is_sooner
        });
    }

    fn put_off(
        &self,
        tree: &mut dyn EntryWriter,
        node: &EntryNode,
        end: String,
        schema: &Schema,
        now: Timestamp,
    ) -> Result<(), LdapError> {
        let before = entry::attributes(node, schema, &self.shape);
        let mut after = before.clone();
        after.retain(|found| &*found.kind.key != ENDS);
        after.push(Attribute::of(schema.attribute(ENDS)?, end));
        store_attributes(node, self, tree, (&before, after), None, schema, now)
    }

    /// Removes an expired entry; one with children stays until they are gone.
    fn end(
        &self,
        tree: &mut dyn EntryWriter,
        node: &EntryNode,
        schema: &Schema,
        now: Timestamp,
    ) -> Result<(), LdapError> {
        let below = tree.reader().page(Some(node.number()), false, None, PORTION)?;
        if below.is_empty() {
            metrics::counter!("tocsin_directory_expired_total").increment(1);
            return Ok(tree.remove(node.number(), now)?);
        }
        let last = below.iter().filter_map(ends_at).max().unwrap_or(now).max(now);
        self.put_off(tree, node, end_after(SECOND, last), schema, now)
    }
}

impl Directory {
    /// Refreshes a dynamic entry for `seconds` from now, and returns the granted lifetime. Durable on return.
    ///
    /// # Errors
    /// There is no such entry; it is not dynamic; the lifetime is too long; the requester may not write `entryTtl`.
    pub async fn refresh(&self, requester: &AuthzId, dn: &str, seconds: u32) -> Result<u32, LdapError> {
        let parsed = parse(dn)?;
        let (inner, requester, now, schema) = (self.inner.clone(), requester.clone(), (self.clock)(), self.schema());
        let Lifetimes { least, most, .. } = inner.lifetimes;
        let life = Duration::from_secs(seconds.into()).max(least);
        if life > most {
            let what = format!("the maximum lifetime is {} seconds", most.as_secs());
            return Err(LdapError::new(Code::AdminLimitExceeded, what));
        }
        self.change(DiskCheck::Skipped, move |tree| {
            let (node, above) = inner.visible(tree.reader(), &requester, &parsed)?;
            let shown = entry::view(&node, above.as_deref(), &schema, &inner.shape);
            check_access(&inner, &requester, &shown, &[schema.attribute(LEFT)?])?;
            if ends_at(&node).is_none() {
                let what = "this entry is not dynamic: it lacks the class dynamicObject";
                return Err(LdapError::new(Code::ObjectClassViolation, what));
            }
            inner.put_off(tree, &node, end_after(life, now), &schema, now)
        })
        .await?;
        Ok(u32::try_from(life.as_secs()).unwrap_or(u32::MAX))
    }

    /// Remaining lifetime of a dynamic entry, in seconds.
    pub fn time_left(&self, entry: &Entry) -> Option<Attribute> {
        let end = entry.attribute(ENDS).and_then(|found| instant(std::str::from_utf8(&found.values[0]).ok()?))?;
        let left = Timestamp(end).since((self.clock)()).as_secs();
        Some(Attribute::of(self.schema().attribute(LEFT).ok()?, left.to_string()))
    }

    /// Removes all expired entries. Returns the next expiry.
    ///
    /// # Errors
    /// The store fails.
    pub async fn expire(&self) -> Result<Option<Timestamp>, LdapError> {
        loop {
            let (inner, now) = (self.inner.clone(), (self.clock)());
            let next = self
                .change(DiskCheck::Skipped, move |tree| {
                    let (schema, mut next) = (inner.schema.load(), Next::Never);
                    for number in tree.reader().first(ENDS, PORTION)? {
                        let Some(node) = tree.reader().node(number)? else { continue };
                        match ends_at(&node) {
                            Some(end) if end > now => return Ok(Next::At(end)),
                            Some(_) => inner.end(tree, &node, &schema, now)?,
                            None => continue,
                        }
                        next = Next::Perhaps;
                    }
                    Ok(next)
                })
                .await?;
            match next {
                Next::Perhaps => {}
                Next::At(end) => return Ok(Some(end)),
                Next::Never => return Ok(None),
            }
        }
    }

    /// Expiry task: removes entries as they expire. Never returns.
    pub async fn keep_expiring(&self) {
        let mut sooner: watch::Receiver<Timestamp> = self.inner.next_end.subscribe();
        loop {
            // An earlier expiry notifies from here on.
            self.inner.next_end.send_replace(NEVER);
            sooner.borrow_and_update();
            let next = self.expire().await.unwrap_or_else(|error| {
                tracing::error!(%error, "expired entries could not be removed; the server retries");
                Some((self.clock)() + LOOKED_AGAIN)
            });
            self.inner.next_end.send_if_modified(|known| {
                *known = next.unwrap_or(NEVER).min(*known);
                false
            });
            let left = next.map_or(LOOKED_AGAIN, |next| next.since((self.clock)()).min(LOOKED_AGAIN));
            tokio::select! {
                () = tokio::time::sleep(left), if next.is_some() => {}
                _ = sooner.changed() => {}
            }
        }
    }
}
