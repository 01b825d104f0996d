//! Services that accept one message for many recipients.

use std::collections::BTreeSet;

use super::*;
use crate::testing::multicast;

const PEOPLE: [&str; 5] = ["a@x.example", "b@x.example", "c\"@x.example", "d@x.example", "e@x.example"];

fn options(recipients: Value) -> Value {
    json!({
        "url": "http://1.1.1.1/send",
        "body": {"json": {"to": "{recipients}", "title": "{subject}"}},
        "recipients": recipients,
        "answers": [
            {"json": "/status", "is": ["gone"], "means": "gone"},
            {"json": "/status", "is": ["later"], "means": "retry", "reply": "/why"},
        ],
    })
}

/// Sends a message to five recipients; returns the results and the bodies of the requests, with their ids under `id`.
async fn send(answers: &'static [&'static str], recipients: Value) -> (Vec<String>, Vec<Value>) {
    let script = move |_, request: u32, _| match request {
        0 => Say(""),
        _ => {
            let answer = answers[(request as usize - 1).min(answers.len() - 1)];
            let (status, body) = answer.split_once(' ').unwrap_or((answer, ""));
            Said(format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
        }
    };
    let (open, far) = start_with(Arc::new(script), options(recipients), 1);
    let all = deliver_all(&*open, multicast(&PEOPLE)).await;
    assert_eq!(all.iter().map(|answer| &*answer.address).collect::<Vec<_>>(), PEOPLE);
    let heads = far.heads.lock();
    let bodies = heads.iter().map(|request| {
        let (head, body) = request.split_once("\r\n\r\n").expect("a request");
        let mut body: Value = serde_json::from_str(body).expect("JSON");
        body["id"] = head.lines().find_map(|line| line.strip_prefix("webhook-id: ")).expect("an id").into();
        body
    });
    (all.iter().map(|answer| show(&answer.disposition)).collect(), bodies.collect())
}

#[tokio::test(start_paused = true)]
async fn recipients_of_one_message_share_requests() {
    let (shown, bodies) = send(&["200"], json!({"most": 2})).await;
    assert_eq!(shown, ["delivered 200"; 5]);
    let to: Vec<&Value> = bodies.iter().map(|body| &body["to"]).collect();
    assert_eq!(to, [&json!(PEOPLE[..2]), &json!(PEOPLE[2..4]), &json!(PEOPLE[4..])]);
    assert_eq!(bodies[0]["title"], "Earthquake near Kobe");
    let ids: BTreeSet<&str> = bodies.iter().filter_map(|body| body["id"].as_str()).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.starts_with("n-7-0.test.")), "{ids:?}");
    let again = send(&["200"], json!({"most": 2})).await.1;
    assert_eq!(again, bodies, "equal recipients give equal bodies");
    let (shown, bodies) = send(&["200"], json!({"most": 1_000, "each": {"email": "{address}", "type": "to"}})).await;
    assert_eq!((shown.len(), bodies.len()), (5, 1));
    assert_eq!(bodies[0]["to"][2], json!({"email": "c\"@x.example", "type": "to"}));
}

