//! Section 4: conventions of HTTP, records and queries.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{NotifybcServer, Role, query};

const NOTHING: &str = "0123456789abcdef01234567";

async fn server() -> NotifybcServer {
    NotifybcServer::start_without_admin(json!({})).await
}

fn bounce(address: &str) -> Value {
    json!({ "channel": "email", "userChannelId": address })
}

#[tokio::test]
async fn s4_1_answers_are_json_with_status_200_and_changes_have_no_body() {
    let server = server().await;
    let created = server.post(Role::SuperAdmin, "/bounces", &bounce("a@example.org")).await;
    assert_eq!((created.status, created.kind.as_str()), (200, "application/json; charset=utf-8"));
    let id = created.id();
    let path = format!("/bounces/{id}");
    for reply in [
        server.patch(Role::SuperAdmin, &path, &json!({ "state": "deleted" })).await,
        server.put(Role::SuperAdmin, &path, &bounce("b@example.org")).await,
        server.delete(Role::SuperAdmin, &path).await,
    ] {
        assert_eq!((reply.status, reply.text.as_str()), (204, ""));
    }
    server.post(Role::SuperAdmin, "/bounces", &bounce("c@example.org")).await.ok();
    let many = server.patch(Role::SuperAdmin, "/bounces", &json!({ "state": "x" })).await;
    assert_eq!(many.ok(), json!({ "count": 1 }));
}

#[tokio::test]
async fn s4_1_a_form_body_is_read_on_every_route() {
    let server = server().await;
    let request = server.request(Role::SuperAdmin, Method::POST, "/bounces");
    let form = "channel=email&userChannelId=a%40example.org&hardBounceCount=3&more[a][]=1&more[b]=x";
    let request = request.header("content-type", "application/x-www-form-urlencoded").body(form);
    let found = server.send(request).await.ok();
    assert_eq!((&found["userChannelId"], &found["hardBounceCount"]), (&json!("a@example.org"), &json!(3)));
    assert_eq!(found["more"], json!({ "a": ["1"], "b": "x" }));
}

