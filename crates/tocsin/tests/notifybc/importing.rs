//! Section 14: import of a dump that is killed in the middle.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

/// Subscriptions of the dump.
const SUBSCRIPTIONS: usize = 9_000;
/// Subscriptions that are written before the import is killed. A note keeps the size of each above 1 KiB,
/// so that buffers and batches in memory hold fewer.
const BEFORE_KILL: usize = 7_500;

fn line(number: usize) -> String {
    let id = format!("650a0000{number:016x}");
    let document = json!({
        "_id": {"$oid": id}, "serviceName": "news", "channel": "email", "state": "confirmed",
        "userChannelId": format!("p{number}@example.org"), "unsubscriptionCode": "12345",
        "updated": {"$date": "2024-01-01T00:00:00Z"}, "note": "x".repeat(1_000),
    });
    format!("{document}\n")
}

fn import(dump: &Path, data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tocsin"));
    command.arg("notifybc").arg("import").arg(dump).arg("--data").arg(data).arg("--json");
    command
}

#[test]
fn s14_a_killed_import_is_resumed_without_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, dump) = (folder.path().join("data"), folder.path().join("dump"));
    fs::create_dir(&dump).expect("a folder");
    let file = dump.join("subscription.json");
    assert!(Command::new("mkfifo").arg(&file).status().is_ok_and(|status| status.success()));
    let mut running = import(&dump, &data).stdout(Stdio::null()).spawn().expect("it starts");
    // The import reads ahead by a bounded number of records, so a pipe that took these has stored the first ones.
    let mut pipe = OpenOptions::new().write(true).open(&file).expect("the import reads");
    for number in 0..BEFORE_KILL {
        pipe.write_all(line(number).as_bytes()).expect("the import reads");
    }
    running.kill().expect("it runs");
    running.wait().expect("it ended");
    drop(pipe);
    fs::remove_file(&file).expect("removed");
    fs::write(&file, (0..SUBSCRIPTIONS).map(line).collect::<String>()).expect("written");
    let counts = || {
        let output = import(&dump, &data).output().expect("it ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let count = |name: &str| report["collections"]["subscription"][name].as_u64().expect("a number") as usize;
        (count("imported"), count("present"))
    };
    let (imported, present) = counts();
    assert_eq!(imported + present, SUBSCRIPTIONS);
    assert!((1_000..=BEFORE_KILL).contains(&present), "{present} were stored before");
    assert_eq!(counts(), (0, SUBSCRIPTIONS));
}
