//! Requests that wait for a reply of the far side: stored, routed by what they hold, sent, answered, stored, given back;
//! beside brokers, and with bodies kept on the way.

use std::{path::Path, time::Duration};

use reqwest::{Method, header::CONTENT_TYPE};
use serde_json::{Value, json};
use url::Url;

use super::{Bench, Measuring};
use crate::{
    bench::{
        brokers::{Brokers, step_told},
        context::Context,
        far_end::{FarEnd, Nature},
        figure::{Figure, Samples, rounded},
        given::opened,
        load::Target,
        probe::Tally,
        server::{Server, processor_seconds},
        wire,
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "exchange.roundtrip",
    about: "durable round trips/s through an exchange, 64 callers, 1 KB; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// One caller, whose requests leave before they are stored.
pub const ONE: Bench = Bench {
    name: "exchange.roundtrip.one",
    about: "durable round trips/s of one caller, 1 KB, stored with the reply; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_leaving_first(context, 1)) },
};

/// Many callers, whose requests leave before they are stored.
pub const FIRST: Bench = Bench {
    name: "exchange.roundtrip.first",
    about: "durable round trips/s, 64 callers, 1 KB, stored with the reply; peer: the best of RabbitMQ and NATS JetStream",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_leaving_first(context, CALLERS)) },
};

/// The cost of keeping bodies.
pub const TRACKING: Bench = Bench {
    name: "exchange.tracking4",
    about: "round trips/s with bodies kept at four points; peer: the same without",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_tracked(context, "received, sent, replied, returned", 4)) },
};

/// The same at one point.
pub const TRACKING_ONE: Bench = Bench {
    name: "exchange.tracking1",
    about: "round trips/s with bodies kept at one point; peer: the same without",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_tracked(context, "received", 1)) },
};

/// What a flood in the steps of one exchange costs another.
pub const WORKERS: Bench = Bench {
    name: "exchange.workers",
    about: "round trips/s while the steps of another exchange are flooded; peer: the same without the flood",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run_flooded(context)) },
};

/// Callers at the same time.
pub const CALLERS: usize = 64;
/// Callers of the exchange that is flooded: more than there are workers for its steps.
const FLOOD: usize = 256;
const STEPS: [usize; 3] = [1, 8, 256];
pub const BODY_BYTES: usize = 1_000;
/// Parts of a turn where what is compared is nearly the same.
const PARTS: usize = 20;
const EXCHANGE: &str = "bench";
const TRACKED: &str = "tracked";
const LEAVING_FIRST: &str = "leaving_first";
const FLOODED: &str = "flooded";
/// The receive port of all of them.
const QUESTIONS: &str = "mode: request, wait: 30s";
/// Of the rate of the closed loop.
const PACE: f64 = 0.7;

/// An exchange of this name, whose far end listens at this port.
pub fn definition(name: &str, port: u16) -> String {
    let at = |path: &str| format!("{{ url: \"http://127.0.0.1:{port}/{path}\", allow_networks: [127.0.0.1] }}");
    definition_to(name, &at("answers"), &at("others"))
}

/// The same with the options of its two send ports.
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

/// A far end, and a server with the exchange.
///
/// # Errors
/// The server refuses something.
pub async fn prepare(context: &Context, folder: &Path) -> Outcome<(FarEnd, Server)> {
    let server = Server::start(context, folder).await?;
    Ok((bring(&server).await?, server))
}

/// Brings the exchange into a server; gives its far end.
///
/// # Errors
/// The server refuses something.
pub async fn bring(server: &Server) -> Outcome<FarEnd> {
    let far = at_once().await?;
    apply(server, EXCHANGE, definition(EXCHANGE, far.port)).await?;
    Ok(far)
}

/// A far end that answers at once with what it was sent, as those behind the brokers do.
async fn at_once() -> Outcome<FarEnd> {
    FarEnd::that_echoes(|_| Nature { workers: CALLERS, millis: 0 }).await
}

/// Who answers the requests.
enum Application {
    Own(FarEnd),
    /// Whoever is at the given URL, which is used as it is.
    Given(Url),
}

impl Application {
    async fn ready(context: &Context) -> Outcome<Self> {
        match &context.given.application {
            Some(url) => Ok(Application::Given(url.clone())),
            None => Ok(Application::Own(at_once().await?)),
        }
    }

    /// An exchange of this name whose requests it answers.
    fn definition(&self, name: &str) -> String {
        match self {
            Application::Own(far) => definition(name, far.port),
            Application::Given(url) => {
                let options = format!("{{ url: {}, {} }}", Value::from(url.as_str()), opened(url));
                definition_to(name, &options, &options)
            }
        }
    }

    /// What is compared with it.
    async fn brokers(&self, context: &Context) -> Option<Brokers> {
        match self {
            Application::Own(_) => Brokers::start(context).await,
            // Theirs are asked by their own clients, beside which another far end is no comparison.
            Application::Given(_) => None,
        }
    }

