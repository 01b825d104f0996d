//! Signed posts through the whole server into nginx that only answers, beside wrk.

use std::time::Duration;

use serde_json::json;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
        market::CONNECTIONS,
        peers::{Nginx, Wrk},
    },
    failure::{Failure, Outcome},
};

/// The figure.
pub const BENCH: Bench = Bench {
    name: "deliver.http",
    about: "signed posts/s into nginx over 64 connections, receipts durable; peer: wrk",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// With what surrounds it a body with this text has about 500 bytes.
const TEXT_CHARACTERS: usize = 370;

async fn run(context: &Context) -> Outcome<Figure> {
    let posts = context.size(100_000, 2_000);
    let nginx = Nginx::start(context).await?.ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))?;
    // Anybody's key: it guards nothing.
    let channel = format!(
        "{{protocol: http, concurrency: {CONNECTIONS}, flow: {{per_destination: {CONNECTIONS}}}, options: {{secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, allow_networks: [127.0.0.0/8]}}}}"
    );
    let port = nginx.port;
    let mut fanout =
        Fanout::start(context, &channel, "", posts, move |number| format!("http://127.0.0.1:{port}/hook/r{number}"))
            .await?;
    let data = json!({"topic": "all", "text": "x".repeat(TEXT_CHARACTERS)});
    let body = json!({"id": "n-12-3456", "type": "item", "timestamp": "2026-11-21T09:30:00.123456Z", "data": data})
        .to_string();
    let headers = [
        ("Content-Type", "application/json"),
        ("User-Agent", "Tocsin/0.1.0"),
        ("webhook-id", "n-12-3456"),
        ("webhook-timestamp", "1795253400"),
        ("webhook-signature", "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
    ];
    let wrk = Wrk::new(context, CONNECTIONS, &headers, body.as_bytes())?;
    let time = Duration::from_secs(context.size(5, 1));
    let (mut ours, mut peer) = (Samples::default(), Samples::default());
    for _ in context.turns() {
        ours.push(posts as f64 / fanout.tell_all(TEXT_CHARACTERS).await?.as_secs_f64());
        if let Some(wrk) = &wrk {
            peer.push(wrk.post(port, "/hook/r0", time).await?.per_second);
        }
    }
    Ok(Figure::new("messages/s", ours)
        .beside("wrk", peer)
        .under(format!("{posts} posts of {} bytes to nginx", body.len()))
        .under(format!("{CONNECTIONS} connections"))
        .under("signed, each made anew; wrk repeats one")
        .under("from acceptance to the last durable receipt"))
}
