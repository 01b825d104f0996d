//! Sources against the real binary: kill -9 while another process drops files; nothing is lost, nothing comes twice.

mod support;

use std::{fs, path::Path, process::Command, time::Duration};

use support::Platform;
use tocsin_model::{
    event::EventBatch,
    field::{Field, FieldType, Fields},
    value::Value,
};
use tocsin_store::{
    journal::{Journal, JournalOptions},
    sqlite::journal::SqliteJournal,
};

const APPLICATION: &str = r#"
application: drops
events: { drop: { fields: { token: { type: string, required: true } } } }
sources:
  files: { kind: directory, events: [drop], options: { folder: in, settle: 1ms } }
"#;

/// Drops files as somebody should, until there are `$2` of them: each written elsewhere, then moved. Every tenth is large.
const DROPPER: &str = r#"
n=0
while [ $n -lt $2 ]; do
  lines=20; [ $((n % 10)) = 0 ] && lines=3000
  seq -f "{\"token\": \"$n-%g\"}" $lines > "$1/.$n.tmp"
  mv "$1/.$n.tmp" "$1/$(printf %04d $n).ndjson"
  n=$((n + 1))
done
"#;

const FILES: usize = 60;

fn lines_of(file: usize) -> usize {
    if file.is_multiple_of(10) { 3_000 } else { 20 }
}

fn left(folder: &Path) -> usize {
    let names = fs::read_dir(folder).expect("the folder is there");
    names.filter(|entry| !entry.as_ref().expect("an entry").file_name().to_string_lossy().ends_with(".done")).count()
}

/// The tokens of all events in a journal, in the order of their acceptance.
async fn tokens(data: &Path) -> Vec<String> {
    let field = Field {
        name: "token".parse().expect("a name"),
        kind: FieldType::String,
        required: true,
        default: Value::Null,
        description: None,
    };
    let fields = Fields::new(vec![field]);
    let journal = SqliteJournal::open(data.join("journal.db"), JournalOptions::default()).await.expect("it opens");
    let mut batches: Vec<EventBatch> = Vec::new();
    loop {
        let before = batches.last().map(|batch| batch.id);
        let page = journal.event_batches(before, 100).await.expect("read");
        if page.is_empty() {
            break;
        }
        // A list is without the events.
        for (listed, _) in page {
            let (batch, _) = journal.event_batch(listed.id).await.expect("read").expect("it is there");
            batches.push(batch);
        }
    }
    let token = |batch: &EventBatch, at: u32| match &batch.events.row(&fields, at).expect("a row")[0] {
        Value::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    batches.reverse();
    assert!(batches.iter().all(|batch| batch.source.as_str() == "files"), "each names its source");
    batches.iter().flat_map(|batch| (0..batch.events.count()).map(|at| token(batch, at)).collect::<Vec<_>>()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_files_dropped_during_kills_are_taken_once_and_in_order() {
    let mut random = fastrand::Rng::with_seed(support::seed());
    let mut platform = Platform::start(&[]).await;
    platform.apply("drops", APPLICATION).await;
    let folder = platform.folder.join("drop/in");
    while !folder.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut dropper = Command::new("sh")
        .args(["-c", DROPPER, "dropper"])
        .arg(&folder)
        .arg(FILES.to_string())
        .spawn()
        .expect("a shell");
    let mut kills = 0;
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    loop {
        tokio::time::sleep(Duration::from_millis(random.u64(5..60))).await;
        let dropped = dropper.try_wait().expect("it can be asked").is_some();
        if dropped && left(&folder) == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{} files are left", left(&folder));
        // Later on it must get somewhere between two kills.
        if kills < 25 {
            platform.kill();
            platform.restart().await;
            kills += 1;
        }
    }
    platform.kill();
    println!("{kills} kills");
    let found = tokens(&platform.folder).await;
    let expected: Vec<String> =
        (0..FILES).flat_map(|file| (1..=lines_of(file)).map(move |line| format!("{file}-{line}"))).collect();
    let mut sorted = found.clone();
    sorted.sort();
    let mut wanted = expected.clone();
    wanted.sort();
    assert_eq!(sorted.len(), wanted.len());
    assert!(sorted == wanted, "each once");
    // Within a file the order is that of its lines.
    for file in 0..FILES {
        let of_file: Vec<&String> = found.iter().filter(|token| token.starts_with(&format!("{file}-"))).collect();
        let in_order: Vec<String> = (1..=lines_of(file)).map(|line| format!("{file}-{line}")).collect();
        assert!(of_file.iter().copied().eq(in_order.iter()), "file {file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sources_of_an_application_are_shown() {
    let mut platform = Platform::start(&[]).await;
    platform.apply("drops", APPLICATION).await;
    let shown = loop {
        let shown = platform.get("/v1/applications/drops/sources").await;
        if shown["items"][0]["state"] == "running" {
            break shown;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((&shown["items"][0]["source"], &shown["items"][0]["class"]), (&"files".into(), &"drop".into()));
    let (status, problem) =
        platform.post("/v1/applications/drops/events/drop?source=files", &serde_json::json!({})).await;
    assert_eq!(status, 422, "others may not submit in its name: {problem}");
    let bad = APPLICATION.replace("settle: 1ms", "setle: 1ms, fields: {tokn: a}");
    let request = platform.request(reqwest::Method::POST, "/v1/applications/check");
    let answer = request.header("content-type", "application/yaml").body(bad).send().await.expect("an answer");
    let text = answer.text().await.expect("a body");
    assert!(text.contains("did you mean `settle`?"), "{text}");
    platform.terminate();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_week_of_quakes_comes_through_a_folder() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/quakes");
    let folder = tempfile::tempdir().expect("a folder");
    let copied = Command::new("cp").arg("-r").arg(&example).arg(folder.path()).status().expect("cp runs");
    assert!(copied.success());
    let definition = folder.path().join("quakes/application.yaml");
    let page = fs::read_to_string(example.join("README.md")).expect("its page");
    let sources = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("its sources");
    let text = fs::read_to_string(&definition).expect("its definition");
    fs::write(&definition, format!("{text}\n{sources}")).expect("written");

    let mut platform = Platform::start(&[]).await;
    platform.run(&["apply", definition.to_str().expect("text")]);
    let drop = platform.folder.join("drop/quakes");
    while !drop.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fs::copy(example.join("usgs-earthquakes-week.geojson"), drop.join(".week")).expect("copied");
    fs::rename(drop.join(".week"), drop.join("week.geojson")).expect("moved");
    while left(&drop) > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let shown = platform.get("/v1/applications/quakes/sources").await;
    assert_eq!((&shown["items"][0]["events"], &shown["items"][0]["batches"]), (&1_707.into(), &2.into()), "{shown}");
    platform.terminate();
}
