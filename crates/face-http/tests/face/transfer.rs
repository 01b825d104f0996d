//! Imports and exports: exported data can be imported again.

use serde_json::{Value as Json, json};
use tocsin_service::own::Owner;

use crate::platform::{Platform, answer};

async fn lines(platform: &Platform, path: &str, kind: &str, body: &str) -> Vec<Json> {
    let request = platform.request("POST", path).header("content-type", kind).body(body.to_owned());
    let text = request.send().await.expect("an answer").text().await.expect("a body");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn export(platform: &Platform, path: &str) -> String {
    platform.request("GET", path).send().await.expect("an answer").text().await.expect("a body")
}

/// The content of an export, without values that the platform adds.
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

#[tokio::test]
async fn the_directory_is_exported_in_pages_as_ldif_without_passwords() {
    let platform = Platform::start().await;
    // More than one page of entries.
    let subscribers: String = (0..1_200).map(|number| format!("{{\"id\":\"p{number}\"}}\n")).collect();
    let answer = lines(&platform, IMPORT, NDJSON, &subscribers).await;
    assert_eq!(answer, [serde_json::json!({"lines": 1200, "stored": 1200, "failed": 0})]);
    let user = serde_json::json!({
        "schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"],
        "userName": "vera", "name": {"familyName": "Muster"}, "password": "open sesame",
    });
    let (status, made) = platform.post("/scim/v2/Users", "application/scim+json", &user.to_string()).await;
    assert_eq!(status.as_u16(), 201, "{made}");
    let response = platform.request("GET", "/v1/directory/export").send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    let ldif = response.text().await.expect("a body");
    assert!(ldif.starts_with("version: 1\n\ndn: dc=example,dc=org\n"), "{}", &ldif[..200]);
    assert_eq!(ldif.matches("\ndn: uid=p").count(), 1_200);
    assert_eq!(ldif.matches("dn: uid=vera,ou=people,dc=example,dc=org\n").count(), 1);
    assert!(!ldif.to_lowercase().contains("userpassword"));
    let mut direct = Vec::new();
    platform.directory.export(&mut direct).await.expect("exported");
    assert_eq!(ldif.as_bytes(), direct, "the command without a server writes the same");
    let (_, key) = platform.make_key(&["events:write"]).await;
    let refused = platform.client.get(format!("{}/v1/directory/export", platform.address)).bearer_auth(key);
    let refused = refused.send().await.expect("an answer");
    assert_eq!(refused.status().as_u16(), 403);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    platform.stop().await;
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
async fn e8_an_export_is_whole_in_gzip_too() {
    let platform = Platform::with_quakes().await;
    let lines: String = (0..500).map(|number| format!("{{\"id\":\"s{number}\"}}\n")).collect();
    let (status, body) = platform.post(IMPORT, NDJSON, &lines).await;
    assert_eq!(status, 200, "{body}");
    let plain = export(&platform, "/v1/export/subscribers").await;
    let request = platform.request("GET", "/v1/export/subscribers").header("accept-encoding", "gzip");
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    let packed = answer.bytes().await.expect("whole");
    let mut unpacked = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain);
    platform.stop().await;
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

    // Refusals beyond the reported ones are counted.
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

/// A shop that declares two attributes as texts.
const SHOP: &str = "
application: shop
events: {sale: {fields: {zip: string}}}
attributes: {zip: string, customer: string, size: number, vip: boolean}
subscriptions: {near: {fields: {zip: string, vip: boolean}}}
";

async fn shop() -> Platform {
    let platform = Platform::with_quakes().await;
    let request =
        platform.request("PUT", "/v1/applications/shop").header("content-type", "application/yaml").body(SHOP);
    let answer = request.send().await.expect("an answer");
    let (status, text) = (answer.status(), answer.text().await.expect("a body"));
    assert!(status.is_success(), "{status}: {text}");
    platform
}

async fn attributes(platform: &Platform, id: &str) -> Json {
    let text = export(platform, &format!("/v1/subscribers/{id}")).await;
    serde_json::from_str::<Json>(&text).expect("JSON")["attributes"].clone()
}

#[tokio::test]
async fn d_declared_types_decide_how_an_import_reads_its_cells() {
    let platform = shop().await;
    let rows = "id,attributes.zip,attributes.customer,attributes.size,attributes.vip,attributes.other\n\
                ann,91234,12345678901234567890123,1e5,TRUE,007\nbo,01234,null,,,42\ncy,1e5,true,7,0,1e5\ndi,=1+1,,x,,\n";
    let answer = lines(&platform, IMPORT, "text/csv", rows).await;
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 4, "stored": 3, "failed": 1})), "{answer:?}");
    assert_eq!(answer[0]["error"]["problems"][0]["path"], "attributes.size", "{answer:?}");
    let expected = [
        (
            "ann",
            serde_json::json!({"zip": "91234", "customer": "12345678901234567890123", "size": 100000.0, "vip": true, "other": "007"}),
        ),
        ("bo", serde_json::json!({"zip": "01234", "customer": "null", "other": 42})),
        ("cy", serde_json::json!({"zip": "1e5", "customer": "true", "size": 7.0, "vip": false, "other": "1e5"})),
    ];
    for (id, expected) in &expected {
        assert_eq!(attributes(&platform, id).await, *expected, "{id}");
    }
    // An export and an import preserve them.
    let exported = export(&platform, "/v1/export/subscribers?format=csv").await;
    let answer = lines(&platform, IMPORT, "text/csv", &exported).await;
    assert_eq!(answer.last().map(|line| &line["failed"]), Some(&serde_json::json!(0)), "{answer:?}");
    for (id, expected) in &expected {
        assert_eq!(attributes(&platform, id).await, *expected, "{id}: {exported}");
    }
    let rows = "subscriber,key,values.zip,values.vip\nann,a,01234,TRUE\nbo,a,1e5,0\n";
    let into = "/v1/import/subscriptions?application=shop&class=near";
    let answer = lines(&platform, into, "text/csv", rows).await;
    assert_eq!(answer, [serde_json::json!({"lines": 2, "stored": 2, "failed": 0})]);
    let stored = content(&export(&platform, "/v1/export/subscriptions").await);
    let values: Vec<&Json> = stored.iter().map(|line| &line["values"]).collect();
    assert_eq!(
        values,
        [&serde_json::json!({"zip": "01234", "vip": true}), &serde_json::json!({"zip": "1e5", "vip": false})]
    );
    platform.stop().await;
}

