//! Index lookups give the same results as full scans.

use std::{collections::BTreeSet, sync::Arc};

use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions, Scope,
    access::{AuthzId, Grant},
    entry::SUBSCHEMA,
    filter::Filter,
    ldap_error::Code,
};
use tocsin_model::{subscriber::Profile, time::Timestamp, value::Value};
use tocsin_store::{
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, SubscriberStore},
};

/// A subtype of `label` has an index of its own; a search by `label` must use it too.
const TYPES: &[&str] = &[
    "( 2.25.7.1 NAME 'label' EQUALITY caseIgnoreMatch ORDERING caseIgnoreOrderingMatch SUBSTR caseIgnoreSubstringsMatch
        SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 X-INDEX 'eq sub' )",
    "( 2.25.7.2 NAME 'nickname' SUP label X-INDEX 'eq' )",
    "( 2.25.7.3 NAME 'size' EQUALITY integerMatch ORDERING integerOrderingMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27
        X-INDEX 'eq' )",
    "( 2.25.7.4 NAME 'badge' EQUALITY caseExactMatch SUBSTR caseIgnoreSubstringsMatch
        SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 X-INDEX 'eq sub' )",
];
const NAMES: &[&str] = &["label", "nickname", "size", "badge"];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

struct Bench {
    records: Arc<MemoryRecords>,
    directory: Directory,
    operator: AuthzId,
}

impl Bench {
    async fn start() -> Bench {
        let records = Arc::new(MemoryRecords::new().expect("random numbers"));
        let options = Options { suffix: "o=site".to_owned(), ..Options::default() };
        let directory = Directory::open(records.clone(), options, Arc::new(|| Timestamp(1))).await.expect("it opens");
        let operator = AuthzId { manages: true, ..AuthzId::default() };
        let values = TYPES.iter().map(|text| text.as_bytes().to_vec()).collect();
        let change = Modification { act: ModifyType::Add, attribute: "attributeTypes".to_owned(), values };
        directory.modify(&operator, SUBSCHEMA, vec![change], Preconditions::default()).await.expect("the schema grows");
        directory.build_indexes().await.expect("the indexes are built");
        Bench { records, directory, operator }
    }

    async fn add(&self, id: usize, attributes: Vec<(String, Vec<String>)>) {
        let mut given = vec![("objectClass".to_owned(), vec![b"account".to_vec(), b"tocsinSubscriber".to_vec()])];
        let bytes = |values: Vec<String>| values.into_iter().map(String::into_bytes).collect();
        given.extend(attributes.into_iter().map(|(name, values)| (name, bytes(values))));
        let dn = format!("uid=u{id},ou=people,o=site");
        self.directory.add(&self.operator, &dn, given, Preconditions::default()).await.expect("added");
    }

    async fn found(&self, filter: &Filter) -> BTreeSet<String> {
        let base = self.directory.find("o=site").await.expect("there");
        let mut search = self
            .directory
            .search(&AuthzId { manages: true, ..AuthzId::default() }, base, Scope::Subtree, filter)
            .await
            .expect("begun");
        let mut names = BTreeSet::new();
        while let Some(page) = search.next().await.expect("found") {
            let met = page.iter().filter(|shown| search.is_met_by(shown, &Grant::open()).expect("little work"));
            names.extend(met.map(|shown| shown.entry.dn.clone()));
        }
        names
    }

    /// Compares index lookups with a full scan.
    async fn check(&self, filter: Filter) -> BTreeSet<String> {
        let nothing = Filter::Not(Box::new(Filter::And(Vec::new())));
        let found = self.found(&filter).await;
        assert_eq!(found, self.found(&Filter::Or(vec![filter.clone(), nothing])).await, "{filter:?}");
        found
    }
}

fn text(random: &mut fastrand::Rng, longest: usize) -> String {
    (0..random.usize(1..=longest)).map(|_| random.choice(['a', 'b', 'B', ' ', 'ü']).expect("some")).collect()
}

fn value(random: &mut fastrand::Rng, name: &str) -> String {
    match name {
        "size" => random.i64(-20..20).to_string(),
        // Some values have more trigrams than are indexed.
        _ => {
            let longest = if random.u8(..8) == 0 { 600 } else { 9 };
            format!("x{}", text(random, longest))
        }
    }
}

