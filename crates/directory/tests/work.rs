//! Work limits: numbers of entries and rows that operations read and write.

mod support;

use std::sync::Arc;

use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions, Scope, access::AuthzId, filter::Filter,
    ldap_error::Code,
};
use tocsin_model::{subscriber::Profile, time::Timestamp};
use tocsin_store::{
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, Records},
    sqlite::records::{RecordsOptions, SqliteRecords},
};

fn operator() -> AuthzId {
    AuthzId { manages: true, ..AuthzId::default() }
}

fn options() -> Options {
    Options { suffix: "o=site".to_owned(), cache_bytes: 8 << 20, ..Options::default() }
}

async fn add(directory: &Directory, dn: &str, given: &[(&str, &[String])]) {
    let given = given.iter().map(|(name, values)| {
        ((*name).to_owned(), values.iter().map(|value| value.clone().into_bytes()).collect::<Vec<_>>())
    });
    directory
        .add(&operator(), dn, given.collect(), Preconditions::default())
        .await
        .unwrap_or_else(|why| panic!("{dn}: {why}"));
}

async fn container(directory: &Directory, dn: &str) {
    add(directory, dn, &[("objectClass", &["organizationalUnit".to_owned()])]).await;
}

async fn person(directory: &Directory, dn: &str) {
    let classes = ["inetOrgPerson".to_owned()];
    add(directory, dn, &[("objectClass", &classes), ("cn", &["x".to_owned()]), ("sn", &["Muster".to_owned()])]).await;
}

/// Names of the results of a search, and the number of entries examined.
async fn found(directory: &Directory, base: &str, scope: Scope, filter: &Filter) -> (Vec<String>, usize) {
    let base = directory.find(base).await.expect("a base");
    let mut search =
        directory.search(&AuthzId { manages: true, ..AuthzId::default() }, base, scope, filter).await.expect("begun");
    let mut names = Vec::new();
    while let Some(page) = search.next().await.expect("a page") {
        let grant = tocsin_directory::access::Grant::open();
        let met = page.iter().filter(|shown| search.is_met_by(shown, &grant).expect("little work"));
        names.extend(met.map(|shown| shown.entry.dn.clone()));
    }
    names.sort();
    (names, search.scanned())
}

async fn small_beside_large(directory: &Directory, records: &dyn Records) {
    directory.build_indexes().await.expect("built");
    for dn in ["ou=small,o=site", "ou=inner,ou=small,o=site", "ou=empty,o=site", "ou=large,o=site"] {
        container(directory, dn).await;
    }
    for number in 0..1_500 {
        let id = format!("person-{number}").parse().expect("an id");
        let new = NewSubscriber {
            kept: Default::default(),
            id,
            profile: Profile::default(),
            devices: None,
            preferences: None,
        };
        records.put_subscriber(new, Precondition::Any, Timestamp(1)).await.expect("stored");
    }
    for number in 0..20 {
        person(directory, &format!("uid=l{number},ou=large,o=site")).await;
    }
    for dn in ["uid=a,ou=small,o=site", "uid=b,ou=inner,ou=small,o=site", "uid=c,uid=b,ou=inner,ou=small,o=site"] {
        person(directory, dn).await;
    }
    let all = Filter::Present("objectClass".to_owned());
    let unindexed = Filter::Present("title".to_owned());
    let of_class = Filter::Equal("objectClass".to_owned(), b"person".to_vec());
    let not = Filter::Not(Box::new(unindexed.clone()));
    for (base, scope, filter, expected, most) in [
        ("ou=small,o=site", Scope::Subtree, &all, 5, 5),
        ("ou=small,o=site", Scope::Subtree, &of_class, 3, 25),
        ("ou=small,o=site", Scope::Subtree, &unindexed, 0, 5),
        ("ou=small,o=site", Scope::Subtree, &not, 5, 5),
        ("ou=small,o=site", Scope::One, &not, 2, 3),
        ("ou=inner,ou=small,o=site", Scope::Subtree, &not, 3, 3),
        ("uid=b,ou=inner,ou=small,o=site", Scope::Subtree, &not, 2, 2),
        ("ou=empty,o=site", Scope::Subtree, &not, 1, 1),
        ("ou=empty,o=site", Scope::One, &not, 0, 1),
        ("ou=large,o=site", Scope::Subtree, &not, 21, 21),
        ("o=site", Scope::One, &not, 3, 5),
        ("ou=people,o=site", Scope::One, &not, 1_500, 1_501),
    ] {
        let (names, looked_at) = found(directory, base, scope, filter).await;
        // The container of subscribers is below the suffix, too.
        let expected = expected + usize::from((base, scope) == ("o=site", Scope::One));
        assert_eq!(names.len(), expected, "{base} {scope:?} {filter:?}: {names:?}");
        assert!(looked_at <= most + 1, "{base} {scope:?} {filter:?}: {looked_at} entries were looked at");
    }
    let by_name = Filter::Equal("uid".to_owned(), b"person-7".to_vec());
    let (names, looked_at) = found(directory, "ou=people,o=site", Scope::Subtree, &by_name).await;
    assert_eq!((names.len(), looked_at), (1, 1));
    let (names, _) = found(directory, "o=site", Scope::Subtree, &all).await;
    assert_eq!(names.len(), 1_500 + 20 + 3 + 6);
}

