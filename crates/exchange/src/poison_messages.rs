//! Poison messages: counts crashes of the process during a message's pipeline steps, across restarts, and suspends the
//! message.
//!
//! A message whose steps crash the process would do so after every start. While steps run, the message id is in a slot
//! of a small file. The file is written without a sync: the kernel keeps it when the process crashes, and after a power
//! loss no message is suspected. Ports without steps write nothing.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use parking_lot::Mutex;
use tocsin_model::id::MessageId;

/// Crashes in a row after which a message is suspended.
pub(crate) const CRASHES_MAX: u32 = 3;

/// Messages that can be recorded at the same time; further ones are not recorded.
const SLOTS: u16 = 256;

/// Eight bytes of message id, four of earlier crashes.
const SLOT_BYTES: usize = 12;

/// File name in the data folder.
const FILE: &str = "exchange.steps";

/// Messages whose steps run now, or ran at the last crash.
pub(crate) struct PoisonMessages {
    file: Option<File>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<u16>,
    /// Crashes in a row, by message.
    crashes: HashMap<MessageId, u32>,
}

impl PoisonMessages {
    /// Reads the messages whose steps ran at the last crash. If the file cannot be read, no message is suspected, and a
    /// warning is logged.
    pub fn open(folder: &Path) -> PoisonMessages {
        let free: Vec<u16> = (0..SLOTS).rev().collect();
        match read(&folder.join(FILE)) {
            Ok((file, crashes)) => {
                for (message, crashes) in &crashes {
                    tracing::warn!(%message, crashes, "the process crashed while the steps of this message ran");
                }
                PoisonMessages { file: Some(file), state: Mutex::new(State { free, crashes }) }
            }
            Err(error) => {
                tracing::warn!(%error, file = FILE, "messages that crash the process cannot be detected");
                PoisonMessages { file: None, state: Mutex::default() }
            }
        }
    }

    /// Records that steps run for a message, until the returned guard is dropped.
    ///
    /// # Errors
    /// The steps crashed the process too often. The count is reset, so that an operator can try again.
    pub fn enter(&self, message: MessageId) -> Result<StepGuard<'_>, String> {
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
        Ok(StepGuard { poison_messages: self, slot })
    }

    /// Resets the count after an attempt without a crash.
    pub fn clear(&self, message: MessageId) {
        self.state.lock().crashes.remove(&message);
    }

    fn write(&self, slot: u16, message: u64, crashes: u32) {
        let Some(file) = &self.file else { return };
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&message.to_le_bytes());
        bytes[8..].copy_from_slice(&crashes.to_le_bytes());
        if let Err(error) = file.write_all_at(&bytes, u64::from(slot) * SLOT_BYTES as u64) {
            tracing::warn!(%error, file = FILE, "cannot record the message whose steps run");
        }
    }
}

/// Guard: the steps of a message run until this is dropped.
#[must_use]
pub(crate) struct StepGuard<'a> {
    poison_messages: &'a PoisonMessages,
    slot: Option<u16>,
}

impl Drop for StepGuard<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.poison_messages.write(slot, 0, 0);
        }
        self.poison_messages.state.lock().free.extend(self.slot);
    }
}

/// Opens and empties the file; returns its previous content.
fn read(path: &Path) -> io::Result<(File, HashMap<MessageId, u32>)> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
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
            let poison_messages = PoisonMessages::open(folder.path());
            drop(poison_messages.enter(good).expect("it is not suspected"));
            let entered = poison_messages.enter(poison).unwrap_or_else(|why| panic!("{crashes}: {why}"));
            // A crash runs no destructor.
            std::mem::forget(entered);
        }
        let poison_messages = PoisonMessages::open(folder.path());
        drop(poison_messages.enter(good).expect("it is not suspected"));
        assert!(poison_messages.enter(poison).is_err_and(|why| why.contains("3 times")));
        drop(poison_messages.enter(poison).expect("an operator tries again"));
        drop(poison_messages);
        drop(PoisonMessages::open(folder.path()).enter(poison).expect("it went well"));
        std::fs::write(folder.path().join(FILE), b"half of a slot").expect("written");
        assert!(PoisonMessages::open(folder.path()).enter(poison).is_ok());
    }
}
