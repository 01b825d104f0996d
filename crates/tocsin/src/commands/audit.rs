//! Command `audit`: lists the changes that callers made.

use serde_json::Value;

use super::lists::{ItemList, search, texts};
use crate::{
    client::{Client, present_parameters},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin audit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tocsin audit --object subscriber:ada
  tocsin audit --actor user:ada --from 2027-01-04T00:00:00Z
  tocsin audit --action 'switches.*'
  tocsin export audit -o audit.csv")]
pub struct Args {
    /// Actor to filter by, such as user:ada or key:0a1b2c3d; a `*` at the end makes a prefix
    #[arg(long)]
    actor: Option<String>,
    /// Action to filter by, such as subscribers.put or 'subscribers.*'
    #[arg(long)]
    action: Option<String>,
    /// Object to filter by, such as subscriber:ada or 'subscriber:*'
    #[arg(long)]
    object: Option<String>,
    /// Request id to filter by
    #[arg(long = "request", value_name = "ID")]
    request_id: Option<String>,
    /// Start of the period, such as 2027-01-04T08:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Maximum number of rows
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    limit: usize,
    /// Print JSON, with the objects before and after
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the entries, newest first.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let named = [
            ("actor", &self.actor),
            ("action", &self.action),
            ("object", &self.object),
            ("request_id", &self.request_id),
            ("from", &self.from),
            ("to", &self.to),
        ];
        let items = search(client, "/v1/audit", &present_parameters(&named), self.limit).await?;
        let heads = ["TIME", "ACTOR", "ADDRESS", "ACTION", "OBJECT", "CHANGED", "REASON"];
        ItemList { items, limit: self.limit, json: self.json }.show(terminal, "no entries", &heads, row)
    }
}

fn row(item: &Value) -> Vec<String> {
    let mut cells = texts(item, &["at", "actor", "address", "action", "object"]);
    let changed = match item["more"].as_u64() {
        Some(more @ 1..) => format!("{} and {more} more", changed(item)),
        _ => changed(item),
    };
    cells.push(printable(changed.trim_start()).into_owned());
    cells.extend(texts(item, &["reason"]));
    cells
}

/// Names of the members that differ before and after.
fn changed(item: &Value) -> String {
    match (&item["before"], &item["after"]) {
        (Value::Null, Value::Null) => String::new(),
        (Value::Null, _) => "created".to_owned(),
        (_, Value::Null) => "removed".to_owned(),
        (before, after) => {
            let names = before.as_object().into_iter().chain(after.as_object()).flat_map(|members| members.keys());
            let mut names: Vec<&String> = names.filter(|name| before[name.as_str()] != after[name.as_str()]).collect();
            names.sort_unstable();
            names.dedup();
            names.retain(|name| *name != "revision");
            names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn entries_name_what_changed() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let entry = |object: &str, before: Value, after: Value, more: u64| {
            json!({"id": "records-1", "at": "2026-11-27T08:00:00Z", "actor": "user:ada", "address": "192.0.2.1",
                "action": "subscribers.put", "object": object, "before": before, "after": after, "more": more,
                "reason": "a request", "request_id": "r1"})
        };
        let (old, new) = (json!({"locale": "de", "revision": 1}), json!({"locale": "en", "revision": 2}));
        let answers = vec![(
            200,
            json!({"items": [
                entry("subscriber:a", old.clone(), new.clone(), 0),
                entry("subscriber:b", Value::Null, new, 0),
                entry("subscriber:c", old, Value::Null, 7),
            ]}),
        )];
        let expected = expect![[r#"
            TIME                  ACTOR     ADDRESS    ACTION           OBJECT        CHANGED             REASON
            2026-11-27T08:00:00Z  user:ada  192.0.2.1  subscribers.put  subscriber:a  locale              a request
            2026-11-27T08:00:00Z  user:ada  192.0.2.1  subscribers.put  subscriber:b  created             a request
            2026-11-27T08:00:00Z  user:ada  192.0.2.1  subscribers.put  subscriber:c  removed and 7 more  a request
            GET /v1/audit?object=subscriber%3A%2A&limit=100"#]];
        fake_server::check("audit", &["--object", "subscriber:*"], answers, run, expected).await;
    }
}
