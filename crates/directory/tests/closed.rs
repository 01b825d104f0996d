//! Search results do not depend on closed values: two directories that differ only in closed values give the same
//! answers to random filters and comparisons.

mod support;

use tocsin_directory::{
    Directory, Options, Preconditions, Scope,
    access::AuthzId,
    filter::Filter,
    ldap_error::{Code, LdapError},
};

const RULES: [&str; 3] = [
    "to attrs=title,telephoneNumber,member by self write by users none",
    "to attrs=sn dn.base=\"uid=cyd,ou=people,o=site\" by users none",
    "to * by self write by users read",
];
/// Closed values, for each of the two directories.
const TITLES: [[Option<&str>; 2]; 4] =
    [[Some("Boss"), Some("Clerk")], [Some("Clerk"), None], [None, Some("Boss")], [Some("ann"), Some("x")]];
const NAMES: [&str; 4] = ["ann", "bob", "cyd", "dan"];
const ATTRIBUTES: [&str; 12] = [
    "name",
    "title",
    "cn",
    "sn",
    "uid",
    "telephoneNumber",
    "objectClass",
    "2.5.4.41",
    "2.5.4.12",
    "description",
    "unknown",
    "memberOf",
];
const VALUES: [&str; 9] =
    ["Boss", "Clerk", "ann", "Smith", "x", "inetOrgPerson", "+1 555", "cn=bosses,o=site", "cn=closed,o=site"];

fn person(uid: &str) -> String {
    format!("uid={uid},ou=people,o=site")
}

async fn directory(world: usize) -> Directory {
    let access = RULES.iter().map(|rule| (*rule).to_owned()).collect();
    let options = Options { access, ..Options::default() };
    let (_, directory) = support::in_memory(options).await;
    let operator = AuthzId { manages: true, ..AuthzId::default() };
    let add = async |dn: &str, pairs: &[(&str, &str)]| {
        let given = pairs.iter().map(|(name, value)| ((*name).to_owned(), vec![value.as_bytes().to_vec()])).collect();
        directory.add(&operator, dn, given, Preconditions::default()).await.expect("made");
    };
    for (uid, titles) in NAMES.iter().zip(TITLES) {
        // The requester's own title is open, so it is the same in both.
        let title = if *uid == "bob" { Some("Clerk") } else { titles[world] };
        // One person, a different one in each directory, also has a hidden surname.
        let sn = if *uid == "cyd" && world == 1 { "Jones" } else { "Smith" };
        let mut pairs = vec![("objectClass", "inetOrgPerson"), ("cn", *uid), ("sn", sn)];
        pairs.extend(title.map(|title| ("title", title)));
        pairs.extend((world == 1).then_some(("telephoneNumber", "+1 555")).filter(|_| *uid != "bob"));
        add(&person(uid), &pairs).await;
    }
    let url = "ldap:///ou=people,o=site??sub?(|(title=Bos*)(telephoneNumber=*))";
    add("cn=bosses,o=site", &[("objectClass", "groupOfURLs"), ("memberURL", url)]).await;
    let member = person(if world == 0 { "ann" } else { "dan" });
    add("cn=closed,o=site", &[("objectClass", "groupOfNames"), ("member", &member)]).await;
    directory
}

fn filter(random: &mut fastrand::Rng, depth: usize) -> Filter {
    let name = random.choice(ATTRIBUTES).expect("some").to_owned();
    let value = random.choice(VALUES).expect("some").as_bytes().to_vec();
    if depth > 0 && random.u8(..3) == 0 {
        let parts = |random: &mut fastrand::Rng| (0..random.usize(1..4)).map(|_| filter(random, depth - 1)).collect();
        return match random.u8(..3) {
            0 => Filter::And(parts(random)),
            1 => Filter::Or(parts(random)),
            _ => Filter::Not(Box::new(filter(random, depth - 1))),
        };
    }
    match random.u8(..8) {
        0 => Filter::Present(name),
        1 => Filter::AtLeast(name, value),
        2 => Filter::AtMost(name, value),
        3 => Filter::Approximate(name, value),
        4 => Filter::Substrings(name, Some(value[..1].to_vec()), Vec::new(), None),
        5 => Filter::Extensible {
            rule: random.bool().then(|| "caseIgnoreMatch".to_owned()),
            attribute: random.bool().then_some(name),
            value,
            names: random.bool(),
        },
        6 => Filter::Equal("memberOf".to_owned(), value),
        _ => Filter::Equal(name, value),
    }
}

async fn found(directory: &Directory, requester: &AuthzId, filter: &Filter) -> Result<Vec<String>, Code> {
    let base = directory.find("o=site").await.expect("the first");
    let mut search = directory.search(requester, base, Scope::Subtree, filter).await.map_err(code)?;
    let mut found = Vec::new();
    while let Some(page) = search.next().await.expect("a page") {
        for shown in page {
            let grant = directory.access().grant(requester, &shown.entry);
            if grant.may_disclose() && search.is_met_by(&shown, &grant).expect("little work") {
                found.push(shown.entry.dn.clone());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn code(refusal: LdapError) -> Code {
    refusal.code
}

#[tokio::test]
async fn a1_answers_do_not_depend_on_closed_values() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (one, other) = (directory(0).await, directory(1).await);
    let requester = async |directory: &Directory| {
        directory.bind_external(&person("bob")).await.expect("it may").expect("it is there")
    };
    let (bob, other_bob) = (requester(&one).await, requester(&other).await);
    for _ in 0..2_000 {
        let filter = filter(&mut random, 3);
        let answers = (found(&one, &bob, &filter).await, found(&other, &other_bob, &filter).await);
        assert_eq!(answers.0, answers.1, "SEED={seed} {filter:?}");
        let (dn, name) = (person(random.choice(NAMES).expect("some")), random.choice(ATTRIBUTES).expect("some"));
        let value = random.choice(VALUES).expect("some").as_bytes();
        let said = one.compare(&bob, &dn, (name, value), None).await.map_err(code);
        let other_said = other.compare(&other_bob, &dn, (name, value), None).await.map_err(code);
        assert_eq!(said, other_said, "SEED={seed} {dn} {name} {}", String::from_utf8_lossy(value));
    }
    for uid in NAMES {
        let groups = async |directory: &Directory, requester: &AuthzId| {
            let shown = directory.find(&person(uid)).await.expect("there");
            directory.member_of(requester, &shown.entry).await.expect("read")
        };
        assert_eq!(groups(&one, &bob).await, groups(&other, &other_bob).await, "{uid}");
    }
}
