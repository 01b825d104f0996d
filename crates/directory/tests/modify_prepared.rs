//! An optimistic modify gives the same result as one in the writer thread, under any concurrent changes of the entry.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions, ReadEntries, Scope,
    access::{AuthzId, Grant},
    entry::{SUBSCHEMA, Shape},
    filter::Filter,
    ldap_error::{Code, LdapError},
};
use tocsin_model::{
    id::{ChangeSequence, SubscriberId, SubscriberNumber},
    subscriber::{Device, DeviceState, Profile},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    entries::{DiskCheck, Entries, EntryReadJob, EntryWatcher, EntryWriteJob, PreparedAdd, PreparedModify},
    error::StoreError,
    memory::records::MemoryRecords,
    records::{NewSubscriber, Precondition, Records, SubscriberFilter},
    sqlite::records::{RecordsOptions, SqliteRecords},
};

const TYPES: &[&str] = &[
    "( 2.25.7.1 NAME 'label' EQUALITY caseIgnoreMatch ORDERING caseIgnoreOrderingMatch SUBSTR caseIgnoreSubstringsMatch
        SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 X-INDEX 'eq sub' )",
    "( 2.25.7.2 NAME 'nickname' SUP label X-INDEX 'eq' )",
    "( 2.25.7.3 NAME 'size' EQUALITY integerMatch ORDERING integerOrderingMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27
        SINGLE-VALUE X-INDEX 'eq' )",
    "( 2.25.7.4 NAME 'gauge' SYNTAX 2.25.137279310086925753628529315834703664387.3.1 )",
];

/// Treatment of a change before it reaches the store.
enum PreparedOutcome {
    Straight,
    /// Rejects every prepared change, so that all are computed in the writer thread.
    Never,
    /// Lets this many other changes commit first.
    Overtaken(AtomicUsize),
}

struct Store<S> {
    records: Arc<S>,
    way: PreparedOutcome,
    /// Counts prepared changes.
    tried: AtomicUsize,
}

#[async_trait]
impl<S: Entries + Records> Entries for Store<S> {
    fn watch(&self, watcher: Arc<dyn EntryWatcher>) {
        self.records.watch(watcher);
    }

    async fn read(&self, job: EntryReadJob) -> Result<(), StoreError> {
        self.records.read(job).await
    }

    async fn change(&self, room: DiskCheck, job: EntryWriteJob) -> Result<(), StoreError> {
        Entries::change(&*self.records, room, job).await
    }

    async fn modify_prepared(&self, retouch: PreparedModify) -> Result<bool, StoreError> {
        let number = self.tried.fetch_add(1, Ordering::SeqCst);
        match &self.way {
            PreparedOutcome::Straight => {}
            PreparedOutcome::Never => return Ok(false),
            PreparedOutcome::Overtaken(left) => {
                let is_left = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
                if is_left {
                    let mut found = self.records.subscriber(&id("ann")).await?.expect("she is there");
                    found.profile.attributes.insert(format!("overtaken{number}"), Value::from("yes"));
                    found.profile.attributes.insert("employeeType".to_owned(), Value::from("overtaken"));
                    put(&*self.records, "ann", found.profile, None).await;
                }
            }
        }
        self.records.modify_prepared(retouch).await
    }

    async fn add_prepared(&self, arrival: PreparedAdd) -> Result<bool, StoreError> {
        self.tried.fetch_add(1, Ordering::SeqCst);
        match &self.way {
            PreparedOutcome::Never => Ok(false),
            PreparedOutcome::Straight | PreparedOutcome::Overtaken(_) => self.records.add_prepared(arrival).await,
        }
    }
}

fn id(text: &str) -> SubscriberId {
    text.parse().expect("an id")
}

async fn put(records: &dyn Records, name: &str, profile: Profile, devices: Option<Vec<&str>>) {
    try_put(records, name, profile, devices).await.expect("stored");
}

