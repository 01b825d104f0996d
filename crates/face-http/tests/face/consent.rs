//! Double opt-in: requests of a sign-up form, confirmation by link and code, withdrawal, evidence.

use reqwest::StatusCode;
use serde_json::{Value as Json, json};
use tocsin_delivery::{ConfirmLink, TokenSigner};
use tocsin_model::id::SubscriptionId;

use crate::platform::{Platform, answer};

const LETTERS: &str = "
application: letters
events:
  issue: {fields: {title: {type: string, required: true}}}
subscriptions:
  weekly:
    fields: {topic: string}
    consent: {text: 'I agree to <weekly> mails.', version: '2026-11', attempts: 3, skip: [import, api]}
  strict: {consent: {mode: double_opt_in, skip: []}}
  open: {}
notifications:
  mail: {content: {templates: {base: {text: x}}}}
rules:
  issued: {on: issue, subscription: weekly, notify: mail}
channels:
  email: {protocol: file, options: {path: out.ndjson}}
";

async fn letters() -> Platform {
    let platform = Platform::start().await;
    let (status, body) = platform.put("/v1/applications/letters", "application/yaml", LETTERS).await;
    assert_eq!(status, 201, "{body}");
    platform
}

fn form(address: &str) -> Json {
    json!({"application": "letters", "class": "weekly", "channel": "email", "address": address, "remote": "192.0.2.9",
        "values": {"topic": "rust"}})
}

async fn request(platform: &Platform, key: &str, form: &Json) -> (StatusCode, Json) {
    let path = format!("{}/v1/consent/requests", platform.address);
    answer(platform.client.post(path).bearer_auth(key).json(form)).await
}

async fn post(platform: &Platform, path: &str, body: &Json) -> (StatusCode, Json) {
    platform.post(path, "application/json", &body.to_string()).await
}

/// Sends a request without a key, as a browser does; returns status and page.
async fn browse(platform: &Platform, method: &str, path: &str) -> (u16, String) {
    let method = method.parse().expect("a method");
    let response = platform.client.request(method, format!("{}{path}", platform.address)).send().await;
    let response = response.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("text"))
}

async fn state(platform: &Platform, id: u64) -> (Json, bool) {
    let (status, body) = platform.get(&format!("/v1/subscriptions/s-{id}")).await;
    assert_eq!(status, 200, "{body}");
    (body["consent"]["state"].clone(), body["enabled"] == json!(true))
}

fn link(id: u64) -> ConfirmLink {
    ConfirmLink { subscription: SubscriptionId(id), request: 1 }
}

