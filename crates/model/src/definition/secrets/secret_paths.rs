//! The tables of options that hold secrets. The caller gives those of channels and sources; a new step with a secret is
//! a line here.

use super::{
    super::document::{Node, join},
    Language,
};

/// The secret part of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretShape {
    /// Passwords in URLs, and values of query parameters with secret names. The default for options that are not in
    /// the table.
    Addresses,
    /// All of it.
    Whole,
    /// Everything except placeholders, and the leading word with the authentication scheme.
    Value,
    /// Values under secret names, for mappings with free keys.
    Named,
    /// Every value except those of these names, in lower case.
    Except(&'static [&'static str]),
}

/// An option of a protocol, a kind or a step, and how much of it is secret.
pub type Row = (&'static str, &'static str, SecretShape);

/// The secret options of all protocols of channels and all kinds of sources: protocol or kind, path of the option
/// (`options.servers.password`, without list indexes), and how much of it is secret.
#[derive(Debug, Clone, Copy)]
pub struct OptionSecrets {
    /// The rows of channels.
    pub channels: &'static [Row],
    /// The rows of sources, and of receive locations.
    pub sources: &'static [Row],
}

/// The shape of header fields: all but those that are known to be harmless.
pub const HEADERS: SecretShape = SecretShape::Except(&[
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
static PORTS: [Row; 8] = [
    ("http", "options.secret", SecretShape::Whole),
    ("http", "options.headers", HEADERS),
    ("http", "backup.options.secret", SecretShape::Whole),
    ("http", "backup.options.headers", HEADERS),
    ("", "pipeline.sign", SecretShape::Whole),
    ("", "pipeline.run.environment", SecretShape::Whole),
    ("", "reply_pipeline.sign", SecretShape::Whole),
    ("", "reply_pipeline.run.environment", SecretShape::Whole),
];

/// The key of a receive port's locations; each has a kind.
const LOCATIONS: &str = "locations";

/// A section of a definition that holds secrets.
#[derive(Clone, Copy)]
pub(super) struct Section {
    name: &'static str,
    /// The key that selects the rows for an entry.
    key: &'static str,
    rows: &'static [Row],
    /// The rows of receive locations.
    locations: &'static [Row],
}

/// The sections of a definition that hold secrets.
pub(super) fn sections(language: Language, options: OptionSecrets) -> [Section; 2] {
    let section = |name, key, rows| Section { name, key, rows, locations: options.sources };
    match language {
        Language::Application => {
            [section("channels", "protocol", options.channels), section("sources", "kind", options.sources)]
        }
        Language::Exchange => [section("receive", "protocol", &PORTS), section("send", "protocol", &PORTS)],
    }
}

/// The channels, sources or ports in some sections of a definition, each with its path.
pub(super) fn roots(
    sections: impl IntoIterator<Item = Section>,
    root: &Node,
) -> impl Iterator<Item = (String, &Node, SecretPath)> {
    let of = move |section: Section| {
        let entries = root.get(section.name).map_or(&[][..], Node::entries).iter();
        entries.map(move |entry| {
            let of = entry.value.get(section.key).and_then(Node::text).unwrap_or_default().to_owned();
            let Section { name, rows, locations, .. } = section;
            let place = SecretPath { rows, locations, of, option: String::new(), form: SecretShape::Addresses };
            (join(name, &entry.key), &entry.value, place)
        })
    };
    sections.into_iter().flat_map(of)
}

/// A path below a channel, a source or a port.
pub(super) struct SecretPath {
    rows: &'static [Row],
    /// The rows of receive locations.
    locations: &'static [Row],
    /// The protocol or kind.
    of: String,
    /// The option's keys, without list indexes.
    option: String,
    form: SecretShape,
}

impl SecretPath {
    /// The secret part of the value at this path.
    pub fn form(&self) -> SecretShape {
        self.form
    }

    /// Whether both are below the same protocol or kind.
    pub fn is_of(&self, other: &SecretPath) -> bool {
        self.of == other.of
    }

    /// The path under a key with this value; a location is treated as a source.
    pub fn below(&self, key: &str, node: &Node) -> SecretPath {
        if self.option == LOCATIONS {
            let of = node.get("kind").and_then(Node::text).unwrap_or_default().to_owned();
            let (rows, form) = (self.locations, SecretShape::Addresses);
            return SecretPath { rows, locations: &[], of, option: String::new(), form };
        }
        let option = join(&self.option, key);
        let row = self.rows.iter().find(|(of, path, _)| *path == option && self.may_be(of));
        let form = match (row, self.form) {
            (Some((.., form)), _) => *form,
            (None, SecretShape::Named) if is_secret_name(key) => SecretShape::Value,
            (None, SecretShape::Except(known)) if known.contains(&key.to_ascii_lowercase().as_str()) => {
                SecretShape::Addresses
            }
            (None, SecretShape::Except(_)) => SecretShape::Value,
            (None, form) => form,
        };
        SecretPath { rows: self.rows, locations: self.locations, of: self.of.clone(), option, form }
    }

    /// Whether the protocol or kind matches; a variable matches any.
    fn may_be(&self, of: &str) -> bool {
        of.is_empty() || self.of == of || self.of.contains('$')
    }
}

/// Whether a freely chosen name denotes a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
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
