//! Tests of each recipe against a server that answers as the service documents.

use super::*;
use crate::http::{
    options::{HttpOptions, RequestMethod},
    recipes,
};

/// Compares the request to a service, and the result of one message for each of its answers.
async fn check(options: Value, address: &str, expected_request: &str, answers: &[(&str, &str)]) {
    for (answer, expected) in answers {
        let (status, body) = answer.split_once(' ').unwrap_or((answer, ""));
        let length = body.len();
        let response = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {length}\r\n\r\n{body}");
        let (open, far) = start_with(Arc::new(move |_, _, _| Said(response.clone())), options.clone(), 1);
        assert_eq!(deliver(&*open, &[address]).await, [*expected], "{answer}");
        let heads = far.heads.lock();
        // Only the header fields that are specific to the service.
        let (head, body) = heads[0].split_once("\r\n\r\n").expect("a request");
        let kept = head.lines().filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            line.starts_with("POST") || ["content-type", "authorization", "accept"].contains(&name)
        });
        let mut shown: Vec<&str> = kept.collect();
        shown[1..].sort_unstable();
        let (expected_head, expected_body) = expected_request.rsplit_once('\n').expect("a head and a body");
        assert_eq!(shown.join("\n"), expected_head);
        match serde_json::from_str::<Value>(expected_body) {
            Ok(json) => assert_eq!(serde_json::from_str::<Value>(body).expect("JSON"), json),
            Err(_) => assert_eq!(body, expected_body),
        }
    }
}

#[test]
fn every_recipe_is_tested_here() {
    assert_eq!(recipes::names(), ["twilio", "vonage", "slack", "slack_bot", "teams", "discord", "telegram", "apprise"]);
}

#[test]
fn options_override_those_of_a_recipe() {
    let given = json!({"recipe": "slack", "url": "http://1.1.1.1", "method": "PUT"});
    let options: HttpOptions = serde_json::from_value(given).expect("options");
    let options = recipes::complete(&options).expect("it is applied");
    assert_eq!((options.url.as_deref(), options.method), (Some("http://1.1.1.1"), RequestMethod::Put));
}

