//! Terminal output in text, tables and colours. A closed reader is an error of kind `BrokenPipe`, never a panic.

use std::{
    borrow::Cow,
    fmt::Display,
    io::{self, BufRead, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use tocsin_model::plural::plural;

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Good, added.
    Green,
    /// Attention, changed.
    Yellow,
    /// Bad, removed.
    Red,
    /// Less important.
    Dim,
    /// More important.
    Bold,
}

/// Output of a command.
pub struct Terminal {
    out: Mutex<Box<dyn Write + Send>>,
    interactive: bool,
    coloured: bool,
}

impl Terminal {
    /// Standard output; coloured if it is a terminal and `NO_COLOR` is not set.
    pub fn standard() -> Self {
        let interactive = io::stdout().is_terminal();
        let coloured = interactive && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Terminal { out: Mutex::new(Box::new(io::stdout())), interactive, coloured }
    }

    /// Captures output in memory, without colours.
    pub fn captured() -> (Self, CapturedOutput) {
        let captured = CapturedOutput::default();
        (Terminal { out: Mutex::new(Box::new(captured.clone())), interactive: false, coloured: false }, captured)
    }

    /// Whether a user is present.
    pub fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// Whether output is coloured.
    pub fn is_coloured(&self) -> bool {
        self.coloured
    }

    /// Prints a line.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn line(&self, text: impl Display) -> io::Result<()> {
        let mut out = self.out.lock();
        writeln!(out, "{text}")?;
        out.flush()
    }

    /// Prints bytes unchanged.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock();
        out.write_all(bytes)?;
        out.flush()
    }

    /// Prints a value as indented JSON.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn json(&self, value: &impl serde::Serialize) -> io::Result<()> {
        self.line(serde_json::to_string_pretty(value).map_err(io::Error::other)?)
    }

    /// Colours the text, if colours are enabled.
    pub fn paint(&self, colour: Colour, text: impl Display) -> String {
        if !self.coloured {
            return text.to_string();
        }
        let code = match colour {
            Colour::Green => 32,
            Colour::Yellow => 33,
            Colour::Red => 31,
            Colour::Dim => 2,
            Colour::Bold => 1,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Prints rows with a header, columns aligned. A cell is one line; control characters are escaped.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn table(&self, heads: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<Cow<'_, str>>> =
            rows.iter().map(|row| row.iter().map(|cell| printable(cell)).collect()).collect();
        let mut widths: Vec<usize> = heads.iter().map(|head| head.chars().count()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            padded.join("  ").trim_end().to_owned()
        };
        self.line(self.paint(Colour::Dim, line(&mut heads.iter().copied())))?;
        for row in &rows {
            self.line(line(&mut row.iter().map(|cell| &**cell)))?;
        }
        Ok(())
    }

    /// Prints rows whose cells may be truncated by [`cut`], and if so a last line that says how to see everything.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn cut_table(&self, heads: &[&str], rows: &[Vec<String>], all: &str) -> io::Result<()> {
        self.table(heads, rows)?;
        if rows.iter().flatten().any(|cell| cell.ends_with('…')) {
            self.line(self.paint(Colour::Dim, format_args!("… marks truncated cells; {all} shows everything")))?;
        }
        Ok(())
    }

    /// Whether a question can be asked: output and input are a terminal.
    pub fn can_ask(&self) -> bool {
        self.interactive && io::stdin().is_terminal()
    }

    /// Asks for confirmation by `yes`. Without a terminal the answer is no.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn confirm(&self, question: &str) -> io::Result<bool> {
        if !self.can_ask() {
            return Ok(false);
        }
        self.bytes(format!("{question} [yes/no] ").as_bytes())?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "yes" | "y"))
    }

    /// Progress bar on standard error, hidden unless it is a terminal.
    pub fn progress(&self, length: Option<u64>, template: &str) -> ProgressBar {
        let bar = match length {
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        bar.set_draw_target(target);
        bar.set_style(ProgressStyle::with_template(template).expect("templates are constants of this crate"));
        bar
    }
}

