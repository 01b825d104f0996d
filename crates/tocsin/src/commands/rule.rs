//! Command `rule`: explains the index use of rules, stops and resumes them, and tests one on events.

mod backtest; // two versions of a rule over stored events

use std::{io::Read, path::PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};
use tocsin_matching::rule::BranchExplanation;
use tocsin_model::problem::Problem;

use super::lists::{ItemList, author};
use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, counted, printable, thousands},
};

/// Arguments of `tocsin rule`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show how each rule of an application uses the index
    Explain {
        /// Application
        application: String,
        /// Rule to explain; default is all
        rule: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the stopped rules
    Stopped {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a rule; `tocsin firings list` shows what it misses
    Stop {
        /// Application
        application: String,
        /// Rule
        rule: String,
        /// Reason, shown to other operators
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume a stopped rule; missed firings stay listed
    Resume {
        /// Application
        application: String,
        /// Rule
        rule: String,
    },
    /// List subscriptions that the running version cannot match
    Unusable {
        /// Application
        application: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List subscriptions whose filter no index covers
    Unindexed {
        /// Application
        application: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Try a rule on events: all matches, or one subscription
    #[command(after_help = r#"Examples:
  tocsin rule test quakes nearby --event '{"magnitude": 6.1, "place": "Kobe"}'
  tocsin rule test quakes --on quake --of nearby --when 'event.magnitude >= 5.0' --last 100"#)]
    Test(Box<Test>),
    /// Compare a changed rule with the running one over events
    #[command(after_help = r#"Examples:
  tocsin rule backtest quakes nearby --when 'event.magnitude >= 5.5'
  tocsin rule backtest quakes nearby --version 4 --baseline 3 --from 2026-11-01T00:00:00Z"#)]
    Backtest(Box<backtest::Backtest>),
}

#[derive(Debug, clap::Args)]
struct Test {
    /// Application
    application: String,
    /// Rule of the running version
    #[arg(required_unless_present = "on", conflicts_with_all = ["on", "of", "when"])]
    rule: Option<String>,
    /// Event class of a rule that is not applied
    #[arg(long, value_name = "CLASS", requires = "of")]
    on: Option<String>,
    /// Subscription class of a rule that is not applied
    #[arg(long, value_name = "CLASS", requires = "on")]
    of: Option<String>,
    /// Predicate of a rule that is not applied, in CEL
    #[arg(long, value_name = "EXPRESSION", requires = "on")]
    when: Option<String>,
    /// Event, as a JSON object; repeatable
    #[arg(long, value_name = "JSON")]
    event: Vec<String>,
    /// File of events, one JSON object per line; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "event")]
    events: Option<PathBuf>,
    /// Number of the latest stored events of the class to test with
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["event", "events"])]
    last: Option<usize>,
    /// Subscription to evaluate, condition by condition, such as s-15
    #[arg(long, value_name = "ID")]
    subscription: Option<String>,
    /// Values of a subscription that is not stored, as a JSON object
    #[arg(long, value_name = "JSON", conflicts_with = "subscription")]
    values: Option<String>,
    /// Filter of a subscription that is not stored, prefixed by its dialect: cel:event.price > 10
    #[arg(long, value_name = "FILTER", conflicts_with = "subscription")]
    filter: Option<String>,
    /// Maximum number of stored subscriptions to test [default: 100000]
    #[arg(long, value_name = "COUNT")]
    subscriptions: Option<usize>,
    /// Maximum number of matching subscriptions to print per event [default: 10]
    #[arg(long, value_name = "COUNT")]
    show: Option<usize>,
    /// Measure the cost of the rule, compared with a rule that matches nothing
    #[arg(long, conflicts_with_all = ["subscription", "values", "filter"])]
    measure: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If an argument is not JSON, or the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::Explain { application, rule, json } => {
                let path = format!("/v1/applications/{}/rules", segment(&application));
                let mut rules = client.list(&path, &[], usize::MAX).await?;
                if let Some(rule) = &rule {
                    rules.retain(|found| found["rule"] == **rule);
                    if rules.is_empty() {
                        return Err(Failure::failed(format!("`{rule}` is not a rule of `{application}`")));
                    }
                }
                if json {
                    return Ok(terminal.json(&rules)?);
                }
                if rules.is_empty() {
                    return Ok(terminal.line(format_args!("`{application}` has no rules"))?);
                }
                for rule in &rules {
                    explain(terminal, rule)?;
                }
                Ok(())
            }
            Action::Stopped { json } => {
                let items = client.list("/v1/stopped-rules", &[], usize::MAX).await?;
                let heads = ["application", "rule", "by", "since", "reason"];
                ItemList { items, limit: usize::MAX, json }
                    .show(terminal, "no rule is stopped", &heads, |item| heads.map(|name| author(item, name)).into())
            }
            Action::Stop { application, rule, reason } => {
                let path = format!("/v1/applications/{}/rules/{}/stop", segment(&application), segment(&rule));
                let request = client.request(reqwest::Method::POST, &path).json(&json!({"reason": reason}));
                client.send(request).await?;
                Ok(terminal.line(format_args!("`{rule}` is stopped; `tocsin rule resume` resumes it"))?)
            }
            Action::Resume { application, rule } => {
                let path = format!("/v1/applications/{}/rules/{}/resume", segment(&application), segment(&rule));
                let answer = client.post(&path, &json!({})).await?;
                let said = if answer["was_stopped"] == true {
                    "is resumed; `tocsin firings refire` runs the missed firings"
                } else {
                    "was not stopped"
                };
                Ok(terminal.line(format_args!("`{rule}` {said}"))?)
            }
            Action::Unusable { application, limit, json } => {
                let path = format!("/v1/applications/{}/unusable-subscriptions", segment(&application));
                let items = client.list(&path, &[], limit).await?;
                let none = "all subscriptions can be matched";
                ItemList { items, limit, json }.show(terminal, none, &["subscription", "class", "reason"], |item| {
                    let text = |name: &str| printable(item[name].as_str().unwrap_or_default()).into_owned();
                    let reason = serde_json::from_value::<Problem>(item["problem"].clone());
                    let reason =
                        reason.map_or_else(|_| String::new(), |problem| printable(&problem.to_string()).into_owned());
                    vec![text("id"), text("class"), reason]
                })
            }
            Action::Unindexed { application, limit, json } => {
                let path = format!("/v1/applications/{}/unindexed-subscriptions", segment(&application));
                let items = client.list(&path, &[], limit).await?;
                let none = "all filters are indexed";
                let columns = ["subscription", "class", "reason", "filter"];
                ItemList { items, limit, json }.show(terminal, none, &columns, |item| {
                    let text = |name: &str| printable(item[name].as_str().unwrap_or_default()).into_owned();
                    vec![text("id"), text("class"), text("reason"), format!("{}:{}", text("dialect"), text("text"))]
                })
            }
            Action::Test(test) => test.run(terminal, client).await,
            Action::Backtest(backtest) => backtest.run(terminal, client).await,
        }
    }
}

