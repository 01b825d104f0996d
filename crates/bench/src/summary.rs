//! Comparison of results with published numbers, as an HTML page and as a terminal table.

use std::fmt::Write;

use tocsin_capacity::{
    page::{Column, facts, page, table},
    plot::{Axis, Curve, Scale, bars, curves, short},
};
use tocsin_model::markup::escape;

use super::{
    figure::Prediction,
    report::print_predictions,
    results::{FigureResult, Results, newest_commit, older_lines},
    workloads::{
        FAMILIES,
        claim::Answer,
        workload::{Family, Row, Workload},
    },
};
use crate::{
    failure::Outcome,
    terminal::{Colour, Terminal},
};

/// HTML page: the papers' tables with Tocsin's column, plots, claims, and every figure.
pub fn results_page(results: &Results) -> String {
    let mut body = facts(&headline(results));
    body.push_str(&provenance(results));
    for family in &FAMILIES {
        body.push_str(&family_part(family, results));
    }
    let _ = write!(body, "<h2>Peers on the same machine</h2>{}", peers_part(results));
    let _ = write!(body, "{}", predictions_part(results));
    let _ = write!(body, "<h2>Every figure</h2>{}", figures_table(results));
    page("What Tocsin does, measured", &body)
}

/// Prints a summary on the terminal: the claims, then the workloads.
///
/// # Errors
/// If the output cannot be written.
pub fn print(terminal: &Terminal, results: &Results) -> Outcome {
    for family in &FAMILIES {
        terminal.line(terminal.paint(Colour::Bold, format_args!("\n{}", family.title)))?;
        let rows: Vec<Vec<String>> =
            family.workloads.iter().flat_map(|workload| workload_rows(workload, results)).collect();
        terminal.table(&["workload", "of what", "published", "ours", "factor"], &rows)?;
        for claim in family.claims {
            let (answer, why) = claim.answer(results);
            let colour = match answer {
                Answer::Holds | Answer::HoldsIf => Colour::Green,
                Answer::NoLongerHolds | Answer::Contradictory => Colour::Yellow,
                Answer::NoDifference | Answer::NotMeasured => Colour::Dim,
            };
            let said = format!("{}: {}", answer.word(), claim.said);
            terminal.line(terminal.paint(colour, said))?;
            if !why.is_empty() && answer != Answer::NotMeasured {
                terminal.line(format_args!("    {why}"))?;
            }
        }
    }
    let predictions: Vec<&Prediction> = results.values().flat_map(|measured| &measured.predictions).collect();
    print_predictions(terminal, &predictions)?;
    match older_note(results) {
        Some(note) => Ok(terminal.line(terminal.paint(Colour::Yellow, format_args!("\n{note}")))?),
        None => Ok(()),
    }
}

fn headline(results: &Results) -> Vec<(String, String)> {
    let answers: Vec<Answer> =
        FAMILIES.iter().flat_map(|family| family.claims).map(|claim| claim.answer(results).0).collect();
    let count = |wanted: Answer| answers.iter().filter(|answer| **answer == wanted).count().to_string();
    let workloads = FAMILIES.iter().flat_map(|family| family.workloads);
    let (measured, all) = workloads.fold((0, 0), |(measured, all), workload| {
        (measured + usize::from(workload.figures().iter().any(|figure| results.contains_key(*figure))), all + 1)
    });
    vec![
        (results.len().to_string(), "figures".into()),
        (format!("{measured} of {all}"), "published workloads have a figure of ours".into()),
        (count(Answer::Holds), "claims hold".into()),
        (count(Answer::HoldsIf), "hold on a condition".into()),
        (count(Answer::NoLongerHolds), "no longer hold".into()),
        (count(Answer::NoDifference), "show no clear difference".into()),
        (count(Answer::Contradictory), "are contradictory in the paper".into()),
        (count(Answer::NotMeasured), "are not measured".into()),
    ]
}

