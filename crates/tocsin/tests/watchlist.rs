//! Watch list example, by the commands of its README, in order.

mod support;

use std::fs;

use support::{Platform, mails::Mails};

/// Commands of the README's code block, as arguments of the binary.
fn commands() -> Vec<Vec<String>> {
    let readme = fs::read_to_string(support::repository("examples/watchlist/README.md")).expect("the README");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_the_readme_have_the_documented_effects() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    let mut said = String::new();
    for command in commands() {
        said.push_str(&platform.run(&command.iter().map(String::as_str).collect::<Vec<_>>()));
    }
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
