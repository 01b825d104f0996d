use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_model::{
    application::Channel,
    content::PartsUsed,
    folder,
    id::Name,
    problem::Problem,
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
    channel::{Clock, Context},
    folders::Folders,
    pending::{Pending, answer_all},
    protocol::Opened,
    queue::Queue,
    record::Ending,
    running::FarSide,
};

/// Records written together, at most.
const BATCH_RECORDS: usize = 4096;
/// Bytes written together, about.
const BATCH_BYTES: usize = 4 << 20;

/// What a database of SQLite begins with.
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

/// What a channel wants of its file beside the records.
#[derive(Clone, Default)]
pub(super) struct Layout {
    /// What stands at its top.
    pub head: Arc<[u8]>,
    pub rotate_bytes: Option<u64>,
}

impl Writer {
    /// Opens the file, makes its folder if need be, and cuts off what a crash left unfinished. A writer that comes after
    /// another of its channel goes on with the file of that one.
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
        let path = folders.judge(&path, &context.data_folder).map_err(|text| Problem::at("path", text))?;
        let file = match before.filter(|before| before.path == path) {
            Some(before) => before.file.clone(),
            None => Arc::new(Mutex::new(
                RecordFile::open(&path)
                    .map_err(|error| Problem::at("path", format!("{} cannot be opened: {error}", path.display())))?,
            )),
        };
        let layout = Layout { head: lines.head().into(), rotate_bytes: options.rotate_bytes };
        Ok(Writer { lines, path, layout, clock: context.clock.clone(), queue, file, folders: folders.clone() })
    }

    /// One batch after the other, until the queue is closed. While one is on its way to the disk the next is composed.
    pub async fn run(self: Arc<Self>) {
        let (mut spare, mut ending) = (Vec::new(), Ending::default());
        let mut under_way: Option<UnderWay> = None;
        loop {
            let batch = tokio::select! {
                ended = UnderWay::end(&mut under_way), if under_way.is_some() => {
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
                if under_way.is_some() {
                    spare = self.answer(UnderWay::end(&mut under_way).await).await;
                }
                under_way = Some(self.write(bytes, messages));
            }
        }
        if under_way.is_some() {
            self.answer(UnderWay::end(&mut under_way).await).await;
        }
    }

    /// Writes records into `bytes`, as many as are written together. Gives their messages.
    async fn compose(
        &self,
        rest: &mut std::vec::IntoIter<Pending>,
        ending: &mut Ending,
        bytes: &mut Vec<u8>,
    ) -> Vec<Pending> {
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

    /// Sends records on their way to the disk.
    fn write(&self, bytes: Vec<u8>, mut messages: Vec<Pending>) -> UnderWay {
        let (file, layout, now) = (self.file.clone(), self.layout.clone(), self.clock.now());
        messages.iter_mut().for_each(|message| message.sent_at = Some(now));
        let writing = tokio::task::spawn_blocking(move || {
            let result = file.lock().append(&bytes, &layout, now);
            (bytes, result)
        });
        UnderWay { messages, writing }
    }

    /// Answers messages whose records are durable, or are not there. Gives the memory of the records back.
    async fn answer(&self, Ended { messages, bytes, result }: Ended) -> Vec<u8> {
        let disposition = match &result {
            Ok(()) => Disposition::Delivered { reply: "written".into() },
            Err(error) => classify(&self.path, error),
        };
        answer_all(messages, &disposition).await;
        bytes
    }
}

/// Records on their way to the disk.
struct UnderWay {
    messages: Vec<Pending>,
    writing: JoinHandle<(Vec<u8>, io::Result<()>)>,
}

/// Records that were.
struct Ended {
    messages: Vec<Pending>,
    bytes: Vec<u8>,
    result: io::Result<()>,
}

impl UnderWay {
    /// Waits for the end of what is there. Who stops waiting finds it as it was.
    async fn end(this: &mut Option<UnderWay>) -> Ended {
        let ended = match this {
            Some(under_way) => (&mut under_way.writing).await,
            None => Ok((Vec::new(), Ok(()))),
        };
        let (bytes, result) = ended.unwrap_or_else(|_| (Vec::new(), Err(io::Error::other("the writer broke off"))));
        let messages = this.take().map(|ended| ended.messages).unwrap_or_default();
        Ended { messages, bytes, result }
    }
}

#[async_trait]
impl FarSide for Writer {
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

    fn successor(&self, name: &Name, channel: &Channel, context: &Context) -> Option<Opened> {
        (channel.protocol.as_str() == "file")
            .then(|| super::open_after(Some(self), &self.folders, name, channel, context))
    }
}

/// A file of whole records.
pub(super) struct RecordFile {
    path: PathBuf,
    /// Missing after trouble whose extent is not known; the next batch opens it anew.
    file: Option<File>,
    /// Up to here the file is known to be whole and durable.
    bytes: u64,
    #[cfg(test)]
    disk_bytes: u64,
}

impl RecordFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let (file, bytes) = open_whole(path)?;
        Ok(RecordFile {
            path: path.to_owned(),
            file: Some(file),
            bytes,
            #[cfg(test)]
            disk_bytes: u64::MAX,
        })
    }

    /// Appends whole records; when it returns they are durable, or not there.
    pub fn append(&mut self, records: &[u8], layout: &Layout, now: Timestamp) -> io::Result<()> {
        if layout.rotate_bytes.is_some_and(|most| self.bytes >= most) {
            self.rotate(now)?;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let (file, bytes) = open_whole(&self.path)?;
                // What an unanswered batch left behind was reported as not written.
                file.set_len(bytes.min(self.bytes))?;
                self.bytes = bytes.min(self.bytes);
                file
            }
        };
        // A failed sync may have dropped what it could not write, so nothing is assumed about the file after trouble.
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

    /// As above, on a disk of which the test says how much it holds.
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

    /// Gives the file a name with the time in it and begins a fresh one.
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
        let (file, bytes) = open_whole(&self.path)?;
        (self.file, self.bytes) = (Some(file), bytes);
        Ok(())
    }

    fn probe(&mut self) -> io::Result<u64> {
        if self.file.is_none() {
            open_whole(&self.path)?;
        }
        Ok(self.bytes)
    }
}

/// Opens a file for this writer alone and cuts it after its last whole record. Makes it and its folder durable.
fn open_whole(path: &Path) -> io::Result<(File, u64)> {
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
    let (length, mut end) = (file.metadata()?.len(), 0);
    let (mut at, mut chunk) = (length, vec![0; 64 * 1024]);
    while at > 0 {
        let size = at.min(chunk.len() as u64) as usize;
        at -= size as u64;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut chunk[..size])?;
        if let Some(found) = chunk[..size].iter().rposition(|byte| *byte == b'\n') {
            end = at + found as u64 + 1;
            break;
        }
    }
    if end < length {
        tracing::warn!(path = %path.display(), bytes = length - end, "an unfinished record was cut off");
        file.set_len(end)?;
    }
    file.sync_all()?;
    File::open(folder)?.sync_all()?;
    Ok((file, end))
}
