use std::{fs, ops::Range, path::PathBuf};

use async_trait::async_trait;
use serde_json::{Value as Json, json};

use crate::{
    conformance::{Oversize, Subject, exercise},
    source::SourceOutput,
    testing::{Harness, shown, taken},
};

/// A watched folder.
struct DropFolder(Harness);

impl DropFolder {
    fn new(mut options: Json) -> DropFolder {
        options["folder"] = json!("in");
        for key in ["settle", "rescan"] {
            options[key] = json!("1ms");
        }
        let mut harness = Harness::new("directory", options);
        harness.open();
        DropFolder(harness)
    }

    fn folder(&self) -> PathBuf {
        self.0.data.path().join("drop/in")
    }

    /// The recommended way: written elsewhere, then moved.
    fn put(&self, name: &str, text: impl AsRef<[u8]>) {
        let elsewhere = self.0.data.path().join(name);
        fs::write(&elsewhere, text).expect("written");
        fs::rename(elsewhere, self.folder().join(name)).expect("moved");
    }

    /// Takes batches until no file and nothing to forget is left, and returns their events.
    async fn take_all(&mut self) -> Vec<String> {
        let mut events = Vec::new();
        loop {
            events.extend(self.0.take().await);
            let left = |name: &String| !name.starts_with('.') && !name.contains(".done") && !name.contains(".err");
            if !self.names().iter().any(left) && self.0.marks.is_empty() {
                return events;
            }
        }
    }

    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.folder()).expect("a folder");
        let mut names: Vec<String> =
            names.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    /// The problems of the one rejected file.
    fn reasons(&self) -> Json {
        let name = self.names().into_iter().find(|name| name.ends_with(".err.json")).expect("there is one");
        serde_json::from_slice(&fs::read(self.folder().join(name)).expect("read")).expect("JSON")
    }
}

fn lines(count: usize) -> String {
    (0..count).map(|number| format!("{{\"id\": \"q{number}\", \"magnitude\": {number}}}\n")).collect()
}

