//! Whole servers that find by themselves how many workers help, beside others with fixed numbers of them, by turns.

use std::{
    cell::RefCell,
    io::Write,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    Bench, Measuring,
    exchange_roundtrip::{self, CALLERS},
};
use crate::{
    bench::{
        context::{Context, Scratch},
        far_end::FarEnd,
        figure::{Figure, Samples, rounded},
        load::Target,
        server::{Parts, Server, asked_after},
    },
    failure::{Failure, Outcome},
};

/// Shards of the match index.
pub const MATCHING: Bench = Bench {
    name: "auto.match",
    about: "events/s against 20,000 filters that no index answers, shards chosen by the server; peer: the best fixed number",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(matched(context, &[1, 2, 4, 8, AUTO])) },
};

/// Shards of the match index against one.
pub const PARALLEL: Bench = Bench {
    name: "match.parallel",
    about: "events/s against those filters with as many shards as the server takes by itself; beside it with one, turn by turn",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(matched(context, &[1, AUTO])) },
};

/// Worker groups of the exchanges.
pub const EXCHANGE: Bench = Bench {
    name: "auto.exchange",
    about: "round trips/s with templates to render on the way, workers found by the server; peer: the best fixed number",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(exchange(context)) },
};

/// A server with a setting of its own, and what it came to.
struct Contender<T> {
    setting: u32,
    server: Server,
    rig: T,
    samples: Samples,
    _folder: Scratch,
}

/// The setting by which a server decides for itself.
const AUTO: u32 = 0;

/// Starts a server for each setting of these variables, all at once, since what is compared must be measured side by side.
async fn contenders<T>(
    context: &Context,
    variables: &[&str],
    settings: &[u32],
    prepare: impl AsyncFn(&Server) -> Outcome<T>,
) -> Outcome<Vec<Contender<T>>> {
    let mut all = Vec::new();
    for setting in settings {
        let (folder, value) = (context.folder()?, setting.to_string());
        let variables: Vec<(&str, &str)> = variables.iter().map(|name| (*name, &*value)).collect();
        let server = Server::start_with(context, folder.path(), &variables).await?;
        let rig = prepare(&server).await?;
        all.push(Contender { setting: *setting, server, rig, samples: Samples::default(), _folder: folder });
    }
    Ok(all)
}

/// In each turn every server is measured, in the one order and then in the other. Which of several fixed numbers is best is
/// known only afterwards, and is the best by luck too: so the last word have turns of the two alone.
async fn compare<T>(
    context: &Context,
    unit: &'static str,
    mut all: Vec<Contender<T>>,
    measure: impl AsyncFn(&mut Contender<T>) -> Outcome<f64>,
) -> Outcome<Figure> {
    for contender in &mut all {
        measure(contender).await?;
    }
    let everybody: Vec<usize> = (0..all.len()).collect();
    take_turns(context, &mut all, &everybody, &measure).await?;
    let named = |setting: u32| if setting == AUTO { "auto".to_owned() } else { setting.to_string() };
    let sweep: Vec<String> = all
        .iter()
        .map(|contender| format!("{}: {}", named(contender.setting), rounded(contender.samples.median(), 4)))
        .collect();
    all.sort_by(|one, other| other.samples.median().total_cmp(&one.samples.median()));
    let place = |fits: fn(u32) -> bool| all.iter().position(|contender| fits(contender.setting));
    let (Some(auto), Some(best)) = (place(|setting| setting == AUTO), place(|setting| setting != AUTO)) else {
        return Err(Failure::failed("there is nothing to compare"));
    };
    let is_swept = all.len() > 2;
    if is_swept {
        for at in [auto, best] {
            all[at].samples = Samples::default();
        }
        take_turns(context, &mut all, &[auto, best], &measure).await?;
    }
    let [ours, theirs] = [auto, best].map(|at| all[at].samples.clone());
    let figure = Figure::new(unit, ours).beside(&format!("fixed at {}", all[best].setting), theirs);
    Ok(if is_swept { figure.under(format!("the sweep before: {}", sweep.join(", "))) } else { figure })
}

/// Measures those at these places in each turn, in the one order and then in the other.
async fn take_turns<T>(
    context: &Context,
    all: &mut [Contender<T>],
    places: &[usize],
    measure: &impl AsyncFn(&mut Contender<T>) -> Outcome<f64>,
) -> Outcome<()> {
    for turn in context.turns() {
        for number in 0..places.len() {
            let contender = &mut all[places[if turn % 2 == 0 { number } else { places.len() - 1 - number }]];
            let rate = measure(contender).await?;
            contender.samples.push(rate);
        }
    }
    Ok(())
}

const SUBSCRIBERS: u32 = 200;