#[tokio::test]
async fn d_csv_of_spreadsheets_is_imported_or_refused_with_a_reason() {
    let platform = Platform::with_quakes().await;
    let stored = |count: u64| serde_json::json!({"lines": count, "stored": count, "failed": 0});
    for rows in [
        "id,locale\r1,de\r2,en\r",
        "id;locale\r\n1;de\r\n2;en\r\n",
        "id\tlocale\n1\tde\n2\ten",
        "sep=;\r\nid;locale\r\n1;de\r\n2;en\r\n",
        "\u{feff}id,locale,\n1,de,\n,,\n2,en,\n\n",
    ] {
        assert_eq!(lines(&platform, IMPORT, "text/csv", rows).await, [stored(2)], "{rows:?}");
    }
    let bytes = async |kind: &str, body: Vec<u8>| {
        let request = platform.request("POST", IMPORT).header("content-type", kind).body(body);
        let text = request.send().await.expect("an answer").text().await.expect("a body");
        text.lines().map(|line| serde_json::from_str::<Json>(line).expect("JSON")).collect::<Vec<_>>()
    };
    let utf16: Vec<u8> = "\u{feff}id;attributes.n\r\nu;größe\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(bytes("text/csv", utf16).await, [stored(1)]);
    assert_eq!(attributes(&platform, "u").await, serde_json::json!({"n": "größe"}));
    let latin = b"id;attributes.n\r\nl;gr\xf6\xdfe \x80\r\n".to_vec();
    assert_eq!(bytes("text/csv; charset=windows-1252", latin.clone()).await, [stored(1)]);
    assert_eq!(attributes(&platform, "l").await, serde_json::json!({"n": "größe €"}));
    let refused = bytes("text/csv", latin.clone()).await;
    assert!(refused[0]["line"] == 2 && refused[0].to_string().contains("not text in UTF-8"), "{refused:?}");
    let unknown = bytes("text/csv; charset=klingon", latin).await;
    assert!(unknown[0]["status"] == 422 && unknown[0].to_string().contains("klingon"), "{unknown:?}");

    let rows = "id,locale\na,de\nb,\"de\nc,en\nd,en\n";
    let answer = lines(&platform, IMPORT, "text/csv", rows).await;
    assert_eq!(answer.last(), Some(&serde_json::json!({"lines": 2, "stored": 1, "failed": 1})), "{answer:?}");
    assert!(answer[0]["line"] == 3 && answer[0].to_string().contains("never closed"), "{answer:?}");
    let answer = lines(&platform, IMPORT, "text/csv", "id,locale\r1,de\r2\r3,\0\r4,en\r").await;
    assert_eq!(answer.iter().filter_map(|line| line["line"].as_u64()).collect::<Vec<_>>(), [3, 4], "{answer:?}");

    for (kind, nothing) in [
        ("text/csv", ""),
        ("text/csv", "id,locale\n"),
        ("text/csv", "\n\n"),
        (NDJSON, ""),
        (NDJSON, "\n \n"),
        ("text/csv", "id,id\n1,2\n"),
        ("text/csv", "id,,locale\n1,2,3\n"),
        ("text/csv", "\"id,locale\n1,de\n"),
    ] {
        let answer = lines(&platform, IMPORT, kind, nothing).await;
        assert_eq!(answer[0]["status"], 422, "{kind} {nothing:?}: {answer:?}");
    }
    platform.stop().await;
}

