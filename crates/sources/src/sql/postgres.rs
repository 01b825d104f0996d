use std::{error::Error, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{BufMut, BytesMut};
use futures_util::TryStreamExt;
use serde_json::Value;
use tocsin_delivery::tls;
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::{
    AsyncMessage, Client, Config,
    types::{Format, IsNull, ToSql, Type, to_sql_checked},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

use super::{Cell, Database, Rows, Taking, check_cell, with_parameters};
use crate::source::{PORTION_EVENTS_MAX, Trouble};

/// A connection to PostgreSQL. Encrypted if the server offers it; `sslmode=require` in the address insists.
pub(super) struct Postgres {
    client: Client,
    connection: JoinHandle<()>,
    /// Rung when the server notifies; put in place by `listen`.
    bell: Arc<parking_lot::Mutex<Option<Arc<Notify>>>>,
    timeout: Duration,
}

/// A parameter as text: the server reads it as whatever type it has there.
#[derive(Debug)]
struct Text<'a>(Option<&'a str>);

impl ToSql for Text<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self.0 {
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
    pub async fn connect(url: &Url, timeout: Duration) -> Result<Postgres, Trouble> {
        let mut config: Config = url.as_str().parse().map_err(trouble)?;
        config.application_name("tocsin").connect_timeout(timeout);
        let trust = tls::trust(None, "database").map_err(|problem| Trouble::of(problem.to_string()))?;
        let (client, mut connection) =
            config.connect(MakeRustlsConnect::new((*trust).clone())).await.map_err(trouble)?;
        let bell: Arc<parking_lot::Mutex<Option<Arc<Notify>>>> = Arc::default();
        let ringing = bell.clone();
        let connection = tokio::spawn(async move {
            while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                if let (AsyncMessage::Notification(_), Some(bell)) = (message, &*ringing.lock()) {
                    bell.notify_one();
                }
            }
            // Whoever waits for notifications finds out that there will be none.
            if let Some(bell) = &*ringing.lock() {
                bell.notify_one();
            }
        });
        let postgres = Postgres { client, connection, bell, timeout };
        let millis = timeout.as_millis();
        let prepare = format!("SET statement_timeout = {millis}; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'");
        postgres.client.batch_execute(&prepare).await.map_err(trouble)?;
        Ok(postgres)
    }

    /// Waits for an answer, and a little longer than the server lets it take.
    async fn patient<T>(
        timeout: Duration,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Trouble> {
        match tokio::time::timeout(timeout + timeout / 2, work).await {
            Ok(done) => done.map_err(trouble),
            Err(_) => Err(Trouble::of("PostgreSQL does not answer in time")),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

fn trouble(error: tokio_postgres::Error) -> Trouble {
    match error.as_db_error() {
        Some(error) => Trouble::new("PostgreSQL", format!("{} ({})", error.message(), error.code().code())),
        None => match error.source() {
            Some(cause) => Trouble::new("PostgreSQL", format!("{error}: {cause}")),
            None => Trouble::new("PostgreSQL", error),
        },
    }
}

fn cell(value: Value) -> Result<Cell, Trouble> {
    match value {
        Value::Null => Ok((None, false)),
        Value::String(text) => Ok((Some(check_cell(text)?), false)),
        other => Ok((Some(check_cell(other.to_string())?), true)),
    }
}

#[async_trait]
impl Database for Postgres {
    async fn query(&mut self, query: &str, mark: Option<&str>) -> Result<Rows, Trouble> {
        let (query, count) = with_parameters(query.trim().trim_end_matches(';'), |_| "$1".to_owned());
        // The server makes JSON of each row, so that no type of it is unknown to us.
        let wrapped = format!("SELECT row_to_json(q)::text FROM (\n{query}\n) AS q LIMIT {PORTION_EVENTS_MAX}");
        let timeout = self.timeout;
        let client = &mut self.client;
        let asked = Self::patient(timeout, async {
            let transaction = client.build_transaction().read_only(true).start().await?;
            let statement = transaction.prepare(&wrapped).await?;
            let inner = transaction.prepare(&query).await?;
            let names: Arc<[String]> = inner.columns().iter().map(|column| column.name().to_owned()).collect();
            let mark = Text(mark);
            let parameters: &[&(dyn ToSql + Sync)] = if count > 0 { &[&mark] } else { &[] };
            let (mut taking, mut more, mut found) = (Taking::default(), false, Vec::new());
            {
                let mut rows = std::pin::pin!(transaction.query_raw(&statement, parameters.iter().copied()).await?);
                while !more && let Some(row) = rows.try_next().await? {
                    let text: String = row.try_get(0)?;
                    more = taking.is_full_with(text.len());
                    found.push(text);
                }
            }
            transaction.commit().await?;
            Ok((names, found, more))
        });
        let (names, found, more) = asked.await?;
        let mut rows = Vec::with_capacity(found.len());
        for text in found {
            let mut row: serde_json::Map<String, Value> =
                serde_json::from_str(&text).map_err(|error| Trouble::new("a row cannot be read", error))?;
            let cells = names.iter().map(|name| cell(row.remove(name).unwrap_or_default()));
            rows.push(cells.collect::<Result<_, _>>()?);
        }
        Ok(Rows::new(names, rows, more))
    }

    async fn run(&mut self, statement: &str, marks: &[Option<String>]) -> Result<(), Trouble> {
        let (statement, count) = with_parameters(statement, |_| "$1".to_owned());
        let timeout = self.timeout;
        let client = &mut self.client;
        let done = Self::patient(timeout, async {
            let transaction = client.transaction().await?;
            let prepared = transaction.prepare(&statement).await?;
            for mark in marks {
                let mark = Text(mark.as_deref());
                let parameters: &[&(dyn ToSql + Sync)] = if count > 0 { &[&mark] } else { &[] };
                transaction.execute(&prepared, parameters).await?;
            }
            transaction.commit().await
        });
        done.await
    }

    async fn lock(&mut self, name: &str) -> Result<(), Trouble> {
        let name = Text(Some(name));
        let parameters: [&(dyn ToSql + Sync); 1] = [&name];
        let asked = self.client.query_one("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &parameters);
        match Self::patient(self.timeout, asked).await?.try_get(0).map_err(trouble)? {
            true => Ok(()),
            false => Err(Trouble::of("another source takes from there")),
        }
    }

    async fn listen(&mut self, channel: &str, bell: Arc<Notify>) -> Result<(), Trouble> {
        *self.bell.lock() = Some(bell);
        let listen = format!("LISTEN {}", self.quoted(channel));
        Self::patient(self.timeout, self.client.batch_execute(&listen)).await
    }

    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
