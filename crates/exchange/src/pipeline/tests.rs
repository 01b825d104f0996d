//! Steps alone, each with what it makes and why it fails.

use std::io::Write;

use tocsin_connect::SystemClock;
use tocsin_model::{definition, value::Value};

use tocsin_pace::AdaptiveConcurrency;

use super::*;

/// The pipeline of a receive port, with `steps` as YAML in a line each.
fn pipeline(port: &str, steps: &[&str]) -> Result<Arc<Pipeline>, Vec<Problem>> {
    let steps: String = steps.iter().map(|step| format!("      - {step}\n")).collect();
    let (receive, send) = if port == "receive" { (&*steps, "[]") } else { ("[]", &*steps) };
    let text = format!(
        "exchange: e\nproperties: {{ order: {{ type: integer, json: $.order }}, tenant: $.tenant }}\nreceive:\n  intake:\n    mode: \
         one_way\n    pipeline: \n{receive}\nsend:\n  out:\n    mode: one_way\n    protocol: http\n    pipeline: \
         \n{send}\nroutes: {{ every: {{ when: 'true', to: out }} }}\n"
    );
    let text = text.replace("pipeline: \n[]", "pipeline: []");
    let exchange = definition::read_exchange(&text, &|_| None)?;
    let tools = CompileContext { exchange: &exchange, programs: &Programs::default(), begun: Instant::now() };
    let of = if port == "receive" {
        exchange.receive.values().next().map(|port| &port.pipeline)
    } else {
        exchange.send.values().next().map(|port| &port.pipeline)
    };
    compile(of.expect("there is one"), "pipeline", &tools)
}

fn apply(pipeline: &Arc<Pipeline>, message: PipelineMessage) -> Result<Vec<PipelineMessage>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let applied = runtime.block_on(pipeline.apply(
        message,
        "m-1",
        &clock,
        &Arc::new(Workers::new(AdaptiveConcurrency::fixed(1))),
    ));
    applied.map_err(|error| error.to_string())
}

fn message(body: &[u8]) -> PipelineMessage {
    PipelineMessage {
        content_type: "application/json".into(),
        body: Bytes::copy_from_slice(body),
        ..PipelineMessage::default()
    }
}

