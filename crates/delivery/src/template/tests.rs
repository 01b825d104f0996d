use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use super::{PROTOCOL, classify::classify};
use crate::{
    channel::{Context, OpenChannel, Outgoing},
    conformance::{Subject, exercise, silent_server},
    description::OpenRequest,
    testing::{channel, context, deliver, outgoing, show},
};

/// Opens the channel by its row, because it is not in the table. Others call `crate::open`.
fn open(server: SocketAddr, options: Value, context: &Context) -> Box<dyn OpenChannel> {
    let mut all = json!({ "host": server.ip().to_string(), "port": server.port() });
    all.as_object_mut().expect("an object").extend(options.as_object().expect("an object").clone());
    let (name, channel) = ("lines".parse().expect("a name"), channel("line", all, 4));
    let request = OpenRequest { name: &name, channel: &channel, context, folders: &Default::default() };
    (PROTOCOL.open)(&request).unwrap_or_else(|problems| panic!("{problems:?}"))
}

/// A server that replies to each line with the same text, and records the lines.
struct Server {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start(reply: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = lines.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, reply, seen.clone()));
            }
        });
        Server { address, lines }
    }
}

async fn serve(connection: TcpStream, reply: &'static str, seen: Arc<Mutex<Vec<String>>>) {
    let (read, mut write) = connection.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        seen.lock().push(line);
        if write.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[test]
fn replies_become_dispositions() {
    for (reply, expected) in [
        ("ok 7", "delivered ok 7"),
        ("busy 30", "deferred Answer busy 30"),
        ("busy soon", "deferred Answer busy soon"),
        ("gone", "refused Gone gone"),
        ("no such topic", "refused Answer no such topic"),
        ("", "deferred Answer "),
        ("OK", "deferred Answer OK"),
    ] {
        assert_eq!(show(&classify(reply)), expected, "{reply:?}");
    }
}

#[test]
fn options_are_checked() {
    let problems = (PROTOCOL.check)(json!({ "hots": "a" }).as_object().expect("an object"), "o");
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let expected = [
        "o.hots: `hots` is not an option here; did you mean `host`?",
        "o.host: the server is missing; give its name or address, such as `lines.example.org`",
    ];
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_message_is_a_line_with_its_id() {
    let server = Server::start("ok\n").await;
    let open = open(server.address, json!({}), &context());
    assert_eq!(deliver(&*open, vec![outgoing(0, "kobe")]).await, ["delivered ok"]);
    let line = server.lines.lock().pop().expect("a line");
    assert!(line.starts_with("SEND n-7-0.test {\"id\":\"n-7-0.test\",\"type\":\"quake\""), "{line}");
    assert!(open.probe().await.is_ok_and(|said| said.ends_with(" accepts connections")));
}

#[tokio::test]
async fn a_reply_has_a_size_limit() {
    static LONG: LazyLock<String> = LazyLock::new(|| format!("ok {}\n", "x".repeat(2_000)));
    let server = Server::start(&LONG).await;
    let open = open(server.address, json!({}), &context());
    let expected = "deferred Connection no answer: the reply is incomplete or too long";
    assert_eq!(deliver(&*open, vec![outgoing(0, "kobe")]).await, [expected]);
    assert!(open.down().is_some());
}

struct Conforming(Server);

#[async_trait]
impl Subject for Conforming {
    async fn open(&self, context: Context) -> Box<dyn OpenChannel> {
        open(self.0.address, json!({}), &context)
    }

    async fn open_silent(&self, context: Context) -> Option<Box<dyn OpenChannel>> {
        Some(open(silent_server().await, json!({ "timeout": "100ms" }), &context))
    }

    fn outgoing(&self, ordinal: u32) -> Outgoing {
        outgoing(ordinal, "kobe")
    }

    async fn received_ids(&self) -> Vec<String> {
        let lines = self.0.lines.lock();
        lines.iter().filter_map(|line| line.split(' ').nth(1)).map(str::to_owned).collect()
    }

    fn in_flight_max(&self) -> usize {
        4
    }
}

#[tokio::test]
async fn slow_it_conforms() {
    exercise(&Conforming(Server::start("ok\n").await)).await;
}
