//! The unsubscribe link of a mail ends its subscription only, and by POST only.

use serde_json::Value;
use tocsin_delivery::TokenSigner;
use tocsin_model::id::SubscriptionId;

use crate::platform::Platform;

async fn is_enabled(platform: &Platform, id: &str) -> bool {
    let (status, body) = platform.get(&format!("/v1/subscriptions/{id}")).await;
    assert_eq!(status, 200, "{body}");
    body["enabled"] == Value::Bool(true)
}

/// Sends a request without a key; returns status and page.
async fn send(platform: &Platform, method: &str, path: &str) -> (u16, String) {
    let method = method.parse().expect("a method");
    let request = platform.client.request(method, format!("{}{path}", platform.address));
    let body = "List-Unsubscribe=One-Click";
    let request = request.header("content-type", "application/x-www-form-urlencoded").body(body);
    let response = request.send().await.expect("an answer");
    (response.status().as_u16(), response.text().await.expect("text"))
}

#[tokio::test]
async fn one_click_ends_one_subscription_and_looking_ends_none() {
    let platform = Platform::with_quakes().await;
    for key in ["one", "two"] {
        let subscription = format!(
            r#"{{"application":"quakes","class":"strong","subscriber":"alice","key":"{key}","values":{{"magnitude":5}}}}"#
        );
        let (status, body) = platform.post("/v1/subscriptions", "application/json", &subscription).await;
        assert_eq!(status, 201, "{body}");
    }
    let token_signer = TokenSigner::new(&platform.secret);
    let link = format!("/unsubscribe/{}", token_signer.token(SubscriptionId(1)));
    // As mail scanners and previews do.
    for method in ["GET", "HEAD", "GET", "HEAD", "OPTIONS"] {
        let (_, page) = send(&platform, method, &link).await;
        assert!(method != "GET" || page.contains("<form method=\"post\">"), "{page}");
    }
    assert!(is_enabled(&platform, "s-1").await);
    for wrong in [
        "/unsubscribe/1-AAAAAAAAAAAAAAAAAAAAAA".to_owned(),
        format!("/unsubscribe/{}", TokenSigner::new(&[1; 32]).token(SubscriptionId(1))),
        link.replace("/1-", "/2-"),
        link[..link.len() - 1].to_owned(),
    ] {
        for method in ["GET", "POST"] {
            assert_eq!(send(&platform, method, &wrong).await.0, 404, "{method} {wrong}");
        }
    }
    assert!(is_enabled(&platform, "s-1").await && is_enabled(&platform, "s-2").await);
    for _ in 0..2 {
        let (status, page) = send(&platform, "POST", &link).await;
        assert!(status == 200 && page.contains("You are unsubscribed"), "{status}: {page}");
    }
    assert!(!is_enabled(&platform, "s-1").await && is_enabled(&platform, "s-2").await);
    // The result is the same after the subscription was removed.
    let removed = platform.request("DELETE", "/v1/subscriptions/s-1").send().await.expect("an answer");
    assert_eq!(removed.status().as_u16(), 204);
    assert_eq!(send(&platform, "POST", &link).await.0, 200);
}
