//! Digests through the whole server: several notifications of a reader become one message by a stylesheet, which makes 200
//! characters of each.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use serde_json::Value;

use super::{Bench, Measuring, deliver_file::find};
use crate::{
    bench::{
        context::Context,
        fanout::Fanout,
        figure::{Figure, Samples},
    },
    failure::{Failure, Outcome},
};

macro_rules! digests {
    ($($constant:ident $name:literal $told:literal $by_default:literal,)*) => {
        $(
            /// As many to a digest as its name says.
            pub const $constant: Bench = Bench {
                name: $name,
                about: "notifications/s by a stylesheet into a file, as many to a digest as its name says, receipts durable",
                by_default: $by_default,
                run: |context| -> Measuring<'_> { Box::pin(run(context, $told)) },
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

/// What a notification is made.
const CHARACTERS: usize = 200;
/// What of that the stylesheet says itself, beside the topic.
const PROSE: &str = "News of ";

/// One notification batch holds all, or a reader would get the digests of two; one task makes the messages of a batch.
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

async fn run(context: &Context, told: u64) -> Outcome<Figure> {
    // As many for each number of them.
    let notifications = context.size(60_000, 1_200);
    let readers = notifications / told;
    let mut fanout =
        Fanout::start_with(context, &definition(notifications), readers, |number| format!("reader{number}")).await?;
    let characters = CHARACTERS - PROSE.len() - "all".len() - ": ".len() - "\n".len();
    let mut ours = Samples::default();
    for _ in context.turns() {
        ours.push(notifications as f64 / fanout.tell_all_of(told, characters).await?.as_secs_f64());
    }
    check(&find(&fanout.server.folder)?, readers * ours.len() as u64, told as usize * CHARACTERS)?;
    Ok(Figure::new("notifications/s", ours)
        .under(format!(
            "{notifications} notifications of {CHARACTERS} characters, {told} to a digest, {readers} readers"
        ))
        .under("XSLT, made by one task, written to a file")
        .under("from acceptance to the last durable receipt"))
}

/// Whether a file has so many digests, each of so many characters.
fn check(file: &Path, digests: u64, characters: usize) -> Outcome {
    let opened = File::open(file).map_err(|error| Failure::file("open", file, &error))?;
    let mut count = 0;
    for line in BufReader::new(opened).lines() {
        let line = line.map_err(|error| Failure::file("read", file, &error))?;
        let record: Value = serde_json::from_str(&line).unwrap_or_default();
        let length = record["text"].as_str().map_or(0, |text| text.chars().count());
        if length != characters {
            return Err(Failure::failed(format!("a digest has {length} characters, and should have {characters}")));
        }
        count += 1;
    }
    if count != digests {
        return Err(Failure::failed(format!("{count} digests were written, and there should be {digests}")));
    }
    Ok(())
}