#[tokio::test(start_paused = true)]
async fn messages_that_differ_do_not() {
    let (open, far) = start(|_, _, _| Say(OK), options(json!({"most": 10})), 1);
    assert_eq!(deliver(&*open, &PEOPLE).await, ["delivered 200"; 5]);
    assert_eq!(far.heads.lock().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn each_recipient_has_its_own_result() {
    let answer =
        r#"207 {"results": [{"status": "ok"}, {"status": "gone"}, {"status": "later", "why": "full"}, {}, 7]}"#;
    let expected = [
        "delivered 207",
        "refused Gone 207 {\"status\":\"gone\"}",
        "deferred Answer 207 full",
        "delivered 207",
        "delivered 207",
    ];
    let answers: &'static [&'static str] = Box::leak(Box::new([answer]));
    assert_eq!(send(answers, json!({"most": 9, "results": "/results"})).await.0, expected);
    // A result that is not listed separately is that of all.
    for (answer, expected) in [
        (r#"200 {"results": [{"status": "gone"}]}"#, "delivered 200"),
        (r#"200 {"result": 1}"#, "delivered 200"),
        ("200 not JSON", "delivered 200"),
        (r#"503 {"results": [1, 2, 3, 4, 5]}"#, "deferred Answer 503 {\"results\": [1, 2, 3, 4, 5]}"),
        (r#"200 {"status": "gone"}"#, "refused Gone 200 {\"status\": \"gone\"}"),
    ] {
        let answers: &'static [&'static str] = Box::leak(Box::new([answer]));
        assert_eq!(send(answers, json!({"most": 9, "results": "/results"})).await.0, [expected; 5], "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_result_lists_are_read_completely_and_invalid_ones_are_ignored() {
    let results = (0..5).map(|number| match number % 2 {
        0 => json!({"status": "ok", "pad": "x".repeat(30_000)}),
        _ => json!({"status": "gone", "pad": "x".repeat(30_000)}),
    });
    let long = format!("200 {}", json!({"results": results.collect::<Vec<_>>()}));
    let answers: &'static [&'static str] = Box::leak(Box::new([&*Box::leak(long.into_boxed_str())]));
    let shown = send(answers, json!({"most": 9, "results": "/results"})).await.0;
    let short: Vec<&str> = shown.iter().map(|shown| &shown[..12]).collect();
    assert_eq!(short, ["delivered 20", "refused Gone", "delivered 20", "refused Gone", "delivered 20"]);
    let script = |_, request: u32, _| match request {
        0 => Say(""),
        _ => Last("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"results\": ["),
    };
    let (open, _) = start_with(Arc::new(script), options(json!({"most": 9, "results": "/results"})), 1);
    let all = deliver_all(&*open, multicast(&PEOPLE)).await;
    let lost = "deferred Answer 200: the body decides what this response means, and it broke off or is too long";
    assert_eq!(all.iter().map(|answer| show(&answer.disposition)).collect::<Vec<_>>(), [lost; 5]);
}

#[test]
fn contradictory_recipient_options_are_refused() {
    let with = |key: &str, value: Value| {
        let mut options = options(json!({"most": 10}));
        options[key] = value;
        options
    };
    for (options, path, what) in [
        (options(json!({"most": 0})), "recipients.most", "should be from 1 to 10000"),
        (options(json!({"most": 2, "results": "x"})), "recipients.results", "a place in JSON starts with `/`"),
        (
            options(json!({"most": 2, "each": "{recipients}"})),
            "recipients.each",
            "needs the placeholder of one recipient, not `{recipients}`",
        ),
        (options(json!({"most": 2, "each": ["{adress}"]})), "recipients.each[0]", "`adress` fills no place"),
        (with("url", Value::Null), "recipients", "each device has a URL of its own"),
        (with("url", json!("http://1.1.1.1/{address}")), "url", "`{address}` is that of one of many recipients"),
        (with("headers", json!({"x-to": "{address}"})), "headers.x-to", "`{address}` is that of one of many"),
        (with("body", json!({"text": "x"})), "recipients", "the request does not say who they are"),
        (with("body", json!({"json": {"to": "all"}})), "body.json", "the request does not say who its recipients are"),
        (
            with("body", json!({"json": ["{recipients}", "{address}"]})),
            "body.json",
            "`{address}` is that of one of many",
        ),
        (with("body", json!({"json": "to {recipients}"})), "body.json", "`{recipients}` is a list"),
        (with("recipients", Value::Null), "body.json", "`{recipients}` is a list of how many?"),
    ] {
        let problems = read::<HttpOptions>(options.as_object().expect("an object"), "").err().unwrap_or_default();
        let found = problems.iter().any(|problem| problem.path == path && problem.message.starts_with(what));
        assert!(found, "{path}: {problems:?}");
    }
}
