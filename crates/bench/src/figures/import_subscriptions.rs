//! Figure `import.subscriptions`: bulk import of the stock market's orders; the server updates its match index
//! meanwhile.

use crate::{
    bench::{Bench, Measuring},
    examples::stock::{Market, SEED, write_subscribers, write_subscriptions},
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples},
        server::{ChunkWriter, Server},
        stock_workload::{DEFINITION, ORDERS_EACH},
    },
};

/// Benchmark of this file.
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
            move |out: &mut ChunkWriter| write_subscriptions(out, Market::new(SEED).orders(subscribers, ORDERS_EACH));
        let (stored, took) = server.import_subscriptions("stock", "order", orders).await?;
        let there = &server.status().await?["counts"]["subscriptions"];
        if (stored, there.as_u64()) != (u64::from(subscribers * ORDERS_EACH), Some(stored)) {
            return Err(Failure::failed(format!("{stored} rows were imported, but {there} are stored")));
        }
        ours.push(stored as f64 / took.as_secs_f64());
    }
    let rows = subscribers * ORDERS_EACH;
    Ok(Figure::new("rows/s", ours)
        .with_condition(format!("{rows} NDJSON lines over HTTP"))
        .with_condition("validated and durable, none stored before"))
}
