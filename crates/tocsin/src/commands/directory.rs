//! Command `directory`: exports and imports the directory as LDIF, and explains access. An export is read from the server,
//! or offline from the data folder. An import works on the data folder without a server, or through the server.

use std::{
    io::{BufRead, BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};
use tocsin_directory::{Directory, Imported};

use super::export::{OutputFile, stream};
use crate::{
    client::Client,
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome, open_file},
    local_change, platform,
    terminal::{Terminal, counted, printable},
};

/// Arguments of `tocsin directory`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import LDIF entries and changes
    #[command(after_help = "The command opens the data folder: stop the server first, or give --remote.\nExisting \
                            entries stay unchanged.")]
    Import {
        /// LDIF file; `-` is standard input
        file: PathBuf,
        /// Import through the running server, at most 64 MiB; the key needs the scope subscribers:write
        #[arg(long)]
        remote: bool,
        /// Only check the records, with --remote
        #[arg(long, requires = "remote")]
        dry_run: bool,
    },
    /// Explain access of an identity to an entry
    #[command(after_help = "The key needs the scope subscribers:read and must not be limited to resources.")]
    Access {
        /// Distinguished name of the entry
        entry: String,
        /// Distinguished name of the identity; default is the anonymous identity
        #[arg(long = "as", value_name = "DN")]
        requester: Option<String>,
        /// Attribute; repeatable; default is all of the entry
        #[arg(long = "attribute", value_name = "NAME")]
        attributes: Vec<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Export all entries as LDIF, without passwords
    #[command(after_help = "The key needs the scope subscribers:read and must not be limited to resources.")]
    Export {
        /// Output file, created only when complete; default is standard output
        file: Option<PathBuf>,
        /// Read the data folder instead of a server; no server may use the folder
        #[arg(long)]
        offline: bool,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server does not respond; for an import or an offline export if a server uses the data folder; if the file
    /// cannot be read or written, or records are refused.
    pub async fn run(
        self,
        terminal: &Terminal,
        args: &ConfigurationArgs,
        client: impl FnOnce() -> Outcome<Client>,
    ) -> Outcome {
        let file = match self.what {
            Action::Export { file, offline: false } => return export(terminal, &client()?, file.as_deref()).await,
            Action::Export { file, offline: true } => Ok(file),
            Action::Import { file, remote: true, dry_run } => {
                return import_remotely(terminal, &client()?, &file, dry_run).await;
            }
            Action::Access { entry, requester, attributes, json } => {
                let question = json!({"entry": entry, "requester": requester, "attributes": attributes});
                let access = client()?.post("/v1/directory/access", &question).await?;
                return if json { Ok(terminal.json(&access)?) } else { show_access(terminal, &access) };
            }
            Action::Import { file, .. } => Err(file),
        };
        let configuration = configuration::load(args, &[])?.configuration;
        let _lock = platform::lock_folder(&configuration.data.folder)?;
        let directory = platform::open_directory(&configuration).await?;
        match file {
            Err(file) => local_change::local_change("directory.import", import(terminal, &directory, file)).await,
            Ok(file) => export_offline(terminal, &directory, file).await,
        }
    }
}

/// Streams the export of the server.
async fn export(terminal: &Terminal, client: &Client, file: Option<&Path>) -> Outcome {
    let mut before = Vec::new();
    let entries = |chunk: &[u8]| {
        // A chunk can begin within the start of an entry.
        let text = [&before[..], chunk].concat();
        before = text[text.len().saturating_sub(ENTRY.len() - 1)..].to_vec();
        text.windows(ENTRY.len()).filter(|window| *window == ENTRY).count() as u64
    };
    let request = client.request(Method::GET, "/v1/directory/export");
    stream(terminal, client, request, file, ("entry", "entries"), entries).await
}

/// Start of an entry in LDIF, after the empty line before it.
const ENTRY: &[u8] = b"\n\ndn:";

async fn import(terminal: &Terminal, directory: &Directory, file: PathBuf) -> Outcome {
    let input: Box<dyn BufRead> = match file.to_str() {
        Some("-") => Box::new(BufReader::new(std::io::stdin())),
        _ => Box::new(BufReader::new(open_file(&file)?)),
    };
    let started = Instant::now();
    let bar = terminal.progress(None, "{spinner} {pos} records");
    let shown = bar.clone();
    let mut progress = move |imported: &Imported| shown.set_position(imported.done);
    let done = directory.import(input, &mut progress).await;
    bar.finish_and_clear();
    let imported =
        done.map_err(|error| Failure::failed(format!("cannot continue reading {}", file.display())).because(&error))?;
    let Imported { done, present, refused, unreported } = imported;
    for (line, dn, why) in &refused {
        terminal.line(format_args!("line {line}: {}: {}", printable(dn), printable(why)))?;
    }
    let rate = done as f64 / started.elapsed().as_secs_f64().max(0.001);
    terminal.line(import_result(done, rate, present))?;
    match refused.len() as u64 + unreported {
        0 => Ok(()),
        count => {
            let refused = counted(count, "record was", "records were");
            Err(Failure::failed(format!("{refused} refused")))
        }
    }
}

/// Imports a file through the server.
async fn import_remotely(terminal: &Terminal, client: &Client, file: &Path, dry_run: bool) -> Outcome {
    let mut text = Vec::new();
    match file.to_str() {
        Some("-") => std::io::stdin().read_to_end(&mut text)?,
        _ => open_file(file)?.read_to_end(&mut text).map_err(|error| Failure::file("read", file, &error))?,
    };
    let path = if dry_run { "/v1/directory/import?dry_run=true" } else { "/v1/directory/import" };
    let request = client.request(Method::POST, path).header("content-type", "text/ldif").body(text);
    let imported = client.json(client.send(request).await?).await?;
    let failed = imported["failed"].as_array().map(Vec::as_slice).unwrap_or_default();
    for one in failed {
        let text = |name: &str| printable(one[name].as_str().unwrap_or_default()).into_owned();
        terminal.line(format_args!("line {}: {}: {}", one["line"], text("dn"), text("message")))?;
    }
    let number = |name: &str| imported[name].as_u64().unwrap_or_default();
    let (done, present) =
        (counted(number("done"), "record", "records"), counted(number("present"), "entry", "entries"));
    let verb = if dry_run { "can be imported" } else { "imported" };
    terminal.line(format_args!("{done} {verb}; {present} existed already"))?;
    match failed.len() as u64 + number("failed_more") {
        0 => Ok(()),
        count => {
            let refused = counted(count, "record was", "records were");
            Err(Failure::failed(format!("{refused} refused")))
        }
    }
}

/// Prints an explanation of access.
fn show_access(terminal: &Terminal, access: &Value) -> Outcome {
    let text = |of: &Value| printable(of.as_str().unwrap_or_default()).into_owned();
    let row = |name: String, decision: &Value| {
        let by = match decision["rule"]["by"].as_str() {
            Some(by) => format!("by {}", printable(by)),
            None => "no clause applies".to_owned(),
        };
        let rule = match &decision["rule"] {
            Value::Null => "no rule applies".to_owned(),
            rule => format!("{}: {}, {by}", rule["number"], text(&rule["text"])),
        };
        let rule = match decision["limited_by"].as_str() {
            Some(other) => format!("{rule}, limited by {}", printable(other)),
            None => rule,
        };
        vec![name, text(&decision["level"]), rule]
    };
    let mut rows =
        vec![row("(entry)".to_owned(), &access["itself"]), row("(children)".to_owned(), &access["children"])];
    let attributes = access["attributes"].as_array().map(Vec::as_slice).unwrap_or_default();
    rows.extend(attributes.iter().map(|one| row(text(&one["name"]), one)));
    terminal.table(&["attribute", "level", "rule"], &rows)?;
    let visible = if access["visible"] == true { "visible" } else { "hidden" };
    Ok(terminal.line(format_args!("the entry is {visible} to this identity"))?)
}

/// One line about an import: records imported, their rate, and entries that existed.
fn import_result(done: u64, rate: f64, present: u64) -> String {
    let (done, present) = (counted(done, "record", "records"), counted(present, "entry", "entries"));
    format!("{done} imported, {rate:.0} per second; {present} existed already")
}

async fn export_offline(terminal: &Terminal, directory: &Directory, file: Option<PathBuf>) -> Outcome {
    let written = match &file {
        Some(file) => {
            let target = OutputFile::create(file).await?;
            let mut out = BufWriter::new(target.writer()?);
            let count = directory.export(&mut out).await;
            out.flush().map_err(|error| target.failed(&error))?;
            drop(out);
            if count.is_ok() {
                target.complete()?;
            }
            count
        }
        None => {
            let mut out = BufWriter::new(std::io::stdout().lock());
            let count = directory.export(&mut out).await;
            out.flush()?;
            count
        }
    };
    let count = written.map_err(|error| Failure::failed("cannot export the directory").because(&error))?;
    match file {
        Some(file) => {
            let entries = counted(count, "entry", "entries");
            Ok(terminal.line(format_args!("{entries} in {}", file.display()))?)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[test]
    fn the_result_of_an_import_has_the_singular_for_one_thing() {
        assert_eq!(import_result(1, 2.0, 1), "1 record imported, 2 per second; 1 entry existed already");
        assert_eq!(import_result(2_000, 2.0, 0), "2,000 records imported, 2 per second; 0 entries existed already");
    }

    #[tokio::test]
    async fn access_is_printed_by_attribute_with_its_rule() {
        let rule = json!({"number": 2, "text": "to * by self write", "by": "self"});
        let decision = json!({"level": "write", "rule": rule});
        let access = json!({"visible": true, "itself": decision, "children": {"level": "none"},
            "attributes": [{"name": "cn", "level": "write", "rule": rule}]});
        let (terminal, captured) = Terminal::captured();
        show_access(&terminal, &access).expect("printed");
        let text = captured.text();
        for piece in ["(children)  none   no rule applies", "cn", "2: to * by self write, by self", "is visible to"] {
            assert!(text.contains(piece), "{piece}: {text}");
        }
    }

    #[tokio::test]
    async fn an_import_through_the_server_reports_failed_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.ldif");
        std::fs::write(&file, "dn: o=x\n").expect("written");
        let failed = json!([{"line": 1, "dn": "o=x", "message": "there is no such entry"}]);
        let answer = json!({"done": 1, "present": 2, "failed": failed, "failed_more": 0, "dry_run": true});
        let server = FakeServer::start(vec![(200, answer)]).await;
        let (terminal, captured) = Terminal::captured();
        let done = import_remotely(&terminal, &server.client(), &file, true).await;
        assert!(done.expect_err("a record failed").to_string().contains("1 record was refused"));
        let expected = "line 1: o=x: there is no such entry\n1 record can be imported; 2 entries existed already\n";
        assert_eq!(captured.text(), expected);
        assert!(server.requests()[0].starts_with("POST /v1/directory/import?dry_run=true"), "{:?}", server.requests());
    }

    #[tokio::test]
    async fn an_export_is_read_from_the_server_and_its_entries_are_counted() {
        let ldif = "version: 1\n\ndn: o=tocsin\no: tocsin\n\ndn:: b3U9w7Y=\n\n";
        let server = FakeServer::start(vec![(200, json!(ldif)), (200, json!(ldif))]).await;
        let (terminal, captured) = Terminal::captured();
        export(&terminal, &server.client(), None).await.expect("exported");
        assert_eq!(captured.text(), ldif);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("all.ldif");
        export(&terminal, &server.client(), Some(&file)).await.expect("exported");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), ldif);
        assert!(captured.text().ends_with("all.ldif: 2 entries, 51 B\n"), "{}", captured.text());
        assert_eq!(server.requests(), ["GET /v1/directory/export"; 2]);
    }
}
