//! Records appended to a file, one line each, durable before they are answered.
//!
//! What waits in the queue is written with one write and one `fdatasync`, then answered. A record that a crash left
//! unfinished is cut off when the file is opened. The file's name comes from the operator; a device's address is a field
//! of its records and never a name. One channel has one writer, and the file is locked against others.

mod classify; // an error of the file system becomes a disposition
mod lines; // a message becomes a line
mod options; // what an operator may set
mod send; // the writer

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use lines::guarded;
pub use options::{FileOptions, RecordFormat};
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    folders::Folders,
    options::read,
    pending::Shared,
    queue::Queue,
    running::{Running, only_lane},
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    open_after(None, &Folders::default(), name, channel, context)
}

/// As `open`, for a channel that may write into these folders outside the data folder too.
pub(crate) fn open_with(
    folders: &Folders,
    name: &Name,
    channel: &Channel,
    context: &Context,
) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    open_after(None, folders, name, channel, context)
}

/// As `open_with`, in the place of another writer or of none.
fn open_after(
    before: Option<&send::Writer>,
    folders: &Folders,
    name: &Name,
    channel: &Channel,
    context: &Context,
) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: FileOptions = read(&channel.options, "")?;
    let queue = Queue::single(1);
    let shared = Shared::new(name, context);
    let writer = send::Writer::open(options, name, context, folders, before, queue.clone());
    let writer = Arc::new(writer.map_err(|problem| vec![problem])?);
    let sessions = writer.clone();
    Ok(Running::start(shared, queue, only_lane, writer, move || sessions.clone().run()))
}
