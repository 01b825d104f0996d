use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use tocsin_connect::options::Options;
use tocsin_model::problem::{Code, Problem};

use crate::http::{client::ClientOptions, connect::Target};

/// Highest priority of a message.
pub(super) const PRIORITY_MAX: u8 = 10;

/// Options of a channel with the protocol `gotify`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["url"]))]
pub struct GotifyOptions {
    /// URL of the server, with its path if it has one: `https://gotify.example.org`.
    pub url: String,
    /// Token of a Gotify application, for all messages. Default: the device's address is the token. Take it from the
    /// environment: `${GOTIFY_TOKEN}`.
    pub token: Option<String>,
    /// Priority of a message whose notification has the priority `normal`. Default: that of the Gotify application.
    /// `urgent` is 10, `high` is 8 and `low` is 2.
    #[schemars(range(min = 0, max = 10))]
    pub priority: Option<u8>,
    /// Whether the text is Markdown.
    pub markdown: bool,
    /// Extras of every message, by their names: `client::notification`. Those of the JSON template override them.
    pub extras: Map<String, Value>,
    /// The client.
    #[serde(flatten)]
    pub client: ClientOptions,
}

impl Default for GotifyOptions {
    fn default() -> Self {
        GotifyOptions {
            url: String::new(),
            token: None,
            priority: None,
            markdown: false,
            extras: Map::new(),
            client: ClientOptions::default(),
        }
    }
}

impl GotifyOptions {
    /// The target of a path below the server's URL. The error says what is wrong with the URL.
    pub(super) fn target(&self, path: &str) -> Result<Target, String> {
        if self.url.contains(['?', '#']) {
            return Err("the URL of the server has no query".into());
        }
        Target::parse(&format!("{}{path}", self.url.trim_end_matches('/')))
    }
}

impl Options for GotifyOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let example = "such as `https://gotify.example.org`";
        if self.url.is_empty() {
            problems.push(Problem::new(Code::Required, "url", "the server is missing").hint(example));
        } else if let Err(text) = self.target("/message") {
            problems.push(Problem::new(Code::InvalidFormat, "url", text).param("format", "url").hint(example));
        }
        if self.token.as_deref().is_some_and(|token| !is_token(token)) {
            let problem = Problem::new(Code::InvalidCharacters, "token", "this is not the token of an application");
            problems
                .push(problem.hint("copy it from the page `Apps` of Gotify; it has letters, digits, `.`, `-` and `_`"));
        }
        if self.priority.is_some_and(|priority| priority > PRIORITY_MAX) {
            problems.push(Problem::out_of_range("priority", 0, PRIORITY_MAX));
        }
        problems.extend(self.client.certificates.problems());
        problems
    }
}

/// Whether a text can be a token of Gotify: it goes into a header field.
pub(super) fn is_token(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=256).contains(&text.len()) && text.bytes().all(is_letter)
}
