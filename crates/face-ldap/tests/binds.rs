//! F10: unauthenticated binds are rejected.

mod support;

use support::{
    Bench, PERSON,
    raw::{self, Raw},
};
use tocsin_face_ldap::LdapOptions;
use tocsin_test_peers::{Peer, missing};

/// Authorization identity of a connection.
async fn who(raw: &mut Raw, id: u8) -> String {
    let request = raw::element(0x77, &raw::element(0x80, b"1.3.6.1.4.1.4203.1.11.3"));
    raw.send(&raw::message(id, &request, &[])).await;
    let reply = raw.until_done(id).await;
    String::from_utf8_lossy(&reply[0].content).into_owned()
}

/// The result code of a bind by SASL PLAIN.
async fn plain(raw: &mut Raw, id: u8, said: &str) -> u8 {
    let sasl = raw::element(0xa3, &[raw::element(4, b"PLAIN"), raw::element(4, said.as_bytes())].concat());
    let bind = raw::element(0x60, &[&[2, 1, 3][..], &raw::element(4, b""), &sasl].concat());
    raw.send(&raw::message(id, &bind, &[])).await;
    raw.until_done(id).await[0].code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_sasl_plain_takes_the_own_authorization_identity_only() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::with(&[], LdapOptions::default()).await;
    bench.add(&[PERSON.replace("NAME", "ann"), PERSON.replace("NAME", "bob")].join("\n")).await;
    let mut raw = Raw::connect(bench.port).await;
    let own = "dn:cn=ann,ou=people,o=site";
    for (id, (other, code)) in (1..).zip([
        ("", 0),
        (own, 0),
        ("dn:CN=Ann, OU=people, O=site", 0),
        ("u:ann", 0),
        ("dn:cn=bob,ou=people,o=site", 49),
        ("dn:cn=admin,o=site", 49),
        ("dn:cn=unknown,o=site", 49),
        ("dn:=", 49),
        ("u:unknown", 49),
        ("unknown", 49),
    ]) {
        assert_eq!(plain(&mut raw, id, &format!("{other}\0{own}\0secret")).await, code, "{other}");
    }
    bench.stop().await;
}

/// Without a check of the password, the time of the response revealed whether the authorization identity exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b5_sasl_plain_checks_the_password_with_any_authorization_identity() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::with(&[], LdapOptions::default()).await;
    bench.add(&["ann", "bob", "eve"].map(|name| PERSON.replace("NAME", name)).join("\n")).await;
    let mut raw = Raw::connect(bench.port).await;
    // Each is a wrong password of the name, so that five lock it.
    for (name, other) in [("ann", "u:bob"), ("eve", "u:unknown")] {
        assert_eq!(plain(&mut raw, 1, &format!("\0{name}\0secret")).await, 0, "{name}");
        for id in 2..7 {
            assert_eq!(plain(&mut raw, id, &format!("{other}\0{name}\0wrong")).await, 49, "{other}");
        }
        assert_eq!(plain(&mut raw, 7, &format!("\0{name}\0secret")).await, 49, "{name} is locked");
    }
    assert_eq!(plain(&mut raw, 8, "u:bob\0unknown\0secret").await, 49);
    assert_eq!(plain(&mut raw, 9, "u:bob\0bob\0secret").await, 0, "bob is not locked");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f10_a_name_with_an_empty_password_is_not_bound_as_that_name() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    for anonymous in [true, false] {
        let bench = Bench::with(&[], LdapOptions { anonymous, ..LdapOptions::default() }).await;
        bench.add(&PERSON.replace("NAME", "ann").replace("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")).await;
        bench.add(&PERSON.replace("NAME", "bo").replace("userPassword: secret\n", "")).await;
        let mut raw = Raw::connect(bench.port).await;
        let names = [
            "cn=ann,ou=people,o=site",
            "CN=Ann, OU=people, O=site",
            "cn=bo,ou=people,o=site",
            "cn=admin,o=site",
            "cn=nobody,o=site",
            "o=site",
        ];
        for (id, name) in (1..).step_by(3).zip(names) {
            // An earlier bind is invalid, too.
            raw.send(&raw::message(id, &raw::bind("cn=ann,ou=people,o=site", "secret"), &[])).await;
            assert_eq!(raw.until_done(id).await[0].code(), 0);
            raw.send(&raw::message(id + 1, &raw::bind(name, ""), &[])).await;
            assert_eq!(raw.until_done(id + 1).await[0].code(), 53, "{name}: RFC 4513, section 5.1.2");
            let identity = who(&mut raw, id + 2).await;
            assert!(!identity.contains("dn:"), "{name}: {identity:?}");
        }
        // SASL PLAIN with an empty password.
        for reply in ["\0cn=ann,ou=people,o=site\0", "\0dn:cn=ann,ou=people,o=site\0", "\0ann\0", "\0\0"] {
            let sasl = raw::element(0xa3, &[raw::element(4, b"PLAIN"), raw::element(4, reply.as_bytes())].concat());
            let bind = raw::element(0x60, &[&[2, 1, 3][..], &raw::element(4, b""), &sasl].concat());
            raw.send(&raw::message(100, &bind, &[])).await;
            assert_eq!(raw.until_done(100).await[0].code(), 49, "{reply:?}");
            let identity = who(&mut raw, 101).await;
            assert!(!identity.contains("dn:"), "{reply:?}: {identity:?}");
        }
        bench.stop().await;
    }
}
