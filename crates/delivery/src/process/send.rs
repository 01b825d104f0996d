use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tocsin_connect::programs::{ANSWER_BYTES_MAX, Program};
use tocsin_model::{
    content::PartsUsed,
    id::{Name, NotificationId},
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::{
    io::AsyncWriteExt,
    process::ChildStdin,
    time::{Instant, sleep, sleep_until},
};

use super::{answer, options::ProcessOptions};
use crate::{
    channel::Context,
    pending::PendingDelivery,
    queue::Queue,
    record,
    running::{ProtocolSender, pause_after},
};

/// While this many bytes wait to be written, no more messages are taken.
const UNWRITTEN_MAX: usize = 1 << 20;
/// Invalid answers that are logged for each run of a program.
const INVALID_ANSWERS_LOGGED_MAX: usize = 10;

/// The sessions of a channel, each with a program.
pub(super) struct Sessions {
    name: Name,
    options: ProcessOptions,
    path: PathBuf,
    folder: PathBuf,
    queue: Arc<Queue>,
    /// The latest failure of the program, if any.
    last_failure: Mutex<Option<Reason>>,
}

/// End of a program's run.
enum End {
    /// The channel was closed.
    Closed,
    /// The program ended after at least one answer.
    Served,
    /// The program ended without an answer.
    Failed,
}

/// Unanswered messages of a program.
#[derive(Default)]
struct UnansweredMessages {
    messages: HashMap<NotificationId, PendingDelivery>,
    /// Deadlines of answers, the earliest first; some messages are answered already.
    deadlines: VecDeque<(Instant, NotificationId)>,
    /// Cached end of the last record.
    ending: record::Ending,
}

impl UnansweredMessages {
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, id)) = self.deadlines.front() {
            if self.messages.contains_key(id) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }
}

impl Sessions {
    pub fn new(name: &Name, options: ProcessOptions, path: PathBuf, context: &Context, queue: Arc<Queue>) -> Self {
        let folder = context.data_folder.clone();
        Sessions { name: name.clone(), options, path, folder, queue, last_failure: Mutex::new(None) }
    }

