//! First admin key of an installation: created once, printed once, and stored for local commands in a file that only
//! its owner can read.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use tocsin_model::time::Timestamp;
use tocsin_service::{ServiceError, keys};
use tocsin_store::records::ApiKeyStore;

use crate::{
    client::ADMIN_KEY_FILE,
    failure::{Failure, Outcome},
    local_change,
};

/// Path of the key file for local commands.
pub fn path(data_folder: &Path) -> PathBuf {
    data_folder.join(ADMIN_KEY_FILE)
}

/// Creates the first key if the installation has no keys: stores its hash, writes the key into the data folder with
/// mode 0600, and returns it for display. `None` if there are keys.
///
/// # Errors
/// If the records or the file system fail. The file is written before the hash is stored: a crash in between leaves a
/// file that the next start replaces, never an unknown key.
pub async fn create_if_needed(
    records: &dyn ApiKeyStore,
    data_folder: &Path,
    now: Timestamp,
) -> Outcome<Option<String>> {
    let file = path(data_folder);
    let write = |key: &str| {
        write_private(&file, key).map_err(|error| FirstKeyError(Failure::file("write the first key to", &file, &error)))
    };
    let made = local_change::local_change("keys.create", keys::first_key(records, now, write)).await;
    made.map_err(|FirstKeyError(failure)| failure)
}

/// Failure to create the first key, in the store or in the file.
struct FirstKeyError(Failure);

impl From<ServiceError> for FirstKeyError {
    fn from(error: ServiceError) -> Self {
        FirstKeyError(Failure::failed("cannot create the first key").because(&error))
    }
}

/// Replaces the file atomically, with mode 0600 from the beginning.
pub(crate) fn write_private(path: &Path, key: &str) -> io::Result<()> {
    let new = path.with_extension("key.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(format!("{key}\n").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_key_file_is_private_even_when_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = path(folder.path());
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("set");
        write_private(&file, "tocsin_a_b").expect("replaced");
        assert_eq!(fs::read_to_string(&file).expect("read"), "tocsin_a_b\n");
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o600);
    }
}
