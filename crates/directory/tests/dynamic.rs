//! Dynamic entries (RFC 2589), on a simulated clock.

use std::{sync::Arc, time::Duration};

use tocsin_directory::{
    ChangedEntry, Directory, Lifetimes, Modification, ModifyType, Options, Preconditions, RawAttribute,
    access::AuthzId, ldap_error::Code,
};
use tocsin_model::{subscriber::Profile, time::Timestamp};
use tocsin_store::{
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, SubscriberStore},
};
use tokio::time::{Instant, sleep};

struct Bench {
    records: Arc<MemoryRecords>,
    directory: Directory,
    operator: AuthzId,
}

async fn bench() -> Bench {
    let started = Instant::now();
    let clock = Arc::new(move || Timestamp::from_millis(1_800_000_000_000) + started.elapsed());
    let seconds = Duration::from_secs;
    let lifetimes = Lifetimes { at_first: seconds(60), least: seconds(5), most: seconds(3_600) };
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let options = Options { lifetimes, ..Options::default() };
    let directory = Directory::open(records.clone(), options, clock).await.expect("it opens");
    directory.build_indexes().await.expect("the indexes are built");
    Bench { records, directory, operator: AuthzId { manages: true, ..AuthzId::default() } }
}

fn raw_attributes(pairs: &[(&str, &str)]) -> Vec<RawAttribute> {
    let mut given: Vec<RawAttribute> = Vec::new();
    for (name, value) in pairs {
        match given.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(value.as_bytes().to_vec()),
            None => given.push(((*name).to_owned(), vec![value.as_bytes().to_vec()])),
        }
    }
    given
}

const UNIT: &[(&str, &str)] = &[("objectClass", "organizationalUnit"), ("objectClass", "dynamicObject")];
const PERSON: &[(&str, &str)] = &[("objectClass", "account"), ("objectClass", "dynamicObject")];

impl Bench {
    async fn add(&self, dn: &str, pairs: &[(&str, &str)]) -> Option<Code> {
        let done = self.directory.add(&self.operator, dn, raw_attributes(pairs), Preconditions::default()).await;
        done.err().map(|refusal| refusal.code)
    }

    async fn is_there(&self, dn: &str) -> bool {
        self.directory.find(dn).await.is_ok()
    }

    async fn refresh(&self, dn: &str, seconds: u32) -> Result<u32, Code> {
        self.directory.refresh(&self.operator, dn, seconds).await.map_err(|refusal| refusal.code)
    }

    async fn left(&self, dn: &str) -> String {
        let shown = self.directory.find(dn).await.expect("there");
        let left = self.directory.time_left(&shown.entry).expect("it ends");
        String::from_utf8(left.values[0].to_vec()).expect("digits")
    }
}

#[tokio::test(start_paused = true)]
async fn an_entry_expires_unless_it_is_refreshed() {
    let bench = bench().await;
    let keeper = tokio::spawn({
        let directory = bench.directory.clone();
        async move { directory.keep_expiring().await }
    });
    let (ann, bob) = ("uid=ann,ou=people,o=site", "uid=bob,ou=people,o=site");
    assert_eq!(bench.add(ann, PERSON).await, None);
    assert_eq!(bench.add(bob, PERSON).await, None);
    let place = bench.directory.feed_position().await.expect("a place");
    assert_eq!(bench.left(ann).await, "60");
    sleep(Duration::from_secs(50)).await;
    assert_eq!(bench.left(ann).await, "10");
    assert_eq!(bench.refresh(ann, 100).await, Ok(100));
    sleep(Duration::from_secs(11)).await;
    assert!(bench.is_there(ann).await && !bench.is_there(bob).await);
    // Both are ordinary changes: persistent searches see them, and the subscriber is removed.
    let changes = bench.directory.changes_after(place, 9).await.expect("read").expect("known");
    let gone = changes.entries.iter().filter(|change| matches!(change, ChangedEntry::Gone(_))).count();
    assert_eq!((changes.entries.len(), gone), (2, 1));
    assert!(bench.records.subscriber(&"bob".parse().expect("an id")).await.expect("read").is_none());
    // An expiry earlier than all known ones is on time.
    assert_eq!(bench.refresh(ann, 3_600).await, Ok(3_600));
    assert_eq!(bench.refresh(ann, 1).await, Ok(5), "not less than the least");
    sleep(Duration::from_secs(7)).await;
    assert!(!bench.is_there(ann).await);
    assert_eq!(bench.refresh(ann, 10).await, Err(Code::NoSuchObject));
    keeper.abort();
}

