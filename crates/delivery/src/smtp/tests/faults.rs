use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::json;
use tokio::sync::mpsc;

use super::{OK, check, check_with, deliver, deliver_all, scripted_server::*, start};
use crate::testing::{content_of, multicast, outgoing, show};

#[tokio::test(start_paused = true)]
async fn content_and_the_next_envelope_travel_in_one_flight() {
    let server = check(accept_all, [OK, OK, OK], 1).await;
    let flights = server.seen.lock().flights.join(" | ");
    let ahead = "MAIL RCPT DATA | From . MAIL RCPT DATA | From . MAIL RCPT DATA | From .";
    assert_eq!(flights, format!("EHLO | {ahead} | QUIT"));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_pipelining_is_asked_one_by_one() {
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250 far.example"),
        _ => accept_all(connection, mail, heard),
    };
    let server = check(script, [OK, OK, OK], 1).await;
    let one = "MAIL | RCPT | DATA | From .";
    assert_eq!(server.seen.lock().flights.join(" | "), format!("EHLO | {one} | {one} | {one} | QUIT"));
    let server = check_with(accept_all, json!({ "pipelining": false }), [OK, OK, OK], 1).await;
    assert_eq!(server.seen.lock().flights.join(" | "), format!("EHLO | {one} | {one} | {one} | QUIT"));
}

#[tokio::test(start_paused = true)]
async fn an_old_server_is_greeted_the_old_way() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("EHLO") => Say("502 what?"),
        _ => accept_all(connection, mail, heard),
    };
    check(script, [OK, OK, OK], 1).await;
}

#[tokio::test(start_paused = true)]
async fn each_recipient_gets_its_own_answer() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(':').next()) {
        (1, Some("RCPT TO")) => Say("550 5.1.1 no such user"),
        (1, Some("DATA")) => Say("503 no recipient"),
        (2, Some("RCPT TO")) => Say("450 4.2.1 mailbox busy"),
        (2, Some("DATA")) => Say("554 no valid recipients"),
        _ => accept_all(connection, mail, heard),
    };
    let server =
        check(script, ["refused Answer 550 5.1.1 no such user", "deferred Answer 450 4.2.1 mailbox busy", OK], 1).await;
    assert_eq!(server.seen.lock().contents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn data_without_accepted_recipients_gets_a_single_dot() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(':').next()) {
        (2, Some("RCPT TO")) => Say("550 no such user"),
        (2, Some(".")) => Say("554 no valid recipients"),
        _ => accept_all(connection, mail, heard),
    };
    let server = check(script, [OK, "refused Answer 550 no such user", OK], 1).await;
    let seen = server.seen.lock();
    assert!(seen.contents[1].is_empty() && seen.contents.len() == 3, "nothing of the second mail is sent");
}

#[tokio::test(start_paused = true)]
async fn a_refused_sender_never_sends_an_empty_mail() {
    let script: Script = |connection, mail, heard| match (mail, heard.split(' ').next()) {
        (1, Some("MAIL")) => Say("451 try later"),
        _ => accept_all(connection, mail, heard),
    };
    // RCPT and DATA are accepted all the same, so the only safe way is another connection.
    let server = check(script, ["deferred Answer 451 try later", OK, OK], 2).await;
    assert_eq!(server.seen.lock().contents.len(), 2);
    let script: Script = |connection, mail, heard| match (mail, heard.split(' ').next()) {
        (1, Some("MAIL")) => Say("553 no such sender"),
        (1, Some("RCPT" | "DATA")) => Say("503 MAIL first"),
        _ => accept_all(connection, mail, heard),
    };
    check(script, ["refused Answer 553 no such sender", OK, OK], 1).await;
}

/// Sends one content to several recipients; compares their results and the commands of each flight.
async fn check_multicast(
    script: Script,
    options: serde_json::Value,
    addresses: &[&str],
    expected: &[&str],
    flights: &str,
) {
    let (open, server) = start(script, options, None);
    assert_eq!(deliver_all(&*open, multicast(addresses)).await, expected);
    open.close().await;
    let seen = server.seen.lock();
    assert_eq!(seen.flights.join(" | "), flights);
    for content in &seen.contents {
        let shown = addresses.iter().filter(|address| content.contains(**address)).count();
        assert!(shown == 0 && content.contains("To: undisclosed-recipients:;\r\n"), "{content}");
    }
}

