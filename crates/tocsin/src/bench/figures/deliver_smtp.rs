//! Mails through the whole server into sinks that keep nothing, beside others who send the same.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
        given::{MailEnd, MailServer},
        peers::{BareSink, SmtpSink, Source, nodemailer, smtp_source},
    },
    failure::Outcome,
};

/// Into Postfix's smtp-sink, beside Postfix's own sender.
pub const BENCH: Bench = Bench {
    name: "deliver.smtp",
    about: "mails/s into smtp-sink over 10 sessions, receipts durable; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(one_sink(context)) },
};

/// One sink is one process on one core, which is soon the limit; here are two.
pub const TWO_SINKS: Bench = Bench {
    name: "deliver.smtp.two_sinks",
    about: "the same into two smtp-sinks, 10 sessions shared by weight; peer: a smtp-source for each",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(two_sinks(context)) },
};

/// A sink that answers all that one read brought with one write.
pub const FAST_SINK: Bench = Bench {
    name: "deliver.smtp.fast_sink",
    about: "the same into the bare sink of bench/peers; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(fast_sink(context)) },
};

macro_rules! many {
    ($($constant:ident $name:literal $recipients:literal,)*) => {
        $(
            /// Another number of recipients, measured when it is asked for.
            pub const $constant: Bench = Bench {
                name: $name,
                about: "recipients/s of mails to as many each as its name says; peer: smtp-source -r",
                by_default: false,
                run: |context| -> Measuring<'_> { Box::pin(many(context, $recipients)) },
            };
        )*
    };
}

many! {
    MANY_2 "deliver.smtp.many2" 2,
    MANY_4 "deliver.smtp.many4" 4,
    MANY_100 "deliver.smtp.many100" 100,
}

/// Ten recipients, where the sink takes less of the machine.
pub const MANY_10_FAST_SINK: Bench = Bench {
    name: "deliver.smtp.many10.fast_sink",
    about: "recipients/s of mails to 10 each into the bare sink of bench/peers; peer: smtp-source -r 10",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(many_into_fast_sink(context, 10)) },
};

/// Fifty recipients, where the sink takes less of the machine.
pub const MANY_50_FAST_SINK: Bench = Bench {
    name: "deliver.smtp.many50.fast_sink",
    about: "recipients/s of mails to 50 each into the bare sink of bench/peers; peer: smtp-source -r 50",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(many_into_fast_sink(context, 50)) },
};

/// One content for ten recipients.
pub const MANY_10: Bench = Bench {
    name: "deliver.smtp.many10",
    about: "recipients/s of mails to 10 each; peer: smtp-source -r 10",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(many(context, 10)) },
};

/// One content for fifty recipients.
pub const MANY_50: Bench = Bench {
    name: "deliver.smtp.many50",
    about: "recipients/s of mails to 50 each; peer: smtp-source -r 50",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(many(context, 50)) },
};

/// As many sessions as the pool that most programs use.
pub const POOL_50: Bench = Bench {
    name: "deliver.smtp.pool50",
    about: "mails/s into smtp-sink over 50 sessions; peer: nodemailer's pool of 50",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(pool(context)) },
};

/// Multicasts are so fast that one event is over before a turn says much. More people would not fit into what the server
/// keeps of them in memory, and reading them from the disk is another figure.
const EVENTS_TO_MANY: u64 = 5;
/// With its header fields a mail of this text has about 1 KB.
const TEXT_CHARACTERS: usize = 560;
const SESSIONS: u32 = 10;

/// A channel to these servers.
fn channel(sessions: u32, servers: &[&MailServer]) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("{{{}}}", server.options())).collect();
    format!(
        "{{protocol: smtp, concurrency: {sessions}, options: {{servers: [{}], balance: weighted, tls: off, \
         from: Tocsin <news@example.org>, recipients_max: 100}}}}",
        servers.join(", ")
    )
}

async fn fanout(context: &Context, channel: &str, class: &str, mails: u64) -> Outcome<Fanout> {
    Fanout::start(context, channel, class, mails, |number| format!("reader{number}@example.org")).await
}

