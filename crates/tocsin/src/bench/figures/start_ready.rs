//! From exec to the first 200 of `/readyz`, on an empty folder: makes the stores, the first key, and probes the disk.

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples},
        server::Server,
    },
    failure::Outcome,
};

/// The figure.
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
    Ok(Figure::new("ms", ours).under("stores and first key are made"))
}
