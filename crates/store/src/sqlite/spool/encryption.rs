//! Encryption of definitions at rest: they may contain passwords. Resealed after a key change.

use rusqlite::Connection;

use crate::{
    error::StoreError,
    keyring::Keyring,
    sqlite::{
        statements::{execute, query_all},
        writer::store_error,
    },
};

/// Reseals every definition that is not sealed with the first key.
pub(super) fn definitions(connection: &Connection, keys: &Keyring) -> Result<(), StoreError> {
    let sql = "SELECT name, version, text FROM exchanges";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let stored: Vec<(String, u32, String)> = query_all(connection, sql, (), read)?;
    for (name, version, text) in stored {
        let is_current = keys.is_current(&text);
        // Definitions that cannot be opened are reported at startup rather than later.
        let plain = keys.open(text)?;
        if !is_current {
            // Plain text must not remain in free pages of the file.
            connection.pragma_update(None, "secure_delete", true).map_err(store_error)?;
            let sql = "UPDATE exchanges SET text = ?3 WHERE name = ?1 AND version = ?2";
            execute(connection, sql, (name, version, keys.seal(&plain)?))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tocsin_model::time::Timestamp;

    use super::*;
    use crate::sqlite::spool::{SpoolOptions, SqliteSpool};

    fn open(folder: &Path, keys: &str) -> Result<SqliteSpool, StoreError> {
        let keys = Keyring::read(keys).expect("keys");
        SqliteSpool::open(folder, &SpoolOptions { keys, ..SpoolOptions::default() })
    }

    /// Whether any file of a folder contains the password.
    fn is_found(folder: &Path) -> bool {
        std::fs::read_dir(folder).expect("a folder").any(|entry| {
            let bytes = std::fs::read(entry.expect("an entry").path()).expect("read");
            bytes.windows(11).any(|window| window == b"canary-7c1f")
        })
    }

    #[test]
    fn definitions_are_sealed_in_all_files_and_keys_can_be_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let key = |name: &str, digit: &str| format!("{name} {}", digit.repeat(64));
        let read = |keys: &str| {
            let spool = open(folder.path(), keys)?;
            Ok::<_, StoreError>(runtime.block_on(spool.exchanges())?[0].text.clone())
        };
        let text = "exchange: e # canary-7c1f";
        let spool = open(folder.path(), "").expect("it opens");
        let name = "e".parse().expect("a name");
        runtime.block_on(spool.put_exchange(name, text.into(), "ann".into(), Timestamp(1))).expect("stored");
        drop(spool);
        assert!(is_found(folder.path()));
        // While another connection is open, the WAL stays.
        let other = Connection::open(folder.path().join("spool.db")).expect("it opens");
        assert_eq!(other.query_row("SELECT count(*) FROM exchanges", (), |row| row.get(0)), Ok(1));
        let (one, two) = (key("one", "1"), key("two", "2"));
        assert_eq!(read(&one).expect("sealed"), text);
        assert!(!is_found(folder.path()));
        assert_eq!(read(&format!("{two}\n{one}")).expect("sealed anew"), text);
        assert_eq!(read(&two).expect("with the new key alone"), text);
        assert!(read(&one).is_err() && read("").is_err());
        assert!(!is_found(folder.path()));
    }
}
