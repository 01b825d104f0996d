//! Quick forms of figures whose full forms are measured when named: they run, and their lines say what they are.

use std::process::Command;

use serde_json::Value;

#[test]
fn slow_events_come_in_by_every_way_of_the_papers() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("lines.ndjson");
    let figures = [
        "intake.file.2000",
        "intake.file.by1",
        "intake.sql.25",
        "intake.sql.2000",
        "intake.sql.by1",
        "intake.sql.by1000",
        "intake.api.5000",
        "intake.api.by10",
    ];
    let run = Command::new(env!("CARGO_BIN_EXE_tocsin"))
        .args(["bench", "--quick", "--only", &figures.join(",")])
        .arg("--folder")
        .arg(folder.path())
        .arg("--out")
        .arg(&out)
        .output()
        .expect("it runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let lines = std::fs::read_to_string(out).expect("the lines");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let named: Vec<&str> = lines.iter().map(|line| line["name"].as_str().expect("a name")).collect();
    let mut sorted = figures;
    sorted.sort_unstable();
    let mut found = named.clone();
    found.sort_unstable();
    assert_eq!(found, sorted);
    for line in &lines {
        assert!(line["value"].as_f64().is_some_and(|value| value > 0.0) && line["unit"] == "events/s", "{line}");
        assert!(line["conditions"].as_str().is_some_and(|conditions| conditions.contains("quick")), "{line}");
    }
}
