//! The conformance cases of Apache Xalan, and attacks.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::{tests::outside::ExternalProbe, worker::TRANSFORM as LIMITS, xslt::engine::OWN_NAME};
use engine::{Limits, Sheet, TransformFailure, Transformer, Tree as LibraryTree};

#[derive(Deserialize)]
struct Case {
    stylesheet: String,
    input: String,
    output: String,
}

const GENEROUS: Limits =
    Limits { steps: 1_000_000, xpath_steps: 50_000_000, bytes: 64 << 20, milliseconds: 20_000, depth: 1_000 };

/// The normal form of a document for comparison: ignores white space between words and the order of attributes.
fn normalized(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}');
    let text = match text.starts_with("<?xml") {
        true => text.split_once("?>").map_or("", |(_, rest)| rest),
        false => text,
    };
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ").replace("> ", ">").replace(" <", "<");
    let mut out = String::new();
    let mut rest = words.replace("\" >", "\">").replace(" />", "/>");
    while let Some((before, tag)) = rest.split_once('<') {
        out.push_str(before);
        let (tag, after) = tag.split_once('>').unwrap_or((tag, ""));
        let end = if tag.ends_with('/') { "/" } else { "" };
        let mut parts: Vec<&str> = tag.trim_end_matches('/').split_inclusive("\" ").map(str::trim).collect();
        if let Some((name, first)) = parts.first().and_then(|first| first.split_once(' ')) {
            let mut attributes: Vec<&str> = std::iter::once(first).chain(parts.drain(1..)).collect();
            attributes.sort_unstable();
            out.push_str(&format!("<{name} {}{end}>", attributes.join(" ")));
        } else {
            out.push_str(&format!("<{tag}>"));
        }
        rest = after.to_owned();
    }
    out + &rest
}

#[test]
fn the_cases_of_xalan_pass() {
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(include_str!("../../testdata/xslt.json")).expect("the file of cases is JSON");
    assert_eq!(cases.len(), 696);
    let mut failed = Vec::new();
    for (name, case) in &cases {
        let outcome = Sheet::compile(&case.stylesheet, OWN_NAME, &[], None).and_then(|sheet| {
            let tree =
                LibraryTree::parse(case.input.as_bytes()).ok_or_else(|| "the input cannot be read".to_owned())?;
            sheet.apply(tree, &GENEROUS).map_err(|failure| format!("{failure:?}"))
        });
        let expected = normalized(&case.output);
        match outcome.map(|output| normalized(&output)) {
            Ok(output) if output == expected => {}
            Ok(output) => failed.push(format!("{name}:\n  is  {output}\n  not {expected}")),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}

/// The oracle is a transformation in a context of its own. Each stylesheet is applied by turns to its own document and
/// to that of another case, so that anything left in the context by one would show in the other.
#[test]
fn a_reused_context_changes_no_result() {
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(include_str!("../../testdata/xslt.json")).expect("the file of cases is JSON");
    let others = cases.values().cycle().skip(13);
    let mut compared = 0;
    for ((name, case), other) in cases.iter().zip(others) {
        let compile = || Sheet::compile(&case.stylesheet, OWN_NAME, &[], None).expect("it compiles");
        let (sheet, mut reused) = (compile(), Transformer::new(compile()));
        for turn in 0..4 {
            let input = if turn % 2 == 0 { &case.input } else { &other.input };
            let tree = || LibraryTree::parse(input.as_bytes()).expect("it is XML");
            let expected = sheet.apply(tree(), &GENEROUS);
            let result = reused.apply(tree(), &GENEROUS);
            let result = result.map(|output| String::from_utf8_lossy(output.bytes()).into_owned());
            assert_eq!(result, expected, "{name}, turn {turn}");
            compared += 1;
        }
    }
    assert_eq!(compared, 4 * 696);
}

const HEAD: &str = r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">"#;

fn sheet(body: &str) -> String {
    format!("{HEAD}\n<xsl:output method=\"text\"/>\n{body}</xsl:stylesheet>")
}

/// Applies a stylesheet to a small document, with the limits of production.
fn apply(source: &str, partials: &[(&str, &str)]) -> Result<String, String> {
    let partials = partials.iter().copied().collect();
    let stylesheet = Stylesheet::compile(source, &partials, Some("text")).map_err(|problem| problem.to_string())?;
    stylesheet.apply_to(items()).map_err(|error| match error.line {
        Some(line) => format!("line {line}: {}", error.message),
        None => error.message,
    })
}

fn items() -> Tree {
    let mut tree = Tree::new("notifications");
    tree.open("notification");
    for at in 0..50 {
        tree.open("item");
        tree.attribute("n", &at.to_string());
        tree.text("some words");
        tree.close();
    }
    tree
}

/// A document of the library itself, for stylesheets that the check would reject.
fn empty() -> LibraryTree {
    LibraryTree::build(&Tree::new("notifications").into_operations()).expect("a document")
}

#[test]
fn xml_bombs_are_rejected_before_the_library_parses_them() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/xml-bombs");
    let mut seen = 0;
    for file in std::fs::read_dir(folder).expect("the folder of bombs").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("a bomb");
        let refused = Stylesheet::compile(&text, &BTreeMap::new(), Some("text"));
        let problem = refused.expect_err(&format!("{:?}", file.file_name()));
        assert!(!problem.message.contains("cannot be compiled"), "{:?} came as far as the library", file.file_name());
        seen += 1;
    }
    assert_eq!(seen, 13);
    for bad in [
        "<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><x/>",
        "<?xml-stylesheet href=\"x.xsl\"?><x/>",
        &sheet("<xi:include xmlns:xi=\"http://www.w3.org/2001/XInclude\" href=\"/etc/passwd\"/>"),
        &sheet("<xsl:template match=\"/\">&lol;</xsl:template>"),
        &sheet(&format!(
            "<xsl:template match=\"/\"><xsl:value-of select=\"{}1{}\"/></xsl:template>",
            "(".repeat(900),
            ")".repeat(900)
        )),
        &sheet(&format!("<xsl:template match=\"/\"><xsl:value-of select=\"1{}\"/></xsl:template>", "+1".repeat(5_000))),
        &sheet(&format!("<xsl:template match=\"/\">{}{}</xsl:template>", "<a>".repeat(300), "</a>".repeat(300))),
        "<a><b></a></b>",
        "<a/><b/>",
        "",
        "not xml",
        "<a",
    ] {
        assert!(Stylesheet::compile(bad, &BTreeMap::new(), Some("text")).is_err(), "{bad}");
    }
}

