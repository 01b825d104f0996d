//! The first admin key of an installation: made once, printed once, and left for the machine's own commands in a file
//! that only its owner can read.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use tocsin_model::time::Timestamp;
use tocsin_service::{ServiceError, keys};
use tocsin_store::records::Records;

use crate::failure::{Failure, Outcome};

/// The name of the file in the data folder.
pub const FILE: &str = "admin.key";

/// Where the key lies for the commands of this machine.
pub fn path(data_folder: &Path) -> PathBuf {
    data_folder.join(FILE)
}

/// Makes the first key if there is no key yet: stores its hash, writes it into the data folder with mode 0600 and gives
/// it to be shown. `None` if the installation has keys.
///
/// # Errors
/// The records or the file system fail. The file is written before the hash is stored, so that a crash in between
/// leaves a file that the next start replaces, never a key that nobody knows.
pub async fn ensure(records: &dyn Records, data_folder: &Path, now: Timestamp) -> Outcome<Option<String>> {
    let file = path(data_folder);
    keys::first_key(records, now, |key| {
        write_private(&file, key).map_err(|error| Failure::file("write the first key to", &file, &error))
    })
    .await
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Failure::failed("cannot make the first key").because(&error)
    }
}

/// Replaces the file in one step, readable by its owner only from its first byte on.
fn write_private(path: &Path, key: &str) -> io::Result<()> {
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
