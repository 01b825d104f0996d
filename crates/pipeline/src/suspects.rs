//! Poison-message protection: work that was in progress when the process crashed is counted across restarts, and set
//! aside after too many crashes.
//!
//! Matching an event batch or delivering a work item may crash the process: a stack overflow, an abort in a library,
//! or the kernel's out-of-memory killer. After a restart the same work would crash it again. While work is in progress,
//! its id is in a slot of a small file. After a crash all work in progress is suspected. Suspects run one at a time, so
//! that only the one that crashes the process is counted again, and all others are cleared. After `CRASHES_MAX` crashes
//! it is set aside.
//!
//! The slots are written without fsync: a crash of the process does not lose data held by the kernel. Nothing is
//! suspected after a reboot or an orderly shutdown.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tocsin_model::id::{EventBatchId, Name, WorkItemId};
use tokio::sync::OwnedMutexGuard;

/// Crashes in a row after which work is set aside. Repeated kills from outside look like crashes caused by the work,
/// and suspects run soon after each start, so the limit is high. Tests use a lower one.
pub(crate) const CRASHES_MAX: u32 = if cfg!(test) { 3 } else { 100 };
/// Number of crashes from which on the work items of one digest window run one by one.
pub(crate) const CRASHES_APART: u32 = 2;

/// Maximum number of tracked work in progress; more is not tracked.
const SLOTS: u16 = 4_096;
/// Size of a slot: the id, and the kind of work.
const SLOT_BYTES: usize = 9;
/// Size of the boot id of the machine, which precedes the slots.
const BOOT_BYTES: usize = 64;
/// Maximum number of suspects; beyond it, those with the lowest numbers are dropped.
const KNOWN_MAX: usize = 10_000;
/// Cleared suspects after which the file is rewritten: finished work does not run again.
const CLEARED_UNWRITTEN_MAX: usize = 64;

/// Files in the data folder.
const SLOTS_FILE: &str = "pipeline.work";
const KNOWN_FILE: &str = "pipeline.suspects";

/// Work that may crash the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Matching of an event batch.
    Events(EventBatchId),
    /// Delivery of a work item.
    Item(WorkItemId),
}

/// A suspect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Suspect {
    /// Crashes in a row while it was in progress.
    crashes: u32,
    /// Application, once the work is set aside.
    application: Option<Name>,
}

/// Suspects as stored.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Written {
    events: BTreeMap<u64, Suspect>,
    items: BTreeMap<u64, Suspect>,
}

#[derive(Default)]
struct State {
    free: Vec<u16>,
    known: BTreeMap<Work, Suspect>,
    cleared: usize,
    /// Writing has stopped: orderly shutdown, or, in a test, a crash.
    is_closed: bool,
}

/// Work that is under way, or was when the process crashed.
pub(crate) struct Suspects {
    slots: Option<File>,
    known_path: PathBuf,
    state: Mutex<State>,
    /// Held by the suspect that runs.
    alone: Arc<tokio::sync::Mutex<()>>,
}

impl Suspects {
    /// Reads what was under way at a crash. Without a folder nothing is suspected; without the files neither, and the log
    /// says why.
    pub fn open(folder: &Path) -> Arc<Suspects> {
        let mut state = State { free: (0..SLOTS).rev().collect(), ..State::default() };
        let mut slots = None;
        if !folder.as_os_str().is_empty() {
            match read(folder) {
                Ok((file, known)) => (slots, state.known) = (Some(file), known),
                Err(error) => {
                    tracing::warn!(%error, file = SLOTS_FILE, "work that crashes the process is not set aside");
                }
            }
        }
        for (work, Suspect { crashes, application }) in &state.known {
            if application.is_none() {
                tracing::warn!(?work, crashes, "the process crashed while this was under way; it runs alone");
            }
        }
        metrics::gauge!("tocsin_pipeline_suspects").set(state.known.len() as f64);
        let suspects =
            Suspects { slots, known_path: folder.join(KNOWN_FILE), state: Mutex::new(state), alone: Arc::default() };
        suspects.write_known(&suspects.state.lock());
        Arc::new(suspects)
    }

    /// The crashes of the process in a row at which it was under way.
    pub fn crashes(&self, work: Work) -> u32 {
        self.state.lock().known.get(&work).map_or(0, |known| known.crashes)
    }

    /// Why work is set aside, if it has crashed the process too often.
    pub fn poison(&self, work: Work) -> Option<String> {
        let crashes = self.crashes(work);
        let what = match work {
            Work::Events(_) => "while it was matched",
            Work::Item(_) => "while it was delivered",
        };
        (crashes >= CRASHES_MAX).then(|| format!("the process crashed {crashes} times {what}"))
    }

    /// Waits until no other suspect runs.
    pub async fn alone(&self) -> ExclusivePermit {
        ExclusivePermit(Arc::new(self.alone.clone().lock_owned().await))
    }

