//! Command `replica`: keeps a SQLite replica of the rows that a device may read; edits it locally and synchronizes it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use serde_json::{Map, Value, json};
use tocsin_replica::{
    LinkError, Progress, Replica, ReplicaError, ServerCredentials, Summary, WakeReason, http::HttpLink,
};

use crate::{
    client::Client,
    configuration::Period,
    failure::{Failure, Outcome},
    terminal::{Terminal, counted, printable},
};

/// Back-off after a broken connection: initial and maximum pause.
const COME_BACK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Arguments of `tocsin replica`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a replica of the rows that a device may read
    Init {
        /// File of the replica
        file: PathBuf,
        /// Device token, which `tocsin sync devices add` prints
        #[arg(long, env = "TOCSIN_DEVICE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
        token: String,
    },
    /// Upload edits and download changes
    Sync {
        /// File of the replica
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Synchronize on every change until interrupted
    Watch {
        /// File of the replica
        file: PathBuf,
        /// Interval between syncs if the server cannot notify the replica
        #[arg(long, default_value = "10s", value_name = "DURATION")]
        every: Period,
    },
    /// Query the replica in SQL
    Query {
        /// File of the replica
        file: PathBuf,
        /// SQL query, such as `SELECT * FROM customers`
        sql: String,
        /// Print JSON, one row per line
        #[arg(long)]
        json: bool,
    },
    /// Change fields of a row, or delete it, until the next sync
    #[command(after_help = "Example:
  tocsin replica edit field.db customers c-17 phone=004312345 visited=true")]
    Edit {
        /// File of the replica
        file: PathBuf,
        /// Collection
        collection: String,
        /// Row id; a missing row is created
        id: String,
        /// New field values, each as FIELD=JSON or FIELD=text
        #[arg(value_name = "FIELD=VALUE", required_unless_present = "remove", conflicts_with = "remove")]
        fields: Vec<String>,
        /// Delete the row
        #[arg(long)]
        remove: bool,
    },
    /// Show rows, pending edits and refused edits
    Status {
        /// File of the replica
        file: PathBuf,
        /// Delete the list of refused edits
        #[arg(long)]
        forget_refused: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs the command. `client` returns the server of the command line, which only `init` needs.
    ///
    /// # Errors
    /// If the file or the server refuses the operation.
    pub async fn run(self, terminal: &Terminal, client: impl FnOnce() -> Outcome<Client>) -> Outcome {
        match self.what {
            Action::Init { file, token } => init(terminal, &file, &token, client()?.server()),
            Action::Sync { file, json } => sync(terminal, &file, json).await,
            Action::Watch { file, every } => watch(terminal, &file, every.0).await,
            Action::Query { file, sql, json } => query(terminal, &file, &sql, json),
            Action::Edit { file, collection, id, fields, remove } => {
                edit(terminal, &file, &collection, &id, &fields, remove)
            }
            Action::Status { file, forget_refused, json } => status(terminal, &file, forget_refused, json),
        }
    }
}

fn init(terminal: &Terminal, file: &Path, token: &str, server: &str) -> Outcome {
    if !token.starts_with("tocsin_device_") {
        return Err(Failure::usage(
            "--token must be a device token, which begins with `tocsin_device_`, not an API key",
        ));
    }
    let server = ServerCredentials { url: server.to_owned(), token: token.to_owned() };
    Replica::create(file, &server).map_err(|error| failure(&error))?;
    Ok(terminal.line(format!("{} is a replica; `tocsin replica sync {0}` fills it", file.display()))?)
}

async fn sync(terminal: &Terminal, file: &Path, json: bool) -> Outcome {
    let (mut replica, link) = open(file)?;
    let bar = terminal.progress(None, "{spinner} {msg}");
    let mut show = |progress: Progress| match progress {
        Progress::Began => bar.set_message("session started"),
        Progress::Sent(edits) => bar.set_message(format!("{} sent", counted(edits, "edit", "edits"))),
        Progress::Received(rows) => bar.set_message(format!("{} received", counted(rows, "row", "rows"))),
    };
    let done = replica.sync(&link, &mut show).await;
    bar.finish_and_clear();
    let summary = done.map_err(|error| failure(&error))?;
    if json { Ok(terminal.json(&as_json(&summary))?) } else { Ok(terminal.line(describe(&summary))?) }
}

async fn watch(terminal: &Terminal, file: &Path, every: Duration) -> Outcome {
    let (mut replica, link) = open(file)?;
    let mut patience = COME_BACK.0;
    loop {
        let wait = match replica.sync(&link, &mut |_| ()).await {
            Ok(summary) => {
                patience = COME_BACK.0;
                if summary.applied + summary.conflicts + summary.refused + summary.rows + summary.removed > 0 {
                    terminal.line(describe(&summary))?;
                }
                None
            }
            Err(ReplicaError::Link(LinkError::Busy(after))) => Some(after),
            Err(ReplicaError::Link(LinkError::Broken(why))) => {
                terminal.line(format!("not connected: {}; retrying in {} s", printable(&why), patience.as_secs()))?;
                let wait = patience;
                patience = (patience * 2).min(COME_BACK.1);
                Some(wait)
            }
            Err(error) => return Err(failure(&error)),
        };
        let rest = async {
            match wait {
                Some(wait) => {
                    tokio::time::sleep(wait).await;
                    Ok(WakeReason::Later)
                }
                None => replica.wait_for_work(&link, every).await,
            }
        };
        tokio::select! {
            rested = rest => drop(rested.map_err(|error| failure(&error))?),
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

fn query(terminal: &Terminal, file: &Path, sql: &str, json: bool) -> Outcome {
    let replica = Replica::open(file).map_err(|error| failure(&error))?;
    let (names, rows) = replica.query(sql).map_err(|error| failure(&error))?;
    if json {
        for row in rows {
            let row: Map<String, Value> = names.iter().cloned().zip(row).collect();
            terminal.json(&row)?;
        }
        return Ok(());
    }
    let text = |value: Value| match value {
        Value::Null => String::new(),
        Value::String(text) => printable(&text).into_owned(),
        value => value.to_string(),
    };
    let heads: Vec<&str> = names.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().map(text).collect()).collect();
    Ok(terminal.table(&heads, &rows)?)
}

fn edit(terminal: &Terminal, file: &Path, collection: &str, id: &str, fields: &[String], remove: bool) -> Outcome {
    let replica = Replica::open(file).map_err(|error| failure(&error))?;
    if remove {
        let was_there = replica.remove(collection, id).map_err(|error| failure(&error))?;
        let what = if was_there { "is removed" } else { "did not exist" };
        return Ok(terminal.line(format!("`{}` {what}", printable(id)))?);
    }
    let mut values = Map::new();
    for field in fields {
        let Some((name, value)) = field.split_once('=') else {
            return Err(Failure::usage(format!("fields must be FIELD=VALUE; found `{}`", printable(field))));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        values.insert(name.to_owned(), value);
    }
    replica.put(collection, id, &values).map_err(|error| failure(&error))?;
    Ok(terminal.line(format!("`{}` is changed; the next sync uploads the edit", printable(id)))?)
}

fn status(terminal: &Terminal, file: &Path, forget_refused: bool, json: bool) -> Outcome {
    let replica = Replica::open(file).map_err(|error| failure(&error))?;
    let status = replica.status().map_err(|error| failure(&error))?;
    let server = replica.server().map_err(|error| failure(&error))?;
    if json {
        let refused = status.refused.iter().map(|refused| {
            json!({
                "edit": refused.n, "collection": refused.row.0, "row": refused.row.1, "fields": refused.fields,
                "values": refused.values, "why": refused.why,
            })
        });
        let collections: Map<String, Value> =
            status.collections.iter().map(|(name, rows)| (name.clone(), (*rows).into())).collect();
        terminal.json(&json!({
            "server": server.url,
            "collections": collections,
            "edited": status.edited,
            "sending": status.sending,
            "refused": refused.collect::<Vec<_>>(),
            "complete_at": status.is_whole.then(|| status.seen.time()),
        }))?;
    } else {
        terminal.line(format!("replica of {}", printable(&server.url)))?;
        match status.is_whole {
            true => terminal.line(format!("complete up to {}", status.seen.time()))?,
            false => terminal.line("incomplete; `tocsin replica sync` continues the download")?,
        }
        for (name, rows) in &status.collections {
            terminal.line(format!("{name}: {}", counted(*rows, "row", "rows")))?;
        }
        terminal.line(format!(
            "{} and {} to upload",
            counted(status.edited, "edited row", "edited rows"),
            counted(status.sending, "numbered edit", "numbered edits")
        ))?;
        for refused in &status.refused {
            let (collection, row) = &refused.row;
            terminal.line(format!("refused: {collection} `{}`: {}", printable(row), printable(&refused.why)))?;
        }
    }
    if forget_refused {
        replica.forget_refused().map_err(|error| failure(&error))?;
    }
    Ok(())
}

fn open(file: &Path) -> Outcome<(Replica, HttpLink)> {
    let replica = Replica::open(file).map_err(|error| failure(&error))?;
    let server = replica.server().map_err(|error| failure(&error))?;
    let client = Client::new(server.url.clone(), None)?;
    Ok((replica, HttpLink::new(client.http().clone(), &server)))
}

fn describe(summary: &Summary) -> String {
    let Summary { sent, conflicts, refused, rows, removed, sent_again, .. } = summary;
    let mut text = format!(
        "sent {} ({}, {refused} refused); received {}, removed {removed}",
        counted(*sent, "edit", "edits"),
        counted(*conflicts, "conflict", "conflicts"),
        counted(*rows, "row", "rows"),
    );
    if *sent_again > 0 {
        let edits = counted(*sent_again, "edit was", "edits were");
        text.push_str(&format!("; the server was restored from a backup; {edits} sent again"));
    }
    text
}

fn as_json(summary: &Summary) -> Value {
    let Summary { sent, applied, conflicts, refused, rows, removed, blocks, anew, sent_again } = summary;
    json!({
        "sent": sent, "applied": applied, "conflicts": conflicts, "refused": refused, "rows": rows, "removed": removed, "blocks": blocks,
        "anew": anew, "sent_again": sent_again,
    })
}

fn failure(error: &ReplicaError) -> Failure {
    Failure::failed(printable(&error.to_string()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_singular_for_one_thing() {
        let one = Summary { sent: 1, conflicts: 1, rows: 1, sent_again: 1, ..Summary::default() };
        let text = "sent 1 edit (1 conflict, 0 refused); received 1 row, removed 0; \
                    the server was restored from a backup; 1 edit was sent again";
        assert_eq!(describe(&one), text);
        let more = Summary { sent: 2, rows: 1_000, ..Summary::default() };
        assert_eq!(describe(&more), "sent 2 edits (0 conflicts, 0 refused); received 1,000 rows, removed 0");
    }
}
