//! The status page: totals as static HTML without scripts. It contains no personal data.

use std::{fmt::Write, time::Duration};

use tocsin_model::{markup::escape, plural::plural, receipt::Outcome};
use tocsin_service::status::{Percentiles, Status};

use crate::problems::{DOCUMENT_CODES, Kind};

pub(crate) const STYLE: &str = include_str!("../assets/style.css");
pub(crate) const ICON: &str = include_str!("../assets/favicon.svg");

/// The page.
pub(crate) fn render(status: &Status) -> String {
    let (backlog, totals, counts) = (&status.backlog, &status.totals, &status.counts);
    let (word, class) = if status.ready { ("ready", "good") } else { ("getting ready", "wait") };
    let mut body = format!(
        "<header><h1><img src=\"/favicon.svg\" alt=\"\" width=\"36\" height=\"36\">Tocsin</h1>\
         <p><span class=\"state {class}\">{word}</span> version {}, up {}</p></header>\n",
        escape(status.version),
        span(status.now.since(status.started_at)),
    );
    body.push_str("<section class=\"cards\">\n");
    let batches = |count| format!("in {}", counted(count, "batch", "batches"));
    card(&mut body, "Events accepted", totals.events, &batches(totals.event_batches));
    card(&mut body, "Notifications", totals.notifications, &batches(totals.notification_batches));
    let delivered = totals.attempts[Outcome::Delivered as usize];
    let attempts = counted(totals.attempts.iter().sum(), "attempt", "attempts");
    card(&mut body, "Delivered", delivered, &format!("of {attempts}"));
    card(&mut body, "Subscribers", counts.subscribers, &counted(counts.devices, "device", "devices"));
    card(&mut body, "Subscriptions", counts.subscriptions, "");
    card(&mut body, "Inbox items", status.inbox.items, "");
    body.push_str("</section>\n<div class=\"columns\">\n<section><h2>Waiting</h2><table>\n");
    row(&mut body, "events to match", backlog.events, "");
    row(&mut body, "notifications to deliver", backlog.notifications, "");
    row(&mut body, "suspended", backlog.suspended, if backlog.suspended > 0 { "warn" } else { "" });
    row(
        &mut body,
        "failed event batches",
        backlog.failed_batches,
        if backlog.failed_batches > 0 { "warn" } else { "" },
    );
    body.push_str("</table></section>\n<section><h2>Attempts</h2><table>\n");
    for (outcome, count) in Outcome::ALL.iter().zip(totals.attempts) {
        row(&mut body, outcome.word(), count, "");
    }
    body.push_str("</table></section>\n</div>\n<section><h2>Latency</h2>");
    let latencies = &status.latencies;
    let rows = [
        ("accept", latencies.accept),
        ("match", latencies.matching),
        ("deliver", latencies.deliver),
        ("event to receipt", latencies.end_to_end),
    ];
    let rows = rows.into_iter().map(|(name, found)| latency(name, found));
    table(&mut body, "Latency", ["step", "p50", "p95", "p99", "count"], rows);
    body.push_str("</section>\n<section><h2>Applications</h2>");
    if status.applications.is_empty() {
        body.push_str("<p>None runs yet. Apply one: <code>tocsin apply application.yaml</code></p>");
    } else {
        let rows = status.applications.iter().map(|(name, application)| {
            let (word, class) = if application.ready { ("ready", "good") } else { ("getting ready", "wait") };
            [
                name.to_string(),
                application.version.to_string(),
                grouped(application.indexed),
                format!("{} KiB", grouped(application.index_bytes / 1024)),
                state(class, word),
            ]
        });
        table(&mut body, "Applications", ["application", "version", "subscriptions", "index", "state"], rows);
    }
    sources(&mut body, status);
    body.push_str(
        "</section>\n<footer><a href=\"/explorer/\">API explorer</a> <a href=\"/openapi.json\">OpenAPI</a> \
         <a href=\"/metrics\">metrics</a> <a href=\"/readyz\">readiness</a> <a href=\"/status\">reload</a></footer>\n",
    );
    page("Tocsin", &body)
}

