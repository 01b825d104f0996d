//! Figures of request/reply round trips through an exchange: the request is stored, routed by content and sent; its
//! reply is stored and returned. Peers: brokers. Also measures the cost of tracking bodies.

use std::{path::Path, time::Duration};

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};
use url::Url;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        brokers::{Brokers, step_summary},
        context::Context,
        external_targets::allow_hosts_option,
        figure::{Figure, Samples, rounded},
        http_client,
        load::Target,
        resource_usage::{CostMeter, processor_seconds},
        server::Server,
        test_receiver::{ReceiverSpeed, TestReceiver},
    },
};

/// Round trips of many callers.
pub const BENCH: Bench = Bench {
    name: "exchange.roundtrip",
    about: "durable round trips/s through an exchange, 64 callers, 1 KB; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// One caller, whose requests are sent before they are stored.
pub const ONE: Bench = Bench {
    name: "exchange.roundtrip.one",
    about: "durable round trips/s of one caller, 1 KB, stored with the reply; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_send_first(context, 1)) },
};

/// Many callers, whose requests are sent before they are stored.
pub const FIRST: Bench = Bench {
    name: "exchange.roundtrip.first",
    about: "durable round trips/s, 64 callers, 1 KB, stored with the reply; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_send_first(context, CALLERS)) },
};

/// Cost of tracking bodies at four points.
pub const TRACKING: Bench = Bench {
    name: "exchange.tracking4",
    about: "round trips/s with bodies tracked at four points; peer: without tracking",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_tracked(context, "received, sent, replied, returned", 4)) },
};

/// Cost of tracking bodies at one point.
pub const TRACKING_ONE: Bench = Bench {
    name: "exchange.tracking1",
    about: "round trips/s with bodies tracked at one point; peer: without tracking",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_tracked(context, "received", 1)) },
};

/// Effect of a flood in the pipeline of one exchange on another exchange.
pub const WORKERS: Bench = Bench {
    name: "exchange.workers",
    about: "round trips/s while the pipeline of another exchange is flooded; peer: without the flood",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_flooded(context)) },
};

/// Concurrent callers.
pub const CALLERS: usize = 64;
/// Callers of the flooded exchange: more than it has pipeline workers.
const FLOOD: usize = 256;
const STEPS: [usize; 3] = [1, 8, 256];
pub const BODY_BYTES: usize = 1_000;
/// Parts of a turn, for comparing nearly equal rates.
const PARTS: usize = 20;
const EXCHANGE: &str = "bench";
const TRACKED: &str = "tracked";
const SEND_FIRST: &str = "send_first";
const FLOODED: &str = "flooded";
/// Receive port of all of them.
const QUESTIONS: &str = "mode: request, wait: 30s";
/// Rate of the open loop as a part of the closed loop's.
const PACE: f64 = 0.7;

/// Exchange with this name, whose receiver listens at this port.
pub fn definition(name: &str, port: u16) -> String {
    let at = |path: &str| format!("{{ url: \"http://127.0.0.1:{port}/{path}\", allow_networks: [127.0.0.1] }}");
    definition_to(name, &at("answers"), &at("others"))
}

