//! Statements of section 4.2 of the specification.

use serde_json::{Value, json};

use super::*;

fn document(value: &Value) -> Document {
    value.as_object().expect("an object").clone()
}

fn condition(value: Value) -> Where {
    Where::parse(Collection::Subscription, &value).unwrap_or_else(|error| panic!("{value}: {error}"))
}

/// A record on which the conditions are tried.
fn record() -> Document {
    document(&json!({
        "id": "5f2b6d6c8e7a4a0011c0ffee", "serviceName": "Water Advisory", "channel": "email",
        "userChannelId": "Ann@Example.ca", "created": "2026-01-02T03:04:05.000Z", "rank": 5, "half": 2.5, "none": null,
        "flag": true, "tags": ["a", "b"], "o": {"x": {"y": 1}, "z": "t"},
        "items": [{"v": 1, "w": "a"}, {"v": 2}], "numbers": [3, 9]
    }))
}

#[track_caller]
fn check(query: Value, expected: bool) {
    assert_eq!(condition(query.clone()).matches(&record()), expected, "{query}");
}

#[test]
fn s4_2_equality_null_and_paths() {
    check(json!({}), true);
    check(json!({"rank": 5}), true);
    check(json!({"rank": 5.0}), true);
    check(json!({"rank": "5"}), false);
    check(json!({"tags": "a"}), true);
    check(json!({"tags": ["a", "b"]}), true);
    check(json!({"tags": ["b", "a"]}), false);
    check(json!({"o": {"x": {"y": 1}, "z": "t"}}), true);
    check(json!({"o": {"z": "t"}}), false);
    check(json!({"none": null}), true);
    check(json!({"missing": null}), true);
    check(json!({"rank": null}), false);
    check(json!({"o.x.y": 1}), true);
    check(json!({"o.x.q": null}), true);
    check(json!({"items.v": 2}), true);
    check(json!({"items.0.v": 2}), false);
    check(json!({"items.1.v": 2}), true);
    check(json!({"items.w": null}), true);
    check(json!({"items.v": null}), false);
    check(json!({"tags.1": "b"}), true);
    check(json!({"id": "5f2b6d6c8e7a4a0011c0ffee"}), true);
    check(json!({"_id": "5F2B6D6C8E7A4A0011C0FFEE"}), true);
    check(json!({"id": {"$in": ["5f2b6d6c8e7a4a0011c0ffee"]}}), true);
}

#[test]
fn s4_2_comparisons_are_by_type() {
    check(json!({"rank": {"$gt": 4, "$lt": 6}}), true);
    check(json!({"rank": {"$gt": "4"}}), false);
    check(json!({"half": {"$gte": 2.5}}), true);
    check(json!({"half": {"$lte": 2}}), false);
    check(json!({"missing": {"$gt": 0}}), false);
    check(json!({"missing": {"$lt": 0}}), false);
    check(json!({"serviceName": {"$gt": "Air"}}), true);
    check(json!({"numbers": {"$gt": 8}}), true);
    check(json!({"numbers": {"$gt": 9}}), false);
    check(json!({"created": {"$gte": "2026-01-02"}}), true);
    check(json!({"created": {"$lt": "2026-01-02T03:04:05Z"}}), false);
    check(json!({"created": "2026-01-01T19:04:05-08:00"}), true);
    check(json!({"rank": {"$ne": 5}}), false);
    check(json!({"missing": {"$ne": 5}}), true);
    check(json!({"tags": {"$ne": "a"}}), false);
    check(json!({"rank": {"$in": [1, 5]}}), true);
    check(json!({"rank": {"$nin": [1, 5]}}), false);
    check(json!({"missing": {"$in": [null]}}), true);
    check(json!({"missing": {"$nin": [1]}}), true);
    check(json!({"rank": {"$eq": 5}}), true);
}

