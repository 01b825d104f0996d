//! Command `report`: prints a report as tables, CSV or JSON.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    client::{Client, present_parameters, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the report, such as `quantum-list`; default is the list of reports
    name: Option<String>,
    /// Id of the quantum, batch or subscription to report on
    id: Option<String>,
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Rule to filter by
    #[arg(long)]
    rule: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// Source to filter by
    #[arg(long)]
    source: Option<String>,
    /// State to filter by
    #[arg(long)]
    status: Option<String>,
    /// Start of the period, such as 2027-01-04T08:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Length of an interval, such as 1m, 15m or 1d
    #[arg(long, value_name = "DURATION")]
    interval: Option<String>,
    /// Position to continue a list from, as printed by the previous call
    #[arg(long, value_name = "POSITION")]
    before: Option<String>,
    /// Most rows
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV; TABLE selects one of several tables
    #[arg(long, num_args = 0..=1, default_missing_value = "", value_name = "TABLE")]
    csv: Option<String>,
}

impl Args {
    /// Requests the report and prints it.
    ///
    /// # Errors
    /// If the report is unknown, or an argument is not supported.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let Some(name) = &self.name else { return self.list(terminal, client).await };
        let limit = self.limit.map(|limit| limit.to_string());
        let filters = [
            ("id", &self.id),
            ("application", &self.application),
            ("class", &self.class),
            ("rule", &self.rule),
            ("channel", &self.channel),
            ("source", &self.source),
            ("status", &self.status),
            ("from", &self.from),
            ("to", &self.to),
            ("interval", &self.interval),
            ("before", &self.before),
            ("limit", &limit),
        ];
        let report = client.get(&format!("/v1/reports/{}", segment(name)), &present_parameters(&filters)).await?;
        match &self.csv {
            _ if self.json => Ok(terminal.json(&report)?),
            Some(table) => print_csv(terminal, &report, table),
            None => print_tables(terminal, &report),
        }
    }

    async fn list(&self, terminal: &Terminal, client: &Client) -> Outcome {
        let found = client.get("/v1/reports", &[]).await?;
        if self.json {
            return Ok(terminal.json(&found["items"])?);
        }
        let row = |report: &Value| {
            let parameters: Vec<&str> = elements(&report["parameters"]).iter().filter_map(Value::as_str).collect();
            vec![shown(&report["name"]), parameters.join(" "), shown(&report["description"])]
        };
        let rows: Vec<Vec<String>> = elements(&found["items"]).iter().map(row).collect();
        Ok(terminal.table(&["report", "parameters", "description"], &rows)?)
    }
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Names of the columns of a table, in order.
fn columns(table: &Value) -> Vec<&str> {
    elements(&table["columns"]).iter().filter_map(Value::as_str).collect()
}

fn print_tables(terminal: &Terminal, report: &Value) -> Outcome {
    let tables = elements(&report["tables"]);
    for table in tables {
        if tables.len() > 1 {
            terminal.line(format_args!("{}:", shown(&table["name"])))?;
        }
        let columns = columns(table);
        let rows = elements(&table["rows"]);
        match rows {
            [] => terminal.line("nothing")?,
            // A single row with many columns is printed vertically.
            [row] if tables.len() > 1 => {
                let pairs: Vec<Vec<String>> =
                    columns.iter().map(|column| vec![(*column).to_owned(), shown(&row[*column])]).collect();
                terminal.table(&["", ""], &pairs)?;
            }
            _ => {
                let rows: Vec<Vec<String>> =
                    rows.iter().map(|row| columns.iter().map(|column| shown(&row[*column])).collect()).collect();
                terminal.table(&columns, &rows)?;
            }
        }
    }
    if let Some(next) = report["next"].as_str() {
        terminal.line(format_args!("more rows: --before {}", printable(next)))?;
    }
    Ok(())
}

fn print_csv(terminal: &Terminal, report: &Value, requested: &str) -> Outcome {
    let tables = elements(&report["tables"]);
    let names: Vec<String> = tables.iter().map(|table| shown(&table["name"])).collect();
    let at = match names.iter().position(|name| name == requested) {
        Some(at) => at,
        None if requested.is_empty() && tables.len() == 1 => 0,
        None => {
            return Err(Failure::usage(format!(
                "the report has several tables; use --csv {}",
                names.join(" or --csv ")
            )));
        }
    };
    let columns = columns(&tables[at]);
    let mut out = columns.join(",");
    for row in elements(&tables[at]["rows"]) {
        out.push('\n');
        for (at, column) in columns.iter().enumerate() {
            let _ = write!(out, "{}{}", if at > 0 { "," } else { "" }, csv_cell(&row[*column]));
        }
    }
    // Standard output contains rows only.
    if let Some(next) = report["next"].as_str() {
        eprintln!("more rows: --before {}", printable(next));
    }
    Ok(terminal.line(out)?)
}

