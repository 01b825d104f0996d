//! Process source: JSON lines from an operator's program, for inputs that are not built in.
//!
//! Each line on its standard output is an event, or a position in the program's own format:
//!
//! ```json
//! {"magnitude": 6.1, "place": "Kobe"}
//! {"$position": "2026-11-22/4711"}
//! ```
//!
//! Events are stored together with the next position. Then the program receives `{"accepted": "2026-11-22/4711"}` on
//! its standard input, and may discard earlier data. When it is started, the last position is in `TOCSIN_POSITION`, and
//! it continues there. Events after its last position are stored too, but may be repeated after a crash. Its standard
//! error goes to the log. When it ends it is restarted; a successful exit after some output is not an error.

mod options; // the options of an operator

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
pub use options::ProcessOptions;
use serde::Deserialize;
use tocsin_connect::{options::read, programs::prepared_command};
use tocsin_model::{
    definition::secrets::SecretShape,
    event::EventPacker,
    mark::Mark,
    problem::{Code, Problem},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout},
    sync::mpsc,
    time::timeout,
};

use crate::{
    description::{KindDescription, Opened, SourceResource, check_of, not_allowed_of, schema_of},
    items::Item,
    mapping::Mapping,
    source::{BATCH_BYTES_MAX, BATCH_EVENTS_MAX, OpenSource, RejectedItem, SourceBatch, SourceError, SourceSettings},
};

/// The part of the marks with the program's last position.
const POSITION: &str = "position";
/// Most lines read ahead.
const LINES_AHEAD: usize = 256;
/// Pause after which the lines read so far are stored.
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for the program to read the acknowledgement.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Its row in the table of kinds.
pub(crate) static KIND: KindDescription = KindDescription {
    name: "process",
    summary: "JSON lines from a program",
    schema: schema_of::<ProcessOptions>,
    needs: &[SourceResource::Programs],
    secrets: &[("environment", SecretShape::Whole)],
    location: None,
    check: check_of::<ProcessOptions>,
    not_allowed: not_allowed_of::<ProcessOptions>,
    open,
};

fn open(setting: SourceSettings, marks: Vec<Mark>) -> Opened {
    let options: ProcessOptions = read(&setting.options, "")?;
    let program = options.program(&setting.context).map_err(|problem| vec![problem])?;
    let position = marks.iter().find(|mark| &*mark.part == POSITION).and_then(|mark| mark.value.clone());
    let position = position.map(|text| String::from_utf8(text.to_vec())).transpose();
    let position = position
        .map_err(|_| vec![Problem::new(Code::DamagedData, "", "the stored position of the program is not text")])?;
    Ok(Box::new(Process {
        mapping: Mapping::new(&setting.output.fields(), &options.fields),
        position,
        running: None,
        pending_position: None,
        program,
        setting,
        options,
    }))
}

/// A line with the program's position.
#[derive(Deserialize)]
struct Position {
    #[serde(rename = "$position")]
    position: String,
}

/// A line of the program.
enum Line {
    Text(Vec<u8>),
    TooLong,
}

/// The state of the source.
struct Process {
    setting: SourceSettings,
    options: ProcessOptions,
    program: PathBuf,
    mapping: Mapping,
    running: Option<RunningProcess>,
    position: Option<String>,
    /// The position that is accepted with the last batch.
    pending_position: Option<String>,
}

/// The running program.
struct RunningProcess {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<Line>,
    /// Whether it has written any line.
    has_output: bool,
}

