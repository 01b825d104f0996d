//! Figure `import.subscribers`: bulk import of subscribers with one device each into an empty server.

use crate::{
    bench::{Bench, Measuring},
    examples::stock::write_subscribers,
    failure::{Failure, Outcome},
    {
        context::Context,
        figure::{Figure, Samples},
        server::Server,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "import.subscribers",
    about: "rows/s, 100,000 subscribers by bulk import",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let rows = context.size(100_000, 2_000);
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        let (stored, took) =
            server.import_subscribers(move |out| write_subscribers(out, rows, "http://127.0.0.1:9/hook")).await?;
        let there = &server.status().await?["counts"]["subscribers"];
        if (stored, there.as_u64()) != (u64::from(rows), Some(stored)) {
            return Err(Failure::failed(format!("{stored} rows were imported, but {there} are stored")));
        }
        ours.push(stored as f64 / took.as_secs_f64());
    }
    Ok(Figure::new("rows/s", ours)
        .with_condition(format!("{rows} NDJSON lines over HTTP"))
        .with_condition("one device each")
        .with_condition("durable, into an empty server"))
}
