//! A connection loses its rights when its bind becomes invalid.

mod support;

use std::time::Duration;

use support::{
    Bench, PERSON,
    client::{Client, filter, nested, text},
};
use tocsin_directory::{Directory, Modification, ModifyType, Preconditions, access::AuthzId, filter::Filter};
use tocsin_face_ldap::Validity;
use tocsin_model::{subscriber::Profile, time::Timestamp};
use tocsin_store::records::{NewSubscriber, Precondition, SubscriberStore};
use tocsin_test_peers::{Peer, missing};

const OPERATOR: &str = "cn=admin,o=site";
const ANN: &str = "cn=ann,ou=people,o=site";
/// Notice of disconnection (RFC 4511, 4.4.1).
const STRONGER_AUTH_REQUIRED: u32 = 8;

fn search(base: &str, scope: u8, controls: &[u8]) -> Vec<u8> {
    let number = |tag: u8, value: u8| nested(tag, &[&[value]]);
    let limits = [number(10, 0), number(2, 0), number(2, 0), nested(1, &[&[0]])].concat();
    let all = filter(&Filter::Present("objectClass".to_owned()));
    let request = nested(0x63, &[&text(4, base), &number(10, scope), &limits, &all, &nested(0x30, &[&text(4, "cn")])]);
    [&request[..], controls].concat()
}

/// Control of a persistent search.
fn persists() -> Vec<u8> {
    let value = nested(0x30, &[&nested(10, &[&[3]])]);
    let control = nested(0x30, &[&text(4, "1.3.6.1.4.1.4203.1.9.1.1"), &nested(1, &[&[0xff]]), &nested(4, &[&value])]);
    nested(0xa0, &[&control])
}

fn operator() -> AuthzId {
    AuthzId { manages: true, ..AuthzId::default() }
}

async fn replace(directory: &Directory, requester: &AuthzId, dn: &str, attribute: &str, value: &[&str]) {
    let values = value.iter().map(|value| value.as_bytes().to_vec()).collect();
    let change = Modification { act: ModifyType::Replace, attribute: attribute.to_owned(), values };
    directory.modify(requester, dn, vec![change], Preconditions::default()).await.expect("changed");
}

/// Runs blocking socket work beside the server.
async fn run_blocking<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(job).await.expect("it runs")
}

async fn open(bench: &Bench, dn: &'static str, password: &'static str) -> Client {
    let port = bench.port;
    run_blocking(move || Client::open(port, dn, password)).await
}

async fn code(mut client: Client) -> (u32, Client) {
    run_blocking(move || (client.send_request(&search("o=site", 0, &[])).code, client)).await
}

/// The next message is the notice of disconnection.
async fn ends(mut client: Client) {
    let (code, seen) = run_blocking(move || {
        let mut seen = Vec::new();
        (client.notice_of_disconnection(&mut seen), seen)
    })
    .await;
    assert_eq!((code, seen), (STRONGER_AUTH_REQUIRED, Vec::new()));
}