#[test]
fn files_and_network_are_unreachable() {
    let secret = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/xml-bombs/simple.xml");
    for (body, word) in [
        (format!("<xsl:template match=\"/\"><xsl:copy-of select=\"document('{secret}')\"/></xsl:template>"), "document"),
        (format!("<xsl:template match=\"/\"><xsl:copy-of select=\"document( '{secret}' )//x\"/></xsl:template>"), "document"),
        (format!("<xsl:import href=\"{secret}\"/><xsl:template match=\"/\"/>"), "imports"),
        (format!("<xsl:include href=\"file://{secret}\"/><xsl:template match=\"/\"/>"), "imports"),
        ("<xsl:include href=\"http://localhost:1/x.xsl\"/><xsl:template match=\"/\"/>".to_owned(), "imports"),
        ("<xsl:template match=\"/\"><e:document xmlns:e=\"http://exslt.org/common\" href=\"/tmp/tocsin-xslt-wrote\">x</e:document></xsl:template>".to_owned(), "files"),
        ("<xsl:template match=\"/\"><xsl:document href=\"/tmp/tocsin-xslt-wrote\">x</xsl:document></xsl:template>".to_owned(), "files"),
        ("<xsl:template match=\"/\"><xsl:value-of select=\"rt:getRuntime()\" xmlns:rt=\"http://xml.apache.org/xalan/java/java.lang.Runtime\"/></xsl:template>".to_owned(), "extension"),
        ("<xsl:template match=\"/\" xmlns:e=\"http://exslt.org/common\" xsl:extension-element-prefixes=\"e\"/>".to_owned(), "extension"),
        ("<xsl:template match=\"/\"><xsl:value-of select=\"unparsed-text('/etc/passwd')\"/></xsl:template>".to_owned(), "files"),
    ] {
        let error = apply(&sheet(&body), &[]).expect_err(&body);
        assert!(error.contains(word), "{error}");
    }
    assert!(!std::path::Path::new("/tmp/tocsin-xslt-wrote").exists());
    // The library rejects what the check cannot see: here the name of the file is computed.
    let raw = |body: &str| {
        let sheet = Sheet::compile(&sheet(body), OWN_NAME, &[], Some("text")).expect("it is XSLT");
        sheet.apply(empty(), &LIMITS)
    };
    for body in [
        format!("<xsl:template match=\"/\">[<xsl:copy-of select=\"document('{secret}')\"/>]</xsl:template>"),
        "<xsl:template match=\"/\">[<xsl:copy-of select=\"document('http://localhost:1/')\"/>]</xsl:template>"
            .to_owned(),
        "<xsl:template match=\"/\">[<xsl:copy-of select=\"document('')\"/>]</xsl:template>".to_owned(),
    ] {
        match raw(&body) {
            Ok(text) => assert_eq!(text, "[]", "{body}"),
            Err(failure) => assert!(matches!(failure, TransformFailure::Said(_)), "{failure:?}"),
        }
    }
    let wrote = raw(
        "<xsl:template match=\"/\"><xsl:document href=\"/tmp/tocsin-xslt-wrote\" xmlns:xsl=\"http://www.w3.org/1999/XSL/Transform\">x</xsl:document></xsl:template>",
    );
    assert!(wrote.is_err() || !std::path::Path::new("/tmp/tocsin-xslt-wrote").exists());
}