/// Formats a value for tables.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text).into_owned(),
        Value::Number(number) if number.is_f64() => {
            let text = format!("{:.3}", number.as_f64().unwrap_or_default());
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        other => printable(&other.to_string()).into_owned(),
    }
}

/// Formats a value as a CSV cell (RFC 4180) that spreadsheets do not take for a formula.
fn csv_cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::Number(number) => return number.to_string(),
        Value::Bool(flag) => return flag.to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let text = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// Reference of all reports, as Markdown.
#[cfg(test)]
fn reference_page() -> String {
    use tocsin_service::reports::CATALOGUE;
    let mut page = "<!-- Generated by `make docs`; do not edit. -->\n\n# Reports\n\n\
        Run a report with `tocsin report NAME` or `GET /v1/reports/NAME`. Columns in `_ms` are durations in milliseconds, \
        those in `_at`, `_from` and `_to` timestamps in UTC. A missing value is null.\n"
        .to_owned();
    for report in CATALOGUE {
        let asks: Vec<&str> = report.parameters.iter().flat_map(|parameter| parameter.words()).copied().collect();
        let asks: Vec<String> = asks.iter().map(|word| format!("`{word}`")).collect();
        let _ = write!(page, "\n## {}\n\n{} Parameters: {}.\n", report.name, report.description, asks.join(", "));
        for (name, columns) in report.tables {
            let _ = write!(page, "\n| {name} | |\n|---|---|\n");
            for column in *columns {
                let _ = writeln!(page, "| `{}` | {} |", column.name, column.description);
            }
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn the_committed_page_is_up_to_date() {
        crate::cli::compare_reference("reports.md", &reference_page());
    }

    use super::*;
    use crate::commands::fake_server::FakeServer;

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    async fn output_of(args: &[&str], answer: Value) -> String {
        let server = FakeServer::start(vec![(200, answer)]).await;
        let (terminal, captured) = Terminal::captured();
        let args = <TestCli as clap::Parser>::parse_from([&["report"], args].concat()).args;
        let end = args.run(&terminal, &server.client()).await;
        let end = end.map_or_else(|failure| format!("failed: {failure}\n"), |()| String::new());
        format!("{}{end}{}", captured.text(), server.requests().join("\n"))
    }

    fn report() -> Value {
        let row = json!({"quantum": 7, "execution_ms": 1.5, "reason": "=1+1, \"no\"", "last_at": null});
        let columns = ["quantum", "execution_ms", "reason", "last_at"];
        json!({"name": "quantum-list", "tables": [{"name": "quanta", "columns": columns, "rows": [row]}], "next": "7"})
    }

    #[tokio::test]
    async fn a_report_is_a_table_csv_or_json() {
        let table = output_of(&["quantum-list", "--status", "failed"], report()).await;
        for piece in ["execution_ms", "1.5", "--before 7", "GET /v1/reports/quantum-list?status=failed"] {
            assert!(table.contains(piece), "{piece}: {table}");
        }
        let csv = output_of(&["quantum-list", "--csv"], report()).await;
        let expected = "quantum,execution_ms,reason,last_at\n7,1.5,\"'=1+1, \"\"no\"\"\",\n";
        assert!(csv.starts_with(expected), "{csv}");
        assert!(output_of(&["quantum-list", "--json"], report()).await.contains("\"tables\""));
        let wrong = output_of(&["quantum-list", "--csv", "events"], report()).await;
        assert!(wrong.contains("failed: the report has several tables; use --csv quanta"), "{wrong}");
    }

    #[tokio::test]
    async fn without_a_name_the_reports_are_listed() {
        let found = json!({"items": [{"name": "timings", "description": "how long", "parameters": ["from", "to"]}]});
        let listed = output_of(&[], found).await;
        for piece in ["timings", "from to", "how long", "GET /v1/reports"] {
            assert!(listed.contains(piece), "{piece}: {listed}");
        }
    }
}
