//! Figures with adaptive worker pools: servers that choose their number of workers, alternating with servers of fixed
//! numbers.

use std::{
    cell::RefCell,
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::exchange_roundtrip::{self, CALLERS};
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::{Context, Scratch},
        figure::{Figure, Samples, rounded},
        load::Target,
        server::{ChunkWriter, Server, next_poll},
        test_receiver::TestReceiver,
    },
};

/// Adaptive number of match index shards.
pub const MATCHING: Bench = Bench {
    name: "auto.match",
    about: "events/s against 20,000 filters without index support, adaptive shards; peer: the best fixed number",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(matched(context, &[1, 2, 4, 8, AUTO])) },
};

/// Adaptive number of match index shards, compared with one.
pub const PARALLEL: Bench = Bench {
    name: "match.parallel",
    about: "events/s against those filters with adaptive shards; peer: one shard, alternating",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(matched(context, &[1, AUTO])) },
};

/// Adaptive worker groups of the exchanges.
pub const EXCHANGE: Bench = Bench {
    name: "auto.exchange",
    about: "round trips/s with templates to render, adaptive workers; peer: the best fixed number",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(exchange(context)) },
};

/// Server with one setting, and its samples.
struct Candidate<T> {
    setting: u32,
    server: Server,
    rig: T,
    samples: Samples,
    _folder: Scratch,
}

/// Setting for adaptive mode.
const AUTO: u32 = 0;

/// Starts a server for each setting of these variables, all at once, so that they can be measured in alternation.
async fn candidates<T>(
    context: &Context,
    variables: &[&str],
    settings: &[u32],
    prepare: impl AsyncFn(&Server) -> Outcome<T>,
) -> Outcome<Vec<Candidate<T>>> {
    let mut all = Vec::new();
    for setting in settings {
        let (folder, value) = (context.folder()?, setting.to_string());
        let variables: Vec<(&str, &str)> = variables.iter().map(|name| (*name, &*value)).collect();
        let server = Server::start_with(context, folder.path(), &variables).await?;
        let rig = prepare(&server).await?;
        all.push(Candidate { setting: *setting, server, rig, samples: Samples::default(), _folder: folder });
    }
    Ok(all)
}

/// Measures every server in each turn, in alternating order. The best fixed number is chosen after that sweep and was
/// partly lucky, so the final comparison uses new turns of the two servers alone.
async fn compare<T>(
    context: &Context,
    unit: &'static str,
    mut all: Vec<Candidate<T>>,
    measure: impl AsyncFn(&mut Candidate<T>) -> Outcome<f64>,
) -> Outcome<Figure> {
    for candidate in &mut all {
        measure(candidate).await?;
    }
    let everybody: Vec<usize> = (0..all.len()).collect();
    take_turns(context, &mut all, &everybody, &measure).await?;
    let named = |setting: u32| if setting == AUTO { "auto".to_owned() } else { setting.to_string() };
    let sweep: Vec<String> = all
        .iter()
        .map(|candidate| format!("{}: {}", named(candidate.setting), rounded(candidate.samples.median(), 4)))
        .collect();
    all.sort_by(|one, other| other.samples.median().total_cmp(&one.samples.median()));
    let index_of = |fits: fn(u32) -> bool| all.iter().position(|candidate| fits(candidate.setting));
    let (Some(auto), Some(best)) = (index_of(|setting| setting == AUTO), index_of(|setting| setting != AUTO)) else {
        return Err(Failure::failed("at least one adaptive and one fixed setting are needed"));
    };
    let is_swept = all.len() > 2;
    if is_swept {
        for at in [auto, best] {
            all[at].samples = Samples::default();
        }
        take_turns(context, &mut all, &[auto, best], &measure).await?;
    }
    let [ours, theirs] = [auto, best].map(|at| all[at].samples.clone());
    let figure = Figure::new(unit, ours).with_peer(&format!("fixed at {}", all[best].setting), theirs);
    Ok(if is_swept { figure.with_condition(format!("sweep: {}", sweep.join(", "))) } else { figure })
}

/// Measures the servers at these indices in each turn, in alternating order.
async fn take_turns<T>(
    context: &Context,
    all: &mut [Candidate<T>],
    places: &[usize],
    measure: &impl AsyncFn(&mut Candidate<T>) -> Outcome<f64>,
) -> Outcome<()> {
    for turn in context.turns() {
        for number in 0..places.len() {
            let candidate = &mut all[places[if turn % 2 == 0 { number } else { places.len() - 1 - number }]];
            let rate = measure(candidate).await?;
            candidate.samples.push(rate);
        }
    }
    Ok(())
}

const SUBSCRIBERS: u32 = 200;

