//! How entries are found: the keys of an entry, and which of them a filter asks for.
//!
//! The index of an attribute holds the normal forms of its values in the order of their bytes, so it answers equality,
//! order, beginnings and presence. A second one, with `~` behind its name, holds every three bytes that follow each other,
//! and answers parts. What an index finds is always held against the filter, so keys may be cut.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use tocsin_model::{ldap::prepare::Form, value::Value};
use tocsin_store::entries::{self, Branches, EntryKey, EntryNumber, Node};

use crate::{
    entry::{Attribute, Entry},
    filter::{Ask, Test},
    refusal::Refusal,
    schema::{AttributeType, Schema},
    syntax::Rule,
};

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// With more candidates than this, another index is asked, or every entry is looked at.
pub(crate) const CANDIDATES_MAX: usize = 200_000;
/// Bytes of a part.
const GRAM: usize = 3;
/// Most parts of a value that are kept.
const GRAMS_MAX: usize = 256;
/// Where entries stand in an index of parts that have a value with more; no part is it.
const LONG: &[u8] = b"";
/// Most keys that are read for one search.
const READ_MAX: usize = 1_000_000;
/// Stands among the indexes, and changes when their keys are made in another way: those of before are of no use then.
const MADE: &str = "~2";
/// Stands there instead where an index has keys that are made otherwise than in the version before: of lists, bit strings and times.
/// Others need not be built anew at the upgrade.
const MADE_ANEW: &str = "~3";

/// The names of the indexes that a schema asks for.
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

/// The keys under which an entry with these attributes is found. A value is one of its type, and of the types above.
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

/// The keys that an entry loses and those that it gets, where attributes of no other than these types changed.
pub(crate) fn turned(
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
    // A value that one attribute loses may be found by another that is of the same kind.
    let is_meant =
        |found: &&Attribute| found.kind.kinds.iter().chain([&found.kind.key]).any(|key| indexes.contains(&key));
    let keys = |attributes: &[Attribute]| keys(attributes.iter().filter(is_meant), schema);
    entries::turned(&keys(before), &keys(after))
}

/// Whether two states of a subscriber's entry differ in nothing that is indexed. Only the attributes that it was given are
/// looked at closer; where anything else differs, the keys tell.
pub(crate) fn have_same_keys(old: &Node, now: &Node, schema: &Schema) -> bool {
    let (Node::Subscriber(old, was_placed), Node::Subscriber(now, placed)) = (old, now) else { return false };
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

/// Whether a type, or one that it is a kind of, is indexed.
fn is_indexed(kind: &AttributeType, schema: &Schema) -> bool {
    let above = kind.kinds.iter().filter_map(|key| schema.attribute(key).ok());
    above.map(|kind| kind.indexed).chain([kind.indexed]).any(|indexed| indexed != (false, false))
}

fn add_keys(kind: &AttributeType, value: &[u8], schema: &Schema, keys: &mut Vec<EntryKey>) {
    let Some(rule) = kind.equality else { return };
    // What is no value of its type equals nothing, but it is there.
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

/// Whether a normal form is a key as it is, so that a key stands for one value only.
pub(crate) fn is_whole(normal: &[u8]) -> bool {
    normal.len() <= KEY_BYTES_MAX
}

pub(crate) fn cut(key: &[u8]) -> &[u8] {
    &key[..key.len().min(KEY_BYTES_MAX)]
}

/// The one key that a filter asks for, if it is a plain equality.
pub(crate) fn only_key(test: &Test, ready: &BTreeSet<String>) -> Option<EntryKey> {
    match test {
        Test::Of(kind, Ask::Equal(rule, wanted)) if is_found_by(kind, ready) && kind.equality == Some(*rule) => {
            Some(EntryKey { index: kind.key.clone(), key: cut(wanted).into() })
        }
        _ => None,
    }
}

fn is_found_by(kind: &AttributeType, ready: &BTreeSet<String>) -> bool {
    kind.indexed.0 && kind.equality.is_some() && ready.contains(&*kind.key)
}

/// The entries with a value of this normal form.
pub(crate) fn equal(branches: &dyn Branches, index: &str, normal: &[u8]) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    let key = Bound::Included(cut(normal));
    Ok(branches.found(index, key, key, CANDIDATES_MAX)?)
}

/// A superset of the entries that meet a filter, by number; `None`: no index tells, or it would take too long to ask.
pub(crate) fn candidates(
    branches: &dyn Branches,
    test: &Test,
    ready: &BTreeSet<String>,
) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    Plan { branches, ready, left: Cell::new(READ_MAX) }.candidates(test)
}

/// The same, if few keys tell: at most `few` are read.
pub(crate) fn few_candidates(
    branches: &dyn Branches,
    test: &Test,
    ready: &BTreeSet<String>,
    few: usize,
) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    Plan { branches, ready, left: Cell::new(few) }.candidates(test)
}

/// Looks up what one search needs, within its bound.
struct Plan<'a> {
    branches: &'a dyn Branches,
    ready: &'a BTreeSet<String>,
    /// How many keys may still be read.
    left: Cell<usize>,
}