#[tokio::test]
async fn files_are_taken_in_order_and_renamed() {
    let mut dropped = DropFolder::new(json!({}));
    dropped.put("b.ndjson", lines(1));
    dropped.put("a.ndjson", "{\"id\": \"first\"}\n");
    dropped.put(".half", "{");
    assert_eq!(dropped.take_all().await, [r#"{"id":"first"}"#, r#"{"id":"q0","magnitude":0.0}"#]);
    let names = dropped.names();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names[1].starts_with("a.ndjson.20") && names[1].ends_with("Z.1.done"), "{names:?}");
}

#[tokio::test]
async fn a_file_with_the_longest_name_is_rejected_and_the_next_is_taken() {
    let mut dropped = DropFolder::new(json!({}));
    // 255 bytes, the limit of file systems; an ending would exceed it. `é` has two bytes.
    dropped.put(&format!("a{}", "é".repeat(127)), "{\"id\": \"long\"}\n");
    dropped.put(&format!("b{}", "x".repeat(254)), "nonsense\n");
    dropped.put("c.ndjson", "{\"id\": \"next\"}\n");
    assert_eq!(dropped.take_all().await, [r#"{"id":"long"}"#, r#"{"id":"next"}"#]);
    let names = dropped.names();
    assert!(names[0].starts_with("aé") && names[0].ends_with("Z.1.done"), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("bx") && name.ends_with("Z.1.err")), "{names:?}");
    assert!(names.iter().all(|name| name.len() <= 255), "{names:?}");
}

#[tokio::test]
async fn a_file_whose_name_is_not_utf_8_is_rejected_with_its_reason() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let mut dropped = DropFolder::new(json!({ "pattern": "*.ndjson" }));
    fs::write(dropped.folder().join(OsStr::from_bytes(b"11\xff\xfe.ndjson")), "{\"id\": \"lost\"}\n").expect("written");
    fs::write(dropped.folder().join(OsStr::from_bytes(b"\xff.txt")), "not asked for").expect("written");
    dropped.put("a.ndjson", "{\"id\": \"next\"}\n");
    // The folder has a name that is not UTF-8, so it is not listed until the file is rejected.
    let taken = dropped.0.take().await;
    assert_eq!(taken, [r#"{"id":"next"}"#]);
    fs::remove_file(dropped.folder().join(OsStr::from_bytes(b"\xff.txt"))).expect("it is left alone");
    let reasons = dropped.reasons();
    assert_eq!((&reasons["file"], &reasons["accepted"]), (&json!("11\u{fffd}\u{fffd}.ndjson"), &json!(0)));
    assert_eq!(reasons["problems"][0]["message"], json!("has a name that is not UTF-8"));
}

#[tokio::test]
async fn csv_and_mapped_json_are_read() {
    let mut dropped =
        DropFolder::new(json!({ "format": "csv", "delimiter": ";", "fields": {"id": "Kennung", "magnitude": "M"} }));
    dropped.put("a.csv", "Kennung;M;rest\nq1;4.5;x\n\"q;2\";;\n");
    assert_eq!(dropped.take_all().await, [r#"{"id":"q1","magnitude":4.5}"#, r#"{"id":"q;2"}"#]);

    let fields = json!({"id": "id", "magnitude": "properties.mag", "tags": "geometry.coordinates"});
    let mut dropped = DropFolder::new(json!({ "format": "json", "items": "features", "fields": fields }));
    dropped.put(
        "a.json",
        r#"{"features": [{"id": "us7", "properties": {"mag": 6.1}, "geometry": {"coordinates": [1, 2]}}]}"#,
    );
    assert_eq!(dropped.take_all().await, [r#"{"id":"us7","magnitude":6.1,"tags":[1,2]}"#]);

    let fields = json!({"id": "@id", "magnitude": "size/value"});
    let mut dropped = DropFolder::new(json!({ "format": "xml", "items": "/quakes/quake", "fields": fields }));
    dropped.put("a.xml", "<quakes><quake id='x'><size><value> 5.5 </value></size></quake></quakes>");
    assert_eq!(dropped.take_all().await, [r#"{"id":"x","magnitude":5.5}"#]);
}

#[tokio::test]
async fn an_invalid_file_is_rejected_whole_with_all_problems() {
    let mut dropped = DropFolder::new(json!({}));
    let text = format!("{}{{\"magnitude\": 1}}\n{{\"id\": 7}}\nnonsense\n", lines(1_500));
    dropped.put("bad.ndjson", text);
    dropped.put("good.ndjson", "{\"id\": \"good\"}");
    assert_eq!(dropped.take_all().await, [r#"{"id":"good"}"#]);
    let reasons = dropped.reasons();
    assert_eq!((&reasons["file"], &reasons["accepted"]), (&json!("bad.ndjson"), &json!(0)));
    let problems = reasons["problems"].as_array().expect("a list");
    let places: Vec<_> = problems.iter().map(|problem| (&problem["line"], &problem["path"])).collect();
    assert_eq!(
        places,
        [(&json!(1501), &json!("id")), (&json!(1502), &json!("id")), (&json!(1503), &json!(""))],
        "{reasons}"
    );
}

#[tokio::test]
async fn a_large_file_continues_after_a_crash() {
    let mut dropped = DropFolder::new(json!({}));
    dropped.put("large.ndjson", lines(2_500));
    let mut events = Vec::new();
    let first = dropped.0.next().await;
    assert_eq!(first.events.count(), 1_000);
    // A crash before the commit, one after it but before the confirmation, and one after the last.
    dropped.0.open();
    for _ in 0..3 {
        let batch = dropped.0.next().await;
        events.extend(shown(&batch.events));
        dropped.0.commit(batch.marks);
        dropped.0.open();
    }
    events.extend(dropped.take_all().await);
    let expected: Vec<String> = lines(2_500).lines().map(taken).collect();
    assert_eq!(events, expected);
    assert!(dropped.names()[0].ends_with(".done"));
}

#[tokio::test]
async fn a_file_of_the_same_name_is_another_file() {
    let mut dropped = DropFolder::new(json!({}));
    dropped.put("a", "{\"id\": \"1\"}");
    let batch = dropped.0.next().await;
    dropped.0.commit(batch.marks);
    dropped.0.source().accepted().await.expect("taken away");
    // Its mark still exists.
    dropped.0.open();
    dropped.put("a", "{\"id\": \"2\"}");
    assert_eq!(dropped.take_all().await, [r#"{"id":"2"}"#]);
}

#[tokio::test]
async fn bounds_are_kept() {
    let mut dropped = DropFolder::new(json!({ "file_bytes_max": 100, "item_bytes_max": 20 }));
    dropped.put("a", "x".repeat(101));
    dropped.take_all().await;
    assert!(dropped.reasons()["problems"][0]["message"].as_str().expect("text").starts_with("has 101 bytes"));
    let mut dropped = DropFolder::new(json!({ "item_bytes_max": 20 }));
    dropped.put("a", "{\"id\": \"a long line is refused\"}");
    dropped.take_all().await;
    assert!(dropped.reasons()["problems"][0]["message"].as_str().expect("text").contains("longer than 20 bytes"));
}

#[tokio::test]
async fn two_sources_cannot_share_a_folder() {
    let dropped = DropFolder::new(json!({}));
    let folder = dropped.folder();
    let lock = fs::File::open(folder).expect("open");
    assert!(lock.try_lock().is_err());
}

#[tokio::test]
async fn a_location_takes_whole_files_and_rejects_long_ones() {
    let mut dropped = DropFolder::new(json!({ "pattern": "*.xml" }));
    dropped.0.output = SourceOutput::Messages { bytes_max: 12 };
    dropped.0.crash();
    dropped.0.open();
    dropped.put("a.xml", "<order/>");
    dropped.put("b.xml", "<order>too long</order>");
    dropped.put("c.xml", "");
    dropped.put("d.txt", "not asked for");
    let first = dropped.0.next().await;
    dropped.0.crash();
    // First it was not stored, so it comes again; then it was stored, and does not come again.
    let again = dropped.0.next().await;
    assert_eq!((&first.messages, first.marks.len()), (&again.messages, 1));
    let file = |name: &str| vec![("file-name".to_owned(), name.to_owned())];
    assert_eq!((&again.messages[0].body[..], &again.messages[0].headers), (&b"<order/>"[..], &file("a.xml")));
    dropped.0.commit(again.marks);
    dropped.0.crash();
    let mut rest = Vec::new();
    while rest.is_empty() {
        rest = dropped.0.take_messages().await;
    }
    assert_eq!((rest.len(), rest[0].body.len(), &rest[0].headers), (1, 0, &file("c.xml")));
    assert!(
        dropped.reasons()["problems"][0]["message"].as_str().is_some_and(|text| text.contains("at most 12 are read"))
    );
    assert!(dropped.names().contains(&"d.txt".to_owned()), "{:?}", dropped.names());
}

#[tokio::test]
async fn d_csv_of_spreadsheets_is_read_or_refused_with_a_reason() {
    for (text, options) in [
        (&b"id,magnitude\r1,2\r2,3\r"[..], json!({})),
        (b"id;magnitude\r\n1;2\r\n2;3\r\n", json!({})),
        (b"sep=\t\r\nid\tmagnitude\r\n1\t2\r\n2\t3\r\n", json!({})),
        (b"\xef\xbb\xbfid,magnitude,\n1,2,\n,,\n2,3,\n\n", json!({})),
        (b"\xff\xfei\0d\0\n\x001\0\n\x002\0\n\0", json!({"columns": []})),
        (b"id|x\n1|y\n2|z\n", json!({"fields": {"id": "id"}})),
    ] {
        let mut options = options;
        options["format"] = json!("csv");
        let mut dropped = DropFolder::new(options);
        dropped.put("a.csv", text);
        let events = dropped.take_all().await;
        let ids: Vec<&str> = events.iter().map(|event| &event[..8]).collect();
        assert_eq!(ids, [r#"{"id":"1"#, r#"{"id":"2"#], "{}", String::from_utf8_lossy(text));
    }
    for (text, reason) in [
        (&b"id,magnitude\n1,2\n2,\"3\n3,4\n"[..], "never closed"),
        (b"id,magnitude\n1,2\n2\n", "has 1 cells"),
        (b"id,id\n1,2\n", "twice"),
        (b"id,magnitude\n1,\"1,5\"\n", "should be a number"),
        (b"id\ngr\xf6\xdfe\n", "not text in UTF-8"),
        (b"", "is empty"),
        (b"Service Unavailable\n", "has no column `id`"),
    ] {
        let mut dropped = DropFolder::new(json!({"format": "csv"}));
        dropped.put("a.csv", text);
        assert!(dropped.take_all().await.is_empty());
        let reasons = dropped.reasons().to_string();
        assert!(reasons.contains(reason), "{reasons}");
    }
    let mut dropped = DropFolder::new(json!({"format": "csv", "encoding": "windows-1252"}));
    dropped.put("a.csv", b"id\ngr\xf6\xdfe \x80\n");
    assert_eq!(dropped.take_all().await, ["{\"id\":\"größe €\"}"]);
}

#[tokio::test]
async fn d_xml_is_read_by_its_names_and_another_document_is_refused() {
    let options = json!({"format": "xml", "items": "/orders/order", "fields": {"id": "note", "magnitude": "m:size"}});
    let mut dropped = DropFolder::new(options.clone());
    dropped.put(
        "a.xml",
        "<orders xmlns:m='urn:m'><order><m:note>no</m:note><note>Ring <b>twice</b>, then <i>wait</i> here</note><size>1</size>\
         <m:size>2</m:size></order></orders>",
    );
    assert_eq!(dropped.take_all().await, [r#"{"id":"Ring twice, then wait here","magnitude":2.0}"#]);
    let mut dropped = DropFolder::new(options);
    dropped.put("a.xml", "<error><message>no orders today</message></error>");
    assert!(dropped.take_all().await.is_empty());
    let reasons = dropped.reasons().to_string();
    assert!(reasons.contains("has the root element `error`"), "{reasons}");
}

#[tokio::test]
async fn d_a_partly_taken_file_is_not_continued_by_another_definition() {
    let mut dropped = DropFolder::new(json!({"format": "json", "items": "a"}));
    let items = (0..1_500).map(|number| format!("{{\"id\": \"q{number}\"}}")).collect::<Vec<_>>().join(",");
    dropped.put("a.json", format!("{{\"a\": [{items}], \"b\": [{{\"id\": \"x\"}}]}}"));
    assert_eq!(dropped.0.take().await.len(), 1_000);
    dropped.0.options["items"] = json!("b");
    dropped.0.crash();
    dropped.0.open();
    assert!(dropped.take_all().await.is_empty());
    let reasons = dropped.reasons();
    assert_eq!(reasons["accepted"], 1_000, "{reasons}");
}

#[tokio::test]
async fn d_a_missing_folder_is_an_error_and_not_empty() {
    let mut dropped = DropFolder::new(json!({}));
    dropped.put("a.ndjson", lines(1));
    assert_eq!(dropped.take_all().await.len(), 1);
    let folder = dropped.folder();
    fs::rename(&folder, folder.with_extension("moved")).expect("moved");
    assert!(dropped.0.try_next().await.expect_err("it is gone").text.contains("cannot look through"));
    fs::create_dir(&folder).expect("made");
    let error = dropped.0.try_next().await.expect_err("it is another one").text;
    assert!(error.contains("is another folder"), "{error}");
}

#[tokio::test]
async fn b9_a_batch_has_the_receipt_time_of_its_first_item() {
    use tocsin_connect::Clock as _;
    let mut dropped = DropFolder::new(json!({}));
    dropped.put("a.ndjson", lines(1_500));
    for _ in 0..2 {
        let before = tocsin_connect::SystemClock.now();
        let batch = dropped.0.next().await;
        let received_at = batch.received_at.expect("a file was opened");
        assert!(before <= received_at && received_at <= tocsin_connect::SystemClock.now(), "{received_at}");
        dropped.0.commit(batch.marks);
        dropped.0.source().accepted().await.expect("accepted");
    }
}

/// The folder of the present source, and the number of the next file.
#[derive(Default)]
struct Conforming {
    data: PathBuf,
    number: u32,
}

impl Conforming {
    fn move_in(&mut self, text: String) {
        self.number += 1;
        let name = format!("{:06}.ndjson", self.number);
        fs::write(self.data.join(&name), text).expect("written");
        fs::rename(self.data.join(&name), self.data.join("drop/in").join(&name)).expect("moved");
    }
}

#[async_trait(?Send)]
impl Subject for Conforming {
    async fn harness(&mut self) -> Harness {
        let harness = DropFolder::new(json!({"item_bytes_max": 1_000})).0;
        self.data = harness.data.path().to_owned();
        harness
    }

    async fn put(&mut self, numbers: Range<u32>) {
        self.move_in(numbers.map(|number| format!("{{\"id\": \"q{number}\"}}\n")).collect());
    }

    async fn put_oversize(&mut self, number: u32) -> Oversize {
        self.move_in(format!("{}\n", json!({"id": format!("q{number}"), "tags": ["x".repeat(2_000)]})));
        Oversize::SetAside
    }

    async fn unacknowledged(&mut self) -> Option<usize> {
        let files =
            fs::read_dir(self.data.join("drop/in")).expect("a folder").map(|entry| entry.expect("an entry").path());
        let open = files.filter(|path| path.extension().is_some_and(|extension| extension == "ndjson"));
        Some(open.map(|path| fs::read_to_string(path).unwrap_or_default().lines().count()).sum())
    }

    async fn silent(&mut self) -> Option<Json> {
        None
    }
}

#[tokio::test]
async fn it_conforms() {
    exercise(&mut Conforming::default()).await;
}
