//! A name server on loopback (UDP and TCP) with records and faults of a test.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{MX, SOA, TXT},
    },
};

/// TTL of absent records, in seconds.
const NEGATIVE_TTL: u32 = 60;

/// TTL of records without one, in seconds.
const TTL: u32 = 300;

/// Number of aliases that are followed.
const ALIASES_MAX: usize = 8;

/// A name server on loopback, until it is dropped.
///
/// A record is a line `NAME [TTL] TYPE DATA`, for example `example.org 60 MX 10 mx.example.org.`; empty lines and those
/// that begin with `;` are comments. Strings of TXT records are quoted, and cut into parts of 255 bytes. An alias is
/// followed within the records. A fault is a line `NAME FAULT`, for all types, or `NAME FAULT TYPE`. A fault is
/// `SERVFAIL`, `REFUSED` or `SILENT`: no answer. An answer that exceeds the client's UDP payload size is truncated.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    zone: Mutex<Zone>,
    queries: Mutex<Vec<(String, String)>>,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Zone {
    records: Vec<Record>,
    faults: Vec<(Name, Option<RecordType>, Fault)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Code(ResponseCode),
    Silent,
}

impl NameServer {
    /// Starts a server at a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If a line is not well-formed, or no port is free for both protocols.
    pub fn start(zone: &str) -> Self {
        let (udp, tcp) = bind();
        let address = udp.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            zone: Mutex::new(Zone::parse(zone)),
            queries: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let (of_udp, of_tcp) = (Arc::clone(&shared), Arc::clone(&shared));
        thread::spawn(move || of_udp.serve_udp(&udp));
        thread::spawn(move || of_tcp.serve_tcp(&tcp));
        NameServer { address, shared }
    }

    /// The address of the server, the same for UDP and TCP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces all records and faults.
    ///
    /// # Panics
    /// If a line is not well-formed.
    pub fn set(&self, zone: &str) {
        *self.shared.zone.lock().expect("no panic while it is locked") = Zone::parse(zone);
    }

    /// The queries since the last call: name in lower case without a final dot, and type.
    ///
    /// # Panics
    /// If the server panicked.
    pub fn queries(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.shared.queries.lock().expect("no panic while it is locked"))
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Both threads wait for input; these wake them.
        if let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
            let _ = socket.send_to(&[], self.address);
        }
        let _ = TcpStream::connect(self.address);
    }
}

/// Binds both protocols to the same port.
fn bind() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = udp.local_addr().expect("a bound socket has an address").port();
        if let Ok(tcp) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return (udp, tcp);
        }
    }
    panic!("no port is free for UDP and TCP");
}

impl Shared {
    fn serve_udp(&self, socket: &UdpSocket) {
        let mut buffer = [0; 4_096];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Some(response) = self.response(&buffer[..length]) else { continue };
            let payload = response.edns.as_ref().map_or(512, |edns| usize::from(edns.max_payload()).max(512));
            let bytes = response.to_vec().expect("records of a zone can be encoded");
            let bytes = match bytes.len() <= payload {
                true => bytes,
                false => response.truncate().to_vec().expect("a header can be encoded"),
            };
            let _ = socket.send_to(&bytes, client);
        }
    }

    fn serve_tcp(self: Arc<Self>, listener: &TcpListener) {
        for connection in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let (Ok(connection), shared) = (connection, Arc::clone(&self)) else { return };
            thread::spawn(move || shared.serve_connection(connection));
        }
    }

    fn serve_connection(&self, mut connection: TcpStream) {
        let mut length = [0; 2];
        while connection.read_exact(&mut length).is_ok() {
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            if connection.read_exact(&mut query).is_err() {
                return;
            }
            let Some(response) = self.response(&query) else { continue };
            let bytes = response.to_vec().expect("records of a zone can be encoded");
            let length = u16::try_from(bytes.len()).expect("a zone of a test is small");
            if connection.write_all(&[&length.to_be_bytes(), bytes.as_slice()].concat()).is_err() {
                return;
            }
        }
    }

    /// The response to a query; none if the zone says so, or if the query is not well-formed.
    fn response(&self, query: &[u8]) -> Option<Message> {
        let query = Message::from_vec(query).ok()?;
        let question = query.queries.first()?.clone();
        let (name, kind) = (question.name().to_lowercase(), question.query_type());
        self.queries.lock().expect("no panic while it is locked").push((plain(&name), kind.to_string()));
        let mut response = Message::response(query.metadata.id, query.metadata.op_code);
        response.metadata.recursion_desired = query.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        response.add_query(question);
        if let Some(edns) = query.edns {
            response.set_edns(edns);
        }
        let zone = self.zone.lock().expect("no panic while it is locked");
        match zone.fault(&name, kind) {
            Some(Fault::Silent) => return None,
            Some(Fault::Code(code)) => {
                response.metadata.response_code = code;
                return Some(response);
            }
            None => {}
        }
        let (answers, exists) = zone.answers(&name, kind);
        if !answers.iter().any(|record| record.record_type() == kind) {
            response.metadata.response_code = if exists { ResponseCode::NoError } else { ResponseCode::NXDomain };
            let soa = SOA::new(name.clone(), name.clone(), 1, 1, 1, 1, NEGATIVE_TTL);
            response.add_authority(Record::from_rdata(name, NEGATIVE_TTL, RData::SOA(soa)));
        }
        response.add_answers(answers);
        Some(response)
    }
}