async fn try_put(
    records: &dyn Records,
    name: &str,
    profile: Profile,
    devices: Option<Vec<&str>>,
) -> Result<(), StoreError> {
    let device = |address: &str| {
        let device =
            Device { channel: "mail".parse().expect("a name"), address: address.into(), state: DeviceState::Active };
        (address.split('@').next().unwrap_or_default().parse().expect("a name"), device)
    };
    let devices = devices.map(|all| all.into_iter().map(device).collect());
    let new = NewSubscriber { kept: Default::default(), id: id(name), profile, devices, preferences: None };
    records.put_subscriber(new, Precondition::Any, Timestamp(1)).await.map(drop)
}

fn operator() -> AuthzId {
    AuthzId { manages: true, ..AuthzId::default() }
}

fn modification(act: ModifyType, attribute: &str, values: &[&str]) -> Modification {
    let values = values.iter().map(|value| value.as_bytes().to_vec()).collect();
    Modification { act, attribute: attribute.to_owned(), values }
}

fn options() -> Options {
    let devices = vec![("mail".into(), "mail".parse().expect("a name"))];
    Options {
        suffix: "o=site".to_owned(),
        shape: Shape { devices, ..Shape::default() },
        access: vec!["to attrs=description by * read".to_owned(), "to * by users write by * read".to_owned()],
        cache_bytes: 1 << 20,
        ..Options::default()
    }
}

const ANN: &str = "uid=ann,ou=people,o=site";

struct Bench<S> {
    records: Arc<S>,
    store: Arc<Store<S>>,
    directory: Directory,
    now: Arc<AtomicI64>,
}

impl<S: Entries + Records> Bench<S> {
    async fn start(records: S, way: PreparedOutcome) -> Self {
        let records = Arc::new(records);
        let store = Arc::new(Store { records: records.clone(), way, tried: AtomicUsize::new(0) });
        let now = Arc::new(AtomicI64::new(1));
        let clock = {
            Arc::new({
                let now = now.clone();
                move || Timestamp(now.load(Ordering::SeqCst))
            })
        };
        let directory = Directory::open(store.clone(), options(), clock).await.expect("it opens");
        let types: Vec<_> = TYPES.iter().map(|text| modification(ModifyType::Add, "attributeTypes", &[text])).collect();
        directory.modify(&operator(), SUBSCHEMA, types, Preconditions::default()).await.expect("the schema grows");
        directory.build_indexes().await.expect("the indexes are built");
        Bench { records, store, directory, now }
    }

    async fn modify(&self, dn: &str, modifications: &[Modification]) -> Result<ReadEntries, LdapError> {
        self.directory.modify(&operator(), dn, modifications.to_vec(), Preconditions::default()).await
    }

    async fn values(&self, dn: &str, attribute: &str) -> Vec<String> {
        let shown = self.directory.find(dn).await.expect("it is there");
        let found = shown.entry.attribute(attribute).map(|found| found.values.clone()).unwrap_or_default();
        found.iter().map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }

    fn tried(&self) -> usize {
        self.store.tried.load(Ordering::SeqCst)
    }

    async fn found(&self, filter: &Filter) -> Vec<String> {
        let base = self.directory.find("o=site").await.expect("there");
        let mut search = self
            .directory
            .search(&AuthzId { manages: true, ..AuthzId::default() }, base, Scope::Subtree, filter)
            .await
            .expect("begun");
        let mut names = Vec::new();
        while let Some(page) = search.next().await.expect("found") {
            let met = page.iter().filter(|shown| search.is_met_by(shown, &Grant::open()).expect("little work"));
            names.extend(met.map(|shown| shown.entry.dn.clone()));
        }
        names.sort();
        names
    }
}

fn memory() -> MemoryRecords {
    MemoryRecords::new().expect("random numbers")
}

fn sqlite(folder: &tempfile::TempDir) -> SqliteRecords {
    let options = RecordsOptions { reserve_bytes: 0, readers: 1, ..RecordsOptions::default() };
    SqliteRecords::open(folder.path(), &options).expect("the records open")
}

