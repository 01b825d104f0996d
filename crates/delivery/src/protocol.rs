//! Table of protocols. A new protocol is a folder like its siblings and a line in [`PROTOCOLS`].

use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};
use tocsin_model::{
    application::Channel,
    id::Name,
    problem::{Code, Problem, closest},
};

use crate::{
    channel::{Context, OpenChannel},
    file,
    folders::Folders,
    http, inbox, mqtt, nats,
    options::{self, Options},
    process, smtp, webpush,
};

/// Description of a protocol, for reference pages and checks.
#[derive(Debug)]
pub struct ProtocolDescription {
    /// Its name in definitions.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub summary: &'static str,
    /// The JSON Schema of its options.
    pub schema: fn() -> Schema,
    check: fn(&Map<String, Value>, &str) -> Vec<Problem>,
    open: fn(&Name, &Channel, &Context) -> Opened,
}

/// An opened channel, or every problem in its options.
pub type Opened = Result<Box<dyn OpenChannel>, Vec<Problem>>;

static PROTOCOLS: [ProtocolDescription; 8] = [
    describe::<smtp::SmtpOptions>("smtp", "mails over persistent, pipelined sessions to a mail server", smtp::open),
    describe::<http::HttpOptions>(
        "http",
        "requests to the device's URL or a service, with Standard Webhooks signatures",
        http::open,
    ),
    describe::<file::FileOptions>("file", "records appended to a file, durable before they are answered", file::open),
    describe::<inbox::InboxOptions>(
        "inbox",
        "items for the feeds that subscribers read, in pages and as they come",
        inbox::open,
    ),
    describe::<webpush::WebPushOptions>(
        "webpush",
        "encrypted messages to browsers through their push services, signed with a VAPID key",
        webpush::open,
    ),
    describe::<nats::NatsOptions>("nats", "messages that a stream of NATS JetStream keeps", nats::open),
    describe::<mqtt::MqttOptions>("mqtt", "messages to the topics of an MQTT 5 broker", mqtt::open),
    describe::<process::ProcessOptions>(
        "process",
        "lines of JSON to a program of yours, and its answers",
        process::open,
    ),
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

/// All protocols, in the order of the reference page.
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
    open_with(&Folders::default(), name, channel, context)
}

/// As [`open`], with folders outside the data folder that channels may write to.
///
/// # Errors
/// As for [`open`].
pub fn open_with(folders: &Folders, name: &Name, channel: &Channel, context: &Context) -> Opened {
    let protocol = find(&channel.protocol, "").map_err(|problem| vec![problem])?;
    let open = match protocol.name {
        "file" => file::open_with(folders, name, channel, context)?,
        _ => (protocol.open)(name, channel, context)?,
    };
    open.set_rate(channel.flow.rate);
    Ok(open)
}

/// Whether the device's address is the receiving server itself, so that a failure counts against the device.
pub fn is_endpoint(channel: &Channel) -> bool {
    match channel.protocol.as_str() {
        "http" => http::is_endpoint(&channel.options),
        "webpush" => true,
        _ => false,
    }
}

