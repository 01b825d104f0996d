use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    guarded,
    send::{BATCH_RECORDS, Layout, RecordFile},
};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise},
    testing::{NOW, channel, content_of, context, outgoing, show},
};

fn open(folder: &Path, options: Value) -> Box<dyn OpenChannel> {
    let context = crate::Context { data_folder: folder.to_owned(), ..context() };
    let name = "log".parse().expect("a name");
    crate::open(&name, &channel("file", options, 8), &context).unwrap_or_else(|problems| panic!("{problems:?}"))
}

async fn deliver(open: &dyn OpenChannel, messages: Vec<Outgoing>) -> Vec<String> {
    let (answers, mut answered) = mpsc::channel(messages.len().max(1));
    let count = messages.len();
    open.send_all(messages, &answers).await;
    drop(answers);
    let mut shown = Vec::new();
    while let Some(answer) = answered.recv().await {
        assert_eq!(answer.ticket.ordinal as usize, shown.len(), "in the order in which they were sent");
        shown.push(show(&answer.disposition));
    }
    assert_eq!(shown.len(), count);
    shown
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).expect("text").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn many(count: u32) -> Vec<Outgoing> {
    (0..count).map(|number| outgoing(number, "../../etc/passwd")).collect()
}

#[tokio::test]
async fn records_are_lines_of_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), json!({}));
    let mut messages = many(3);
    content_of(&mut messages[1]).json = Some("{\n  \"magnitude\": 6.10\r\n}".into());
    content_of(&mut messages[2]).json = Some("{ not JSON }\n{}".into());
    assert_eq!(deliver(&*channel, messages).await, ["delivered written"; 3]);
    let records = lines(&folder.path().join("log.ndjson"));
    let expected = json!({
        "id": "n-7-0", "message_id": "n-7-0.test", "timestamp": NOW, "application": "quakes", "type": "quake", "event": "e-3-1",
        "address": "../../etc/passwd", "subject": "Earthquake near Kobe", "text": "Magnitude 6.1\n.\nStay safe – 神戸\n",
        "html": "<p>Magnitude <b>6.1</b></p>", "data": { "magnitude": 6.1, "place": "Kobe" },
    });
    assert_eq!(records[0], expected);
    assert_eq!(records[1]["data"], json!({ "magnitude": 6.1 }));
    assert_eq!(records[2]["data"], expected["data"], "what is no JSON does not get into the record");
    assert_eq!(records.len(), 3);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "an address makes no file");
    assert!(channel.probe().await.is_ok_and(|text| text.contains("bytes")));
}

#[tokio::test]
async fn records_are_lines_of_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), json!({ "format": "text", "path": "a/b.txt" }));
    deliver(&*channel, many(2)).await;
    let line = "Magnitude 6.1\\n.\\nStay safe – 神戸\\n\n";
    assert_eq!(fs::read_to_string(folder.path().join("a/b.txt")).expect("text"), line.repeat(2));
}

#[tokio::test]
async fn records_are_rows_below_the_names_of_their_columns() {
    let folder = tempfile::tempdir().expect("a folder");
    let columns = ["id", "place", "magnitude", "data.address", "nothing", "subject"];
    for _ in 0..2 {
        // Reopened, it continues below the existing records.
        let channel = open(folder.path(), json!({ "format": "csv", "columns": columns }));
        let mut message = outgoing(0, "ada");
        content_of(&mut message).subject = Some("Say \"hello\", Kobe".into());
        deliver(&*channel, vec![message]).await;
        channel.close().await;
    }
    let row = "n-7-0,Kobe,6.1,,,\"Say \"\"hello\"\", Kobe\"\r\n";
    let expected = format!("id,place,magnitude,data.address,nothing,subject\r\n{row}{row}");
    assert_eq!(fs::read_to_string(folder.path().join("log.csv")).expect("text"), expected);
}