#[tokio::test]
async fn s4_1_bodies_beyond_the_limit_are_refused_and_slashes_at_the_end_have_no_meaning() {
    let server = server().await;
    let long = |bytes: usize| json!({ "channel": "email", "userChannelId": "a@example.org", "x": "x".repeat(bytes) });
    server.post(Role::SuperAdmin, "/bounces/", &long(100_000)).await.ok();
    let refused = server.post(Role::SuperAdmin, "/bounces", &long(2 << 20)).await;
    assert_eq!(
        (refused.status, refused.text.as_str()),
        (413, r#"{"statusCode":413,"message":"request entity too large"}"#)
    );
    assert_eq!(server.get(Role::SuperAdmin, "/bounces/count/").await.ok(), json!({ "count": 1 }));
}

#[tokio::test]
async fn s4_1_errors_have_their_texts() {
    let server = server().await;
    let request = server.request(Role::SuperAdmin, Method::POST, "/bounces");
    let broken = server.send(request.header("content-type", "application/json").body("{\"a\":")).await;
    assert_eq!((broken.status, &broken.json()["error"]), (400, &json!("Bad Request")));
    assert!(broken.json()["message"].is_string());
    let unknown = server.get(Role::SuperAdmin, "/nothing").await;
    let expected = json!({ "message": "Cannot GET /api/nothing", "error": "Not Found", "statusCode": 404 });
    assert_eq!((unknown.status, unknown.json()), (404, expected));
    let invalid = server.post(Role::SuperAdmin, "/bounces", &json!({})).await;
    let message = "Bounce validation failed: userChannelId: Path `userChannelId` is required., \
                   channel: Path `channel` is required.";
    assert_eq!((invalid.status, invalid.json()), (400, json!({ "statusCode": 400, "message": message })));
    let cast = server.get(Role::SuperAdmin, "/bounces/abc").await;
    let message = "Cast to ObjectId failed for value \"abc\" (type string) at path \"_id\"";
    assert!(
        cast.status == 400 && cast.json()["message"].as_str().is_some_and(|text| text.starts_with(message)),
        "{cast:?}"
    );
    let body = json!({ "name": "subscription", "serviceName": "a", "value": {"x": 1} });
    server.post(Role::SuperAdmin, "/configurations", &body).await.ok();
    let taken = server.post(Role::SuperAdmin, "/configurations", &body).await;
    assert!(taken.status == 400 && taken.text.contains("duplicate key"), "{taken:?}");
}

#[tokio::test]
async fn s4_1_a_well_formed_id_of_nothing_is_404() {
    let server = server().await;
    let full = json!({
        "name": "x", "value": {"a": 1}, "channel": "email", "userChannelId": "a@example.org", "serviceName": "s",
        "email": "a@example.org", "message": {"textBody": "x"},
    });
    for (methods, path) in [
        ("GET PATCH PUT DELETE", "/configurations"),
        ("GET PATCH PUT DELETE", "/bounces"),
        ("GET PATCH PUT DELETE", "/administrators"),
        ("PATCH PUT DELETE", "/subscriptions"),
        ("PATCH PUT DELETE", "/notifications"),
    ] {
        for method in methods.split(' ') {
            let method: Method = method.parse().expect("a method");
            let request = server.request(Role::SuperAdmin, method.clone(), &format!("{path}/{NOTHING}"));
            let request = if method == Method::GET { request } else { request.json(&full) };
            let reply = server.send(request).await;
            assert_eq!((reply.status, reply.text.as_str()), (404, r#"{"statusCode":404}"#), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn s4_1_ids_times_and_authors_of_records() {
    let server = server().await;
    let body = json!({ "channel": "email", "userChannelId": "a@example.org", "id": NOTHING, "created": "2020-02-03" });
    let created = server.post(Role::SuperAdmin, "/bounces", &body).await.ok();
    let id = created["id"].as_str().expect("an id");
    assert!(id.len() == 24 && id != NOTHING && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
    assert_eq!(created["created"], "2020-02-03T00:00:00.000Z");
    let updated = created["updated"].as_str().expect("a time");
    assert!(updated.len() == 24 && updated.ends_with('Z'), "{updated}");
    let author = json!({ "securityId": "127.0.0.2", "authnStrategy": "ip", "role": "SuperAdmin" });
    assert_eq!(created["createdBy"], author);
    assert!(created.get("_id").is_none() && created.get("__v").is_none());
    let path = format!("/bounces/{id}");
    let change = json!({ "created": "2021-01-01", "createdBy": "x", "state": "deleted", "id": NOTHING });
    assert_eq!(server.patch(Role::SuperAdmin, &path, &change).await.status, 204);
    let patched = server.get(Role::SuperAdmin, &path).await.ok();
    assert_eq!((&patched["created"], &patched["createdBy"]), (&created["created"], &author));
    assert_eq!((&patched["state"], &patched["updatedBy"]), (&json!("deleted"), &author));
    assert_eq!(server.put(Role::SuperAdmin, &path, &bounce("b@example.org")).await.status, 204);
    let replaced = server.get(Role::SuperAdmin, &path).await.ok();
    assert_eq!((&replaced["created"], &replaced["createdBy"]), (&created["created"], &author));
    assert_eq!((&replaced["state"], &replaced["userChannelId"]), (&json!("active"), &json!("b@example.org")));
}

#[tokio::test]
async fn s4_1_unknown_properties_and_dates_come_back() {
    let server = server().await;
    let more = json!({ "n": 1.5, "list": [1, "a", null, { "b": true }], "deep": { "a": { "b": 0 } } });
    let mut body = bounce("a@example.org");
    body["more"] = more.clone();
    body["latestNotificationStarted"] = json!("2024-05-06T07:08:09+02:00");
    body["bounceMessages"] = json!([{ "date": "2024-05-06", "message": "m" }]);
    body["empty"] = json!({});
    let id = server.post(Role::SuperAdmin, "/bounces", &body).await.id();
    let found = server.get(Role::SuperAdmin, &format!("/bounces/{id}")).await.ok();
    assert_eq!(found["more"], more);
    assert_eq!(found["latestNotificationStarted"], "2024-05-06T05:08:09.000Z");
    assert_eq!(found["bounceMessages"][0]["date"], "2024-05-06T00:00:00.000Z");
    assert!(found.get("empty").is_none(), "an empty object counts as absent");
}

/// Bounce records with the ranks 1 to 5, and more properties.
async fn ranked() -> NotifybcServer {
    let server = server().await;
    for rank in 1..=5 {
        let body = json!({
            "channel": if rank == 5 { "sms" } else { "email" }, "userChannelId": format!("user{rank}@example.org"),
            "hardBounceCount": rank, "items": [{ "v": rank }, { "v": 10 * rank }], "tags": ["all", format!("t{rank}")],
            "text": if rank == 2 { "A Quick fox" } else { "slow" },
            "note": if rank == 1 { Value::Null } else { json!(rank) },
            "created": format!("2024-01-0{rank}"), "nested": { "a": rank % 2 },
        });
        server.post(Role::SuperAdmin, "/bounces", &body).await.ok();
    }
    server
}

async fn ranks(server: &NotifybcServer, query: &str) -> Vec<i64> {
    let found = server.get(Role::SuperAdmin, &format!("/bounces{query}")).await.ok();
    let list = found.as_array().expect("a list").iter();
    list.map(|record| record["hardBounceCount"].as_i64().expect("a rank")).collect()
}

#[tokio::test]
async fn s4_2_conditions_select_records() {
    let server = ranked().await;
    for (condition, expected) in [
        (json!({}), vec![1, 2, 3, 4, 5]),
        (json!({ "hardBounceCount": 3 }), vec![3]),
        (json!({ "hardBounceCount": "3" }), vec![3]),
        (json!({ "channel": "sms" }), vec![5]),
        (json!({ "note": null }), vec![1]),
        (json!({ "absent": null }), vec![1, 2, 3, 4, 5]),
        (json!({ "nested": { "a": 0 } }), vec![2, 4]),
        (json!({ "nested.a": 1 }), vec![1, 3, 5]),
        (json!({ "tags": "t4" }), vec![4]),
        (json!({ "items.v": 20 }), vec![2]),
        (json!({ "items.1.v": 30 }), vec![3]),
        (json!({ "hardBounceCount": { "$gt": 3 } }), vec![4, 5]),
        (json!({ "hardBounceCount": { "$gte": 2, "$lt": 4 } }), vec![2, 3]),
        (json!({ "hardBounceCount": { "$ne": 1 } }), vec![2, 3, 4, 5]),
        (json!({ "hardBounceCount": { "$in": [1, 5] } }), vec![1, 5]),
        (json!({ "hardBounceCount": { "$nin": [1, 5] } }), vec![2, 3, 4]),
        (json!({ "absent": { "$exists": true } }), vec![]),
        (json!({ "userChannelId": { "$regex": "^USER[12]", "$options": "i" } }), vec![1, 2]),
        (json!({ "hardBounceCount": { "$not": { "$gt": 2 } } }), vec![1, 2]),
        (json!({ "$or": [{ "hardBounceCount": 1 }, { "channel": "sms" }] }), vec![1, 5]),
        (json!({ "$nor": [{ "hardBounceCount": 1 }, { "channel": "sms" }] }), vec![2, 3, 4]),
        (json!({ "$and": [{ "channel": "email" }, { "nested.a": 0 }] }), vec![2, 4]),
        (json!({ "tags": { "$all": ["all", "t2"] } }), vec![2]),
        (json!({ "tags": { "$size": 2 } }), vec![1, 2, 3, 4, 5]),
        (json!({ "items": { "$elemMatch": { "v": { "$gt": 35 } } } }), vec![4, 5]),
        (json!({ "$text": { "$search": "quick" } }), vec![2]),
        (json!({ "created": { "$gte": "2024-01-04" } }), vec![4, 5]),
        (json!({ "text": { "$gt": 1 } }), vec![]),
    ] {
        let found = ranks(&server, &query("filter", json!({ "where": condition }))).await;
        assert_eq!(found, expected, "{condition}");
        let count = server.get(Role::SuperAdmin, &format!("/bounces/count{}", query("where", condition.clone()))).await;
        assert_eq!(count.ok(), json!({ "count": expected.len() }), "{condition}");
    }
}

#[tokio::test]
async fn s4_2_bracket_form_order_window_and_selection() {
    let server = ranked().await;
    for (query, expected) in [
        ("?filter[where][hardBounceCount][$in][]=2&filter[where][hardBounceCount][$in][]=3", vec![2, 3]),
        ("?filter[where][userChannelId][$regex]=^user4", vec![4]),
        ("?filter[limit]=2", vec![1, 2]),
        ("?filter[order]=-hardBounceCount&filter[skip]=1&filter[limit]=2", vec![4, 3]),
        ("?filter=%7B%7D", vec![1, 2, 3, 4, 5]),
        ("?filter[limit]=0", vec![1, 2, 3, 4, 5]),
    ] {
        assert_eq!(ranks(&server, query).await, expected, "{query}");
    }
    for (order, expected) in [
        (json!("hardBounceCount"), vec![1, 2, 3, 4, 5]),
        (json!("-nested.a hardBounceCount"), vec![1, 3, 5, 2, 4]),
        (json!([["nested.a", "asc"], ["hardBounceCount", "desc"]]), vec![4, 2, 5, 3, 1]),
        (json!({ "hardBounceCount": -1 }), vec![5, 4, 3, 2, 1]),
        (json!({ "channel": "desc" }), vec![5, 1, 2, 3, 4]),
    ] {
        assert_eq!(ranks(&server, &query("filter", json!({ "order": order }))).await, expected, "{order}");
    }
    for (fields, expected) in [
        (json!({ "hardBounceCount": true }), vec!["hardBounceCount", "id"]),
        (json!(["channel", "hardBounceCount"]), vec!["channel", "hardBounceCount", "id"]),
        (json!("channel hardBounceCount"), vec!["channel", "hardBounceCount", "id"]),
        (json!({ "channel": 1, "id": 0 }), vec!["channel"]),
    ] {
        let filter = query("filter", json!({ "fields": fields, "limit": 1 }));
        let found = server.get(Role::SuperAdmin, &format!("/bounces{filter}")).await.ok();
        let mut names: Vec<&str> = found[0].as_object().expect("a record").keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "{fields}");
    }
    let all = server.get(Role::SuperAdmin, "/bounces").await.ok();
    let id = |rank: usize| all[rank - 1]["id"].as_str().expect("an id").to_owned();
    for (condition, expected) in [
        (json!({ "$gt": id(2) }), vec![3, 4]),
        (json!({ "$gte": id(2) }), vec![2, 3]),
        (json!({ "$gt": id(1), "$lt": id(3) }), vec![2]),
        (json!({ "$gte": id(4), "$lte": id(5) }), vec![4, 5]),
        (json!({ "$gt": id(5) }), vec![]),
    ] {
        for order in ["id", ""] {
            let filter = query("filter", json!({ "where": { "id": condition }, "order": order, "limit": 2 }));
            assert_eq!(ranks(&server, &filter).await, expected, "{condition} {order}");
        }
    }
    let filter = query("filter", json!({ "where": { "id": { "$lt": id(4) } }, "order": "-id", "limit": 2 }));
    assert_eq!(ranks(&server, &filter).await, [3, 2]);
    let without = query("filter", json!({ "fields": "-tags -items", "limit": 1 }));
    let found = server.get(Role::SuperAdmin, &format!("/bounces{without}")).await.ok();
    assert!(found[0].get("tags").is_none() && found[0].get("channel").is_some());
}

#[tokio::test]
async fn s4_2_a_query_that_cannot_be_read_is_an_error() {
    let server = server().await;
    for query in [
        "?filter=%7B".to_owned(),
        query("filter", json!({ "where": { "$where": "1" } })),
        query("filter", json!({ "where": { "a": { "$function": 1 } } })),
    ] {
        let reply = server.get(Role::SuperAdmin, &format!("/bounces{query}")).await;
        assert_eq!(reply.status, 400, "{query}: {reply:?}");
    }
}

#[tokio::test]
async fn s4_2_users_see_their_own_subscriptions() {
    let server = server().await;
    let body = |user: &str, service: &str| {
        json!({
            "serviceName": service, "channel": "email", "userChannelId": "a@example.org", "userId": user,
            "state": "confirmed", "unsubscriptionCode": "1", "confirmationRequest": { "sendRequest": false },
        })
    };
    for (user, service) in [("ann", "a"), ("ann", "b"), ("bob", "a")] {
        server.post(Role::SuperAdmin, "/subscriptions", &body(user, service)).await.ok();
    }
    let found = server.get(Role::User, "/subscriptions").await.ok();
    let services: Vec<&Value> = found.as_array().expect("a list").iter().map(|record| &record["serviceName"]).collect();
    assert_eq!(services, ["a", "b"]);
    for hidden in ["confirmationRequest", "unsubscriptionCode", "createdBy", "updatedBy"] {
        assert!(found[0].get(hidden).is_none(), "{hidden}");
    }
    let condition = query("where", json!({ "serviceName": "a" }));
    assert_eq!(server.get(Role::User, &format!("/subscriptions/count{condition}")).await.ok(), json!({ "count": 1 }));
    assert_eq!(server.get(Role::User, "/subscriptions/services").await.ok(), json!(["a", "b"]));
}