impl Test {
    async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        let path = format!("/v1/applications/{}/rules/test", segment(&self.application));
        let answer = client.post(&path, &self.body()?).await?;
        if self.json {
            return Ok(terminal.json(&answer)?);
        }
        explain(terminal, &answer["rule"])?;
        if let Some(tried) = answer["subscriptions"]["tried"].as_u64() {
            let all = if answer["subscriptions"]["all"] == true { "all" } else { "the first" };
            terminal.line(format_args!("tested on {all} {}", counted(tried, "subscription", "subscriptions")))?;
            match answer["subscriptions"]["unusable"].as_u64() {
                None | Some(0) => {}
                Some(count) => terminal.line(format_args!(
                    "{} more cannot be matched by this version: invalid filter or values",
                    thousands(count)
                ))?,
            }
        }
        let events = answer["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        if events.is_empty() {
            return Ok(terminal.line("there are no stored events of this class")?);
        }
        for (at, event) in events.iter().enumerate() {
            tested(terminal, at, event)?;
        }
        if let Some(cost) = answer["cost"].as_object() {
            let micros = |name: &str| format!("{:.3}", cost[name].as_f64().unwrap_or_default());
            terminal.line(format_args!(
                "cost per event {} us, baseline {} us, difference {} us (medians of {} rounds)",
                micros("rule_us"),
                micros("baseline_us"),
                micros("own_us"),
                cost["rounds"]
            ))?;
        }
        Ok(())
    }

    fn body(&self) -> Outcome<Value> {
        let mut body = Map::new();
        let rule = match (&self.rule, &self.on) {
            (Some(name), _) => json!(name),
            (None, on) => {
                let mut rule = json!({"on": on, "subscription": self.of});
                if let Some(when) = &self.when {
                    rule["when"] = json!(when);
                }
                rule
            }
        };
        body.insert("rule".to_owned(), rule);
        match self.last {
            Some(last) => body.insert("last".to_owned(), last.into()),
            None => body.insert("events".to_owned(), self.read_events()?.into()),
        };
        if let Some(id) = &self.subscription {
            body.insert("subscription".to_owned(), json!(id));
        } else if self.values.is_some() || self.filter.is_some() {
            let mut subject = Map::new();
            if let Some(values) = &self.values {
                subject.insert("values".to_owned(), object("--values", values)?);
            }
            if let Some(filter) = &self.filter {
                subject.insert("filter".to_owned(), json!(filter));
            }
            body.insert("subscription".to_owned(), subject.into());
        }
        if self.measure {
            body.insert("measure".to_owned(), true.into());
        }
        for (name, number) in [("subscriptions", self.subscriptions), ("show", self.show)] {
            if let Some(number) = number {
                body.insert(name.to_owned(), number.into());
            }
        }
        Ok(Value::Object(body))
    }

    fn read_events(&self) -> Outcome<Vec<Value>> {
        let Some(file) = &self.events else {
            if self.event.is_empty() {
                return Err(Failure::usage("events are required: --event, --events or --last"));
            }
            return self.event.iter().map(|text| object("--event", text)).collect();
        };
        let mut text = String::new();
        let read = match file.as_os_str() == "-" {
            true => std::io::stdin().read_to_string(&mut text).map(|_| ()),
            false => std::fs::read_to_string(file).map(|read| text = read),
        };
        read.map_err(|error| Failure::failed(format!("cannot read {}", file.display())).because(&error))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        lines.map(|(at, line)| object(&format!("line {} of {}", at + 1, file.display()), line)).collect()
    }
}

