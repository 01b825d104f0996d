//! Partitions of collections and conflict resolution.

use super::{environment, problems};
use crate::{
    collection::{BuiltIn, ChangeKind, Combine, Direction, Identity, Resolver, Share, Track},
    definition::{difference, read},
};

const TEXT: &str = "application: a
collections:
  customers:
    fields: { region: string, count: integer, note: string, tags: list }
    partition:
      - match: { region: attributes.region }
        rows: { count: [1, 2] }
        audience: managers
    conflicts: { track: row, resolver: first, fields: { count: sum, note: merge } }
  orders:
    fields: { customer: string }
    schema: { required: [customer] }
    direction: down
    partition:
      - through: { customer: customers }
";

#[test]
fn collections_define_partitions() {
    let application = read(TEXT, &environment).expect("a definition");
    let customers = &application.collections["customers"];
    let Share::Identity { fields, rows, audience } = &customers.partition[0] else { panic!("it matches") };
    assert_eq!(fields["region"], Identity::Attribute("region".parse().expect("a name")));
    assert_eq!((rows["count"].len(), audience.as_ref().expect("given").as_str()), (2, "managers"));
    assert_eq!((customers.conflicts.track, &customers.conflicts.resolver), (Track::Row, &Resolver::First));
    assert_eq!(customers.conflicts.fields["note"], Combine::Merge);
    assert!(matches!(application.collections["orders"].partition[..], [Share::Through { .. }]));
    assert_eq!(application.collections["orders"].direction, Direction::Down);
    assert_eq!(application.collections["orders"].schema, Some(serde_json::json!({ "required": ["customer"] })));
    let other = read(&TEXT.replace("[customer]", "[]"), &environment).expect("a definition");
    let sentences: Vec<String> = difference(&application, &other).into_iter().map(|found| found.sentence).collect();
    assert_eq!(sentences, ["the schema of its rows changes; existing rows stay as they are"]);
    let everyone = read(&TEXT.replace("\n      - through: { customer: customers }", " everyone"), &environment);
    let everyone = everyone.expect("a definition");
    let [Share::Identity { fields, .. }] = &everyone.collections["orders"].partition[..] else { panic!("everybody's") };
    assert!(fields.is_empty());
    let sentences: Vec<String> = difference(&application, &everyone).into_iter().map(|found| found.sentence).collect();
    assert_eq!(sentences, ["the partition of its rows changes; it is computed again for all of them"]);
}

#[test]
fn built_in_collections_have_no_further_settings() {
    let text = "application: a\ncollections:\n  bell: { built_in: inbox }\n  places: { built_in: devices }\n";
    let application = read(text, &environment).expect("a definition");
    let (bell, places) = (&application.collections["bell"], &application.collections["places"]);
    assert_eq!((bell.built_in, bell.direction), (Some(BuiltIn::Inbox), Direction::Both));
    assert_eq!((places.built_in, places.direction), (Some(BuiltIn::Devices), Direction::Down));
    assert!(bell.fields.position("read").is_some());
    let check = |collection: &str, expected: &str| {
        let found = problems(&format!("application: a\ncollections:\n  c: {collection}\n"));
        assert!(found.contains(expected), "{collection}: {found}");
    };
    check("{ built_in: inbox, fields: { a: string } }", "follows from what is built in; leave it out");
    check("{ built_in: inbox, schema: { type: object } }", "follows from what is built in; leave it out");
    check("{ built_in: inbox, direction: up }", "its rows go `down`, or `both` ways");
    check("{ built_in: devices, direction: up }", "its rows go `down`, or `both` ways");
    check("{ built_in: inbx }", "inbox");
    check("{ fields: { a: string } }", "collections.c.partition: is required");
    check("{ partition: everyone }", "collections.c.fields: is required");
}