#[test]
fn no_file_is_opened_and_no_connection_is_made() {
    let outside = ExternalProbe::new();
    let (file, style, url) = (outside.file("secret.xml"), outside.file("style.xsl"), outside.url());
    for (name, bomb) in outside.bombs() {
        assert!(Stylesheet::compile(&bomb, &BTreeMap::new(), Some("text")).is_err(), "{name}");
    }
    let template = |inner: &str| format!("<xsl:template match=\"/\">{inner}</xsl:template>");
    for target in [&file, &format!("file://{file}"), &style, &format!("{url}/x.xsl"), &outside.file("new.xml")] {
        let exslt = "xmlns:e=\"http://exslt.org/common\" xsl:extension-element-prefixes=\"e\"";
        for body in [
            template(&format!("<xsl:copy-of select=\"document('{target}')\"/>")),
            template(&format!("<xsl:copy-of select=\"document(concat('{target}', ''))\"/>")),
            template(&format!(
                "<xsl:variable name=\"f\">{target}</xsl:variable><xsl:copy-of select=\"document($f)//*\"/>"
            )),
            template(&format!("<xsl:for-each select=\"document('{target}', /)\">x</xsl:for-each>")),
            format!("<xsl:import href=\"{target}\"/>{}", template("x")),
            format!("<xsl:include href=\"{target}\"/>{}", template("x")),
            template(&format!("<xsl:document href=\"{target}\">x</xsl:document>")),
            template(&format!("<e:document {exslt} href=\"{target}\">x</e:document>")),
            template(&format!("<xi:include xmlns:xi=\"http://www.w3.org/2001/XInclude\" href=\"{target}\"/>")),
            format!("<!DOCTYPE x SYSTEM \"{target}\">{}", template("x")),
        ] {
            let whole = match body.starts_with("<!DOCTYPE") {
                true => format!("{}{}", &body[..body.find('>').unwrap_or_default() + 1], sheet(&template("x"))),
                false => sheet(&body).replace("<xsl:output method=\"text\"/>\n<xsl:im", "<xsl:im"),
            };
            let _ = apply(&whole, &[]);
            // The library would reject it too if our check did not.
            if let Ok(sheet) = Sheet::compile(&whole, OWN_NAME, &[], Some("text")) {
                let _ = sheet.apply(empty(), &LIMITS);
            }
            assert_eq!(outside.touched(), Vec::<String>::new(), "{whole}");
        }
    }
    // A control: opening a file is noticed.
    std::fs::read(&file).expect("it is there");
    let _visitor = std::net::TcpStream::connect(&url["http://".len()..]).expect("it listens");
    assert_eq!(outside.touched(), ["secret.xml", "127.0.0.1"]);
}

