//! Raw disk speed: small synced appends, and sequential writes.

use std::{
    fs::File,
    io::{Seek, Write},
    path::Path,
    time::{Duration, Instant},
};

use super::context::run_blocking;
use crate::{
    examples::stock::SEED,
    failure::{Failure, Outcome},
};

/// Appends 8 KB and syncs them (`fdatasync`) repeatedly for this time in this folder. Returns syncs/s.
///
/// # Errors
/// If the disk fails or is full.
pub async fn syncs_per_second(folder: &Path, time: Duration) -> Outcome<f64> {
    let path = folder.join("syncs");
    run_blocking(move || {
        let measured = File::create(&path).and_then(|mut file| {
            let (block, started, mut count) = ([7_u8; 8192], Instant::now(), 0_u32);
            while started.elapsed() < time {
                file.write_all(&block)?;
                file.sync_data()?;
                count += 1;
            }
            Ok(f64::from(count) / started.elapsed().as_secs_f64())
        });
        let _ = std::fs::remove_file(&path);
        measured.map_err(|error| Failure::file("write to", &path, &error))
    })
    .await?
}

/// Bytes between two syncs of [`megabytes_per_second`]: large enough that sync time is negligible.
const STRETCH_BYTES: usize = 8_000_000;
/// Maximum number of stretches in the file; then writing starts over at the beginning.
const STRETCHES_MAX: u32 = 32;

/// Writes stretches of 8 MB sequentially and syncs each (`fdatasync`), for this time in this folder. Returns MB/s. The
/// file has 256 MB at most; then it is overwritten from the beginning.
///
/// # Errors
/// If the disk fails or is full.
pub async fn megabytes_per_second(folder: &Path, time: Duration) -> Outcome<f64> {
    let path = folder.join("stretches");
    run_blocking(move || {
        // Incompressible bytes, in case the disk compresses.
        let mut stretch = vec![0; STRETCH_BYTES];
        fastrand::Rng::with_seed(SEED).fill(&mut stretch);
        let measured = File::create(&path).and_then(|mut file| {
            let (started, mut count) = (Instant::now(), 0_u32);
            while count == 0 || started.elapsed() < time {
                if count % STRETCHES_MAX == 0 {
                    file.rewind()?;
                }
                file.write_all(&stretch)?;
                file.sync_data()?;
                count += 1;
            }
            Ok(f64::from(count) * STRETCH_BYTES as f64 / 1e6 / started.elapsed().as_secs_f64())
        });
        let _ = std::fs::remove_file(&path);
        measured.map_err(|error| Failure::file("write to", &path, &error))
    })
    .await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn disk_measurements_leave_no_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let rates = [
            megabytes_per_second(folder.path(), Duration::ZERO).await.expect("MB/s"),
            syncs_per_second(folder.path(), Duration::from_millis(1)).await.expect("syncs/s"),
        ];
        assert!(rates[0] > 0.0 && rates[0].is_finite() && rates[1].is_finite(), "{rates:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(megabytes_per_second(&folder.path().join("gone"), Duration::ZERO).await.is_err());
    }
}
