//! Evaluations against a name server on loopback.

use std::time::Duration;

use tocsin_connect::dns::Resolver;
use tocsin_test_peers::NameServer;

use super::check_host::check_sender;

/// Zones of RFC 7208, appendix A.1.
const STANDARD: &str = r#"
    example.com MX 10 mail-a.example.com.
    example.com MX 20 mail-b.example.com.
    example.com A 192.0.2.10
    example.com A 192.0.2.11
    amy.example.com A 192.0.2.65
    bob.example.com A 192.0.2.66
    mail-a.example.com A 192.0.2.129
    mail-b.example.com A 192.0.2.130
    www.example.com CNAME example.com.
    example.org MX 10 mail-c.example.org.
    mail-c.example.org A 192.0.2.140
    10.2.0.192.in-addr.arpa PTR example.com.
    11.2.0.192.in-addr.arpa PTR example.com.
    65.2.0.192.in-addr.arpa PTR amy.example.com.
    66.2.0.192.in-addr.arpa PTR bob.example.com.
    129.2.0.192.in-addr.arpa PTR mail-a.example.com.
    130.2.0.192.in-addr.arpa PTR mail-b.example.com.
    140.2.0.192.in-addr.arpa PTR mail-c.example.org.
    20.2.0.192.in-addr.arpa PTR not.example.com.
    not.example.com A 203.0.113.1
"#;

fn resolver(server: &NameServer, timeout: Duration) -> Resolver {
    Resolver::of_server(server.address(), timeout).expect("a resolver")
}

async fn result(resolver: &Resolver, sender: &str, address: &str) -> &'static str {
    let (local, domain) = sender.split_once('@').unwrap_or(("postmaster", sender));
    let address = address.parse().expect("an address");
    check_sender(resolver, address, domain, local, domain, "mail.example.net").await.result.name()
}

/// Checks results of `example.com` with the zones of the standard: a record and its addresses that pass and that fail.
#[tokio::test]
async fn the_examples_of_the_standard_have_its_results() {
    let server = NameServer::start(STANDARD);
    let resolver = resolver(&server, Duration::from_secs(20));
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("v=spf1 +all", &["192.0.2.129", "203.0.113.9"], &[]),
        ("v=spf1 a -all", &["192.0.2.10", "192.0.2.11"], &["192.0.2.65", "2001:db8::1"]),
        ("v=spf1 a:example.org -all", &[], &["192.0.2.10", "192.0.2.140"]),
        ("v=spf1 mx -all", &["192.0.2.129", "192.0.2.130"], &["192.0.2.140"]),
        ("v=spf1 mx:example.org -all", &["192.0.2.140"], &["192.0.2.129"]),
        ("v=spf1 mx mx:example.org -all", &["192.0.2.129", "192.0.2.130", "192.0.2.140"], &["192.0.2.10"]),
        ("v=spf1 mx/30 mx:example.org/30 -all", &["192.0.2.131", "192.0.2.143"], &["192.0.2.132", "192.0.2.144"]),
        ("v=spf1 ptr -all", &["192.0.2.10", "192.0.2.65"], &["192.0.2.140", "192.0.2.20"]),
        ("v=spf1 ip4:192.0.2.128/28 -all", &["192.0.2.129", "192.0.2.140"], &["192.0.2.65"]),
        ("v=spf1 a:www.example.com -all", &["192.0.2.10"], &["192.0.2.65"]),
        ("v=spf1 ip6:2001:db8::/32 -all", &["2001:db8:1::1"], &["2001:db9::1", "192.0.2.1"]),
        ("v=spf1 ip4:192.0.2.1 -all", &["::ffff:192.0.2.1"], &[]),
        ("v=spf1 exists:%{ir}.allowed.%{d} -all", &[], &["192.0.2.1"]),
    ];
    for (record, passing, failing) in cases {
        server.set(&format!("{STANDARD}\nexample.com TXT \"{record}\""));
        for address in *passing {
            assert_eq!(result(&resolver, "example.com", address).await, "pass", "{record}: {address}");
        }
        for address in *failing {
            assert_eq!(result(&resolver, "example.com", address).await, "fail", "{record}: {address}");
        }
    }
}

/// RFC 7208, appendix A.4: a record for each user, and addresses that a zone lists.
#[tokio::test]
async fn exists_depends_on_the_mail() {
    let server = NameServer::start(
        r#"
        example.com TXT "v=spf1 exists:%{l}._users.%{d} -exists:%{ir}.%{v}._denied.%{d2} ?all"
        mary._users.example.com A 127.0.0.2
        3.2.0.192.in-addr._denied.example.com A 127.0.0.2
        named.example TXT "v=spf1 exists:%{p}.%{h}.ok.example -all"
        9.2.0.192.in-addr.arpa PTR out.named.example.
        out.named.example A 192.0.2.9
        out.named.example.mail.example.net.ok.example A 127.0.0.2
        unknown.mail.example.net.ok.example A 127.0.0.2
        "#,
    );
    let resolver = resolver(&server, Duration::from_secs(20));
    assert_eq!(result(&resolver, "mary@example.com", "192.0.2.3").await, "pass");
    assert_eq!(result(&resolver, "bob@example.com", "192.0.2.3").await, "fail");
    assert_eq!(result(&resolver, "bob@example.com", "192.0.2.4").await, "neutral");
    assert_eq!(result(&resolver, "named.example", "192.0.2.9").await, "pass");
    assert_eq!(result(&resolver, "named.example", "192.0.2.8").await, "pass", "by the word `unknown`");
}