/// Provenance of the figures and how to read them.
fn provenance(results: &Results) -> String {
    let mut runs: Vec<String> = results
        .values()
        .filter_map(|measured| measured.run.as_ref())
        .map(|run| format!("Tocsin {} on {}; {}", run.version, run.machine, run.settings))
        .collect();
    runs.sort();
    runs.dedup();
    let runs_text = if runs.is_empty() {
        "The result lines do not record where they were measured.".to_owned()
    } else {
        runs.join(" · ")
    };
    let quick = results.values().filter(|measured| measured.is_quick()).count();
    let quick = match quick {
        0 => String::new(),
        count => format!(" <b class=\"bad\">{count} figures are of a quick run: a smoke test, not quotable.</b>"),
    };
    let older = older_note(results).map(|note| format!(" <b class=\"bad\">{}</b>", escape(&note))).unwrap_or_default();
    format!(
        "<p class=\"dim\">{}.{quick}{older} The machines of the papers are 16 to 27 years old: look at shapes and at cost, not only at \
         the factor.</p>",
        escape(&runs_text)
    )
}

/// Warning if lines are of other commits than the newest.
fn older_note(results: &Results) -> Option<String> {
    let older = older_lines(results);
    let newest = newest_commit(results)
        .map_or_else(|| "no line names a commit".to_owned(), |commit| format!("the newest commit is {commit}"));
    let all = results.len();
    (older > 0).then(|| {
        format!("{older} of {all} figures were measured by an older commit, or by one not recorded; {newest}.")
    })
}

fn family_part(family: &Family, results: &Results) -> String {
    let rows: Vec<Vec<String>> =
        family.workloads.iter().flat_map(|workload| workload_rows(workload, results)).collect();
    let columns = [
        Column::Text("workload"),
        Column::Text("of what"),
        Column::Text("published"),
        Column::Number("ours"),
        Column::Number("factor"),
    ];
    let abouts = family.workloads.iter().map(|workload| {
        let differs = if workload.differs.is_empty() {
            String::new()
        } else {
            format!(" <small>({})</small>", escape(workload.differs))
        };
        format!("<li>{}: {}{differs}</li>", workload.name, escape(workload.about))
    });
    format!(
        "<h2>{}</h2><p class=\"dim\">Published on {}.</p>{}<div class=\"plots\">{}</div><h3>Claims</h3>{}\
         <details><summary>The workloads</summary><ul>{}</ul></details>",
        family.title,
        escape(family.machine),
        table(&columns, &rows),
        family.workloads.iter().map(|workload| plot(workload, results)).collect::<String>(),
        claims_table(family, results),
        abouts.collect::<String>()
    )
}

fn workload_rows(workload: &Workload, results: &Results) -> Vec<Vec<String>> {
    let row = |(number, row): (usize, &Row)| {
        let measured = row.measured(results);
        let factor = measured.as_ref().zip(row.value).map(|(measured, published)| factor(measured, published));
        vec![
            if number == 0 { workload.name.to_owned() } else { String::new() },
            row.what.to_owned(),
            row.reported.to_owned(),
            measured.as_ref().map_or_else(|| "not measured".to_owned(), shown),
            factor.map_or_else(String::new, |factor| format!("{} x", short(factor))),
        ]
    };
    workload.rows.iter().enumerate().map(row).collect()
}

/// Improvement factor over the published number.
fn factor(measured: &FigureResult, published: f64) -> f64 {
    if measured.unit == "ms" { published / measured.value } else { measured.value / published }
}

fn shown(measured: &FigureResult) -> String {
    format!("{} {} ({} to {})", short(measured.value), measured.unit, short(measured.low), short(measured.high))
}