#[tokio::test]
async fn a_link_confirms_by_its_button_only() {
    let platform = letters().await;
    let (status, receipt) = request(&platform, &platform.key, &form("ann@example.org")).await;
    assert_eq!(status, 202, "{receipt}");
    let signer = TokenSigner::new(&platform.secret);
    let path = format!("/confirm/{}", signer.consent().link(link(1)));
    // As mail scanners and previews do.
    for method in ["GET", "HEAD", "OPTIONS", "GET"] {
        let (status, page) = browse(&platform, method, &path).await;
        assert!(method != "GET" || status == 200 && page.contains("<form method=\"post\">"), "{status}: {page}");
        assert!(method != "GET" || page.contains("I agree to &lt;weekly&gt; mails."), "{page}");
    }
    assert_eq!(state(&platform, 1).await, (json!("pending"), false));
    for wrong in [
        "/confirm/1-1-AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
        format!("/confirm/{}", TokenSigner::new(&[1; 32]).consent().link(link(1))),
        format!("/confirm/{}", signer.consent().link(link(2))),
        format!("/confirm/{}", receipt["request"].as_str().expect("a handle")),
        path[..path.len() - 1].to_owned(),
    ] {
        for method in ["GET", "POST"] {
            assert_eq!(browse(&platform, method, &wrong).await.0, 404, "{method} {wrong}");
        }
    }
    assert_eq!(state(&platform, 1).await, (json!("pending"), false));
    for _ in 0..2 {
        let (status, page) = browse(&platform, "POST", &path).await;
        assert!(status == 200 && page.contains("Subscription confirmed"), "{status}: {page}");
    }
    assert_eq!(state(&platform, 1).await, (json!("confirmed"), true));
    let (_, found) = platform.get("/v1/subscriptions/s-1/consent").await;
    let evidence = found["evidence"].as_array().expect("a list");
    let acts: Vec<&str> = evidence.iter().filter_map(|record| record["act"].as_str()).collect();
    assert_eq!(acts, ["requested", "confirmed"], "{found}");
    for (name, requested, confirmed) in [
        ("way", "api", "link"),
        ("by", "subscriber", "subscriber"),
        ("address", "ann@example.org", "ann@example.org"),
        ("text", "I agree to <weekly> mails.", "I agree to <weekly> mails."),
        ("version", "2026-11", "2026-11"),
        ("remote", "192.0.2.9", "127.0.0.1"),
    ] {
        assert_eq!((&evidence[0][name], &evidence[1][name]), (&json!(requested), &json!(confirmed)), "{name}");
    }
    // The address is confirmed with it.
    let subscriber = evidence[0]["subscriber"].as_str().expect("an id").to_owned();
    let (_, found) = platform.get(&format!("/v1/subscribers/{subscriber}")).await;
    assert_eq!(found["devices"]["email"]["state"], "active", "{found}");
    let (_, found) = platform.get(&format!("/v1/subscribers/{subscriber}/consent?limit=1")).await;
    assert_eq!((found["items"][0]["act"].as_str(), found["next"].is_string()), (Some("requested"), true), "{found}");
    // A withdrawal makes the link void.
    let (status, found) = post(&platform, "/v1/subscriptions/s-1/consent/withdraw", &json!({"proof": "phone"})).await;
    assert_eq!((status.as_u16(), &found["state"]), (200, &json!("withdrawn")), "{found}");
    let (status, page) = browse(&platform, "POST", &path).await;
    assert!(status == 200 && page.contains("no longer valid"), "{status}: {page}");
    assert_eq!(state(&platform, 1).await, (json!("withdrawn"), false));
}

#[tokio::test]
async fn a_person_who_unsubscribes_stays_so_when_an_operator_enables_the_subscription_again() {
    let platform = letters().await;
    request(&platform, &platform.key, &form("ann@example.org")).await;
    let signer = TokenSigner::new(&platform.secret);
    let confirm = format!("/confirm/{}", signer.consent().link(link(1)));
    assert_eq!(browse(&platform, "POST", &confirm).await.0, 200);
    let switch = async |enabled: bool| {
        let patch =
            platform.request("PATCH", "/v1/subscriptions/s-1").header("content-type", "application/merge-patch+json");
        answer(patch.body(json!({ "enabled": enabled }).to_string())).await.0
    };
    assert_eq!(switch(false).await, 200);
    assert_eq!(state(&platform, 1).await, (json!("confirmed"), false));
    let leave = format!("/unsubscribe/{}", signer.token(SubscriptionId(1)));
    assert_eq!(browse(&platform, "POST", &leave).await.0, 200);
    assert_eq!(switch(true).await, 422);
    assert_eq!(state(&platform, 1).await, (json!("withdrawn"), false));
    let (_, found) = platform.get("/v1/subscriptions/s-1/consent").await;
    let last = found["evidence"].as_array().and_then(|all| all.last()).expect("evidence");
    assert_eq!(
        (&last["act"], &last["way"], &last["address"]),
        (&json!("withdrawn"), &json!("link"), &json!("ann@example.org"))
    );
}

