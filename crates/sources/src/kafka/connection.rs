//! A connection to one broker: greeting, encryption, login, and answers to requests one after the other.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::{
    error::ResponseError,
    messages::{ApiVersionsRequest, RequestHeader, ResponseHeader, SaslAuthenticateRequest, SaslHandshakeRequest},
    protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes},
};
use rustls::{ClientConfig, pki_types::ServerName};
use tocsin_delivery::scram::{self, Hash, Hello};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::options::{Address, Mechanism};
use crate::source::Trouble;

/// Longest answer. What is asked for is less; only a single message batch that is longer comes whole.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// How a length looks that is the beginning of an alert of TLS.
const TLS_ALERT: u32 = 0x15_03;

/// How we come in at every broker of a cluster.
#[derive(Clone)]
pub(super) struct Access {
    /// The name that brokers show for us.
    pub client: String,
    /// Whom we trust, if connections are encrypted.
    pub trust: Option<Arc<ClientConfig>>,
    pub login: Option<Login>,
    /// Time to connect, and for each answer.
    pub timeout: Duration,
}

/// A user name and a password.
#[derive(Clone)]
pub(super) struct Login {
    pub username: String,
    pub password: String,
    pub mechanism: Mechanism,
}

trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

pub(super) struct Connection {
    address: Address,
    client: StrBytes,
    stream: Box<dyn Stream>,
    /// First and last version of each request that the broker knows.
    versions: HashMap<i16, (i16, i16)>,
    /// The number of the last request.
    number: i32,
    timeout: Duration,
}

impl Connection {
    /// Connects and logs in.
    pub async fn open(address: &Address, access: &Access) -> Result<Connection, Trouble> {
        let failed = |error: &dyn std::fmt::Display| Trouble::new(format!("no connection to {address}"), error);
        let stream = timeout(access.timeout, dial(address, access)).await;
        let stream = stream.map_err(|_| failed(&"no answer in time"))?.map_err(|error| failed(&error))?;
        let mut connection = Connection {
            address: address.clone(),
            client: StrBytes::from_string(access.client.clone()),
            stream,
            versions: HashMap::new(),
            number: 0,
            timeout: access.timeout,
        };
        connection.greet().await?;
        if let Some(login) = &access.login {
            connection.log_in(login).await?;
        }
        Ok(connection)
    }

    /// What the broker answers to a request, in the newest version that both know, at most `newest`. The broker may let us
    /// wait for `wait` on top of the usual.
    pub async fn ask<R: Request>(&mut self, request: R, newest: i16, wait: Duration) -> Result<R::Response, Trouble> {
        let (from, to) = self.versions.get(&R::KEY).copied().unwrap_or((0, -1));
        let version = newest.min(to);
        if version < from.max(R::VERSIONS.min) {
            let text = format!(
                "{} speaks a version of Kafka's protocol that we do not know (request {})",
                self.address,
                R::KEY
            );
            return Err(Trouble::of(text));
        }
        self.exchange(&request, version, wait).await
    }

