//! Names, login names and device addresses are compared by their normal forms.

mod support;

use std::sync::Arc;

use tocsin_directory::{
    CachedEntry, Directory, Modification, ModifyType, Options, Preconditions, RawAttribute,
    access::AuthzId,
    entry::Shape,
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
    pairs.iter().map(|(name, value)| ((*name).to_owned(), vec![value.as_bytes().to_vec()])).collect()
}

fn person(uid: &str) -> String {
    format!("uid={uid},ou=people,o=site")
}

fn code<T>(done: Result<T, LdapError>) -> Option<Code> {
    done.err().map(|refusal| refusal.code)
}

fn texts(shown: &CachedEntry, key: &str) -> Vec<String> {
    let values = shown.entry.attribute(key).into_iter().flat_map(|found| &*found.values);
    values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
}

impl Bench {
    async fn new() -> Bench {
        let name = |text: &str| text.parse().expect("a name");
        let devices = vec![("mail".into(), name("email")), ("mobile".into(), name("sms"))];
        let shape = Shape { devices, ..Shape::default() };
        let (records, directory) = support::in_memory(Options { shape, ..Options::default() }).await;
        let bench = Bench { records, directory, operator: AuthzId { manages: true, ..AuthzId::default() } };
        for uid in ["ann", "bob"] {
            let pairs = [("objectClass", "inetOrgPerson"), ("cn", uid), ("sn", "Abe")];
            bench.add(&person(uid), &pairs).await.expect("made");
        }
        bench
    }

    async fn add(&self, dn: &str, pairs: &[(&str, &str)]) -> Result<(), LdapError> {
        self.directory.add(&self.operator, dn, raw_attributes(pairs), Preconditions::default()).await.map(|_| ())
    }

    async fn rename(&self, requester: &AuthzId, dn: &str, rdn: &str) -> Result<(), LdapError> {
        self.directory.rename(requester, dn, rdn, true, None, Preconditions::default()).await.map(|_| ())
    }

    async fn replace(&self, requester: &AuthzId, dn: &str, attribute: &str, values: &[&str]) -> Result<(), LdapError> {
        let values = values.iter().map(|value| value.as_bytes().to_vec()).collect();
        let change = Modification { act: ModifyType::Replace, attribute: attribute.to_owned(), values };
        self.directory.modify(requester, dn, vec![change], Preconditions::default()).await.map(|_| ())
    }

    async fn requester(&self, dn: &str) -> AuthzId {
        self.directory.bind_external(dn).await.expect("it may").expect("it is there")
    }

    async fn shown(&self, dn: &str) -> Arc<CachedEntry> {
        self.directory.find(dn).await.expect("it is there")
    }
}

#[tokio::test]
async fn an_address_in_another_spelling_is_the_same_device() {
    let bench = Bench::new().await;
    let ann = person("ann");
    for address in
        ["ann@example.org", "ann@EXAMPLE.org", "ann@Example.org", "Ann <ann@example.org>", "\"ann\"@example.org"]
    {
        bench.replace(&bench.operator, &ann, "mail", &[address]).await.expect("changed");
        let shown = bench.shown(&ann).await;
        assert_eq!(texts(&shown, "mail"), [address], "the address is there in its new spelling");
        assert_eq!(texts(&shown, "tocsindevice"), [format!("email email active {address}")]);
    }
    // A new address takes the device of the removed one, not that of one that only changed its spelling.
    bench.replace(&bench.operator, &ann, "mail", &["ann@example.org", "ann@home.example"]).await.expect("changed");
    bench.replace(&bench.operator, &ann, "mail", &["new@home.example", "ANN@example.org"]).await.expect("changed");
    let shown = bench.shown(&ann).await;
    let devices = texts(&shown, "tocsindevice");
    assert_eq!(devices, ["email email active ANN@example.org", "email-2 email active new@home.example"]);
}

#[tokio::test]
async fn the_address_of_another_subscriber_is_rejected_in_every_spelling() {
    let bench = Bench::new().await;
    bench.replace(&bench.operator, &person("ann"), "mail", &["ann@example.org"]).await.expect("changed");
    let bob = bench.requester(&person("bob")).await;
    for address in [
        "ann@example.org",
        "ANN@Example.ORG",
        "\"ann\"@example.org",
        "Ann <ann@example.org>",
        "<ann@example.org>",
        "mailto:ann@example.org",
        "ann@example.org.",
    ] {
        let done = bench.replace(&bob, &person("bob"), "mail", &[address]).await;
        assert_eq!(code(done), Some(Code::ConstraintViolation), "{address}");
    }
    bench.replace(&bob, &person("bob"), "mail", &["bob@example.org"]).await.expect("nobody has it");
}

