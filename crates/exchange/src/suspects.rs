//! Poison messages: those whose steps were under way when the process crashed are counted over restarts, and set aside.
//!
//! A message that ends the process by the steps of its send port would do so again after every start. While steps run, its id
//! is in a slot of a small file. The file is written without a sync: a crash of the process does not lose what the kernel has,
//! and after a power cut no message is suspected. Ports without steps write nothing.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::Path,
};

use parking_lot::Mutex;
use tocsin_model::id::MessageId;

/// So many crashes in a row set a message aside.
pub(crate) const CRASHES_MAX: u32 = 3;

/// Messages whose steps are noted at the same time; those of more are not.
const SLOTS: u16 = 256;

/// The id, and the crashes before.
const SLOT_BYTES: usize = 12;

/// The name of the file in the data folder.
const FILE: &str = "exchange.steps";

/// Messages whose steps are under way, or were when the process crashed.
pub(crate) struct Suspects {
    file: Option<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<u16>,
    /// Crashes in a row, by message.
    crashes: HashMap<MessageId, u32>,
}

impl Suspects {
    /// Reads which messages were under way at a crash. Without the file nothing is suspected, and the log says why.
    pub fn open(folder: &Path) -> Suspects {
        let free: Vec<u16> = (0..SLOTS).rev().collect();
        match read(&folder.join(FILE)) {
            Ok((file, crashes)) => {
                for (message, crashes) in &crashes {
                    tracing::warn!(%message, crashes, "the process crashed while the steps of a message ran");
                }
                Suspects { file: Some(file), state: Mutex::new(State { free, crashes }) }
            }
            Err(error) => {
                tracing::warn!(%error, file = FILE, "messages that crash the process are not set aside");
                Suspects { file: None, state: Mutex::default() }
            }
        }
    }

    /// Notes that steps run for a message, until what it gives is dropped.
    ///
    /// # Errors
    /// They crashed the process too often. It is not suspected any more from here on, so that an operator may try again.
    pub fn enter(&self, message: MessageId) -> Result<UnderSteps<'_>, String> {
        let mut state = self.state.lock();
        let crashes = state.crashes.get(&message).copied().unwrap_or(0);
        if crashes >= CRASHES_MAX {
            state.crashes.remove(&message);
            return Err(format!(
                "the process crashed {crashes} times while steps ran for this message; `resume` tries it again"
            ));
        }
        let slot = state.free.pop();
        drop(state);
        if let Some(slot) = slot {
            self.write(slot, message.0, crashes);
        }
        Ok(UnderSteps { suspects: self, slot })
    }

    /// All steps of an attempt went without a crash.
    pub fn clear(&self, message: MessageId) {
        self.state.lock().crashes.remove(&message);
    }

    fn write(&self, slot: u16, message: u64, crashes: u32) {
        let Some(file) = &self.file else { return };
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&message.to_le_bytes());
        bytes[8..].copy_from_slice(&crashes.to_le_bytes());
        if let Err(error) = file.write_all_at(&bytes, u64::from(slot) * SLOT_BYTES as u64) {
            tracing::warn!(%error, file = FILE, "whose steps run cannot be noted");
        }
    }
}

/// Steps run for a message.
#[must_use]
pub(crate) struct UnderSteps<'a> {
    suspects: &'a Suspects,
    slot: Option<u16>,
}

impl Drop for UnderSteps<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.suspects.write(slot, 0, 0);
        }
        self.suspects.state.lock().free.extend(self.slot);
    }
}

/// Opens the file, empties it, and gives what was in it.
fn read(path: &Path) -> io::Result<(File, HashMap<MessageId, u32>)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(u64::from(SLOTS) * SLOT_BYTES as u64).read_to_end(&mut bytes)?;
    let slots = bytes.chunks_exact(SLOT_BYTES).map(|slot| {
        let (id, crashes) = slot.split_at(8);
        let id = u64::from_le_bytes(id.try_into().expect("eight bytes"));
        (MessageId(id), u32::from_le_bytes(crashes.try_into().expect("four bytes")).saturating_add(1))
    });
    let crashes = slots.filter(|(id, _)| id.0 != 0).collect();
    file.set_len(0)?;
    file.set_len(u64::from(SLOTS) * SLOT_BYTES as u64)?;
    Ok((file, crashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a18_a_message_that_crashes_the_process_again_and_again_is_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let (poison, good) = (MessageId(7), MessageId(8));
        for crashes in 0..CRASHES_MAX {
            let suspects = Suspects::open(folder.path());
            drop(suspects.enter(good).expect("it is not suspected"));
            let entered = suspects.enter(poison).unwrap_or_else(|why| panic!("{crashes}: {why}"));
            // A crash runs no destructor.
            std::mem::forget(entered);
        }
        let suspects = Suspects::open(folder.path());
        drop(suspects.enter(good).expect("it is not suspected"));
        assert!(suspects.enter(poison).is_err_and(|why| why.contains("3 times")));
        drop(suspects.enter(poison).expect("an operator tries again"));
        drop(suspects);
        drop(Suspects::open(folder.path()).enter(poison).expect("it went well"));
        std::fs::write(folder.path().join(FILE), b"half of a slot").expect("written");
        assert!(Suspects::open(folder.path()).enter(poison).is_ok());
    }
}
