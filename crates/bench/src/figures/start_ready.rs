//! Figure `start.ready`: from exec to the first 200 of `/readyz` on an empty folder. Creates the stores and the first
//! key, and probes the disk.

use crate::{
    bench::{Bench, Measuring},
    failure::Outcome,
    {
        context::Context,
        figure::{Figure, Samples},
        server::Server,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "start.ready",
    about: "from exec to ready, on an empty folder",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

async fn run(context: &Context) -> Outcome<Figure> {
    let mut ours = Samples::default();
    for _ in context.turns() {
        let folder = context.folder()?;
        let server = Server::start(context, folder.path()).await?;
        ours.push(server.ready_after.as_secs_f64() * 1e3);
    }
    Ok(Figure::new("ms", ours).with_condition("includes creating the stores and the first key"))
}
