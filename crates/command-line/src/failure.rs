//! Error type of commands: advice first, then the causes.

use std::{
    fmt,
    fs::File,
    io::{self, Read, Write},
    path::Path,
    process::ExitCode,
};

use serde_json::{Value, json};

/// Exit code of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The operation failed.
    Failed = 1,
    /// Invalid usage.
    Usage = 2,
    /// The reader closed the output, which is not an error.
    OutputClosed = 0,
    /// The recipient of a mail does not exist (`EX_NOUSER` of sysexits.h).
    NoRecipient = 67,
    /// A mail server should try again later (`EX_TEMPFAIL` of sysexits.h).
    TryLater = 75,
}

/// Failure of a command.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// First line: what failed and how to fix it.
    pub message: String,
    /// Further lines: causes.
    pub details: Vec<String>,
    /// Problem document of the server, if it refused the request.
    pub document: Option<Box<Value>>,
}

/// Result of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// Creates a failure of an operation.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Failed, message: message.into(), details: Vec::new(), document: None }
    }

    /// Creates a failure of usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, message: message.into(), details: Vec::new(), document: None }
    }

    /// Adds a detail line.
    pub fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    /// Adds the chain of causes, one per line.
    pub fn because(mut self, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors repeat their source.
            if self.details.last().is_none_or(|last| !last.ends_with(&text)) {
                self.details.push(text);
            }
            cause = error.source();
        }
        self
    }

    /// Writes the failure of a program to standard error, and returns the exit code of the process.
    pub fn report(&self, program: &str) -> ExitCode {
        if self.exit != Exit::OutputClosed && !self.message.is_empty() {
            // Standard error may be closed as well; then the failure cannot be reported.
            let _ = writeln!(io::stderr(), "{program}: {self}");
        }
        ExitCode::from(self.exit as u8)
    }

    /// Machine-readable code: that of the server's problem document, or one of the exit code.
    pub fn code(&self) -> &str {
        let of_server = self.document.as_ref().and_then(|document| document["code"].as_str());
        of_server.unwrap_or(match self.exit {
            Exit::Failed | Exit::NoRecipient | Exit::TryLater => "command_failed",
            Exit::Usage => "invalid_usage",
            Exit::OutputClosed => "output_closed",
        })
    }

    /// The failure as JSON, for commands with `--json`.
    pub fn to_json(&self) -> Value {
        let mut json = json!({"code": self.code(), "message": self.message, "details": self.details});
        if let Some(document) = &self.document {
            json["document"] = (**document).clone();
        }
        json
    }

    /// Writes the failure as one line of JSON to standard error, and returns the exit code of the process.
    pub fn report_json(&self) -> ExitCode {
        if self.exit != Exit::OutputClosed && !self.message.is_empty() {
            // Standard error may be closed as well; then the failure cannot be reported.
            let _ = writeln!(io::stderr(), "{}", self.to_json());
        }
        ExitCode::from(self.exit as u8)
    }

    /// Creates a failure of a file operation.
    pub fn file(doing: &str, path: &Path, error: &io::Error) -> Self {
        Failure::failed(format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Opens a file that a command reads piece by piece.
///
/// # Errors
/// If it cannot be opened, or is a folder.
pub fn open_file(path: &Path) -> Outcome<File> {
    let opened = File::open(path).and_then(|file| match file.metadata()?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(file),
    });
    opened.map_err(|error| Failure::file("read", path, &error))
}

/// The most bytes of a file that a command or the configuration names; as many as a message can have.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Reads a file that a command or the configuration names. A device, which may have no end, is read up to the limit.
///
/// # Errors
/// If the file cannot be read, or has more than 64 MiB.
pub fn read_file(doing: &str, path: &Path) -> Outcome<Vec<u8>> {
    let mut content = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content));
    read.map_err(|error| Failure::file(doing, path, &error))?;
    if content.len() as u64 > FILE_BYTES_MAX {
        let most = FILE_BYTES_MAX >> 20;
        return Err(Failure::failed(format!("cannot {doing} {}: it has more than {most} MiB", path.display())));
    }
    Ok(content)
}

/// The same as text.
///
/// # Errors
/// As [`read_file`], and if the file is not UTF-8.
pub fn read_text_file(doing: &str, path: &Path) -> Outcome<String> {
    String::from_utf8(read_file(doing, path)?)
        .map_err(|_| Failure::failed(format!("cannot {doing} {}: it is not UTF-8", path.display())))
}

/// Output errors. A closed reader (`tocsin export | head`) is not a failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::BrokenPipe { Exit::OutputClosed } else { Exit::Failed };
        Failure { exit, message: format!("cannot write the output: {error}"), details: Vec::new(), document: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for line in &self.details {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_json_with_the_code_of_the_server() {
        let usage = Failure::usage("give a name").detail("such as `a`");
        let expected = json!({"code": "invalid_usage", "message": "give a name", "details": ["such as `a`"]});
        assert_eq!(usage.to_json(), expected);
        let document = json!({"type": "/problems/forbidden", "code": "insufficient_scope", "scope": "admin"});
        let refused = Failure { document: Some(Box::new(document.clone())), ..Failure::failed("use another key") };
        assert_eq!(refused.to_json()["code"], "insufficient_scope");
        assert_eq!(refused.to_json()["document"], document);
        assert_eq!(Failure::failed("broken").code(), "command_failed");
    }

    #[test]
    fn a_folder_is_not_opened_as_a_file() {
        let failure = open_file(Path::new("/")).expect_err("a folder");
        assert!(failure.to_string().contains("cannot read /: is a directory"), "{failure}");
        assert!(open_file(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn a_device_without_end_is_read_up_to_a_limit() {
        let failure = read_file("read", Path::new("/dev/zero")).expect_err("too long");
        assert!(failure.to_string().contains("more than 64 MiB"), "{failure}");
        assert_eq!(read_text_file("read", Path::new("/dev/null")).expect("empty"), "");
    }
}
