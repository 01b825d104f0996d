//! A mail as an item: envelope, headers, texts and attachments.

use std::collections::HashSet;

use mail_parser::{Address, HeaderValue, Message, MessageParser};
use serde_json::{Map, Value, json};
use tocsin_mail_in::Envelope;
use tocsin_model::{date_text, time::Timestamp};

use super::{
    heads,
    heads::body_of,
    parts::{Parts, text_of},
};
use crate::seen_items::hash;

/// The members of an item.
pub(super) const MEMBERS: [&str; 20] = [
    "subject",
    "from",
    "from_name",
    "to",
    "cc",
    "reply_to",
    "message_id",
    "in_reply_to",
    "references",
    "date",
    "text",
    "html",
    "attachments",
    "headers",
    "sender",
    "recipients",
    "client",
    "user",
    "size",
    "automatic",
];
/// Most headers in the list; the first of each name.
const HEADERS_MAX: usize = 200;

/// A parsed mail.
pub(super) struct Mail {
    /// The members of the item.
    pub item: Map<String, Value>,
    /// The de-duplication key, equal when the mail is sent again; `None` without a `Message-ID`.
    pub key: Option<String>,
    /// The number of servers it passed through.
    pub hops: usize,
    /// Whether it was sent automatically.
    pub is_automatic: bool,
}

/// Parses a mail. Real mail often violates the standards, so parsing never fails.
pub(super) fn read(envelope: &Envelope, bytes: &[u8]) -> Mail {
    let mut item = Map::new();
    item.insert("headers".to_owned(), json!({}));
    let mut mail = Mail { item, key: None, hops: 0, is_automatic: envelope.from.is_empty() };
    let right = heads::repair_header(bytes);
    match headers_of(&right) {
        Some(message) => {
            mail.hops = message.headers().iter().filter(|one| one.name().eq_ignore_ascii_case("received")).count();
            mail.is_automatic |= is_automatic(&message);
            mail.key = key(envelope, &message, &right);
            insert_headers(&message, &mut mail.item);
            Parts::of(bytes).add_to(&mut mail.item);
        }
        None => drop(mail.item.insert("text".to_owned(), text_of(bytes).into())),
    }
    let said = json!({
        "sender": envelope.from,
        "recipients": envelope.to,
        "client": envelope.peer.ip().to_canonical().to_string(),
        "user": envelope.user,
        "size": bytes.len(),
        "automatic": mail.is_automatic,
    });
    if let Value::Object(said) = said {
        mail.item.extend(said);
    }
    mail
}

/// The headers of a mail or a part, if there are any.
fn headers_of(bytes: &[u8]) -> Option<Message<'_>> {
    let mut message = MessageParser::default().parse_headers(bytes).filter(|message| !message.parts.is_empty())?;
    let mut seen = HashSet::new();
    message.parts[0].headers.retain(|header| {
        let name = header.name().to_ascii_lowercase();
        !SINGLE_HEADERS.contains(&name.as_str()) || seen.insert(name)
    });
    Some(message)
}

/// Header fields that a mail has once (RFC 5322, section 3.6). Of several the first counts, as mail programs show it.
const SINGLE_HEADERS: [&str; 10] =
    ["date", "from", "sender", "reply-to", "to", "cc", "message-id", "in-reply-to", "references", "subject"];

fn insert_headers(message: &Message, item: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            item.insert(name.to_owned(), value);
        }
    };
    put("subject", message.subject().map(Value::from));
    let from = message.from().and_then(Address::first);
    put("from", from.and_then(|from| from.address()).map(Value::from));
    put("from_name", from.and_then(|from| from.name()).map(Value::from));
    put("to", addresses(message.to()));
    put("cc", addresses(message.cc()));
    put("reply_to", message.reply_to().and_then(Address::first).and_then(|to| to.address()).map(Value::from));
    put("message_id", message.message_id().map(Value::from));
    put("in_reply_to", ids(message.in_reply_to()).map(|mut ids| ids.swap_remove(0)));
    put("references", ids(message.references()).map(Value::from));
    put("date", date(message).map(Value::from));
    put("headers", Some(headers(message)));
}

/// The date, in its own time zone where the library parses it as the same time. A date without a certain zone is left
/// out.
fn date(message: &Message) -> Option<String> {
    let written = message.header_raw("Date")?;
    let time = date_text::parse(written, None).ok()?;
    let theirs = message.date().filter(|date| date.is_valid()).map(mail_parser::DateTime::to_rfc3339);
    let is_same = |text: &String| text.parse::<Timestamp>().is_ok_and(|theirs| theirs == time);
    Some(theirs.filter(is_same).unwrap_or_else(|| time.to_string()))
}

