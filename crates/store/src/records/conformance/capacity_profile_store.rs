//! Conformance: saved capacity profiles.

use super::*;

#[test]
fn capacity_profiles_are_stored_by_name_with_their_revision() {
    check(async |records| {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let put = async |text: &str, expect, seconds| {
            let new = NewCapacityProfile { name: name("week"), text: text.to_owned(), author: "k".to_owned() };
            records.put_capacity_profile(new, expect, at(seconds)).await
        };
        let first = put("profile: a", Precondition::Absent, 1).await.expect("stored");
        assert_eq!((first.revision, first.created_at, first.updated_at), (1, at(1), at(1)));
        assert!(matches!(put("profile: b", Precondition::Absent, 2).await, Err(StoreError::Taken(_))));
        assert_eq!(put("profile: a", Precondition::Any, 2).await.expect("unchanged"), first);
        let second = put("profile: b", Precondition::Revision(1), 3).await.expect("stored");
        assert_eq!((second.revision, second.created_at, second.updated_at), (2, at(1), at(3)));
        assert!(matches!(put("profile: c", Precondition::Revision(1), 4).await, Err(StoreError::Changed(_))));
        let other = name("day");
        let new = NewCapacityProfile { name: other.clone(), text: "profile: c".to_owned(), author: "k".to_owned() };
        records.put_capacity_profile(new, Precondition::Any, at(5)).await.expect("stored");
        let all = records.capacity_profiles().await.expect("read");
        assert_eq!(all.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["day", "week"]);
        assert_eq!(records.capacity_profile(&name("week")).await.expect("read"), Some(second));
        let removed = records.remove_capacity_profile(&other, Some(7)).await;
        assert!(matches!(removed, Err(StoreError::Changed(_))), "{removed:?}");
        records.remove_capacity_profile(&other, Some(1)).await.expect("removed");
        let removed = records.remove_capacity_profile(&other, None).await;
        assert!(matches!(removed, Err(StoreError::Missing(_))), "{removed:?}");
        assert_eq!(records.capacity_profile(&other).await.expect("read"), None);
    });
}