    /// Marks work as in progress until the result is dropped.
    pub fn enter(self: &Arc<Self>, work: Work, alone: Option<&ExclusivePermit>) -> InProgressGuard {
        let slot = self.state.lock().free.pop();
        if let Some(slot) = slot {
            self.write_slot(slot, Some(work));
        }
        InProgressGuard { suspects: self.clone(), work, slot, alone: alone.cloned() }
    }

    /// Sets an event batch aside permanently, until its application is matched again.
    pub fn set_aside(&self, id: EventBatchId, application: &Name) {
        let mut state = self.state.lock();
        if let Some(known) = state.known.get_mut(&Work::Events(id)) {
            known.application = Some(application.clone());
            self.write_known(&state);
        }
    }

    /// Removes the suspicion from an application's batches: an operator tries again.
    pub fn clear_application(&self, application: &Name) {
        let mut state = self.state.lock();
        let before = state.known.len();
        state.known.retain(|_, known| known.application.as_ref() != Some(application));
        if state.known.len() < before {
            self.write_known(&state);
        }
    }

    /// Orderly shutdown: work in progress is not suspected.
    pub fn close(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_closed, true)
            && let Some(slots) = &self.slots
            && let Err(error) = slots.set_len(0)
        {
            tracing::warn!(%error, file = SLOTS_FILE, "the work under way cannot be cleared");
        }
    }

    /// Simulates a crash: nothing is written any more.
    #[cfg(test)]
    pub fn crash(&self) {
        self.state.lock().is_closed = true;
    }

    /// Clears a suspect that ran without a crash.
    fn clear(&self, work: Work) {
        let mut state = self.state.lock();
        if state.known.is_empty() || state.known.remove(&work).is_none() {
            return;
        }
        tracing::info!(?work, "a suspect ran without a crash");
        state.cleared += 1;
        if state.known.len() < CLEARED_UNWRITTEN_MAX || state.cleared >= CLEARED_UNWRITTEN_MAX {
            state.cleared = 0;
            self.write_known(&state);
        }
    }

    fn write_slot(&self, slot: u16, work: Option<Work>) {
        let Some(file) = &self.slots else { return };
        let (id, kind) = match work {
            Some(Work::Events(id)) => (id.0, 1),
            Some(Work::Item(id)) => (id.0, 2),
            None => (0, 0),
        };
        let mut bytes = [kind; SLOT_BYTES];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        let at = BOOT_BYTES as u64 + u64::from(slot) * SLOT_BYTES as u64;
        let state = self.state.lock();
        if !state.is_closed
            && let Err(error) = file.write_all_at(&bytes, at)
        {
            tracing::warn!(%error, file = SLOTS_FILE, "what is under way cannot be noted");
        }
    }

    fn write_known(&self, state: &State) {
        metrics::gauge!("tocsin_pipeline_suspects").set(state.known.len() as f64);
        if self.slots.is_none() || state.is_closed {
            return;
        }
        let mut written = Written::default();
        for (work, known) in &state.known {
            match work {
                Work::Events(id) => written.events.insert(id.0, known.clone()),
                Work::Item(id) => written.items.insert(id.0, known.clone()),
            };
        }
        if let Err(error) = write(&self.known_path, &written) {
            tracing::warn!(%error, file = KNOWN_FILE, "suspects cannot be stored");
        }
    }
}

/// Permission of one suspect to run; work items of one job share it.
#[derive(Clone)]
pub(crate) struct ExclusivePermit(#[allow(dead_code)] Arc<OwnedMutexGuard<()>>);

/// Marks work in progress.
#[must_use]
pub(crate) struct InProgressGuard {
    suspects: Arc<Suspects>,
    work: Work,
    slot: Option<u16>,
    alone: Option<ExclusivePermit>,
}

impl InProgressGuard {
    /// The work ended without a crash.
    pub fn done(self) {
        self.suspects.clear(self.work);
    }
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.suspects.write_slot(slot, None);
            self.suspects.state.lock().free.push(slot);
        }
        // Only now may another suspect run.
        self.alone = None;
    }
}

/// Opens and empties the slots. Returns the earlier suspects, with the work in progress counted.
fn read(folder: &Path) -> io::Result<(File, BTreeMap<Work, Suspect>)> {
    let path = folder.join(SLOTS_FILE);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let mut bytes = Vec::new();
    let most = BOOT_BYTES + usize::from(SLOTS) * SLOT_BYTES;
    Read::by_ref(&mut file).take(most as u64).read_to_end(&mut bytes)?;
    let mut known = read_known(&folder.join(KNOWN_FILE))?;
    let boot = boot_id();
    // After a reboot the content of the file may be old.
    if bytes.len() > BOOT_BYTES && bytes[..BOOT_BYTES] == boot {
        for slot in bytes[BOOT_BYTES..].chunks_exact(SLOT_BYTES) {
            let id = u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"));
            let work = match slot[8] {
                1 => Work::Events(EventBatchId(id)),
                2 => Work::Item(WorkItemId(id)),
                _ => continue,
            };
            let known: &mut Suspect = known.entry(work).or_default();
            known.crashes = known.crashes.saturating_add(1);
        }
    }
    while known.len() > KNOWN_MAX {
        known.pop_first();
    }
    file.set_len(0)?;
    file.write_all_at(&boot, 0)?;
    file.set_len(most as u64)?;
    Ok((file, known))
}

