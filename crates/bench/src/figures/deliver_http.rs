//! Figure `deliver.http`: signed posts through the whole server into nginx; peer: wrk.

use std::time::Duration;

use serde_json::json;
use url::Url;

use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        external_targets::allow_hosts_option,
        fanout_server::FanoutServer,
        figure::{Figure, Samples},
        peers::{Nginx, Wrk},
        stock_workload::CONNECTIONS,
    },
};

/// Benchmark of this file.
pub const BENCH: Bench = Bench {
    name: "deliver.http",
    about: "signed posts/s into nginx over 64 connections, receipts durable; peer: wrk",
    by_default: true,
    run: |context| -> Measuring<'_> { Box::pin(run(context)) },
};

/// A body with a text of this length has about 500 bytes.
const TEXT_CHARACTERS: usize = 370;

/// Receiver of the posts.
enum Receiver {
    /// Started nginx, with a path for each subscriber.
    Own(Nginx),
    /// External URL, used unchanged.
    External(Url),
}

impl Receiver {
    async fn ready(context: &Context) -> Outcome<Self> {
        if let Some(url) = &context.targets.http {
            return Ok(Receiver::External(url.clone()));
        }
        let nginx = Nginx::start(context).await?;
        nginx.map(Receiver::Own).ok_or_else(|| Failure::failed("nginx is needed to receive the posts"))
    }

    /// Address of each subscriber.
    fn address(&self) -> impl Fn(u64) -> String + Send + use<> {
        let (url, is_own) = match self {
            Receiver::Own(nginx) => (format!("http://127.0.0.1:{}/hook/r", nginx.port), true),
            Receiver::External(url) => (url.to_string(), false),
        };
        move |reader| if is_own { format!("{url}{reader}") } else { url.clone() }
    }

    /// Option that lets the channel connect to the receiver.
    fn allow_hosts_option(&self) -> String {
        match self {
            Receiver::Own(_) => "allow_networks: [127.0.0.0/8]".to_owned(),
            Receiver::External(url) => allow_hosts_option(url),
        }
    }

    /// Name for the conditions.
    fn name(&self) -> &'static str {
        match self {
            Receiver::Own(_) => "nginx",
            Receiver::External(_) => "the external URL",
        }
    }
}

async fn run(context: &Context) -> Outcome<Figure> {
    let posts = context.size(100_000, 2_000);
    let receiver = Receiver::ready(context).await?;
    // A public test key: it protects nothing.
    let channel = format!(
        "{{protocol: http, concurrency: {CONNECTIONS}, flow: {{per_destination: {CONNECTIONS}}}, options: {{secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw, {}}}}}",
        receiver.allow_hosts_option()
    );
    let mut fanout = FanoutServer::start(context, &channel, "", posts, receiver.address()).await?;
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
        ours.push(posts as f64 / fanout.deliver_event(TEXT_CHARACTERS).await?.as_secs_f64());
        if let Some(wrk) = &wrk {
            let _turn = context.progress.peer_turn("wrk");
            peer.push(wrk.post_to(&receiver.address()(0), time).await?.per_second);
        }
    }
    Ok(Figure::new("messages/s", ours)
        .with_peer("wrk", peer)
        .with_cost(fanout.tally.counts())
        .with_condition(format!("{posts} posts of {} bytes to {}", body.len(), receiver.name()))
        .with_condition(format!("{CONNECTIONS} connections"))
        .with_condition("signed, each body generated; wrk repeats one")
        .with_condition("from acceptance to the last durable receipt"))
}
