//! A market: quotes meet orders that wait for a price, and each one that comes true is posted to its owner's address.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode};
use serde_json::json;

use super::{
    Plan,
    play::{Stage, compare, show_addresses, show_report},
};
use crate::{
    commands::serve::Signals,
    configuration::ConfigurationArgs,
    failure::{Failure, Outcome},
    mailbox,
    terminal::{Colour, Terminal, thousands},
};

const DEFINITION: &str = include_str!("../../../../examples/stock/application.yaml");
const SYMBOLS: usize = 1_000;
const ORDERS_EACH: usize = 5;
const BATCHES: usize = 10;
const KINDS: [&str; 4] = ["stop", "limit", "change", "volume"];

/// What someone waits for.
struct Order {
    subscriber: u32,
    symbol: usize,
    kind: usize,
    trigger: i64,
}

/// What a symbol costs now.
struct Quote {
    symbol: usize,
    price: i64,
    change: i64,
    volume: i64,
}

/// Plays ten minutes of the market, each minute a batch with every symbol.
///
/// # Errors
/// Something does not start, or a message is missing.
pub async fn stock(terminal: &Terminal, configuration: &ConfigurationArgs, plan: &Plan) -> Outcome {
    let mut signals = Signals::new()?;
    let (hook, received, receiver) = receive().await?;
    let stage = Stage::open(configuration).await?;
    terminal.line(format_args!("Tocsin answers at {}, messages are posted to http://{hook}/", stage.client.server()))?;
    stage.apply("stock", DEFINITION.to_owned()).await?;
    let orders = orders(plan);
    let total = u64::from(plan.subscribers) + orders.len() as u64;
    let bar = terminal.progress(Some(total), "orders    {wide_bar} {human_pos}/{human_len}  {elapsed}");
    let people = (0..plan.subscribers).map(|number| json!({"id": format!("u{number}"), "devices": {"hook": {"channel": "web", "address": format!("http://{hook}/u{number}")}}}));
    stage.import("subscribers", &[], people, &bar).await?;
    let lines = orders.iter().enumerate().map(|(at, order)| {
        json!({"subscriber": format!("u{}", order.subscriber), "key": format!("o{at}"),
            "values": {"symbol": symbol(order.symbol), "kind": KINDS[order.kind], "trigger": order.trigger}})
    });
    stage.import("subscriptions", &[("application", "stock"), ("class", "order")], lines, &bar).await?;
    bar.finish_and_clear();
    stage.indexed("stock", orders.len() as u64).await?;
    terminal.line(format_args!("{} orders of {} people wait for a price", thousands(orders.len() as u64), thousands(u64::from(plan.subscribers))))?;

    let (started, mut expected) = (Instant::now(), 0);
    let bar = terminal.progress(Some((BATCHES * SYMBOLS) as u64), "quotes    {wide_bar} {human_pos}/{human_len}  {elapsed}");
    let mut chance = fastrand::Rng::with_seed(plan.seed ^ 0x5eed);
    for minute in 0..BATCHES {
        let quotes: Vec<Quote> = (0..SYMBOLS).map(|symbol| quote(symbol, &mut chance)).collect();
        expected += came_true(&orders, &quotes);
        let batch = quotes.iter().map(|quote| json!({"symbol": symbol(quote.symbol), "price": quote.price, "change": quote.change, "volume": quote.volume}));
        stage.publish("stock", "quote", batch.collect(), &format!("minute-{minute}"), &bar).await?;
    }
    bar.finish_and_clear();
    let bar = terminal.progress(Some(expected), "messages  {wide_bar} {human_pos}/{human_len}  {per_sec}  {elapsed}");
    let report = stage.delivered(expected, &|| received.load(Ordering::Relaxed), &bar).await?;
    let took = started.elapsed();
    bar.finish_and_clear();
    show_report(terminal, &report, took)?;
    terminal.line(terminal.paint(Colour::Bold, "\nIs it right? Every quote was compared with every order, without Tocsin"))?;
    let mut right = compare(terminal, "notifications made", expected, report.totals.notifications)?;
    right &= compare(terminal, "messages that came", expected, received.load(Ordering::Relaxed))?;
    show_addresses(terminal, &stage, &[])?;
    stage.close(terminal, plan.once, &mut signals).await?;
    receiver.abort();
    if right { Ok(()) } else { Err(Failure::failed("not every message is where it should be; the log above tells more")) }
}

