//! Programs that do not end, use all memory or crash their worker, and the state of the pool afterwards.

use super::*;
use crate::{
    document::{Document, DocumentFormatter},
    xsd::XmlSchema,
};

const HEAD: &str = "<xsl:stylesheet version=\"1.0\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\">";

fn transform(select: &str, body: &str) -> Result<String, String> {
    let template = format!("<xsl:template match=\"/\"><xsl:value-of select=\"{select}\"/></xsl:template>");
    transform_by(&template, body)
}

fn transform_by(template: &str, body: &str) -> Result<String, String> {
    let sheet = format!("{HEAD}<xsl:output method=\"text\"/>{template}</xsl:stylesheet>");
    let formatter = DocumentFormatter::stylesheet(&sheet, "text/plain").expect("a stylesheet");
    let document = Document { body: body.as_bytes(), content_type: "text/xml", properties: &[] };
    formatter.format(&document).map(|made| String::from_utf8(made.body).expect("text"))
}

/// Asserts that a work item failed for a known reason, long before the wall-clock limit.
fn assert_stopped<T: fmt::Debug, E: fmt::Display>(name: &str, outcome: Result<T, E>, begun: Instant) {
    let error = outcome.expect_err(name).to_string();
    let known = ["took longer than", "MiB of memory", "too complex for the library", "the output is longer"];
    assert!(known.iter().any(|reason| error.contains(reason)), "{name}: {error}");
    assert!(begun.elapsed() < WORK_TIME_MAX * CLOCK_FACTOR + START_TIME_MAX, "{name}: {:?}", begun.elapsed());
}

fn processes() -> usize {
    let state = POOL.state();
    state.idle.len() + state.busy
}

#[test]
fn a16_functions_that_allocate_nothing_are_stopped() {
    let long = "a".repeat(400_000);
    let begun = Instant::now();
    let many = format!("<a>{}b{long}</a>", &long[1..]);
    assert_stopped("contains", transform("contains(/a, concat(substring(/a, 1, 200000), 'x', 'b'))", &many), begun);
    let begun = Instant::now();
    let letters = |first: u32| (0..100_000).filter_map(|at| char::from_u32(first + at % 5_000)).collect::<String>();
    let body = format!("<a><b>{}</b><c>{}</c></a>", letters(0x4e00), letters(0x7000));
    assert_stopped("translate", transform("translate(/a/b, /a/c, '')", &body), begun);
    // Other programs work as before.
    assert_eq!(transform("/a", "<a>x</a>"), Ok("x".to_owned()));
    assert!(processes() <= POOL.workers_max);
}

#[test]
fn h3_endless_stylesheets_are_stopped() {
    let call = |inner: &str| {
        format!(
            "<xsl:template match=\"/\"><xsl:call-template name=\"t\"/></xsl:template><xsl:template name=\"t\"><xsl:param name=\"s\" select=\"'xxxxxxxxxxxxxxxx'\"/>{inner}</xsl:template>"
        )
    };
    let twice =
        "<xsl:call-template name=\"t\"><xsl:with-param name=\"s\" select=\"concat($s, $s)\"/></xsl:call-template>";
    for (name, template) in [
        ("doubled", call(&format!("<xsl:value-of select=\"$s\"/>{twice}"))),
        ("doubled without output", call(twice)),
        (
            "nested",
            format!(
                "<xsl:template match=\"/\">{}x{}</xsl:template>",
                "<xsl:for-each select=\"//b\">".repeat(9),
                "</xsl:for-each>".repeat(9)
            ),
        ),
        (
            "sorted",
            format!(
                "<xsl:template match=\"/\">{}<xsl:sort select=\"count(//b[. = current()])\"/>x{}</xsl:template>",
                "<xsl:for-each select=\"//b\">", "</xsl:for-each>"
            ),
        ),
    ] {
        let begun = Instant::now();
        let outcome = transform_by(&template, &format!("<a>{}</a>", "<b>1</b>".repeat(3_000)));
        let error = outcome.expect_err(name);
        let known = ["took longer", "MiB of memory", "too complex", "limit", "depth", "deep", "Operation", "output"];
        assert!(known.iter().any(|reason| error.contains(reason)), "{name}: {error}");
        assert!(begun.elapsed() < WORK_TIME_MAX * CLOCK_FACTOR + START_TIME_MAX, "{name}");
    }
}

