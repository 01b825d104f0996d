//! Classifies published collections of real mails and compares the results with their labels.
//!
//! `testdata/feedback/README.md` has the origins. A difference from a label needs a line with its explanation in
//! `differences.tsv`; a line without its difference fails too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::Duration,
};

use fastrand::Rng;
use tocsin_feedback::{
    Class, Feedback, Format, Limits, parse,
    policy::Evidence,
    return_address::{DeviceTag, Origin, Position, Purpose, Reference, ReturnAddresses, Target},
};
use tocsin_model::{
    id::{NotificationBatchId, NotificationId, SubscriberNumber},
    mailbox,
    time::Timestamp,
};

/// Least part of the mails whose classes agree with their labels, in percent.
const AGREEMENT_MIN: usize = 97;
/// Least part of the mails of the second collection whose recipients agree, in percent.
const RECIPIENTS_MIN: usize = 88;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/feedback").join(name)
}

fn bytes(name: &str) -> Vec<u8> {
    fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The rows of a table, without comments.
fn rows(name: &str) -> Vec<Vec<String>> {
    let text = String::from_utf8(bytes(name)).expect("text");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// The mails of a file in mbox format; one mail if it is none.
fn mails(file: &[u8]) -> Vec<Vec<u8>> {
    let text = String::from_utf8_lossy(file);
    if !text.starts_with("From ") {
        return vec![file.to_vec()];
    }
    let starts = text.match_indices("\n\nFrom MAILER-DAEMON ").map(|(at, _)| at + 2);
    let mut starts: Vec<usize> = [0].into_iter().chain(starts).collect();
    starts.push(text.len());
    starts.windows(2).map(|ends| text.as_bytes()[ends[0]..ends[1]].to_vec()).collect()
}

fn classes(file: &[u8]) -> Vec<Class> {
    let mut classes: Vec<Class> =
        mails(file).iter().flat_map(|mail| reports(&parse(mail, &Limits::default()))).collect();
    classes.sort();
    classes
}

fn reports(feedback: &Feedback) -> Vec<Class> {
    feedback.reports.iter().map(|report| report.class).collect()
}

fn words(classes: &[Class]) -> String {
    classes.iter().map(|class| class.word()).collect::<Vec<_>>().join(" ")
}

#[test]
fn classes_agree_with_the_labels_of_the_collection() {
    let known: BTreeMap<String, Class> = rows("classes.tsv")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].parse().unwrap_or_else(|()| panic!("{row:?}"))))
        .collect();
    let labels = rows("labels.tsv");
    let mut used = BTreeSet::new();
    let mut found = BTreeMap::new();
    for row in &labels {
        let labels: Vec<&str> = row[1].split(' ').collect();
        used.extend(labels.iter().map(|label| (*label).to_owned()));
        let mut expected: Vec<Class> = labels.iter().map(|label| known[*label]).collect();
        expected.sort();
        let file = bytes(&format!("sisimai/{}", row[0]));
        println!("FILE\t{}\t{}", row[0], row[1]);
        let classes = classes(&file);
        if classes != expected {
            for report in mails(&file).iter().flat_map(|mail| parse(mail, &Limits::default()).reports) {
                println!("{}: {} by {}: {}", row[0], report.class.word(), report.rule, report.diagnostic);
            }
            found.insert(row[0].clone(), (words(&expected), words(&classes)));
        }
    }
    assert_eq!(used, known.keys().cloned().collect(), "every label has a class, and every class row a label");
    let agreement = (labels.len() - found.len()) as f64 * 100.0 / labels.len() as f64;
    println!("{} of {} mails agree: {agreement:.1} %", labels.len() - found.len(), labels.len());
    for (file, (expected, classes)) in &found {
        println!("{file}\t{expected}\t{classes}");
    }
    let explained: BTreeMap<String, (String, String)> = rows("differences.tsv")
        .into_iter()
        .map(|row| {
            assert!(row.len() == 4 && row[3].len() > 20, "a file, two classes and an explanation: {row:?}");
            (row[0].clone(), (row[1].clone(), row[2].clone()))
        })
        .collect();
    assert_eq!(found, explained, "left: the differences; right: those of differences.tsv");
    assert!((labels.len() - found.len()) * 100 >= labels.len() * AGREEMENT_MIN, "{agreement:.1} %");
    // The worst mistake: a device is suppressed at once, and the label disagrees.
    let hard = found.values().filter(|(expected, classes)| classes.contains("hard") && !expected.contains("hard"));
    println!("{} hard bounces that the labels call otherwise", hard.count());
}