/// Counts what is posted.
async fn receive() -> Outcome<(std::net::SocketAddr, Arc<AtomicU64>, tokio::task::JoinHandle<()>)> {
    let listener = mailbox::bind(([127, 0, 0, 1], 9000).into()).await?;
    let address = listener.local_addr().map_err(|error| Failure::failed("a socket has no address").because(&error))?;
    let received = Arc::new(AtomicU64::new(0));
    let count = |State(received): State<Arc<AtomicU64>>, _: Bytes| async move {
        received.fetch_add(1, Ordering::Relaxed);
        StatusCode::NO_CONTENT
    };
    let app = Router::new().fallback(count).with_state(received.clone());
    let task = tokio::spawn(async move {
        // It ends only with the task.
        let _ = axum::serve(listener, app).await;
    });
    Ok((address, received, task))
}

fn symbol(number: usize) -> String {
    format!("S{number:03}")
}

/// Popular symbols have most orders: the k-th has a weight of k to the power of -0.8.
fn orders(plan: &Plan) -> Vec<Order> {
    let mut chance = fastrand::Rng::with_seed(plan.seed);
    let mut sum = 0.0;
    let weights: Vec<f64> = (1..=SYMBOLS)
        .map(|rank| {
            sum += (rank as f64).powf(-0.8);
            sum
        })
        .collect();
    (0..plan.subscribers)
        .flat_map(|subscriber| std::iter::repeat_n(subscriber, ORDERS_EACH))
        .map(|subscriber| {
            let ticket = chance.f64() * sum;
            let symbol = weights.partition_point(|weight| *weight <= ticket).min(SYMBOLS - 1);
            let kind = chance.usize(..KINDS.len());
            let base = price_of(symbol);
            let trigger = match kind {
                0 => base * chance.i64(80..97) / 100,
                1 => base * chance.i64(104..121) / 100,
                2 => chance.i64(450..900),
                _ => chance.i64(900_000..1_500_000),
            };
            Order { subscriber, symbol, kind, trigger }
        })
        .collect()
}

/// What a symbol costs on a quiet day, in cents.
fn price_of(symbol: usize) -> i64 {
    1_000 + (symbol as i64 * 7_919) % 40_000
}

fn quote(symbol: usize, chance: &mut fastrand::Rng) -> Quote {
    let change = chance.i64(-500..=500);
    let base = price_of(symbol);
    Quote { symbol, price: base + base * change / 10_000, change: change.abs(), volume: chance.i64(1_000..1_000_000) }
}

/// How many orders the quotes of a batch make come true, tried one by one.
fn came_true(orders: &[Order], quotes: &[Quote]) -> u64 {
    let hit = |order: &&Order| {
        let quote = &quotes[order.symbol];
        match order.kind {
            0 => quote.price <= order.trigger,
            1 => quote.price >= order.trigger,
            2 => quote.change >= order.trigger,
            _ => quote.volume > order.trigger,
        }
    };
    orders.iter().filter(hit).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_one_order_in_twenty_five_comes_true() {
        let plan = Plan { once: true, subscribers: 2_000, seed: 7 };
        let orders = orders(&plan);
        assert_eq!(orders.len(), 10_000);
        let mut chance = fastrand::Rng::with_seed(1);
        let quotes: Vec<Quote> = (0..SYMBOLS).map(|symbol| quote(symbol, &mut chance)).collect();
        let hits = came_true(&orders, &quotes);
        assert!((200..800).contains(&hits), "{hits}");
        let popular = orders.iter().filter(|order| order.symbol < 100).count();
        assert!(popular > 3_000, "{popular}");
    }

    #[test]
    fn the_definition_needs_no_files() {
        assert!(!DEFINITION.contains("file:"));
    }
}