fn object(what: &str, text: &str) -> Outcome<Value> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(Failure::usage(format!("{what} is not a JSON object"))),
        Err(error) => Err(Failure::usage(format!("{what} is not JSON: {error}"))),
    }
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(|text| printable(text).into_owned()).collect()
}

/// Filter statistics, and the cost per event.
fn explain_filters(terminal: &Terminal, figure: &dyn Fn(&str) -> u64) -> Outcome {
    let (distinct, events) = (figure("distinct"), figure("events"));
    let mut said = counted(distinct, "distinct filter", "distinct filters");
    if figure("unindexed") > 0 {
        said.push_str(&format!(", {} of them tested for every event", thousands(figure("unindexed"))));
    }
    if events > 0 && distinct > 0 {
        // One decimal place.
        let each = |name: &str| {
            let tenths = (u128::from(figure(name)) * 10).div_ceil(u128::from(events)) as u64;
            format!("{}.{}", thousands(tenths / 10), tenths % 10)
        };
        said.push_str(&format!(
            "; per event {} candidates, {} evaluated, {} matching (of {})",
            each("candidates"),
            each("evaluated"),
            each("matched"),
            counted(events, "event", "events")
        ));
    }
    terminal.line(format_args!("  {said}"))?;
    Ok(())
}

/// Index use of a rule, one line per branch, in the compiler's words.
fn explain(terminal: &Terminal, rule: &Value) -> Outcome {
    terminal.line(format_args!("{}:", printable(rule["rule"].as_str().unwrap_or_default())))?;
    let branches = rule["branches"].as_array().map(Vec::as_slice).unwrap_or_default();
    for branch in branches {
        let unknown = "the server's explanation is not supported by this version of the command";
        let branch: BranchExplanation =
            serde_json::from_value(branch.clone()).map_err(|error| Failure::failed(unknown).because(&error))?;
        let count = match branch.candidates {
            None => String::new(),
            Some(1) => "; 1 candidate per event".to_owned(),
            Some(count) => format!("; about {} candidates per event", thousands(count)),
        };
        terminal.line(format_args!("  {}{count}", printable(&branch.to_string())))?;
    }
    if let Some(filters) = rule["filters"].as_object() {
        explain_filters(terminal, &|name| filters.get(name).and_then(Value::as_u64).unwrap_or_default())?;
    }
    let query = texts(&rule["query"]);
    for step in &query {
        terminal.line(format_args!("  query: {step}"))?;
    }
    if let (Some(audience), false) = (rule["audience"].as_str(), query.is_empty()) {
        terminal.line(format_args!("  skips subscribers outside the segment `{}`", printable(audience)))?;
    }
    if branches.is_empty() && query.is_empty() {
        terminal.line("  never matches")?;
    }
    for memory in texts(&rule["remembers"]) {
        terminal.line(format_args!("  remembers: {memory}"))?;
    }
    for warning in texts(&rule["warnings"]) {
        terminal.line(format_args!("  warning: {warning}"))?;
    }
    Ok(())
}

