//! Rights at the face: sort keys, and what a search of one entry shows.

mod support;

use support::{
    Bench,
    client::{Client, nested, text},
};
use tocsin_directory::filter::Filter;

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
        // As they are found, which is not the order of their titles.
        assert_eq!(closed, of(&["cyd", "ann"]), "{key}");
    }
    let found = order("cn=admin,o=site", "key", "title").await.expect("asked");
    assert_eq!(found, of(&["ann", "bob", "cyd"]));
    bench.stop().await;
}