#[tokio::test]
async fn strangers_do_not_learn_who_is_subscribed() {
    let platform = letters().await;
    let (_, key) = platform.make_key(&["consent:request"]).await;
    let signer = TokenSigner::new(&platform.secret);
    let (_, confirmed) = request(&platform, &key, &form("bob@example.org")).await;
    let code = json!({"request": confirmed["request"], "code": signer.consent().code(link(1))});
    let confirm = async |code: &Json| {
        let path = format!("{}/v1/consent/confirmations", platform.address);
        answer(platform.client.post(path).bearer_auth(&key).json(code)).await
    };
    assert_eq!(confirm(&code).await, (StatusCode::NO_CONTENT, Json::Null));
    assert_eq!(state(&platform, 1).await, (json!("confirmed"), true));
    let mut answers = Vec::new();
    // One who is subscribed, one who is not, one who was asked already.
    for address in ["bob@example.org", "eve@example.org", "eve@example.org"] {
        let mut other = form(address);
        other["values"] = json!({"topic": "spam"});
        let (status, receipt) = request(&platform, &key, &other).await;
        let handle = receipt["request"].as_str().expect("a handle").to_owned();
        let wrong = json!({"request": &handle, "code": "000000"});
        let mut refused = Vec::new();
        for _ in 0..5 {
            let (status, mut problem) = confirm(&wrong).await;
            problem.as_object_mut().expect("an object").remove("instance");
            refused.push((status, problem["problems"].clone()));
        }
        let path = format!("{}/v1/consent/resends", platform.address);
        let resend = platform.client.post(path).bearer_auth(&key).json(&json!({"request": &handle}));
        answers.push((status, handle.len(), receipt["expires_after_seconds"].clone(), refused, answer(resend).await));
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
    assert_eq!(answers[0].3[0].0, 422);
    let (_, found) = platform.get("/v1/subscriptions/s-1").await;
    assert_eq!(found["values"]["topic"], "rust", "a stranger changes nothing: {found}");
    // The right code is void after too many wrong ones.
    let (_, found) = request(&platform, &key, &form("eve@example.org")).await;
    let right = json!({"request": found["request"], "code": signer.consent().code(link(2))});
    assert_eq!(confirm(&right).await.0, 422);
    assert_eq!(state(&platform, 2).await, (json!("pending"), false));
    let (_, found) = platform.get("/v1/subscriptions?limit=10").await;
    assert_eq!(found["items"].as_array().map(Vec::len), Some(2), "{found}");
}

#[tokio::test]
async fn a_key_of_a_form_may_request_and_confirm_only() {
    let platform = letters().await;
    let (_, key) = platform.make_key(&["consent:request"]).await;
    let alice = r#"{"id":"alice","devices":{"email":{"channel":"email","address":"alice@example.org"}}}"#;
    platform.post("/v1/subscribers", "application/json", alice).await;
    let with = |name: &str, value: &str| {
        let mut form = form("mallory@example.org");
        form[name] = json!(value);
        form
    };
    // One error for an address of others, an unknown subscriber, and a known one without an address.
    let mut errors = Vec::new();
    for (id, address) in [("alice", json!("mallory@example.org")), ("zoe", json!("alice@example.org"))] {
        let named = json!({"application": "letters", "class": "weekly", "subscriber": id, "channel": "email",
            "address": address});
        let unnamed = json!({"application": "letters", "class": "weekly", "subscriber": id});
        for form in [named, unnamed] {
            let (status, body) = request(&platform, &key, &form).await;
            assert_eq!((status.as_u16(), &body["problems"][0]["code"]), (422, &json!("not_permitted")), "{body}");
            errors.push(body["problems"].to_string().replace(id, "ID"));
        }
    }
    errors.dedup();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let long = "x".repeat(5_000);
    let (status, body) = request(&platform, &key, &with("text", &long)).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["code"]), (422, &json!("too_long")), "{body}");
    assert_eq!(request(&platform, &key, &with("code", "12345")).await.0, 403);
    for (name, value, code) in [
        ("class", "open", "not_applicable"),
        ("class", "none", "unknown_reference"),
        ("channel", "pigeon", "unknown_reference"),
        ("locale", "!", "invalid_format"),
    ] {
        let mut form = with(name, value);
        form["values"] = json!({});
        let (status, body) = request(&platform, &key, &form).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["code"]), (422, &json!(code)), "{name}: {body}");
    }
    let own = json!({"application": "letters", "class": "weekly", "subscriber": "alice", "channel": "email",
        "address": "Alice@Example.org"});
    let (status, body) = request(&platform, &key, &own).await;
    assert_eq!(status, 202, "{body}");
    for path in ["/v1/subscriptions/s-1", "/v1/subscriptions/s-1/consent", "/v1/subscribers/alice/consent"] {
        let found = platform.client.get(format!("{}{path}", platform.address)).bearer_auth(&key);
        assert_eq!(answer(found).await.0, 403, "{path}");
    }
    let (_, limited) = platform.make_key(&["events:write"]).await;
    assert_eq!(request(&platform, &limited, &own).await.0, 403);
}

