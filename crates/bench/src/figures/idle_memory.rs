//! Figure `idle.memory`: resident memory of an idle server on an empty folder.

use std::time::Duration;

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        figure::{Figure, Samples},
        server::{Server, megabytes},
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "idle.memory",
    about: "resident memory of an idle server on an empty folder",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let mut ours = Samples::default();
    let rest = Duration::from_secs(context.size(5, 1));
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        tokio::time::sleep(rest).await;
        ours.push(megabytes(server.resident_bytes()));
    }
    Ok(Figure::new("MB", ours)
        .with_condition(format!("resident after {} s idle", rest.as_secs()))
        .with_condition("the nearest rival idles at 13 MB"))
}
