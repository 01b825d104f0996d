//! The form and the class of mails, one case for each rule of the standards.

use tocsin_feedback::{Action, Class, Feedback, Format, Limits, parse};

fn parsed(mail: &str) -> Feedback {
    parse(mail.as_bytes(), &Limits::default())
}

/// Compares `format class recipient status reply` of each report.
fn check(mail: &str, expected: &[&str]) {
    let feedback = parsed(mail);
    let texts = feedback.reports.iter().map(|report| {
        let recipient = report.recipient.as_ref().map(|recipient| recipient.on_wire()).unwrap_or_default();
        let status = report.status.map(|status| status.to_string()).unwrap_or_default();
        let reply = report.reply.map(|reply| reply.to_string()).unwrap_or_default();
        let words = [report.class.word(), &recipient, &status, &reply];
        words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
    });
    let found: Vec<String> = [format!("{:?}", feedback.format)].into_iter().chain(texts).collect();
    assert_eq!(found, expected, "{mail}");
}

/// A delivery status notification with these groups of fields.
fn notification(groups: &str) -> String {
    format!(
        "From: MAILER-DAEMON@mx.example\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=\"=_part\"\n\n\
         --=_part\nContent-Type: text/plain\n\nYour message could not be delivered.\n\n\
         --=_part\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; mx.example\n\n{groups}\n\
         --=_part\nContent-Type: message/rfc822\n\nMessage-ID: <n-7-1@example.org>\nTo: ann@example.net\n\nhello\n\n\
         --=_part--\n"
    )
}

#[test]
fn delivery_status_notifications_have_one_report_for_each_recipient() {
    let mail = notification(
        "Final-Recipient: rfc822; ann@example.net\nAction: failed\nStatus: 5.1.1\n\
         Remote-MTA: dns; mx.example.net\nDiagnostic-Code: smtp; 550 5.1.1 User\n unknown\n\n\
         Final-Recipient: rfc822; bob@example.net\nAction: delayed\nStatus: 4.2.2 (mailbox full)\n\n\
         Final-Recipient: rfc822; carl@example.net\nAction: relayed\nStatus: 2.1.9\n\n\
         Original-Recipient: rfc822; dora@example.net\nFinal-Recipient: rfc822; d@example.com\nAction: failed\n\
         Status: 5.7.1\nDiagnostic-Code: smtp; 554 5.7.1 blocked using a list\n",
    );
    check(
        &mail,
        &[
            "DeliveryStatus",
            "hard ann@example.net 5.1.1 550",
            "soft bob@example.net 4.2.2",
            "delivered carl@example.net 2.1.9",
            "blocked dora@example.net 5.7.1 554",
        ],
    );
    let feedback = parsed(&mail);
    assert_eq!(feedback.message_id.as_deref(), Some("n-7-1@example.org"));
    assert_eq!(feedback.reporting_mta.as_deref(), Some("mx.example"));
    assert_eq!(feedback.reports[0].remote_mta.as_deref(), Some("mx.example.net"));
    assert_eq!(feedback.reports[0].diagnostic, "550 5.1.1 User unknown");
    assert_eq!(feedback.reports[2].action, Some(Action::Relayed));
    assert_eq!(feedback.class(), Class::Hard);
}

#[test]
fn a_delayed_mail_is_not_hard() {
    check(
        &notification("Final-Recipient: rfc822; ann@example.net\nAction: delayed\nStatus: 5.1.1\n"),
        &["DeliveryStatus", "soft ann@example.net 5.1.1"],
    );
    check(
        &notification("Final-Recipient: rfc822; ann@example.net\nAction: failed\nStatus: 4.1.1\n"),
        &["DeliveryStatus", "soft ann@example.net 4.1.1"],
    );
}

#[test]
fn internationalized_addresses_are_decoded() {
    let groups = "Final-Recipient: utf-8; \\x{E4}nn@b\\x{FC}cher.example\nAction: failed\nStatus: 5.1.1\n";
    let mail = notification(groups).replace("message/delivery-status", "message/global-delivery-status");
    check(&mail, &["DeliveryStatus", "hard änn@xn--bcher-kva.example 5.1.1"]);
}

#[test]
fn feedback_reports_are_complaints_unless_their_type_differs() {
    let report = |kind: &str| {
        format!(
            "From: fbl@example.net\nContent-Type: multipart/report; report-type=feedback-report; boundary=part\n\n\
             --part\nContent-Type: text/plain\n\nA report.\n\n\
             --part\nContent-Type: message/feedback-report\n\nFeedback-Type: {kind}\nUser-Agent: a/1\nVersion: 1\n\
             Original-Rcpt-To: <ann@example.net>\n\n\
             --part\nContent-Type: text/rfc822-headers\n\nMessage-ID: <n-7-1@example.org>\n\n--part--\n"
        )
    };
    check(&report("abuse"), &["FeedbackReport", "complaint ann@example.net"]);
    check(&report("Fraud"), &["FeedbackReport", "complaint ann@example.net"]);
    check(&report("opt-out"), &["FeedbackReport", "unsubscribe ann@example.net"]);
    check(&report("not-spam"), &["FeedbackReport", "unknown ann@example.net"]);
    check(&report("auth-failure"), &["FeedbackReport", "unknown ann@example.net"]);
    assert_eq!(parsed(&report("ABUSE")).feedback_type.as_deref(), Some("abuse"));
    assert_eq!(parsed(&report("abuse")).message_id.as_deref(), Some("n-7-1@example.org"));
}