/// Sizes become curves; other rows with more than one figure become bars.
fn plot(workload: &Workload, results: &Results) -> String {
    let measured: Vec<(&Row, FigureResult)> =
        workload.rows.iter().filter_map(|row| Some((row, row.measured(results)?))).collect();
    let Some((_, first)) = measured.first().filter(|_| measured.len() > 1) else { return String::new() };
    let title = format!("{}: {}", workload.name, workload.about);
    // A title of up to 60 characters fits a narrow screen.
    let title = match title.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title,
    };
    match series_of(&measured) {
        Some((unit, shown)) => {
            let axis = |title: &str| Axis { title: title.into(), scale: Scale::Logarithmic };
            curves(&title, &axis(unit), &axis(&first.unit), &shown)
        }
        None => {
            let shown: Vec<(String, f64, Option<f64>)> = measured
                .iter()
                .filter(|(_, measured)| measured.unit == first.unit)
                .map(|(row, measured)| (row.what.to_owned(), measured.value, row.value))
                .collect();
            bars(&title, &first.unit, &shown)
        }
    }
}

/// Unit by which the row labels begin, and the curves: a new curve starts where the numbers restart. `None` if a curve
/// would have a single point.
fn series_of<'a>(measured: &[(&'a Row, FigureResult)]) -> Option<(&'a str, Vec<Curve>)> {
    let mut unit = None;
    let (mut ours, mut published) = (Vec::<Curve>::new(), Vec::new());
    for (row, measured) in measured {
        let (number, words) = row.what.split_once(' ').unwrap_or((row.what, ""));
        let at: f64 = number.parse().ok()?;
        let unit = *unit.get_or_insert_with(|| words.split(',').next().unwrap_or_default());
        if ours.last().and_then(|curve| curve.points.last()).is_none_or(|(before, _)| *before >= at) {
            let of_its_own = words.strip_prefix(unit).unwrap_or_default().trim();
            let name = if ours.is_empty() { "ours" } else { of_its_own };
            ours.push(Curve { name: name.to_owned(), points: Vec::new() });
        }
        ours.last_mut()?.points.push((at, measured.value));
        published.extend(row.value.map(|value| (at, value)));
    }
    if ours.iter().any(|curve| curve.points.len() < 2) {
        return None;
    }
    if !published.is_empty() {
        ours.insert(1, Curve { name: "published".to_owned(), points: published });
    }
    Some((unit?, ours))
}

fn claims_table(family: &Family, results: &Results) -> String {
    let rows: Vec<Vec<String>> = family
        .claims
        .iter()
        .map(|claim| {
            let (answer, why) = claim.answer(results);
            vec![claim.said.to_owned(), answer.word().to_owned(), why]
        })
        .collect();
    table(&[Column::Text("the paper says"), Column::Text("answer"), Column::Text("because")], &rows)
}

fn peers_part(results: &Results) -> String {
    let beside: Vec<&FigureResult> = results.values().filter(|measured| measured.ratio.is_some()).collect();
    let rows: Vec<Vec<String>> = beside
        .iter()
        .map(|measured| {
            vec![
                measured.name.clone(),
                shown(measured),
                measured.peer.clone().unwrap_or_default(),
                measured.peer_value.map_or_else(String::new, short),
                measured.ratio.map_or_else(String::new, short),
                measured.counts.as_ref().map_or_else(String::new, ToString::to_string),
                measured.origin(),
            ]
        })
        .collect();
    let columns = [
        Column::Text("figure"),
        Column::Number("ours"),
        Column::Text("peer"),
        Column::Number("peer's"),
        Column::Number("ratio"),
        Column::Text("each of ours cost"),
        Column::Text("measured"),
    ];
    table(&columns, &rows)
}