    async fn exchange<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        wait: Duration,
    ) -> Result<R::Response, Trouble> {
        self.number = self.number.wrapping_add(1);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(version)
            .with_correlation_id(self.number)
            .with_client_id(Some(self.client.clone()));
        let mut frame = BytesMut::new();
        frame.put_u32(0);
        let encoded = header.encode(&mut frame, R::header_version(version));
        let encoded = encoded.and_then(|()| request.encode(&mut frame, version));
        encoded.map_err(|error| Trouble::new("a request cannot be written", error))?;
        let length = u32::try_from(frame.len() - 4).map_err(|_| Trouble::of("a request is too long"))?;
        frame[..4].copy_from_slice(&length.to_be_bytes());

        let answered = timeout(self.timeout + wait, self.send(&frame)).await;
        let mut answer = answered.map_err(|_| Trouble::of(format!("{} does not answer in time", self.address)))??;
        let unreadable = |error: &dyn std::fmt::Display| Trouble::new("an answer of the broker cannot be read", error);
        let head = ResponseHeader::decode(&mut answer, R::Response::header_version(version));
        let head = head.map_err(|error| unreadable(&error))?;
        if head.correlation_id != self.number {
            return Err(unreadable(&"it is to another request"));
        }
        R::Response::decode(&mut answer, version).map_err(|error| unreadable(&error))
    }

    /// Sends a request, and reads the answer.
    async fn send(&mut self, frame: &[u8]) -> Result<Bytes, Trouble> {
        let over = |error: std::io::Error| Trouble::new(format!("the connection to {}", self.address), error);
        self.stream.write_all(frame).await.map_err(over)?;
        self.stream.flush().await.map_err(over)?;
        let mut head = [0; 4];
        if let Err(error) = self.stream.read_exact(&mut head).await {
            return Err(match error.kind() {
                // A broker says in no other way that it wants more of us before it answers the first request.
                std::io::ErrorKind::UnexpectedEof if self.versions.is_empty() || self.number <= 2 => {
                    Trouble::of(format!(
                        "{} closed the connection without an answer; it may want encryption (`tls`) or a login (`username`)",
                        self.address
                    ))
                }
                _ => over(error),
            });
        }
        let length = u32::from_be_bytes(head);
        if length >> 16 == TLS_ALERT {
            return Err(Trouble::of(format!("{} speaks TLS only: set `tls: true`", self.address)));
        }
        let length = length as usize;
        if length > FRAME_BYTES_MAX {
            let text = format!("an answer of {} has {length} bytes; at most {FRAME_BYTES_MAX} are taken", self.address);
            return Err(Trouble::of(text));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await.map_err(over)?;
        Ok(Bytes::from(answer))
    }

    async fn greet(&mut self) -> Result<(), Trouble> {
        // Version 0 is understood by all, and says all that we want to know.
        let answer = self.exchange(&ApiVersionsRequest::default(), 0, Duration::ZERO).await?;
        check(answer.error_code, || format!("the greeting of {}", self.address))?;
        let versions = answer.api_keys.iter().map(|known| (known.api_key, (known.min_version, known.max_version)));
        self.versions = versions.collect();
        Ok(())
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), Trouble> {
        let name = login.mechanism.name();
        let hello = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
        let answer = self.ask(hello, 1, Duration::ZERO).await?;
        if answer.error_code != 0 {
            let offered: Vec<&str> = answer.mechanisms.iter().map(StrBytes::as_str).collect();
            let text =
                format!("{} does not take {name}; `mechanism` may be one of: {}", self.address, offered.join(", "));
            return Err(Trouble::of(text));
        }
        let hash = match login.mechanism {
            Mechanism::Plain => {
                let secret = format!("\0{}\0{}", login.username, login.password);
                return self.prove(secret).await.map(drop);
            }
            Mechanism::ScramSha256 => Hash::Sha256,
            Mechanism::ScramSha512 => Hash::Sha512,
        };
        let nonce = scram::nonce().ok_or_else(|| Trouble::of("the system has no random numbers"))?;
        let hello = Hello::new(hash, &login.username, &nonce);
        let challenge = self.prove(hello.message()).await?;
        let proof = hello.prove(&login.password, &challenge).map_err(|error| Trouble::new("the login", error))?;
        let answer = self.prove(proof.message.clone()).await?;
        match proof.is_answered_by(&answer) {
            true => Ok(()),
            false => Err(Trouble::of(format!("{} did not prove that it knows the password", self.address))),
        }
    }

    /// One step of a login.
    async fn prove(&mut self, message: String) -> Result<String, Trouble> {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from(message));
        let answer = self.ask(request, 2, Duration::ZERO).await?;
        if let Some(error) = ResponseError::try_from_code(answer.error_code) {
            let said = answer.error_message.map_or_else(|| error.to_string(), |text| text.to_string());
            return Err(Trouble::of(format!("{} refuses the login (`username`, `password`): {said}", self.address)));
        }
        String::from_utf8(answer.auth_bytes.chunk().to_vec())
            .map_err(|_| Trouble::of(format!("{} answers the login with what is no text", self.address)))
    }
}

async fn dial(address: &Address, access: &Access) -> std::io::Result<Box<dyn Stream>> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
    tcp.set_nodelay(true)?;
    let Some(trust) = &access.trust else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(address.host.clone()).map_err(std::io::Error::other)?;
    Ok(Box::new(TlsConnector::from(trust.clone()).connect(name, tcp).await?))
}

/// An error code of an answer as trouble.
pub(super) fn check(code: i16, what: impl FnOnce() -> String) -> Result<(), Trouble> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(Trouble::new(what(), error)),
    }
}
