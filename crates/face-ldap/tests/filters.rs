//! Filter evaluation (RFC 4511), and its cost limits.

mod support;

use support::{Bench, PERSON};
use tocsin_face_ldap::LdapOptions;
use tocsin_test_peers::{Peer, missing};

/// Number of matching entries below the container of subscribers.
async fn count(bench: &Bench, filter: &str) -> usize {
    bench.search("ou=people,o=site", "one", &[filter, "1.1"]).await.matches("dn: ").count()
}

async fn with_addresses() -> Bench {
    let bench = Bench::start(&[]).await;
    let ann = PERSON.replace("NAME", "ann");
    bench.add(&format!("{ann}x121Address: 12 34\npostalAddress: a$ B  $c\ntelephoneNumber: +43 1-234\n")).await;
    bench.add(&format!("{}postalAddress: a b$c\n", PERSON.replace("NAME", "bo"))).await;
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_an_assertion_that_is_not_of_its_syntax_is_undefined() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_addresses().await;
    for (filter, expected) in [
        ("(!(x121Address=abc))", 0),
        ("(!(x121Address=12))", 2),
        ("(x121Address=1234)", 1),
        ("(!(sn=))", 0),
        ("(!(telephoneNumber=+43ü))", 0),
        ("(!(telephoneNumber=+431234))", 1),
        ("(!(mail=jörg@example.org))", 0),
        ("(!(mail=))", 2),
        ("(!(tocsinEnabled=perhaps))", 0),
        ("(!(manager=ann))", 0),
        ("(!(manager=cn=ann,o=site))", 2),
        ("(!(createTimestamp>=2026))", 0),
        ("(!(createTimestamp<=20261121093000+2500))", 0),
        ("(!(objectClass=nosuchclass))", 0),
        ("(!(structuralObjectClass=nosuchclass))", 0),
        ("(!(uidNumber=1.5))", 0),
        ("(!(uidNumber=))", 0),
        ("(!(entryUUID=1))", 0),
        ("(!(x500UniqueIdentifier=0101))", 0),
        ("(!(x500UniqueIdentifier='0101'B))", 2),
        ("(!(postalAddress=))", 0),
        // The attribute or the rule is unknown, or the attribute has no rule of this kind.
        ("(!(nosuchattribute=x))", 0),
        ("(!(nosuchattribute=*))", 0),
        ("(!(cn;lang-de=x))", 0),
        ("(!(jpegPhoto>=x))", 0),
        ("(!(sn:nosuchrule:=x))", 0),
        ("(!(sn:integerMatch:=1))", 0),
        ("(!(facsimileTelephoneNumber=1))", 0),
        ("(&(objectClass=person)(!(nosuchattribute=x)))", 0),
        ("(|(cn=ann)(!(nosuchattribute=x)))", 1),
        ("(&(!(x121Address=abc))(cn=ann))", 0),
        ("(|(cn=ann)(x121Address=abc))", 1),
        ("(!(&(x121Address=abc)(cn=ann)))", 1),
        ("(!(cn:numericStringMatch:=abc))", 0),
        ("(!(:numericStringMatch:=abc))", 0),
    ] {
        assert_eq!(count(&bench, filter).await, expected, "{filter}");
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_an_attribute_of_the_api_is_recognised_where_an_entry_has_it() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.put("ann", &[("colour", "red")]).await;
    bench.put("bo", &[("colour", "blue")]).await;
    bench.put("cy", &[]).await;
    assert_eq!(count(&bench, "(colour=RED)").await, 1);
    assert_eq!(count(&bench, "(!(colour=red))").await, 1, "bo: cy has no such attribute");
    // A value stored by the API is found although LDAP would reject it.
    bench.put("dee", &[("telephoneNumber", "jörg_7")]).await;
    assert_eq!(count(&bench, "(telephoneNumber=jörg_7)").await, 1);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c9_a_comparison_with_an_invalid_value_is_refused_with_its_code() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_addresses().await;
    for (assertion, code) in [
        ("x121Address:1234", 6),
        ("x121Address:12", 5),
        ("x121Address:abc", 21),
        ("sn:", 21),
        ("mail:jörg@example.org", 21),
        ("manager:ann", 21),
        ("manager:cn=ann,o=site", 16),
        ("objectClass:nosuchclass", 21),
        ("objectClass:person", 6),
        ("telephoneNumber:+43ü", 21),
        ("telephoneNumber:+43 1 234", 6),
        ("postalAddress:A$b$C", 6),
        ("postalAddress:a b$c", 5),
        ("nosuchattribute:x", 17),
        ("facsimileTelephoneNumber:1", 18),
    ] {
        bench.run("ldapcompare", &["cn=ann,ou=people,o=site", assertion], "", code).await;
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_lists_are_compared_line_by_line() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = with_addresses().await;
    bench.add(&format!("{}postalAddress: 10 \\24$line\\5Cx$a b\n", PERSON.replace("NAME", "cy"))).await;
    for (filter, expected) in [
        ("(postalAddress=a$b$c)", 1),
        ("(postalAddress=A $  b$C)", 1),
        ("(postalAddress=a b$c)", 1),
        ("(postalAddress=a$b c)", 0),
        ("(postalAddress=a$b)", 0),
        ("(postalAddress=ab$c)", 0),
        ("(homePostalAddress=a$b$c)", 0),
        ("(postalAddress:caseIgnoreListMatch:=A$B$C)", 1),
        ("(postalAddress=a*)", 2),
        ("(postalAddress=a*b*c)", 2),
        ("(postalAddress=*c)", 2),
        ("(postalAddress=*a b*)", 2),
        // A substring lies within one line.
        ("(postalAddress=*a$b*)", 0),
        ("(postalAddress=*b c*)", 0),
        ("(postalAddress=10 \\5c24$line\\5c5cx$A  B)", 1),
        ("(postalAddress=*$*)", 1),
        ("(postalAddress=*e\\5cx*)", 1),
        ("(!(postalAddress=a$b$c))", 2),
    ] {
        assert_eq!(count(&bench, filter).await, expected, "{filter}");
    }
    // Two spellings of the same list are one value.
    let twice = "dn: cn=ann,ou=people,o=site\nchangetype: modify\nadd: postalAddress\npostalAddress: A$b$ c\n";
    bench.run("ldapmodify", &[], twice, 20).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b38_a_base_search_returns_the_same_for_a_cached_entry() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let rules = ["to attrs=objectClass by users none", "to attrs=title by users read", "to * by users read"];
    let bench = Bench::start(&rules).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    bench.add(&PERSON.replace("NAME", "bo")).await;
    for filter in ["(objectClass=*)", "(cn=bo)", "(!(title=*))", "(!(nosuchattribute=x))", "(objectClass=person)"] {
        for limits in [&[][..], &["-E", "pr=5/noprompt"], &["-E", "sss=cn"], &["-E", "sync=ro"]] {
            let arguments = [&["-LLL", "-b", "cn=bo,ou=people,o=site", "-s", "base"], limits, &[filter, "cn"]].concat();
            let mut answers = Vec::new();
            for cached in [false, true] {
                if !cached {
                    // Each change replaces or invalidates the cached entry; another spelling of the name is not cached.
                    bench.directory.clear_cache();
                }
                let (found, beside) =
                    bench.output_as("ldapsearch", "cn=ann,ou=people,o=site", "secret", &arguments, "", 0).await;
                answers.push((found.matches("dn: ").count(), found.matches("cn: bo").count(), beside));
            }
            assert_eq!(answers[0], answers[1], "{filter} {limits:?}");
        }
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_filter_costs_a_bounded_amount_of_work() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::with(&[], LdapOptions { message_bytes_max: 8 << 20, ..LdapOptions::default() }).await;
    let long = "abcde fghij ".repeat(3_700);
    bench.add(&format!("{}description: {long}\n", PERSON.replace("NAME", "ann"))).await;
    let many = |piece: &str, count: usize| format!("(|{})", format!("(description=*{piece}*)").repeat(count));
    // Values are prepared once for many assertions, so this is little work.
    assert_eq!(count(&bench, &many("zzz", 100)).await, 0);
    let arguments = ["-b", "o=site", "-s", "sub"];
    let search = async |filter: &str, code: i32| {
        let arguments = [&arguments[..], &[filter, "1.1"]].concat();
        bench.output_as("ldapsearch", "cn=ann,ou=people,o=site", "secret", &arguments, "", code).await.0
    };
    let reply = search(&many("zzz", 990), 0).await;
    assert!(reply.contains("numEntries") || reply.contains("result: 0"), "{reply}");
    bench
        .add(&format!("dn: cn=bo,ou=people,o=site\nobjectClass: organizationalRole\ncn: bo\n{}", {
            (0..20).map(|number| format!("description: {number} {long}\n")).collect::<String>()
        }))
        .await;
    let reply = search(&many("zzz", 990), 11).await;
    assert!(reply.contains("too much work on one entry"), "{reply}");
    // The same for the base of a search, whether cached or not, and for an assertion of a change.
    let base = ["-b", "cn=bo,ou=people,o=site", "-s", "base", &many("zzz", 990), "1.1"];
    for _ in 0..2 {
        bench.run("ldapsearch", &base, "", 11).await;
    }
    let change = "dn: cn=bo,ou=people,o=site\nchangetype: modify\nreplace: ou\nou: x\n";
    bench.run("ldapmodify", &["-e", &format!("!assert={}", many("zzz", 990))], change, 11).await;
    // A filter with too many terms is rejected before any entry is read.
    bench.run("ldapsearch", &[&arguments[..], &[&many("zzz", 1_990), "1.1"]].concat(), "", 11).await;
    let deep = format!("{}(cn=a){}", "(!".repeat(200), ")".repeat(200));
    bench.run("ldapsearch", &[&arguments[..], &[&deep, "1.1"]].concat(), "", 11).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_a_search_with_a_costly_filter_ends_at_its_time_limit() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let options = LdapOptions { time_limit: std::time::Duration::ZERO, ..LdapOptions::default() };
    let bench = Bench::with(&[], options).await;
    let long = "abcde fghij ".repeat(3_000);
    for name in ["ann", "bo", "cy"] {
        bench.add(&format!("{}description: {long}\n", PERSON.replace("NAME", name))).await;
    }
    let filter = format!("(|{})", "(description=*zzz*)".repeat(500));
    let arguments = ["-b", "o=site", &filter, "1.1"];
    bench.run_as("ldapsearch", "cn=ann,ou=people,o=site", "secret", &arguments, "", 3).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_long_values_are_sorted_by_their_beginnings() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    for (name, first) in [("ann", "ü"), ("bo", "a"), ("cy", "b")] {
        let long = first.repeat(20_000);
        bench.add(&format!("{}description: {long}\n", PERSON.replace("NAME", name))).await;
    }
    let found = bench.search("ou=people,o=site", "one", &["-E", "!sss=description", "(objectClass=*)", "1.1"]).await;
    let names: Vec<_> = found.lines().filter(|line| line.starts_with("dn: ")).collect();
    let expected = ["bo", "cy", "ann"].map(|name| format!("dn: cn={name},ou=people,o=site"));
    assert_eq!(names, expected, "{found}");
    bench.stop().await;
}
