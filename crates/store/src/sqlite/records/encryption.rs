//! Encryption of secrets at rest: secrets are sealed before they are stored, and resealed after a key change.

use rusqlite::Connection;
use tocsin_model::notifybc::Collection;

use super::notifybc_rows::collection_number;
use crate::{
    error::StoreError,
    keyring::Keyring,
    sqlite::{
        statements::{execute, query_all, query_one},
        writer::store_error,
    },
};

/// Secret of the installation: created if there is none, and sealed if there are keys.
pub(super) fn installation(connection: &Connection, keys: &Keyring, fresh: [u8; 32]) -> Result<[u8; 32], StoreError> {
    type SecretColumns = (Option<[u8; 32]>, Option<String>);
    let sql = "SELECT secret, sealed_secret FROM installation";
    let columns: Option<SecretColumns> = query_one(connection, sql, (), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (plain, sealed) = columns.unwrap_or_default();
    let is_current = sealed.as_ref().is_some_and(|sealed| keys.is_current(sealed));
    let secret = match (&sealed, plain) {
        (Some(sealed), _) => secret_of(&keys.open(sealed.clone())?)?,
        (None, plain) => plain.unwrap_or(fresh),
    };
    let digits = hex::encode(secret);
    let seal = keys.seal(&digits)?;
    if seal == digits {
        execute(
            connection,
            "UPDATE installation SET secret = ?1 WHERE secret IS NULL AND sealed_secret IS NULL",
            [secret],
        )?;
    } else if !is_current {
        enable_secure_delete(connection)?;
        execute(connection, "UPDATE installation SET secret = NULL, sealed_secret = ?1", [seal])?;
    }
    Ok(secret)
}

/// Reseals every definition that is not sealed with the first key.
pub(super) fn definitions(connection: &Connection, keys: &Keyring) -> Result<(), StoreError> {
    let stored: Vec<(i64, String)> =
        query_all(connection, "SELECT rowid, text FROM application_versions", (), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    for (row, text) in stored {
        let is_current = keys.is_current(&text);
        // Definitions that cannot be opened are reported at startup rather than later.
        let plain = keys.open(text)?;
        if !is_current {
            enable_secure_delete(connection)?;
            execute(
                connection,
                "UPDATE application_versions SET text = ?2 WHERE rowid = ?1",
                (row, keys.seal(&plain)?),
            )?;
        }
    }
    Ok(())
}

/// Reseals every configuration of NotifyBC that is not sealed with the first key.
pub(super) fn documents(connection: &Connection, keys: &Keyring) -> Result<(), StoreError> {
    let sql = "SELECT place, body FROM notifybc_documents WHERE collection = ?1";
    let collection = collection_number(Collection::Configuration);
    let stored: Vec<(i64, String)> = query_all(connection, sql, [collection], |row| Ok((row.get(0)?, row.get(1)?)))?;
    for (place, body) in stored {
        let is_current = keys.is_current(&body);
        let plain = keys.open(body)?;
        if !is_current {
            enable_secure_delete(connection)?;
            let sql = "UPDATE notifybc_documents SET body = ?2 WHERE place = ?1";
            execute(connection, sql, (place, keys.seal(&plain)?))?;
        }
    }
    Ok(())
}

/// Plain text must not remain in free pages of the file.
fn enable_secure_delete(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "secure_delete", true).map_err(store_error)
}

fn secret_of(digits: &str) -> Result<[u8; 32], StoreError> {
    let damaged = || StoreError::Damaged("the secret of the installation".to_owned());
    hex::decode(digits).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;
    use tocsin_model::time::Timestamp;

    use crate::{
        keyring::Keyring,
        records::{ApplicationStore, Installation, NewApplicationVersion},
        sqlite::records::{RecordsOptions, SqliteRecords},
    };

    fn keys(names: &[(&str, char)]) -> Keyring {
        let lines: Vec<String> =
            names.iter().map(|(name, digit)| format!("{name} {}", digit.to_string().repeat(64))).collect();
        Keyring::read(&lines.join("\n")).expect("keys")
    }

    /// Text of the only application, and the secret of the installation, read with these keys.
    fn read(folder: &Path, keys: Keyring) -> Result<(String, [u8; 32]), crate::error::StoreError> {
        let options = RecordsOptions { reserve_bytes: 0, keys, ..RecordsOptions::default() };
        let records = SqliteRecords::open(folder, &options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let versions = runtime.block_on(records.applications())?;
        Ok((versions[0].text.clone(), *records.secret()))
    }

    /// Whether any file of a folder contains a text.
    fn is_found(folder: &Path, text: &[u8]) -> bool {
        std::fs::read_dir(folder).expect("a folder").any(|entry| {
            let bytes = std::fs::read(entry.expect("an entry").path()).expect("read");
            bytes.windows(text.len()).any(|window| window == text)
        })
    }

    #[test]
    fn secrets_are_sealed_in_all_files_and_keys_can_be_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let name = "stock".parse().expect("a name");
        let options = RecordsOptions { reserve_bytes: 0, keys: keys(&[("one", '1')]), ..RecordsOptions::default() };
        let records = SqliteRecords::open(folder, &options).expect("it opens");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let text = "application: stock # canary-7c1f";
        runtime
            .block_on(records.put_application(NewApplicationVersion {
                name: &name,
                text,
                author: "ann",
                now: Timestamp(1),
            }))
            .expect("stored");
        let secret = *records.secret();
        assert_eq!(runtime.block_on(records.application(&name, None)).expect("read").expect("one").text, text);
        drop(records);
        assert!(!is_found(folder, b"canary-7c1f") && !is_found(folder, &secret));

        assert_eq!(read(folder, keys(&[("two", '2'), ("one", '1')])).expect("opened"), (text.to_owned(), secret));
        assert_eq!(read(folder, keys(&[("two", '2')])).expect("sealed anew"), (text.to_owned(), secret));
        assert!(read(folder, keys(&[("one", '1')])).is_err(), "its key is not there any more");
        assert!(read(folder, Keyring::default()).is_err());
        assert!(!is_found(folder, b"canary-7c1f"));
    }

    #[test]
    fn plain_data_is_sealed_once_there_are_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let name = "stock".parse().expect("a name");
        let options = RecordsOptions { reserve_bytes: 0, ..RecordsOptions::default() };
        let records = SqliteRecords::open(folder.path(), &options).expect("it opens");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let text = "application: stock # canary-7c1f";
        runtime
            .block_on(records.put_application(NewApplicationVersion {
                name: &name,
                text,
                author: "ann",
                now: Timestamp(1),
            }))
            .expect("stored");
        let secret = *records.secret();
        drop(records);
        assert!(is_found(folder.path(), b"canary-7c1f"));
        // While another connection is open, the WAL stays.
        let other = Connection::open(folder.path().join("records.db")).expect("it opens");
        assert_eq!(other.query_row("SELECT count(*) FROM application_versions", (), |row| row.get(0)), Ok(1));
        assert_eq!(read(folder.path(), keys(&[("one", '1')])).expect("opened"), (text.to_owned(), secret));
        assert!(!is_found(folder.path(), b"canary-7c1f") && !is_found(folder.path(), &secret));
    }
}
