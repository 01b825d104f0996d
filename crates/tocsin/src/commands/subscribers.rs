//! Manages subscribers and their devices, creates verification tokens, and merges subscribers.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::lists::{ItemList, assignment, patch, texts, warnings};
use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin subscribers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print all data about a person as JSON
    Export {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
    },
    /// Erase a person from all databases
    Erase {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// List subscribers
    List {
        /// Only ids that begin with this text
        #[arg(long, value_name = "TEXT")]
        id_prefix: Option<String>,
        /// Only subscribers that have a device with this address
        #[arg(long)]
        address: Option<String>,
        /// Maximum number of subscribers
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a subscriber and its devices
    Show {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a subscriber
    #[command(after_help = "Example:
  tocsin subscribers add ada --locale de-AT --attribute city=Vienna --device mail=ada@example.org")]
    Add {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
        #[command(flatten)]
        fields: Fields,
    },
    /// Change fields of a subscriber; the others stay
    Change {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
        #[command(flatten)]
        fields: Fields,
        /// Enable or disable all notifications
        #[arg(long, value_name = "BOOL")]
        enabled: Option<bool>,
    },
    /// Remove a subscriber with its devices and subscriptions
    Remove {
        /// Subscriber
        #[arg(value_name = "SUBSCRIBER")]
        id: String,
    },
    /// Manage the devices of a subscriber
    Devices {
        #[command(subcommand)]
        what: Devices,
    },
    /// Create a verification token for a device
    #[command(
        alias = "claim",
        after_help = "Send the token to the device, for example in a link. A user who returns it receives the messages \
                      of the\ndevice: this is the proof that `tocsin subscribers merge` requires."
    )]
    VerificationToken {
        /// Subscriber that owns the device
        subscriber: String,
        /// Device
        device: String,
        /// Lifetime in seconds, at most a week
        #[arg(long, default_value_t = 3600, value_name = "SECONDS")]
        expires_in: u64,
    },
    /// Merge an address-only subscriber into another
    #[command(after_help = "For users who were known by an address only and then get an account. Devices, \
                            subscriptions and inbox\nmove to INTO; FROM is removed.\n\nExample:\n  token=$(tocsin \
                            subscribers verification-token cookie-81 main)   # send it to the device\n  tocsin \
                            subscribers merge cookie-81 vera --verification-token \"$token\"")]
    Merge {
        /// Subscriber to merge; it is removed
        from: String,
        /// Subscriber that remains
        into: String,
        /// Verification token that was sent to a device of FROM and returned by its user
        #[arg(long, alias = "claim", value_name = "TOKEN")]
        verification_token: Option<String>,
        /// Merge without a token, if both are verified to be the same person
        #[arg(long, conflicts_with = "verification_token")]
        unverified: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Fields of a subscriber that `add` and `change` take.
#[derive(Debug, clap::Args)]
struct Fields {
    /// Language, a BCP 47 tag such as de-AT
    #[arg(long)]
    locale: Option<String>,
    /// IANA time zone, such as Europe/Vienna
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Attribute, such as city=Vienna; the value is JSON or text, `null` removes it; repeatable
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = assignment)]
    attributes: Vec<(String, Value)>,
    /// Device, such as mail=ada@example.org: its channel and address; repeatable
    #[arg(long = "device", value_name = "CHANNEL=ADDRESS", value_parser = device)]
    devices: Vec<(String, String)>,
}

/// An argument `CHANNEL=ADDRESS`. The address stays text, also if it is a number.
fn device(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((channel, address)) if !channel.is_empty() && !address.is_empty() => Ok((channel.into(), address.into())),
        _ => Err(format!("`{text}` is not CHANNEL=ADDRESS, such as mail=ada@example.org")),
    }
}

impl Fields {
    /// The members that were given, as a JSON merge patch. A device has the name of its channel.
    fn members(self) -> Map<String, Value> {
        let mut members = Map::new();
        let mut set = |name: &str, value: Option<Value>| value.map(|value| members.insert(name.to_owned(), value));
        set("locale", self.locale.map(Value::from));
        set("time_zone", self.time_zone.map(Value::from));
        let attributes: Map<String, Value> = self.attributes.into_iter().collect();
        set("attributes", (!attributes.is_empty()).then_some(Value::Object(attributes)));
        let devices: Map<String, Value> = self
            .devices
            .into_iter()
            .map(|(channel, address)| (channel.clone(), json!({"channel": channel, "address": address})))
            .collect();
        set("devices", (!devices.is_empty()).then_some(Value::Object(devices)));
        members
    }
}

