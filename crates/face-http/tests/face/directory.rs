//! The directory over REST: entries, dry runs, conditions, schema, access, LDIF.

use reqwest::StatusCode;
use serde_json::{Value as Json, json};
use tocsin_face_http::HttpOptions;
use tocsin_store::journal::JournalOptions;

use crate::platform::{Platform, answer};

const ROOT: &str = "/v1/directory/entries";

fn path(dn: &str) -> String {
    let encoded: String = dn.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("{ROOT}/{encoded}")
}

fn person(cn: &str) -> Json {
    json!({"attributes": {"objectClass": ["inetOrgPerson"], "cn": cn, "sn": ["Abe"], "title": "Clerk"}})
}

async fn send(platform: &Platform, method: &str, path: &str, body: &Json) -> (StatusCode, Json) {
    answer(platform.request(method, path).json(body)).await
}

const ANN: &str = "uid=ann,ou=people,dc=example,dc=org";

#[tokio::test]
async fn an_entry_is_stored_read_changed_renamed_and_removed() {
    let platform = Platform::start().await;
    let dry = format!("{}?dry_run=true", path(ANN));
    let (status, body) = send(&platform, "PUT", &dry, &person("Ann")).await;
    assert_eq!((status.as_u16(), &body), (200, &json!({"dry_run": true, "created": true})));
    let (status, body) = platform.get(&path(ANN)).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("not_found")), "{body}");
    assert_eq!((&body["matched"], &body["ldap_result"]), (&json!("ou=people,dc=example,dc=org"), &json!(32)));

    let (status, body) = send(&platform, "PUT", &path(ANN), &person("Ann")).await;
    assert_eq!((status.as_u16(), &body["attributes"]["cn"]), (201, &json!(["Ann"])), "{body}");
    assert_eq!((&body["rdn"], &body["parent"]), (&json!("uid=ann"), &json!("ou=people,dc=example,dc=org")));
    assert_eq!((&body["is_subscriber"], &body["attributes"]["uid"]), (&json!(true), &json!(["ann"])));
    let (status, body) = platform.get("/v1/subscribers/ann").await;
    assert_eq!(status, 200, "a subscriber is an entry: {body}");

    let photo = json!({"attributes": {"jpegPhoto": {"base64": "/9j/4A=="}, "title": null}});
    let (status, body) = send(&platform, "PATCH", &path(ANN), &photo).await;
    assert_eq!((status.as_u16(), &body["attributes"]["jpegPhoto"]), (200, &json!([{"base64": "/9j/4A=="}])), "{body}");
    assert!(body["attributes"]["title"].is_null());
    let modify = json!({"modifications": [
        {"op": "add", "attribute": "title", "values": ["Boss"]}, {"op": "delete", "attribute": "jpegPhoto"}
    ]});
    let (status, body) = send(&platform, "PATCH", &path(ANN), &modify).await;
    assert_eq!((status.as_u16(), &body["attributes"]["title"]), (200, &json!(["Boss"])), "{body}");

    let tag = format!("\"{}\"", body["revision"]);
    let stale = platform.request("PUT", &path(ANN)).header("if-match", "\"9999\"").json(&person("Anna"));
    assert_eq!(answer(stale).await.0, 412);
    let absent = platform.request("PUT", &path(ANN)).header("if-none-match", "*").json(&person("Anna"));
    assert_eq!(answer(absent).await.0, 412);
    let put = platform.request("PUT", &path(ANN)).header("if-match", &tag).json(&person("Anna"));
    let (status, body) = answer(put).await;
    assert_eq!((status.as_u16(), &body["attributes"]["title"]), (200, &json!(["Clerk"])), "{body}");

    let rename = format!("{}/rename", path(ANN));
    let (status, body) = send(&platform, "POST", &rename, &json!({"rdn": "uid=anna"})).await;
    assert_eq!((status.as_u16(), &body["dn"]), (200, &json!("uid=anna,ou=people,dc=example,dc=org")), "{body}");
    let anna = path("uid=anna,ou=people,dc=example,dc=org");
    let (status, body) = send(&platform, "POST", &format!("{anna}/password"), &json!({})).await;
    let made = body["password"].as_str().expect("a generated password");
    assert!(status == 200 && made.len() >= 8, "{body}");
    let anna_dn = "uid=anna,ou=people,dc=example,dc=org";
    platform.directory.authenticate(anna_dn, made.as_bytes().to_vec()).await.expect("it is her password");
    let (status, body) = send(&platform, "POST", &format!("{anna}/password"), &json!({"password": "short"})).await;
    assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!("password")), "{body}");

    let (status, body) = answer(platform.request("DELETE", &path("ou=people,dc=example,dc=org"))).await;
    assert_eq!(status, 422, "{body}");
    assert_eq!(answer(platform.request("DELETE", &format!("{anna}?dry_run=true"))).await.0, 200);
    assert_eq!(answer(platform.request("DELETE", &anna)).await.0, 204);
    assert_eq!(platform.get(&anna).await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn an_entry_with_children_stays_and_errors_name_the_attribute() {
    let platform = Platform::start().await;
    let unit = |ou: &str| json!({"attributes": {"objectClass": ["organizationalUnit"], "ou": [ou]}});
    for dn in ["ou=top,dc=example,dc=org", "ou=low,ou=top,dc=example,dc=org"] {
        let (status, body) = send(&platform, "PUT", &path(dn), &unit(&dn[3..6])).await;
        assert_eq!(status, 201, "{body}");
    }
    let (status, body) = answer(platform.request("DELETE", &path("ou=top,dc=example,dc=org"))).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (409, Some("entry_has_children")), "{body}");
    let dn = path("cn=x,dc=example,dc=org");
    for (draft, member) in [
        (json!({"attributes": {"objectClass": ["person"], "cn": "x"}}), "attributes"),
        (json!({"attributes": {"objectClass": [7.5, {"text": "x"}]}}), "attributes.objectClass[1]"),
        (json!({"attributes": {"jpegPhoto": {"base64": "?"}}}), "attributes.jpegPhoto.base64"),
        (json!({"attributs": {}}), "attributs"),
        (json!({}), "attributes"),
    ] {
        let (status, body) = send(&platform, "PUT", &dn, &draft).await;
        assert_eq!((status.as_u16(), &body["problems"][0]["path"]), (422, &json!(member)), "{body}");
    }
    let both = json!({"attributes": {}, "modifications": []});
    assert_eq!(send(&platform, "PATCH", &dn, &both).await.0, 422);
    let (status, body) = platform.get(&path("no name")).await;
    assert_eq!((status.as_u16(), &body["ldap_result"]), (422, &json!(34)), "{body}");
    platform.stop().await;
}

