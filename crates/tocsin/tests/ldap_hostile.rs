//! Hostile LDAP clients and power loss have no effect on the directory of the real binary.

#[path = "../../face-ldap/tests/support/client.rs"]
mod client;
mod support;

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use client::{Client, attribute, filter, nested, text};
use support::{ldap::Directory, wait_timeout};
use tocsin_directory::filter::Filter;
use tocsin_test_peers::{Peer, missing};

const MALLORY: &str = "uid=mallory,ou=people,o=tocsin";
/// Entry that the messages name. The password has a fast hash: password hashing is not under test.
const ENTRIES: &str = "dn: uid=mallory,ou=people,o=tocsin
objectClass: account
objectClass: simpleSecurityObject
uid: mallory
userPassword: {SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=
";

/// Maximum memory growth after mutated messages, in KiB.
const MUTATIONS_KIB: usize = 64 << 10;
/// Maximum memory growth of the bombs, in KiB: half of a hundred connections hold a megabyte of a message, the others
/// queued responses.
const BOMBS_KIB: usize = 256 << 10;

/// Number of cases: the default of the test, or `CASES`; full size is 20,000 messages and 50 kills.
fn cases(usual: usize) -> usize {
    std::env::var("CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

/// LDAP message with an id and optional controls.
fn message(number: u8, operation: &[u8], controls: &[u8]) -> Vec<u8> {
    nested(0x30, &[&[2, 1, number], operation, controls])
}

fn search(base: &str, wanted: &Filter) -> Vec<u8> {
    let limits = [10, 1, 2, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0];
    nested(0x63, &[&text(4, base), &limits, &filter(wanted), &nested(0x30, &[&text(4, "*"), &text(4, "+")])])
}

fn search_all() -> Vec<u8> {
    search("o=tocsin", &Filter::Present("objectClass".to_owned()))
}

fn control(oid: &str, value: &[u8]) -> Vec<u8> {
    nested(0xa0, &[&nested(0x30, &[&text(4, oid), &nested(4, &[value])])])
}

fn bind(dn: &str, password: &str) -> Vec<u8> {
    message(1, &nested(0x60, &[&[2, 1, 3], &text(4, dn), &text(0x80, password)]), &[])
}

/// One message of each kind, with deeply nested parts.
fn good_messages() -> Vec<Vec<u8>> {
    let parts = vec![
        Filter::Equal("uid".to_owned(), b"x".to_vec()),
        Filter::Not(Box::new(Filter::AtLeast("createTimestamp".to_owned(), b"20260101000000Z".to_vec()))),
        Filter::Substrings("cn".to_owned(), Some(b"a".to_vec()), vec![b"b".to_vec()], Some(b"c".to_vec())),
        Filter::Extensible { rule: Some("2.5.13.2".to_owned()), attribute: None, value: b"x".to_vec(), names: true },
    ];
    let (both, either) = (Filter::And(parts.clone()), Filter::Or(parts));
    let page = nested(0x30, &[&[2, 1, 1], &text(4, "")]);
    let sort = nested(0x30, &[&nested(0x30, &[&text(4, "cn"), &text(0x80, "2.5.13.3"), &[0x81, 1, 0xff]])]);
    let follow = nested(0x30, &[&[10, 1, 1]]);
    let values =
        nested(0x30, &[&attribute("objectClass", &["account".to_owned()]), &attribute("uid", &["x".to_owned()])]);
    let change = nested(0x30, &[&nested(0x30, &[&[10, 1, 2], &attribute("host", &["x".to_owned()])])]);
    vec![
        bind(MALLORY, "secret"),
        message(2, &search_all(), &[]),
        message(3, &search("ou=people,o=tocsin", &both), &control("1.2.840.113556.1.4.319", &page)),
        message(4, &search("o=tocsin", &either), &control("1.2.840.113556.1.4.473", &sort)),
        message(5, &search_all(), &control("1.3.6.1.4.1.4203.1.9.1.1", &follow)),
        message(6, &nested(0x68, &[&text(4, "uid=x,ou=people,o=tocsin"), &values]), &[]),
        message(
            7,
            &nested(0x66, &[&text(4, MALLORY), &change]),
            &control("1.3.6.1.1.13.2", &nested(0x30, &[&text(4, "*")])),
        ),
        message(8, &nested(0x6c, &[&text(4, MALLORY), &text(4, "uid=m"), &[1, 1, 0xff], &text(0x80, "o=tocsin")]), &[]),
        message(9, &text(0x4a, "uid=x,ou=people,o=tocsin"), &[]),
        message(10, &nested(0x6e, &[&text(4, MALLORY), &nested(0x30, &[&text(4, "uid"), &text(4, "mallory")])]), &[]),
        message(
            11,
            &nested(
                0x77,
                &[
                    &text(0x80, "1.3.6.1.4.1.4203.1.11.1"),
                    &nested(
                        0x81,
                        &[&nested(0x30, &[&text(0x80, MALLORY), &text(0x81, "wrong"), &text(0x82, "secret")])],
                    ),
                ],
            ),
            &[],
        ),
        message(12, &nested(0x77, &[&text(0x80, "1.3.6.1.1.8"), &nested(0x81, &[&nested(0x30, &[&[2, 1, 2]])])]), &[]),
        message(13, &[0x50, 1, 2], &[]),
    ]
}

fn mutate(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    for _ in 0..random.usize(1..8) {
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes[at] ^= 1 << random.u8(..8),
            2 => bytes.insert(at, random.u8(..)),
            3 => bytes.truncate(at.max(1)),
            _ => drop(bytes.remove(at)),
        }
        if bytes.is_empty() {
            bytes.push(0x30);
        }
    }
}

/// Sends bytes, shuts down the sending side, and reads until the server disconnects.
fn attack(port: u16, bytes: &[u8]) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    stream.set_read_timeout(Some(wait_timeout())).expect("a timeout");
    // The server may disconnect before it has read everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut said = Vec::new();
    if let Err(error) = stream.read_to_end(&mut said) {
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "the server neither responds nor disconnects");
    }
}

