//! Records and their native rows over a kill, a restart and native changes.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::server::{NotifybcServer, Role, client_from, query};
use crate::support::wait_timeout;

fn subscription(number: usize) -> Value {
    json!({
        "serviceName": format!("service-{}", number % 3),
        "channel": "email",
        "userChannelId": format!("person-{number}@x.example"),
        "state": "confirmed",
        "data": { "number": number },
        "confirmationRequest": { "sendRequest": false },
    })
}

async fn stored(server: &NotifybcServer) -> Vec<Value> {
    let found = server.get(Role::SuperAdmin, "/subscriptions").await.ok();
    found.as_array().expect("a list").clone()
}

/// Keys of the enabled native subscriptions, in order.
async fn native_keys(server: &NotifybcServer) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/subscriptions?application=notifybc&enabled=true&limit=100{after}");
        let page = server.platform.get(&path).await;
        let items = page["items"].as_array().expect("a list");
        keys.extend(items.iter().map(|item| item["key"].as_str().expect("a key").to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_survive_a_kill_with_their_native_rows() {
    let mut server = NotifybcServer::start(json!({})).await;
    server.healthy().await;
    let acknowledged = Arc::new(Semaphore::new(0));
    let calls: Vec<_> = (0..8)
        .map(|caller| {
            let (acknowledged, url) = (acknowledged.clone(), server.url.clone());
            let client = client_from([127, 0, 0, 2]);
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for call in 0.. {
                    let body = subscription(call * 8 + caller);
                    let Ok(answer) = client.post(format!("{url}/subscriptions")).json(&body).send().await else {
                        break;
                    };
                    let Ok(record) = answer.json::<Value>().await else { break };
                    ids.push((record["id"].as_str().expect("an id").to_owned(), body));
                    acknowledged.add_permits(1);
                }
                ids
            })
        })
        .collect();
    let enough = tokio::time::timeout(wait_timeout(), acknowledged.acquire_many(200)).await;
    assert!(enough.is_ok(), "only {} calls are acknowledged", acknowledged.available_permits());
    server.platform.kill();
    let mut expected = Vec::new();
    for call in calls {
        expected.extend(call.await.expect("it ran"));
    }
    server.platform.restart().await;
    server.healthy().await;

    let found = stored(&server).await;
    for (id, body) in &expected {
        let record = found.iter().find(|record| record["id"] == json!(id)).unwrap_or_else(|| panic!("{id} is lost"));
        for (name, value) in body.as_object().expect("an object") {
            assert_eq!(record[name], *value, "{name} of {id}");
        }
    }
    // A call without an answer is stored with its native rows, or not at all.
    let mut ids: Vec<String> = found.iter().map(|record| record["id"].as_str().expect("an id").to_owned()).collect();
    ids.sort();
    assert_eq!(native_keys(&server).await, ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_removal_is_deleted_for_clients_and_can_be_undone() {
    let server = NotifybcServer::start(json!({})).await;
    server.healthy().await;
    let id = server.post(Role::SuperAdmin, "/subscriptions", &subscription(1)).await.id();
    let native = server.platform.get("/v1/subscriptions?application=notifybc").await["items"][0].clone();
    assert_eq!((&native["key"], &native["enabled"]), (&json!(id), &json!(true)));
    let path = format!("/v1/subscriptions/{}", native["id"].as_str().expect("an id"));
    let removed = server.platform.request(reqwest::Method::DELETE, &path).send().await.expect("an answer");
    assert!(removed.status().is_success(), "{}", removed.status());
    let filter = query("filter", json!({ "where": { "id": id } }));
    let state =
        async || server.get(Role::SuperAdmin, &format!("/subscriptions{filter}")).await.ok()[0]["state"].clone();
    assert_eq!(state().await, json!("deleted"));

    let undo = format!("/subscriptions/{id}/unsubscribe/undo");
    assert_eq!(server.get(Role::SuperAdmin, &undo).await.status, 200);
    assert_eq!(state().await, json!("confirmed"));
    assert_eq!(native_keys(&server).await, [id]);
}
