use std::{fs, io::Write, ops::Range, path::PathBuf, process::Command, thread};

use async_trait::async_trait;
use serde_json::{Value as Json, json};

use crate::{
    conformance::{Oversize, Subject, exercise},
    testing::{Harness, taken},
};

/// Counts from its position, and reports its position after every second line.
const COUNTER: &str = r#"
n=${TOCSIN_POSITION:-0}
while [ $n -lt 10 ]; do
  n=$((n + 1)); echo "{\"id\": \"q$n\"}"
  n=$((n + 1)); echo "{\"id\": \"q$n\"}"; echo "{\"\$position\": \"$n\"}"
done
cat > /dev/null
"#;

fn program(script: &str) -> Harness {
    Harness::new("process", json!({"command": ["/bin/sh", "-c", script], "grace": "1s"}))
}

#[tokio::test]
async fn a_program_continues_at_its_position() {
    let mut harness = program(COUNTER);
    let mut events = harness.take_events(4).await;
    // Not committed, so it is delivered again.
    assert_eq!(harness.next().await.events.count(), 2);
    harness.crash();
    events.extend(harness.take_events(6).await);
    let expected: Vec<String> = (1..=10).map(|number| taken(&format!("{{\"id\": \"q{number}\"}}"))).collect();
    assert_eq!(events, expected);
    harness.source().close().await;
}

#[tokio::test]
async fn the_program_is_notified_of_acceptance() {
    let mut harness = program(
        r#"echo '{"id": "1"}'; echo '{"$position": "a b"}'; read answer; echo "{\"id\": \"heard\", \"tags\": [$answer]}"; cat"#,
    );
    assert_eq!(harness.take().await, [r#"{"id":"1"}"#]);
    assert_eq!(harness.take().await, [r#"{"id":"heard","tags":[{"accepted":"a b"}]}"#]);
    harness.source().close().await;
}

#[tokio::test]
async fn invalid_events_are_rejected_and_a_failing_program_is_an_error() {
    let mut harness = program("echo nonsense; echo '{\"id\": 7}'; cat");
    let batch = harness.next().await;
    assert_eq!((batch.events.count(), batch.refused.len()), (0, 2));
    assert_eq!(batch.refused[1].reason, "id: should be a string, not an integer");
    harness.source().close().await;

    let mut harness = program("exit 3");
    assert!(harness.try_next().await.expect_err("it failed").text.contains("exit status: 3"));
}

/// Writes the lines of a file from its position on, each followed by its position. Then it waits for the bell, a named
/// pipe.
const READER: &str = r#"
n=${TOCSIN_POSITION:-0}
at=0
exec 3< "$ITEMS"
while :; do
  while IFS= read -r line <&3; do
    at=$((at + 1))
    if [ $at -gt $n ]; then printf '%s\n{"$position": "%s"}\n' "$line" $at; fi
  done
  read -r bell < "$BELL"
done
"#;

/// The folder of the present source, with its lines.
#[derive(Default)]
struct Conforming {
    folder: PathBuf,
}

impl Conforming {
    fn add(&self, text: &str) {
        let file = fs::OpenOptions::new().append(true).open(self.folder.join("lines"));
        file.expect("opened").write_all(text.as_bytes()).expect("written");
        // Waits until the program listens.
        let bell = self.folder.join("bell");
        thread::spawn(move || fs::write(bell, "\n"));
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        let mut harness = program(READER);
        self.folder = harness.data.path().to_owned();
        fs::write(self.folder.join("lines"), "").expect("written");
        let made = Command::new("mkfifo").arg(self.folder.join("bell")).status().expect("mkfifo starts");
        assert!(made.success(), "{made}");
        harness.options["environment"] = json!({"ITEMS": self.folder.join("lines"), "BELL": self.folder.join("bell")});
        harness.options["item_bytes_max"] = json!(1_000);
        harness.options["grace"] = json!("1ms");
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        self.add(&numbers.map(|number| format!("{{\"id\": \"q{number}\"}}\n")).collect::<String>());
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.add(&format!("{}\n", json!({"id": format!("q{number}"), "tags": ["x".repeat(2_000)]})));
        Oversize::Rejected
    }

    async fn silent(&mut self) -> Option<Json> {
        None
    }

    fn many(&self) -> u32 {
        1_500
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::default()).await;
}