async fn overtaken<S: Entries + Records>(records: S, times: usize, tries: usize) {
    let bench = Bench::start(records, PreparedOutcome::Overtaken(AtomicUsize::new(times))).await;
    put(&*bench.records, "ann", Profile::default(), None).await;
    bench.modify(ANN, &[modification(ModifyType::Add, "title", &["chief"])]).await.expect("done");
    assert_eq!(bench.tried(), tries, "overtaken {times} times");
    let ann = bench.records.subscriber(&id("ann")).await.expect("read").expect("there");
    let mut expected: BTreeMap<String, Value> =
        (0..times.min(tries)).map(|number| (format!("overtaken{number}"), Value::from("yes"))).collect();
    assert_eq!(ann.revision, 2 + expected.len() as u64);
    if times > 0 {
        expected.insert("employeeType".to_owned(), Value::from("overtaken"));
    }
    expected.insert("title".to_owned(), Value::from("chief"));
    assert_eq!(ann.profile.attributes, expected);
    assert_eq!(bench.values(ANN, "title").await, ["chief"]);
}

#[tokio::test]
async fn nothing_is_lost_if_another_change_commits_first() {
    for (times, tries) in [(0, 1), (1, 2), (2, 2), (9, 2)] {
        overtaken(memory(), times, tries).await;
        let folder = tempfile::tempdir().expect("a folder");
        overtaken(sqlite(&folder), times, tries).await;
    }
}

