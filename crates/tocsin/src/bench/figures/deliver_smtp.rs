//! Mails through the whole server into Postfix's smtp-sink, beside Postfix's own sender.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
        peers::{SmtpSink, smtp_source},
    },
    failure::Outcome,
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "deliver.smtp",
    about: "mails/s into smtp-sink over 10 sessions, receipts durable; peer: smtp-source",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// With its header fields a mail of this text has about 1 KB.
const TEXT_CHARACTERS: usize = 560;

async fn run(context: &Context) -> Outcome<Figure> {
    let mails = context.size(100_000, 2_000);
    let sink = SmtpSink::start(context).await?;
    let channel = format!(
        "{{protocol: smtp, concurrency: 10, options: {{host: 127.0.0.1, port: {}, tls: off, from: Tocsin <news@example.org>}}}}",
        sink.port
    );
    let mut fanout = Fanout::start(context, &channel, mails, |number| format!("reader{number}@example.org")).await?;
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(mails as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        if let Some(per_second) = smtp_source(context, sink.port, mails).await? {
            peer.push(per_second);
        }
    }
    Ok(Figure::new("messages/s", ours)
        .beside("smtp-source", peer)
        .under(format!("{mails} mails of 1 KB"))
        .under("10 sessions kept open")
        .under("from acceptance to the last durable receipt"))
}
