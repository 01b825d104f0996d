//! Broadcasts: one event, ten to a million people, and a filter of each that decides whether they are told, by mail.

use std::{io::Write, time::Instant};

use serde_json::json;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples, rounded},
        given::MailEnd,
        peers::{Source, smtp_source},
        probe::Tally,
        server::{Parts, Server, megabytes},
    },
    failure::Outcome,
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "case.broadcast",
    about: "mails/s, a filter of each of 1,000,000 people decides, into smtp-sink; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, context.size(1_000_000, 4_000), 1)) },
};
/// The same for fewer, of whom several broadcasts follow each other.
pub const TEN: Bench = Bench {
    name: "case.broadcast.10",
    about: "mails/s of 1,000 broadcasts to 10 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 10, context.size(1_000, 20))) },
};
/// The same.
pub const THOUSAND: Bench = Bench {
    name: "case.broadcast.1k",
    about: "mails/s of 50 broadcasts to 1,000 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, 1_000, context.size(50, 2))) },
};
/// The same.
pub const HUNDRED_THOUSAND: Bench = Bench {
    name: "case.broadcast.100k",
    about: "mails/s of a broadcast to 100,000 people with filters, into smtp-sink; peer: smtp-source",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(run(context, context.size(100_000, 2_000), 1)) },
};

const DEFINITION: &str = r#"
application: broadcast
events: { alert: { fields: { severity: { type: number, required: true }, area: { type: string, required: true }, text: string } } }
subscriptions: { interest: { filter: [cel] } }
notifications:
  item:
    fields: { area: string, text: string }
    batch_size: 2500
    content: { templates: { base: { subject: "An alert for {{ area }}", text: "{{ text }}\n" } } }
rules: { told: { on: alert, subscription: interest, when: "true", notify: item } }
"#;
const SESSIONS: u32 = 10;

/// Tells `people` of so many broadcasts a turn. Each is posted when the one before has been answered, whether or not it has
/// been delivered.
async fn run(context: &Context, people: u64, broadcasts: u64) -> Outcome<Figure> {
    let end = MailEnd::ready(context).await?;
    let folder = context.folder()?;
    let mut server = Server::start(context, folder.path()).await?;
    let channel = format!(
        "channels: {{ out: {{ protocol: smtp, concurrency: {SESSIONS}, options: {{ {}, tls: off, \
         from: Tocsin <news@example.org> }} }} }}\n",
        end.server.options()
    );
    server.apply("broadcast", &format!("{DEFINITION}{channel}")).await?;
    let subscribers = move |out: &mut Parts| {
        for number in 0..people {
            let address = format!("person{number}@example.org");
            writeln!(out, r#"{{"id":"p{number}","devices":{{"mail":{{"channel":"out","address":"{address}"}}}}}}"#)?;
        }
        Ok(())
    };
    server.import_subscribers(subscribers).await?;
    let interests = move |out: &mut Parts| {
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
    let (mails, mut told) = (people * broadcasts, 0);
    let mut tally = Tally::of(&server);
    for turn in context.turns() {
        tally.begin();
        let begun = Instant::now();
        for broadcast in 0..broadcasts {
            // Each meets other filters, by its area; everybody is told of each.
            let event = json!({"severity": 9.5, "area": format!("a{}", (turn as u64 + broadcast) % 10), "text": text});
            server.publish("broadcast", "alert", &event).await?;
        }
        answers.push(begun.elapsed().as_secs_f64() * 1e3 / broadcasts as f64);
        told += mails;
        server.until_delivered(told).await?;
        ours.push(mails as f64 / begun.elapsed().as_secs_f64());
        tally.end(mails as f64);
        peer.extend(smtp_source(context, &end.server, Source::of((mails / 5).max(1_000))).await?);
    }
    Ok(Figure::new("messages/s", ours)
        .beside("smtp-source", peer)
        .counted(&tally)
        .under(format!("{people} subscribers, each with a filter of 1,000 distinct ones, all told by a mail of 1 KB"))
        .under(format!(
            "{broadcasts} broadcasts a turn, each durable before its answer after {} ms",
            rounded(answers.median(), 3)
        ))
        .under(format!("{SESSIONS} sessions kept open to {}", end.name))
        .under("from the first post to the last durable receipt")
        .under(format!("peak memory {} MB", rounded(megabytes(server.peak_bytes()), 3))))
}

/// What a person wants to be told of: of a thousand kinds, each of which the event meets.
fn filter(number: u64) -> String {
    let (least, other) = (number % 9, number % 1000);
    format!("event.severity >= {least}.5 && (event.area != \"b{other}\" || event.severity >= 9.0)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_in_order() {
        let text = format!("{DEFINITION}channels: {{ out: {{ protocol: file, options: {{ path: x }} }} }}\n");
        let compiled = tocsin_pipeline::compile_text(&text, 1, &|_| None);
        assert!(compiled.is_ok(), "{:?}", compiled.err());
    }
}
