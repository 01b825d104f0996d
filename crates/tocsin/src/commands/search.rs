//! Command `search`: finds objects of all kinds by id, name or address.

use serde_json::Value;

use super::lists::{ItemList, texts};
use crate::{client::Client, failure::Outcome, terminal::Terminal};

/// Arguments of `tocsin search`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tocsin search n-3-41
  tocsin search ada@example.org
  tocsin search uid=ada,ou=people,dc=example,dc=org")]
pub struct Args {
    /// An id, or the beginning of a name or address
    text: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Lists the hits by kind.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let found = client.get("/v1/search", &[("q", &self.text)]).await?;
        let items = found["items"].as_array().cloned().unwrap_or_default();
        let limit = items.len() + 1;
        ItemList { items, limit, json: self.json }.show(terminal, "nothing found", &["KIND", "ID", "TITLE"], row)?;
        if !self.json && found["complete"] == Value::Bool(false) {
            terminal.line("there are more hits; a longer text shows fewer")?;
        }
        Ok(())
    }
}

fn row(item: &Value) -> Vec<String> {
    texts(item, &["kind", "id", "title"])
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn hits_have_their_kind_and_an_incomplete_list_says_so() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let answers = vec![(
            200,
            json!({"complete": false, "items": [
                {"kind": "subscriber", "id": "ada", "title": "ada", "link": "/v1/subscribers/ada"},
                {"kind": "rule", "id": "doors/ada", "title": "ada of doors", "link": "/v1/applications/doors/rules"},
            ]}),
        )];
        let expected = expect![[r#"
            KIND        ID         TITLE
            subscriber  ada        ada
            rule        doors/ada  ada of doors
            there are more hits; a longer text shows fewer
            GET /v1/search?q=ada"#]];
        fake_server::check("search", &["ada"], answers, run, expected).await;
    }
}
