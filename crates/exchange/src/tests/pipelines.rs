//! Steps at the ports of an exchange that runs: what is stored, what leaves, and what waits for an operator.

use super::*;
use crate::edit::Edit;

impl Bed {
    /// Applies the definition with more in the ports: each is the text before which something stands, and that.
    async fn change(&self, changes: &[(&str, &str)]) {
        let mut text = definition(&self.a, &self.b, "");
        for (before, more) in changes {
            assert!(text.contains(before), "{before}");
            text = text.replace(before, &format!("{before}{more}"));
        }
        self.exchanges.operations.apply(&text, "test").await.expect("a good definition");
    }

    async fn parts(&self, id: MessageId) -> Vec<StoredMessage> {
        let filter = MessageFilter { part_of: Some(id), ..MessageFilter::default() };
        let mut parts = self.exchanges.operations.messages(filter, None, 100).await.expect("read");
        parts.sort_by_key(|part| part.id);
        parts
    }

    async fn body(&self, id: MessageId) -> String {
        let body = self.exchanges.operations.body(id).await.expect("read").expect("there");
        String::from_utf8(body.to_vec()).expect("text")
    }
}

const ORDERS: &str = "  orders: { mode: one_way";

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_split_and_each_part_goes_its_way() {
    let bed = Bed::start().await;
    bed.change(&[(ORDERS, ", pipeline: [promote: { type: $.type }, split: { json: $.orders }]")]).await;
    let body = r#"{"type": "note", "orders": [{"order": 1}, {"order": 2}, {"order": 3, "type": "odd"}]}"#;
    let sent = bed.post("orders", body, Some("k")).await.expect("taken");
    bed.a.asked_times(3).await;
    let whole = bed.message(sent.id).await;
    assert_eq!((whole.ending, whole.legs.len()), (Some(Ending::Split), 0));
    assert_eq!(bed.body(sent.id).await, body, "it is kept as it came");
    for (part, order) in bed.parts(sent.id).await.iter().zip(1..) {
        let ended = bed.ended(part.id).await;
        assert_eq!((ended.ending, ended.legs[0].port.as_str()), (Some(Ending::Delivered), "a"));
        assert!(bed.body(part.id).await.contains(&format!(r#""order": {order}"#)));
    }
    let again = bed.post("orders", body, Some("k")).await.expect("taken");
    assert_eq!((again.id, again.duplicate), (sent.id, true));
    assert_eq!(bed.a.all().len(), 3);
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_suspends_and_the_resumed_message_goes_through_the_steps_that_run_then() {
    let bed = Bed::start().await;
    bed.change(&[(ORDERS, ", pipeline: [validate: { schema: { required: [customer] } }]")]).await;
    let sent = bed.post("orders", r#"{"type": "note", "order": 7}"#, None).await.expect("stored");
    let ReplyStatus::Suspended(reason) = &sent.reply_status else { panic!("{sent:?}") };
    assert!(reason.starts_with("step 1 of the pipeline (`validate`)"), "{reason}");
    let stuck = bed.message(sent.id).await;
    assert!(stuck.head.raw && stuck.legs.is_empty());
    let edit = Edit { properties: vec![(name("order"), serde_json::json!(8))], ..Edit::default() };
    let choice = MessageFilter { id: Some(sent.id), ..MessageFilter::default() }.into();
    let edited = bed.exchanges.operations.edit(&choice, &edit, "ann").await.expect("tried");
    assert!(edited.unchanged[0].1.contains("edit its body instead"), "{edited:?}");
    assert_eq!(bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("tried").messages, 0);
    assert_eq!(bed.suspended().await.len(), 1, "the steps are the same");

    bed.change(&[(ORDERS, ", pipeline: [transform: { jmespath: '{type: type, order: order, by: `op`}' }]")]).await;
    assert_eq!(bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed").messages, 1);
    assert_eq!(bed.ended(sent.id).await.ending, Some(Ending::Delivered));
    assert!(bed.a.all()[0].body.contains(r#""by":"op""#), "{:?}", bed.a.all());
    assert!(!bed.message(sent.id).await.head.raw);

    bed.change(&[(ORDERS, ", pipeline: [split: { json: $ }]")]).await;
    let odd = bed.post("orders", r#"{"type": "note", "order": 8}"#, None).await.expect("stored");
    bed.change(&[(ORDERS, ", pipeline: [transform: { jmespath: '[@, @]' }, split: { json: $ }]")]).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    assert_eq!(bed.message(odd.id).await.ending, Some(Ending::Split));
    assert_eq!(bed.parts(odd.id).await.len(), 2);
    for part in bed.parts(odd.id).await {
        bed.ended(part.id).await;
    }
    bed.open_is(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_and_what_comes_back_goes_through_steps() {
    let bed = Bed::start().await;
    let out = r#"
    pipeline: [transform: { template: '{"order": {{ message.order }}, "asked": true}' }]
    reply_pipeline: [transform: { jmespath: '{order: order, reply: confirmed}' }]"#;
    bed.change(&[("correlate: [order]", out)]).await;
    let answered = bed.ask(ORDER).await;
    assert_eq!(reply_of(&answered), r#"{"order":7,"reply":true}"#);
    assert_eq!(bed.b.all()[0].body, r#"{"order": 7, "asked": true}"#);
    assert_eq!(bed.body(answered.id).await, ORDER, "the message itself is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_fails_on_the_way_out_or_back_suspends_the_leg() {
    let bed = Bed::start().await;
    let out = "\n    pipeline: [transform: { jmespath: missing }]";
    bed.change(&[("correlate: [order]", out)]).await;
    let asked = bed.ask(ORDER).await;
    let ReplyStatus::Suspended(reason) = &asked.reply_status else { panic!("{asked:?}") };
    assert!(reason.starts_with("b: step 1 of the pipeline (`transform`): the expression returns null"), "{reason}");
    assert_eq!(bed.b.all().len(), 0, "nothing left");

    let back = "\n    reply_pipeline: [validate: { schema: { required: [receipt] } }]";
    bed.change(&[("correlate: [order]", back)]).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    bed.b.asked_times(1).await;
    let reply_status = bed.exchanges.intake.reply_to(asked.id, wait_timeout()).await.expect("read");
    let Some(ReplyStatus::Suspended(reason)) = reply_status else { panic!("{reply_status:?}") };
    assert!(reason.contains("the reply cannot be used: step 1") && reason.contains("receipt"), "{reason}");
    let all = bed.exchanges.operations.messages(MessageFilter::default(), None, 10).await.expect("read");
    assert_eq!(all[0].ending, Some(Ending::Wrong), "the reply is there to be looked at");

    bed.change(&[]).await;
    bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed");
    let reply_status = bed.exchanges.intake.reply_to(asked.id, wait_timeout()).await.expect("read");
    assert!(matches!(reply_status, Some(ReplyStatus::Replied { .. })), "{reply_status:?}");
}

const GATHER: &str =
    ", pipeline: [assemble: { by: [key], count: 3, within: 1h, until: 'message.order == 99', as: json }]";

impl Bed {
    /// Aggregates by `key`, and sends A the lists with the key of their parts.
    async fn gather(&self, steps: &str) {
        let text = definition(&self.a, &self.b, "").replace("  type: $.type\n", "  type: $.type\n  key: $.key\n");
        let text = text.replace(ORDERS, &format!("{ORDERS}{steps}"));
        let text = text.replace("to_b:", "lists: { when: \"has(message.key)\", to: a }\n  to_b:");
        self.exchanges.operations.apply(&text, "test").await.expect("a good definition");
    }

    async fn of_key(&self, order: i64, key: &str) -> MessageId {
        let body = format!(r#"{{"order": {order}, "key": "{key}"}}"#);
        let sent = self.post("orders", &body, None).await.expect("taken");
        assert_eq!(sent.reply_status, ReplyStatus::Stored);
        sent.id
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_key_become_one_over_a_restart() {
    let mut bed = Bed::start().await;
    bed.gather(GATHER).await;
    let mut ids = vec![bed.of_key(1, "x").await, bed.of_key(2, "y").await, bed.of_key(3, "x").await];
    bed.open_is(3).await;
    bed.restart().await;
    bed.open_is(3).await;
    ids.push(bed.of_key(4, "x").await);
    let request = &bed.a.asked_times(1).await[0];
    assert_eq!(request.body, r#"[{"order": 1, "key": "x"},{"order": 3, "key": "x"},{"order": 4, "key": "x"}]"#);
    let first = bed.ended(ids[0]).await;
    assert_eq!(first.ending, Some(Ending::Assembled));
    let whole = bed.ended(first.part_of.expect("a whole")).await;
    assert_eq!((whole.ending, bed.parts(whole.id).await.len()), (Some(Ending::Delivered), 3));
    // The one of the other key waits, until one comes that closes its group.
    assert_eq!(bed.message(ids[1]).await.ended_at, None);
    bed.open_is(1).await;
    bed.of_key(99, "y").await;
    assert!(bed.a.asked_times(2).await[1].body.contains(r#""order": 2"#));
    bed.ended(ids[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_becomes_one_in_time_and_may_be_ended_before() {
    let bed = Bed::start().await;
    bed.gather(GATHER).await;
    let (kept, ended) = (bed.of_key(1, "x").await, bed.of_key(2, "x").await);
    let only = MessageFilter { id: Some(ended), standing: Some(MessageStatus::Open), ..MessageFilter::default() };
    assert_eq!(bed.exchanges.operations.end(only, "op").await.expect("ended").messages, 1);
    let wrong = bed.post("orders", "no json", None).await.expect("stored");
    let ReplyStatus::Suspended(reason) = &wrong.reply_status else { panic!("{wrong:?}") };
    assert!(reason.contains("`assemble`") && reason.contains("not JSON"), "{reason}");
    bed.gather(", pipeline: [assemble: { within: 1s, as: lines }]").await;
    assert_eq!(bed.exchanges.operations.resume(MessageFilter::default(), "op").await.expect("resumed").messages, 1);
    bed.ended(wrong.id).await;
    let only = MessageFilter { id: Some(kept), standing: Some(MessageStatus::Open), ..MessageFilter::default() };
    bed.exchanges.operations.end(only, "op").await.expect("ended");
    // The line has no key, so that no route leads it anywhere.
    bed.suspended_times(1).await;
    bed.open_is(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_gathering_is_told() {
    let bed = Bed::start().await;
    for (steps, message) in [
        ("assemble: { count: 3 }", "within"),
        ("assemble: { within: 1m, by: [nothing] }", "`nothing` is not among the properties"),
        ("assemble: { within: 1m, until: 'message.nothing' }", "until"),
        ("assemble: { within: 1m, as: json, xml: a }", "has no effect beside `as`"),
        ("assemble: { within: 1m, xml: 'a b' }", "is not the name of an element"),
        ("assemble: { within: 1m }, promote: { type: $.type }", "is not one step"),
        ("assemble: { within: 1m }}, { promote: { type: $.type }", "is not the last step"),
        ("split: { lines: true }}, { assemble: { within: 1m }", "cannot stand behind `split`"),
        ("validate: {}", "has no schema"),
        ("validate: { xsd: '<a/>' }", "is no XML Schema"),
    ] {
        let text = definition(&bed.a, &bed.b, "").replace(ORDERS, &format!("{ORDERS}, pipeline: [{{ {steps} }}]"));
        let Err(OperateError::Invalid(problems)) = bed.exchanges.operations.apply(&text, "test").await else {
            panic!("{steps} is taken")
        };
        assert!(problems.iter().any(|problem| problem.to_string().contains(message)), "{steps}: {problems:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_are_taken_out_of_xml_and_of_the_envelope_of_its_parts() {
    let bed = Bed::start().await;
    let text = definition(&bed.a, &bed.b, "")
        .replace("type: $.type", "type: /order/@type")
        .replace("json: $.order", "xml: /any:order/id/text()")
        .replace(ORDERS, &format!("{ORDERS}, pipeline: [promote: {{ type: /all/kind }}, split: {{ xml: order }}]"));
    bed.define(&text).await;
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let post = async |body: &str, content_type: &str| {
        let (body, content_type) = (Bytes::copy_from_slice(body.as_bytes()), content_type.to_owned());
        let incoming = IncomingMessage { content_type, body, ..IncomingMessage::default() };
        bed.exchanges.intake.receive(&running, &name("orders"), incoming).await.expect("taken").id
    };
    let part = |id: &str| format!("<o:order><id> {id}\n</id></o:order>");
    let whole = format!("<all xmlns:o='urn:o'><kind>note</kind>{}{}</all>", part("7"), part("&#56;"));
    post(&whole, "application/soap+xml").await;
    let mut paths: Vec<String> = bed.a.asked_times(2).await.into_iter().map(|asked| asked.path).collect();
    paths.sort();
    assert_eq!(paths, ["/replies/7", "/replies/8"]);
    let odd = bed.parts(post(&whole, "text/plain").await).await;
    assert_eq!((odd.len(), &odd[0].head.properties[..]), (2, &[][..]), "it does not say that it is XML");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_fit_its_xml_schema_is_suspended_with_the_place() {
    let bed = Bed::start().await;
    let schema = r#"<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order" type="xs:integer"/></xs:schema>"#;
    bed.change(&[(ORDERS, &format!(", pipeline: [{{ validate: {{ xsd: '{schema}' }} }}]"))]).await;
    let sent = bed.post("orders", "<!-- first -->\n <order>seven</order>", None).await.expect("stored");
    let ReplyStatus::Suspended(reason) = &sent.reply_status else { panic!("{sent:?}") };
    assert!(reason.contains("line 2, column 2: Element 'order': the value is not a valid value"), "{reason}");
    let sent = bed.post("orders", "<order>7</order>", None).await.expect("stored");
    let ReplyStatus::Suspended(reason) = &sent.reply_status else { panic!("{sent:?}") };
    assert!(reason.contains("no route"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_properties_are_found_in_xml_of_any_encoding() {
    let bed = Bed::start().await;
    let text = definition(&bed.a, &bed.b, "")
        .replace("type: $.type", "type: /order/@type")
        .replace("json: $.order", "xml: /order/id/text()");
    bed.define(&text).await;
    let running = bed.exchanges.find(&name("orders")).expect("it runs");
    let post = async |body: Vec<u8>, content_type: &str| {
        let incoming =
            IncomingMessage { content_type: content_type.to_owned(), body: body.into(), ..IncomingMessage::default() };
        bed.exchanges.intake.receive(&running, &name("orders"), incoming).await.expect("taken")
    };
    let order = |id: &str| format!("<order type='note'><id>{id}</id><of>\u{e9}</of></order>");
    let units = |text: &str, order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
    let latin = |text: &str| text.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin-1")).collect::<Vec<u8>>();
    post(units(&format!("\u{feff}{}", order("1")), u16::to_be_bytes), "application/xml").await;
    post(units(&format!("\u{feff}{}", order("2")), u16::to_le_bytes), "").await;
    post(latin(&order("3")), "text/xml; charset=ISO-8859-1").await;
    post(latin(&format!("<?xml version='1.0' encoding='latin1'?>{}", order("4"))), "text/xml").await;
    let mut paths: Vec<String> = bed.a.asked_times(4).await.into_iter().map(|asked| asked.path).collect();
    paths.sort();
    assert_eq!(paths, ["/replies/1", "/replies/2", "/replies/3", "/replies/4"]);
    let sent = post(order("5").into_bytes(), "text/xml; charset=klingon").await;
    let ReplyStatus::Suspended(reason) = &sent.reply_status else { panic!("{sent:?}") };
    assert!(reason.contains("`klingon` is not known"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_test_shows_where_a_message_would_go_and_stores_nothing() {
    let bed = Bed::start().await;
    bed.change(&[(ORDERS, ", pipeline: [promote: { type: $.type }, split: { json: $.orders }]")]).await;
    let test = async |port: &str, body: &'static str| {
        let incoming = crate::message::IncomingMessage {
            content_type: "application/json".to_owned(),
            body: body.into(),
            ..crate::message::IncomingMessage::default()
        };
        bed.exchanges.operations.test_route(&name("orders"), &name(port), incoming).await
    };
    let tested = test("orders", r#"{"type": "note", "orders": [{"order": 1}, {"order": 2}]}"#).await.expect("tested");
    assert_eq!((tested.parts.len(), tested.step_error, tested.gathers), (2, None, false));
    let part = &tested.parts[0];
    assert!(part.properties.iter().any(|(property, _)| property.as_str() == "type"), "{part:?}");
    let ports: Vec<_> = part.ports.iter().map(|port| (port.port.as_str(), port.state, port.takes)).collect();
    assert_eq!((ports, part.reason.as_ref()), (vec![("a", Some(PortState::Active), true)], None));
    assert!(!part.routes.is_empty());

    let wrong = test("orders", "no JSON").await.expect("tested");
    assert!(wrong.step_error.is_some() && wrong.parts.is_empty(), "{wrong:?}");
    assert!(matches!(test("nothing", "{}").await, Err(OperateError::Missing(_))));
    assert!(bed.a.all().is_empty(), "nothing is sent");
    bed.open_is(0).await;
}
