//! How much memory hostile clients can take: measured, so it is alone in its process.

mod support;

use std::time::Duration;

use support::Bench;
use tocsin_face_ldap::LdapOptions;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const CONNECTIONS: usize = 300;
/// Far less than what the messages claim to be (300 of 16 MiB), and more than what they really send.
const GROWTH_BYTES_MAX: usize = 96 << 20;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let told = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    told.split(' ').nth(1).expect("a second number").parse::<usize>().expect("a number") * 4_096
}

fn bind() -> Vec<u8> {
    let inner = [&[2, 1, 3, 4, 15][..], b"cn=admin,o=site", &[0x80, 3], b"key"].concat();
    [&[0x30, inner.len() as u8 + 5, 2, 1, 1, 0x60, inner.len() as u8][..], &inner].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lengths_that_are_only_claimed_take_no_memory() {
    let bench = Bench::with(&[], LdapOptions { patience: Duration::from_secs(600), ..LdapOptions::default() }).await;
    let before = resident();
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(("127.0.0.1", bench.port)).await.expect("connected");
        stream.write_all(&bind()).await.expect("sent");
        let mut answer = [0; 14];
        stream.read_exact(&mut answer).await.expect("answered");
        // A message of nearly 16 MiB, of which 64 KiB come; behind it the connection waits.
        stream.write_all(&[0x30, 0x83, 0xff, 0xff, 0x00]).await.expect("sent");
        stream.write_all(&vec![0x30; 64 << 10]).await.expect("sent");
        held.push(stream);
    }
    // Whoever is honest is answered, so the server has seen what came before.
    let found = bench.search("o=site", "base", &["(objectClass=*)", "1.1"]).await;
    assert!(found.contains("dn: o=site"), "{found}");
    let growth = resident().saturating_sub(before);
    println!("{CONNECTIONS} connections with half a message of 16 MiB each: {} KiB more", growth >> 10);
    assert!(growth < GROWTH_BYTES_MAX, "{growth} bytes");
    drop(held);
    bench.stop().await;
}
