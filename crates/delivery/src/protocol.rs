//! Table of protocols. A new protocol is a folder like its siblings and a line in [`PROTOCOLS`].

use std::sync::LazyLock;

use serde_json::{Map, Value};
use tocsin_connect::secrets;
use tocsin_model::{
    application::Channel,
    definition::secrets::Row,
    id::Name,
    problem::{Code, Problem, closest},
};

use crate::{
    channel::{Context, Opened},
    description::{OpenRequest, ProtocolDescription, SendPortAccess, SendPortDescription},
    file,
    folders::Folders,
    gotify,
    http::{self, call::Caller},
    inbox, matrix, mqtt, nats, process, smtp, webpush,
};

static PROTOCOLS: &[&ProtocolDescription] = &[
    &smtp::PROTOCOL,
    &http::PROTOCOL,
    &file::PROTOCOL,
    &inbox::PROTOCOL,
    &webpush::PROTOCOL,
    &nats::PROTOCOL,
    &mqtt::PROTOCOL,
    &process::PROTOCOL,
    &gotify::PROTOCOL,
    &matrix::PROTOCOL,
];

/// All protocols, in the order of the reference page.
pub fn protocols() -> &'static [&'static ProtocolDescription] {
    PROTOCOLS
}

/// The secret options of all protocols, with their paths in the definition of a channel.
pub fn channel_secrets() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> =
        LazyLock::new(|| secrets::rows(PROTOCOLS.iter().map(|protocol| (protocol.name, protocol.secrets))));
    &ROWS
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
    let open = (protocol.open)(&OpenRequest { name, channel, context, folders })?;
    open.set_rate(channel.flow.rate);
    Ok(open)
}

/// Whether the device's address is the receiving server itself, so that a failure counts against the device.
pub fn is_endpoint(channel: &Channel) -> bool {
    find(&channel.protocol, "").is_ok_and(|protocol| (protocol.is_endpoint)(&channel.options))
}

/// Opens the transport of a send port of an exchange; `path` is that of the port: `send.erp`.
///
/// # Errors
/// The protocol is unknown or not for ports, or every problem in its options.
pub fn open_send_port(
    protocol: &str,
    options: &Map<String, Value>,
    path: &str,
    access: &SendPortAccess<'_>,
) -> Result<Caller, Vec<Problem>> {
    let ports = || PROTOCOLS.iter().filter_map(|known| Some((known.name, known.send_port.as_ref()?)));
    let Some((_, port)) = ports().find(|(name, _): &(&str, &SendPortDescription)| *name == protocol) else {
        let names: Vec<String> = ports().map(|(name, _)| format!("`{name}`")).collect();
        let message = format!("`{protocol}` is not a protocol of send ports");
        let problem = Problem::new(Code::UnknownValue, format!("{path}.protocol"), message);
        return Err(vec![problem.hint(format!("give {}", names.join(" or ")))]);
    };
    (port.open)(options, &format!("{path}.options"), access)
}

