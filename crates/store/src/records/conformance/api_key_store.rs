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
