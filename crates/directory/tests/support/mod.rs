//! In-memory directory with a fixed clock.

use std::sync::Arc;

use tocsin_directory::{Directory, Options};
use tocsin_model::time::Timestamp;
use tocsin_store::memory::records::MemoryRecords;

/// Opens an empty directory with its indexes. Also returns the records below it.
pub async fn in_memory(options: Options) -> (Arc<MemoryRecords>, Directory) {
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    let directory = Directory::open(records.clone(), options, Arc::new(|| Timestamp(1))).await.expect("it opens");
    directory.build_indexes().await.expect("the indexes are built");
    (records, directory)
}