#[test]
fn disposition_notifications_have_no_reports() {
    let mail = "From: ann@example.net\nSubject: Read: hello\n\
                Content-Type: multipart/report; report-type=disposition-notification; boundary=part\n\n\
                --part\n\nThe mail was displayed.\n\n--part\nContent-Type: message/disposition-notification\n\n\
                Final-Recipient: rfc822; ann@example.net\n\
                Disposition: manual-action/MDN-sent-manually; displayed\n\n--part--\n";
    check(mail, &["Disposition"]);
}

#[test]
fn automatic_replies_are_recognized_by_their_fields() {
    for field in [
        "Auto-Submitted: auto-replied",
        "Auto-Submitted: auto-generated (vacation)",
        "Precedence: auto_reply",
        "Precedence: bulk",
        "X-Autoreply: yes",
        "X-Auto-Response-Suppress: All",
        "Return-Path: <>",
        "Subject: Out of office: holiday",
        "Subject: =?utf-8?Q?Abwesenheitsnotiz:_gr=C3=BC=C3=9Fe?=",
        "Subject: Automatic reply: hello",
    ] {
        let mail = format!("From: ann@example.net\n{field}\n\nI am back on Monday. Call extension 550.\n");
        check(&mail, &["AutomaticReply", "out_of_office ann@example.net"]);
    }
    let person = "From: ann@example.net\nAuto-Submitted: no\nSubject: Re: hello\n\
                  In-Reply-To: <n-7-1@example.org>\n\nThanks!\n";
    check(person, &["Mail", "unknown ann@example.net"]);
    assert_eq!(parsed(person).message_id.as_deref(), Some("n-7-1@example.org"));
}

#[test]
fn challenges_and_withdrawals_are_recognized() {
    let challenge = "From: ann@example.net\nAuto-Submitted: auto-replied\nSubject: Re: hello\n\n\
                     To have your message delivered, please confirm that you are a human.\n";
    check(challenge, &["AutomaticReply", "challenge ann@example.net"]);
    for mail in [
        "From: ann@example.net\nSubject: unsubscribe\n\n",
        "From: ann@example.net\nSubject: Unsubscribe me, please\n\n",
        "From: ann@example.net\nSubject: Abmelden\n\n",
        "From: ann@example.net\n\nSTOP\n",
        "From: ann@example.net\nAuto-Submitted: auto-generated\nSubject: unsubscribe\n\n",
    ] {
        check(mail, &["Mail", "unsubscribe ann@example.net"]);
    }
    for mail in [
        "From: ann@example.net\nSubject: unsubscribed members of the club\n\n",
        "From: ann@example.net\nSubject: hello\n\nHow do I unsubscribe?\n",
    ] {
        check(mail, &["Mail", "unknown ann@example.net"]);
    }
}

#[test]
fn texts_of_bounces_name_each_recipient() {
    let qmail = "Return-Path: <>\nFrom: MAILER-DAEMON@mx.example\nTo: b@example.org\nSubject: failure notice\n\n\
                 Hi. This is the qmail-send program at mx.example.\n\n\
                 <ann@example.net>:\n192.0.2.1 does not like recipient.\nRemote host said: 550 No such user\n\n\
                 <bob@example.net>:\nUser is over the quota. (#5.2.2)\n\n\
                 --- Below this line is a copy of the message.\n\n\
                 Message-ID: <n-7-1@example.org>\nTo: carl@example.net\n\nThe mailbox is full of spam.\n";
    check(qmail, &["Text", "hard ann@example.net 550", "soft bob@example.net 5.2.2"]);
    assert_eq!(parsed(qmail).message_id.as_deref(), Some("n-7-1@example.org"));
    let no_reason = "From: MAILER-DAEMON@mx.example\nSubject: Undelivered Mail\n\nann@example.net\n";
    check(no_reason, &["Text", "soft ann@example.net"]);
}

#[test]
fn phrases_in_addresses_do_not_decide() {
    let groups = "Final-Recipient: rfc822; user-unknown@spam.example\nAction: failed\nStatus: 5.0.0\n\
                  Diagnostic-Code: smtp; 552 <user-unknown@spam.example> https://example.net/blacklist\n";
    check(&notification(groups), &["DeliveryStatus", "soft user-unknown@spam.example 5.0.0 552"]);
}

#[test]
fn texts_of_servers_are_bounded_and_escaped() {
    let groups = format!(
        "Final-Recipient: rfc822; ann@example.net\nAction: failed\nStatus: 5.1.1\n\
         Remote-MTA: dns; a\u{1b}[31m\nDiagnostic-Code: smtp; 550 \u{202e}{}\n",
        "x".repeat(5_000)
    );
    let report = &parsed(&notification(&groups)).reports[0];
    assert_eq!(report.diagnostic.len(), 1_024);
    assert!(report.diagnostic.starts_with("550 \\u{202e}xxx"));
    assert_eq!(report.remote_mta.as_deref(), Some("a\\u{1b}[31m"));
}

#[test]
fn empty_and_broken_mails_are_unknown() {
    for mail in ["", "\n", "x", "\0\0", "Content-Type: multipart/mixed", "Subject", ": :\n\n:"] {
        let feedback = parsed(mail);
        assert_eq!((feedback.format, feedback.class()), (Format::Mail, Class::Unknown), "{mail:?}");
    }
}
