//! Lists, shows and removes applications.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::lists::{ItemList, texts};
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
        name: String,
    },
    /// Remove an application with its subscriptions
    Remove {
        /// Application
        name: String,
        /// Confirmation; without it the command asks
        #[arg(long)]
        yes: bool,
    },
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
                let heads = ["NAME", "VERSION", "CHANGED"];
                ItemList { items, limit: usize::MAX, json }.show(
                    terminal,
                    "there are no applications",
                    &heads,
                    |item| texts(item, &["application", "version", "applied_at"]),
                )
            }
            Action::Show { name } => {
                let request = client.request(Method::GET, &format!("/v1/applications/{}", segment(&name)));
                let shown = client.json(client.send(request).await?).await?;
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
                let path = with_query(&format!("/v1/applications/{}", segment(&name)), &[("confirm", &name)]);
                client.send(client.request(Method::DELETE, &path)).await?;
                Ok(terminal.line(format_args!("application {} removed", printable(&name)))?)
            }
        }
    }
}
