//! SCIM 2.0 over a real socket, and with an independent conformance checker.

use std::collections::BTreeSet;

use reqwest::StatusCode;
use serde_json::{Value as Json, json};
use tocsin_directory::Preconditions;
use tocsin_test_peers::{Peer, missing};

use crate::platform::{Platform, answer, operator};

const SCIM: &str = "application/scim+json";
const USER: &str = "urn:ietf:params:scim:schemas:core:2.0:User";
const GROUP: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";
const ENTERPRISE: &str = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User";
const PATCH: &str = "urn:ietf:params:scim:api:messages:2.0:PatchOp";

async fn post(platform: &Platform, path: &str, body: Json) -> (StatusCode, Json) {
    platform.post(&format!("/scim/v2{path}"), SCIM, &body.to_string()).await
}

async fn get(platform: &Platform, path: &str) -> (StatusCode, Json) {
    platform.get(&format!("/scim/v2{path}")).await
}

async fn send(platform: &Platform, method: &str, path: &str, tag: Option<&str>, body: Json) -> (StatusCode, Json) {
    let request = platform.request(method, &format!("/scim/v2{path}")).header("content-type", SCIM);
    let request = match tag {
        Some(tag) => request.header("if-match", tag),
        None => request,
    };
    answer(request.body(body.to_string())).await
}

async fn patch(platform: &Platform, path: &str, operations: Json) -> (StatusCode, Json) {
    send(platform, "PATCH", path, None, json!({"schemas": [PATCH], "Operations": operations})).await
}

/// Creates a user; returns its id.
async fn user(platform: &Platform, name: &str, more: Json) -> String {
    let mut body = json!({"schemas": [USER], "userName": name});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let (status, made) = post(platform, "/Users", body).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().expect("an id").to_owned()
}

fn names(list: &Json) -> Vec<&str> {
    let items = list["Resources"].as_array().expect("resources").iter();
    items.map(|item| item["userName"].as_str().or(item["displayName"].as_str()).expect("a name")).collect()
}

#[tokio::test]
async fn a_user_is_a_subscriber_and_an_entry() {
    let platform = Platform::with_quakes().await;
    let body = json!({
        "schemas": [USER, ENTERPRISE], "userName": "vera", "externalId": "x-7", "password": "open sesame",
        "name": {"familyName": "Muster", "givenName": "Vera", "middleName": "M"}, "active": true, "timezone": "Europe/Vienna",
        "emails": [{"value": "vera@example.org", "type": "work", "primary": true}], "preferredLanguage": "de-AT",
        "ENTERPRISE": null, ENTERPRISE: {"department": "Legal"},
    });
    let (status, refused) = post(&platform, "/Users", body.clone()).await;
    assert_eq!((status.as_u16(), refused["scimType"].as_str()), (400, Some("invalidSyntax")), "{refused}");
    let mut body = body;
    body.as_object_mut().expect("an object").remove("ENTERPRISE");
    let (status, made) = post(&platform, "/Users", body.clone()).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().expect("an id");
    assert_eq!(made["meta"]["location"], format!("https://tocsin.example/scim/v2/Users/{id}"));
    assert!(made.get("password").is_none(), "{made}");
    for name in
        ["userName", "externalId", "name", "active", "emails", "preferredLanguage", "timezone", ENTERPRISE, "schemas"]
    {
        assert_eq!(made[name], body[name], "{name}: {made}");
    }
    // The user is also a subscriber, who is matched by rules and notified.
    let (_, subscriber) = platform.get("/v1/subscribers/vera").await;
    assert_eq!(subscriber["devices"]["mail"]["address"], "vera@example.org", "{subscriber}");
    assert_eq!((&subscriber["locale"], &subscriber["time_zone"]), (&json!("de-AT"), &json!("Europe/Vienna")));
    assert_eq!(subscriber["attributes"]["departmentNumber"], "Legal", "{subscriber}");
    // and an entry, which can bind with its password.
    let entry = platform.directory.find("uid=vera,ou=people,dc=example,dc=org").await.expect("an entry");
    assert_eq!(entry.entry.uuid(), id);
    platform
        .directory
        .authenticate("uid=vera,ou=people,dc=example,dc=org", b"open sesame".to_vec())
        .await
        .expect("the password");

    // The password policy of the directory also applies to provisioning clients.
    let password = |value: &str| json!([{"op": "replace", "path": "password", "value": value}]);
    for refused in ["short", "open sesame"] {
        let (status, reply) = patch(&platform, &format!("/Users/{id}"), password(refused)).await;
        assert_eq!((status.as_u16(), reply["scimType"].as_str()), (400, Some("invalidValue")), "{reply}");
    }
    let (status, _) = patch(&platform, &format!("/Users/{id}"), password("close sesame")).await;
    assert_eq!(status.as_u16(), 200);

    let (status, again) = post(&platform, "/Users", body.clone()).await;
    assert_eq!((status.as_u16(), again["scimType"].as_str()), (409, Some("uniqueness")), "{again}");
    // A subscriber created by the API is a user, and changes of either are visible in both.
    let (_, list) = get(&platform, "/Users?filter=userName%20eq%20%22ALICE%22").await;
    assert_eq!(names(&list), ["alice"], "{list}");
    let alice = list["Resources"][0]["id"].as_str().expect("an id");
    let operations =
        json!([{"op": "replace", "path": "active", "value": false}, {"op": "add", "path": "title", "value": "Dr"}]);
    let (status, changed) = patch(&platform, &format!("/Users/{alice}"), operations).await;
    assert_eq!(
        (status.as_u16(), &changed["active"], &changed["title"]),
        (200, &json!(false), &json!("Dr")),
        "{changed}"
    );
    let (_, subscriber) = platform.get("/v1/subscribers/alice").await;
    assert_eq!(
        (&subscriber["enabled"], &subscriber["attributes"]["title"]),
        (&json!(false), &json!("Dr")),
        "{subscriber}"
    );
    assert_eq!(subscriber["devices"]["mail"]["address"], "alice@example.org", "{subscriber}");
    platform.stop().await;
}

