//! Progress display of a measurement: one changing line on a terminal, plain lines elsewhere.

use std::{
    fmt::{self, Display},
    io::Write,
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use parking_lot::Mutex;

use crate::terminal::Terminal;

/// Interval between two draws of the line. Two draws per second take less than a thousandth of a CPU, in a debug build
/// too, so figures are not affected. Updates in between only change numbers in memory.
const DRAWN_EVERY: Duration = Duration::from_millis(500);
/// Line template while nothing can be counted.
const PLAIN: &str = "{spinner} {msg}  {elapsed}";
/// Line template with a known total.
const COUNTED: &str = "{spinner} {msg}  {wide_bar} {human_pos}/{human_len}  {elapsed}";

/// Progress of a measurement. Clones share the same line, from any thread.
#[derive(Debug, Clone)]
pub struct Progress {
    line: ProgressBar,
    is_drawn: bool,
    state: Arc<Mutex<ProgressState>>,
}

impl Progress {
    /// Creates a display that only writes plain lines to standard error.
    pub fn plain() -> Self {
        Progress { line: ProgressBar::hidden(), is_drawn: false, state: Arc::default() }
    }

    /// Creates a display with a changing line if standard error is a terminal, otherwise with plain lines.
    pub fn on(terminal: &Terminal) -> Self {
        let line = terminal.progress(None, PLAIN).with_finish(ProgressFinish::AndClear);
        let is_drawn = !line.is_hidden();
        if is_drawn {
            line.enable_steady_tick(DRAWN_EVERY);
        }
        Progress { line, is_drawn, state: Arc::default() }
    }

    /// Starts part `number` of `of`, such as a figure, and restarts the displayed clock.
    pub fn begin(&self, part: &str, number: usize, of: usize) {
        self.line.reset_elapsed();
        self.show(|state| *state = ProgressState { part: part.to_owned(), number, of, ..ProgressState::default() });
    }

    /// Starts a turn of the part. Logged if there is no changing line.
    pub fn turn(&self, turn: usize, of: usize) {
        self.show(|state| state.turn = Some((turn, of)));
        if !self.is_drawn {
            self.log(format_args!("   turn {turn} of {of}"));
        }
    }

    /// Marks the turn as this peer's until the guard is dropped.
    pub fn peer_turn(&self, peer: &str) -> PeerTurn {
        self.show(|state| state.peers.push(peer.to_owned()));
        PeerTurn { progress: self.clone(), peer: peer.to_owned() }
    }

    /// Shows a progress bar towards `count` until the guard is dropped.
    pub fn goal(&self, count: u64) -> CountedProgress {
        self.line.set_position(0);
        self.line.set_length(count);
        self.style(COUNTED);
        CountedProgress { progress: self.clone() }
    }

    /// Writes a permanent line above the changing line.
    pub fn log(&self, text: impl Display) {
        self.line.suspend(|| {
            // A closed standard error is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    /// Removes the changing line. Later messages are plain lines.
    pub fn end(&self) {
        self.line.finish_and_clear();
    }

    fn show(&self, change: impl FnOnce(&mut ProgressState)) {
        let mut state = self.state.lock();
        change(&mut state);
        self.line.set_message(state.to_string());
    }

    fn style(&self, template: &str) {
        self.line.set_style(ProgressStyle::with_template(template).expect("templates are constants of this file"));
    }
}

/// Guard of a peer's turn.
#[must_use = "the turn ends when the guard is dropped"]
pub struct PeerTurn {
    progress: Progress,
    peer: String,
}

impl Drop for PeerTurn {
    fn drop(&mut self) {
        self.progress.show(|state| {
            if let Some(at) = state.peers.iter().position(|peer| *peer == self.peer) {
                state.peers.remove(at);
            }
        });
    }
}

/// Guard of a progress bar with a known total.
#[must_use = "the bar is removed when the guard is dropped"]
pub struct CountedProgress {
    progress: Progress,
}

impl CountedProgress {
    /// Sets the current count.
    pub fn reached(&self, count: u64) {
        self.progress.line.set_position(count);
    }
}

impl Drop for CountedProgress {
    fn drop(&mut self) {
        self.progress.style(PLAIN);
    }
}

/// State of the displayed measurement.
#[derive(Debug, Default)]
struct ProgressState {
    part: String,
    number: usize,
    of: usize,
    turn: Option<(usize, usize)>,
    /// Active peers; the same peer can occur twice.
    peers: Vec<String>,
}

impl fmt::Display for ProgressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.part)?;
        if self.of > 1 {
            write!(f, " ({} of {})", self.number, self.of)?;
        }
        if let Some((turn, of)) = self.turn {
            write!(f, ", turn {turn} of {of}")?;
        }
        match (self.peers.last(), self.turn) {
            (Some(peer), _) => write!(f, ", {peer}"),
            (None, Some(_)) => f.write_str(", ours"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(progress: &Progress, expected: &str) {
        assert_eq!(progress.state.lock().to_string(), expected);
        assert_eq!(progress.line.message(), expected, "the line shows the same");
    }

    #[test]
    fn the_line_shows_the_figure_the_turn_and_the_peer() {
        let progress = Progress::plain();
        progress.begin("deliver.smtp", 2, 3);
        check(&progress, "deliver.smtp (2 of 3)");
        progress.turn(1, 5);
        check(&progress, "deliver.smtp (2 of 3), turn 1 of 5, ours");
        let (one, other) = (progress.peer_turn("smtp-source"), progress.clone().peer_turn("smtp-source"));
        check(&progress, "deliver.smtp (2 of 3), turn 1 of 5, smtp-source");
        drop(one);
        check(&progress, "deliver.smtp (2 of 3), turn 1 of 5, smtp-source");
        drop(other);
        check(&progress, "deliver.smtp (2 of 3), turn 1 of 5, ours");
        progress.turn(2, 5);
        check(&progress, "deliver.smtp (2 of 3), turn 2 of 5, ours");
        progress.begin("people of shop", 1, 1);
        check(&progress, "people of shop");
    }

    #[test]
    fn a_goal_is_shown_until_it_ends() {
        let progress = Progress::plain();
        progress.begin("deliver.http", 1, 1);
        let goal = progress.goal(2_000);
        goal.reached(700);
        assert_eq!((progress.line.position(), progress.line.length()), (700, Some(2_000)));
        drop(goal);
        assert_eq!(progress.goal(10).progress.line.position(), 0, "the next one starts at zero");
        progress.end();
        assert!(progress.line.is_finished());
    }

    #[test]
    fn the_templates_are_valid() {
        for template in [PLAIN, COUNTED] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
