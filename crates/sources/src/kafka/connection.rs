//! A connection to one broker: version handshake, TLS, login, and sequential requests.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::{
    error::ResponseError,
    messages::{ApiVersionsRequest, RequestHeader, ResponseHeader, SaslAuthenticateRequest, SaslHandshakeRequest},
    protocol::{Decodable, Encodable, HeaderVersion, Request, StrBytes},
};
use rustls::{ClientConfig, pki_types::ServerName};
use tocsin_connect::{
    kafka::{Address, Mechanism},
    scram::{self, Hash, Hello},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::source::SourceError;

/// Longest response. Requests ask for less; only a single larger batch exceeds that.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// A length prefix that is the beginning of a TLS alert.
const TLS_ALERT: u32 = 0x15_03;

/// The credentials for every broker of a cluster.
#[derive(Clone)]
pub(super) struct Access {
    /// The client id.
    pub client: String,
    /// The trusted certificates, if connections are encrypted.
    pub trust: Option<Arc<ClientConfig>>,
    pub login: Option<Login>,
    /// Time limit for connecting, and for each response.
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
    /// First and last supported version of each request of the broker.
    versions: HashMap<i16, (i16, i16)>,
    /// The correlation id of the last request.
    number: i32,
    timeout: Duration,
}

impl Connection {
    /// Connects and authenticates.
    pub async fn open(address: &Address, access: &Access) -> Result<Connection, SourceError> {
        let failed = |error: &dyn std::fmt::Display| SourceError::new(format!("no connection to {address}"), error);
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
        connection.negotiate_versions().await?;
        if let Some(login) = &access.login {
            connection.log_in(login).await?;
        }
        Ok(connection)
    }

    /// Sends a request in the newest common version, at most `newest`, and returns the response. The broker may take
    /// `wait` longer than usual (long polling).
    pub async fn request<R: Request>(
        &mut self,
        request: R,
        newest: i16,
        wait: Duration,
    ) -> Result<R::Response, SourceError> {
        let (from, to) = self.versions.get(&R::KEY).copied().unwrap_or((0, -1));
        let version = newest.min(to);
        if version < from.max(R::VERSIONS.min) {
            let text = format!(
                "{} does not support a compatible version of the Kafka protocol (request {})",
                self.address,
                R::KEY
            );
            return Err(SourceError::of(text));
        }
        self.exchange(&request, version, wait).await
    }

    async fn exchange<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        wait: Duration,
    ) -> Result<R::Response, SourceError> {
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
        encoded.map_err(|error| SourceError::new("a request cannot be encoded", error))?;
        let length = u32::try_from(frame.len() - 4).map_err(|_| SourceError::of("a request is too long"))?;
        frame[..4].copy_from_slice(&length.to_be_bytes());

        let answered = timeout(self.timeout + wait, self.send(&frame)).await;
        let mut answer =
            answered.map_err(|_| SourceError::of(format!("{} does not respond in time", self.address)))??;
        let unreadable =
            |error: &dyn std::fmt::Display| SourceError::new("a response of the broker cannot be decoded", error);
        let head = ResponseHeader::decode(&mut answer, R::Response::header_version(version));
        let head = head.map_err(|error| unreadable(&error))?;
        if head.correlation_id != self.number {
            return Err(unreadable(&"the correlation id does not match"));
        }
        R::Response::decode(&mut answer, version).map_err(|error| unreadable(&error))
    }

    /// Sends a request, and reads the response.
    async fn send(&mut self, frame: &[u8]) -> Result<Bytes, SourceError> {
        let over = |error: std::io::Error| SourceError::new(format!("the connection to {}", self.address), error);
        self.stream.write_all(frame).await.map_err(over)?;
        self.stream.flush().await.map_err(over)?;
        let mut head = [0; 4];
        if let Err(error) = self.stream.read_exact(&mut head).await {
            return Err(match error.kind() {
                // A broker that requires TLS or a login before the first request closes the connection without an
                // error.
                std::io::ErrorKind::UnexpectedEof if self.versions.is_empty() || self.number <= 2 => {
                    SourceError::of(format!(
                        "{} closed the connection without a response; it may require encryption (`tls`) or a login (`username`)",
                        self.address
                    ))
                }
                _ => over(error),
            });
        }
        let length = u32::from_be_bytes(head);
        if length >> 16 == TLS_ALERT {
            return Err(SourceError::of(format!("{} accepts only TLS: set `tls: true`", self.address)));
        }
        let length = length as usize;
        if length > FRAME_BYTES_MAX {
            let text = format!("a response of {} has {length} bytes; the limit is {FRAME_BYTES_MAX}", self.address);
            return Err(SourceError::of(text));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).await.map_err(over)?;
        Ok(Bytes::from(answer))
    }

    async fn negotiate_versions(&mut self) -> Result<(), SourceError> {
        // All brokers support version 0, which is sufficient.
        let answer = self.exchange(&ApiVersionsRequest::default(), 0, Duration::ZERO).await?;
        check(answer.error_code, || format!("the greeting of {}", self.address))?;
        let versions = answer.api_keys.iter().map(|known| (known.api_key, (known.min_version, known.max_version)));
        self.versions = versions.collect();
        Ok(())
    }

    async fn log_in(&mut self, login: &Login) -> Result<(), SourceError> {
        let name = login.mechanism.name();
        let hello = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
        let answer = self.request(hello, 1, Duration::ZERO).await?;
        if answer.error_code != 0 {
            let offered: Vec<&str> = answer.mechanisms.iter().map(StrBytes::as_str).collect();
            let text =
                format!("{} does not support {name}; set `mechanism` to one of: {}", self.address, offered.join(", "));
            return Err(SourceError::of(text));
        }
        let hash = match login.mechanism {
            Mechanism::Plain => {
                let secret = format!("\0{}\0{}", login.username, login.password);
                return self.send_sasl(secret).await.map(drop);
            }
            Mechanism::ScramSha256 => Hash::Sha256,
            Mechanism::ScramSha512 => Hash::Sha512,
        };
        let nonce = scram::nonce().ok_or_else(|| SourceError::of("the system has no random numbers"))?;
        let hello = Hello::new(hash, &login.username, &nonce);
        let challenge = self.send_sasl(hello.message()).await?;
        let proof =
            hello.client_proof(&login.password, &challenge).map_err(|error| SourceError::new("the login", error))?;
        let answer = self.send_sasl(proof.message.clone()).await?;
        match proof.is_answered_by(&answer) {
            true => Ok(()),
            false => Err(SourceError::of(format!("{} did not prove that it knows the password", self.address))),
        }
    }

    /// One step of a login.
    async fn send_sasl(&mut self, message: String) -> Result<String, SourceError> {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from(message));
        let answer = self.request(request, 2, Duration::ZERO).await?;
        if let Some(error) = ResponseError::try_from_code(answer.error_code) {
            let said = answer.error_message.map_or_else(|| error.to_string(), |text| text.to_string());
            return Err(SourceError::of(format!(
                "{} rejects the login (`username`, `password`): {said}",
                self.address
            )));
        }
        String::from_utf8(answer.auth_bytes.chunk().to_vec()).map_err(|_| {
            SourceError::of(format!("{} responds to the login with bytes that are not text", self.address))
        })
    }
}

async fn dial(address: &Address, access: &Access) -> std::io::Result<Box<dyn Stream>> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await?;
    tcp.set_nodelay(true)?;
    let Some(trust) = &access.trust else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(address.host.clone()).map_err(std::io::Error::other)?;
    Ok(Box::new(TlsConnector::from(trust.clone()).connect(name, tcp).await?))
}

/// Converts an error code of a response.
pub(super) fn check(code: i16, what: impl FnOnce() -> String) -> Result<(), SourceError> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(SourceError::new(what(), error)),
    }
}