#[tokio::test]
async fn the_telephone_number_of_another_subscriber_is_rejected_in_every_spelling() {
    let bench = Bench::new().await;
    bench.replace(&bench.operator, &person("ann"), "mobile", &["+43 664 123-98"]).await.expect("changed");
    let bob = bench.requester(&person("bob")).await;
    for number in [
        "+4366412398",
        "+43 (664) 123 98",
        "+43.664.12398",
        "+43/664/12398",
        "(+43) 664 12398",
        "0043 664 12398",
        "tel:+43-664-12398",
        "TEL:+4366412398",
        "+43 664 12398 ext. 5",
    ] {
        let done = bench.replace(&bob, &person("bob"), "mobile", &[number]).await;
        assert_eq!(code(done), Some(Code::ConstraintViolation), "{number}");
        let device = format!("sms sms active {number}");
        let done = bench.replace(&bob, &person("bob"), "tocsinDevice", &[&device]).await;
        assert_eq!(code(done), Some(Code::ConstraintViolation), "{device}");
    }
    for number in ["+43 (664) 123 99", "0664 12398"] {
        bench.replace(&bob, &person("bob"), "mobile", &[number]).await.expect("a number that is free");
    }
}

#[tokio::test]
async fn an_operational_attribute_cannot_name_an_entry() {
    let bench = Bench::new().await;
    let bob = bench.requester(&person("bob")).await;
    for rdn in [
        "memberOf=cn\\=managers\\,o\\=site",
        "tocsinId=ann",
        "entryTtl=5",
        "pwdReset=TRUE",
        "createTimestamp=20200101000000Z",
        "tocsinEnabled=FALSE",
        "userPassword=secret",
        "jpegPhoto=x",
    ] {
        for requester in [&bench.operator, &bob] {
            assert_eq!(code(bench.rename(requester, &person("bob"), rdn).await), Some(Code::NamingViolation), "{rdn}");
        }
        let pairs = [("objectClass", "account"), ("uid", "new")];
        let made = bench.add(&format!("{rdn},ou=people,o=site"), &pairs).await;
        assert_eq!(code(made), Some(Code::NamingViolation), "{rdn}");
    }
}

#[tokio::test]
async fn a_renamed_spelling_changes_the_attribute_value_too() {
    let bench = Bench::new().await;
    bench.rename(&bench.operator, &person("bob"), "uid = Bob").await.expect("renamed");
    let shown = bench.shown(&person("bob")).await;
    assert_eq!((shown.entry.dn.as_str(), texts(&shown, "uid")), ("uid=Bob,ou=people,o=site", vec!["Bob".to_owned()]));
}

#[tokio::test]
async fn an_entry_keeps_the_values_of_its_name_when_the_api_leaves_them_out() {
    let bench = Bench::new().await;
    bench.add("ou=staff,o=site", &[("objectClass", "organizationalUnit")]).await.expect("made");
    bench.add("uid=cyd,ou=staff,o=site", &[("objectClass", "account")]).await.expect("made");
    let attributes = [("memberOf".to_owned(), "cn=managers,o=site".into())].into();
    let profile = Profile { attributes, ..Profile::default() };
    let new = NewSubscriber {
        kept: Default::default(),
        id: "cyd".parse().expect("an id"),
        profile,
        devices: None,
        preferences: None,
    };
    bench.records.put_subscriber(new, Precondition::Any, Timestamp(2)).await.expect("stored");
    let shown = bench.shown("uid=cyd,ou=staff,o=site").await;
    assert_eq!(texts(&shown, "uid"), ["cyd"]);
    assert!(texts(&shown, "memberof").is_empty(), "the groups of an entry are worked out");
    assert_eq!(bench.directory.only_with("uid", b"CYD").await, Ok(Some("uid=cyd,ou=staff,o=site".to_owned())));
    let taken = bench.add(&person("cyd"), &[("objectClass", "account")]).await;
    assert!(code(taken).is_some(), "the login name is taken");
}

#[tokio::test]
async fn the_groups_of_an_entry_are_compared() {
    let bench = Bench::new().await;
    let group = [("objectClass", "groupOfNames"), ("member", &*person("ann"))];
    bench.add("cn=staff,o=site", &group).await.expect("made");
    for (uid, holds) in [("ann", true), ("bob", false)] {
        let asked = ("memberOf", b"cn=STAFF, o=site".as_slice());
        let said = bench.directory.compare(&bench.operator, &person(uid), asked, None).await;
        assert_eq!(said, Ok(holds), "{uid}");
    }
}
