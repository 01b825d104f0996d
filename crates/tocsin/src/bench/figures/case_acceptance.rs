//! The acceptance test of a deployment: a batch told to ten thousand, then what the reports say of it.

use std::time::Instant;

use serde_json::Value;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples, rounded},
        server::Server,
    },
    client::segment,
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "case.acceptance",
    about: "s until 10,000 people have been told of a batch and every report has been read",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Events of the batch, each of which is told to everybody.
const EVENTS: u64 = 10;
const TEXT_CHARACTERS: usize = 250;

async fn run(context: &Context) -> Outcome<Figure> {
    let people = context.size(10_000, 500);
    let channel = "{protocol: file, options: {path: bench.ndjson}}";
    let mut fanout = Fanout::start(context, channel, "", people, |number| format!("reader{number}")).await?;
    let (mut ours, mut reading, mut told) = (Samples::default(), Samples::default(), 0);
    let mut legs = String::new();
    for _ in context.turns() {
        let delivery = fanout.tell_all_of(EVENTS, TEXT_CHARACTERS).await?;
        told += people * EVENTS;
        let begun = Instant::now();
        legs = read_reports(&fanout.server, told).await?;
        reading.push(begun.elapsed().as_secs_f64() * 1e3);
        ours.push((delivery + begun.elapsed()).as_secs_f64());
    }
    Ok(Figure::new("s", ours)
        .under(format!(
            "{people} subscribers with a subscription each, {EVENTS} events told to all of them, into a file"
        ))
        .under(legs)
        .under(format!("the reports took {} ms of it, and tell of every notification", rounded(reading.median(), 3))))
}

/// Reads every report that is about no single thing. Gives how long the legs took by them.
async fn read_reports(server: &Server, told: u64) -> Outcome<String> {
    let list = server.client().get("/v1/reports", &[]).await?;
    let mut legs = None;
    for report in list["items"].as_array().into_iter().flatten() {
        let name = report["name"].as_str().unwrap_or_default();
        if report["parameters"].as_array().is_some_and(|asked| asked.iter().any(|asked| asked == "id")) {
            continue;
        }
        let asked: &[(&str, &str)] = if name == CLASSES { &[("interval", "1d")] } else { &[] };
        let found = server.client().get(&format!("/v1/reports/{}", segment(name)), asked).await?;
        match name {
            CLASSES => legs = Some(judge(&found["tables"][0]["rows"], told)?),
            "failed-notifications" if found["tables"][0]["rows"].as_array().is_some_and(|rows| !rows.is_empty()) => {
                return Err(Failure::failed("a report tells of failed notifications").detail(found.to_string()));
            }
            _ => {}
        }
    }
    legs.ok_or_else(|| Failure::failed(format!("there is no report `{CLASSES}`")))
}

/// The report that counts what was told.
const CLASSES: &str = "notification-class";

/// Whether the intervals of a class tell of all that were told. Gives the legs of the last one, in ms.
fn judge(rows: &Value, told: u64) -> Outcome<String> {
    let rows: &[Value] = rows.as_array().map_or(&[], Vec::as_slice);
    let delivered: u64 = rows.iter().filter_map(|row| row["delivered"].as_u64()).sum();
    if delivered != told {
        return Err(Failure::failed(format!("the reports tell of {delivered} notifications, and there are {told}")));
    }
    let last = rows.iter().rev().find(|row| row["delivered"].as_u64() > Some(0)).cloned().unwrap_or_default();
    let [generation, wait, delivery] = ["generation_ms", "wait_until_distribution_ms", "delivery_ms"]
        .map(|leg| last[leg].as_f64().unwrap_or_default());
    Ok(format!(
        "by the reports {generation:.0} ms to make a batch, {wait:.0} ms until it left, {delivery:.0} ms to deliver it"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_must_tell_of_all() {
        let rows = json!([{"delivered": 2, "generation_ms": 1.0, "wait_until_distribution_ms": 2.0, "delivery_ms": 3.4},
                          {"delivered": 0, "generation_ms": null}]);
        assert_eq!(
            judge(&rows, 2).expect("all are there"),
            "by the reports 1 ms to make a batch, 2 ms until it left, 3 ms to deliver it"
        );
        let missing = judge(&rows, 3).expect_err("one is missing");
        assert_eq!(missing.message, "the reports tell of 2 notifications, and there are 3");
    }
}
