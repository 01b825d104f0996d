//! Attributes closed by access rules stay closed, however an entry is searched, compared or named.

mod support;

use std::sync::Arc;

use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions, RawAttribute, Scope,
    access::AuthzId,
    entry::Shape,
    filter::Filter,
    ldap_error::{Code, LdapError},
};
use tocsin_model::{subscriber::Profile, time::Timestamp};
use tocsin_store::{
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, SubscriberStore},
};

struct Bench {
    records: Arc<MemoryRecords>,
    directory: Directory,
    operator: AuthzId,
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

fn code<T>(done: Result<T, LdapError>) -> Option<Code> {
    done.err().map(|refusal| refusal.code)
}

impl Bench {
    async fn new(access: &[&str]) -> Bench {
        let access = access.iter().map(|rule| (*rule).to_owned()).collect();
        let devices = vec![("mail".into(), "email".parse().expect("a name"))];
        let shape = Shape { devices, ..Shape::default() };
        let options = Options { access, shape, ..Options::default() };
        let (records, directory) = support::in_memory(options).await;
        let bench = Bench { records, directory, operator: AuthzId { manages: true, ..AuthzId::default() } };
        for (uid, title) in [("ann", "Boss"), ("bob", "Clerk")] {
            let pairs = [("objectClass", "inetOrgPerson"), ("cn", uid), ("sn", "Abe"), ("title", title)];
            bench.add(&bench.operator, &person(uid), &pairs).await.expect("made");
        }
        bench
    }

    async fn add(&self, requester: &AuthzId, dn: &str, pairs: &[(&str, &str)]) -> Result<(), LdapError> {
        self.directory.add(requester, dn, raw_attributes(pairs), Preconditions::default()).await.map(|_| ())
    }

    async fn make(&self, dn: &str, pairs: &[(&str, &str)]) {
        self.add(&self.operator, dn, pairs).await.expect("made");
    }

    async fn rename(&self, requester: &AuthzId, dn: &str, rdn: &str, above: Option<&str>) -> Result<(), LdapError> {
        self.directory.rename(requester, dn, rdn, true, above, Preconditions::default()).await.map(|_| ())
    }

    async fn modify(&self, requester: &AuthzId, dn: &str, attribute: &str, value: &str) -> Result<(), LdapError> {
        let values = vec![value.as_bytes().to_vec()];
        let change = Modification { act: ModifyType::Replace, attribute: attribute.to_owned(), values };
        self.directory.modify(requester, dn, vec![change], Preconditions::default()).await.map(|_| ())
    }

    /// Authorization identity of an entry.
    async fn requester(&self, dn: &str) -> AuthzId {
        self.directory.bind_external(dn).await.expect("it may").expect("it is there")
    }