    /// For the conditions.
    fn name(&self) -> &'static str {
        match self {
            Application::Own(_) => "a far end that answers at once with the same body",
            Application::Given(_) => "the given far end",
        }
    }
}

/// The application, and a server with the exchange that asks it.
async fn prepare_asking(context: &Context, folder: &Path) -> Outcome<(Application, Server)> {
    let (application, server) = (Application::ready(context).await?, Server::start(context, folder).await?);
    apply(&server, EXCHANGE, application.definition(EXCHANGE)).await?;
    Ok((application, server))
}

/// Puts an exchange into force.
///
/// # Errors
/// The server refuses it.
pub async fn apply(server: &Server, name: &str, definition: String) -> Outcome {
    let request = server.client().request(Method::PUT, &format!("/v1/exchanges/{name}"));
    server.client().send(request.header(CONTENT_TYPE, "application/yaml").body(definition)).await?;
    Ok(())
}

/// Callers that ask with a text of so many bytes.
pub fn target(server: &Server, bytes: usize, connections: usize) -> Target {
    target_of(EXCHANGE, server, bytes, connections)
}

/// The same of another exchange.
pub fn target_of(exchange: &str, server: &Server, bytes: usize, connections: usize) -> Target {
    let text: String = "What was ordered stands here. ".chars().cycle().take(bytes).collect();
    let body = json!({"type": "order", "text": text}).to_string();
    let path = format!("/v1/exchanges/{exchange}/receive/questions");
    let request = wire::post(&path, &server.key, "application/json", body.as_bytes());
    Target { port: server.port, request, connections }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (application, server) = prepare_asking(context, folder.path()).await?;
    let target = target(&server, BODY_BYTES, CALLERS);
    let time = Duration::from_secs(context.size(10, 1));
    let mut brokers = application.brokers(context).await;
    target.closed(time / 5).await?;
    let (mut ours, mut told, mut tally) = (Samples::default(), Vec::new(), Tally::of(&server));
    for _ in context.turns() {
        tally.begin();
        let load = target.closed(time).await?;
        tally.end(load.count as f64);
        ours.push(load.per_second());
        told.push(load.told());
        if let Some(brokers) = &mut brokers {
            brokers.turn(CALLERS, time).await?;
        }
    }
    let paced = target.open_at(ours.median() * PACE, time).await?;
    let mut steps = Vec::new();
    for callers in STEPS {
        let load = target_of(EXCHANGE, &server, BODY_BYTES, callers).closed(time / 2).await?;
        steps.push(step_told(load.per_second(), load.p99_ms(), callers));
        if let Some(brokers) = &mut brokers {
            brokers.step(callers, time / 2).await?;
        }
    }
    let figure = Figure::new("round trips/s", ours)
        .counted(&tally)
        .under(format!("{CALLERS} callers, {BODY_BYTES} bytes, two routes, {}", application.name()))
        .under("request and reply durable before the caller has it")
        .under(told.join("; "))
        .under(paced.told())
        .under(format!("ours: {}", steps.join(", ")));
    Ok(Brokers::beside(brokers, figure).await)
}

async fn run_leaving_first(context: &Context, callers: usize) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (application, server) = prepare_asking(context, folder.path()).await?;
    let leaving_first = format!("{QUESTIONS}, store_first: false");
    apply(&server, LEAVING_FIRST, application.definition(LEAVING_FIRST).replace(QUESTIONS, &leaving_first)).await?;
    let of = |exchange, callers| target_of(exchange, &server, BODY_BYTES, callers);
    let (ahead, behind) = (of(LEAVING_FIRST, callers), of(EXCHANGE, callers));
    let time = Duration::from_secs(context.size(10, 1));
    let mut brokers = application.brokers(context).await;
    for target in [&ahead, &behind] {
        target.closed(time / 5).await?;
    }
    let (mut ours, mut stored, mut told) = (Samples::default(), Samples::default(), Vec::new());
    let mut tally = Tally::of(&server);
    for _ in context.turns() {
        tally.begin();
        let load = ahead.closed(time).await?;
        tally.end(load.count as f64);
        ours.push(load.per_second());
        told.push(load.told());
        stored.push(behind.closed(time).await?.per_second());
        if let Some(brokers) = &mut brokers {
            brokers.turn(callers, time).await?;
        }
    }
    let mut steps = Vec::new();
    for others in [1, 8, CALLERS].into_iter().filter(|others| *others != callers) {
        let load = of(LEAVING_FIRST, others).closed(time / 2).await?;
        steps.push(step_told(load.per_second(), load.p99_ms(), others));
    }
    let figure = Figure::new("round trips/s", ours)
        .counted(&tally)
        .under(format!("callers: {callers}, {BODY_BYTES} bytes, two routes, {}", application.name()))
        .under("the request leaves before it is stored, as in classic queues; it and the reply are durable before the caller has that")
        .under(told.join("; "))
        .under(format!("{}/s with requests that are stored before they leave", rounded(stored.median(), 4)))
        .under(format!("with others: {}", steps.join(", ")));
    Ok(Brokers::beside(brokers, figure).await)
}