/// The de-duplication key: equal when a client sends a mail again, and different otherwise. Some senders give all their
/// mails one `Message-ID`, and relays add headers.
fn key(envelope: &Envelope, message: &Message, bytes: &[u8]) -> Option<String> {
    let id = message.message_id().filter(|id| !id.is_empty())?;
    let mut recipients: Vec<String> = envelope.to.iter().map(|to| to.to_lowercase()).collect();
    recipients.sort_unstable();
    let date = message.header_raw("Date").unwrap_or_default();
    Some(hash(&[id.as_bytes(), date.as_bytes(), recipients.join("\n").as_bytes(), body_of(bytes)]))
}

fn addresses(found: Option<&Address>) -> Option<Value> {
    let addresses: Vec<&str> = found?.iter().filter_map(|one| one.address()).collect();
    (!addresses.is_empty()).then(|| addresses.into())
}

fn ids(value: &HeaderValue) -> Option<Vec<Value>> {
    let ids = value.as_text_list().unwrap_or_default();
    let ids: Vec<Value> = ids.iter().map(|id| Value::from(id.as_ref())).collect();
    (!ids.is_empty()).then_some(ids)
}

fn headers(message: &Message) -> Value {
    let mut headers = Map::new();
    for header in message.headers().iter() {
        let name = header.name().to_ascii_lowercase();
        if headers.len() >= HEADERS_MAX {
            break;
        }
        if !headers.contains_key(&name) {
            headers.insert(name, header_text(message, header).into());
        }
    }
    Value::Object(headers)
}

/// A header on one line: decoded if it is text, else as written.
fn header_text(message: &Message, header: &mail_parser::Header) -> String {
    if let HeaderValue::Text(text) = header.value() {
        return text.to_string();
    }
    let written = message.raw_message.get(header.offset_start() as usize..header.offset_end() as usize);
    let written = String::from_utf8_lossy(written.unwrap_or_default());
    written.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether it was sent automatically: RFC 3834, RFC 2919, and older conventions.
fn is_automatic(message: &Message) -> bool {
    let says = |name: &'static str, test: &dyn Fn(&str) -> bool| {
        message.header_raw(name).is_some_and(|value| test(value.trim().to_ascii_lowercase().as_str()))
    };
    says("Auto-Submitted", &|value| !value.is_empty() && value != "no")
        || says("Precedence", &|value| matches!(value, "bulk" | "junk" | "list" | "auto_reply"))
        || says("List-Id", &|value| !value.is_empty())
        || says("X-Auto-Response-Suppress", &|value| !value.is_empty() && value != "none")
}

#[cfg(test)]
mod tests {
    use super::{super::parts::PARTS_MAX, *};

    fn envelope() -> Envelope {
        Envelope {
            from: "bounce@example.org".to_owned(),
            to: vec!["b@x".to_owned(), "A@x".to_owned()],
            peer: "[::ffff:192.0.2.1]:25".parse().expect("an address"),
            host: "me".to_owned(),
            user: None,
            encrypted: false,
        }
    }

    fn item(mail: &str) -> Value {
        Value::Object(read(&envelope(), mail.replace('\n', "\r\n").as_bytes()).item)
    }

