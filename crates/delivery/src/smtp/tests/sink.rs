use std::process::Stdio;

use serde_json::json;
use tocsin_test_peers::{Peer, missing, reserved_port};

use super::deliver;
use crate::testing::{channel, context};

/// Postfix's smtp-sink accepts our mails: an independent implementation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sink_of_postfix_takes_them() {
    if missing(&[Peer::SmtpSink]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let port = reserved_port();
    let mut command = tokio::process::Command::new(Peer::SmtpSink.path());
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        command.args(["-u", "root"]);
    }
    let dump = folder.path().join("mails");
    let mut sink = command
        .args(["-c", "-D"])
        .arg(&dump)
        .arg(format!("127.0.0.1:{port}"))
        .arg("100")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("smtp-sink starts");
    let options = json!({ "host": "127.0.0.1", "port": port, "from": "bells@near.example" });
    let name = "mail".parse().expect("a name");
    let open =
        crate::open(&name, &channel("smtp", options, 4), &context()).unwrap_or_else(|problems| panic!("{problems:?}"));
    let shown = deliver(&*open, &["a@b.example"; 200]).await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered 250 ")), "{shown:?}");
    open.close().await;
    sink.kill().await.expect("smtp-sink ends");
    let mails: String = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("text"))
        .collect();
    assert_eq!(mails.matches("Message-ID: <n-7-").count(), 200);
}
