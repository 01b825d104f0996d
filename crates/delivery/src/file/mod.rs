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
use tocsin_connect::options::read;
use tocsin_model::{application::Channel, id::Name};

use crate::{
    channel::{Context, Opened},
    description::{ChannelResource, ProtocolDescription, behind_a_server, check_of, schema_of},
    folders::Folders,
    pending::DeliveryContext,
    queue::Queue,
    record,
    running::{Running, single_lane},
};

/// Its row in the table of protocols.
pub(crate) static PROTOCOL: ProtocolDescription = ProtocolDescription {
    name: "file",
    summary: "records appended to a file, durable before they are answered",
    schema: schema_of::<FileOptions>,
    parts: record::RECORD_PARTS,
    needs: &[ChannelResource::WritableFiles],
    secrets: &[],
    is_endpoint: behind_a_server,
    send_port: None,
    check: check_of::<FileOptions>,
    open: |request| open_after(None, request.folders, request.name, request.channel, request.context),
};

/// Opens a channel that may write into these folders outside the data folder too, continuing the file
/// of a previous writer if there is one.
fn open_after(
    before: Option<&send::Writer>,
    folders: &Folders,
    name: &Name,
    channel: &Channel,
    context: &Context,
) -> Opened {
    let options: FileOptions = read(&channel.options, "")?;
    let queue = Queue::single(1);
    let shared = DeliveryContext::new(name, context);
    let writer = send::Writer::open(options, name, context, folders, before, queue.clone());
    let writer = Arc::new(writer.map_err(|problem| vec![problem])?);
    let sessions = writer.clone();
    Ok(Running::start(shared, queue, single_lane, writer, move || sessions.clone().run()))
}
