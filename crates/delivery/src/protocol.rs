//! Which protocols there are. A new one is a folder like its siblings and a line in [`PROTOCOLS`].

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_model::{
    application::Channel,
    id::Name,
    problem::{Problem, closest},
};

use crate::{
    channel::{Context, OpenChannel},
    file, http,
    options::{self, Options},
    smtp,
};

/// What a protocol is, for reference pages and checks.
#[derive(Debug)]
pub struct ProtocolDescription {
    /// Its name in definitions.
    pub name: &'static str,
    /// What it does, in one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    check: fn(&Map<String, Value>, &str) -> Vec<Problem>,
    open: fn(&Name, &Channel, &Context) -> Opened,
}

type Opened = Result<Box<dyn OpenChannel>, Vec<Problem>>;

static PROTOCOLS: [ProtocolDescription; 3] = [
    describe::<smtp::SmtpOptions>("smtp", "mails over persistent, pipelined sessions to a mail server", smtp::open),
    describe::<http::HttpOptions>("http", "requests with Standard Webhooks signatures to the device's URL", http::open),
    describe::<file::FileOptions>("file", "records appended to a file, durable before they are answered", file::open),
];

const fn describe<T: Options + JsonSchema>(
    name: &'static str,
    summary: &'static str,
    open: fn(&Name, &Channel, &Context) -> Opened,
) -> ProtocolDescription {
    ProtocolDescription { name, summary, schema: || schemars::schema_for!(T), check: check_options::<T>, open }
}

fn check_options<T: Options>(given: &Map<String, Value>, path: &str) -> Vec<Problem> {
    options::read::<T>(given, path).err().unwrap_or_default()
}

/// All protocols, in the order in which they are best explained.
pub fn protocols() -> &'static [ProtocolDescription] {
    &PROTOCOLS
}

/// Every problem in a channel's options, their paths starting with `path` (`channels.mail.options`). Touches neither
/// disk nor network.
pub fn check(protocol: &Name, options: &Map<String, Value>, path: &str) -> Vec<Problem> {
    match find(protocol, path) {
        Ok(protocol) => (protocol.check)(options, path),
        Err(problem) => vec![problem],
    }
}

/// Starts a channel. Its sessions connect when there is something to send.
///
/// Must be called inside a tokio runtime, after the metrics recorder is in place.
///
/// # Errors
/// Every problem in its options, including files that cannot be read or written; paths are relative: `host`.
pub fn open(name: &Name, channel: &Channel, context: &Context) -> Opened {
    let protocol = find(&channel.protocol, "").map_err(|problem| vec![problem])?;
    (protocol.open)(name, channel, context)
}

fn find(name: &Name, path: &str) -> Result<&'static ProtocolDescription, Problem> {
    PROTOCOLS.iter().find(|protocol| protocol.name == name.as_str()).ok_or_else(|| {
        let problem = Problem::at(path, format!("`{name}` is not a protocol"));
        let names = PROTOCOLS.iter().map(|protocol| protocol.name);
        match closest(name.as_str(), names.clone()) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem.hint(format!("the protocols are {}", names.collect::<Vec<_>>().join(", "))),
        }
    })
}