#[derive(Debug, Subcommand)]
enum Devices {
    /// Add a device, or replace the one with this name
    Add {
        /// Subscriber
        subscriber: String,
        /// Name of the device, such as phone
        name: String,
        /// Channel of an application
        #[arg(long)]
        channel: String,
        /// Address: a mailbox, a URL, ...
        #[arg(long)]
        address: String,
    },
    /// Change the address or the state of a device
    Change {
        /// Subscriber
        subscriber: String,
        /// Name of the device
        name: String,
        /// New address
        #[arg(long)]
        address: Option<String>,
        /// New state: active or disabled
        #[arg(long)]
        state: Option<String>,
    },
    /// Remove a device
    Remove {
        /// Subscriber
        subscriber: String,
        /// Name of the device
        name: String,
    },
}

impl Devices {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self {
            Devices::Add { subscriber, name, channel, address } => {
                let path = format!("/v1/subscribers/{}/devices/{}", segment(&subscriber), segment(&name));
                let stored = client.put(&path, &json!({"channel": channel, "address": address})).await?;
                let (subscriber, name) = (printable(&subscriber), printable(&name));
                terminal.line(format_args!("device {name} of {subscriber} stored"))?;
                warnings(terminal, &stored)
            }
            Devices::Change { subscriber, name, address, state } => {
                let mut changes = Map::new();
                for (member, value) in [("address", address), ("state", state)] {
                    value.map(|value| changes.insert(member.to_owned(), value.into()));
                }
                if changes.is_empty() {
                    return Err(Failure::usage("no change is given; use --address or --state"));
                }
                let shown = client.get(&path_of(&subscriber), &[]).await?;
                if shown["devices"][&name].is_null() {
                    let (subscriber, name) = (printable(&subscriber), printable(&name));
                    return Err(Failure::failed(format!(
                        "subscriber {subscriber} has no device {name}; `tocsin subscribers show` lists the devices"
                    )));
                }
                let changes = json!({"devices": {name.clone(): changes}});
                let stored = patch(client, &path_of(&subscriber), &changes).await?;
                terminal.line(format_args!("device {} of {} changed", printable(&name), printable(&subscriber)))?;
                warnings(terminal, &stored)
            }
            Devices::Remove { subscriber, name } => {
                let path = format!("/v1/subscribers/{}/devices/{}", segment(&subscriber), segment(&name));
                client.send(client.request(Method::DELETE, &path)).await?;
                let (subscriber, name) = (printable(&subscriber), printable(&name));
                Ok(terminal.line(format_args!("device {name} of {subscriber} removed"))?)
            }
        }
    }
}

fn path_of(subscriber: &str) -> String {
    format!("/v1/subscribers/{}", segment(subscriber))
}