#[tokio::test]
async fn every_string_is_one_record() {
    let strings: Vec<String> =
        serde_json::from_str(include_str!("../../../../testdata/naughty-strings.json")).expect("strings");
    let folder = tempfile::tempdir().expect("a folder");
    for format in ["ndjson", "text", "csv"] {
        let channel = open(folder.path(), json!({ "format": format, "path": format }));
        let messages = strings.iter().enumerate().map(|(number, string)| {
            let mut message = outgoing(number as u32, string);
            content_of(&mut message).text = Some(format!("{string}\r\n{string}"));
            message
        });
        deliver(&*channel, messages.collect()).await;
        let text = fs::read_to_string(folder.path().join(format)).expect("text");
        assert_eq!(text.split_terminator('\n').count(), strings.len() + usize::from(format == "csv"));
    }
    // An independent reader finds every cell again.
    let mut rows = csv::Reader::from_path(folder.path().join("csv")).expect("CSV");
    assert_eq!(rows.headers().expect("a head"), super::lines::COLUMNS.as_slice());
    let rows: Vec<csv::StringRecord> = rows.records().collect::<Result<_, _>>().expect("rows of equal length");
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
    for (row, string) in rows.iter().zip(&strings) {
        let (address, text) = (guarded(string), format!("{string}\r\n{string}"));
        assert_eq!((&row[4], &row[6]), (&*escaped(&address), &*escaped(&guarded(&text))));
    }
    for (record, string) in lines(&folder.path().join("ndjson")).iter().zip(&strings) {
        assert_eq!(record["address"], **string);
    }
}

#[tokio::test]
async fn no_cell_begins_a_formula_but_a_number_stays_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), json!({ "format": "csv", "columns": ["address", "subject", "low"] }));
    let mut message = outgoing(0, "+431234");
    content_of(&mut message).subject = Some("=HYPERLINK(1)".into());
    Arc::make_mut(&mut message.message).facts.fields =
        Arc::new(serde_json::Map::from_iter([("low".to_owned(), json!(-4.5))]).into());
    deliver(&*channel, vec![message]).await;
    let expected = "address,subject,low\r\n'+431234,'=HYPERLINK(1),-4.5\r\n";
    assert_eq!(fs::read_to_string(folder.path().join("log.csv")).expect("text"), expected);
}

#[tokio::test]
async fn an_unfinished_record_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.ndjson");
    // Longer than one read, and without any line end.
    for (before, after) in
        [("{}\n{}\n{\"half\": ", 2), ("half", 0), ("", 0), ("{}\n", 1), (&format!("{{}}\n{}", "x".repeat(200_000)), 1)]
    {
        fs::write(&path, before).expect("a file");
        let channel = open(folder.path(), json!({}));
        deliver(&*channel, many(1)).await;
        channel.close().await;
        assert_eq!(lines(&path).len(), after + 1, "{}", &before[..before.len().min(20)]);
    }
}

#[tokio::test]
async fn a_failed_write_defers_the_messages_and_leaves_no_partial_record() {
    // Every write to /dev/full finds a full disk.
    let context = context();
    let name = "log".parse().expect("a name");
    let problems =
        crate::open(&name, &channel("file", json!({ "path": "/dev/full/x" }), 1), &context).err().expect("problems");
    assert_eq!(problems[0].path, "path");

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.ndjson");
    let mut file = RecordFile::open(&path).expect("a file");
    let (layout, now) = (Layout::default(), NOW.parse().expect("a time"));
    file.append(b"{}\n", &layout, now).expect("room");
    file.limit_for_tests(5);
    assert!(file.append(b"{\"a\":1}\n", &layout, now).is_err());
    assert_eq!(fs::read(&path).expect("bytes"), b"{}\n", "no part of it stays");
    file.limit_for_tests(u64::MAX);
    file.append(b"{\"b\":1}\n", &layout, now).expect("room again");
    assert_eq!(fs::read(&path).expect("bytes"), b"{}\n{\"b\":1}\n");
}

/// A power loss can drop a page in the middle of a write that was not synced: the file keeps its length, with zeros.
#[tokio::test]
async fn a3_records_around_a_page_that_a_power_loss_dropped_are_cut_off() {
    for (durable, tail) in [("{}\n{}\n", ""), ("{}\n{}\n", "\"tail\"}\n{}\n"), ("", "}\n")] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.ndjson");
        let mut bytes = durable.as_bytes().to_vec();
        bytes.resize(3 * 4096, 0);
        bytes.extend_from_slice(tail.as_bytes());
        fs::write(&path, bytes).expect("written");
        let channel = open(folder.path(), json!({}));
        assert_eq!(deliver(&*channel, many(1)).await, ["delivered written"]);
        let text = fs::read_to_string(&path).expect("text");
        assert!(text.starts_with(durable) && !text.contains('\0'), "{text:?}");
        assert_eq!(text.lines().count(), durable.lines().count() + 1, "{text:?}");
    }
}

