//! Resident memory of a server that has started on an empty folder and rested.

use std::time::Duration;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        figure::{Figure, Samples},
        server::{Server, megabytes},
    },
    failure::Outcome,
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "idle.memory",
    about: "resident memory after start on an empty folder and some rest",
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
        .under(format!("resident after {} s of rest", rest.as_secs()))
        .under("the nearest rival idles at 13 MB"))
}
