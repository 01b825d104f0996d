//! Figures `deliver.inbox*`: items through the whole server into inboxes, single and as multicasts.

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        fanout_server::FanoutServer,
        figure::{Figure, Samples},
    },
};

/// Each item is rendered separately.
pub const ALONE: Bench = Bench {
    name: "deliver.inbox",
    about: "items/s into inboxes, one in each, committed, receipts durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, "", "formatted one by one")) },
};

/// Multicast: an item for many recipients is rendered and stored once.
pub const MULTICAST: Bench = Bench {
    name: "deliver.inbox.many50",
    about: "the same, formatted once for 50",
    by_default: true,
    run: |context| -> Measuring<'_> {
        Box::pin(run(context, "multicast: { recipient_limit: 50 }", "formatted once for 50 of them"))
    },
};

const TEXT_CHARACTERS: usize = 1_000;

async fn run(context: &Context, class: &str, how: &str) -> Outcome<Figure> {
    let items = context.size(100_000, 2_000);
    let channel = "{protocol: inbox}";
    let mut fanout = FanoutServer::start(context, channel, class, items, |number| format!("reader{number}")).await?;
    let mut ours = Samples::default();
    for _ in context.turns() {
        ours.push(items as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
    }
    Ok(Figure::new("items/s", ours)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{items} inboxes, an item of {TEXT_CHARACTERS} characters for each, {how}"))
        .with_condition("contents are deduplicated by hash in both cases"))
}
