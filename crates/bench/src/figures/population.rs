//! Figures `population.*` and `subscriptions.*`: subscribers and subscriptions stored by single requests (WNS-01 to
//! 08). Bulk import is figure `import.subscribers`.

use std::{
    cell::Cell,
    io::{self, Write},
    time::Instant,
};

use serde_json::{Value, json};

use crate::{
    bench::{Bench, Measuring},
    examples::stock::SEED,
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples},
        http_client::{self, Connection},
        server::{ChunkWriter, Server},
    },
};

/// Clients of the figures with many clients.
const MANY: usize = 16;
/// Subscribers that exist or are created.
const EXISTING: u64 = 100_000;
/// Subscribers that are added, deleted or updated.
const CHANGED: u64 = 10_000;

macro_rules! figures {
    ($($constant:ident $name:literal $about:literal $run:expr,)*) => {
        $(
            /// Measured on request only.
            const $constant: Bench = Bench {
                name: $name,
                about: $about,
                by_default: false,
                run: |context| -> Measuring<'_> { Box::pin($run(context)) },
            };
        )*
        /// All figures of this file.
        pub const ALL: &[Bench] = &[$($constant),*];
    };
}

figures! {
    LOAD "population.load" "subscribers/s into an empty server, one client" |context| people(context, SubscriberOperation::Load, 1),
    MORE "population.more" "10,000 subscribers more, one client" |context| people(context, SubscriberOperation::More, 1),
    DELETE "population.delete" "10,000 of 110,000 subscribers removed at random, one client" |context| people(context, SubscriberOperation::Delete, 1),
    UPDATE "population.update" "10,000 of 100,000 subscribers read and changed at random, one client" |context| people(context, SubscriberOperation::Update, 1),
    LOAD_MANY "population.load.many" "the same as population.load by 16 clients" |context| people(context, SubscriberOperation::Load, MANY),
    MORE_MANY "population.more.many" "the same as population.more by 16 clients" |context| people(context, SubscriberOperation::More, MANY),
    DELETE_MANY "population.delete.many" "the same as population.delete by 16 clients" |context| people(context, SubscriberOperation::Delete, MANY),
    UPDATE_MANY "population.update.many" "the same as population.update by 16 clients" |context| people(context, SubscriberOperation::Update, MANY),
    OF_20 "subscriptions.20" "subscriptions/s with 20 characters, one for each of 100,000 subscribers, one client" |context| subscriptions(context, 20, false, 1),
    OF_200 "subscriptions.200" "the same with 200 characters" |context| subscriptions(context, 200, false, 1),
    OF_1000 "subscriptions.1000" "the same with 1,000 characters" |context| subscriptions(context, 1_000, false, 1),
    SCHEDULED "subscriptions.scheduled" "the same with 200 characters and a schedule" |context| subscriptions(context, 200, true, 1),
    SUBSCRIPTIONS_MANY "subscriptions.many" "the same with 200 characters by 16 clients" |context| subscriptions(context, 200, false, MANY),
}

/// Operation on subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscriberOperation {
    Load,
    More,
    Delete,
    Update,
}

/// Subscriber document: a locale, a name, a device.
fn subscriber(number: u64, name: u64) -> Value {
    json!({
        "locale": "en-US",
        "attributes": {"name": format!("subscriber {name:08x}")},
        "devices": {"mail": {"channel": "mail", "address": format!("s{number}@example.com")}},
    })
}

/// Writes subscribers for an import.
fn write(out: &mut ChunkWriter, numbers: impl IntoIterator<Item = u64>) -> io::Result<()> {
    for number in numbers {
        let mut line = subscriber(number, number);
        line["id"] = json!(format!("s{number}"));
        writeln!(out, "{line}")?;
    }
    Ok(())
}