#[tokio::test]
async fn entries_are_listed_by_pages_with_counts_of_children() {
    let platform = Platform::start().await;
    for at in 0..5 {
        let dn = format!("uid=p{at},ou=people,dc=example,dc=org");
        assert_eq!(send(&platform, "PUT", &path(&dn), &person(&format!("P {at}"))).await.0, 201);
    }
    let (status, body) = platform.get(&format!("{ROOT}?scope=base&children=true&attributes=1.1")).await;
    let first = &body["items"][0];
    assert_eq!((status.as_u16(), &first["dn"], &first["parent"]), (200, &json!("dc=example,dc=org"), &Json::Null));
    assert_eq!((&first["children"], &first["attributes"]), (&json!({"count": 1, "exact": true}), &json!({})));
    let (_, body) = platform.get(&format!("{ROOT}?scope=one&children=true")).await;
    assert_eq!(body["items"][0]["children"], json!({"count": 5, "exact": true}), "{body}");

    let (mut after, mut found) = (String::new(), Vec::new());
    loop {
        let query = format!("{ROOT}?filter=(cn=P*)&attributes=cn,%2B&limit=2{after}");
        let (status, page) = platform.get(&query).await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().expect("items") {
            assert!(item["attributes"]["entryUUID"][0] == item["id"], "{item}");
            found.push(item["attributes"]["cn"][0].as_str().expect("a name").to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found, ["P 0", "P 1", "P 2", "P 3", "P 4"]);
    for (query, status) in [("filter=(cn=", 422), ("scope=all", 422), ("after=7", 400), ("base=cn%3Dnone", 404)] {
        assert_eq!(platform.get(&format!("{ROOT}?{query}")).await.0, status, "{query}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn a_key_acts_within_its_scopes_and_containers() {
    let platform = Platform::start().await;
    let unit = json!({"attributes": {"objectClass": ["organizationalUnit"], "ou": ["club"]}});
    let club = "ou=club,dc=example,dc=org";
    assert_eq!(send(&platform, "PUT", &path(club), &unit).await.0, 201);
    assert_eq!(send(&platform, "PUT", &path(ANN), &person("Ann")).await.0, 201);
    let with = |key: &str, method: &str, path: &str, body: &Json| {
        let request = platform.client.request(method.parse().expect("a method"), format!("{}{path}", platform.address));
        answer(request.bearer_auth(key).json(body))
    };
    let (_, reader) = platform.make_key(&["subscribers:read"]).await;
    assert_eq!(with(&reader, "GET", ROOT, &Json::Null).await.0, 200);
    let (status, body) = with(&reader, "PUT", &path(ANN), &person("Ann")).await;
    assert_eq!((status.as_u16(), &body["scope"]), (403, &json!("subscribers:write")));
    let (_, other) = platform.make_key(&["events:write"]).await;
    assert_eq!(with(&other, "GET", ROOT, &Json::Null).await.0, 403);

    let asked =
        json!({"scopes": ["subscribers:read", "subscribers:write"], "resources": [format!("container:{club}")]});
    let (status, made) = send(&platform, "POST", "/v1/keys", &asked).await;
    assert_eq!(status, 201, "{made}");
    let limited = made["key"].as_str().expect("a key");
    let member = format!("uid=eve,{club}");
    assert_eq!(with(limited, "PUT", &path(&member), &person("Eve")).await.0, 201);
    let (status, page) = with(limited, "GET", ROOT, &Json::Null).await;
    let names: Vec<_> = page["items"].as_array().expect("items").iter().map(|item| item["dn"].clone()).collect();
    assert_eq!((status.as_u16(), names), (200, vec![json!(club), json!(member)]));
    assert_eq!(with(limited, "GET", &path(ANN), &Json::Null).await.0, 404);
    assert_eq!(with(limited, "PUT", &path(ANN), &person("Ann")).await.0, 404);
    for path in ["/v1/directory/import", "/v1/directory/access"] {
        assert_eq!(with(limited, "POST", path, &json!({"entry": ANN})).await.0, 403, "{path}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn schema_and_access_are_described() {
    let platform = Platform::start().await;
    assert_eq!(send(&platform, "PUT", &path(ANN), &person("Ann")).await.0, 201);
    let (status, schema) = platform.get("/v1/directory/schema").await;
    assert_eq!((status.as_u16(), &schema["suffix"]), (200, &json!("dc=example,dc=org")));
    let named = |list: &str, name: &str| {
        let list = schema[list].as_array().expect("a list");
        list.iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    let cn = named("attribute_types", "cn");
    assert_eq!((&cn["superiors"], &cn["equality"]), (&json!(["name"]), &json!("caseIgnoreMatch")), "{cn}");
    assert_eq!((&cn["syntax"], &cn["binary"]), (&json!("Directory String"), &json!(false)), "{cn}");
    assert_eq!(named("attribute_types", "jpegPhoto")["binary"], true);
    let person = named("object_classes", "inetOrgPerson");
    assert_eq!((&person["must"], &person["kind"]), (&json!(["cn", "objectClass", "sn"]), &json!("structural")));

    let question = json!({"requester": ANN, "entry": ANN, "attributes": ["cn", "userPassword"]});
    let (status, access) = send(&platform, "POST", "/v1/directory/access", &question).await;
    assert_eq!((status.as_u16(), &access["visible"], &access["default_rules"]), (200, &json!(true), &json!(true)));
    let rule = json!({"number": 2, "text": "to * by self write by users read by * none", "by": "self"});
    assert_eq!(access["attributes"][0], json!({"name": "cn", "level": "write", "rule": rule}), "{access}");
    assert_eq!(access["attributes"][1]["rule"]["number"], 1);
    let (_, access) = send(&platform, "POST", "/v1/directory/access", &json!({"entry": ANN})).await;
    assert_eq!((&access["visible"], &access["itself"]["rule"]["by"]), (&json!(false), &json!("*")), "{access}");
    platform.stop().await;
}

#[tokio::test]
async fn ldif_is_checked_then_imported() {
    let platform = Platform::start().await;
    let ldif = "dn: ou=a,dc=example,dc=org\nobjectClass: organizationalUnit\nou: a\n\n\
                dn: ou=b,ou=none,dc=example,dc=org\nobjectClass: organizationalUnit\nou: b\n";
    let (status, checked) = platform.post("/v1/directory/import?dry_run=true", "text/ldif", ldif).await;
    assert_eq!((status.as_u16(), &checked["done"], &checked["dry_run"]), (200, &json!(1), &json!(true)), "{checked}");
    assert_eq!(checked["failed"][0]["line"], 5);
    assert_eq!(platform.get(&path("ou=a,dc=example,dc=org")).await.0, 404);
    let (status, imported) = platform.post("/v1/directory/import", "text/plain; charset=utf-8", ldif).await;
    assert_eq!((status.as_u16(), &imported["done"], &imported["failed"]), (200, &json!(1), &checked["failed"]));
    assert_eq!(platform.get(&path("ou=a,dc=example,dc=org")).await.0, 200);
    assert_eq!(platform.post("/v1/directory/import", "application/json", "{}").await.0, 415);
    platform.stop().await;
}

#[tokio::test]
async fn a_server_without_a_directory_says_how_to_enable_it() {
    let platform = Platform::without_directory(HttpOptions::default(), JournalOptions::default()).await;
    let (status, body) = platform.get(ROOT).await;
    assert_eq!((status.as_u16(), body["code"].as_str()), (404, Some("directory_disabled")), "{body}");
    assert!(body["detail"].as_str().expect("text").contains("ldap.listen"));
    platform.stop().await;
}