#[test]
fn a15_schemas_and_documents_are_stopped() {
    let with = |inner: &str| format!("<xs:schema xmlns:xs=\"http://www.w3.org/2001/XMLSchema\">{inner}</xs:schema>");
    let groups: String = (0..24)
        .map(|at| {
            let next = at + 1;
            format!("<xs:group name='g{at}'><xs:sequence><xs:group ref='g{next}'/><xs:group ref='g{next}'/></xs:sequence></xs:group>")
        })
        .collect();
    let doubling = format!(
        "<xs:element name='a'><xs:complexType><xs:group ref='g0'/></xs:complexType></xs:element>{groups}<xs:group name='g24'><xs:sequence><xs:element name='b'/></xs:sequence></xs:group>"
    );
    let begun = Instant::now();
    assert_stopped("groups", XmlSchema::compile(&with(&doubling)), begun);
    let many = "<xs:element name='a'><xs:complexType><xs:sequence maxOccurs='40000'><xs:sequence maxOccurs='40000'><xs:element name='b' minOccurs='3' maxOccurs='40000'/><xs:element name='c' minOccurs='20000' maxOccurs='40000'/></xs:sequence></xs:sequence></xs:complexType></xs:element>";
    let begun = Instant::now();
    // It compiles, or is stopped.
    if let Err(problem) = XmlSchema::compile(&with(many)) {
        assert_stopped("occurrences", Err::<(), _>(problem), begun);
    }
    let pattern = "<xs:element name='a'><xs:simpleType><xs:restriction base='xs:string'><xs:pattern value='[a-z]*[0-9]*[a-z]*[0-9]*[a-z]*x'/></xs:restriction></xs:simpleType></xs:element>";
    let schema = XmlSchema::compile(&with(pattern)).expect("a schema");
    assert_eq!(schema.check(b"<a>abcx</a>", None), Ok(()));
    let begun = Instant::now();
    assert_stopped("pattern", schema.check(format!("<a>{}</a>", "a".repeat(300_000)).as_bytes(), None), begun);
    // The same schema validates the next document.
    assert_eq!(schema.check(b"<a>abcx</a>", None), Ok(()));
    let unique = "<xs:element name='a'><xs:complexType><xs:sequence><xs:element name='b' maxOccurs='unbounded' type='xs:string'/></xs:sequence></xs:complexType><xs:unique name='u'><xs:selector xpath='b'/><xs:field xpath='.'/></xs:unique></xs:element>";
    let schema = XmlSchema::compile(&with(unique)).expect("a schema");
    assert_eq!(schema.check(b"<a><b>1</b><b>2</b></a>", None), Ok(()));
    assert!(schema.check(b"<a><b>1</b><b>1</b></a>", None).expect_err("twice").contains("does not match its schema"));
    let body: String = (0..60_000).map(|at| format!("<b>{at}</b>")).collect();
    let begun = Instant::now();
    if let Err(error) = schema.check(format!("<a>{body}</a>").as_bytes(), None) {
        assert_stopped("unique", Err::<(), _>(error), begun);
    }
    // It ends, or is stopped.
    let recursive = "<xs:element name='a' type='T'/><xs:complexType name='T'><xs:choice maxOccurs='unbounded'><xs:element name='a' type='T'/><xs:group ref='g'/></xs:choice></xs:complexType><xs:group name='g'><xs:choice><xs:element ref='a'/></xs:choice></xs:group>";
    let begun = Instant::now();
    if let Err(problem) = XmlSchema::compile(&with(recursive)) {
        assert!(begun.elapsed() < WORK_TIME_MAX * CLOCK_FACTOR + START_TIME_MAX, "{problem}");
    }
}

