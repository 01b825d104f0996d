//! The watch list, by the commands that the example's README gives, in their order.

mod support;

use std::fs;

use support::{Platform, mails::Mails};

/// The commands of the README's block of code, as arguments of the binary.
fn commands() -> Vec<Vec<String>> {
    let readme = fs::read_to_string(support::repository("examples/watchlist/README.md")).expect("the README");
    let block = readme.split("```").nth(1).expect("a block of code");
    let commands = block.lines().filter_map(|line| line.strip_prefix("tocsin "));
    commands
        .map(|line| {
            // What stands between quotes is one argument.
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
async fn the_commands_of_the_readme_do_what_it_says() {
    let mails = Mails::start().await;
    let platform = Platform::start(&[("SMTP_PORT", &mails.port.to_string())]).await;
    let mut said = String::new();
    for command in commands() {
        said.push_str(&platform.run(&command.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    assert!(said.contains("tells a subscription at most once in 1h"), "{said}");
    assert!(said.contains("2027-01-04T08:00"), "{said}");
    let schedules: Vec<&str> = said.lines().filter(|line| line.starts_with("morning ")).collect();
    assert_eq!(schedules.len(), 2, "{said}");
    assert!(schedules.iter().any(|line| line.contains("Europe/Vienna")), "{said}");

    let all = mails.wait_until(|| mails.count() >= 4).await;
    let subject =
        |mail: &support::mails::Mail| format!("{}: {}", mail.to[0], mail.header("Subject").expect("a subject"));
    let mut told: Vec<String> = mails.all().iter().map(subject).collect();
    told.sort_unstable();
    let expected = [
        "ann@example.org: ACME is at 101.00",
        "cleo@example.org: ACME is at 101.00",
        "cleo@example.org: ACME is at 102.00",
        "cleo@example.org: ACME is at 103.00",
    ];
    assert!(all, "{told:?} came");
    assert_eq!(told, expected);
}
