//! A lookup table of Postfix (`socketmap_table(5)`) whose entries can be changed while it runs.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use parking_lot::Mutex;

/// The running table.
#[derive(Clone)]
pub struct SocketMap {
    pub port: u16,
    entries: Arc<Mutex<BTreeMap<String, String>>>,
}

impl SocketMap {
    /// Starts an empty table on a free port.
    pub fn start() -> SocketMap {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let map = SocketMap { port, entries: Arc::default() };
        let serving = map.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(&stream));
            }
        });
        map
    }

    /// The type and name of the table in `main.cf`.
    pub fn name(&self) -> String {
        format!("socketmap:inet:127.0.0.1:{}:table", self.port)
    }

    /// Sets the value of a key, such as `550 5.1.1 no such user`; `None` removes it.
    pub fn set(&self, key: &str, value: Option<&str>) {
        let mut entries = self.entries.lock();
        match value {
            Some(value) => entries.insert(key.to_owned(), value.to_owned()),
            None => entries.remove(key),
        };
    }

    /// Answers requests until the peer closes the connection. Both directions carry netstrings.
    fn serve(&self, stream: &TcpStream) {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let mut length = Vec::new();
            let is_read = reader.read_until(b':', &mut length).is_ok();
            let length = String::from_utf8_lossy(&length).trim_end_matches(':').parse::<usize>();
            let Ok(length) = length.map_err(drop).and_then(|length| if is_read { Ok(length) } else { Err(()) }) else {
                return;
            };
            let mut request = vec![0; length + 1];
            if reader.read_exact(&mut request).is_err() {
                return;
            }
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let key = request.split_once(' ').map_or("", |(_, key)| key);
            let answer = self.entries.lock().get(key).map_or("NOTFOUND ".to_owned(), |value| format!("OK {value}"));
            if writer.write_all(format!("{}:{answer},", answer.len()).as_bytes()).is_err() {
                return;
            }
        }
    }
}