#[test]
fn stylesheets_import_partials() {
    let base = sheet(
        "<xsl:template match=\"/\"><xsl:call-template name=\"inner\"/></xsl:template><xsl:template name=\"inner\">base</xsl:template>",
    );
    let top = sheet("")
        .replace("<xsl:output", "<xsl:import href=\"base\"/>\n<xsl:output")
        .replace("</xsl:stylesheet>", "<xsl:template name=\"inner\">own</xsl:template></xsl:stylesheet>");
    assert_eq!(apply(&top, &[("base", &base)]), Ok("own".to_owned()));
    let missing = apply(&top, &[("bases", &base)]).expect_err("no base");
    assert_eq!(missing, "2:1: imports `base`, which is not a stylesheet of the application; did you mean `bases`?");
    let bad = apply(&top, &[("base", "<!DOCTYPE a><a/>")]).expect_err("a DOCTYPE");
    assert_eq!(bad, "2:1: imports `base`, line 1: has a DOCTYPE; remove it: stylesheets cannot have entities or a DTD");
    let circle = sheet("<xsl:include href=\"base\"/>");
    assert!(apply(&circle, &[("base", &circle)]).is_err());
}

#[test]
fn errors_name_their_line() {
    let body = "<xsl:template match=\"/\">\n<xsl:message terminate=\"yes\">no more</xsl:message></xsl:template>";
    assert_eq!(apply(&sheet(body), &[]), Err("line 4: no more".to_owned()));
    let body = "<xsl:template match=\"/\">\n\n<xsl:value-of select=\"$nothing\"/></xsl:template>";
    let error = apply(&sheet(body), &[]).expect_err("undefined");
    assert!(error.contains("line 5") && error.contains("nothing"), "{error}");
    let error = apply(&sheet("<xsl:template match=\"/\">\n<xsl:value-of select=\"1 +\"/></xsl:template>"), &[])
        .expect_err("no expression");
    assert!(error.starts_with("4:1: the stylesheet cannot be compiled"), "{error}");
    let error = apply(&sheet("<xsl:template match=\"/\">\n<xsl:call-template name=\"gone\"/></xsl:template>"), &[])
        .expect_err("no template");
    assert!(error.contains("gone"), "{error}");
    // A message without `terminate` is not an error.
    assert_eq!(
        apply(&sheet("<xsl:template match=\"/\"><xsl:message>psst</xsl:message>x</xsl:template>"), &[]),
        Ok("x".to_owned())
    );
}

#[test]
fn endless_stylesheets_are_stopped() {
    let recursive = |call: &str| {
        format!(
            "<xsl:template match=\"/\"><xsl:call-template name=\"t\"/></xsl:template><xsl:template name=\"t\"><xsl:param name=\"s\" select=\"'xxxxxxxxxxxxxxxx'\"/><xsl:param name=\"n\" select=\"0\"/>{call}</xsl:template>"
        )
    };
    let nested = format!("{}x{}", "<xsl:for-each select=\"//item\">".repeat(8), "</xsl:for-each>".repeat(8));
    let big = recursive(
        "<xsl:value-of select=\"$s\"/><xsl:call-template name=\"t\"><xsl:with-param name=\"s\" select=\"concat($s, $s)\"/></xsl:call-template>",
    );
    let tree = recursive(
        "<xsl:variable name=\"v\"><xsl:copy-of select=\"$s\"/><xsl:copy-of select=\"$s\"/></xsl:variable><xsl:call-template name=\"t\"><xsl:with-param name=\"s\" select=\"$v\"/></xsl:call-template>",
    );
    for (body, words) in [
        (recursive("<xsl:call-template name=\"t\"/>"), "deep"),
        (recursive("<xsl:if test=\"true()\"><xsl:choose><xsl:when test=\"1\"><xsl:for-each select=\"/\"><xsl:call-template name=\"t\"/></xsl:for-each></xsl:when></xsl:choose></xsl:if>"), "deep"),
        (recursive("<xsl:call-template name=\"t\"/><xsl:call-template name=\"t\"/>"), ""),
        (format!("<xsl:template match=\"/\">{nested}</xsl:template>"), ""),
        ("<xsl:template match=\"/\"><xsl:value-of select=\"count(//*[count(//*[count(//*[count(//*) > 0]) > 0]) > 0])\"/></xsl:template>".to_owned(), ""),
        (big, "memory"),
        (tree, ""),
    ] {
        let outcome = apply(&sheet(&body), &[]).expect_err(&body);
        assert!(outcome.contains(words), "{outcome}");
    }
    // A deep but finite recursion is allowed.
    let counted = recursive(
        "<xsl:if test=\"$n &lt; 500\">.<xsl:call-template name=\"t\"><xsl:with-param name=\"n\" select=\"$n + 1\"/></xsl:call-template></xsl:if>",
    );
    assert_eq!(apply(&sheet(&counted), &[]), Ok(".".repeat(500)));
}