#[test]
fn s4_2_other_operators() {
    check(json!({"rank": {"$exists": true}}), true);
    check(json!({"none": {"$exists": true}}), true);
    check(json!({"missing": {"$exists": false}}), true);
    check(json!({"rank": {"$exists": "false"}}), false);
    check(json!({"userChannelId": {"$regex": "^ann", "$options": "i"}}), true);
    check(json!({"userChannelId": {"$regex": "^ann"}}), false);
    check(json!({"userChannelId": {"$not": {"$regex": "^bob"}}}), true);
    check(json!({"rank": {"$regex": "5"}}), false);
    check(json!({"tags": {"$all": ["a", "b"]}}), true);
    check(json!({"tags": {"$all": ["a", "c"]}}), false);
    check(json!({"tags": {"$all": []}}), false);
    check(json!({"tags": {"$size": 2}}), true);
    check(json!({"rank": {"$size": 1}}), false);
    check(json!({"items": {"$elemMatch": {"v": 1, "w": "a"}}}), true);
    check(json!({"items": {"$elemMatch": {"v": 2, "w": "a"}}}), false);
    check(json!({"numbers": {"$elemMatch": {"$gt": 4, "$lt": 8}}}), false);
    check(json!({"numbers": {"$gt": 4, "$lt": 8}}), true);
    check(json!({"$or": [{"rank": 1}, {"flag": true}]}), true);
    check(json!({"$and": [{"rank": 5}, {"flag": false}]}), false);
    check(json!({"$nor": [{"rank": 1}, {"flag": false}]}), true);
    check(json!({"rank": {"$not": {"$gt": 10}}}), true);
    check(json!({"missing": {"$not": {"$gt": 10}}}), true);
}

#[test]
fn s4_2_text_search_over_all_texts() {
    let search = |text: &str| condition(json!({"$text": {"$search": text}})).matches(&record());
    assert!(search("water"), "any word, letter case aside");
    assert!(search("nothing advisory"));
    assert!(!search("wat"), "whole words");
    assert!(search("\"water advisory\""));
    assert!(!search("\"advisory water\""));
    assert!(!search("water -email"));
    assert!(search("water -sms"));
    assert!(search("example"), "within addresses");
    assert!(search("t"), "within objects");
    assert!(!search(""));
}

#[test]
fn s4_2_what_is_refused() {
    let refused = |value: Value| Where::parse(Collection::Subscription, &value).expect_err("refused").to_string();
    assert_eq!(refused(json!({"$where": "1"})), "unknown operator: $where");
    assert_eq!(refused(json!({"$expr": {}})), "unknown operator: $expr");
    assert_eq!(refused(json!({"a": {"$type": 1}})), "unknown operator: $type");
    assert_eq!(refused(json!({"a": {"$gt": 1, "b": 2}})), "unknown operator: b");
    assert!(
        refused(json!({"id": "abc"}))
            .starts_with("Cast to ObjectId failed for value \"abc\" (type string) at path \"_id\"")
    );
    assert!(refused(json!({"created": "soon"})).starts_with("Cast to date failed for value \"soon\""));
    assert!(refused(json!({"a": {"$regex": "("}})).starts_with("Regular expression is invalid"));
    for value in [
        json!([]),
        json!("a"),
        json!({"$or": []}),
        json!({"$or": {}}),
        json!({"$and": [1]}),
        json!({"a": {"$options": "i"}}),
        json!({"a": {"$regex": "a", "$options": "q"}}),
        json!({"a": {"$not": 5}}),
        json!({"a": {"$elemMatch": 5}}),
        json!({"a": {"$in": {"b": 1}}}),
        json!({"a": {"$size": "x"}}),
        json!({"$text": {"$search": 5}}),
    ] {
        assert!(Where::parse(Collection::Subscription, &value).is_err(), "{value}");
    }
    let mut deep = json!({"a": 1});
    for _ in 0..DEPTH_MAX + 2 {
        deep = json!({"$and": [deep]});
    }
    assert_eq!(
        Where::parse(Collection::Subscription, &deep).expect_err("deep"),
        QueryError::TooLarge { limit: DEPTH_MAX, unit: "levels" }
    );
    let many = json!({"a": {"$in": vec![0; CONDITIONS_MAX]}});
    assert!(matches!(Where::parse(Collection::Subscription, &many), Err(QueryError::TooLarge { .. })));
    let params = Params::parse("filter=%7Bbroken").expect("parameters");
    assert!(matches!(Filter::from_params(Collection::Subscription, &params), Err(QueryError::Syntax(_))));
}

