//! Command `explain`: why a notification about an event was sent to a subscriber, or was not.

use std::io;

use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    failure::{Failure, Outcome},
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tocsin explain e-12-7 --subscriber ada
  tocsin explain e-12-7 --subscription s-15 --rule near --all
  tocsin explain --application quakes --class quake --fields '{\"magnitude\": 6}' --subscriber ada")]
pub struct Args {
    /// Id of a stored event, such as e-12-7
    event: Option<String>,
    /// Application of an event that is not stored
    #[arg(long, conflicts_with = "event", requires = "class")]
    application: Option<String>,
    /// Class of an event that is not stored
    #[arg(long, conflicts_with = "event", requires = "application")]
    class: Option<String>,
    /// Fields of an event that is not stored, as a JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "event", requires = "class")]
    fields: Option<String>,
    /// Time of acceptance of an event that is not stored; default: now
    #[arg(long, value_name = "TIME", conflicts_with = "event", requires = "class")]
    time: Option<String>,
    /// Subscriber: all its subscriptions of the application
    #[arg(long, conflicts_with = "subscription", required_unless_present = "subscription")]
    subscriber: Option<String>,
    /// Subscription, such as s-15
    #[arg(long)]
    subscription: Option<String>,
    /// Only this rule
    #[arg(long)]
    rule: Option<String>,
    /// Show every gate, not only those that block or decide
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Prints the explanation.
    ///
    /// # Errors
    /// The event, subscription or subscriber is unknown.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let mut body = Map::new();
        let given = [
            ("event", self.event),
            ("application", self.application),
            ("class", self.class),
            ("time", self.time),
            ("subscriber", self.subscriber),
            ("subscription", self.subscription),
            ("rule", self.rule),
        ];
        body.extend(given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?)))));
        if let Some(fields) = self.fields {
            let fields: Value = serde_json::from_str(&fields)
                .map_err(|error| Failure::usage(format!("`--fields` is not JSON: {error}")))?;
            body.insert("fields".to_owned(), fields);
        }
        let found = client.post("/v1/explain", &Value::Object(body)).await?;
        match self.json {
            true => terminal.json(&found)?,
            false => show(terminal, &found, self.all)?,
        }
        Ok(())
    }
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default()).into_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Prints an explanation: each rule and subscription with its gates.
fn show(terminal: &Terminal, found: &Value, all: bool) -> io::Result<()> {
    let event = &found["event"];
    let name = event["id"].as_str().map_or_else(|| "event".to_owned(), |id| printable(id).into_owned());
    let class = text(&found["class"]);
    terminal.line(terminal.paint(Colour::Bold, format_args!("{name} {class} ({})", text(&event["state"]))))?;
    if found["basis"] == "now" && event["state"] != "given" {
        terminal.line("subscriptions are shown as of now: their history is no longer kept")?;
    }
    if list(&found["paths"]).is_empty() {
        for found in list(&found["gates"]) {
            gate(terminal, found, all)?;
        }
    }
    for path in list(&found["paths"]) {
        let decision = text(&path["decision"]);
        let colour = match decision.as_str() {
            "sent" | "would_send" => Colour::Green,
            "not_sent" => Colour::Red,
            _ => Colour::Yellow,
        };
        let notification = path["notification"].as_str().map(|id| format!("  {}", printable(id)));
        let line = format!(
            "{} {}: {}{}",
            text(&path["rule"]),
            text(&path["subscription"]),
            terminal.paint(colour, decision.replace('_', " ")),
            notification.unwrap_or_default()
        );
        terminal.line(line)?;
        for found in list(&path["gates"]) {
            gate(terminal, found, all)?;
        }
    }
    if found["truncated"] == true {
        terminal.line(terminal.paint(Colour::Dim, "truncated; name a subscription and a rule"))?;
    }
    Ok(())
}

/// Prints a gate with its conditions.
fn gate(terminal: &Terminal, gate: &Value, all: bool) -> io::Result<()> {
    let verdict = text(&gate["verdict"]);
    if !all && verdict == "passed" {
        return Ok(());
    }
    let (mark, colour) = match (verdict.as_str(), gate["deciding"] == true) {
        ("passed", _) => ("●", Colour::Green),
        ("blocked", true) => ("✗", Colour::Red),
        ("blocked", false) => ("✗", Colour::Yellow),
        _ => ("○", Colour::Dim),
    };
    let until = gate["until"].as_str().map(|until| format!(", until {}", printable(until)));
    let decides = if gate["deciding"] == true { "  <- decides" } else { "" };
    let line = format!(
        "  {} {:<13} {}{}{decides}",
        terminal.paint(colour, mark),
        text(&gate["gate"]),
        text(&gate["text"]),
        until.unwrap_or_default()
    );
    terminal.line(line)?;
    list(&gate["conditions"]).iter().try_for_each(|found| condition(terminal, found, 6))
}

/// Prints a condition and its operands.
fn condition(terminal: &Terminal, found: &Value, indent: usize) -> io::Result<()> {
    let values =
        list(&found["values"]).iter().map(|read| format!("{} = {}", text(&read["field"]), text(&read["value"])));
    let values = values.collect::<Vec<_>>().join(", ");
    let why =
        [values, text(&found["trouble"])].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    let is_leaf = list(&found["parts"]).is_empty();
    let why = if is_leaf && !why.is_empty() { format!("  ({why})") } else { String::new() };
    let decides = if found["decides"] == true { "  <-" } else { "" };
    let line = format!("{:indent$}{:<7} {}{why}{decides}", "", text(&found["verdict"]), text(&found["text"]));
    terminal.line(line)?;
    list(&found["parts"]).iter().try_for_each(|part| condition(terminal, part, indent + 2))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::commands::fake_server;

    #[tokio::test]
    async fn the_deciding_gate_and_condition_are_marked() {
        let condition = json!({"text": "event.m > sub.m", "verdict": "fails", "decides": true,
            "values": [{"field": "event.m", "value": "4"}, {"field": "sub.m", "value": "5"}]});
        let gate = |gate: &str, verdict: &str| {
            json!({"gate": gate, "verdict": verdict, "deciding": verdict == "blocked",
            "text": format!("text of {gate}"), "values": []})
        };
        let mut blocked = gate("condition", "blocked");
        blocked["conditions"] = json!([condition]);
        let answer = json!({"application": "quakes", "class": "quake", "event": {"id": "e-12-7", "state": "matched"},
            "basis": "snapshot", "gates": [], "truncated": false,
            "paths": [{"rule": "near", "subscription": "s-15", "decision": "not_sent", "deciding": "condition",
                "gates": [gate("rule", "passed"), blocked, gate("dispatch", "unknown")]}]});
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        let args = ["e-12-7", "--subscriber", "ada"];
        let expected = expect![[r#"
            e-12-7 quake (matched)
            near s-15: not sent
              ✗ condition     text of condition  <- decides
                  fails   event.m > sub.m  (event.m = 4, sub.m = 5)  <-
              ○ dispatch      text of dispatch
            POST /v1/explain [application/json] {"event":"e-12-7","subscriber":"ada"}"#]];
        fake_server::check("explain", &args, vec![(200, answer)], run, expected).await;
    }
}