#[tokio::test]
async fn changes_hold_under_tags_and_names() {
    let platform = Platform::start().await;
    let id = user(&platform, "vera", json!({"title": "Dr", "nickName": "V"})).await;
    let at = format!("/Users/{id}");
    let response = platform.request("GET", &format!("/scim/v2{at}")).send().await.expect("an answer");
    let tag = response.headers()["etag"].to_str().expect("a tag").to_owned();
    assert_eq!(response.headers()["content-type"], SCIM);
    let unchanged = platform.request("GET", &format!("/scim/v2{at}")).header("if-none-match", &tag);
    let unchanged = unchanged.send().await.expect("an answer");
    assert_eq!((unchanged.status().as_u16(), unchanged.headers()["etag"].to_str().ok()), (304, Some(tag.as_str())));
    assert!(unchanged.headers().contains_key("content-location") && !unchanged.headers().contains_key("content-type"));
    let read = async |tag: &str| {
        let request = platform.request("GET", &format!("/scim/v2{at}")).header("if-match", tag);
        answer(request).await
    };
    assert_eq!(read(&tag).await.0, 200);
    let (status, reply) = read("W/\"99\"").await;
    assert_eq!((status.as_u16(), reply["status"].as_str()), (412, Some("412")), "{reply}");
    let whole = |name: &str| json!({"schemas": [USER], "userName": name, "displayName": "Vera M."});
    let (status, changed) = send(&platform, "PUT", &at, Some(&tag), whole("vera.m")).await;
    assert_eq!(
        (status.as_u16(), &changed["userName"], &changed["id"]),
        (200, &json!("vera.m"), &json!(id)),
        "{changed}"
    );
    assert!(changed.get("title").is_none() && changed.get("nickName").is_none(), "{changed}");
    assert!(platform.directory.find("uid=vera.m,ou=people,dc=example,dc=org").await.is_ok(), "it is renamed");
    for (method, body) in [("PUT", whole("vera")), ("DELETE", Json::Null)] {
        let (status, refused) = send(&platform, method, &at, Some(&tag), body).await;
        assert_eq!((status.as_u16(), refused["status"].as_str()), (412, Some("412")), "{method}: {refused}");
    }
    user(&platform, "max", json!({})).await;
    let (status, refused) = patch(&platform, &at, json!([{"op": "replace", "path": "userName", "value": "MAX"}])).await;
    assert_eq!((status.as_u16(), refused["scimType"].as_str()), (409, Some("uniqueness")), "{refused}");
    assert_eq!(send(&platform, "DELETE", &at, Some("*"), Json::Null).await.0, 204);
    assert_eq!(send(&platform, "DELETE", &at, None, Json::Null).await.0, 404);
    assert_eq!(get(&platform, &at).await.0, 404);
    platform.stop().await;
}

