//! Query planner: the index keys of an entry, and the index lookups for a filter.
//!
//! An attribute's index holds normalized values in byte order and serves equality, order, prefixes and presence. A
//! second index, named with a trailing `~`, holds trigrams and serves substrings. Candidates are always checked against
//! the filter, so keys may be truncated.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use tocsin_model::{ldap::prepare::Form, value::Value};
use tocsin_store::entries::{self, EntryKey, EntryNode, EntryNumber, EntryReader};

use crate::{
    entry::{Attribute, Entry},
    filter::{AttributeAssertion, Test},
    ldap_error::LdapError,
    schema::{AttributeType, Schema},
    syntax::Rule,
};

/// Maximum length of a key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// Maximum candidates of an index; with more, another index or a full scan is used.
pub(crate) const CANDIDATES_MAX: usize = 200_000;
/// Bytes of a trigram.
const GRAM: usize = 3;
/// Maximum indexed trigrams of a value.
const GRAMS_MAX: usize = 256;
/// Key of entries that have a value with more trigrams than are indexed; it equals no trigram.
const LONG: &[u8] = b"";
/// Maximum keys read for one search.
const READ_MAX: usize = 1_000_000;
/// Version marker in the list of indexes. It changes when the encoding of keys changes, which invalidates existing
/// indexes.
const MADE: &str = "~2";
/// Version marker of indexes on lists, bit strings and times, whose encoding changed later. Other indexes need no
/// rebuild at the upgrade.
const MADE_ANEW: &str = "~3";

/// Names of the indexes that a schema requires.
pub(crate) fn indexes(schema: &Schema) -> BTreeSet<String> {
    let comparable = schema.attributes().filter(|kind| kind.equality.is_some());
    let names = comparable.flat_map(|kind| {
        let whole = kind.indexed.0.then(|| kind.key.to_string());
        whole.into_iter().chain(kind.indexed.1.then(|| grams_name(&kind.key)))
    });
    let is_anew = |kind: &Arc<AttributeType>| {
        let is_rule = matches!(kind.equality, Some(Rule::CaseIgnoreList | Rule::Bits | Rule::Time));
        // The server writes this time itself, without fractions of a second.
        is_rule && kind.indexed != (false, false) && &*kind.key != "entryexpiretimestamp"
    };
    let made = if schema.attributes().any(is_anew) { MADE_ANEW } else { MADE };
    names.chain([made.to_owned()]).collect()
}

fn grams_name(key: &str) -> String {
    format!("{key}~")
}

/// Index keys of an entry with these attributes. A value is indexed under its type and all supertypes.
pub(crate) fn keys<'a>(attributes: impl IntoIterator<Item = &'a Attribute>, schema: &Schema) -> Vec<EntryKey> {
    let mut keys = Vec::new();
    for attribute in attributes {
        let above = attribute.kind.kinds.iter().filter_map(|key| schema.attribute(key).ok());
        for kind in above.chain([&attribute.kind]).filter(|kind| kind.indexed != (false, false)) {
            for value in &*attribute.values {
                add_keys(kind, value, schema, &mut keys);
            }
        }
    }
    keys
}

/// Index keys that an entry loses and gains, if only attributes of these types changed.
pub(crate) fn index_diff(
    before: &[Attribute],
    after: &[Attribute],
    touched: &[Arc<AttributeType>],
    schema: &Schema,
) -> (Vec<EntryKey>, Vec<EntryKey>) {
    let all = touched.iter().flat_map(|kind| kind.kinds.iter().chain([&kind.key]));
    let of_index = |key: &&Arc<str>| schema.attribute(key).is_ok_and(|kind| kind.indexed != (false, false));
    let indexes: Vec<&Arc<str>> = all.filter(of_index).collect();
    if indexes.is_empty() {
        return Default::default();
    }
    // A value lost by one attribute may remain under a supertype through another attribute.
    let is_selected =
        |found: &&Attribute| found.kind.kinds.iter().chain([&found.kind.key]).any(|key| indexes.contains(&key));
    let keys = |attributes: &[Attribute]| keys(attributes.iter().filter(is_selected), schema);
    entries::index_diff(&keys(before), &keys(after))
}

