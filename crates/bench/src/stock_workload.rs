//! Stock-market workload, in this process and in a server. It uses the peers' seed, so that all match the same data.

use std::time::Instant;

use serde_json::{Value, json};
use tocsin_matching::shard::{Shard, Subject};
use tocsin_model::{
    event::{EventBatch, EventPacker},
    field::Fields,
    id::{EventBatchId, Name, SubscriberNumber, SubscriptionId},
    time::Timestamp,
    value,
};
use tocsin_pipeline::{Compiled, compile_text};

use super::server::Server;
use crate::{
    examples::stock::{Market, Order, Quote, SEED, write_subscribers, write_subscriptions},
    failure::{Failure, Outcome},
};

/// Definition of the example.
pub const DEFINITION: &str = include_str!("../../../examples/stock/application.yaml");
/// Orders per subscriber.
pub const ORDERS_EACH: u32 = 5;
/// Batches of one pass over the market.
pub const BATCHES: u64 = 10;

/// Compiled definition of the example.
///
/// # Errors
/// If the definition is invalid.
pub fn compiled() -> Outcome<Compiled> {
    compiled_text(DEFINITION)
}

/// Compiled definition with another `batch_size` of notifications.
///
/// # Errors
/// If the definition is invalid.
pub fn compiled_with(batch_size: u32) -> Outcome<Compiled> {
    let batch_size_2500 = "batch_size: 2500\n";
    if !DEFINITION.contains(batch_size_2500) {
        return Err(Failure::failed("the definition of the stock example does not contain `batch_size: 2500`"));
    }
    compiled_text(&DEFINITION.replace(batch_size_2500, &format!("batch_size: {batch_size}\n")))
}

fn compiled_text(text: &str) -> Outcome<Compiled> {
    compile_text(text, 1, &|_| None).map_err(|problems| {
        let failure = Failure::failed("the definition of the stock example is invalid");
        problems.iter().fold(failure, |failure, problem| failure.detail(problem.to_string()))
    })
}

/// Adds orders to an index as subscriptions.
#[derive(Debug)]
pub struct OrderIndexer {
    class: Name,
    channel: Name,
}

impl OrderIndexer {
    /// Creates an indexer for the example's class and channel.
    pub fn new() -> Self {
        OrderIndexer { class: name("order"), channel: name("web") }
    }