#[test]
fn s4_2_json_and_bracket_form() {
    let filter = |query: &str| {
        let params = Params::parse(query).expect("parameters");
        Filter::from_params(Collection::Bounce, &params).unwrap_or_else(|error| panic!("{query}: {error}"))
    };
    let bounce = document(
        &json!({"state": "b", "hardBounceCount": 3, "email": "foo@x.ca", "created": "2026-01-02T00:00:00.000Z"}),
    );
    let matches = |query: &str| filter(query).where_.matches(&bounce);
    assert!(matches("filter=%7B%22where%22%3A%7B%22state%22%3A%22b%22%7D%7D"));
    assert!(matches("filter[where][email][$regex]=^foo"));
    assert!(matches("filter%5Bwhere%5D%5Bstate%5D%5B%24in%5D%5B%5D=a&filter%5Bwhere%5D%5Bstate%5D%5B%24in%5D%5B%5D=b"));
    assert!(matches("filter[where][hardBounceCount]=3"), "cast by the type of the property");
    assert!(matches("filter[where][hardBounceCount][$gt]=2"));
    assert!(matches("filter[where][$or][0][state]=x&filter[where][$or][1][state]=b"));
    assert!(matches("filter[where][created][$lt]=2026-02-01"));
    assert!(!matches("filter[where][created][$lt]=2026-01-02"));
    let all = filter("filter[fields][]=state&filter[limit]=2&filter[skip]=1&filter[order]=-state");
    assert_eq!((all.limit, all.skip), (Some(2), 1));
    assert!(all.order.0[0].is_descending && all.order.0[0].path.as_str() == "state");
    assert_eq!(filter("").limit, None);
    assert_eq!(filter("filter={\"limit\":0}").limit, None, "0 is no limit");
    let params = Params::parse("where[state]=b&a=1&a=2&b=x,y&c[0]=p&c[1]=q&d=").expect("parameters");
    assert!(Where::from_params(Collection::Bounce, &params, "where").expect("valid").matches(&bounce));
    assert!(Where::from_params(Collection::Bounce, &params, "none").expect("valid").matches(&bounce));
    assert_eq!(params.texts("a"), Some(vec!["1".into(), "2".into()]));
    assert_eq!(params.texts("b"), Some(vec!["x".into(), "y".into()]));
    assert_eq!(params.texts("c"), Some(vec!["p".into(), "q".into()]));
    assert_eq!((params.text("d"), params.text("e")), (Some(""), None));
}

#[test]
fn s4_1_form_bodies_are_nested() {
    let body = form_body(
        b"serviceName=a&confirmationRequest[sendRequest]=false&data[list][]=1&data[list][]=2&n=5&x%20y=%2B+1",
    );
    let expected = json!({"serviceName": "a", "confirmationRequest": {"sendRequest": "false"}, "data": {"list": ["1",
        "2"]},
        "n": "5", "x y": "+ 1"});
    assert_eq!(Value::Object(body.expect("a form")), expected);
    assert_eq!(form_body(b"[]=1&[a=2&b]=3").expect("a form").len(), 3, "odd names are names");
    let many = "a=1&".repeat(PARAMS_MAX + 1);
    assert!(form_body(many.as_bytes()).is_err());
    assert!(form_body(format!("a{}=1", "[b]".repeat(100)).as_bytes()).is_err());
}

