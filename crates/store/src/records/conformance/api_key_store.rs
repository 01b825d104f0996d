//! Conformance: API keys.

use super::*;

#[test]
fn api_keys_are_stored_as_hashes() {
    check(async |records| {
        let key = |id: &str, seconds| ApiKey {
            id: id.to_owned(),
            hash: [7; 32],
            description: "for \"ann\"".to_owned(),
            scopes: vec!["events:write".to_owned(), "records:read".to_owned()],
            resources: if seconds > 1 { vec!["exchange:orders".to_owned()] } else { Vec::new() },
            created_at: at(seconds),
            expires_at: (seconds > 1).then(|| at(99)),
        };
        let mut key_changes = records.newest_key_change();
        let mut is_notified =
            || key_changes.has_changed().expect("it is open") && *key_changes.borrow_and_update() == newest(records);
        records.put_api_key(key("b", 1)).await.expect("stored");
        assert!(is_notified());
        records.put_api_key(key("a", 2)).await.expect("stored");
        assert!(matches!(records.put_api_key(key("a", 3)).await, Err(StoreError::Taken(_))));
        assert_eq!(records.api_keys().await.expect("read"), [key("b", 1), key("a", 2)]);
        assert!(is_notified());
        records.put_subscriber(person("ann", &[]), Precondition::Any, at(3)).await.expect("stored");
        assert!(!is_notified());
        records.remove_api_key("b").await.expect("removed");
        assert!(is_notified());
        assert!(is_missing(records.remove_api_key("b").await));
        let removed = ("b".to_owned(), "for \"ann\"".to_owned());
        assert_eq!(records.removed_api_keys().await.expect("read"), [removed], "its description stays");
        assert_eq!(records.api_keys().await.expect("read"), [key("a", 2)]);
        assert_eq!(news(records, ChangeSequence(0)).await, ["API key"; 3]);
    });
}

#[test]
fn uses_and_expiry_of_api_keys_are_kept_beside_them() {
    check(async |records| {
        let key = ApiKey {
            id: "a".to_owned(),
            hash: [7; 32],
            description: String::new(),
            scopes: vec!["admin".to_owned()],
            resources: Vec::new(),
            created_at: at(1),
            expires_at: None,
        };
        records.put_api_key(key.clone()).await.expect("stored");
        let mut key_changes = records.newest_key_change();
        key_changes.mark_unchanged();
        let used = |id: &str, seconds| ApiKeyUse { id: id.to_owned(), at: at(seconds), from: Some("192.0.2.1".into()) };
        records.put_api_key_uses(vec![used("a", 2), used("none", 2)]).await.expect("stored");
        records.put_api_key_uses(vec![used("a", 3)]).await.expect("stored");
        assert_eq!(records.api_key_uses().await.expect("read"), [used("a", 3)]);
        assert!(!key_changes.has_changed().expect("it is open"), "a use is no change of the key");
        records.set_api_key_expiry("a", Some(at(9))).await.expect("set");
        assert!(key_changes.has_changed().expect("it is open"));
        assert_eq!(records.api_keys().await.expect("read"), [ApiKey { expires_at: Some(at(9)), ..key }]);
        assert!(is_missing(records.set_api_key_expiry("none", None).await));
        records.remove_api_key("a").await.expect("removed");
        assert_eq!(records.api_key_uses().await.expect("read"), []);
    });
}
