//! How far a measurement is, for whoever waits: one line on a terminal that changes, plain lines elsewhere.

use std::{
    fmt::{self, Display},
    io::Write,
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use parking_lot::Mutex;

use crate::terminal::Terminal;

/// How often the line is drawn. Two draws a second take less than a thousandth of a processor, in a debug build too, so no
/// figure shows them; what is reached in between only changes numbers in memory.
const DRAWN_EVERY: Duration = Duration::from_millis(500);
/// The line while nothing can be counted.
const PLAIN: &str = "{spinner} {msg}  {elapsed}";
/// The line on the way to a known number.
const COUNTED: &str = "{spinner} {msg}  {wide_bar} {human_pos}/{human_len}  {elapsed}";

/// Shows how far a measurement is. Clones show the same line, from any thread.
#[derive(Debug, Clone)]
pub struct Progress {
    line: ProgressBar,
    is_drawn: bool,
    place: Arc<Mutex<Place>>,
}

impl Progress {
    /// Plain lines on standard error, and nothing else.
    pub fn plain() -> Self {
        Progress { line: ProgressBar::hidden(), is_drawn: false, place: Arc::default() }
    }

    /// A line that changes if standard error is a terminal, otherwise plain lines.
    pub fn on(terminal: &Terminal) -> Self {
        let line = terminal.progress(None, PLAIN).with_finish(ProgressFinish::AndClear);
        let is_drawn = !line.is_hidden();
        if is_drawn {
            line.enable_steady_tick(DRAWN_EVERY);
        }
        Progress { line, is_drawn, place: Arc::default() }
    }

    /// A part of the whole begins, such as a figure: number `number` of `of`. The time that is shown counts from here.
    pub fn begin(&self, part: &str, number: usize, of: usize) {
        self.line.reset_elapsed();
        self.show(|place| *place = Place { part: part.to_owned(), number, of, ..Place::default() });
    }

    /// A turn of the part begins. Without a line that changes it is told.
    pub fn turn(&self, turn: usize, of: usize) {
        self.show(|place| place.turn = Some((turn, of)));
        if !self.is_drawn {
            self.tell(format_args!("   turn {turn} of {of}"));
        }
    }

    /// The turn is this peer's until the value ends, then ours again.
    pub fn theirs(&self, peer: &str) -> Theirs {
        self.show(|place| place.peers.push(peer.to_owned()));
        Theirs { progress: self.clone(), peer: peer.to_owned() }
    }

    /// So many are to come until the value ends: a bar shows how many have.
    pub fn goal(&self, count: u64) -> Goal {
        self.line.set_position(0);
        self.line.set_length(count);
        self.style(COUNTED);
        Goal { progress: self.clone() }
    }

    /// Tells something that stays, above the line that changes.
    pub fn tell(&self, text: impl Display) {
        self.line.suspend(|| {
            // Nobody may be listening, which is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{text}");
        });
    }

    /// Takes the line away. What is told later stands by itself.
    pub fn end(&self) {
        self.line.finish_and_clear();
    }

    fn show(&self, change: impl FnOnce(&mut Place)) {
        let mut place = self.place.lock();
        change(&mut place);
        self.line.set_message(place.to_string());
    }

    fn style(&self, template: &str) {
        self.line.set_style(ProgressStyle::with_template(template).expect("templates are constants of this file"));
    }
}

/// A turn of a peer, as long as the value is kept.
#[must_use = "the turn ends with the value"]
pub struct Theirs {
    progress: Progress,
    peer: String,
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.progress.show(|place| {
            if let Some(at) = place.peers.iter().position(|peer| *peer == self.peer) {
                place.peers.remove(at);
            }
        });
    }
}

/// A way to a known number, as long as the value is kept.
#[must_use = "the bar goes with the value"]
pub struct Goal {
    progress: Progress,
}

impl Goal {
    /// So many have come.
    pub fn reached(&self, count: u64) {
        self.progress.line.set_position(count);
    }
}

impl Drop for Goal {
    fn drop(&mut self) {
        self.progress.style(PLAIN);
    }
}

/// Where a measurement is.
#[derive(Debug, Default)]
struct Place {
    part: String,
    number: usize,
    of: usize,
    turn: Option<(usize, usize)>,
    /// Who is at work in place of us; two of the same may be at once.
    peers: Vec<String>,
}

impl fmt::Display for Place {
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
        assert_eq!(progress.place.lock().to_string(), expected);
        assert_eq!(progress.line.message(), expected, "the line says the same");
    }

    #[test]
    fn the_line_says_which_figure_which_turn_and_whose() {
        let progress = Progress::plain();
        progress.begin("deliver.smtp", 2, 3);
        check(&progress, "deliver.smtp (2 of 3)");
        progress.turn(1, 5);
        check(&progress, "deliver.smtp (2 of 3), turn 1 of 5, ours");
        let (one, other) = (progress.theirs("smtp-source"), progress.clone().theirs("smtp-source"));
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
        assert_eq!(progress.goal(10).progress.line.position(), 0, "the next begins anew");
        progress.end();
        assert!(progress.line.is_finished());
    }

    #[test]
    fn the_templates_are_in_order() {
        for template in [PLAIN, COUNTED] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
