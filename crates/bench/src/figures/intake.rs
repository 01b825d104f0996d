//! Figures `intake.*`: events from files, queries and the API, by size and by batch (WNS-09 to 14). The events match
//! nothing, so that only their way into the journal is measured.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::Connection as Sqlite;
use serde_json::{Value, json};

use super::accept_single::words;
use crate::{
    bench::{Bench, Measuring},
    examples::stock::SEED,
    failure::{Failure, Outcome},
    {
        context::{Context, Scratch, run_blocking},
        figure::{Figure, Samples},
        http_client,
        server::Server,
    },
};

/// Source of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IntakePath {
    File,
    Sql,
    Api,
}

macro_rules! figures {
    ($($constant:ident $name:literal $way:ident $batch:literal x $characters:literal by $clients:literal,)*) => {
        $(
            /// Measured on request only.
            const $constant: Bench = Bench {
                name: $name,
                about: concat!("events/s, ", $batch, " per batch, ", $characters, " characters"),
                by_default: false,
                run: |context| -> Measuring<'_> {
                    Box::pin(run(context, IntakeWorkload { way: IntakePath::$way, batch: $batch, characters: $characters, clients: $clients }))
                },
            };
        )*
        /// All intake figures.
        pub const ALL: &[Bench] = &[$($constant),*];
    };
}

figures! {
    FILE_25 "intake.file.25" File 10000 x 25 by 1,
    FILE_50 "intake.file.50" File 10000 x 50 by 1,
    FILE_100 "intake.file.100" File 10000 x 100 by 1,
    FILE_250 "intake.file.250" File 10000 x 250 by 1,
    FILE_500 "intake.file.500" File 10000 x 500 by 1,
    FILE_1000 "intake.file.1000" File 10000 x 1000 by 1,
    FILE_2000 "intake.file.2000" File 10000 x 2000 by 1,
    FILE_BY_1 "intake.file.by1" File 1 x 250 by 1,
    FILE_BY_10 "intake.file.by10" File 10 x 250 by 1,
    FILE_BY_100 "intake.file.by100" File 100 x 250 by 1,
    FILE_BY_1000 "intake.file.by1000" File 1000 x 250 by 1,
    SQL_25 "intake.sql.25" Sql 10000 x 25 by 1,
    SQL_50 "intake.sql.50" Sql 10000 x 50 by 1,
    SQL_100 "intake.sql.100" Sql 10000 x 100 by 1,
    SQL_250 "intake.sql.250" Sql 10000 x 250 by 1,
    SQL_500 "intake.sql.500" Sql 10000 x 500 by 1,
    SQL_1000 "intake.sql.1000" Sql 10000 x 1000 by 1,
    SQL_2000 "intake.sql.2000" Sql 10000 x 2000 by 1,
    SQL_BY_1 "intake.sql.by1" Sql 1 x 250 by 1,
    SQL_BY_10 "intake.sql.by10" Sql 10 x 250 by 1,
    SQL_BY_100 "intake.sql.by100" Sql 100 x 250 by 1,
    SQL_BY_1000 "intake.sql.by1000" Sql 1000 x 250 by 1,
    API_25 "intake.api.25" Api 10000 x 25 by 1,
    API_50 "intake.api.50" Api 10000 x 50 by 1,
    API_100 "intake.api.100" Api 10000 x 100 by 1,
    API_250 "intake.api.250" Api 10000 x 250 by 1,
    API_500 "intake.api.500" Api 10000 x 500 by 1,
    API_1000 "intake.api.1000" Api 10000 x 1000 by 1,
    API_2000 "intake.api.2000" Api 10000 x 2000 by 1,
    API_5000 "intake.api.5000" Api 10000 x 5000 by 1,
    API_BY_1 "intake.api.by1" Api 1 x 250 by 1,
    API_BY_10 "intake.api.by10" Api 10 x 250 by 1,
    API_BY_100 "intake.api.by100" Api 100 x 250 by 1,
    API_BY_1000 "intake.api.by1000" Api 1000 x 250 by 1,
    API_MANY "intake.api.many" Api 100 x 250 by 16,
}

#[derive(Debug, Clone, Copy)]
struct IntakeWorkload {
    way: IntakePath,
    /// Events of a file, of a query result, or of a request.
    batch: usize,
    characters: usize,
    clients: usize,
}

