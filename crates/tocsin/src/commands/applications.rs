//! Lists, shows and removes applications.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::lists::{ItemList, author, texts};
use crate::{
    client::{Client, segment, with_query},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin applications`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the applications
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the definition of an application
    Show {
        /// Application
        #[arg(value_name = "APPLICATION")]
        name: String,
    },
    /// Remove an application with its subscriptions
    Remove {
        /// Application
        #[arg(value_name = "APPLICATION")]
        name: String,
        /// Confirmation; without it the command asks
        #[arg(long)]
        yes: bool,
    },
}

fn path_of(name: &str) -> String {
    format!("/v1/applications/{}", segment(name))
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// The server refuses the request, or the removal is not confirmed.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.action {
            Action::List { json } => {
                let items = client.list("/v1/applications", &[], usize::MAX).await?;
                let heads = ["NAME", "VERSION", "CHANGED", "BY"];
                ItemList { items, limit: usize::MAX, json }.show(
                    terminal,
                    "there are no applications",
                    &heads,
                    |item| [texts(item, &["name", "version", "applied_at"]), vec![author(item, "author")]].concat(),
                )
            }
            Action::Show { name } => {
                let shown = client.get(&path_of(&name), &[]).await?;
                match &shown["definition"] {
                    Value::String(text) => Ok(terminal.bytes(text.as_bytes())?),
                    _ => Ok(terminal.json(&shown)?),
                }
            }
            Action::Remove { name, yes } => {
                let question = format!("remove the application {} and its subscriptions?", printable(&name));
                if !yes && !terminal.confirm(&question)? {
                    return Err(Failure::usage("the removal is not confirmed; repeat the command with --yes"));
                }
                let path = with_query(&path_of(&name), &[("confirm", &name)]);
                client.send(client.request(Method::DELETE, &path)).await?;
                Ok(terminal.line(format_args!("application {} removed", printable(&name)))?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("applications", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn an_application_is_listed_shown_and_removed() {
        let doors = json!({"name": "doors", "version": 3, "applied_at": "2026-11-27T08:00:00Z",
            "author": "a1b2c3d4", "author_name": "Ada, on duty",
            "definition": "application: doors\n"});
        check(
            &["list"],
            vec![(200, json!({"items": [doors]}))],
            expect![[r#"
            NAME   VERSION  CHANGED               BY
            doors  3        2026-11-27T08:00:00Z  Ada, on duty
            GET /v1/applications?limit=1000"#]],
        )
        .await;
        check(
            &["show", "doors"],
            vec![(200, doors)],
            expect![[r#"
            application: doors
            GET /v1/applications/doors"#]],
        )
        .await;
        check(
            &["remove", "doors"],
            vec![],
            expect![[r#"
            failed: the removal is not confirmed; repeat the command with --yes
        "#]],
        )
        .await;
        check(
            &["remove", "doors", "--yes"],
            vec![(204, Value::Null)],
            expect![[r#"
            application doors removed
            DELETE /v1/applications/doors?confirm=doors"#]],
        )
        .await;
    }
}