impl Zone {
    fn parse(text: &str) -> Self {
        let mut zone = Zone::default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(';'));
        for line in lines {
            let (name, rest) = line.split_once(char::is_whitespace).unwrap_or_else(|| panic!("no type: {line}"));
            let name = absolute(name);
            let (word, data) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
            let (ttl, kind, data) = match word.parse::<u32>() {
                Ok(ttl) => {
                    let (kind, data) = data.trim().split_once(char::is_whitespace).unwrap_or((data.trim(), ""));
                    (ttl, kind, data.trim())
                }
                Err(_) => (TTL, word, data.trim()),
            };
            let fault = match kind {
                "SERVFAIL" => Some(Fault::Code(ResponseCode::ServFail)),
                "REFUSED" => Some(Fault::Code(ResponseCode::Refused)),
                "SILENT" => Some(Fault::Silent),
                _ => None,
            };
            let parsed = |kind: &str| kind.parse::<RecordType>().unwrap_or_else(|_| panic!("no type: {line}"));
            match fault {
                Some(fault) => zone.faults.push((name, (!data.is_empty()).then(|| parsed(data)), fault)),
                None => {
                    let data = match parsed(kind) {
                        RecordType::TXT => RData::TXT(TXT::from_bytes(strings(data))),
                        RecordType::MX => {
                            let (preference, host) = data.split_once(' ').unwrap_or_else(|| panic!("no host: {line}"));
                            let preference = preference.parse().unwrap_or_else(|_| panic!("no preference: {line}"));
                            RData::MX(MX::new(preference, absolute(host.trim())))
                        }
                        kind => RData::try_from_str(kind, data).unwrap_or_else(|error| panic!("{line}: {error}")),
                    };
                    zone.records.push(Record::from_rdata(name, ttl, data));
                }
            }
        }
        zone
    }

    fn fault(&self, name: &Name, kind: RecordType) -> Option<Fault> {
        let found = self.faults.iter().find(|(of, type_, _)| of == name && type_.is_none_or(|type_| type_ == kind));
        found.map(|(_, _, fault)| *fault)
    }

    /// The records of a name with the aliases before them, and whether the last name exists.
    fn answers(&self, name: &Name, kind: RecordType) -> (Vec<Record>, bool) {
        let (mut answers, mut name) = (Vec::new(), name.clone());
        for _ in 0..ALIASES_MAX {
            let of_name = || self.records.iter().filter(|record| record.name == name);
            let alias = of_name().find_map(|record| match &record.data {
                RData::CNAME(target) if kind != RecordType::CNAME => Some((record.clone(), target.0.clone())),
                _ => None,
            });
            match alias {
                Some((record, target)) => {
                    answers.push(record);
                    name = target;
                    name.set_fqdn(true);
                }
                None => {
                    answers.extend(of_name().filter(|record| record.record_type() == kind).cloned());
                    break;
                }
            }
        }
        let below = |of: &Name| name.zone_of(of);
        let exists = self.records.iter().any(|record| below(&record.name))
            || self.faults.iter().any(|(of, type_, _)| type_.is_some() && below(of));
        (answers, exists)
    }
}

fn absolute(name: &str) -> Name {
    if name == "." {
        return Name::root();
    }
    let labels = name.strip_suffix('.').unwrap_or(name).split('.').map(str::as_bytes);
    let mut name = Name::from_labels(labels).unwrap_or_else(|error| panic!("{name}: {error}")).to_lowercase();
    name.set_fqdn(true);
    name
}

fn plain(name: &Name) -> String {
    let text = name.to_ascii();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// The quoted strings of a TXT record, in parts of 255 bytes.
fn strings(data: &str) -> Vec<&[u8]> {
    let quoted = data.split('"').skip(1).step_by(2);
    quoted.flat_map(|string| string.as_bytes().chunks(255)).collect()
}
