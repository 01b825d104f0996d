//! Figures `deliver.smtp*`: mails through the whole server into discarding sinks; peers: other senders of the same
//! mails.

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        external_targets::MailServer,
        fanout_server::FanoutServer,
        figure::{Figure, Samples},
        mail_target::MailTarget,
        peers::{BareSink, SmtpSink, SmtpSourceLoad, nodemailer, smtp_source},
    },
};

/// Into Postfix's smtp-sink; peer: Postfix's smtp-source.
pub const BENCH: Bench = Bench {
    name: "deliver.smtp",
    about: "mails/s into smtp-sink over 10 sessions, receipts durable; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(one_sink(context)) },
};

/// Two sinks: one sink is a single process on one core, which soon is the limit.
pub const TWO_SINKS: Bench = Bench {
    name: "deliver.smtp.two_sinks",
    about: "the same into two smtp-sinks, 10 sessions shared by weight; peer: a smtp-source for each",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(two_sinks(context)) },
};

/// Sink that replies to all commands of one read with one write.
pub const FAST_SINK: Bench = Bench {
    name: "deliver.smtp.fast_sink",
    about: "the same into the bare sink of bench/peers; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(fast_sink(context)) },
};

macro_rules! many {
    ($($constant:ident $name:literal $recipients:literal,)*) => {
        $(
            /// Other numbers of recipients, measured on request only.
            pub const $constant: Bench = Bench {
                name: $name,
                about: "recipients/s of mails with the number of recipients in the name; peer: smtp-source -r",
                by_default: false,
                run: |context| -> Measuring<'_> { Box::pin(many_recipients(context, $recipients)) },
            };
        )*
    };
}

many! {
    MANY_2 "deliver.smtp.many2" 2,
    MANY_4 "deliver.smtp.many4" 4,
    MANY_100 "deliver.smtp.many100" 100,
}

/// Ten recipients, with a sink that uses less CPU.
pub const MANY_10_FAST_SINK: Bench = Bench {
    name: "deliver.smtp.many10.fast_sink",
    about: "recipients/s of mails to 10 each into the bare sink of bench/peers; peer: smtp-source -r 10",
    by_default: false,
    run: |context| -> Measuring<'_> { Box::pin(many_into_fast_sink(context, 10)) },
};

/// Fifty recipients, with a sink that uses less CPU.
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
    run: |context| -> Measuring<'_> { Box::pin(many_recipients(context, 10)) },
};

/// One content for fifty recipients.
pub const MANY_50: Bench = Bench {
    name: "deliver.smtp.many50",
    about: "recipients/s of mails to 50 each; peer: smtp-source -r 50",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(many_recipients(context, 50)) },
};

/// As many sessions as the most common pool.
pub const POOL_50: Bench = Bench {
    name: "deliver.smtp.pool50",
    about: "mails/s into smtp-sink over 50 sessions; peer: nodemailer's pool of 50",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(pool(context)) },
};

/// Multicasts are so fast that a turn of one event is too short. More recipients would not fit into the server's
/// recipient cache, and reading them from disk is another figure.
const EVENTS_TO_MANY: u64 = 5;
/// A mail with a text of this length has about 1 KB.
const TEXT_CHARACTERS: usize = 560;
const SESSIONS: u32 = 10;

/// Channel to these servers.
fn channel(sessions: u32, servers: &[&MailServer]) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("{{{}}}", server.options())).collect();
    format!(
        "{{protocol: smtp, concurrency: {sessions}, options: {{servers: [{}], balance: weighted, tls: off, \
         from: Tocsin <news@example.org>, recipients_max: 100}}}}",
        servers.join(", ")
    )
}

async fn fanout(context: &Context, channel: &str, class: &str, mails: u64) -> Outcome<FanoutServer> {
    FanoutServer::start(context, channel, class, mails, |number| format!("reader{number}@example.org")).await
}

