use std::{error::Error, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use futures_util::TryStreamExt;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;
use tocsin_connect::{files::Files, tls};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config,
    types::{Format, IsNull, ToSql, Type, to_sql_checked},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

use super::{
    database::Database,
    rows::{BatchCounter, QueryRequest, RowRead, Rows, position_of, text_cell},
    statement::with_parameters,
    value::SqlValue,
};
use crate::{items::Cell, source::SourceError};

/// A connection to PostgreSQL. Encrypted if the server offers it; `sslmode=require` in the address enforces it.
pub(super) struct Postgres {
    client: Client,
    connection: JoinHandle<()>,
    /// Signalled on notifications; set by `listen`.
    wakeup: Arc<parking_lot::Mutex<Option<Arc<Notify>>>>,
    timeout: Duration,
}

/// A parameter as text: the server converts it to the required type.
#[derive(Debug)]
struct Text(Option<String>);

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match &self.0 {
            Some(text) => {
                out.put_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            None => Ok(IsNull::Yes),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

impl Postgres {
    pub async fn connect(url: &Url, timeout: Duration) -> Result<Postgres, SourceError> {
        let mut config: Config = url.as_str().parse().map_err(source_error)?;
        config.application_name("tocsin").connect_timeout(timeout);
        let trust = tls::client_config(&Files::default(), None, "database")
            .map_err(|problem| SourceError::of(problem.to_string()))?;
        let (client, mut connection) =
            config.connect(MakeRustlsConnect::new((*trust).clone())).await.map_err(source_error)?;
        let wakeup: Arc<parking_lot::Mutex<Option<Arc<Notify>>>> = Arc::default();
        let ringing = wakeup.clone();
        let connection = tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let (AsyncMessage::Notification(_), Some(wakeup)) = (message, &*ringing.lock()) {
                    wakeup.notify_one();
                }
            }
            // Wakes up the listener, since no notifications will follow.
            if let Some(wakeup) = &*ringing.lock() {
                wakeup.notify_one();
            }
        });
        let postgres = Postgres { client, connection, wakeup, timeout };
        let millis = timeout.as_millis();
        let prepare = format!("SET statement_timeout = {millis}; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'");
        postgres.client.batch_execute(&prepare).await.map_err(source_error)?;
        Ok(postgres)
    }

    /// Waits for a response, a little longer than the server's own time limit.
    async fn with_timeout<T>(
        timeout: Duration,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, SourceError> {
        match tokio::time::timeout(timeout + timeout / 2, work).await {
            Ok(done) => done.map_err(source_error),
            Err(_) => Err(SourceError::of("PostgreSQL does not answer in time")),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn source_error(error: tokio_postgres::Error) -> SourceError {
    match error.as_db_error() {
        Some(error) => SourceError::new("PostgreSQL", format!("{} ({})", error.message(), error.code().code())),
        None => match error.source() {
            Some(cause) => SourceError::new("PostgreSQL", with_hint(format!("{error}: {cause}"))),
            None => SourceError::new("PostgreSQL", error),
        },
    }
}

/// An error with advice, if the certificate of the server is not trusted.
fn with_hint(error: String) -> String {
    match error.contains("UnknownIssuer") {
        true => format!(
            "{error}; set `SSL_CERT_FILE` in the environment of the server to a file with this authority, or use \
             `?sslmode=disable` in the address"
        ),
        false => error,
    }
}

/// A cell, and whether it is written as raw JSON. Numbers keep the digits of the server.
fn cell(value: &RawValue) -> Result<(Cell, bool), SourceError> {
    let text = value.get();
    Ok(match text.as_bytes().first() {
        Some(b'n') => (Cell::Null, false),
        Some(b'"') => {
            let text = serde_json::from_str(text).map_err(|error| SourceError::new("a row cannot be read", error))?;
            (text_cell(text), false)
        }
        _ => (text_cell(text.to_owned()), true),
    })
}

/// A JSON object as an ordered list of members: names may be duplicates.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visit)
    }
}

/// A parameter in its text representation, whatever its type.
fn parameter(mark: &SqlValue) -> Text {
    match mark {
        SqlValue::Null => Text(None),
        SqlValue::Bytes(bytes) => Text(Some(format!("\\x{}", hex::encode(bytes)))),
        SqlValue::Decimal(text) | SqlValue::Text(text) | SqlValue::Untyped(text) => Text(Some(text.clone())),
        SqlValue::Integer(_) | SqlValue::Unsigned(_) | SqlValue::Real(_) => Text(Some(mark.shown())),
    }
}

#[async_trait]
impl Database for Postgres {
    async fn query(&mut self, request: QueryRequest<'_>) -> Result<Rows, SourceError> {
        let (query, count) = with_parameters(request.query.trim().trim_end_matches(';'), |_| "$1".to_owned());
        let timeout = self.timeout;
        let mark_column = request.mark_column.map(|name| (name, self.quoted(name)));
        let client = &mut self.client;
        let asked = Self::with_timeout(timeout, async {
            let transaction = client.build_transaction().read_only(true).start().await?;
            let inner = transaction.prepare(&query).await?;
            let names: Arc<[String]> = inner.columns().iter().map(|column| column.name().to_owned()).collect();
            if let Some(Err(error)) = mark_column.as_ref().map(|(name, _)| position_of(&names, name)) {
                return Ok(Err(error));
            }
            // The server converts each row to JSON, so that all its types are supported. JSON cannot represent all
            // values of all types, so the mark is transferred in its text representation.
            let mark = mark_column.as_ref().map_or("NULL".to_owned(), |(_, name)| format!("q.{name}"));
            let limit = request.rows_max + 1;
            let wrapped = format!("SELECT row_to_json(q)::text, {mark}::text FROM (\n{query}\n) AS q LIMIT {limit}");
            let statement = transaction.prepare(&wrapped).await?;
            let mark = parameter(request.mark);
            let parameters: &[&(dyn ToSql + Sync)] = if count > 0 { &[&mark] } else { &[] };
            let (mut counter, mut more, mut found) = (BatchCounter::new(&request), false, Vec::new());
            {
                let mut rows = std::pin::pin!(transaction.query_raw(&statement, parameters.iter().copied()).await?);
                while !more && let Some(row) = rows.try_next().await? {
                    let (text, mark): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
                    more = counter.ends_with(text.len());
                    found.push((text, mark));
                }
            }
            transaction.commit().await?;
            Ok(Ok((names, found, more)))
        });
        let (names, found, more) = asked.await??;
        let mut rows = Vec::with_capacity(found.len());
        for (text, mark) in found {
            let Members(members) =
                serde_json::from_str(&text).map_err(|error| SourceError::new("a row cannot be read", error))?;
            if members.len() != names.len() {
                return Err(SourceError::of("a row has not as many cells as the query has columns"));
            }
            let cells = members.iter().map(|(_, value)| cell(value)).collect::<Result<_, _>>()?;
            let mark = request.mark_column.map(|_| mark.map_or(SqlValue::Null, SqlValue::Text));
            rows.push(RowRead { cells, mark });
        }
        Ok(Rows::new(names, rows, more))
    }

    async fn run(&mut self, statement: &str, marks: &[SqlValue]) -> Result<(), SourceError> {
        let (statement, count) = with_parameters(statement, |_| "$1".to_owned());
        let timeout = self.timeout;
        let client = &mut self.client;
        let done = Self::with_timeout(timeout, async {
            let transaction = client.transaction().await?;
            let prepared = transaction.prepare(&statement).await?;
            for mark in marks {
                let mark = parameter(mark);
                let parameters: &[&(dyn ToSql + Sync)] = if count > 0 { &[&mark] } else { &[] };
                transaction.execute(&prepared, parameters).await?;
            }
            transaction.commit().await
        });
        done.await
    }

    async fn lock(&mut self, name: &str) -> Result<(), SourceError> {
        let name = Text(Some(name.to_owned()));
        let parameters: [&(dyn ToSql + Sync); 1] = [&name];
        let asked = self.client.query_one("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &parameters);
        match Self::with_timeout(self.timeout, asked).await?.try_get(0).map_err(source_error)? {
            true => Ok(()),
            false => Err(SourceError::of("another source takes from there")),
        }
    }

    async fn listen(&mut self, channel: &str, wakeup: Arc<Notify>) -> Result<(), SourceError> {
        *self.wakeup.lock() = Some(wakeup);
        let listen = format!("LISTEN {}", self.quoted(channel));
        Self::with_timeout(self.timeout, self.client.batch_execute(&listen)).await
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use rustls::{
        ServerConfig,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn a_certificate_of_an_unknown_authority_has_advice() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let names = vec!["127.0.0.1".to_owned()];
        let certificate =
            rcgen::CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider supports the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = async {
            let (mut connection, _) = listener.accept().await.expect("a client");
            let mut request = [0; 8];
            connection.read_exact(&mut request).await.expect("a request for encryption");
            connection.write_all(b"S").await.expect("sent");
            tokio_rustls::TlsAcceptor::from(Arc::new(config)).accept(connection).await.err()
        };
        let url = Url::parse(&format!("postgres://user@127.0.0.1:{port}/db")).expect("an address");
        let client = Postgres::connect(&url, crate::testing::wait_timeout());
        let (_, error) = tokio::join!(server, async { client.await.err().expect("the authority is unknown") });
        for expected in ["UnknownIssuer", "`SSL_CERT_FILE`", "`?sslmode=disable`"] {
            assert!(error.text.contains(expected), "{error}");
        }
    }
}
