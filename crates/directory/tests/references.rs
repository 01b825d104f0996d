//! Referential integrity of groups, and unique login names.

use std::sync::Arc;

use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions, RawAttribute, Revision,
    access::AuthzId,
    ldap_error::{Code, LdapError},
};
use tocsin_model::{subscriber::Profile, time::Timestamp};
use tocsin_store::{
    entries::Entries,
    error::StoreError,
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, Records},
    sqlite::records::{RecordsOptions, SqliteRecords},
};

struct Bench {
    records: Arc<dyn Records>,
    directory: Directory,
    operator: AuthzId,
    _folder: Option<tempfile::TempDir>,
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

const PERSON: &[(&str, &str)] = &[("objectClass", "inetOrgPerson"), ("cn", "x"), ("sn", "x")];
const UNIT: &[(&str, &str)] = &[("objectClass", "organizationalUnit")];

impl Bench {
    /// One bench per store.
    async fn all() -> Vec<Bench> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = RecordsOptions { reserve_bytes: 0, ..Default::default() };
        let sqlite = Arc::new(SqliteRecords::open(folder.path(), &options).expect("the records open"));
        let memory = Arc::new(MemoryRecords::new().expect("random numbers"));
        vec![Bench::over(memory, None).await, Bench::over(sqlite, Some(folder)).await]
    }

    async fn over<R: Records + Entries>(records: Arc<R>, folder: Option<tempfile::TempDir>) -> Bench {
        let clock = Arc::new(|| Timestamp(1));
        let directory = Directory::open(records.clone(), Options::default(), clock).await.expect("it opens");
        directory.build_indexes().await.expect("the indexes are built");
        Bench { records, directory, operator: AuthzId { manages: true, ..AuthzId::default() }, _folder: folder }
    }

    async fn add(&self, dn: &str, pairs: &[(&str, &str)]) -> Option<Code> {
        let done = self.directory.add(&self.operator, dn, raw_attributes(pairs), Preconditions::default()).await;
        done.err().map(|refusal| refusal.code)
    }

    async fn rename(&self, dn: &str, rdn: &str, above: Option<&str>) {
        let done = self.directory.rename(&self.operator, dn, rdn, true, above, Preconditions::default()).await;
        done.expect("renamed");
    }

    async fn remove(&self, dn: &str) {
        self.directory.remove(&self.operator, dn, Preconditions::default()).await.expect("removed");
    }

    async fn put(&self, id: &str) -> Result<(), StoreError> {
        let id = id.parse().expect("an id");
        let new = NewSubscriber {
            kept: Default::default(),
            id,
            profile: Profile::default(),
            devices: None,
            preferences: None,
        };
        self.records.put_subscriber(new, Precondition::Any, Timestamp(2)).await.map(|_| ())
    }

    async fn values(&self, dn: &str, attribute: &str) -> Vec<String> {
        let shown = self.directory.find(dn).await.expect("there");
        let found = shown.entry.attribute(attribute).map(|found| found.values.to_vec()).unwrap_or_default();
        found.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }
}

fn person(uid: &str) -> String {
    format!("uid={uid},ou=people,o=site")
}

#[tokio::test]
async fn a6_groups_follow_a_rename_and_a_removal_by_any_way() {
    for bench in Bench::all().await {
        for uid in ["ann", "bob", "cyd", "dan"] {
            assert_eq!(bench.add(&person(uid), PERSON).await, None);
        }
        bench.put("eve").await.expect("stored");
        let members: Vec<_> = ["ann", "bob", "cyd", "dan", "eve"].map(person).to_vec();
        let mut group = vec![("objectClass", "groupOfEntries")];
        group.extend(members.iter().map(|dn| ("member", dn.as_str())));
        assert_eq!(bench.add("cn=team,o=site", &group).await, None);
        bench.rename(&person("ann"), "uid=anna", None).await;
        bench.rename(&person("bob"), "uid=bob", Some("o=site")).await;
        bench.remove(&person("cyd")).await;
        for id in ["dan", "eve"] {
            let id = id.parse().expect("an id");
            bench.records.remove_subscriber(&id, Precondition::Any, Timestamp(3)).await.expect("removed");
        }
        let mut left = bench.values("cn=team,o=site", "member").await;
        left.sort();
        assert_eq!(left, ["uid=anna,ou=people,o=site", "uid=bob,o=site"]);
        let anna = bench.directory.find(&person("anna")).await.expect("there").entry.number;
        let revision = Revision { modifications: Vec::new(), rdn: Some("uid=ann".to_owned()) };
        bench.directory.revise(&bench.operator, anna, revision, Preconditions::default()).await.expect("revised");
        assert!(bench.values("cn=team,o=site", "member").await.contains(&person("ann")));
    }
}