#[tokio::test(start_paused = true)]
async fn dynamic_entries_are_validated() {
    let bench = bench().await;
    let (unit, below) = ("ou=meeting,o=site", "uid=ann,ou=meeting,o=site");
    assert_eq!(bench.add(unit, UNIT).await, None);
    assert_eq!(bench.add(below, &[("objectClass", "account")]).await, Some(Code::ConstraintViolation));
    assert_eq!(bench.add(below, PERSON).await, None);
    assert_eq!(bench.refresh("ou=people,o=site", 10).await, Err(Code::ObjectClassViolation));
    assert_eq!(bench.refresh(unit, 3_601).await, Err(Code::AdminLimitExceeded));
    let stranger = bench.directory.refresh(&AuthzId::default(), unit, 10).await.expect_err("nobody");
    assert_eq!(stranger.code, Code::NoSuchObject);
    let modify = async |act, attribute: &str, value: &str| {
        let change = Modification { act, attribute: attribute.into(), values: vec![value.into()] };
        let done = bench.directory.modify(&bench.operator, unit, vec![change], Preconditions::default()).await;
        done.err().map(|refusal| refusal.code)
    };
    assert_eq!(modify(ModifyType::Delete, "objectClass", "dynamicObject").await, Some(Code::ObjectClassModsProhibited));
    assert_eq!(modify(ModifyType::Replace, "entryTtl", "9").await, Some(Code::ConstraintViolation));
    assert_eq!(modify(ModifyType::Replace, "description", "x").await, None);
    assert_eq!(bench.add("uid=bob,ou=people,o=site", &[("objectClass", "account")]).await, None);
    let (directory, operator) = (&bench.directory, &bench.operator);
    let moved = directory
        .rename(operator, "uid=bob,ou=people,o=site", "uid=bob", false, Some(unit), Preconditions::default())
        .await;
    assert_eq!(moved.expect_err("it would stay").code, Code::ConstraintViolation);
    // An expired entry with children is removed after them.
    assert_eq!(bench.refresh(below, 600).await, Ok(600));
    sleep(Duration::from_secs(100)).await;
    directory.expire().await.expect("done");
    assert!(bench.is_there(unit).await && bench.is_there(below).await);
    sleep(Duration::from_secs(503)).await;
    directory.expire().await.expect("done");
    assert!(!bench.is_there(unit).await && !bench.is_there(below).await);
}

#[tokio::test(start_paused = true)]
async fn many_entries_expire_together_and_malformed_times_are_ignored() {
    let bench = bench().await;
    let put = async |id: &str, end: &str| {
        let attributes = [("entryExpireTimestamp".to_owned(), end.into())].into();
        let profile = Profile { attributes, ..Profile::default() };
        let new = NewSubscriber {
            kept: Default::default(),
            id: id.parse().expect("an id"),
            profile,
            devices: None,
            preferences: None,
        };
        let now = Timestamp::from_millis(1_800_000_000_000);
        bench.records.put_subscriber(new, Precondition::Any, now).await.expect("stored");
    };
    for count in 0..450 {
        put(&format!("gone-{count}"), "20260101000000Z").await;
        put(&format!("odd-{count}"), "soon").await;
    }
    put("later", "20270115080100Z").await;
    let next = bench.directory.expire().await.expect("done").expect("one is left");
    assert_eq!(next, Timestamp::from_millis(1_800_000_060_000));
    assert!(!bench.is_there("uid=gone-449,ou=people,o=site").await);
    assert!(bench.is_there("uid=odd-449,ou=people,o=site").await && bench.is_there("uid=later,ou=people,o=site").await);
}