/// Captured output.
#[derive(Clone, Default)]
pub struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    /// Text so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Escapes characters of foreign text that would control the terminal, such as `\\n` and `\\u{1b}`: control characters
/// and those that change the text direction.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(controls_terminal) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if controls_terminal(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out.into()
}

fn controls_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Truncates a text to `most` characters, the last of them `…`.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => text.into(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect::<String>().into(),
    }
}

/// Formats a number with separators: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with its noun: `1 event`, `1,234 events`.
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", thousands(count), plural(count, one, many))
}

/// Formats a duration: `850 us`, `12.5 ms`, `3.21 s`, `2 min 5 s`.
pub fn duration(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        1_000_000..60_000_000 => format!("{:.2} s", micros as f64 / 1e6),
        _ => format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

/// Formats a size: `512 B`, `1.5 KiB`, `3.0 GiB`.
pub fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_agrees_with_its_noun() {
        let shown = [0, 1, 1_234].map(|count| counted(count, "batch", "batches"));
        assert_eq!(shown, ["0 batches", "1 batch", "1,234 batches"]);
    }

    #[test]
    fn numbers_are_human_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [12, 1_500, 3_210_000, 125_000_000].map(|us| duration(Duration::from_micros(us))),
            ["12 us", "1.5 ms", "3.21 s", "2 min 5 s"]
        );
        assert_eq!([512, 1_536, 3 << 30].map(size), ["512 B", "1.5 KiB", "3.0 GiB"]);
    }

    #[test]
    fn foreign_text_cannot_control_the_terminal() {
        assert_eq!(printable("250 ok\x1b[2J"), r"250 ok\u{1b}[2J");
        assert_eq!(printable("a\nb\tc\0\u{9b}1m"), r"a\nb\tc\u{0}\u{9b}1m");
        assert_eq!(printable("file\u{202e}gpj.exe"), r"file\u{202e}gpj.exe");
        assert_eq!(printable("Grüße 👋 \\n"), "Grüße 👋 \\n");
        // Printable text is unchanged.
        assert_eq!(printable(&printable("\x1b\n")), printable("\x1b\n"));
    }

    #[test]
    fn no_table_cell_controls_the_terminal() {
        let (terminal, captured) = Terminal::captured();
        let row = vec!["DTSTART:20270104T080000\nRRULE:FREQ=DAILY".to_owned(), "\x1b[31m".to_owned()];
        terminal.table(&["schedule", "x"], &[row]).expect("writing to memory succeeds");
        assert_eq!(captured.text().lines().count(), 2, "{}", captured.text());
        assert!(!captured.text().contains('\x1b'), "{}", captured.text());
    }

    #[test]
    fn truncation_is_indicated() {
        assert_eq!([cut("abcd", 4), cut("abcde", 4), cut("ä", 1), cut("", 0)], ["abcd", "abc…", "ä", ""]);
        let (terminal, captured) = Terminal::captured();
        let row = |text: &str| vec![cut(text, 5).into_owned()];
        terminal.cut_table(&["reason"], &[row("short")], "--json").expect("writing to memory succeeds");
        assert_eq!(captured.text(), "reason\nshort\n");
        terminal.cut_table(&["reason"], &[row("too long")], "`--json`").expect("writing to memory succeeds");
        assert!(
            captured.text().ends_with("too …\n… marks truncated cells; `--json` shows everything\n"),
            "{}",
            captured.text()
        );
    }

    #[test]
    fn columns_line_up() {
        let (terminal, captured) = Terminal::captured();
        terminal
            .table(&["id", "state"], &[vec!["eb-100".into(), "x".into()], vec!["eb-1".into(), "y".into()]])
            .expect("writing to memory succeeds");
        assert_eq!(captured.text(), "id      state\neb-100  x\neb-1    y\n");
    }
}
