use std::{
    fs::{File, Metadata, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_connect::Clock;
use tocsin_model::{
    application::Channel,
    content::PartsUsed,
    folder,
    id::Name,
    problem::{Code, Problem},
    receipt::{Disposition, Reason, ReasonKind},
    time::Timestamp,
};
use tokio::task::JoinHandle;

use super::{
    classify::{classify, reason},
    lines::Lines,
    options::FileOptions,
};
use crate::{
    channel::{Context, Opened},
    folders::Folders,
    pending::{PendingDelivery, answer_all},
    queue::Queue,
    record::Ending,
    running::ProtocolSender,
};

/// Most records written together.
pub(super) const BATCH_RECORDS: usize = 4096;
/// Approximate bytes written together.
const BATCH_BYTES: usize = 4 << 20;
/// Size of a page of the page cache; file systems write and lose whole pages.
const PAGE_BYTES: u64 = 4096;

/// First bytes of an SQLite database.
const SQLITE_START: &[u8] = b"SQLite format 3\0";

/// The writer of a channel.
pub(super) struct Writer {
    lines: Lines,
    path: PathBuf,
    layout: Layout,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
    file: Arc<Mutex<RecordFile>>,
    folders: Folders,
}

/// Properties of the file beside its records.
#[derive(Clone, Default)]
pub(super) struct Layout {
    /// Header of each file.
    pub head: Arc<[u8]>,
    pub rotate_bytes: Option<u64>,
}

impl Writer {
    /// Opens the file, creates its folder if necessary, and cuts off a record that a crash left unfinished. A writer
    /// that replaces another one continues its file.
    pub fn open(
        options: FileOptions,
        name: &Name,
        context: &Context,
        folders: &Folders,
        before: Option<&Writer>,
        queue: Arc<Queue>,
    ) -> Result<Self, Problem> {
        let default = || PathBuf::from(format!("{name}.{}", options.format.extension()));
        let lines = Lines::new(options.format, &options.columns);
        let path = options.path.clone().unwrap_or_else(default);
        let path = folders
            .resolve_allowed(&path, &context.data_folder)
            .map_err(|text| Problem::new(Code::NotAllowed, "path", text))?;
        let file = match before.filter(|before| before.path == path) {
            Some(before) => before.file.clone(),
            None => Arc::new(Mutex::new(RecordFile::open(&path).map_err(|error| {
                Problem::new(Code::Unreadable, "path", format!("{} cannot be opened: {error}", path.display()))
            })?)),
        };
        let layout = Layout { head: lines.head().into(), rotate_bytes: options.rotate_bytes };
        Ok(Writer { lines, path, layout, clock: context.clock.clone(), queue, file, folders: folders.clone() })
    }

    /// Writes one batch after the other, until the queue is closed. The next batch is composed while one is being
    /// written.
    pub async fn run(self: Arc<Self>) {
        let (mut spare, mut ending) = (Vec::new(), Ending::default());
        let mut pending_write: Option<PendingWrite> = None;
        loop {
            let batch = tokio::select! {
                ended = PendingWrite::end(&mut pending_write), if pending_write.is_some() => {
                    spare = self.answer(ended).await;
                    continue;
                }
                batch = self.queue.pop_many(BATCH_RECORDS) => batch,
            };
            let Some(batch) = batch else { break };
            let mut rest = batch.into_iter();
            while rest.len() > 0 {
                let mut bytes = std::mem::take(&mut spare);
                let messages = self.compose(&mut rest, &mut ending, &mut bytes).await;
                if pending_write.is_some() {
                    spare = self.answer(PendingWrite::end(&mut pending_write).await).await;
                }
                pending_write = Some(self.write(bytes, messages));
            }
        }
        if pending_write.is_some() {
            self.answer(PendingWrite::end(&mut pending_write).await).await;
        }
    }

    /// Formats a batch of records into `bytes`. Returns their messages.
    async fn compose(
        &self,
        rest: &mut std::vec::IntoIter<PendingDelivery>,
        ending: &mut Ending,
        bytes: &mut Vec<u8>,
    ) -> Vec<PendingDelivery> {
        bytes.clear();
        let mut written = Vec::with_capacity(rest.len());
        for pending in rest {
            if pending.expired() {
                let reason = Reason::new(ReasonKind::Expired, "its time was over before it was written");
                pending.answer(Disposition::Refused { reason }).await;
                continue;
            }
            self.lines.write(&pending.outgoing, ending, bytes);
            written.push(pending);
            if bytes.len() >= BATCH_BYTES {
                break;
            }
        }
        written
    }

    /// Starts writing records to the disk.
    fn write(&self, bytes: Vec<u8>, mut messages: Vec<PendingDelivery>) -> PendingWrite {
        let (file, layout, now) = (self.file.clone(), self.layout.clone(), self.clock.now());
        messages.iter_mut().for_each(|message| message.sent_at = Some(now));
        let writing = tokio::task::spawn_blocking(move || {
            let result = file.lock().append(&bytes, &layout, now);
            (bytes, result)
        });
        PendingWrite { messages, writing }
    }

    /// Answers the messages of a finished write. Returns the buffer.
    async fn answer(&self, Ended { messages, bytes, result }: Ended) -> Vec<u8> {
        let disposition = match &result {
            Ok(()) => Disposition::Delivered { reply: "written".into() },
            Err(error) => classify(&self.path, error),
        };
        answer_all(messages, &disposition).await;
        bytes
    }
}

/// A write in progress.
struct PendingWrite {
    messages: Vec<PendingDelivery>,
    writing: JoinHandle<(Vec<u8>, io::Result<()>)>,
}

/// A finished write.
struct Ended {
    messages: Vec<PendingDelivery>,
    bytes: Vec<u8>,
    result: io::Result<()>,
}

impl PendingWrite {
    /// Waits for the end of a write in progress. Cancel-safe.
    async fn end(this: &mut Option<PendingWrite>) -> Ended {
        let ended = match this {
            Some(pending_write) => (&mut pending_write.writing).await,
            None => Ok((Vec::new(), Ok(()))),
        };
        let (bytes, result) = ended.unwrap_or_else(|_| (Vec::new(), Err(io::Error::other("the writer panicked"))));
        let messages = this.take().map(|ended| ended.messages).unwrap_or_default();
        Ended { messages, bytes, result }
    }
}

#[async_trait]
impl ProtocolSender for Writer {
    async fn probe(&self) -> Result<String, Reason> {
        let file = self.file.clone();
        let bytes = tokio::task::spawn_blocking(move || file.lock().probe()).await;
        match bytes {
            Ok(Ok(bytes)) => Ok(format!("{} holds {bytes} bytes", self.path.display())),
            Ok(Err(error)) => Err(reason(&self.path, &error)),
            Err(_) => Err(reason(&self.path, &io::Error::other("the writer broke off"))),
        }
    }

    fn down(&self) -> Option<Reason> {
        None
    }

    fn parts_used(&self) -> PartsUsed {
        self.lines.parts_used()
    }

    fn reconfigure(&self, name: &Name, channel: &Channel, context: &Context) -> Option<Opened> {
        (channel.protocol.as_str() == "file")
            .then(|| super::open_after(Some(self), &self.folders, name, channel, context))
    }
}

/// A file of whole records.
pub(super) struct RecordFile {
    path: PathBuf,
    /// Missing after a failure of unknown extent; the next batch reopens the file.
    file: Option<File>,
    /// Identity of the file: device and inode.
    identity: Option<(u64, u64)>,
    /// Length up to which the file is known to be whole and durable.
    bytes: u64,
    #[cfg(test)]
    disk_bytes: u64,
}

impl RecordFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let (file, bytes) = open_repaired(path)?;
        Ok(RecordFile {
            path: path.to_owned(),
            identity: Some(identity(&file.metadata()?)),
            file: Some(file),
            bytes,
            #[cfg(test)]
            disk_bytes: u64::MAX,
        })
    }

    /// Appends whole records; when it returns they are durable, or not in the file.
    pub fn append(&mut self, records: &[u8], layout: &Layout, now: Timestamp) -> io::Result<()> {
        if layout.rotate_bytes.is_some_and(|most| self.bytes >= most) {
            self.rotate(now)?;
        }
        let mut file = match self.file.take().filter(|file| is_at(file, &self.path)) {
            Some(file) => file,
            None => {
                let (file, bytes) = open_repaired(&self.path)?;
                let identity = identity(&file.metadata()?);
                if self.identity == Some(identity) {
                    // The rest of an unanswered batch was reported as not written.
                    file.set_len(bytes.min(self.bytes))?;
                    self.bytes = bytes.min(self.bytes);
                } else {
                    (self.identity, self.bytes) = (Some(identity), bytes);
                }
                file
            }
        };
        // A failed sync may have dropped pages, so after a failure nothing is assumed about the file.
        self.bytes = self.bytes.min(file.metadata()?.len());
        file.seek(SeekFrom::Start(self.bytes))?;
        let head = if self.bytes == 0 { &*layout.head } else { &[] };
        let written = match head {
            [] => self.write(&mut file, records),
            head => self.write(&mut file, &[head, records].concat()),
        };
        if let Err(error) = written {
            let _ = file.set_len(self.bytes);
            return Err(error);
        }
        self.bytes += (head.len() + records.len()) as u64;
        self.file = Some(file);
        Ok(())
    }

    #[cfg(not(test))]
    fn write(&self, file: &mut File, records: &[u8]) -> io::Result<()> {
        file.write_all(records)?;
        file.sync_data()
    }

    /// As above, on a disk whose capacity the test sets.
    #[cfg(test)]
    fn write(&self, file: &mut File, records: &[u8]) -> io::Result<()> {
        let room = usize::try_from(self.disk_bytes - self.bytes.min(self.disk_bytes)).unwrap_or(usize::MAX);
        file.write_all(&records[..records.len().min(room)])?;
        if room < records.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.sync_data()
    }

    #[cfg(test)]
    pub fn limit_for_tests(&mut self, disk_bytes: u64) {
        self.disk_bytes = disk_bytes;
    }

    /// Renames the file, with the time in its name, and begins a new one.
    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let stem = self.path.file_stem().unwrap_or_default().to_string_lossy();
        let extension =
            self.path.extension().map(|extension| format!(".{}", extension.to_string_lossy())).unwrap_or_default();
        let time: String = now.to_string().chars().filter(char::is_ascii_alphanumeric).collect();
        let mut number = 0;
        let old = loop {
            let suffix = if number == 0 { String::new() } else { format!("-{number}") };
            let old = self.path.with_file_name(format!("{stem}-{time}{suffix}{extension}"));
            if !old.try_exists()? {
                break old;
            }
            number += 1;
        };
        std::fs::rename(&self.path, &old)?;
        self.file = None;
        let (file, bytes) = open_repaired(&self.path)?;
        self.identity = Some(identity(&file.metadata()?));
        (self.file, self.bytes) = (Some(file), bytes);
        Ok(())
    }

    fn probe(&mut self) -> io::Result<u64> {
        if self.file.is_none() {
            open_repaired(&self.path)?;
        }
        Ok(self.bytes)
    }
}

