//! Examinations of domains against a name server on loopback: one without fault, and each fault alone.

use std::{fmt::Write as _, time::Duration};

use expect_test::expect_file;
use tocsin_connect::dns::Resolver;
use tocsin_mail_domain::{Finding, Level, Selector, Subject, ascii_domain, examine};
use tocsin_test_peers::NameServer;

const RSA_2048: &str = include_str!("keys/rsa-2048.b64");
/// The same key without its algorithm.
const RSA_2048_BARE: &str = include_str!("keys/rsa-2048-bare.b64");
const RSA_1024: &str = include_str!("keys/rsa-1024.b64");
const RSA_768: &str = include_str!("keys/rsa-768.b64");
const ED25519: &str = "QBfVM3zXv+361EkamKvCUYT76+aAMe6QtakYtM8O6II=";

/// The records of a domain without fault. Key records are written with the name of a key in brackets.
const GOOD: &str = r#"
example.org MX 10 mail.example.org.
example.org TXT "v=spf1 ip4:192.0.2.10 ip6:2001:db8::10 mx -all"
example.org TXT "another-verification=1"
mail.example.org A 192.0.2.10
mail.example.org AAAA 2001:db8::10
t1._domainkey.example.org TXT "v=DKIM1; k=rsa; p=[RSA_2048]"
t2._domainkey.example.org TXT "v=DKIM1; k=ed25519; p=[ED25519]"
_dmarc.example.org TXT "v=DMARC1; p=reject; rua=mailto:dmarc@example.org"
10.2.0.192.in-addr.arpa PTR mail.example.org.
0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa PTR mail.example.org.
_mta-sts.example.org TXT "v=STSv1; id=20260101"
_smtp._tls.example.org TXT "v=TLSRPTv1; rua=mailto:tls@example.org"
"#;

/// A change of the records of [`GOOD`], or of the subject, with a name.
struct Case {
    name: &'static str,
    /// Beginnings of lines that are removed.
    without: &'static [&'static str],
    with: &'static str,
    change: fn(&mut Subject),
}