#[test]
fn recipients_agree_with_those_of_the_second_collection() {
    // Mails in which that implementation finds no recipient are no measure.
    let labels: Vec<_> = rows("flufl.tsv").into_iter().filter(|row| !row[1].is_empty()).collect();
    let mut wrong = Vec::new();
    for row in &labels {
        let feedback = parse(&bytes(&format!("flufl/{}", row[0])), &Limits::default());
        let recipients = feedback.reports.iter().filter_map(|report| report.recipient.as_ref());
        let recipients: BTreeSet<String> = recipients.map(|recipient| recipient.canonical()).collect();
        let expected: BTreeSet<String> =
            row[1].split_whitespace().map(|address| mailbox::comparable(address).into()).collect();
        if recipients != expected {
            wrong.push(format!("{}: {recipients:?}, not {expected:?}, by {:?}", row[0], feedback.format));
        }
    }
    println!("{} of {}\n{}", labels.len() - wrong.len(), labels.len(), wrong.join("\n"));
    assert!((labels.len() - wrong.len()) * 100 >= labels.len() * RECIPIENTS_MIN);
}

#[test]
fn mails_that_are_no_bounces_are_never_hard() {
    for name in ["is-not-bounce-01.eml", "is-not-bounce-02.eml", "rb-issue-368-bug.eml"] {
        let feedback = parse(&bytes(&format!("sisimai-not/{name}")), &Limits::default());
        assert_ne!(feedback.class(), Class::Hard, "{name}");
    }
}

#[test]
fn line_ends_do_not_change_the_result() {
    for row in rows("labels.tsv") {
        let lf: Vec<u8> = bytes(&format!("sisimai/{}", row[0])).into_iter().filter(|byte| *byte != b'\r').collect();
        let expected = parse(&lf, &Limits::default());
        let crlf: Vec<u8> = lf
            .iter()
            .flat_map(|byte| [&b"\r\n"[..], std::slice::from_ref(byte)][usize::from(*byte != b'\n')])
            .copied()
            .collect();
        let cr: Vec<u8> = lf.iter().map(|byte| if *byte == b'\n' { b'\r' } else { *byte }).collect();
        assert_eq!(parse(&crlf, &Limits::default()), expected, "{} with CRLF", row[0]);
        assert_eq!(parse(&cr, &Limits::default()), expected, "{} with CR", row[0]);
    }
}

/// A mail with some bytes or lines replaced, removed, repeated, swapped or cut off.
fn mutated(mut mail: Vec<u8>, random: &mut Rng) -> Vec<u8> {
    for _ in 0..random.usize(1..=20) {
        if mail.is_empty() {
            break;
        }
        let (at, length) = (random.usize(..mail.len()), random.usize(1..=80));
        let end = (at + length).min(mail.len());
        match random.u8(0..8) {
            0 => mail.truncate(at.max(1)),
            1 => mail[at] = random.u8(..),
            2 => drop(mail.drain(at..end)),
            3 => {
                let piece = mail[at..end].repeat(random.usize(1..=30));
                mail.splice(at..at, piece);
            }
            4 => mail[at..end].fill(b'\n'),
            5 => mail[at..end].reverse(),
            6 => mail[at..end].make_ascii_uppercase(),
            _ => mail[at..end].iter_mut().for_each(|byte| *byte |= 0x80),
        }
    }
    mail
}

