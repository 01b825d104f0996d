//! Appends records to a file, one line each, durable before they are answered (group commit).
//!
//! All queued records are written with one write and one `fdatasync`, then answered. A record that a crash left
//! unfinished is cut off when the file is opened. The operator names the file; a device's address is a field of its
//! records and never part of the name. One channel has one writer, and the file is locked against others.

mod classify; // classifies file system errors
mod lines; // formats a message as a line
mod options; // options of the protocol
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
    pending::DeliveryContext,
    queue::Queue,
    running::{Running, single_lane},
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

/// As `open_with`, continuing the file of a previous writer if there is one.
fn open_after(
    before: Option<&send::Writer>,
    folders: &Folders,
    name: &Name,
    channel: &Channel,
    context: &Context,
) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: FileOptions = read(&channel.options, "")?;
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let writer = send::Writer::open(options, name, context, folders, before, queue.clone());
    let writer = Arc::new(writer.map_err(|problem| vec![problem])?);
    let sessions = writer.clone();
    Ok(Running::start(shared, queue, single_lane, writer, move || sessions.clone().run()))
}
