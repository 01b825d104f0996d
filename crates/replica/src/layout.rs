//! Migration of files from older versions.

use crate::{
    Replica, ReplicaError,
    apply::convert_layout_1_row,
    schema::{self, BEFORE_EDIT, LAYOUT, OF_SERVER},
};

impl Replica {
    /// Converts a file of layout 1, in one transaction. Its edits are kept.
    ///
    /// # Errors
    /// The file was made by a newer version.
    pub(crate) fn convert_layout(&self) -> Result<(), ReplicaError> {
        // First without a transaction: another program may be writing, and most files have the current layout.
        if self.has_layout()? {
            let layout: i64 = self.connection.query_row("SELECT layout FROM _replica", (), |row| row.get(0))?;
            if layout > LAYOUT {
                return Err(ReplicaError::Unfit(format!(
                    "the replica was made by a newer version of this program: its layout is {layout}, the newest supported is {LAYOUT}"
                )));
            }
            return Ok(());
        }
        let transaction = self.write_transaction()?;
        if self.has_layout()? {
            return Ok(());
        }
        transaction.execute_batch(
            "ALTER TABLE _replica ADD COLUMN layout INTEGER NOT NULL DEFAULT 2;
             ALTER TABLE _replica ADD COLUMN after TEXT;
             ALTER TABLE _replica ADD COLUMN point TEXT;
             ALTER TABLE _outbox ADD COLUMN batch TEXT;
             ALTER TABLE _pending RENAME TO _pending_1;
             ALTER TABLE _server RENAME TO _server_1;
             ALTER TABLE _refused RENAME TO _refused_1;",
        )?;
        transaction.execute_batch(schema::TABLES_OF_LAYOUT_2)?;
        transaction.execute_batch(
            "INSERT INTO _refused (n, collection, row, fields, why, \"values\")
                 SELECT n, collection, row, '[]', why, '{}' FROM _refused_1 ORDER BY n;
             INSERT INTO _pending (collection, row, was_there, seen)
                 SELECT collection, row, was IS NOT NULL, seen FROM _pending_1 ORDER BY rowid;
             INSERT INTO _server (collection, row, base, version, is_there)
                 SELECT s.collection, s.row, coalesce(p.base, s.version), s.version, s.body IS NOT NULL FROM _server_1 s
                 LEFT JOIN _pending_1 p ON p.collection = s.collection AND p.row = s.row;",
        )?;
        for shape in self.shapes()? {
            let name = shape.name.as_str();
            schema::make_tables_beside(&transaction, &shape)?;
            let (table, known) = (schema::quoted(name), schema::known(&shape));
            let sql = format!(
                "INSERT INTO {known} (_row, _version) SELECT id, _version FROM {table} t WHERE _version > 0 \
                 AND NOT EXISTS (SELECT 1 FROM _server s WHERE s.collection = ?1 AND s.row = t.id)"
            );
            transaction.execute(&sql, (name,))?;
            let sql = format!(
                "INSERT INTO {known} (_row, _version) SELECT row, version FROM _server WHERE collection = ?1 AND is_there"
            );
            transaction.execute(&sql, (name,))?;
            for (sql, side) in [
                ("SELECT row, was FROM _pending_1 WHERE collection = ?1 AND was IS NOT NULL", BEFORE_EDIT),
                ("SELECT row, body FROM _server_1 WHERE collection = ?1 AND body IS NOT NULL", OF_SERVER),
            ] {
                let mut statement = transaction.prepare(sql)?;
                let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
                let noted: Vec<(String, String)> = statement.query_map((name,), read)?.collect::<Result<_, _>>()?;
                for (row, noted) in noted {
                    convert_layout_1_row(&transaction, &shape, &row, side, &noted)?;
                }
            }
            schema::make_triggers(&transaction, &shape)?;
        }
        transaction.execute_batch("DROP TABLE _pending_1; DROP TABLE _server_1; DROP TABLE _refused_1;")?;
        Ok(transaction.commit()?)
    }

    fn has_layout(&self) -> Result<bool, ReplicaError> {
        let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('_replica') WHERE name = 'layout')";
        Ok(self.connection.query_row(sql, (), |row| row.get(0))?)
    }
}
