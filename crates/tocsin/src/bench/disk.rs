//! What the disk can do at best.

use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use super::context::busy;
use crate::failure::{Failure, Outcome};

/// Appends 8 KB and syncs them (`fdatasync`), again and again for this time, in this folder. Gives syncs/s.
///
/// # Errors
/// The disk does not take it.
pub async fn syncs_per_second(folder: &Path, time: Duration) -> Outcome<f64> {
    let path = folder.join("syncs");
    busy(move || {
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
