//! Command `export`: writes subscribers, subscriptions or suppressions as NDJSON or CSV, and applied definitions as
//! YAML.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use reqwest::Method;
use tocsin_model::folder;
use tokio::io::AsyncWriteExt;

use crate::{
    client::{Client, segment, with_query},
    commands::import::Format,
    failure::{Failure, Outcome},
    terminal::{Terminal, size, thousands},
};

/// Arguments of `tocsin export`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Export the definition of an application; secrets as `***`
    Definition {
        /// Application
        application: String,
        /// Output file; default is standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Export all subscribers with their devices
    Subscribers {
        #[command(flatten)]
        output: Output,
    },
    /// Export all subscriptions
    Subscriptions {
        #[command(flatten)]
        output: Output,
        /// Application to filter by
        #[arg(long)]
        application: Option<String>,
        /// Subscription class to filter by
        #[arg(long)]
        class: Option<String>,
    },
    /// Export all active suppressions
    Suppressions {
        #[command(flatten)]
        output: Output,
        /// Protocol of addresses to filter by
        #[arg(long)]
        protocol: Option<String>,
        /// Cause to filter by
        #[arg(long)]
        cause: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Output file, created only when complete; default is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format [default: by the file name, otherwise ndjson]
    #[arg(long, value_enum)]
    format: Option<Format>,
}

impl Args {
    /// Streams the export.
    ///
    /// # Errors
    /// If the connection breaks or the output cannot be written; no output file is left.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let (path, output, named) = match self.what {
            Action::Definition { application, output } => {
                return definition(terminal, client, &application, output.as_deref()).await;
            }
            Action::Subscribers { output } => ("/v1/export/subscribers", output, Vec::new()),
            Action::Suppressions { output, protocol, cause } => {
                ("/v1/export/suppressions", output, vec![("protocol", protocol), ("cause", cause)])
            }
            Action::Subscriptions { output, application, class } => {
                ("/v1/export/subscriptions", output, vec![("application", application), ("class", class)])
            }
        };
        let format = output.format.or_else(|| output.output.as_deref().map(Format::of)).unwrap_or(Format::Ndjson);
        let word = format.to_possible_value().expect("no format is hidden").get_name().to_owned();
        let mut query = vec![("format", word.as_str())];
        query.extend(named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))));
        let lines = |chunk: &[u8]| chunk.iter().filter(|byte| **byte == b'\n').count() as u64;
        let request = client.request(Method::GET, &with_query(path, &query));
        stream(terminal, client, request, output.output.as_deref(), "lines", lines).await
    }
}

/// Streams the response to standard output, or to a file that appears when it is complete. `count` counts the items of
/// a chunk, `what` names them.
///
/// # Errors
/// If the connection breaks or the output cannot be written; no output file is left.
pub(super) async fn stream(
    terminal: &Terminal,
    client: &Client,
    request: reqwest::RequestBuilder,
    file: Option<&Path>,
    what: &str,
    mut count: impl FnMut(&[u8]) -> u64,
) -> Outcome {
    let mut answer = client.send(request).await?;
    let bar = terminal.progress(None, "{spinner} {bytes}  {bytes_per_sec}  {elapsed}");
    let Some(file) = file else {
        while let Some(chunk) = answer.chunk().await.map_err(|error| broken(client, &error))? {
            terminal.bytes(&chunk)?;
            bar.inc(chunk.len() as u64);
        }
        bar.finish_and_clear();
        return Ok(());
    };
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = file.with_file_name(name);
    let failed = |error: std::io::Error| Failure::file("write", &partial, &error);
    let mut out = tokio::io::BufWriter::new(tokio::fs::File::create(&partial).await.map_err(failed)?);
    let (mut bytes, mut items) = (0u64, 0u64);
    loop {
        let chunk = match answer.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => {
                let _ = tokio::fs::remove_file(&partial).await;
                return Err(broken(client, &error));
            }
        };
        out.write_all(&chunk).await.map_err(failed)?;
        bytes += chunk.len() as u64;
        items += count(&chunk);
        bar.set_position(bytes);
    }
    out.flush().await.map_err(failed)?;
    out.get_ref().sync_all().await.map_err(failed)?;
    let failed = |error: std::io::Error| Failure::file("write", file, &error);
    tokio::fs::rename(&partial, file).await.map_err(failed)?;
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    folder::sync(parent.unwrap_or(Path::new("."))).map_err(failed)?;
    bar.finish_and_clear();
    Ok(terminal.line(format_args!("{}: {} {what}, {}", file.display(), thousands(items), size(bytes)))?)
}

async fn definition(terminal: &Terminal, client: &Client, application: &str, output: Option<&Path>) -> Outcome {
    let found = client.get(&format!("/v1/applications/{}", segment(application)), &[]).await?;
    let text = found["definition"].as_str().unwrap_or_default();
    match output {
        Some(file) => std::fs::write(file, text).map_err(|error| Failure::file("write", file, &error)),
        None => Ok(terminal.bytes(text.as_bytes())?),
    }
}

fn broken(client: &Client, error: &reqwest::Error) -> Failure {
    Failure::failed(format!("the export from {} was interrupted; the output is incomplete", client.server()))
        .because(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn an_export_is_streamed_or_written_to_a_complete_file() {
        let server = FakeServer::start(vec![(200, json!("{\"id\":\"alice\"}\n")), (200, json!("id\nalice\n"))]).await;
        let (terminal, captured) = Terminal::captured();
        let run = |args: &[&str]| <TestCli as clap::Parser>::parse_from(args).args;
        run(&["export", "subscribers"]).run(&terminal, &server.client()).await.expect("an export");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("s.csv");
        let args = ["export", "subscriptions", "--class", "nearby", "-o", file.to_str().expect("a path")];
        run(&args).run(&terminal, &server.client()).await.expect("an export");
        assert_eq!(captured.text().lines().next(), Some("{\"id\":\"alice\"}"));
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), "id\nalice\n");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
        assert_eq!(
            server.requests(),
            ["GET /v1/export/subscribers?format=ndjson", "GET /v1/export/subscriptions?format=csv&class=nearby"]
        );
    }
}