/// A class whose filters have to be tried one by one.
const FILTERED: &str = "
application: filtered
events: { reading: { fields: { place: { type: string, required: true }, level: { type: number, required: true } } } }
subscriptions: { alarm: { fields: { place: { type: string, required: true }, least: { type: number, required: true } } } }
notifications: { told: { fields: { place: string }, content: { templates: { base: { text: \"{{ place }}\\n\" } } } } }
rules: { high: { on: reading, subscription: alarm, when: \"event.place != sub.place && event.level * sub.least > 100.0\", notify: told } }
channels: { out: { protocol: inbox } }
";

async fn matched(context: &Context, settings: &[u32]) -> Outcome<Figure> {
    let filters: u32 = context.size(20_000, 500);
    let events = context.size(2_000, 100);
    let prepare = async |server: &Server| {
        server.apply("filtered", FILTERED).await?;
        // All that a subscriber has is in one shard.
        let subscribers = |out: &mut Parts| {
            (0..SUBSCRIBERS).try_for_each(|number| {
                writeln!(out, r#"{{"id":"r{number}","devices":{{"main":{{"channel":"out","address":"r"}}}}}}"#)
            })
        };
        server.import_subscribers(subscribers).await?;
        let alarms = move |out: &mut Parts| {
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
    let all = contenders(context, &["TOCSIN_PIPELINE_MATCH_SHARDS"], settings, prepare).await?;
    // Nobody is told: it is matching that is measured.
    let readings: Vec<Value> = (0..events).map(|number| json!({"place": "sea", "level": number % 100})).collect();
    let readings = Value::Array(readings);
    let measure = async |contender: &mut Contender<()>| {
        let begun = Instant::now();
        contender.server.publish("filtered", "reading", &readings).await?;
        loop {
            let status = contender.server.status().await?;
            let matched = status["backlog"]["events"] == 0;
            if matched && status["backlog"]["failed_batches"] == 0 {
                return Ok(f64::from(events) / begun.elapsed().as_secs_f64());
            }
            if matched {
                return Err(Failure::failed("events could not be matched").detail(status["backlog"].to_string()));
            }
            tokio::time::sleep(asked_after(begun.elapsed())).await;
        }
    };
    let figure = compare(context, "events/s", all, measure).await?;
    Ok(figure.under(format!(
        "{events} events a turn, each tried against {filters} subscriptions of {SUBSCRIBERS} subscribers by a rule without an \
         index"
    )))
}

/// What comes is made longer on its way in, which takes some of a processor.
fn rendered(port: u16) -> String {
    let steps = "pipeline: [transform: { template: '[{% for n in range(500) %}{{ n }}, {% endfor %}0]' }]";
    let definition = exchange_roundtrip::definition("rendered", port);
    let definition = definition.replace("wait: 30s }", &format!("wait: 30s, {steps} }}"));
    definition.replace("when: \"message.type == 'order'\"", "when: 'true'")
}

async fn exchange(context: &Context) -> Outcome<Figure> {
    let variables = ["TOCSIN_SPOOL_RECEIVE_WORKERS", "TOCSIN_SPOOL_ROUTE_WORKERS", "TOCSIN_SPOOL_SEND_WORKERS"];
    let prepare = async |server: &Server| {
        // Its far end answers whatever comes.
        let far: FarEnd = exchange_roundtrip::bring(server).await?;
        exchange_roundtrip::apply(server, "rendered", rendered(far.port)).await?;
        Ok((exchange_roundtrip::target_of("rendered", server, 1_000, CALLERS), far))
    };
    let all = contenders(context, &variables, &[1, 2, 4, 16, 64, AUTO], prepare).await?;
    let time = Duration::from_millis(context.size(5_000, 300));
    let found = RefCell::new(Vec::new());
    let measure = async |contender: &mut Contender<(Target, FarEnd)>| {
        let rate = contender.rig.0.closed(time).await?.per_second();
        if contender.setting == AUTO {
            let workers = workers(&contender.server).await?;
            found.borrow_mut().push(workers);
        }
        Ok(rate)
    };
    let figure = compare(context, "round trips/s", all, measure).await?;
    Ok(figure
        .under(format!(
            "{CALLERS} callers, {} s a turn, receive, route and send groups of the same number",
            time.as_secs_f64()
        ))
        .under(format!("found turn by turn: {}", found.take().join(", "))))
}

/// How many workers the groups have found by now, in the order of `GROUPS`.
async fn workers(server: &Server) -> Outcome<String> {
    let status = server.status().await?;
    let of = |group: &str| {
        let groups = status["workers"].as_array().into_iter().flatten();
        let most = groups.filter(|load| load["group"] == group).find_map(|load| load["most"].as_u64());
        most.map_or_else(|| "?".to_owned(), |most| most.to_string())
    };
    Ok(GROUPS.map(of).join("/"))
}

/// Groups whose workers the server finds.
const GROUPS: [&str; 3] = ["receive", "route", "send"];
