//! Why a command failed, told to the person who typed it: first what to do, then what happened.

use std::{fmt, io};

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The thing failed.
    Failed = 1,
    /// It was asked for in a way that makes no sense.
    Usage = 2,
    /// Nobody reads our output any more, which is fine.
    NobodyReads = 0,
}

/// Why a command failed.
#[derive(Debug)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What the reader should do or know first.
    pub message: String,
    /// What happened, a line each.
    pub details: Vec<String>,
}

/// What a command gives.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// The thing failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Failed, message: message.into(), details: Vec::new() }
    }

    /// It was asked for wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, message: message.into(), details: Vec::new() }
    }

    /// Adds a line on what happened.
    pub fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    /// Adds the chain of causes, a line each.
    pub fn because(mut self, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors repeat their source in their own words.
            if self.details.last().is_none_or(|last| !last.ends_with(&text)) {
                self.details.push(text);
            }
            cause = error.source();
        }
        self
    }

    /// A file could not be read or written.
    pub fn file(doing: &str, path: &std::path::Path, error: &io::Error) -> Self {
        Failure::failed(format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// Trouble with our own output. A reader that has gone (`tocsin export | head`) is no failure.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let exit = if error.kind() == io::ErrorKind::BrokenPipe { Exit::NobodyReads } else { Exit::Failed };
        Failure { exit, message: format!("cannot write the output: {error}"), details: Vec::new() }
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
