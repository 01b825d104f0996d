use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use async_trait::async_trait;
use serde_json::{Value, json};
use tocsin_connect::programs::Programs;
use tokio::sync::mpsc;

use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise},
    testing::{channel, context, deliver, outgoing, show},
};

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a program");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it may be run");
}

/// Opens a channel to a shell script as its program, in its own folder.
fn open(folder: &Path, script: &str, options: Value) -> Box<dyn OpenChannel> {
    let program = folder.join("program");
    write_program(&program, script);
    let context = crate::Context {
        data_folder: folder.to_owned(),
        programs: Programs { allow: vec![folder.to_owned()] },
        ..context()
    };
    let mut all = json!({ "command": [program] });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let name = "own".parse().expect("a name");
    crate::open(&name, &channel("process", all, 1), &context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn many(count: u32) -> Vec<Outgoing> {
    (0..count).map(|number| outgoing(number, "+41 79 000 00 00")).collect()
}

/// Answers every message as delivered, with its own number.
const TAKES_ALL: &str = r#"exec sed -u 's/.*"id":"\(n-[0-9]*-\)\([0-9]*\)".*/{"id": "\1\2", "outcome": "delivered", "reply": "number \2"}/'"#;

#[tokio::test]
async fn a_program_answers_each_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), TAKES_ALL, json!({ "window": 7 }));
    let shown = deliver(&*channel, many(1_000)).await;
    assert!(
        shown.iter().enumerate().all(|(number, shown)| *shown == format!("delivered number {number}")),
        "{shown:?}"
    );
    assert_eq!(channel.down(), None);
    channel.close().await;
}

#[tokio::test]
async fn it_gets_the_record_and_only_the_environment_that_it_is_given() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("tee received | {TAKES_ALL}").replace("exec ", "");
    let script = format!("echo $COLOUR $HOME $0 > environment\n{script}");
    let channel = open(folder.path(), &script, json!({ "environment": { "COLOUR": "green" } }));
    deliver(&*channel, many(1)).await;
    channel.close().await;
    let received: Value =
        serde_json::from_slice(&fs::read(folder.path().join("received")).expect("a file")).expect("one line of JSON");
    assert_eq!(received["address"], "+41 79 000 00 00");
    assert_eq!(received["data"], json!({ "magnitude": 6.1, "place": "Kobe" }));
    let environment = fs::read_to_string(folder.path().join("environment")).expect("a file");
    assert_eq!(environment, format!("green {}\n", folder.path().join("program").display()));
}

#[tokio::test]
async fn answers_come_in_any_order_and_invalid_lines_are_ignored() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"
        head -n 3 > /dev/null
        echo 'Hello, I am a program.'
        echo '{"id": "n-7-2", "outcome": "deferred", "reason": "busy", "retry_after_seconds": 3}'
        head -c 100000 /dev/zero; echo
        echo '{"id": "n-9-9", "outcome": "delivered"}'
        echo '{"id": "n-7-0", "outcome": "refused", "reason": "no such number"}'
        echo '{"id": "n-7-1", "outcome": "delivered"}'
        echo '{"id": "n-7-1", "outcome": "refused"}'"#;
    let channel = open(folder.path(), script, json!({}));
    let expected = ["refused Answer no such number", "delivered taken", "deferred Answer busy"];
    assert_eq!(deliver(&*channel, many(3)).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_program_that_does_not_answer_has_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), "exec sed -n d", json!({ "timeout": "20s" }));
    assert_eq!(deliver(&*channel, many(2)).await, ["deferred Timeout no answer of the program within 20s"; 2]);
}

