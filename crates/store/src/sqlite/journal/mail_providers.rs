//! Mails to mailbox providers by day. There are few rows, so names are stored as text.

use async_trait::async_trait;
use rusqlite::{Connection, Row};
use tocsin_model::{id::Name, mail_provider::ProviderDay};

use super::{SqliteJournal, views::collect};
use crate::{
    error::StoreError,
    journal::{MailProviders, PROVIDER_DAYS_KEPT},
    sqlite::writer::store_error,
};

#[async_trait]
impl MailProviders for SqliteJournal {
    async fn add_provider_days(
        &self,
        application: &Name,
        channel: &Name,
        days: Vec<(Box<str>, ProviderDay)>,
    ) -> Result<(), StoreError> {
        let (application, channel) = (application.clone(), channel.clone());
        self.database.write(move |connection, _| add(connection, &application, &channel, &days)).await
    }

    async fn last_provider_days(
        &self,
        application: &Name,
        channel: &Name,
    ) -> Result<Vec<(Box<str>, ProviderDay)>, StoreError> {
        let (application, channel) = (application.clone(), channel.clone());
        self.read(move |connection, _| last(connection, &application, &channel)).await
    }
}

fn add(
    connection: &Connection,
    application: &Name,
    channel: &Name,
    days: &[(Box<str>, ProviderDay)],
) -> Result<(), StoreError> {
    let sql = "INSERT INTO provider_days (application, channel, provider, day, daily_limit, sent, held_back)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT (application, channel, provider, day) DO UPDATE SET daily_limit = excluded.daily_limit,
            sent = provider_days.sent + excluded.sent, held_back = provider_days.held_back + excluded.held_back";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let (application, channel) = (application.as_str(), channel.as_str());
    for (provider, ProviderDay { day, limit, sent, held_back }) in days {
        let limit = i64::try_from(*limit).ok();
        let row = (application, channel, &**provider, day, limit, *sent as i64, *held_back as i64);
        statement.execute(row).map_err(store_error)?;
    }
    let newest = days.iter().map(|(_, day)| day.day).max().unwrap_or(0);
    let sql = "DELETE FROM provider_days WHERE application = ?1 AND channel = ?2 AND day < ?3";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let row = (application, channel, newest.saturating_sub(PROVIDER_DAYS_KEPT));
    statement.execute(row).map_err(store_error).map(|_| ())
}

fn last(
    connection: &Connection,
    application: &Name,
    channel: &Name,
) -> Result<Vec<(Box<str>, ProviderDay)>, StoreError> {
    let sql = "SELECT provider, day, daily_limit, sent, held_back FROM provider_days AS newest
        WHERE application = ?1 AND channel = ?2 AND day = (SELECT MAX(day) FROM provider_days
            WHERE application = ?1 AND channel = ?2 AND provider = newest.provider)
        ORDER BY provider";
    collect(connection, sql, (application.as_str(), channel.as_str()), read)
}

fn read(row: &Row<'_>) -> Result<(Box<str>, ProviderDay), StoreError> {
    type Columns = (Box<str>, u32, Option<i64>, i64, i64);
    let (provider, day, limit, sent, held_back): Columns = row.try_into().map_err(store_error)?;
    let limit = limit.map_or(u64::MAX, |limit| limit as u64);
    Ok((provider, ProviderDay { day, limit, sent: sent as u64, held_back: held_back as u64 }))
}
