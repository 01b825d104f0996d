//! Live view: backlog, rates, latencies, applications.

use std::{
    collections::VecDeque,
    io,
    time::{Duration, Instant},
};

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use ratatui::{
    DefaultTerminal, Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize},
    text::Line,
    widgets::{Block, Cell, Paragraph, Row, Sparkline, Table},
};
use tokio::sync::mpsc;

use super::Report;
use crate::{
    client::Client,
    failure::Outcome,
    terminal::{cut, printable, size, thousands},
};

/// Number of samples kept for the sparklines.
const HISTORY: usize = 240;

/// Refreshes until `q`, Escape or Ctrl-C.
///
/// # Errors
/// If the terminal cannot be written. An unreachable server is shown as such and polled again.
pub async fn run(client: &Client, interval: Duration) -> Outcome {
    let mut terminal = ratatui::try_init()?;
    let (keys_sender, mut keys) = mpsc::channel(16);
    // Reading keys blocks, so it has its own thread, which ends with the receiver.
    std::thread::spawn(move || {
        while !keys_sender.is_closed() {
            if poll(Duration::from_millis(200)).unwrap_or(false)
                && let Ok(event) = read()
                && keys_sender.blocking_send(event).is_err()
            {
                return;
            }
        }
    });
    let outcome = refresh(client, interval, &mut terminal, &mut keys).await;
    ratatui::restore();
    outcome
}

async fn refresh(
    client: &Client,
    interval: Duration,
    terminal: &mut DefaultTerminal,
    keys: &mut mpsc::Receiver<Event>,
) -> Outcome {
    let mut view = View::new(client.server());
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {
                let report = match client.get("/v1/status", &[]).await {
                    Ok(answer) => Report::read(answer),
                    Err(failure) => Err(failure),
                };
                view.take(report.map_err(|failure| failure.message), Instant::now());
            }
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    if ctrl_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
        draw(terminal, &view)?;
    }
}

fn draw(terminal: &mut DefaultTerminal, view: &View) -> io::Result<()> {
    terminal.draw(|frame| view.render(frame)).map(|_| ())
}

/// Rates per second, oldest first.
#[derive(Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    history: VecDeque<u64>,
}

impl Rate {
    fn take(&mut self, total: u64, now: Instant) {
        if let Some((then, before)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            let rate = if seconds > 0.0 { total.saturating_sub(before) as f64 / seconds } else { 0.0 };
            self.push(rate.round() as u64);
        }
        self.last = Some((now, total));
    }

    fn push(&mut self, value: u64) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(value);
    }

    fn newest(&self) -> u64 {
        self.history.back().copied().unwrap_or_default()
    }
}

struct View {
    server: String,
    report: Option<Report>,
    error: Option<String>,
    events: Rate,
    notifications: Rate,
    delivered: Rate,
    waiting: Rate,
}

impl View {
    fn new(server: &str) -> Self {
        let (events, notifications, delivered, waiting) = Default::default();
        View { server: server.to_owned(), report: None, error: None, events, notifications, delivered, waiting }
    }

    fn take(&mut self, report: Result<Report, String>, now: Instant) {
        match report {
            Ok(report) => {
                self.events.take(report.totals.events, now);
                self.notifications.take(report.totals.notifications, now);
                self.delivered.take(report.attempts("delivered"), now);
                self.waiting.push(report.backlog.notifications);
                self.error = None;
                self.report = Some(report);
            }
            Err(error) => self.error = Some(error),
        }
    }

