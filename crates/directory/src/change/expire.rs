//! Entries that end by themselves unless somebody says that they are still wanted: RFC 2589.
//!
//! When an entry of the class `dynamicObject` ends stands in it, so a refresh is a change of the entry and its end a
//! removal, which followers, rules and deliveries see as any other.

use std::time::Duration;

use tocsin_model::{time::Timestamp, value::Value};
use tocsin_store::entries::{Node, Room, Tree};
use tokio::sync::watch;

use super::{classes_of, modify::keep, needs};
use crate::{
    access::Asker,
    directory::{Directory, Inner, parse},
    entry::{self, Attribute, Entry},
    refusal::{Code, Refusal},
    schema::Schema,
    syntax::{generalized_time, instant},
};

/// The class of entries that end by themselves.
const DYNAMIC: &str = "dynamicobject";
/// When one ends: the index, and the name under which it is stored.
pub(super) const ENDS: &str = "entryexpiretimestamp";
const ENDS_NAME: &str = "entryExpireTimestamp";
/// How long one has left.
const LEFT: &str = "entryttl";
/// Entries that are removed in one commit.
const PORTION: usize = 200;
/// After a failure, and when the clock of the system may have been set.
const LOOKED_AGAIN: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

/// Later than anything.
pub(crate) const NEVER: Timestamp = Timestamp(i64::MAX);

/// What is to be removed after a portion was.
enum Next {
    Never,
    /// Something at this time.
    At(Timestamp),
    /// Perhaps more by now.
    Perhaps,
}

/// How long entries live that end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// One that is made.
    pub at_first: Duration,
    /// One of which less is asked for gets this.
    pub least: Duration,
    /// More than this is refused.
    pub most: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Lifetimes { at_first: day, least: SECOND, most: 365 * day }
    }
}

/// Whether an entry of these classes ends by itself.
pub(super) fn is_dynamic(classes: &[&str], schema: &Schema) -> bool {
    classes.iter().filter_map(|name| schema.class(name).ok()).any(|class| class.key() == DYNAMIC)
}

/// Refuses what would stay below what goes.
pub(super) fn check_place(above: &Node, classes: &[&str], schema: &Schema) -> Result<(), Refusal> {
    if ends_at(above).is_some() && !is_dynamic(classes, schema) {
        let what = "the entry above ends by itself, so those below it must too: give it the class dynamicObject";
        return Err(Refusal::new(Code::ConstraintViolation, what));
    }
    Ok(())
}