#[tokio::test]
async fn a6_groups_follow_while_their_index_is_being_built() {
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let directory = Directory::open(records.clone(), Options::default(), Arc::new(|| Timestamp(1))).await;
    let (directory, operator) = (directory.expect("it opens"), AuthzId { manages: true, ..AuthzId::default() });
    let bench = Bench { records, directory, operator, _folder: None };
    for uid in ["ann", "bob"] {
        assert_eq!(bench.add(&person(uid), PERSON).await, None);
    }
    let group = [("objectClass", "groupOfEntries"), ("member", &*person("ann")), ("member", &*person("bob"))];
    assert_eq!(bench.add("cn=team,o=site", &group).await, None);
    bench.rename(&person("ann"), "uid=anna", None).await;
    bench.remove(&person("bob")).await;
    assert_eq!(bench.values("cn=team,o=site", "member").await, [person("anna")]);
}

#[tokio::test]
async fn a6_groups_follow_the_entries_below_one_that_is_renamed_or_moved() {
    for bench in Bench::all().await {
        for dn in ["ou=a,o=site", "ou=b,ou=a,o=site", "ou=c,o=site"] {
            assert_eq!(bench.add(dn, UNIT).await, None);
        }
        assert_eq!(bench.add("UID=ann, ou=b, ou=a, o=site", PERSON).await, None);
        let group = [("objectClass", "groupOfNames"), ("member", "UID=Ann,  OU=B,ou=a,o=site")];
        assert_eq!(bench.add("cn=team,o=site", &group).await, None);
        let urls = [("objectClass", "groupOfURLs"), ("memberURL", "ldap:///ou=b,ou=a,o=site??sub?(sn=x)")];
        assert_eq!(bench.add("cn=found,o=site", &urls).await, None);
        let role = [("objectClass", "organizationalRole"), ("roleOccupant", "uid=ann,ou=b,ou=a,o=site")];
        assert_eq!(bench.add("cn=chief,o=site", &role).await, None);
        bench.rename("ou=a,o=site", "ou=d e", None).await;
        assert_eq!(bench.values("cn=team,o=site", "member").await, ["UID=Ann,OU=B,ou=d e,o=site"]);
        assert_eq!(bench.values("cn=found,o=site", "memberurl").await, ["ldap:///ou=b,ou=d%20e,o=site??sub?(sn=x)"]);
        bench.rename("ou=b,ou=d e,o=site", "ou=b", Some("ou=c,o=site")).await;
        assert_eq!(bench.values("cn=team,o=site", "member").await, ["UID=Ann,ou=b,ou=c,o=site"]);
        assert_eq!(bench.values("cn=chief,o=site", "roleoccupant").await, ["uid=ann,ou=b,ou=c,o=site"]);
        assert_eq!(bench.values("cn=found,o=site", "memberurl").await, ["ldap:///ou=b,ou=c,o=site??sub?(sn=x)"]);
    }
}

#[tokio::test]
async fn a6_the_last_member_leaves_no_name_to_inherit() {
    for bench in Bench::all().await {
        assert_eq!(bench.add(&person("ann"), PERSON).await, None);
        assert_eq!(bench.add(&person("bob"), PERSON).await, None);
        let group = [("objectClass", "groupOfNames"), ("member", &*person("ann"))];
        assert_eq!(bench.add("cn=team,o=site", &group).await, None);
        let unique = [("objectClass", "groupOfUniqueNames"), ("uniqueMember", &*person("ann"))];
        assert_eq!(bench.add("cn=other,o=site", &unique).await, None);
        bench.remove(&person("ann")).await;
        bench.rename(&person("bob"), "uid=ann", None).await;
        assert_eq!(bench.values("cn=team,o=site", "member").await, ["cn=removed-member"]);
        assert_eq!(bench.values("cn=other,o=site", "uniquemember").await, ["cn=removed-member"]);
        let shown = bench.directory.find(&person("ann")).await.expect("there");
        assert_eq!(bench.directory.member_of(&bench.operator, &shown.entry).await, Ok(None));
        let change =
            Modification { act: ModifyType::Replace, attribute: "description".to_owned(), values: vec![b"x".to_vec()] };
        let changed =
            bench.directory.modify(&bench.operator, "cn=team,o=site", vec![change], Preconditions::default()).await;
        assert!(changed.is_ok(), "the group is still valid");
    }
}

