use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;

use super::{OK, deliver, scripted_server::*, start_at, start_some};
use crate::channel::OpenChannel;

/// Opens a channel with these servers, in this order.
fn start_all(
    servers: &[(&'static str, u32, Script)],
    options: serde_json::Value,
) -> (Box<dyn OpenChannel>, BTreeMap<&'static str, Arc<Scripted>>) {
    let hosts: BTreeMap<_, _> = servers.iter().map(|(host, _, script)| (*host, Scripted::new(*script, None))).collect();
    let list: Vec<_> = servers.iter().map(|(host, weight, _)| json!({ "host": host, "weight": weight })).collect();
    (start_at(Arc::new(Hosts(hosts.clone())), json!({ "servers": list }), options), hosts)
}

fn dead(_: u32, _: u32, _: &str) -> Act {
    Close
}

#[tokio::test(start_paused = true)]
async fn the_next_server_takes_over_at_once_and_hands_back() {
    // The first refuses its first three connections.
    let script: Script =
        |connection, mail, heard| if connection <= 3 { Close } else { accept_all(connection, mail, heard) };
    let (open, hosts) =
        start_all(&[("a.example", 1, script), ("b.example", 1, accept_all)], json!({ "messages_per_session": 1 }));
    let before = tokio::time::Instant::now();
    assert_eq!(deliver(&*open, &["a@b.example"; 3]).await, [OK; 3]);
    assert_eq!(before.elapsed(), Duration::ZERO, "nobody waits for the first while there is the second");
    assert_eq!((hosts["a.example"].connections(), hosts["b.example"].connections()), (1, 3));
    assert!(open.down().is_none());
    // One session probes each time, with growing delays, until the first is back.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(deliver(&*open, &["a@b.example"; 2]).await, [OK; 2]);
    }
    assert_eq!((hosts["a.example"].connections(), hosts["b.example"].connections()), (5, 7));
    assert!(open.probe().await.is_ok_and(|text| text.matches("far.example ready").count() == 2));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_server_is_dropped_when_the_primary_returns() {
    let script: Script =
        |connection, mail, heard| if connection <= 1 { Close } else { accept_all(connection, mail, heard) };
    let (open, hosts) = start_all(&[("a.example", 1, script), ("b.example", 1, accept_all)], json!({}));
    assert_eq!(deliver(&*open, &["a@b.example"; 3]).await, [OK; 3]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(deliver(&*open, &["a@b.example"; 3]).await, [OK; 3]);
    let contents = |host| hosts[host].seen.lock().contents.len();
    // The session with the fall-back server was waiting for mail, so it sends one more before it gives way.
    assert_eq!((contents("a.example") + contents("b.example"), contents("b.example") <= 4), (6, true));
    assert_eq!((hosts["a.example"].connections(), hosts["b.example"].connections()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_allows_few_sessions_is_not_down() {
    // It allows one session of ours. The other sessions leave the mails to it.
    let script: Script = |connection, mail, heard| match heard {
        "" if connection > 1 => Last("421 too many connections"),
        _ => accept_all(connection, mail, heard),
    };
    let server = Scripted::new(script, None);
    let open = start_some(4, server.clone(), json!({ "host": "far.example" }), json!({}));
    assert_eq!(deliver(&*open, &["a@b.example"; 50]).await, [OK; 50]);
    assert!(open.down().is_none());
    assert_eq!(server.seen.lock().contents.len(), 50);
    open.close().await;
}

#[tokio::test(start_paused = true)]
async fn weights_share_the_sessions() {
    let servers: [(_, _, Script); 3] =
        [("a.example", 3, accept_all), ("b.example", 1, accept_all), ("c.example", 2, dead)];
    let (open, hosts) = start_all(&servers, json!({ "balance": "weighted", "messages_per_session": 1 }));
    assert_eq!(deliver(&*open, &["a@b.example"; 40]).await, [OK; 40]);
    let calls = |host| hosts[host].connections();
    assert_eq!((calls("a.example"), calls("b.example"), calls("c.example")), (30, 10, 1));
}

#[tokio::test(start_paused = true)]
async fn if_all_servers_fail_the_reason_is_that_of_the_first() {
    let (open, _) = start_all(&[("a.example", 1, dead), ("b.example", 1, dead)], json!({}));
    let shown = deliver(&*open, &["a@b.example"; 2]).await;
    assert!(shown.iter().all(|shown| shown.starts_with("deferred Connection no connection to ")), "{shown:?}");
    assert!(open.down().is_some_and(|reason| reason.text.contains("a.example:25")));
    assert!(
        open.probe().await.is_err_and(|reason| reason.text.contains("a.example") && reason.text.contains("b.example"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_mail_whose_session_breaks_goes_to_another_server() {
    let script: Script = |connection, mail, heard| match heard.split(' ').next() {
        Some("MAIL") => Last("421 going down"),
        Some("") if connection > 1 => Close,
        _ => accept_all(connection, mail, heard),
    };
    let (open, hosts) = start_all(&[("a.example", 1, script), ("b.example", 1, accept_all)], json!({}));
    assert_eq!(deliver(&*open, &["a@b.example"; 3]).await, [OK; 3]);
    assert_eq!(hosts["b.example"].seen.lock().contents.len(), 3);
}
