//! Access rights of sort keys and base searches.

mod support;

use support::{
    Bench,
    client::{Client, nested, text},
};
use tocsin_directory::filter::Filter;
use tocsin_test_peers::{Peer, missing};

fn search(base: &str, scope: u8, filter: &Filter, controls: &[u8]) -> Vec<u8> {
    let number = |tag: u8, value: u8| nested(tag, &[&[value]]);
    let request = nested(
        0x63,
        &[
            &text(4, base),
            &number(10, scope),
            &number(10, 0),
            &number(2, 0),
            &number(2, 0),
            &nested(1, &[&[0]]),
            &support::client::filter(filter),
            &nested(0x30, &[&text(4, "uid")]),
        ],
    );
    [&request[..], controls].concat()
}

fn sorted_by(name: &str) -> Vec<u8> {
    let keys = nested(0x30, &[&nested(0x30, &[&text(4, name)])]);
    let control = nested(0x30, &[&text(4, "1.2.840.113556.1.4.473"), &nested(1, &[&[0xff]]), &nested(4, &[&keys])]);
    nested(0xa0, &[&control])
}

#[tokio::test]
async fn a2_entries_are_not_sorted_by_what_may_not_be_read() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let rules = ["to attrs=title by self write by users none", "to * by self write by users read by * auth"];
    let bench = Bench::start(&rules).await;
    let mut ldif = String::new();
    for (uid, title) in [("ann", "a"), ("bob", "b"), ("cyd", "c")] {
        ldif += &format!(
            "dn: uid={uid},ou=people,o=site\nobjectClass: inetOrgPerson\nuid: {uid}\ncn: x\nsn: x\ntitle: {title}\nuserPassword: pw\n\n"
        );
    }
    bench.add(&ldif).await;
    let all = Filter::Present("uid".to_owned());
    let order = |dn: &'static str, password: &'static str, key: &'static str| {
        let (port, all) = (bench.port, all.clone());
        tokio::task::spawn_blocking(move || {
            let mut client = Client::open(port, dn, password);
            client.order(&search("o=site", 2, &all, &sorted_by(key)))
        })
    };
    let of = |uids: &[&str]| uids.iter().map(|uid| format!("uid={uid},ou=people,o=site")).collect::<Vec<_>>();
    for key in ["title", "name", "2.5.4.12"] {
        let found = order("uid=bob,ou=people,o=site", "pw", key).await.expect("asked");
        if key != "name" {
            assert_eq!(found[0], of(&["bob"])[0], "{key}: the own title comes before those that are closed");
        }
        let closed: Vec<_> = found.into_iter().filter(|dn| !dn.contains("bob")).collect();
        // Store order, which is not the order of the titles.
        assert_eq!(closed, of(&["cyd", "ann"]), "{key}");
    }
    let found = order("cn=admin,o=site", "key", "title").await.expect("asked");
    assert_eq!(found, of(&["ann", "bob", "cyd"]));
    bench.stop().await;
}

/// A critical control with its value.
fn control(oid: &str, value: &[u8]) -> Vec<u8> {
    nested(0xa0, &[&nested(0x30, &[&text(4, oid), &nested(1, &[&[0xff]]), &nested(4, &[value])])])
}

#[tokio::test]
async fn a_search_and_a_comparison_are_held_against_an_assertion() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let rules = ["to attrs=title by self write by users none", "to * by self write by users read by * auth"];
    let bench = Bench::start(&rules).await;
    let mut ldif = String::new();
    for uid in ["ann", "bob"] {
        ldif += &format!(
            "dn: uid={uid},ou=people,o=site\nobjectClass: inetOrgPerson\nuid: {uid}\ncn: x\nsn: x\ntitle: a\nuserPassword: pw\n\n"
        );
    }
    bench.add(&ldif).await;
    let port = bench.port;
    let asked = tokio::task::spawn_blocking(move || {
        let mut client = Client::open(port, "uid=bob,ou=people,o=site", "pw");
        let equal = |name: &str, value: &str| Filter::Equal(name.to_owned(), value.as_bytes().to_vec());
        // RFC 4528: an assertion reveals no more than a search under the same rights.
        for (filter, meets) in [(equal("cn", "x"), true), (equal("cn", "y"), false), (equal("title", "a"), false)] {
            let assertion = control("1.3.6.1.1.12", &support::client::filter(&filter));
            let ann = "uid=ann,ou=people,o=site";
            let reply = client.send_request(&search(ann, 0, &Filter::Present("uid".to_owned()), &assertion));
            assert_eq!((reply.code, reply.entries.len()), if meets { (0, 1) } else { (122, 0) }, "{filter:?}");
            let compare = nested(0x6e, &[&text(4, ann), &nested(0x30, &[&text(4, "sn"), &text(4, "X")])]);
            let reply = client.send_request(&[&compare[..], &assertion].concat());
            assert_eq!(reply.code, if meets { 6 } else { 122 }, "{filter:?}");
        }
    });
    asked.await.expect("asked");
    bench.stop().await;
}

#[tokio::test]
async fn the_criticality_of_a_control_of_an_unbind_is_ignored() {
    let bench = Bench::start(&[]).await;
    let port = bench.port;
    let asked = tokio::task::spawn_blocking(move || {
        let mut client = Client::open(port, "cn=admin,o=site", "key");
        client.send(&[&nested(0x42, &[])[..], &control("1.2.3", b"")].concat());
        assert!(client.message().is_none(), "RFC 4511, 4.3: there is no answer");
    });
    asked.await.expect("asked");
    bench.stop().await;
}
