//! The table of options that hold secrets. A new protocol, kind or step with a secret is a line here.

use super::{
    super::document::{Node, join},
    Language,
};

/// How much of an option is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Passwords in addresses, and values of their queries whose names tell of a secret. So it is wherever the table says
    /// nothing.
    Addresses,
    /// All of it.
    Whole,
    /// All of it, but for places that a message fills in, and for the word in front of them that says how it is proved.
    Value,
    /// What stands under a name that tells of a secret: the names are those of others.
    Named,
    /// Every value but those of these names, written small.
    Except(&'static [&'static str]),
}

/// An option of a protocol, a kind or a step, and how much of it is secret.
type Row = (&'static str, &'static str, Form);

/// Headers that are known to be harmless.
const HEADERS: Form = Form::Except(&[
    "accept",
    "accept-language",
    "cache-control",
    "content-language",
    "content-type",
    "idempotency-key",
    "prefer",
    "priority",
    "user-agent",
]);
/// What recipes ask for beside their secrets.
const WITH: Form = Form::Except(&["account", "from", "server", "type"]);

static CHANNELS: [Row; 14] = [
    ("smtp", "options.password", Form::Whole),
    ("smtp", "options.servers.password", Form::Whole),
    ("smtp", "options.dkim.key", Form::Whole),
    ("http", "options.password", Form::Whole),
    ("http", "options.secret", Form::Whole),
    ("http", "options.headers", HEADERS),
    ("http", "options.with", WITH),
    ("http", "options.body", Form::Named),
    ("http", "options.recipients", Form::Named),
    ("webpush", "options.private_key", Form::Whole),
    ("nats", "options.token", Form::Whole),
    ("nats", "options.password", Form::Whole),
    ("mqtt", "options.password", Form::Whole),
    ("process", "options.environment", Form::Whole),
];
static SOURCES: [Row; 8] = [
    ("poll", "options.headers", HEADERS),
    ("feed", "options.headers", HEADERS),
    ("nats", "options.token", Form::Whole),
    ("nats", "options.password", Form::Whole),
    ("kafka", "options.password", Form::Whole),
    ("mqtt", "options.password", Form::Whole),
    ("mail", "options.password", Form::Whole),
    ("process", "options.environment", Form::Whole),
];
static PORTS: [Row; 8] = [
    ("http", "options.secret", Form::Whole),
    ("http", "options.headers", HEADERS),
    ("http", "backup.options.secret", Form::Whole),
    ("http", "backup.options.headers", HEADERS),
    ("", "pipeline.sign", Form::Whole),
    ("", "pipeline.run.environment", Form::Whole),
    ("", "reply_pipeline.sign", Form::Whole),
    ("", "reply_pipeline.run.environment", Form::Whole),
];

/// Where the locations of a receive port stand, each with its kind.
const LOCATIONS: &str = "locations";

/// A section of a definition, the key that says which rows hold for an entry of it, and those rows.
type Section = (&'static str, &'static str, &'static [Row]);

static APPLICATION: [Section; 2] = [("channels", "protocol", &CHANNELS), ("sources", "kind", &SOURCES)];
static EXCHANGE: [Section; 2] = [("receive", "protocol", &PORTS), ("send", "protocol", &PORTS)];

/// The channels, sources or ports of a definition, each with its path.
pub(super) fn roots(language: Language, root: &Node) -> impl Iterator<Item = (String, &Node, Place)> {
    let of = |(section, key, rows): &'static Section| {
        let entries = root.get(section).map_or(&[][..], Node::entries).iter();
        entries.map(move |entry| {
            let of = entry.value.get(key).and_then(Node::text).unwrap_or_default().to_owned();
            let place = Place { rows, of, option: String::new(), form: Form::Addresses };
            (join(section, &entry.key), &entry.value, place)
        })
    };
    let sections = match language {
        Language::Application => &APPLICATION,
        Language::Exchange => &EXCHANGE,
    };
    sections.iter().flat_map(of)
}

/// A place below a channel, a source or a port.
pub(super) struct Place {
    rows: &'static [Row],
    /// The protocol or kind.
    of: String,
    /// The keys down to here, without places in lists.
    option: String,
    form: Form,
}

impl Place {
    /// How much of what stands here is secret.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Whether both are below the same protocol or kind.
    pub fn is_of(&self, other: &Place) -> bool {
        self.of == other.of
    }

    /// The place under a key, with what stands there: a location is like a source.
    pub fn below(&self, key: &str, node: &Node) -> Place {
        if self.option == LOCATIONS {
            let of = node.get("kind").and_then(Node::text).unwrap_or_default().to_owned();
            return Place { rows: &SOURCES, of, option: String::new(), form: Form::Addresses };
        }
        let option = join(&self.option, key);
        let row = self.rows.iter().find(|(of, path, _)| *path == option && self.may_be(of));
        let form = match (row, self.form) {
            (Some((.., form)), _) => *form,
            (None, Form::Named) if tells_of_a_secret(key) => Form::Value,
            (None, Form::Except(known)) if known.contains(&key.to_ascii_lowercase().as_str()) => Form::Addresses,
            (None, Form::Except(_)) => Form::Value,
            (None, form) => form,
        };
        Place { rows: self.rows, of: self.of.clone(), option, form }
    }

    /// Whether this may be of a protocol or kind: a variable may be any.
    fn may_be(&self, of: &str) -> bool {
        of.is_empty() || self.of == of || self.of.contains('$')
    }
}

/// Whether a name that somebody else chose tells of a secret.
pub(super) fn tells_of_a_secret(name: &str) -> bool {
    const WITHIN: [&str; 10] = [
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "apikey",
        "accesskey",
        "privatekey",
        "credential",
        "authorization",
    ];
    const ALONE: [&str; 6] = ["key", "auth", "pwd", "pass", "sig", "signature"];
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    ALONE.contains(&plain.as_str()) || WITHIN.iter().any(|word| plain.contains(word))
}