#[tokio::test(start_paused = true)]
async fn twilio() {
    check(
        json!({"recipe": "twilio", "with": {"account": "AC1", "token": "t", "from": "+15005550006", "server": "http://1.1.1.1"}}),
        "+43 660 1",
        "POST /2010-04-01/Accounts/AC1/Messages.json HTTP/1.1\nauthorization: Basic QUMxOnQ=\n\
         content-type: application/x-www-form-urlencoded\n\
         Body=Magnitude+6.1%0A.%0AStay+safe+%E2%80%93+%E7%A5%9E%E6%88%B8&From=%2B15005550006&To=%2B43+660+1",
        &[
            (r#"201 {"sid": "SM1", "status": "queued", "error_code": null}"#, "delivered 201 SM1"),
            (r#"201 {"sid": "SM1", "status": "failed", "error_message": "no route"}"#, "refused Answer 201 no route"),
            (r#"400 {"code": 21211, "message": "The 'To' number +43 is not a valid phone number.", "status": 400}"#,
             "refused Gone 400 The 'To' number +43 is not a valid phone number."),
            (r#"400 {"code": 21610, "message": "Attempt to send to unsubscribed recipient", "status": 400}"#,
             "refused Gone 400 Attempt to send to unsubscribed recipient"),
            (r#"400 {"code": 21602, "message": "Message body is required."}"#, "refused Answer 400 Message body is required."),
            (r#"401 {"code": 20003, "message": "Authenticate"}"#, "deferred Authentication 401 Authenticate"),
            (r#"429 {"code": 20429, "message": "Too Many Requests"}"#, "deferred Answer 429 Too Many Requests"),
            ("503 later", "deferred Answer 503 later"),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn vonage() {
    check(
        json!({"recipe": "vonage", "with": {"key": "k", "secret": "s&", "from": "Tocsin", "server": "http://1.1.1.1"}}),
        "436601",
        "POST /sms/json HTTP/1.1\ncontent-type: application/x-www-form-urlencoded\n\
         api_key=k&api_secret=s%26&client-ref=n-7-0.test&from=Tocsin&\
         text=Magnitude+6.1%0A.%0AStay+safe+%E2%80%93+%E7%A5%9E%E6%88%B8&to=436601&type=unicode",
        &[
            (
                r#"200 {"message-count": "1", "messages": [{"to": "436601", "message-id": "0A1", "status": "0"}]}"#,
                "delivered 200 0A1",
            ),
            (
                r#"200 {"messages": [{"status": "1", "error-text": "Throughput Rate Exceeded"}]}"#,
                "deferred Answer 200 Throughput Rate Exceeded",
            ),
            (
                r#"200 {"messages": [{"status": "4", "error-text": "Bad Credentials"}]}"#,
                "deferred Authentication 200 Bad Credentials",
            ),
            (
                r#"200 {"messages": [{"status": "5", "error-text": "Internal Error"}]}"#,
                "deferred Answer 200 Internal Error",
            ),
            (
                r#"200 {"messages": [{"status": "7", "error-text": "Number Barred"}]}"#,
                "refused Answer 200 Number Barred",
            ),
            ("200 what", "deferred Answer 200 what"),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn slack_webhook_and_bot() {
    let body = r#""text":"Magnitude 6.1\n.\nStay safe – 神戸"}"#;
    check(
        json!({"recipe": "slack"}),
        "http://1.1.1.1/services/T0/B0/x",
        &format!("POST /services/T0/B0/x HTTP/1.1\ncontent-type: application/json\n{{{body}"),
        &[
            ("200 ok", "delivered 200"),
            ("400 invalid_payload", "refused Answer 400 invalid_payload"),
            ("403 action_prohibited", "refused Answer 403 action_prohibited"),
            ("404 no_service", "refused Gone 404 no_service"),
            ("410 channel_is_archived", "refused Gone 410 channel_is_archived"),
            ("429 rate_limited", "deferred Answer 429 rate_limited"),
        ],
    )
    .await;
    check(
        json!({"recipe": "slack_bot", "with": {"token": "xoxb-1", "server": "http://1.1.1.1"}}),
        "C012",
        &format!("POST /api/chat.postMessage HTTP/1.1\nauthorization: Bearer xoxb-1\ncontent-type: application/json\n{{\"channel\":\"C012\",{body}"),
        &[
            (r#"200 {"ok": true, "channel": "C012", "ts": "1503435956.000247"}"#, "delivered 200 1503435956.000247"),
            (r#"200 {"ok": false, "error": "channel_not_found"}"#, "refused Gone 200 channel_not_found"),
            (r#"200 {"ok": false, "error": "invalid_auth"}"#, "deferred Authentication 200 invalid_auth"),
            (r#"429 {"ok": false, "error": "ratelimited"}"#, "deferred Answer 429 ratelimited"),
            (r#"200 {"ok": false, "error": "msg_too_long"}"#, "refused Answer 200 msg_too_long"),
            (r#"200 {"ok": false, "error": "fatal_error"}"#, "deferred Answer 200 fatal_error"),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn teams() {
    check(
        json!({"recipe": "teams"}),
        "http://1.1.1.1/workflows/1?sig=s",
        "POST /workflows/1?sig=s HTTP/1.1\ncontent-type: application/json\n\
         {\"attachments\":[{\"content\":{\"$schema\":\"http://adaptivecards.io/schemas/adaptive-card.json\",\"body\":[\
         {\"text\":\"Earthquake near Kobe\",\"type\":\"TextBlock\",\"weight\":\"Bolder\",\"wrap\":true},\
         {\"text\":\"Magnitude 6.1\\n.\\nStay safe – 神戸\",\"type\":\"TextBlock\",\"wrap\":true}],\
         \"type\":\"AdaptiveCard\",\"version\":\"1.4\"},\"contentType\":\"application/vnd.microsoft.card.adaptive\",\
         \"contentUrl\":null}],\"type\":\"message\"}",
        &[
            ("202", "delivered 202"),
            ("200 1", "delivered 200"),
            ("200 Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 429 with ContextId x",
             "deferred Answer 200 Webhook message delivery failed with error: Microsoft Teams endpoint returned HTTP error 429 with ContextId x"),
            ("413 too large", "refused Answer 413 too large"),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn discord() {
    check(
        json!({"recipe": "discord"}),
        "http://1.1.1.1/api/webhooks/1/t",
        "POST /api/webhooks/1/t HTTP/1.1\ncontent-type: application/json\n\
         {\"allowed_mentions\":{\"parse\":[]},\"content\":\"Magnitude 6.1\\n.\\nStay safe – 神戸\"}",
        &[
            ("204", "delivered 204"),
            (r#"404 {"message": "Unknown Webhook", "code": 10015}"#, "refused Gone 404 Unknown Webhook"),
            (
                r#"400 {"message": "Cannot send an empty message", "code": 50006}"#,
                "refused Answer 400 Cannot send an empty message",
            ),
            (
                r#"429 {"message": "You are being rate limited.", "retry_after": 64.57, "global": false}"#,
                "deferred Answer 429 You are being rate limited.",
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn telegram() {
    check(
        json!({"recipe": "telegram", "with": {"token": "110201543:AAH", "server": "http://1.1.1.1"}}),
        "-100123",
        "POST /bot110201543:AAH/sendMessage HTTP/1.1\ncontent-type: application/json\n\
         {\"chat_id\":\"-100123\",\"text\":\"Magnitude 6.1\\n.\\nStay safe – 神戸\"}",
        &[
            (r#"200 {"ok": true, "result": {"message_id": 365}}"#, "delivered 200 365"),
            (r#"400 {"ok": false, "error_code": 400, "description": "Bad Request: chat not found"}"#, "refused Gone 400 Bad Request: chat not found"),
            (r#"400 {"ok": false, "error_code": 400, "description": "Bad Request: message text is empty"}"#, "refused Answer 400 Bad Request: message text is empty"),
            (r#"401 {"ok": false, "error_code": 401, "description": "Unauthorized"}"#, "deferred Authentication 401 Unauthorized"),
            (r#"403 {"ok": false, "error_code": 403, "description": "Forbidden: bot was blocked by the user"}"#,
             "refused Gone 403 Forbidden: bot was blocked by the user"),
            (r#"429 {"ok": false, "description": "Too Many Requests: retry after 35", "parameters": {"retry_after": 35}}"#,
             "deferred Answer 429 Too Many Requests: retry after 35"),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn apprise() {
    check(
        json!({"recipe": "apprise", "with": {"server": "http://1.1.1.1:8000"}}),
        "matrix://token@host/#room",
        "POST /notify HTTP/1.1\naccept: application/json\ncontent-type: application/json\n\
         {\"body\":\"Magnitude 6.1\\n.\\nStay safe – 神戸\",\"format\":\"text\",\"title\":\"Earthquake near Kobe\",\
         \"type\":\"info\",\"urls\":\"matrix://token@host/#room\"}",
        &[
            (r#"200 {"error": null}"#, "delivered 200"),
            ("204", "refused Answer 204"),
            (r#"400 {"error": "Bad request"}"#, "refused Answer 400 Bad request"),
            (
                r#"424 {"error": "One or more notification could not be sent."}"#,
                "deferred Answer 424 One or more notification could not be sent.",
            ),
            ("500 oops", "deferred Answer 500 oops"),
        ],
    )
    .await;
}

#[test]
fn missing_recipe_parameters_are_reported() {
    let shown = |options: Value| {
        let problems = crate::check(&"http".parse().expect("a name"), options.as_object().expect("an object"), "o");
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(shown(json!({"recipe": "telegrm"})), "o.recipe: `telegrm` is not a recipe; did you mean `telegram`?");
    assert_eq!(
        shown(json!({"recipe": "twilio", "with": {"acount": "x", "token": "t"}})),
        "o.with.acount: `twilio` does not ask for this; it asks for account, token, from, server\n\
         o.with.account: `twilio` needs it\no.with.from: `twilio` needs it"
    );
    assert_eq!(
        shown(json!({"url": "https://{address}.example/", "body": {"json": {"a": ["{txt}"]}}, "username": "me",
                     "answers": [{"status": "6xx", "json": "status", "is": ["1"]}], "key_file": "/k"})),
        "o.body.json.a[0]: `txt` fills no place; these do: `address`, `subject`, `text`, `sms`, `html`, `json`, `message_id`, \
         `class`, `application`, `time`, `timestamp`, `fields` and `fields.<name>`\n\
         o.url: this is not a URL: empty host; such as `https://api.example.org/send/{address}`\n\
         o.password: a user name needs a password; take it from the environment: `${API_PASSWORD}`\n\
         o.answers[0].json: a place in JSON starts with `/`; such as `/messages/0/status`\n\
         o.answers[0].status: this is not a status; give `200`, `2xx` or `400-499`\n\
         o.certificate_file: a private key needs its certificate"
    );
    assert_eq!(
        shown(json!({"url": "https://a.{fields.place}/x"})),
        "o.url: the message cannot choose the host: a placeholder stands before the path; such as `https://api.example.org/send/{address}`"
    );
}
