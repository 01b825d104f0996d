//! Conformance: users of the console and their sessions.

use super::*;

fn user(name: &str) -> User {
    User {
        name: name.to_owned(),
        display_name: format!("The \"{name}\""),
        email: None,
        roles: vec!["operator".to_owned(), "reader".to_owned()],
        password: Some("$argon2id$hash".to_owned()),
        oidc_subject: None,
        language: Some("de".to_owned()),
        time_zone: None,
        disabled: false,
        created_at: at(0),
        updated_at: at(0),
        last_login_at: None,
        revision: 0,
    }
}

fn session(id: &str, user: &str, seconds: i64) -> Session {
    Session {
        id: id.to_owned(),
        hash: std::array::from_fn(|place| id.as_bytes().get(place).copied().unwrap_or_default()),
        user: user.to_owned(),
        created_at: at(seconds),
        last_used_at: at(seconds),
        expires_at: at(seconds + 1_000),
        reauthenticated_at: at(seconds),
        address: Some("192.0.2.1".to_owned()),
        user_agent: None,
    }
}

async fn ids(records: &dyn Records) -> Vec<String> {
    records.sessions().await.expect("read").into_iter().map(|session| session.id).collect()
}

#[test]
fn users_are_stored_by_name_with_their_revision() {
    check(async |records| {
        let stored = records.put_user(user("bob"), Precondition::Absent, at(1)).await.expect("stored");
        assert_eq!(stored, User { created_at: at(1), updated_at: at(1), revision: 1, ..user("bob") });
        let ada = User { email: Some("ada@example.org".to_owned()), oidc_subject: Some("s-1".into()), ..user("ada") };
        let ada = records.put_user(ada, Precondition::Absent, at(2)).await.expect("stored");
        assert_eq!(records.users().await.expect("read"), [ada.clone(), stored.clone()]);
        let again = records.put_user(user("bob"), Precondition::Absent, at(3)).await;
        assert!(matches!(again, Err(StoreError::Taken(_))));
        let same = records.put_user(stored.clone(), Precondition::Any, at(3)).await.expect("stored");
        assert_eq!(same, stored, "an unchanged user keeps its revision");
        let changed = User { disabled: true, roles: Vec::new(), password: None, ..stored };
        let changed = records.put_user(changed, Precondition::Revision(1), at(4)).await.expect("stored");
        assert_eq!((changed.revision, changed.created_at, changed.updated_at), (2, at(1), at(4)));
        let late = records.put_user(user("bob"), Precondition::Revision(1), at(5)).await;
        assert!(matches!(late, Err(StoreError::Changed(_))));
        assert!(is_missing(records.put_user(user("eve"), Precondition::Present, at(5)).await));
        let same_subject = User { oidc_subject: Some("s-1".into()), ..user("eve") };
        let same_subject = records.put_user(same_subject, Precondition::Any, at(5)).await;
        assert!(matches!(same_subject, Err(StoreError::Taken(_))));
        assert_eq!(records.users().await.expect("read"), [ada, changed]);
        records.remove_user("bob").await.expect("removed");
        assert!(is_missing(records.remove_user("bob").await));
        assert_eq!(records.users().await.expect("read").len(), 1);
        assert!(news(records, ChangeSequence(0)).await.is_empty(), "users are not part of the change log");
    });
}

#[test]
fn a_session_belongs_to_its_user_and_ends_with_it() {
    check(async |records| {
        assert!(is_missing(records.put_session(session("a", "ada", 1)).await));
        for name in ["ada", "bob"] {
            records.put_user(user(name), Precondition::Any, at(1)).await.expect("stored");
        }
        for (id, user, seconds) in [("a", "ada", 2), ("b", "bob", 3), ("c", "ada", 4)] {
            let ended = records.put_session(session(id, user, seconds)).await.expect("stored");
            assert!(ended.is_empty());
        }
        let logins: Vec<_> = records.users().await.expect("read").into_iter().map(|user| user.last_login_at).collect();
        assert_eq!(logins, [Some(at(4)), Some(at(3))]);
        assert_eq!(records.users().await.expect("read")[0].revision, 1, "a login is no change of the user");
        let all = [session("a", "ada", 2), session("b", "bob", 3), session("c", "ada", 4)];
        assert_eq!(records.sessions().await.expect("read"), all);
        let renewed = Session { hash: [9; 32], reauthenticated_at: at(50), ..session("a", "ada", 2) };
        assert!(records.put_session(renewed.clone()).await.expect("stored").is_empty());
        let used = vec![("c".to_owned(), at(60)), ("unknown".to_owned(), at(60))];
        records.touch_sessions(used).await.expect("stored");
        let expected = [renewed, session("b", "bob", 3), Session { last_used_at: at(60), ..session("c", "ada", 4) }];
        assert_eq!(records.sessions().await.expect("read"), expected);
        assert_eq!(records.users().await.expect("read")[0].last_login_at, Some(at(4)), "a renewal is no login");
        let ended = ["b", "unknown"].map(str::to_owned).to_vec();
        records.remove_sessions(ended.clone()).await.expect("removed");
        records.remove_sessions(ended).await.expect("idempotent");
        assert_eq!(ids(records).await, ["a", "c"]);
        records.remove_user("ada").await.expect("removed");
        assert!(ids(records).await.is_empty());
    });
}

#[test]
fn the_sessions_of_a_user_are_bounded() {
    check(async |records| {
        for name in ["ada", "bob"] {
            records.put_user(user(name), Precondition::Any, at(1)).await.expect("stored");
        }
        records.put_session(session("other", "bob", 1)).await.expect("stored");
        let max = SESSIONS_OF_USER_MAX as i64;
        for number in 0..max {
            let ended = records.put_session(session(&format!("s{number:02}"), "ada", 10 + number)).await;
            assert!(ended.expect("stored").is_empty());
        }
        records.touch_sessions(vec![("s00".to_owned(), at(500))]).await.expect("stored");
        let ended = records.put_session(session("new", "ada", 600)).await.expect("stored");
        assert_eq!(ended, ["s01"], "the one that was used least recently");
        let left = ids(records).await;
        assert_eq!(left.len(), SESSIONS_OF_USER_MAX + 1);
        assert!(left.contains(&"s00".to_owned()) && left.contains(&"other".to_owned()));
    });
}
