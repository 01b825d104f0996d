//! Stock clients (Debian's ldap-utils) against the LDAP server.

mod support;

use std::{collections::BTreeSet, time::SystemTime};

use support::{Bench, PERSON};
use tocsin_store::records::{Precondition, SubscriberStore};
use tocsin_test_peers::{Peer, missing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_added_found_changed_renamed_and_removed() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    bench.add(&PERSON.replace("NAME", "bob")).await;
    let found = bench.search("cn=ann,ou=people,o=site", "base", &["(objectClass=*)"]).await;
    for line in ["dn: cn=ann,ou=people,o=site", "objectClass: inetOrgPerson", "mail: ann@example.org", "sn: Muster"] {
        assert!(found.contains(&format!("{line}\n")), "{line} in {found}");
    }
    assert!(!found.contains("userPassword") && !found.contains("tocsin"), "{found}");
    let names = bench.search("o=site", "sub", &["(&(objectClass=person)(cn=a*))", "1.1"]).await;
    assert_eq!(names.trim(), "dn: cn=ann,ou=people,o=site");
    bench
        .modify("dn: cn=ann,ou=people,o=site\nchangetype: modify\nreplace: mail\nmail: new@example.org\n-\nadd: title\ntitle: Boss\n")
        .await;
    let found = bench.search("o=site", "sub", &["(mail=NEW@example.org)", "mail", "title", "tocsinDevice"]).await;
    assert!(found.contains("mail: new@example.org\n") && found.contains("title: Boss\n"), "{found}");
    assert!(found.contains("tocsinDevice: email email active new@example.org\n"), "{found}");
    bench.run("ldapmodrdn", &["-r", "cn=ann,ou=people,o=site", "cn=anna"], "", 0).await;
    assert!(bench.search("o=site", "sub", &["(cn=anna)", "cn"]).await.contains("dn: cn=anna,ou=people,o=site"));
    bench.run("ldapsearch", &["-b", "cn=ann,ou=people,o=site", "-s", "base"], "", 32).await;
    bench.run("ldapdelete", &["cn=anna,ou=people,o=site"], "", 0).await;
    assert_eq!(bench.search("o=site", "sub", &["(cn=anna)"]).await.trim(), "");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_response_has_the_right_code() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    let add = async |ldif: &str, code| bench.run("ldapadd", &[], ldif, code).await;
    add(&PERSON.replace("NAME", "ann"), 68).await;
    add("dn: cn=x,ou=nowhere,o=site\nobjectClass: person\ncn: x\nsn: y\n", 32).await;
    add("dn: cn=x,ou=people,o=site\nobjectClass: person\ncn: x\n", 65).await;
    add("dn: cn=x,ou=people,o=site\nobjectClass: person\ncn: x\nsn: y\nnothing: z\n", 17).await;
    add("dn: cn=x,ou=people,o=site\nobjectClass: person\ncn: x\nsn: y\ncreateTimestamp: 20260101000000Z\n", 19).await;
    add(
        "dn: cn=x,ou=people,o=site\nobjectClass: inetOrgPerson\ncn: x\nsn: y\nemployeeNumber: 1\nemployeeNumber: 2\n",
        19,
    )
    .await;
    add("dn: cn=x,ou=people,o=site\nobjectClass: inetOrgPerson\ncn: x\nsn: y\nmail: ä@x\n", 21).await;
    let modify = async |change: &str, code| {
        let ldif = format!("dn: cn=ann,ou=people,o=site\nchangetype: modify\n{change}\n");
        bench.run("ldapmodify", &[], &ldif, code).await
    };
    modify("add: mail\nmail: ANN@example.org", 20).await;
    modify("delete: mail\nmail: other@example.org", 16).await;
    modify("delete: title", 16).await;
    modify("delete: sn", 65).await;
    modify("delete: cn\ncn: ann", 67).await;
    modify("replace: objectClass\nobjectClass: organization", 69).await;
    modify("increment: sn\nsn: 1", 19).await;
    // A modify that fails at its end changes nothing.
    modify("replace: title\ntitle: Boss\n-\ndelete: description", 16).await;
    assert!(!bench.search("o=site", "sub", &["(cn=ann)"]).await.contains("title"));
    let ann = "cn=ann,ou=people,o=site";
    bench.run("ldapcompare", &[ann, "sn:muster"], "", 6).await;
    bench.run("ldapcompare", &[ann, "sn:other"], "", 5).await;
    bench.run("ldapcompare", &[ann, "title:x"], "", 16).await;
    bench.run("ldapdelete", &["o=site"], "", 53).await;
    bench.run("ldapdelete", &["ou=people,o=site"], "", 53).await;
    bench.run("ldapdelete", &["not a name"], "", 34).await;
    bench.run("ldapsearch", &["-b", "o=site", "-E", "!1.2.3=:x"], "", 12).await;
    bench.run("ldapmodrdn", &["-s", ann, ann, "cn=b"], "", 53).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_require_a_bind() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    bench.add(&PERSON.replace("NAME", "bob")).await;
    let who = async |dn: &str, password: &str, code| bench.run_as("ldapwhoami", dn, password, &[], "", code).await;
    let ann = "cn=ann,ou=people,o=site";
    assert_eq!(who(ann, "secret", 0).await.trim(), "dn:cn=ann,ou=people,o=site");
    assert_eq!(who("cn=admin,o=site", "key", 0).await.trim(), "dn:cn=admin,o=site");
    who(ann, "wrong", 49).await;
    who("cn=nobody,o=site", "secret", 49).await;
    who("cn=admin,o=site", "wrong", 49).await;
    // OpenLDAP's clients prompt for a missing password, so this one comes from a file.
    bench.run_as("ldappasswd", ann, "secret", &["-s", "changed"], "", 0).await;
    who(ann, "secret", 49).await;
    who(ann, "changed", 0).await;
    let bob = "cn=bob,ou=people,o=site";
    for _ in 0..5 {
        who(bob, "wrong", 49).await;
    }
    who(bob, "secret", 49).await;
    let change = "dn: cn=bob,ou=people,o=site\nchangetype: modify\nreplace: title\ntitle: x\n";
    bench.run_as("ldapmodify", ann, "changed", &[], change, 50).await;
    bench.run_as("ldapmodify", ann, "changed", &[], &change.replace("bob", "ann"), 0).await;
    let anonymous = bench.run("ldapsearch", &["-x", "-D", "", "-w", "", "-b", "o=site"], "", 32).await;
    assert!(!anonymous.contains("dn: "), "{anonymous}");
    let found = bench.run_as("ldapsearch", ann, "changed", &["-LLL", "-b", "o=site", "(userPassword=*)"], "", 0).await;
    assert_eq!(found.trim(), "");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_group_named_by_a_rule_have_its_rights() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&["to * by group=\"cn=all,ou=groups,o=site\" write by users read by * auth"]).await;
    // Names longer than an index key, with the same truncated key.
    let long = "x".repeat(200);
    let (ann, bob) = (format!("cn=ann,ou={long}1,o=site"), format!("cn={long}b,ou=people,o=site"));
    bench.add(&format!("dn: ou={long}1,o=site\nobjectClass: organizationalUnit\nou: {long}1\n")).await;
    bench.add(&PERSON.replace("dn: cn=NAME,ou=people,o=site", &format!("dn: {ann}")).replace("NAME", "ann")).await;
    for name in ["a", "b"] {
        bench.add(&PERSON.replace("NAME", &format!("{long}{name}")).replace("uid: ", "uid: u")).await;
    }
    bench.add("dn: ou=groups,o=site\nobjectClass: organizationalUnit\nou: groups\n").await;
    let group = |name: &str, member: &str| {
        format!("dn: cn={name},ou=groups,o=site\nobjectClass: groupOfNames\ncn: {name}\nmember: {member}\n")
    };
    // A cycle of groups.
    bench.add(&(group("inner", &bob) + "member: cn=all,ou=groups,o=site\n")).await;
    bench.add(&(group("all", &ann) + "member: cn=inner,ou=groups,o=site\n")).await;
    let change = "dn: ou=people,o=site\nchangetype: modify\nreplace: description\ndescription: x\n";
    let modify = async |dn: &str, code| bench.run_as("ldapmodify", dn, "secret", &[], change, code).await;
    modify(&ann, 0).await;
    modify(&bob, 0).await;
    modify(&format!("cn={long}a,ou=people,o=site"), 50).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_found_by_group_and_groups_by_member() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let rules = [
        "to attrs=title by role=\"cn=desk,o=site\" write by users read",
        "to * by group=\"cn=linz,o=site\" write by users read by * auth",
    ];
    let bench = Bench::start(&rules).await;
    for (name, city) in [("ann", "Linz"), ("bob", "Graz"), ("carl", "Linz")] {
        bench.add(&format!("{}l: {city}\n", PERSON.replace("NAME", name))).await;
    }
    let (ann, bob, carl) = ("cn=ann,ou=people,o=site", "cn=bob,ou=people,o=site", "cn=carl,ou=people,o=site");
    bench.add(&format!("dn: cn=staff,o=site\nobjectClass: groupOfNames\ncn: staff\nmember: CN=Ann,ou=People,o=site\nmember: {bob}\nmember: cn=gone,o=site\n")).await;
    bench.add("dn: cn=linz,o=site\nobjectClass: groupOfURLs\ncn: linz\nmemberURL: ldap:///ou=people,o=site??one?(l=linz)\n").await;
    bench.add(&format!("dn: cn=desk,o=site\nobjectClass: organizationalRole\ncn: desk\nroleOccupant: {bob}\n")).await;
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let names = async |filter: &str| {
        let found = bench.search("o=site", "sub", &[filter, "1.1"]).await;
        found.lines().filter_map(|line| line.strip_prefix("dn: ").map(str::to_owned)).collect::<BTreeSet<_>>()
    };
    assert_eq!(names("(memberOf=cn=Staff,o=site)").await, set(&[ann, bob]));
    assert_eq!(names("(memberOf=cn=linz,o=site)").await, set(&[ann, carl]));
    assert_eq!(names("(&(objectClass=person)(!(memberOf=cn=staff,o=site)))").await, set(&[carl]));
    assert!(names("(memberOf=cn=nobody,o=site)").await.is_empty());
    let shown = bench.search(ann, "base", &["(memberOf=cn=linz,o=site)", "memberOf"]).await;
    assert!(shown.contains("memberOf: cn=staff,o=site\n") && shown.contains("memberOf: cn=linz,o=site\n"), "{shown}");
    assert!(!bench.search(ann, "base", &["(objectClass=*)"]).await.contains("memberOf"));
    let change = |name: &str| format!("dn: ou=people,o=site\nchangetype: modify\nreplace: {name}\n{name}: x\n");
    let modify =
        async |dn: &str, name: &str, code| bench.run_as("ldapmodify", dn, "secret", &[], &change(name), code).await;
    modify(ann, "description", 0).await;
    modify(bob, "description", 50).await;
    bench.modify(&format!("dn: {bob}\nchangetype: modify\nreplace: l\nl: Linz\n")).await;
    modify(bob, "description", 0).await;
    let title = |dn: &str| format!("dn: {dn}\nchangetype: modify\nreplace: title\ntitle: Boss\n");
    bench.run_as("ldapmodify", bob, "secret", &[], &title(ann), 0).await;
    bench.run_as("ldapmodify", ann, "secret", &[], &title(bob), 50).await;
    let wrong = "dn: cn=wrong,o=site\nobjectClass: groupOfURLs\ncn: wrong\nmemberURL: ldap:///o=site??sub?(l=Linz\n";
    bench.run("ldapadd", &[], wrong, 21).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_dse_describes_the_server_and_the_schema_can_be_extended() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    let root = bench.search("", "base", &["(objectClass=*)", "+"]).await;
    for line in ["namingContexts: o=site", "supportedLDAPVersion: 3", "subschemaSubentry: cn=subschema"] {
        assert!(root.contains(&format!("{line}\n")), "{line} in {root}");
    }
    let schema = bench.search("cn=subschema", "base", &["(objectClass=subschema)", "+"]).await;
    assert!(schema.contains("NAME 'inetOrgPerson'"), "{schema}");
    let limit = "( 2.25.7.1 NAME 'limit' EQUALITY integerMatch ORDERING integerOrderingMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE X-INDEX 'eq' )";
    bench
        .modify(&format!("dn: cn=subschema\nchangetype: modify\nadd: attributeTypes\nattributeTypes: {limit}\n"))
        .await;
    assert!(
        bench
            .search("cn=subschema", "base", &["(objectClass=subschema)", "attributeTypes"])
            .await
            .contains("NAME 'limit'")
    );
    bench
        .add(
            &PERSON.replace("NAME", "ann").replace("sn: Muster", "sn: Muster\nobjectClass: tocsinSubscriber\nlimit: 7"),
        )
        .await;
    bench.modify("dn: cn=ann,ou=people,o=site\nchangetype: modify\nincrement: limit\nlimit: 5\n").await;
    let found = bench.search("o=site", "sub", &["(&(limit>=12)(limit<=12))", "limit"]).await;
    assert!(found.contains("limit: 12\n"), "{found}");
    let ann = bench.subscriber("ann").await;
    assert_eq!(ann.profile.attributes["limit"], tocsin_model::value::Value::Integer(12));
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_of_the_api_are_entries_at_once() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.put("Carla", &[("region", "north"), ("home_town", "Linz")]).await;
    let carla = "uid=carla,ou=people,o=site";
    let found = bench.search(carla, "base", &["(region=NORTH)"]).await;
    for line in
        ["dn: uid=Carla,ou=people,o=site", "uid: Carla", "region: north", "home_town: Linz", "objectClass: account"]
    {
        assert!(found.contains(&format!("{line}\n")), "{line} in {found}");
    }
    bench.put("Carla", &[("region", "south")]).await;
    let found = bench.search(carla, "base", &["(objectClass=*)"]).await;
    assert!(found.contains("region: south\n") && !found.contains("Linz"), "{found}");
    bench.modify(&format!("dn: {carla}\nchangetype: modify\nadd: preferredLanguage\npreferredLanguage: de-AT\n-\nadd: tocsinTimeZone\ntocsinTimeZone: Europe/Vienna\n-\nadd: mail\nmail: c@example.org\n")).await;
    let subscriber = bench.subscriber("Carla").await;
    assert_eq!(subscriber.profile.locale.as_deref(), Some("de-AT"));
    assert_eq!(subscriber.profile.time_zone.as_deref(), Some("Europe/Vienna"));
    assert_eq!(subscriber.devices.values().next().expect("a device").address, "c@example.org");
    assert!(subscriber.profile.attributes.contains_key("region"));
    let pages = bench.run("ldapsearch", &["-LLL", "-b", "o=site", "-E", "pr=1/noprompt", "1.1"], "", 0).await;
    assert_eq!(pages.matches("dn: ").count(), 3, "{pages}");
    bench.run("ldapsearch", &["-b", "o=site", "-z", "1"], "", 4).await;
    // Entries below a subscriber removed by the API move to `people`.
    bench.add(&format!("dn: cn=desk,{carla}\nobjectClass: applicationProcess\ncn: desk\n")).await;
    bench.search(&format!("cn=desk,{carla}"), "base", &["(objectClass=*)"]).await;
    let id = "Carla".parse().expect("an id");
    bench.records.remove_subscriber(&id, Precondition::Present, SystemTime::now().into()).await.expect("removed");
    let found = bench.search("o=site", "sub", &["(objectClass=*)"]).await;
    assert!(found.contains("dn: cn=desk,ou=people,o=site\n") && !found.contains("Carla"), "{found}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn searches_are_sorted_and_changes_return_the_former_entry() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    for name in ["carl", "ann", "Bob"] {
        bench.add(&PERSON.replace("NAME", name)).await;
    }
    let order = async |keys: &str| {
        let arguments = ["-LLL", "-E", keys, "-b", "ou=people,o=site", "-s", "one", "(cn=*)", "cn"];
        let found = bench.run("ldapsearch", &arguments, "", 0).await;
        found.lines().filter_map(|line| line.strip_prefix("cn: ").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(order("sss=cn").await, ["ann", "Bob", "carl"]);
    assert_eq!(order("sss=-cn").await, ["carl", "Bob", "ann"]);
    let change =
        |value: &str| format!("dn: cn=ann,ou=people,o=site\nchangetype: modify\nreplace: title\ntitle: {value}\n");
    let modify = async |controls: &[&str], code| {
        let arguments: Vec<&str> = controls.iter().flat_map(|control| ["-e", control]).collect();
        bench.run("ldapmodify", &arguments, &change("Boss"), code).await
    };
    modify(&["!assert=(title=Clerk)"], 122).await;
    let reply = modify(&["!assert=(sn=muster)", "postread=title"], 0).await;
    assert!(reply.contains("title: Boss"), "{reply}");
    let reply = bench.run("ldapmodify", &["-e", "preread=title"], &change("Chief"), 0).await;
    assert!(reply.contains("title: Boss"), "{reply}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_require_tls() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![key.cert.der().clone()], key.signing_key.serialize_der().try_into().expect("a key"))
        .expect("a configuration");
    let options = tocsin_face_ldap::LdapOptions { tls: Some(tls.into()), require_tls: true, ..Default::default() };
    let bench = Bench::with(&[], options).await;
    bench.run("ldapwhoami", &[], "", 13).await;
    let change = ["-x", "-D", "", "-a", "secret", "-s", "changed", "cn=ann,ou=people,o=site"];
    bench.run("ldappasswd", &change, "", 1).await;
    assert_eq!(bench.run("ldapwhoami", &["-ZZ"], "", 0).await.trim(), "dn:cn=admin,o=site");
    bench.run("ldapadd", &["-ZZ"], &PERSON.replace("NAME", "ann"), 0).await;
    let found = bench.run("ldapsearch", &["-ZZ", "-LLL", "-b", "o=site", "(uid=ann)", "cn"], "", 0).await;
    assert!(found.contains("cn: ann"), "{found}");
    bench.stop().await;
}
