//! Figures `deliver.digest.*`: digests through the whole server. A stylesheet renders several notifications of a
//! subscriber, 200 characters each, as one message.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use serde_json::Value;

use super::deliver_file::find;
use crate::{
    bench::{Bench, Measuring},
    failure::{Failure, Outcome},
    {
        context::Context,
        fanout_server::FanoutServer,
        figure::{Figure, Samples},
    },
};

macro_rules! digests {
    ($($constant:ident $name:literal $size:literal $by_default:literal,)*) => {
        $(
            /// Digest with the number of notifications in its name.
            pub const $constant: Bench = Bench {
                name: $name,
                about: "notifications/s by a stylesheet into a file, digests of the size in the name, receipts durable",
                by_default: $by_default,
                run: |context| -> Measuring<'_> { Box::pin(run(context, $size)) },
            };
        )*
    };
}

digests! {
    DIGEST_1 "deliver.digest.1" 1 false,
    DIGEST_2 "deliver.digest.2" 2 false,
    DIGEST_3 "deliver.digest.3" 3 false,
    DIGEST_4 "deliver.digest.4" 4 false,
    DIGEST_5 "deliver.digest.5" 5 false,
    DIGEST_10 "deliver.digest.10" 10 true,
}

/// Characters that the stylesheet outputs per notification.
const CHARACTERS: usize = 200;
/// Literal text of the stylesheet before the topic.
const PROSE: &str = "News of ";

/// The batch size covers all notifications, otherwise a subscriber would get two digests; one task renders the messages
/// of a batch.
fn definition(batch_size: u64) -> String {
    format!(
        r#"
application: delivery
events: {{ news: {{ fields: {{ topic: {{ type: string, required: true }}, text: string }} }} }}
subscriptions: {{ interest: {{ fields: {{ topic: {{ type: string, required: true }} }} }} }}
notifications:
  item:
    fields: {{ topic: string, text: string }}
    batch_size: {batch_size}
    digest: {{ items_max: 20 }}
    content:
      templates:
        base:
          text:
            xslt: |
              <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
                <xsl:output method="text"/>
                <xsl:template match="/"><xsl:apply-templates select="notifications/notification"/></xsl:template>
                <xsl:template match="notification">{PROSE}<xsl:value-of select="topic"/>: <xsl:value-of select="text"/>
              <xsl:text>&#10;</xsl:text></xsl:template>
              </xsl:stylesheet>
rules: {{ about: {{ on: news, subscription: interest, when: event.topic == sub.topic, notify: item }} }}
channels: {{ out: {{ protocol: file, options: {{ path: bench.ndjson }} }} }}
"#
    )
}

async fn run(context: &Context, size: u64) -> Outcome<Figure> {
    // The same total for every digest size.
    let notifications = context.size(60_000, 1_200);
    let readers = notifications / size;
    let mut fanout =
        FanoutServer::start_with(context, &definition(notifications), readers, |number| format!("reader{number}"))
            .await?;
    let characters = CHARACTERS - PROSE.len() - "all".len() - ": ".len() - "\n".len();
    let mut ours = Samples::default();
    for _ in context.turns() {
        ours.push(notifications as f64 / fanout.deliver_events(size, characters).await?.as_secs_f64());
    }
    check(&find(&fanout.server.folder)?, readers * ours.len() as u64, size as usize * CHARACTERS)?;
    Ok(Figure::new("notifications/s", ours)
        .with_condition(format!(
            "{notifications} notifications of {CHARACTERS} characters, {size} per digest, {readers} readers"
        ))
        .with_condition("XSLT, rendered by one task, written to a file")
        .with_condition("from acceptance to the last durable receipt"))
}

/// Checks that a file has this many digests of this length.
fn check(file: &Path, digests: u64, characters: usize) -> Outcome {
    let opened = File::open(file).map_err(|error| Failure::file("open", file, &error))?;
    let mut count = 0;
    for line in BufReader::new(opened).lines() {
        let line = line.map_err(|error| Failure::file("read", file, &error))?;
        let record: Value = serde_json::from_str(&line).unwrap_or_default();
        let length = record["text"].as_str().map_or(0, |text| text.chars().count());
        if length != characters {
            return Err(Failure::failed(format!("a digest has {length} characters; expected {characters}")));
        }
        count += 1;
    }
    if count != digests {
        return Err(Failure::failed(format!("{count} digests were written; expected {digests}")));
    }
    Ok(())
}
