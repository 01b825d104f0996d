//! Lines of JSON from a program of the operator's: for every way in that is not built in.
//!
//! Each line on its standard output is an event, or says where the program stands, in its own words:
//!
//! ```json
//! {"magnitude": 6.1, "place": "Kobe"}
//! {"$position": "2026-11-22/4711"}
//! ```
//!
//! Lines are accepted up to a position and together with it. Then the program reads `{"accepted": "2026-11-22/4711"}` on its
//! standard input and may forget what lies before. When it is started it finds the last position in `TOCSIN_POSITION`, and
//! goes on behind it. What it says behind its last position is accepted too, but may come again after a crash. Its standard
//! error goes to the log. When it ends it is started anew; ending well after having said something is no trouble.

mod options; // what an operator may set

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, process::Stdio, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
pub use options::ProcessOptions;
use serde::Deserialize;
use tocsin_delivery::options::read;
use tocsin_model::{event::EventPacker, mark::Mark, problem::Problem};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    time::timeout,
};

use crate::{
    items::Item,
    mapping::Mapping,
    source::{OpenSource, PORTION_BYTES_MAX, PORTION_EVENTS_MAX, Portion, Refusal, Setting, Trouble},
};

/// The part with the program's last position.
const POSITION: &str = "position";
/// Lines that are read ahead.
const LINES_AHEAD: usize = 256;
/// What has come is accepted at the latest when nothing more came for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a program has to read what was accepted.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn open(setting: Setting, marks: Vec<Mark>) -> Result<Box<dyn OpenSource>, Vec<Problem>> {
    let options: ProcessOptions = read(&setting.options, "")?;
    let program = options.program(&setting.context).map_err(|problem| vec![problem])?;
    let position = marks.iter().find(|mark| &*mark.part == POSITION).and_then(|mark| mark.value.clone());
    let position = position.map(|text| String::from_utf8(text.to_vec())).transpose();
    let position = position.map_err(|_| vec![Problem::at("", "the stored position of the program is not text")])?;
    Ok(Box::new(Process {
        mapping: Mapping::new(&setting.gives.fields(), &options.fields),
        position,
        running: None,
        told: None,
        program,
        setting,
        options,
    }))
}

/// A line in which a program says where it stands.
#[derive(Deserialize)]
struct Position {
    #[serde(rename = "$position")]
    position: String,
}

/// What a program says.
enum Line {
    Text(Vec<u8>),
    TooLong,
}

/// A program whose lines are taken.
struct Process {
    setting: Setting,
    options: ProcessOptions,
    program: PathBuf,
    mapping: Mapping,
    running: Option<Running>,
    position: Option<String>,
    /// A position that is accepted when the last portion is.
    told: Option<String>,
}

/// A program that runs.
struct Running {
    child: Child,
    input: ChildStdin,
    lines: mpsc::Receiver<Line>,
    /// Whether it has said anything.
    spoke: bool,
}

impl Process {
    fn start(&mut self) -> io::Result<Running> {
        let mut command = Command::new(&self.program);
        command.args(&self.options.command[1..]).current_dir(&self.setting.context.data_folder);
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(&self.options.environment);
        command.envs(self.position.as_ref().map(|position| ("TOCSIN_POSITION", position)));
        command.process_group(0).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (sender, lines) = mpsc::channel(LINES_AHEAD);
        tokio::spawn(read_lines(output.expect("it is piped"), self.options.item_bytes_max, sender));
        let (application, source) = (self.setting.application.clone(), self.setting.name.clone());
        let mut errors = BufReader::new(errors.expect("it is piped"));
        tokio::spawn(async move {
            let mut line = Vec::new();
            while let Ok(1..) = (&mut errors).take(2_000).read_until(b'\n', &mut line).await {
                let text = String::from_utf8_lossy(&line);
                tracing::info!(%application, %source, "the program says: {}", text.trim().escape_debug());
                line.clear();
            }
        });
        Ok(Running { child, input: input.expect("it is piped"), lines, spoke: false })
    }

    async fn running(&mut self) -> Result<&mut Running, Trouble> {
        if self.running.is_none() {
            let running = self.start();
            let shown = self.program.display();
            self.running = Some(running.map_err(|error| Trouble::new(format!("{shown} cannot be started"), error))?);
        }
        Ok(self.running.as_mut().expect("it was started"))
    }

    /// What becomes of a program whose output has ended.
    async fn ended(&mut self) -> Result<(), Trouble> {
        let Some(Running { mut child, input, spoke, .. }) = self.running.take() else { return Ok(()) };
        drop(input);
        let status = timeout(self.options.grace.0, child.wait()).await;
        match status {
            Ok(Ok(status)) if status.success() && spoke => Ok(()),
            Ok(Ok(status)) => Err(Trouble::of(format!("the program has ended: {status}"))),
            Ok(Err(error)) => Err(Trouble::new("the program has ended", error)),
            Err(_) => Err(Trouble::of("the program closed its output and did not end")),
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
    async fn next(&mut self) -> Result<Portion, Trouble> {
        let mut packer = EventPacker::new(self.setting.gives.fields());
        let mut portion = Portion::default();
        let too_long = format!("is longer than {} bytes; `item_bytes_max` can be raised", self.options.item_bytes_max);
        loop {
            let is_empty = packer.count() == 0 && portion.refused.is_empty();
            let running = self.running().await?;
            let line = match is_empty {
                true => running.lines.recv().await,
                false => match timeout(PAUSE, running.lines.recv()).await {
                    Ok(line) => line,
                    Err(_) => break,
                },
            };
            running.spoke |= line.is_some();
            match line {
                None if is_empty => {
                    self.ended().await?;
                    // It has done its work; whoever wants it at once again lets it run on.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                None => break,
                Some(Line::TooLong) => {
                    portion.refused.push(Refusal { reason: too_long.clone(), item: Bytes::new() });
                }
                Some(Line::Text(text)) if text.trim_ascii().is_empty() => {}
                Some(Line::Text(text)) => match serde_json::from_slice::<Position>(&text) {
                    Ok(Position { position }) => {
                        self.told = Some(position);
                        break;
                    }
                    Err(_) => {
                        let item = Item::Json(text.trim_ascii().to_vec());
                        match self.mapping.row(&item) {
                            Ok(row) => packer.push(&row),
                            Err(problems) => portion.refused.push(Refusal::new(&problems, item.shown())),
                        }
                    }
                },
            }
            if packer.count() as usize >= PORTION_EVENTS_MAX || packer.bytes() >= PORTION_BYTES_MAX {
                break;
            }
        }
        portion.events = packer.finish();
        if let Some(position) = &self.told {
            portion.marks.push(Mark::set(POSITION, Bytes::from(position.clone())));
        }
        Ok(portion)
    }

    async fn accepted(&mut self) -> Result<(), Trouble> {
        let Some(position) = self.told.take() else { return Ok(()) };
        let line = format!("{}\n", serde_json::json!({ "accepted": position }));
        self.position = Some(position);
        if let Some(running) = &mut self.running {
            // One that has ended or reads nothing finds it when it is started again.
            let _ = timeout(WRITE_PATIENCE, running.input.write_all(line.as_bytes())).await;
        }
        Ok(())
    }

    async fn close(&mut self) {
        if let Some(Running { mut child, input, .. }) = self.running.take() {
            drop(input);
            if timeout(self.options.grace.0, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }
}