/// Events of a turn, and limits of the number of batches.
const EVENTS: usize = 10_000;
const BATCHES_MIN: usize = 10;
const BATCHES: usize = 1_000;
/// Duration of a turn of the API.
const API_TIME: Duration = Duration::from_secs(3);
/// Time without a new event after which a source counts as stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Words of `characters` characters, different for each number: the journal compresses, and repeated texts would
/// compress to nothing.
pub fn text(number: u64, characters: usize) -> String {
    words(&mut fastrand::Rng::with_seed(SEED ^ number), characters)
}

fn definition(way: IntakePath, folder: &Path) -> String {
    let options = match way {
        IntakePath::Api => "  api: {kind: http, events: [note]}".to_owned(),
        IntakePath::File => {
            "  drop: {kind: directory, events: [note], options: {folder: notes, pattern: '*.ndjson', format: ndjson, settle: 1ms, done: remove}}"
                .to_owned()
        }
        IntakePath::Sql => format!(
            "  rows:
    kind: query
    events: [note]
    options:
      database: 'sqlite:{}'
      query: SELECT id, text FROM notes WHERE id > :mark ORDER BY id
      mark: id
      start: '0'
      every: 1ms
      fields: {{text: text}}",
            folder.join("notes.db").display()
        ),
    };
    format!(
        "application: notes
events: {{note: {{fields: {{text: string}}}}}}
sources:
{options}
subscriptions: {{said: {{fields: {{text: string}}}}}}
notifications: {{item: {{fields: {{text: string}}, content: {{templates: {{base: {{subject: item, text: '{{{{ text }}}}'}}}}}}}}}}
rules: {{heard: {{on: note, subscription: said, when: event.text == sub.text, notify: item}}}}
channels: {{records: {{protocol: file}}}}
"
    )
}

async fn run(context: &Context, work: IntakeWorkload) -> Outcome<Figure> {
    let folder = context.folder()?;
    let there = folder.path().to_string_lossy().into_owned();
    let server = Server::start_with(context, folder.path(), &[("TOCSIN_SOURCES_ALLOW_FOLDERS", &there)]).await?;
    if work.way == IntakePath::Sql {
        rows(&folder, 0..0, 1).await?;
    }
    server.apply("notes", &definition(work.way, folder.path())).await?;
    if work.way != IntakePath::Api {
        until_running(&server).await?;
    }
    let mut ours = Samples::default();
    for _ in context.turns() {
        ours.push(match work.way {
            IntakePath::Api => api(context, &server, work).await?,
            IntakePath::File | IntakePath::Sql => source(context, &server, &folder, work).await?,
        });
    }
    let figure = Figure::new("events/s", ours).with_condition(format!("{} characters", work.characters));
    Ok(match work.way {
        IntakePath::File => figure.with_condition(format!("files of {} lines, moved into the folder", work.batch)),
        IntakePath::Sql => figure.with_condition(format!("{} rows of SQLite at a time", work.batch)),
        IntakePath::Api => {
            figure.with_condition(format!("{} per request over HTTP", work.batch)).with_condition(match work.clients {
                1 => "one client".to_owned(),
                many => format!("{many} clients"),
            })
        }
    }
    .with_condition("each batch durable before it is counted"))
}

async fn api(context: &Context, server: &Server, work: IntakeWorkload) -> Outcome<f64> {
    let events: Vec<Value> =
        (0..work.batch as u64).map(|number| json!({"text": text(number, work.characters)})).collect();
    let body = Value::Array(events).to_string();
    let request =
        http_client::post("/v1/applications/notes/events/note", &server.key, "application/json", body.as_bytes());
    let time = context.size(API_TIME, Duration::from_millis(200));
    let (answers, seconds) = http_client::closed_loop(server.port, request, work.clients, time).await?;
    Ok((answers * work.batch as u64) as f64 / seconds)
}

