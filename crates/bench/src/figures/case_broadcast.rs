//! Figures `case.broadcast*`: one event or one broadcast, ten to a million subscribers, each with a filter that is
//! evaluated, delivered by mail.

use std::{io::Write, time::Instant};

use serde_json::json;

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        figure::{Figure, Samples, rounded},
        mail_target::MailTarget,
        peers::{SmtpSourceLoad, smtp_source},
        resource_usage::CostMeter,
        server::{ChunkWriter, Server, megabytes},
    },
};

/// Broadcast to 1,000,000 subscribers.
pub const BENCH: Bench = Bench {
    name: "case.broadcast",
    about: "mails/s of a broadcast to 1,000,000 people with filters, into smtp-sink; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, context.size(1_000_000, 4_000), 1, By::Event)) },
};
/// Consecutive broadcasts to 10 subscribers.
pub const TEN: Bench = Bench {
    name: "case.broadcast.10",
    about: "mails/s of 1,000 broadcasts to 10 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10, context.size(1_000, 20), By::Event)) },
};
/// Consecutive broadcasts to 1,000 subscribers.
pub const THOUSAND: Bench = Bench {
    name: "case.broadcast.1k",
    about: "mails/s of 50 broadcasts to 1,000 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1_000, context.size(50, 2), By::Event)) },
};
/// Broadcast to 100,000 subscribers.
pub const HUNDRED_THOUSAND: Bench = Bench {
    name: "case.broadcast.100k",
    about: "mails/s of a broadcast to 100,000 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, context.size(100_000, 2_000), 1, By::Event)) },
};

/// A broadcast of a person to 1,000,000 subscribers.
pub const SENT: Bench = Bench {
    name: "case.broadcast.sent",
    about: "mails/s of a broadcast that a person sends to 1,000,000 people with filters; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, context.size(1_000_000, 4_000), 1, By::Person)) },
};

/// Origin of the message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// An event that a rule matches.
    Event,
    /// A request of `/v1/broadcasts`.
    Person,
}

const DEFINITION: &str = r#"
application: broadcast
events: { alert: { fields: { severity: { type: number, required: true }, area: { type: string, required: true }, text: string } } }
subscriptions: { interest: { filter: [cel] } }
notifications:
  item:
    fields: { area: string, text: string }
    batch_size: 2500
    content: { templates: { base: { subject: "An alert for {{ area }}", text: "{{ text }}\n" } } }
rules: { matches: { on: alert, subscription: interest, when: "true", notify: item } }
"#;
const SESSIONS: u32 = 10;

/// Measures broadcasts to `people` subscribers. Each is posted after the response to the previous one, delivered or
/// not.
async fn run(context: &Context, people: u64, broadcasts: u64, by: By) -> Outcome<Figure> {
    let end = MailTarget::ready(context).await?;
    let folder = context.folder()?;
    let mut server = Server::start(context, folder.path()).await?;
    let channel = format!(
        "channels: {{ out: {{ protocol: smtp, concurrency: {SESSIONS}, options: {{ {}, tls: off, \
         from: Tocsin <news@example.org> }} }} }}\n",
        end.server.options()
    );
    server.apply("broadcast", &format!("{DEFINITION}{channel}")).await?;
    let subscribers = move |out: &mut ChunkWriter| {
        for number in 0..people {
            let address = format!("person{number}@example.org");
            writeln!(out, r#"{{"id":"p{number}","devices":{{"mail":{{"channel":"out","address":"{address}"}}}}}}"#)?;
        }
        Ok(())
    };
    server.import_subscribers(subscribers).await?;
    let interests = move |out: &mut ChunkWriter| {
        for number in 0..people {
            let filter = json!({"dialect": "cel", "text": filter(number)});
            writeln!(
                out,
                r#"{{"application":"broadcast","class":"interest","subscriber":"p{number}","values":{{}},"filter":{filter}}}"#
            )?;
        }
        Ok(())
    };
    server.import_subscriptions("broadcast", "interest", interests).await?;
    let text: String = "All the news that fits. ".chars().cycle().take(560).collect();
    let (mut ours, mut peer, mut answers) = (Samples::default(), Samples::default(), Samples::default());
    let (mails, mut delivered) = (people * broadcasts, 0);
    let mut tally = CostMeter::of(&server);
    for turn in context.turns() {
        tally.begin();
        let begun = Instant::now();
        for broadcast in 0..broadcasts {
            // The area makes other filters match; every filter accepts each event.
            let event = json!({"severity": 9.5, "area": format!("a{}", (turn as u64 + broadcast) % 10), "text": text});
            match by {
                By::Event => server.publish("broadcast", "alert", &event).await?,
                By::Person => {
                    let draft = json!({
                        "application": "broadcast", "event_class": "alert", "data": event, "class": "item",
                    });
                    server.send_broadcast(&draft).await?;
                }
            }
        }
        answers.push(begun.elapsed().as_secs_f64() * 1e3 / broadcasts as f64);
        delivered += mails;
        server.until_delivered(delivered).await?;
        ours.push(mails as f64 / begun.elapsed().as_secs_f64());
        tally.end(mails as f64);
        peer.extend(smtp_source(context, &end.server, SmtpSourceLoad::of((mails / 5).max(1_000))).await?);
    }
    Ok(Figure::new("messages/s", ours)
        .with_peer("smtp-source", peer)
        .with_cost(tally.counts())
        .with_condition(format!(
            "{people} subscribers, each with a filter of 1,000 distinct ones, all delivered as a mail of 1 KB"
        ))
        .with_condition(format!(
            "{broadcasts} broadcasts a turn, each durable before its response after {} ms",
            rounded(answers.median(), 3)
        ))
        .with_condition(format!("{SESSIONS} sessions kept open to {}", end.name))
        .with_condition("from the first post to the last durable receipt")
        .with_condition(format!("peak memory {} MB", rounded(megabytes(server.peak_bytes()), 3))))
}

/// Filter of a subscriber: one of a thousand kinds, each of which accepts the event.
fn filter(number: u64) -> String {
    let (least, other) = (number % 9, number % 1000);
    format!("event.severity >= {least}.5 && (event.area != \"b{other}\" || event.severity >= 9.0)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_compiles() {
        let text = format!("{DEFINITION}channels: {{ out: {{ protocol: file, options: {{ path: x }} }} }}\n");
        let compiled = tocsin_pipeline::compile_text(&text, 1, &|_| None);
        assert!(compiled.is_ok(), "{:?}", compiled.err());
    }
}
