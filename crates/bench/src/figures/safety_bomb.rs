//! Figures `safety.*`: CPU time of the worst filter until it is refused or stopped, and overrun of a query's timeout.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tocsin_matching::worst_cases::{LONGEST, WorstCaseResult, ordinary_filter, run_all};
use tocsin_model::{
    application::Application,
    definition,
    event::{EventBatch, EventPacker},
    field::Fields,
    id::{EventBatchId, Name},
    time::Timestamp,
};
use tocsin_store::queries::{ExtraColumns, QuerySet, QueryTables};

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, processor_time, run_blocking},
        figure::{Figure, Samples, rounded},
    },
};

/// Worst filters and segments.
pub const BENCH: Bench = Bench {
    name: "safety.bomb",
    about: "ms of a core until the worst of some 90 filters and segments is refused or stopped; peer: a typical filter",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(filters(context)) },
};

/// Worst queries.
pub const QUERY: Bench = Bench {
    name: "safety.query",
    about: "ms until the worst of some queries in SQL, whose rule has a timeout of 100 ms, is stopped",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(queries(context)) },
};

/// Repetitions: a typical filter takes much less than one kernel tick.
const TIMES: u32 = 200;

async fn filters(context: &Context) -> Outcome<Figure> {
    let turns = context.turns();
    run_blocking(move || {
        let (mut ours, mut peer) = (Samples::default(), Samples::default());
        let mut worst: Option<WorstCaseResult> = None;
        let mut bombs = 0;
        for _ in turns {
            let blasts = run_all(&processor_time);
            bombs = blasts.len();
            let longest = blasts.into_iter().max_by_key(WorstCaseResult::longest).ok_or_else(no_bombs)?;
            ours.push(millis(longest.longest()));
            peer.push(millis(ordinary_filter(TIMES, &processor_time).longest()));
            if worst.as_ref().is_none_or(|worst| worst.longest() < longest.longest()) {
                worst = Some(longest);
            }
        }
        let worst = worst.ok_or_else(no_bombs)?;
        Ok(Figure::new("ms", ours)
            .with_peer("a typical filter, the same event", peer)
            .with_condition(format!("{bombs} worst cases, events of 1 MB, CPU time"))
            .with_condition(format!("the worst: {}, {}", worst.name, worst.answer))
            .with_condition(format!("at most {} ms are allowed", LONGEST.as_millis())))
    })
    .await?
}

fn no_bombs() -> Failure {
    Failure::failed("the list of worst cases is empty")
}

/// Queries that are expensive in a single step of SQLite's virtual machine, or take many steps.
const QUERIES: [(&str, &str); 3] = [
    ("endless", "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) AS it FROM n"),
    (
        "long texts",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
         SELECT max(length(upper(hex(e.title || i)))) AS it FROM n, events e",
    ),
    (
        "sorted",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 150000)
         SELECT count(*) AS it FROM (SELECT i, row_number() OVER (ORDER BY i * 7919 % 200003) FROM n) a,
           (SELECT i FROM n ORDER BY i * 104729 % 200003) b",
    ),
];

async fn queries(context: &Context) -> Outcome<Figure> {
    let turns = context.turns();
    run_blocking(move || {
        let (mut ours, mut worst) = (Samples::default(), (0.0, ""));
        for _ in turns {
            let mut longest = 0.0_f64;
            for (name, sql) in QUERIES {
                let took = millis(stopped(sql)?);
                longest = longest.max(took);
                if took > worst.0 {
                    worst = (took, name);
                }
            }
            ours.push(longest);
        }
        Ok(Figure::new("ms", ours)
            .with_condition(format!("{} queries over a text of 1 MB, timeout 100 ms", QUERIES.len()))
            .with_condition(format!("the longest: {}, {} ms", worst.1, rounded(worst.0, 4))))
    })
    .await?
}

/// Time until a query is stopped.
fn stopped(sql: &str) -> Outcome<Duration> {
    let application = watched(sql)?;
    let (set, problems) = QuerySet::check(&application, &[], &[]);
    if let Some(problem) = problems.first() {
        return Err(Failure::failed("a query is invalid").detail(problem.to_string()));
    }
    let tables = QueryTables::open(Arc::new(set)).map_err(|error| Failure::failed("no database").because(&error))?;
    let mut tables = tables.ok_or_else(|| Failure::failed("the definition has no query"))?;
    let (batch, fields) = batch(&application)?;
    let nothing = Fields::new(Vec::new());
    let beside = ExtraColumns { columns: &nothing, first: 0, rows: &[] };
    let began = Instant::now();
    let firings = tables.run(&batch, &fields, &beside, |_| true);
    let took = began.elapsed();
    let firings = firings.map_err(|error| Failure::failed("a batch cannot be read").because(&error))?;
    match firings.first().map(|firing| &firing.outcome) {
        Some(Err(reason)) if reason.contains("timeout") => Ok(took),
        other => Err(Failure::failed("a query was not stopped").detail(format!("{other:?}"))),
    }
}

fn watched(sql: &str) -> Outcome<Application> {
    let sql = format!("SELECT 0 AS _event, it AS _subscription FROM ({sql})");
    let text = format!(
        "
application: bombs
events: {{ note: {{ fields: {{ title: string }} }} }}
subscriptions: {{ watch: {{ fields: {{ title: string }} }} }}
notifications: {{ item: {{ content: {{ templates: {{ base: {{ text: x }} }} }} }} }}
rules: {{ it: {{ on: note, subscription: watch, notify: item, timeout: 100ms, sql: {} }} }}
channels: {{ }}
",
        serde_json::Value::from(sql)
    );
    definition::read(&text, &|_| None).map_err(|problems| {
        problems
            .iter()
            .fold(Failure::failed("the definition is invalid"), |failure, problem| failure.detail(problem.to_string()))
    })
}

fn batch(application: &Application) -> Outcome<(EventBatch, Fields)> {
    let name = |text: &str| text.parse::<Name>().map_err(|_| Failure::failed("invalid class name"));
    let fields = application.events[&name("note")?].fields.clone();
    let mut packer = EventPacker::new(fields.clone());
    packer.push(&[tocsin_model::value::Value::from("a".repeat(1_000_000).as_str())]);
    let batch = EventBatch {
        id: EventBatchId(1),
        application: application.name.clone(),
        version: 1,
        class: name("note")?,
        source: name("api")?,
        received_at: Timestamp(0),
        accepted_at: Timestamp(0),
        snapshot_sequence: None,
        events: packer.finish(),
        chronicled: Default::default(),
    };
    Ok((batch, fields))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
