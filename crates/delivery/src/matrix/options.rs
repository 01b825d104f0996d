use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tocsin_connect::options::Options;
use tocsin_model::problem::{Code, Problem};
use url::Url;

use crate::http::{client::ClientOptions, connect::Target};

/// Longest access token; it goes into a header field.
const TOKEN_BYTES_MAX: usize = 4096;

/// Options of a channel with the protocol `matrix`.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["url", "access_token"]))]
pub struct MatrixOptions {
    /// Base URL of the homeserver's client-server API, with its path if it has one: `https://matrix.example.org`.
    pub url: String,
    /// Access token of the account that sends the messages. Take it from the environment: `${MATRIX_TOKEN}`.
    pub access_token: String,
    /// Type of the messages.
    pub message_type: MessageType,
    /// Whether notifications with the priority `urgent` mention the whole room. The account needs the power level for
    /// it in the room.
    pub mention_room: bool,
    /// Whether the account joins a room that refuses its messages: a room that has invited it, or a public one.
    pub join: bool,
    /// The client.
    #[serde(flatten)]
    pub client: ClientOptions,
}

/// Type of a message in Matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum MessageType {
    /// A message of a person; clients show a notification.
    #[default]
    #[serde(rename = "m.text")]
    Text,
    /// A message of a program; clients show no notification unless their user has set one.
    #[serde(rename = "m.notice")]
    Notice,
}

impl MatrixOptions {
    /// The target of a path below `/_matrix/client/v3`, whose segments are escaped. The error says what is wrong with
    /// the URL of the homeserver.
    pub(super) fn target(&self, segments: &[&str]) -> Result<Target, String> {
        if self.url.contains(['?', '#']) {
            return Err("the URL of the homeserver has no query".into());
        }
        // The scheme and the host are checked first.
        Target::parse(&self.url)?;
        let mut url = Url::parse(&self.url).map_err(|error| error.to_string())?;
        url.path_segments_mut()
            .map_err(|()| "the URL of the homeserver has no path")?
            .pop_if_empty()
            .extend(["_matrix", "client", "v3"])
            .extend(segments);
        Target::parse(url.as_str())
    }
}

impl Options for MatrixOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let example = "such as `https://matrix.example.org`";
        if self.url.is_empty() {
            problems.push(Problem::new(Code::Required, "url", "the homeserver is missing").hint(example));
        } else if let Err(text) = self.target(&[]) {
            problems.push(Problem::new(Code::InvalidFormat, "url", text).param("format", "url").hint(example));
        }
        let from_environment = "take it from the environment: `${MATRIX_TOKEN}`";
        if self.access_token.is_empty() {
            let problem = Problem::new(Code::Required, "access_token", "the access token is missing");
            problems.push(problem.hint(from_environment));
        } else if !is_token(&self.access_token) {
            let problem = Problem::new(Code::InvalidCharacters, "access_token", "this is not an access token");
            problems.push(problem.hint("it has no spaces, and only characters of ASCII"));
        }
        problems.extend(self.client.certificates.problems());
        problems
    }
}

fn is_token(text: &str) -> bool {
    text.len() <= TOKEN_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}
