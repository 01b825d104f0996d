//! Command `keys`: lists, creates and revokes API keys.

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
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the keys without their secrets
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the roles that a key can have
    Roles {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a key and print it once
    #[command(after_help = "Examples:
  tocsin keys create 'door controller' --scope events:write --resource application:doors
  tocsin keys create 'Ada, on duty' --role operator --expires 90d")]
    Create {
        /// Purpose of the key
        #[arg(value_parser = purpose)]
        description: String,
        /// Permissions: admin, or applications:read, applications:write, subscribers:read, subscribers:write,
        /// events:write, operations:read, operations:write, keys:write, bounces:write, inbox:read, inbox:write,
        /// messages:write, sync:read, sync:write, audit:read; repeatable, or comma-separated
        #[arg(long, value_delimiter = ',')]
        scope: Vec<String>,
        /// Role whose scopes the key gets; `tocsin keys roles` lists the roles; repeatable, or comma-separated
        #[arg(long, value_delimiter = ',')]
        role: Vec<String>,
        /// Resource that the key is limited to: application:NAME, source:APPLICATION/NAME, exchange:NAME,
        /// port:EXCHANGE/NAME or
        /// container:DN; repeatable; default is the reach of your own key
        #[arg(long)]
        resource: Vec<String>,
        /// Expiry: a time of RFC 3339, or a duration from now such as 90d; default is never
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace a key by a new one with the same rights
    Rotate {
        /// Key id, the middle part of the key
        id: String,
        /// Time for which the old key stays valid, at most 30d; 0s revokes it at once
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key immediately
    Revoke {
        /// Key id, the middle part of the key
        id: String,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { json } => {
                let items = client.list("/v1/keys", &[], 100_000).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(row).collect();
                Ok(terminal
                    .table(&["id", "scopes", "resources", "created", "expires", "last used", "description"], &rows)?)
            }
            Action::Roles { json } => {
                let items = client.list("/v1/roles", &[], 1_000).await?;
                if json {
                    return Ok(terminal.json(&items)?);
                }
                let rows: Vec<Vec<String>> = items.iter().map(role_row).collect();
                Ok(terminal.table(&["role", "description", "scopes"], &rows)?)
            }
            Action::Create { description, scope, role, resource, expires, json } => {
                if scope.is_empty() && role.is_empty() {
                    return Err(Failure::usage(
                        "a key needs --scope, such as events:write, or --role; `tocsin keys roles` lists the roles",
                    ));
                }
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
                    .ok_or_else(|| Failure::failed("the response has no key; is this a Tocsin server?"))?;
                let id = text(&made, "id");
                terminal.line(format_args!(
                    "the key, shown this once:\n\n    {}\n",
                    terminal.paint(Colour::Bold, printable(key))
                ))?;
                terminal.line(format_args!("its id is {id}; `tocsin keys revoke {id}` revokes it"))?;
                Ok(terminal.line("next: set TOCSIN_KEY to the key, or send the header `Authorization: Bearer KEY`")?)
            }
            Action::Rotate { id, overlap, json } => {
                let path = format!("/v1/keys/{}/rotate", segment(&id));
                let made = client.post(&path, &json!({"overlap": overlap})).await?;
                if json {
                    return Ok(terminal.json(&made)?);
                }
                let key = printable(made["key"].as_str().unwrap_or_default());
                terminal
                    .line(format_args!("the key, shown this once:\n\n    {}\n", terminal.paint(Colour::Bold, key)))?;
                let old = match made["replaced_expires_at"].as_str() {
                    Some(end) => format!("{id} stays valid until {end}"),
                    None => format!("{id} is revoked"),
                };
                Ok(terminal.line(format_args!("its id is {}; {old}", text(&made, "id")))?)
            }
            Action::Revoke { id } => {
                client.send(client.request(Method::DELETE, &format!("/v1/keys/{}", segment(&id)))).await?;
                Ok(terminal.line(format_args!("{id} is revoked"))?)
            }
        }
    }
}

/// Parses the description of a key.
fn purpose(text: &str) -> Result<String, &'static str> {
    match text.trim() {
        "" => Err("the description is empty; state the purpose of the key"),
        text => Ok(text.to_owned()),
    }
}

