//! Command `import`: stores subscribers, subscriptions or suppressions from NDJSON or CSV.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use futures_util::StreamExt;
use reqwest::{Body, Method};
use serde_json::Value;
use tokio_util::io::ReaderStream;

use super::lists::DryRun;
use crate::{
    client::{Client, with_query},
    failure::{Failure, Outcome, open_file},
    problems::problem_line,
    terminal::{Colour, Terminal, counted, printable, thousands},
};

/// Maximum length of a line of the response.
const LINE_BYTES_MAX: usize = 1 << 20;

/// Arguments of `tocsin import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import subscribers; existing ones are replaced
    Subscribers {
        #[command(flatten)]
        input: Input,
    },
    /// Import subscriptions; existing keys are replaced
    #[command(after_help = "Example:
  tocsin import subscriptions orders.csv --application stock --class order")]
    Subscriptions {
        #[command(flatten)]
        input: Input,
        /// Application of lines that do not name one
        #[arg(long)]
        application: Option<String>,
        /// Subscription class of lines that do not name one
        #[arg(long)]
        class: Option<String>,
        /// Make no lifecycle events, so that no welcome is sent
        #[arg(long)]
        no_events: bool,
    },
    /// Import suppressions; existing ones are replaced
    Suppressions {
        #[command(flatten)]
        input: Input,
    },
}

#[derive(Debug, clap::Args)]
struct Input {
    /// Input file; - is standard input
    file: PathBuf,
    /// Format of the file [default: by its name, otherwise ndjson]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Character encoding of the file, such as windows-1252 [default: by its byte-order mark, otherwise utf-8]
    #[arg(long)]
    charset: Option<String>,
    #[command(flatten)]
    dry: DryRun,
}

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object per line
    Ndjson,
    /// A header row, then one row per record
    Csv,
}

impl Format {
    /// Format by the file name.
    pub fn of(path: &Path) -> Self {
        let csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        if csv { Format::Csv } else { Format::Ndjson }
    }

    /// Media type of the format.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Ndjson => "application/x-ndjson",
            Format::Csv => "text/csv",
        }
    }
}

impl Args {
    /// Streams the file to the server and prints each refused line.
    ///
    /// # Errors
    /// If a line is refused or the connection breaks; lines stored before remain stored.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let (path, input) = match self.what {
            Action::Subscribers { input } => ("/v1/import/subscribers".to_owned(), input),
            Action::Suppressions { input } => ("/v1/import/suppressions".to_owned(), input),
            Action::Subscriptions { input, application, class, no_events } => {
                let named = [("application", &application), ("class", &class)];
                let mut query: Vec<(&str, &str)> =
                    named.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
                if no_events {
                    query.push(("quiet", "true"));
                }
                (with_query("/v1/import/subscriptions", &query), input)
            }
        };
        let (path, dry) = (input.dry.path(&path), input.dry);
        let format = input.format.unwrap_or_else(|| Format::of(&input.file));
        let (body, length) = if input.file.as_os_str() == "-" {
            (
                ReaderStream::with_capacity(
                    Box::new(tokio::io::stdin()) as Box<dyn tokio::io::AsyncRead + Send + Unpin>,
                    1 << 16,
                ),
                None,
            )
        } else {
            let file = tokio::fs::File::from_std(open_file(&input.file)?);
            let length = file.metadata().await.ok().map(|data| data.len());
            (ReaderStream::with_capacity(Box::new(file) as Box<_>, 1 << 16), length)
        };
        let bar = terminal.progress(length, "{wide_bar} {bytes}/{total_bytes}  {bytes_per_sec}  {eta}");
        let counter = bar.clone();
        let body = Body::wrap_stream(body.inspect(move |chunk| {
            if let Ok(chunk) = chunk {
                counter.inc(chunk.len() as u64);
            }
        }));
        let media_type = match &input.charset {
            Some(charset) => format!("{}; charset=\"{}\"", format.media_type(), charset.replace(['"', '\\'], "")),
            None => format.media_type().to_owned(),
        };
        let request = client.request(Method::POST, &path).header("content-type", media_type).body(body);
        let name = input.file.display().to_string();
        let summary = upload(client, request, &mut |line, notice| {
            let (colour, text) = match notice {
                LineNotice::Refused(error) => (Colour::Red, format!("{name}:{line}: {error}")),
                LineNotice::Warned(warning) => (Colour::Yellow, format!("{name}:{line}: warning: {warning}")),
            };
            bar.suspend(|| terminal.line(terminal.paint(colour, text)))
        })
        .await;
        bar.finish_and_clear();
        let Summary { lines, stored, failed, warned } = summary?;
        let warned = if warned > 0 { format!(", {} with warnings", thousands(warned)) } else { String::new() };
        terminal.line(format_args!(
            "{}: {} {}, {} refused{warned}",
            counted(lines, "line", "lines"),
            thousands(stored),
            if dry.is_dry() { "valid" } else { "stored" },
            thousands(failed)
        ))?;
        match failed {
            0 => Ok(()),
            failed if dry.is_dry() => {
                Err(Failure::failed(format!("fix the {} refused lines; nothing was stored", thousands(failed))))
            }
            failed => Err(Failure::failed(format!(
                "fix the {} refused lines and import them again; the others are stored",
                thousands(failed)
            ))),
        }
    }
}

/// Result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Lines read.
    pub lines: u64,
    /// Lines stored.
    pub stored: u64,
    /// Lines refused.
    pub failed: u64,
    /// Lines stored with a warning: a part was ignored.
    pub warned: u64,
}

