use std::{
    collections::HashMap,
    io::Write,
    process::{Command, Stdio},
    sync::Arc,
};

use serde_json::json;
use tocsin_connect::options::read;
use tocsin_feedback::return_address::{DeviceTag, Origin, Position, Purpose, Reference, Target};
use tocsin_model::{
    content::MailField,
    id::{SubscriberNumber, SubscriptionId},
    trace_context::TraceContext,
};
use tocsin_test_peers::{Peer, missing};
use tokio::sync::mpsc;

use super::{OK, deliver, deliver_all, scripted_server::*, start, start_in};
use crate::{
    channel::{Message, Outgoing, TracePosition},
    smtp::options::SmtpOptions,
    testing::{content_of, context, message, multicast, outgoing, show},
    token_signer::TokenSigner,
};

#[tokio::test(start_paused = true)]
async fn wide_addresses_need_the_extension() {
    let wide = "jürgen@exämple.org";
    let (open, server) = start(accept_all, json!({}), None);
    assert_eq!(deliver(&*open, &[wide]).await, [OK]);
    let heard = server.seen.lock().heard.clone();
    assert!(
        heard.iter().any(|heard| heard.starts_with("MAIL") && heard.ends_with(" BODY=8BITMIME SMTPUTF8")),
        "{heard:?}"
    );
    assert!(heard.contains(&"RCPT TO:<jürgen@xn--exmple-cua.org>".to_owned()), "{heard:?}");
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250-far.example\r\n250 PIPELINING"),
        _ => accept_all(connection, mail, heard),
    };
    let (open, server) = start(script, json!({}), None);
    let expected = "refused Address the address needs SMTPUTF8, which the server does not offer";
    assert_eq!(deliver(&*open, &[wide, "a@b.example"]).await, [expected, OK]);
    assert_eq!(server.seen.lock().contents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_domain_of_any_letters_needs_no_extension() {
    let script: Script = |connection, mail, heard| match heard {
        "EHLO [127.0.0.1]" => Say("250-far.example\r\n250 PIPELINING"),
        _ => accept_all(connection, mail, heard),
    };
    let options = json!({ "from": "Glocken <bells@glöckchen.example>", "return_path": "back@glöckchen.example" });
    let (open, server) = start(script, options, None);
    assert_eq!(deliver(&*open, &["a@例え.example"]).await, [OK]);
    let seen = server.seen.lock();
    assert!(seen.heard.contains(&"MAIL FROM:<back@xn--glckchen-o4a.example>".to_owned()), "{:?}", seen.heard);
    let content = &seen.contents[0];
    assert!(content.is_ascii() && content.contains("<a@xn--r8jz45g.example>"), "{content}");
}

#[tokio::test(start_paused = true)]
async fn header_fields_that_others_look_at() {
    for (options, expected) in [
        (json!({}), "Auto-Submitted: auto-generated\r\nPrecedence: bulk\r\n"),
        (json!({ "precedence": "list" }), "Auto-Submitted: auto-generated\r\nPrecedence: list\r\n"),
        (
            json!({ "precedence": "none", "headers": { "X-Kind": "k" } }),
            "Auto-Submitted: auto-generated\r\nX-Kind: k\r\n",
        ),
    ] {
        let (open, server) = start(accept_all, options, None);
        assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
        let seen = server.seen.lock();
        assert!(seen.contents[0].contains(expected), "{}", seen.contents[0]);
        assert!(seen.contents[0].contains("Message-ID: <n-7-0.test@near.example>\r\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn one_click_ends_the_subscription_of_a_mail_to_one() {
    let link = "https://tocsin.example/unsubscribe/15-abcdefghijklmnopqrstuv";
    for (options, count) in [(json!({}), 1), (json!({ "list_unsubscribe": false }), 0)] {
        let (open, server) = start(accept_all, options, None);
        let mut mails = multicast(&["a@b.example", "c@d.example", "e@f.example"]);
        mails.iter_mut().for_each(|mail| mail.unsubscribe = Some(link.into()));
        // The last is a separate mail.
        mails[2].message = Arc::new(message(2));
        assert_eq!(deliver_all(&*open, mails).await, [OK; 3]);
        let seen = server.seen.lock();
        assert!(
            !seen.contents[0].contains("List-Unsubscribe"),
            "the link would end the subscription of another recipient"
        );
        let expected = format!("List-Unsubscribe: <{link}>\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n");
        assert_eq!(seen.contents[1].matches(&expected).count(), count, "{}", seen.contents[1]);
    }
}

#[tokio::test(start_paused = true)]
async fn list_id_is_added_unless_present() {
    let own = json!({ "headers": { "list-id": "<ours.near.example>" } });
    for (options, expected, count) in [
        (json!({}), "List-Id: <quake.quakes.near.example>\r\n", 1),
        (own, "list-id: <ours.near.example>\r\n", 1),
        (json!({ "list_id": false }), "", 0),
    ] {
        let (open, server) = start(accept_all, options, None);
        assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
        let seen = server.seen.lock();
        let mail = &seen.contents[0];
        assert_eq!(mail.to_lowercase().matches("list-id: ").count(), count, "{mail}");
        assert!(mail.contains(expected), "{mail}");
    }
}

/// A mail with these fields of its own.
fn with_fields(fields: &[(MailField, &str)]) -> Outgoing {
    let mut mail = outgoing(0, "a@b.example");
    mail.unsubscribe = Some("https://tocsin.example/unsubscribe/15".into());
    content_of(&mut mail).mail = fields.iter().map(|(field, text)| (*field, (*text).to_owned())).collect();
    mail
}

#[tokio::test(start_paused = true)]
async fn s7_4_content_gives_senders_and_list_fields() {
    let allowed = || json!({ "fields_from_content": true, "dkim": [] });
    let list = "<mailto:un-1-2@in.example>, <http://n.example/api/subscriptions/1/unsubscribe?unsubscriptionCode=2>";
    let (open, server) = start(accept_all, allowed(), None);
    let fields = [
        (MailField::From, "News <news@own.example>"),
        (MailField::ReturnPath, "bn-1-2@in.example"),
        (MailField::ListId, "<http://n.example/fires%20east>"),
        (MailField::ListUnsubscribe, list),
    ];
    assert_eq!(deliver_all(&*open, vec![with_fields(&fields)]).await, [OK]);
    let plain = [(MailField::From, "news@own.example"), (MailField::ListUnsubscribe, "<mailto:un-1-2@in.example>")];
    assert_eq!(deliver_all(&*open, vec![with_fields(&plain)]).await, [OK]);
    let seen = server.seen.lock();
    let senders: Vec<&str> =
        seen.heard.iter().filter_map(|heard| heard.strip_prefix("MAIL FROM:")?.split(' ').next()).collect();
    assert_eq!(senders, ["<bn-1-2@in.example>", "<news@own.example>"]);
    for expected in [
        "From: \"News\" <news@own.example>\r\n",
        "List-ID: <http://n.example/fires%20east>\r\n",
        &format!("List-Unsubscribe: {list}\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"),
        "Message-ID: <n-7-0.test@own.example>\r\n",
    ] {
        // Long fields are folded (RFC 5322, 2.2.3).
        let unfolded = seen.contents[0].replace("\r\n ", " ");
        assert_eq!(unfolded.matches(expected).count(), 1, "{expected} in {}", seen.contents[0]);
    }
    assert_eq!(seen.contents[0].to_lowercase().matches("list-id:").count(), 1);
    assert!(seen.contents[1].contains("List-Unsubscribe: <mailto:un-1-2@in.example>\r\n"), "{}", seen.contents[1]);
    assert!(!seen.contents[1].contains("List-Unsubscribe-Post"), "there is no web address");
    // Addresses without a name have no angle brackets.
    for expected in ["From: news@own.example\r\n", "To: a@b.example\r\n"] {
        assert!(seen.contents[1].contains(expected), "{expected} in {}", seen.contents[1]);
    }
}

#[tokio::test(start_paused = true)]
async fn s7_4_content_gives_senders_only_where_the_channel_permits_it() {
    let (open, server) = start(accept_all, json!({}), None);
    let mail = with_fields(&[(MailField::From, "news@own.example")]);
    let refused = "refused Format the content gives fields of the mail, and the channel does not have \
                   `fields_from_content`";
    assert_eq!(deliver_all(&*open, vec![mail]).await, [refused]);
    let (open, _) = start(accept_all, json!({ "fields_from_content": true }), None);
    for (field, text) in [(MailField::From, "no address"), (MailField::ReturnPath, "a@b> SIZE=1\r\nDATA")] {
        let expected = format!("refused Format `{}` is not a mail address: `{}`", field.name(), text.escape_debug());
        assert_eq!(deliver_all(&*open, vec![with_fields(&[(field, text)])]).await, [expected]);
    }
    assert!(server.seen.lock().contents.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_mail_says_where_it_stands_in_a_trace_if_it_may() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let context = TraceContext::read(parent, None).expect("a context");
    for (options, expected) in [(json!({}), 0), (json!({ "trace_header": true }), 1)] {
        let (open, server) = start(accept_all, options, None);
        let mut mail = outgoing(0, "a@b.example");
        let place = TracePosition { context: context.clone(), parent: None, of: mail.id, attempt: 1 };
        mail.message = Arc::new(Message { place: Some(place), ..message(0) });
        assert_eq!(deliver_all(&*open, vec![mail]).await, [OK]);
        let seen = server.seen.lock();
        assert_eq!(seen.contents[0].matches(&format!("X-Trace-Parent: {parent}\r\n")).count(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn return_addresses_are_signed() {
    let options = json!({ "return_path": "back@near.example", "return_path_signed": true });
    let (open, server) = start(accept_all, options, None);
    assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK]);
    assert_eq!(deliver_all(&*open, multicast(&["a@b.example", "c@d.example"])).await, [OK; 2]);
    let (token_signer, seen) = (context().token_signer, server.seen.lock());
    let senders: Vec<&str> =
        seen.heard.iter().filter_map(|heard| heard.strip_prefix("MAIL FROM:<")?.split('>').next()).collect();
    assert!(
        senders.iter().all(|sender| sender.starts_with("back+") && sender.ends_with("@near.example")),
        "{senders:?}"
    );
    let addresses = token_signer.return_addresses_at("back@near.example").expect("an address");
    let returned: Vec<_> = senders.iter().map(|sender| addresses.verify(sender, message(0).formatted_at)).collect();
    let origins: Vec<Origin> = returned.into_iter().map(|found| *found.expect("signed").origin()).collect();
    let (id, purpose) = (outgoing(0, "").id, Purpose::Bounce);
    let one = Origin { purpose, reference: Reference::Notification(id), target: Target::Reported };
    let many = Origin { purpose, reference: Reference::Multicast(id.batch), target: Target::Reported };
    assert_eq!(origins, [one, many]);
}

#[tokio::test(start_paused = true)]
async fn an_installation_that_receives_feedback_signs_each_sender_and_offers_an_address_to_unsubscribe() {
    let mut context = context();
    let token_signer = TokenSigner::new(&[7; 32]).with_return_addresses("any@back.example", Position::WholeLocalPart);
    context.token_signer = Arc::new(token_signer.expect("an address"));
    let addresses = context.token_signer.return_addresses().expect("given").clone();
    let (open, server) = start_in(&context, accept_all, json!({}));
    let mut mail = outgoing(0, "a@b.example");
    (mail.subscriber, mail.subscription) = (Some(SubscriberNumber(3)), Some(SubscriptionId(15)));
    let (id, now) = (mail.id, mail.message.formatted_at);
    mail.unsubscribe = Some("https://t.example/u".into());
    assert_eq!(deliver_all(&*open, vec![mail]).await, [OK]);
    let seen = server.seen.lock();
    let sender = seen.heard.iter().find_map(|heard| heard.strip_prefix("MAIL FROM:<")?.split('>').next());
    let reference = Reference::Notification(id);
    let target = Target::Device(SubscriberNumber(3), DeviceTag::of("a@b.example"));
    let found = addresses.verify(sender.expect("a sender"), now).expect("signed");
    assert_eq!(*found.origin(), Origin { purpose: Purpose::Bounce, reference, target });
    let unfolded = seen.contents[0].replace("\r\n ", " ").replace("\r\n\t", " ");
    let field = unfolded.lines().find_map(|line| line.strip_prefix("List-Unsubscribe: ")).expect("the field");
    let address = field.strip_prefix("<https://t.example/u>, <mailto:").and_then(|rest| rest.split('?').next());
    let found = addresses.verify(address.expect("an address"), now).expect("signed");
    let target = Target::Subscription(SubscriptionId(15));
    assert_eq!(*found.origin(), Origin { purpose: Purpose::Unsubscribe, reference, target });
}

#[tokio::test(start_paused = true)]
async fn refusals_count_as_bounces_if_the_channel_counts_them() {
    let script: Script = |connection, mail, heard| match heard {
        _ if heard.starts_with("RCPT TO:<full") => Act::Say("550 5.2.2 mailbox full"),
        _ if heard.starts_with("RCPT TO:<none") => Act::Say("550 5.1.1 no such user"),
        _ => accept_all(connection, mail, heard),
    };
    let refused = |kind: &str, text: &str| format!("refused {kind} {text}");
    for (options, hard, soft) in [
        (json!({}), "Answer", "Answer"),
        (json!({ "suppress_unknown": false }), "Answer", "Answer"),
        (json!({ "suppress_unknown": true }), "Bounced", "SoftBounced"),
    ] {
        let (open, _) = start(script, options, None);
        let answers = deliver(&*open, &["none@b.example", "full@b.example"]).await;
        assert_eq!(answers, [refused(hard, "550 5.1.1 no such user"), refused(soft, "550 5.2.2 mailbox full")]);
    }
}

#[tokio::test(start_paused = true)]
async fn no_string_makes_a_header_or_ends_a_mail() {
    let text = include_str!("../../../../../testdata/naughty-strings.json");
    let mut strings: Vec<String> = serde_json::from_str(text).expect("a list of strings");
    let breaks = ["\r\n", "\n", "\r", "\0", "\u{85}", "\u{2028}", "\u{b}", "\r\n\r\n", "\n.\n", "\r\n.\r\n", "\r.\r"];
    strings.extend(breaks.map(|line_end| format!("a{line_end}Bcc: x@y.example{line_end}")));
    strings.extend(
        breaks.map(|line_end| format!("ü{line_end}Bcc: x@y.example{line_end}MAIL FROM:<x@y.example>{line_end}")),
    );
    strings.push("=?utf-8?b?DQpCY2M6IHhAeS5leGFtcGxl?=".into());
    strings.push("x".repeat(3000));
    strings.push("ü ".repeat(3000));
    let (open, server) = start(accept_all, json!({ "headers": { "X-Note": "a\r\nBcc: x@y.example" } }), None);
    let (answers, mut answered) = mpsc::channel(strings.len());
    for (number, string) in strings.iter().enumerate() {
        let mut mail = outgoing(number as u32, "a@b.example");
        Arc::make_mut(&mut mail.message).message_id = string.chars().take(100).collect();
        content_of(&mut mail).subject = Some(string.clone());
        content_of(&mut mail).text = Some(string.clone());
        content_of(&mut mail).html = (number % 2 == 0).then(|| string.clone());
        open.send(mail, &answers).await;
    }
    for string in &strings {
        let answer = answered.recv().await.expect("an answer");
        assert_eq!(show(&answer.disposition), OK, "{string:?}");
    }
    let seen = server.seen.lock();
    assert_eq!(seen.contents.len(), strings.len());
    let known = [
        "from",
        "to",
        "subject",
        "date",
        "message-id",
        "auto-submitted",
        "precedence",
        "list-id",
        "x-note",
        "mime-version",
        "content-type",
        "content-transfer-encoding",
    ];
    for (content, string) in seen.contents.iter().zip(&strings) {
        let (head, _) = content.split_once("\r\n\r\n").expect("a head and a body");
        let mut count = HashMap::new();
        for line in head.split("\r\n").filter(|line| !line.starts_with([' ', '\t'])) {
            let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
            assert!(known.contains(&name.as_str()), "{line:?} from {string:?}");
            *count.entry(name).or_insert(0) += 1;
        }
        assert!(count.values().all(|count| *count == 1), "{count:?} from {string:?}");
        assert!(content.split("\r\n").all(|line| line.len() <= 998 && !line.contains('\0')), "{string:?}");
    }
}

/// Python: parses mails, one JSON text a line; prints the addresses of `From` and `Reply-To` of each.
const ADDRESSES: &str = "
import json, sys
from email import message_from_string, policy
for line in sys.stdin:
    mail = message_from_string(json.loads(line), policy=policy.default)
    names = ['from', 'reply-to']
    print(json.dumps([[one.addr_spec for one in mail[name].addresses] for name in names] + [len(mail.get_all('from'))]))
";

#[tokio::test(start_paused = true)]
async fn display_names_cannot_change_the_sender() {
    if missing(&[Peer::Python]) {
        return;
    }
    let text = include_str!("../../../../../testdata/naughty-strings.json");
    let mut strings: Vec<String> = serde_json::from_str(text).expect("a list of strings");
    let own = [
        "a\r\nBcc: x@y.example\r\n",
        "x@y.example,",
        "\"x\" <x@y.example>,",
        "a\\",
        "\\\" <x@y.example>",
        "(",
        "=?utf-8?q?=0d=0a?=",
    ];
    strings.extend(own.map(str::to_owned));
    let mut lines = String::new();
    for string in &strings {
        let from = format!("{string} <bells@near.example>");
        let options = json!({ "host": "far.example", "from": from, "reply_to": from });
        if read::<SmtpOptions>(options.as_object().expect("an object"), "").is_err() {
            continue;
        }
        let (open, server) = start(accept_all, json!({ "from": from, "reply_to": from }), None);
        assert_eq!(deliver(&*open, &["a@b.example"]).await, [OK], "{string:?}");
        let seen = server.seen.lock();
        assert!(seen.heard.iter().any(|heard| heard.starts_with("MAIL FROM:<bells@near.example>")), "{:?}", seen.heard);
        lines.push_str(&format!("{}\n", json!(seen.contents[0])));
    }
    assert!(lines.lines().count() > 500, "only {} of {} can be names", lines.lines().count(), strings.len());
    let mut python = Command::new(Peer::Python.path());
    python.args(["-c", ADDRESSES]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3 starts");
    let mut input = child.stdin.take().expect("a pipe");
    let written = lines.clone();
    let writer = std::thread::spawn(move || input.write_all(written.as_bytes()));
    let answer = child.wait_with_output().expect("an end");
    writer.join().expect("no panic").expect("it reads all");
    let said = String::from_utf8(answer.stdout).expect("UTF-8");
    for (answer, mail) in said.lines().zip(lines.lines()) {
        assert_eq!(answer, r#"[["bells@near.example"], ["bells@near.example"], 1]"#, "{mail}");
    }
    assert_eq!(said.lines().count(), lines.lines().count());
}
