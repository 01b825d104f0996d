//! How entries are found: the keys of an entry, and which of them a filter asks for.
//!
//! The index of an attribute holds the normal forms of its values in the order of their bytes, so it answers equality,
//! order, beginnings and presence. A second one, with `~` behind its name, holds every three bytes that follow each other,
//! and answers parts. What an index finds is always held against the filter, so keys may be cut.

use std::{collections::BTreeSet, ops::Bound};

use tocsin_model::ldap::prepare::Form;
use tocsin_store::entries::{Branches, EntryKey, EntryNumber};

use crate::{
    entry::{Attribute, Entry},
    filter::{Ask, Test},
    refusal::Refusal,
    schema::{AttributeType, Schema},
};

/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// With more candidates than this, another index is asked, or every entry is looked at.
pub(crate) const CANDIDATES_MAX: usize = 200_000;
/// Bytes of a part.
const GRAM: usize = 3;
/// Values of one attribute that have keys; parts of a value that have.
const GRAMS_MAX: usize = 256;

/// The names of the indexes that a schema asks for.
pub(crate) fn indexes(schema: &Schema) -> BTreeSet<String> {
    schema
        .attributes()
        .flat_map(|kind| {
            let whole = kind.indexed.0.then(|| kind.key.to_string());
            whole.into_iter().chain(kind.indexed.1.then(|| grams_name(&kind.key)))
        })
        .collect()
}

fn grams_name(key: &str) -> String {
    format!("{key}~")
}

/// The keys under which an entry with these attributes is found.
pub(crate) fn keys(attributes: &[Attribute], schema: &Schema) -> Vec<EntryKey> {
    let mut keys = Vec::new();
    for attribute in attributes {
        let kind = &attribute.kind;
        let (Some(rule), true) = (kind.equality, kind.indexed != (false, false)) else { continue };
        for normal in attribute.values.iter().filter_map(|value| rule.normal(value, schema)) {
            if kind.indexed.1 {
                let grams: BTreeSet<&[u8]> = normal.windows(GRAM).take(GRAMS_MAX).collect();
                let index: std::sync::Arc<str> = grams_name(&kind.key).into();
                keys.extend(grams.into_iter().map(|gram| EntryKey { index: index.clone(), key: gram.into() }));
            }
            if kind.indexed.0 {
                keys.push(EntryKey { index: kind.key.clone(), key: cut(&normal).into() });
            }
        }
    }
    keys
}

fn cut(key: &[u8]) -> &[u8] {
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
    kind.indexed.0 && ready.contains(&*kind.key)
}

/// The entries with a value of this normal form.
pub(crate) fn equal(branches: &dyn Branches, index: &str, normal: &[u8]) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    let key = Bound::Included(cut(normal));
    Ok(branches.found(index, key, key, CANDIDATES_MAX)?)
}

/// A superset of the entries that meet a filter, by number; `None`: no index tells.
pub(crate) fn candidates(
    branches: &dyn Branches,
    test: &Test,
    ready: &BTreeSet<String>,
) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    match test {
        Test::Undefined => Ok(Some(Vec::new())),
        Test::And(parts) => {
            let mut ordered: Vec<&Test> = parts.iter().collect();
            ordered.sort_by_key(|part| cost(part));
            for part in ordered {
                if let found @ Some(_) = candidates(branches, part, ready)? {
                    return Ok(found);
                }
            }
            Ok(None)
        }
        Test::Or(parts) => {
            let mut all = BTreeSet::new();
            for part in parts {
                match candidates(branches, part, ready)? {
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
        Test::Of(kind, ask) => of_attribute(branches, kind, ask, ready),
        Test::Not(_) | Test::Any { .. } => Ok(None),
    }
}

/// Which part of a conjunction is asked first.
fn cost(test: &Test) -> u8 {
    match test {
        Test::Undefined => 0,
        Test::Of(kind, Ask::Equal(..)) if &*kind.key == "objectclass" => 5,
        Test::Of(_, Ask::Equal(..)) => 1,
        Test::Of(_, Ask::Substrings(..)) | Test::Or(_) | Test::And(_) => 2,
        Test::Of(_, Ask::AtLeast(..) | Ask::AtMost(..)) => 3,
        _ => 4,
    }
}

fn of_attribute(
    branches: &dyn Branches,
    kind: &AttributeType,
    ask: &Ask,
    ready: &BTreeSet<String>,
) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    if let Ask::Substrings(form, parts) = ask
        && kind.indexed.1
        && ready.contains(&grams_name(&kind.key))
    {
        let pieces = parts.first.iter().chain(&parts.middle).chain(&parts.last);
        let longest = pieces.map(|piece| key_form(piece, *form)).max_by_key(String::len).unwrap_or_default();
        if longest.len() >= GRAM && longest.len() <= GRAMS_MAX {
            return by_grams(branches, &grams_name(&kind.key), longest.as_bytes());
        }
    }
    if !is_found_by(kind, ready) {
        return Ok(None);
    }
    let range = |from: Bound<&[u8]>, to: Bound<&[u8]>| Ok(branches.found(&kind.key, from, to, CANDIDATES_MAX)?);
    match ask {
        Ask::Present => range(Bound::Unbounded, Bound::Unbounded),
        Ask::Equal(rule, wanted) if kind.equality == Some(*rule) => equal(branches, &kind.key, wanted),
        Ask::AtLeast(rule, wanted) if kind.equality == Some(*rule) => {
            range(Bound::Included(cut(wanted)), Bound::Unbounded)
        }
        Ask::AtMost(rule, wanted) if kind.equality == Some(*rule) => range(Bound::Unbounded, Bound::Included(wanted)),
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

/// A prepared part as it stands in a key.
fn key_form(piece: &str, form: Form) -> String {
    match form {
        Form::CaseIgnore | Form::CaseExact => piece.replace("  ", " ").trim_matches(' ').to_owned(),
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

/// The entries that have all of a few three bytes of a piece.
fn by_grams(branches: &dyn Branches, index: &str, piece: &[u8]) -> Result<Option<Vec<EntryNumber>>, Refusal> {
    let ends = [0, (piece.len() - GRAM) / 2, piece.len() - GRAM];
    let mut found: Option<Vec<EntryNumber>> = None;
    for start in BTreeSet::from(ends) {
        let gram = Bound::Included(&piece[start..start + GRAM]);
        let Some(numbers) = branches.found(index, gram, gram, CANDIDATES_MAX)? else { continue };
        found = Some(match found {
            Some(known) => known.into_iter().filter(|number| numbers.binary_search(number).is_ok()).collect(),
            None => numbers,
        });
    }
    Ok(found)
}