#[test]
fn mutated_mails_stay_within_limits_and_suppress_nothing_unsigned() {
    let seed = 35;
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let labels = rows("labels.tsv");
    let limits = Limits { recipients_max: 10, diagnostic_bytes_max: 200, ..Limits::default() };
    let now = Timestamp::from_millis(1_796_119_206_000);
    let days = Duration::from_secs(30 * 86_400);
    let addresses = ReturnAddresses::new("b@example.org", Position::Subaddress, &[[7; 32]], days).expect("a key");
    let origin = |ordinal| Origin {
        purpose: Purpose::Bounce,
        reference: Reference::Notification(NotificationId { batch: NotificationBatchId(7), ordinal }),
        target: Target::Device(SubscriberNumber(3), DeviceTag::of("ann@example.net")),
    };
    let (mut suppressible, mut evidence) = (0, 0);
    for number in 0..2_000 {
        let file = &random.choice(&labels).expect("a row")[0];
        let mail = mutated(bytes(&format!("sisimai/{file}")), &mut random);
        println!("{number}: {file}");
        let feedback = parse(&mail, &limits);
        assert!(feedback.reports.len() <= limits.recipients_max);
        assert!(feedback.format == Format::Disposition || !feedback.reports.is_empty());
        for report in &feedback.reports {
            assert!(report.diagnostic.len() <= limits.diagnostic_bytes_max);
            assert!(!report.diagnostic.contains(char::is_control));
            assert!(report.recipient.as_ref().is_none_or(|recipient| recipient.address().len() <= 1_024));
        }
        let texts = [&feedback.message_id, &feedback.reporting_mta, &feedback.feedback_type];
        for text in texts.into_iter().flatten() {
            assert!(text.len() <= limits.diagnostic_bytes_max && !text.contains(char::is_control));
        }
        suppressible += usize::from(feedback.class() >= Class::Soft);
        // The addresses of the mail itself, and a signed one with one letter changed.
        let signed = addresses.issue(&origin(number), now).expect("an address");
        let at = random.usize(2..signed.len() - "@example.org".len());
        let letter = if signed.as_bytes()[at] == b'a' { "b" } else { "a" };
        let forged = format!("{}{letter}{}", &signed[..at], &signed[at + 1..]);
        let named = feedback.reports.iter().filter_map(|report| report.recipient.as_ref());
        let named = named.map(|recipient| recipient.address()).chain([forged, "b@example.org".to_owned()]);
        let verified = named.filter_map(|address| addresses.verify(&address, now).ok());
        evidence += verified.flat_map(|origin| Evidence::of_mail(&origin, &feedback)).count();
    }
    assert!(suppressible > 500, "{suppressible} of 2,000 mutated mails would suppress or count");
    assert_eq!(evidence, 0, "without a valid signature nothing counts");
}

#[test]
fn large_and_deep_mails_take_linear_time_and_report_their_limits() {
    let limits = Limits::default();
    let deep: String =
        (0..5_000).map(|depth| format!("Content-Type: multipart/mixed; boundary=b{depth}\n\n--b{depth}\n")).collect();
    assert!(parse(deep.as_bytes(), &limits).is_truncated);
    let parts = format!("Content-Type: multipart/mixed; boundary=bbbbb\n\n{}", "--bbbbb\n\nx\n".repeat(100_000));
    assert!(parse(parts.as_bytes(), &limits).is_truncated);
    let groups = "Final-Recipient: rfc822; ann@example.net\nAction: failed\nStatus: 5.1.1\n\n".repeat(10_000);
    let report = format!(
        "From: MAILER-DAEMON@a\nContent-Type: multipart/report; report-type=delivery-status; boundary=bbbbb\n\n\
         --bbbbb\n\
         Content-Type: message/delivery-status\n\n{groups}\n--bbbbb--\n"
    );
    let feedback = parse(report.as_bytes(), &limits);
    assert_eq!((feedback.reports.len(), feedback.is_truncated), (limits.recipients_max, true));
    // Each limit is below the size of the mail.
    let limits = Limits { mail_bytes_max: 60_000, text_bytes_max: 20_000, ..Limits::default() };
    for piece in [
        "<ann@example.net>: 550 no such user\n",
        "a@",
        "550 5.1.1 ",
        "x{",
        "\\x{",
        "=?utf-8?B?",
        "Subject: a\n",
        "\n",
        " ",
        "--",
    ] {
        let mail =
            format!("Return-Path: <>\nFrom: MAILER-DAEMON@a\nSubject: failure notice\n\n{}", piece.repeat(60_000));
        let feedback = parse(mail.as_bytes(), &limits);
        assert!(feedback.reports.len() <= limits.recipients_max, "{piece}");
    }
}