    #[test]
    fn a_mail_of_many_parts_is_read() {
        let mail = "Received: from a\n\tby b\nFrom: =?utf-8?Q?J=C3=B6?= <jo@example.org>\nTo: A <a@x>, b@x\nCc: c@x\nReply-To: r@x\nSubject: =?utf-8?B?RXJkYmViZW46?=\n =?utf-8?Q?_St=C3=A4rke?= 5\n\
            Message-ID: <1@x>\nIn-Reply-To: <0@x>\nReferences: <00@x> <0@x>\nDate: Sun, 22 Nov 2026 12:00:00 +0200\nX-Magnitude: 6.1\nX-Magnitude: 7\n\
            Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: multipart/alternative; boundary=c\n\n--c\n\
            Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: quoted-printable\n\nSt=E4rke\n--c\nContent-Type: text/html\n\n<b>Staerke</b>\n--c--\n--b\n\
            Content-Type: application/pdf\nContent-Disposition: attachment; filename*=utf-8''K%C5%8Dbe.pdf\nContent-Transfer-Encoding: base64\n\nAAAA\n--b--\n";
        let item = item(mail);
        let headers = &item["headers"];
        assert_eq!((&headers["x-magnitude"], &headers["received"]), (&json!("6.1"), &json!("from a by b")));
        let mut rest = item.clone();
        rest.as_object_mut().expect("an object").remove("headers");
        assert_eq!(
            rest,
            json!({
                "subject": "Erdbeben: Stärke 5", "from": "jo@example.org", "from_name": "Jö", "to": ["a@x", "b@x"], "cc": ["c@x"],
                "reply_to": "r@x", "message_id": "1@x", "in_reply_to": "0@x", "references": ["00@x", "0@x"],
                "date": "2026-11-22T12:00:00+02:00", "text": "Stärke", "html": "<b>Staerke</b>",
                "attachments": [{"name": "Kōbe.pdf", "type": "application/pdf", "size": 3}],
                "sender": "bounce@example.org", "recipients": ["b@x", "A@x"], "client": "192.0.2.1", "user": null,
                "size": mail.len() + mail.matches('\n').count(), "automatic": false,
            })
        );
    }

    #[test]
    fn the_first_of_repeated_headers_counts() {
        let mail = "Subject: a\nFrom: a@x\nDate: Sun, 22 Nov 2026 12:00:00 +0200\nSubject: b\nFrom: b@x\nDate: x\nX-Y: 1\nX-Y: 2\n\nx";
        let item = item(mail);
        assert_eq!(
            (&item["subject"], &item["from"], &item["headers"]["subject"]),
            (&json!("a"), &json!("a@x"), &json!("a"))
        );
        assert_eq!(item["date"], "2026-11-22T12:00:00+02:00");
        assert_eq!(item["headers"]["x-y"], "1");
    }

    #[test]
    fn automatic_mail_is_recognized() {
        let check = |header: &str, expected: bool| {
            assert_eq!(item(&format!("{header}\nSubject: x\n\nx"))["automatic"], json!(expected), "{header}");
        };
        check("Auto-Submitted: no", false);
        check("Auto-Submitted: auto-generated", true);
        check("Precedence: BULK", true);
        check("Precedence: first-class", false);
        check("List-Id: <news.example.org>", true);
        check("X-Other: x", false);
        let bounce = Envelope { from: String::new(), ..envelope() };
        assert!(read(&bounce, b"Subject: x\r\n\r\nx").is_automatic);
    }

    #[test]
    fn any_input_is_parsed() {
        for mail in
            ["", "\n", "no header", "Subject: x", "Content-Type: multipart/mixed; boundary=\n\n--\n--\n", "\0\0\0"]
        {
            let item = item(mail);
            assert_eq!(item["sender"], "bounce@example.org", "{mail:?}");
        }
        assert_eq!(item("Subject: only\n\nHi <b>there</b>\n")["text"], "Hi <b>there</b>\r\n");
        assert_eq!(
            item("Content-Type: text/html\n\n<p>Hi <b>there</b></p>")["text"].as_str().map(str::trim),
            Some("Hi there")
        );
    }

    /// Nested and very many parts, which have made other parsers unusably slow.
    #[test]
    fn adversarial_mails_are_parsed_quickly() {
        let many = format!(
            "Content-Type: multipart/mixed; boundary=b\r\n\r\n{}--b--\r\n",
            "--b\r\nContent-Type: text/plain\r\n\r\nx\r\n".repeat(100_000)
        );
        let read_many = read(&envelope(), many.as_bytes());
        assert_eq!(read_many.item["text"].as_str().map(str::len), Some(2 * PARTS_MAX - 1));
        let deep: String =
            (0..20_000).map(|at| format!("Content-Type: multipart/mixed; boundary=b{at}\r\n\r\n--b{at}\r\n")).collect();
        read(&envelope(), deep.as_bytes());
        let open = format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{}", "--b\r\n".repeat(200_000));
        read(&envelope(), open.as_bytes());
        let nested: String = "Content-Type: message/rfc822\r\n\r\n".repeat(20_000);
        read(&envelope(), nested.as_bytes());
        let headers = "X: y\r\n".repeat(200_000);
        assert_eq!(read(&envelope(), headers.as_bytes()).item["headers"], json!({"x": "y"}));
    }