#[tokio::test]
async fn includes_redirects_and_errors_have_their_results() {
    let server = NameServer::start(
        r#"
        good.example TXT "v=spf1 ip4:192.0.2.1 -all"
        soft.example TXT "v=spf1 ip4:192.0.2.2 ~all"
        includes.example TXT "v=spf1 include:good.example include:soft.example ?all"
        redirects.example TXT "v=spf1 redirect=soft.example"
        ignored.example TXT "v=spf1 redirect=soft.example ip4:192.0.2.9 -all"
        lost.example TXT "v=spf1 include:absent.example -all"
        nowhere.example TXT "v=spf1 redirect=absent.example"
        two.example TXT "v=spf1 -all"
        two.example TXT "v=spf1 ~all"
        wrong.example TXT "v=spf1 ip4:192.0.2.300 -all"
        late.example TXT "v=spf1 ip4:192.0.2.1 include:absent.example -all"
        deep.example TXT "v=spf1 include:wrong.example -all"
        loop.example TXT "v=spf1 include:loop.example -all"
        other.example TXT "v=spf2.0/pra -all"
        none.example A 192.0.2.1
        broken.example SERVFAIL
        over.example TXT "v=spf1 a:broken.example -all"
        void.example TXT "v=spf1 a:v1.example a:v2.example a:v3.example -all"
        nearly.example TXT "v=spf1 a:v1.example a:v2.example ip4:192.0.2.1 -all"
        "#,
    );
    let resolver = resolver(&server, Duration::from_secs(20));
    for (domain, address, expected) in [
        ("good.example", "192.0.2.1", "pass"),
        ("good.example", "192.0.2.2", "fail"),
        ("includes.example", "192.0.2.2", "pass"),
        ("includes.example", "192.0.2.3", "neutral"),
        ("redirects.example", "192.0.2.3", "softfail"),
        ("ignored.example", "192.0.2.9", "pass"),
        ("ignored.example", "192.0.2.2", "fail"),
        ("lost.example", "192.0.2.1", "permerror"),
        ("nowhere.example", "192.0.2.1", "permerror"),
        ("two.example", "192.0.2.1", "permerror"),
        ("wrong.example", "192.0.2.1", "permerror"),
        ("late.example", "192.0.2.1", "pass"),
        ("deep.example", "192.0.2.1", "permerror"),
        ("loop.example", "192.0.2.1", "permerror"),
        ("other.example", "192.0.2.1", "none"),
        ("none.example", "192.0.2.1", "none"),
        ("absent.example", "192.0.2.1", "none"),
        ("localhost", "192.0.2.1", "none"),
        ("broken.example", "192.0.2.1", "temperror"),
        ("over.example", "192.0.2.1", "temperror"),
        ("void.example", "192.0.2.1", "permerror"),
        ("nearly.example", "192.0.2.1", "pass"),
    ] {
        assert_eq!(result(&resolver, domain, address).await, expected, "{domain} {address}");
    }
}

#[tokio::test]
async fn ten_lookups_are_permitted_and_eleven_are_not() {
    let hosts = |count: u32| (0..count).map(|at| format!("a:h{at}.example")).collect::<Vec<_>>().join(" ");
    let zone: Vec<String> = (0..12).map(|at| format!("h{at}.example A 192.0.2.{at}")).collect();
    let record = |name: &str, count| format!("{name} TXT \"v=spf1 {} ip4:203.0.113.1 -all\"", hosts(count));
    let (ten, eleven) = (record("ten.example", 10), record("eleven.example", 11));
    let server = NameServer::start(&format!("{}\n{ten}\n{eleven}", zone.join("\n")));
    let resolver = resolver(&server, Duration::from_secs(20));
    assert_eq!(result(&resolver, "ten.example", "203.0.113.1").await, "pass");
    assert_eq!(result(&resolver, "eleven.example", "203.0.113.1").await, "permerror");
    assert_eq!(result(&resolver, "eleven.example", "192.0.2.9").await, "pass", "the tenth lookup matches");
}

#[tokio::test]
async fn eleven_exchangers_are_a_permanent_error() {
    let exchangers =
        |count: u32| (0..count).map(|at| format!("m.example MX {at} m{at}.example.\n")).collect::<String>();
    let server = NameServer::start(&format!("{}m.example TXT \"v=spf1 mx ?all\"", exchangers(10)));
    let resolver = resolver(&server, Duration::from_secs(20));
    assert_eq!(result(&resolver, "m.example", "192.0.2.1").await, "neutral");
    server.set(&format!("{}m.example TXT \"v=spf1 mx ?all\"", exchangers(11)));
    assert_eq!(result(&resolver, "m.example", "192.0.2.1").await, "permerror");
}

#[tokio::test]
async fn a_silent_server_is_a_temporary_error() {
    let server = NameServer::start("slow.example SILENT");
    let resolver = resolver(&server, Duration::from_millis(300));
    assert_eq!(result(&resolver, "slow.example", "192.0.2.1").await, "temperror");
}