/// When a stored entry ends.
pub(crate) fn ends_at(node: &Node) -> Option<Timestamp> {
    let attributes = match node {
        Node::Object(stored) => &stored.object.attributes,
        Node::Subscriber(subscriber, _) => &subscriber.profile.attributes,
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

/// Rounded up, as it is written in whole seconds.
fn end_after(life: Duration, now: Timestamp) -> String {
    generalized_time((now + life + SECOND - Duration::from_micros(1)).0)
}

impl Inner {
    /// What a new entry of these attributes gets, if it ends by itself.
    pub(super) fn first_end(
        &self,
        attributes: &[Attribute],
        schema: &Schema,
        now: Timestamp,
    ) -> Result<Option<Attribute>, Refusal> {
        if !is_dynamic(&classes_of(attributes), schema) {
            return Ok(None);
        }
        Ok(Some(Attribute::of(schema.attribute(ENDS)?, end_after(self.lifetimes.at_first, now))))
    }

    /// Rings for whoever waits for the next end, if one comes sooner than those that were known.
    pub(crate) fn note_ends<'a>(&self, nodes: impl Iterator<Item = &'a Node>) {
        let Some(soonest) = nodes.filter_map(ends_at).min() else { return };
        self.next_end.send_if_modified(|known| {
            let is_sooner = soonest < *known;
            *known = soonest.min(*known);
            is_sooner
        });
    }

    fn put_off(
        &self,
        tree: &mut dyn Tree,
        node: &Node,
        end: String,
        schema: &Schema,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let before = entry::attributes(node, schema, &self.shape);
        let mut after = before.clone();
        after.retain(|found| &*found.kind.key != ENDS);
        after.push(Attribute::of(schema.attribute(ENDS)?, end));
        keep(node, self, tree, (&before, after), None, schema, now)
    }

    /// Removes an entry whose time is over; one with others below it stays as long as they do.
    fn end(&self, tree: &mut dyn Tree, node: &Node, schema: &Schema, now: Timestamp) -> Result<(), Refusal> {
        let below = tree.branches().page(Some(node.number()), false, None, PORTION)?;
        if below.is_empty() {
            metrics::counter!("directory_expired_total").increment(1);
            return Ok(tree.remove(node.number(), now)?);
        }
        let last = below.iter().filter_map(ends_at).max().unwrap_or(now).max(now);
        self.put_off(tree, node, end_after(SECOND, last), schema, now)
    }
}

impl Directory {
    /// Says that an entry is still wanted, for `seconds` from now on. Gives for how long it stays. Durable when the call
    /// returns.
    ///
    /// # Errors
    /// There is no such entry; it does not end by itself; so long is not allowed; whoever asks may not write `entryTtl`.
    pub async fn refresh(&self, asker: &Asker, dn: &str, seconds: u32) -> Result<u32, Refusal> {
        let parsed = parse(dn)?;
        let (inner, asker, now, schema) = (self.inner.clone(), asker.clone(), (self.clock)(), self.schema());
        let Lifetimes { least, most, .. } = inner.lifetimes;
        let life = Duration::from_secs(seconds.into()).max(least);
        if life > most {
            let what = format!("an entry is kept for at most {} seconds at a time", most.as_secs());
            return Err(Refusal::new(Code::AdminLimitExceeded, what));
        }
        self.change(Room::NotNeeded, move |tree| {
            let (node, above) = inner.visible(tree.branches(), &asker, &parsed)?;
            let shown = entry::view(&node, above.as_deref(), &schema, &inner.shape);
            needs(&inner, &asker, &shown, &[schema.attribute(LEFT)?])?;
            if ends_at(&node).is_none() {
                let what = "this entry does not end by itself: it is no dynamicObject";
                return Err(Refusal::new(Code::ObjectClassViolation, what));
            }
            inner.put_off(tree, &node, end_after(life, now), &schema, now)
        })
        .await?;
        Ok(u32::try_from(life.as_secs()).unwrap_or(u32::MAX))
    }

    /// How many seconds an entry has left, if it ends by itself.
    pub fn time_left(&self, entry: &Entry) -> Option<Attribute> {
        let end = entry.attribute(ENDS).and_then(|found| instant(std::str::from_utf8(&found.values[0]).ok()?))?;
        let left = Timestamp(end).since((self.clock)()).as_secs();
        Some(Attribute::of(self.schema().attribute(LEFT).ok()?, left.to_string()))
    }

    /// Removes all entries whose time is over. Gives when the next one ends.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn expire(&self) -> Result<Option<Timestamp>, Refusal> {
        loop {
            let (inner, now) = (self.inner.clone(), (self.clock)());
            let next = self
                .change(Room::NotNeeded, move |tree| {
                    let (schema, mut next) = (inner.schema.load(), Next::Never);
                    for number in tree.branches().first(ENDS, PORTION)? {
                        let Some(node) = tree.branches().node(number)? else { continue };
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

    /// Removes entries when their time is over, for ever.
    pub async fn keep_expiring(&self) {
        let mut sooner: watch::Receiver<Timestamp> = self.inner.next_end.subscribe();
        loop {
            // What comes sooner than what is found now rings.
            self.inner.next_end.send_replace(NEVER);
            sooner.borrow_and_update();
            let next = self.expire().await.unwrap_or_else(|error| {
                tracing::error!(%error, "entries whose time is over could not be removed; it is tried again");
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
