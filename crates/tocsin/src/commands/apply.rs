//! Command `apply`: shows the changes of a definition and applies it.

use std::path::PathBuf;

use reqwest::{Method, StatusCode};
use serde_json::Value;
use tocsin_model::definition;

use crate::{
    client::{Client, ErrorResponse, problem, segment, with_query},
    failure::{Exit, Failure, Outcome},
    platform,
    problems::compiler_format,
    terminal::{Colour, Terminal, printable},
};

/// Arguments of `tocsin apply`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tocsin apply application.yaml             # shows the changes and asks
  tocsin apply application.yaml --yes       # for scripts
  tocsin apply application.yaml --dry-run   # shows the changes only")]
pub struct Args {
    /// Definition, a YAML file; relative template paths start at its folder
    file: PathBuf,
    /// Show the changes without applying them; never asks
    #[arg(long)]
    dry_run: bool,
    /// Apply without asking; required without a terminal. Dropping data also needs --allow-drop
    #[arg(long, short)]
    yes: bool,
    /// Path whose data may be dropped, such as subscriptions.nearby; repeatable, or comma-separated
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    allow_drop: Vec<String>,
    /// Version that must be running, otherwise the command fails; 0 means none yet
    #[arg(long, value_name = "VERSION")]
    expect_version: Option<u32>,
}

impl Args {
    /// Shows the differences, asks for confirmation, and applies the definition.
    ///
    /// # Errors
    /// If the definition is invalid, would drop data without permission, or the changes are not confirmed.
    pub async fn run(mut self, terminal: &Terminal, client: &Client) -> Outcome {
        let text = platform::read_definition(&self.file)?.map_err(|problems| {
            let mut failure = Failure::failed("fix these problems");
            failure.details = problems.iter().map(|problem| compiler_format(&self.file, problem)).collect();
            failure
        })?;
        let Some(name) = application_name(&text) else {
            super::check::refuse_exchange(&self.file, &text, "apply")?;
            return Err(Failure::failed(format!(
                "the application name is missing; add `application: <name>` at the top of {}",
                self.file.display()
            )));
        };
        let put = self.put(client, &name, &text, true, self.expect_version).await?;
        let changes = put.map_err(|response| self.failure(response))?;
        show_differences(terminal, &name, &text, &changes)?;
        let refused = self.drops_not_allowed(&changes);
        let nothing_to_do = changes["differences"].as_array().is_some_and(Vec::is_empty)
            && changes["version"].as_u64() != Some(0)
            && changes["running"] != false;
        if nothing_to_do || self.dry_run && refused.is_empty() {
            return Ok(());
        }
        if refused.is_empty() {
            confirm(terminal, self.yes, "apply this?")?;
        } else {
            let question = format!("apply this and drop the data of {}?", refused.join(", "));
            if self.dry_run || self.yes || !terminal.confirm(&question)? {
                let mut flags: Vec<String> = refused.iter().map(|path| format!("--allow-drop {path}")).collect();
                if !self.yes && !self.dry_run && !terminal.can_ask() {
                    flags.push("--yes".to_owned());
                }
                return Err(Failure {
                    exit: Exit::Failed,
                    message: format!("nothing was changed; to drop the data add {}", flags.join(" ")),
                    details: vec![],
                    document: None,
                });
            }
            self.allow_drop.extend(refused);
        }
        // Optimistic concurrency: the changes shown are those of this version.
        let shown = changes["version"].as_u64().and_then(|version| u32::try_from(version).ok());
        let put = self.put(client, &name, &text, false, shown.or(self.expect_version)).await?;
        let done = put.map_err(|response| match (response.status, self.expect_version) {
            (StatusCode::PRECONDITION_FAILED, None) => changed_since_shown(&name),
            _ => self.failure(response),
        })?;
        let version = done["version"].as_u64().unwrap_or_default();
        terminal.line(terminal.paint(Colour::Green, format_args!("{name} runs as version {version}")))?;
        Ok(())
    }

    /// Paths whose data would be dropped without permission.
    fn drops_not_allowed(&self, changes: &Value) -> Vec<String> {
        let differences = changes["differences"].as_array().map(Vec::as_slice).unwrap_or_default();
        let drops = differences.iter().filter(|difference| difference["drops"] == true);
        let paths = drops.filter_map(|difference| difference["allow"].as_str().or(difference["path"].as_str()));
        paths
            .filter(|path| !self.allow_drop.iter().any(|allowed| allowed == path))
            .map(|path| printable(path).into_owned())
            .collect()
    }