#[tokio::test]
async fn a_precondition_broken_by_an_earlier_change_is_rejected() {
    let check = async |terms: Preconditions, modifications: &[Modification], expected: Code| {
        let bench = Bench::start(memory(), PreparedOutcome::Overtaken(AtomicUsize::new(1))).await;
        put(&*bench.records, "ann", Profile::default(), None).await;
        let done = bench.directory.modify(&operator(), ANN, modifications.to_vec(), terms).await;
        assert_eq!(done.expect_err("refused").code, expected);
        assert_eq!(bench.values(ANN, "title").await, [""; 0]);
        assert_eq!(bench.values(ANN, "overtaken0").await, ["yes"]);
    };
    let title = [modification(ModifyType::Add, "title", &["chief"])];
    let terms = Preconditions { revision: Some(1), ..Preconditions::default() };
    check(terms, &title, Code::AssertionFailed).await;
    let untouched = Filter::Not(Box::new(Filter::Present("employeeType".to_owned())));
    let terms = Preconditions { assertion: Some(untouched), ..Preconditions::default() };
    check(terms, &title, Code::AssertionFailed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_concurrent_changes_of_one_entry_take_effect() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Arc::new(Bench::start(sqlite(&folder), PreparedOutcome::Straight).await);
    put(&*bench.records, "ann", Profile::default(), None).await;
    bench.modify(ANN, &[modification(ModifyType::Add, "size", &["0"])]).await.expect("done");
    let barrier = Arc::new(tokio::sync::Barrier::new(16));
    let writers = (0..16).map(|writer| {
        let (bench, barrier) = (bench.clone(), barrier.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            for number in 0..20 {
                let label = format!("w{writer} n{number}");
                let changes = [
                    modification(ModifyType::Increment, "size", &["1"]),
                    modification(ModifyType::Add, "label", &[&label]),
                ];
                bench.modify(ANN, &changes).await.expect("done");
                assert!(bench.values(ANN, "label").await.contains(&label), "it is there for whoever was answered");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer ends");
    }
    assert_eq!(bench.values(ANN, "size").await, ["320"]);
    assert_eq!(bench.values(ANN, "label").await.len(), 320);
    for (value, expected) in [("320", &[ANN][..]), ("319", &[])] {
        assert_eq!(bench.found(&Filter::Equal("size".to_owned(), value.into())).await, expected);
    }
    assert_eq!(bench.found(&Filter::Equal("label".to_owned(), b"W3 n7".to_vec())).await, [ANN]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_unique_value_goes_to_one_of_many_concurrent_requests() {
    let folder = tempfile::tempdir().expect("a folder");
    let bench = Arc::new(Bench::start(sqlite(&folder), PreparedOutcome::Straight).await);
    for number in 0..8 {
        put(&*bench.records, &format!("p{number}"), Profile::default(), None).await;
    }
    let barrier = Arc::new(tokio::sync::Barrier::new(8));
    let writers = (0..8).map(|writer| {
        let (bench, barrier) = (bench.clone(), barrier.clone());
        tokio::spawn(async move {
            let dn = format!("uid=p{writer},ou=people,o=site");
            bench.directory.find(&dn).await.expect("it is there");
            barrier.wait().await;
            let terms = Preconditions { unique: vec!["label".to_owned()], ..Preconditions::default() };
            let change = vec![modification(ModifyType::Add, "label", &["the one"])];
            bench.directory.modify(&operator(), &dn, change, terms).await.map_err(|refusal| refusal.code)
        })
    });
    let mut done = 0;
    for writer in writers.collect::<Vec<_>>() {
        match writer.await.expect("a writer ends") {
            Ok(_) => done += 1,
            Err(code) => assert_eq!(code, Code::EntryAlreadyExists),
        }
    }
    assert_eq!((done, bench.found(&Filter::Equal("label".to_owned(), b"the one".to_vec())).await.len()), (1, 1));
}

#[tokio::test]
async fn a_required_password_survives_other_changes() {
    for way in [PreparedOutcome::Straight, PreparedOutcome::Never] {
        let bench = Bench::start(memory(), way).await;
        let operator = operator();
        let values = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        let add = async |dn: &str, classes: &[&str], named: &str, password: Option<&str>| {
            let mut given = vec![("objectClass".to_owned(), values(classes)), (named.to_owned(), values(&["one"]))];
            given.extend(password.map(|password| ("userPassword".to_owned(), values(&[password]))));
            bench
                .directory
                .add(&operator, dn, given, Preconditions::default())
                .await
                .map(|_| ())
                .map_err(|why| why.code)
        };
        // One recipient class, and one that is not.
        let reader = ("uid=one,o=site", ["account", "simpleSecurityObject"], "uid");
        let printer = ("cn=one,o=site", ["device", "simpleSecurityObject"], "cn");
        for (dn, classes, named) in [reader, printer] {
            assert_eq!(add(dn, &classes, named, None).await, Err(Code::ObjectClassViolation), "its class wants one");
            assert_eq!(add(dn, &classes, named, Some("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")).await, Ok(()));
            bench.modify(dn, &[modification(ModifyType::Replace, "description", &["new"])]).await.expect("changed");
            assert_eq!(bench.values(dn, "description").await, ["new"]);
            let gone = bench.modify(dn, &[modification(ModifyType::Delete, "userPassword", &[])]).await;
            assert_eq!(gone.expect_err("refused").code, Code::ObjectClassViolation, "its class wants one");
            bench.directory.authenticate(dn, b"secret".to_vec()).await.expect("it is still there");
        }
    }
}

// The same random changes, optimistically and in the writer thread.

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

const NAMES: &[&str] = &[
    "label",
    "label",
    "nickname",
    "nickname",
    "size",
    "size",
    "gauge",
    "title",
    "carLicense",
    "telephoneNumber",
    "description",
    "mail",
    "mobile",
    "sn",
    "cn",
    "uid",
    "preferredLanguage",
    "employeeNumber",
    "objectClass",
    "Label",
    "LABEL",
    "tocsinEnabled",
    "tocsinTimeZone",
    "jpegPhoto",
    "seeAlso",
    "entryUUID",
    "nonsense",
    "manager",
];
const VALUES: &[&str] = &[
    "a",
    "A ",
    "b",
    "ü",
    "1",
    "2",
    "-7",
    "1.5",
    "007",
    "1.50",
    "true",
    "a@example.org",
    "b@example.org",
    "de",
    "Europe/Vienna",
    "TRUE",
    "FALSE",
    "cn=x,o=site",
    "+1 555",
    "account",
    "extensibleObject",
    "",
];
const PEOPLE: &[&str] = &[
    "uid=ann,ou=people,o=site",
    "UID=Bob, ou=people,o=site",
    "cn=cid,ou=members,o=site",
    "cn=dan\\,x,ou=members,o=site",
    "cn=eve,cn=cid,ou=members,o=site",
    "cn=new,ou=members,o=site",
    "uid=new+cn=new,ou=members,o=site",
    "ou=members,o=site",
    "cn=staff,o=site",
];

/// Attributes that most entries may have, so that many changes succeed.
const PLAIN: &[&str] = &["title", "description", "carLicense", "label", "nickname"];

fn random_modification(rng: &mut fastrand::Rng) -> Modification {
    if rng.bool() {
        let act =
            *rng.choice(&[ModifyType::Add, ModifyType::Add, ModifyType::Replace, ModifyType::Delete]).expect("some");
        let values: &[&str] = rng.choice([&["a"][..], &["b", "ü"], &["z"], &["A  b"]]).expect("some");
        return modification(act, rng.choice(PLAIN).expect("some"), values);
    }
    let act = *rng
        .choice(&[
            ModifyType::Add,
            ModifyType::Add,
            ModifyType::Delete,
            ModifyType::Replace,
            ModifyType::Replace,
            ModifyType::Increment,
        ])
        .expect("some");
    let name = rng.choice(NAMES).expect("some");
    let mut values: Vec<&str> = (0..rng.usize(..3)).filter_map(|_| rng.choice(VALUES)).copied().collect();
    if rng.u8(..200) == 0 {
        let long: &'static str = "x".repeat(70_000).leak();
        values.push(long);
    }
    modification(act, name, &values)
}

/// Performs a random operation, the same on both benches. Returns its result.
async fn act<S: Entries + Records>(bench: &Bench<S>, rng: &mut fastrand::Rng, step: i64) -> String {
    bench.now.store(1_000_000 * (step + 2), Ordering::SeqCst);
    let dn = if rng.bool() { rng.choice(&PEOPLE[..5]) } else { rng.choice(PEOPLE) }.expect("some");
    match rng.u8(..40) {
        0 => {
            let attributes = [
                ("LABEL", Value::List([Value::from("one")].into())),
                ("Undeclared", Value::from("x")),
                ("size", Value::from("no number")),
                ("hidden", Value::Map([("a".into(), Value::Null)].into())),
                ("gauge", Value::from(0.5)),
                ("label", Value::from(if rng.bool() { "z" } else { "a" })),
                ("nickname", Value::List([].into())),
                ("title", Value::Null),
            ];
            let kept = rng.u8(..);
            let kept = |at: usize| kept >> at & 1 == 1;
            let attributes = attributes.into_iter().enumerate().filter(|(at, _)| kept(*at));
            let attributes = attributes.map(|(_, (name, value))| (name.to_owned(), value)).collect();
            let profile = Profile { enabled: rng.bool(), attributes, ..Profile::default() };
            // A removed subscriber is added again, unless another entry has its login name by then.
            let put = try_put(&*bench.records, rng.choice(["ann", "bob"]).expect("some"), profile, None).await;
            format!("put {:?}", put.err())
        }
        1 => {
            let names = ["ou=members,o=site", "ou=Members,o=site"];
            let (from, to) = if rng.bool() { (names[0], "ou=Members") } else { (names[1], "ou=others") };
            let rename = async |from: &str, to: &str| {
                bench.directory.rename(&operator(), from, to, true, None, Preconditions::default()).await.err()
            };
            format!("{:?} {:?}", rename(from, to).await, rename("ou=others,o=site", "ou=members").await)
        }
        3 | 4 => {
            let rdn =
                rng.choice(["cn=cid", "cn=dan\\,x", "cn=new", "CN=New", "uid=ann", "uid=new+cn=new"]).expect("some");
            let above =
                rng.choice(["ou=members,o=site", "OU=members,o=site", "ou=people,o=site", "cn=cid,ou=members,o=site"]);
            let dn = format!("{rdn},{}", above.expect("some"));
            let values = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect();
            let class = rng.choice(["inetOrgPerson", "account", "groupOfNames"]).expect("some");
            let mut given: Vec<(String, Vec<Vec<u8>>)> = vec![
                ("objectClass".to_owned(), values(&[class, "extensibleObject"])),
                ("sn".to_owned(), values(&["x"])),
                ("cn".to_owned(), values(&["new"])),
                ("uid".to_owned(), values(rng.choice([&["u"][..], &["new", "ann"], &["bob"]]).expect("some"))),
            ];
            for Modification { attribute, values, .. } in [random_modification(rng), random_modification(rng)] {
                given.push((attribute, values));
            }
            let requester = if rng.u8(..8) == 0 { AuthzId::default() } else { operator() };
            let terms = Preconditions { after: rng.u8(..4) == 0, ..Preconditions::default() };
            let summary = format!("{dn} {given:?}");
            match bench.directory.add(&requester, &dn, given, terms).await {
                Ok(images) => format!("{summary} {:?}", images.after.map(|image| image.entry)),
                Err(refusal) => format!("{summary} {refusal:?}"),
            }
        }
        5 => {
            let done = bench.directory.remove(&operator(), dn, Preconditions::default()).await;
            format!("{dn} {:?}", done.err())
        }
        2 => {
            let kind = format!("( 2.25.8.{step} NAME 'later{step}' SUP label X-INDEX 'eq' )");
            let change = modification(ModifyType::Add, "attributeTypes", &[&kind]);
            let done = bench.modify(SUBSCHEMA, &[change]).await;
            bench.directory.build_indexes().await.expect("built");
            format!("{:?}", done.err())
        }
        _ => {
            let changes: Vec<_> =
                (0..rng.choice([1, 1, 1, 2, 3]).expect("some")).map(|_| random_modification(rng)).collect();
            let requester = match rng.u8(..8) {
                0 => AuthzId::default(),
                1 => AuthzId { key: "cn=cid,ou=members,o=site".into(), ..AuthzId::default() },
                _ => operator(),
            };
            let name = rng.choice(["label", "size", "title"]).expect("some").to_string();
            let assertion = (rng.u8(..6) == 0).then_some(Filter::Present(name));
            let terms = Preconditions { assertion, before: rng.bool(), after: rng.bool(), ..Preconditions::default() };
            match bench.directory.modify(&requester, dn, changes.clone(), terms).await {
                Ok(ReadEntries { before, after }) => {
                    let entries = [before, after].map(|image| image.map(|image| image.entry));
                    format!("{dn} {changes:?} {entries:?}")
                }
                Err(refusal) => format!("{dn} {changes:?} {refusal:?}"),
            }
        }
    }
}

async fn people<S: Entries + Records>(bench: &Bench<S>) {
    let add = async |dn: &str, attributes: &[(&str, &str)]| {
        let given = attributes.iter().map(|(name, values)| {
            (name.to_string(), values.split(' ').map(|value| value.as_bytes().to_vec()).collect())
        });
        bench.directory.add(&operator(), dn, given.collect(), Preconditions::default()).await.expect("added");
    };
    put(&*bench.records, "ann", Profile::default(), Some(vec!["a@example.org"])).await;
    put(&*bench.records, "bob", Profile::default(), None).await;
    add("ou=members,o=site", &[("objectClass", "organizationalUnit")]).await;
    add("cn=staff,o=site", &[("objectClass", "groupOfNames extensibleObject"), ("member", "cn=cid,ou=members,o=site")])
        .await;
    let person = [("objectClass", "inetOrgPerson"), ("sn", "x y"), ("title", "t"), ("uid", "u v")];
    add("cn=cid,ou=members,o=site", &person).await;
    let open =
        [("objectClass", "inetOrgPerson extensibleObject"), ("sn", "x"), ("mail", "d@example.org"), ("label", "l")];
    add("cn=dan\\,x,ou=members,o=site", &open).await;
    add("cn=eve,cn=cid,ou=members,o=site", &open).await;
}

async fn random<S: Entries + Records>(make: impl Fn(usize) -> S, seed: u64, steps: i64) -> (usize, usize) {
    let benches =
        [Bench::start(make(0), PreparedOutcome::Straight).await, Bench::start(make(1), PreparedOutcome::Never).await];
    for bench in &benches {
        people(bench).await;
    }
    let [beside, midst] = &benches;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut past: Vec<(ChangeSequence, Vec<SubscriberNumber>, String)> = Vec::new();
    for step in 0..steps {
        let mut same_luck = rng.clone();
        let outcome = act(midst, &mut same_luck, step).await;
        assert_eq!(act(beside, &mut rng, step).await, outcome, "step {step}");
        let entries = async |directory: &Directory| {
            let mut entries = Vec::new();
            for dn in PEOPLE {
                entries.push(directory.find(dn).await.map(|shown| shown.entry.clone()));
            }
            entries
        };
        let expected = entries(&midst.directory).await;
        assert_eq!(entries(&beside.directory).await, expected, "step {step}: {outcome}");
        let all = async |bench: &Bench<S>| {
            let all = bench.records.subscribers(&SubscriberFilter::default(), None, 99).await.expect("read");
            format!("{all:#?}")
        };
        assert_eq!(all(beside).await, all(midst).await, "step {step}: {outcome}");
        let newest = *beside.records.newest_change().borrow();
        assert_eq!(newest, *midst.records.newest_change().borrow(), "step {step}: {outcome}");
        let profiles = async |numbers: &[SubscriberNumber], at: ChangeSequence| {
            let images = beside.records.profiles(numbers, at).await.expect("read");
            let texts =
                images.iter().flatten().map(|image| (&image.id, &image.profile.attributes, &image.profile.locale));
            format!("{:?}", texts.collect::<Vec<_>>())
        };
        // No reads of subscribers as of a time before they existed.
        let present = beside.records.subscribers(&SubscriberFilter::default(), None, 99).await.expect("read");
        let present: Vec<_> = present.iter().map(|found| found.number).collect();
        let then = profiles(&present, newest).await;
        past.push((newest, present, then));
        let (at, numbers, expected) = &past[rng.clone().usize(..past.len())];
        assert_eq!(profiles(numbers, *at).await, *expected, "step {step} as of {at:?}");
        if step % 25 == 0 {
            // The cache equals the store.
            let fresh =
                Directory::open(beside.records.clone(), options(), Arc::new(|| Timestamp(1))).await.expect("opens");
            assert_eq!(entries(&fresh).await, entries(&beside.directory).await, "step {step}: {outcome}");
            for (name, values) in
                [("label", &["a", "b", "z", "ü"][..]), ("nickname", &["a", "b"]), ("size", &["1", "2"])]
            {
                for value in values {
                    let found = Filter::Equal(name.to_owned(), value.as_bytes().to_vec());
                    let nothing = Filter::Not(Box::new(Filter::And(Vec::new())));
                    let looked = Filter::Or(vec![found.clone(), nothing]);
                    assert_eq!(beside.found(&found).await, beside.found(&looked).await, "step {step}: {name} {value}");
                }
            }
        }
    }
    (beside.tried(), midst.tried())
}
#[tokio::test]
async fn optimistic_and_serialized_changes_give_the_same_result() {
    let seed = from_environment("SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let steps = from_environment("CASES").map_or(400, |cases| cases as i64);
    let (tried, _) = random(|_| memory(), seed, steps).await;
    println!("{tried} of {steps} were worked out beforehand");
    assert!(tried > steps as usize / 40, "only {tried} were worked out beforehand");
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let (tried, _) = random(|at| sqlite(&folders[at]), seed, steps).await;
    assert!(tried > steps as usize / 40, "only {tried} were worked out beforehand");
}
