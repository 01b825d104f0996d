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
        let (mut call, mut trip) = (Vec::new(), Vec::new());
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
        }
        call.sort();
        trip.sort();
        println!(
            "{items} items: call {:?}, worker {:?}, ratio {:.2}",
            call[3],
            trip[3],
            trip[3].as_secs_f64() / call[3].as_secs_f64()
        );
    }
}