fn check(steps: &[&str], body: &str, expected: Result<&[&str], &str>) {
    let pipeline = pipeline("receive", steps).expect("good steps");
    let made = apply(&pipeline, message(body.as_bytes()));
    let texts = |messages: &[PipelineMessage]| -> Vec<String> {
        messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
    };
    match (&made, expected) {
        (Ok(made), Ok(expected)) => assert_eq!(texts(made), expected),
        (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
        _ => panic!("{made:?}, not {expected:?}"),
    }
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(body).expect("packed");
    encoder.finish().expect("packed")
}

#[test]
fn bodies_are_unpacked_up_to_a_bound() {
    let auto = pipeline("receive", &["decompress: { as: auto, bytes: 1000 }"]).expect("good");
    let zstd = |body: &[u8]| zstd::stream::encode_all(body, 3).expect("packed");
    for (encoding, packed) in [("gzip", gzip(b"hello")), ("zstd", zstd(b"hello")), ("", b"hello".to_vec())] {
        let headers = if encoding.is_empty() { vec![] } else { vec![("content-encoding".into(), encoding.into())] };
        let made = apply(&auto, PipelineMessage { headers, ..message(&packed) }).expect("unpacked");
        assert_eq!((&*made[0].body, made[0].headers.len()), (&b"hello"[..], 0), "{encoding}");
    }
    let bomb = vec![b'x'; 1 << 20];
    for (encoding, packed, why) in [
        ("gzip", gzip(&bomb), "decompressed body is larger than 1000 bytes"),
        ("zstd", zstd(&bomb), "decompressed body is larger than 1000 bytes"),
        ("gzip", b"hello".to_vec(), "is not gzip"),
        ("zstd", b"hello".to_vec(), "is not zstd"),
        ("br", b"hello".to_vec(), "encoded as `br`"),
    ] {
        let headers = vec![("content-encoding".into(), encoding.into())];
        let error = apply(&auto, PipelineMessage { headers, ..message(&packed) }).expect_err(why);
        assert!(error.starts_with("step 1 of the pipeline (`decompress`)") && error.contains(why), "{error}");
    }
}

#[test]
fn a_packed_body_that_is_packed_again_names_both_codings() {
    let packed = pipeline("send", &["compress: gzip", "compress: zstd"]).expect("good");
    let made = apply(&packed, message(b"{}")).expect("packed");
    assert_eq!(made[0].headers, [("content-encoding".to_owned(), "gzip, zstd".to_owned())]);
}

#[test]
fn a_transformation_gives_a_media_type_that_a_header_can_hold_and_json_in_utf_8() {
    for (step, why) in [
        ("transform: { template: x, content_type: nonsense }", "not a media type"),
        (r#"transform: { template: x, content_type: "text/plain\r\nX: y" }"#, "not a media type"),
        ("transform: { jmespath: '@', content_type: application/json; charset=iso-8859-1 }", "JSON is in UTF-8"),
    ] {
        let problems = pipeline("receive", &[step]).err().expect("problems");
        assert!(problems[0].path.ends_with("content_type") && problems[0].message.contains(why), "{problems:?}");
    }
}

#[test]
fn parts_that_grow_stop_at_the_bound_of_their_message() {
    // A gigabyte in all, if it were counted once every part had grown.
    let long = format!(
        "transform: {{ content_type: text/plain, template: '{{% for i in range(1000) %}}{}{{% endfor %}}' }}",
        "x".repeat(1_000)
    );
    let lines = "1\n".repeat(1_000);
    check(
        &["split: { lines: true }", &long],
        &lines,
        Err("step 2 of the pipeline (`transform`): it produces more than 134217728 bytes"),
    );
}

#[test]
fn a_message_is_split_into_all_its_parts_or_none() {
    let json = "split: { json: $.orders, most: 3 }";
    check(&[json], r#"{"orders": [{"n": 1e400}, 2, "x"]}"#, Ok(&[r#"{"n": 1e400}"#, "2", r#""x""#]));
    check(&[json], r#"{"orders": [1, 2, 3, 4]}"#, Err("more than 3 parts"));
    check(&[json], r#"{"orders": {}}"#, Err("is an object, not a list"));
    check(&[json], "{}", Err("the body has nothing at"));
    check(&[json], "hello", Err("not JSON"));
    check(&["split: { lines: true }"], "a\r\n\n b\nc", Ok(&["a", " b", "c"]));
    let xml = r#"<r xmlns="urn:r" xmlns:o="urn:o"><o:order n="1"><order/></o:order><x><order a='"'/></x></r>"#;
    check(
        &["split: { xml: order }"],
        xml,
        Ok(&[
            r#"<o:order xmlns="urn:r" xmlns:o="urn:o" n="1"><order/></o:order>"#,
            r#"<order xmlns="urn:r" xmlns:o="urn:o" a='"'/>"#,
        ]),
    );
    check(&["split: { xml: order }"], "<r><order></r>", Err("not XML"));
    check(&["split: { xml: order }"], "<r>", Err("ends inside"));
    // Each part repeats what is declared around it: together they would be gigabytes.
    let parts = "<order/>".repeat(900);
    let long = format!(r#"<r xmlns:a="{}">{parts}</r>"#, "u".repeat(200_000));
    check(&["split: { xml: order }"], &long, Err("its parts are more than 134217728 bytes"));
    let prefixes: String = (0..=256).map(|at| format!(" xmlns:a{at}='u'")).collect();
    check(&["split: { xml: order }"], &format!("<r{prefixes}>{parts}</r>"), Err("more than 256 namespaces"));
    let whole = ["split: { lines: true }", "validate: { schema: { type: object } }"];
    check(
        &whole,
        "{}\n1\n{}",
        Err("step 2 of the pipeline (`validate`) at part 2: the body does not match its schema"),
    );
}

#[test]
fn b18_a_message_that_would_become_none_is_suspended_unless_it_may() {
    for (step, body, why) in [
        ("json: $.items", r#"{"items": []}"#, "the list at $['items'] is empty"),
        ("json: $.items", r#"{"items": null}"#, "is null, not a list"),
        ("json: $.items", r#"{"item": [1]}"#, "the body has nothing at $['items']"),
        ("json: $", "[]", "the list at $ is empty"),
        ("xml: line", "<order><lines/></order>", "has no element `line`"),
        ("xml: line", "<order/>", "has no element `line`"),
        ("xml: line", "<order><lines2><Line/></lines2></order>", "has no element `line`"),
        ("lines: true", "", "no line that is not empty"),
        ("lines: true", "\r\n \n\t\n", "no line that is not empty"),
    ] {
        check(&[&format!("split: {{ {step} }}")], body, Err(why));
        check(&[&format!("split: {{ {step}, may_be_empty: false }}")], body, Err(why));
        check(&[&format!("split: {{ {step}, may_be_empty: true }}")], body, Ok(&[]));
    }
    let may = "split: { json: $.items, may_be_empty: true }";
    check(&[may], r#"{"items": {}}"#, Err("is an object, not a list"));
    check(&[may], r#"{"items": [1]}"#, Ok(&["1"]));
    check(&["split: { xml: line, may_be_empty: true }"], "<order>", Err("ends inside"));
}

#[test]
fn b19_numbers_leave_steps_as_they_came() {
    let numbers = r#"[123456789012345678901234567890,123456789012345678901234567891,1.10,1e400,-0,0.1e1,1.5,7]"#;
    let body = format!(r#"{{"b": {numbers}, "a": {{"n": 1.10}}, "id": 12345678901234567890123}}"#);
    check(&["transform: { jmespath: 'b' }"], &body, Ok(&[numbers]));
    check(
        &["transform: { jmespath: '{n: a.n, id: id, many: b[?@ > `1.2`] | [-1]}' }"],
        &body,
        Ok(&[r#"{"n":1.10,"id":12345678901234567890123,"many":7}"#]),
    );
    check(&["transform: { jmespath: 'sum(b[6:])' }"], &body, Ok(&["8.5"]));
    let template = r#"transform: { template: '{"id": {{ body.id }}, "n": {{ body.a.n }}, "b": {{ body.b }}, "a": {{ body.a }}}' }"#;
    let made = format!(r#"{{"id": 12345678901234567890123, "n": 1.10, "b": {numbers}, "a": {{"n":1.10}}}}"#);
    check(&[template], &body, Ok(&[&made]));
    let sheet = "<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\"><xsl:output \
                 omit-xml-declaration=\"yes\"/><xsl:template match=\"/\"><r><xsl:for-each select=\"//item\"><n><xsl:value-of \
                 select=\".\"/></n></xsl:for-each></r></xsl:template></xsl:stylesheet>";
    let elements: String =
        numbers.trim_matches(['[', ']']).split(',').map(|number| format!("<n>{number}</n>")).collect();
    check(&[&format!("transform: {{ xslt: '{sheet}' }}")], &body, Ok(&[&format!("<r>{elements}</r>\n")]));
    let schema = "validate: { schema: { properties: { b: { items: { type: number } } } } }";
    check(&[schema], &body, Ok(&[&body]));
    check(&["split: { json: $.b }"], &body, Ok(&numbers.trim_matches(['[', ']']).split(',').collect::<Vec<_>>()));
}

#[test]
fn b21_media_types_of_transforms_are_compared_without_case() {
    let step = "transform: { template: 'x{{ body.order }}', content_type: 'Application/Vnd.x+JSON; charset=utf-8' }";
    check(&[step], r#"{"order": 1}"#, Err("the result is not JSON"));
    let step = "transform: { template: 'x{{ body.order }}', content_type: 'application/jsonx' }";
    check(&[step], r#"{"order": "a<b"}"#, Ok(&["xa<b"]));
}

#[test]
fn a_body_is_compared_with_its_schema() {
    let schema = "validate: { schema: { type: object, required: [order], properties: { order: { $ref: '#/$defs/id' } }, \
                  $defs: { id: { type: integer, minimum: 1 } } } }";
    check(&[schema], r#"{"order": 7}"#, Ok(&[r#"{"order": 7}"#]));
    check(&[schema], r#"{"order": "secret"}"#, Err("is not of type \"integer\" at `/order`"));
    check(&[schema], r#"{"order": 0}"#, Err("at `/order`"));
    check(&[schema], "{}", Err("\"order\" is a required property"));
    check(&[schema], "<a/>", Err("not JSON"));
    let invalid = apply(&pipeline("receive", &[schema]).expect("good"), message(br#"{"order": "secret"}"#));
    assert!(!invalid.expect_err("wrong").contains("secret"), "values are not revealed");
}

#[test]
fn properties_hold_whatever_later_steps_do() {
    let steps = ["promote: { tenant: $.head.tenant }", "split: { json: $.orders }", "promote: { order: $.id }"];
    let made = apply(
        &pipeline("receive", &steps).expect("good"),
        message(br#"{"head": {"tenant": "a"}, "orders": [{"id": 1}, {"id": "x"}]}"#),
    );
    let made = made.expect("split");
    let named = |name: &str, value: Value| (name.parse::<Name>().expect("a name"), value);
    assert_eq!(made[0].properties, [named("tenant", Value::from("a")), named("order", Value::Integer(1))]);
    assert_eq!(made[1].properties, [named("tenant", Value::from("a"))], "a text is no integer");
}

#[test]
fn a_body_becomes_another() {
    let jmespath = "transform: { jmespath: 'lines[?n > `1`].{id: n}' }";
    check(&[jmespath], r#"{"lines": [{"n": 1}, {"n": 2}]}"#, Ok(&[r#"[{"id":2}]"#]));
    check(&["transform: { jmespath: 'nothing' }"], "{}", Err("returns null"));
    check(&["transform: { jmespath: 'length(a)' }"], r#"{"a": 1}"#, Err("the expression fails"));
    let template = r#"transform: { template: '{"is": {{ body.order }}, "of": {{ message.tenant }} }' }"#;
    check(
        &["promote: { tenant: $.tenant }", template],
        r#"{"order": 1, "tenant": "a"}"#,
        Ok(&[r#"{"is": 1, "of": "a" }"#]),
    );
    check(&["transform: { template: 'x{{ body.order }}' }"], r#"{"order": 1}"#, Err("the result is not JSON"));
}

#[test]
fn what_leaves_is_packed_and_signed() {
    let secret = format!("sign: {{ secret: whsec_{} }}", "A".repeat(32));
    let steps = [secret.as_str(), "compress: gzip"];
    let made = apply(&pipeline("send", &steps).expect("good"), message(b"hello")).expect("packed");
    let (seconds, signature) = made[0].signed.clone().expect("signed");
    let signer = Signer::new(secret.trim_start_matches("sign: { secret: ").trim_end_matches(" }")).expect("good");
    assert_eq!(signature, signer.sign("m-1", seconds, b"hello"), "as it was before it was packed");
    assert_eq!(made[0].headers, [("content-encoding".to_owned(), "gzip".to_owned())]);
}

#[test]
fn invalid_steps_are_reported_with_their_place() {
    for (port, step, path, message) in [
        ("receive", "validate: { schema: { type: strin } }", "pipeline[0].validate.schema", "no JSON Schema"),
        ("receive", "validate: { schema: { $ref: 'http://a.b/c' } }", "pipeline[0].validate.schema", "no JSON Schema"),
        ("receive", "transform: { jmespath: 'a[' }", "pipeline[0].transform.jmespath", ""),
        ("receive", "transform: { template: '{{ order }}' }", "pipeline[0].transform.template", "`order`"),
        ("receive", "transform: { xslt: '<a/>' }", "pipeline[0].transform.xslt", ""),
        ("receive", "run: { command: [/bin/true] }", "pipeline[0].run.command", "may not be started"),
        ("send", "sign: { secret: x }", "pipeline[0].sign.secret", ""),
        ("receive", "{}", "receive.intake.pipeline[0]", "not one step"),
        ("receive", "{ compress: gzip, sign: { secret: x } }", "receive.intake.pipeline[0]", "not one step"),
        ("receive", "compress: gzip", "receive.intake.pipeline[0].compress", "where messages leave"),
        ("send", "decompress: gzip", "send.out.pipeline[0].decompress", "where messages come in"),
        ("send", "split: { lines: true }", "send.out.pipeline[0].split", "receive ports only"),
        ("receive", "split: {}", "receive.intake.pipeline[0].split", "does not define the parts"),
        (
            "receive",
            "promote: { nobody: $.a }",
            "receive.intake.pipeline[0].promote.nobody",
            "not among the properties",
        ),
        ("receive", "transform: {}", "receive.intake.pipeline[0].transform", "has no language"),
        ("receive", "run: { command: [] }", "receive.intake.pipeline[0].run.command", "no program"),
    ] {
        let problems = pipeline(port, &[step]).err().unwrap_or_else(|| panic!("{step} is good"));
        assert_eq!(problems[0].path, path, "{step}: {problems:?}");
        assert!(problems[0].message.contains(message), "{step}: {problems:?}");
    }
}

#[test]
fn c3_steps_read_bodies_of_any_encoding() {
    let units = |text: &str| -> Bytes { format!("\u{feff}{text}").encode_utf16().flat_map(u16::to_le_bytes).collect() };
    let latin = |text: &str| -> Bytes { text.chars().map(|c| u8::try_from(u32::from(c)).expect("Latin-1")).collect() };
    let xml = "<?xml version='1.0' encoding='ISO-8859-1'?><r><o>é</o><o>ü</o></r>";
    let check = |steps: &[&str], content_type: &str, body: Bytes, expected: Result<(&[&str], &str), &str>| {
        let made = apply(
            &pipeline("receive", steps).expect("good steps"),
            PipelineMessage { content_type: content_type.into(), body, ..PipelineMessage::default() },
        );
        match (made, expected) {
            (Ok(made), Ok((texts, content_type))) => {
                let found: Vec<_> =
                    made.iter().map(|message| std::str::from_utf8(&message.body).expect("UTF-8")).collect();
                assert_eq!((&found[..], made[0].content_type.as_str()), (texts, content_type), "{steps:?}");
            }
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (made, _) => panic!("{steps:?} of {content_type}: {made:?}"),
        }
    };
    let parts: &[&str] = &["<o>é</o>", "<o>ü</o>"];
    check(&["split: { xml: o }"], "text/xml", latin(xml), Ok((parts, "text/xml")));
    check(&["split: { xml: o }"], "text/xml", units(&xml.replace("ISO-8859-1", "UTF-16")), Ok((parts, "text/xml")));
    let named = "text/xml; charset=iso-8859-1";
    check(&["split: { xml: o }"], named, latin("<r><o>é</o><o>ü</o></r>"), Ok((parts, "text/xml; charset=utf-8")));
    check(&["split: { xml: o }"], "text/xml; charset=klingon", latin(xml), Err("`klingon` is not known"));
    let items: &[&str] = &["\"é\""];
    check(&["split: { json: $.a }"], "application/json", units("{\"a\": [\"é\"]}"), Ok((items, "application/json")));
    let marked: &[&str] = &["\"é\""];
    check(
        &["transform: { jmespath: a }"],
        "application/json",
        "\u{feff}{\"a\": \"é\"}".into(),
        Ok((marked, "application/json")),
    );
    let whole: &[&str] = &["<?xml version='1.0' encoding='UTF-8'?><r>é</r>"];
    let body = latin("<?xml version='1.0' encoding='ISO-8859-1'?><r>é</r>");
    check(&["assemble: { within: 1m, xml: all }"], "text/xml", body.clone(), Ok((whole, "text/xml")));
    let schema = "validate: { xsd: '<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"r\"><xs:simpleType><xs:restriction base=\"xs:string\"><xs:length value=\"1\"/></xs:restriction></xs:simpleType></xs:element></xs:schema>' }";
    let made = apply(
        &pipeline("receive", &[schema]).expect("good"),
        PipelineMessage { content_type: "text/xml".into(), body: body.clone(), ..PipelineMessage::default() },
    );
    assert_eq!(made.expect("it fits")[0].body, body, "a step that only looks leaves it as it is");
    let fallible = pipeline("receive", &[schema]).expect("good");
    let two =
        PipelineMessage { content_type: "text/xml".into(), body: latin("<r>\u{e9}</r>"), ..PipelineMessage::default() };
    assert!(apply(&fallible, two).expect_err("no UTF-8").contains("is not UTF-8: byte 3"));
}

#[test]
fn a15_a_schema_that_never_ends_is_refused_when_it_is_compiled() {
    let groups: String = (0..30)
        .map(|at| {
            let next = at + 1;
            format!("<xs:group name=\"g{at}\"><xs:sequence><xs:group ref=\"g{next}\"/><xs:group ref=\"g{next}\"/></xs:sequence></xs:group>")
        })
        .collect();
    let schema = format!(
        "<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\"><xs:element name=\"a\"><xs:complexType><xs:group ref=\"g0\"/></xs:complexType></xs:element>{groups}<xs:group name=\"g30\"><xs:sequence><xs:element name=\"b\"/></xs:sequence></xs:group></xs:schema>"
    );
    let Err(problems) = pipeline("receive", &[&format!("validate: {{ xsd: '{schema}' }}")]) else { panic!("compiled") };
    let said = problems[0].to_string();
    let reasons = ["took longer than", "MiB of memory", "too complex for the library"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
}

#[test]
fn the_time_of_all_parts_together_is_bounded() {
    let steps = ["split: { json: $.items }", "transform: { jmespath: '@' }"];
    let bounded = || {
        let pipeline = Arc::into_inner(pipeline("receive", &steps).expect("good steps")).expect("not shared");
        Arc::new(Pipeline { parts_time_max: Duration::ZERO, ..pipeline })
    };
    let why = apply(&bounded(), message(br#"{"items": [1, 2, 3]}"#)).expect_err("there is no time");
    assert_eq!(
        why,
        "step 2 of the pipeline (`transform`) at part 1: the 3 parts take longer than 0 s in total, the maximum for a message"
    );
    let one = apply(&bounded(), message(br#"{"items": [1]}"#)).expect("one part has the time of its step");
    assert_eq!(&*one[0].body, b"1");
    check(&steps, r#"{"items": [1, 2, 3]}"#, Ok(&["1", "2", "3"]));
}
