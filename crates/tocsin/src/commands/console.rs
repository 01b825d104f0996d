//! Command `console`: links for the web console.

use clap::Subcommand;
use serde_json::json;

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin console`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a one-time login link for a user
    ///
    /// The link works once, within five minutes. Without any user it is a setup link, which creates the first user.
    Open {
        /// Login name; default is the only enabled administrator
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let Action::Open { user, json } = self.what;
        let mut made = client.post("/v1/login-links", &json!({ "user": user })).await?;
        let path = made["path"].as_str();
        let path = path.ok_or_else(|| Failure::failed("the response has no link; is this a Tocsin server?"))?;
        let url = format!("{}{path}", client.server());
        if json {
            made["url"] = url.into();
            return Ok(terminal.json(&made)?);
        }
        let url = printable(&url).into_owned();
        terminal.line(terminal.paint(Colour::Bold, url))?;
        let use_of_it = match made["user"].as_str() {
            Some(user) => format!("logs in as {}", printable(user)),
            None => "creates the first user".to_owned(),
        };
        let end = printable(made["expires_at"].as_str().unwrap_or_default()).into_owned();
        Ok(terminal.line(format_args!("it {use_of_it}, once, until {end}"))?)
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[tokio::test]
    async fn a_link_is_printed_with_the_address_of_the_server() {
        let made =
            json!({"kind": "login", "user": "ada", "path": "/console/login#tok", "expires_at": "2026-11-29T12:05:00Z"});
        let server = FakeServer::start(vec![(201, made)]).await;
        let (terminal, printed) = Terminal::captured();
        let args = Args { what: Action::Open { user: Some("ada".to_owned()), json: false } };
        args.run(&terminal, &server.client()).await.expect("it runs");
        let printed = printed.text().replace(server.client().server(), "http://server");
        expect![[r#"
            http://server/console/login#tok
            it logs in as ada, once, until 2026-11-29T12:05:00Z
        "#]]
        .assert_eq(&printed);
        assert_eq!(server.requests(), [r#"POST /v1/login-links [application/json] {"user":"ada"}"#]);
    }
}