#[tokio::test]
async fn b27_a_search_below_a_small_container_looks_at_its_entries_only() {
    let memory = Arc::new(MemoryRecords::new().expect("random numbers"));
    let directory = Directory::open(memory.clone(), options(), Arc::new(|| Timestamp(1))).await.expect("it opens");
    small_beside_large(&directory, &*memory).await;
    let folder = tempfile::tempdir().expect("a folder");
    let records = SqliteRecords::open(folder.path(), &RecordsOptions { reserve_bytes: 0, ..Default::default() });
    let records = Arc::new(records.expect("the records open"));
    let directory = Directory::open(records.clone(), options(), Arc::new(|| Timestamp(1))).await.expect("it opens");
    small_beside_large(&directory, &*records).await;
}

fn member(name: &str) -> String {
    format!("uid={name},ou=people,o=site")
}

fn change(act: ModifyType, names: &[&str]) -> Modification {
    let values = names.iter().map(|name| member(name).into_bytes()).collect();
    Modification { act, attribute: "member".to_owned(), values }
}

async fn members_come_and_go(directory: &Directory) {
    directory.build_indexes().await.expect("built");
    container(directory, "ou=groups,o=site").await;
    let dn = "cn=all,ou=groups,o=site";
    let many: Vec<String> = (0..3_000).map(|number| member(&format!("u{number}"))).collect();
    add(
        directory,
        dn,
        &[("objectClass", &["groupOfNames".to_owned()]), ("cn", &["all".to_owned()]), ("member", &many)],
    )
    .await;
    let modify = async |changes: Vec<Modification>| {
        directory
            .modify(&operator(), dn, changes, Preconditions::default())
            .await
            .map_err(|refusal| refusal.code)
            .map(|_| ())
    };
    let count = async || {
        let shown = directory.find(dn).await.expect("there");
        shown.entry.attribute("member").map_or(0, |found| found.values.len())
    };
    assert_eq!(count().await, 3_000);
    // A change of members does not read the group: it is not cached afterwards.
    for (changes, expected, members) in [
        (vec![change(ModifyType::Add, &["new"])], Ok(()), 3_001),
        (vec![change(ModifyType::Add, &["new"])], Err(Code::AttributeOrValueExists), 3_001),
        (vec![change(ModifyType::Add, &["NEW"])], Err(Code::AttributeOrValueExists), 3_001),
        (vec![change(ModifyType::Delete, &["nobody"])], Err(Code::NoSuchAttribute), 3_001),
        (vec![change(ModifyType::Delete, &["u7", "u8"]), change(ModifyType::Add, &["x", "y", "z"])], Ok(()), 3_002),
        (
            vec![change(ModifyType::Add, &["p"]), change(ModifyType::Delete, &["nobody"])],
            Err(Code::NoSuchAttribute),
            3_002,
        ),
        (vec![change(ModifyType::Add, &["p", "P"])], Err(Code::AttributeOrValueExists), 3_002),
        (vec![change(ModifyType::Add, &["p"]), change(ModifyType::Delete, &["p"])], Ok(()), 3_002),
        (vec![change(ModifyType::Delete, &["U9"])], Ok(()), 3_001),
    ] {
        assert_eq!(modify(changes.clone()).await, expected, "{changes:?}");
        let is_read = directory.cached_entry(dn).is_some();
        let is_plain = expected.is_ok() && changes[0].values != [member("U9").into_bytes()] && changes.len() != 2;
        assert!(!(is_plain && is_read), "{changes:?}: the whole group was read");
        assert_eq!(count().await, members, "{changes:?}");
    }
    assert_eq!(modify(vec![change(ModifyType::Delete, &["new"])]).await, Ok(()));
    assert!(directory.cached_entry(dn).is_none());
    // Membership, by the index and by the filter.
    let by_member = Filter::Equal("member".to_owned(), member("x").into_bytes());
    assert_eq!(found(directory, "o=site", Scope::Subtree, &by_member).await.0, [dn]);
    let gone = Filter::Equal("member".to_owned(), member("u7").into_bytes());
    assert_eq!(found(directory, "o=site", Scope::Subtree, &gone).await.0, Vec::<String>::new());
    // A group keeps its last member in both code paths.
    let last = "cn=last,ou=groups,o=site";
    let one = [member("a")];
    add(
        directory,
        last,
        &[("objectClass", &["groupOfNames".to_owned()]), ("cn", &["last".to_owned()]), ("member", &one)],
    )
    .await;
    let refused =
        directory.modify(&operator(), last, vec![change(ModifyType::Delete, &["a"])], Preconditions::default()).await;
    assert_eq!(refused.map_err(|refusal| refusal.code).map(|_| ()), Err(Code::ObjectClassViolation));
    directory
        .modify(&operator(), last, vec![change(ModifyType::Add, &["b"])], Preconditions::default())
        .await
        .expect("added");
    directory
        .modify(&operator(), last, vec![change(ModifyType::Delete, &["a"])], Preconditions::default())
        .await
        .expect("removed");
    let shown = directory.find(last).await.expect("there");
    assert_eq!(*shown.entry.attribute("member").expect("one").values, [Box::from(member("b").as_bytes())]);
    // A user without `write` on members is rejected.
    let refused = directory
        .modify(&AuthzId::default(), dn, vec![change(ModifyType::Add, &["q"])], Preconditions::default())
        .await;
    assert!(matches!(
        refused.map_err(|refusal| refusal.code),
        Err(Code::NoSuchObject | Code::InsufficientAccessRights)
    ));
    let images = directory
        .modify(
            &operator(),
            dn,
            vec![change(ModifyType::Add, &["q"])],
            Preconditions { after: true, ..Preconditions::default() },
        )
        .await
        .expect("added");
    let after = images.after.expect("wanted");
    assert_eq!(after.entry.attribute("member").expect("many").values.len(), 3_001);
}

