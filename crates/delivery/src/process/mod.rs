//! Lines of JSON to a program of the operator's, and its answers: for every way out that is not built in.
//!
//! A session starts the program when there is something to send and keeps it running. Each message is a line on its
//! standard input, as a record of the file protocol; each answer is a line on its standard output, in any order:
//!
//! ```json
//! {"id": "n-7-15", "outcome": "delivered", "reply": "queued as 4711"}
//! {"id": "n-7-16", "outcome": "deferred", "reason": "busy", "retry_after_seconds": 30}
//! {"id": "n-7-17", "outcome": "refused", "reason": "no such number"}
//! ```
//!
//! What it writes to standard error goes to the log. When it ends, what it has not answered is tried again later, and
//! the program is started anew, at growing distances while it ends without having answered anything. When the channel
//! closes, its standard input ends, and it has a while to answer what it still can.

pub mod command; // a program and its variables, as options name them
pub mod change; // a program that makes of a message what it likes
mod answer; // a line of the program becomes a disposition
mod options; // what an operator may set
mod program; // a running program: its lines, its last words, its end
mod send; // the sessions: messages in, answers out

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

pub use options::ProcessOptions;
use tocsin_model::{application::Channel, id::Name, problem::Problem};

use crate::{
    channel::{Context, OpenChannel},
    options::read,
    pending::Shared,
    queue::Queue,
    running::{Running, only_lane},
};

pub(crate) fn open(name: &Name, channel: &Channel, context: &Context) -> Result<Box<dyn OpenChannel>, Vec<Problem>> {
    let options: ProcessOptions = read(&channel.options, "")?;
    let path =
        context.programs.judge(Path::new(&options.command[0])).map_err(|text| vec![Problem::at("command", text)])?;
    let queue = Queue::single(channel.concurrency.max(1) as usize);
    let shared = Shared::new(name, context);
    let sessions = Arc::new(send::Sessions::new(name, options, path, context, queue.clone()));
    let session = sessions.clone();
    Ok(Running::start(shared, queue, only_lane, sessions, move || session.clone().run()))
}
