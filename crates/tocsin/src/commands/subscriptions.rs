//! Manages subscriptions.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::lists::{ItemList, assignment, patch, texts, warnings};
use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin subscriptions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List subscriptions
    List {
        /// Application to filter by
        #[arg(long)]
        application: Option<String>,
        /// Subscription class to filter by; needs --application
        #[arg(long, requires = "application")]
        class: Option<String>,
        /// Subscriber to filter by
        #[arg(long)]
        subscriber: Option<String>,
        /// Maximum number of subscriptions
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a subscription as JSON
    Show {
        /// Subscription, such as s-15
        id: String,
    },
    /// Add a subscription, or replace the one with the same key
    #[command(after_help = "Example:
  tocsin subscriptions add quakes nearby ada --value magnitude=5 --value distance_km=300")]
    Add {
        /// Application
        application: String,
        /// Subscription class
        class: String,
        /// Subscriber
        subscriber: String,
        #[command(flatten)]
        fields: Fields,
        /// Key of your own, unique for subscriber and class; a second subscription with it replaces the first
        #[arg(long, value_name = "KEY")]
        creator_key: Option<String>,
    },
    /// Change fields of a subscription; the others stay
    Change {
        /// Subscription, such as s-15
        id: String,
        #[command(flatten)]
        fields: Fields,
        /// Enable or disable the subscription
        #[arg(long, value_name = "BOOL")]
        enabled: Option<bool>,
        /// End of a pause, such as 2026-12-24T18:00:00Z; matching continues from then on
        #[arg(long, value_name = "TIME")]
        snoozed_until: Option<String>,
    },
    /// Remove a subscription
    Remove {
        /// Subscription, such as s-15
        id: String,
    },
}

/// Fields of a subscription that `add` and `change` take.
#[derive(Debug, clap::Args)]
struct Fields {
    /// Field of the class, such as magnitude=5; the value is JSON or text; repeatable
    #[arg(long = "value", value_name = "NAME=VALUE", value_parser = assignment)]
    values: Vec<(String, Value)>,
    /// Device of the subscriber; without it, the first usable one
    #[arg(long)]
    device: Option<String>,
}

impl Fields {
    /// The members that were given, as a JSON merge patch.
    fn members(self) -> Map<String, Value> {
        let mut members = Map::new();
        if !self.values.is_empty() {
            members.insert("values".to_owned(), Value::Object(self.values.into_iter().collect()));
        }
        self.device.map(|device| members.insert("device".to_owned(), device.into()));
        members
    }
}

fn path_of(id: &str) -> String {
    format!("/v1/subscriptions/{}", segment(id))
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.action {
            Action::List { application, class, subscriber, limit, json } => {
                let query = present_parameters(&[
                    ("application", &application),
                    ("class", &class),
                    ("subscriber", &subscriber),
                ]);
                let items = client.list("/v1/subscriptions", &query, limit).await?;
                let heads = ["SUBSCRIPTION", "APPLICATION", "CLASS", "SUBSCRIBER", "ENABLED", "VALUES"];
                ItemList { items, limit, json }.show(terminal, "there are no subscriptions", &heads, |item| {
                    texts(item, &["id", "application", "class", "subscriber", "enabled", "values"])
                })
            }
            Action::Show { id } => Ok(terminal.json(&client.get(&path_of(&id), &[]).await?)?),
            Action::Add { application, class, subscriber, fields, creator_key } => {
                let mut body = fields.members();
                for (name, value) in [("application", application), ("class", class), ("subscriber", subscriber)] {
                    body.insert(name.to_owned(), value.into());
                }
                creator_key.map(|key| body.insert("key".to_owned(), key.into()));
                let stored = client.post("/v1/subscriptions", &Value::Object(body)).await?;
                let id = printable(stored["id"].as_str().unwrap_or_default()).into_owned();
                terminal.line(format_args!("subscription {id} stored"))?;
                warnings(terminal, &stored)
            }
            Action::Change { id, fields, enabled, snoozed_until } => {
                let mut changes = fields.members();
                enabled.map(|enabled| changes.insert("enabled".to_owned(), enabled.into()));
                snoozed_until.map(|time| changes.insert("snoozed_until".to_owned(), json!(time)));
                if changes.is_empty() {
                    return Err(Failure::usage(
                        "no change is given; `tocsin help subscriptions change` lists the fields",
                    ));
                }
                let stored = patch(client, &path_of(&id), &Value::Object(changes)).await?;
                terminal.line(format_args!("subscription {} changed", printable(&id)))?;
                warnings(terminal, &stored)
            }
            Action::Remove { id } => {
                client.send(client.request(Method::DELETE, &path_of(&id))).await?;
                Ok(terminal.line(format_args!("subscription {} removed", printable(&id)))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("subscriptions", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn a_subscription_is_added_changed_listed_and_removed() {
        let stored = json!({"id": "s-15", "application": "doors", "class": "watch", "subscriber": "ada",
            "enabled": true, "values": {"door": "front"}});
        let added =
            ["add", "doors", "watch", "ada", "--value", "door=front", "--value", "floor=2", "--creator-key", "k"];
        check(&added, vec![(201, stored.clone())], expect![[r#"
            subscription s-15 stored
            POST /v1/subscriptions [application/json] {"values":{"door":"front","floor":2},"application":"doors","class":"watch","subscriber":"ada","key":"k"}"#]]).await;
        check(
            &["change", "s-15", "--enabled", "false"],
            vec![(200, stored.clone())],
            expect![[r#"
            subscription s-15 changed
            PATCH /v1/subscriptions/s-15 [application/merge-patch+json] {"enabled":false}"#]],
        )
        .await;
        check(
            &["change", "s-15"],
            vec![],
            expect![[r#"
            failed: no change is given; `tocsin help subscriptions change` lists the fields
        "#]],
        )
        .await;
        check(
            &["list", "--subscriber", "ada"],
            vec![(200, json!({"items": [stored]}))],
            expect![[r#"
            SUBSCRIPTION  APPLICATION  CLASS  SUBSCRIBER  ENABLED  VALUES
            s-15          doors        watch  ada         true     {"door":"front"}
            GET /v1/subscriptions?subscriber=ada&limit=1000"#]],
        )
        .await;
        check(
            &["remove", "s-15"],
            vec![(204, Value::Null)],
            expect![[r#"
            subscription s-15 removed
            DELETE /v1/subscriptions/s-15"#]],
        )
        .await;
    }
}