impl Process {
    fn start(&mut self) -> io::Result<RunningProcess> {
        let (arguments, folder) = (&self.options.command[1..], &self.setting.context.data_folder);
        let mut command = prepared_command(&self.program, arguments, &self.options.environment, folder);
        command.envs(self.position.as_ref().map(|position| ("TOCSIN_POSITION", position)));
        let mut child = command.spawn()?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, lines) = mpsc::channel(LINES_AHEAD);
        tokio::spawn(read_lines(output.expect("it is piped"), self.options.item_bytes_max, sender));
        let (application, source) = (self.setting.application.clone(), self.setting.name.clone());
        let mut errors = BufReader::new(errors.expect("it is piped"));
        tokio::spawn(async move {
            let mut line = Vec::new();
            while let Ok(1..) = (&mut errors).take(2_000).read_until(b'\n', &mut line).await {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(%application, %source, "output of the program: {}", text.trim().escape_debug());
                line.clear();
            }
        });
        Ok(RunningProcess { child, input: input.expect("it is piped"), lines, has_output: false })
    }

    async fn running(&mut self) -> Result<&mut RunningProcess, SourceError> {
        if self.running.is_none() {
            let running = self.start();
            let shown = self.program.display();
            self.running =
                Some(running.map_err(|error| SourceError::new(format!("{shown} cannot be started"), error))?);
        }
        Ok(self.running.as_mut().expect("it was started"))
    }

    /// Handles the end of a program's output.
    async fn ended(&mut self) -> Result<(), SourceError> {
        let Some(RunningProcess { mut child, input, has_output, .. }) = self.running.take() else { return Ok(()) };
        drop(input);
        let status = timeout(self.options.grace.0, child.wait()).await;
        match status {
            Ok(Ok(status)) if status.success() && has_output => Ok(()),
            Ok(Ok(status)) => Err(SourceError::of(format!("the program has ended: {status}"))),
            Ok(Err(error)) => Err(SourceError::new("the program has ended", error)),
            Err(_) => Err(SourceError::of("the program closed its output and did not end")),
        }
    }
}

/// Passes on the lines of a program, until its output ends.
async fn read_lines(output: ChildStdout, bytes_max: usize, lines: mpsc::Sender<Line>) {
    let mut reader = BufReader::new(output);
    let mut is_rest = false;
    loop {
        let mut line = Vec::new();
        match (&mut reader).take(bytes_max as u64 + 1).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.last() == Some(&b'\n');
        let said = match (is_rest, whole || line.len() <= bytes_max) {
            (true, _) => None,
            (false, true) => Some(Line::Text(line)),
            (false, false) => Some(Line::TooLong),
        };
        is_rest = !whole;
        if let Some(said) = said
            && lines.send(said).await.is_err()
        {
            return;
        }
    }
}

#[async_trait]
impl OpenSource for Process {
    async fn next(&mut self) -> Result<SourceBatch, SourceError> {
        let mut packer = EventPacker::new(self.setting.output.fields());
        let mut batch = SourceBatch::default();
        let too_long = format!("is longer than {} bytes; `item_bytes_max` can be raised", self.options.item_bytes_max);
        loop {
            let is_empty = packer.count() == 0 && batch.refused.is_empty();
            let running = self.running().await?;
            let line = match is_empty {
                true => running.lines.recv().await,
                false => match timeout(PAUSE, running.lines.recv()).await {
                    Ok(line) => line,
                    Err(_) => break,
                },
            };
            running.has_output |= line.is_some();
            match line {
                None if is_empty => {
                    self.ended().await?;
                    // It has completed its work; a program that should run without a pause does not exit.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                None => break,
                Some(Line::TooLong) => {
                    batch.refused.push(RejectedItem { reason: too_long.clone(), item: Bytes::new() });
                }
                Some(Line::Text(text)) if text.trim_ascii().is_empty() => {}
                Some(Line::Text(text)) => match serde_json::from_slice::<Position>(&text) {
                    Ok(Position { position }) => {
                        self.pending_position = Some(position);
                        break;
                    }
                    Err(_) => {
                        let item = Item::Json(text.trim_ascii().to_vec());
                        match self.mapping.row(&item) {
                            Ok(row) => packer.push(&row),
                            Err(problems) => batch.refused.push(RejectedItem::new(&problems, item.shown())),
                        }
                    }
                },
            }
            if packer.count() as usize >= BATCH_EVENTS_MAX || packer.bytes() >= BATCH_BYTES_MAX {
                break;
            }
        }
        batch.events = packer.finish();
        if let Some(position) = &self.pending_position {
            batch.marks.push(Mark::set(POSITION, Bytes::from(position.clone())));
        }
        Ok(batch)
    }

    async fn accepted(&mut self) -> Result<(), SourceError> {
        let Some(position) = self.pending_position.take() else { return Ok(()) };
        let line = format!("{}\n", serde_json::json!({ "accepted": position }));
        self.position = Some(position);
        if let Some(running) = &mut self.running {
            // A program that ended or does not read finds the position when it is restarted.
            let _ = timeout(WRITE_TIMEOUT, running.input.write_all(line.as_bytes())).await;
        }
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(RunningProcess { mut child, input, .. }) = self.running.take() {
            drop(input);
            if timeout(self.options.grace.0, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }
}