/// Device and inode of a file.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Whether a file is still the one of this path. Records in a renamed or removed file would be lost.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    identity(&open) == identity(&there)
}

/// Opens a file with an exclusive lock and cuts it after its last whole record. Makes it and its folder durable.
fn open_repaired(path: &Path) -> io::Result<(File, u64)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder::make(folder, 0o777)?;
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::other("another channel or process writes to it"),
        TryLockError::Error(error) => error,
    })?;
    let mut start = Vec::new();
    (&mut file).take(SQLITE_START.len() as u64).read_to_end(&mut start)?;
    if start == SQLITE_START {
        return Err(io::Error::other("it is a database of SQLite"));
    }
    let length = file.metadata()?.len();
    let mut end = after_last_line(&mut file, length)?;
    if let Some(hole) = first_hole(&mut file, end)? {
        end = after_last_line(&mut file, hole)?;
    }
    if end < length {
        tracing::warn!(path = %path.display(), bytes = length - end, "an unfinished record was cut off");
        file.set_len(end)?;
    }
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    Ok((file, end))
}

/// Position after the last newline below `below`; 0 if there is none.
fn after_last_line(file: &mut File, below: u64) -> io::Result<u64> {
    let (mut at, mut chunk) = (below, vec![0; 64 * 1024]);
    while at > 0 {
        let size = at.min(chunk.len() as u64) as usize;
        at -= size as u64;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut chunk[..size])?;
        if let Some(found) = chunk[..size].iter().rposition(|byte| *byte == b'\n') {
            return Ok(at + found as u64 + 1);
        }
    }
    Ok(0)
}

/// Position of the first hole in the last batches below `end`: zero bytes up to the end of a page. A power loss leaves
/// holes if it drops some pages of an unsynced write and not others. Its records were never reported as written.
fn first_hole(file: &mut File, end: u64) -> io::Result<Option<u64>> {
    let start = end.saturating_sub(3 * BATCH_BYTES as u64) / PAGE_BYTES * PAGE_BYTES;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = vec![0; (end - start) as usize];
    file.read_exact(&mut bytes)?;
    let mut pages = bytes.chunks_exact(PAGE_BYTES as usize).enumerate();
    Ok(pages.find(|(_, page)| page.ends_with(&[0])).map(|(number, page)| {
        let text = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        start + number as u64 * PAGE_BYTES + text as u64
    }))
}
