//! The history of a message: who sent it, what its body said, what became of every attempt.

use serde_json::json;
use tocsin_model::exact_json::Exact;
use tocsin_store::spool::{HISTORY_FIRST, HISTORY_MAX, HistoryAction, HistoryEntry};

use super::*;
use crate::{edit::Edit, promote};

impl Bed {
    async fn post_as(
        &self,
        sender: &str,
        port: &str,
        body: &str,
        key: Option<&str>,
    ) -> Result<ReceiveResult, ReceiveError> {
        self.post_typed(sender, port, "application/json", body, key).await
    }

    async fn post_typed(
        &self,
        sender: &str,
        port: &str,
        content_type: &str,
        body: &str,
        key: Option<&str>,
    ) -> Result<ReceiveResult, ReceiveError> {
        let running = self.exchanges.find(&name("orders")).expect("it runs");
        let incoming = IncomingMessage {
            content_type: content_type.into(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            key: key.map(str::to_owned),
            sender: sender.into(),
            ..IncomingMessage::default()
        };
        self.exchanges.intake.receive(&running, &name(port), incoming).await
    }

    async fn history(&self, id: MessageId) -> Vec<HistoryEntry> {
        self.exchanges.operations.history(id).await.expect("read")
    }

    async fn edited(&self, id: MessageId, edit: Edit) {
        let only = MessageFilter { id: Some(id), ..MessageFilter::default() }.into();
        let edited = self.exchanges.operations.edit(&only, &edit, "ann").await.expect("edited");
        assert_eq!((edited.messages, edited.unchanged), (vec![id], vec![]));
    }

    /// A property as text; empty if there is none.
    async fn property(&self, id: MessageId, property: &str) -> String {
        promote::text_of(&self.message(id).await.head, property).unwrap_or_default()
    }
}

fn patch(text: &str) -> Edit {
    Edit { patch: Some(Exact::read(text.as_bytes()).expect("JSON")), ..Edit::default() }
}

fn acts(history: &[HistoryEntry]) -> Vec<&'static str> {
    history.iter().map(|entry| entry.act.word()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a8_each_sender_has_idempotency_keys_of_its_own_also_after_a_restart() {
    let mut bed = Bed::start().await;
    let first = bed.post_as("k1", "questions", ORDER, Some("1")).await.expect("taken");
    let other = bed.post_as("k2", "questions", ORDER, Some("1")).await.expect("taken");
    assert_ne!(first.id, other.id, "another sender's reply is not its own");
    assert!(!other.duplicate);
    assert_eq!(&*bed.message(first.id).await.sender, "k1");
    bed.restart().await;
    for (sender, id) in [("k1", first.id), ("k2", other.id)] {
        let again = bed.post_as(sender, "questions", ORDER, Some("1")).await.expect("taken");
        assert_eq!((again.id, again.duplicate), (id, true));
    }
    let reused = bed.post_as("k2", "questions", r#"{"type": "order", "order": 8}"#, Some("1")).await;
    assert!(matches!(reused, Err(ReceiveError::KeyReused(id)) if id == other.id), "{reused:?}");
    let third = bed.post_as("k3", "questions", r#"{"type": "order", "order": 8}"#, Some("1")).await.expect("taken");
    assert!(!third.duplicate, "use of the key by others is not revealed");
}

#[tokio::test(flavor = "multi_thread")]
async fn b18_an_empty_split_keeps_the_message() {
    let bed = Bed::start().await;
    let split = |more: &str| {
        let text = definition(&bed.a, &bed.b, "");
        text.replace(
            "orders: { mode: one_way",
            &format!("orders: {{ mode: one_way, pipeline: [split: {{ json: $.items{more} }}]"),
        )
    };
    bed.define(&split("")).await;
    let sent = bed.post("orders", r#"{"items": []}"#, None).await.expect("stored");
    let ReplyStatus::Suspended(reason) = &sent.reply_status else { panic!("{sent:?}") };
    assert!(reason.contains("`split`") && reason.contains("may_be_empty"), "{reason}");
    bed.edited(sent.id, patch(r#"{"items": [{"type": "note", "order": 1}]}"#)).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "ann").await.expect("resumed");
    bed.a.asked_times(1).await;
    assert_eq!(bed.message(sent.id).await.ending, Some(Ending::Split));
    bed.define(&split(", may_be_empty: true")).await;
    let empty = bed.post("orders", r#"{"items": []}"#, None).await.expect("stored");
    assert_eq!((empty.reply_status, bed.message(empty.id).await.ending), (ReplyStatus::Stored, Some(Ending::Split)));
}

#[tokio::test(flavor = "multi_thread")]
async fn b19_an_edit_writes_only_what_it_names() {
    let bed = Bed::start().await;
    let body = r#"{"type": "ordr", "order": 5, "z": 123456789012345678901234567890, "price": 1.10, "big": 1e400, "zero": -0, "a": 0.1e1}"#;
    let sent = bed.post("orders", body, None).await.expect("stored");
    bed.edited(sent.id, patch(r#"{"type": "note", "more": 2.50}"#)).await;
    let edited = bed.exchanges.operations.body(sent.id).await.expect("read").expect("there");
    let expected = r#"{"type":"note","order":5,"z":123456789012345678901234567890,"price":1.10,"big":1e400,"zero":-0,"a":0.1e1,"more":2.50}"#;
    assert_eq!(std::str::from_utf8(&edited).expect("text"), expected);
    bed.exchanges.operations.resume(MessageFilter::default(), "ann").await.expect("resumed");
    assert_eq!(bed.a.asked_times(1).await[0].body, expected);
    let marked = bed.post("orders", "\u{feff}{\"type\": \"ordr\", \"n\": 1.10}", None).await.expect("stored");
    bed.edited(marked.id, patch(r#"{"more": 1}"#)).await;
    let edited = bed.exchanges.operations.body(marked.id).await.expect("read").expect("there");
    assert_eq!(std::str::from_utf8(&edited).expect("text"), r#"{"type":"ordr","n":1.10,"more":1}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn b20_properties_follow_the_body_that_an_edit_makes() {
    let bed = Bed::start().await;
    let sent = bed.post("orders", r#"{"type": "ordr", "order": 7}"#, None).await.expect("stored");
    assert_eq!(bed.property(sent.id, "order").await, "7");
    bed.edited(sent.id, patch(r#"{"order": null}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "", "the body has none any more");
    assert_eq!(bed.property(sent.id, "sender").await, "a", "it came from a header, and stays");
    bed.edited(sent.id, patch(r#"{"order": "x"}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "", "a text is no integer");
    bed.edited(sent.id, patch(r#"{"order": 8}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "8");
    let set = Edit { properties: vec![(name("order"), json!(9))], ..Edit::default() };
    bed.edited(sent.id, set).await;
    bed.edited(sent.id, patch(r#"{"other": 1}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "8", "the body says it again");
    bed.edited(sent.id, Edit { properties: vec![(name("order"), json!(9))], ..patch(r#"{"order": null}"#) }).await;
    bed.edited(sent.id, patch(r#"{"other": 2}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "9", "an operator set it, and the body says nothing");
    bed.edited(sent.id, Edit { content_type: Some("text/plain".into()), ..Edit::default() }).await;
    assert_eq!(bed.property(sent.id, "type").await, "", "what is no JSON any more has no place of JSON");
    bed.edited(sent.id, Edit { content_type: Some("Application/JSON".into()), ..patch(r#"{"type": "note"}"#) }).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "ann").await.expect("resumed");
    assert_eq!(bed.a.asked_times(1).await[0].path, "/replies/9", "it is routed anew by its new properties");
}

#[tokio::test(flavor = "multi_thread")]
async fn b20_what_a_step_promoted_from_the_body_follows_it_and_what_an_envelope_gave_stays() {
    let bed = Bed::start().await;
    let steps = "orders: { mode: one_way, pipeline: [promote: { order: $.head.nr, type: $.kind }, transform: { jmespath: part }]";
    bed.define(&definition(&bed.a, &bed.b, "").replace("orders: { mode: one_way", steps)).await;
    let body = r#"{"kind": "ordr", "head": {"nr": 5}, "part": {"head": {"nr": 5}, "x": 1}}"#;
    let sent = bed.post("orders", body, None).await.expect("stored");
    assert_eq!(
        (bed.property(sent.id, "order").await, bed.property(sent.id, "type").await),
        ("5".into(), "ordr".into())
    );
    bed.edited(sent.id, patch(r#"{"x": 2}"#)).await;
    assert_eq!(bed.property(sent.id, "type").await, "ordr", "the envelope gave it");
    bed.edited(sent.id, patch(r#"{"head": {"nr": 6}}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "6", "the body gives it at the place of the step");
    bed.edited(sent.id, patch(r#"{"head": null}"#)).await;
    assert_eq!(bed.property(sent.id, "order").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn b21_properties_are_promoted_from_all_spellings_of_json_and_xml() {
    let bed = Bed::start().await;
    let places = |kind: &str| match kind {
        "xml" => ["/order/type", "/order/@id", "/order/@paid", "/order/price", "/order/@at"],
        _ => ["$.type", "$.id", "$.paid", "$.price", "$.at"],
    };
    let define = |kind: &str| {
        let [what, id, paid, price, at] = places(kind);
        let properties = format!(
            "properties:\n  type: {{ {kind}: {what} }}\n  order: {{ type: integer, {kind}: {id} }}\n  paid: {{ type: boolean, {kind}: \
             {paid} }}\n  price: {{ type: number, {kind}: {price} }}\n  at: {{ type: timestamp, {kind}: {at} }}"
        );
        let old = "properties:\n  type: $.type\n  order: { type: integer, json: $.order }";
        definition(&bed.a, &bed.b, "").replace(old, &properties)
    };
    bed.define(&define("json")).await;
    for kind in
        ["application/json", "APPLICATION/JSON", "application/vnd.a+JSON; charset=\"utf-8\"", " text/json ;x=1", ""]
    {
        let sent = bed.post_typed("k", "orders", kind, r#"{"type": "x", "id": 7}"#, None).await.expect("stored");
        assert_eq!(bed.property(sent.id, "order").await, "7", "{kind}");
    }
    for kind in ["application/jsonx", "text/plain; a=application/json", "application/xml"] {
        let sent = bed.post_typed("k", "orders", kind, r#"{"type": "x", "id": 7}"#, None).await.expect("stored");
        assert_eq!(bed.property(sent.id, "order").await, "", "{kind}");
    }
    let large =
        bed.post_typed("k", "orders", "application/json", r#"{"price": 1e400, "id": 7}"#, None).await.expect("stored");
    assert_eq!(bed.property(large.id, "order").await, "7", "a number beyond a double hides nothing else");
    bed.define(&define("xml")).await;
    let dated = bed.post_typed("k", "orders", "text/xml", "<order at='2026-11-26Z'><type>x</type></order>", None).await;
    let dated = dated.expect("stored").id;
    bed.edited(dated, Edit { body: Some("<order><type>x</type></order>".into()), ..Edit::default() }).await;
    assert_eq!(bed.property(dated, "at").await, "", "an instant of the body goes with it, too");
    for (attributes, price, order, paid, shown) in [
        ("id='007' paid='1' at='2026-11-26T10:00:00+01:00'", " 1.50 ", "7", "true", "1.5"),
        ("id='+7' paid='true' at='2026-11-26Z'", "+.5", "7", "true", "0.5"),
        ("id=' -0 ' paid='0' at='2026-11-26+02:00'", "1E2", "0", "false", "100.0"),
        ("id='&#10;42&#9;' paid=' false ' at='2026-11-26T10:00:00Z'", "-5.", "42", "false", "-5.0"),
    ] {
        for kind in ["text/XML", "Application/Soap+XML; charset=utf-8"] {
            let body = format!("<order {attributes}><type>x</type><price>{price}</price></order>");
            let sent = bed.post_typed("k", "orders", kind, &body, None).await.expect("stored");
            let found = [
                bed.property(sent.id, "order").await,
                bed.property(sent.id, "paid").await,
                bed.property(sent.id, "price").await,
            ];
            assert_eq!(found, [order, paid, shown], "{body}");
            assert!(bed.property(sent.id, "at").await.starts_with("2026-11-2"), "{body}");
        }
    }
    for wrong in ["id='7a'", "id='0x7'", "id=''", "id='1_000'", "id='--7'", "id='99999999999999999999'", "id='7.5'"] {
        let sent = bed.post_typed("k", "orders", "text/xml", &format!("<order {wrong}/>"), None).await.expect("stored");
        assert_eq!(bed.property(sent.id, "order").await, "", "{wrong}");
    }
    for wrong in ["NaN", "INF", "inf", "1,5", "TRUE"] {
        let body = format!("<order paid='{wrong}'><price>{wrong}</price></order>");
        let sent = bed.post_typed("k", "orders", "text/xml", &body, None).await.expect("stored");
        assert_eq!(
            (bed.property(sent.id, "price").await, bed.property(sent.id, "paid").await),
            (String::new(), String::new()),
            "{wrong}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_every_attempt_and_act_is_in_the_history() {
    let spare = FarSide::start().await;
    let backup = format!(
        r#"backup: {{ protocol: http, options: {{ url: "{}/b", allow_networks: [127.0.0.1] }}, retry: {{ delays: [1ms], jitter: 0% }} }}"#,
        spare.url
    );
    let mut bed = Bed::with(&backup).await;
    bed.b.failures.lock().extend([503, 500, 503]);
    spare.failures.lock().extend([502, 400]);
    let sent = bed.post("orders", ORDER, None).await.expect("taken");
    bed.suspended_times(1).await;
    bed.edited(sent.id, patch(r#"{"note": "by hand"}"#)).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "ben").await.expect("resumed");
    bed.ended(sent.id).await;
    bed.restart().await;
    let history = bed.history(sent.id).await;
    assert_eq!(
        acts(&history),
        ["failed", "failed", "backup", "failed", "suspended", "edited", "resumed", "sent"],
        "{history:?}"
    );
    let texts: Vec<&str> = history.iter().map(|entry| entry.text.get(..3).unwrap_or_default()).collect();
    assert_eq!(texts[..5], ["503", "500", "503", "502", "400"]);
    assert_eq!((&*history[5].by, &*history[6].by), ("ann", "ben"));
    assert!(
        history[4].on_backup
            && !history[1].on_backup
            && history.iter().all(|entry| entry.port == Some(name("b")) || entry.act == HistoryAction::Edited)
    );
    assert_eq!(history.iter().map(|entry| entry.number).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);

    let plain = bed.post("orders", ORDER, None).await.expect("taken");
    bed.ended(plain.id).await;
    assert_eq!(bed.history(plain.id).await, [], "what goes well is in its leg alone");
    let lost = bed.post("orders", r#"{"type": "ordr"}"#, None).await.expect("stored");
    bed.exchanges.operations.resume(MessageFilter::default(), "ben").await.expect("tried");
    bed.exchanges.operations.end(MessageFilter::default(), "cy").await.expect("ended");
    assert_eq!(acts(&bed.history(lost.id).await), ["suspended", "resumed", "suspended", "ended"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b22_a_history_is_bounded() {
    let bed = Bed::start().await;
    let lost = bed.post("orders", r#"{"type": "ordr"}"#, None).await.expect("stored");
    let only = || MessageFilter { id: Some(lost.id), ..MessageFilter::default() };
    for _ in 0..HISTORY_MAX / 2 + 5 {
        bed.exchanges.operations.resume(only(), "ben").await.expect("tried");
    }
    let numbers: Vec<u32> = bed.history(lost.id).await.iter().map(|entry| entry.number).collect();
    let last = 1 + 2 * (HISTORY_MAX / 2 + 5);
    assert_eq!((numbers.len(), numbers.last()), (HISTORY_MAX as usize, Some(&last)));
    assert_eq!(numbers[..HISTORY_FIRST as usize], (1..=HISTORY_FIRST).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn b35_the_nearest_routes_are_explained_by_what_decides() {
    let bed = Bed::start().await;
    let routes = r#"routes:
  either: { when: "message.type == 'x' || message.order == 1", to: a }
  long: { when: "message.type == 'y' && message.order > 100 && message.sender == 'z'", to: a }
  counted: { when: "message.order * 2 == 9", to: a }
"#;
    let text = definition(&bed.a, &bed.b, "");
    let start = text.find("routes:").expect("routes");
    bed.define(&format!("{}{routes}", &text[..start])).await;
    let reason = |received: ReceiveResult| match received.reply_status {
        ReplyStatus::Suspended(reason) => reason,
        other => panic!("{other:?}"),
    };
    let missed = reason(bed.post("orders", ORDER, None).await.expect("stored"));
    assert!(
        missed.contains("`either` lacks (") && missed.contains(r#"type == "x""#) && missed.contains("order == 1"),
        "{missed}"
    );
    assert!(!missed.contains("lacks its predicate"), "{missed}");
    assert!(missed.contains("`counted` does not match"), "{missed}");
    let places: Vec<usize> = ["`either`", "`long`"].iter().map(|route| missed.find(route).expect("reported")).collect();
    assert!(places[0] < places[1], "the nearest comes first: {missed}");

    bed.exchanges.operations.set_port(&name("orders"), &name("a"), Some(PortState::Off)).await.expect("off");
    let off = reason(bed.post("orders", r#"{"type": "x", "order": 7}"#, None).await.expect("stored"));
    assert!(off.contains("nearest: `either` matches, and its send port `a` is off"), "{off}");
}
