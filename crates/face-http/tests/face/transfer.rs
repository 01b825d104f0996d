//! Imports and exports: what goes out comes in again.

use serde_json::Value as Json;

use crate::platform::Platform;

async fn lines(platform: &Platform, path: &str, kind: &str, body: &str) -> Vec<Json> {
    let request = platform.request("POST", path).header("content-type", kind).body(body.to_owned());
    let text = request.send().await.expect("an answer").text().await.expect("a body");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn export(platform: &Platform, path: &str) -> String {
    platform.request("GET", path).send().await.expect("an answer").text().await.expect("a body")
}

/// What an export says, without what the platform adds.
fn content(export: &str) -> Vec<Json> {
    let content = |line: &str| {
        let mut line: Json = serde_json::from_str(line).expect("JSON");
        let members = line.as_object_mut().expect("an object");
        for name in ["id", "created_at", "updated_at", "revision"] {
            if name != "id" || members["id"].as_str().is_some_and(|id| id.starts_with("s-")) {
                members.remove(name);
            }
        }
        line
    };
    export.lines().map(content).collect()
}

const IMPORT: &str = "/v1/import/subscribers";
const NDJSON: &str = "application/x-ndjson";

#[tokio::test]
async fn what_goes_out_comes_in_again() {
    let from = Platform::with_quakes().await;
    let subscribers = [
        r#"{"id":"=cmd|' C calc'!A0","attributes":{"x":"=1+1","n":-5,"t":"42","l":["a",1],"q":"say \"hi\",\nplease","b":true}}"#,
        r#"{"id":"bob","enabled":false,"locale":"de-AT","time_zone":"Europe/Vienna","devices":{"work":{"channel":"mail","address":"+b@example.org","state":"disabled"}}}"#,
    ];
    let answer = lines(&from, IMPORT, NDJSON, &subscribers.join("\n")).await;
    assert_eq!(answer, [serde_json::json!({"lines": 2, "stored": 2, "failed": 0})]);
    let subscriptions = [
        r#"{"subscriber":"alice","key":"one","values":{"magnitude":5.5,"note":"-2"}}"#,
        r#"{"subscriber":"bob","device":"work","enabled":false,"values":{"magnitude":-1}}"#,
    ];
    let into = "/v1/import/subscriptions?application=quakes&class=strong";
    let answer = lines(&from, into, NDJSON, &subscriptions.join("\n")).await;
    assert_eq!(answer, [serde_json::json!({"lines": 2, "stored": 2, "failed": 0})]);

    for (format, kind) in [("ndjson", NDJSON), ("csv", "text/csv")] {
        let to = Platform::with_quakes().await;
        let people = export(&from, &format!("/v1/export/subscribers?format={format}")).await;
        let interests =
            export(&from, &format!("/v1/export/subscriptions?format={format}&application=quakes&class=strong")).await;
        if format == "csv" {
            let formulas = |cell: &str| cell.trim_matches('"').starts_with(['=', '+', '-', '@', '\t', '\r']);
            for text in [&people, &interests] {
                assert!(!text.split(['\n', ',']).any(formulas), "{text}");
            }
        }
        let answer = lines(&to, IMPORT, kind, &people).await;
        assert_eq!(answer, [serde_json::json!({"lines": 3, "stored": 3, "failed": 0})], "{people}");
        let answer = lines(&to, into, kind, &interests).await;
        assert_eq!(answer, [serde_json::json!({"lines": 2, "stored": 2, "failed": 0})], "{interests}");
        for path in ["/v1/export/subscribers", "/v1/export/subscriptions"] {
            assert_eq!(content(&export(&to, path).await), content(&export(&from, path).await), "{format} {path}");
        }
        to.stop().await;
    }
    from.stop().await;
}

#[tokio::test]
async fn a_bad_line_is_told_and_stops_no_other() {
    let platform = Platform::with_quakes().await;
    let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(1_100_000));
    let mut text = String::from("{\"id\":\"a\"}\n\n{\"id\":\n{\"id\":\"b\",\"locale\":\"!\"}\n");
    text.push_str(&long);
    text.push_str("\n{\"id\":\"c\"}");
    let answer = lines(&platform, IMPORT, NDJSON, &text).await;
    let refused: Vec<u64> = answer.iter().filter_map(|line| line["line"].as_u64()).collect();
    assert_eq!(refused, [3, 4, 5], "{answer:?}");
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 5, "stored": 2, "failed": 3})));
    assert_eq!(answer[1]["error"]["problems"][0]["path"], "locale", "{answer:?}");

    let into = "/v1/import/subscriptions?application=quakes&class=strong";
    let rows =
        "subscriber,key,values.magnitude\nalice,one,5\nnobody,two,5\nalice,three,big\nalice,four\nalice,five,\"7\"\n";
    let answer = lines(&platform, into, "text/csv", rows).await;
    let refused: Vec<u64> = answer.iter().filter_map(|line| line["line"].as_u64()).collect();
    assert_eq!(refused, [3, 4, 5], "{answer:?}");
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 5, "stored": 2, "failed": 3})));

    let header = lines(&platform, into, "text/csv", "subscriber,values.magnitud\nalice,5\n").await;
    assert_eq!(header[0]["status"], 422, "{header:?}");
    assert!(header[0].to_string().contains("did you mean `magnitude`?"), "{header:?}");

    // More refusals than are told are counted all the same.
    let many = "{}\n".repeat(2_500);
    let answer = lines(&platform, IMPORT, NDJSON, &many).await;
    assert_eq!(answer.len(), 1_001);
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 2_500, "stored": 0, "failed": 2_500})));
    platform.stop().await;
}

#[tokio::test]
async fn each_line_may_name_its_own_class() {
    let platform = Platform::with_quakes().await;
    let rows = [
        r#"{"application":"quakes","class":"strong","subscriber":"alice","key":"a","values":{"magnitude":5}}"#,
        r#"{"application":"quakes","class":"stron","subscriber":"alice","values":{"magnitude":5}}"#,
        r#"{"application":"others","class":"strong","subscriber":"alice","values":{"magnitude":5}}"#,
        r#"{"subscriber":"alice","values":{"magnitude":5}}"#,
        r#"["quakes","strong","alice"]"#,
    ];
    let answer = lines(&platform, "/v1/import/subscriptions", NDJSON, &rows.join("\n")).await;
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 5, "stored": 1, "failed": 4})), "{answer:?}");
    for (refusal, path) in answer.iter().zip(["class", "application", "application", ""]) {
        assert_eq!(refusal["error"]["problems"][0]["path"], path, "{refusal}");
    }
    let answer = lines(&platform, "/v1/import/subscriptions?class=weak", NDJSON, rows[0]).await;
    assert_eq!(answer[0]["error"]["problems"][0]["message"], "is `strong`, but this import is for `weak`");

    let rows = "application,class,subscriber,key,values.magnitude,values.depth\nquakes,strong,alice,b,6,\nquakes,strong,alice,c,6,7\n";
    let answer = lines(&platform, "/v1/import/subscriptions", "text/csv", rows).await;
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 2, "stored": 1, "failed": 1})), "{answer:?}");
    assert_eq!(answer[0]["error"]["problems"][0]["path"], "values.depth", "{answer:?}");
    platform.stop().await;
}
