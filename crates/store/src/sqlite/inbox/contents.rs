//! Contents that items share, with the number of their references.

use tocsin_model::inbox::InboxContent;

use crate::{
    error::StoreError,
    sqlite::{
        inbox::transaction::{InboxTransaction, body},
        statements::{execute, query_one},
    },
};

/// Stores a content that is not shared.
pub(super) fn add_content(tx: &mut InboxTransaction<'_>, content: &InboxContent) -> Result<u64, StoreError> {
    let sql = "INSERT INTO contents (application, class, body, holders) VALUES (?1, ?2, ?3, 1) RETURNING number";
    let values = (content.application.as_str(), content.class.as_str(), body(content));
    let number = query_one(tx.connection, sql, values, |row| row.get(0))?;
    tx.contents += 1;
    number.ok_or_else(|| StoreError::Damaged("a content was not stored".into()))
}

/// Removes one reference to a content.
pub(super) fn remove_reference(tx: &mut InboxTransaction<'_>, content: u64) -> Result<(), StoreError> {
    let sql = "UPDATE contents SET holders = holders - 1 WHERE number = ?1 RETURNING holders";
    if query_one(tx.connection, sql, [content], |row| row.get::<_, i64>(0))? == Some(0) {
        execute(tx.connection, "DELETE FROM contents WHERE number = ?1", [content])?;
        tx.contents -= 1;
    }
    Ok(())
}
