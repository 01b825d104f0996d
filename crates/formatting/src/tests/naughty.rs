//! Strings that break software, in every field, for every target. An independent parser reads the output.

use htmlparser::{Token, Tokenizer};

use super::*;

/// The Big List of Naughty Strings, and additions.
fn strings() -> Vec<String> {
    let list: Vec<String> =
        serde_json::from_str(include_str!("../../testdata/naughty-strings.json")).expect("the list is JSON");
    assert!(list.len() > 500);
    let own = [
        "</p><script>alert(1)</script>",
        "\" onmouseover=\"alert(1)",
        "' onmouseover='alert(1)",
        "a\r\nBcc: eve@example.org\r\n\r\nbody",
        "a\u{2028}b\u{85}c\u{b}d\u{0}e\u{202e}f",
        "\"}, \"admin\": true, \"x\": {\"y\": \"",
        "]]><!--",
        "{{ 7 * 7 }}{% include 'x' %}",
        "&lt;b&gt; &amp;",
    ];
    list.into_iter().chain(own.into_iter().map(str::to_owned)).collect()
}

/// The structure of a document: elements and the names of their attributes.
fn structure(html: &str) -> Vec<String> {
    // The parser requires one root element, and only XML characters.
    let html = html.replace(
        |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r') || matches!(c, '\u{fffe}' | '\u{ffff}'),
        "?",
    );
    Tokenizer::from(format!("<div>{html}</div>").as_str())
        .map(|token| match token.unwrap_or_else(|error| panic!("{error} in {html:?}")) {
            Token::ElementStart { local, .. } => format!("<{local}"),
            Token::Attribute { local, .. } => format!("@{local}"),
            Token::ElementEnd { .. } => ">".to_owned(),
            Token::Text { .. } => "text".to_owned(),
            other => format!("{other:?}"),
        })
        .collect()
}

const HTML: &str = "<p title=\"{{ place }}\" class='{{ event.place }}'>x{{ place }}y</p><a href=\"{{ place|url }}\">{{ more.z }}</a>\
                    <a href=\"https://example.org/?q={{ place|urlencode }}\">{{ subscriber.attributes.first_name }}</a>";

#[test]
fn nothing_is_injected() {
    let formatter = compile(&[
        ("", Part::Subject, "Near {{ place }}!"),
        ("", Part::Header, "{{ place }} {{ more.z }}"),
        ("", Part::Html, HTML),
        ("", Part::Json, r#"{"place": {{ place }}, "all": {{ more }}, "event": {{ event.place }}}"#),
        ("", Part::Sms, "{{ place }}"),
    ]);
    let format = |text: &str| {
        let mut sample = Sample::new(text);
        sample.profile.attributes.insert("first_name".to_owned(), Value::from(text));
        formatter.format(Some("en"), "email", &sample.scope())
    };
    let elements =
        |html: &str| -> Vec<String> { structure(html).into_iter().filter(|token| token != "text").collect() };
    let requested = elements(&format("harmless").expect("content").content.html.expect("HTML"));
    for text in strings() {
        // A header that is too long is an error.
        let content = match format(&text) {
            Ok(formatted) => formatted.content,
            Err(error) if text.len() > 900 => {
                assert!(error.to_string().contains("longer"), "{error}");
                continue;
            }
            Err(error) => panic!("{text:?}: {error}"),
        };
        let html = content.html.expect("HTML");
        assert_eq!(elements(&html), requested, "{text:?} in {html}");
        let hrefs = html.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default());
        for href in hrefs {
            let scheme = href.split([':', '&']).next().unwrap_or_default().to_ascii_lowercase();
            assert!(matches!(scheme.as_str(), "https" | "http" | "mailto" | "tel" | "sms" | "about"), "{href}");
        }
        let json: serde_json::Value = serde_json::from_str(&content.json.expect("JSON")).expect("valid JSON");
        assert_eq!(json["place"], text.as_str());
        assert_eq!(json["all"]["z"], text.as_str());
        assert_eq!(json.as_object().map(|object| object.len()), Some(3));
        let lines = [
            content.subject.expect("a subject"),
            content.headers.first().map(|(_, value)| value.clone()).unwrap_or_default(),
        ];
        for line in lines {
            let ends = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}');
            assert!(!line.contains(ends), "{line:?}");
        }
        assert!(!content.sms.expect("a short message").contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}

const XSLT_HTML: &str = r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:output method="html"/>
<xsl:template match="/"><xsl:for-each select="notifications/notification"><p title="{place}"><xsl:value-of select="place"/></p>
<b><xsl:value-of select="more/entry[@key='z']"/></b></xsl:for-each></xsl:template></xsl:stylesheet>"#;

const XSLT_JSON: &str = r#"<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
<xsl:template match="/">{"place": <xsl:value-of select="//place/@json"/>}</xsl:template></xsl:stylesheet>"#;

#[test]
fn nothing_is_injected_through_stylesheets() {
    let xslt = |text: &str| Some(TemplateText { engine: TemplateEngine::Xslt, text: text.to_owned() });
    let parts = TemplateParts { html: xslt(XSLT_HTML), json: xslt(XSLT_JSON), ..TemplateParts::default() };
    let all = ContentTemplates { engine: TemplateEngine::Jinja, templates: BTreeMap::from([(String::new(), parts)]) };
    let formatter = Formatter::compile("n", &all, &known()).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let format = |text: &str| {
        let content = formatter
            .format(Some("en"), "email", &Sample::new(text).scope())
            .unwrap_or_else(|error| panic!("{text:?}: {error}"));
        (content.content.html.expect("HTML"), content.content.json.expect("JSON"))
    };
    let without_text =
        |html: &str| -> Vec<String> { structure(html).into_iter().filter(|token| token != "text").collect() };
    let requested = without_text(&format("harmless").0);
    for text in strings() {
        let (html, json) = format(&text);
        assert_eq!(without_text(&html), requested, "{text:?} in {html}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error} in {json}"));
        // XML cannot contain some characters; they are replaced, and escaped characters are kept.
        assert_eq!(json["place"], text.as_str().replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}"));
    }
}
