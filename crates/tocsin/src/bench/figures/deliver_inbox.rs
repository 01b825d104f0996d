//! Items through the whole server into feeds, alone and as multicasts.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
    },
    failure::Outcome,
};

/// Each is formatted by itself.
pub const ALONE: Bench = Bench {
    name: "deliver.inbox",
    about: "items/s into feeds, one in each, committed, receipts durable",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context, "", "formatted one by one")) },
};

/// What many are told is formatted once and stored once.
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
    let mut fanout = Fanout::start(context, channel, class, items, |number| format!("reader{number}")).await?;
    let mut ours = Samples::default();
    for _ in context.turns() {
        ours.push(items as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
    }
    Ok(Figure::new("items/s", ours)
        .counted(&fanout.tally)
        .under(format!("{items} feeds, an item of {TEXT_CHARACTERS} characters for each, {how}"))
        .under("what they say is found by its hash and stored once in any case"))
}