async fn one_sink(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let end = MailTarget::ready(context).await?;
    let mut fanout = fanout(context, &channel(SESSIONS, &[&end.server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        peer.extend(smtp_source(context, &end.server, SmtpSourceLoad::of(mails)).await?);
    }
    Ok(figure("messages/s", ours)
        .with_peer("smtp-source", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{mails} mails of 1 KB"))
        .with_condition(sessions(SESSIONS)))
}

async fn two_sinks(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let sinks = [SmtpSink::start(context).await?, SmtpSink::start(context).await?];
    let [first, second] = sinks.each_ref().map(|sink| MailServer::here(sink.port));
    let mut fanout = fanout(context, &channel(SESSIONS, &[&first, &second]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        let half = SmtpSourceLoad { sessions: SESSIONS / 2, ..SmtpSourceLoad::of(mails / 2) };
        let (one, other) = tokio::join!(smtp_source(context, &first, half), smtp_source(context, &second, half));
        // Both have the same work, so the slower one determines the duration.
        if let (Some(one), Some(other)) = (one?, other?) {
            peer.push(2.0 * one.min(other));
        }
    }
    Ok(figure("messages/s", ours)
        .with_peer("two smtp-sources", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{mails} mails of 1 KB"))
        .with_condition("10 sessions kept open, 5 to each of two sinks"))
}

async fn fast_sink(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let sink = BareSink::start(context).await?;
    let server = MailServer::here(sink.port);
    let mut fanout = fanout(context, &channel(SESSIONS, &[&server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        peer.extend(smtp_source(context, &server, SmtpSourceLoad::of(mails)).await?);
    }
    Ok(figure("messages/s", ours)
        .with_peer("smtp-source", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{mails} mails of 1 KB"))
        .with_condition(sessions(SESSIONS))
        .with_condition("a sink that replies to each read with one write"))
}

async fn many_recipients(context: &Context, recipients: u32) -> Outcome<Figure> {
    let end = MailTarget::ready(context).await?;
    many_into(context, recipients, &end.server).await
}

async fn many_into_fast_sink(context: &Context, recipients: u32) -> Outcome<Figure> {
    let sink = BareSink::start(context).await?;
    let server = MailServer::here(sink.port);
    Ok(many_into(context, recipients, &server).await?.with_condition("a sink that replies to each read with one write"))
}

async fn many_into(context: &Context, recipients: u32, server: &MailServer) -> Outcome<Figure> {
    let (people, events) = (context.size(200_000, 4_000), context.size(EVENTS_TO_MANY, 1));
    let recipients_total = people * events;
    let class = format!("multicast: {{ recipient_limit: {recipients} }}");
    let mut fanout = fanout(context, &channel(SESSIONS, &[server]), &class, people).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(recipients_total as f64 / fanout.deliver_events(events, TEXT_CHARACTERS).await?.as_secs_f64());
        let source = SmtpSourceLoad { recipients, ..SmtpSourceLoad::of(recipients_total / u64::from(recipients)) };
        peer.extend(smtp_source(context, server, source).await?.map(|mails| mails * f64::from(recipients)));
    }
    Ok(figure("recipients/s", ours)
        .with_peer("smtp-source", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!(
            "{recipients_total} recipients, {recipients} to a mail of 1 KB, {events} events to {people} people"
        ))
        .with_condition(sessions(SESSIONS)))
}

async fn pool(context: &Context) -> Outcome<Figure> {
    const POOL: u32 = 50;
    let mails = context.size(100_000, 2_000);
    let end = MailTarget::ready(context).await?;
    let mut fanout = fanout(context, &channel(POOL, &[&end.server]), "", mails).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        // It only runs against the started sink, and is so slow that a twentieth suffices.
        if let Some(sink) = end.sink() {
            peer.extend(nodemailer(context, sink.port, POOL, (mails / 20).max(500)).await?);
        }
    }
    Ok(figure("messages/s", ours)
        .with_peer("nodemailer", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{mails} mails of 1 KB"))
        .with_condition(sessions(POOL)))
}

fn figure(unit: &'static str, ours: Samples) -> Figure {
    Figure::new(unit, ours).with_condition("from acceptance to the last durable receipt")
}

fn sessions(count: u32) -> String {
    format!("{count} sessions kept open")
}
