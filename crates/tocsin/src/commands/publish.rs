//! Command `publish`: submits events in batches, from JSON, NDJSON or GeoJSON features.

use std::{
    io::{self, BufRead, BufReader, IsTerminal},
    path::PathBuf,
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::{Map, Value};
use tocsin_model::{
    charset::{Syntax, Utf8Reader},
    plural::plural,
};
use tokio::sync::mpsc;

use crate::{
    client::{Client, problem, segment, with_query},
    failure::{Failure, Outcome, open_file},
    terminal::{Colour, Terminal, counted, thousands},
};

/// Maximum time that one batch waits for a busy server.
const BUSY_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum size of a document for `--items`, which is read into memory.
const DOCUMENT_BYTES_MAX: u64 = 1 << 30;

/// Arguments of `tocsin publish`.
#[derive(Debug, clap::Args)]
#[command(after_help = r#"Examples:
  tocsin publish doors opened '{"door": "front"}'
  tocsin publish quakes quake week.geojson --items features --map id=id,magnitude=properties.mag"#)]
pub struct Args {
    /// Application
    application: String,
    /// Event class
    class: String,
    /// Events: JSON such as '{"door": "front"}', or a file with JSON objects (NDJSON) or arrays; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Path of the array whose elements are the events, such as features
    #[arg(long, value_name = "PATH")]
    items: Option<String>,
    /// Field taken from a path of the item, such as magnitude=properties.mag or longitude=geometry.coordinates.0;
    /// default is the item unchanged. Repeatable, or comma-separated
    #[arg(long, value_name = "FIELD=PATH", value_delimiter = ',')]
    map: Vec<Mapping>,
    /// Mapped field that an item must have, not null; other items are skipped
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    require: Vec<String>,
    /// Number of events per batch
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "COUNT")]
    batch: u32,
    /// Name of the submitting source
    #[arg(long)]
    source: Option<String>,
    /// Idempotency key, which makes a repeated command harmless: batch n is sent with the key KEY-n
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// Mapping of an event field to a path of the item.
#[derive(Debug, Clone, PartialEq)]
pub struct Mapping {
    field: String,
    path: Vec<String>,
}

impl std::str::FromStr for Mapping {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((field, path)) if !field.is_empty() && !path.split('.').any(str::is_empty) => {
                Ok(Mapping { field: field.to_owned(), path: path.split('.').map(str::to_owned).collect() })
            }
            _ => Err(format!("`{text}` is not FIELD=PATH, such as magnitude=properties.mag")),
        }
    }
}