#[test]
fn the_deepest_recursion_fits_on_the_stack_of_a_worker() {
    // As deep as elements and templates may be.
    let inner =
        format!("{}<xsl:call-template name=\"t\"/>{}", "<xsl:if test=\"true()\">".repeat(50), "</xsl:if>".repeat(50));
    let body = format!(
        "<xsl:template match=\"/\"><xsl:call-template name=\"t\"/></xsl:template><xsl:template name=\"t\">{inner}</xsl:template>"
    );
    let error = apply(&sheet(&body), &[]).expect_err("no end");
    assert!(!error.contains("signal"), "{error}");
}

#[test]
fn one_stylesheet_serves_many_threads() {
    let source = sheet(
        "<xsl:key name=\"k\" match=\"item\" use=\"@n\"/><xsl:template match=\"/\"><xsl:for-each select=\"//item\"><xsl:sort select=\"@n\" data-type=\"number\" order=\"descending\"/><xsl:value-of select=\"concat(key('k', '3')/@n, translate(., 's', 'S'), format-number(@n, '0.00'))\"/></xsl:for-each></xsl:template>",
    );
    let expected = apply(&source, &[]).expect("a text");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| (0..25).for_each(|_| assert_eq!(apply(&source, &[]).as_ref(), Ok(&expected))));
        }
    });
}

#[test]
fn c4_an_image_within_a_stylesheet_is_no_expression() {
    let image = format!("data:image/png;base64,{}", "iVBORw0KGgo=".repeat(20_000));
    let page = |attribute: &str| format!("<xsl:template match=\"/\"><html><img {attribute}/></html></xsl:template>");
    let made = apply(&sheet(&page(&format!("src=\"{image}\""))).replace("text", "xml"), &[]).expect("an image");
    assert!(made.contains(&image), "{} bytes", made.len());
    // Texts with parentheses and colons are not calls either, and doubled braces are text.
    for text in
        ["style=\"filter: a:b(c) {{x}}\"", "onclick=\"document(1)\"", "title=\"a {concat('}', &quot;{&quot;)} b\""]
    {
        assert!(apply(&sheet(&page(text)), &[]).is_ok(), "{text}");
    }
    let long = format!("title=\"{}\"", "x".repeat((1 << 20) + 1));
    assert!(apply(&sheet(&page(&long)), &[]).expect_err("too long").contains("1 MiB"));
    let expression = format!("title=\"{{1{}}}\"", "+1".repeat(2_000));
    assert!(apply(&sheet(&page(&expression)), &[]).expect_err("too long").contains("2,000 bytes"));
    let select = format!("<xsl:value-of select=\"'{}'\"/>", "x".repeat(2_001));
    let error =
        apply(&sheet(&format!("<xsl:template match=\"/\">{select}</xsl:template>")), &[]).expect_err("too long");
    assert!(error.contains("2,000 bytes"), "{error}");
    assert!(apply(&sheet(&page("title=\"{document('x')}\"")), &[]).expect_err("a file").contains("files"));
    // A declaration deeper in the stylesheet affects which elements are instructions.
    let other = "<x xmlns:t=\"http://www.w3.org/1999/XSL/Transform\"><t:value-of select=\"document('x')\"/></x>";
    let error = apply(&sheet(&format!("<xsl:template match=\"/\">{other}</xsl:template>")), &[]).expect_err("a file");
    assert!(error.contains("files"), "{error}");
}