fn find(name: &Name, path: &str) -> Result<&'static ProtocolDescription, Problem> {
    PROTOCOLS.iter().find(|protocol| protocol.name == name.as_str()).copied().ok_or_else(|| {
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
    use tocsin_connect::secrets::SecretName;
    use tocsin_model::definition::secrets::{Language, OptionSecrets, redact};

    use super::*;
    use crate::description::ChannelResource;

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
            "channels.c.options: `pigeon` is not a protocol; the protocols are smtp, http, file, inbox, webpush, nats, mqtt, process, gotify, matrix",
        );
    }

    /// A column that disagrees with the options of its protocol is a mistake.
    #[test]
    fn columns_agree_with_the_options() {
        for protocol in protocols() {
            let schema = (protocol.schema)();
            let has = |end: &str| {
                let properties = schema.get("properties").and_then(Value::as_object).expect("options");
                properties.keys().any(|name| name.ends_with(end))
            };
            let needs = |need| protocol.needs.contains(&need);
            assert_eq!(needs(ChannelResource::ReadableFiles), has("_file"), "{}", protocol.name);
            assert_eq!(needs(ChannelResource::CheckedAddresses), has("allow_networks"), "{}", protocol.name);
            assert_eq!(needs(ChannelResource::Programs), has("command"), "{}", protocol.name);
            assert!(!protocol.needs.is_empty(), "{}", protocol.name);
            for (option, _) in protocol.secrets {
                let first = option.split('.').next().expect("a name");
                assert!(has(first), "{}: {option}", protocol.name);
            }
            let row = channel_secrets().iter().filter(|(name, ..)| *name == protocol.name);
            assert_eq!(row.count(), protocol.secrets.len(), "{}", protocol.name);
        }
    }

    #[tokio::test]
    async fn channels_send_the_parts_of_their_row() {
        for (protocol, options) in [
            ("smtp", json!({ "host": "a.example", "from": "a@b.example" })),
            ("nats", json!({ "servers": ["nats://a.example"] })),
            ("mqtt", json!({ "host": "a.example" })),
            ("gotify", json!({ "url": "https://a.example" })),
            ("matrix", json!({ "url": "https://a.example", "access_token": "t" })),
        ] {
            let (name, channel) = ("c".parse().expect("a name"), crate::testing::channel(protocol, options, 1));
            let open = open(&name, &channel, &crate::testing::context()).unwrap_or_else(|found| panic!("{found:?}"));
            let row = find(&channel.protocol, "").expect("it is in the table");
            assert_eq!(open.parts_used(), row.parts, "{protocol}");
        }
    }

    #[test]
    fn every_secret_of_every_option_is_masked() {
        // Options with secret-like names that are not secrets.
        const NOT_SECRET: [(&str, &str); 2] = [("webpush", "public_key"), ("smtp", "headers")];
        let channels = protocols().iter().map(|protocol| ("channels", protocol.name, (protocol.schema)()));
        let ports = protocols().iter().filter_map(|protocol| Some((protocol.name, protocol.send_port.as_ref()?)));
        let ports = ports.map(|(name, port)| ("send", name, (port.schema)()));
        let (mut seen, options) = (0, OptionSecrets { channels: channel_secrets(), sources: &[] });
        for (section, name, schema) in channels.chain(ports) {
            let language = if section == "send" { Language::Exchange } else { Language::Application };
            for SecretName { option, is_map, list } in secrets::secret_names(&schema.to_value()) {
                if NOT_SECRET.contains(&(name, &option)) {
                    continue;
                }
                let value = if is_map { json!({"X-Own": "hunter2"}) } else { json!("hunter2") };
                let given = match &list {
                    Some(list) => json!({ list: [{ &option: value }] }),
                    None => json!({ &option: value }),
                };
                let text = json!({ section: { "one": { "protocol": name, "options": given } } }).to_string();
                let shown = redact(language, &text, options);
                assert!(shown.contains("***") && !shown.contains("hunter2"), "{section} {name} {option}: {shown}");
                seen += 1;
            }
        }
        assert!(seen > 10, "only {seen} secrets are known");
    }

    #[test]
    fn an_endpoint_is_a_server_that_a_device_names() {
        let is = |protocol: &str, options: Value| is_endpoint(&crate::testing::channel(protocol, options, 1));
        assert!(is("http", json!({})) && is("webpush", json!({})));
        assert!(!is("http", json!({ "url": "https://a.example/" })) && !is("smtp", json!({})));
        assert!(!is("gotify", json!({})) && !is("pigeon", json!({})));
    }

    #[test]
    fn send_ports_use_the_protocols_that_have_the_column() {
        let (networks, files) = Default::default();
        let clock: std::sync::Arc<dyn tocsin_connect::Clock> = std::sync::Arc::new(tocsin_connect::SystemClock);
        let access = SendPortAccess { networks: &networks, files: &files, clock: &clock };
        let open = |protocol: &str, options: Value| {
            let opened = open_send_port(protocol, options.as_object().expect("an object"), "send.erp", &access);
            opened.err().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(open("http", json!({ "url": "https://a.example/" })), "");
        assert!(open("http", json!({})).starts_with("send.erp.options.url: is missing"));
        let expected = "send.erp.protocol: `smtp` is not a protocol of send ports; give `http`";
        assert_eq!(open("smtp", json!({})), expected);
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
