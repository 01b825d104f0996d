//! Files of a dump: `subscription.bson` of `mongodump`, `subscription.json` of `mongoexport`, also compressed.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use flate2::bufread::MultiGzDecoder;
use tocsin_notifybc::{
    bson::BsonDocuments,
    dump::{DumpError, DumpErrorKind, IMPORT_ORDER, collection_of},
    extended_json::JsonDocuments,
    record::{Collection, Document},
};
use tokio::sync::mpsc::Sender;

use super::Batch;
use crate::failure::{Failure, Outcome, open_file};

/// Size of the read buffer in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// First bytes of a file of `mongodump --archive`.
const ARCHIVE: [u8; 4] = [0x6d, 0xe2, 0x99, 0x81];

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Bson,
    Json,
}

/// File with the documents of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DumpFile {
    collection: Collection,
    path: PathBuf,
    format: Format,
    is_compressed: bool,
}

impl DumpFile {
    /// The file of a collection, by its name; `None` for any other file.
    fn of(path: PathBuf) -> Option<DumpFile> {
        let name = path.file_name()?.to_str()?;
        let (name, is_compressed) = match name.strip_suffix(".gz") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (stem, extension) = name.rsplit_once('.')?;
        let format = match extension {
            "bson" => Format::Bson,
            "json" | "jsonl" | "ndjson" => Format::Json,
            _ => return None,
        };
        Some(DumpFile { collection: collection_of(stem)?, path: path.clone(), format, is_compressed })
    }
}

/// The files of a dump, in the order of their import. `mongodump` writes a folder for each database: it can be given,
/// or the folder that contains it alone.
///
/// # Errors
/// There is none, or the folder cannot be read.
pub(super) fn find(path: &Path) -> Outcome<Vec<DumpFile>> {
    let unreadable = |error: std::io::Error| Failure::file("read the dump", path, &error);
    if !fs::metadata(path).map_err(unreadable)?.is_dir() {
        let file = DumpFile::of(path.to_owned());
        return file.map(|file| vec![file]).ok_or_else(|| {
            let names = IMPORT_ORDER.map(Collection::name).join(", ");
            Failure::usage(format!("{} is not named after a collection", path.display()))
                .detail(format!("the collections are {names}; the file is named such as subscription.json"))
        });
    }
    let mut files = files_in(path).map_err(unreadable)?;
    if files.is_empty() {
        let entries = fs::read_dir(path).map_err(unreadable)?;
        let folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        for folder in folders {
            let found = files_in(&folder).map_err(unreadable)?;
            if !files.is_empty() && !found.is_empty() {
                return Err(Failure::usage(format!(
                    "{} has several databases; give the folder of one",
                    path.display()
                )));
            }
            files.extend(found);
        }
    }
    if files.is_empty() {
        return Err(Failure::usage(format!("{} has no file of a collection of NotifyBC", path.display())).detail(
            "give the folder that `mongodump --out` wrote, or files of `mongoexport` such as subscription.json",
        ));
    }
    let place = |file: &DumpFile| IMPORT_ORDER.iter().position(|collection| *collection == file.collection);
    files.sort_by_key(|file| (place(file), file.path.clone()));
    Ok(files)
}

fn files_in(folder: &Path) -> std::io::Result<Vec<DumpFile>> {
    Ok(fs::read_dir(folder)?.flatten().filter_map(|entry| DumpFile::of(entry.path())).collect())
}

/// Reads the documents of files and sends them in batches. Ends early if the receiver is dropped.
///
/// # Errors
/// A file cannot be opened.
pub(super) fn read(files: Vec<DumpFile>, batches: &Sender<Batch>) -> Outcome {
    for file in files {
        let mut batch = Batch::new(file.collection);
        for found in documents(&file)? {
            match found {
                Ok(document) => batch.put(document),
                Err(DumpError { position, kind }) => {
                    let reason = match kind {
                        // The text of the parser differs for each document.
                        DumpErrorKind::Json(_) => "the document is not JSON".to_owned(),
                        kind => kind.to_string(),
                    };
                    batch.refused.push((format!("{}, {position}", file.path.display()), reason));
                }
            }
            if batch.is_full() {
                let full = std::mem::replace(&mut batch, Batch::new(file.collection));
                if batches.blocking_send(full).is_err() {
                    return Ok(());
                }
            }
        }
        if batches.blocking_send(batch).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

type Documents = Box<dyn Iterator<Item = Result<Document, DumpError>>>;

fn documents(file: &DumpFile) -> Outcome<Documents> {
    let mut source: Box<dyn BufRead> = Box::new(BufReader::with_capacity(BUFFER_BYTES, open_file(&file.path)?));
    if file.is_compressed {
        let plain: Box<dyn Read> = Box::new(MultiGzDecoder::new(source));
        source = Box::new(BufReader::with_capacity(BUFFER_BYTES, plain));
    }
    let start = source.fill_buf().map_err(|error| Failure::file("read", &file.path, &error))?;
    if start.starts_with(&ARCHIVE) {
        let message = format!("{} is an archive of mongodump, which is not supported", file.path.display());
        return Err(Failure::usage(message).detail("take the dump with `mongodump --out FOLDER`"));
    }
    Ok(match file.format {
        Format::Bson => Box::new(BsonDocuments::new(source)),
        Format::Json => Box::new(JsonDocuments::new(source)),
    })
}