fn filter(random: &mut fastrand::Rng, depth: usize) -> Filter {
    let name = random.choice(NAMES).expect("some").to_string();
    let part = |random: &mut fastrand::Rng| random.bool().then(|| text(random, 5).into_bytes());
    match random.u8(..if depth == 0 { 5 } else { 8 }) {
        0 => Filter::Present(name),
        1 => Filter::AtLeast(name.clone(), value(random, &name).into_bytes()),
        2 => Filter::AtMost(name.clone(), value(random, &name).into_bytes()),
        3 => {
            let (first, last) = (part(random), part(random));
            Filter::Substrings(name, first, vec![text(random, 5).into_bytes()], last)
        }
        4 => Filter::Equal(name.clone(), value(random, &name).into_bytes()),
        5 => Filter::Not(Box::new(filter(random, depth - 1))),
        6 => Filter::And((0..random.usize(..4)).map(|_| filter(random, depth - 1)).collect()),
        _ => Filter::Or((0..random.usize(..4)).map(|_| filter(random, depth - 1)).collect()),
    }
}

#[tokio::test]
async fn index_lookups_give_the_results_of_a_full_scan() {
    let seed = from_environment("SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let bench = Bench::start().await;
    for id in 0..60 {
        let mut attributes = Vec::new();
        for name in NAMES {
            if random.u8(..3) == 0 {
                continue;
            }
            let values: Vec<String> =
                (0..random.usize(1..3)).map(|at| format!("{}{at}", value(&mut random, name))).collect();
            attributes.push(((*name).to_owned(), values));
        }
        bench.add(id, attributes).await;
    }
    for _ in 0..from_environment("CASES").unwrap_or(150) {
        bench.check(filter(&mut random, 3)).await;
    }
}

#[tokio::test]
async fn long_values_subtypes_and_odd_values_are_found() {
    let bench = Bench::start().await;
    let long = format!("{}needle", "ab".repeat(300));
    bench.add(1, vec![("label".into(), vec![long])]).await;
    bench.add(2, vec![("nickname".into(), vec!["Bo".into()])]).await;
    let attributes = [("size".to_owned(), Value::from("no number"))].into();
    let profile = Profile { attributes, ..Profile::default() };
    let odd = NewSubscriber {
        kept: Default::default(),
        id: "odd".parse().expect("an id"),
        profile,
        devices: None,
        preferences: None,
    };
    bench.records.put_subscriber(odd, Precondition::Absent, Timestamp(1)).await.expect("stored");
    let check = async |filter, expected| {
        assert_eq!(bench.check(filter).await, BTreeSet::from([format!("uid={expected},ou=people,o=site")]))
    };
    check(Filter::Substrings("label".into(), None, vec![b"needle".to_vec()], None), "u1").await;
    check(Filter::Equal("label".into(), b"bo".to_vec()), "u2").await;
    check(Filter::Substrings("label".into(), Some(b"b".to_vec()), Vec::new(), None), "u2").await;
    check(Filter::Present("size".into()), "odd").await;
}

#[tokio::test]
async fn a_request_that_needs_an_unfinished_index_is_rejected_as_busy() {
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let access = vec!["to * by group=\"cn=staff,o=site\" write by users read by * auth".to_owned()];
    let options = Options { access, ..Options::default() };
    let directory = Directory::open(records, options, Arc::new(|| Timestamp(1))).await.expect("it opens");
    let operator = AuthzId { manages: true, ..AuthzId::default() };
    let add = async |uid: &str| {
        let values = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let given = vec![
            ("objectClass".to_owned(), values(&["account", "simpleSecurityObject"])),
            ("uid".to_owned(), values(&[uid, "ann"])),
            ("userPassword".to_owned(), values(&["{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ="])),
        ];
        let terms = Preconditions { unique: vec!["uid".to_owned()], ..Preconditions::default() };
        directory
            .add(&operator, &format!("uid={uid},ou=people,o=site"), given, terms)
            .await
            .err()
            .map(|refusal| refusal.code)
    };
    let prove = async || {
        let proven = directory.authenticate("uid=one,ou=people,o=site", b"secret".to_vec()).await;
        proven.err().map(|refusal| refusal.code)
    };
    assert_eq!(add("one").await, Some(Code::Busy), "uniqueness cannot be checked");
    directory.build_indexes().await.expect("the indexes are built");
    assert_eq!(add("one").await, None);
    assert_eq!(add("two").await, Some(Code::EntryAlreadyExists));
    assert_eq!(prove().await, None);
    // The schema gains an index; until it is built, the existing ones are used.
    let kept = directory.modify(
        &operator,
        SUBSCHEMA,
        vec![Modification { act: ModifyType::Add, attribute: "attributeTypes".into(), values: vec![TYPES[2].into()] }],
        Preconditions::default(),
    );
    kept.await.expect("the schema grows");
    assert_eq!(prove().await, None);
}