/// Value of a line of the process status, in KiB.
fn memory(process: u32, line: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it lives");
    let found = status.lines().find_map(|found| found.strip_prefix(line)).expect("the line");
    found.trim_matches([':', ' ', '\t', 'k', 'B']).parse().expect("a number")
}

/// Well-behaved client that repeatedly adds, finds, modifies and removes entries, each of which must succeed; returns
/// the number of rounds and the longest latency.
struct WellBehavedClient {
    stops: Arc<AtomicBool>,
    working: std::thread::JoinHandle<(usize, Duration)>,
}

impl WellBehavedClient {
    fn start(port: u16, dn: String, key: String) -> WellBehavedClient {
        let stops = Arc::new(AtomicBool::new(false));
        let stopped = stops.clone();
        let working = std::thread::spawn(move || {
            let mut client = Client::open(port, &dn, &key);
            let (mut done, mut longest) = (0, Duration::ZERO);
            while !stopped.load(Ordering::Relaxed) {
                let id = format!("honest-{done}");
                let found = search("o=tocsin", &Filter::Equal("uid".to_owned(), id.clone().into_bytes()));
                for (operation, entries) in [(add(&id), 0), (found, 1), (set(&id, 1), 0), (remove(&id), 0)] {
                    let began = Instant::now();
                    let said = client.send_request(&operation);
                    longest = longest.max(began.elapsed());
                    assert_eq!((said.code, said.entries.len()), (0, entries), "{id}");
                }
                done += 1;
            }
            (done, longest)
        });
        WellBehavedClient { stops, working }
    }

    fn stop(self) -> (usize, Duration) {
        self.stops.store(true, Ordering::Relaxed);
        self.working.join().expect("the well-behaved client is served")
    }
}

fn dn(id: &str) -> String {
    format!("uid={id},ou=people,o=tocsin")
}

fn add(id: &str) -> Vec<u8> {
    let attributes = [attribute("objectClass", &["account".to_owned()]), attribute("host", &["0".to_owned()])];
    nested(0x68, &[&text(4, &dn(id)), &nested(0x30, &[&attributes.concat()])])
}