/// Event sources. Their error texts can contain event data, so they are not shown here.
fn sources(body: &mut String, status: &Status) {
    if status.sources.is_empty() {
        return;
    }
    body.push_str("</section>\n<section><h2>Sources</h2>");
    let rows = status.sources.iter().map(|(application, source)| {
        let class = match source.state {
            "running" => "good",
            "failed" | "backing_off" => "bad",
            _ => "wait",
        };
        [
            format!("{application}/{}", source.source),
            source.kind.to_string(),
            grouped(source.events),
            grouped(source.refused),
            state(class, &source.state.replace('_', " ")),
        ]
    });
    table(body, "Sources", ["source", "kind", "events", "refused", "state"], rows);
}

/// The page that explains a kind of problem.
pub(crate) fn problem(kind: &Kind) -> String {
    let codes = DOCUMENT_CODES.iter().filter(|code| code.kind.slug == kind.slug);
    let codes: String =
        codes.map(|code| format!("<li><code>{}</code>: {}</li>", code.word, escape(code.meaning))).collect();
    let body = format!(
        "<header><h1>{}</h1><p>Status {}</p></header>\n<section><p>{}</p><ul>{codes}</ul></section>\n\
         <footer><a href=\"/\">Start page</a> <a href=\"/explorer/\">API explorer</a></footer>\n",
        escape(kind.title),
        kind.status.as_u16(),
        escape(kind.help),
    );
    page(kind.title, &body)
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <link rel=\"stylesheet\" href=\"/style.css\"><link rel=\"icon\" href=\"/favicon.svg\"></head>\n\
         <body><main>\n{body}</main></body></html>\n",
        escape(title)
    )
}

fn card(out: &mut String, title: &str, figure: u64, note: &str) {
    let _ = writeln!(
        out,
        "<div class=\"card\"><h2>{title}</h2><strong>{}</strong><small>{note}</small></div>",
        grouped(figure)
    );
}

fn row(out: &mut String, name: &str, figure: u64, class: &str) {
    let _ = writeln!(out, "<tr class=\"{class}\"><td>{name}</td><td>{}</td></tr>", grouped(figure));
}

/// A table with a name for assistive technology. It scrolls where it is too wide; on a narrow screen each cell shows
/// the heading of its column. Cells are HTML.
fn table<const COLUMNS: usize>(
    out: &mut String,
    name: &str,
    headings: [&str; COLUMNS],
    rows: impl Iterator<Item = [String; COLUMNS]>,
) {
    let heads: String = headings.iter().map(|heading| format!("<th scope=\"col\">{heading}</th>")).collect();
    let _ = writeln!(
        out,
        "<div class=\"scroll\" role=\"region\" aria-label=\"{name}\" tabindex=\"0\"><table>\n<tr>{heads}</tr>"
    );
    for row in rows {
        let cells =
            headings.iter().zip(row).map(|(heading, cell)| format!("<td data-heading=\"{heading}\">{cell}</td>"));
        let _ = writeln!(out, "<tr>{}</tr>", cells.collect::<String>());
    }
    out.push_str("</table></div>");
}

fn state(class: &str, word: &str) -> String {
    format!("<span class=\"state {class}\">{word}</span>")
}

fn latency(name: &str, found: Percentiles) -> [String; 5] {
    let figure = |duration: Duration| {
        if found.count == 0 { "–".to_owned() } else { format!("{:.1} ms", crate::wire::millis(duration)) }
    };
    [name.to_owned(), figure(found.p50), figure(found.p95), figure(found.p99), grouped(found.count)]
}

/// `1 batch`, `2 batches`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), plural(count, one, many))
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
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

fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(span(Duration::from_secs(90_061)), "1 d 1 h");
        assert_eq!([1, 2_000].map(|count| counted(count, "batch", "batches")), ["1 batch", "2,000 batches"]);
    }

    #[test]
    fn every_cell_of_a_table_has_a_heading() {
        let mut out = String::new();
        table(&mut out, "Latency", ["step", "p50"], [["accept".to_owned(), "1 ms".to_owned()]].into_iter());
        assert!(out.contains("role=\"region\" aria-label=\"Latency\""), "{out}");
        assert!(out.contains("<td data-heading=\"step\">accept</td><td data-heading=\"p50\">1 ms</td>"), "{out}");
    }
}