#[test]
fn a15_a_worker_that_is_killed_is_replaced() {
    let formatter = DocumentFormatter::stylesheet(
        &format!("{HEAD}<xsl:template match=\"/\"><x/></xsl:template></xsl:stylesheet>"),
        "",
    )
    .expect("right");
    let document = Document { body: b"<a/>", content_type: "", properties: &[] };
    let first = formatter.format(&document).expect("a result");
    for worker in &mut POOL.state().idle {
        worker.child.kill().expect("it runs");
    }
    assert_eq!(formatter.format(&document), Ok(first));
}

#[test]
fn a15_a_worker_has_no_privileges() {
    // Its status in the kernel: no new privileges, a seccomp filter, three descriptors.
    assert_eq!(transform("/a", "<a>x</a>"), Ok("x".to_owned()));
    let state = POOL.state();
    let Some(worker) = state.idle.first() else { return };
    let process = worker.child.id();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits")).expect("it runs");
    let nofile = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    assert_eq!(nofile.split_whitespace().nth(3), Some("0"), "{limits}");
}

const TEXT: &str = "<xsl:output method=\"text\"/>";

fn program(template: &str) -> Program {
    Program::stylesheet(&format!("{HEAD}{TEXT}{template}</xsl:stylesheet>"), &[], Some("text"))
}

fn value_of(select: &str) -> Program {
    program(&format!("<xsl:template match=\"/\"><xsl:value-of select=\"{select}\"/></xsl:template>"))
}

/// The operations of a document of one element `a`.
fn document(text: &str) -> Vec<u8> {
    let mut tree = crate::tree::Tree::new("a");
    tree.text(text);
    tree.into_operations()
}

/// Applies a program to documents in a group: it is proven first, as only such programs share an exchange.
fn apply_group(program: &Program, documents: &[Vec<u8>]) -> Vec<Result<String, WorkerError>> {
    assert_eq!(program.apply(&document("x")).map(|_| ()), Ok(()));
    let calls: Vec<_> = documents.iter().map(|operations| (program, operations.as_slice())).collect();
    let text = |response| match response {
        WorkerResponse::Done(bytes) => String::from_utf8(bytes).expect("text"),
        other => format!("{other:?}"),
    };
    apply_all(&calls).into_iter().map(|result| result.map(text)).collect()
}

/// Applies a program to a document at which it fails, between others, which must not be affected.
fn check_fails_alone(program: &Program, bad: Vec<u8>, is_expected: fn(&Result<String, WorkerError>) -> bool) {
    let documents = [document("1"), document("2"), bad, document("3"), document("4")];
    let results = apply_group(program, &documents);
    assert_eq!(results.len(), documents.len());
    for (at, result) in results.into_iter().enumerate() {
        if at == 2 {
            assert!(is_expected(&result), "{result:?}");
            continue;
        }
        let alone = program.apply(&documents[at]);
        assert_eq!(result.map(|text| WorkerResponse::Done(text.into_bytes())), alone, "{at}");
    }
    assert!(processes() <= POOL.workers_max);
}