/// Result of a test for one event.
fn tested(terminal: &Terminal, at: usize, event: &Value) -> Outcome {
    let name = event["event"].as_str().map_or_else(|| format!("event {}", at + 1), str::to_owned);
    if let Some(trial) = event["trial"].as_object() {
        let verdict = if trial["matches"] == true { "matches" } else { "does not match" };
        terminal.line(format_args!("{name}: {verdict}"))?;
        let filter = trial.get("filter").filter(|filter| !filter.is_null());
        let own = filter.map(|filter| &filter["conditions"]);
        for (list, of) in [(Some(&trial["conditions"]), ""), (own, "filter: ")] {
            for condition in list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default() {
                terminal.line(condition_line(condition, of))?;
            }
        }
        if let Some(filter) = filter {
            let verdict = filter["verdict"].as_str().unwrap_or_default();
            terminal.line(format_args!("  {verdict:<5}  the whole filter"))?;
        }
    } else {
        let ids = texts(&event["subscriptions"]);
        let matches = event["matches"].as_u64().unwrap_or_default();
        let more = if (ids.len() as u64) < matches && !ids.is_empty() { ", ..." } else { "" };
        let named = if ids.is_empty() { String::new() } else { format!(": {}{more}", ids.join(", ")) };
        let noun = if matches == 1 { "match" } else { "matches" };
        terminal.line(format_args!("{name}: {} {noun}{named}", thousands(matches)))?;
    }
    for failure in texts(&event["failures"]) {
        terminal.line(format_args!("  failed: {failure}"))?;
    }
    Ok(())
}

