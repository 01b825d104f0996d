//! Partition keys: a row is visible to each subscriber that shares a key with it.
//!
//! A key is a text such as `["shop",[["attributes.region","north"]],null]`: the application, subscriber properties with
//! their values, and the segment. A row has one key per share of its partition; a subscriber has one per combination of
//! its values. Rows shared through other rows have the keys of those.

use std::collections::BTreeSet;

use serde_json::json;
use tocsin_model::{
    collection::{Identity, Share},
    field::Fields,
    id::Name,
    subscriber::Subscriber,
    value::Value,
};

/// Maximum keys of a subscriber: attributes may have many values, and those of several are combined.
pub const KEYS_MAX: usize = 4_096;

/// Keys of a row by its own fields.
pub(crate) fn own_keys(application: &Name, partition: &[Share], fields: &Fields, row: &[Value]) -> Vec<String> {
    let value_of = |name: &Name| fields.position(name.as_str()).map_or(&Value::Null, |at| &row[at]);
    let mut keys = Vec::new();
    for share in partition {
        let Share::Identity { fields: asked, rows, audience } = share else { continue };
        if !rows.iter().all(|(name, values)| values.contains(value_of(name))) {
            continue;
        }
        let mut pairs: Vec<(&Identity, String)> = Vec::with_capacity(asked.len());
        // A row without a value for a property is visible to no subscriber by that share.
        let has_all_values = asked.iter().all(|(name, identity)| match text_of(value_of(name)) {
            Some(text) => {
                pairs.push((identity, text));
                true
            }
            None => false,
        });
        if has_all_values {
            pairs.sort();
            keys.push(key_text(application, &pairs, audience.as_ref()));
        }
    }
    keys
}

/// Rows through which a row is shared: collection and id.
pub(crate) fn joins<'a>(
    partition: &'a [Share],
    fields: &'a Fields,
    row: &'a [Value],
) -> impl Iterator<Item = (&'a Name, String)> {
    partition.iter().filter_map(|share| match share {
        Share::Through { field, collection } => {
            let value = &row[fields.position(field.as_str())?];
            Some((collection, text_of(value)?))
        }
        Share::Identity { .. } => None,
    })
}

pub(crate) fn key_text(application: &Name, pairs: &[(&Identity, String)], audience: Option<&Name>) -> String {
    let pairs: Vec<(String, &str)> =
        pairs.iter().map(|(identity, text)| (identity.to_string(), text.as_str())).collect();
    json!([application, pairs, audience]).to_string()
}

/// All combinations of property values, cut off well above the maximum.
pub(crate) fn combinations<'a>(
    identities: &'a [Identity],
    subscriber: &Subscriber,
) -> Vec<Vec<(&'a Identity, String)>> {
    let mut found: Vec<Vec<(&Identity, String)>> = vec![Vec::new()];
    for identity in identities {
        let values = values_of(identity, subscriber);
        let longer = found.iter().flat_map(|pairs| {
            values.iter().map(move |value| pairs.iter().cloned().chain([(identity, value.clone())]).collect())
        });
        found = longer.take(KEYS_MAX + 1).collect();
    }
    found
}

fn values_of(identity: &Identity, subscriber: &Subscriber) -> Vec<String> {
    match identity {
        Identity::Id => vec![subscriber.id.to_string()],
        Identity::Attribute(name) => match subscriber.profile.attributes.get(name.as_str()) {
            Some(Value::List(values)) => {
                let values: BTreeSet<String> = values.iter().filter_map(text_of).collect();
                values.into_iter().collect()
            }
            Some(value) => text_of(value).into_iter().collect(),
            None => Vec::new(),
        },
    }
}

/// Text of a value in a key; `None` if it cannot be one.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::List(_) | Value::Map(_) => None,
        Value::Text(text) => Some(text.to_string()),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(format!("{number:.0}")),
        value => Some(serde_json::to_string(value).expect("a value is JSON").trim_matches('"').to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann(attributes: serde_json::Value) -> Subscriber {
        let attributes = serde_json::from_value(attributes).expect("attributes");
        Subscriber {
            number: tocsin_model::id::SubscriberNumber(1),
            id: "ann".parse().expect("an id"),
            profile: tocsin_model::subscriber::Profile { attributes, ..Default::default() },
            devices: std::collections::BTreeMap::new(),
            preferences: Default::default(),
            created_at: Default::default(),
            updated_at: Default::default(),
            revision: 1,
        }
    }

    #[test]
    fn each_value_gives_a_key_and_a_missing_value_gives_none() {
        let check = |attributes, expected: &[&[&str]]| {
            let identities =
                [Identity::Attribute("kind".parse().unwrap()), Identity::Attribute("region".parse().unwrap())];
            let found = combinations(&identities, &ann(attributes));
            let texts: Vec<Vec<&str>> =
                found.iter().map(|pairs| pairs.iter().map(|(_, text)| text.as_str()).collect()).collect();
            assert_eq!(texts, expected);
        };
        check(json!({"kind": "a", "region": ["n", "s", "n"]}), &[&["a", "n"], &["a", "s"]]);
        check(json!({"kind": 5, "region": 5.0}), &[&["5", "5"]]);
        check(json!({"kind": "a"}), &[]);
        check(json!({"kind": null, "region": ["n"]}), &[]);
    }
}