    /// Adds an order under this id.
    ///
    /// # Errors
    /// If the index rejects the order.
    pub fn put(&self, shard: &mut Shard, id: u64, order: &Order) -> Outcome {
        let Order { symbol, kind, trigger, .. } = order;
        let values = format!(r#"{{"symbol":"S{symbol:04}","kind":"{}","trigger":{trigger}}}"#, kind.name());
        let subject = Subject {
            id: SubscriptionId(id),
            subscriber: SubscriberNumber(id),
            class: &self.class,
            values: &values,
            channel: Some(&self.channel),
            filter: None,
        };
        let put = shard.put(subject);
        put.map_err(|problem| Failure::failed("an order does not fit the index").detail(problem.to_string()))
    }
}

/// Builds an index of one shard with the orders of `subscribers` subscribers; returns it with the seconds of the build.
/// Copies after the first have slightly different limits, as in the peers.
///
/// # Errors
/// If an order is rejected.
pub fn shard(compiled: &Compiled, subscribers: u32, copies: u32) -> Outcome<(Shard, f64)> {
    let (market, filing) = (Market::new(SEED), OrderIndexer::new());
    let mut shard = Shard::new(compiled.rules.clone());
    let (started, mut id) = (Instant::now(), 0);
    for copy in 0..i64::from(copies) {
        let shift = copy % 7 - if copy > 0 { 3 } else { 0 };
        for order in market.orders(subscribers, ORDERS_EACH) {
            id += 1;
            filing.put(&mut shard, id, &Order { trigger: order.trigger + shift, ..order })?;
        }
    }
    Ok((shard, started.elapsed().as_secs_f64()))
}

/// Field definitions of a quote.
///
/// # Errors
/// If the definition has no quotes.
pub fn quote_fields(compiled: &Compiled) -> Outcome<Fields> {
    let class = compiled.event_class(&name("quote"));
    class.map(|class| class.fields.clone()).ok_or_else(|| Failure::failed("the stock example has no quotes"))
}

/// First batches of the market, packed as in the journal.
///
/// # Errors
/// If the definition has no quotes.
pub fn event_batches(compiled: &Compiled) -> Outcome<Vec<EventBatch>> {
    let (market, fields) = (Market::new(SEED), quote_fields(compiled)?);
    let batch = |number: u64| {
        let mut packer = EventPacker::new(fields.clone());
        for quote in market.quotes(number) {
            let row: Vec<value::Value> = fields
                .iter()
                .map(|field| match field.name.as_str() {
                    "symbol" => value::Value::from(&*format!("S{:04}", quote.symbol)),
                    "price" => value::Value::Integer(quote.price),
                    "change" => value::Value::Integer(quote.change),
                    _ => value::Value::Integer(quote.volume),
                })
                .collect();
            packer.push(&row);
        }
        EventBatch {
            id: EventBatchId(number + 1),
            application: name("stock"),
            version: compiled.version,
            class: name("quote"),
            source: name("api"),
            received_at: Timestamp::from_millis(0),
            accepted_at: Timestamp::from_millis(0),
            snapshot_sequence: None,
            events: packer.finish(),
            chronicled: Default::default(),
        }
    };
    Ok((0..BATCHES).map(batch).collect())
}

/// Batch of quotes as JSON for the events endpoint.
pub fn quotes_json(quotes: &[Quote]) -> Value {
    let quote = |quote: &Quote| json!({"symbol": format!("S{:04}", quote.symbol), "price": quote.price, "change": quote.change, "volume": quote.volume});
    quotes.iter().map(quote).collect()
}

/// Loads the definition, subscribers and orders into a server; deliveries go to `port` of this machine.
///
/// # Errors
/// If the server rejects a request.
pub async fn load(server: &Server, subscribers: u32, port: u16) -> Outcome {
    // The same number of connections as the peer.
    let definition =
        DEFINITION.replace("protocol: http\n", &format!("protocol: http\n    concurrency: {CONNECTIONS}\n"));
    server.apply("stock", &definition).await?;
    let url = format!("http://127.0.0.1:{port}/hook");
    server.import_subscribers(move |out| write_subscribers(out, subscribers, &url)).await?;
    let orders = move |out: &mut super::server::ChunkWriter| {
        write_subscriptions(out, Market::new(SEED).orders(subscribers, ORDERS_EACH))
    };
    server.import_subscriptions("stock", "order", orders).await?;
    Ok(())
}

/// Connections to the receiver, of Tocsin and of the peer.
pub const CONNECTIONS: usize = 64;

/// Body as the receiver gets it, for the peer.
pub fn sample_body() -> Vec<u8> {
    let data = json!({"symbol": "S0042", "price": 12_345, "change": 123, "volume": 45_678, "reason": "price fell", "trigger": 12_400});
    json!({"id": "n-1234-567", "type": "trade", "timestamp": "2026-11-21T09:30:00.123456Z", "data": data})
        .to_string()
        .into_bytes()
}

/// Expected matches of each batch, by testing every order: the oracle for deliveries.
pub fn expected(subscribers: u32, batches: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let market = Market::new(SEED);
    let orders: Vec<Order> = market.orders(subscribers, ORDERS_EACH).collect();
    let count = |number| {
        let quotes = market.quotes(number);
        orders.iter().filter(|order| order.is_met_by(&quotes[usize::from(order.symbol)])).count() as u64
    };
    batches.into_iter().map(count).collect()
}

fn name(text: &str) -> Name {
    text.parse().expect("these names are names")
}

#[cfg(test)]
mod tests {
    use tocsin_matching::{
        eval_value::EvalError,
        rule::RuleNumber,
        shard::{MatchSink, Run},
    };
    use tocsin_model::id::EventId;

    use super::*;

    struct Count(u64);

    impl MatchSink for Count {
        fn run(&mut self, run: Run<'_>) {
            self.0 += run.slots.len() as u64;
        }

        fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: EvalError) {
            panic!("rule {rule:?} failed for event {event}: {trouble}");
        }

        fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: EvalError, count: u32) {
            panic!("rule {rule:?} failed for {count} subscriptions and event {event}: {trouble}");
        }
    }

    #[test]
    fn the_index_agrees_with_testing_every_order() {
        let compiled = compiled().expect("the example compiles");
        let (mut shard, _) = shard(&compiled, 2_000, 1).expect("orders fit");
        let fields = quote_fields(&compiled).expect("quotes have fields");
        let found: Vec<u64> = event_batches(&compiled)
            .expect("batches")
            .iter()
            .map(|batch| {
                let mut count = Count(0);
                shard.match_batch(batch, &fields, &mut count).expect("a whole batch");
                count.0
            })
            .collect();
        assert_eq!(found, expected(2_000, 0..BATCHES));
        assert!(found.iter().all(|count| *count > 300), "{found:?}");
    }

    #[test]
    fn the_definition_has_the_text_that_load_replaces() {
        assert!(DEFINITION.contains("protocol: http\n    options"), "{DEFINITION}");
    }
}
