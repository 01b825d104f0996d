use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use tocsin_connect::options::read;

use super::scripted_server::{Scripted, Silence, accept_all};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise},
    smtp::{options::SmtpOptions, start},
    testing::outgoing,
};

struct Conforming(Arc<Scripted>);

fn open(server: Arc<Scripted>, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let mut all = json!({ "host": "far.example", "from": "Tocsin <bells@near.example>" });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let options: SmtpOptions =
        read(all.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let name = "mail".parse().expect("a name");
    start(&name, 4, context, options, server).unwrap_or_else(|problems| panic!("{problems:?}"))
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open(self.0.clone(), json!({}), &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        let silent = Scripted::new(
            |connection, mail, heard| match heard {
                "." => Silence,
                _ => accept_all(connection, mail, heard),
            },
            None,
        );
        Some(open(silent, json!({ "content_timeout": "100ms" }), &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "a@b.example")
    }

    async fn received_ids(&self) -> Vec<String> {
        let id = |mail: &String| {
            let (_, rest) = mail.split_once("Message-ID: <")?;
            Some(rest.split_once('@')?.0.to_owned())
        };
        self.0.seen.lock().contents.iter().filter_map(id).collect()
    }

    fn in_flight_max(&self) -> usize {
        // Each of four sessions sends the envelope of the next mail with the content of one.
        16
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    exercise(&Conforming(Scripted::new(accept_all, None))).await;
}
