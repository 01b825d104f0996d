//! Dynamic entries, as seen and refreshed by Debian's ldap-utils.

mod support;

use support::Bench;
use tocsin_test_peers::{Peer, missing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_expire_unless_a_client_refreshes_them() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.add("dn: ou=dynamic,o=site\nobjectClass: organizationalUnit\nou: dynamic\n").await;
    let desk = "cn=desk,ou=dynamic,o=site";
    bench.add(&format!("dn: {desk}\nobjectClass: applicationProcess\nobjectClass: dynamicObject\ncn: desk\n")).await;
    let left = async || {
        let found = bench.search(desk, "base", &["(objectClass=dynamicObject)", "entryTtl"]).await;
        let left = found.lines().find_map(|line| line.strip_prefix("entryTtl: ")).expect("it ends").to_owned();
        left.parse::<u32>().expect("seconds")
    };
    assert!((86_000..=86_400).contains(&left().await));
    let reply = bench.run("ldapexop", &["refresh", desk, "1000"], "", 0).await;
    assert!(reply.contains("newttl=1000"), "{reply}");
    assert!((900..=1_000).contains(&left().await));
    // The program exits with 1 on every error; other tests check the codes.
    bench.run("ldapexop", &["refresh", "ou=dynamic,o=site", "1000"], "", 1).await;
    bench.run("ldapexop", &["refresh", "cn=nobody,o=site", "1000"], "", 1).await;
    bench.run("ldapexop", &["refresh", desk, "99999999"], "", 1).await;
    assert!(!bench.search(desk, "base", &["(objectClass=*)"]).await.contains("entry"));
    let root = bench.search("", "base", &["(objectClass=*)", "+"]).await;
    for line in ["dynamicSubtrees: o=site", "supportedExtension: 1.3.6.1.4.1.1466.101.119.1"] {
        assert!(root.contains(&format!("{line}\n")), "{line} in {root}");
    }
    bench.stop().await;
}
