//! Commands of the NotifyBC interface: import of the records of an installation.

mod dump_files; // files of a dump
mod report; // counts and reasons
mod rest; // records of a running installation
#[cfg(test)]
mod tests;

use std::sync::Arc;

use clap::Subcommand;
use tocsin_notifybc::record::{Collection, Document};
use tocsin_service::notifybc::import::{ImportRecord, import_record, store_records};
use tocsin_store::records::NotifybcStore;
use tokio::sync::mpsc;

use self::{dump_files::DumpFile, report::Report, rest::Installation};
use crate::{
    configuration::{self, ConfigurationArgs},
    failure::{Failure, Outcome},
    local_change, platform,
    terminal::{Terminal, counted},
};

/// Records of a batch, which is one commit.
const BATCH_RECORDS: usize = 1_000;
/// Maximum size of the records of a batch, in bytes, except for a single one.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// Batches that are read ahead.
const BATCHES_AHEAD: usize = 2;

/// Arguments of `tocsin notifybc`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Import the records of a NotifyBC installation
    #[command(after_help = "Examples:
  mongodump --db notifyBC --out dump && tocsin notifybc import dump --dry-run
  tocsin notifybc import http://localhost:3000/api

The server must be stopped. The import can be repeated: records that are present are skipped, and
replaced if NotifyBC changed them later.")]
    Import(Import),
}

/// Arguments of `tocsin notifybc import`.
#[derive(Debug, clap::Args)]
struct Import {
    /// Folder or file of mongodump or mongoexport, or the URL of a running installation with its path, such as /api
    from: String,
    /// Read and check the records only
    #[arg(long)]
    dry_run: bool,
    /// Access token for a running installation; not required from an address of its adminIps
    #[arg(long, env = "NOTIFYBC_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Records of one collection that were read together.
#[derive(Debug)]
struct Batch {
    collection: Collection,
    records: Vec<ImportRecord>,
    /// Documents that cannot be imported: their position or id, and the reason.
    refused: Vec<(String, String)>,
    bytes: usize,
}

impl Batch {
    fn new(collection: Collection) -> Batch {
        Batch { collection, records: Vec::new(), refused: Vec::new(), bytes: 0 }
    }

    fn put(&mut self, document: Document) {
        let id = document.get("_id").or_else(|| document.get("id"));
        let id = id.and_then(|id| id.as_str()).unwrap_or("without id").to_owned();
        match import_record(self.collection, document, local_change::now()) {
            Ok(record) => {
                self.bytes += record.bytes();
                self.records.push(record);
            }
            Err(reason) => self.refused.push((id, reason)),
        }
    }

    fn is_full(&self) -> bool {
        self.records.len() + self.refused.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES_MAX
    }
}

/// Source of the records.
enum Source {
    Files(Vec<DumpFile>),
    Installation(Installation),
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the source cannot be read, a server uses the data folder, or records were not imported.
    pub async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let Action::Import(import) = self.what;
        import.run(terminal, configuration).await
    }
}

impl Import {
    async fn run(self, terminal: &Terminal, configuration: &ConfigurationArgs) -> Outcome {
        let source = match self.from.starts_with("http://") || self.from.starts_with("https://") {
            true => Source::Installation(Installation::new(&self.from, self.token.clone())?),
            false => Source::Files(dump_files::find(self.from.as_ref())?),
        };
        let configuration = configuration::load(configuration, &[])?.configuration;
        let mut target: Option<Arc<dyn NotifybcStore>> = None;
        let mut lock = None;
        if !self.dry_run {
            lock = Some(platform::lock_folder(&configuration.data.folder)?);
            let records: Arc<dyn NotifybcStore> = platform::open_records(&configuration).await?;
            target = Some(records);
        }
        let report = local_change::local_change("notifybc.import", import_from(source, target, terminal)).await?;
        drop(lock);
        if self.json {
            terminal.json(&report.to_json(self.dry_run))?;
        } else {
            report.show(terminal, self.dry_run)?;
        }
        match report.refused() {
            0 => Ok(()),
            _ if self.dry_run => Ok(()),
            refused => {
                let refused = counted(refused, "record was", "records were");
                Err(Failure::failed(format!("{refused} not imported; the others are stored")))
            }
        }
    }
}

/// Reads all records and stores them, if there is a target.
async fn import_from(source: Source, target: Option<Arc<dyn NotifybcStore>>, terminal: &Terminal) -> Outcome<Report> {
    let bar = terminal.progress(None, "{spinner} {pos} records  {per_sec}  {msg}");
    let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
    let reading = tokio::spawn(async move {
        match source {
            Source::Files(files) => tokio::task::spawn_blocking(move || dump_files::read(files, &sender))
                .await
                .map_err(|error| Failure::failed("the task that reads the dump panicked").because(&error))?
                .map(|()| Vec::new()),
            Source::Installation(installation) => installation.read(&sender).await,
        }
    });
    let mut report = Report::default();
    while let Some(batch) = batches.recv().await {
        let Batch { collection, records, refused, .. } = batch;
        bar.set_message(collection.name());
        bar.inc((records.len() + refused.len()) as u64);
        refused.into_iter().for_each(|(id, reason)| report.refuse(collection, &id, reason));
        records.iter().for_each(|record| report.read(collection, record));
        if let Some(store) = &target {
            let ids: Vec<String> = records.iter().map(|record| record.id().to_owned()).collect();
            let results = store_records(store, collection, records, local_change::now()).await;
            let results = results.map_err(|error| {
                Failure::failed("the records cannot be stored; repeat the import to continue").because(&error)
            })?;
            ids.iter().zip(results).for_each(|(id, result)| report.store(collection, id, result));
        }
    }
    bar.finish_and_clear();
    let read =
        reading.await.map_err(|error| Failure::failed("the task that reads the records panicked").because(&error))?;
    report.notes = read?;
    Ok(report)
}
