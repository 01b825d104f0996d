//! Lists, makes and revokes API keys.

use std::time::SystemTime;

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};
use tocsin_model::time::Timestamp;

use crate::{
    client::{Client, segment},
    configuration::Period,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin keys`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the keys, without their secrets
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Lists the roles that a key can be made with
    Roles {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Makes a key and prints it this once
    Create {
        /// What it is for
        description: String,
        /// What it may do: admin, or applications:read, applications:write, subscribers:read, subscribers:write, events:write,
        /// operations:read, operations:write, keys:write, bounces:write, inbox:read, inbox:write, messages:write, sync:read,
        /// sync:write; may be repeated, or
        /// separated by commas
        #[arg(long, required_unless_present = "role", value_delimiter = ',')]
        scope: Vec<String>,
        /// A role, whose scopes it gets; `tocsin keys roles` lists them; may be repeated, or separated by commas
        #[arg(long, value_delimiter = ',')]
        role: Vec<String>,
        /// A resource that it is limited to: application:NAME, source:APPLICATION/NAME, exchange:NAME, port:EXCHANGE/NAME or
        /// container:DN; may be repeated. Without it, the key reaches all that your own key does
        #[arg(long)]
        resource: Vec<String>,
        /// When it stops working: a time of RFC 3339, or a duration from now such as 90d
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Revokes a key at once
    Revoke {
        /// Its id, the middle part of the key
        id: String,
    },
}

impl Args {
    /// Lists, makes or revokes.
    ///
    /// # Errors
    /// The server does not do it.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::List { json } => {
                let items = client.list("/v1/keys", &[], 100_000).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                Ok(terminal.table(&["id", "scopes", "resources", "created", "expires", "description"], &rows)?)
            }
            What::Roles { json } => {
                let items = client.list("/v1/roles", &[], 1_000).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(role_row).collect();
                Ok(terminal.table(&["role", "for", "scopes"], &rows)?)
            }
            What::Create { description, scope, role, resource, expires, json } => {
                let expires = expires.map(|when| expiry(&when, SystemTime::now().into())).transpose()?;
                let mut body = json!({
                    "description": description, "scopes": scope, "roles": role, "resources": resource,
                });
                if let Some(expires) = expires {
                    body["expires_at"] = Value::from(expires.to_string());
                }
                let made = client.post("/v1/keys", &body).await?;
                if json {
                    return Ok(terminal.json(&made)?);
                }
                let key = made["key"]
                    .as_str()
                    .ok_or_else(|| Failure::failed("the answer has no key; is this a Tocsin server?"))?;
                Ok(terminal.line(format_args!(
                    "the key, shown this once:\n\n    {}",
                    terminal.paint(Colour::Bold, printable(key))
                ))?)
            }
            What::Revoke { id } => {
                client.send(client.request(Method::DELETE, &format!("/v1/keys/{}", segment(&id)))).await?;
                Ok(terminal.line(format_args!("{id} is revoked"))?)
            }
        }
    }
}

/// A time, or a duration from now.
fn expiry(when: &str, now: Timestamp) -> Outcome<Timestamp> {
    if let Ok(period) = when.parse::<Period>() {
        return Ok(now + period.0);
    }
    when.parse().map_err(|_| {
        Failure::usage(format!(
            "--expires takes a time such as 2027-01-01T00:00:00Z or a duration such as 90d, not `{when}`"
        ))
    })
}

fn row(key: &Value) -> Vec<String> {
    let expires = if key["expires_at"].is_null() { "never".to_owned() } else { text(key, "expires_at") };
    vec![
        text(key, "id"),
        scopes(key),
        list(key, "resources"),
        text(key, "created_at"),
        expires,
        text(key, "description"),
    ]
}

fn role_row(role: &Value) -> Vec<String> {
    vec![text(role, "name"), text(role, "about"), scopes(role)]
}

fn text(of: &Value, name: &str) -> String {
    printable(of[name].as_str().unwrap_or_default()).into_owned()
}

fn scopes(of: &Value) -> String {
    list(of, "scopes")
}

fn list(of: &Value, name: &str) -> String {
    let words = of[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    printable(&words.join(" ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_is_a_time_or_a_duration() {
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().expect("a time");
        let read = |when: &str| expiry(when, now).map(|time| time.to_string()).map_err(|failure| failure.exit);
        assert_eq!(read("90d"), Ok("2027-02-19T00:00:00Z".into()));
        assert_eq!(read("2027-01-01T01:00:00+01:00"), Ok("2027-01-01T00:00:00Z".into()));
        assert_eq!(read("soon"), Err(crate::failure::Exit::Usage));
    }
}