    async fn put(
        &self,
        client: &Client,
        name: &str,
        text: &str,
        dry_run: bool,
        expected: Option<u32>,
    ) -> Outcome<Result<Value, ErrorResponse>> {
        let drops = self.allow_drop.join(",");
        let mut query = Vec::new();
        if dry_run {
            query.push(("dry_run", "true"));
        }
        if !drops.is_empty() {
            query.push(("allow_drop", drops.as_str()));
        }
        let path = with_query(&format!("/v1/applications/{}", segment(name)), &query);
        let mut request =
            client.request(Method::PUT, &path).header("content-type", "application/yaml").body(text.to_owned());
        match expected {
            Some(0) => request = request.header("if-none-match", "*"),
            Some(version) => request = request.header("if-match", format!("\"{version}\"")),
            None => {}
        }
        let answer = client.exchange(request).await?;
        if answer.status().is_success() { Ok(Ok(client.json(answer).await?)) } else { Ok(Err(problem(answer).await)) }
    }

    /// Converts the server's problems to positions in the file.
    fn failure(&self, response: ErrorResponse) -> Failure {
        let mut failure = response.failure();
        if response.status == StatusCode::UNPROCESSABLE_ENTITY
            && let Some(problems) = response.body["problems"].as_array()
        {
            failure.details.truncate(failure.details.len() - problems.len());
            let problems = problems.iter().filter_map(|problem| serde_json::from_value(problem.clone()).ok());
            failure
                .details
                .extend(problems.map(|problem| printable(&compiler_format(&self.file, &problem)).into_owned()));
        }
        failure
    }
}

/// Failure of an apply whose changes are no longer those that were shown.
pub(super) fn changed_since_shown(name: &str) -> Failure {
    Failure::failed(format!(
        "nothing was changed: another version of {name} was applied after these changes were shown; run the command \
         again to see the changes from it"
    ))
}

/// Confirms changes that were shown: by `--yes`, else by a question on the terminal.
///
/// # Errors
/// If the answer is no, or there is no terminal.
pub(super) fn confirm(terminal: &Terminal, yes: bool, question: &str) -> Outcome {
    if yes {
        return Ok(());
    }
    if !terminal.can_ask() {
        return Err(Failure::usage(
            "nothing was changed; without a terminal the command cannot ask, so add --yes to apply these changes",
        ));
    }
    match terminal.confirm(question)? {
        true => Ok(()),
        false => Err(Failure::failed("nothing was changed")),
    }
}

/// Name of the application in a definition. Of one that cannot be read it is taken from the line that seems to give it,
/// so that the server reports the problems.
fn application_name(text: &str) -> Option<String> {
    if let Some(name) = definition::named(text) {
        return Some(name.to_string());
    }
    let value = text.lines().find_map(|line| line.strip_prefix("application:"))?;
    let value = value.split(" #").next().unwrap_or(value).trim().trim_matches(['"', '\'']);
    (!value.is_empty()).then(|| value.to_owned())
}

fn show_differences(terminal: &Terminal, name: &str, text: &str, changes: &Value) -> std::io::Result<()> {
    let none = Vec::new();
    let differences = changes["differences"].as_array().unwrap_or(&none);
    match (differences.is_empty(), changes["version"].as_u64()) {
        (true, None | Some(0)) => {
            terminal.line(terminal.paint(Colour::Green, format_args!("+ {name} is new")))?;
            let parts = definition::document_difference("", text).into_iter().map(|part| part.path);
            for path in parts.filter(|path| !matches!(path.as_str(), "application" | "description")) {
                terminal.line(terminal.paint(Colour::Green, format_args!("+ {}", printable(&path))))?;
            }
        }
        (true, Some(version)) if changes["running"] == false => {
            terminal.line(format_args!("{name}: nothing to change, but version {version} does not run yet"))?
        }
        (true, Some(version)) => terminal.line(format_args!("{name}: nothing to change, version {version} runs"))?,
        (false, _) => {}
    }
    for (colour, line) in differences.iter().map(difference_line) {
        terminal.line(terminal.paint(colour, line))?;
    }
    for warning in changes["warnings"].as_array().unwrap_or(&none) {
        terminal.line(
            terminal.paint(Colour::Yellow, format_args!("warning: {}", crate::problems::problem_line(warning))),
        )?;
    }
    Ok(())
}