#[tokio::test]
async fn a_file_that_was_renamed_or_removed_is_begun_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, old) = (folder.path().join("log.ndjson"), folder.path().join("log.1"));
    let channel = open(folder.path(), json!({}));
    assert_eq!(deliver(&*channel, many(2)).await, ["delivered written"; 2]);
    fs::rename(&path, &old).expect("renamed");
    assert_eq!(deliver(&*channel, many(1)).await, ["delivered written"]);
    assert_eq!((lines(&old).len(), lines(&path).len()), (2, 1));
    fs::remove_file(&path).expect("removed");
    assert_eq!(deliver(&*channel, many(3)).await, ["delivered written"; 3]);
    assert_eq!(lines(&path).len(), 3);
    fs::write(folder.path().join("other"), "{}\n{}\n{}\n{}\n").expect("written");
    fs::rename(folder.path().join("other"), &path).expect("in its place");
    assert_eq!(deliver(&*channel, many(1)).await, ["delivered written"]);
    assert_eq!(lines(&path).len(), 5, "what another file holds stays");
}

#[tokio::test]
async fn no_name_leads_out_of_the_data_folder_by_accident() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("data");
    fs::create_dir(&inner).expect("a folder");
    let context = crate::Context { data_folder: inner.clone(), ..context() };
    let name = "log".parse().expect("a name");
    let long = "x".repeat(300);
    for (path, expected) in [
        (
            "../out.ndjson",
            "path: a relative name stays in the data folder; a folder that `delivery.allow_folders` opens",
        ),
        ("a/../../out.ndjson", "path: a relative name stays in the data folder"),
        ("out\0.ndjson", "path: the name holds a NUL"),
        ("out/", "path: this is not the name of a file"),
        ("..", "path: this is not the name of a file"),
        ("/", "path: this is not the name of a file"),
        (&long, "path: "),
    ] {
        let problems = crate::open(&name, &channel("file", json!({ "path": path }), 1), &context).err();
        let problem = problems.expect(path)[0].to_string();
        assert!(problem.starts_with(expected), "{path:?}: {problem}");
    }
    let written = |at: &Path| fs::read_dir(at).expect("a folder").count();
    assert_eq!((written(folder.path()), written(&inner)), (1, 0), "nothing was made");
    // Unusual names that lead nowhere else are accepted.
    drop(crate::open(&name, &channel("file", json!({ "path": "a\nb ..ndjson" }), 1), &context).expect("a name"));
    assert_eq!((written(folder.path()), written(&inner)), (1, 1));
}

#[tokio::test]
async fn one_writer_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = open(folder.path(), json!({}));
    let context = crate::Context { data_folder: folder.path().to_owned(), ..context() };
    let name = "log".parse().expect("a name");
    let problems = crate::open(&name, &channel("file", json!({}), 1), &context).err().expect("problems");
    assert!(problems[0].message.ends_with("another channel or process writes to it"), "{problems:?}");
    first.close().await;
    open(folder.path(), json!({}));
}

#[tokio::test]
async fn other_options_take_over_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = open(folder.path(), json!({}));
    deliver(&*first, many(1)).await;
    let context = crate::Context { data_folder: folder.path().to_owned(), ..context() };
    let name = "log".parse().expect("a name");
    let reconfigure =
        |options| first.reconfigure(&name, &channel("file", options, 8), &context).expect("a reconfigure");
    let same = reconfigure(json!({ "format": "ndjson", "rotate_bytes": 4096 })).expect("the same file");
    let other = reconfigure(json!({ "path": "other.ndjson" })).expect("another file");
    // The two writers take turns, and nothing is overwritten.
    deliver(&*same, many(2)).await;
    deliver(&*first, many(3)).await;
    first.close().await;
    deliver(&*same, many(4)).await;
    deliver(&*other, many(1)).await;
    assert_eq!(lines(&folder.path().join("log.ndjson")).len(), 10);
    assert_eq!(lines(&folder.path().join("other.ndjson")).len(), 1);
    let problems = crate::open(&name, &channel("file", json!({}), 1), &context).err().expect("problems");
    assert!(problems[0].message.ends_with("another channel or process writes to it"), "it is still locked");
}