/// Value at a path of names and indices.
fn at<'a>(mut value: &'a Value, path: &[String]) -> Option<&'a Value> {
    for part in path {
        value = match value {
            Value::Object(fields) => fields.get(part)?,
            Value::Array(items) => items.get(part.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(value)
}

/// Converts an item to an event; `None` if a required field is missing. Null fields are omitted.
pub fn map_item(item: Value, mappings: &[Mapping], required: &[String]) -> Option<Value> {
    if mappings.is_empty() {
        let missing = required.iter().any(|field| item.get(field).is_none_or(Value::is_null));
        return (!missing).then_some(item);
    }
    let mut event = Map::with_capacity(mappings.len());
    for mapping in mappings {
        match at(&item, &mapping.path) {
            Some(value) if !value.is_null() => {
                event.insert(mapping.field.clone(), value.clone());
            }
            _ if required.contains(&mapping.field) => return None,
            _ => {}
        }
    }
    Some(Value::Object(event))
}

/// Result of reading the input.
enum ReadEvent {
    Batch(Vec<Value>),
    Failed(Failure),
}

impl Args {
    /// Submits all events. On failure, reports how many were accepted before.
    ///
    /// # Errors
    /// If the input is not JSON, or the server refuses a batch.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        for field in &self.require {
            if !self.map.is_empty() && !self.map.iter().any(|mapping| mapping.field == *field) {
                return Err(Failure::usage(format!("--require {field}: unknown field; it must be a field of --map")));
            }
        }
        if self.file.as_os_str() == "-" && io::stdin().is_terminal() && terminal.is_interactive() {
            eprintln_quietly("reading events from the keyboard; end with Ctrl-D");
        }
        // Two batches of read-ahead: reading continues during a request, with bounded memory.
        let (sender, mut batches) = mpsc::channel(2);
        let reader = ReadPlan {
            file: self.file.clone(),
            items: self.items.clone(),
            map: self.map.clone(),
            require: self.require.clone(),
            batch: self.batch as usize,
        };
        let reading = tokio::task::spawn_blocking(move || reader.read(&sender));
        let bar = terminal.progress(None, "{spinner} {human_pos} events  {per_sec}  {elapsed}");
        let path = format!("/v1/applications/{}/events/{}", segment(&self.application), segment(&self.class));
        let path = with_query(&path, &self.source.iter().map(|source| ("source", source.as_str())).collect::<Vec<_>>());
        let (mut events, mut count, mut duplicates) = (0u64, 0u64, 0u64);
        while let Some(read) = batches.recv().await {
            let with_progress = |failure: Failure| match count {
                0 => failure,
                _ => failure.detail(format!(
                    "{} in {} {} accepted before the failed batch",
                    counted(events, "event", "events"),
                    counted(count, "batch", "batches"),
                    plural(events, "was", "were")
                )),
            };
            let batch = match read {
                ReadEvent::Batch(batch) => batch,
                ReadEvent::Failed(failure) => return Err(with_progress(failure)),
            };
            let key = self.idempotency_key.as_ref().map(|key| format!("{key}-{count}"));
            let size = batch.len() as u64;
            let answer =
                submit(client, &path, &Value::Array(batch), key.as_deref(), &bar).await.map_err(with_progress)?;
            events += size;
            count += 1;
            duplicates += u64::from(answer["duplicate"] == true);
            bar.inc(size);
        }
        bar.finish_and_clear();
        let skipped =
            reading.await.map_err(|error| Failure::failed("the task that reads the input panicked").because(&error))?;
        let mut line =
            format!("{} accepted in {}", counted(events, "event", "events"), counted(count, "batch", "batches"));
        if duplicates > 0 {
            line += &format!(", {} of them duplicates with the same key", thousands(duplicates));
        }
        if skipped > 0 {
            line += &format!("; {} skipped because a required field is missing", counted(skipped, "item", "items"));
        }
        terminal.line(terminal.paint(Colour::Green, line))?;
        Ok(())
    }
}

fn eprintln_quietly(text: &str) {
    use io::Write;
    let _ = writeln!(io::stderr(), "{text}");
}