/// Number of accepted events, and the time until all are accepted. Small batches are written one after the other, each
/// after the previous one is accepted; otherwise a query would return several at once.
async fn source(context: &Context, server: &Server, folder: &Scratch, work: IntakeWorkload) -> Outcome<f64> {
    let events = context.size(EVENTS, 200);
    // A single large batch would be too short to measure.
    let batches = (events / work.batch).clamp(context.size(BATCHES_MIN, 1), context.size(BATCHES, 5));
    let batch = work.batch.min(events);
    let mut wanted = accepted(server).await?;
    let first = wanted;
    if work.way == IntakePath::File {
        let (from, to) = (folder.path().join("ready"), server.folder.join("drop").join("notes"));
        write_files(&from, wanted, batches, batch, work.characters).await?;
        let started = Instant::now();
        for number in 0..batches {
            let name = format!("{number:05}.ndjson");
            let moved = fs::rename(from.join(&name), to.join(&name));
            moved.map_err(|error| Failure::file("move a file to", &to.join(&name), &error))?;
        }
        wanted += (batches * batch) as u64;
        until_accepted(server, wanted).await?;
        return Ok((wanted - first) as f64 / started.elapsed().as_secs_f64());
    }
    let mut took = Duration::ZERO;
    for _ in 0..batches {
        // One commit, so that a query finds all of them.
        rows(folder, wanted..wanted + batch as u64, work.characters).await?;
        let started = Instant::now();
        wanted += batch as u64;
        until_accepted(server, wanted).await?;
        took += started.elapsed();
    }
    Ok((wanted - first) as f64 / took.as_secs_f64())
}

async fn write_files(folder: &Path, from: u64, files: usize, lines: usize, characters: usize) -> Outcome {
    let folder = folder.to_owned();
    run_blocking(move || {
        fs::create_dir_all(&folder).map_err(|error| Failure::file("make the folder", &folder, &error))?;
        for file in 0..files {
            let lines: String = (0..lines)
                .map(|line| format!("{}\n", json!({"text": text(from + (file * lines + line) as u64, characters)})))
                .collect();
            let path = folder.join(format!("{file:05}.ndjson"));
            fs::write(&path, lines).map_err(|error| Failure::file("write", &path, &error))?;
        }
        Ok(())
    })
    .await?
}

async fn rows(folder: &Scratch, numbers: std::ops::Range<u64>, characters: usize) -> Outcome {
    let path = folder.path().join("notes.db");
    run_blocking(move || {
        let mut database = Sqlite::open(path)?;
        database.pragma_update(None, "journal_mode", "WAL")?;
        database.busy_timeout(Duration::from_secs(10))?;
        let transaction = database.transaction()?;
        transaction.execute_batch("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")?;
        for number in numbers {
            transaction.prepare_cached("INSERT INTO notes (text) VALUES (?1)")?.execute([text(number, characters)])?;
        }
        transaction.commit()
    })
    .await?
    .map_err(|error| Failure::failed("the rows cannot be written").because(&error))
}

/// Waits until the source is running: only then does its folder exist.
async fn until_running(server: &Server) -> Outcome {
    let started = Instant::now();
    loop {
        let sources: Value = server.client().get("/v1/applications/notes/sources", &[]).await?;
        let source = &sources["items"][0];
        if source["state"] == "running" {
            return Ok(());
        }
        if started.elapsed() > STALL_TIMEOUT {
            return Err(Failure::failed("the source is not running").detail(source.to_string()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn accepted(server: &Server) -> Outcome<u64> {
    Ok(server.status().await?["totals"]["events"].as_u64().unwrap_or_default())
}

async fn until_accepted(server: &Server, wanted: u64) -> Outcome {
    let (mut before, mut moved) = (0, Instant::now());
    loop {
        let there = accepted(server).await?;
        if there == wanted {
            return Ok(());
        }
        if there > wanted {
            return Err(Failure::failed(format!("{there} events are stored; expected {wanted}")));
        }
        if there > before {
            (before, moved) = (there, Instant::now());
        }
        if moved.elapsed() > STALL_TIMEOUT {
            return Err(Failure::failed(format!("{there} of {wanted} events are stored, then progress stopped")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_size_and_the_definitions_compile() {
        for characters in [20, 25, 2_000] {
            assert_eq!(text(7, characters).len(), characters);
        }
        assert_eq!(text(7, 100), text(7, 100));
        assert_ne!(text(7, 100), text(8, 100));
        for way in [IntakePath::Api, IntakePath::File, IntakePath::Sql] {
            let text = definition(way, Path::new("/tmp"));
            let problems = tocsin_pipeline::compile_text(&text, 1, &|_| None).err();
            assert!(problems.is_none(), "{problems:?}\n{text}");
        }
    }
}