    /// Runs one program after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        let mut failures = 0;
        while let Some(first) = self.queue.pop_many(1).await {
            let started = Program::start(
                &self.name,
                &self.path,
                &self.options.command[1..],
                &self.options.environment,
                &self.folder,
                ANSWER_BYTES_MAX,
            );
            let end = match started {
                Ok(program) => self.serve(program, first).await,
                Err(error) => {
                    self.defer_all(first, &format!("{} cannot be started: {error}", self.path.display())).await;
                    End::Failed
                }
            };
            match end {
                End::Closed => return,
                End::Served => failures = 0,
                End::Failed => {
                    failures += 1;
                    sleep(pause_after(failures)).await;
                }
            }
        }
    }

    /// Serves a program until it ends or the channel closes.
    async fn serve(&self, mut program: Program, first: Vec<PendingDelivery>) -> End {
        let (mut held, mut unwritten, mut written) = (UnansweredMessages::default(), Vec::new(), 0);
        let (mut open, mut served, mut unreadable) = (true, false, 0);
        let mut waiting = Some(first);
        loop {
            for pending in waiting.take().into_iter().flatten() {
                self.write_message(pending, &mut held, &mut unwritten).await;
            }
            if held.messages.is_empty() && (!open || program.input.is_none()) {
                break;
            }
            let room = (self.options.window as usize).saturating_sub(held.messages.len());
            let takes = open && room > 0 && unwritten.len() < UNWRITTEN_MAX && program.input.is_some();
            let deadline = held.deadline();
            tokio::select! {
                line = program.lines.recv() => match line {
                    Some(line) => {
                        if let Some((pending, disposition)) = self.take_answer(&line, &mut held, &mut unreadable) {
                            served = true;
                            *self.last_failure.lock() = None;
                            pending.answer(disposition).await;
                        }
                    }
                    None => break,
                },
                result = write(&mut program.input, &unwritten[written..]), if written < unwritten.len() => match result {
                    Ok(bytes) => {
                        written += bytes;
                        if written == unwritten.len() {
                            unwritten.clear();
                            written = 0;
                        }
                    }
                    // The program no longer reads its input, but may still answer earlier messages.
                    Err(_) => {
                        program.input = None;
                        (written, unwritten) = (0, Vec::new());
                    }
                },
                taken = self.queue.pop_many(room), if takes => match taken {
                    Some(taken) => waiting = Some(taken),
                    None => open = false,
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.time_out(&mut held).await;
                }
            }
        }
        let how = program.end(self.options.grace.0).await;
        if !open && held.messages.is_empty() {
            return End::Closed;
        }
        let left = held.messages.into_values().collect();
        self.defer_all(left, &format!("the program ended ({how})")).await;
        if served { End::Served } else { End::Failed }
    }

    /// Records a message as unanswered and queues its line for writing.
    async fn write_message(
        &self,
        mut pending: PendingDelivery,
        held: &mut UnansweredMessages,
        unwritten: &mut Vec<u8>,
    ) {
        if let Some(reason) = pending.too_late() {
            return pending.answer(Disposition::Refused { reason }).await;
        }
        record::write_json(&pending.outgoing, &mut held.ending, unwritten);
        unwritten.push(b'\n');
        pending.sent();
        let id = pending.outgoing.id;
        held.deadlines.push_back((Instant::now() + self.options.timeout.0, id));
        held.messages.insert(id, pending);
    }

    /// The message that an answer is about, and its disposition. Invalid answers are logged.
    fn take_answer(
        &self,
        line: &[u8],
        held: &mut UnansweredMessages,
        unreadable: &mut usize,
    ) -> Option<(PendingDelivery, Disposition)> {
        let wrong = match answer::read(line) {
            Ok((id, disposition)) => match held.messages.remove(&id) {
                Some(pending) => return Some((pending, disposition)),
                None => format!("{id} is not waiting for an answer"),
            },
            Err(wrong) => wrong,
        };
        *unreadable += 1;
        if *unreadable <= INVALID_ANSWERS_LOGGED_MAX {
            let line: String = String::from_utf8_lossy(&line[..line.len().min(1_000)]).chars().take(200).collect();
            tracing::warn!(channel = %self.name, %wrong, line = %line.escape_debug(), "the program wrote an invalid answer");
        }
        None
    }

    async fn time_out(&self, held: &mut UnansweredMessages) {
        let now = Instant::now();
        while held.deadline().is_some_and(|deadline| deadline <= now) {
            let (_, id) = held.deadlines.pop_front().expect("there is a first");
            if let Some(pending) = held.messages.remove(&id) {
                let text = format!("no answer of the program within {}", self.options.timeout);
                let reason = Reason::new(ReasonKind::Timeout, text);
                pending.answer(Disposition::Deferred { reason, retry_after: None }).await;
            }
        }
    }

    async fn defer_all(&self, messages: Vec<PendingDelivery>, why: &str) {
        let reason = Reason::new(ReasonKind::Connection, why);
        tracing::warn!(channel = %self.name, "{}", reason.text);
        *self.last_failure.lock() = Some(reason.clone());
        for pending in messages {
            pending.answer(Disposition::Deferred { reason: reason.clone(), retry_after: None }).await;
        }
    }
}

async fn write(input: &mut Option<ChildStdin>, bytes: &[u8]) -> std::io::Result<usize> {
    match input {
        Some(input) => input.write(bytes).await,
        None => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

#[async_trait]
impl ProtocolSender for Sessions {
    /// Does not start the program, because that could have side effects.
    async fn probe(&self) -> Result<String, Reason> {
        match self.down() {
            Some(reason) => Err(reason),
            None => Ok(format!("{} is there and may be started", self.path.display())),
        }
    }

    fn down(&self) -> Option<Reason> {
        self.last_failure.lock().clone()
    }

    fn parts_used(&self) -> PartsUsed {
        record::RECORD_PARTS
    }
}