const FOUR: [&str; 4] = ["a@b.example", "c@d.example", "e@f.example", "g@h.example"];

#[tokio::test(start_paused = true)]
async fn a_multicast_is_one_mail_and_shows_no_address() {
    let four = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(accept_all, json!({}), &FOUR, &[OK; 4], four).await;
    let halves = "EHLO | MAIL RCPT RCPT DATA | From . MAIL RCPT RCPT DATA | From . | QUIT";
    check_multicast(accept_all, json!({ "recipients_max": 2 }), &FOUR, &[OK; 4], halves).await;
    let one_by_one = "EHLO | MAIL | RCPT | RCPT | RCPT | RCPT | DATA | From . | QUIT";
    check_multicast(accept_all, json!({ "pipelining": false }), &FOUR, &[OK; 4], one_by_one).await;
}

#[tokio::test(start_paused = true)]
async fn each_recipient_of_a_multicast_gets_its_own_answer() {
    let script: Script = |connection, mail, heard| match heard {
        "RCPT TO:<a@b.example>" => Say("550 5.1.1 no such user"),
        "RCPT TO:<e@f.example>" => Say("450 4.2.1 mailbox busy"),
        _ => accept_all(connection, mail, heard),
    };
    let expected = ["refused Answer 550 5.1.1 no such user", OK, "deferred Answer 450 4.2.1 mailbox busy", OK];
    for (options, flights) in [
        (json!({}), "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT"),
        (json!({ "pipelining": false }), "EHLO | MAIL | RCPT | RCPT | RCPT | RCPT | DATA | From . | QUIT"),
    ] {
        check_multicast(script, options, &FOUR, &expected, flights).await;
    }
    // The content is refused for those whose envelope was accepted.
    let script: Script = |connection, mail, heard| match heard {
        "RCPT TO:<a@b.example>" => Say("550 5.1.1 no such user"),
        "." => Say("452 4.3.1 disk full"),
        _ => accept_all(connection, mail, heard),
    };
    let later = "deferred Answer 452 4.3.1 disk full";
    let expected = ["refused Answer 550 5.1.1 no such user", later, later, later];
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(script, json!({}), &FOUR, &expected, flights).await;
}

#[tokio::test(start_paused = true)]
async fn recipients_above_the_limit_of_one_mail_get_the_next() {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let script: Script = |connection, mail, heard| match heard.split(' ').next().unwrap_or_default() {
        "MAIL" => {
            TAKEN.store(0, Ordering::SeqCst);
            Say("250 ok")
        }
        "RCPT" if TAKEN.fetch_add(1, Ordering::SeqCst) >= 3 => Say("452 4.5.3 too many recipients"),
        _ => accept_all(connection, mail, heard),
    };
    // The second mail has no more recipients than the server accepted for the first.
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT RCPT RCPT RCPT DATA | From . MAIL RCPT RCPT RCPT DATA | From . MAIL RCPT DATA \
                   | From . | QUIT";
    let seven = [&FOUR[..], &["i@j.example", "k@l.example", "m@n.example"]].concat();
    let (open, server) = start(script, json!({}), None);
    assert_eq!(deliver_all(&*open, multicast(&seven)).await, [OK; 7]);
    open.close().await;
    assert_eq!(server.seen.lock().flights.join(" | "), flights);
}

#[tokio::test(start_paused = true)]
async fn after_a_session_ends_a_multicast_continues_with_undecided_recipients() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, "RCPT TO:<a@b.example>") => Say("550 5.1.1 no such user"),
        (1, "RCPT TO:<e@f.example>") => Last("421 enough"),
        _ => accept_all(connection, mail, heard),
    };
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | EHLO | MAIL RCPT RCPT RCPT DATA | From . | QUIT";
    check_multicast(script, json!({}), &FOUR, &["refused Answer 550 5.1.1 no such user", OK, OK, OK], flights).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_multicast_defers_its_recipients() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (_, "RCPT TO:<a@b.example>") => Say("550 5.1.1 no such user"),
        (1, ".") => Close,
        _ => accept_all(connection, mail, heard),
    };
    let lost = "deferred Connection the server closed the connection";
    let flights = "EHLO | MAIL RCPT RCPT RCPT RCPT DATA | From .";
    check_multicast(script, json!({}), &FOUR, &["refused Answer 550 5.1.1 no such user", lost, lost, lost], flights)
        .await;
}

