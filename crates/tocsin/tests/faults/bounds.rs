//! Resource exhaustion: no descriptors, threads or memory. The server sheds load, continues and recovers; without
//! memory the process may end, but acknowledged writes are kept.

use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tocsin_test_peers::{reserved_port, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};

use crate::{
    shim::ControlWord,
    support::{self, Platform},
    writers::FaultSetup,
};

/// Sets a resource limit of the running server; returns the previous one.
fn set_limit(platform: &Platform, resource: Resource, current: u64) -> Rlimit {
    let pid = Pid::from_raw(i32::try_from(platform.pid()).expect("small")).expect("a process");
    // Child processes inherit these limits.
    let before = getrlimit(resource);
    prlimit(Some(pid), resource, Rlimit { current: Some(current), ..before }).expect("it is lower");
    before
}

fn descriptors(platform: &Platform) -> u64 {
    std::fs::read_dir(format!("/proc/{}/fd", platform.pid())).expect("Linux").count() as u64
}

/// Submits an event on an open connection; returns the response.
async fn send_request(stream: &mut TcpStream, platform: &Platform, token: &str) -> String {
    let body = json!({ "token": token }).to_string();
    let head = format!(
        "POST /v1/applications/notes/events/note HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        platform.key(),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    // Until the end of the body, which is one JSON object.
    while !answer.ends_with(b"}") && !answer.ends_with(b"}\n") {
        let read =
            tokio::time::timeout(support::wait_timeout(), stream.read_buf(&mut answer)).await.expect("an answer");
        assert_ne!(read.expect("read"), 0, "the connection stays open: {}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).expect("text")
}

/// Without descriptors no connection is accepted, and the accept loops pause in between. Open connections are served.
/// With descriptors everything works again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_without_descriptors_load_is_shed_without_busy_loops() {
    let (ldap, mail) = (reserved_port(), reserved_port());
    let listen = format!("127.0.0.1:{ldap}");
    let ldap = [("TOCSIN_LDAP_LISTEN", &*listen), ("TOCSIN_LDAP_SUFFIX", "o=site")];
    // The shadow of the disk needs descriptors itself.
    let mut site = FaultSetup::prepare_with(&[&ldap[..], &[("FAULTS_ROOT", "")]].concat()).await;
    site.platform.restart().await;
    site.define().await;
    let drops = format!(
        "application: drops\nevents: {{ drop: {{ fields: {{ token: {{ type: string, required: true }} }} }} }}\nsources:\n  \
         mails: {{ kind: mail, events: [drop], options: {{ listen: '127.0.0.1:{mail}', recipients: ['*'], fields: {{ token: subject }} }} }}\n"
    );
    site.platform.apply("drops", &drops).await;
    let clients = site.write();
    site.acknowledged.more(20, &clients).await;
    clients.end().await;
    site.check_delivered().await;

    // A connection that is open before; nothing else uses it.
    let mut open = TcpStream::connect(site.platform.url.trim_start_matches("http://")).await.expect("accepted");
    send_request(&mut open, &site.platform, "before").await;
    let pid = site.platform.pid();
    let before = set_limit(&site.platform, Resource::Nofile, descriptors(&site.platform));
    let http = site.platform.url.trim_start_matches("http://").to_owned();
    let mut connections = Vec::new();
    for address in [http.clone(), listen.clone(), format!("127.0.0.1:{mail}")] {
        for _ in 0..60 {
            connections.push(TcpStream::connect(&address).await.expect("the kernel accepts it"));
        }
    }
    until("a failed accept", async || site.disk.get(ControlWord::FailedAccepts) > 0).await;
    let (began, first) = (Instant::now(), site.disk.get(ControlWord::FailedAccepts));
    until("failed accepts", async || site.disk.get(ControlWord::FailedAccepts) >= first + 30).await;
    // Three loops with pauses of 50 ms fail at most 60 times per second; a loop without a pause would fail 30 times at
    // once.
    let (elapsed, failed) = (began.elapsed(), site.disk.get(ControlWord::FailedAccepts) - first);
    assert!(
        elapsed >= Duration::from_millis(50) * u32::try_from(failed / 3 - 2).expect("few"),
        "{failed} in {elapsed:?}"
    );
    println!("{failed} of {} accepts failed in {elapsed:?}", site.disk.get(ControlWord::Accepts));

    // An open connection is served, and its writes are stored.
    let answer = send_request(&mut open, &site.platform, "without-descriptors").await;
    assert!(answer.starts_with("HTTP/1.1 202") || answer.starts_with("HTTP/1.1 503"), "{answer}");
    if answer.starts_with("HTTP/1.1 202") {
        site.acknowledged.events.lock().insert("without-descriptors".to_owned());
    }

    drop(connections);
    let pid_of = |platform: &Platform| Pid::from_raw(i32::try_from(platform.pid()).expect("small")).expect("a process");
    prlimit(Some(pid_of(&site.platform)), Resource::Nofile, before).expect("the previous limit is restored");
    let fresh = reqwest::Client::builder().timeout(support::wait_timeout()).build().expect("a client");
    let ready = fresh.get(format!("{}/readyz", site.platform.url)).send().await.expect("accepted again");
    assert!(ready.status().is_success(), "{}", ready.status());
    for address in [listen, format!("127.0.0.1:{mail}")] {
        let mut stream = TcpStream::connect(&address).await.expect("accepted again");
        stream.write_all(b"\r\n").await.expect("the server reads");
    }
    let clients = site.write();
    site.acknowledged.more(20, &clients).await;
    clients.end().await;
    site.check_delivered().await;
    site.check_subscribers().await;
    assert_eq!(site.platform.pid(), pid, "it never restarted");
    assert_eq!(site.platform.terminate(), Some(0));
}

/// The system starts no thread: requests that need one get an error, the others are served, and none waits forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_without_new_threads_every_request_gets_a_response() {
    let mut site = FaultSetup::start().await;
    site.disk.set(ControlWord::RefuseThreads, 1);
    let clients = site.write();
    let definition = "application: NAME\nevents: { e: { fields: { a: string } } }\n";
    let (mut applied, mut refused) = (0, 0);
    for number in 0..12 {
        let name = format!("more{number}");
        let request = site.platform.request(reqwest::Method::PUT, &format!("/v1/applications/{name}"));
        let request = request.header("content-type", "application/yaml").body(definition.replace("NAME", &name));
        let answer = request.send().await.expect("it is answered");
        match answer.status().as_u16() {
            200..300 => applied += 1,
            500..600 => refused += 1,
            status => panic!("{status} {}", answer.text().await.unwrap_or_default()),
        }
    }
    site.acknowledged.more(50, &clients).await;
    println!("{applied} applied, {refused} refused, {} threads refused", site.disk.get(ControlWord::RefusedThreads));
    assert!(site.disk.get(ControlWord::RefusedThreads) > 0, "no thread was refused");
    site.disk.set(ControlWord::RefuseThreads, 0);
    clients.end().await;
    site.platform.apply("more0", &definition.replace("NAME", "more0")).await;
    site.check_delivered().await;
    site.check_subscribers().await;
    assert_eq!(site.platform.terminate(), Some(0));
}

/// A failed allocation ends the process; limits of bodies and queues prevent it. Here the system provides almost no
/// memory: whether the server sheds load or ends, acknowledged writes exist after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a6_without_memory_nothing_acknowledged_is_lost() {
    // Without an arena each large allocation is a system allocation, which is refused.
    let mut site = FaultSetup::prepare_with(&[("MIMALLOC_ARENA_RESERVE", "0")]).await;
    site.platform.restart().await;
    site.define().await;
    let clients = site.write();
    site.acknowledged.more(30, &clients).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", site.platform.pid())).expect("Linux");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("a size");
    let kib: u64 = size.trim().trim_end_matches(" kB").parse().expect("a number");
    set_limit(&site.platform, Resource::As, kib << 10);
    // Many large invalid requests at once.
    let large = (0..40).map(|_| {
        let body = json!({ "token": 1, "nothing": "x".repeat(4_000_000) });
        let request = site.platform.request(reqwest::Method::POST, "/v1/applications/notes/events/note").json(&body);
        async move { request.send().await.map(|answer| answer.status().as_u16()) }
    });
    let answers = futures_util::future::join_all(large).await;
    let answered = answers.iter().flatten().filter(|status| **status == 422).count();
    site.acknowledged.more(100, &clients).await;
    clients.end().await;
    let ended = site.platform.has_ended();
    println!("{answered} of {} large requests were answered; the server ended: {ended:?}", answers.len());
    assert!(ended.is_some() || answered < answers.len(), "memory was never short: {answers:?}");
    if ended.is_none() {
        site.platform.kill();
    }
    site.platform.restart().await;
    site.check_integrity();
    site.check_subscribers().await;
    site.check_delivered().await;
}