    fn render(&self, frame: &mut Frame<'_>) {
        let [head, sparks, middle, applications, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(10),
            Constraint::Length(9),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let Some(report) = &self.report else {
            let text = self.error.clone().unwrap_or_else(|| format!("connecting to {} ...", self.server));
            frame.render_widget(Paragraph::new(text).red(), head);
            return;
        };
        let ready = if report.ready { "ready".green() } else { "not ready".red() };
        let title =
            Line::from(vec!["Tocsin ".bold(), printable(&report.version).into_owned().into(), "  ".into(), ready]);
        let place = Line::from(format!("{}, since {}", self.server, printable(&report.started_at))).dim();
        frame.render_widget(Paragraph::new(vec![title, place]), head);

        let [upper, lower] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).areas(sparks);
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(upper);
        sparkline(
            frame,
            left,
            format!("events/s {}", thousands(self.events.newest())),
            &self.events,
            Style::new().cyan(),
        );
        sparkline(
            frame,
            right,
            format!("notifications/s {}", thousands(self.notifications.newest())),
            &self.notifications,
            Style::new().blue(),
        );
        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(lower);
        sparkline(
            frame,
            left,
            format!("delivered/s {}", thousands(self.delivered.newest())),
            &self.delivered,
            Style::new().green(),
        );
        sparkline(
            frame,
            right,
            format!("waiting to be sent {}", thousands(self.waiting.newest())),
            &self.waiting,
            Style::new().yellow(),
        );

        let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
        let text = |name: &str, value: String| {
            Row::new([Cell::new(name.to_owned()), Cell::new(Line::from(value).right_aligned())])
        };
        let pair = |name: &str, value: u64| text(name, thousands(value));
        let backlog = &report.backlog;
        let rows = vec![
            pair("events to match", backlog.events),
            pair("notifications to send", backlog.notifications),
            pair("suspended", backlog.suspended),
            text(
                "suspended messages",
                backlog.suspended_messages.0.map_or_else(|| "unavailable".to_owned(), thousands),
            ),
            pair("failed event batches", backlog.failed_batches),
            pair("events so far", report.totals.events),
            pair("delivered so far", report.attempts("delivered")),
            pair("refused so far", report.attempts("refused")),
        ];
        let table =
            Table::new(rows, [Constraint::Fill(2), Constraint::Fill(1)]).block(Block::bordered().title(" flow "));
        frame.render_widget(table, left);
        let show = |value: Option<f64>| {
            Cell::new(Line::from(value.map_or("-".to_owned(), |value| format!("{value:.1}"))).right_aligned())
        };
        let rows = report.latencies.iter().map(|(step, latency)| {
            Row::new([
                Cell::new(printable(step).replace('_', " ")),
                show(latency.p50_ms),
                show(latency.p95_ms),
                show(latency.p99_ms),
            ])
        });
        let widths = [Constraint::Fill(2), Constraint::Fill(1), Constraint::Fill(1), Constraint::Fill(1)];
        let right_head = |text: &'static str| Cell::new(Line::from(text).right_aligned());
        let table = Table::new(rows, widths)
            .header(Row::new([Cell::new(""), right_head("p50"), right_head("p95"), right_head("p99")]).dim())
            .block(Block::bordered().title(" latency, ms "));
        frame.render_widget(table, right);

        // Height inside the borders, below the header; the name column is at least as wide as ratatui makes it.
        let rows_max = usize::from(applications.height.saturating_sub(3));
        let name_max = usize::from(applications.width.saturating_sub(2) / 4).max(8);
        let is_cut = report.applications.len() > rows_max
            || report.applications.iter().any(|application| printable(&application.name).chars().count() > name_max);
        let rows = report.applications.iter().take(rows_max).map(|application| {
            let state = if application.ready { "ready".green() } else { "catching up".yellow() };
            Row::new([
                Cell::new(cut(&printable(&application.name), name_max).into_owned()),
                Cell::new(application.version.to_string()),
                Cell::new(thousands(application.indexed)),
                Cell::new(size(application.index_bytes)),
                Cell::new(state),
            ])
        });
        let table = Table::new(
            rows,
            [Constraint::Fill(2), Constraint::Fill(1), Constraint::Fill(2), Constraint::Fill(1), Constraint::Fill(1)],
        )
        .header(Row::new(["application", "version", "subscriptions", "index", ""]).dim())
        .block(Block::bordered().title(match report.applications.len() {
            all if all > rows_max => format!(" applications, {rows_max} of {all} "),
            _ => " applications ".to_owned(),
        }));
        frame.render_widget(table, applications);
        let foot_line = match &self.error {
            Some(error) => Line::from(error.clone()).red(),
            None if is_cut => Line::from("q quits; `tocsin status` shows all without truncation").dim(),
            None => Line::from("q quits").dim(),
        };
        frame.render_widget(Paragraph::new(foot_line), foot);
    }
}

fn sparkline(frame: &mut Frame<'_>, area: Rect, title: String, rate: &Rate, style: Style) {
    // The newest values that fit, at the right.
    let width = usize::from(area.width.saturating_sub(2));
    let skip = rate.history.len().saturating_sub(width);
    let mut data = vec![0; width.saturating_sub(rate.history.len())];
    data.extend(rate.history.iter().skip(skip));
    frame.render_widget(
        Sparkline::default().data(data).style(style).block(Block::bordered().title(format!(" {title} "))),
        area,
    );
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};
    use serde_json::json;

    use super::*;

    fn screen(view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(100, 30)).expect("a terminal in memory");
        terminal.draw(|frame| view.render(frame)).expect("it draws");
        let buffer = terminal.backend().buffer();
        let lines = (0..30).map(|y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>());
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn e_truncation_is_indicated() {
        let mut view = View::new("http://x");
        let report = |count: usize, name: &str| {
            let applications: Vec<_> =
                (0..count).map(|number| json!({"name": format!("{name}{number}"), "version": 3})).collect();
            Report::read(json!({"version": "1", "ready": true, "applications": applications}))
        };
        let now = Instant::now();
        view.take(report(3, "app").map_err(|failure| failure.message), now);
        let shown = screen(&view);
        assert!(shown.contains("app2") && !shown.contains("truncation"), "{shown}");
        view.take(report(40, "app").map_err(|failure| failure.message), now);
        let shown = screen(&view);
        assert!(shown.contains(" of 40 ") && shown.contains("`tocsin status` shows all"), "{shown}");
        view.take(report(1, &"long".repeat(20)).map_err(|failure| failure.message), now);
        let shown = screen(&view);
        assert!(shown.contains('…') && shown.contains("without truncation"), "{shown}");
    }

    #[test]
    fn rates_are_differences_of_two_samples() {
        let mut view = View::new("http://x");
        assert!(screen(&view).contains("connecting to http://x"));
        let report = |events: u64| {
            Report::read(
                json!({"version": "1", "ready": true, "totals": {"events": events}, "applications": [{"name": "quakes", "version": 3}]}),
            )
        };
        let start = Instant::now();
        view.take(report(1_000).map_err(|failure| failure.message), start);
        view.take(report(6_000).map_err(|failure| failure.message), start + Duration::from_secs(2));
        let shown = screen(&view);
        assert!(shown.contains("events/s 2,500"), "{shown}");
        assert!(shown.contains("quakes"), "{shown}");
        view.take(Err("no server answers".into()), start + Duration::from_secs(3));
        assert!(screen(&view).contains("no server answers"));
    }

    #[test]
    fn history_is_bounded() {
        let mut rate = Rate::default();
        (0..HISTORY as u64 + 50).for_each(|value| rate.push(value));
        assert_eq!((rate.history.len(), rate.newest()), (HISTORY, HISTORY as u64 + 49));
    }
}
