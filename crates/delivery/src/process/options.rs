use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::{
    options::{Options, Wait},
    programs::command,
};
use tocsin_model::problem::{Code, Problem};

/// Most messages in flight to one program.
const WINDOW_MAX: u32 = 4096;

/// Options of a channel with the protocol `process`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["command"]))]
pub struct ProcessOptions {
    /// Absolute path of the program, and its arguments; no shell is involved. The configuration must allow it:
    /// `delivery.allow_programs`. The channel's `concurrency` is the number of its instances.
    pub command: Vec<String>,
    /// Environment variables of the program, besides `PATH`; it gets no others of the server's.
    pub environment: BTreeMap<String, String>,
    /// Most unanswered messages of one program.
    #[schemars(range(min = 1, max = 4096))]
    pub window: u32,
    /// Timeout of an answer; the message is then retried later.
    pub timeout: Wait,
    /// Time that a program has to end after its input is closed; then it is killed.
    pub grace: Wait,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        ProcessOptions {
            command: Vec::new(),
            environment: BTreeMap::new(),
            window: 64,
            timeout: Wait::seconds(30),
            grace: Wait::seconds(10),
        }
    }
}

impl Options for ProcessOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = command::problems(&self.command, &self.environment, "/usr/local/bin/send-sms, --fast");
        if !(1..=WINDOW_MAX).contains(&self.window) {
            let text = format!("at least 1 and at most {WINDOW_MAX} messages are on their way to a program");
            problems.push(Problem::new(Code::OutOfRange, "window", text).param("least", 1).param("most", WINDOW_MAX));
        }
        problems
    }
}