async fn people(context: &Context, act: SubscriberOperation, clients: usize) -> Outcome<Figure> {
    let (existing, changed) = (context.size(EXISTING, 500), context.size(CHANGED, 100));
    let there = match act {
        SubscriberOperation::Load => 0,
        SubscriberOperation::More | SubscriberOperation::Update => existing,
        SubscriberOperation::Delete => existing + changed,
    };
    let mut chance = fastrand::Rng::with_seed(SEED);
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        if there > 0 {
            server.import_subscribers(move |out| write(out, 0..there)).await?;
        }
        let mut all: Vec<u64> = (0..there).collect();
        chance.shuffle(&mut all);
        let (count, left) = match act {
            SubscriberOperation::Load => (existing, existing),
            SubscriberOperation::More => (changed, there + changed),
            SubscriberOperation::Delete => (changed, there - changed),
            SubscriberOperation::Update => (changed, there),
        };
        let chosen: Vec<u64> = match act {
            SubscriberOperation::Load | SubscriberOperation::More => (there..there + count).collect(),
            SubscriberOperation::Delete | SubscriberOperation::Update => all[..count as usize].to_vec(),
        };
        let name = chance.u64(..);
        let requests = |number: u64| {
            let path = format!("/v1/subscribers/s{number}");
            let body = subscriber(number, name ^ number).to_string();
            let put = || http_client::request("PUT", &path, &server.key, "application/json", body.as_bytes());
            match act {
                SubscriberOperation::Load | SubscriberOperation::More => vec![put()],
                SubscriberOperation::Delete => {
                    vec![http_client::request("DELETE", &path, &server.key, "application/json", b"")]
                }
                SubscriberOperation::Update => {
                    vec![http_client::request("GET", &path, &server.key, "application/json", b""), put()]
                }
            }
        };
        ours.push(per_second(&server, &chosen, clients, &requests).await?);
        let stored = server.status().await?["counts"]["subscribers"].as_u64();
        if stored != Some(left) {
            return Err(Failure::failed(format!("{stored:?} subscribers are stored; expected {left}")));
        }
    }
    Ok(Figure::new("subscribers/s", ours)
        .with_condition(match act {
            SubscriberOperation::Load => format!("{existing} into an empty server"),
            SubscriberOperation::More => format!("{changed} in addition to {there}"),
            SubscriberOperation::Delete => format!("{changed} of {there} at random"),
            SubscriberOperation::Update => format!("{changed} of {there} at random, each read first"),
        })
        .with_condition("a device each, one request each, over HTTP")
        .with_condition(client_condition(clients)))
}

/// Application whose subscriptions have a text.
const DEFINITION: &str = "
application: notes
events: {note: {fields: {text: string}}}
subscriptions: {said: {fields: {text: string}, schedule: optional}}
notifications: {item: {fields: {text: string}, content: {templates: {base: {subject: item, text: '{{ text }}'}}}}}
rules:
  at_once: {on: note, subscription: said, when: event.text == sub.text, notify: item}
  later: {on: note, subscription: said, when: event.text == sub.text, notify: item, schedule: subscription}
channels: {records: {protocol: file}}
";

async fn subscriptions(context: &Context, characters: usize, scheduled: bool, clients: usize) -> Outcome<Figure> {
    let existing = context.size(EXISTING, 300);
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        server.apply("notes", DEFINITION).await?;
        server.import_subscribers(move |out| write(out, 0..existing)).await?;
        let requests = |number: u64| {
            let text = super::intake::text(number, characters);
            let mut body = json!({
                "application": "notes", "class": "said", "subscriber": format!("s{number}"), "values": {"text": text},
            });
            if scheduled {
                // One of 1,440 minutes of the day.
                let (hour, minute) = (number / 60 % 24, number % 60);
                body["schedule"] = json!({
                    "start": format!("2027-01-04T{hour:02}:{minute:02}"), "time_zone": "Europe/Vienna", "rule": "FREQ=DAILY",
                });
            }
            let body = body.to_string();
            vec![http_client::request("POST", "/v1/subscriptions", &server.key, "application/json", body.as_bytes())]
        };
        ours.push(per_second(&server, &(0..existing).collect::<Vec<_>>(), clients, &requests).await?);
        let stored = server.status().await?["counts"]["subscriptions"].as_u64();
        if stored != Some(existing) {
            return Err(Failure::failed(format!("{stored:?} subscriptions are stored; expected {existing}")));
        }
    }
    Ok(Figure::new("subscriptions/s", ours)
        .with_condition(format!("{existing} of {characters} characters, one for each subscriber"))
        .with_condition(if scheduled { "each with a schedule, 1,440 distinct ones" } else { "driven by events" })
        .with_condition("one request each, over HTTP, each active before its response")
        .with_condition(client_condition(clients)))
}

fn client_condition(clients: usize) -> String {
    match clients {
        1 => "one client, sequential, each durable before its response".to_owned(),
        many => format!("{many} concurrent clients, each durable before its response"),
    }
}

/// Sends the requests for each number, distributed over `clients` clients; returns numbers per second.
async fn per_second(
    server: &Server,
    numbers: &[u64],
    clients: usize,
    requests: &impl Fn(u64) -> Vec<Vec<u8>>,
) -> Outcome<f64> {
    let broke = |error: io::Error| Failure::failed("a connection of the load broke").because(&error);
    let next = Cell::new(0);
    let started = Instant::now();
    let sending = (0..clients).map(|_| async {
        let mut connection = Connection::open(server.port).await.map_err(broke)?;
        while let Some(number) = numbers.get(next.replace(next.get() + 1)) {
            for request in requests(*number) {
                let (status, body) = connection.exchange(&request).await.map_err(broke)?;
                if !(200..300).contains(&status) {
                    let words = String::from_utf8_lossy(&body).into_owned();
                    return Err(Failure::failed(format!("the server answered {status}")).detail(words));
                }
            }
        }
        Ok(())
    });
    futures_util::future::try_join_all(sending).await?;
    Ok(numbers.len() as f64 / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_compiles() {
        let problems = tocsin_pipeline::compile_text(DEFINITION, 1, &|_| None).err();
        assert!(problems.is_none(), "{problems:?}");
    }
}
