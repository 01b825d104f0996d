//! Failing endpoints: listed with their reasons, with pagination and filters, until a delivery succeeds.

use serde_json::{Value as Json, json};
use tocsin_testkit::ScriptedAnswer;

use crate::platform::{Platform, QUAKES, answer};

const JSON: &str = "application/json";

/// A platform whose subscribers have webhooks, each of which fails differently.
async fn with_hooks(hooks: &[(&str, ScriptedAnswer)]) -> Platform {
    let platform = Platform::start().await;
    let definition = format!("{QUAKES}  hook:\n    protocol: http\n    retry: []\n");
    let (status, body) = platform.put("/v1/applications/quakes", "application/yaml", &definition).await;
    assert_eq!(status, 201, "{body}");
    for (subscriber, manner) in hooks {
        let address = format!("https://{subscriber}.example/hook");
        platform.far_ends.set(&address, manner.clone());
        let person = json!({"id": subscriber, "devices": {"hook": {"channel": "hook", "address": address}}});
        let (status, body) = platform.post("/v1/subscribers", JSON, &person.to_string()).await;
        assert_eq!(status, 201, "{body}");
        let interest =
            json!({"application": "quakes", "class": "strong", "subscriber": subscriber, "values": {"magnitude": 5}});
        let (status, body) = platform.post("/v1/subscriptions", JSON, &interest.to_string()).await;
        assert_eq!(status, 201, "{body}");
    }
    platform
}

async fn shake(platform: &Platform) {
    let event = r#"{"place": "Kobe", "magnitude": 6.1}"#;
    let (status, body) = platform.post("/v1/applications/quakes/events/quake", JSON, event).await;
    assert_eq!(status, 202, "{body}");
}

/// The list, polled until it has this many entries.
async fn listed(platform: &Platform, count: usize) -> Vec<Json> {
    loop {
        let (status, body) = platform.get("/v1/endpoints").await;
        assert_eq!(status, 200, "{body}");
        let items = body["items"].as_array().expect("a list");
        if items.len() == count {
            return items.clone();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_fails_is_listed_until_it_answers() {
    let platform = with_hooks(&[
        ("ann", ScriptedAnswer::Refuses),
        ("bob", ScriptedAnswer::Delivers),
        ("cem", ScriptedAnswer::Defers(None)),
    ])
    .await;
    shake(&platform).await;
    let items = listed(&platform, 2).await;
    let mut first = items[0].clone();
    for moment in ["failing_since", "last_failure"] {
        let removed = first.as_object_mut().expect("an object").remove(moment);
        assert!(removed.is_some_and(|moment| moment.is_string()), "{items:?}");
    }
    let expected = json!({"application": "quakes", "channel": "hook", "subscriber": "ann", "device": "hook",
        "address": "https://ann.example/hook", "state": "failing", "failures": 1, "reason": "never"});
    assert_eq!(first, expected);
    assert_eq!((&items[1]["subscriber"], &items[1]["reason"]), (&json!("cem"), &json!("not now")));

    let whose = async |query: &str| {
        let (status, body) = platform.get(&format!("/v1/endpoints{query}")).await;
        assert_eq!(status, 200, "{query}: {body}");
        let items = body["items"].as_array().expect("a list").iter();
        let whose = items.map(|item| item["subscriber"].as_str().expect("whose").to_owned()).collect::<Vec<_>>();
        (whose, body["next"].as_str().map(str::to_owned))
    };
    let both = ["ann".to_owned(), "cem".to_owned()];
    assert_eq!(whose("?application=quakes&channel=hook&state=failing").await.0, both);
    for nobody in ["?channel=mail", "?state=warned", "?state=disabled"] {
        assert_eq!(whose(nobody).await, (vec![], None), "{nobody}");
    }
    let (page, next) = whose("?limit=1").await;
    assert_eq!(page, ["ann"]);
    let next = next.expect("a next page");
    assert_eq!(whose(&format!("?limit=1&after={next}")).await, (vec!["cem".to_owned()], None));

    platform.far_ends.set("https://ann.example/hook", ScriptedAnswer::Delivers);
    shake(&platform).await;
    assert_eq!(listed(&platform, 1).await[0]["subscriber"], "cem");
    platform.stop().await;
}

#[tokio::test]
async fn the_list_wants_its_scope() {
    let platform = Platform::start().await;
    for (scope, expected) in [("events:write", 403), ("operations:read", 200)] {
        let (_, made) = platform.post("/v1/keys", JSON, &json!({"scopes": [scope]}).to_string()).await;
        let key = made["key"].as_str().expect("a key");
        let request = platform.client.get(format!("{}/v1/endpoints", platform.address)).bearer_auth(key);
        let (status, body) = answer(request).await;
        assert_eq!(status, expected, "{scope}: {body}");
    }
    platform.stop().await;
}
