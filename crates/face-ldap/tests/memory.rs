//! Memory that hostile clients can occupy. It is measured, so the test has a process of its own.

mod support;

use std::time::Duration;

use support::Bench;
use tocsin_face_ldap::LdapOptions;
use tocsin_test_peers::{Peer, missing};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const CONNECTIONS: usize = 300;
/// Far less than the messages claim (300 of 16 MiB), and more than is really sent.
const GROWTH_BYTES_MAX: usize = 96 << 20;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).expect("a second number").parse::<usize>().expect("a number") * 4_096
}

fn bind() -> Vec<u8> {
    let inner = [&[2, 1, 3, 4, 15][..], b"cn=admin,o=site", &[0x80, 3], b"key"].concat();
    [&[0x30, inner.len() as u8 + 5, 2, 1, 1, 0x60, inner.len() as u8][..], &inner].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claimed_lengths_take_no_memory() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::with(&[], LdapOptions { patience: Duration::from_secs(600), ..LdapOptions::default() }).await;
    let before = resident();
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
        stream.write_all(&bind()).await.expect("sent");
        let mut answer = [0; 14];
        stream.read_exact(&mut answer).await.expect("answered");
        // Sends 64 KiB of a message of nearly 16 MiB, and then waits.
        stream.write_all(&[0x30, 0x83, 0xff, 0xff, 0x00]).await.expect("sent");
        stream.write_all(&vec![0x30; 64 << 10]).await.expect("sent");
        held.push(stream);
    }
    // An honest client is answered, so the server has processed the earlier input.
    let found = bench.search("o=site", "base", &["(objectClass=*)", "1.1"]).await;
    assert!(found.contains("dn: o=site"), "{found}");
    let growth = resident().saturating_sub(before);
    println!("{CONNECTIONS} connections with half a message of 16 MiB each: {} KiB more", growth >> 10);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes");
    drop(held);
    bench.stop().await;
}