#[tokio::test]
async fn unanswered_messages_are_retried_and_the_program_is_restarted() {
    let folder = tempfile::tempdir().expect("a folder");
    // The first run answers one message; the second detects that it is not the first.
    let script = format!(
        "if [ -e first ]; then {TAKES_ALL}; fi; touch first; head -n 1 > /dev/null; echo 'no credit' >&2; exit 3"
    );
    let channel = open(folder.path(), &script, json!({}));
    let shown = deliver(&*channel, many(1)).await;
    assert_eq!(shown, ["deferred Connection the program ended (exit status: 3; its last words: no credit)"]);
    assert!(channel.down().is_some_and(|reason| reason.text.contains("no credit")));
    assert!(channel.probe().await.is_err());
    tokio::time::pause();
    assert_eq!(deliver_while_paused(&*channel).await, ["delivered number 0"]);
    assert_eq!(channel.down(), None);
}

/// As `deliver` for one message, on a clock that advances only while nothing runs: restart delays pass at once, and
/// the program still has the time it needs.
async fn deliver_while_paused(open: &dyn OpenChannel) -> Vec<String> {
    let (answers, mut answered) = mpsc::channel(1);
    open.send_all(many(1), &answers).await;
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    tokio::time::resume();
    vec![show(&answered.recv().await.expect("an answer").disposition)]
}

#[tokio::test]
async fn a_missing_or_forbidden_program_is_reported_when_the_channel_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = "own".parse().expect("a name");
    let open = |command: &str, allow: &[&Path]| {
        let programs = Programs { allow: allow.iter().map(|path| path.to_path_buf()).collect() };
        let context = crate::Context { programs, ..context() };
        let channel = channel("process", json!({ "command": [command] }), 1);
        crate::open(&name, &channel, &context).err().expect("problems")[0].to_string()
    };
    assert!(open("/nonexistent/send", &[folder.path()]).starts_with("command: /nonexistent/send is not there"));
    assert!(open("/bin/sh", &[folder.path()]).contains("may not be started here; `delivery.allow_programs`"));
}

#[tokio::test]
async fn at_its_end_a_channel_lets_the_program_finish() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("{TAKES_ALL}; echo done > end").replace("exec ", "");
    let channel = open(folder.path(), &script, json!({}));
    let (answers, mut answered) = mpsc::channel(10);
    channel.send_all(many(10), &answers).await;
    let first = answered.recv().await;
    channel.close().await;
    assert!(folder.path().join("end").exists(), "it saw the end of its input and ended by itself");
    drop(answers);
    let mut count = usize::from(first.is_some());
    while answered.recv().await.is_some() {
        count += 1;
    }
    assert_eq!(count, 10);
}

struct Conforming(tempfile::TempDir);

impl Conforming {
    fn open(&self, context: Context, program: &str, script: &str, options: Value) -> Box<dyn OpenChannel> {
        let folder = self.0.path();
        let path = folder.join(program);
        if !path.exists() {
            write_program(&path, script);
        }
        let context = Context {
            data_folder: folder.to_owned(),
            programs: Programs { allow: vec![folder.to_owned()] },
            ..context
        };
        let mut all = json!({ "command": [path] });
        all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
        let name = "own".parse().expect("a name");
        crate::open(&name, &channel("process", all, 1), &context).unwrap_or_else(|problems| panic!("{problems:?}"))
    }
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        // No expression matches a whole line: a long one would take minutes.
        let script = r#"tee -a received | grep --line-buffered -o '^{"id":"[^"]*"' |
            sed -u 's/$/, "outcome": "delivered", "reply": "ok"}/'"#;
        self.open(context, "accepts", script, json!({}))
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        let options = json!({ "timeout": "100ms", "grace": "100ms" });
        Some(self.open(context, "silent", "exec cat > silence", options))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "+41 79 000 00 00")
    }

    async fn received_ids(&self) -> Vec<String> {
        let received = fs::read_to_string(self.0.path().join("received")).unwrap_or_default();
        let records = received.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records.filter_map(|record| record["message_id"].as_str().map(str::to_owned)).collect()
    }

    fn in_flight_max(&self) -> usize {
        128
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    exercise(&Conforming(tempfile::tempdir().expect("a folder"))).await;
}