impl Plan<'_> {
    fn candidates(&self, test: &Test) -> Result<Option<Vec<EntryNumber>>, Refusal> {
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
            Test::Of(kind, Ask::Equal(_, wanted)) if &*kind.key == "entryuuid" => {
                let number = std::str::from_utf8(wanted).ok().and_then(Entry::number_of);
                Ok(Some(number.into_iter().collect()))
            }
            Test::Of(kind, ask) => self.of_attribute(kind, ask),
            Test::MemberOf(_, members) => Ok(members.numbers.clone()),
            Test::OfPassword(_, found) => Ok(Some(found.iter().copied().collect())),
            Test::Not(_) | Test::Any { .. } => Ok(None),
        }
    }

    fn found(&self, index: &str, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Option<Vec<EntryNumber>>, Refusal> {
        let most = self.left.get().min(CANDIDATES_MAX);
        if most == 0 {
            return Ok(None);
        }
        let found = self.branches.found(index, from, to, most)?;
        // One look-up costs as much as some keys.
        let read = found.as_ref().map_or(most, Vec::len) + 10;
        self.left.set(self.left.get().saturating_sub(read));
        Ok(found)
    }

    fn of_attribute(&self, kind: &AttributeType, ask: &Ask) -> Result<Option<Vec<EntryNumber>>, Refusal> {
        if let Ask::Substrings(form, parts) = ask
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
            Ask::Present => range(Bound::Unbounded, Bound::Unbounded),
            Ask::Equal(rule, wanted) if kind.equality == Some(*rule) => {
                range(Bound::Included(cut(wanted)), Bound::Included(cut(wanted)))
            }
            Ask::AtLeast(rule, wanted) if kind.equality == Some(*rule) => {
                range(Bound::Included(cut(wanted)), Bound::Unbounded)
            }
            Ask::AtMost(rule, wanted) if kind.equality == Some(*rule) => {
                range(Bound::Unbounded, Bound::Included(wanted))
            }
            Ask::Substrings(form, parts) if kind.equality.is_some_and(|rule| rule.form() == Some(*form)) => {
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

    /// The entries that have all of a few three bytes of a piece, and those with values of which not all are kept.
    fn by_grams(&self, index: &str, piece: &[u8]) -> Result<Option<Vec<EntryNumber>>, Refusal> {
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

/// Which part of a conjunction is asked first.
fn cost(test: &Test) -> u8 {
    match test {
        Test::Undefined => 0,
        Test::Of(kind, Ask::Equal(..)) if &*kind.key == "objectclass" => 5,
        Test::Of(_, Ask::Equal(..)) | Test::MemberOf(..) | Test::OfPassword(..) => 1,
        Test::Of(_, Ask::Substrings(..)) | Test::Or(_) | Test::And(_) => 2,
        Test::Of(_, Ask::AtLeast(..) | Ask::AtMost(..)) => 3,
        _ => 4,
    }
}

/// A prepared part as it stands in a key.
fn key_form(piece: &str, form: Form) -> String {
    match form {
        Form::CaseIgnore | Form::CaseIgnoreList | Form::CaseExact => {
            piece.replace("  ", " ").trim_matches(' ').to_owned()
        }
        _ => piece.to_owned(),
    }
}

/// The first key after all that begin so.
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
        records::{Expect, NewSubscriber, Records},
    };

    use super::*;
    use crate::{
        directory::{Directory, Options},
        filter::Filter,
    };

    #[test]
    fn c10_indexes_are_built_anew_where_their_keys_changed() {
        let mut schema = Schema::standard();
        assert!(indexes(&schema).contains(MADE), "{:?}", indexes(&schema));
        let list =
            "( 2.25.7.9 NAME 'route' EQUALITY caseIgnoreListMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.41 X-INDEX 'eq' )";
        schema.define(crate::schema::Kind::Attribute, list).expect("defined");
        assert!(indexes(&schema).contains(MADE_ANEW) && !indexes(&schema).contains(MADE));
    }

    #[tokio::test]
    async fn what_would_read_too_many_keys_looks_at_every_entry() {
        let records = Arc::new(MemoryRecords::new().expect("random numbers"));
        let clock = Arc::new(|| Timestamp(1));
        let directory = Directory::open(records.clone(), Options::default(), clock).await.expect("it opens");
        directory.build_indexes().await.expect("built");
        for count in 0..40 {
            let id = format!("person-{count}").parse().expect("an id");
            let new = NewSubscriber { id, profile: Profile::default(), devices: None, preferences: None };
            records.put_subscriber(new, Expect::Any, Timestamp(1)).await.expect("stored");
        }
        let (schema, ready) = (directory.schema(), directory.inner.ready.load_full());
        let by_uid = |uid: &str| Filter::Equal("uid".to_owned(), uid.as_bytes().to_vec());
        let any = Filter::Or((0..40).map(|count| by_uid(&format!("person-{count}"))).collect());
        let test = Arc::new(Test::compile(&any, &schema));
        let found = async |left: usize| {
            let (test, ready) = (test.clone(), ready.clone());
            let found = directory
                .look(move |branches| Plan { branches, ready: &ready, left: Cell::new(left) }.candidates(&test));
            found.await.expect("looked").map(|numbers| numbers.len())
        };
        // Each look-up costs ten keys beside the one that it finds.
        assert_eq!(found(READ_MAX).await, Some(40));
        assert_eq!(found(40 * 11).await, Some(40));
        assert_eq!(found(30 * 11).await, None);
        assert_eq!(found(0).await, None);
    }
}
