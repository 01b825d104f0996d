//! Matching alone, in this process: ids of matching subscriptions from an index of one owner, beside a bare prototype
//! that does nothing else.

use std::{hint::black_box, time::Instant};

use tocsin_matching::{
    datum::Trouble,
    rule::RuleNumber,
    shard::{MatchSink, Run, Shard},
};
use tocsin_model::{
    event::EventBatch,
    field::Fields,
    id::{EventId, SubscriptionId},
};

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::{Context, busy},
        figure::{Figure, Samples, rounded},
        market::{self, BATCHES, ORDERS_EACH},
        peers::StockLimit,
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "match.stock.1m",
    about: "matches/s with 1,000,000 subscriptions, ids out, one core; peer: the bare prototype",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// A measured round takes at least this long, in seconds.
const ROUND_SECONDS: f64 = 0.2;

/// Takes ids, and nothing that was a failure.
#[derive(Default)]
struct Ids {
    ids: Vec<SubscriptionId>,
    failures: u64,
}

impl MatchSink for Ids {
    fn run(&mut self, run: Run<'_>) {
        self.ids.extend(run.slots.iter().map(|slot| run.id(*slot)));
    }

    fn rule_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble) {
        self.failures += 1;
    }

    fn subscriptions_failed(&mut self, _: RuleNumber, _: EventId, _: Trouble, _: u32) {
        self.failures += 1;
    }
}

struct Bed {
    shard: Shard,
    fields: Fields,
    batches: Vec<EventBatch>,
    sink: Ids,
}

impl Bed {
    /// Matches every batch once. Gives the matches.
    fn pass(&mut self) -> Outcome<u64> {
        let mut matches = 0;
        for batch in &self.batches {
            self.sink.ids.clear();
            let matched = self.shard.match_batch(batch, &self.fields, &mut self.sink);
            matched.map_err(|error| Failure::failed("a batch cannot be matched").because(&error))?;
            matches += black_box(&self.sink.ids).len() as u64;
        }
        if self.sink.failures > 0 {
            return Err(Failure::failed("a rule could not be decided"));
        }
        Ok(matches)
    }

    /// Matches/s and matches of a pass, over as many passes as a round holds.
    fn round(&mut self) -> Outcome<(f64, u64)> {
        let (started, mut all) = (Instant::now(), 0);
        loop {
            let matches = self.pass()?;
            all += matches;
            let seconds = started.elapsed().as_secs_f64();
            if seconds > ROUND_SECONDS {
                return Ok((all as f64 / seconds, matches));
            }
        }
    }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 20_000);
    let limit = StockLimit::prepare(context, subscribers).await;
    let (mut bed, built) = busy(move || {
        let compiled = market::compiled()?;
        let (shard, built) = market::shard(&compiled, subscribers)?;
        let (fields, batches) = (market::quote_fields(&compiled)?, market::event_batches(&compiled)?);
        let mut bed = Bed { shard, fields, batches, sink: Ids::default() };
        bed.round()?;
        Ok::<_, Failure>((bed, built))
    })
    .await??;
    let (mut ours, mut peer, mut found) = (Samples::default(), Samples::default(), 0);
    for _ in context.turns() {
        let (back, round) = busy(move || {
            let round = bed.round();
            (bed, round)
        })
        .await?;
        bed = back;
        let (per_second, matches) = round?;
        ours.push(per_second);
        found = matches;
        if let Some(limit) = &limit {
            let (per_second, theirs) = limit.round().await?;
            if theirs != matches {
                return Err(Failure::failed(format!("the index finds {matches} matches, the bare prototype {theirs}")));
            }
            peer.push(per_second);
        }
    }
    let each = found as f64 / BATCHES as f64;
    let millis = each / ours.median() * 1e3;
    Ok(Figure::new("matches/s", ours)
        .beside("bare prototype", peer)
        .under(format!("{} subscriptions", subscribers * ORDERS_EACH))
        .under("ids out, one core")
        .under(format!("batches of 1000 events with {each:.0} matches, {} ms each", rounded(millis, 3)))
        .under(format!("index built in {} s", rounded(built, 3))))
}