#[test]
fn a16_a_group_has_an_answer_for_each_in_order() {
    // More than one exchange, more bytes in both directions than a pipe holds, and two stylesheets.
    let (long, short) = (value_of("concat(/a, '-', /a)"), value_of("string-length(/a)"));
    let texts: Vec<String> = (0..300).map(|at| format!("{at} {}", "x".repeat(at * 67 % 20_000))).collect();
    let documents: Vec<Vec<u8>> = texts.iter().map(|text| document(text)).collect();
    let programs = [&long, &short];
    programs.iter().for_each(|program| drop(program.apply(&documents[0]).expect("it is proven")));
    let calls: Vec<_> = documents.iter().enumerate().map(|(at, one)| (programs[at % 2], one.as_slice())).collect();
    let results = apply_all(&calls);
    assert_eq!(results.len(), texts.len());
    for (at, (result, text)) in results.into_iter().zip(&texts).enumerate() {
        let expected = if at % 2 == 0 { format!("{text}-{text}") } else { text.chars().count().to_string() };
        assert_eq!(result, Ok(WorkerResponse::Done(expected.into_bytes())), "{at}");
    }
    assert_eq!(apply_all(&[]), Vec::new());
}

#[test]
fn a16_a_group_of_programs_that_are_not_proven_is_answered() {
    let programs: Vec<Program> = (0..5).map(|at| value_of(&format!("concat({at}, /a)"))).collect();
    let operations = document("x");
    let calls: Vec<_> = programs.iter().map(|program| (program, operations.as_slice())).collect();
    for _ in 0..2 {
        let results = apply_all(&calls);
        let expected = (0..5).map(|at| Ok(WorkerResponse::Done(format!("{at}x").into_bytes())));
        assert_eq!(results, expected.collect::<Vec<_>>());
    }
}

#[test]
fn a16_a_late_render_fails_alone_in_its_group() {
    let late = document(&format!("{}b{}", "a".repeat(399_999), "a".repeat(400_000)));
    let program = value_of("contains(/a, concat(substring(/a, 1, 200000), 'x', 'b'))");
    check_fails_alone(&program, late, |result| matches!(result, Err(WorkerError::Time { compiles: false, .. })));
}

#[test]
fn a15_a_render_that_needs_too_much_memory_fails_alone_in_its_group() {
    let many = |name: &str| format!("concat({}'')", format!("{name},").repeat(20));
    let program = program(&format!(
        "<xsl:template match=\"/\"><xsl:variable name=\"b\" select=\"{}\"/><xsl:value-of select=\"{}\"/></xsl:template>",
        many("/a"),
        many("$b")
    ));
    let large = document(&"x".repeat(400_000));
    let is_memory = |result: &Result<String, WorkerError>| match result {
        // The library stops by itself after most steps; after one that needs far more, the worker ends.
        Ok(text) => text == "Memory",
        Err(error) => matches!(error, WorkerError::Memory { compiles: false, .. }),
    };
    check_fails_alone(&program, large, is_memory);
}

#[test]
fn a15_a_render_that_ends_its_worker_fails_alone_in_its_group() {
    // No operation has this code; a worker ends at a request that it cannot read.
    let program = value_of("concat(/a, '!')");
    check_fails_alone(&program, vec![255], |result| matches!(result, Err(WorkerError::Crashed { .. })));
}

#[test]
fn a15_a_group_whose_worker_is_killed_is_repeated() {
    let program = value_of("/a");
    let documents: Vec<Vec<u8>> = (0..20).map(|at| document(&at.to_string())).collect();
    let expected: Vec<_> = (0..20).map(|at| Ok(at.to_string())).collect();
    assert_eq!(apply_group(&program, &documents), expected);
    for worker in &mut POOL.state().idle {
        worker.child.kill().expect("it runs");
    }
    let calls: Vec<_> = documents.iter().map(|operations| (&program, operations.as_slice())).collect();
    let done = |at: usize| Ok(WorkerResponse::Done(at.to_string().into_bytes()));
    assert_eq!(apply_all(&calls), (0..20).map(done).collect::<Vec<_>>());
}

