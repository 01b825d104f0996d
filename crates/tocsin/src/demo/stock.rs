//! Demo: a stock market; quotes match orders that wait for a price, and each match is posted to the order's owner.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode};
use serde_json::{Value, json};

use super::{
    DemoOptions,
    play::{DemoServer, compare, show_addresses, show_report},
};
use crate::{
    configuration::ConfigurationArgs,
    examples::stock::{Market, Order, Quote, SYMBOLS},
    failure::{Failure, Outcome},
    mailbox,
    signals::Signals,
    terminal::{Colour, Terminal, thousands},
};

const DEFINITION: &str = include_str!("../../../../examples/stock/application.yaml");
const ORDERS_EACH: u32 = 5;
const BATCHES: u64 = 10;

/// Replays ten minutes of the market, each minute a batch with every symbol.
///
/// # Errors
/// If a part does not start, or a message is missing.
pub async fn stock(terminal: &Terminal, configuration: &ConfigurationArgs, plan: &DemoOptions) -> Outcome {
    let mut signals = Signals::new()?;
    let (stage, right) = tokio::select! {
        played = play(terminal, configuration, plan) => played?,
        _ = signals.next() => return Err(Failure::failed("stopped before the end")),
    };
    stage.close(terminal, plan.once, &mut signals).await?;
    if right { Ok(()) } else { Err(Failure::failed("a message is missing; see the log above")) }
}

/// Runs the demo; returns the running server, and whether every message arrived.
async fn play(
    terminal: &Terminal,
    configuration: &ConfigurationArgs,
    plan: &DemoOptions,
) -> Outcome<(DemoServer, bool)> {
    let (hook, received) = receive().await?;
    let stage = DemoServer::open(configuration).await?;
    terminal
        .line(format_args!("Tocsin listens at {}, messages are posted to http://{hook}/", stage.client.server()))?;
    stage.apply("stock", DEFINITION.to_owned()).await?;
    let market = Market::new(plan.seed);
    let orders: Vec<Order> = market.orders(plan.subscribers, ORDERS_EACH).collect();
    let bar = terminal.progress(
        Some(u64::from(plan.subscribers) + orders.len() as u64),
        "orders    {wide_bar} {human_pos}/{human_len}  {elapsed}",
    );
    let person = |number: u32| json!({"id": format!("u{number}"), "devices": {"web": {"channel": "web", "address": format!("http://{hook}/u{number}")}}});
    stage.import("subscribers", &[], (0..plan.subscribers).map(person), &bar).await?;
    stage
        .import("subscriptions", &[("application", "stock"), ("class", "order")], orders.iter().map(subscription), &bar)
        .await?;
    bar.finish_and_clear();
    terminal.line(format_args!(
        "{} orders of {} people imported",
        thousands(orders.len() as u64),
        thousands(u64::from(plan.subscribers))
    ))?;

    let (started, mut expected) = (Instant::now(), 0);
    let bar =
        terminal.progress(Some(BATCHES * SYMBOLS as u64), "quotes    {wide_bar} {human_pos}/{human_len}  {elapsed}");
    for minute in 0..BATCHES {
        let quotes = market.quotes(minute);
        expected += orders.iter().filter(|order| order.is_met_by(&quotes[usize::from(order.symbol)])).count() as u64;
        stage.publish("stock", "quote", quotes.iter().map(event).collect(), &format!("minute-{minute}"), &bar).await?;
    }
    bar.finish_and_clear();
    let bar = terminal.progress(Some(expected), "messages  {wide_bar} {human_pos}/{human_len}  {per_sec}  {elapsed}");
    let report = stage.delivered(expected, &|| received.load(Ordering::Relaxed), &bar).await?;
    let took = started.elapsed();
    bar.finish_and_clear();
    show_report(terminal, &report, took)?;
    terminal
        .line(terminal.paint(Colour::Bold, "\nVerification: every quote compared with every order, without Tocsin"))?;
    let mut right = compare(terminal, "notifications created", expected, report.totals.notifications)?;
    right &= compare(terminal, "messages received", expected, received.load(Ordering::Relaxed))?;
    if !plan.once {
        let console = stage.login_link().await?;
        show_addresses(terminal, &stage, &[("console", console)])?;
    }
    Ok((stage, right))
}

fn subscription(order: &Order) -> Value {
    json!({
        "subscriber": format!("u{}", order.subscriber), "key": format!("o{}", order.place),
        "values": {"symbol": format!("S{:04}", order.symbol), "kind": order.kind.name(), "trigger": order.trigger}
    })
}

fn event(quote: &Quote) -> Value {
    json!({"symbol": format!("S{:04}", quote.symbol), "price": quote.price, "change": quote.change, "volume": quote.volume})
}

/// Starts a receiver that counts posts.
async fn receive() -> Outcome<(std::net::SocketAddr, Arc<AtomicU64>)> {
    let listener = mailbox::bind(([127, 0, 0, 1], 9000).into()).await?;
    let address = listener
        .local_addr()
        .map_err(|error| Failure::failed("cannot read the address of a socket").because(&error))?;
    let received = Arc::new(AtomicU64::new(0));
    let count = |State(received): State<Arc<AtomicU64>>, _: Bytes| async move {
        received.fetch_add(1, Ordering::Relaxed);
        StatusCode::NO_CONTENT
    };
    let app = Router::new().fallback(count).with_state(received.clone());
    tokio::spawn(async move {
        // It ends with the process.
        let _ = axum::serve(listener, app).await;
    });
    Ok((address, received))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_self_contained() {
        assert!(!DEFINITION.contains("file:"));
    }
}