/// Notice of the server about a line.
#[derive(Debug, Clone, Copy)]
pub enum LineNotice<'a> {
    /// Line refused.
    Refused(&'a str),
    /// Line stored with a warning: a part was ignored.
    Warned(&'a str),
}

/// Sends an import and reads the response line by line as it arrives.
///
/// # Errors
/// If the server refuses the import, or the response is cut off.
pub async fn upload(
    client: &Client,
    request: reqwest::RequestBuilder,
    notice: &mut (dyn FnMut(u64, LineNotice<'_>) -> std::io::Result<()> + Send),
) -> Outcome<Summary> {
    let mut answer = client.send(request).await?;
    let mut rest = Vec::new();
    let mut summary = None;
    loop {
        let chunk = answer.chunk().await.map_err(|error| client.unreachable(&error))?;
        let ended = chunk.is_none();
        rest.extend_from_slice(&chunk.unwrap_or_default());
        if ended && rest.last().is_some_and(|byte| *byte != b'\n') {
            rest.push(b'\n');
        }
        let mut start = 0;
        while let Some(length) = rest[start..].iter().position(|byte| *byte == b'\n') {
            let line = &rest[start..start + length];
            start += length + 1;
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line: Value = serde_json::from_slice(line).map_err(|error| {
                Failure::failed("the response to the import is invalid; is this a Tocsin server?").because(&error)
            })?;
            match (line["line"].as_u64(), line["lines"].as_u64()) {
                (Some(number), _) => match line["warnings"].as_array() {
                    Some(warnings) => {
                        let warnings: Vec<&str> = warnings.iter().filter_map(Value::as_str).collect();
                        notice(number, LineNotice::Warned(&warnings.join("; ")))?;
                    }
                    None => notice(number, LineNotice::Refused(&error_text(&line["error"])))?,
                },
                (None, Some(lines)) => {
                    let count = |name: &str| line[name].as_u64().unwrap_or_default();
                    let (stored, failed, warned) = (count("stored"), count("failed"), count("warned"));
                    summary = Some(Summary { lines, stored, failed, warned });
                }
                // A failure in the middle of the stream is a separate line.
                (None, None) => {
                    return Err(Failure::failed("the import ended early; lines stored before remain stored")
                        .detail(error_text(&line)));
                }
            }
        }
        rest.drain(..start);
        if ended {
            return summary.ok_or_else(|| {
                Failure::failed("the import was interrupted; repeat it: lines stored before are replaced")
            });
        }
        if rest.len() > LINE_BYTES_MAX {
            return Err(Failure::failed("the response to the import is invalid; is this a Tocsin server?"));
        }
    }
}

/// Text of a line's error: a problem document (RFC 9457) or a problem of this client.
fn error_text(error: &Value) -> String {
    let problems = error["problems"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !problems.is_empty() {
        return problems.iter().map(problem_line).collect::<Vec<_>>().join("; ");
    }
    let text = ["detail", "title"].iter().find_map(|name| error[*name].as_str()).or(error.as_str());
    text.map_or_else(|| problem_line(error), |text| printable(text).into_owned())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("people.csv");
        std::fs::write(&file, "id,locale\nalice,de\n").expect("written");
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let args = [&["import", args[0], file.to_str().expect("a path")], &args[1..]].concat();
        let outcome = <TestCli as clap::Parser>::parse_from(args).args.run(&terminal, &server.client()).await;
        let end = outcome.map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        let text = format!("{}{end}{}", captured.text(), server.requests().join("\n"));
        expected.assert_eq(&text.replace(&*file.to_string_lossy(), "people.csv"));
    }

    #[tokio::test]
    async fn a_folder_is_reported_before_a_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let server = FakeServer::start(Vec::new()).await;
        let (terminal, _) = Terminal::captured();
        let args = ["import", "subscribers", folder.path().to_str().expect("a path")];
        let outcome = <TestCli as clap::Parser>::parse_from(args).args.run(&terminal, &server.client()).await;
        let failure = outcome.expect_err("a folder").to_string();
        assert!(failure.contains("cannot read") && failure.contains("is a directory"), "{failure}");
        assert_eq!(server.requests(), [] as [String; 0]);
    }

    #[tokio::test]
    async fn refused_lines_are_listed() {
        let lines = "{\"line\":2,\"error\":{\"title\":\"invalid\",\"problems\":[{\"path\":\"locale\",\"message\":\"`d` is not a language tag\"}]}}\n{\"lines\":3,\"stored\":2,\"failed\":1}";
        check(
            &["subscribers"],
            vec![(200, json!(lines))],
            expect![[r#"
            people.csv:2: locale: `d` is not a language tag
            3 lines: 2 stored, 1 refused
            failed: fix the 1 refused lines and import them again; the others are stored
            POST /v1/import/subscribers [text/csv] id,locale
            alice,de"#]],
        )
        .await;
        check(
            &["subscriptions", "--application", "quakes", "--class", "nearby", "--no-events"],
            vec![(200, json!("{\"lines\":1,\"stored\":1,\"failed\":0}\n"))],
            expect![[r#"
            1 line: 1 stored, 0 refused
            POST /v1/import/subscriptions?application=quakes&class=nearby&quiet=true [text/csv] id,locale
            alice,de"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_truncated_response_is_a_failure() {
        check(
            &["subscribers", "--format", "ndjson"],
            vec![(200, json!(""))],
            expect![[r#"
            failed: the import was interrupted; repeat it: lines stored before are replaced
            POST /v1/import/subscribers [application/x-ndjson] id,locale
            alice,de"#]],
        )
        .await;
        check(
            &["subscribers"],
            vec![(200, json!("{\"title\":\"the store failed\"}"))],
            expect![[r#"
            failed: the import ended early; lines stored before remain stored
              the store failed
            POST /v1/import/subscribers [text/csv] id,locale
            alice,de"#]],
        )
        .await;
    }
}