/// A difference as a line: `+ events.quake: 6 fields`.
pub(super) fn difference_line(difference: &Value) -> (Colour, String) {
    let (mark, colour) = match difference["kind"].as_str() {
        Some("added") => ('+', Colour::Green),
        Some("removed") => ('-', Colour::Red),
        _ => ('~', Colour::Yellow),
    };
    let path = printable(difference["path"].as_str().unwrap_or_default());
    let text = difference["text"].as_str().unwrap_or_default();
    let drops = if difference["drops"] == true { " (drops data)" } else { "" };
    let line = if text.is_empty() {
        format!("{mark} {path}{drops}")
    } else {
        format!("{mark} {path}: {}{drops}", printable(text))
    };
    (colour, line)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::commands::fake_server::FakeServer;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        expected.assert_eq(&output(args, answers).await);
    }

    async fn output(args: &[&str], answers: Vec<(u16, Value)>) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("app.yaml");
        std::fs::write(&file, "# mine\napplication: quakes # the name\nevents: {}\n").expect("written");
        let server = FakeServer::start(answers).await;
        let (terminal, captured) = Terminal::captured();
        let command =
            <TestCli as clap::Parser>::parse_from([&["apply", file.to_str().expect("a path")], args].concat());
        let outcome = command.args.run(&terminal, &server.client()).await;
        let end = outcome.map_or_else(|failure| format!("failed: {failure}"), |()| "ok".to_owned());
        let text = format!("{}{end}\n{}", captured.text(), server.requests().join("\n"));
        text.replace(&*file.to_string_lossy(), "app.yaml")
    }

    #[derive(clap::Parser)]
    struct TestCli {
        #[command(flatten)]
        args: Args,
    }

    #[tokio::test]
    async fn differences_are_shown_then_applied() {
        let changes = json!({"name": "quakes", "version": 1, "differences": [
            {"kind": "added", "path": "events.quake", "text": "6 fields", "drops": false},
            {"kind": "changed", "path": "rules.near.when", "text": "", "drops": false}],
            "warnings": [{"path": "rules.near", "message": "looks at every subscription", "hint": "compare a field for equality"}]});
        check(
            &["--yes"],
            vec![(200, changes.clone()), (201, json!({"name": "quakes", "version": 2}))],
            expect![[r#"
            + events.quake: 6 fields
            ~ rules.near.when
            warning: rules.near: looks at every subscription; compare a field for equality
            quakes runs as version 2
            ok
            PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
            application: quakes # the name
            events: {}
            PUT /v1/applications/quakes [application/yaml] ["1"] # mine
            application: quakes # the name
            events: {}"#]],
        )
        .await;
        check(
            &["--dry-run"],
            vec![(200, changes)],
            expect![[r#"
            + events.quake: 6 fields
            ~ rules.near.when
            warning: rules.near: looks at every subscription; compare a field for equality
            ok
            PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
            application: quakes # the name
            events: {}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn without_a_terminal_changes_need_yes() {
        let changes =
            |version, differences: Value| json!({"name": "quakes", "version": version, "differences": differences});
        let changed = json!([{"kind": "changed", "path": "rules.near.when", "text": "", "drops": false}]);
        let asked = "PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine\napplication: quakes # the name\n\
                     events: {}";
        for (answer, shown) in
            [(changes(1, changed), "~ rules.near.when"), (changes(0, json!([])), "+ quakes is new\n+ events")]
        {
            let expected = format!(
                "{shown}\nfailed: nothing was changed; without a terminal the command cannot ask, so add --yes to apply these \
                 changes\n{asked}"
            );
            assert_eq!(output(&[], vec![(200, answer)]).await, expected);
        }
        // Without a change there is nothing to confirm.
        let expected = format!("quakes: nothing to change, version 3 runs\nok\n{asked}");
        assert_eq!(output(&[], vec![(200, changes(3, json!([])))]).await, expected);
    }

    #[tokio::test]
    async fn data_is_not_dropped_unless_named() {
        let changes = json!({"version": 2, "differences": [{"kind": "removed", "path": "subscriptions.nearby", "text": "", "drops": true, "allow": "subscriptions.nearby"}]});
        check(
            &["--yes"],
            vec![(200, changes.clone())],
            expect![[r#"
            - subscriptions.nearby (drops data)
            failed: nothing was changed; to drop the data add --allow-drop subscriptions.nearby
            PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
            application: quakes # the name
            events: {}"#]],
        )
        .await;
        check(
            &[],
            vec![(200, changes.clone())],
            expect![[r#"
            - subscriptions.nearby (drops data)
            failed: nothing was changed; to drop the data add --allow-drop subscriptions.nearby --yes
            PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
            application: quakes # the name
            events: {}"#]],
        )
        .await;
        check(
            &["--allow-drop", "subscriptions.nearby", "--yes"],
            vec![(200, changes), (200, json!({"version": 3}))],
            expect![[r#"
                - subscriptions.nearby (drops data)
                quakes runs as version 3
                ok
                PUT /v1/applications/quakes?dry_run=true&allow_drop=subscriptions.nearby [application/yaml] # mine
                application: quakes # the name
                events: {}
                PUT /v1/applications/quakes?allow_drop=subscriptions.nearby [application/yaml] ["2"] # mine
                application: quakes # the name
                events: {}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn a_new_application_is_shown_and_one_that_is_not_running_is_applied_again() {
        let new = json!({"name": "quakes", "version": 0, "differences": [], "warnings": [], "running": false});
        let done = json!({"name": "quakes", "version": 1, "differences": [], "running": true});
        let puts = |lines: &str, condition: &str| {
            format!(
                "{lines}ok\nPUT /v1/applications/quakes?dry_run=true [application/yaml] # mine\napplication: quakes # the name\n\
                 events: {{}}\nPUT /v1/applications/quakes [application/yaml] [{condition}] # mine\napplication: quakes # the name\n\
                 events: {{}}"
            )
        };
        let expected = puts("+ quakes is new\n+ events\nquakes runs as version 1\n", "*");
        assert_eq!(output(&["--yes"], vec![(200, new), (201, done.clone())]).await, expected);
        let asleep = json!({"name": "quakes", "version": 1, "differences": [], "running": false});
        let expected =
            puts("quakes: nothing to change, but version 1 does not run yet\nquakes runs as version 1\n", "\"1\"");
        assert_eq!(output(&["-y"], vec![(200, asleep), (200, done)]).await, expected);
    }

    /// The second of two concurrent operators applied changes that the command had not shown.
    #[tokio::test]
    async fn changes_are_applied_to_the_version_that_was_shown() {
        let changes = json!({"name": "quakes", "version": 3, "differences": [
            {"kind": "changed", "path": "rules.near.when", "text": "", "drops": false}]});
        let changed = json!({"title": "it has changed", "detail": "the application `quakes` has changed meanwhile"});
        check(
            &["--yes"],
            vec![(200, changes.clone()), (412, changed.clone())],
            expect![[r#"
                ~ rules.near.when
                failed: nothing was changed: another version of quakes was applied after these changes were shown; run the command again to see the changes from it
                PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
                application: quakes # the name
                events: {}
                PUT /v1/applications/quakes [application/yaml] ["3"] # mine
                application: quakes # the name
                events: {}"#]],
        )
        .await;
        let output = output(&["--yes", "--expect-version", "3"], vec![(200, changes), (412, changed)]).await;
        assert!(
            output.contains("  it has changed: the application `quakes` has changed meanwhile (HTTP 412)"),
            "{output}"
        );
        assert_eq!(output.matches("[application/yaml] [\"3\"]").count(), 2, "{output}");
    }

    #[test]
    fn the_name_of_an_application_is_found_in_every_form_of_yaml() {
        for text in [
            "application: a",
            "\u{feff}application: a\n",
            "description: |\n  application: b\napplication: \"a\" # c",
            "\"application\" : a",
            "application:\n  a\nevents: {}",
            "{\"events\": {}, \"application\": \"a\"}",
            "application: a\revents: {}",
            "application: a\nevents: [",
        ] {
            assert_eq!(super::application_name(text).as_deref(), Some("a"), "{text:?}");
        }
        assert_eq!(super::application_name("events: {}"), None);
    }

    #[tokio::test]
    async fn problems_point_into_the_file() {
        let problems = json!({"title": "the definition has mistakes", "problems": [{"path": "rules.near.on", "line": 7, "column": 3, "message": "`quak` does not exist", "hint": "did you mean `quake`?"}]});
        check(
            &[],
            vec![(422, problems)],
            expect![[r#"
            failed: fix these problems
              the definition has mistakes (HTTP 422)
              app.yaml:7:3: rules.near.on: `quak` does not exist; did you mean `quake`?
            PUT /v1/applications/quakes?dry_run=true [application/yaml] # mine
            application: quakes # the name
            events: {}"#]],
        )
        .await;
    }
}