    #[test]
    fn d_nonstandard_headers_are_parsed() {
        let check = |mail: &str, member: &str, expected: Value| assert_eq!(item(mail)[member], expected, "{mail}");
        check("Subject: =?utf-8?B?U3TD?=\n =?utf-8?B?pHJrZQ==?= 5\n\nx", "subject", json!("Stärke 5"));
        check("Subject: =?utf-8?Q?St=C3?= =?utf-8?Q?=A4rke?=\n\nx", "subject", json!("Stärke"));
        check("From: =?utf-8?Q?J=C3?= =?utf-8?Q?=B6?= <jo@x>\n\nx", "from_name", json!("Jö"));
        check("Subject: grüße\n\nx", "subject", json!("grüße"));
        check("Subject: =?iso-2022-jp?B?GyRCRnxLXBsoQg==?=\n\nx", "subject", json!("日本"));
        check("Subject: =?koi8-r?Q?=D0=D2=C9?=\n\nx", "subject", json!("при"));
        let latin = Value::Object(read(&envelope(), b"Subject: gr\xfc\xdfe\r\n\r\nx").item);
        assert_eq!(latin["subject"], "grüße");
        let name = |header: &str| {
            let mail = format!(
                "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain\n\nx\n--b\n{header}\n\nx\n--b--\n"
            );
            item(&mail)["attachments"][0]["name"].clone()
        };
        for header in [
            "Content-Disposition: attachment; filename*=utf-8''K%C5%8Dbe.pdf",
            "Content-Disposition: attachment; filename*0*=utf-8''K%C5%8D; filename*1=be.pdf",
            "Content-Disposition: attachment; filename=\"=?utf-8?Q?K=C5?= =?utf-8?Q?=8Dbe.pdf?=\"",
            "Content-Disposition: attachment; filename=\"Kōbe.pdf\"",
            "Content-Type: application/pdf; name=\"Kōbe.pdf\"\nContent-Disposition: attachment",
        ] {
            assert_eq!(name(header), "Kōbe.pdf", "{header}");
        }
    }

    #[test]
    fn d_a_date_without_a_certain_zone_is_left_out() {
        let date = |date: &str| item(&format!("Date: {date}\nSubject: x\n\nx"))["date"].clone();
        assert_eq!(date("Sun, 22 Nov 2026 12:00:00 +0200"), "2026-11-22T12:00:00+02:00");
        let instant = |text: &str| {
            date(text).as_str().and_then(|text| text.parse::<Timestamp>().ok()).map(|time| time.to_string())
        };
        for text in [
            "Sun, 22 Nov 2026 11:00:00 CET",
            "22 Nov 26 10:00 GMT",
            "Sun, 22 Nov 2026 05:00:00 EST",
            "2026-11-22T10:00:00Z",
        ] {
            assert_eq!(instant(text).as_deref(), Some("2026-11-22T10:00:00Z"), "{text}");
        }
        for text in ["Sun, 22 Nov 2026 11:00:00 QQT", "Sun, 22 Nov 2026 11:00:00", "yesterday", ""] {
            assert_eq!(date(text), Value::Null, "{text}");
        }
        assert_eq!(item("Subject: x\n\nx")["date"], Value::Null);
    }

    #[test]
    fn d_texts_are_read_in_their_encoding() {
        let text = |head: &str, body: &[u8]| {
            let mail = [format!("{head}\r\nSubject: x\r\n\r\n").as_bytes(), body].concat();
            Value::Object(read(&envelope(), &mail).item)["text"].as_str().map(str::to_owned)
        };
        assert_eq!(text("Content-Type: text/plain", b"gr\xfc\xdfe \x80").as_deref(), Some("grüße €"));
        assert_eq!(text("Content-Type: text/plain; charset=us-ascii", b"gr\xfc\xdfe").as_deref(), Some("grüße"));
        assert_eq!(text("Content-Type: text/plain", "grüße".as_bytes()).as_deref(), Some("grüße"));
        assert_eq!(text("Content-Type: text/plain; charset=windows-1251", b"\xef\xf0\xe8").as_deref(), Some("при"));
        assert_eq!(
            text(
                "Content-Type: text/plain; charset=utf-8; format=flowed",
                b"one \r\ntwo\r\n  three\r\n> quoted \r\n> too\r\n-- \r\nme\r\n"
            )
            .as_deref(),
            Some("one two\r\n three\r\n> quoted too\r\n-- \r\nme\r\n")
        );
        assert_eq!(
            text("Content-Type: text/plain; format=Flowed; DelSp=yes", b"gar \r\nden\r\n").as_deref(),
            Some("garden\r\n")
        );
    }
}
