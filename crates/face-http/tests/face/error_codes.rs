//! Every failure has a documented code, and so has each of its problems.

use std::{collections::BTreeSet, sync::LazyLock};

use reqwest::Method;
use serde_json::Value as Json;
use tocsin_face_http::{errors_page, openapi_document};

use crate::platform::{Platform, answer};

/// The codes of a section of the reference page.
fn documented(section: &str) -> BTreeSet<String> {
    let page = errors_page();
    let rows = page.split("\n## ").find(|part| part.starts_with(section)).expect("the section is there");
    let words = rows.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    words.map(|(word, _)| word.to_owned()).collect()
}

static DOCUMENT_CODES: LazyLock<BTreeSet<String>> = LazyLock::new(|| documented("Codes of documents"));
static PROBLEM_CODES: LazyLock<BTreeSet<String>> = LazyLock::new(|| documented("Codes of problems"));

/// Checks the codes of a JSON answer: of each problem document, and of each problem and warning in it.
pub fn check_codes(answer: &Json) {
    match answer {
        Json::Object(members) => {
            let is_document = answer["type"].as_str().is_some_and(|kind| kind.starts_with("/problems/"));
            if is_document {
                let code = answer["code"].as_str().unwrap_or_else(|| panic!("has no code: {answer}"));
                assert!(DOCUMENT_CODES.contains(code), "`{code}` is not documented: {answer}");
            }
            for (name, member) in members {
                if matches!(name.as_str(), "problems" | "warnings" | "problem") {
                    let one = std::slice::from_ref(member);
                    let problems = member.as_array().map_or(one, Vec::as_slice);
                    problems.iter().filter(|problem| problem["message"].is_string()).for_each(check_problem);
                }
                check_codes(member);
            }
        }
        Json::Array(items) => items.iter().for_each(check_codes),
        _ => {}
    }
}

fn check_problem(problem: &Json) {
    let code = problem["code"].as_str().unwrap_or_else(|| panic!("has no code: {problem}"));
    assert!(PROBLEM_CODES.contains(code) && code != "unclassified", "`{code}` is not documented: {problem}");
}

/// The path with a value for each of its parameters.
fn filled(path: &str) -> String {
    let segments = path.split('/').map(|segment| if segment.starts_with('{') { "nothing" } else { segment });
    segments.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_route_answers_failures_with_a_documented_code() {
    let platform = Platform::with_quakes().await;
    let document: Json = serde_json::from_str(&openapi_document()).expect("JSON");
    let (mut failures, mut found) = (0, BTreeSet::new());
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let url = format!("{}{}", platform.address, filled(path));
            let bare = |query: &str| platform.client.request(method.clone(), format!("{url}{query}"));
            let with_key = |query: &str| bare(query).bearer_auth(&platform.key);
            let attempts = [
                bare(""),
                bare("").bearer_auth("tocsin_00000000_0000"),
                bare("").header("authorization", "Basic YTpi"),
                with_key("?unheard_of=1").header("content-type", "application/json").body("{\"unheard_of\": 1}"),
                with_key("").header("content-type", "application/json").body("{\"broken\""),
                with_key("").header("content-type", "text/unheard-of").body("?"),
            ];
            for attempt in attempts {
                let response = attempt.send().await.expect("an answer");
                let (status, kind) = (response.status(), response.headers().get("content-type").cloned());
                if !status.is_client_error() && !status.is_server_error() {
                    continue;
                }
                let kind = kind.map(|kind| kind.to_str().expect("text").to_owned()).unwrap_or_default();
                if method == Method::HEAD || !kind.starts_with("application/problem+json") {
                    let is_other = ["text/html", "application/scim+json"].iter().any(|other| kind.starts_with(other));
                    assert!(is_other || method == Method::HEAD, "{method} {path}: {status} {kind:?}");
                    continue;
                }
                let text = response.text().await.expect("a body");
                let problem: Json = serde_json::from_str(&text).expect("JSON");
                assert_eq!(problem["status"], status.as_u16(), "{method} {path}: {problem}");
                check_codes(&problem);
                found.insert(problem["code"].as_str().expect("a code").to_owned());
                failures += 1;
            }
        }
    }
    assert!(failures > 500, "only {failures} failures were checked");
    for code in ["credentials_required", "credentials_unknown", "credentials_malformed", "not_found", "malformed_query"]
    {
        assert!(found.contains(code), "no route answered `{code}`: {found:?}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_problem_has_the_parameters_of_its_message() {
    let platform = Platform::with_quakes().await;
    let event = "/v1/applications/quakes/events/quake";
    let cases = [
        ("GET", "/v1/subscribers?limit=0", "", "out_of_range", "least", serde_json::json!(1)),
        ("POST", event, r#"{"place": "Kobe", "magnitud": 6.1}"#, "unknown_member", "meant", "magnitude".into()),
        ("POST", event, r#"{"place": "Kobe"}"#, "required", "expected", "number".into()),
        ("PUT", "/v1/subscribers/vera", r#"{"locale": "!"}"#, "invalid_format", "format", "language_tag".into()),
    ];
    for (method, path, body, code, name, value) in cases {
        let request = platform.request(method, path).header("content-type", "application/json").body(body);
        let (status, document) = answer(request).await;
        assert_eq!((status.as_u16(), document["code"].as_str()), (422, Some("invalid_content")), "{document}");
        let problems = document["problems"].as_array().expect("problems");
        let problem = problems.iter().find(|problem| problem["code"] == code);
        let problem = problem.unwrap_or_else(|| panic!("{method} {path} has no `{code}`: {document}"));
        assert_eq!(problem["params"][name], value, "{document}");
    }
    platform.stop().await;
}