#[tokio::test]
async fn a6_a_user_does_not_enter_a_group_by_taking_a_name_that_it_holds() {
    for bench in Bench::all().await {
        assert_eq!(bench.add(&person("bob"), PERSON).await, None);
        let group = [("objectClass", "groupOfNames"), ("member", &*person("ghost"))];
        assert_eq!(bench.add("cn=team,o=site", &group).await, None);
        let bob = bench.directory.bind_external(&person("bob")).await.expect("it may").expect("it is there");
        let rename = |rdn: &'static str| {
            let (directory, bob) = (bench.directory.clone(), bob.clone());
            async move {
                directory.rename(&bob, &person("bob"), rdn, true, None, Preconditions::default()).await.map(|_| ())
            }
        };
        let code = |done: Result<(), LdapError>| done.err().map(|refusal| refusal.code);
        assert_eq!(code(rename("uid=ghost").await), Some(Code::InsufficientAccessRights));
        assert_eq!(code(rename("UID=Ghost").await), Some(Code::InsufficientAccessRights));
        assert_eq!(code(rename("uid=robert").await), None);
    }
}

#[tokio::test]
async fn a4_login_names_are_unique_by_any_way() {
    for bench in Bench::all().await {
        assert_eq!(bench.add("ou=staff,o=site", UNIT).await, None);
        assert_eq!(bench.add(&person("vera"), PERSON).await, None);
        let clash = Some(Code::ConstraintViolation);
        assert_eq!(bench.add("uid=vera,ou=staff,o=site", PERSON).await, clash);
        assert_eq!(bench.add("uid=VERA,ou=staff,o=site", PERSON).await, clash);
        assert_eq!(
            bench.add("cn=v,ou=staff,o=site", &[PERSON, &[("uid", "v"), ("uid", "Vera")]].concat()).await,
            clash
        );
        let device = [("objectClass", "applicationProcess"), ("objectClass", "extensibleObject"), ("uid", "vera")];
        assert_eq!(bench.add("cn=thing,o=site", &device).await, clash);
        assert_eq!(bench.add("uid=will,ou=staff,o=site", PERSON).await, None);
        let rename = bench.directory.rename(
            &bench.operator,
            "uid=will,ou=staff,o=site",
            "uid=vera",
            true,
            None,
            Preconditions::default(),
        );
        assert_eq!(rename.await.map(|_| ()).err().map(|refusal| refusal.code), clash);
        let change = |value: &str| {
            vec![Modification {
                act: ModifyType::Add,
                attribute: "uid".to_owned(),
                values: vec![value.as_bytes().to_vec()],
            }]
        };
        let modify = bench.directory.modify(
            &bench.operator,
            "uid=will,ou=staff,o=site",
            change("Vera"),
            Preconditions::default(),
        );
        assert_eq!(modify.await.map(|_| ()).err().map(|refusal| refusal.code), clash);
        let modify = bench.directory.modify(
            &bench.operator,
            "uid=will,ou=staff,o=site",
            change("bill"),
            Preconditions::default(),
        );
        assert!(modify.await.is_ok());
        // Changes by the API: another spelling of a name, and a second name of an entry.
        for id in ["Vera", "WILL", "bill"] {
            assert!(matches!(bench.put(id).await, Err(StoreError::Taken(_))), "{id}");
        }
        bench.put("xena").await.expect("stored");
        assert!(matches!(bench.put("Xena").await, Err(StoreError::Taken(_))));
        bench.put("xena").await.expect("its own name");
        let new = |id: &str| NewSubscriber {
            kept: Default::default(),
            id: id.parse().expect("an id"),
            profile: Profile::default(),
            devices: None,
            preferences: None,
        };
        let many = vec![new("yul"), new("XENA"), new("zoe")];
        let written = bench.records.put_subscribers(many, Timestamp(4)).await.expect("written");
        assert_eq!(written.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }
}
