//! Command `endpoints`: shows device endpoints that fail permanently, and those disabled for it.

use serde_json::Value;

use super::lists::ItemList;
use crate::{
    client::{Client, present_parameters},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin endpoints`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// State to filter by: failing, warned or disabled
    #[arg(long)]
    state: Option<String>,
    /// Maximum number of rows
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the endpoints.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [("application", &self.application), ("channel", &self.channel), ("state", &self.state)];
        let items = client.list("/v1/endpoints", &present_parameters(&named), self.limit).await?;
        let heads =
            ["state", "application", "channel", "subscriber", "device", "since", "failures", "address", "reason"];
        ItemList { items, limit: self.limit, json: self.json }.show(terminal, "no endpoint is failing", &heads, row)
    }
}

fn row(item: &Value) -> Vec<String> {
    let names =
        ["state", "application", "channel", "subscriber", "device", "failing_since", "failures", "address", "reason"];
    let text = |name: &&str| match &item[*name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    names.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn disabled_endpoints_are_listed() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let item = json!({"application": "quakes", "channel": "hook", "subscriber": "ann", "device": "main",
            "address": "https://ann.example/hook", "state": "disabled", "failing_since": "2026-11-21T09:30:00Z",
            "last_failure": "2026-11-26T09:30:00Z", "failures": 71, "reason": "503"});
        let answers = vec![(200, json!({"items": [item]}))];
        let expected = expect![[r#"
            state     application  channel  subscriber  device  since                 failures  address                   reason
            disabled  quakes       hook     ann         main    2026-11-21T09:30:00Z  71        https://ann.example/hook  503
            GET /v1/endpoints?state=disabled&limit=1000"#]];
        fake_server::check("endpoints", &["--state", "disabled"], answers, run, expected).await;
    }
}
