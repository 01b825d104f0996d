//! Hostile and broken clients do not affect the server or other clients.

mod support;

use std::time::Duration;

use support::{Bench, PERSON};
use tocsin_face_ldap::LdapOptions;
use tocsin_test_peers::{Peer, missing};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A simple bind with message id 1.
fn bind_as(dn: &str, password: &str) -> Vec<u8> {
    let mut inner = vec![2, 1, 3, 4, dn.len() as u8];
    inner.extend_from_slice(dn.as_bytes());
    inner.extend_from_slice(&[0x80, password.len() as u8]);
    inner.extend_from_slice(password.as_bytes());
    let mut message = vec![0x30, inner.len() as u8 + 5, 2, 1, 1, 0x60, inner.len() as u8];
    message.extend_from_slice(&inner);
    message
}

fn bind() -> Vec<u8> {
    bind_as("cn=ann,ou=people,o=site", "secret")
}

/// A search of everything below `o=site`, with this message id.
fn search(id: u8) -> Vec<u8> {
    let mut inner =
        b"\x04\x06o=site\x0a\x01\x02\x0a\x01\x00\x02\x01\x00\x02\x01\x00\x01\x01\x00\x87\x0bobjectClass\x30\x00"
            .to_vec();
    let mut message = vec![0x30, inner.len() as u8 + 5, 2, 1, id, 0x63, inner.len() as u8];
    message.append(&mut inner);
    message
}

/// Content and length of the first message; `None` until it is complete.
fn first_message(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (head, length) = match *bytes.get(1)? {
        0x81 => (3, usize::from(*bytes.get(2)?)),
        0x82 => (4, usize::from(*bytes.get(2)?) << 8 | usize::from(*bytes.get(3)?)),
        length => (2, usize::from(length)),
    };
    Some((bytes.get(head..head + length)?, head + length))
}

/// Sends bytes, and reads until the server disconnects or the test times out.
async fn last_words(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    let mut reply = Vec::new();
    // The server may disconnect before it has read everything.
    let _ = stream.write_all(bytes).await;
    let reading = tokio::time::timeout(tocsin_test_peers::wait_timeout(), stream.read_to_end(&mut reply)).await;
    let _ = reading.expect("the server hangs up");
    reply
}

/// Whether a client with the right password can bind; wrong passwords of others do not lock it out.
async fn is_honest_served(port: u16) -> bool {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    stream.write_all(&bind_as("cn=admin,o=site", "key")).await.expect("sent");
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).await.expect("answered");
    answer[..7] == [0x30, 12, 2, 1, 1, 0x61, 7] && answer[9] == 0
}

