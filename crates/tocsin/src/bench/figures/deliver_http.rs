//! Signed posts through the whole server into nginx that only answers, beside wrk.

use std::time::Duration;

use serde_json::json;
use url::Url;

use super::{Bench, Measuring};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
        given::opened,
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

/// Who receives the posts.
enum Receiver {
    /// nginx of our own, at a path for each reader.
    Own(Nginx),
    /// Whoever is at the given URL, which is used as it is.
    Given(Url),
}

impl Receiver {
    async fn ready(context: &Context) -> Outcome<Self> {
        if let Some(url) = &context.given.http {
            return Ok(Receiver::Given(url.clone()));
        }
        let nginx = Nginx::start(context).await?;
        nginx.map(Receiver::Own).ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))
    }

    /// The address of each reader.
    fn address(&self) -> impl Fn(u64) -> String + Send + use<> {
        let (url, is_own) = match self {
            Receiver::Own(nginx) => (format!("http://127.0.0.1:{}/hook/r", nginx.port), true),
            Receiver::Given(url) => (url.to_string(), false),
        };
        move |reader| if is_own { format!("{url}{reader}") } else { url.clone() }
    }

    /// The option that lets the channel go there.
    fn opened(&self) -> String {
        match self {
            Receiver::Own(_) => "allow_networks: [127.0.0.0/8]".to_owned(),
            Receiver::Given(url) => opened(url),
        }
    }

    /// For the conditions.
    fn name(&self) -> &'static str {
        match self {
            Receiver::Own(_) => "nginx",
            Receiver::Given(_) => "the given URL",
        }
    }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let posts = context.size(100_000, 2_000);
    let receiver = Receiver::ready(context).await?;
    // Anybody's key: it guards nothing.
    let channel = format!(
        "{{protocol: http, concurrency: {CONNECTIONS}, flow: {{per_destination: {CONNECTIONS}}}, options: {{secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, {}}}}}",
        receiver.opened()
    );
    let mut fanout = Fanout::start(context, &channel, "", posts, receiver.address()).await?;
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
            let _theirs = context.progress.theirs("wrk");
            peer.push(wrk.post_to(&receiver.address()(0), time).await?.per_second);
        }
    }
    Ok(Figure::new("messages/s", ours)
        .beside("wrk", peer)
        .counted(&fanout.tally)
        .under(format!("{posts} posts of {} bytes to {}", body.len(), receiver.name()))
        .under(format!("{CONNECTIONS} connections"))
        .under("signed, each made anew; wrk repeats one")
        .under("from acceptance to the last durable receipt"))
}
