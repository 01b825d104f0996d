//! Command `directory`: exports and imports the directory as LDIF. An export is read from the server, or offline from
//! the data folder. An import works on the data folder without a server; with a server, LDAP clients do the same.

use std::{
    io::{BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Subcommand;
use reqwest::Method;
use tocsin_directory::{Directory, Imported};

use super::export::{OutputFile, stream};
use crate::{
    client::Client,
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome, open_file},
    platform,
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
    /// Import LDIF entries and changes while no server runs
    #[command(after_help = "The command opens the data folder: stop the server first, or use an LDAP client such as \
                            ldapadd.\nExisting entries stay unchanged.")]
    Import {
        /// LDIF file; `-` is standard input
        file: PathBuf,
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
            Action::Import { file } => Err(file),
        };
        let configuration = configuration::load(args, &[])?.configuration;
        let _lock = platform::lock_folder(&configuration.data.folder)?;
        let directory = platform::open_directory(&configuration).await?;
        match file {
            Err(file) => import(terminal, &directory, file).await,
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
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[test]
    fn the_result_of_an_import_has_the_singular_for_one_thing() {
        assert_eq!(import_result(1, 2.0, 1), "1 record imported, 2 per second; 1 entry existed already");
        assert_eq!(import_result(2_000, 2.0, 0), "2,000 records imported, 2 per second; 0 entries existed already");
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
