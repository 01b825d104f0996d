//! Events raised by row changes, stored in the transaction of the change (transactional outbox).

use std::collections::HashMap;

use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{Changed, Stamp},
    id::Name,
};
use tocsin_store::{
    collections::{RaisedEvent, StoredRow},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::catalogue::Ready;

/// Checkpoints of the applications.
#[derive(Default)]
pub(crate) struct EventCheckpoints(pub(crate) tokio::sync::Mutex<HashMap<Name, Stamp>>);

/// Stores the event of a row change, if the class requires one: old row, new row and id.
pub(crate) fn raise_event(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    ready: &Ready,
    version: Stamp,
    (old, new, id): (Option<&StoredRow>, Option<&str>, &str),
) -> Result<(), StoreError> {
    if ready.definition.raises.is_empty() {
        return Ok(());
    }
    let fields = &ready.definition.fields;
    let read = |body: &str| {
        let shown = fields.stored_as_json(body).map_err(|_| StoreError::Damaged(format!("the row `{id}`")))?;
        Ok::<Map<String, Json>, StoreError>(serde_json::from_str(&shown).expect("a row is JSON"))
    };
    let before = old.and_then(|old| old.body.as_deref()).map(read).transpose()?;
    let after = new.map(read).transpose()?;
    let changed = Changed { id, before: before.as_ref(), after: after.as_ref(), at: ledger.now() };
    for raise in &ready.definition.raises {
        if let Some(event) = raise.event(&changed) {
            let event = Json::Object(event).to_string().into();
            ledger.raise(application, &RaisedEvent { stamp: version, class: raise.event.clone(), event })?;
        }
    }
    Ok(())
}
