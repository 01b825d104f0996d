//! Examples, by the commands of their READMEs, in order.

mod support;

use std::fs;

use support::{Platform, mails::Mails};

/// Commands of the first code block in the README of an example, as arguments of the binary.
fn commands(example: &str) -> Vec<Vec<String>> {
    let readme = fs::read_to_string(support::repository(&format!("examples/{example}/README.md"))).expect("the README");
    let block = readme.split("```").nth(1).expect("a block of code");
    let commands = block.lines().filter_map(|line| line.strip_prefix("tocsin "));
    commands
        .map(|line| {
            // Quoted text is one argument.
            let pieces = line.split('"').enumerate();
            let words = pieces.flat_map(|(at, piece)| match at % 2 {
                0 => piece.split_whitespace().map(str::to_owned).collect(),
                _ => vec![piece.to_owned()],
            });
            let path = |word: String| match word.strip_prefix("examples/") {
                Some(rest) => support::repository("examples").join(rest).to_str().expect("a path").to_owned(),
                None => word,
            };
            words.map(path).collect()
        })
        .collect()
}

/// Runs the commands and returns their output.
fn run(platform: &Platform, example: &str) -> String {
    let commands = commands(example);
    commands.iter().map(|command| platform.run(&command.iter().map(String::as_str).collect::<Vec<_>>())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_bell_fill_the_inbox_of_one_customer() {
    let platform = Platform::start(&[]).await;
    let said = run(&platform, "bell");
    assert!(said.contains("+ shop is new") && said.contains("shop runs as version 1"), "{said}");
    assert!(said.contains("Order A-1 is on its way"), "{said}");
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(platform.get("/v1/subscribers/alice/inbox/unread").await["unread"], 0, "all are read");
    assert!(platform.run(&["inbox", "list", "bob"]).contains("no such items"), "bob has another order");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_ticker_make_the_documented_mails_without_warnings() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    let said = run(&platform, "ticker");
    assert!(!said.contains("warning"), "{said}");
    assert!(mails.wait_until(|| mails.count() >= 4).await);
    let mut to: Vec<String> = mails.all().iter().map(|mail| mail.to[0].clone()).collect();
    to.sort_unstable();
    assert_eq!(to, ["ann@example.org", "ann@example.org", "ben@example.org", "cid@example.org"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_have_the_documented_effects() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    let said = run(&platform, "watchlist");
    assert!(said.contains("notifies a subscription at most once in 1h"), "{said}");
    assert!(said.contains("2027-01-04T08:00"), "{said}");
    let schedules: Vec<&str> = said.lines().filter(|line| line.starts_with("morning ")).collect();
    assert_eq!(schedules.len(), 2, "{said}");
    assert!(schedules.iter().any(|line| line.contains("Europe/Vienna")), "{said}");

    let all = mails.wait_until(|| mails.count() >= 4).await;
    let subject =
        |mail: &support::mails::Mail| format!("{}: {}", mail.to[0], mail.header("Subject").expect("a subject"));
    let mut received: Vec<String> = mails.all().iter().map(subject).collect();
    received.sort_unstable();
    let expected = [
        "ann@example.org: ACME is at 101.00",
        "cleo@example.org: ACME is at 101.00",
        "cleo@example.org: ACME is at 102.00",
        "cleo@example.org: ACME is at 103.00",
    ];
    assert!(all, "{received:?} arrived");
    assert_eq!(received, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_welcome_greet_new_subscriptions_and_delay_the_rest() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    for command in commands("welcome") {
        if command[0] == "publish" {
            // The reminder that the event cancels begins with the event of the subscription.
            assert!(mails.wait_until(|| mails.count() >= 2).await);
        }
        let said = platform.run(&command.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!said.contains("warning"), "{said}");
    }
    let waits = || platform.run(&["delayed", "list", "--application", "welcome"]);
    assert!(mails.wait_until(|| waits().lines().count() == 4).await, "{}", waits());
    assert_eq!(waits().matches(" remind ").count(), 1, "{}", waits());
    assert_eq!(waits().matches(" tips ").count(), 2, "{}", waits());
    let trace = platform.run(&["trace", "cleo"]);
    assert!(
        trace.contains("rule `tips` delays the notification of") && trace.contains("cancelled by `left`"),
        "{trace}"
    );
    assert!(platform.run(&["delayed", "cancel", "--rule", "tips", "--yes"]).contains("2 notifications cancelled"));
    let mut to: Vec<String> = mails.all().iter().map(|mail| mail.to[0].clone()).collect();
    to.sort_unstable();
    assert_eq!(to, ["ben@example.org", "cleo@example.org"]);
}