/// An unreadable file counts as missing: it only lists suspects.
fn read_known(path: &Path) -> io::Result<BTreeMap<Work, Suspect>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let Written { events, items } = serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!(%error, file = KNOWN_FILE, "the suspects of before cannot be read");
        Written::default()
    });
    let events = events.into_iter().map(|(id, known)| (Work::Events(EventBatchId(id)), known));
    let items = items.into_iter().map(|(id, known)| (Work::Item(WorkItemId(id)), known));
    Ok(events.chain(items).collect())
}

fn write(path: &Path, written: &Written) -> io::Result<()> {
    let new = path.with_extension("suspects-new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(written)?)?;
    std::fs::rename(new, path)
}

/// Boot id of the machine, padded; all zero where the system has none.
fn boot_id() -> [u8; BOOT_BYTES] {
    let mut boot = [0; BOOT_BYTES];
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let length = id.len().min(BOOT_BYTES);
    boot[..length].copy_from_slice(&id[..length]);
    boot
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const POISON: Work = Work::Events(EventBatchId(7));
    const GOOD: Work = Work::Events(EventBatchId(8));
    const ITEM: Work = Work::Item(WorkItemId(7));

    #[test]
    fn a18_only_work_in_progress_at_each_crash_is_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let suspects = Suspects::open(folder.path());
        let all = [POISON, GOOD, ITEM].map(|work| suspects.enter(work, None));
        suspects.crash();
        drop(all);
        for crashes in 1..CRASHES_MAX {
            let suspects = Suspects::open(folder.path());
            assert_eq!(suspects.crashes(POISON), crashes);
            // The others are cleared one by one.
            for work in [GOOD, ITEM] {
                assert_eq!(suspects.crashes(work), u32::from(crashes == 1));
                suspects.enter(work, None).done();
                assert_eq!(suspects.crashes(work), 0);
            }
            assert_eq!(suspects.poison(POISON), None);
            let under_way = suspects.enter(POISON, None);
            suspects.crash();
            drop(under_way);
        }
        let suspects = Suspects::open(folder.path());
        assert!(suspects.poison(POISON).is_some_and(|why| why.contains("3 times")));
        let (name, other): (Name, Name) = ("quakes".parse().expect("a name"), "other".parse().expect("a name"));
        suspects.set_aside(EventBatchId(7), &name);
        suspects.close();
        let suspects = Suspects::open(folder.path());
        suspects.clear_application(&other);
        assert!(suspects.poison(POISON).is_some(), "it stays over restarts");
        suspects.clear_application(&name);
        drop(suspects);
        assert_eq!(Suspects::open(folder.path()).crashes(POISON), 0, "an operator tries again");
    }

    #[test]
    fn a18_a_shutdown_and_released_work_suspect_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let suspects = Suspects::open(folder.path());
        drop(suspects.enter(GOOD, None));
        let under_way = suspects.enter(POISON, None);
        suspects.close();
        drop(under_way);
        let suspects = Suspects::open(folder.path());
        assert_eq!([GOOD, POISON].map(|work| suspects.crashes(work)), [0, 0]);
        // After a release it is still suspected; after completion it is not.
        let under_way = suspects.enter(POISON, None);
        suspects.crash();
        drop(under_way);
        let suspects = Suspects::open(folder.path());
        drop(suspects.enter(POISON, None));
        assert_eq!(suspects.crashes(POISON), 1);
        suspects.enter(POISON, None).done();
        assert_eq!(suspects.crashes(POISON), 0);
        drop(suspects);
        // Files that are damaged, unreadable or of another boot suspect nothing.
        std::fs::write(folder.path().join(KNOWN_FILE), b"half").expect("written");
        std::fs::write(folder.path().join(SLOTS_FILE), [7; BOOT_BYTES + 3 * SLOT_BYTES]).expect("written");
        assert_eq!(Suspects::open(folder.path()).crashes(Work::Events(EventBatchId(0x0707_0707_0707_0707))), 0);
        assert_eq!(Suspects::open(Path::new("")).crashes(POISON), 0);
    }

    #[tokio::test]
    async fn a18_one_suspect_runs_at_a_time() {
        let suspects = Suspects::open(Path::new(""));
        let alone = suspects.alone().await;
        let job = [POISON, ITEM].map(|work| suspects.enter(work, Some(&alone)));
        drop(alone);
        assert!(suspects.alone().now_or_never().is_none());
        let [one, other] = job;
        one.done();
        assert!(suspects.alone().now_or_never().is_none(), "all of a job");
        drop(other);
        assert!(suspects.alone().now_or_never().is_some());
    }
}
