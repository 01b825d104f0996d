//! Dictionary of names as small integers. All of it is kept in memory: it grows only with the names used in
//! definitions and sources.

use hashbrown::HashMap;
use parking_lot::RwLock;
use rusqlite::Connection;
use tocsin_model::id::Name;

use crate::{
    error::StoreError,
    sqlite::writer::{Database, store_error},
};

/// Names of a file.
pub struct Names(RwLock<NameMaps>);

#[derive(Default)]
struct NameMaps {
    numbers: HashMap<Name, i64>,
    names: HashMap<i64, Name>,
}

impl Names {
    /// Loads all names.
    pub fn load(connection: &Connection) -> Result<Names, StoreError> {
        let mut known = NameMaps::default();
        let mut statement = connection.prepare("SELECT id, name FROM names").map_err(store_error)?;
        let mut rows = statement.query(()).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let (number, name): (i64, String) = row.try_into().map_err(store_error)?;
            let name = name.parse().map_err(|_| StoreError::Damaged(format!("the name `{name}`")))?;
            known.insert(number, name);
        }
        Ok(Names(RwLock::new(known)))
    }

    /// Number of a name, if it was ever used.
    pub fn find(&self, name: &Name) -> Option<i64> {
        self.0.read().numbers.get(name).copied()
    }

    /// Numbers of names. New ones are committed first: memory must never know a number that the file does not.
    pub async fn numbers<const N: usize>(
        self: &std::sync::Arc<Self>,
        database: &Database,
        names: [&Name; N],
    ) -> Result<[i64; N], StoreError> {
        let mut numbers = [0; N];
        for (number, name) in numbers.iter_mut().zip(names) {
            *number = match self.find(name) {
                Some(number) => number,
                None => self.add(database, name.clone()).await?,
            };
        }
        Ok(numbers)
    }

    async fn add(self: &std::sync::Arc<Self>, database: &Database, name: Name) -> Result<i64, StoreError> {
        let known = self.clone();
        let write = database.write(move |connection, after| {
            let number: i64 = connection
                .prepare_cached(
                    "INSERT INTO names (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = name RETURNING id",
                )
                .and_then(|mut statement| statement.query_row([name.as_str()], |row| row.get(0)))
                .map_err(store_error)?;
            after.run(move || known.0.write().insert(number, name));
            Ok(number)
        });
        crate::audit::unaudited(write).await
    }

    /// Name of a number.
    pub fn name(&self, number: i64) -> Result<Name, StoreError> {
        let known = self.0.read();
        known.names.get(&number).cloned().ok_or_else(|| StoreError::Damaged(format!("the name with number {number}")))
    }
}

impl NameMaps {
    fn insert(&mut self, number: i64, name: Name) {
        self.names.insert(number, name.clone());
        self.numbers.insert(name, number);
    }
}