    async fn search(&self, requester: &AuthzId, filter: Filter) -> Vec<String> {
        let base = self.directory.find("o=site").await.expect("the first");
        let mut search = self.directory.search(requester, base, Scope::Subtree, &filter).await.expect("begun");
        let mut found = Vec::new();
        while let Some(page) = search.next().await.expect("a page") {
            for shown in page {
                let grant = self.directory.access().grant(requester, &shown.entry);
                if grant.may_disclose() && search.is_met_by(&shown, &grant).expect("little work") {
                    found.push(shown.entry.dn.clone());
                }
            }
        }
        found.sort();
        found
    }
}

fn person(uid: &str) -> String {
    format!("uid={uid},ou=people,o=site")
}

fn equal(name: &str, value: &str) -> Filter {
    Filter::Equal(name.to_owned(), value.as_bytes().to_vec())
}

fn not(filter: Filter) -> Filter {
    Filter::Not(Box::new(filter))
}

const CLOSED_TITLE: &[&str] = &["to attrs=title by self write by users none", "to * by self write by users read"];

#[tokio::test]
async fn a1_a_closed_attribute_is_not_found_by_its_supertype() {
    let bench = Bench::new(CLOSED_TITLE).await;
    let bob = bench.requester(&person("bob")).await;
    let prefix = |name: &str| Filter::Substrings(name.to_owned(), Some(b"B".to_vec()), Vec::new(), None);
    let rule = |names| Filter::Extensible {
        rule: Some("caseIgnoreMatch".to_owned()),
        attribute: None,
        value: b"Boss".to_vec(),
        names,
    };
    let named = |name: &str| Filter::Extensible {
        rule: None,
        attribute: Some(name.to_owned()),
        value: b"Boss".to_vec(),
        names: false,
    };
    let none: Vec<String> = Vec::new();
    for filter in [
        equal("name", "Boss"),
        equal("2.5.4.41", "Boss"),
        equal("2.5.4.12", "Boss"),
        Filter::AtLeast("name".to_owned(), b"Bo".to_vec()),
        Filter::Approximate("name".to_owned(), b"Boss".to_vec()),
        rule(false),
        rule(true),
        named("name"),
        named("title"),
        Filter::Present("title".to_owned()),
    ] {
        let found = bench.search(&bob, filter.clone()).await;
        assert!(!found.contains(&person("ann")), "{filter:?}: {found:?}");
        // Undefined, so the negation matches neither those with the value nor those with another.
        let found = bench.search(&bob, not(filter.clone())).await;
        assert!(!found.contains(&person("ann")), "not {filter:?}: {found:?}");
    }
    assert_eq!(bench.search(&bob, prefix("name")).await, [person("bob")], "by the own common name");
    assert_eq!(bench.search(&bob, equal("name", "ann")).await, [person("ann")], "an open kind is found");
    assert_eq!(bench.search(&bench.operator, equal("name", "Boss")).await, [person("ann")]);
    assert_eq!(bench.search(&bench.requester(&person("ann")).await, equal("name", "Boss")).await, [person("ann")]);
    assert_eq!(bench.search(&AuthzId::default(), Filter::Present("objectClass".to_owned())).await, none);
}

#[tokio::test]
async fn a1_a_closed_attribute_is_not_compared_by_its_supertype() {
    let bench = Bench::new(CLOSED_TITLE).await;
    let bob = bench.requester(&person("bob")).await;
    for (name, value) in [("title", "Boss"), ("title", "Clerk"), ("2.5.4.12", "Boss")] {
        let said = bench.directory.compare(&bob, &person("ann"), (name, value.as_bytes()), None).await;
        assert_eq!(code(said), Some(Code::InsufficientAccessRights), "{name}={value}");
    }
    for value in ["Boss", "Clerk"] {
        let said = bench.directory.compare(&bob, &person("ann"), ("name", value.as_bytes()), None).await;
        assert!(!said.expect("compared"), "{value}");
    }
    assert_eq!(bench.directory.compare(&bob, &person("ann"), ("name", b"ann".as_slice()), None).await, Ok(true));
    // An assertion, and so a change with one, discloses no more.
    let terms = Preconditions { assertion: Some(equal("name", "Boss")), ..Preconditions::default() };
    let change = Modification { act: ModifyType::Replace, attribute: "title".to_owned(), values: vec![b"x".to_vec()] };
    let bobs = bench.directory.modify(&bob, &person("ann"), vec![change], terms).await;
    assert_eq!(code(bobs), Some(Code::InsufficientAccessRights));
}

#[tokio::test]
async fn a3_a_rename_needs_the_rights_of_the_attributes_of_both_names() {
    let rules = ["to attrs=uid by users read", "to * by self write by users read"];
    let bench = Bench::new(&rules).await;
    let bob = bench.requester(&person("bob")).await;
    for rdn in ["uid=boss", "cn=boss", "cn=bob+uid=boss", "0.9.2342.19200300.100.1.1=boss"] {
        assert_eq!(
            code(bench.rename(&bob, &person("bob"), rdn, None).await),
            Some(Code::InsufficientAccessRights),
            "{rdn}"
        );
    }
    let kept = bench.directory.rename(&bob, &person("bob"), "cn=boss", false, None, Preconditions::default()).await;
    assert_eq!(
        code(kept),
        Some(Code::InsufficientAccessRights),
        "the old RDN stays as an attribute value, but no longer names the entry"
    );
    let free = Bench::new(&[]).await;
    let bob = free.requester(&person("bob")).await;
    assert_eq!(code(free.rename(&bob, &person("bob"), "uid=robert", None).await), None);
}

#[tokio::test]
async fn a4_an_ordinary_user_makes_no_entries() {
    let bench = Bench::new(&[]).await;
    let bob = bench.requester(&person("bob")).await;
    let account: &[(&str, &str)] =
        &[("objectClass", "inetOrgPerson"), ("cn", "v"), ("sn", "v"), ("mail", "vera@example.org")];
    for dn in [
        format!("uid=vera,{}", person("bob")),
        format!("uid=vera,{}", person("ann")),
        person("vera"),
        "uid=vera,o=site".to_owned(),
    ] {
        assert_eq!(code(bench.add(&bob, &dn, account).await), Some(Code::InsufficientAccessRights), "{dn}");
    }
    let unit: &[(&str, &str)] = &[("objectClass", "organizationalUnit")];
    let refused = Some(Code::InsufficientAccessRights);
    assert_eq!(code(bench.add(&bob, &format!("ou=mine,{}", person("bob")), unit).await), refused);
    let moved = bench.rename(&bob, &person("bob"), "uid=bob", Some(&person("ann"))).await;
    assert_eq!(code(moved), refused, "nor moves one below another");
    assert_eq!(code(bench.rename(&bob, &person("bob"), "uid=bob", Some("o=site")).await), refused);
}

#[tokio::test]
async fn a4_a_user_gives_itself_no_address_of_another() {
    let bench = Bench::new(&[]).await;
    let bob = bench.requester(&person("bob")).await;
    bench.modify(&bench.operator, &person("ann"), "mail", "ann@example.org").await.expect("changed");
    for (attribute, value) in
        [("mail", "ann@example.org"), ("mail", "ANN@example.org"), ("tocsinDevice", "x email active ann@example.org")]
    {
        let done = bench.modify(&bob, &person("bob"), attribute, value).await;
        assert_eq!(code(done), Some(Code::ConstraintViolation), "{attribute}: {value}");
    }
    assert_eq!(code(bench.modify(&bob, &person("bob"), "mail", "bob@example.org").await), None);
    assert_eq!(code(bench.modify(&bench.operator, &person("bob"), "mail", "ann@example.org").await), None);
}

#[tokio::test]
async fn a4_who_has_the_right_makes_entries_of_attributes_that_they_may_write() {
    let rules = [
        "to attrs=title by self read by users none",
        "to dn=\"ou=staff,o=site\" by dn=\"uid=ann,ou=people,o=site\" write by users read",
        "to attrs=children dn=\"uid=bob,ou=people,o=site\" by self write by users none",
        "to * by self write by users read",
    ];
    let bench = Bench::new(&rules).await;
    bench.make("ou=staff,o=site", &[("objectClass", "organizationalUnit")]).await;
    let (ann, bob) = (bench.requester(&person("ann")).await, bench.requester(&person("bob")).await);
    let plain: &[(&str, &str)] = &[("objectClass", "inetOrgPerson"), ("cn", "v"), ("sn", "v")];
    let refused = Some(Code::InsufficientAccessRights);
    assert_eq!(code(bench.add(&bob, "uid=vera,ou=staff,o=site", plain).await), refused);
    assert_eq!(
        code(bench.add(&ann, "uid=vera,ou=staff,o=site", &[plain, &[("title", "Boss")]].concat()).await),
        refused
    );
    assert_eq!(code(bench.add(&ann, "uid=vera,ou=staff,o=site", plain).await), None);
    // Bob's container takes children, but no rule lets bob write the attributes of an entry there.
    assert_eq!(code(bench.add(&bob, &format!("uid=will,{}", person("bob")), plain).await), refused);
}

#[tokio::test]
async fn a4_rights_do_not_come_with_a_name() {
    let rules = [
        "to dn=\"ou=private,o=site\" by dn=\"uid=chief,ou=people,o=site\" read by group=\"cn=team,ou=people,o=site\" write",
        "to dn.base=\"uid=boss,ou=people,o=site\" by self write by users read",
        "to attrs=title by users read",
        "to * by self write by users read",
    ];
    let bench = Bench::new(&rules).await;
    let bob = bench.requester(&person("bob")).await;
    let refused = Some(Code::InsufficientAccessRights);
    assert_eq!(code(bench.rename(&bob, &person("bob"), "uid=chief", None).await), refused);
    assert_eq!(code(bench.rename(&bob, &person("bob"), "uid=boss", None).await), refused, "a place of other rights");
    assert_eq!(code(bench.rename(&bob, &person("bob"), "UID=Chief", None).await), refused);
    assert_eq!(code(bench.rename(&bob, &person("bob"), "cn=team", None).await), refused);
    assert_eq!(code(bench.rename(&bench.operator, &person("bob"), "uid=chief", None).await), None);
}

#[tokio::test]
async fn a5_a_group_finds_by_the_rights_of_who_asks() {
    let bench = Bench::new(CLOSED_TITLE).await;
    let (ann, bob) = (bench.requester(&person("ann")).await, bench.requester(&person("bob")).await);
    let group = "cn=bosses,o=site";
    let url = "ldap:///o=site??sub?(title=Bos*)";
    bench.make(group, &[("objectClass", "groupOfURLs"), ("memberURL", url)]).await;
    assert_eq!(bench.search(&bob, equal("memberOf", group)).await, Vec::<String>::new());
    assert_eq!(bench.search(&bench.operator, equal("memberOf", group)).await, [person("ann")]);
    assert_eq!(bench.search(&ann, equal("memberOf", group)).await, [person("ann")]);
    let shown = bench.directory.find(&person("ann")).await.expect("there");
    assert_eq!(bench.directory.member_of(&bob, &shown.entry).await, Ok(None));
    assert!(bench.directory.member_of(&ann, &shown.entry).await.expect("read").is_some());
}

#[tokio::test]
async fn a5_members_that_are_closed_are_not_found_by_member_of() {
    let rules = ["to attrs=member by users none", "to * by self write by users read"];
    let hidden = ["to dn=\"cn=secret,o=site\" by users none", "to * by self write by users read"];
    for rules in [rules, hidden] {
        let bench = Bench::new(&rules).await;
        let bob = bench.requester(&person("bob")).await;
        bench.make("cn=secret,o=site", &[("objectClass", "groupOfNames"), ("member", &person("ann"))]).await;
        let asked = equal("memberOf", "cn=secret,o=site");
        assert_eq!(bench.search(&bob, asked.clone()).await, Vec::<String>::new());
        assert_eq!(bench.search(&bench.operator, asked).await, [person("ann")]);
        let shown = bench.directory.find(&person("ann")).await.expect("there");
        assert_eq!(bench.directory.member_of(&bob, &shown.entry).await, Ok(None));
    }
}

#[tokio::test]
async fn a10_hidden_and_absent_entries_get_one_answer() {
    let rules = ["to dn=\"ou=secret,o=site\" by users none", "to * by self write by users read"];
    let bench = Bench::new(&rules).await;
    bench.make("ou=secret,o=site", &[("objectClass", "organizationalUnit")]).await;
    bench.make("ou=deep,ou=secret,o=site", &[("objectClass", "organizationalUnit")]).await;
    bench.make("cn=x,ou=deep,ou=secret,o=site", &[("objectClass", "organizationalRole")]).await;
    let (bob, nobody) = (bench.requester(&person("bob")).await, AuthzId::default());
    let pairs = [
        ("ou=secret,o=site", "ou=absent,o=site"),
        ("ou=deep,ou=secret,o=site", "ou=deep,ou=absent,o=site"),
        ("cn=x,ou=deep,ou=secret,o=site", "cn=x,ou=deep,ou=absent,o=site"),
        ("cn=y,ou=deep,ou=secret,o=site", "cn=y,ou=deep,ou=absent,o=site"),
    ];
    let directory = &bench.directory;
    let unit: &[(&str, &str)] = &[("objectClass", "organizationalUnit")];
    for (hidden, absent) in pairs {
        for (requester, matched) in [(&bob, "o=site"), (&nobody, "")] {
            let same = |what: &str, one: LdapError, other: LdapError| {
                assert_eq!((one.code, &*one.matched), (Code::NoSuchObject, matched), "{what} {hidden}");
                assert_eq!(one, other, "{what} {hidden}");
            };
            let find = async |dn: &str| directory.find_for(requester, dn).await.map(|_| ()).expect_err("hidden");
            same("search", find(hidden).await, find(absent).await);
            for attribute in ["cn", "unknownAttribute", "userPassword", "entryUUID"] {
                let asked = (attribute, b"x".as_slice());
                let compare = async |dn: &str| directory.compare(requester, dn, asked, None).await.expect_err("hidden");
                same("compare", compare(hidden).await, compare(absent).await);
                let modify = async |dn: &str| bench.modify(requester, dn, attribute, "x").await.expect_err("hidden");
                same("modify", modify(hidden).await, modify(absent).await);
            }
            let remove = async |dn: &str| {
                directory.remove(requester, dn, Preconditions::default()).await.map(|_| ()).expect_err("hidden")
            };
            same("delete", remove(hidden).await, remove(absent).await);
            let rename = async |dn: &str| bench.rename(requester, dn, "ou=new", None).await.expect_err("hidden");
            same("rename", rename(hidden).await, rename(absent).await);
            let refresh = async |dn: &str| directory.refresh(requester, dn, 60).await.map(|_| ()).expect_err("hidden");
            same("refresh", refresh(hidden).await, refresh(absent).await);
            let add = async |dn: &str| bench.add(requester, &format!("ou=new,{dn}"), unit).await.expect_err("hidden");
            same("add below", add(hidden).await, add(absent).await);
        }
        let below =
            async |above: &str| bench.rename(&bob, &person("bob"), "uid=bob", Some(above)).await.expect_err("hidden");
        assert_eq!(below(hidden).await, below(absent).await, "move below {hidden}");
    }
    let operators =
        directory.find_for(&bench.operator, "cn=y,ou=deep,ou=secret,o=site").await.map(|_| ()).expect_err("absent");
    assert_eq!(operators.matched, "ou=deep,ou=secret,o=site");
}

#[tokio::test]
async fn d_a_subscriber_lists_no_members() {
    let bench = Bench::new(&[
        "to dn=\"ou=private,o=site\" by group=\"cn=team,o=site\" write",
        "to * by self write by users read",
    ])
    .await;
    bench.make("cn=team,o=site", &[("objectClass", "groupOfNames"), ("member", &person("ann"))]).await;
    let ann = bench.requester(&person("ann")).await;
    assert_eq!(ann.groups.len(), 1);
    // Otherwise bob would be a member of the groups that list ann.
    for attribute in ["member", "uniqueMember", "roleOccupant"] {
        let refused = bench.modify(&ann, &person("ann"), attribute, &person("bob")).await;
        assert_eq!(code(refused), Some(Code::ObjectClassViolation), "{attribute}");
    }
    let values = vec![b"extensibleObject".to_vec()];
    let extend = Modification { act: ModifyType::Add, attribute: "objectClass".to_owned(), values };
    bench.directory.modify(&ann, &person("ann"), vec![extend], Preconditions::default()).await.expect("allowed");
    for (attribute, value) in [("member", person("bob")), ("memberURL", "ldap:///o=site??sub?(uid=bob)".to_owned())] {
        let refused = bench.modify(&ann, &person("ann"), attribute, &value).await;
        assert_eq!(code(refused), Some(Code::ObjectClassViolation), "{attribute}");
    }
    bench.modify(&ann, &person("ann"), "title", "any").await.expect("other attributes are free");
    let pairs =
        [("objectClass", "account"), ("objectClass", "tocsinSubscriber"), ("uid", "eve"), ("member", "uid=bob,o=site")];
    assert_eq!(code(bench.add(&bench.operator, "uid=eve,o=site", &pairs).await), Some(Code::ObjectClassViolation));
    assert_eq!(bench.requester(&person("bob")).await.groups, Vec::<String>::new());
    // The API stores attributes of any name; they make no group.
    let attributes = [("member".to_owned(), person("bob").as_str().into())].into_iter().collect();
    let profile = Profile { attributes, ..Profile::default() };
    let new = NewSubscriber {
        kept: Default::default(),
        id: "fay".parse().expect("an id"),
        profile,
        devices: None,
        preferences: None,
    };
    bench.records.put_subscriber(new, Precondition::Any, Timestamp(1)).await.expect("stored");
    let fay = bench.search(&bench.operator, equal("member", &person("bob"))).await;
    assert_eq!(fay.len(), 1);
    bench.make("cn=outer,o=site", &[("objectClass", "groupOfNames"), ("member", &fay[0])]).await;
    assert_eq!(bench.requester(&person("bob")).await.groups, Vec::<String>::new());
    assert_eq!(bench.search(&bench.operator, equal("memberOf", &fay[0])).await, Vec::<String>::new());
}
