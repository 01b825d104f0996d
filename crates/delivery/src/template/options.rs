use schemars::JsonSchema;
use serde::Deserialize;
use tocsin_connect::options::{Options, Wait};
use tocsin_model::problem::{Code, Problem};

/// Options of a channel with the protocol `line`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["host"]))]
pub struct LineOptions {
    /// Host name or address of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// Timeout of connecting and of each answer.
    pub timeout: Wait,
}

impl Default for LineOptions {
    fn default() -> Self {
        LineOptions { host: String::new(), port: 4000, timeout: Wait::seconds(10) }
    }
}

impl Options for LineOptions {
    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.host.is_empty() {
            let problem = Problem::new(Code::Required, "host", "the server is missing");
            problems.push(problem.hint("give its name or address, such as `lines.example.org`"));
        }
        problems
    }
}
