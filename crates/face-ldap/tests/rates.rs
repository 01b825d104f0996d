//! Limits of requests: by rate, where requests above it are refused and clients far above it disconnected, and by size.

mod support;

use support::{
    Bench, PERSON,
    raw::{self, Raw},
};
use tocsin_face_ldap::{LdapOptions, RateLimit};
use tocsin_test_peers::{Peer, missing};

const ANN: &str = "cn=ann,ou=people,o=site";
const BUSY: u8 = 51;

/// A bench with limits of 1 request a second, and this many at once.
async fn bench(identity_burst: u32, address_burst: u32) -> Bench {
    let options = LdapOptions {
        identity_rate: RateLimit::new(u32::from(identity_burst > 0), identity_burst),
        address_rate: RateLimit::new(u32::from(address_burst > 0), address_burst),
        ..LdapOptions::default()
    };
    let bench = Bench::with(&[], options).await;
    bench.add(&PERSON.replace("NAME", "ann").replace("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")).await;
    bench
}

/// Result codes of a request that is sent this many times, one after the other.
async fn codes(raw: &mut Raw, request: &[u8], count: usize) -> Vec<u8> {
    let mut codes = Vec::new();
    for _ in 0..count {
        raw.send(&raw::message(1, request, &[])).await;
        codes.push(raw.until_done(1).await.last().expect("an answer").code());
    }
    codes
}

fn count(codes: &[u8], code: u8) -> usize {
    codes.iter().filter(|found| **found == code).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_requests_without_a_bind_count_for_their_address() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(0, 20).await;
    let search = raw::search("o=site", "person");
    let (mut one, mut other) = (Raw::connect(bench.port).await, Raw::connect(bench.port).await);
    let first = codes(&mut one, &search, 100).await;
    assert!(count(&first, BUSY) > 0 && count(&first, BUSY) <= 80 && first[99] == BUSY, "{first:?}");
    one.send(&raw::message(2, &search, &[])).await;
    let refused = one.until_done(2).await;
    let text = String::from_utf8_lossy(&refused[0].content).into_owned();
    assert!(text.contains("more than 1 requests a second, 20 at once"), "{text}");
    let second = codes(&mut other, &search, 5).await;
    assert!(count(&second, BUSY) >= 4, "all connections of the address: {second:?}");
    // A bind with the right password is admitted, and a bound identity has no limit here.
    assert_eq!(codes(&mut other, &raw::bind(ANN, "secret"), 1).await, [0]);
    assert_eq!(count(&codes(&mut other, &search, 200).await, 0), 200);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_failed_binds_count_for_their_address_and_others_do_not() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(0, 20).await;
    let mut raw = Raw::connect(bench.port).await;
    let binds = codes(&mut raw, &raw::bind("cn=admin,o=site", "key"), 100).await;
    assert_eq!(count(&binds, 0), 100, "successful binds have no limit");
    let guesses = codes(&mut raw, &raw::bind("cn=admin,o=site", "guess"), 100).await;
    assert!(count(&guesses, 49) >= 20 && count(&guesses, BUSY) > 50, "{guesses:?}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_a_bound_identity_has_one_limit_for_all_its_connections() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(20, 0).await;
    let search = raw::search("o=site", "person");
    let (mut one, mut other, mut admin) =
        (Raw::connect(bench.port).await, Raw::connect(bench.port).await, Raw::connect(bench.port).await);
    for raw in [&mut one, &mut other] {
        assert_eq!(codes(raw, &raw::bind(ANN, "secret"), 1).await, [0]);
    }
    let first = codes(&mut one, &search, 60).await;
    assert!(count(&first, 0) >= 20 && count(&first, BUSY) > 0, "{first:?}");
    assert!(count(&codes(&mut other, &search, 5).await, BUSY) >= 4);
    assert_eq!(codes(&mut other, &raw::bind(ANN, "secret"), 1).await, [0], "binds do not count");
    assert_eq!(codes(&mut admin, &raw::bind("cn=admin,o=site", "key"), 1).await, [0]);
    assert!(count(&codes(&mut admin, &search, 10).await, 0) >= 8, "another identity has its own limit");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_a_client_far_above_its_limit_is_disconnected() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(0, 2).await;
    let mut raw = Raw::connect(bench.port).await;
    let search = raw::search("o=site", "person");
    for answered in 0.. {
        assert!(answered < 1_000, "it is not disconnected");
        raw.send(&raw::message(1, &search, &[])).await;
        let reply = raw.next().await;
        // A notice of disconnection has the message id 0.
        if reply.id == 0 {
            assert_eq!(reply.code(), BUSY);
            assert!(answered >= 20, "only far above the limit: {answered}");
            break;
        }
    }
    assert_eq!(codes(&mut Raw::connect(bench.port).await, &raw::bind("cn=admin,o=site", "key"), 1).await, [0]);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d_large_requests_of_a_connection_run_one_after_the_other() {
    // Two requests can run at a time, but two of these messages do not fit.
    let options = LdapOptions { message_bytes_max: 64 << 10, pending_max: 2, ..LdapOptions::default() };
    let bench = Bench::with(&[], options).await;
    let mut raw = Raw::connect(bench.port).await;
    assert_eq!(codes(&mut raw, &raw::bind("cn=admin,o=site", "key"), 1).await, [0]);
    let attribute = |name: &str, value: &[u8]| {
        raw::element(0x30, &[raw::element(4, name.as_bytes()), raw::element(0x31, &raw::element(4, value))].concat())
    };
    let add = |number: u8| {
        let attributes =
            [attribute("objectClass", b"organizationalUnit"), attribute("description", &vec![b'x'; 40_000])].concat();
        let dn = raw::element(4, format!("ou=u{number},o=site").as_bytes());
        raw::message(number, &raw::element(0x68, &[dn, raw::element(0x30, &attributes)].concat()), &[])
    };
    let all: Vec<u8> = (1..=20).flat_map(add).collect();
    raw.send(&all).await;
    for _ in 1..=20 {
        let said = raw.next().await;
        assert_eq!((said.operation, said.code()), (0x69, 0), "{said:?}");
    }
    bench.stop().await;
}
