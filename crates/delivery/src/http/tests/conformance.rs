use std::sync::{Arc, atomic::AtomicU32};

use async_trait::async_trait;
use serde_json::{Value, json};
use tocsin_connect::{options::read, tls};

use super::{HOOK, OK, Say, Script, Scripted, Silence};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise},
    http::{options::HttpOptions, start},
    testing::{channel, outgoing},
};

struct Conforming(Arc<Scripted>);

fn scripted(script: Script) -> Arc<Scripted> {
    Arc::new(Scripted { script: Arc::new(script), connections: AtomicU32::new(0), heads: Arc::default() })
}

fn open(server: Arc<Scripted>, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let options: HttpOptions =
        read(options.as_object().expect("an object"), "").unwrap_or_else(|problems| panic!("{problems:?}"));
    let trust = tls::client_config(&context.files, None, "ca_file").expect("no file");
    start(&"hook".parse().expect("a name"), &channel("http", json!({}), 4), context, options, trust, server)
}

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open(self.0.clone(), json!({}), &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        Some(open(scripted(|_, _, _| Silence), json!({ "timeout": "100ms" }), &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, HOOK)
    }

    async fn received_ids(&self) -> Vec<String> {
        let id = |request: &String| {
            let line = request.lines().find_map(|line| line.strip_prefix("webhook-id: "));
            line.map(str::to_owned)
        };
        self.0.heads.lock().iter().filter_map(id).collect()
    }

    fn in_flight_max(&self) -> usize {
        4
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    exercise(&Conforming(scripted(|_, _, _| Say(OK)))).await;
}