/// Definition whose filters must be evaluated one by one.
const FILTERED: &str = "
application: filtered
events: { reading: { fields: { place: { type: string, required: true }, level: { type: number, required: true } } } }
subscriptions: { alarm: { fields: { place: { type: string, required: true }, least: { type: number, required: true } } } }
notifications: { item: { fields: { place: string }, content: { templates: { base: { text: \"{{ place }}\\n\" } } } } }
rules: { high: { on: reading, subscription: alarm, when: \"event.place != sub.place && event.level * sub.least > 100.0\", notify: item } }
channels: { out: { protocol: inbox } }
";

async fn matched(context: &Context, settings: &[u32]) -> Outcome<Figure> {
    let filters: u32 = context.size(20_000, 500);
    let events = context.size(2_000, 100);
    let prepare = async |server: &Server| {
        server.apply("filtered", FILTERED).await?;
        // All subscriptions of a subscriber are in one shard.
        let subscribers = |out: &mut ChunkWriter| {
            (0..SUBSCRIBERS).try_for_each(|number| {
                writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":"r"}}}}}}"#)
            })
        };
        server.import_subscribers(subscribers).await?;
        let alarms = move |out: &mut ChunkWriter| {
            (0..filters).try_for_each(|number| {
                let values = json!({"place": format!("p{number}"), "least": f64::from(number % 90) / 100.0});
                let subscriber = number % SUBSCRIBERS;
                writeln!(
                    out,
                    r#"{{"application":"filtered","class":"alarm","subscriber":"r{subscriber}","values":{values}}}"#
                )
            })
        };
        server.import_subscriptions("filtered", "alarm", alarms).await.map(|_| ())
    };
    let all = candidates(context, &["TOCSIN_PIPELINE_MATCH_SHARDS"], settings, prepare).await?;
    // No event matches: only matching is measured.
    let readings: Vec<Value> = (0..events).map(|number| json!({"place": "sea", "level": number % 100})).collect();
    let readings = Value::Array(readings);
    let measure = async |candidate: &mut Candidate<()>| {
        let begun = Instant::now();
        candidate.server.publish("filtered", "reading", &readings).await?;
        loop {
            let status = candidate.server.status().await?;
            let matched = status["backlog"]["events"] == 0;
            if matched && status["backlog"]["failed_batches"] == 0 {
                return Ok(f64::from(events) / begun.elapsed().as_secs_f64());
            }
            if matched {
                return Err(Failure::failed("events could not be matched").detail(status["backlog"].to_string()));
            }
            tokio::time::sleep(next_poll(begun.elapsed())).await;
        }
    };
    let figure = compare(context, "events/s", all, measure).await?;
    Ok(figure.with_condition(format!(
        "{events} events a turn, each tried against {filters} subscriptions of {SUBSCRIBERS} subscribers by a rule without an \
         index"
    )))
}

/// Exchange whose messages are made longer by a template, which takes CPU time.
fn rendered(port: u16) -> String {
    let steps = "pipeline: [transform: { template: '[{% for n in range(500) %}{{ n }}, {% endfor %}0]' }]";
    let definition = exchange_roundtrip::definition("rendered", port);
    let definition = definition.replace("wait: 30s }", &format!("wait: 30s, {steps} }}"));
    definition.replace("when: \"message.type == 'order'\"", "when: 'true'")
}

async fn exchange(context: &Context) -> Outcome<Figure> {
    let variables = ["TOCSIN_SPOOL_RECEIVE_WORKERS", "TOCSIN_SPOOL_ROUTE_WORKERS", "TOCSIN_SPOOL_SEND_WORKERS"];
    let prepare = async |server: &Server| {
        // Its receiver accepts any request.
        let receiver: TestReceiver = exchange_roundtrip::install(server).await?;
        exchange_roundtrip::apply(server, "rendered", rendered(receiver.port)).await?;
        Ok((exchange_roundtrip::target_of("rendered", server, 1_000, CALLERS), receiver))
    };
    let all = candidates(context, &variables, &[1, 2, 4, 16, 64, AUTO], prepare).await?;
    let time = Duration::from_millis(context.size(5_000, 300));
    let found = RefCell::new(Vec::new());
    let measure = async |candidate: &mut Candidate<(Target, TestReceiver)>| {
        let rate = candidate.rig.0.closed(time).await?.per_second();
        if candidate.setting == AUTO {
            let workers = workers(&candidate.server).await?;
            found.borrow_mut().push(workers);
        }
        Ok(rate)
    };
    let figure = compare(context, "round trips/s", all, measure).await?;
    Ok(figure
        .with_condition(format!(
            "{CALLERS} callers, {} s a turn, receive, route and send groups of the same number",
            time.as_secs_f64()
        ))
        .with_condition(format!("adapted numbers by turn: {}", found.take().join(", "))))
}

/// Current number of workers of each group, in the order of `GROUPS`.
async fn workers(server: &Server) -> Outcome<String> {
    let status = server.status().await?;
    let of = |group: &str| {
        let groups = status["workers"].as_array().into_iter().flatten();
        let most = groups.filter(|load| load["group"] == group).find_map(|load| load["most"].as_u64());
        most.map_or_else(|| "?".to_owned(), |most| most.to_string())
    };
    Ok(GROUPS.map(of).join("/"))
}

/// Adaptive worker groups.
const GROUPS: [&str; 3] = ["receive", "route", "send"];
