//! Rules tried over HTTP.

use serde_json::{Value as Json, json};

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";
const TEST: &str = "/v1/applications/quakes/rules/test";

async fn platform() -> Platform {
    let platform = Platform::with_quakes().await;
    let with_filters = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n");
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &with_filters).await;
    assert_eq!(status, 200, "{body}");
    for (key, magnitude, filter) in [("a", 5, "null"), ("b", 7, "null"), ("c", 5, r#""event.place == 'Kobe'""#)] {
        let draft = format!(
            r#"{{"application":"quakes","class":"strong","subscriber":"alice","key":"{key}","values":{{"magnitude":{magnitude}}},"filter":{filter}}}"#
        );
        let (status, body) = platform.post("/v1/subscriptions", JSON, &draft).await;
        assert_eq!(status, 201, "{body}");
    }
    platform
}

#[tokio::test]
async fn a_rule_is_tried_on_events_before_anybody_is_told() {
    let platform = platform().await;
    let asked = json!({"rule": "strong_enough", "events": [{"place": "Lima", "magnitude": 6.0}, {"place": "Kobe", "magnitude": 8}]});
    let (status, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{found}");
    assert_eq!(found["subscriptions"], json!({"tried": 3, "all": true, "unusable": 0}));
    assert_eq!(found["events"][0]["matches"], 1, "{found}");
    assert_eq!(found["events"][1]["matches"], 3, "{found}");
    assert_eq!(found["rule"]["rule"], "strong_enough");

    // A rule that is not applied, on stored events, of which there are none yet.
    let draft = json!({"on": "quake", "subscription": "strong", "when": "event.magnitude > 7.5"});
    let asked = json!({"rule": draft, "last": 10});
    let (_, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!(found["events"], json!([]), "{found}");
    let (status, body) = platform
        .post(
            "/v1/applications/quakes/events/quake",
            JSON,
            r#"[{"place":"Lima","magnitude":7},{"place":"Kobe","magnitude":8}]"#,
        )
        .await;
    assert_eq!(status, 202, "{body}");
    let (_, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    let batch = body["batch"].as_str().expect("a batch").replace("eb-", "");
    assert_eq!(found["events"][0]["event"], format!("e-{batch}-0"), "{found}");
    assert_eq!((&found["events"][0]["matches"], &found["events"][1]["matches"]), (&json!(0), &json!(3)), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn one_subscription_is_told_why_not() {
    let platform = platform().await;
    let event = json!({"place": "Lima", "magnitude": 6.0});
    let subject = json!({"values": {"magnitude": 5}, "filter": "event.place == 'Kobe' && event.magnitude > 5.0"});
    let asked = json!({"rule": "strong_enough", "events": [event], "subscription": subject});
    let (status, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!(status, 200, "{found}");
    let trial = &found["events"][0]["trial"];
    assert_eq!(trial["matches"], false, "{found}");
    assert_eq!(trial["conditions"][0]["verdict"], "holds", "{found}");
    assert_eq!(trial["conditions"][0]["values"][1], json!({"field": "sub.magnitude", "value": "5.0"}), "{found}");
    assert_eq!(trial["filter"]["verdict"], "fails", "{found}");
    assert_eq!(trial["filter"]["conditions"][0]["text"], r#"place == "Kobe""#, "{found}");
    assert_eq!(trial["filter"]["conditions"][1]["verdict"], "holds", "{found}");
    // If no earlier condition of a filter decides, the last one has the verdict.
    let subject = json!({"values": {"magnitude": 5}, "filter": "event.magnitude * 2.0 > 30.0"});
    let undecided = json!({"rule": "strong_enough", "events": [event], "subscription": subject});
    let (_, found) = platform.post(TEST, JSON, &undecided.to_string()).await;
    let filter = &found["events"][0]["trial"]["filter"];
    let last = filter["conditions"].as_array().and_then(|all| all.last()).expect("a condition");
    assert_eq!((&filter["verdict"], &last["verdict"]), (&json!("fails"), &json!("fails")), "{found}");
    assert_eq!(last["text"], "the filter as a whole", "{found}");
    let (_, listed) = platform.get("/v1/subscriptions?subscriber=alice").await;
    let id = listed["items"][1]["id"].as_str().expect("an id");
    let asked = json!({"rule": "strong_enough", "events": [event], "subscription": id});
    let (_, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!(found["events"][0]["trial"]["conditions"][0]["verdict"], "fails", "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn what_cannot_be_tried_is_said_with_its_place() {
    let platform = platform().await;
    let event = json!({"place": "Lima", "magnitude": 6.0});
    let cases = [
        (json!({"rule": "strong_enogh", "events": [event]}), "rule", "did you mean `strong_enough`?"),
        (json!({"rule": "strong_enough"}), "events", "give `events`, or `last` for the last stored ones"),
        (json!({"rule": "strong_enough", "events": [{"magnitude": "much"}]}), "events[0].magnitude", ""),
        (
            json!({"rule": {"on": "quake", "subscription": "strong", "when": "event.magnitud > 1"}, "last": 1}),
            "rule.when",
            "did you mean `magnitude`?",
        ),
        (json!({"rule": "strong_enough", "last": 5000}), "last", ""),
        (json!({"rule": "strong_enough", "events": [event], "subscription": "s15"}), "subscription", ""),
        (
            json!({"rule": "strong_enough", "events": [event], "subscription": {"filter": "event.place = 3"}}),
            "subscription.values.magnitude",
            "",
        ),
    ];
    for (asked, path, hint) in cases {
        let (status, problem) = platform.post(TEST, JSON, &asked.to_string()).await;
        assert_eq!(status, 422, "{asked}: {problem}");
        let first = &problem["problems"][0];
        assert_eq!(first["path"], path, "{asked}: {problem}");
        assert!(hint.is_empty() || first["hint"] == hint, "{asked}: {problem}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_rule_is_measured_beside_one_that_matches_nothing() {
    let platform = platform().await;
    let sql = "SELECT _event, _subscription FROM events JOIN strong ON strong.magnitude < events.magnitude";
    let swarm = json!({"on": "quake", "subscription": "strong", "notify": "shaken", "sql": sql});
    let definition = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n");
    let definition = definition.replace("\nrules:\n", &format!("\nrules:\n  swarm: {swarm}\n"));
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 200, "{body}");
    let events = json!([{"place": "Lima", "magnitude": 6}, {"place": "Kobe", "magnitude": 8}]);
    for rule in ["strong_enough", "swarm"] {
        let asked = json!({"rule": rule, "events": events, "measure": true});
        let (status, found) = platform.post(TEST, JSON, &asked.to_string()).await;
        assert_eq!(status, 200, "{found}");
        let cost = &found["cost"];
        assert!(cost["rounds"].as_u64().is_some_and(|rounds| rounds > 0), "{found}");
        let figures = ["rule_us", "baseline_us", "own_us"].map(|name| cost[name].as_f64().expect("a number"));
        assert!(figures[0] > 0.0 && figures[1] > 0.0 && figures[2] >= 0.0, "{found}");
    }
    let asked = json!({"rule": "strong_enough", "events": events, "measure": true, "subscription": "s-1"});
    let (status, problem) = platform.post(TEST, JSON, &asked.to_string()).await;
    assert_eq!((status.as_u16(), &problem["problems"][0]["path"]), (422, &json!("measure")), "{problem}");
    let (status, slow) = platform.get("/v1/slow-firings?application=quakes&rule=swarm").await;
    assert_eq!((status.as_u16(), &slow["items"]), (200, &json!([])), "{slow}");
    let (status, problem) = platform.get("/v1/slow-firings?limit=0").await;
    assert_eq!(status, 422, "{problem}");
    platform.stop().await;
}

#[tokio::test]
async fn a_rule_in_sql_is_tried_over_all_events_at_once() {
    let platform = platform().await;
    let sql =
        "SELECT max(_event) AS _event, _subscription FROM events JOIN strong ON strong.magnitude < events.magnitude
        GROUP BY _subscription HAVING count(*) > 1";
    let swarm = json!({"on": "quake", "subscription": "strong", "notify": "shaken", "sql": sql});
    let definition = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n");
    let definition = definition.replace("\nrules:\n", &format!("\nrules:\n  swarm: {swarm}\n"));
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 200, "{body}");
    let events = json!([
        {"place": "Lima", "magnitude": 6}, {"place": "Kobe", "magnitude": 8}, {"place": "Nome", "magnitude": 1}
    ]);
    let (status, found) = platform.post(TEST, JSON, &json!({"rule": "swarm", "events": events}).to_string()).await;
    assert_eq!(status, 200, "{found}");
    // The subscriptions for more than 5 have two candidates; the filter of one of them matches Kobe.
    let matches: Vec<_> = (0..3).map(|at| found["events"][at]["matches"].clone()).collect();
    assert_eq!(matches, [json!(0), json!(2), json!(0)], "{found}");
    assert!(found["rule"]["query"].as_array().is_some_and(|plan| !plan.is_empty()), "{found}");
    let subject = json!({"values": {"magnitude": 5}, "filter": "event.place == 'Lima'"});
    let asked = json!({"rule": "swarm", "events": events, "subscription": subject});
    let (_, found) = platform.post(TEST, JSON, &asked.to_string()).await;
    let trial = &found["events"][1];
    assert_eq!(trial["matches"], 0, "{found}");
    assert!(trial.to_string().contains("\"holds\"") && trial.to_string().contains("\"fails\""), "{found}");
    platform.stop().await;
}

#[tokio::test]
async fn a_filter_that_no_index_answers_is_refused_beyond_the_limit() {
    let platform = platform().await;
    let none_left = QUAKES
        .replace("  strong:\n", "  strong:\n    filter: cel\n")
        .replace("rules:\n", "limits: {unindexed_filters: 0, subscriptions: 4}\nrules:\n");
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &none_left).await;
    assert_eq!(status, 200, "{body}");
    let draft = |filter: &str| {
        let values = json!({"magnitude": 5});
        json!({"application": "quakes", "class": "strong", "subscriber": "alice", "values": values, "filter": filter})
            .to_string()
    };
    let (status, problem) = platform.post("/v1/subscriptions", JSON, &draft("event.magnitude * 2.0 > 9.0")).await;
    assert_eq!(status, 422, "{problem}");
    let first = &problem["problems"][0];
    assert_eq!(first["path"], "filter", "{problem}");
    assert!(
        first["message"].as_str().is_some_and(|message| message.contains("only evaluating it decides")),
        "{problem}"
    );
    let (status, body) = platform.post("/v1/subscriptions", JSON, &draft("event.place == 'Lima'")).await;
    assert_eq!(status, 201, "{body}");
    // Nor by a change of an existing one; other changes do not concern the filter.
    let path = format!("/v1/subscriptions/{}", body["id"].as_str().expect("an id"));
    let patch = |body: Json| {
        let request = platform.request("PATCH", &path).header("content-type", "application/merge-patch+json");
        answer(request.body(body.to_string()))
    };
    let (status, problem) = patch(json!({"filter": "size(event.place) > 3"})).await;
    assert_eq!(status, 422, "{problem}");
    assert_eq!(problem["problems"][0]["path"], "filter", "{problem}");
    let (status, body) = patch(json!({"enabled": false})).await;
    assert_eq!((status.as_u16(), &body["enabled"]), (200, &json!(false)), "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn what_is_put_again_needs_no_room_for_its_filter() {
    let platform = platform().await;
    let with_room = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n");
    let full = with_room.replace("rules:\n", "limits: {distinct_filters: 1}\nrules:\n");
    let apply = async |text: &str| platform.put("/v1/applications/quakes", "application/yaml", text).await.0.as_u16();
    assert_eq!(apply(&with_room).await, 200);
    let line = |key: &str, place: &str| {
        let filter = format!("event.place == '{place}'");
        let values = json!({"magnitude": 5});
        json!({"application": "quakes", "class": "strong", "subscriber": "alice", "key": key, "values": values, "filter": filter})
            .to_string()
    };
    let put =
        async |key: &str, place: &str| platform.post("/v1/subscriptions", JSON, &line(key, place)).await.0.as_u16();
    assert_eq!(put("one", "Lima").await, 201);
    // The index of a version is complete when it is applied.
    assert_eq!(apply(&full).await, 200);
    assert_eq!((put("one", "Lima").await, put("one", "Kobe").await, put("two", "Kobe").await), (200, 422, 422));
    let both = [line("two", "Kobe"), line("one", "Lima")].join("\n");
    let request = platform.request("POST", "/v1/import/subscriptions").header("content-type", "application/x-ndjson");
    let reply = request.body(both).send().await.expect("an answer").text().await.expect("a body");
    let reply: Vec<Json> = reply.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (refused, sum) = (&reply[0], &reply[reply.len() - 1]);
    assert_eq!((&sum["stored"], &sum["failed"]), (&json!(1), &json!(1)), "{reply:?}");
    assert_eq!(
        (&refused["line"], &refused["error"]["problems"][0]["path"]),
        (&json!(1), &json!("filter")),
        "{reply:?}"
    );
    platform.stop().await;
}

#[tokio::test]
async fn subscriptions_that_a_new_version_cannot_match_are_listed_with_their_reason() {
    const UNUSABLE: &str = "/v1/applications/quakes/unusable-subscriptions";
    let platform = platform().await;
    let (status, listed) = platform.get(UNUSABLE).await;
    assert_eq!((status.as_u16(), &listed["items"]), (200, &json!([])), "{listed}");
    // The filter of `c` names the place.
    let other = QUAKES.replace("  strong:\n", "  strong:\n    filter: cel\n");
    let other = other.replace("      place: {type: string, required: true}\n", "      site: {type: string}\n");
    let other = other.replace("    notify: shaken\n", "    notify: shaken\n    with: {place: event.site}\n");
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &other).await;
    assert_eq!(status, 200, "{body}");
    let (status, listed) = platform.get(UNUSABLE).await;
    assert_eq!(status, 200, "{listed}");
    let items = listed["items"].as_array().expect("items");
    assert_eq!(items.len(), 1, "{listed}");
    assert_eq!((&items[0]["class"], &items[0]["problem"]["path"]), (&json!("strong"), &json!("filter")), "{listed}");
    assert_eq!((&items[0]["problem"]["line"], &items[0]["problem"]["column"]), (&json!(1), &json!(1)), "{listed}");
    assert!(items[0]["problem"]["message"].as_str().expect("a message").contains("no field `place`"), "{listed}");
    let (_, page) = platform.get(&format!("{UNUSABLE}?limit=1")).await;
    let next = page["next"].as_str().expect("a page that is full has a next");
    let (_, page) = platform.get(&format!("{UNUSABLE}?after={next}")).await;
    assert_eq!((&page["items"], &page["next"]), (&json!([]), &json!(null)), "{page}");
    for (path, expected) in [
        ("/v1/applications/nothing/unusable-subscriptions", 404),
        ("/v1/applications/quakes/unusable-subscriptions?limit=5000", 422),
        ("/v1/applications/quakes/unusable-subscriptions?after=x", 422),
    ] {
        assert_eq!(platform.get(path).await.0, expected, "{path}");
    }
    platform.stop().await;
}