/// Whether two states of a subscriber entry have the same index keys. Compares the stored attributes first; if anything
/// else differs, the keys are computed.
pub(crate) fn have_same_keys(old: &EntryNode, now: &EntryNode, schema: &Schema) -> bool {
    let (EntryNode::Subscriber(old, was_placed), EntryNode::Subscriber(now, placed)) = (old, now) else { return false };
    let (was, is) = (&old.profile, &now.profile);
    let same_else = was_placed == placed
        && old.devices == now.devices
        && (was.enabled, &was.locale, &was.time_zone) == (is.enabled, &is.locale, &is.time_zone);
    let stays = |(name, value): (&String, &Value), others: &BTreeMap<String, Value>| {
        others.get(name) == Some(value) || schema.known_or_named(name).is_none_or(|kind| !is_indexed(&kind, schema))
    };
    same_else
        && was.attributes.iter().all(|found| stays(found, &is.attributes))
        && is.attributes.iter().all(|found| stays(found, &was.attributes))
}

/// Whether a type or one of its supertypes is indexed.
fn is_indexed(kind: &AttributeType, schema: &Schema) -> bool {
    let above = kind.kinds.iter().filter_map(|key| schema.attribute(key).ok());
    above.map(|kind| kind.indexed).chain([kind.indexed]).any(|indexed| indexed != (false, false))
}

fn add_keys(kind: &AttributeType, value: &[u8], schema: &Schema, keys: &mut Vec<EntryKey>) {
    let Some(rule) = kind.equality else { return };
    // A malformed value equals nothing, but it counts for presence.
    let normal = rule.normal(value, schema).unwrap_or_default();
    if kind.indexed.1 {
        let index: Arc<str> = grams_name(&kind.key).into();
        let grams: BTreeSet<&[u8]> = match normal.len() {
            bytes if bytes >= GRAMS_MAX + GRAM => BTreeSet::from([LONG]),
            _ => normal.windows(GRAM).collect(),
        };
        keys.extend(grams.into_iter().map(|gram| EntryKey { index: index.clone(), key: gram.into() }));
    }
    if kind.indexed.0 {
        keys.push(EntryKey { index: kind.key.clone(), key: cut(&normal).into() });
    }
}

/// Whether a normal form fits into a key untruncated, so that the key identifies one value.
pub(crate) fn is_whole(normal: &[u8]) -> bool {
    normal.len() <= KEY_BYTES_MAX
}

pub(crate) fn cut(key: &[u8]) -> &[u8] {
    &key[..key.len().min(KEY_BYTES_MAX)]
}

/// The single key of a filter that is a plain equality.
pub(crate) fn only_key(test: &Test, ready: &BTreeSet<String>) -> Option<EntryKey> {
    match test {
        Test::Of(kind, AttributeAssertion::Equal(rule, asserted))
            if is_found_by(kind, ready) && kind.equality == Some(*rule) =>
        {
            Some(EntryKey { index: kind.key.clone(), key: cut(asserted).into() })
        }
        _ => None,
    }
}

fn is_found_by(kind: &AttributeType, ready: &BTreeSet<String>) -> bool {
    kind.indexed.0 && kind.equality.is_some() && ready.contains(&*kind.key)
}

/// Entries with this normalized value.
pub(crate) fn equal(
    branches: &dyn EntryReader,
    index: &str,
    normal: &[u8],
) -> Result<Option<Vec<EntryNumber>>, LdapError> {
    let key = Bound::Included(cut(normal));
    Ok(branches.found(index, key, key, CANDIDATES_MAX)?)
}

/// A superset of the matching entries, by number; `None`: no index applies, or reading it costs too much.
pub(crate) fn candidates(
    branches: &dyn EntryReader,
    test: &Test,
    ready: &BTreeSet<String>,
) -> Result<Option<Vec<EntryNumber>>, LdapError> {
    Plan { branches, ready, left: Cell::new(READ_MAX) }.candidates(test)
}

/// Like `candidates`, but reads at most `few` keys.
pub(crate) fn few_candidates(
    branches: &dyn EntryReader,
    test: &Test,
    ready: &BTreeSet<String>,
    few: usize,
) -> Result<Option<Vec<EntryNumber>>, LdapError> {
    Plan { branches, ready, left: Cell::new(few) }.candidates(test)
}