#[tokio::test(start_paused = true)]
async fn refusals_after_the_envelope() {
    let script: Script = |connection, mail, heard| match (mail, heard) {
        (1, "DATA") => Say("451 no room"),
        (2, ".") => Say("554 5.7.1 spam"),
        (3, ".") => Say("452 4.3.1 disk full"),
        _ => accept_all(connection, mail, heard),
    };
    check(
        script,
        ["deferred Answer 451 no room", "refused Answer 554 5.7.1 spam", "deferred Answer 452 4.3.1 disk full"],
        1,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn too_many_recipients_is_not_for_good() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("RCPT") => Say("552 too many recipients"),
        Some("DATA") => Say("503 no"),
        _ => accept_all(connection, mail, heard),
    };
    check(script, ["deferred Answer 552 too many recipients"; 3], 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_session_ended_between_mails_costs_nothing() {
    // 421 in place of the reply to the second MAIL; then on the third mail the connection just closes.
    let script: Script = |connection, mail, heard| match (connection, mail, heard.split(' ').next()) {
        (1, 2, Some("MAIL")) => Last("421 enough mails for one session"),
        (2, 4, Some("MAIL")) => Close,
        _ => accept_all(connection, mail, heard),
    };
    let server = check(script, [OK, OK, OK], 3).await;
    assert_eq!(server.seen.lock().contents.len(), 3, "nothing is sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_closing_server_says_so_after_the_content() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Last("421 shutting down"),
        _ => accept_all(connection, mail, heard),
    };
    check(script, ["deferred Answer 421 shutting down", OK, OK], 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_defers_under_the_same_id() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Close,
        _ => accept_all(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let first = deliver(&*open, &["a@b.example", "c@d.example"]).await;
    assert_eq!(first, ["deferred Connection the server closed the connection", OK]);
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    let ids = |content: &String| content.lines().find(|line| line.starts_with("Message-ID:")).map(str::to_owned);
    let seen = server.seen.lock();
    let ids: Vec<_> = seen.contents.iter().map(ids).collect();
    assert_eq!(ids[0].as_deref(), Some("Message-ID: <n-7-0.test@near.example>"));
    assert_eq!(ids[0], ids[2], "the undecided mail is sent again under the same id");
    assert_eq!(ids.len(), 3, "and the other mail is sent once");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_times_out() {
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Silence,
        _ => accept_all(connection, mail, heard),
    };
    check(script, ["deferred Timeout no reply within 120 s", OK, OK], 2).await;
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("MAIL") => Silence,
        _ => accept_all(connection, mail, heard),
    };
    // After three such sessions the server is paused, and mails that have waited long enough are deferred.
    check(script, ["deferred Timeout no reply within 60 s"; 3], 3).await;
    // Single letters at intervals do not complete a reply.
    let script: Script = |connection, mail, heard| match (connection, heard.split(' ').next()) {
        (1, Some("DATA")) => Drip("354 go on"),
        _ => accept_all(connection, mail, heard),
    };
    check(script, [OK, OK, OK], 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_session_is_left_alone() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("MAIL") => Last("421 not now"),
        _ => accept_all(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let shown = deliver(&*open, &["a@b.example"; 100]).await;
    assert!(shown.iter().all(|shown| shown == "deferred Answer 421 not now"), "{shown:?}");
    assert!(server.connections() < 40, "{}", server.connections());
    assert!(open.down().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_greet_us_gets_nothing() {
    let script: Script = |_, _, _| Last("554 no service here");
    let (open, server) = start(script, json!({}), None);
    let expected = "deferred Answer the server does not greet us: 554 no service here";
    assert_eq!(deliver(&*open, &["a@b.example"; 3]).await, [expected; 3]);
    assert!(server.seen.lock().heard.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_content_that_breaks_off_is_not_sent_twice_at_once() {
    // The connection fails while the content is being sent: it is unknown whether the server accepted it.
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, "DATA") => Last("354 go on"),
        _ => accept_all(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let shown = deliver(&*open, &["a@b.example", "c@d.example"]).await;
    assert!(shown[0].starts_with("deferred Connection the "), "{shown:?}");
    assert_eq!(shown[1], OK);
    assert_eq!(server.seen.lock().contents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reply_without_end_is_no_reply() {
    static ENDLESS: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| format!("250-{}", "x".repeat(70_000)));
    let script: Script = |connection, mail, heard| match (connection, heard) {
        (1, ".") => Say(&ENDLESS),
        (2, ".") => Say("hello"),
        _ => accept_all(connection, mail, heard),
    };
    let (open, _) = start(script, json!({}), None);
    let shown = deliver(&*open, &["a@b.example", "c@d.example", "e@f.example"]).await;
    assert_eq!(shown[0], "deferred Connection the server's reply has no end");
    assert_eq!(shown[1..], ["deferred Connection this is not an SMTP reply: hello", OK]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_for_a_moment_is_waited_for() {
    let script: Script =
        |connection, mail, heard| if connection < 3 { Close } else { accept_all(connection, mail, heard) };
    check(script, [OK, OK, OK], 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_server_defers_all_mails_in_time() {
    let script: Script = |_, _, _| Close;
    let (open, server) = start(script, json!({}), None);
    let before = tokio::time::Instant::now();
    let shown = deliver(&*open, &["a@b.example"; 100]).await;
    assert!(before.elapsed() <= std::time::Duration::from_secs(16), "{:?}", before.elapsed());
    assert!(
        shown.iter().all(|shown| shown == "deferred Connection no connection to far.example:25: connection refused"),
        "{shown:?}"
    );
    assert!(server.connections() < 10, "it is left in peace");
    assert!(open.down().is_some());
}

#[tokio::test(start_paused = true)]
async fn size_is_declared_and_its_limit_respected() {
    let (open, server) = start(accept_all, json!({}), None);
    let (answers, mut answered) = mpsc::channel(4);
    let mut large = outgoing(0, "a@b.example");
    content_of(&mut large).text = Some("x".repeat(300_000));
    open.send(large, &answers).await;
    let shown = show(&answered.recv().await.expect("an answer").disposition);
    assert!(
        shown.starts_with("refused Format the mail has 3") && shown.ends_with("the server takes 200000"),
        "{shown}"
    );
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    assert!(server.seen.lock().heard.iter().any(|heard| heard.contains(" SIZE=")));
}

#[tokio::test(start_paused = true)]
async fn expired_and_unaddressable_mails_are_not_sent() {
    let (open, server) = start(accept_all, json!({}), None);
    let (answers, mut answered) = mpsc::channel(4);
    let mut late = outgoing(0, "a@b.example");
    Arc::make_mut(&mut late.message).expires_at = Some(late.message.formatted_at);
    open.send(late, &answers).await;
    assert_eq!(
        show(&answered.recv().await.expect("an answer").disposition),
        "refused Expired its time was over before it was sent"
    );
    let shown = deliver(&*open, &["a@b.example>\r\nRCPT TO:<x@y.example", "nobody"]).await;
    assert_eq!(shown[0], "refused Address `a@b.example>\\r\\nRCPT TO:<x@y.example` is not a mail address");
    assert_eq!(shown[1], "refused Address `nobody` is not a mail address");
    assert!(server.seen.lock().contents.is_empty());
}

#[tokio::test(start_paused = true)]
async fn sessions_make_room_and_do_not_sit_idle() {
    check_with(accept_all, json!({ "messages_per_session": 2 }), [OK, OK, OK], 2).await;
    let (open, server) = start(accept_all, json!({ "idle_timeout": "5s" }), None);
    deliver(&*open, &["a@b.example"]).await;
    // The clock is simulated: this advances it as soon as all tasks wait.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    deliver(&*open, &["a@b.example"]).await;
    assert_eq!(server.connections(), 2);
    assert!(server.seen.lock().heard.contains(&"QUIT".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn closing_and_dropping_answer_waiting_messages() {
    let script: Script =
        |connection, mail, heard| if heard == "." { Silence } else { accept_all(connection, mail, heard) };
    for close in [true, false] {
        let (open, _) = start(script, json!({}), None);
        let (answers, mut answered) = mpsc::channel(1);
        open.send_all((0..10).map(|number| outgoing(number, "a@b.example")).collect(), &answers).await;
        drop(answers);
        if close {
            open.close().await;
        } else {
            drop(open);
        }
        // Whether the mail was begun decides whether it counts as an attempt.
        let (mut begun, mut untried) = (0, 0);
        while let Some(answer) = answered.recv().await {
            match show(&answer.disposition).as_str() {
                "deferred Connection the channel was closed before there was an answer" => begun += 1,
                "deferred Untried the channel was closed before it was sent" => untried += 1,
                other => panic!("{other}"),
            }
        }
        assert_eq!(begun + untried, 10);
        assert!(untried > 0);
    }
}