/// Predictions of mixes and of a backlog, with measured values.
fn predictions_part(results: &Results) -> String {
    let rows: Vec<Vec<String>> = results
        .values()
        .flat_map(|measured| &measured.predictions)
        .map(|predicted| {
            vec![
                predicted.what.clone(),
                format!("{} {}", short(predicted.predicted), predicted.unit),
                format!("{} {}", short(predicted.measured), predicted.unit),
                format!("{:+.1} %", predicted.error() * 100.0),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns =
        [Column::Text("of what"), Column::Number("predicted"), Column::Number("measured"), Column::Number("error")];
    format!(
        "<h2>Predicted and measured</h2><p class=\"dim\">Mixes of operations, predicted from what each operation does alone; \
         none of them was used to fit. A backlog, predicted by the queues of `tocsin capacity`, which adds up costs for the \
         rest.</p>{}",
        table(&columns, &rows)
    )
}

fn figures_table(results: &Results) -> String {
    let rows: Vec<Vec<String>> = results
        .values()
        .map(|measured| {
            vec![
                measured.name.clone(),
                shown(measured),
                measured.repeats.to_string(),
                measured.origin(),
                measured.conditions.clone(),
            ]
        })
        .collect();
    let columns = [
        Column::Text("figure"),
        Column::Number("median and extremes"),
        Column::Number("runs"),
        Column::Text("measured"),
        Column::Text("conditions"),
    ];
    table(&columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let line = |name: &str, value: f64| {
            let line = serde_json::json!({
                "name": name, "unit": "renders/s", "value": value, "low": value, "high": value, "repeats": 3, "conditions": "<one> core",
            });
            (name.to_owned(), serde_json::from_value(line).expect("a result"))
        };
        let sizes = [("25", 9e5), ("100", 8e5), ("500", 4e5), ("2000", 1e5)];
        let of = |language: &'static str| sizes.map(|(size, value)| line(&format!("format.{language}.{size}"), value));
        of("xslt").into_iter().chain(of("jinja")).collect()
    }

    #[test]
    fn the_page_has_our_column_a_plot_and_the_claims() {
        let page = results_page(&results());
        for piece in [
            "WNS-17",
            "400 to 500/s",
            "900k renders/s",
            "2000 x",
            "<polyline",
            "contradictory in the paper",
            "&lt;one&gt; core",
        ] {
            assert!(page.contains(piece), "{piece}");
        }
        assert!(!page.contains("<script") && !page.contains("<one>") && !page.contains("NaN"));
        assert!(page.contains(">Longer results cost more formatting</td><td data-of=\"answer\">holds</td>"));
    }

    #[test]
    fn each_language_has_a_separate_curve() {
        let workload = crate::workloads::find("WNS-17").expect("a workload");
        let results = results();
        let measured: Vec<(&Row, FigureResult)> =
            workload.rows.iter().filter_map(|row| Some((row, row.measured(&results)?))).collect();
        let (unit, shown) = series_of(&measured).expect("curves");
        let runs_text: Vec<String> = shown
            .iter()
            .map(|curve| format!("{}: {:?}", curve.name, curve.points.iter().map(|point| point.0).collect::<Vec<_>>()))
            .collect();
        assert_eq!(unit, "characters");
        assert_eq!(
            runs_text,
            [
                "ours: [25.0, 100.0, 500.0, 2000.0]",
                "published: [25.0, 100.0, 500.0, 2000.0]",
                "by Jinja: [25.0, 100.0, 500.0, 2000.0]"
            ]
        );
        assert!(series_of(&measured[..1]).is_none(), "a single point is not a curve");
    }

    #[test]
    fn b40_figures_of_older_commits_are_marked() {
        let page = results_page(&results());
        assert!(
            page.contains(
                "8 of 8 figures were measured by an older commit, or by one not recorded; no line names a commit."
            ),
            "{page}"
        );
        assert!(page.contains("not recorded</td>"), "{page}");
        let (terminal, captured) = Terminal::captured();
        print(&terminal, &results()).expect("writing to memory succeeds");
        assert!(captured.text().contains("8 of 8 figures were measured by an older commit"), "{}", captured.text());
    }

    #[test]
    fn the_terminal_shows_a_summary() {
        let (terminal, captured) = Terminal::captured();
        print(&terminal, &results()).expect("writing to memory succeeds");
        let text = captured.text();
        for piece in ["WNS-17", "holds: Longer results cost more", "not measured: Three distributors"] {
            assert!(text.contains(piece), "{piece}: {text}");
        }
    }
}