/// Index lookups of one search, within its budget.
struct Plan<'a> {
    branches: &'a dyn EntryReader,
    ready: &'a BTreeSet<String>,
    /// Number of keys that may still be read.
    left: Cell<usize>,
}

impl Plan<'_> {
    fn candidates(&self, test: &Test) -> Result<Option<Vec<EntryNumber>>, LdapError> {
        match test {
            Test::Undefined => Ok(Some(Vec::new())),
            Test::And(parts) => {
                let mut ordered: Vec<&Test> = parts.iter().collect();
                ordered.sort_by_key(|part| cost(part));
                for part in ordered {
                    if let found @ Some(_) = self.candidates(part)? {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
            Test::Or(parts) => {
                let mut all = BTreeSet::new();
                for part in parts {
                    match self.candidates(part)? {
                        Some(found) if all.len() + found.len() <= CANDIDATES_MAX => all.extend(found),
                        _ => return Ok(None),
                    }
                }
                Ok(Some(all.into_iter().collect()))
            }
            Test::Of(kind, AttributeAssertion::Equal(_, asserted)) if &*kind.key == "entryuuid" => {
                let number = std::str::from_utf8(asserted).ok().and_then(Entry::number_of);
                Ok(Some(number.into_iter().collect()))
            }
            Test::Of(kind, ask) => self.of_attribute(kind, ask),
            Test::MemberOf(_, members) => Ok(members.numbers.clone()),
            Test::OfPassword(_, found) => Ok(Some(found.iter().copied().collect())),
            Test::Not(_) | Test::Any { .. } => Ok(None),
        }
    }

    fn found(&self, index: &str, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Option<Vec<EntryNumber>>, LdapError> {
        let most = self.left.get().min(CANDIDATES_MAX);
        if most == 0 {
            return Ok(None);
        }
        let found = self.branches.found(index, from, to, most)?;
        // A lookup has a fixed cost of some keys.
        let read = found.as_ref().map_or(most, Vec::len) + 10;
        self.left.set(self.left.get().saturating_sub(read));
        Ok(found)
    }

    fn of_attribute(
        &self,
        kind: &AttributeType,
        ask: &AttributeAssertion,
    ) -> Result<Option<Vec<EntryNumber>>, LdapError> {
        if let AttributeAssertion::Substrings(form, parts) = ask
            && kind.indexed.1
            && kind.equality.is_some_and(|rule| rule.form() == Some(*form))
            && self.ready.contains(&grams_name(&kind.key))
        {
            let pieces = parts.first.iter().chain(&parts.middle).chain(&parts.last);
            let longest = pieces.map(|piece| key_form(piece, *form)).max_by_key(String::len).unwrap_or_default();
            if longest.len() >= GRAM {
                return self.by_grams(&grams_name(&kind.key), longest.as_bytes());
            }
        }
        if !is_found_by(kind, self.ready) {
            return Ok(None);
        }
        let range = |from: Bound<&[u8]>, to: Bound<&[u8]>| self.found(&kind.key, from, to);
        match ask {
            AttributeAssertion::Present => range(Bound::Unbounded, Bound::Unbounded),
            AttributeAssertion::Equal(rule, asserted) if kind.equality == Some(*rule) => {
                range(Bound::Included(cut(asserted)), Bound::Included(cut(asserted)))
            }
            AttributeAssertion::AtLeast(rule, asserted) if kind.equality == Some(*rule) => {
                range(Bound::Included(cut(asserted)), Bound::Unbounded)
            }
            AttributeAssertion::AtMost(rule, asserted) if kind.equality == Some(*rule) => {
                range(Bound::Unbounded, Bound::Included(asserted))
            }
            AttributeAssertion::Substrings(form, parts)
                if kind.equality.is_some_and(|rule| rule.form() == Some(*form)) =>
            {
                let Some(first) = &parts.first else { return Ok(None) };
                let from = key_form(first, *form);
                let from = cut(from.trim_end().as_bytes());
                match after(from) {
                    Some(to) if !from.is_empty() => range(Bound::Included(from), Bound::Excluded(&to)),
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Entries that contain some trigrams of a piece, and entries with values indexed only in part.
    fn by_grams(&self, index: &str, piece: &[u8]) -> Result<Option<Vec<EntryNumber>>, LdapError> {
        let with = |gram: &[u8]| self.found(index, Bound::Included(gram), Bound::Included(gram));
        let mut found: Option<Vec<EntryNumber>> = None;
        for start in BTreeSet::from([0, (piece.len() - GRAM) / 2, piece.len() - GRAM]) {
            let Some(numbers) = with(&piece[start..start + GRAM])? else { continue };
            found = Some(match found {
                Some(known) => known.into_iter().filter(|number| numbers.binary_search(number).is_ok()).collect(),
                None => numbers,
            });
        }
        let (Some(found), Some(long)) = (found, with(LONG)?) else { return Ok(None) };
        Ok(Some(found.into_iter().chain(long).collect::<BTreeSet<_>>().into_iter().collect()))
    }
}

/// Estimated cost, to order the parts of a conjunction.
fn cost(test: &Test) -> u8 {
    match test {
        Test::Undefined => 0,
        Test::Of(kind, AttributeAssertion::Equal(..)) if &*kind.key == "objectclass" => 5,
        Test::Of(_, AttributeAssertion::Equal(..)) | Test::MemberOf(..) | Test::OfPassword(..) => 1,
        Test::Of(_, AttributeAssertion::Substrings(..)) | Test::Or(_) | Test::And(_) => 2,
        Test::Of(_, AttributeAssertion::AtLeast(..) | AttributeAssertion::AtMost(..)) => 3,
        _ => 4,
    }
}

/// A prepared substring in the form of index keys.
fn key_form(piece: &str, form: Form) -> String {
    match form {
        Form::CaseIgnore | Form::CaseIgnoreList | Form::CaseExact => {
            piece.replace("  ", " ").trim_matches(' ').to_owned()
        }
        _ => piece.to_owned(),
    }
}

/// The first key after all keys with a prefix.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tocsin_model::{subscriber::Profile, time::Timestamp};
    use tocsin_store::{
        memory::records::MemoryRecords,
        records::{NewSubscriber, Precondition, SubscriberStore},
    };

    use super::*;
    use crate::{directory::Directory, filter::Filter, options::Options};

    #[test]
    fn c10_indexes_are_rebuilt_when_their_key_encoding_changed() {
        let mut schema = Schema::standard();
        assert!(indexes(&schema).contains(MADE), "{:?}", indexes(&schema));
        let list =
            "( 2.25.7.9 NAME 'route' EQUALITY caseIgnoreListMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.41 X-INDEX 'eq' )";
        schema.define(crate::schema::Kind::Attribute, list).expect("defined");
        assert!(indexes(&schema).contains(MADE_ANEW) && !indexes(&schema).contains(MADE));
    }

    #[tokio::test]
    async fn a_search_that_reads_too_many_keys_scans_all_entries() {
        let records = Arc::new(MemoryRecords::new().expect("random numbers"));
        let clock = Arc::new(|| Timestamp(1));
        let directory = Directory::open(records.clone(), Options::default(), clock).await.expect("it opens");
        directory.build_indexes().await.expect("built");
        for count in 0..40 {
            let id = format!("person-{count}").parse().expect("an id");
            let new = NewSubscriber {
                kept: Default::default(),
                id,
                profile: Profile::default(),
                devices: None,
                preferences: None,
            };
            records.put_subscriber(new, Precondition::Any, Timestamp(1)).await.expect("stored");
        }
        let (schema, ready) = (directory.schema(), directory.inner.ready.load_full());
        let by_uid = |uid: &str| Filter::Equal("uid".to_owned(), uid.as_bytes().to_vec());
        let any = Filter::Or((0..40).map(|count| by_uid(&format!("person-{count}"))).collect());
        let test = Arc::new(Test::compile(&any, &schema));
        let found = async |left: usize| {
            let (test, ready) = (test.clone(), ready.clone());
            let found = directory
                .read(move |branches| Plan { branches, ready: &ready, left: Cell::new(left) }.candidates(&test));
            found.await.expect("looked").map(|numbers| numbers.len())
        };
        // Each lookup has a fixed cost of ten keys, plus one for the key found.
        assert_eq!(found(READ_MAX).await, Some(40));
        assert_eq!(found(40 * 11).await, Some(40));
        assert_eq!(found(30 * 11).await, None);
        assert_eq!(found(0).await, None);
    }
}
