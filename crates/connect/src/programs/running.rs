//! A running program: lines on its standard input and output.

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

/// Longest line of an answer; longer lines are split, and the pieces are not valid answers.
pub const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Longest line of standard error.
const COMPLAINT_BYTES_MAX: u64 = 64 * 1024;
/// Most lines that are read ahead.
const LINES_AHEAD: usize = 256;
/// Time limit for the last output of an ended program: its child processes may hold the output open.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// A running program.
pub struct Program {
    child: Child,
    /// Standard input; none once it was closed.
    pub input: Option<ChildStdin>,
    /// Lines of its standard output, until it ends.
    pub lines: mpsc::Receiver<Vec<u8>>,
    last_words: Arc<Mutex<String>>,
    complaints: JoinHandle<()>,
}

impl Program {
    /// Starts a program, whose lines are read up to `line_bytes_max`. `owner` is the channel or step that it runs for,
    /// for the log.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(
        owner: &Name,
        path: &Path,
        arguments: &[String],
        environment: &BTreeMap<String, String>,
        folder: &Path,
        line_bytes_max: u64,
    ) -> io::Result<Program> {
        let mut child = prepared_command(path, arguments, environment, folder).spawn()?;
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
        let (words, owner) = (last_words.clone(), owner.clone());
        let complaints = tokio::spawn(async move {
            let mut reader = BufReader::new(errors);
            while let Some(line) = next_line(&mut reader, COMPLAINT_BYTES_MAX).await {
                let text: String =
                    String::from_utf8_lossy(&line[..line.len().min(2_000)]).trim().chars().take(500).collect();
                tracing::info!(%owner, "the program says: {}", text.escape_debug());
                *words.lock() = text;
            }
        });
        Ok(Program { child, input, lines, last_words, complaints })
    }

    /// Closes its input and waits for its end; after `grace` it is killed. Returns its exit status and last output.
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
        let _ = timeout(STDERR_TIMEOUT, &mut self.complaints).await;
        match self.last_words.lock().as_str() {
            "" => status,
            words => format!("{status}; its last words: {words}"),
        }
    }
}

/// A program to start, with pipes. It is in its own process group, so that Ctrl-C in the server's terminal does not
/// reach it, has no variables of the server but `PATH`, and is killed when its handle is dropped.
pub fn prepared_command(
    path: &Path,
    arguments: &[String],
    environment: &BTreeMap<String, String>,
    folder: &Path,
) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).current_dir(folder).process_group(0).kill_on_drop(true);
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(environment);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The next line, without its end; `None` at the end of the output.
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