fn condition_line(condition: &Value, of: &str) -> String {
    let text = |name: &str| printable(condition[name].as_str().unwrap_or_default()).into_owned();
    let values = condition["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    let values = values.iter().map(|read| {
        let text = |name: &str| printable(read[name].as_str().unwrap_or_default()).into_owned();
        format!("{} = {}", text("field"), text("value"))
    });
    let values = values.collect::<Vec<String>>().join(", ");
    let error = text("trouble");
    let why = [values, error].into_iter().filter(|part| !part.is_empty()).collect::<Vec<String>>().join("; ");
    let why = if why.is_empty() { String::new() } else { format!("  ({why})") };
    format!("  {:<5}  {of}{}{why}", text("verdict"), text("text"))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("rule", args, answers, run, expected).await;
    }

    fn rule() -> Value {
        json!({"rule": "near", "branches": [{"event_guards": [], "subscription_guards": [], "keys": ["event.s == sub.s"],
            "range": [], "filters": true, "residual": []}], "warnings": ["w"]})
    }

    #[tokio::test]
    async fn rules_are_explained() {
        check(
            &["explain", "quakes", "near"],
            vec![(200, json!({"items": [rule()]}))],
            expect![[r#"
            near:
              looks up event.s == sub.s; takes those whose own filter matches, or that have none
              warning: w
            GET /v1/applications/quakes/rules?limit=1000"#]],
        )
        .await;
        let mut running = rule();
        running["branches"][0]["candidates"] = json!(1200);
        running["filters"] = json!({"distinct": 5000, "unindexed": 2, "events": 10, "candidates": 31, "evaluated": 4,
            "matched": 12_345});
        check(
            &["explain", "quakes", "near"],
            vec![(200, json!({"items": [running]}))],
            expect![[r#"
            near:
              looks up event.s == sub.s; takes those whose own filter matches, or that have none; about 1,200 candidates per event
              5,000 distinct filters, 2 of them tested for every event; per event 3.1 candidates, 0.4 evaluated, 1,234.5 matching (of 10 events)
              warning: w
            GET /v1/applications/quakes/rules?limit=1000"#]],
        )
        .await;
        check(
            &["explain", "quakes", "far"],
            vec![(200, json!({"items": [rule()]}))],
            expect![[r#"
            failed: `far` is not a rule of `quakes`
            GET /v1/applications/quakes/rules?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_rule_in_sql_is_explained_by_its_query_plan() {
        let rule = json!({"rule": "turnover", "audience": "vip", "branches": [], "warnings": [],
            "query": ["SCAN e", "  SEARCH w USING INDEX symbol"], "remembers": ["notifies a subscription at most once in 1h"]});
        check(
            &["explain", "shop"],
            vec![(200, json!({"items": [rule]}))],
            expect![[r#"
            turnover:
              query: SCAN e
              query:   SEARCH w USING INDEX symbol
              skips subscribers outside the segment `vip`
              remembers: notifies a subscription at most once in 1h
            GET /v1/applications/shop/rules?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn the_cost_of_a_rule_is_printed_with_the_baseline() {
        let answer = json!({"rule": {"rule": "near", "branches": [], "query": ["SCAN e"], "warnings": [], "remembers": []},
            "subscriptions": {"tried": 2, "all": true}, "events": [{"matches": 0, "subscriptions": []}],
            "cost": {"rounds": 57, "rule_us": 3.25, "baseline_us": 1.0, "own_us": 2.25}});
        check(
            &["test", "quakes", "near", "--last", "1", "--measure"],
            vec![(200, answer)],
            expect![[r#"
            near:
              query: SCAN e
            tested on all 2 subscriptions
            event 1: 0 matches
            cost per event 3.250 us, baseline 1.000 us, difference 2.250 us (medians of 57 rounds)
            POST /v1/applications/quakes/rules/test [application/json] {"rule":"near","last":1,"measure":true}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn unmatchable_subscriptions_are_listed_with_their_reason() {
        let problem = json!({"path": "filter", "line": 1, "column": 1, "message": "the event class has no field `b`"});
        let item = json!({"id": "s-3", "class": "interest", "problem": problem});
        check(
            &["unusable", "quakes"],
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
            subscription  class     reason
            s-3           interest  1:1: filter: the event class has no field `b`
            GET /v1/applications/quakes/unusable-subscriptions?limit=1000"#]],
        )
        .await;
        check(
            &["unusable", "quakes"],
            vec![(200, json!({"items": []}))],
            expect![[r#"
            all subscriptions can be matched
            GET /v1/applications/quakes/unusable-subscriptions?limit=1000"#]],
        )
        .await;
        let item =
            json!({"id": "s-4", "class": "interest", "dialect": "cel", "text": "event.n * 2 > 3", "reason": "why"});
        check(
            &["unindexed", "quakes"],
            vec![(200, json!({"items": [item]}))],
            expect![[r#"
            subscription  class     reason  filter
            s-4           interest  why     cel:event.n * 2 > 3
            GET /v1/applications/quakes/unindexed-subscriptions?limit=1000"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_test_lists_the_matching_subscriptions() {
        let answer = json!({"rule": rule(), "subscriptions": {"tried": 12000, "all": true, "unusable": 1},
            "events": [{"event": "e-1-2", "matches": 3, "subscriptions": ["s-1", "s-2"]},
                {"event": null, "matches": 0, "subscriptions": [], "failures": ["the rule takes too long"]}]});
        check(
            &["test", "quakes", "near", "--last", "2", "--show", "2"],
            vec![(200, answer)],
            expect![[r#"
                near:
                  looks up event.s == sub.s; takes those whose own filter matches, or that have none
                  warning: w
                tested on all 12,000 subscriptions
                1 more cannot be matched by this version: invalid filter or values
                e-1-2: 3 matches: s-1, s-2, ...
                event 2: 0 matches
                  failed: the rule takes too long
                POST /v1/applications/quakes/rules/test [application/json] {"rule":"near","last":2,"show":2}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_test_of_one_subscription_explains_each_condition() {
        let condition = |text: &str, verdict: &str| json!({"text": text, "verdict": verdict, "values": [{"field": "event.s", "value": "3"}]});
        let trial = json!({"matches": false, "conditions": [condition("event.s == sub.s", "holds")],
            "filter": {"verdict": "fails", "conditions": [condition("s > 4", "fails")]}});
        let answer = json!({"rule": rule(), "subscriptions": null,
            "events": [{"event": null, "matches": 0, "subscriptions": [], "trial": trial}]});
        let args = [
            "test",
            "quakes",
            "--on",
            "quake",
            "--of",
            "near",
            "--when",
            "event.s == sub.s",
            "--event",
            r#"{"s":3}"#,
            "--filter",
            "cel:event.s > 4",
        ];
        check(&args, vec![(200, answer)], expect![[r#"
            near:
              looks up event.s == sub.s; takes those whose own filter matches, or that have none
              warning: w
            event 1: does not match
              holds  event.s == sub.s  (event.s = 3)
              fails  filter: s > 4  (event.s = 3)
              fails  the whole filter
            POST /v1/applications/quakes/rules/test [application/json] {"rule":{"on":"quake","subscription":"near","when":"event.s == sub.s"},"events":[{"s":3}],"subscription":{"filter":"cel:event.s > 4"}}"#]])
        .await;
        check(
            &["test", "quakes", "near"],
            vec![],
            expect![[r#"
            failed: events are required: --event, --events or --last
        "#]],
        )
        .await;
        check(
            &["test", "quakes", "near", "--event", "[1]"],
            vec![],
            expect![[r#"
            failed: --event is not a JSON object
        "#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_rule_that_the_server_does_not_stop_is_not_shown_as_stopped() {
        #[derive(clap::Parser)]
        struct TestCli {
            #[command(flatten)]
            args: Args,
        }
        let refusal = json!({"type": "/problems/unauthenticated", "title": "A good key is needed", "status": 401});
        let server = crate::commands::fake_server::FakeServer::start(vec![(401, refusal), (200, json!({}))]).await;
        let run = async || {
            let (terminal, captured) = Terminal::captured();
            let args = <TestCli as clap::Parser>::parse_from(["rule", "stop", "quakes", "near"]).args;
            (args.run(&terminal, &server.client()).await, captured.text())
        };
        let (outcome, text) = run().await;
        assert!(outcome.is_err() && text.is_empty(), "{text}");
        let (outcome, text) = run().await;
        assert!(outcome.is_ok() && text.contains("is stopped"), "{text}");
    }
}