#[tokio::test]
async fn a_subscription_of_the_api_is_pending_unless_it_has_a_proof() {
    let platform = letters().await;
    let (_, writer) = platform.make_key(&["subscribers:write", "subscribers:read"]).await;
    let alice = r#"{"id":"alice","devices":{"email":{"channel":"email","address":"alice@example.org"}}}"#;
    platform.post("/v1/subscribers", "application/json", alice).await;
    let subscription = |class: &str, key: &str, consent: Json| {
        let mut body = json!({"application": "letters", "class": class, "subscriber": "alice", "key": key});
        if !consent.is_null() {
            body["consent"] = consent;
        }
        body
    };
    let (status, body) = post(&platform, "/v1/subscriptions", &subscription("weekly", "a", Json::Null)).await;
    assert_eq!((status.as_u16(), &body["consent"]["state"]), (201, &json!("pending")), "{body}");
    assert_eq!(body["enabled"], false, "{body}");
    let patch =
        platform.request("PATCH", "/v1/subscriptions/s-1").header("content-type", "application/merge-patch+json");
    let (status, body) = answer(patch.body(r#"{"enabled": true}"#)).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["code"]), (422, &json!("consent_required")), "{body}");
    let patch =
        platform.request("PATCH", "/v1/subscriptions/s-1").header("content-type", "application/merge-patch+json");
    let (status, body) = answer(patch.body(r#"{"values": {"topic": "go"}}"#)).await;
    assert_eq!((status.as_u16(), &body["consent"]["state"]), (200, &json!("pending")), "{body}");

    let proof = json!({"state": "confirmed", "proof": "paper form 7", "at": "2026-01-02T03:04:05Z"});
    for (class, consent, path) in [
        ("weekly", json!({"state": "confirmed"}), "consent.proof"),
        ("strict", proof.clone(), "consent.state"),
        ("open", proof.clone(), "consent"),
    ] {
        let (status, body) = post(&platform, "/v1/subscriptions", &subscription(class, "b", consent)).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!(path)), "{body}");
    }
    let by_writer = platform.client.post(format!("{}/v1/subscriptions", platform.address)).bearer_auth(&writer);
    let (status, body) = answer(by_writer.json(&subscription("weekly", "b", proof.clone()))).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("consent.state")), "{body}");
    let (status, body) = post(&platform, "/v1/subscriptions", &subscription("weekly", "b", proof)).await;
    assert_eq!(
        (status.as_u16(), &body["consent"]["state"], &body["enabled"]),
        (201, &json!("confirmed"), &json!(true))
    );
    let (_, found) = platform.get("/v1/subscriptions/s-2/consent").await;
    assert_eq!(found["evidence"][0]["proof"], "paper form 7", "{found}");
    assert_eq!(found["evidence"][0]["at"], "2026-01-02T03:04:05Z", "{found}");

    let (status, body) = post(&platform, "/v1/subscriptions/s-1/consent/request", &json!({})).await;
    assert_eq!(status, 429, "{body}");
    let (status, body) = post(&platform, "/v1/subscriptions/s-1/consent/confirm", &json!({})).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["code"]), (422, &json!("consent_required")), "{body}");
    let code = TokenSigner::new(&platform.secret).consent().code(link(1));
    let (status, body) = post(&platform, "/v1/subscriptions/s-1/consent/confirm", &json!({"code": code})).await;
    assert_eq!((status.as_u16(), &body["state"]), (200, &json!("confirmed")), "{body}");
    let (status, body) = post(&platform, "/v1/subscriptions/s-9/consent/withdraw", &json!({})).await;
    assert_eq!(status, 404, "{body}");
}

