//! Changes whose client disconnects before the answer: they go on to their end. Keys that are revoked meanwhile.

use tocsin_service::{ServiceError, keys::NewKey};
use tokio::io::AsyncWriteExt;

use crate::platform::{Platform, QUAKES};

/// Sends a complete request and closes the connection without reading the answer.
async fn send_and_leave(platform: &Platform, head: &str, body: &str) {
    let mut stream = platform.connect().await;
    let request = format!(
        "{head} HTTP/1.1\r\nHost: tocsin\r\nAuthorization: Bearer {}\r\nContent-Type: application/yaml\r\nContent-Length: {}\r\n\r\n{body}",
        platform.key,
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("written");
}

/// Reads the application until its status is as expected.
async fn wait_for(platform: &Platform, status: u16) -> serde_json::Value {
    let read = async {
        loop {
            let (found, body) = platform.get("/v1/applications/quakes").await;
            if found == status {
                return body;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(tocsin_test_peers::wait_timeout(), read).await.expect("the change goes on")
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_no_application_half_applied() {
    let platform = Platform::start().await;
    send_and_leave(&platform, "PUT /v1/applications/quakes", QUAKES).await;
    let applied = wait_for(&platform, 200).await;
    assert_eq!(applied["version"], 1, "{applied}");
    // The next change waits for the end of the first: the stored version is the running one.
    let (status, again) = platform.put("/v1/applications/quakes", "application/yaml", QUAKES).await;
    assert!(status == 200 && again["version"] == 1 && again["running"] == true, "{status} {again}");
    send_and_leave(&platform, "DELETE /v1/applications/quakes?confirm=quakes", "").await;
    wait_for(&platform, 404).await;
    platform.stop().await;
}

#[tokio::test]
async fn a_key_that_is_revoked_during_a_request_makes_no_other_key() {
    let platform = Platform::start().await;
    let (id, key) = platform.make_key(&["keys:write", "events:write"]).await;
    // The request is past the authentication.
    let caller = platform.service.authenticate(&key).expect("a good key");
    platform.revoke(&id).await;
    let scopes = vec!["events:write".to_owned()];
    let new = NewKey { description: String::new(), scopes, roles: vec![], resources: vec![], expires_at: None };
    let refused = platform.service.make_api_key(&caller, new).await;
    assert!(matches!(refused, Err(ServiceError::Unauthenticated(..))), "{refused:?}");
    platform.stop().await;
}