/// Parses a time, or a duration from now.
fn expiry(when: &str, now: Timestamp) -> Outcome<Timestamp> {
    if let Ok(period) = when.parse::<Period>() {
        let end = now + period.0;
        // A time beyond the year 9999 has no form in RFC 3339.
        return end.to_string().parse().map_err(|_| {
            Failure::usage(format!(
                "--expires `{when}` ends after the year 9999; leave it out for a key without expiry"
            ))
        });
    }
    when.parse().map_err(|_| {
        Failure::usage(format!(
            "--expires takes a time such as 2027-01-01T00:00:00Z or a duration such as 90d, not `{when}`"
        ))
    })
}

fn row(key: &Value) -> Vec<String> {
    let expires = if key["expires_at"].is_null() { "never".to_owned() } else { text(key, "expires_at") };
    let used = match key["last_used_from"].as_str() {
        Some(from) => format!("{} from {}", text(key, "last_used_at"), printable(from)),
        None => text(key, "last_used_at"),
    };
    vec![
        text(key, "id"),
        scopes(key),
        list(key, "resources"),
        text(key, "created_at"),
        expires,
        used,
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
    use expect_test::expect;

    use super::*;
    use crate::commands::fake_server;

    #[test]
    fn an_empty_description_is_refused() {
        #[derive(Debug, clap::Parser)]
        struct TestCli {
            #[command(flatten)]
            _args: Args,
        }
        for empty in ["", "  "] {
            let read = <TestCli as clap::Parser>::try_parse_from(["keys", "create", empty, "--scope", "admin"]);
            let error = read.expect_err("the description is empty").to_string();
            assert!(error.contains("state the purpose of the key"), "{error}");
        }
        assert_eq!(purpose(" Ada "), Ok("Ada".to_owned()));
    }

    #[tokio::test]
    async fn a_created_key_is_printed_with_its_id_and_the_next_step() {
        fake_server::check(
            "keys",
            &["create", "x"],
            vec![],
            Args::run,
            expect![[r#"
            failed: a key needs --scope, such as events:write, or --role; `tocsin keys roles` lists the roles
        "#]],
        )
        .await;
        let made = vec![(201, json!({"id": "k1", "key": "tocsin_k1_secret"}))];
        fake_server::check(
            "keys",
            &["create", "x", "--role", "operator"],
            made,
            Args::run,
            expect![[r#"
            the key, shown this once:

                tocsin_k1_secret

            its id is k1; `tocsin keys revoke k1` revokes it
            next: set TOCSIN_KEY to the key, or send the header `Authorization: Bearer KEY`
            POST /v1/keys [application/json] {"description":"x","scopes":[],"roles":["operator"],"resources":[]}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_rotated_key_is_printed_with_the_end_of_the_old_one() {
        let made = json!({"id": "k2", "key": "tocsin_k2_secret", "replaces": "k1",
            "replaced_expires_at": "2026-11-22T00:00:00Z"});
        fake_server::check(
            "keys",
            &["rotate", "k1"],
            vec![(201, made)],
            Args::run,
            expect![[r#"
            the key, shown this once:

                tocsin_k2_secret

            its id is k2; k1 stays valid until 2026-11-22T00:00:00Z
            POST /v1/keys/k1/rotate [application/json] {"overlap":"24h"}"#]],
        )
        .await;
    }

    #[test]
    fn expiry_is_a_time_or_a_duration() {
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().expect("a time");
        let read = |when: &str| expiry(when, now).map(|time| time.to_string()).map_err(|failure| failure.exit);
        assert_eq!(read("90d"), Ok("2027-02-19T00:00:00Z".into()));
        assert_eq!(read("2027-01-01T01:00:00+01:00"), Ok("2027-01-01T00:00:00Z".into()));
        let late = expiry("99999999d", now).expect_err("after the year 9999").to_string();
        assert!(late.contains("`99999999d` ends after the year 9999"), "{late}");
        assert_eq!(read("soon"), Err(crate::failure::Exit::Usage));
    }
}
