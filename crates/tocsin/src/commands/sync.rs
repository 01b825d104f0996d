//! Manages sync devices, and shows sessions, conflicts and the load of sync.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Client, segment},
    configuration::Period,
    failure::Outcome,
    terminal::{Terminal, counted, printable, thousands},
};

/// Arguments of `tocsin sync`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Manage the devices that keep replicas
    Devices {
        #[command(subcommand)]
        what: Devices,
    },
    /// List sessions: active first, then ended, newest first
    Sessions {
        /// Only of this device
        #[arg(long, value_name = "ID")]
        device: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List conflicting edits, newest first
    Conflicts {
        /// Application
        application: String,
        /// Only of this collection
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
        /// Maximum number of rows
        #[arg(long, default_value_t = 100, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore the losing version of a conflict
    Revert {
        /// Application
        application: String,
        /// Number of the conflict
        number: u64,
    },
    /// Show rows, sessions and the load of the pools
    Status {
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
        match self.what {
            Action::Devices { what } => what.run(terminal, client).await,
            Action::Sessions { device, limit, json } => {
                sessions(terminal, client, device.as_deref(), limit, json).await
            }
            Action::Conflicts { application, collection, limit, json } => {
                conflicts(terminal, client, (&application, collection.as_deref()), limit, json).await
            }
            Action::Revert { application, number } => {
                let path = format!("/v1/applications/{}/conflicts/{number}/revert", segment(&application));
                client.send(client.request(Method::POST, &path)).await?;
                Ok(terminal.line("the losing version is restored; replicas receive it at their next sync")?)
            }
            Action::Status { json } => status(terminal, client, json).await,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Devices {
    /// List the devices that may keep replicas
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Register a device and print its token once
    Add {
        /// Application
        application: String,
        /// Subscriber that owns the device
        subscriber: String,
        /// Name of the device
        name: String,
        /// Collection that the device may use; repeatable; default is all
        #[arg(long = "collection", value_name = "NAME")]
        collections: Vec<String>,
        /// Grant read access only
        #[arg(long)]
        read_only: bool,
        /// Lifetime of the token; default is until revoked
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<Period>,
    },
    /// Revoke the token of a device
    Remove {
        /// Device id, such as d-0a1b2c3d4e5f
        id: String,
    },
    /// Order a device to delete its replica at its next request
    Wipe {
        /// Device id
        id: String,
    },
}

impl Devices {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self {
            Devices::List { json } => list(terminal, client, json).await,
            Devices::Add { application, subscriber, name, collections, read_only, expires_in } => {
                let collections = (!collections.is_empty()).then_some(collections);
                let expires_in = expires_in.map(|period| period.0.as_secs());
                let device = client
                    .post(
                        "/v1/sync/devices",
                        &json!({
                            "application": application, "subscriber": subscriber, "name": name, "collections": collections,
                            "read_only": read_only, "expires_in": expires_in,
                        }),
                    )
                    .await?;
                terminal.line(format!("{}: {}", text(&device["id"]), text(&device["token"])))?;
                Ok(terminal.line("The token is shown this once: `tocsin replica init FILE --token TOKEN`")?)
            }
            Devices::Remove { id } => {
                let path = format!("/v1/sync/devices/{}", segment(&id));
                client.send(client.request(Method::DELETE, &path)).await?;
                Ok(terminal.line(format!("the token of `{}` is revoked", printable(&id)))?)
            }
            Devices::Wipe { id } => {
                client.post(&format!("/v1/sync/devices/{}/wipe", segment(&id)), &json!({})).await?;
                Ok(terminal.line(format!("`{}` deletes its replica at its next request", printable(&id)))?)
            }
        }
    }
}

async fn list(terminal: &Terminal, client: &Client, json: bool) -> Outcome {
    let devices = client.list("/v1/sync/devices", &[], usize::MAX).await?;
    if json {
        return Ok(terminal.json(&devices)?);
    }
    let line = |device: &Value| {
        let state = match (&device["wiped_at"], &device["wipe_at"], &device["read_only"]) {
            (Value::String(_), ..) => "wiped",
            (_, Value::String(_), _) => "to be wiped",
            (.., Value::Bool(true)) => "reads",
            _ => "reads and writes",
        };
        vec![
            text(&device["id"]),
            text(&device["application"]),
            text(&device["subscriber"]),
            text(&device["name"]),
            state.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = devices.iter().map(line).collect();
    Ok(terminal.table(&["DEVICE", "APPLICATION", "SUBSCRIBER", "NAME", "STATE"], &rows)?)
}

async fn sessions(terminal: &Terminal, client: &Client, device: Option<&str>, limit: usize, json: bool) -> Outcome {
    let mut found = client.list("/v1/sync/sessions", &[], usize::MAX).await?;
    found.retain(|session| device.is_none_or(|device| session["device"] == device));
    let narrowed: Vec<(&str, &str)> = device.map(|device| ("device", device)).into_iter().collect();
    let ended = client.list("/v1/sync/history", &narrowed, limit).await?;
    found.extend(ended.into_iter().take(limit));
    if json {
        return Ok(terminal.json(&found)?);
    }
    let line = |session: &Value| {
        let fields = [
            "device",
            "began_at",
            "outcome",
            "edits",
            "conflicts",
            "refused",
            "rows",
            "removed",
            "bytes_up",
            "bytes_down",
        ];
        fields.map(|field| text(&session[field])).to_vec()
    };
    let rows: Vec<Vec<String>> = found.iter().map(line).collect();
    let heads = ["DEVICE", "BEGAN", "OUTCOME", "EDITS", "CONFLICTS", "REFUSED", "ROWS", "REMOVED", "UP", "DOWN"];
    Ok(terminal.table(&heads, &rows)?)
}

async fn conflicts(
    terminal: &Terminal,
    client: &Client,
    (application, collection): (&str, Option<&str>),
    limit: usize,
    json: bool,
) -> Outcome {
    let path = format!("/v1/applications/{}/conflicts", segment(application));
    let narrowed: Vec<(&str, &str)> = collection.map(|name| ("collection", name)).into_iter().collect();
    let mut found = client.list(&path, &narrowed, limit).await?;
    found.truncate(limit);
    if json {
        return Ok(terminal.json(&found)?);
    }
    let line = |met: &Value| {
        ["number", "at", "collection", "row", "winner", "server", "client"].map(|field| text(&met[field])).to_vec()
    };
    let rows: Vec<Vec<String>> = found.iter().map(line).collect();
    Ok(terminal.table(&["NUMBER", "AT", "COLLECTION", "ROW", "WINNER", "SERVER", "CLIENT"], &rows)?)
}

async fn status(terminal: &Terminal, client: &Client, json: bool) -> Outcome {
    let status = client.get("/v1/sync/status", &[]).await?;
    if json {
        return Ok(terminal.json(&status)?);
    }
    let number = |name: &str| status[name].as_u64().unwrap_or_default();
    terminal.line(format!("{}, {} removed", counted(number("rows"), "row", "rows"), thousands(number("removed"))))?;
    terminal.line(format!(
        "{}, {}, {} waiting for changes",
        counted(number("devices"), "device", "devices"),
        counted(number("sessions"), "session", "sessions"),
        thousands(number("resting"))
    ))?;
    terminal.line(format!("{} to accept", counted(number("events_waiting"), "row event", "row events")))?;
    let pools = status["pools"].as_array().cloned().unwrap_or_default();
    let rows: Vec<Vec<String>> = pools
        .iter()
        .map(|pool| ["name", "size", "size_max", "busy", "waiting"].map(|field| text(&pool[field])).to_vec())
        .collect();
    Ok(terminal.table(&["POOL", "SIZE", "MAXIMUM", "BUSY", "WAITING"], &rows)?)
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text).into_owned(),
        value => printable(&value.to_string()).into_owned(),
    }
}