/// Prints a subscriber and its devices.
fn show(terminal: &Terminal, found: &Value) -> Outcome {
    for name in ["id", "enabled", "locale", "time_zone", "attributes", "created_at", "updated_at"] {
        let cell = texts(found, &[name]).remove(0);
        if !cell.is_empty() && cell != "{}" {
            terminal.line(format_args!("{:<12} {cell}", name.replace('_', " ")))?;
        }
    }
    let row = |(name, device): (&String, &Value)| {
        [vec![printable(name).into_owned()], texts(device, &["channel", "address", "state"])].concat()
    };
    let rows: Vec<Vec<String>> = found["devices"].as_object().into_iter().flatten().map(row).collect();
    match rows.is_empty() {
        true => Ok(terminal.line("no devices")?),
        false => Ok(terminal.table(&["DEVICE", "CHANNEL", "ADDRESS", "STATE"], &rows)?),
    }
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome<()> {
        match self.what {
            Action::List { id_prefix, address, limit, json } => {
                let query = present_parameters(&[("id_prefix", &id_prefix), ("address", &address)]);
                let items = client.list("/v1/subscribers", &query, limit).await?;
                let heads = ["SUBSCRIBER", "ENABLED", "LOCALE", "DEVICES"];
                ItemList { items, limit, json }.show(terminal, "there are no subscribers", &heads, |item| {
                    let devices = item["devices"].as_object().into_iter().flatten();
                    let addresses: Vec<String> = devices.flat_map(|(_, device)| texts(device, &["address"])).collect();
                    [texts(item, &["id", "enabled", "locale"]), vec![addresses.join(", ")]].concat()
                })
            }
            Action::Show { id, json } => {
                let found = client.get(&path_of(&id), &[]).await?;
                if json { Ok(terminal.json(&found)?) } else { show(terminal, &found) }
            }
            Action::Add { id, fields } => {
                let mut body = fields.members();
                body.insert("id".to_owned(), id.clone().into());
                let stored = client.post("/v1/subscribers", &Value::Object(body)).await?;
                terminal.line(format_args!("subscriber {} added", printable(&id)))?;
                warnings(terminal, &stored)
            }
            Action::Change { id, fields, enabled } => {
                let mut changes = fields.members();
                enabled.map(|enabled| changes.insert("enabled".to_owned(), enabled.into()));
                if changes.is_empty() {
                    return Err(Failure::usage(
                        "no change is given; `tocsin help subscribers change` lists the fields",
                    ));
                }
                let stored = patch(client, &path_of(&id), &Value::Object(changes)).await?;
                terminal.line(format_args!("subscriber {} changed", printable(&id)))?;
                warnings(terminal, &stored)
            }
            Action::Remove { id } => {
                client.send(client.request(Method::DELETE, &path_of(&id))).await?;
                Ok(terminal.line(format_args!("subscriber {} removed", printable(&id)))?)
            }
            Action::Export { id } => Ok(terminal.json(&client.get(&format!("{}/export", path_of(&id)), &[]).await?)?),
            Action::Erase { id, yes } => {
                let question = format!("erase the subscriber {}? This cannot be undone", printable(&id));
                if !yes && !terminal.confirm(&question)? {
                    return Err(Failure::usage("the erasure is not confirmed; repeat the command with --yes"));
                }
                let answer = client.post(&format!("{}/erase", path_of(&id)), &json!({})).await?;
                let id = printable(&id);
                match answer["complete"].as_bool() {
                    Some(false) => terminal.line(format_args!(
                        "the erasure of the subscriber {id} continues when messages in delivery are answered"
                    ))?,
                    _ => terminal.line(format_args!("subscriber {id} erased"))?,
                }
                Ok(())
            }
            Action::Devices { what } => what.run(terminal, client).await,
            Action::VerificationToken { subscriber, device, expires_in } => {
                let path = format!("/v1/subscribers/{}/verification-token", segment(&subscriber));
                let made = client.post(&path, &json!({"device": device, "expires_in": expires_in})).await?;
                Ok(terminal.line(made["verification_token"].as_str().unwrap_or_default())?)
            }
            Action::Merge { from, into, verification_token, unverified, json } => {
                let path = format!("/v1/subscribers/{}/merge", segment(&into));
                let body = match verification_token {
                    Some(token) => json!({"from": from, "verification_token": token}),
                    None => json!({"from": from, "unverified": unverified}),
                };
                let merged = client.post(&path, &body).await?;
                match json {
                    true => Ok(terminal.json(&merged)?),
                    false => Ok(describe(&merged).iter().try_for_each(|line| terminal.line(line))?),
                }
            }
        }
    }
}

