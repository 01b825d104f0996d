//! Bulk import of the stock market's orders, while the server keeps its match index up to date.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples},
        market::{DEFINITION, ORDERS_EACH},
        server::{Parts, Server},
    },
    examples::stock::{Market, SEED, write_subscribers, write_subscriptions},
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "import.subscriptions",
    about: "rows/s, 1,000,000 subscriptions by bulk import",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let subscribers = context.size(200_000, 2_000);
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        server.apply("stock", DEFINITION).await?;
        server.import_subscribers(move |out| write_subscribers(out, subscribers, "http://127.0.0.1:9/hook")).await?;
        let orders =
            move |out: &mut Parts| write_subscriptions(out, Market::new(SEED).orders(subscribers, ORDERS_EACH));
        let (stored, took) = server.import_subscriptions("stock", "order", orders).await?;
        let there = &server.status().await?["counts"]["subscriptions"];
        if (stored, there.as_u64()) != (u64::from(subscribers * ORDERS_EACH), Some(stored)) {
            return Err(Failure::failed(format!("{stored} rows were stored, and {there} are there")));
        }
        ours.push(stored as f64 / took.as_secs_f64());
    }
    let rows = subscribers * ORDERS_EACH;
    Ok(Figure::new("rows/s", ours)
        .under(format!("{rows} NDJSON lines over HTTP"))
        .under("checked and durable, none there before"))
}