/// Entry that makes responses long.
fn add_large(number: usize) -> Vec<u8> {
    let name = format!("large-{number}");
    let class = attribute("objectClass", &["applicationProcess".to_owned()]);
    let attributes =
        [class, attribute("cn", std::slice::from_ref(&name)), attribute("description", &["x".repeat(30_000)])];
    nested(0x68, &[&text(4, &format!("cn={name},o=tocsin")), &nested(0x30, &[&attributes.concat()])])
}

fn set(id: &str, host: u64) -> Vec<u8> {
    let change = nested(0x30, &[&[10, 1, 2], &attribute("host", &[host.to_string()])]);
    nested(0x66, &[&text(4, &dn(id)), &nested(0x30, &[&change])])
}

fn rename(id: &str, to: &str) -> Vec<u8> {
    nested(0x6c, &[&text(4, &dn(id)), &text(4, &format!("uid={to}")), &[1, 1, 0xff]])
}

fn remove(id: &str) -> Vec<u8> {
    text(0x4a, &dn(id))
}

/// Filter nested deeper than the limit.
fn deeply_nested_filter() -> Vec<u8> {
    let mut bytes = text(0x87, "cn");
    for _ in 0..20_000 {
        bytes = nested(0xa2, &[&bytes]);
    }
    let limits = [10, 1, 2, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0];
    message(2, &nested(0x63, &[&text(4, "o=tocsin"), &limits, &bytes, &nested(0x30, &[])]), &[])
}

/// Connections that hold resources: half of a long message, or searches whose responses are not read.
fn hold_connections(port: u16, bound: &[u8]) -> Vec<TcpStream> {
    let half = [bound.to_vec(), vec![0x30, 0x84, 0, 0x0f, 0xff, 0x00], vec![0; 1_000_000]].concat();
    let many = std::iter::once(bound.to_vec())
        .chain((2..=120).map(|number| message(number, &search_all(), &[])))
        .collect::<Vec<_>>()
        .concat();
    let open = |bytes: &Vec<u8>| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        stream.set_write_timeout(Some(wait_timeout())).expect("a timeout");
        let _ = stream.write_all(bytes);
        stream
    };
    (0..100).map(|at| open(if at % 2 == 0 { &half } else { &many })).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_hostile_clients_do_not_affect_other_clients() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let mut random = fastrand::Rng::with_seed(support::seed());
    let directory = Directory::start("o=tocsin", "message_max = '1MiB'\nsize_limit = 100000\n").await;
    directory.change(ENTRIES);
    let (port, process) = (directory.port, directory.platform.pid());
    // As the operator, so that messages are executed as far as possible.
    let bound = bind(&directory.operator(), &directory.platform.key());
    // Warm-up, before memory is measured.
    for bytes in good_messages() {
        attack(port, &[bound.clone(), bytes].concat());
    }
    let before = memory(process, "VmRSS");
    let honest = WellBehavedClient::start(port, directory.operator(), directory.platform.key());

    let good = good_messages();
    for _ in 0..cases(4_000) {
        let mut bytes = good[random.usize(..good.len())].clone();
        mutate(&mut random, &mut bytes);
        // Half of them from a bound client.
        attack(port, &if random.bool() { [bound.clone(), bytes].concat() } else { bytes });
    }
    let after_mutations = memory(process, "VmRSS");

    attack(port, &[bound.clone(), deeply_nested_filter()].concat());
    let mut client = Client::open(port, &directory.operator(), &directory.platform.key());
    (0..20).for_each(|number| assert_eq!(client.send_request(&add_large(number)).code, 0));
    for length in [
        b"\x30\x84\xff\xff\xff\xff".as_slice(),
        b"\x30\x88\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x30\x84\x7f\xff\xff\xff\x02\x01\x01",
    ] {
        attack(port, length);
    }
    let hoarded = hold_connections(port, &bound);
    let held = memory(process, "VmRSS");
    let most = memory(process, "VmHWM");
    drop(hoarded);
    let (done, longest) = honest.stop();
    let after = memory(process, "VmRSS");
    println!(
        "memory in KiB: {before} before, {after_mutations} after the mutations, {held} under the bombs, {most} at most, \
         {after} after them; {done} rounds of the well-behaved client, each response within {longest:?}"
    );
    assert!(done > 0);
    assert!(after_mutations < before + MUTATIONS_KIB, "mutated messages leak no memory");
    assert!(most < before + BOMBS_KIB, "memory is bounded");
}

