//! Command `trace`: prints the timeline of an event, batch, notification, message or subscriber.

use std::io;

use serde_json::Value;
use tocsin_model::time::Timestamp;

use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Colour, Terminal, duration, printable},
};

/// Smallest width of the column with the kind of a step.
const WHAT_WIDTH: usize = 11;

/// Arguments of `tocsin trace`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Event (e-12-0), event batch (eb-12), notification (n-7-3), notification batch (nb-7), message (m-41) or
    /// subscriber id
    id: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the timeline.
    ///
    /// # Errors
    /// If the id is unknown.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let trace = client.get(&format!("/v1/trace/{}", segment(&self.id)), &[]).await?;
        if self.json {
            terminal.json(&trace)?
        } else {
            show(terminal, &trace)?
        }
        Ok(())
    }
}

/// Prints a trace: each step with the time since the first one.
///
/// # Errors
/// If the output cannot be written.
pub fn show(terminal: &Terminal, trace: &Value) -> io::Result<()> {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
    terminal.line(
        terminal.paint(Colour::Bold, format_args!("{} {}", text(&trace["kind"]).replace('_', " "), text(&trace["id"]))),
    )?;
    let context = &trace["context"];
    if context.is_object() {
        let from = match context["parent_span_id"].as_str() {
            Some(parent) => format!(", from span {}", printable(parent)),
            None => String::new(),
        };
        terminal.line(terminal.paint(Colour::Dim, format_args!("trace {}{from}", text(&context["trace_id"]))))?;
    }
    let none = Vec::new();
    let steps = trace["timeline"].as_array().unwrap_or(&none);
    let time = |step: &Value| step["at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let start = steps.first().and_then(time);
    if let Some(start) = start {
        terminal.line(terminal.paint(Colour::Dim, format_args!("from {start}")))?;
    }
    let longest = steps.iter().map(|step| text(&step["what"]).chars().count()).max().unwrap_or_default();
    let width = longest.max(WHAT_WIDTH);
    for step in steps {
        let since = match (start, time(step)) {
            (Some(start), Some(at)) => format!("+{}", duration(at.since(start))),
            _ => "?".to_owned(),
        };
        let what = text(&step["what"]);
        let (mark, colour) = match what.as_str() {
            "delivered" | "answered" | "acknowledged" => ("●", Colour::Green),
            "deferred" | "retry" | "retried" => ("◐", Colour::Yellow),
            "refused" | "failed" | "suspended" | "expired" => ("✗", Colour::Red),
            _ => ("○", Colour::Bold),
        };
        let rest = [text(&step["id"]), text(&step["text"])]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("  ");
        let line = format!("{since:>12}  {} {:<width$} {rest}", terminal.paint(colour, mark), what);
        terminal.line(line.trim_end())?;
    }
    if steps.is_empty() {
        terminal.line("no steps recorded yet")?;
    }
    if let Some(latencies) = trace["latencies"].as_object().filter(|latencies| !latencies.is_empty()) {
        let parts: Vec<String> = latencies
            .iter()
            .filter_map(|(name, value)| {
                Some(format!("{} {:.1} ms", name.trim_end_matches("_ms").replace('_', " "), value.as_f64()?))
            })
            .collect();
        if !parts.is_empty() {
            terminal.line(terminal.paint(Colour::Dim, parts.join(", ")))?;
        }
    }
    if trace["truncated"] == true || trace["more"].as_u64().is_some_and(|more| more > 0) {
        terminal.line(terminal.paint(Colour::Dim, "truncated; trace one of the ids above for more"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_timeline_counts_from_its_start() {
        let (terminal, captured) = Terminal::captured();
        let trace = json!({"id": "n-7-3", "kind": "notification", "timeline": [
            {"at": "2026-11-21T09:30:00Z", "what": "accepted", "id": "eb-12", "text": "3 events from api"},
            {"at": "2026-11-21T09:30:00.004200Z", "what": "matched", "id": "nb-7", "text": "rule near"},
            {"at": "2026-11-21T09:30:01.5Z", "what": "answered", "id": "n-7-3", "text": "250 ok\u{1b}[2J"}],
            "context": {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "parent_span_id": "00f067aa0ba902b7"},
            "latencies": {"generation_ms": 4.2, "wait_ms": null}});
        show(&terminal, &trace).expect("writing to memory succeeds");
        expect![[r#"
            notification n-7-3
            trace 4bf92f3577b34da6a3ce929d0e0e4736, from span 00f067aa0ba902b7
            from 2026-11-21T09:30:00Z
                   +0 us  ○ accepted    eb-12  3 events from api
                 +4.2 ms  ○ matched     nb-7  rule near
                 +1.50 s  ● answered    n-7-3  250 ok\u{1b}[2J
            generation 4.2 ms
        "#]]
        .assert_eq(&captured.text());
    }

    #[test]
    fn the_texts_of_all_steps_are_in_one_column() {
        let (terminal, captured) = Terminal::captured();
        let trace = json!({"id": "eb-1", "kind": "event batch", "timeline": [
            {"at": "2026-11-21T09:30:00Z", "what": "first sent", "id": "nb-1", "text": "attempt 1"},
            {"at": "2026-11-21T09:30:01Z", "what": "last answered", "id": "nb-1", "text": "1 delivered of 1"}],
            "latencies": {"generation_ms": null}});
        show(&terminal, &trace).expect("writing to memory succeeds");
        let text = captured.text();
        let columns: Vec<_> = text.lines().filter_map(|line| line.find("nb-1")).collect();
        assert_eq!(columns.len(), 2, "{text}");
        assert_eq!(columns[0], columns[1], "{text}");
        assert!(text.ends_with("1 delivered of 1\n"), "unknown latencies are no line: {text}");
    }
}
