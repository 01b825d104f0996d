//! Command `series`: prints time series of activity and queues.

use serde_json::Value;

use crate::{
    client::{Client, present_parameters},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin series`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of series, such as events,end_to_end_p95; default is the list of series
    names: Option<String>,
    /// Application to filter by
    #[arg(long)]
    application: Option<String>,
    /// Event class or notification class to filter by
    #[arg(long)]
    class: Option<String>,
    /// Rule to filter by
    #[arg(long)]
    rule: Option<String>,
    /// Channel to filter by
    #[arg(long)]
    channel: Option<String>,
    /// Start of the period, such as 2027-01-04T08:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// End of the period, exclusive
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Length of an interval, such as 10s, 1m or 1d
    #[arg(long, value_name = "DURATION")]
    step: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the series, a row for each interval.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        if self.names.is_none() {
            return self.list(terminal, client).await;
        }
        let named = [
            ("names", &self.names),
            ("application", &self.application),
            ("class", &self.class),
            ("rule", &self.rule),
            ("channel", &self.channel),
            ("from", &self.from),
            ("to", &self.to),
            ("step", &self.step),
        ];
        let found = client.get("/v1/series", &present_parameters(&named)).await?;
        if self.json {
            return Ok(terminal.json(&found)?);
        }
        let series = elements(&found["series"]);
        let title = |series: &Value| {
            let text = |name: &str| printable(series[name].as_str().unwrap_or_default()).into_owned();
            match text("unit").as_str() {
                "count" => text("name"),
                unit => format!("{} ({unit})", text("name")),
            }
        };
        let titles: Vec<String> = std::iter::once("time".to_owned()).chain(series.iter().map(title)).collect();
        let row = |(at, time): (usize, &Value)| {
            let time = time.as_i64().unwrap_or_default();
            let time = tocsin_model::time::Timestamp(time.saturating_mul(1_000_000)).to_string();
            let values = series.iter().map(|series| match &series["values"][at] {
                Value::Null => String::new(),
                value => value.as_f64().map_or_else(String::new, shown),
            });
            std::iter::once(time).chain(values).collect()
        };
        let rows: Vec<Vec<String>> = elements(&found["times"]).iter().enumerate().map(row).collect();
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        Ok(terminal.table(&titles, &rows)?)
    }

    async fn list(&self, terminal: &Terminal, client: &Client) -> Outcome {
        let found = client.get("/v1/series/names", &[]).await?;
        if self.json {
            return Ok(terminal.json(&found["items"])?);
        }
        let row = |series: &Value| {
            let text = |name: &str| printable(series[name].as_str().unwrap_or_default()).into_owned();
            vec![text("name"), text("kind"), text("unit"), text("description")]
        };
        let rows: Vec<Vec<String>> = elements(&found["items"]).iter().map(row).collect();
        Ok(terminal.table(&["series", "kind", "unit", "description"], &rows)?)
    }
}

fn elements(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A number without needless digits.
fn shown(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn series_are_columns_and_intervals_rows() {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let answer = json!({"step": 60, "times": [1798790400, 1798790460], "series": [
            {"name": "events", "unit": "count", "kind": "sum", "values": [12.0, 0.0]},
            {"name": "answer_p95", "unit": "ms", "kind": "duration", "values": [3.456, null]},
        ]});
        let expected = expect![[r#"
            time                  events  answer_p95 (ms)
            2027-01-01T08:00:00Z  12      3.46
            2027-01-01T08:01:00Z  0
            GET /v1/series?names=events%2Canswer_p95&step=1m"#]];
        let args = ["events,answer_p95", "--step", "1m"];
        fake_server::check("series", &args, vec![(200, answer)], run, expected).await;
        let names = json!({"items": [{"name": "events", "kind": "sum", "unit": "count", "description": "Events."}]});
        let expected = expect![[r#"
            series  kind  unit   description
            events  sum   count  Events.
            GET /v1/series/names"#]];
        fake_server::check("series", &[], vec![(200, names)], run, expected).await;
    }
}