/// A nightly import must not reach people who unsubscribed.
#[tokio::test]
async fn b5_a_repeated_import_or_request_without_a_state_enables_nothing() {
    const JSON: &str = "application/json";
    let platform = Platform::with_quakes().await;
    let subscribers = "id,device.work.channel,device.work.address\nbob,mail,bob@example.org\n";
    let person = r#"{"id":"bob","devices":{"work":{"channel":"mail","address":"bob@example.org"}}}"#;
    let line = r#"{"application":"quakes","class":"strong","subscriber":"bob","key":"one","values":{"magnitude":5.5}}"#;
    let csv = "application,class,subscriber,key,enabled,values.magnitude\nquakes,strong,bob,one,,5.5\n";
    let imported = async |kind: &str, media: &str, text: &str| {
        let answer = lines(&platform, &format!("/v1/import/{kind}"), media, text).await;
        assert_eq!(answer.last().expect("totals")["stored"], 1, "{answer:?}");
    };
    imported("subscribers", NDJSON, person).await;
    imported("subscriptions", NDJSON, line).await;
    let (_, list) = platform.get("/v1/subscriptions?subscriber=bob").await;
    let path = format!("/v1/subscriptions/{}", list["items"][0]["id"].as_str().expect("an id"));
    assert_eq!(list["items"][0]["enabled"], true, "new ones are enabled: {list}");
    let patch = |path: &str, body: &'static str| {
        answer(platform.request("PATCH", path).header("content-type", "application/merge-patch+json").body(body))
    };
    let off = r#"{"enabled":false,"devices":{"work":{"state":"bounced"}}}"#;
    assert_eq!(patch("/v1/subscribers/bob", off).await.0, 200);
    for (change, enabled, snoozed) in [
        (r#"{"enabled":false}"#, false, Json::Null),
        (r#"{"enabled":true,"snoozed_until":"2999-01-01T00:00:00Z"}"#, true, "2999-01-01T00:00:00Z".into()),
    ] {
        assert_eq!(patch(&path, change).await.0, 200);
        let stays = async |by: &str| {
            let (_, found) = platform.get(&path).await;
            assert_eq!((&found["enabled"], &found["snoozed_until"]), (&Json::from(enabled), &snoozed), "{by}: {found}");
        };
        imported("subscriptions", NDJSON, line).await;
        stays("NDJSON").await;
        imported("subscriptions", "text/csv", csv).await;
        stays("CSV").await;
        assert_eq!(platform.post("/v1/subscriptions", JSON, line).await.0, 200);
        stays("POST").await;
        assert_eq!(platform.put(&path, JSON, line).await.0, 200);
        stays("PUT").await;
    }
    // `null` ends a snooze, and `enabled` is as the creator writes it.
    let awake = format!(r#"{},"snoozed_until":null}}"#, &line[..line.len() - 1]);
    assert_eq!(platform.put(&path, JSON, &awake).await.0, 200);
    let (_, found) = platform.get(&path).await;
    assert_eq!((&found["enabled"], &found["snoozed_until"]), (&Json::from(true), &Json::Null), "{found}");

    let subscriber = async |by: &str| {
        let (_, found) = platform.get("/v1/subscribers/bob").await;
        let state = &found["devices"]["work"]["state"];
        assert_eq!((&found["enabled"], state), (&Json::from(false), &Json::from("bounced")), "{by}: {found}");
    };
    imported("subscribers", NDJSON, person).await;
    subscriber("NDJSON").await;
    imported("subscribers", "text/csv", subscribers).await;
    subscriber("CSV").await;
    assert_eq!(platform.put("/v1/subscribers/bob", JSON, person).await.0, 200);
    subscriber("PUT").await;
    let device = r#"{"channel":"mail","address":"bob@example.org"}"#;
    assert_eq!(platform.put("/v1/subscribers/bob/devices/work", JSON, device).await.0, 200);
    subscriber("PUT of the device").await;
    let spelled = r#"{"channel":"mail","address":"bob@EXAMPLE.org"}"#;
    assert_eq!(platform.put("/v1/subscribers/bob/devices/work", JSON, spelled).await.0, 200);
    subscriber("PUT of the same mailbox").await;
    // In a merge patch, null is the default.
    let (_, found) = patch("/v1/subscribers/bob", r#"{"devices":{"work":{"state":null}}}"#).await;
    let state = (&found["enabled"], &found["devices"]["work"]["state"]);
    assert_eq!(state, (&Json::from(false), &Json::from("active")), "{found}");
    for path in ["/v1/subscribers/bob", &path] {
        assert_eq!(patch(path, r#"{"enabled":false}"#).await.1["enabled"], false);
        let (_, found) = patch(path, r#"{"enabled":null}"#).await;
        assert_eq!(found["enabled"], true, "{found}");
    }
    platform.stop().await;
}

/// A subscriber edits its rows on its own device.
#[tokio::test]
async fn b5_an_own_edit_keeps_the_state_of_an_address_and_null_ends_a_snooze() {
    let platform = Platform::with_quakes().await;
    let owner = Owner { application: "quakes".parse().expect("a name"), subscriber: "alice".parse().expect("an id") };
    let set = |set: Json| set.as_object().expect("an object").clone();
    let put = async |fields: Json| {
        platform.service.put_own_device(&owner, "mail", &set(fields)).await.expect("stored");
        let (_, found) = platform.get("/v1/subscribers/alice").await;
        found["devices"]["mail"]["state"].as_str().expect("a state").to_owned()
    };
    assert_eq!(put(json!({"state": "bounced"})).await, "bounced");
    assert_eq!(put(json!({"address": "alice@example.org"})).await, "bounced");
    assert_eq!(put(json!({"channel": "mail", "address": "alice@EXAMPLE.org"})).await, "bounced");
    assert_eq!(put(json!({"state": null})).await, "active");
    assert_eq!(put(json!({"state": "bounced"})).await, "bounced");
    assert_eq!(put(json!({"address": "alice@other.example"})).await, "active", "a state belongs to an address");

    let row = json!({"class": "strong", "values": {"magnitude": 5.5}});
    let add = async |snooze: Option<Json>| {
        let mut row = set(row.clone());
        row.extend(snooze.map(|until| ("snoozed_until".to_owned(), until)));
        platform.service.add_own_subscription(&owner, "k", &row).await.expect("stored");
        let (_, list) = platform.get("/v1/subscriptions?subscriber=alice").await;
        assert_eq!(list["items"].as_array().expect("items").len(), 1, "{list}");
        list["items"][0]["snoozed_until"].clone()
    };
    let later = json!("2999-01-01T00:00:00Z");
    assert_eq!(add(Some(Json::Null)).await, Json::Null, "a new one");
    assert_eq!(add(Some(later.clone())).await, later);
    assert_eq!(add(None).await, later, "it keeps the stored one");
    assert_eq!(add(Some(Json::Null)).await, Json::Null);
    platform.stop().await;
}

/// The types of lines and of bodies are different, with the same members.
#[tokio::test]
async fn a_line_of_an_export_has_the_members_of_the_body_of_its_object() {
    const JSON: &str = "application/json";
    let platform = Platform::with_quakes().await;
    let subscriber = r#"{"id":"bob","enabled":false,"locale":"de-AT","time_zone":"Europe/Vienna","attributes":{"n":-5},
        "devices":{"work":{"channel":"mail","address":"bob@example.org","state":"disabled"}},
        "preferences":{"quiet_hours":["22:00-07:00"]}}"#;
    assert_eq!(platform.post("/v1/subscribers", JSON, subscriber).await.0, 201);
    let subscription = r#"{"application":"quakes","class":"strong","subscriber":"bob","key":"one","device":"work",
        "enabled":false,"values":{"magnitude":5.5},"snoozed_until":"2999-01-01T00:00:00Z"}"#;
    let (status, stored) = platform.post("/v1/subscriptions", JSON, subscription).await;
    assert_eq!(status, 201, "{stored}");
    let suppression = r#"{"cause":"manual","detail":"asked by phone","expires_at":"2999-01-01T00:00:00Z"}"#;
    let suppressed = "/v1/suppressions/addresses/smtp/bob%40example.org";
    assert_eq!(platform.put(suppressed, JSON, suppression).await.0, 201);
    let subscription = format!("/v1/subscriptions/{}", stored["id"].as_str().expect("an id"));
    for (kind, path) in
        [("subscribers", "/v1/subscribers/bob"), ("subscriptions", &subscription), ("suppressions", suppressed)]
    {
        let exported = export(&platform, &format!("/v1/export/{kind}")).await;
        let mut lines = exported.lines().map(|line| serde_json::from_str::<Json>(line).expect("JSON"));
        let (_, mut body) = platform.get(path).await;
        // Exports have the id of a key only.
        body.as_object_mut().expect("an object").remove("origin_name");
        let line = lines.find(|line| *line == body).unwrap_or_else(|| panic!("{body} is not in {exported}"));
        let (status, answer) = platform.put(path, JSON, &line.to_string()).await;
        assert_eq!(status, 200, "a line is a body: {answer}");
    }
    platform.stop().await;
}