/// Submits one batch; if the server is busy, retries after the time that the server requests.
///
/// # Errors
/// If the server refuses the batch, or is busy for ten minutes.
pub async fn submit(
    client: &Client,
    path: &str,
    batch: &Value,
    key: Option<&str>,
    bar: &indicatif::ProgressBar,
) -> Outcome<Value> {
    let body = bytes::Bytes::from(serde_json::to_vec(batch).expect("JSON values can be written"));
    let mut waited = Duration::ZERO;
    loop {
        let mut request =
            client.request(Method::POST, path).header("content-type", "application/json").body(body.clone());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let answer = client.exchange(request).await?;
        if answer.status().is_success() {
            return client.json(answer).await;
        }
        let response = problem(answer).await;
        let busy = matches!(response.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        match response.retry_after {
            Some(wait) if busy && waited + wait <= BUSY_TIMEOUT => {
                bar.set_message("the server is busy");
                tokio::time::sleep(wait).await;
                // A zero would make this a busy loop.
                waited += wait.max(Duration::from_millis(100));
            }
            _ => return Err(response.failure()),
        }
    }
}

/// Plan for reading the input on a blocking thread.
struct ReadPlan {
    file: PathBuf,
    items: Option<String>,
    map: Vec<Mapping>,
    require: Vec<String>,
    batch: usize,
}

impl ReadPlan {
    /// Sends the events in batches; returns the number of skipped items.
    fn read(&self, sender: &mpsc::Sender<ReadEvent>) -> u64 {
        let mut batch = Vec::with_capacity(self.batch);
        let mut skipped = 0u64;
        let result = self.each(&mut |item| {
            match map_item(item, &self.map, &self.require) {
                Some(event) => batch.push(event),
                None => skipped += 1,
            }
            if batch.len() < self.batch {
                return true;
            }
            sender
                .blocking_send(ReadEvent::Batch(std::mem::replace(&mut batch, Vec::with_capacity(self.batch))))
                .is_ok()
        });
        // A dropped receiver has already reported its failure.
        let _ = match result {
            Ok(()) if batch.is_empty() => Ok(()),
            Ok(()) => sender.blocking_send(ReadEvent::Batch(batch)),
            Err(failure) => sender.blocking_send(ReadEvent::Failed(failure)),
        };
        skipped
    }

    fn each(&self, take: &mut dyn FnMut(Value) -> bool) -> Outcome {
        let inline = self.file.to_str().filter(|text| text.trim_start().starts_with(['{', '[']));
        let name = match inline {
            Some(_) => "the argument".to_owned(),
            None if self.file.as_os_str() == "-" => "standard input".to_owned(),
            None => self.file.display().to_string(),
        };
        let reader: Box<dyn BufRead> = if let Some(text) = inline {
            Box::new(io::Cursor::new(text.to_owned()))
        } else if self.file.as_os_str() == "-" {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = open_file(&self.file)?;
            if self.items.is_some() && file.metadata().is_ok_and(|data| data.len() > DOCUMENT_BYTES_MAX) {
                return Err(Failure::failed(format!(
                    "{name} is larger than 1 GiB; --items reads it into memory; convert it to NDJSON first"
                )));
            }
            Box::new(BufReader::with_capacity(1 << 16, file))
        };
        // Handles a byte-order mark, and UTF-16 as some programs write it.
        let reader = Utf8Reader::new(reader, Syntax::Json, None);
        for document in serde_json::Deserializer::from_reader(reader).into_iter::<Value>() {
            let document = document.map_err(|error| {
                Failure::failed(format!("{name}:{}:{}: is not valid JSON", error.line(), error.column()))
                    .because(&error)
            })?;
            let items = match &self.items {
                None => document,
                Some(path) => {
                    let path: Vec<String> = path.split('.').map(str::to_owned).collect();
                    at(&document, &path)
                        .filter(|items| items.is_array())
                        .cloned()
                        .ok_or_else(|| Failure::failed(format!("{name} has no array at `{}`", path.join("."))))?
                }
            };
            match items {
                Value::Array(items) => {
                    for item in items {
                        if !take(item) {
                            return Ok(());
                        }
                    }
                }
                item => {
                    if !take(item) {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn check(input: &str, args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("events.json");
        std::fs::write(&file, input).expect("written");
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let command = <TestCli as clap::Parser>::try_parse_from(
            [&["publish", "quakes", "quake", file.to_str().expect("a path")], args].concat(),
        );
        let outcome = match command {
            Ok(command) => command.args.run(&terminal, &server.client()).await,
            Err(error) => Err(Failure::usage(error.to_string().lines().next().unwrap_or_default())),
        };
        let end = outcome.map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        let text = format!("{}{end}{}", captured.text(), server.requests().join("\n"));
        expected.assert_eq(&text.replace(&*file.to_string_lossy(), "events.json"));
    }

    fn accepted(times: usize) -> Vec<(u16, Value)> {
        vec![(202, json!({"batch": "eb-1", "events": 1, "duplicate": false})); times]
    }

    #[tokio::test]
    async fn features_become_events() {
        let input = json!({"type": "FeatureCollection", "features": [
            {"id": "a", "properties": {"mag": 5.1}, "geometry": {"coordinates": [14.5, 35.9, 10]}},
            {"id": "b", "properties": {"mag": null}, "geometry": {"coordinates": [1, 2]}},
            {"id": "c", "properties": {"mag": 2}, "geometry": null}]});
        let args = [
            "--items",
            "features",
            "--map",
            "id=id,magnitude=properties.mag",
            "--map",
            "longitude=geometry.coordinates.0",
        ];
        check(&input.to_string(), &args, accepted(1), expect![[r#"
            3 events accepted in 1 batch
            POST /v1/applications/quakes/events/quake [application/json] [{"id":"a","magnitude":5.1,"longitude":14.5},{"id":"b","longitude":1},{"id":"c","magnitude":2}]"#]]).await;
        check(&input.to_string(), &[&args[..], &["--require", "magnitude,longitude"]].concat(), accepted(1), expect![[r#"
            1 event accepted in 1 batch; 2 items skipped because a required field is missing
            POST /v1/applications/quakes/events/quake [application/json] [{"id":"a","magnitude":5.1,"longitude":14.5}]"#]]).await;
        check(
            "{}",
            &args,
            vec![],
            expect![[r#"
            failed: events.json has no array at `features`
        "#]],
        )
        .await;
        check("{}", &["--map", "magnitude"], vec![], expect![[r#"
            failed: error: invalid value 'magnitude' for '--map <FIELD=PATH>': `magnitude` is not FIELD=PATH, such as magnitude=properties.mag
        "#]]).await;
        check(
            "{}",
            &["--map", "a=b", "--require", "c"],
            vec![],
            expect![[r#"
            failed: --require c: unknown field; it must be a field of --map
        "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn lines_and_arrays_are_cut_into_batches() {
        let args = ["--batch", "2", "--idempotency-key", "k", "--source", "me"];
        check(
            "{\"n\":1}\n{\"n\":2}\n[{\"n\":3}]",
            &args,
            accepted(2),
            expect![[r#"
            3 events accepted in 2 batches
            POST /v1/applications/quakes/events/quake?source=me [application/json] [k-0] [{"n":1},{"n":2}]
            POST /v1/applications/quakes/events/quake?source=me [application/json] [k-1] [{"n":3}]"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn batches_accepted_before_a_failure_are_reported() {
        check(
            "{\"n\":1}\n{\"n\":2}\nnonsense",
            &["--batch", "1"],
            accepted(2),
            expect![[r#"
                failed: events.json:3:2: is not valid JSON
                  expected ident at line 3 column 2
                  2 events in 2 batches were accepted before the failed batch
                POST /v1/applications/quakes/events/quake [application/json] [{"n":1}]
                POST /v1/applications/quakes/events/quake [application/json] [{"n":2}]"#]],
        )
        .await;
        let problems = json!({"title": "the events have mistakes", "problems": [{"path": "0.n", "message": "should be a string, not an integer"}]});
        check(
            "{\"n\":1}\n{\"n\":2}",
            &["--batch", "1"],
            [accepted(1), vec![(422, problems)]].concat(),
            expect![[r#"
            failed: fix these problems
              the events have mistakes (HTTP 422)
              0.n: should be a string, not an integer
              1 event in 1 batch was accepted before the failed batch
            POST /v1/applications/quakes/events/quake [application/json] [{"n":1}]
            POST /v1/applications/quakes/events/quake [application/json] [{"n":2}]"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_busy_server_is_retried() {
        let busy = json!({"title": "the journal is full", "retry_after": 0});
        check(
            "{\"n\":1}",
            &[],
            [vec![(503, busy)], accepted(1)].concat(),
            expect![[r#"
            1 event accepted in 1 batch
            POST /v1/applications/quakes/events/quake [application/json] [{"n":1}]
            POST /v1/applications/quakes/events/quake [application/json] [{"n":1}]"#]],
        )
        .await;
        check(
            "{\"n\":1}",
            &[],
            vec![(503, json!({"title": "closed", "retry_after": 3600}))],
            expect![[r#"
            failed: the server is busy; retry in 3600 s
              closed (HTTP 503)
            POST /v1/applications/quakes/events/quake [application/json] [{"n":1}]"#]],
        )
        .await;
    }
}
