//! The stock market, in this process and in a server. The seed is the peers', so everybody matches the same.

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

/// The example's own definition.
pub const DEFINITION: &str = include_str!("../../../../examples/stock/application.yaml");
/// Orders of each subscriber.
pub const ORDERS_EACH: u32 = 5;
/// Batches that a pass over the market has.
pub const BATCHES: u64 = 10;

/// The example, compiled.
///
/// # Errors
/// The definition has mistakes.
pub fn compiled() -> Outcome<Compiled> {
    compiled_text(DEFINITION)
}

/// The same with so many notifications at most in a batch.
///
/// # Errors
/// The definition has mistakes.
pub fn compiled_with(batch_size: u32) -> Outcome<Compiled> {
    let given = "batch_size: 2500\n";
    if !DEFINITION.contains(given) {
        return Err(Failure::failed("the example's notifications come in batches of another size"));
    }
    compiled_text(&DEFINITION.replace(given, &format!("batch_size: {batch_size}\n")))
}

fn compiled_text(text: &str) -> Outcome<Compiled> {
    compile_text(text, 1, &|_| None).map_err(|problems| {
        let failure = Failure::failed("the definition of the stock example has mistakes");
        problems.iter().fold(failure, |failure, problem| failure.detail(problem.to_string()))
    })
}

/// Files orders in an index.
#[derive(Debug)]
pub struct Filing {
    class: Name,
    channel: Name,
}

impl Filing {
    /// Into the example's class, told by its channel.
    pub fn new() -> Self {
        Filing { class: name("order"), channel: name("web") }
    }

    /// Puts an order under an id.
    ///
    /// # Errors
    /// The index does not take it.
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

/// The orders of so many subscribers in an index of one owner, and the seconds that took. Copies beyond the first wait
/// for a little more or less, as in the peers.
///
/// # Errors
/// An order is not one.
pub fn shard(compiled: &Compiled, subscribers: u32, copies: u32) -> Outcome<(Shard, f64)> {
    let (market, filing) = (Market::new(SEED), Filing::new());
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

/// The fields of a quote.
///
/// # Errors
/// The definition has none.
pub fn quote_fields(compiled: &Compiled) -> Outcome<Fields> {
    let class = compiled.event_class(&name("quote"));
    class.map(|class| class.fields.clone()).ok_or_else(|| Failure::failed("the stock example has no quotes"))
}

/// The market's first batches, packed as the journal holds them.
///
/// # Errors
/// The definition has no quotes.
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
            sees: None,
            events: packer.finish(),
            chronicled: Default::default(),
        }
    };
    Ok((0..BATCHES).map(batch).collect())
}

/// A batch of quotes as the events endpoint takes it.
pub fn quotes_json(quotes: &[Quote]) -> Value {
    let quote = |quote: &Quote| json!({"symbol": format!("S{:04}", quote.symbol), "price": quote.price, "change": quote.change, "volume": quote.volume});
    quotes.iter().map(quote).collect()
}

/// Brings the example, its people and their orders into a server; what they are told goes to `port`.
///
/// # Errors
/// The server refuses something.
pub async fn load(server: &Server, subscribers: u32, port: u16) -> Outcome {
    // As many connections as the peer has.
    let definition =
        DEFINITION.replace("protocol: http\n", &format!("protocol: http\n    concurrency: {CONNECTIONS}\n"));
    server.apply("stock", &definition).await?;
    let url = format!("http://127.0.0.1:{port}/hook");
    server.import_subscribers(move |out| write_subscribers(out, subscribers, &url)).await?;
    let orders = move |out: &mut super::server::Parts| {
        write_subscriptions(out, Market::new(SEED).orders(subscribers, ORDERS_EACH))
    };
    server.import_subscriptions("stock", "order", orders).await?;
    Ok(())
}

/// Connections to the receiver, of ours and of the peer.
pub const CONNECTIONS: usize = 64;

/// A body as the case's receiver gets it, for the peer.
pub fn sample_body() -> Vec<u8> {
    let data = json!({"symbol": "S0042", "price": 12_345, "change": 123, "volume": 45_678, "reason": "price fell", "trigger": 12_400});
    json!({"id": "n-1234-567", "type": "trade", "timestamp": "2026-11-21T09:30:00.123456Z", "data": data})
        .to_string()
        .into_bytes()
}

/// How many of the orders each batch concerns, tried one by one: what must arrive.
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
        datum::Trouble,
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

        fn rule_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble) {
            panic!("rule {rule:?} failed for event {event}: {trouble}");
        }

        fn subscriptions_failed(&mut self, rule: RuleNumber, event: EventId, trouble: Trouble, count: u32) {
            panic!("rule {rule:?} failed for {count} subscriptions and event {event}: {trouble}");
        }
    }

    #[test]
    fn the_index_finds_what_trying_one_by_one_finds() {
        let compiled = compiled().expect("the example is in order");
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
    fn the_definition_takes_the_number_of_connections() {
        assert!(DEFINITION.contains("protocol: http\n    options"), "{DEFINITION}");
    }
}
