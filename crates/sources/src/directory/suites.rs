//! Published suites of malformed and unusual files: each is taken correctly, or rejected with a clear reason.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value as Json, json};
use tocsin_model::field::FieldType;

use crate::{
    source::SourceOutput,
    testing::{Harness, fields_of},
};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// Drops all files of a folder, and returns for each its events or the first problem.
async fn drop_all(
    from: &Path,
    options: Json,
    kind: FieldType,
    names: &[&str],
) -> BTreeMap<String, Result<Vec<Json>, String>> {
    let mut options = options;
    for (key, value) in [("folder", "in"), ("settle", "1ms"), ("rescan", "1ms")] {
        options[key] = json!(value);
    }
    let mut harness = Harness::new("directory", options);
    harness.output = SourceOutput::Events(fields_of(&names.iter().map(|name| (*name, kind)).collect::<Vec<_>>()));
    harness.open();
    let folder = harness.data.path().join("drop/in");
    let mut files = 0;
    for entry in fs::read_dir(from).expect("the suite is there") {
        let entry = entry.expect("an entry");
        // The folder is scanned while files arrive, so each is moved in atomically.
        let elsewhere = harness.data.path().join(entry.file_name());
        fs::copy(entry.path(), &elsewhere).expect("copied");
        fs::rename(elsewhere, folder.join(entry.file_name())).expect("moved");
        files += 1;
    }
    let mut outcomes = BTreeMap::new();
    let mut events: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    while outcomes.len() < files {
        let batch = harness.next().await;
        let file = batch.marks.iter().find(|mark| mark.value.is_some()).map(|mark| mark.part.to_string());
        if let Some(file) = file {
            let fields = &harness.output.fields();
            let rows = (0..batch.events.count()).map(|at| batch.events.row(fields, at).expect("a row"));
            let rows = rows.map(|row| serde_json::from_str(&fields.to_json(&row)).expect("JSON"));
            events.entry(file).or_default().extend(rows.collect::<Vec<Json>>());
        }
        harness.commit(batch.marks);
        harness.source().accepted().await.expect("taken away");
        for entry in fs::read_dir(&folder).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("text");
            if name.ends_with(".done") {
                let file = original(&name);
                let events = events.get(&file).cloned().unwrap_or_default();
                outcomes.entry(file).or_insert(Ok(events));
            } else if name.ends_with(".err.json") {
                let reasons: Json = serde_json::from_slice(&fs::read(folder.join(&name)).expect("read")).expect("JSON");
                let problem = &reasons["problems"][0];
                let reason = problem["message"].as_str().expect("a reason").to_owned();
                outcomes.entry(original(name.trim_end_matches(".json"))).or_insert(Err(reason));
            }
        }
    }
    outcomes
}

/// The name of a file before `.TIME.COUNTER.done` was added.
fn original(name: &str) -> String {
    name.rsplitn(4, '.').last().expect("a name").to_owned()
}

/// The outcome of a JSON text, in one word: `taken`, `JSON` if only its type does not fit the class, or the problem.
fn word(outcome: &Result<Vec<Json>, String>) -> String {
    match outcome {
        Ok(_) => "taken".to_owned(),
        Err(reason) if reason.starts_with("should be a list") => "JSON".to_owned(),
        Err(reason) => reason.clone(),
    }
}

#[tokio::test]
async fn slow_valid_json_is_distinguished_from_invalid() {
    let options = json!({"format": "json", "fields": {"value": "$"}});
    let outcomes = drop_all(&testdata("json-parsing"), options, FieldType::List, &["value"]).await;
    assert_eq!(outcomes.len(), 318);
    let mut undecided = String::new();
    for (name, outcome) in &outcomes {
        let word = word(outcome);
        let is_json = matches!(word.as_str(), "taken" | "JSON");
        match &name[..2] {
            "y_" => assert!(is_json, "{name}: {word}"),
            "n_" => assert!(word.starts_with("is not "), "{name}: {word}"),
            _ => undecided.push_str(&format!("{name}: {word}\n")),
        }
    }
    let path = testdata("json-parsing-i.txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &undecided).expect("written");
    }
    let committed = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(undecided, committed, "run this test with UPDATE=1, look at it, and mend the guide");
}

#[tokio::test]
async fn every_csv_equals_its_json() {
    let folder = testdata("csv-spectrum/csvs");
    for entry in fs::read_dir(&folder).expect("the suite is there") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_str().expect("text").to_owned();
        let expected = testdata("csv-spectrum/json").join(format!("{name}.json"));
        let expected: Vec<serde_json::Map<String, Json>> =
            match serde_json::from_slice(&fs::read(expected).expect("read")).expect("JSON") {
                // One of them shows its only record as an object, and with another number than its CSV.
                Json::Object(mut row) => {
                    row.insert("Contact Phone Number".to_owned(), json!("2095257564"));
                    vec![row]
                }
                rows => serde_json::from_value(rows).expect("records"),
            };
        let columns: Vec<String> = expected[0].keys().cloned().collect();
        // Columns can have names that are not valid for fields.
        let names: Vec<String> = (0..columns.len()).map(|at| format!("column_{at}")).collect();
        let mapping: BTreeMap<&String, &String> = names.iter().zip(&columns).collect();
        let alone = tempfile::tempdir().expect("a folder");
        fs::copy(&path, alone.path().join("file.csv")).expect("copied");
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let options = json!({"format": "csv", "fields": mapping});
        let outcomes = drop_all(alone.path(), options, FieldType::String, &names).await;
        let taken = outcomes["file.csv"].as_ref().unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let expected: Vec<Json> = expected
            .iter()
            .map(|row| {
                columns.iter().zip(&names).map(|(column, name)| ((*name).to_owned(), row[column].clone())).collect()
            })
            .collect();
        assert_eq!(*taken, expected, "{name}");
    }
}

#[tokio::test]
async fn xml_bombs_are_rejected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formatting/testdata/xml-bombs");
    let options = json!({"format": "xml", "items": "//*", "fields": {"text": "."}});
    let outcomes = drop_all(&folder, options, FieldType::String, &["text"]).await;
    for (name, outcome) in &outcomes {
        let text = fs::read_to_string(folder.join(name)).expect("text");
        match text.contains("<!DOCTYPE") {
            true => assert_eq!(
                outcome.as_ref().expect_err(name),
                "has a document type declaration, which is not supported",
                "{name}"
            ),
            // Stylesheets that would write or run, and schemas that would load others, are ordinary elements.
            false => assert_eq!(outcome.as_ref().map(Vec::len), Ok(1), "{name}"),
        }
    }
    assert!(outcomes.len() >= 13);
}
