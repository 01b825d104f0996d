//! Figure `deliver.file`: records through the whole server into a file; peer: dd.

use std::fs;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        fanout_server::FanoutServer,
        figure::{Figure, Samples},
        peers::dd,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "deliver.file",
    about: "records/s into a file, synced, receipts durable; peer: dd with fdatasync of the same bytes",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// A record contains the text twice, as text and among the fields, and so has about 1 KB.
const TEXT_CHARACTERS: usize = 384;

async fn run(context: &Context) -> Outcome<Figure> {
    let records = context.size(100_000, 2_000);
    let channel = "{protocol: file, options: {path: bench.ndjson}}";
    let mut fanout = FanoutServer::start(context, channel, "", records, |number| format!("reader{number}")).await?;
    let (mut ours, mut peer, mut each) = (Samples::default(), Samples::default(), 0);
    let mut before = 0;
    for _ in context.turns() {
        ours.push(records as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        let file = find(&fanout.server.folder)?;
        let bytes = fs::metadata(&file).map_err(|error| Failure::file("look at", &file, &error))?.len();
        let written = bytes.saturating_sub(before);
        (before, each) = (bytes, written / records);
        if let Some(per_second) = dd(context, &fanout.server.folder, written).await? {
            peer.push(per_second * records as f64 / written.max(1) as f64);
        }
    }
    Ok(Figure::new("messages/s", ours)
        .with_peer("dd with fdatasync", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{records} records of {each} bytes"))
        .with_condition("whole records, synced in batches; dd writes the same bytes and syncs once")
        .with_condition("from acceptance to the last durable receipt"))
}

/// Path of the channel's file: in the data folder, or in a subfolder of it.
pub(super) fn find(data: &std::path::Path) -> Outcome<std::path::PathBuf> {
    let candidates = [data.join("bench.ndjson"), data.join("files/bench.ndjson")];
    candidates
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| Failure::failed("the channel did not write a file"))
}
