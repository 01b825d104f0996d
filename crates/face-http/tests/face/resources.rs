//! Objects are created, read, changed and removed; lists during changes; conditional requests.

use std::sync::atomic::Ordering;

use serde_json::{Value as Json, json};

use crate::platform::{Platform, QUAKES, TAKEN, answer};

const JSON: &str = "application/json";

#[tokio::test]
async fn subscribers_live_and_change_under_their_revision() {
    let platform = Platform::with_quakes().await;
    let (_, alice) = platform.get("/v1/subscribers/alice").await;
    let tag = format!("\"{}\"", alice["revision"]);
    let patch = |tag: Option<&str>, body: &str| {
        let request =
            platform.request("PATCH", "/v1/subscribers/alice").header("content-type", "application/merge-patch+json");
        let request = match tag {
            Some(tag) => request.header("if-match", tag),
            None => request,
        };
        request.body(body.to_owned())
    };
    let (status, changed) = answer(patch(Some(&tag), r#"{"locale":"de","attributes":{"city":"Wien"}}"#)).await;
    assert_eq!((status.as_u16(), changed["locale"].as_str()), (200, Some("de")), "{changed}");
    assert_eq!(changed["devices"]["mail"]["address"], "alice@example.org", "{changed}");
    let (status, problem) = answer(patch(Some(&tag), r#"{"locale":"fr"}"#)).await;
    assert_eq!((status.as_u16(), problem["type"].as_str()), (412, Some("/problems/changed")), "{problem}");
    let (status, changed) = answer(patch(None, r#"{"locale":null,"devices":{"mail":null}}"#)).await;
    assert_eq!(
        (status.as_u16(), &changed["locale"], &changed["devices"]),
        (200, &json!(null), &json!({})),
        "{changed}"
    );

    let device = r#"{"channel":"mail","address":"a@example.org"}"#;
    let (status, body) = platform.put("/v1/subscribers/alice/devices/mail", JSON, device).await;
    assert_eq!((status.as_u16(), body["devices"]["mail"]["state"].as_str()), (201, Some("active")), "{body}");
    let (status, _) = platform.put("/v1/subscribers/alice/devices/mail", JSON, device).await;
    assert_eq!(status, 200);
    let (status, _) = answer(platform.request("DELETE", "/v1/subscribers/alice/devices/mail")).await;
    assert_eq!(status, 204);
    let (status, _) = answer(platform.request("DELETE", "/v1/subscribers/alice/devices/mail")).await;
    assert_eq!(status, 404);

    let absent =
        platform.request("PUT", "/v1/subscribers/alice").header("content-type", JSON).header("if-none-match", "*");
    assert_eq!(answer(absent.body("{}")).await.0, 412);
    let (status, _) = platform.put("/v1/subscribers/zo%C3%AB", JSON, r#"{"locale":"nl"}"#).await;
    assert_eq!(status, 201);
    let (_, found) = platform.get("/v1/subscribers?locale=nl").await;
    assert_eq!(found["items"][0]["id"], "zoë", "{found}");
    assert_eq!(answer(platform.request("DELETE", "/v1/subscribers/alice")).await.0, 204);
    assert_eq!(platform.get("/v1/subscribers/alice").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn segments_tell_who_belongs_to_them() {
    let platform = Platform::start().await;
    for (id, age) in [("ann", json!(42)), ("bob", json!(17)), ("cay", json!({"years": 42})), ("dan", json!([18, 99]))] {
        let body = json!({"id": id, "attributes": {"age": age}}).to_string();
        assert_eq!(platform.post("/v1/subscribers", JSON, &body).await.0, 201);
    }
    let body = r#"{"name":"adults","description":"of age","filter":"(& (age>=18) (enabled=TRUE) )"}"#;
    let (status, made) = platform.post("/v1/segments", JSON, body).await;
    assert_eq!((status.as_u16(), made["canonical"].as_str()), (201, Some("(&(age>=18)(enabled=TRUE))")), "{made}");
    assert_eq!(platform.post("/v1/segments", JSON, body).await.0, 409);
    let (status, same) = platform.put("/v1/segments/adults", JSON, &made.to_string()).await;
    assert_eq!((status.as_u16(), &same), (200, &made), "what is shown is read");
    let ids = |list: &serde_json::Value| {
        let items = list.as_array().expect("items").iter();
        items.map(|item| item["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let (_, page) = platform.get("/v1/segments/adults/members?limit=1").await;
    assert_eq!(ids(&page["items"]), ["ann"], "{page}");
    let next = page["next"].as_str().expect("a cursor");
    let (_, page) = platform.get(&format!("/v1/segments/adults/members?limit=3&after={next}")).await;
    assert_eq!((ids(&page["items"]), &page["next"]), (vec!["dan".to_owned()], &json!(null)), "{page}");
    let (_, reply) = platform.get("/v1/segments/adults/preview?sample=1").await;
    let counts = json!([reply["members"], reply["looked_at"], reply["subscribers"]]);
    assert_eq!((ids(&reply["sample"]), counts), (vec!["ann".to_owned()], json!([2, 4, 4])), "{reply}");
    let (_, reply) = platform.post("/v1/segments/preview", JSON, r#"{"filter":"(!(age>=18))"}"#).await;
    assert_eq!(ids(&reply["sample"]), ["bob"], "cay is undecided: {reply}");
    let (_, why) = platform.get("/v1/segments/adults/members/cay").await;
    assert_eq!((&why["member"], why["truth"].as_str()), (&json!(false), Some("undefined")), "{why}");
    assert_eq!(why["parts"][0], json!({"filter": "(age>=18)", "truth": "undefined"}), "{why}");

    let put = |tag: (&'static str, &'static str), filter: &str| {
        let request = platform.request("PUT", "/v1/segments/adults").header("content-type", JSON);
        answer(request.header(tag.0, tag.1).body(json!({"filter": filter}).to_string()))
    };
    assert_eq!(put(("if-match", "\"7\""), "(age>=21)").await.0, 412);
    assert_eq!(put(("if-none-match", "*"), "(age>=21)").await.0, 412);
    assert_eq!(put(("if-match", "\"1\""), "(age>=21)").await.1["revision"], 2);
    assert_eq!(put(("if-match", "\"7\", \"8\""), "(age>=22)").await.0, 412);
    assert_eq!(put(("if-match", "\"7\", \"2\""), "(age>=21)").await.0, 200, "one of several tags is enough");
    assert_eq!(platform.get("/v1/segments?limit=5").await.1["items"][0]["filter"], "(age>=21)");
    assert_eq!(answer(platform.request("DELETE", "/v1/segments/adults")).await.0, 204);
    assert_eq!(platform.get("/v1/segments/adults/members").await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn a_condition_is_about_what_is_there() {
    let platform = Platform::with_quakes().await;
    let put = async |path: &str, name: &str, value: &str, body: Json| {
        let request = platform.request("PUT", path).header("content-type", JSON).header(name, value);
        answer(request.body(body.to_string())).await.0.as_u16()
    };
    let device = json!({"channel": "email", "address": "second@example.org"});
    let second = "/v1/subscribers/alice/devices/second";
    assert_eq!(put(second, "if-match", "*", device.clone()).await, 412, "it is not there yet");
    assert_eq!(put(second, "if-none-match", "*", device.clone()).await, 201);
    assert_eq!(put(second, "if-none-match", "*", device.clone()).await, 412);
    assert_eq!(put(second, "if-match", "*", device.clone()).await, 200);
    // Callers that may write but not read can use conditions, too.
    let scopes = json!({"description": "writes", "scopes": ["subscribers:write"]});
    let (_, key) = platform.post("/v1/keys", JSON, &scopes.to_string()).await;
    let url = format!("{}/v1/subscribers/alice", platform.address);
    let request = platform.client.put(url).bearer_auth(key["key"].as_str().expect("a key"));
    let request = request.header("content-type", JSON).header("if-match", "*").body("{}");
    assert_eq!(answer(request).await.0, 200);
    // A repeated field that must occur once is rejected.
    for name in ["authorization", "idempotency-key"] {
        let request = platform.request("POST", "/v1/applications/quakes/events/quake").header("content-type", JSON);
        let request = request.header("idempotency-key", "k").header(name, "Bearer other").body("{}");
        let expected = if name == "authorization" { 401 } else { 400 };
        assert_eq!(answer(request).await.0, expected, "{name}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn an_audience_is_a_segment_and_stays_one() {
    let platform = Platform::with_quakes().await;
    let definition = QUAKES.replace("    notify: shaken", "    notify: shaken\n    audience: vip");
    let apply = async || platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    let (status, refused) = apply().await;
    let problem = &refused["problems"][0];
    assert_eq!((status.as_u16(), problem["path"].as_str()), (422, Some("rules.strong_enough.audience")), "{refused}");
    let (_, checked) = platform.post("/v1/applications/check", "application/yaml", &definition).await;
    assert_eq!(checked["problems"][0]["path"], "rules.strong_enough.audience", "{checked}");
    // Beside the problems of other stages, too.
    let wrong = definition.replace("event.magnitude >=", "event.magnitud >=").replace("  mail:\n", "  mail: [\n");
    let (_, checked) = platform.post("/v1/applications/check", "application/yaml", &wrong).await;
    let problems = checked["problems"].as_array().expect("problems");
    for path in ["rules.strong_enough.audience", "rules.strong_enough.when"] {
        assert!(problems.iter().any(|problem| problem["path"] == path), "{path}: {checked}");
    }
    assert!(problems.iter().any(|problem| problem["code"] == "invalid_syntax"), "{checked}");
    let (status, _) = platform.put("/v1/segments/vip", JSON, r#"{"filter":"(tier=gold)"}"#).await;
    assert_eq!(status, 201);
    let (status, applied) = apply().await;
    assert_eq!(
        (status.as_u16(), applied["differences"][0]["path"].as_str()),
        (200, Some("rules.strong_enough.audience")),
        "{applied}"
    );
    let (_, rules) = platform.get("/v1/applications/quakes/rules").await;
    assert!(rules.to_string().contains("a subscriber of `vip`"), "{rules}");
    let (status, refused) = answer(platform.request("DELETE", "/v1/segments/vip")).await;
    assert_eq!((status.as_u16(), refused["type"].as_str()), (409, Some("/problems/in-use")), "{refused}");

    // A test of the rule reports who is excluded by it.
    let draft = r#"{"application":"quakes","class":"strong","subscriber":"alice","values":{"magnitude":5}}"#;
    let (_, made) = platform.post("/v1/subscriptions", JSON, draft).await;
    let test =
        json!({"rule": "strong_enough", "subscription": made["id"], "events": [{"place": "Kobe", "magnitude": 6}]});
    let run = async || platform.post("/v1/applications/quakes/rules/test", JSON, &test.to_string()).await.1;
    let reply = run().await;
    let trial = &reply["events"][0]["trial"];
    assert_eq!(
        (&trial["matches"], &trial["conditions"][0]["text"]),
        (&json!(false), &json!("audience: vip")),
        "{reply}"
    );
    let gold = platform.request("PATCH", "/v1/subscribers/alice").header("content-type", JSON);
    assert_eq!(answer(gold.body(r#"{"attributes":{"tier":"gold"}}"#)).await.0, 200);
    assert_eq!(run().await["events"][0]["trial"]["matches"], true);
    platform.stop().await;
}

#[tokio::test]
async fn subscriptions_are_found_again_by_their_key() {
    let platform = Platform::with_quakes().await;
    let draft = r#"{"application":"quakes","class":"strong","subscriber":"alice","key":"k","values":{"magnitude":5}}"#;
    let (status, first) = platform.post("/v1/subscriptions", JSON, draft).await;
    assert_eq!(status, 201, "{first}");
    let (status, again) = platform.post("/v1/subscriptions", JSON, &draft.replace(":5", ":6")).await;
    assert_eq!(
        (status.as_u16(), &again["id"], &again["values"]["magnitude"]),
        (200, &first["id"], &json!(6.0)),
        "{again}"
    );
    let path = format!("/v1/subscriptions/{}", first["id"].as_str().expect("an id"));
    let patch = platform
        .request("PATCH", &path)
        .header("content-type", JSON)
        .body(r#"{"values":{"note":"n"},"enabled":false}"#);
    let (_, patched) = answer(patch).await;
    assert_eq!(
        (&patched["values"], &patched["enabled"]),
        (&json!({"magnitude": 6.0, "note": "n"}), &json!(false)),
        "{patched}"
    );
    let (status, moved) = platform.put(&path, JSON, r#"{"subscriber":"bob","values":{"magnitude":1}}"#).await;
    assert_eq!((status.as_u16(), moved["problems"][0]["path"].as_str()), (422, Some("subscriber")), "{moved}");
    assert_eq!(answer(platform.request("DELETE", &path)).await.0, 204);
    assert_eq!(platform.get(&path).await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn a_list_shows_each_once_while_others_come_and_go() {
    let platform = Platform::start().await;
    for number in 0..25 {
        let (status, _) = platform.put(&format!("/v1/subscribers/p{number:02}"), JSON, "{}").await;
        assert_eq!(status, 201);
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/subscribers?limit=10".to_owned());
    for turn in 0.. {
        let (_, page) = platform.get(&path).await;
        seen.extend(
            page["items"].as_array().expect("items").iter().map(|item| item["id"].as_str().expect("an id").to_owned()),
        );
        // Before the cursor one is added and one removed; after it one is removed.
        platform.put(&format!("/v1/subscribers/a{turn}"), JSON, "{}").await;
        answer(platform.request("DELETE", "/v1/subscribers/p03")).await;
        answer(platform.request("DELETE", "/v1/subscribers/p24")).await;
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/subscribers?limit=10&after={next}"),
            None => break,
        }
    }
    let expected: Vec<String> = (0..24).map(|number| format!("p{number:02}")).collect();
    assert_eq!(seen, expected);
    platform.stop().await;
}

#[tokio::test]
async fn a_dry_run_refuses_files_and_programs_that_are_not_allowed() {
    let platform = Platform::with_quakes().await;
    let definition = "application: closed\nchannels:\n  log: { protocol: file, options: { path: /nowhere/log.ndjson } }\n  \
                      run: { protocol: process, options: { command: [/nowhere/program] } }\n";
    let (status, body) = platform.put("/v1/applications/closed?dry_run=true", "application/yaml", definition).await;
    let problems: Vec<_> = body["problems"].as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
    let paths: Vec<_> = problems.iter().map(|problem| (&problem["path"], &problem["code"])).collect();
    let code = json!("not_allowed");
    assert_eq!(status, 422, "{body}");
    assert_eq!(
        paths,
        [(&json!("channels.log.options.path"), &code), (&json!("channels.run.options.command"), &code)],
        "{body}"
    );
    platform.stop().await;
}

#[tokio::test]
async fn applications_have_versions_and_lose_nothing_unasked() {
    let platform = Platform::with_quakes().await;
    let put = async |query: &str, text: &str| {
        platform.put(&format!("/v1/applications/quakes{query}"), "application/yaml", text).await
    };
    let (status, same) = put("", QUAKES).await;
    assert_eq!((status.as_u16(), &same["version"], &same["differences"]), (200, &json!(1), &json!([])), "{same}");
    let without = QUAKES.replace("      note: {type: string}\n", "");
    let (status, dry) = put("?dry_run=true", &without).await;
    assert_eq!(
        (status.as_u16(), &dry["version"], &dry["differences"][0]["drops"]),
        (200, &json!(1), &json!(true)),
        "{dry}"
    );
    let (status, refused) = put("", &without).await;
    assert_eq!(status, 409, "{refused}");
    let allow = refused["drops"][0].as_str().expect("a name").to_owned();
    // A name that drops nothing causes a warning with the closest name.
    let (_, dry) = put(&format!("?dry_run=true&allow_drop={allow}s,events.nowhere"), &without).await;
    let warnings: Vec<_> =
        dry["warnings"].as_array().expect("a list").iter().map(|one| (&one["path"], &one["hint"])).collect();
    let meant = json!(format!("did you mean `{allow}`?"));
    assert_eq!(warnings, [(&json!("allow_drop"), &json!(null)), (&json!("allow_drop"), &meant)], "{dry}");
    assert_eq!(put(&format!("?allow_drop={allow}s"), &without).await.0, 409);
    let (status, applied) = put(&format!("?allow_drop={allow}"), &without).await;
    assert_eq!((status.as_u16(), &applied["version"]), (200, &json!(2)), "{applied}");
    assert_eq!(applied["warnings"], json!([]), "{applied}");
    let (status, same) = put(&format!("?allow_drop={allow}"), &without).await;
    assert_eq!((status.as_u16(), same["warnings"][0]["path"].as_str()), (200, Some("allow_drop")), "{same}");
    let stale = platform.request("PUT", "/v1/applications/quakes").header("content-type", "application/yaml");
    assert_eq!(answer(stale.header("if-match", "\"1\"").body(QUAKES)).await.0, 412);
    let (_, history) = platform.get("/v1/applications/quakes/history").await;
    let versions: Vec<u64> =
        history["items"].as_array().expect("items").iter().filter_map(|item| item["version"].as_u64()).collect();
    assert_eq!(versions, [2, 1]);
    let running: Vec<bool> =
        history["items"].as_array().expect("items").iter().filter_map(|item| item["running"].as_bool()).collect();
    assert_eq!(running, [true, false], "B33: the newest version runs: {history}");
    let (_, rules) = platform.get("/v1/applications/quakes/rules").await;
    assert_eq!(rules["items"][0]["rule"], "strong_enough", "{rules}");
    let (status, checked) = platform
        .post("/v1/applications/check", "application/yaml", &QUAKES.replace("sub.magnitude", "sub.magnitud"))
        .await;
    assert_eq!(status, 200, "{checked}");
    assert!(checked["problems"].to_string().contains("magnitud"), "{checked}");
    let (status, _) = answer(platform.request("DELETE", "/v1/applications/quakes?confirm=quakes")).await;
    assert_eq!(status, 204);
    assert_eq!(platform.get("/v1/applications/quakes").await.0, 404);
    assert_eq!(platform.get("/v1/applications/quakes/history").await.0, 200);
    platform.stop().await;
}

#[tokio::test]
async fn what_cannot_run_is_not_kept() {
    let platform = Platform::with_quakes().await;
    let put = async |text: &str| platform.put("/v1/applications/quakes", "application/yaml", text).await;
    let broken = QUAKES.replace("out.ndjson", TAKEN);
    let (status, refused) = put(&broken).await;
    assert_eq!((status.as_u16(), refused["problems"][0]["path"].as_str()), (422, Some("channels.mail.options.path")));
    let (_, present) = platform.get("/v1/applications/quakes").await;
    assert_eq!((&present["version"], &present["running"]), (&json!(1), &json!(true)), "{present}");
    let other = broken.replace("application: quakes", "application: others");
    let (status, _) = platform.put("/v1/applications/others", "application/yaml", &other).await;
    assert_eq!((status.as_u16(), platform.get("/v1/applications/others").await.0.as_u16()), (422, 404));

    // Changes that concern only the workers of a channel do not reopen it: a file has one writer.
    let opened = platform.opened.load(Ordering::Relaxed);
    let (status, applied) =
        put(&QUAKES.replace("protocol: file", "protocol: file\n    retry: []\n    lease: 1m")).await;
    assert_eq!(
        (status.as_u16(), &applied["version"], &applied["running"]),
        (200, &json!(2), &json!(true)),
        "{applied}"
    );
    assert_eq!(platform.opened.load(Ordering::Relaxed), opened);
    platform.stop().await;
}

#[tokio::test]
async fn conditions_are_kept() {
    let platform = Platform::with_quakes().await;
    let get = async |tags: &[&str]| {
        let request = tags.iter().fold(platform.request("GET", "/v1/subscribers/alice"), |request, tag| {
            request.header("if-none-match", *tag)
        });
        let response = request.send().await.expect("an answer");
        let tag = response.headers()["etag"].to_str().expect("text").to_owned();
        (response.status().as_u16(), tag, response.text().await.expect("a body").is_empty())
    };
    for (tags, status) in [
        (&["\"1\""][..], 304),
        (&["W/\"1\""], 304),
        (&["\"7\" , \"1\""], 304),
        (&["\"7\"", "\"1\""], 304),
        (&["*"], 304),
        (&["\"7\""], 200),
        (&["1"], 200),
    ] {
        assert_eq!(get(tags).await, (status, "\"1\"".to_owned(), status == 304), "{tags:?}");
    }
    // RFC 9110, 13.2.2: `If-Match` first, then `If-None-Match`; there is no modification date to compare with.
    for (headers, status) in [
        (&[("if-match", "\"1\"")][..], 200),
        (&[("if-match", "\"7\", \"1\"")], 200),
        (&[("if-match", "*")], 200),
        (&[("if-match", "\"7\"")], 412),
        (&[("if-match", "W/\"1\"")], 412),
        (&[("if-match", "\"7\""), ("if-none-match", "\"1\"")], 412),
        (&[("if-match", "\"1\""), ("if-none-match", "\"1\"")], 304),
        (&[("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT")], 200),
        (&[("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"), ("if-none-match", "\"7\"")], 200),
        (&[("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT")], 200),
    ] {
        for method in ["GET", "HEAD"] {
            let request = platform.request(method, "/v1/subscribers/alice");
            let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            let response = request.send().await.expect("an answer");
            assert_eq!(response.status(), status, "{method} {headers:?}");
            assert_eq!(response.headers().contains_key("etag"), status != 412, "{method} {headers:?}");
            assert_eq!(response.headers().contains_key("content-type"), status != 304, "{method} {headers:?}");
            let body = response.text().await.expect("a body");
            assert_eq!(body.contains("/problems/changed"), status == 412 && method == "GET", "{method} {headers:?}");
        }
    }
    let missing = platform.request("GET", "/v1/subscribers/nobody").header("if-match", "\"7\"");
    assert_eq!(answer(missing).await.0, 404, "only a successful response is subject to conditions");
    let untagged =
        async |value: &str| answer(platform.request("GET", "/v1/subscribers").header("if-match", value)).await.0;
    assert_eq!((untagged("*").await.as_u16(), untagged("\"1\"").await.as_u16()), (200, 412));
    let there = platform.request("PUT", "/v1/applications/others").header("content-type", "application/yaml");
    let text = QUAKES.replace("application: quakes", "application: others");
    assert_eq!(answer(there.header("if-match", "*").body(text)).await.0, 412);
    for id in [".", "..", "a/b"] {
        let (status, _) = platform.post("/v1/subscribers", JSON, &json!({"id": id}).to_string()).await;
        assert_eq!(status, 422, "{id}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn the_last_admin_key_stays() {
    let platform = Platform::start().await;
    let remove = async |id: &str| answer(platform.request("DELETE", &format!("/v1/keys/{id}"))).await;
    let make = async |scope: &str| {
        let body = json!({"description": "", "scopes": [scope]}).to_string();
        platform.post("/v1/keys", JSON, &body).await.1["id"].as_str().expect("an id").to_owned()
    };
    let first = platform.get("/v1/keys").await.1["items"][0]["id"].as_str().expect("an id").to_owned();
    let lesser = make("keys:write").await;
    let (status, refused) = remove(&first).await;
    assert_eq!((status.as_u16(), refused["type"].as_str()), (409, Some("/problems/last-admin-key")), "{refused}");
    assert_eq!(remove(&lesser).await.0, 204);
    let second = make("admin").await;
    assert_eq!(remove(&second).await.0, 204);
    make("admin").await;
    assert_eq!(remove(&first).await.0, 204);
    platform.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b15_patches_without_a_condition_never_fail_on_one() {
    let platform = Platform::with_quakes().await;
    let patch = |number: usize| {
        let body = serde_json::json!({ "attributes": { format!("a{number}"): number } }).to_string();
        let request = platform.request("PATCH", "/v1/subscribers/alice");
        request.header("content-type", "application/merge-patch+json").body(body).send()
    };
    let statuses = futures_util::future::join_all((0..60).map(patch)).await;
    for status in statuses {
        assert_eq!(status.expect("an answer").status(), 200);
    }
    let (_, alice) = platform.get("/v1/subscribers/alice").await;
    assert_eq!(alice["attributes"].as_object().map(serde_json::Map::len), Some(60), "{alice}");
    platform.stop().await;
}

#[tokio::test]
async fn b14_an_idempotency_key_is_honoured_or_refused() {
    let platform = Platform::with_quakes().await;
    let body = r#"{"application":"quakes","class":"strong","subscriber":"alice","values":{"magnitude":5}}"#;
    let request = platform.request("POST", "/v1/subscriptions").header("content-type", "application/json");
    let (status, problem) = answer(request.header("idempotency-key", "k-1").body(body)).await;
    assert_eq!(status, 400, "{problem}");
    assert!(problem["detail"].as_str().expect("a detail").contains("give `key` in the body"), "{problem}");
    let (_, listed) = platform.get("/v1/subscriptions").await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(0), "{listed}");
    platform.stop().await;
}

/// An application whose channel `post` sends mail.
const LETTERS: &str = "application: letters\nevents: { sale: { fields: { zip: string } } }\n\
    subscriptions: { near: { fields: { zip: string } } }\n\
    notifications: { told: { fields: { zip: string }, content: { templates: { base: { subject: '{{ zip }}' } } } } }\n\
    rules: { told: { on: sale, subscription: near, when: event.zip == sub.zip, notify: told } }\n\
    channels: { post: { protocol: smtp, options: { host: localhost, from: t@example.org } } }\n";

#[tokio::test]
async fn d_addresses_of_mail_devices_are_mailboxes() {
    let platform = Platform::with_quakes().await;
    let (status, body) = platform.put("/v1/applications/letters", "application/yaml", LETTERS).await;
    assert_eq!(status, 201, "{body}");
    let same = [
        "bob@example.org ",
        " bob@example.org",
        "Bob <bob@example.org>",
        "mailto:bob@example.org",
        "<bob@example.org>",
        "\tbob@example.org\n",
        "\u{a0}bob@example.org\u{200b}",
        "bob@example.org (Bob)",
        "\"bob\"@example.org",
        "bob@example.org.",
    ];
    let wrong =
        ["bob@", "bob", "@example.org", "bob@exa mple.org", "bob\u{ff20}example.org", "a@b.example, c@d.example", ""];
    for (number, text) in same.iter().chain(&wrong).enumerate() {
        let is_good = number < same.len();
        let device = json!({"channel": "post", "address": text});
        let check = |status: u16, address: &Json, body: &Json| {
            if is_good {
                assert!(status < 300 && address == "bob@example.org", "{text:?}: {status} {body}");
            } else {
                assert!(status == 422 && body.to_string().contains("address"), "{text:?}: {status} {body}");
            }
        };
        let id = format!("p{number}");
        let draft = json!({"id": id, "devices": {"home": device}}).to_string();
        let (status, body) = platform.post("/v1/subscribers", JSON, &draft).await;
        check(status.as_u16(), &body["devices"]["home"]["address"], &body);
        let (status, body) = platform.put("/v1/subscribers/alice/devices/post", JSON, &device.to_string()).await;
        check(status.as_u16(), &body["devices"]["post"]["address"], &body);
        let patch = json!({"devices": {"post": device}}).to_string();
        let request =
            platform.request("PATCH", "/v1/subscribers/alice").header("content-type", "application/merge-patch+json");
        let (status, body) = answer(request.body(patch)).await;
        check(status.as_u16(), &body["devices"]["post"]["address"], &body);
        let lines = format!("{}\n", json!({"id": format!("i{number}"), "devices": {"home": device}}));
        let import = platform.request("POST", "/v1/import/subscribers").header("content-type", "application/x-ndjson");
        let answered = import.body(lines).send().await.expect("it answers").text().await.expect("text");
        let (status, body) = platform.get(&format!("/v1/subscribers/i{number}")).await;
        assert_eq!(status == 200, is_good, "{text:?}: {answered}");
        if is_good {
            assert_eq!(body["devices"]["home"]["address"], "bob@example.org", "{text:?}");
        }
    }
    // The mailbox is found by every spelling.
    let (_, body) = platform.get("/v1/subscribers?address=BOB%40Example.org&limit=100").await;
    assert_eq!(body["items"].as_array().map(Vec::len), Some(2 * same.len() + 1), "{body}");
}

#[tokio::test]
async fn d_suppressions_hold_for_all_spellings_of_a_mailbox() {
    let platform = Platform::with_quakes().await;
    let (status, body) = platform.put("/v1/applications/letters", "application/yaml", LETTERS).await;
    assert_eq!(status, 201, "{body}");
    for (device, reported) in [
        ("a@müller.example", "a@xn--mller-kva.example"),
        ("b@xn--mller-kva.example", "b@müller.example"),
        ("i@example.org", "<i@example.org>"),
        ("s@straße.example", "s@XN--strae-oqa.example"),
        ("j@日本語.jp", "J@日本語。JP"),
        ("n@mu\u{308}ller.example", "n@müller.example"),
    ] {
        let report =
            json!({"reports": [{"kind": "bounce", "permanent": true, "protocol": "smtp", "address": reported}]});
        let (status, body) = platform.post("/v1/suppressions/reports", JSON, &report.to_string()).await;
        assert_eq!(status, 200, "{body}");
        let path: String = device.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let (status, body) = platform.get(&format!("/v1/suppressions/addresses/smtp/{path}")).await;
        assert_eq!(
            (status.as_u16(), body["cause"].as_str()),
            (200, Some("hard_bounce")),
            "{device} {reported}: {body}"
        );
    }
    let (status, body) = platform.put("/v1/suppressions/addresses/smtp/bob%40", JSON, "{}").await;
    assert_eq!(status, 422, "{body}");
}

#[tokio::test]
async fn b16_b17_what_cannot_be_sent_is_said_when_it_is_stored() {
    let platform = Platform::with_quakes().await;
    let device = r#"{"channel": "pager", "address": "4711"}"#;
    let (status, body) = platform.put("/v1/subscribers/alice/devices/pager", JSON, device).await;
    assert_eq!(status, 201, "{body}");
    let warnings = body["warnings"].as_array().expect("warnings");
    assert!(warnings.len() == 1 && warnings[0].as_str().is_some_and(|text| text.contains("`pager`")), "{body}");
    let (_, stored) = platform.get("/v1/subscribers/alice").await;
    assert!(stored.get("warnings").is_none(), "{stored}");
    // A response may be sent back unchanged.
    let (status, again) = platform.put("/v1/subscribers/alice", JSON, &body.to_string()).await;
    assert_eq!(status, 200, "{again}");

    let interest = |device: &str| {
        json!({"application": "quakes", "class": "strong", "subscriber": "alice", "device": device, "key": device,
            "values": {"magnitude": 5}})
        .to_string()
    };
    let (status, body) = platform.post("/v1/subscriptions", JSON, &interest("boat")).await;
    assert_eq!(status, 201, "{body}");
    assert!(body["warnings"][0].as_str().is_some_and(|text| text.contains("no device `boat`")), "{body}");
    let (_, body) = platform.post("/v1/subscriptions", JSON, &interest("mail")).await;
    assert!(body.get("warnings").is_none(), "{body}");
}

#[tokio::test]
async fn authors_have_the_description_of_their_key_also_after_its_removal() {
    let platform = Platform::start().await;
    let asked = json!({"description": "Ada, on duty", "scopes": ["admin"]}).to_string();
    let (status, made) = platform.post("/v1/keys", JSON, &asked).await;
    assert_eq!(status, 201, "{made}");
    let (id, key) = (made["id"].as_str().expect("an id"), made["key"].as_str().expect("a key"));
    let send = async |method: reqwest::Method, path: &str, kind: &str, body: String| {
        let request = platform.client.request(method, format!("{}{path}", platform.address)).bearer_auth(key);
        let (status, answer) = answer(request.header("content-type", kind).body(body)).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
    };
    send(reqwest::Method::PUT, "/v1/applications/quakes", "application/yaml", QUAKES.to_owned()).await;
    let switch = json!({"component": "role:match", "state": "paused", "reason": "test"}).to_string();
    send(reqwest::Method::POST, "/v1/switches/off", JSON, switch).await;
    let suppression = json!({"detail": "by phone"}).to_string();
    send(reqwest::Method::PUT, "/v1/suppressions/addresses/smtp/a@example.org", JSON, suppression).await;
    for _ in 0..2 {
        let (_, application) = platform.get("/v1/applications/quakes").await;
        assert_eq!((&application["author"], &application["author_name"]), (&made["id"], &made["description"]));
        let (_, list) = platform.get("/v1/applications").await;
        assert_eq!(list["items"][0]["author_name"], made["description"], "{list}");
        let (_, switches) = platform.get("/v1/switches").await;
        let switch = &switches["items"][0];
        assert_eq!((&switch["by"], &switch["by_name"]), (&made["id"], &made["description"]), "{switches}");
        let (_, status) = platform.get("/v1/status").await;
        assert_eq!(status["switches"][0]["by_name"], made["description"], "{status}");
        let (_, found) = platform.get("/v1/suppressions").await;
        let found = &found["items"][0];
        assert_eq!((&found["origin"], &found["origin_name"]), (&made["id"], &made["description"]), "{found}");
        let (_, attention) = platform.get("/v1/attention").await;
        assert!(attention.to_string().contains("role:match is paused by Ada, on duty"), "{attention}");
        if platform.get("/v1/keys").await.1["items"].as_array().is_some_and(|keys| keys.len() == 2) {
            platform.revoke(id).await;
        }
    }
    platform.stop().await;
}