#[test]
fn s4_2_fields() {
    let check = |fields: Value, expected: Value| {
        let record = document(&json!({"id": "1", "a": 1, "b": 2, "o": {"x": 1, "y": 2}}));
        let projection = Projection::parse(&fields).unwrap_or_else(|error| panic!("{fields}: {error}"));
        assert_eq!(Value::Object(projection.apply(record)), expected, "{fields}");
    };
    let only_a = json!({"id": "1", "a": 1});
    check(json!({"a": true}), only_a.clone());
    check(json!({"a": 1}), only_a.clone());
    check(json!({"a": "1"}), only_a.clone());
    check(json!(["a"]), only_a);
    check(json!("a b"), json!({"id": "1", "a": 1, "b": 2}));
    check(json!({"a": 0}), json!({"id": "1", "b": 2, "o": {"x": 1, "y": 2}}));
    check(json!("-a -b"), json!({"id": "1", "o": {"x": 1, "y": 2}}));
    check(json!({"id": false, "a": true}), json!({"a": 1}));
    check(json!({"id": true, "a": true}), json!({"id": "1", "a": 1}));
    check(json!(["id"]), json!({"id": "1"}));
    check(json!("o.x"), json!({"id": "1", "o": {"x": 1}}));
    check(json!("-o.x"), json!({"id": "1", "a": 1, "b": 2, "o": {"y": 2}}));
    check(Value::Null, json!({"id": "1", "a": 1, "b": 2, "o": {"x": 1, "y": 2}}));
    assert!(Projection::parse(&json!({"a": 1, "b": 0})).is_err());
}

#[test]
fn s4_2_order() {
    let sorted = |order: Value| {
        let mut records: Vec<Document> = [
            json!({"id": 1, "rank": 2, "o": {"x": "b"}}),
            json!({"id": 2, "rank": 10, "o": {"x": "a"}}),
            json!({"id": 3, "rank": 2, "o": {"x": "a"}}),
            json!({"id": 4}),
        ]
        .iter()
        .map(document)
        .collect();
        Order::parse(&order).unwrap_or_else(|error| panic!("{order}: {error}")).sort(&mut records);
        records.iter().map(|record| record["id"].as_u64().expect("a number")).collect::<Vec<u64>>()
    };
    assert_eq!(sorted(json!("rank")), [4, 1, 3, 2]);
    assert_eq!(sorted(json!("-rank")), [2, 1, 3, 4]);
    assert_eq!(sorted(json!("rank -o.x")), [4, 1, 3, 2]);
    assert_eq!(sorted(json!("rank o.x")), [4, 3, 1, 2]);
    assert_eq!(sorted(json!([["rank", "desc"], ["o.x", "asc"]])), [2, 3, 1, 4]);
    assert_eq!(sorted(json!({"rank": -1})), [2, 1, 3, 4]);
    assert_eq!(sorted(json!({"rank": "asc"})), [4, 1, 3, 2]);
    assert_eq!(sorted(json!({"rank": "-1"})), [2, 1, 3, 4]);
    assert_eq!(sorted(Value::Null), [1, 2, 3, 4]);
    assert!(Order::parse(&json!({"rank": 2})).is_err());
}

#[test]
fn s4_2_pages_are_cut_after_sorting() {
    let filter = Filter::parse(Collection::Bounce, &json!({"order": "-n", "skip": 1, "limit": "2", "fields": ["n"]}));
    let records = (0..5).map(|n| document(&json!({"n": n, "m": 1}))).collect();
    assert_eq!(filter.expect("valid").page(records), [document(&json!({"n": 3})), document(&json!({"n": 2}))]);
    for bad in [json!({"skip": -1}), json!({"limit": "x"}), json!({"limit": 1.5}), json!([])] {
        assert!(Filter::parse(Collection::Bounce, &bad).is_err(), "{bad}");
    }
}