#[tokio::test]
async fn b26_members_come_and_go_without_the_group() {
    let memory = Arc::new(MemoryRecords::new().expect("random numbers"));
    let directory = Directory::open(memory.clone(), options(), Arc::new(|| Timestamp(1))).await.expect("it opens");
    members_come_and_go(&directory).await;
    let folder = tempfile::tempdir().expect("a folder");
    let records = SqliteRecords::open(folder.path(), &RecordsOptions { reserve_bytes: 0, ..Default::default() });
    let records = Arc::new(records.expect("the records open"));
    let directory = Directory::open(records.clone(), options(), Arc::new(|| Timestamp(1))).await.expect("it opens");
    members_come_and_go(&directory).await;
}

#[tokio::test]
async fn b26_an_import_adds_members_without_the_group() {
    let (_, directory) = support::in_memory(options()).await;
    let dn = "cn=all,o=site";
    let mut ldif = format!("dn: {dn}\nobjectClass: groupOfNames\nmember: {}\n", member("a"));
    for name in ["b", "c", "a"] {
        ldif += &format!("\ndn: {dn}\nchangetype: modify\nadd: member\nmember: {}\n", member(name));
    }
    let imported = directory.import(ldif.as_bytes(), &mut |_| {}).await.expect("it is read");
    assert_eq!((imported.done, imported.refused.len()), (3, 1), "{imported:?}");
    let shown = directory.find(dn).await.expect("there");
    assert_eq!(shown.entry.attribute("member").expect("members").values.len(), 3);
}

#[tokio::test]
async fn b26_a_group_follows_its_members_without_the_others() {
    let (_, directory) = support::in_memory(options()).await;
    for dn in ["uid=ann,ou=people,o=site", "uid=bo,ou=people,o=site", "uid=cy,ou=people,o=site"] {
        person(&directory, dn).await;
    }
    let (many, dn) = ([member("ann"), member("bo"), member("cy")], "cn=all,o=site");
    add(
        &directory,
        dn,
        &[("objectClass", &["groupOfNames".to_owned()]), ("cn", &["all".to_owned()]), ("member", &many)],
    )
    .await;
    let members = async || {
        let shown = directory.find(dn).await.expect("there");
        let values = shown.entry.attribute("member").map(|found| found.values.to_vec()).unwrap_or_default();
        let mut texts: Vec<_> = values.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect();
        texts.sort();
        texts
    };
    assert_eq!(members().await, many);
    directory
        .rename(&operator(), &member("ann"), "uid=zoe", true, None, Preconditions::default())
        .await
        .expect("renamed");
    assert!(directory.cached_entry(dn).is_none(), "the whole group was read");
    assert_eq!(members().await, [member("bo"), member("cy"), member("zoe")]);
    directory.remove(&operator(), &member("bo"), Preconditions::default()).await.expect("removed");
    assert!(directory.cached_entry(dn).is_none(), "the whole group was read");
    assert_eq!(members().await, [member("cy"), member("zoe")]);
    let by_member = |name: &str| Filter::Equal("member".to_owned(), member(name).into_bytes());
    for (name, count) in [("ann", 0), ("bo", 0), ("cy", 1), ("zoe", 1)] {
        assert_eq!(found(&directory, "o=site", Scope::Subtree, &by_member(name)).await.0.len(), count, "{name}");
    }
    for name in ["cy", "zoe"] {
        directory.remove(&operator(), &member(name), Preconditions::default()).await.expect("removed");
    }
    assert_eq!(members().await.len(), 1, "a group that must have a member has one");
}
