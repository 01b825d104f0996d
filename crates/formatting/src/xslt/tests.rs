//! The cases of Apache Xalan, and what must not happen.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use engine::Tree;

#[derive(Deserialize)]
struct Case {
    stylesheet: String,
    input: String,
    output: String,
}

const GENEROUS: Limits =
    Limits { steps: 1_000_000, xpath_steps: 50_000_000, bytes: 64 << 20, milliseconds: 20_000, depth: 1_000 };

/// What matters of a document: neither white space between its words, nor the order of attributes.
fn normal(text: &str) -> String {
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
fn the_cases_of_xalan() {
    let cases: BTreeMap<String, Case> =
        serde_json::from_str(include_str!("../../testdata/xslt.json")).expect("the file of cases is JSON");
    assert_eq!(cases.len(), 696);
    let mut failed = Vec::new();
    for (name, case) in &cases {
        let outcome = Sheet::compile(&case.stylesheet, OWN_NAME, &[], None).and_then(|sheet| {
            let tree = Tree::parse(case.input.as_bytes()).ok_or_else(|| "the input cannot be read".to_owned())?;
            sheet.apply(tree, &GENEROUS).map_err(|failure| format!("{failure:?}"))
        });
        let expected = normal(&case.output);
        match outcome.map(|output| normal(&output)) {
            Ok(output) if output == expected => {}
            Ok(output) => failed.push(format!("{name}:\n  is  {output}\n  not {expected}")),
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}