/// Entries of a writer, with their values.
type WriterState = BTreeMap<String, u64>;

/// Change of an entry.
enum Change {
    Add(String),
    Set(String, u64),
    Rename(String, String),
    Remove(String),
}

impl Change {
    fn random(random: &mut fastrand::Rng, own: &str, number: u64, written: &WriterState) -> Change {
        let new = format!("{own}-{number}");
        let Some(known) = random.choice(written.keys().collect::<Vec<_>>()).cloned() else { return Change::Add(new) };
        match random.u8(..6) {
            0 | 1 => Change::Add(new),
            2 | 3 => Change::Set(known, number),
            4 => Change::Rename(known, new),
            _ => Change::Remove(known),
        }
    }

    fn request(&self) -> Vec<u8> {
        match self {
            Change::Add(id) => add(id),
            Change::Set(id, host) => set(id, *host),
            Change::Rename(id, to) => rename(id, to),
            Change::Remove(id) => remove(id),
        }
    }

    fn apply(&self, written: &mut WriterState) {
        match self {
            Change::Add(id) => drop(written.insert(id.clone(), 0)),
            Change::Set(id, host) => drop(written.insert(id.clone(), *host)),
            Change::Rename(id, to) => {
                let host = written.remove(id).expect("it is there");
                written.insert(to.clone(), host);
            }
            Change::Remove(id) => drop(written.remove(id)),
        }
    }
}

/// Changes entries until the server is gone; returns the acknowledged state and the unacknowledged change.
fn write(port: u16, operator: &str, key: &str, own: &str, seed: u64) -> (WriterState, Option<Change>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut written = WriterState::new();
    let Some(mut client) = Client::try_open(port, operator, key) else { return (written, None) };
    for number in 1.. {
        let change = Change::random(&mut random, own, number, &written);
        match client.try_ask(&change.request()) {
            Some(said) => assert_eq!(said.code, 0, "{own}: change {number}"),
            None => return (written, Some(change)),
        }
        change.apply(&mut written);
    }
    unreachable!("numbers do not end")
}

/// Entries of a writer that the directory has.
fn stored(client: &mut Client, own: &str) -> WriterState {
    let filter = Filter::Substrings("uid".to_owned(), Some(format!("{own}-").into_bytes()), Vec::new(), None);
    let limits = [10, 1, 2, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0];
    let said = client
        .send_request(&nested(0x63, &[&text(4, "o=tocsin"), &limits, &client::filter(&filter), &nested(0x30, &[])]));
    assert_eq!(said.code, 0);
    let one = |values: &std::collections::BTreeSet<String>| values.first().expect("a value").clone();
    said.entries.values().map(|entry| (one(&entry["uid"]), one(&entry["host"]).parse().expect("a number"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_every_acknowledged_write_is_there_after_a_kill() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut directory = Directory::start("o=tocsin", "").await;
    let (port, operator) = (directory.port, directory.operator());
    let mut acknowledged = 0;
    for round in 0..cases(5) {
        let key = directory.platform.key();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (operator, key, own) = (operator.clone(), key.clone(), format!("r{round}w{writer}"));
                let seed = random.u64(..);
                std::thread::spawn(move || {
                    let (written, pending) = write(port, &operator, &key, &own, seed);
                    (own, written, pending)
                })
            })
            .collect();
        // A random time, not a wait for a condition.
        tokio::time::sleep(Duration::from_millis(random.u64(30..300))).await;
        directory.platform.kill();
        let done: Vec<_> =
            writers.into_iter().map(|writer| writer.join().expect("the writer thread succeeds")).collect();
        directory.platform.restart().await;
        let mut client = Client::open(port, &operator, &key);
        for (own, written, pending) in done {
            let stored = stored(&mut client, &own);
            acknowledged += written.len();
            // The last change may have been stored without a response.
            let mut with_pending = written.clone();
            pending.iter().for_each(|change| change.apply(&mut with_pending));
            assert!(
                stored == written || stored == with_pending,
                "{own}: {written:?} was acknowledged, {stored:?} is stored"
            );
        }
    }
    println!("{acknowledged} entries are as acknowledged");
    assert!(acknowledged > 0);
}
