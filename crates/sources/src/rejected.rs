//! Files of rejected items in the data folder: one for each source, and one previous one.

use std::{
    fs,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

use tocsin_model::{folder, time::Timestamp};

use crate::source::{RejectedItem, SourceError};

/// The file of rejected items is rotated at this size; one previous file is kept.
const REFUSED_BYTES_MAX: u64 = 16 << 20;

/// Appends rejected items to a file as JSON lines, before their source drops them.
///
/// # Errors
/// The file cannot be written.
pub async fn store_rejected(
    folder: &Path,
    name: String,
    refused: Vec<RejectedItem>,
    now: Timestamp,
) -> Result<(), SourceError> {
    let folder = folder.join("refused");
    let kept = tokio::task::spawn_blocking(move || append(&folder, &name, &refused, now)).await;
    kept.map_err(|error| SourceError::new("storing rejected items failed", error))?
        .map_err(|error| SourceError::new("rejected items cannot be stored", error))
}

/// A stored rejected item.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct RejectedLine {
    /// The time of its rejection.
    pub at: Timestamp,
    /// The reason.
    pub reason: String,
    /// The item; truncated if it was long.
    pub item: String,
}

/// Bytes at the end of a file of rejected items that are read.
const READ_BYTES_MAX: u64 = 4 << 20;

/// The newest rejected items of a source, newest first. Blocks.
///
/// # Errors
/// The file cannot be read.
pub fn read_rejected(folder: &Path, name: &str, limit: usize) -> std::io::Result<Vec<RejectedLine>> {
    let newest = folder.join("refused").join(format!("{name}.ndjson"));
    let mut found = Vec::new();
    for file in [newest.clone(), newest.with_extension("ndjson.1")] {
        let mut file = match fs::File::open(file) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES_MAX)))?;
        let mut bytes = Vec::new();
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        // The first line may be cut, and the last one unfinished after a crash: neither can be parsed.
        let lines = bytes.split(|byte| *byte == b'\n').rev();
        found.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()).take(limit - found.len()));
        if found.len() == limit {
            break;
        }
    }
    Ok(found)
}

fn append(folder: &Path, name: &str, refused: &[RejectedItem], now: Timestamp) -> std::io::Result<()> {
    folder::make(folder, 0o777)?;
    let file = folder.join(format!("{name}.ndjson"));
    if fs::metadata(&file).is_ok_and(|metadata| metadata.len() > REFUSED_BYTES_MAX) {
        fs::rename(&file, file.with_extension("ndjson.1"))?;
    }
    let mut out = fs::OpenOptions::new().create(true).append(true).open(file)?;
    for RejectedItem { reason, item } in refused {
        let line = serde_json::json!({ "at": now, "reason": reason, "item": String::from_utf8_lossy(item) });
        out.write_all(format!("{line}\n").as_bytes())?;
    }
    out.sync_all()?;
    folder::sync(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_newest_rejected_items_are_read_from_both_files() {
        let data = tempfile::tempdir().expect("a folder");
        let item = |at: usize| RejectedItem { reason: format!("reason {at}"), item: format!("item {at}").into() };
        let store = async |at: usize| {
            store_rejected(data.path(), "a.s".to_owned(), vec![item(at)], Timestamp(at as i64)).await.expect("stored");
        };
        assert_eq!(read_rejected(data.path(), "a.s", 10).expect("read"), []);
        store(1).await;
        store(2).await;
        let file = data.path().join("refused/a.s.ndjson");
        fs::rename(&file, file.with_extension("ndjson.1")).expect("rotated");
        store(3).await;
        let unfinished = fs::OpenOptions::new().append(true).open(&file).and_then(|mut file| file.write_all(b"{\"at"));
        unfinished.expect("written");
        let reasons = |limit| {
            let found = read_rejected(data.path(), "a.s", limit).expect("read");
            found.into_iter().map(|line| line.reason).collect::<Vec<_>>()
        };
        assert_eq!(reasons(10), ["reason 3", "reason 2", "reason 1"]);
        assert_eq!(reasons(2), ["reason 3", "reason 2"]);
    }
}