fn case(name: &'static str, without: &'static [&'static str], with: &'static str) -> Case {
    Case { name, without, with, change: |_| {} }
}

impl Case {
    fn of(mut self, change: fn(&mut Subject)) -> Self {
        self.change = change;
        self
    }
}

fn keys(text: &str) -> String {
    let text = text.replace("[RSA_2048]", RSA_2048).replace("[RSA_2048_BARE]", RSA_2048_BARE);
    text.replace("[RSA_1024]", RSA_1024).replace("[RSA_768]", RSA_768).replace("[ED25519]", ED25519)
}

/// The texts of keys are long: they are replaced by their names.
fn key_names(text: &str) -> String {
    // A text record has strings of 255 bytes.
    let text = text.replace("\" \"", "");
    let text = text.replace(RSA_2048, "[RSA_2048]").replace(RSA_2048_BARE, "[RSA_2048_BARE]");
    text.replace(RSA_1024, "[RSA_1024]").replace(RSA_768, "[RSA_768]").replace(ED25519, "[ED25519]")
}

fn zone(case: &Case) -> String {
    let kept = GOOD.lines().filter(|line| !case.without.iter().any(|start| line.starts_with(start)));
    keys(&format!("{}\n{}", kept.collect::<Vec<_>>().join("\n"), case.with))
}

fn subject() -> Subject {
    let selector = |name: &str, record: Option<String>| Selector {
        name: name.to_owned(),
        domain: "example.org".to_owned(),
        record,
    };
    Subject {
        selectors: vec![
            selector("t1", Some(format!("v=DKIM1; k=rsa; p={RSA_2048}"))),
            selector("t2", Some(format!("v=DKIM1; k=ed25519; p={ED25519}"))),
        ],
        addresses: ["192.0.2.10", "2001:db8::10"].map(|text| text.parse().expect("an address")).to_vec(),
        ..Subject::new("example.org").expect("a domain")
    }
}

/// A channel with mail servers, whose addresses send.
fn hosts(subject: &mut Subject, hosts: &[&str]) {
    subject.addresses.clear();
    subject.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
}

async fn findings(case: &Case, timeout: Duration) -> Vec<Finding> {
    let server = NameServer::start(&zone(case));
    let resolver = Resolver::of_server(server.address(), timeout).expect("a resolver");
    let mut subject = subject();
    (case.change)(&mut subject);
    examine(&resolver, &subject).await
}

fn shown(findings: &[Finding], least: Level) -> String {
    let mut text = String::new();
    for finding in findings.iter().filter(|finding| finding.level >= least) {
        let Finding { level, check, subject, text: observed, source, advice, publish } = finding;
        let level = format!("{level:?}").to_lowercase();
        writeln!(text, "{level} {check} {subject}: {observed} [{source}]").expect("memory");
        if let Some(advice) = advice {
            writeln!(text, "    {advice}").expect("memory");
        }
        for record in publish {
            writeln!(text, "    > {} {} {}", record.name, record.kind, record.value).expect("memory");
        }
    }
    key_names(&text)
}

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_domain_without_fault_has_only_good_findings() {
    let found = findings(&case("good", &[], ""), TIMEOUT).await;
    expect_file!["good.txt"].assert_eq(&shown(&found, Level::Ok));
}

#[tokio::test]
async fn each_fault_has_a_finding_with_the_record_to_publish() {
    let mut report = String::new();
    for case in cases() {
        let found = findings(&case, TIMEOUT).await;
        let least = match case.name.split(':').next() {
            Some("optional") => Level::Info,
            Some("no fault") => Level::Ok,
            _ => Level::Warn,
        };
        let text = shown(&found, least);
        assert!(!text.is_empty(), "{} has no finding", case.name);
        writeln!(report, "# {}\n{text}", case.name).expect("memory");
    }
    expect_file!["faults.txt"].assert_eq(&report);
}

fn cases() -> Vec<Case> {
    const SPF: &[&str] = &["example.org TXT \"v=spf1"];
    const T1: &[&str] = &["t1."];
    const DMARC: &[&str] = &["_dmarc."];
    const MX: &[&str] = &["example.org MX"];
    const REVERSE: &[&str] = &["10.2.0.192"];
    vec![
        case("spf: no record", SPF, ""),
        case(
            "spf: two records",
            SPF,
            "example.org TXT \"v=spf1 mx ~all\"\n\
             example.org TXT \"v=spf1 ip4:192.0.2.10 ip6:2001:db8::10 -all\"",
        ),
        case("spf: not well-formed", SPF, "example.org TXT \"v=spf1 ipv4:192.0.2.9 ip4:192.0.2.10 mx -all\""),
        case("spf: +all", SPF, "example.org TXT \"v=spf1 mx +all\""),
        case("spf: ?all", SPF, "example.org TXT \"v=spf1 mx ?all\""),
        case("spf: no all", SPF, "example.org TXT \"v=spf1 mx\""),
        case("spf: terms after all", SPF, "example.org TXT \"v=spf1 mx -all ip4:192.0.2.99 redirect=example.net\""),
        case("spf: ptr", SPF, "example.org TXT \"v=spf1 mx ptr -all\""),
        case(
            "spf: ptr of an included record",
            SPF,
            "example.org TXT \"v=spf1 mx include:p.example.net -all\"\np.example.net TXT \"v=spf1 ptr ~all\"",
        ),
        case(
            "spf: too many lookups by includes",
            SPF,
            "example.org TXT \"v=spf1 mx include:a.example.net include:b.example.net -all\"\n\
             a.example.net TXT \"v=spf1 a:h.example.net mx:h2.example.net exists:%{i}.x.example.net \
             include:b.example.net ~all\"\n\
             b.example.net TXT \"v=spf1 a:h.example.net a:h.example.net redirect=c.example.net\"\n\
             c.example.net TXT \"v=spf1 a:h.example.net ~all\"\n\
             h.example.net A 192.0.2.77\nh2.example.net MX 10 h.example.net.",
        ),
        case(
            "spf: three void lookups",
            SPF,
            "example.org TXT \"v=spf1 mx a:v1.example.net mx:v2.example.net a:v3.example.net -all\"",
        ),
        case("spf: one void lookup", SPF, "example.org TXT \"v=spf1 mx a:v1.example.net -all\""),
        case(
            "spf: an included record is missing",
            SPF,
            "example.org TXT \"v=spf1 mx include:absent.example.net -all\"",
        ),
        case(
            "spf: an included record is not well-formed",
            SPF,
            "example.org TXT \"v=spf1 include:w.example.net mx -all\"\nw.example.net TXT \"v=spf1 ip4:1.2.3 -all\"",
        ),
        case(
            "spf: an included record cannot be looked up",
            SPF,
            "example.org TXT \"v=spf1 mx include:s.example.net -all\"\n\
             s.example.net SERVFAIL",
        ),
        case("spf: an address does not pass", SPF, "example.org TXT \"v=spf1 ip4:192.0.2.10 ~all\""),
        case("spf: server failure", SPF, "example.org SERVFAIL TXT"),
        case("spf: at the return domain", &[], "bounce.example.org MX 10 mail.example.org.")
            .of(|subject| subject.return_domains = vec!["bounce.example.org".to_owned()]),
        case("dkim: no record", T1, ""),
        case("dkim: no record of an unknown key", T1, "").of(|subject| subject.selectors[0].record = None),
        case("dkim: two records", &[], "t1._domainkey.example.org TXT \"v=DKIM1; p=[RSA_1024]\""),
        case("dkim: not well-formed", T1, "t1._domainkey.example.org TXT \"v=DKIM1; k\""),
        case("dkim: another version", T1, "t1._domainkey.example.org TXT \"v=DKIM2; p=[RSA_2048]\""),
        case("dkim: version not first", T1, "t1._domainkey.example.org TXT \"k=rsa; v=DKIM1; p=[RSA_2048]\""),
        case("dkim: no key", T1, "t1._domainkey.example.org TXT \"v=DKIM1; k=rsa\""),
        case("dkim: revoked", T1, "t1._domainkey.example.org TXT \"v=DKIM1; p=\""),
        case("dkim: not Base64", T1, "t1._domainkey.example.org TXT \"v=DKIM1; p=a*b\""),
        case("dkim: not a key", T1, "t1._domainkey.example.org TXT \"v=DKIM1; p=AAAA\""),
        case("dkim: unknown type", T1, "t1._domainkey.example.org TXT \"v=DKIM1; k=dsa; p=AAAA\""),
        case("dkim: short Ed25519 key", T1, "t1._domainkey.example.org TXT \"v=DKIM1; k=ed25519; p=AAAA\""),
        case("dkim: 1024 bits", T1, "t1._domainkey.example.org TXT \"p=[RSA_1024]\"")
            .of(|subject| subject.selectors[0].record = None),
        case("dkim: 768 bits", T1, "t1._domainkey.example.org TXT \"v=DKIM1; p=[RSA_768]\""),
        case(
            "dkim: another key than the channel's",
            T1,
            "t1._domainkey.example.org TXT \"v=DKIM1; k=ed25519; p=[ED25519]\"",
        ),
        case("dkim: test mode", T1, "t1._domainkey.example.org TXT \"v=DKIM1; t=y:s; p=[RSA_2048]\""),
        case("dkim: without SHA-256", T1, "t1._domainkey.example.org TXT \"v=DKIM1; h=sha1; p=[RSA_2048]\""),
        case("dkim: not for mail", T1, "t1._domainkey.example.org TXT \"v=DKIM1; s=tlsrpt; p=[RSA_2048]\""),
        case("dkim: server failure", T1, "t1._domainkey.example.org SERVFAIL"),
        case("dkim: no selector", &[], "").of(|subject| subject.selectors.clear()),
        case("dmarc: no policy", DMARC, ""),
        case("dmarc: two policies", &[], "_dmarc.example.org TXT \"v=DMARC1; p=none\""),
        case("dmarc: no p", DMARC, "_dmarc.example.org TXT \"v=DMARC1; rua=mailto:d@example.org\""),
        case("dmarc: unknown p", DMARC, "_dmarc.example.org TXT \"v=DMARC1; p=block\""),
        case("dmarc: not well-formed", DMARC, "_dmarc.example.org TXT \"v=DMARC1; p=reject; p=none\""),
        case("dmarc: unknown alignment mode", DMARC, "_dmarc.example.org TXT \"v=DMARC1; p=reject; adkim=x\""),
        case("dmarc: pct out of range", DMARC, "_dmarc.example.org TXT \"v=DMARC1; p=reject; pct=101\""),
        case("dmarc: none, a share, no reports", DMARC, "_dmarc.example.org TXT \"v=DMARC1; p=none; pct=50\""),
        case(
            "dmarc: reports to another organization",
            DMARC,
            "_dmarc.example.org TXT \"v=DMARC1; p=reject; rua=mailto:a@dmarc.example.net!10m,https://x.example\"",
        ),
        case("dmarc: server failure", DMARC, "_dmarc.example.org REFUSED"),
        case(
            "no fault: the policy of the organizational domain",
            &[],
            "news.example.org MX 10 mail.example.org.\nnews.example.org TXT \"v=spf1 mx -all\"",
        )
        .of(|subject| {
            subject.domain = "news.example.org".to_owned();
            subject.return_domains = vec!["news.example.org".to_owned()];
        }),
        case(
            "dmarc: sp=none",
            DMARC,
            "_dmarc.example.org TXT \"v=DMARC1; p=reject; sp=none; rua=mailto:d@example.org\"\n\
             news.example.org MX 10 mail.example.org.\nnews.example.org TXT \"v=spf1 mx -all\"",
        )
        .of(|subject| {
            subject.domain = "news.example.org".to_owned();
            subject.return_domains = vec!["news.example.org".to_owned()];
        }),
        case(
            "alignment: strict SPF with a subdomain",
            DMARC,
            "_dmarc.example.org TXT \"v=DMARC1; p=reject; aspf=s; rua=mailto:d@example.org\"\n\
             bounce.example.org MX 10 mail.example.org.\nbounce.example.org TXT \"v=spf1 mx -all\"",
        )
        .of(|subject| subject.return_domains = vec!["bounce.example.org".to_owned()]),
        case(
            "alignment: neither SPF nor DKIM",
            &[],
            "bounce.example.net MX 10 mail.example.org.\nbounce.example.net TXT \"v=spf1 mx -all\"\n\
             t1._domainkey.example.net TXT \"v=DKIM1; p=[RSA_2048]\"",
        )
        .of(|subject| {
            subject.return_domains = vec!["bounce.example.net".to_owned()];
            subject.selectors.truncate(1);
            subject.selectors[0].domain = "example.net".to_owned();
        }),
        case("reverse: no name", REVERSE, ""),
        case(
            "reverse: not confirmed",
            REVERSE,
            "10.2.0.192.in-addr.arpa PTR other.example.org.\n\
             other.example.org A 192.0.2.99",
        ),
        case(
            "reverse: generic",
            REVERSE,
            "10.2.0.192.in-addr.arpa PTR 192-0-2-10.isp.example.net.\n\
             192-0-2-10.isp.example.net A 192.0.2.10",
        ),
        case("reverse: server failure", REVERSE, "10.2.0.192.in-addr.arpa SERVFAIL"),
        case(
            "reverse: the name cannot be looked up",
            REVERSE,
            "10.2.0.192.in-addr.arpa PTR x.example.net.\n\
             x.example.net SERVFAIL",
        ),
        case("reverse: a private address", &[], "").of(|subject| subject.addresses = vec![[10, 0, 0, 1].into()]),
        case("mx: no record, no address", MX, ""),
        case("mx: no record, an address", MX, "example.org A 192.0.2.10"),
        case("mx: null MX", MX, "example.org MX 0 ."),
        case("mx: a host without an address", &[], "example.org MX 20 gone.example.org."),
        case("mx: only hosts without an address", MX, "example.org MX 20 gone.example.org."),
        case("mx: an address in place of a name", &[], "example.org MX 5 192.0.2.10."),
        case(
            "mx: a private address",
            &["example.org MX"],
            "example.org MX 5 in.example.org.\n\
             in.example.org A 10.0.0.5",
        ),
        case("mx: server failure", MX, "example.org SERVFAIL MX"),
        case("mx: the address cannot be looked up", &[], "example.org MX 20 s.example.net.\ns.example.net SERVFAIL"),
        case(
            "mx: the return domain has none",
            &[],
            "bounce.example.org TXT \"v=spf1 ip4:192.0.2.10 ip6:2001:db8::10 -all\"",
        )
        .of(|subject| subject.return_domains = vec!["bounce.example.org".to_owned()]),
        case("mx: the return domain does not exist", &[], "")
            .of(|subject| subject.return_domains = vec!["absent.example.org".to_owned()]),
        case("no fault: addresses of mail servers", &[], "")
            .of(|subject| hosts(subject, &["mail.example.org", "127.0.0.1"])),
        case("no fault: addresses of mail exchangers", &[], "").of(|subject| hosts(subject, &["127.0.0.1"])),
        case("sender: the mail server has no address", &[], "").of(|subject| hosts(subject, &["gone.example.net"])),
        case("sender: server failure", &[], "relay.example.net SERVFAIL")
            .of(|subject| hosts(subject, &["relay.example.net"])),
        case("optional: no MTA-STS and TLS-RPT", &["_mta-sts", "_smtp._tls"], ""),
        case(
            "optional: wrong MTA-STS and TLS-RPT",
            &["_mta-sts", "_smtp._tls"],
            "_mta-sts.example.org TXT \"v=STSv1\"\n\
             _smtp._tls.example.org SERVFAIL",
        ),
    ]
}

/// The same records in other notations are without fault.
#[tokio::test]
async fn other_notations_are_without_fault() {
    for case in [
        case("bare key", &["t1."], "t1._domainkey.example.org TXT \"v = DKIM1 ; p=[RSA_2048_BARE];\""),
        case("upper case", &["example.org TXT \"v=spf1"], "example.org TXT \"V=SPF1 MX -ALL\""),
        case("softfail", &["example.org TXT \"v=spf1"], "example.org TXT \"v=spf1 mx ~all\""),
        case(
            "redirect",
            &["example.org TXT \"v=spf1"],
            "example.org TXT \"v=spf1 redirect=s.example.net\"\ns.example.net TXT \"v=spf1 mx:example.org -all\"",
        ),
        case(
            "spaces in dmarc",
            &["_dmarc."],
            "_dmarc.example.org TXT \"v = DMARC1 ;p= Quarantine;rua=mailto:a@mail.example.org;\"",
        ),
        case(
            "permitted reports",
            &["_dmarc."],
            "_dmarc.example.org TXT \"v=DMARC1; p=reject; rua=mailto:a@r.example.net\"\n\
                 example.org._report._dmarc.r.example.net TXT \"v=DMARC1\"",
        ),
    ] {
        let found = findings(&case, TIMEOUT).await;
        assert_eq!(shown(&found, Level::Info), "", "{}", case.name);
    }
}

/// A silent name server: every record is unknown, none is absent, and the time is bounded.
#[tokio::test]
async fn a_silent_server_makes_records_unknown_not_absent() {
    let server = NameServer::start(
        "example.org SILENT\n_dmarc.example.org SILENT\n\
             t1._domainkey.example.org SILENT\nt2._domainkey.example.org SILENT",
    );
    let resolver = Resolver::of_server(server.address(), Duration::from_millis(300)).expect("a resolver");
    let found = examine(&resolver, &subject()).await;
    let unknown: Vec<&str> =
        found.iter().filter(|found| found.text.contains("did not answer in time")).map(|found| found.check).collect();
    assert_eq!(unknown, ["spf", "dkim", "dkim", "dmarc", "mx"], "{}", shown(&found, Level::Ok));
    assert!(!shown(&found, Level::Ok).contains("there is no SPF"), "{}", shown(&found, Level::Ok));
}

/// Without a server every record is unknown.
#[tokio::test]
async fn an_unreachable_server_is_a_failure() {
    let port = tocsin_test_peers::reserved_port();
    let timeout = Duration::from_millis(300);
    let resolver = Resolver::of_server(([127, 0, 0, 1], port).into(), timeout).expect("a resolver");
    let found = examine(&resolver, &Subject::new("example.org").expect("a domain")).await;
    assert!(found.iter().any(|found| found.level == Level::Fail && found.check == "mx"), "{found:?}");
    assert!(!shown(&found, Level::Ok).contains("there is no SPF"), "{}", shown(&found, Level::Ok));
}

#[test]
fn domains_are_in_ascii_form() {
    let domain = |text: &str| ascii_domain(text).map_err(|error| error.to_string());
    assert_eq!(domain("Bücher.Example.").as_deref(), Ok("xn--bcher-kva.example"));
    for text in ["", "example", "192.0.2.1", "a..b", "a b.example", "x@example.org", "https://example.org/"] {
        assert_eq!(domain(text), Err(format!("`{text}` is not a domain, such as `example.org`")));
    }
}
