//! Self-contained HTML reports: no scripts, no external fonts or images.

use std::fmt::Write;

use tocsin_model::markup::escape;

use crate::{
    papers::Statement,
    plan::{Plan, Station},
    plot::{Axis, Curve, Scale, bars, curves, short},
    profile::Roles,
    what_if::{Sensitivity, SweepResult},
};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1b2430;--dim:#5c6875;--ground:#fff;--line:#d9dfe5;--s0:#0a66c2;--s1:#c2410c;--s2:#15803d;--s3:#7c3aed;--s4:#a16207}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaee;--dim:#98a4b0;--ground:#12171c;--line:#2c353d;--s0:#6cb2ff;--s1:#ff9a62;--s2:#6fd08c;--s3:#c4a5ff;--s4:#e7c25a}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:70rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground)}
h1{font-size:1.6rem;line-height:1.2}h2{font-size:1.2rem;margin-top:2.2rem}h3{font-size:1rem;margin-bottom:.3rem}
.dim,small{color:var(--dim)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem;min-width:100%}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
@media (max-width:40rem){.wide thead{display:none}.wide tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
.wide td,.wide td.n{display:flex;justify-content:space-between;gap:1rem;padding:.1rem 0;border:0;text-align:right;white-space:normal}
.wide td:empty{display:none}.wide td::before{content:attr(data-of);color:var(--dim);text-align:left}}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1.2rem;align-items:start}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem;padding:0;list-style:none}
.facts li{border:1px solid var(--line);border-radius:.5rem;padding:.6rem .8rem}
.facts b{display:block;font-size:1.3rem}
.good{color:var(--s2)}.bad{color:var(--s1)}
svg{width:100%;height:auto;overflow:visible;font:11px system-ui,sans-serif;fill:var(--ink)}
svg .title{font-weight:600;font-size:12px}svg .end{text-anchor:end}svg .middle{text-anchor:middle}svg .dim{fill:var(--dim)}
svg .grid{stroke:var(--line)}svg .mark{stroke:var(--ink);stroke-width:2}svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}
svg .s0{stroke:var(--s0)}svg .s1{stroke:var(--s1)}svg .s2{stroke:var(--s2)}svg .s3{stroke:var(--s3)}svg .s4{stroke:var(--s4)}
svg rect.s0{fill:var(--s0)}svg .legend{stroke:none}svg circle{fill:var(--ground)}
svg text.s0{fill:var(--s0)}svg text.s1{fill:var(--s1)}svg text.s2{fill:var(--s2)}svg text.s3{fill:var(--s3)}svg text.s4{fill:var(--s4)}
";

/// A complete page from a title and HTML parts.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )
}

/// A column of a table.
#[derive(Debug, Clone, Copy)]
pub enum Column<'a> {
    /// Text.
    Text(&'a str),
    /// Numbers, right-aligned.
    Number(&'a str),
}

impl<'a> Column<'a> {
    /// The column's title.
    pub fn title(self) -> &'a str {
        let (Column::Text(title) | Column::Number(title)) = self;
        title
    }
}

