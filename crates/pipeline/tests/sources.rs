//! Supervision of sources: across a crash at any write, each event of dropped files is accepted once; errors are
//! reported and retried.

use std::{fs, path::Path, time::Duration};

use tocsin_model::{event::EventBatch, id::Name, value::Value};
use tocsin_pipeline::{Folders, PipelineOptions, SourceState, compile_text};
use tocsin_store::journal::{Checkpoints, EventLog};
use tocsin_testkit::{CrashPoint, Scenario};

const EVENTS_OF_A_FILE: usize = 1_100;

fn definition(folder: &Path) -> String {
    format!(
        "application: drops\n\
         events: {{ drop: {{ fields: {{ token: {{ type: string, required: true }} }} }} }}\n\
         sources:\n  files: {{ kind: directory, events: [drop], options: {{ folder: '{}' }} }}\n",
        folder.display()
    )
}

async fn scenario(folder: &Path) -> Scenario {
    let source_folders = Folders { allow: vec![folder.to_owned()] };
    Scenario::with(&[&definition(folder)], PipelineOptions { source_folders, ..PipelineOptions::default() }).await
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// Two files, of which each makes two batches.
fn drop_files(folder: &Path) -> Vec<String> {
    let tokens = |file: usize| (0..EVENTS_OF_A_FILE).map(move |line| format!("{file}-{line}"));
    for file in 0..2 {
        let lines: String = tokens(file).map(|token| format!("{{\"token\": \"{token}\"}}\n")).collect();
        fs::write(folder.join(format!("{file}.ndjson")), lines).expect("written");
    }
    (0..2).flat_map(tokens).collect()
}

/// The tokens of all accepted events, in their order.
async fn accepted(scenario: &Scenario, folder: &Path) -> Vec<String> {
    let fields =
        compile_text(&definition(folder), 1, &|_| None).expect("it compiles").application.events["drop"].fields.clone();
    let mut batches = scenario.journal().event_batches(None, usize::MAX).await.expect("read");
    batches.reverse();
    let token = |batch: &EventBatch, at: u32| match &batch.events.row(&fields, at).expect("a row")[0] {
        Value::Text(text) => text.to_string(),
        other => panic!("{other:?}"),
    };
    let mut tokens = Vec::new();
    for (listed, _) in batches {
        // A list is without the events.
        let (batch, _) = scenario.journal().event_batch(listed.id).await.expect("read").expect("it is there");
        tokens.extend((0..batch.events.count()).map(|at| token(&batch, at)));
    }
    tokens
}

#[tokio::test(start_paused = true)]
async fn slow_each_event_is_accepted_once_whatever_dies() {
    let mut deaths = 0;
    for write in 1..40 {
        let mut crashed = false;
        for moment in [CrashPoint::BeforeWrite, CrashPoint::AfterWrite] {
            let folder = tempfile::tempdir().expect("a folder");
            let expected = drop_files(folder.path());
            let mut scenario = scenario(folder.path()).await;
            scenario.crash_at(write, moment);
            scenario.run_and_wait("00:10 report", Duration::ZERO).await;
            crashed |= scenario.has_crashed();
            scenario.run_and_wait("00:20 report", Duration::ZERO).await;
            assert_eq!(accepted(&scenario, folder.path()).await, expected, "dead at write {write}, {moment:?}");
            let source = (name("drops"), name("files"));
            assert!(
                scenario.journal().marks(&source, None, 9).await.expect("read").is_empty(),
                "nothing is left to know"
            );
        }
        if !crashed {
            break;
        }
        deaths += 1;
    }
    assert!(deaths >= 4, "each of the four batches is a write, but there were only {deaths} deaths");
}

#[tokio::test(start_paused = true)]
async fn a_source_holds_still_while_it_is_switched_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut scenario = scenario(folder.path()).await;
    let status = |scenario: &Scenario| scenario.pipeline().sources(&name("drops")).remove(0);
    for (hour, component) in ["source:drops/files", "role:sources", "application:drops"].iter().enumerate() {
        let before = status(&scenario).events;
        scenario.run_and_wait(&format!("0{hour}:01 switch off {component} paused"), Duration::ZERO).await;
        let expected = drop_files(folder.path());
        scenario.run_and_wait(&format!("0{hour}:10 report"), Duration::ZERO).await;
        assert_eq!(
            (status(&scenario).health.state, status(&scenario).events),
            (SourceState::Held, before),
            "{component}"
        );
        scenario.run_and_wait(&format!("0{hour}:11 switch on {component}"), Duration::ZERO).await;
        scenario.run_and_wait(&format!("0{hour}:20 report"), Duration::ZERO).await;
        let now = status(&scenario);
        assert_eq!(
            (now.health.state, now.events),
            (SourceState::Running, before + expected.len() as u64),
            "{component}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_source_are_reported_and_retried() {
    let folder = tempfile::tempdir().expect("a folder");
    let gone = folder.path().join("gone");
    let source_folders = Folders { allow: vec![folder.path().to_owned()] };
    let options = PipelineOptions { source_folders, ..PipelineOptions::default() };
    let mut scenario = Scenario::with(&[&definition(&gone)], options).await;
    let status = |scenario: &Scenario| scenario.pipeline().sources(&name("drops")).remove(0);
    scenario.run_and_wait("00:00:03 report", Duration::ZERO).await;
    let troubled = status(&scenario);
    assert_eq!(troubled.health.state, SourceState::BackingOff);
    assert!(troubled.health.reason.as_deref().is_some_and(|reason| reason.contains("is not there")), "{troubled:?}");
    assert!(troubled.health.failures >= 2 && troubled.health.retry_at.is_some());
    scenario.run_and_wait("01:00 report", Duration::ZERO).await;
    assert_eq!(status(&scenario).health.state, SourceState::Failed);

    fs::create_dir(&gone).expect("made");
    drop_files(&gone);
    scenario.run_and_wait("01:10 report", Duration::ZERO).await;
    let well = status(&scenario);
    assert_eq!((well.health.state, well.events, well.batches), (SourceState::Running, 2 * EVENTS_OF_A_FILE as u64, 4));
    assert_eq!((well.health.failures, well.health.reason), (0, None));
}