#[tokio::test]
async fn an_import_keeps_consents_with_their_proof() {
    let platform = letters().await;
    let alice = r#"{"id":"alice","devices":{"email":{"channel":"email","address":"alice@example.org"}}}"#;
    platform.post("/v1/subscribers", "application/json", alice).await;
    let lines = [
        r#"{"application":"letters","class":"weekly","subscriber":"alice","key":"a","consent":{"state":"confirmed","proof":"list of 2019"}}"#,
        r#"{"application":"letters","class":"weekly","subscriber":"alice","key":"b","consent":{"state":"confirmed"}}"#,
        r#"{"application":"letters","class":"weekly","subscriber":"alice","key":"c"}"#,
        r#"{"application":"letters","class":"open","subscriber":"alice","key":"d"}"#,
        r#"{"application":"letters","class":"weekly","subscriber":"alice","key":"e","consent":{"state":"withdrawn"}}"#,
        r#"{"application":"letters","class":"weekly","subscriber":"alice","key":"f","revision":3,"consent":{"state":"confirmed"}}"#,
    ];
    let (status, body) = platform.post("/v1/import/subscriptions", "application/x-ndjson", &lines.join("\n")).await;
    let text = body.as_str().expect("lines");
    assert!(status == 200 && text.contains(r#""stored":5,"failed":1"#) && text.contains("consent.proof"), "{text}");
    let (_, found) = platform.get("/v1/subscriptions?limit=10").await;
    let mut states: Vec<String> = found["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| format!("{} {} {}", item["key"], item["consent"]["state"], item["enabled"]))
        .collect();
    states.sort();
    assert_eq!(
        states,
        [
            r#""a" "confirmed" true"#,
            r#""c" "pending" false"#,
            r#""d" null true"#,
            r#""e" "withdrawn" false"#,
            r#""f" "confirmed" true"#
        ]
    );
}

#[tokio::test]
async fn csv_has_columns_for_consents_and_exports_have_their_state() {
    let platform = letters().await;
    let alice = r#"{"id":"alice","devices":{"email":{"channel":"email","address":"alice@example.org"}}}"#;
    platform.post("/v1/subscribers", "application/json", alice).await;
    let lines = [
        "subscriber,key,consent.state,consent.proof,consent.at,consent.version,consent.remote",
        "alice,a,confirmed,list of 2019 line 17,2019-05-01T00:00:00Z,2018-01,192.0.2.7",
        "alice,b,confirmed,,,,",
        "alice,c,,,,,",
        "alice,d,agreed,call,,,",
        "alice,e,,call,,,",
        "alice,f,confirmed,call,yesterday,,",
        "alice,g,withdrawn,,,,",
    ];
    let path = "/v1/import/subscriptions?application=letters&class=weekly";
    let (status, body) = platform.post(path, "text/csv", &lines.join("\n")).await;
    let lines = body.as_str().expect("lines").lines().filter(|line| !line.is_empty());
    let answers: Vec<Json> = lines.map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let refused: Vec<String> = answers
        .iter()
        .filter_map(|answer| Some((answer["line"].as_u64()?, answer["error"]["problems"].as_array()?)))
        .flat_map(|(line, problems)| problems.iter().map(move |problem| format!("{line} {}", problem["path"])))
        .collect();
    assert_eq!(status, 200, "{body}");
    let expected = [r#"3 "consent.proof""#, r#"5 "consent.state""#, r#"6 "consent.state""#, r#"7 "consent.at""#];
    assert_eq!(refused.iter().collect::<std::collections::BTreeSet<_>>(), expected.map(str::to_owned).iter().collect());
    let (_, shown) = platform.get("/v1/subscriptions/s-1/consent").await;
    let evidence = &shown["evidence"][0];
    let found = ["way", "proof", "at", "version", "remote"].map(|part| evidence[part].as_str().unwrap_or_default());
    assert_eq!(found, ["import", "list of 2019 line 17", "2019-05-01T00:00:00Z", "2018-01", "192.0.2.7"]);

    // What is exported can be imported: the states stay.
    let (_, exported) = platform.get("/v1/export/subscriptions?format=csv&application=letters&class=weekly").await;
    let exported = exported.as_str().expect("text").to_owned();
    assert!(exported.lines().next().expect("a header").contains(",consent.state,"), "{exported}");
    let (_, again) = platform.post("/v1/import/subscriptions", "text/csv", &exported).await;
    assert_eq!((&again["stored"], &again["failed"]), (&json!(3), &json!(0)), "{again}");
    let (_, list) = platform.get("/v1/subscriptions?limit=10").await;
    let mut states: Vec<String> = list["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|item| format!("{} {}", item["key"], item["consent"]["state"]))
        .collect();
    states.sort();
    assert_eq!(states, [r#""a" "confirmed""#, r#""c" "pending""#, r#""g" "withdrawn""#]);
}