#[tokio::test]
async fn groups_hold_members_that_may_be_renamed_and_go() {
    let platform = Platform::start().await;
    let (vera, max) =
        (user(&platform, "vera", json!({"displayName": "Vera M."})).await, user(&platform, "max", json!({})).await);
    let body = json!({"schemas": [GROUP], "displayName": "Managers", "members": [{"value": vera}]});
    let (status, made) = post(&platform, "/Groups", body.clone()).await;
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().expect("an id").to_owned();
    let member = json!({
        "value": vera, "type": "User", "display": "Vera M.", "$ref": format!("https://tocsin.example/scim/v2/Users/{vera}"),
    });
    assert_eq!(made["members"], json!([member]));
    let at = format!("/Groups/{id}");
    let (status, changed) =
        patch(&platform, &at, json!([{"op": "Add", "path": "members", "value": [{"value": max}, {"value": vera}]}]))
            .await;
    assert_eq!((status.as_u16(), changed["members"].as_array().map(Vec::len)), (200, Some(2)), "{changed}");
    let (_, found) = get(&platform, &format!("/Users/{max}")).await;
    assert_eq!(found["groups"][0]["value"], json!(id), "{found}");
    let (_, list) = get(&platform, &format!("/Users?filter=groups.value%20eq%20%22{id}%22&sortBy=userName")).await;
    assert_eq!(names(&list), ["max", "vera"], "{list}");
    let (_, list) =
        get(&platform, &format!("/Groups?filter=members%5Bvalue%20eq%20%22{max}%22%5D&excludedAttributes=members"))
            .await;
    assert_eq!((names(&list), list["Resources"][0].get("members")), (vec!["Managers"], None), "{list}");

    // Groups are updated when a member is renamed or removed.
    let (status, _) = patch(
        &platform,
        &format!("/Users/{vera}"),
        json!([{"op": "replace", "path": "userName", "value": "veronika"}]),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(get(&platform, &at).await.1["members"].as_array().map(Vec::len), Some(2));
    assert_eq!(send(&platform, "DELETE", &format!("/Users/{max}"), None, Json::Null).await.0, 204);
    let entry = platform.directory.find("cn=Managers,ou=groups,dc=example,dc=org").await.expect("an entry");
    let members = entry.entry.attribute("member").expect("members").values.clone();
    assert_eq!(*members, [Box::from(&b"uid=veronika,ou=people,dc=example,dc=org"[..])]);

    let gone = json!([{"op": "remove", "path": format!("members[value eq \"{vera}\"]")}, {"op": "replace", "path": "displayName", "value": "Bosses"}]);
    let (status, changed) = patch(&platform, &at, gone).await;
    assert_eq!(
        (status.as_u16(), changed.get("members"), &changed["displayName"]),
        (200, None, &json!("Bosses")),
        "{changed}"
    );
    let cases = [
        (json!([{"op": "add", "path": "members", "value": [{"value": "nobody"}]}]), "invalidValue"),
        (json!([{"op": "add", "path": "members", "value": [{"type": "User"}]}]), "invalidValue"),
        (json!([{"op": "replace", "path": "members[value eq \"x\"].type", "value": "Group"}]), "mutability"),
    ];
    for (operations, kind) in cases {
        let (status, refused) = patch(&platform, &at, operations.clone()).await;
        assert_eq!((status.as_u16(), refused["scimType"].as_str()), (400, Some(kind)), "{operations}: {refused}");
    }
    // A group created by LDAP clients is a group, too. Members of a dynamic group cannot be changed.
    let finding = [
        ("objectClass", "groupOfURLs"),
        ("cn", "all"),
        ("memberURL", "ldap:///ou=people,dc=example,dc=org??sub?(uid=*)"),
    ];
    let given = finding.map(|(name, value)| (name.to_owned(), vec![value.as_bytes().to_vec()])).to_vec();
    let dn = "cn=all,ou=groups,dc=example,dc=org";
    let made = platform
        .directory
        .add(&operator(), dn, given, Preconditions { after: true, ..Preconditions::default() })
        .await
        .expect("a group");
    let id = made.after.expect("an entry").entry.uuid();
    let (status, refused) = patch(
        &platform,
        &format!("/Groups/{id}"),
        json!([{"op": "add", "path": "members", "value": [{"value": vera}]}]),
    )
    .await;
    assert_eq!((status.as_u16(), refused["scimType"].as_str()), (400, Some("mutability")), "{refused}");
    platform.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_sorted_and_cut_into_pages() {
    let platform = Platform::start().await;
    for (name, family, mail) in
        [("cay", "Zorn", "c@x.example"), ("ann", "Adler", "a@x.example"), ("bob", "muster", "b@y.example")]
    {
        user(&platform, name, json!({"name": {"familyName": family}, "emails": [{"value": mail, "type": "work"}]}))
            .await;
    }
    let check = async |query: &str, total: usize, expected: &[&str]| {
        let (status, list) = get(&platform, &format!("/Users?{query}")).await;
        assert_eq!(status, 200, "{query}: {list}");
        assert_eq!(
            (list["totalResults"].as_u64(), names(&list)),
            (Some(total as u64), expected.to_vec()),
            "{query}: {list}"
        );
    };
    check("", 3, &["cay", "ann", "bob"]).await;
    check("sortBy=userName", 3, &["ann", "bob", "cay"]).await;
    check("sortBy=name.familyName&sortOrder=descending", 3, &["cay", "bob", "ann"]).await;
    check("sortBy=userName&startIndex=2&count=1", 3, &["bob"]).await;
    check("filter=userName%20eq%20%22%20A%EF%BD%8En%20%22", 1, &["ann"]).await;
    check("startIndex=3&count=5", 3, &["bob"]).await;
    check("startIndex=0&count=-1", 3, &[]).await;
    check("count=0", 3, &[]).await;
    check("filter=name.familyName%20eq%20%22MUSTER%22", 1, &["bob"]).await;
    check(
        "filter=emails%5Btype%20eq%20%22work%22%20and%20value%20co%20%22%40x%22%5D&sortBy=emails",
        2,
        &["ann", "cay"],
    )
    .await;
    check("filter=emails.value%20eq%20%22B%40y.example%22", 1, &["bob"]).await;
    check("filter=userName%20sw%20%22C%22%20or%20userName%20sw%20%22a%22&sortBy=userName", 2, &["ann", "cay"]).await;
    check("filter=not%20(userName%20pr)", 0, &[]).await;
    let (_, list) = get(&platform, "/Users?attributes=userName&count=1").await;
    let reply: BTreeSet<&str> = list["Resources"][0].as_object().expect("a user").keys().map(String::as_str).collect();
    assert_eq!(reply, BTreeSet::from(["id", "schemas", "userName"]), "{list}");
    let asked = json!({"filter": "userName eq \"ann\"", "attributes": ["emails.value"], "startIndex": 1});
    let (status, list) = post(&platform, "/Users/.search", asked).await;
    assert_eq!((status.as_u16(), &list["Resources"][0]["emails"]), (200, &json!([{"value": "a@x.example"}])), "{list}");
    let id = list["Resources"][0]["id"].as_str().expect("an id");
    check(&format!("filter=id%20eq%20%22{id}%22"), 1, &["ann"]).await;
    check(&format!("filter=id%20eq%20%22{id}%22%20and%20userName%20eq%20%22bob%22"), 0, &[]).await;
    check("filter=id%20eq%20%22nobody%22", 0, &[]).await;
    let group = json!({"schemas": [GROUP], "displayName": "Staff"});
    assert_eq!(post(&platform, "/Groups", group).await.0, 201);
    let all = async |asked: Json| post(&platform, "/.search", asked).await.1;
    assert_eq!(names(&all(json!({})).await), ["cay", "ann", "bob", "Staff"]);
    let page = all(json!({"startIndex": 3, "count": 2})).await;
    assert_eq!((page["totalResults"].as_u64(), names(&page)), (Some(4), vec!["bob", "Staff"]), "{page}");
    assert_eq!(names(&all(json!({"startIndex": 4})).await), ["Staff"]);
    assert_eq!(names(&all(json!({"filter": "userName eq \"ann\""})).await), ["ann"]);
    assert_eq!(all(json!({"filter": "shoeSize eq \"44\""})).await["scimType"], "invalidFilter");
    // An attribute of another kind has no value (RFC 7644, 3.4.2.1).
    let both =
        json!({"filter": "userName eq \"ann\" or displayName eq \"Staff\"", "attributes": ["userName", "displayName"]});
    assert_eq!(names(&all(both).await), ["ann", "Staff"]);
    assert_eq!(names(&all(json!({"filter": "not (userName pr)", "sortBy": "userName"})).await), ["Staff"]);
    assert_eq!(all(json!({"attributes": ["shoeSize"]})).await["scimType"], "invalidPath");
    assert_eq!(all(json!([])).await["scimType"], "invalidSyntax");
    platform.stop().await;
}

#[tokio::test]
async fn lists_put_what_has_no_value_at_the_end_of_the_order() {
    let platform = Platform::start().await;
    for (name, more) in [("ann", json!({"title": "B"})), ("bob", json!({})), ("cay", json!({"title": "a"}))] {
        user(&platform, name, more).await;
    }
    let order = async |query: &str| {
        let (status, list) = get(&platform, &format!("/Users?sortBy=title{query}")).await;
        assert_eq!(status, 200, "{list}");
        names(&list).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(order("").await, ["cay", "ann", "bob"]);
    assert_eq!(order("&sortOrder=descending").await, ["bob", "ann", "cay"], "first if descending (RFC 7644, 3.4.2.3)");
    assert_eq!(order("&sortOrder=descending&startIndex=2&count=1").await, ["ann"]);
    platform.stop().await;
}

#[tokio::test]
async fn changes_of_one_resource_at_the_same_time_are_all_done() {
    let platform = Platform::start().await;
    let id = user(&platform, "vera", json!({})).await;
    let (status, group) = post(&platform, "/Groups", json!({"schemas": [GROUP], "displayName": "Staff"})).await;
    assert_eq!(status, 201, "{group}");
    let mut members = Vec::new();
    for number in 0..16 {
        members.push(user(&platform, &format!("member-{number}"), json!({})).await);
    }
    let at = format!("/Groups/{}", group["id"].as_str().expect("an id"));
    let joins = members
        .iter()
        .map(|member| patch(&platform, &at, json!([{"op": "add", "path": "members", "value": [{"value": member}]}])));
    let roles = (0..16).map(|role| {
        let operations = json!([{"op": "add", "path": "roles", "value": [{"value": format!("r-{role}")}]}]);
        let at = format!("/Users/{id}");
        let platform = &platform;
        async move { patch(platform, &at, operations).await }
    });
    let (joined, given) = tokio::join!(futures_util::future::join_all(joins), futures_util::future::join_all(roles));
    for (status, answer) in joined.into_iter().chain(given) {
        assert_eq!(status, 200, "{answer}");
    }
    let (_, group) = get(&platform, &at).await;
    assert_eq!(group["members"].as_array().map(Vec::len), Some(16), "{group}");
    let (_, vera) = get(&platform, &format!("/Users/{id}")).await;
    assert_eq!(vera["roles"].as_array().map(Vec::len), Some(16), "{vera}");
    platform.stop().await;
}

#[tokio::test]
async fn tags_of_a_resource_are_lists() {
    let platform = Platform::start().await;
    let at = format!("/Users/{}", user(&platform, "vera", json!({})).await);
    let title = |text: &str| json!({"schemas": [PATCH], "Operations": [{"op": "add", "path": "title", "value": text}]});
    let (status, changed) = send(&platform, "PATCH", &at, Some("W/\"9\", W/\"1\""), title("Dr")).await;
    assert_eq!(status, 200, "{changed}");
    assert_eq!(send(&platform, "PATCH", &at, Some("W/\"9\", W/\"1\""), title("Prof")).await.0, 412);
    let read = platform.request("GET", &format!("/scim/v2{at}")).header("if-none-match", "\"9\", W/\"2\"");
    assert_eq!(read.send().await.expect("an answer").status(), 304);
    let only_new = platform.request("PATCH", &format!("/scim/v2{at}")).header("if-none-match", "*");
    let (status, reply) = answer(only_new.header("content-type", SCIM).body(title("Prof").to_string())).await;
    assert_eq!((status.as_u16(), reply["status"].as_str()), (412, Some("412")), "{reply}");
    platform.stop().await;
}

#[tokio::test]
async fn every_error_of_scim_has_its_form() {
    let platform = Platform::start().await;
    let check = async |method: &str, path: &str, body: &str, expected: u16, kind: Option<&str>| {
        let request = platform.request(method, &format!("/scim/v2{path}")).header("content-type", SCIM);
        let sent = request.body(body.to_owned()).send().await.expect("an answer");
        assert_eq!(sent.headers()["content-type"], SCIM, "{method} {path}");
        let reply: Json = serde_json::from_slice(&sent.bytes().await.expect("a body")).expect("JSON");
        assert_eq!(reply["status"], expected.to_string(), "{method} {path}: {reply}");
        assert_eq!(reply["scimType"].as_str(), kind, "{method} {path}: {reply}");
    };
    check("GET", "/Users/%FF", "", 400, None).await;
    check("GET", "/Schemas/%C0%80", "", 400, None).await;
    check("GET", "/Schemas?filter=id%20pr", "", 403, None).await;
    check("GET", "/ResourceTypes?filter=id%20pr", "", 403, None).await;
    check("GET", "/ServiceProviderConfig?filter=id%20pr", "", 403, None).await;
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    check("POST", "/Users", &deep, 400, Some("invalidSyntax")).await;
    let twice = format!(r#"{{"schemas": ["{USER}"], "userName": "a", "USERNAME": "b"}}"#);
    check("POST", "/Users", &twice, 400, Some("invalidSyntax")).await;
    let group = format!(r#"{{"schemas": ["{GROUP}"], "displayName": "g", "members": [{{"display": "vera"}}]}}"#);
    check("POST", "/Groups", &group, 400, Some("invalidValue")).await;
    let operation = json!({"method": "DELETE", "path": "/Users/x", "bulkId": "a"});
    check("POST", "/Bulk", &json!({"Operations": [operation, operation]}).to_string(), 400, Some("invalidValue")).await;
    check("POST", "/Users/.search", "[]", 400, Some("invalidSyntax")).await;
    let keyed = platform.request("POST", "/scim/v2/Users").header("idempotency-key", "k");
    let (status, reply) = answer(keyed.header("content-type", SCIM).body("{}")).await;
    assert_eq!((status.as_u16(), reply["status"].as_str()), (400, Some("400")), "{reply}");
    platform.stop().await;
}

#[tokio::test]
async fn many_changes_go_in_one_request() {
    let platform = Platform::start().await;
    let bulk = |operations: Json| json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:BulkRequest"], "Operations": operations, "failOnErrors": 2});
    let group = json!({"schemas": [GROUP], "displayName": "All", "members": [{"value": "bulkId:v"}]});
    let operations = json!([
        {"method": "POST", "path": "/Groups", "bulkId": "g", "data": group},
        {"method": "POST", "path": "/Users", "bulkId": "v", "data": {"schemas": [USER], "userName": "vera"}},
        {"method": "PATCH", "path": "/Users/bulkId:v", "data": {"Operations": [{"op": "add", "path": "title", "value": "Dr"}]}},
        {"method": "DELETE", "path": "/Users/nobody"},
    ]);
    let (status, done) = post(&platform, "/Bulk", bulk(operations)).await;
    let reply: Vec<_> = done["Operations"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|each| (each["bulkId"].as_str(), each["status"].as_str().expect("a status")))
        .collect();
    assert_eq!(
        (status.as_u16(), reply),
        (200, vec![(Some("v"), "201"), (Some("g"), "201"), (None, "200"), (None, "404")]),
        "{done}"
    );
    let (_, list) = get(&platform, "/Groups").await;
    assert_eq!(list["Resources"][0]["members"][0]["display"], "vera", "{list}");

    let circle = json!([
        {"method": "POST", "path": "/Groups", "bulkId": "a", "data": {"schemas": [GROUP], "displayName": "A", "members": [{"value": "bulkId:b"}]}},
        {"method": "POST", "path": "/Groups", "bulkId": "b", "data": {"schemas": [GROUP], "displayName": "B", "members": [{"value": "bulkId:a"}]}},
        {"method": "POST", "path": "/Users", "data": {"schemas": [USER], "userName": "late"}},
    ]);
    let (_, done) = post(&platform, "/Bulk", bulk(circle)).await;
    let reply: Vec<_> = done["Operations"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|each| each["status"].as_str().expect("a status"))
        .collect();
    assert_eq!(reply, ["201", "409", "409"], "{done}");
    let many: Vec<Json> = (0..1_001).map(|_| json!({"method": "DELETE", "path": "/Users/x"})).collect();
    assert_eq!(post(&platform, "/Bulk", bulk(json!(many))).await.0, 413);
    platform.stop().await;
}

#[tokio::test]
async fn bad_input_has_its_error() {
    let platform = Platform::start().await;
    let id = user(&platform, "vera", json!({})).await;
    let at = format!("/Users/{id}");
    let user = |more: Json| {
        let mut body = json!({"schemas": [USER], "userName": "max"});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    let cases = [
        ("POST", "/Users", json!([]), 400, "invalidSyntax"),
        ("POST", "/Users", json!({"userName": "max"}), 400, "invalidSyntax"),
        ("POST", "/Users", json!({"schemas": [USER]}), 400, "invalidValue"),
        ("POST", "/Users", user(json!({"shoeSize": 44})), 400, "invalidSyntax"),
        ("POST", "/Users", user(json!({"active": "maybe"})), 400, "invalidValue"),
        ("POST", "/Users", user(json!({"title": 7})), 400, "invalidValue"),
        ("POST", "/Users", user(json!({"name": "Max"})), 400, "invalidValue"),
        ("POST", "/Users", user(json!({"name": {"nick": "Max"}})), 400, "invalidSyntax"),
        ("POST", "/Users", user(json!({"emails": [{"value": "ä@x.example"}]})), 400, "invalidValue"),
        (
            "POST",
            "/Users",
            user(json!({"emails": [{"value": "a", "primary": true}, {"value": "b", "primary": true}]})),
            400,
            "invalidValue",
        ),
        ("POST", "/Users", user(json!({ENTERPRISE: {"manager": {"value": "nobody"}}})), 400, "invalidValue"),
        ("POST", "/Users", user(json!({"nickName": "x".repeat(70_000)})), 400, "tooMany"),
        ("GET", "/Users?filter=userName%20is%20%22x%22", Json::Null, 400, "invalidFilter"),
        ("GET", "/Users?sortBy=shoeSize", Json::Null, 400, "invalidPath"),
        ("GET", "/Users?sortOrder=up", Json::Null, 400, "invalidValue"),
        ("GET", "/Users?count=many", Json::Null, 400, "invalidValue"),
        ("GET", "/Users?attributes=userName&excludedAttributes=id", Json::Null, 400, "invalidValue"),
        ("PATCH", &at, json!({"schemas": [PATCH]}), 400, "invalidSyntax"),
        ("PATCH", &at, json!({"Operations": [{"op": "replace", "path": "id", "value": "x"}]}), 400, "mutability"),
        (
            "PATCH",
            &at,
            json!({"Operations": [{"op": "replace", "path": "emails[type eq \"work\"].value", "value": "x"}]}),
            400,
            "noTarget",
        ),
        ("POST", "/Bulk", json!({"operations": []}), 400, "invalidSyntax"),
        ("GET", "/Users/nobody", Json::Null, 404, ""),
        ("GET", "/Groups/70c51e00-0050-8000-8000-000000000001", Json::Null, 404, ""),
        ("GET", "/Things", Json::Null, 404, ""),
        ("GET", "/Users/a/b", Json::Null, 404, ""),
        ("GET", "/Me", Json::Null, 501, ""),
        ("DELETE", "/Schemas", Json::Null, 405, ""),
    ];
    for (method, path, body, status, kind) in cases {
        let (found, reply) = send(&platform, method, path, None, body).await;
        assert_eq!(
            (found.as_u16(), reply["scimType"].as_str().unwrap_or_default()),
            (status, kind),
            "{method} {path}: {reply}"
        );
        assert_eq!(reply["schemas"][0], "urn:ietf:params:scim:api:messages:2.0:Error", "{method} {path}: {reply}");
    }
    let text = platform.request("POST", "/scim/v2/Users").header("content-type", "text/plain").body("x");
    assert_eq!(answer(text).await.0, 415);
    let broken = platform.request("POST", "/scim/v2/Users").header("content-type", SCIM).body("{");
    assert_eq!(answer(broken).await.1["scimType"], "invalidSyntax");
    let large = platform.request("POST", "/scim/v2/Users").header("content-type", SCIM).body(vec![b' '; (1 << 20) + 1]);
    assert_eq!(answer(large).await.0, 413);
    let stranger = platform.client.get(format!("{}/scim/v2/Users", platform.address));
    let (status, reply) = answer(stranger).await;
    assert_eq!((status.as_u16(), reply["status"].as_str()), (401, Some("401")), "{reply}");
    let key = r#"{"description":"reader","scopes":["subscribers:read"]}"#;
    let (status, key) = platform.post("/v1/keys", "application/json", key).await;
    assert_eq!(status, 201, "{key}");
    let reader = platform.client.delete(format!("{}/scim/v2{at}", platform.address));
    let (status, reply) = answer(reader.bearer_auth(key["key"].as_str().expect("a key"))).await;
    assert_eq!(status, 403, "{reply}");
    platform.stop().await;
}

/// Runs `scim2-tester`, which reads the schemas, then creates, reads, changes and removes the resources they describe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checker_of_others_finds_nothing_wrong() {
    if missing(&[Peer::ScimTester]) {
        return;
    }
    let platform = Platform::start().await;
    let script = "import sys\n\
        from httpx2 import Client\n\
        from scim2_client.engines.httpx2 import SyncSCIMClient\n\
        from scim2_tester import Status, check_server\n\
        client = Client(base_url=sys.argv[1] + '/scim/v2', headers={'Authorization': 'Bearer ' + sys.argv[2]}, timeout=60)\n\
        scim = SyncSCIMClient(client)\n\
        scim.discover()\n\
        results = check_server(scim)\n\
        for result in results:\n\
        \x20   print(result.status.name, result.title, result.resource_type or '', result.reason or '')\n\
        # What only the server writes, the name of a manager and of a member, is told too; one who is not inactive is active.\n\
        def explained(reason):\n\
        \x20   told = 'unexpected value' in reason and 'display=None' in reason.replace('display_name', 'display')\n\
        \x20   return told and (\":2.0:User'\" in reason or \":manager'\" in reason or \"'members'\" in reason) or \"did not remove attribute 'active'\" in reason\n\
        bad = [result for result in results if result.status not in (Status.SUCCESS, Status.SKIPPED, Status.COMPLIANT, Status.ACCEPTABLE)]\n\
        bad = [result for result in bad if not explained(result.reason or '')]\n\
        sys.exit(1 if bad or len(results) < 20 else 0)\n";
    let libraries = Peer::ScimTester.path().join("python");
    let mut python = tokio::process::Command::new(Peer::Python.path());
    let python = python.env("PYTHONPATH", libraries).args(["-c", script, &platform.address, &platform.key]);
    let output = python.output().await.expect("python3 runs");
    let reply = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{reply}\n{}", String::from_utf8_lossy(&output.stderr));
    platform.stop().await;
}

#[tokio::test]
async fn c11_every_route_declares_the_statuses_that_it_answers() {
    let platform = Platform::start().await;
    let (_, document) = platform.get("/openapi.json").await;
    let declared = |method: &str, path: &str| -> BTreeSet<String> {
        let responses = document["paths"][path][method]["responses"].as_object();
        responses.unwrap_or_else(|| panic!("{method} {path}")).keys().cloned().collect()
    };
    let paths = document["paths"].as_object().expect("paths").iter().filter(|(path, _)| path.starts_with("/scim/"));
    let mut count = 0;
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys().filter(|method| *method != "parameters") {
            let found = declared(method, path);
            for status in ["400", "401", "403", "404", "429", "500", "503"] {
                assert!(found.contains(status), "{method} {path}: {status} is missing in {found:?}");
            }
            count += 1;
        }
    }
    assert!(count >= 14, "{count}");
    let id = user(&platform, "vera", json!({})).await;
    user(&platform, "max", json!({})).await;
    let one = format!("/Users/{id}");
    let taken = json!({"schemas": [USER], "userName": "max"});
    let (many, each) = ("/scim/v2/{resources}", "/scim/v2/{resources}/{id}");
    for (method, at, path, tag, body) in [
        ("POST", "/Users", many, None, taken.clone()),
        ("POST", "/Me", many, None, json!({})),
        ("POST", "/Me/.search", "/scim/v2/{resources}/.search", None, json!({})),
        ("POST", "/Users/.search", "/scim/v2/{resources}/.search", None, json!({"filter": "x"})),
        ("POST", "/.search", "/scim/v2/.search", None, json!({"filter": "x"})),
        (
            "POST",
            "/Bulk",
            "/scim/v2/Bulk",
            None,
            json!({"Operations": vec![json!({"method": "x", "path": "/"}); 1_001]}),
        ),
        ("GET", "/Me", many, None, Json::Null),
        ("GET", "/Me/x", each, None, Json::Null),
        ("PUT", &one, each, None, taken.clone()),
        ("PUT", &one, each, Some("\"77\""), taken.clone()),
        ("PUT", "/Me/x", each, None, taken),
        ("PATCH", &one, each, Some("\"77\""), json!({"Operations": [{"op": "add", "path": "title", "value": "x"}]})),
        ("PATCH", &one, each, None, json!({"Operations": [{"op": "replace", "path": "userName", "value": "max"}]})),
        ("DELETE", &one, each, Some("\"77\""), Json::Null),
        ("DELETE", "/Me/x", each, None, Json::Null),
    ] {
        let (status, said) = send(&platform, method, at, tag, body).await;
        assert!(status.as_u16() >= 400, "{method} {at}: {said}");
        let found = declared(&method.to_lowercase(), path);
        assert!(found.contains(status.as_str()), "{method} {at}: {status} is missing in {found:?}");
    }
    for (media_type, body) in [("text/plain", vec![b'x']), (SCIM, vec![b' '; (1 << 20) + 1])] {
        let request = platform.request("POST", "/scim/v2/Users").header("content-type", media_type).body(body);
        let (status, _) = answer(request).await;
        assert!(declared("post", many).contains(status.as_str()), "{status}");
    }
    platform.stop().await;
}

#[tokio::test]
async fn scim_a_removal_that_names_no_member_removes_none() {
    let platform = Platform::start().await;
    let mut members = Vec::new();
    for name in ["ann", "bo", "cy"] {
        members.push(json!({"value": user(&platform, name, json!({})).await}));
    }
    let body = json!({"schemas": [GROUP], "displayName": "Staff", "members": members});
    let (status, made) = post(&platform, "/Groups", body).await;
    assert_eq!(status, 201, "{made}");
    let at = format!("/Groups/{}", made["id"].as_str().expect("an id"));
    let left = async || get(&platform, &at).await.1["members"].as_array().map_or(0, Vec::len);
    for (operation, expected) in [
        (json!({"op": "remove", "path": "members", "value": []}), 200),
        (json!({"op": "remove", "path": "members", "value": {}}), 400),
        (json!({"op": "remove", "path": "members", "value": [{}]}), 400),
        (json!({"op": "remove", "path": "members", "value": null}), 400),
        (json!({"op": "Remove", "path": "Members", "value": [null]}), 400),
        (json!({"op": "remove", "path": "members", "value": ""}), 400),
        (json!({"op": "remove", "path": "members", "value": [{"value": ""}]}), 400),
        (json!({"op": "remove", "path": "members", "value": [{"value": null}]}), 400),
        (json!({"op": "remove", "path": "members", "value": [{"value": "nobody"}]}), 200),
        (json!({"op": "remove", "path": "members[value eq \"nobody\"]"}), 200),
        (json!({"op": "remove", "path": "members[display eq \"nobody\"]"}), 200),
        (json!({"op": "replace", "path": "members", "value": [{}]}), 400),
        (json!({"op": "replace", "value": {"members": [{}]}}), 400),
        (json!({"op": "replace", "value": {"id": "x", "displayName": "Staff of all"}}), 200),
        (json!({"op": "add", "path": "members", "value": []}), 200),
    ] {
        let (status, changed) = patch(&platform, &at, json!([operation])).await;
        assert_eq!((status.as_u16(), left().await), (expected, 3), "{operation}: {changed}");
    }
    // A PUT of a group without `members` keeps them.
    let (status, _) = send(&platform, "PUT", &at, None, json!({"schemas": [GROUP], "displayName": "All"})).await;
    assert_eq!((status.as_u16(), left().await), (200, 3));
    let whole = |members: Json| json!({"schemas": [GROUP], "displayName": "All", "members": members});
    assert_eq!(send(&platform, "PUT", &at, None, whole(json!([{}]))).await.0, 400);
    assert_eq!(left().await, 3);
    // A removal with values removes these members, and one without a value removes all.
    let first = &members[0];
    for (operation, expected) in [
        (json!({"op": "remove", "path": "members", "value": [first]}), 2),
        (json!({"op": "add", "path": "members", "value": [first, first]}), 3),
        (json!({"op": "remove", "path": format!("members[value eq {}]", first["value"])}), 2),
        (
            json!({"op": "add", "path": "members", "value": {"$ref": format!("https://x.example/Users/{}", first["value"].as_str().expect("an id"))}}),
            3,
        ),
        (json!({"op": "remove", "path": "members", "value": first["value"]}), 2),
    ] {
        let (status, changed) = patch(&platform, &at, json!([operation])).await;
        assert_eq!((status.as_u16(), left().await), (200, expected), "{operation}: {changed}");
    }
    assert_eq!(send(&platform, "PUT", &at, None, whole(json!([]))).await.0, 200);
    assert_eq!(left().await, 0);
    assert_eq!(patch(&platform, &at, json!([{"op": "add", "path": "members", "value": members}])).await.0, 200);
    assert_eq!(patch(&platform, &at, json!([{"op": "remove", "path": "members"}])).await.0, 200);
    assert_eq!(left().await, 0);
    platform.stop().await;
}

#[tokio::test]
async fn scim_users_change_as_provisioning_services_send_them() {
    let platform = Platform::start().await;
    let boss = user(&platform, "boss", json!({})).await;
    // Unknown extensions are ignored. Attributes of a known extension may omit its URN.
    let body =
        json!({"urn:okta:custom:1.0:user": {"shoe": 44}, "active": "False", "manager": boss, "department": "Legal"});
    let id = user(&platform, "vera", body).await;
    let at = format!("/Users/{id}");
    let (_, vera) = get(&platform, &at).await;
    assert_eq!((&vera["active"], &vera[ENTERPRISE]["department"]), (&json!(false), &json!("Legal")), "{vera}");
    assert_eq!(vera[ENTERPRISE]["manager"]["value"], json!(boss), "{vera}");
    // A PUT of a user without `active` keeps its state.
    let whole = json!({"schemas": [USER, "urn:okta:custom:1.0:user"], "id": id, "userName": "vera", "meta": {}});
    let (status, vera) = send(&platform, "PUT", &at, None, whole).await;
    assert_eq!((status.as_u16(), &vera["active"], vera.get(ENTERPRISE)), (200, &json!(false), None), "{vera}");
    // So does a PATCH that removes it or sets it to null.
    for operation in [
        json!({"op": "remove", "path": "active"}),
        json!({"op": "replace", "path": "active", "value": null}),
        json!({"op": "replace", "value": {"active": null}}),
    ] {
        let (_, kept) = patch(&platform, &at, json!([operation])).await;
        assert_eq!(kept["active"], json!(false), "{operation}: {kept}");
    }
    for (operation, pointer, expected) in [
        (json!({"op": "Replace", "path": "active", "value": "True"}), "/active", json!(true)),
        (json!({"op": "replace", "value": {"id": id, "userName": "veronika"}}), "/userName", json!("veronika")),
        (
            json!({"op": "Add", "path": "manager", "value": boss}),
            "/urn:ietf:params:scim:schemas:extension:enterprise:2.0:User/manager/value",
            json!(boss),
        ),
        (
            json!({"op": "Replace", "path": format!("{ENTERPRISE}:manager"), "value": ""}),
            "/urn:ietf:params:scim:schemas:extension:enterprise:2.0:User",
            Json::Null,
        ),
        (
            json!({"op": "Add", "path": "roles[primary eq \"True\"].value", "value": "admin"}),
            "/roles/0/value",
            json!("admin"),
        ),
        (
            json!({"op": "Add", "path": "emails[type eq \"work\"].value", "value": "v@x.example"}),
            "/emails/0",
            json!({"type": "work", "value": "v@x.example"}),
        ),
        (json!({"op": "Add", "value": {"urn:x:y": {"z": 1}, "name.givenName": "V"}}), "/name/givenName", json!("V")),
    ] {
        let (status, changed) = patch(&platform, &at, json!([operation])).await;
        let found = changed.pointer(pointer).cloned().unwrap_or(Json::Null);
        assert_eq!((status.as_u16(), &found), (200, &expected), "{operation}: {changed}");
    }
    let (_, list) =
        get(&platform, "/Users?filter=active%20eq%20%22True%22%20and%20roles.primary%20eq%20%22true%22").await;
    assert_eq!(names(&list), ["veronika"], "{list}");
    platform.stop().await;
}

#[tokio::test]
async fn b28_a_user_may_have_any_name() {
    let platform = Platform::start().await;
    let long = format!("{}/x", "ü".repeat(300));
    for name in
        ["a/b", "/", "..", ".", "a b", "100%", "a%2Fb", "jörg@ex.org", "x+y=z,\"w\"", "#1", "<a>;", "\u{1f600}", &long]
    {
        let id = user(&platform, name, json!({})).await;
        let (status, found) = get(&platform, &format!("/Users/{id}")).await;
        assert_eq!((status.as_u16(), &found["userName"]), (200, &json!(name)), "{found}");
        let asked = json!({"filter": format!("userName eq {}", json!(name))});
        let (_, list) = post(&platform, "/Users/.search", asked).await;
        assert_eq!(list["totalResults"], 1, "{name}: {list}");
        let (status, changed) =
            patch(&platform, &format!("/Users/{id}"), json!([{"op": "add", "path": "title", "value": "Dr"}])).await;
        assert_eq!((status.as_u16(), &changed["title"]), (200, &json!("Dr")), "{name}: {changed}");
    }
    // A rename to such a name, and back.
    let id = user(&platform, "vera", json!({})).await;
    for name in ["c/d", "vera"] {
        let rename = json!([{"op": "replace", "path": "userName", "value": name}]);
        let (status, changed) = patch(&platform, &format!("/Users/{id}"), rename).await;
        assert_eq!((status.as_u16(), &changed["userName"]), (200, &json!(name)), "{changed}");
    }
    platform.stop().await;
}