async fn with_ann() -> Bench {
    let bench = Bench::start(&[]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_renames_or_removes_its_own_entry_gets_the_response() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    let mut client = open(&bench, ANN, "secret").await;
    let rename = |dn: &str, rdn: &str| nested(0x6c, &[&text(4, dn), &text(4, rdn), &nested(1, &[&[0xff]])]);
    let there = rename(ANN, "cn=anna");
    let back = rename("cn=anna,ou=people,o=site", "cn=ann");
    let client = run_blocking(move || {
        let codes =
            [&there, &back, &search("o=site", 0, &[]), &text(0x4a, ANN)].map(|asked| client.send_request(asked).code);
        assert_eq!(codes, [0; 4], "the client learns what became of its requests, and goes on");
        client
    });
    // A bind ends with its entry, after the response.
    ends(client.await).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_removed_key_ends_the_connections_that_it_bound() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    bench.keys.put("other", Validity { ends_in: None });
    let (first, other) = (open(&bench, OPERATOR, "key").await, open(&bench, OPERATOR, "other").await);
    let (reply, first) = code(first).await;
    assert_eq!(reply, 0);
    bench.keys.remove("key", true);
    ends(first).await;
    assert_eq!(code(other).await.0, 0, "another key holds");
    let port = bench.port;
    assert!(run_blocking(move || Client::try_open(port, OPERATOR, "key").is_none()).await);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_an_expired_key_ends_at_its_time_without_a_notice() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    bench.keys.put("brief", Validity { ends_in: Some(Duration::ZERO) });
    let client = open(&bench, OPERATOR, "brief").await;
    let (reply, client) = code(client).await;
    assert_eq!(reply, 0, "the clock of the keys decides");
    bench.keys.remove("brief", false);
    // An expired key is looked up again after a millisecond, so one more request may be answered; then the connection
    // ends.
    let mut client = client;
    let code = run_blocking(move || {
        client.send(&search("o=site", 0, &[]));
        client.notice_of_disconnection(&mut Vec::new())
    });
    assert_eq!(code.await, STRONGER_AUTH_REQUIRED);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_search_that_follows_ends_with_its_key_before_it_is_sent_more() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    let mut client = open(&bench, OPERATOR, "key").await;
    let mut client = run_blocking(move || {
        client.send(&search("o=site", 2, &persists()));
        // The end of the refresh stage.
        while client.message().expect("the content").windows(2).all(|pair| pair[0] != 0x79) {}
        client
    })
    .await;
    bench.keys.remove("key", true);
    replace(&bench.directory, &operator(), ANN, "title", &["secret"]).await;
    let (code, seen) = run_blocking(move || {
        let mut seen = Vec::new();
        (client.notice_of_disconnection(&mut seen), seen)
    })
    .await;
    assert_eq!(code, STRONGER_AUTH_REQUIRED);
    assert!(!seen.contains(&0x64), "{seen:?}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_a_changed_password_ends_other_connections_but_not_that_of_the_change() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    let (own, other) = (open(&bench, ANN, "secret").await, open(&bench, ANN, "secret").await);
    let own = run_blocking(move || {
        let mut own = own;
        let change = nested(
            0x30,
            &[&nested(10, &[&[2]]), &support::client::attribute("userPassword", &["another one".to_owned()])],
        );
        let request = nested(0x66, &[&text(4, ANN), &nested(0x30, &[&change])]);
        assert_eq!(own.send_request(&request).code, 0);
        own
    })
    .await;
    ends(other).await;
    let (reply, own) = code(own).await;
    assert_eq!(reply, 0, "it changed the password itself");
    replace(&bench.directory, &operator(), ANN, "userPassword", &["given by others"]).await;
    ends(own).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_a_client_that_removes_its_own_password_gets_the_response_before_the_notice() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    let mut client = open(&bench, ANN, "secret").await;
    let client = run_blocking(move || {
        let change = nested(0x30, &[&nested(10, &[&[1]]), &support::client::attribute("userPassword", &[])]);
        let request = nested(0x66, &[&text(4, ANN), &nested(0x30, &[&change])]);
        assert_eq!(client.send_request(&request).code, 0);
        assert!(client.has_read_all(), "the notice comes later, so that no client takes it for the response");
        client
    })
    .await;
    // Nothing is authorized any more.
    let (code, seen) = run_blocking(move || {
        let (mut client, mut seen) = (client, Vec::new());
        client.send(&search("o=site", 0, &[]));
        (client.notice_of_disconnection(&mut seen), seen)
    })
    .await;
    assert_eq!((code, seen), (STRONGER_AUTH_REQUIRED, Vec::new()));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_wrong_passwords_of_others_end_nothing() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_ann().await;
    let client = open(&bench, ANN, "secret").await;
    let port = bench.port;
    run_blocking(move || (0..6).for_each(|_| assert!(Client::try_open(port, ANN, "wrong").is_none()))).await;
    assert!(run_blocking(move || Client::try_open(port, ANN, "secret").is_none()).await, "it is locked");
    assert_eq!(code(client).await.0, 0);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_an_entry_that_is_locked_disabled_or_removed_ends_its_connections() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    for act in ["lock", "disable", "remove", "remove by the API", "disable by the API", "take the password"] {
        let bench = with_ann().await;
        let client = open(&bench, ANN, "secret").await;
        let id = "ann".parse().expect("an id");
        match act {
            "lock" => {
                replace(&bench.directory, &operator(), ANN, "pwdAccountLockedTime", &["000001010000Z"]).await;
            }
            "disable" => replace(&bench.directory, &operator(), ANN, "tocsinEnabled", &["FALSE"]).await,
            "take the password" => replace(&bench.directory, &operator(), ANN, "userPassword", &[]).await,
            "remove" => {
                bench.directory.remove(&operator(), ANN, Preconditions::default()).await.expect("removed");
            }
            "remove by the API" => {
                bench.records.remove_subscriber(&id, Precondition::Any, Timestamp(9)).await.expect("removed");
            }
            _ => {
                let ann = bench.subscriber("ann").await;
                let profile = Profile { enabled: false, ..ann.profile };
                let new = NewSubscriber { kept: Default::default(), id, profile, devices: None, preferences: None };
                bench.records.put_subscriber(new, Precondition::Any, Timestamp(9)).await.expect("stored");
            }
        }
        ends(client).await;
        let port = bench.port;
        assert!(run_blocking(move || Client::try_open(port, ANN, "secret").is_none()).await, "{act}");
        bench.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a9_rights_of_a_group_go_with_the_membership() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let group = "cn=readers,o=site";
    let rules = ["to attrs=userPassword by * auth", "to * by group=\"cn=readers,o=site\" read by self read by * none"];
    let bench = Bench::start(&rules).await;
    bench.add(&[PERSON.replace("NAME", "ann"), PERSON.replace("NAME", "bob")].join("\n")).await;
    bench.add(&format!("dn: {group}\nobjectClass: groupOfNames\ncn: readers\nmember: {ANN}\n")).await;
    let client = open(&bench, ANN, "secret").await;
    let (reply, client) = code(client).await;
    assert_eq!(reply, 0);
    replace(&bench.directory, &operator(), group, "member", &["cn=bob,ou=people,o=site"]).await;
    assert_eq!(code(client).await.0, 32, "nothing but its own entry is left");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_a_client_that_follows_is_sent_no_identifiers_of_hidden_entries() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let rules = [
        "to attrs=userPassword by * auth",
        "to dn=\"ou=secret,o=site\" by users none",
        "to * by self write by users read by * none",
    ];
    let bench = Bench::start(&rules).await;
    bench.add(&[PERSON.replace("NAME", "ann"), PERSON.replace("NAME", "bob")].join("\n")).await;
    bench.add("dn: ou=secret,o=site\nobjectClass: organizationalUnit\n").await;
    let secret = |name: &str| PERSON.replace("NAME", name).replace("ou=people", "ou=secret");
    bench.add(&secret("eve")).await;
    let mut client = open(&bench, ANN, "secret").await;
    let mut client = run_blocking(move || {
        client.send(&search("o=site", 2, &persists()));
        while client.message().expect("the content").windows(2).all(|pair| pair[0] != 0x79) {}
        client
    })
    .await;
    // Changes of hidden entries are not sent; a visible change is.
    replace(&bench.directory, &operator(), "cn=eve,ou=secret,o=site", "title", &["x"]).await;
    bench.directory.remove(&operator(), "cn=eve,ou=secret,o=site", Preconditions::default()).await.expect("removed");
    bench.add(&secret("fay")).await;
    bench.directory.remove(&operator(), "cn=bob,ou=people,o=site", Preconditions::default()).await.expect("removed");
    let bobs = bench.directory.find(ANN).await.expect("there").entry.number;
    let names = run_blocking(move || {
        let mut names = Vec::new();
        loop {
            let message = client.message().expect("what changed");
            let mut message =
                tocsin_face_ldap::ber::Reader(tocsin_face_ldap::ber::Reader(&message).expect(0x30).expect("a message"));
            message.count(2).expect("a number");
            let (tag, content) = message.value().expect("an operation");
            if tag == 0x64 {
                names.push(tocsin_face_ldap::ber::Reader(content).text(4).expect("a name"));
                return names;
            }
        }
    })
    .await;
    let bob = tocsin_store::entries::EntryNumber(bobs.0 - 1);
    assert_eq!(names, [format!("entryUUID={},o=site", tocsin_directory::entry::Entry::uuid_of(bob))]);
    bench.stop().await;
}
