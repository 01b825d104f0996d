//! Full disk: intake is refused with 503 and `Retry-After` before anything is lost, stored work is still delivered, and
//! intake recovers by itself when space is freed.

mod support;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use support::{Platform, mails::Mails};
use tocsin_test_peers::{Peer, missing};

const APPLICATION: &str = r#"
application: notes
events: { note: { fields: { token: { type: string, required: true }, padding: string } } }
subscriptions: { every: { fields: {} } }
notifications:
  note:
    fields: { token: string }
    content: { templates: { base: { subject: "note", text: "token: {{ token }}\n" } } }
rules: { everyone: { on: note, subscription: every, notify: note } }
channels:
  email:
    protocol: smtp
    options:
      host: 127.0.0.1
      port: ${SINK}
      tls: off
      from: t@example.org
    retry: [1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s]
"#;

/// File system of 64 MiB, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path) -> SmallDisk {
        fs::create_dir_all(at).expect("a folder");
        let mount = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).arg(at).status();
            status.is_ok_and(|status| status.success())
        };
        let options = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0777", "tmpfs"];
        let mounted = mount("mount", &options[1..]) || mount("sudo", &[&["-n"], &options[..]].concat());
        assert!(mounted, "this test mounts a tmpfs, so it must run as root or with sudo");
        SmallDisk(at.to_owned())
    }

    /// Fills the free space except about `left` bytes.
    fn fill(&self, left: usize) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&ballast).expect("a file");
        let page = vec![b'x'; 64 << 10];
        while file.write_all(&page).is_ok() {}
        let size = file.metadata().expect("a size").len();
        file.set_len(size.saturating_sub(left as u64)).expect("it can be cut");
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(&self.0).status();
        if !done.is_ok_and(|status| status.success()) {
            let _ = Command::new("sudo").args(["-n", "umount", "-l"]).arg(&self.0).status();
        }
    }
}

/// Posts notes until one is refused. Returns the accepted tokens and the requested wait.
async fn post_until_refused(platform: &Platform, prefix: &str) -> (Vec<String>, u64) {
    let mut accepted = Vec::new();
    let mut random = fastrand::Rng::with_seed(support::seed());
    for number in 0..20_000 {
        let token = format!("{prefix}-{number}");
        // Random letters, which are incompressible.
        let padding: String = std::iter::repeat_with(|| random.alphanumeric()).take(8_000).collect();
        let body = serde_json::json!({ "token": token, "padding": padding });
        let request = platform.request(reqwest::Method::POST, "/v1/applications/notes/events/note").json(&body);
        let answer = request.send().await.expect("the server answers");
        match answer.status().as_u16() {
            202 => accepted.push(token),
            503 => {
                let wait = answer.headers().get("retry-after").expect("a Retry-After").to_str().expect("text");
                let wait = wait.parse().expect("seconds");
                let problem: serde_json::Value = answer.json().await.expect("a problem");
                assert_eq!(problem["status"], 503, "{problem}");
                return (accepted, wait);
            }
            status => panic!("{status}: {}", answer.text().await.unwrap_or_default()),
        }
    }
    panic!("the disk never filled up");
}

/// Status of the server, for a failing test.
fn diagnosis(platform: &Platform) -> String {
    [&["status"][..], &["suspended", "list"], &["digest"]].map(|arguments| platform.run(arguments)).join("\n")
}

/// Fills a small disk except `left` bytes, and posts until it is full. With a reserve, stored work is delivered at once
/// because receipts fit; without one, after space is freed.
async fn check(reserve: &str, left: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = SmallDisk::mount(&folder.path().join("disk"));
    let mails = Mails::start().await;
    mails.set_closed(true);
    let sink = mails.port.to_string();
    let environment =
        [("SINK", sink.as_str()), ("TOCSIN_JOURNAL_DISK_RESERVE", reserve), ("TOCSIN_RECORDS_DISK_RESERVE", reserve)];
    let mut platform = Platform::start_in(&disk.0.join("data"), &environment).await;
    platform.apply("notes", APPLICATION).await;
    platform.subscribe("notes", "every", "alice", "email", "alice@example.org", serde_json::json!({})).await;

    let ballast = disk.fill(left);
    let (mut accepted, wait) = post_until_refused(&platform, "before").await;
    assert!((1..=60).contains(&wait), "{wait}");
    println!("{} notes were accepted before the disk was full", accepted.len());
    assert!(accepted.len() > 10, "{}", accepted.len());

    // Stored work is delivered although the disk is full.
    if reserve != "0" {
        mails.set_closed(false);
        let delivered = mails.wait_for_tokens(&accepted.iter().cloned().collect()).await;
        assert!(delivered, "{} of {} notes came", mails.ids_by_token().len(), accepted.len());
    }

    // With free space intake recovers without a restart; a client that retries succeeds.
    fs::remove_file(ballast).expect("the ballast can be removed");
    mails.set_closed(false);
    support::until("intake recovers", async || {
        let body = serde_json::json!({ "token": "after" });
        let (status, answer) = platform.post("/v1/applications/notes/events/note", &body).await;
        assert!(status == 202 || status == 503, "{status} {answer}");
        status == 202
    })
    .await;
    accepted.push("after".to_owned());
    let delivered = mails.wait_for_tokens(&accepted.iter().cloned().collect()).await;
    let came = mails.ids_by_token();
    let missing: Vec<&String> = accepted.iter().filter(|token| !came.contains_key(*token)).collect();
    assert!(
        delivered,
        "{} of {} notes came, without {missing:?}: {}",
        came.len(),
        accepted.len(),
        diagnosis(&platform)
    );

    // No corruption: a clean stop, intact databases, and a restart.
    assert_eq!(platform.terminate(), Some(0));
    for entry in fs::read_dir(disk.0.join("data")).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "db") {
            let database = rusqlite::Connection::open(&path).expect("a database");
            let sound: String = database.query_row("pragma integrity_check", [], |row| row.get(0)).expect("an answer");
            assert_eq!(sound, "ok", "{}", path.display());
        }
    }
    platform.restart().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reserve_keeps_delivery_going() {
    if missing(&[Peer::Root]) {
        return;
    }
    check("8MiB", 16 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_reserve_a_full_disk_is_survived() {
    if missing(&[Peer::Root]) {
        return;
    }
    check("0", 8 << 20).await;
}
