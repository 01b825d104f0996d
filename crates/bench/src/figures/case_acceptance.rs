//! Figure `case.acceptance`: the acceptance test of a deployment. A batch is delivered to ten thousand subscribers,
//! then all reports are read.

use std::time::Instant;

use serde_json::Value;

use crate::{
    bench::{Bench, Measuring},
    client::segment,
    failure::{Failure, Outcome},
    {
        context::Context,
        fanout_server::FanoutServer,
        figure::{Figure, Samples, rounded},
        server::Server,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "case.acceptance",
    about: "s until a batch is delivered to 10,000 subscribers and every report has been read",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// Events of the batch, each delivered to every subscriber.
const EVENTS: u64 = 10;
const TEXT_CHARACTERS: usize = 250;

async fn run(context: &Context) -> Outcome<Figure> {
    let people = context.size(10_000, 500);
    let channel = "{protocol: file, options: {path: bench.ndjson}}";
    let mut fanout = FanoutServer::start(context, channel, "", people, |number| format!("reader{number}")).await?;
    let (mut ours, mut reading, mut expected) = (Samples::default(), Samples::default(), 0);
    let mut durations = String::new();
    for _ in context.turns() {
        let delivery = fanout.deliver_events(EVENTS, TEXT_CHARACTERS).await?;
        expected += people * EVENTS;
        let begun = Instant::now();
        durations = read_reports(&fanout.server, expected).await?;
        reading.push(begun.elapsed().as_secs_f64() * 1e3);
        ours.push((delivery + begun.elapsed()).as_secs_f64());
    }
    Ok(Figure::new("s", ours)
        .with_condition(format!(
            "{people} subscribers with a subscription each, {EVENTS} events delivered to all of them, into a file"
        ))
        .with_condition(durations)
        .with_condition(format!(
            "the reports took {} ms of it and contain every notification",
            rounded(reading.median(), 3)
        )))
}

/// Reads every report without an `id` parameter. Returns the stage durations that they contain.
async fn read_reports(server: &Server, expected: u64) -> Outcome<String> {
    let list = server.client().get("/v1/reports", &[]).await?;
    let mut durations = None;
    for report in list["items"].as_array().into_iter().flatten() {
        let name = report["name"].as_str().unwrap_or_default();
        if report["parameters"].as_array().is_some_and(|asked| asked.iter().any(|asked| asked == "id")) {
            continue;
        }
        let asked: &[(&str, &str)] = if name == CLASSES { &[("interval", "1d")] } else { &[] };
        let found = server.client().get(&format!("/v1/reports/{}", segment(name)), asked).await?;
        match name {
            CLASSES => durations = Some(check_rows(&found["tables"][0]["rows"], expected)?),
            "failed-notifications" if found["tables"][0]["rows"].as_array().is_some_and(|rows| !rows.is_empty()) => {
                return Err(Failure::failed("a report contains failed notifications").detail(found.to_string()));
            }
            _ => {}
        }
    }
    durations.ok_or_else(|| Failure::failed(format!("the server has no report `{CLASSES}`")))
}

/// Report that counts delivered notifications.
const CLASSES: &str = "notification-class";

/// Checks that the intervals of a class contain all deliveries. Returns the stage durations of the last one in ms.
fn check_rows(rows: &Value, expected: u64) -> Outcome<String> {
    let rows: &[Value] = rows.as_array().map_or(&[], Vec::as_slice);
    let delivered: u64 = rows.iter().filter_map(|row| row["delivered"].as_u64()).sum();
    if delivered != expected {
        return Err(Failure::failed(format!("the reports contain {delivered} notifications; expected {expected}")));
    }
    let last = rows.iter().rev().find(|row| row["delivered"].as_u64() > Some(0)).cloned().unwrap_or_default();
    let [generation, wait, delivery] = ["generation_ms", "wait_until_distribution_ms", "delivery_ms"]
        .map(|leg| last[leg].as_f64().unwrap_or_default());
    Ok(format!(
        "by the reports {generation:.0} ms to generate a batch, {wait:.0} ms until its dispatch, {delivery:.0} ms to deliver it"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_must_contain_all_notifications() {
        let rows = json!([{"delivered": 2, "generation_ms": 1.0, "wait_until_distribution_ms": 2.0, "delivery_ms": 3.4},
                          {"delivered": 0, "generation_ms": null}]);
        assert_eq!(
            check_rows(&rows, 2).expect("all are reported"),
            "by the reports 1 ms to generate a batch, 2 ms until its dispatch, 3 ms to deliver it"
        );
        let missing = check_rows(&rows, 3).expect_err("one is missing");
        assert_eq!(missing.message, "the reports contain 2 notifications; expected 3");
    }
}