/// One of two exchanges whose turns are compared.
#[derive(Default)]
struct Side {
    rates: Samples,
    micros: Samples,
    /// All of them.
    trips: u64,
    /// Of the turn that goes on: round trips, their seconds, and seconds of the server's processor.
    turn: (u64, f64, f64),
}

impl Side {
    /// A part of a turn.
    async fn go_on(&mut self, server: &Server, target: &Target, time: Duration) -> Outcome {
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
    let (mut with, mut without) = (Side::default(), Side::default());
    for turn in context.turns() {
        // A machine has fast and slow moments, and what is looked for is small: each turn is made of many short ones. Whoever
        // begins finds the machine as the other left it: they take turns at that too.
        for part in 0..PARTS {
            let order = if (turn + part) % 2 == 0 { [true, false] } else { [false, true] };
            for is_tracked in order {
                let (target, side) = if is_tracked { (&tracked, &mut with) } else { (&plain, &mut without) };
                side.go_on(&server, target, time / u32::try_from(PARTS).expect("they are few")).await?;
            }
        }
        with.end_turn();
        without.end_turn();
    }
    let counts = server.client().get(&format!("/v1/exchanges/{TRACKED}/tracking"), &[]).await?;
    let (bytes, dropped) =
        (counts["bytes"].as_f64().unwrap_or_default(), counts["dropped"].as_u64().unwrap_or_default());
    if bytes == 0.0 {
        return Err(Failure::failed(format!("no body was kept, although {bodies} of each round trip should be")));
    }
    let condition = format!(
        "{CALLERS} callers, {BODY_BYTES} bytes, {bodies} of the bodies of each round trip kept, each turn {PARTS} times in \
         turns with none"
    );
    let micros = format!(
        "{} µs of processor for each, without tracking {}",
        rounded(with.micros.median(), 4),
        rounded(without.micros.median(), 4)
    );
    Ok(Figure::new("round trips/s", with.rates)
        .beside("without tracking", without.rates)
        .under(condition)
        .under(format!("{} round trips were tracked, {dropped} of their bodies DROPPED", with.trips))
        .under(micros)
        .under(format!("{} MB kept, compressed", rounded(bytes / 1e6, 3))))
}

/// An exchange whose receive port has something to do for each message, which then goes nowhere far.
fn flooded(port: u16) -> String {
    let steps = "    pipeline:\n      - transform: { template: '{% for n in range(500) %}{{ n }} {% endfor %}' }\n";
    let ports = format!("receive:\n  questions:\n    mode: one_way\n{steps}");
    let definition = definition(FLOODED, port);
    let receive = format!("receive: {{ questions: {{ {QUESTIONS} }} }}\n");
    // On a slow machine more wait than an exchange usually may have, and to refuse them would end the flood.
    let ports = format!("open_messages: 1000000\n{ports}");
    definition.replace(&receive, &ports).replace("when: \"message.type == 'other'\"", "when: 'true'")
}

async fn run_flooded(context: &Context) -> Outcome<Figure> {
    let folder = context.folder()?;
    let (far, server) = prepare(context, folder.path()).await?;
    apply(&server, FLOODED, flooded(far.port)).await?;
    let time = Duration::from_secs(context.size(10, 1));
    let (target, flood) =
        (target_of(EXCHANGE, &server, BODY_BYTES, CALLERS), target_of(FLOODED, &server, BODY_BYTES, FLOOD));
    target.closed(time / 5).await?;
    let (mut with, mut without, mut told) = (Samples::default(), Samples::default(), Vec::new());
    for turn in context.turns() {
        let order = if turn % 2 == 0 { [true, false] } else { [false, true] };
        for is_flooded in order {
            if is_flooded {
                let (load, flooding) = tokio::try_join!(target.closed(time), flood.closed(time))?;
                if flooding.per_second() == 0.0 {
                    return Err(Failure::failed("the other exchange took no message, so there was no flood"));
                }
                with.push(load.per_second());
                told.push(format!(
                    "{}, beside {} messages/s of the flood",
                    load.told(),
                    rounded(flooding.per_second(), 3)
                ));
            } else {
                without.push(target.closed(time).await?.per_second());
            }
        }
    }
    Ok(Figure::new("round trips/s", with)
        .beside("without the flood", without)
        .under(format!("{CALLERS} callers, {BODY_BYTES} bytes; {FLOOD} others send what a template makes longer"))
        .under(told.join("; ")))
}