/// Describes the result of a merge.
fn describe(merged: &Value) -> Vec<String> {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
    let head = match merged["again"].as_bool() {
        Some(true) => {
            format!("{} was merged into {} at {}", text(&merged["from"]), text(&merged["into"]), text(&merged["at"]))
        }
        _ => format!("{} merged into {}", text(&merged["from"]), text(&merged["into"])),
    };
    let names = |value: &Value| -> Vec<String> {
        let pair = |(old, new): (&String, &Value)| match text(new) {
            same if *old == same => printable(old).into_owned(),
            new => format!("{} (now {new})", printable(old)),
        };
        value.as_object().into_iter().flatten().map(pair).collect()
    };
    let mut lines = vec![head];
    let count = |name: &str| merged[name].as_u64().unwrap_or_default();
    lines.push(format!(
        "  subscriptions: {} moved, {} existed already",
        count("subscriptions"),
        count("double_subscriptions")
    ));
    for (name, what) in [("devices", "devices"), ("double_devices", "devices that existed already")] {
        let names = names(&merged[name]);
        if !names.is_empty() {
            lines.push(format!("  {what}: {}", names.join(", ")));
        }
    }
    let attributes: Vec<String> = merged["attributes"].as_array().into_iter().flatten().map(text).collect();
    if !attributes.is_empty() {
        lines.push(format!("  attributes: {}", attributes.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("subscribers", args, answers, run, expected).await;
    }

    #[tokio::test]
    async fn a_subscriber_is_added_changed_shown_and_removed() {
        let ada = json!({"id": "ada", "enabled": true, "locale": "de-AT", "attributes": {"age": 42},
            "devices": {"mail": {"channel": "mail", "address": "ada@example.org", "state": "active"}}});
        let added = [
            "add",
            "ada",
            "--locale",
            "de-AT",
            "--attribute",
            "age=42",
            "--attribute",
            "city=Vienna",
            "--device",
            "mail=ada@example.org",
            "--device",
            "sms=0043123",
        ];
        check(&added, vec![(201, json!({"warnings": ["channel `sms` does not exist"]}))], expect![[r#"
            subscriber ada added
            warning: channel `sms` does not exist
            POST /v1/subscribers [application/json] {"locale":"de-AT","attributes":{"age":42,"city":"Vienna"},"devices":{"mail":{"channel":"mail","address":"ada@example.org"},"sms":{"channel":"sms","address":"0043123"}},"id":"ada"}"#]]).await;
        check(
            &["change", "ada", "--enabled", "false", "--attribute", "city=null"],
            vec![(200, ada.clone())],
            expect![[r#"
                subscriber ada changed
                PATCH /v1/subscribers/ada [application/merge-patch+json] {"attributes":{"city":null},"enabled":false}"#]],
        )
        .await;
        check(
            &["change", "ada"],
            vec![],
            expect![[r#"
            failed: no change is given; `tocsin help subscribers change` lists the fields
        "#]],
        )
        .await;
        check(
            &["show", "ada"],
            vec![(200, ada.clone())],
            expect![[r#"
            id           ada
            enabled      true
            locale       de-AT
            attributes   {"age":42}
            DEVICE  CHANNEL  ADDRESS          STATE
            mail    mail     ada@example.org  active
            GET /v1/subscribers/ada"#]],
        )
        .await;
        check(
            &["list", "--address", "ada@example.org"],
            vec![(200, json!({"items": [ada]}))],
            expect![[r#"
            SUBSCRIBER  ENABLED  LOCALE  DEVICES
            ada         true     de-AT   ada@example.org
            GET /v1/subscribers?address=ada%40example.org&limit=1000"#]],
        )
        .await;
        check(
            &["remove", "ada"],
            vec![(204, Value::Null)],
            expect![[r#"
            subscriber ada removed
            DELETE /v1/subscribers/ada"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn devices_are_added_changed_and_removed() {
        let ada = json!({"id": "ada", "devices": {"phone": {"channel": "sms", "address": "1"}}});
        let added = ["devices", "add", "ada", "phone", "--channel", "sms", "--address", "0043123"];
        check(
            &added,
            vec![(201, Value::Null)],
            expect![[r#"
            device phone of ada stored
            PUT /v1/subscribers/ada/devices/phone [application/json] {"channel":"sms","address":"0043123"}"#]],
        )
        .await;
        let changed = ["devices", "change", "ada", "phone", "--state", "disabled"];
        check(
            &changed,
            vec![(200, ada.clone()), (200, Value::Null)],
            expect![[r#"
            device phone of ada changed
            GET /v1/subscribers/ada
            PATCH /v1/subscribers/ada [application/merge-patch+json] {"devices":{"phone":{"state":"disabled"}}}"#]],
        )
        .await;
        let unknown = ["devices", "change", "ada", "fax", "--state", "disabled"];
        check(
            &unknown,
            vec![(200, ada)],
            expect![[r#"
            failed: subscriber ada has no device fax; `tocsin subscribers show` lists the devices
            GET /v1/subscribers/ada"#]],
        )
        .await;
        check(
            &["devices", "change", "ada", "phone"],
            vec![],
            expect![[r#"
            failed: no change is given; use --address or --state
        "#]],
        )
        .await;
        check(
            &["devices", "remove", "ada", "phone"],
            vec![(204, Value::Null)],
            expect![[r#"
            device phone of ada removed
            DELETE /v1/subscribers/ada/devices/phone"#]],
        )
        .await;
    }

    #[test]
    fn the_result_of_a_merge_is_described() {
        let merged = json!({
            "from": "anon-1", "into": "vera", "again": false, "at": "2026-11-21T09:30:00Z", "subscriptions": 2,
            "double_subscriptions": 1, "devices": {"main": "main_2"}, "double_devices": {"sms": "sms"},
            "attributes": ["city"],
        });
        expect_test::expect![[r#"
            anon-1 merged into vera
              subscriptions: 2 moved, 1 existed already
              devices: main (now main_2)
              devices that existed already: sms
              attributes: city"#]]
        .assert_eq(&describe(&merged).join("\n"));
    }
}