#[test]
fn hints_are_necessary_conditions() {
    let hints = condition(json!({"serviceName": "a", "state": {"$in": ["confirmed", "deleted"]}, "x": 1,
        "$and": [{"state": {"$in": ["deleted", "other"]}}, {"created": {"$gte": "2026-01-01", "$lt": "2026-02-01"}}],
        "$or": [{"channel": "sms"}, {"channel": "email"}], "userId": null}))
    .index_hints();
    assert_eq!(hints.service_name, Some(vec!["a".into()]));
    assert_eq!(hints.state, Some(vec!["deleted".into()]));
    assert_eq!((hints.channel, hints.user_id), (None, None));
    assert_eq!(hints.created.from.as_deref(), Some("2026-01-01T00:00:00.000Z"));
    assert_eq!(hints.created.to.as_deref(), Some("2026-02-01T00:00:00.000Z"));
    let [a, b, c] = ["a", "b", "c"].map(|digit| digit.repeat(24));
    let hints = condition(json!({"id": {"$gt": b, "$lte": c}, "$and": [{"id": {"$gte": a}}]})).index_hints();
    assert_eq!((hints.ids.from, hints.ids.to), (Some(b), Some(c)));
    let hints = condition(json!({"$nor": [{"serviceName": "a"}], "channel": {"$ne": "sms"}})).index_hints();
    assert_eq!(hints, Hints::default());
}

#[test]
fn s12_hidden_properties_are_absent_for_conditions_and_order() {
    const HIDDEN: [&str; 1] = ["secret"];
    let record = document(&json!({"id": "1", "secret": {"code": "12345"}, "n": 1}));
    for query in [
        json!({"secret.code": {"$regex": "^1"}}),
        json!({"$or": [{"secret": {"$exists": true}}]}),
        json!({"$text": {"$search": "12345"}}),
    ] {
        assert!(condition(query.clone()).matches(&record), "{query}");
        assert!(!condition(query.clone()).without(&HIDDEN).matches(&record), "{query}");
    }
    assert!(condition(json!({"n": 1, "secret": null})).without(&HIDDEN).matches(&record));
    let filter = Filter::parse(Collection::Subscription, &json!({"order": "-secret.code n"})).expect("valid");
    let paths: Vec<String> = filter.without(&HIDDEN).order.0.iter().map(|key| key.path.as_str().to_owned()).collect();
    assert_eq!(paths, ["n"]);
    let hints = condition(json!({"serviceName": "a"})).without(&HIDDEN).index_hints();
    assert_eq!(hints.service_name, Some(vec!["a".into()]));
}

#[test]
fn long_paths_are_refused() {
    let path = vec!["0"; PATH_STEPS_MAX + 1].join(".");
    let filter = |value: Value| Filter::parse(Collection::Subscription, &value);
    for query in [json!({"order": path}), json!({"order": {&path: 1}}), json!({"where": {&path: 1}})] {
        assert_eq!(
            filter(query).expect_err("too long"),
            QueryError::TooLarge { limit: PATH_STEPS_MAX, unit: "levels" }
        );
    }
    assert!(filter(json!({"order": "a.0.b"})).is_ok());
}

#[test]
fn s4_2_views_of_users_are_anded() {
    let view = condition(json!({"serviceName": "a"})).and(Where::subscriptions_of("ann"));
    let check = |more: Value, expected: bool| assert_eq!(view.matches(&document(&more)), expected, "{more}");
    check(json!({"serviceName": "a", "userId": "ann", "state": "confirmed"}), true);
    check(json!({"serviceName": "a", "userId": "ann", "state": "deleted"}), false);
    check(json!({"serviceName": "a", "userId": "bob", "state": "confirmed"}), false);
    check(json!({"serviceName": "b", "userId": "ann", "state": "confirmed"}), false);
}