#[test]
fn invalid_collections_are_reported() {
    let check = |piece: &str, replacement: &str, expected: &str| {
        assert_eq!(TEXT.matches(piece).count(), 1, "`{piece}` is in the definition once");
        let found = problems(&TEXT.replace(piece, replacement));
        assert!(found.contains(expected), "{replacement}: {found}");
    };
    check("attributes.region", "region", "is not a property of a subscriber; `subscriber.id`, or `attributes.`");
    check("match: { region:", "match: { regoin:", "is not a field of this collection; did you mean `region`?");
    check("match: { region:", "match: { tags:", "is a list; rows cannot be shared by it");
    check("[1, 2]", "[one]", "should be an integer, not a string");
    check("match: { region: attributes.region }\n        rows:", "rows:", "says neither `match` nor `through`");
    check(
        "{ customer: customers }",
        "{ customer: customer }",
        "`customer` is not a collection of this application; did you mean",
    );
    check("{ customer: customers }", "{ customer: orders }", "the collection is shared through itself");
    check("count: sum", "count: merge", "holds a value of the type integer, which is not put together so");
    check("note: merge", "notes: merge", "is not a field of this collection");
    check("note: string, tags", "id: string, note: string, tags", "every row has an id of its own");
    check("resolver: first", "resolver: newest", "is not known here");
    check("resolver: first", "resolver: { timeout: 1s }", "should say either `predicate` or `process`");
    check("resolver: first", "resolver: { process: [settle] }", "does not begin with the absolute path of a program");
    check("resolver: first", "resolver: { process: [/bin/settle], timeout: 1h }", "30s");
}

const RAISING: &str = "application: a
events:
  placed: { fields: { order: { type: string, required: true }, total: number, was: number, at: timestamp } }
collections:
  orders:
    fields: { customer: { type: string, required: true }, total: integer }
    partition: everyone
    raise:
      - on: [insert, update]
        of: total
        event: placed
        fields: { order: id, total: row.total, was: before.total, at: at }
      - { on: remove, event: placed, fields: { order: row.customer } }
";

#[test]
fn changes_of_rows_raise_events_that_fit() {
    let application = read(RAISING, &environment).expect("a definition");
    let raises = &application.collections["orders"].raises;
    assert_eq!((raises[0].on.as_slice(), raises[0].of.len()), (&[ChangeKind::Insert, ChangeKind::Update][..], 1));
    assert_eq!((raises[1].on.as_slice(), raises[1].event.as_str()), (&[ChangeKind::Remove][..], "placed"));
    let check = |piece: &str, replacement: &str, expected: &str| {
        assert_eq!(RAISING.matches(piece).count(), 1, "`{piece}` is in the definition once");
        let found = problems(&RAISING.replace(piece, replacement));
        assert!(found.contains(expected), "{replacement}: {found}");
    };
    check("on: remove", "on: update", "collections.orders.raise[1].on: names `update` twice");
    check("of: total", "of: totl", "is not a field of this collection; did you mean `total`?");
    check("on: remove, event: placed", "on: remove, event: plced", "`plced` is not an event class; did you mean");
    check("row.total", "row.totl", "`row.totl` is not a value of a row change; `id`, `change`, `at`, or `row.`");
    check("row.total", "row.customer", "is a number, and `row.customer` a string");
    check("total: row.total", "sum: row.total", "is not a field of `placed`");
    check("order: row.customer", "order: before.customer, total: row.total, was: id", "is a number, and `id` a string");
    check("order: id", "order: before.customer", "is required by `placed`, and may be empty here");
    check("order: id, ", "", "is required by `placed`, and may be empty here");
    let sources = format!("{RAISING}sources:\n  rows: {{ kind: http }}\n");
    assert!(problems(&sources).contains("is the source of the events that rows raise"), "{}", problems(&sources));
    let other = read(&RAISING.replace("of: total", "of: customer"), &environment).expect("a definition");
    let sentences: Vec<String> = difference(&application, &other).into_iter().map(|found| found.sentence).collect();
    assert_eq!(sentences, ["the events raised by changes of its rows change, from now on"]);
}
