use std::{collections::BTreeMap, io, path::Path, process::Stdio, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_model::id::Name;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

/// A line of answers is read up to this; what is longer comes in pieces, which are no answers.
pub(super) const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// The same of what it complains about.
const COMPLAINT_BYTES_MAX: u64 = 64 * 1024;
/// Lines that are read ahead.
const LINES_AHEAD: usize = 256;
/// How long the last words of a program that has ended are waited for: a child of its own may hold its output open.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(1);

/// A running program.
pub(super) struct Program {
    child: Child,
    /// Where messages go; gone when its input has ended.
    pub input: Option<ChildStdin>,
    /// What it says, until its output ends.
    pub lines: mpsc::Receiver<Vec<u8>>,
    last_words: Arc<Mutex<String>>,
    complaints: JoinHandle<()>,
}

impl Program {
    /// Starts a program in a process group of its own, so that Ctrl-C in the server's terminal does not reach it. Its lines
    /// are read up to `line_bytes_max`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(
        channel: &Name,
        path: &Path,
        arguments: &[String],
        environment: &BTreeMap<String, String>,
        folder: &Path,
        line_bytes_max: u64,
    ) -> io::Result<Program> {
        let mut command = Command::new(path);
        command.args(arguments).current_dir(folder).process_group(0).kill_on_drop(true);
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(environment);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it is piped");
        let errors = child.stderr.take().expect("it is piped");

        let (sender, lines) = mpsc::channel(LINES_AHEAD);
        tokio::spawn(async move {
            let mut reader = BufReader::new(output);
            while let Some(line) = next_line(&mut reader, line_bytes_max).await {
                if sender.send(line).await.is_err() {
                    return;
                }
            }
        });
        let last_words = Arc::new(Mutex::new(String::new()));
        let (words, channel) = (last_words.clone(), channel.clone());
        let complaints = tokio::spawn(async move {
            let mut reader = BufReader::new(errors);
            while let Some(line) = next_line(&mut reader, COMPLAINT_BYTES_MAX).await {
                let text: String =
                    String::from_utf8_lossy(&line[..line.len().min(2_000)]).trim().chars().take(500).collect();
                tracing::info!(%channel, "the program says: {}", text.escape_debug());
                *words.lock() = text;
            }
        });
        Ok(Program { child, input, lines, last_words, complaints })
    }

    /// Ends its input and waits for its end; after `grace` it is killed. Says how it ended, with its last words.
    pub async fn end(mut self, grace: Duration) -> String {
        drop(self.input.take());
        let status = match timeout(grace, self.child.wait()).await {
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => {
                let _ = self.child.kill().await;
                format!("killed {} s after its input had ended", grace.as_secs())
            }
        };
        let _ = timeout(LAST_WORDS_PATIENCE, &mut self.complaints).await;
        match self.last_words.lock().as_str() {
            "" => status,
            words => format!("{status}; its last words: {words}"),
        }
    }
}

/// The next line, without its end; `None` when there are no more.
async fn next_line(reader: &mut BufReader<impl AsyncRead + Unpin>, bytes_max: u64) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    match reader.take(bytes_max).read_until(b'\n', &mut line).await {
        Ok(0) | Err(_) => None,
        Ok(_) => {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            Some(line)
        }
    }
}