#[test]
fn messages_are_found_however_they_are_cut() {
    use messages::{MessageBuffer, send};
    struct Pieces<'b>(&'b [u8], usize);
    impl io::Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let (piece, rest) = self.0.split_at(self.1.min(self.0.len()).min(buffer.len()));
            buffer[..piece.len()].copy_from_slice(piece);
            self.0 = rest;
            Ok(piece.len())
        }
    }
    let messages: Vec<Vec<u8>> = (0..40).map(|at| vec![at; usize::from(at) * usize::from(at) * 131]).collect();
    let mut bytes = Vec::new();
    messages.iter().for_each(|message| send(&mut bytes, message).expect("memory takes it"));
    for piece in [1, 2, 3, 5, 1_000, 65_535, 65_537, usize::MAX] {
        let (mut pieces, mut buffer, mut found) = (Pieces(&bytes, piece), MessageBuffer::default(), Vec::new());
        while buffer.fill(&mut pieces).expect("it is read") > 0 {
            while let Some(message) = buffer.next().expect("they are short") {
                found.push(message.to_vec());
            }
        }
        assert!(found == messages, "{piece}");
    }
    let mut buffer = MessageBuffer::default();
    assert_eq!(buffer.fill(&mut &[255; 8][..]).expect("it is read"), 8);
    assert!(buffer.next().is_err(), "longer than any message");
}

/// Compares alternately the library in this process with a worker.
#[test]
#[ignore = "a measurement: cargo test -p tocsin-formatting round_trip -- --ignored --nocapture"]
fn round_trip_of_a_worker_beside_a_call() {
    use crate::{tree::Tree, xslt::engine};
    let sheet = format!(
        "{HEAD}<xsl:output method=\"text\"/><xsl:template match=\"/\"><xsl:for-each select=\"//item\"><xsl:sort select=\"@n\" data-type=\"number\"/><xsl:value-of select=\"concat(@n, ' ', .)\"/></xsl:for-each></xsl:template></xsl:stylesheet>"
    );
    for items in [5, 50, 1_000] {
        let mut tree = Tree::new("items");
        for at in 0..items {
            tree.open("item");
            tree.attribute("n", &at.to_string());
            tree.text("some words of a value");
            tree.close();
        }
        let operations = tree.into_operations();
        let own = engine::Sheet::compile(&sheet, "stylesheet", &[], Some("text")).expect("right");
        let program = Program::stylesheet(&sheet, &[], Some("text"));
        program.apply(&operations).expect("warm");
        let turns = 2_000_000 / (items * 100 + 2_000);
        let group = vec![(&program, operations.as_slice()); 50];
        let (mut call, mut trip, mut share) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..7 {
            let begun = Instant::now();
            for _ in 0..turns {
                let tree = engine::Tree::build(&operations).expect("whole");
                own.apply(tree, &TRANSFORM).expect("a result");
            }
            call.push(begun.elapsed() / turns);
            let begun = Instant::now();
            for _ in 0..turns {
                program.apply(&operations).expect("a result");
            }
            trip.push(begun.elapsed() / turns);
            let begun = Instant::now();
            for _ in 0..turns.div_ceil(50) {
                assert!(apply_all(&group).iter().all(Result::is_ok));
            }
            share.push(begun.elapsed() / (turns.div_ceil(50) * 50));
        }
        for times in [&mut call, &mut trip, &mut share] {
            times.sort();
        }
        let ratio = |times: &[Duration]| times[3].as_secs_f64() / call[3].as_secs_f64();
        println!(
            "{items} items: call {:?}, worker {:?} ({:.2}), worker in groups of 50 {:?} ({:.2})",
            call[3],
            trip[3],
            ratio(&trip),
            share[3],
            ratio(&share)
        );
    }
}

#[test]
fn a_starter_thread_that_has_ended_is_replaced() {
    let pool = Pool::start();
    // The receiver of this channel is gone, as after a panic of the thread.
    *pool.starter.lock().unwrap_or_else(PoisonError::into_inner) = Some(mpsc::channel().0);
    let worker = pool.start_worker().expect("a worker of a new thread");
    drop(worker);
    assert!(pool.start_worker().is_ok(), "the new thread goes on");
}