#[tokio::test]
async fn no_file_of_the_server_is_written_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let (data, archive) = (folder.path().join("data"), folder.path().join("archive"));
    fs::create_dir(&data).expect("a folder");
    fs::create_dir(&archive).expect("a folder");
    let database = b"SQLite format 3\0 and pages";
    fs::write(data.join("journal.db"), database).expect("a file");
    fs::write(data.join("copy"), database).expect("a file");
    let context = crate::Context { data_folder: data.clone(), ..context() };
    let name = "log".parse().expect("a name");
    let folders = crate::folders::Folders { allow: vec![archive.clone()] };
    let problem =
        |path: &Path| match crate::open_with(&folders, &name, &channel("file", json!({ "path": path }), 1), &context) {
            Ok(_) => String::new(),
            Err(problems) => problems[0].to_string(),
        };
    for (path, expected) in [
        (Path::new("journal.db"), "keeps for itself"),
        (&data.join("journal.db"), "keeps for itself"),
        (Path::new("copy"), "it is a database of SQLite"),
        (&folder.path().join("out.ndjson"), "`delivery.allow_folders`"),
    ] {
        let problem = problem(path);
        assert!(problem.starts_with("path: ") && problem.contains(expected), "{path:?}: {problem}");
    }
    assert_eq!(problem(&archive.join("new/out.ndjson")), "");
    for name in ["journal.db", "copy"] {
        assert_eq!(fs::read(data.join(name)).expect("bytes"), database, "{name}");
    }
}

#[tokio::test]
async fn a_large_file_makes_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), json!({ "rotate_bytes": 4096 }));
    for _ in 0..3 {
        deliver(&*channel, many(20)).await;
    }
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    assert_eq!(names, ["log-20261121T093000Z-1.ndjson", "log-20261121T093000Z.ndjson", "log.ndjson"]);
    assert!(files.iter().all(|file| lines(file).len() == 20));
}

#[tokio::test]
async fn late_records_are_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel = open(folder.path(), json!({}));
    let mut messages = many(1);
    let message = Arc::make_mut(&mut messages[0].message);
    message.expires_at = Some(message.formatted_at);
    assert_eq!(deliver(&*channel, messages).await, ["refused Expired its time was over before it was written"]);
    assert!(lines(&folder.path().join("log.ndjson")).is_empty());
}

#[tokio::test]
async fn nothing_is_lost_between_many_senders() {
    let folder = tempfile::tempdir().expect("a folder");
    let channel: Arc<dyn OpenChannel> = Arc::from(open(folder.path(), json!({})));
    let (answers, mut answered) = mpsc::channel(8);
    for sender in 0..8 {
        let (channel, answers) = (channel.clone(), answers.clone());
        tokio::spawn(async move {
            for number in 0..50 {
                channel
                    .send_all((0..50).map(|one| outgoing(sender * 2500 + number * 50 + one, "a")).collect(), &answers)
                    .await;
            }
        });
    }
    drop(answers);
    let mut seen = vec![false; 20_000];
    while let Some(answer) = answered.recv().await {
        assert!(!std::mem::replace(&mut seen[answer.ticket.ordinal as usize], true), "one answer each");
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(lines(&folder.path().join("log.ndjson")).len(), 20_000);
}

/// Each channel writes a file of its own, because a dropped one may still hold its lock for a moment.
struct Conforming {
    folder: tempfile::TempDir,
    opened: AtomicU32,
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        let context = Context { data_folder: self.folder.path().to_owned(), ..context };
        let options = json!({ "path": format!("{number}.ndjson") });
        let name = "log".parse().expect("a name");
        crate::open(&name, &channel("file", options, 8), &context).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    async fn open_silent(&self, _: Context) -> Option<Box<dyn OpenChannel>> {
        None
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "a")
    }

    async fn received_ids(&self) -> Vec<String> {
        let files = (0..self.opened.load(Ordering::SeqCst)).map(|number| format!("{number}.ndjson"));
        let records = files.flat_map(|file| lines(&self.folder.path().join(file)));
        records.filter_map(|record| record["message_id"].as_str().map(str::to_owned)).collect()
    }

    fn in_flight_max(&self) -> usize {
        // One batch is written while the next is composed.
        2 * BATCH_RECORDS
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    exercise(&Conforming { folder, opened: AtomicU32::new(0) }).await;
}
