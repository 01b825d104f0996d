//! Result of the last disk probe.

use tocsin_model::time::Timestamp;

/// Last probe of the disk: time and result. One caller probes at a time; the others use its result.
#[derive(Default)]
pub(crate) struct DiskProbe(pub(super) tokio::sync::Mutex<Option<(Timestamp, Result<(), String>)>>);