/// A table. Cells are text, not HTML.
pub fn table(columns: &[Column<'_>], rows: &[Vec<String>]) -> String {
    let class = |column: &Column<'_>| if matches!(column, Column::Number(_)) { " class=\"n\"" } else { "" };
    let mut out = "<div class=\"wide\"><table><thead><tr>".to_owned();
    for column in columns {
        let _ = write!(out, "<th{}>{}</th>", class(column), escape(column.title()));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in columns.iter().zip(row) {
            // On narrow screens, each cell shows its column title.
            let of = escape(column.title());
            let _ = write!(out, "<td{} data-of=\"{of}\">{}</td>", class(column), escape(cell));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

/// Key figures with their labels.
pub fn facts(facts: &[(String, String)]) -> String {
    let items = facts.iter().map(|(figure, what)| format!("<li><b>{}</b>{}</li>", escape(figure), escape(what)));
    format!("<ul class=\"facts\">{}</ul>", items.collect::<String>())
}

/// The report of a plan, with charts.
pub fn plan_page(
    plan: &Plan,
    sensitivities: &[Sensitivity],
    sweep_results: &[SweepResult],
    statements: &[Statement],
) -> String {
    let mut body = facts(&headline(plan));
    let mut section = |title: &str, part: String| {
        let _ = write!(body, "<h2>{title}</h2>{part}");
    };
    if !statements.is_empty() {
        section("Published statements, recomputed", statements_table(statements));
    }
    section("Bottlenecks", bottlenecks(plan));
    if plan.roles == Roles::Apart {
        let rows: Vec<Vec<String>> = plan.stations.iter().map(role_row).collect();
        section("Roles on separate nodes", table(&ROLE_COLUMNS, &rows));
    }
    section("The day", format!("<div class=\"plots\">{}</div>{}", day_plots(plan), day_table(plan)));
    section("Operations", operations_table(plan));
    section("Resource usage", stations_table(&plan.stations));
    section("Resource usage per role", stations_table(&plan.each_role));
    if !plan.channels.is_empty() {
        section("Channels", channels_table(plan));
    }
    if !sweep_results.is_empty() {
        section("Other assumptions", sweep_part(sweep_results));
    }
    section("Sensitivity", sensitivities_part(sensitivities));
    if !plan.notes.is_empty() {
        let notes = plan.notes.iter().map(|note| format!("<li>{}</li>", escape(note)));
        section("Notes and assumptions", format!("<ul>{}</ul>", notes.collect::<String>()));
    }
    page(&format!("Capacity plan: {}", plan.profile), &body)
}

fn headline(plan: &Plan) -> Vec<(String, String)> {
    let mut facts = vec![(plan.nodes.to_string(), if plan.nodes == 1 { "node".into() } else { "nodes".into() })];
    if let Some(first) = plan.bottlenecks.first() {
        facts.push((format!("{:.0} %", first.utilisation * 100.0), format!("busy at the peak: {}", first.what)));
    }
    if let Some(users) = &plan.users {
        facts.push((short(users.each_node), "users per node".into()));
    }
    facts.push((format!("{} s", short(plan.day.p95)), "p95 end to end".into()));
    facts.push((format!("{} MB", short(plan.disk.written_mb_per_day)), "written per day".into()));
    facts
}

fn statements_table(statements: &[Statement]) -> String {
    let rows: Vec<Vec<String>> = statements
        .iter()
        .map(|statement| {
            vec![statement.said.to_owned(), statement.computed.clone(), statement.verdict.word().to_owned()]
        })
        .collect();
    table(&[Column::Text("said"), Column::Text("computed"), Column::Text("verdict")], &rows)
}

fn bottlenecks(plan: &Plan) -> String {
    let bar = |bottleneck: &crate::plan::Bottleneck| {
        (bottleneck.what.clone(), bottleneck.utilisation * 100.0, Some(plan.utilisation * 100.0))
    };
    let found: Vec<_> = plan.bottlenecks.iter().take(8).map(bar).collect();
    let plot = bars("utilisation at the busiest time, and the limit", "%", &found);
    let rows: Vec<Vec<String>> = plan
        .bottlenecks
        .iter()
        .map(|found| vec![found.what.clone(), format!("{:.1}", found.utilisation * 100.0), short(found.grows_by)])
        .collect();
    let columns = [Column::Text("resource"), Column::Number("utilisation, %"), Column::Number("load can grow by")];
    format!("<div class=\"plots\">{plot}{}</div>", table(&columns, &rows))
}

fn day_plots(plan: &Plan) -> String {
    let clock = Axis { title: "time of the day".into(), scale: Scale::Clock };
    let axis = |title: &str| Axis { title: title.into(), scale: Scale::Linear };
    let curve = |name: &str, value: fn(&crate::plan::Minute) -> f64| Curve {
        name: name.into(),
        points: plan.day.minutes.iter().map(|minute| (minute.at, value(minute))).collect(),
    };
    [
        curves("Load of the busiest", &clock, &axis("times what it can do"), &[curve("load", |minute| minute.load)]),
        curves("Backlog", &clock, &axis("seconds of work"), &[curve("backlog", |minute| minute.backlog_seconds)]),
        curves(
            "End-to-end latency",
            &clock,
            &axis("seconds"),
            &[curve("p50", |minute| minute.p50), curve("p95", |minute| minute.p95)],
        ),
    ]
    .join("")
}

fn day_table(plan: &Plan) -> String {
    let rows: Vec<Vec<String>> = plan
        .day
        .stations
        .iter()
        .map(|station| {
            vec![
                station.name.clone(),
                format!("{:.0}", station.load_peak * 100.0),
                format!("{} {}", short(station.backlog_peak), station.item),
                clock(station.backlog_peak_at),
                station.drained_at.map_or_else(String::new, clock),
                short(station.left_at_midnight),
            ]
        })
        .collect();
    let columns = [
        Column::Text("where"),
        Column::Number("peak load, %"),
        Column::Number("peak backlog"),
        Column::Number("at"),
        Column::Number("drained at"),
        Column::Number("backlog at midnight"),
    ];
    let goals = plan.day.goals.iter().map(|goal| {
        let (class, word) = if goal.met { ("good", "met") } else { ("bad", "missed") };
        format!(
            "<li>{} at most {} s: expected {} s, <b class=\"{class}\">{word}</b></li>",
            escape(&goal.name),
            short(goal.wanted),
            short(goal.expected)
        )
    });
    format!("{}{}<ul>{}</ul>", table(&columns, &rows), paths_table(plan), goals.collect::<String>())
}

/// Latencies from end to end, if there are several paths.
fn paths_table(plan: &Plan) -> String {
    if plan.day.paths.len() < 2 {
        return String::new();
    }
    let row = |path: &crate::plan::PathDay| vec![path.name.clone(), short(path.p50), short(path.p95), short(path.p99)];
    let rows: Vec<Vec<String>> = plan.day.paths.iter().map(row).collect();
    let columns =
        [Column::Text("of what"), Column::Number("p50, s"), Column::Number("p95, s"), Column::Number("p99, s")];
    table(&columns, &rows)
}

/// A second of the day as a clock time.
pub fn clock(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

fn operations_table(plan: &Plan) -> String {
    let rows: Vec<Vec<String>> = plan
        .operations
        .iter()
        .map(|done| {
            vec![done.source.clone(), done.operation.clone(), short(done.mean), short(done.peak), short(done.day)]
        })
        .collect();
    let columns = [
        Column::Text("source"),
        Column::Text("operation"),
        Column::Number("a second, mean"),
        Column::Number("a second, peak"),
        Column::Number("a day"),
    ];
    table(&columns, &rows)
}

fn stations_table(stations: &[Station]) -> String {
    let rows: Vec<Vec<String>> = stations
        .iter()
        .flat_map(|station| {
            station.uses.iter().map(|used| {
                vec![
                    format!("{} ({} needed)", station.name, station.nodes_needed),
                    used.resource.word().to_owned(),
                    short(used.mean),
                    short(used.peak),
                    used.node_has.map_or_else(|| "unknown".into(), short),
                    used.nodes_busy.map_or_else(String::new, short),
                    used.mostly.clone(),
                ]
            })
        })
        .collect();
    let columns = [
        Column::Text("nodes"),
        Column::Text("resource"),
        Column::Number("a second, mean"),
        Column::Number("a second, peak"),
        Column::Number("a node has"),
        Column::Number("nodes busy at peak"),
        Column::Text("mostly"),
    ];
    table(&columns, &rows)
}

fn channels_table(plan: &Plan) -> String {
    let rows: Vec<Vec<String>> = plan
        .channels
        .iter()
        .map(|channel| {
            let shown = |value: Option<f64>| value.map_or_else(String::new, short);
            vec![
                channel.name.clone(),
                short(channel.peak),
                shown(channel.rate_max),
                shown(channel.connections_needed.map(|needed| needed as f64)),
                shown(channel.connections),
            ]
        })
        .collect();
    let columns = [
        Column::Text("channel"),
        Column::Number("a second, peak"),
        Column::Number("limit"),
        Column::Number("connections needed"),
        Column::Number("allowed"),
    ];
    table(&columns, &rows)
}

fn sweep_part(sweep_results: &[SweepResult]) -> String {
    let mut names: Vec<&str> = sweep_results.iter().map(|sweep_results| sweep_results.name.as_str()).collect();
    names.dedup();
    let plot = |name: &&str| {
        let of = |value: fn(&Plan) -> f64| {
            sweep_results
                .iter()
                .filter(|sweep_results| sweep_results.name == **name)
                .map(|sweep_results| (sweep_results.value, value(&sweep_results.plan)))
                .collect()
        };
        let x = Axis { title: (*name).to_owned(), scale: Scale::Linear };
        let nodes = [Curve { name: "nodes".into(), points: of(|plan| plan.nodes as f64) }];
        let late = [Curve { name: "p95".into(), points: of(|plan| plan.day.p95) }];
        let axis = |title: &str| Axis { title: title.into(), scale: Scale::Linear };
        curves("Nodes", &x, &axis("nodes"), &nodes) + &curves("p95 end to end", &x, &axis("seconds"), &late)
    };
    let rows: Vec<Vec<String>> = sweep_results.iter().map(sweep_row).collect();
    let plots: String = names.iter().map(plot).collect();
    format!("<div class=\"plots\">{plots}</div>{}", table(&SWEEP_COLUMNS, &rows))
}

/// The columns of [`role_row`].
pub const ROLE_COLUMNS: [Column<'static>; 6] = [
    Column::Text("role"),
    Column::Number("nodes"),
    Column::Number("% in use"),
    Column::Number("load can grow by"),
    Column::Text("bottleneck"),
    Column::Text("next"),
];

/// A row for a role on separate nodes.
pub fn role_row(station: &Station) -> Vec<String> {
    let first = station.bottlenecks.first();
    let next = station.bottlenecks.get(1);
    vec![
        station.name.clone(),
        station.nodes.to_string(),
        first.map_or_else(String::new, |first| format!("{:.1}", first.utilisation * 100.0)),
        first.map_or_else(String::new, |first| short(first.grows_by)),
        first.map_or_else(|| "unknown".to_owned(), |first| first.what.clone()),
        next.map_or_else(String::new, |next| format!("{} at {:.1} %", next.what, next.utilisation * 100.0)),
    ]
}

/// The columns of [`sweep_row`].
pub const SWEEP_COLUMNS: [Column<'static>; 6] = [
    Column::Text("assumption"),
    Column::Number("value"),
    Column::Number("nodes"),
    Column::Number("% in use"),
    Column::Text("bottleneck"),
    Column::Number("p95, s"),
];

/// A row for one value of a sweep.
pub fn sweep_row(sweep_results: &SweepResult) -> Vec<String> {
    let first = sweep_results.plan.bottlenecks.first();
    vec![
        sweep_results.name.clone(),
        short(sweep_results.value),
        sweep_results.plan.nodes.to_string(),
        first.map_or_else(String::new, |first| format!("{:.0}", first.utilisation * 100.0)),
        first.map_or_else(String::new, |first| first.what.clone()),
        short(sweep_results.plan.day.p95),
    ]
}

fn sensitivities_part(sensitivities: &[Sensitivity]) -> String {
    let found: Vec<(String, f64, Option<f64>)> =
        sensitivities.iter().take(12).map(|found| (found.name.clone(), found.elasticity.abs(), None)).collect();
    let rows: Vec<Vec<String>> = sensitivities
        .iter()
        .map(|found| vec![found.name.clone(), short(found.value), format!("{:+.2}", found.elasticity)])
        .collect();
    let columns = [Column::Text("assumption"), Column::Number("value"), Column::Number("% more load for 1 % more")];
    let plot = bars("% more of the bottleneck resource, for 1 % more", "%", &found);
    format!("<div class=\"plots\">{plot}{}</div>", table(&columns, &rows))
}