fn find(name: &Name, path: &str) -> Result<&'static ProtocolDescription, Problem> {
    PROTOCOLS.iter().find(|protocol| protocol.name == name.as_str()).ok_or_else(|| {
        let problem = Problem::new(Code::UnknownValue, path, format!("`{name}` is not a protocol"))
            .param("value", name.to_string());
        let names = PROTOCOLS.iter().map(|protocol| protocol.name);
        match closest(name.as_str(), names.clone()) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem.hint(format!("the protocols are {}", names.collect::<Vec<_>>().join(", "))),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The problems of some options, one a line.
    fn check(protocol: &str, options: Value, expected: &str) {
        let protocol = protocol.parse().expect("a name");
        let problems = super::check(&protocol, options.as_object().expect("an object"), "channels.c.options");
        let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(shown.join("\n"), expected);
    }

    #[test]
    fn all_problems_at_once() {
        check(
            "smtp",
            json!({ "host": "mail.example.org", "from": "Tocsin <a@b.example>", "tls": "required", "port": 2525 }),
            "",
        );
        check(
            "smtp",
            json!({ "hots": "mail", "port": 70000, "tls": "maybe", "username": "me", "headers": { "Subject": "x", "a b": "c" } }),
            "channels.c.options.hots: `hots` is not an option here; did you mean `host`?\n\
             channels.c.options.port: invalid value: integer `70000`, expected u16\n\
             channels.c.options.tls: unknown variant `maybe`, expected one of `off`, `if_offered`, `required`, `implicit`\n\
             channels.c.options.host: the mail server is missing; give its name or address, such as `mail.example.org`\n\
             channels.c.options.password: a user name needs a password; take it from the environment: `${SMTP_PASSWORD}`\n\
             channels.c.options.from: the sender is missing; write `name@domain` or `Shown Name <name@domain>`\n\
             channels.c.options.headers.Subject: this header field is written by the channel itself; leave it out\n\
             channels.c.options.headers.a b: this is not the name of a header field; letters, digits and `-`",
        );
        check(
            "smtp",
            json!({
                "servers": [{ "host": "a b" }, { "host": "b.example", "username": "me", "tls": "off", "password": "x", "weight": 0 }],
                "from": "a@b.example", "return_path": "A <a@b.example>", "dkim": [{ "selector": "s 1" }], "recipients_max": 0,
            }),
            "channels.c.options.servers[0].host: this is not a host name or address; give it without scheme and port\n\
             channels.c.options.servers[1].tls: the password would travel in clear text; set `tls: required`, or `allow_plain_auth: true` if that is meant\n\
             channels.c.options.servers[1].weight: a weight is from 1 to 1000; leave it out for 1\n\
             channels.c.options.dkim[0].selector: this cannot be part of a name in DNS; such as `tocsin1`\n\
             channels.c.options.dkim[0].key: the private key is missing; give `key: ${DKIM_KEY}`, or `key_file`\n\
             channels.c.options.return_path: this is not a mail address; write `bounces@example.org`, without a shown name\n\
             channels.c.options.recipients_max: a mail has from 1 to 1000 recipients; leave it out for 50; servers take 100 at least",
        );
        check(
            "smtp",
            json!({ "servers": [{ "hots": "a" }], "host": "b", "from": "a@b.example" }),
            "channels.c.options.servers: unknown field `hots`, expected one of `host`, `port`, `tls`, `ca_file`, `username`, `password`, \
             `token_file`, `weight`",
        );
        check(
            "http",
            json!({ "secret": "hunter2", "timeout": "soon", "allow_networks": ["10.0.0.0/99"] }),
            "channels.c.options.timeout: `soon` is not a time from 1ms to 24h, such as `500ms`, `30s`, `5m` or `2h`\n\
             channels.c.options.allow_networks: `10.0.0.0/99` is not a network, such as `10.0.0.0/8`, `fd00::/8` or `127.0.0.1`\n\
             channels.c.options.secret: a secret starts with `whsec_`, or with `whsk_` for a key pair; make one with `echo whsec_$(openssl rand -base64 32)` and take it \
             from the environment",
        );
        check(
            "file",
            json!({ "path": "../x", "rotate_bytes": 1, "format": "ndjson" }),
            "channels.c.options.path: a relative name stays in the data folder; a folder that `delivery.allow_folders` opens is given by its whole path\n\
             channels.c.options.rotate_bytes: a file is at least 4096 bytes long before it is renamed",
        );
        check(
            "file",
            json!({ "path": "./journal.db" }),
            "channels.c.options.path: ./journal.db is a name that the server keeps for itself; choose another",
        );
        check("file", json!({ "path": "/srv/a/../b" }), "channels.c.options.path: a path goes without `..`");
        check(
            "file",
            json!({ "format": "ndjson", "columns": ["id", "place", "id"] }),
            "channels.c.options.columns: only CSV has columns; add `format: csv`, or leave them out\n\
             channels.c.options.columns[2]: the column `id` is there already",
        );
        check(
            "process",
            json!({ "command": ["send-sms", "--fast\0"], "environment": { "A=B": "c" }, "window": 0 }),
            "channels.c.options.command[0]: the program is given by its whole path, such as `/usr/local/bin/send-sms`\n\
             channels.c.options.command[1]: an argument cannot hold a NUL\n\
             channels.c.options.environment.A=B: this is not the name of a variable\n\
             channels.c.options.window: at least 1 and at most 4096 messages are on their way to a program",
        );
        check(
            "process",
            json!({}),
            "channels.c.options.command: the program is missing; give it and its arguments: `[/usr/local/bin/send-sms, --fast]`",
        );
        check(
            "nats",
            json!({ "servers": ["broker:4222", "http://x"], "subject_prefix": "a..b>", "username": "me", "token": "t" }),
            "channels.c.options.servers[1]: this is not the address of a server; such as `nats://broker.example.org:4222` or `tls://…`\n\
             channels.c.options.token: there is more than one way to log in here; keep one of `token`, `username` and `credentials_file`\n\
             channels.c.options.password: a user name needs a password; take it from the environment: `${NATS_PASSWORD}`\n\
             channels.c.options.subject_prefix: a subject is words with dots between them, without spaces and wildcards; such as `notices.`",
        );
        check(
            "mqtt",
            json!({ "topic_prefix": "a/+/", "qos": 3, "retain": "perhaps" }),
            "channels.c.options.retain: invalid type: string \"perhaps\", expected a boolean\n\
             channels.c.options.host: the broker is missing; give its name or address, such as `broker.example.org`\n\
             channels.c.options.topic_prefix: a topic that is written to holds no `+`, `#` or NUL\n\
             channels.c.options.qos: 1 (at least once) or 2 (exactly once); with 0 the broker does not acknowledge it",
        );
        check("smpt", json!({}), "channels.c.options: `smpt` is not a protocol; did you mean `smtp`?");
        check(
            "pigeon",
            json!({}),
            "channels.c.options: `pigeon` is not a protocol; the protocols are smtp, http, file, inbox, webpush, nats, mqtt, process",
        );
    }

    #[test]
    fn every_option_is_explained() {
        for protocol in protocols() {
            let schema = (protocol.schema)();
            let properties = schema.get("properties").and_then(Value::as_object).expect("options");
            for (name, option) in properties {
                assert!(option.get("description").is_some(), "{}: {name}", protocol.name);
            }
        }
        let required = (protocols()[0].schema)();
        assert_eq!(required.get("required"), Some(&json!(["from"])));
    }
}