async fn bench(options: LdapOptions) -> Bench {
    let bench = Bench::with(&[], options).await;
    // A cheap hash, since this tests the protocol and not passwords.
    bench.add(&PERSON.replace("NAME", "ann").replace("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")).await;
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_input_ends_with_a_notice() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions::default()).await;
    let notice = b"1.3.6.1.4.1.1466.20036";
    let long: Vec<u8> = [0x30, 0x83, 0x04, 0x00, 0x01].into();
    for bytes in [
        &b"\x30\x84\xff\xff\xff\xff"[..],
        b"\x30\x80\x02\x01\x01",
        b"\x30\x85\x01\x00\x00\x00\x00",
        b"\x30\x05\x02\x01\xff\x42\x00",
        b"\x30\x05\x02\x01\x00\x42\x00",
        b"\x30\x05\x02\x01\x01\x41\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &long,
    ] {
        let reply = last_words(bench.port, bytes).await;
        assert!(reply.windows(notice.len()).any(|part| part == notice), "{bytes:?}: {reply:?}");
    }
    assert!(is_honest_served(bench.port).await);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incomplete_message_times_out() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions { patience: Duration::from_millis(50), ..LdapOptions::default() }).await;
    let whole = bind();
    let reply = last_words(bench.port, &whole[..whole.len() / 2]).await;
    assert!(!reply.is_empty(), "a notice is sent");
    let bench2 = bench;
    let idle = last_words(bench2.port, &whole[..1]).await;
    assert!(!idle.is_empty());
    assert!(is_honest_served(bench2.port).await);
    bench2.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mutated_messages_disturb_nobody() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("SEED={seed}");
    let cases = std::env::var("CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1_000);
    let mut random = fastrand::Rng::with_seed(seed);
    let bench = bench(LdapOptions { patience: Duration::from_millis(100), ..LdapOptions::default() }).await;
    for case in 0..cases {
        let mut bytes = [bind(), search(2), search(3)].concat();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.insert(at, random.u8(..)),
                _ => drop(bytes.remove(at)),
            }
        }
        let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        if case % 100 == 99 {
            assert!(is_honest_served(bench.port).await, "after case {case}");
        }
    }
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_responses_carry_their_message_ids() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions { pending_max: 4, ..LdapOptions::default() }).await;
    let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
    let mut bytes = bind();
    (2..=100).for_each(|id| bytes.extend(search(id)));
    stream.write_all(&bytes).await.expect("sent");
    let (mut reply, mut at, mut ended) = (Vec::new(), 0, std::collections::BTreeMap::new());
    while ended.len() < 99 {
        assert_ne!(stream.read_buf(&mut reply).await.expect("read"), 0, "{ended:?}");
        while let Some((message, length)) = first_message(&reply[at..]) {
            if message[3] == 0x65 {
                assert_eq!(ended.insert(message[2], message[7]), None, "answered twice");
            }
            at += length;
        }
    }
    // Requests above the limit are rejected; the others are done.
    assert!(ended.values().all(|code| matches!(code, 0 | 51)), "{ended:?}");
    assert!(ended.values().filter(|code| **code == 0).count() >= 4, "{ended:?}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_after_a_bind_has_the_identity_of_the_bind() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions::default()).await;
    let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
    // The search completes long before the password check.
    let who_am_i = b"\x30\x1e\x02\x01\x03\x77\x19\x80\x171.3.6.1.4.1.4203.1.11.3";
    stream.write_all(&[search(2), bind(), who_am_i.to_vec()].concat()).await.expect("sent");
    let (mut reply, mut at) = (Vec::new(), 0);
    let identity = loop {
        assert_ne!(stream.read_buf(&mut reply).await.expect("read"), 0);
        let mut text = None;
        while let Some((message, length)) = first_message(&reply[at..]) {
            at += length;
            text = text.or((message[2] == 3).then(|| String::from_utf8_lossy(message).into_owned()));
        }
        if let Some(text) = text {
            break text;
        }
    };
    assert!(identity.contains("dn:cn=ann,ou=people,o=site"), "{identity:?}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_address_are_bounded() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions { connections_per_address_max: 3, ..LdapOptions::default() }).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
        stream.write_all(&bind()).await.expect("sent");
        let mut answer = [0; 14];
        stream.read_exact(&mut answer).await.expect("answered");
        held.push(stream);
    }
    assert_eq!(last_words(bench.port, b"").await, b"");
    drop(held);
    bench.stop().await;
}

/// Binds on a new connection, and keeps it; `None`: it was closed at once.
async fn bind_and_hold(port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    let _ = stream.write_all(&bind()).await;
    let mut answer = [0; 14];
    stream.read_exact(&mut answer).await.ok().map(|_| stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_slots_are_bounded_and_released() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions { connections_max: 2, ..LdapOptions::default() }).await;
    // The connection that added an entry may still be closing.
    let mut held = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while held.len() < 2 {
        held.extend(bind_and_hold(bench.port).await);
        assert!(tokio::time::Instant::now() < deadline, "no connection slot is free");
    }
    assert!(bind_and_hold(bench.port).await.is_none());
    held.pop();
    while held.len() < 2 {
        held.extend(bind_and_hold(bench.port).await);
        assert!(tokio::time::Instant::now() < deadline, "the connection slot is not released");
    }
    drop(held);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sorting_is_bounded_by_the_time_limit_of_a_search() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions { time_limit: Duration::ZERO, ..LdapOptions::default() }).await;
    let sorted = ["-E", "sss=cn", "-b", "o=site", "(objectClass=person)"];
    bench.run_as("ldapsearch", "cn=ann,ou=people,o=site", "secret", &sorted, "", 3).await;
    // Operators have only the limits that they request.
    let found = bench.run("ldapsearch", &sorted, "", 0).await;
    assert!(found.contains("dn: cn=ann,ou=people,o=site"), "{found}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn escaped_values_in_filters_and_names_are_literal() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = bench(LdapOptions::default()).await;
    let wild = "*)(uid=*))(|(uid=*";
    bench.put(wild, &[("note", "a\\b*c(d)")]).await;
    let found = bench.search("o=site", "sub", &[r"(uid=\2a\29\28uid=\2a\29\29\28|\28uid=\2a)", "note"]).await;
    assert!(found.contains(r"note: a\b*c(d)"), "{found}");
    assert_eq!(found.matches("dn: ").count(), 1, "{found}");
    let found = bench.search("o=site", "sub", &[r"(note=a\5cb\2ac\28d\29)", "1.1"]).await;
    assert_eq!(found.matches("dn: ").count(), 1, "{found}");
    bench.run("ldapdelete", &[r"uid=*)(uid\=*))(|(uid\=*,ou=people,o=site"], "", 0).await;
    bench.stop().await;
}