async fn one_sink(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let end = MailEnd::ready(context).await?;
    let mut fanout = fanout(context, &channel(SESSIONS, &[&end.server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        peer.extend(smtp_source(context, &end.server, Source::of(mails)).await?);
    }
    Ok(figure("messages/s", ours)
        .beside("smtp-source", peer)
        .counted(&fanout.tally)
        .under(format!("{mails} mails of 1 KB"))
        .under(sessions(SESSIONS)))
}

async fn two_sinks(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let sinks = [SmtpSink::start(context).await?, SmtpSink::start(context).await?];
    let [first, second] = sinks.each_ref().map(|sink| MailServer::here(sink.port));
    let mut fanout = fanout(context, &channel(SESSIONS, &[&first, &second]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        let half = Source { sessions: SESSIONS / 2, ..Source::of(mails / 2) };
        let (one, other) = tokio::join!(smtp_source(context, &first, half), smtp_source(context, &second, half));
        // Both have the same to do, so the slower one says how long it took.
        if let (Some(one), Some(other)) = (one?, other?) {
            peer.push(2.0 * one.min(other));
        }
    }
    Ok(figure("messages/s", ours)
        .beside("two smtp-sources", peer)
        .counted(&fanout.tally)
        .under(format!("{mails} mails of 1 KB"))
        .under("10 sessions kept open, 5 to each of two sinks"))
}

async fn fast_sink(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let sink = BareSink::start(context).await?;
    let server = MailServer::here(sink.port);
    let mut fanout = fanout(context, &channel(SESSIONS, &[&server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        peer.extend(smtp_source(context, &server, Source::of(mails)).await?);
    }
    Ok(figure("messages/s", ours)
        .beside("smtp-source", peer)
        .counted(&fanout.tally)
        .under(format!("{mails} mails of 1 KB"))
        .under(sessions(SESSIONS))
        .under("a sink that answers each read with one write"))
}

async fn many(context: &Context, recipients: u32) -> Outcome<Figure> {
    let end = MailEnd::ready(context).await?;
    many_into(context, recipients, &end.server).await
}

async fn many_into_fast_sink(context: &Context, recipients: u32) -> Outcome<Figure> {
    let sink = BareSink::start(context).await?;
    let server = MailServer::here(sink.port);
    Ok(many_into(context, recipients, &server).await?.under("a sink that answers each read with one write"))
}

async fn many_into(context: &Context, recipients: u32, server: &MailServer) -> Outcome<Figure> {
    let (people, events) = (context.size(200_000, 4_000), context.size(EVENTS_TO_MANY, 1));
    let told = people * events;
    let class = format!("multicast: {{ recipient_limit: {recipients} }}");
    let mut fanout = fanout(context, &channel(SESSIONS, &[server]), &class, people).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(told as f64 / fanout.tell_all_of(events, TEXT_CHARACTERS).await?.as_secs_f64());
        let source = Source { recipients, ..Source::of(told / u64::from(recipients)) };
        peer.extend(smtp_source(context, server, source).await?.map(|mails| mails * f64::from(recipients)));
    }
    Ok(figure("recipients/s", ours)
        .beside("smtp-source", peer)
        .counted(&fanout.tally)
        .under(format!("{told} recipients, {recipients} to a mail of 1 KB, {events} events to {people} people"))
        .under(sessions(SESSIONS)))
}

async fn pool(context: &Context) -> Outcome<Figure> {
    const POOL: u32 = 50;
    let mails = context.size(100_000, 2_000);
    let end = MailEnd::ready(context).await?;
    let mut fanout = fanout(context, &channel(POOL, &[&end.server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        // It is run on our own sink only, and is so slow that a twentieth says as much.
        if let Some(sink) = end.sink() {
            peer.extend(nodemailer(context, sink.port, POOL, (mails / 20).max(500)).await?);
        }
    }
    Ok(figure("messages/s", ours)
        .beside("nodemailer", peer)
        .counted(&fanout.tally)
        .under(format!("{mails} mails of 1 KB"))
        .under(sessions(POOL)))
}

fn figure(unit: &'static str, ours: Samples) -> Figure {
    Figure::new(unit, ours).under("from acceptance to the last durable receipt")
}

fn sessions(count: u32) -> String {
    format!("{count} sessions kept open")
}