/// Exchange with the given options of its two send ports.
fn definition_to(name: &str, answers: &str, others: &str) -> String {
    format!(
        "exchange: {name}
properties: {{ type: $.type }}
receive: {{ questions: {{ {QUESTIONS} }} }}
send:
  answers:
    mode: request
    protocol: http
    options: {answers}
    concurrency: {CALLERS}
    retry: []
  others:
    mode: request
    protocol: http
    options: {others}
routes:
  orders: {{ when: \"message.type == 'order'\", to: answers }}
  rest: {{ when: \"message.type == 'other'\", to: others }}
"
    )
}

/// Starts a receiver, and a server with the exchange.
///
/// # Errors
/// If the server rejects a request.
pub async fn prepare(context: &Context, folder: &Path) -> Outcome<(TestReceiver, Server)> {
    let server = Server::start(context, folder).await?;
    Ok((install(&server).await?, server))
}

/// Applies the exchange to a server; returns its receiver.
///
/// # Errors
/// If the server rejects a request.
pub async fn install(server: &Server) -> Outcome<TestReceiver> {
    let receiver = at_once().await?;
    apply(server, EXCHANGE, definition(EXCHANGE, receiver.port)).await?;
    Ok(receiver)
}

/// Receiver that echoes each request at once, as those of the brokers do.
async fn at_once() -> Outcome<TestReceiver> {
    TestReceiver::echoing(|_| ReceiverSpeed { workers: CALLERS, millis: 0 }).await
}

/// Application that replies to the requests.
enum Application {
    Own(TestReceiver),
    /// External URL, used unchanged.
    External(Url),
}

impl Application {
    async fn ready(context: &Context) -> Outcome<Self> {
        match &context.targets.application {
            Some(url) => Ok(Application::External(url.clone())),
            None => Ok(Application::Own(at_once().await?)),
        }
    }

    /// Exchange with this name whose requests the application receives.
    fn definition(&self, name: &str) -> String {
        match self {
            Application::Own(receiver) => definition(name, receiver.port),
            Application::External(url) => {
                let options = format!("{{ url: {}, {} }}", Value::from(url.as_str()), allow_hosts_option(url));
                definition_to(name, &options, &options)
            }
        }
    }

    /// Brokers to compare with.
    async fn brokers(&self, context: &Context) -> Option<Brokers> {
        match self {
            Application::Own(_) => Brokers::start(context).await,
            // The brokers use their own clients, with which an external application is not comparable.
            Application::External(_) => None,
        }
    }

    /// Name for the conditions.
    fn name(&self) -> &'static str {
        match self {
            Application::Own(_) => "a receiver that echoes at once",
            Application::External(_) => "the external application",
        }
    }
}

/// Starts the application, and a server with the exchange that calls it.
async fn prepare_asking(context: &Context, folder: &Path) -> Outcome<(Application, Server)> {
    let (application, server) = (Application::ready(context).await?, Server::start(context, folder).await?);
    apply(&server, EXCHANGE, application.definition(EXCHANGE)).await?;
    Ok((application, server))
}

/// Applies an exchange definition.
///
/// # Errors
/// If the server rejects it.
pub async fn apply(server: &Server, name: &str, definition: String) -> Outcome {
    let request = server.client().request(Method::PUT, &format!("/v1/exchanges/{name}"));
    server.client().send(request.header(CONTENT_TYPE, "application/yaml").body(definition)).await?;
    Ok(())
}

/// Load that requests with a text of this many bytes.
pub fn target(server: &Server, bytes: usize, connections: usize) -> Target {
    target_of(EXCHANGE, server, bytes, connections)
}

/// Load of another exchange; otherwise as [`target`].
pub fn target_of(exchange: &str, server: &Server, bytes: usize, connections: usize) -> Target {
    let text: String = "The text of the order. ".chars().cycle().take(bytes).collect();
    let body = json!({"type": "order", "text": text}).to_string();
    let path = format!("/v1/exchanges/{exchange}/receive/questions");
    let request = http_client::post(&path, &server.key, "application/json", body.as_bytes());
    Target { port: server.port, request, connections }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (application, server) = prepare_asking(context, folder.path()).await?;
    let target = target(&server, BODY_BYTES, CALLERS);
    let time = Duration::from_secs(context.size(10, 1));
    let mut brokers = application.brokers(context).await;
    target.closed(time / 5).await?;
    let (mut ours, mut conditions, mut tally) = (Samples::default(), Vec::new(), CostMeter::of(&server));
    for _ in context.turns() {
        tally.begin();
        let load = target.closed(time).await?;
        tally.end(load.count as f64);
        ours.push(load.per_second());
        conditions.push(load.summary());
        if let Some(brokers) = &mut brokers {
            brokers.turn(CALLERS, time).await?;
        }
    }
    let paced = target.open_at(ours.median() * PACE, time).await?;
    let mut steps = Vec::new();
    for callers in STEPS {
        let load = target_of(EXCHANGE, &server, BODY_BYTES, callers).closed(time / 2).await?;
        steps.push(step_summary(load.per_second(), load.p99_ms(), callers));
        if let Some(brokers) = &mut brokers {
            brokers.step(callers, time / 2).await?;
        }
    }
    let figure = Figure::new("round trips/s", ours)
        .with_cost(tally.counts())
        .with_condition(format!("{CALLERS} callers, {BODY_BYTES} bytes, two routes, {}", application.name()))
        .with_condition("request and reply durable before the caller receives it")
        .with_condition(conditions.join("; "))
        .with_condition(paced.summary())
        .with_condition(format!("ours: {}", steps.join(", ")));
    Ok(Brokers::compare(brokers, figure).await)
}

async fn run_send_first(context: &Context, callers: usize) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (application, server) = prepare_asking(context, folder.path()).await?;
    let send_first = format!("{QUESTIONS}, store_first: false");
    apply(&server, SEND_FIRST, application.definition(SEND_FIRST).replace(QUESTIONS, &send_first)).await?;
    let of = |exchange, callers| target_of(exchange, &server, BODY_BYTES, callers);
    let (ahead, behind) = (of(SEND_FIRST, callers), of(EXCHANGE, callers));
    let time = Duration::from_secs(context.size(10, 1));
    let mut brokers = application.brokers(context).await;
    for target in [&ahead, &behind] {
        target.closed(time / 5).await?;
    }
    let (mut ours, mut stored, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    let mut tally = CostMeter::of(&server);
    for _ in context.turns() {
        tally.begin();
        let load = ahead.closed(time).await?;
        tally.end(load.count as f64);
        ours.push(load.per_second());
        conditions.push(load.summary());
        stored.push(behind.closed(time).await?.per_second());
        if let Some(brokers) = &mut brokers {
            brokers.turn(callers, time).await?;
        }
    }
    let mut steps = Vec::new();
    for others in [1, 8, CALLERS].into_iter().filter(|others| *others != callers) {
        let load = of(SEND_FIRST, others).closed(time / 2).await?;
        steps.push(step_summary(load.per_second(), load.p99_ms(), others));
    }
    let figure = Figure::new("round trips/s", ours)
        .with_cost(tally.counts())
        .with_condition(format!("callers: {callers}, {BODY_BYTES} bytes, two routes, {}", application.name()))
        .with_condition("the request is sent before it is stored, as in classic queues; both are durable before the caller receives the reply")
        .with_condition(conditions.join("; "))
        .with_condition(format!("{}/s with requests that are stored before they are sent", rounded(stored.median(), 4)))
        .with_condition(format!("with others: {}", steps.join(", ")));
    Ok(Brokers::compare(brokers, figure).await)
}

/// One of two exchanges that are compared in alternating turns.
#[derive(Default)]
struct ExchangeRuns {
    rates: Samples,
    micros: Samples,
    /// Round trips of all turns.
    trips: u64,
    /// Current turn: round trips, their seconds, and CPU seconds of the server.
    turn: (u64, f64, f64),
}

impl ExchangeRuns {
    /// Runs a part of a turn.
    async fn run_part(&mut self, server: &Server, target: &Target, time: Duration) -> Outcome {
        let before = processor_seconds(server.pid());
        let load = target.closed(time).await?;
        let (trips, seconds, processor) = &mut self.turn;
        *trips += load.count;
        *seconds += load.seconds;
        *processor += processor_seconds(server.pid()) - before;
        Ok(())
    }

    fn end_turn(&mut self) {
        let (trips, seconds, processor) = std::mem::take(&mut self.turn);
        self.rates.push(trips as f64 / seconds.max(1e-9));
        self.micros.push(processor * 1e6 / trips.max(1) as f64);
        self.trips += trips;
    }
}

async fn run_tracked(context: &Context, points: &str, bodies: usize) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (application, server) = prepare_asking(context, folder.path()).await?;
    let tracking = format!("tracking: {{ bodies: [{points}] }}\n");
    apply(&server, TRACKED, application.definition(TRACKED) + &tracking).await?;
    let time = Duration::from_secs(context.size(10, 1));
    let (tracked, plain) =
        (target_of(TRACKED, &server, BODY_BYTES, CALLERS), target_of(EXCHANGE, &server, BODY_BYTES, CALLERS));
    for target in [&tracked, &plain] {
        target.closed(time / 5).await?;
    }
    let (mut with, mut without) = (ExchangeRuns::default(), ExchangeRuns::default());
    for turn in context.turns() {
        // A machine has fast and slow moments, and the difference is small, so each turn consists of many short
        // alternating parts. The order also alternates, because each part starts in the state that the previous one
        // left.
        for part in 0..PARTS {
            let order = if (turn + part) % 2 == 0 { [true, false] } else { [false, true] };
            for is_tracked in order {
                let (target, side) = if is_tracked { (&tracked, &mut with) } else { (&plain, &mut without) };
                side.run_part(&server, target, time / u32::try_from(PARTS).expect("PARTS fits into u32")).await?;
            }
        }
        with.end_turn();
        without.end_turn();
    }
    let counts = server.client().get(&format!("/v1/exchanges/{TRACKED}/tracking"), &[]).await?;
    let (bytes, dropped) =
        (counts["bytes"].as_f64().unwrap_or_default(), counts["dropped"].as_u64().unwrap_or_default());
    if bytes == 0.0 {
        return Err(Failure::failed(format!("no body was tracked; expected {bodies} per round trip")));
    }
    let condition = format!(
        "{CALLERS} callers, {BODY_BYTES} bytes, {bodies} bodies of each round trip tracked, each turn {PARTS} times in \
         turns with none"
    );
    let micros = format!(
        "{} µs CPU each, without tracking {}",
        rounded(with.micros.median(), 4),
        rounded(without.micros.median(), 4)
    );
    Ok(Figure::new("round trips/s", with.rates)
        .with_peer("without tracking", without.rates)
        .with_condition(condition)
        .with_condition(format!("{} round trips were tracked, {dropped} of their bodies DROPPED", with.trips))
        .with_condition(micros)
        .with_condition(format!("{} MB stored, compressed", rounded(bytes / 1e6, 3))))
}

/// Exchange whose receive port has a pipeline step for each message, which is then sent nowhere.
fn flooded_definition(port: u16) -> String {
    let steps = "    pipeline:\n      - transform: { template: '{% for n in range(500) %}{{ n }} {% endfor %}' }\n";
    let ports = format!("receive:\n  questions:\n    mode: one_way\n{steps}");
    let definition = definition(FLOODED, port);
    let receive = format!("receive: {{ questions: {{ {QUESTIONS} }} }}\n");
    // On a slow machine more messages wait than the default limit allows; refusing them would end the flood.
    let ports = format!("open_messages: 1000000\n{ports}");
    definition.replace(&receive, &ports).replace("when: \"message.type == 'other'\"", "when: 'true'")
}

async fn run_flooded(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (receiver, server) = prepare(context, folder.path()).await?;
    apply(&server, FLOODED, flooded_definition(receiver.port)).await?;
    let time = Duration::from_secs(context.size(10, 1));
    let (target, flood) =
        (target_of(EXCHANGE, &server, BODY_BYTES, CALLERS), target_of(FLOODED, &server, BODY_BYTES, FLOOD));
    target.closed(time / 5).await?;
    let (mut with, mut without, mut conditions) = (Samples::default(), Samples::default(), Vec::new());
    for turn in context.turns() {
        let order = if turn % 2 == 0 { [true, false] } else { [false, true] };
        for is_flooded in order {
            if is_flooded {
                let (load, flooding) = tokio::try_join!(target.closed(time), flood.closed(time))?;
                if flooding.per_second() == 0.0 {
                    return Err(Failure::failed("the other exchange accepted no message, so there was no flood"));
                }
                with.push(load.per_second());
                conditions.push(format!(
                    "{}, with {} messages/s of the flood",
                    load.summary(),
                    rounded(flooding.per_second(), 3)
                ));
            } else {
                without.push(target.closed(time).await?.per_second());
            }
        }
    }
    Ok(Figure::new("round trips/s", with)
        .with_peer("without the flood", without)
        .with_condition(format!(
            "{CALLERS} callers, {BODY_BYTES} bytes; {FLOOD} others send messages that a template enlarges"
        ))
        .with_condition(conditions.join("; ")))
}
