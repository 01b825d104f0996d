//! Applies a client edit to the current row: accept, reject or merge. The losing version goes to the conflict log.
//!
//! An edit names the row version that it was based on. Changes by others since then are conflicts; earlier edits of the
//! same device are not, since a device sends its edits in order. Server stamps, never the clock of a device, determine
//! which changes an edit was based on.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value as Json};
use tocsin_model::{
    collection::{Combine, ROW_ID_CHARS_MAX, Resolver, Stamp, Track},
    field::{Fields, Row},
    id::Name,
    problem::{Code, Problem},
    replica::{Edit, Winner},
    value::Value,
};
use tocsin_store::{
    collections::{AuthorNumber, Conflict, DeviceNumber, KeyNumber, RowWrite, StoredRow},
    error::StoreError,
    sqlite::collections::RowTransaction,
};

use crate::{
    catalogue::{Collections, Ready},
    outbox,
    programs::{ConflictDecision, PendingConflicts},
    row_sharing,
};

/// Maximum distance of an edit's stamps from the server's clock, for stamps beyond the newest one of the server.
pub const STAMPS_AHEAD_MAX: Duration = Duration::from_secs(300);

/// Outcome of an edit.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EditOutcome {
    /// Applied without a conflict.
    Applied,
    /// Conflict, with its winner.
    Conflicted(Winner),
    /// Rejected as invalid.
    Refused(Vec<Problem>),
}

/// The author of edits and the rows it can see.
pub(crate) struct Editor<'a> {
    pub(crate) application: &'a Name,
    pub(crate) collections: &'a Collections,
    pub(crate) device: DeviceNumber,
    /// Author number of the replica copy.
    pub(crate) author: AuthorNumber,
    /// Keys of the device, ascending.
    pub(crate) held: &'a [KeyNumber],
    /// Decisions of resolver programs.
    pub(crate) conflicts: &'a PendingConflicts,
}

/// Last writer of a value: when, who, and the latest stamp that the writer knew.
type Writer = (Stamp, AuthorNumber, Stamp);

/// Requested field values of an edit, by field index.
struct RequestedEdit {
    set: BTreeMap<usize, Value>,
    was: BTreeMap<usize, Value>,
}

/// New row: values, and the changed fields.
struct Change {
    row: Row,
    fields: Vec<usize>,
}

impl Editor<'_> {
    /// Applies an edit of a device. Returns its outcome, and the fields that cannot hold their values: these are
    /// rejected, the others of the edit are applied.
    ///
    /// # Errors
    /// The store fails.
    pub(crate) fn apply(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
    ) -> Result<(EditOutcome, Vec<Problem>), StoreError> {
        if let Some(problem) = check_row_id(&edit.id) {
            return Ok((EditOutcome::Refused(vec![problem]), Vec::new()));
        }
        let old = ledger.row(ready.number, &edit.id)?;
        if let Some(problem) = check_stamps(edit, ledger) {
            self.log_stamp_refusal(ledger, ready, edit, old.as_ref())?;
            return Ok((EditOutcome::Refused(vec![problem]), Vec::new()));
        }
        let present = old.as_ref().filter(|old| old.body.is_some());
        let fields = &ready.definition.fields;
        let (requested, problems) = match &edit.set {
            None => (None, Vec::new()),
            Some(set) => {
                let (requested, problems) = RequestedEdit::read(fields, set, &edit.was, present.is_some());
                if requested.set.is_empty() && !problems.is_empty() && present.is_some() {
                    return Ok((EditOutcome::Refused(problems), Vec::new()));
                }
                (Some(requested), problems)
            }
        };
        let outcome = self.reconcile(ledger, ready, edit, old.as_ref(), requested)?;
        Ok(match outcome {
            EditOutcome::Refused(more) => {
                (EditOutcome::Refused(problems.into_iter().chain(more).collect()), Vec::new())
            }
            outcome => (outcome, problems),
        })
    }

    fn reconcile(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        old: Option<&StoredRow>,
        requested: Option<RequestedEdit>,
    ) -> Result<EditOutcome, StoreError> {
        let present = old.filter(|old| old.body.is_some());
        // A device that cannot see a row learns only that the id is in use.
        if let Some(row) = present.filter(|row| !self.holds(&row.keys)) {
            // The row left the device's view meanwhile: the edit is logged for those who can see it.
            if edit.base != Stamp(0) {
                self.log(ledger, ready, edit, Winner::Server, "left", &body(&ready.definition.fields, row))?;
            }
            return Ok(refused(Code::UnknownReference, "id", "does not name a row that is visible to this device"));
        }
        match (present, requested) {
            (None, None) => Ok(EditOutcome::Applied),
            (None, Some(requested)) => self.insert(ledger, ready, edit, old, requested),
            (Some(row), None) => self.remove(ledger, ready, edit, row),
            (Some(row), Some(requested)) => self.update(ledger, ready, edit, row, requested),
        }
    }

    fn insert(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        old: Option<&StoredRow>,
        requested: RequestedEdit,
    ) -> Result<EditOutcome, StoreError> {
        // An edit that did not know of a removal does not restore the row. An edit whose author knew of it creates the
        // row again.
        let knows = |old: &StoredRow| old.author == self.author || old.version <= edit.seen;
        if edit.base != Stamp(0) || !old.is_none_or(knows) {
            self.log(ledger, ready, edit, Winner::Server, "removed", &Json::Null)?;
            return Ok(EditOutcome::Conflicted(Winner::Server));
        }
        let fields = &ready.definition.fields;
        let named = requested.set.into_iter().map(|(at, value)| (fields[at].name.as_str(), value));
        match fields.row(named) {
            Err(problems) => Ok(EditOutcome::Refused(problems)),
            Ok(row) => {
                let change = Change { row, fields: (0..fields.len()).collect() };
                let refused = self.put(ledger, ready, edit, old, change, true)?;
                Ok(refused.unwrap_or(EditOutcome::Applied))
            }
        }
    }

    fn remove(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        row: &StoredRow,
    ) -> Result<EditOutcome, StoreError> {
        let newer: Vec<Writer> = writers(row).filter(|writer| self.is_news(edit, writer)).collect();
        let server = body(&ready.definition.fields, row);
        let stays = newer.is_empty() || self.decision(ready, edit, &newer, &server) == ConflictDecision::Client;
        if !stays {
            self.log(ledger, ready, edit, Winner::Server, ready.word(), &server)?;
            return Ok(EditOutcome::Conflicted(Winner::Server));
        }
        let (seen, author) = (edit.seen.min(ledger.newest()), self.author);
        remove_row(ledger, self.application, self.collections, row, (author, seen))?;
        if newer.is_empty() {
            return Ok(EditOutcome::Applied);
        }
        self.log(ledger, ready, edit, Winner::Client, ready.word(), &server)?;
        Ok(EditOutcome::Conflicted(Winner::Client))
    }

    fn update(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        old: &StoredRow,
        requested: RequestedEdit,
    ) -> Result<EditOutcome, StoreError> {
        let definition = &ready.definition;
        let mut row = read(&definition.fields, old)?;
        let columns = Columns::read(old.columns.as_deref());
        let (mut changed, mut contested, mut newer, mut combined) = (Vec::new(), Vec::new(), Vec::new(), false);
        for (at, value) in requested.set {
            let name = definition.fields[at].name.as_str();
            let writer = match definition.conflicts.track {
                Track::Column => columns.writer(name, old),
                Track::Row => (old.version, old.author, old.seen),
            };
            let (is_news, is_other) = (self.is_news(edit, &writer), row[at] != value);
            // A text into which an earlier edit of the device was merged is unknown to the device.
            let is_merged = requested.was.get(&at).is_some_and(|was| *was != row[at]);
            let combine = definition.conflicts.fields.get(name).filter(|combine| match combine {
                Combine::Sum => true,
                Combine::Merge => is_news || is_merged,
                Combine::Max | Combine::Min => is_news,
            });
            let together = combine
                .and_then(|combine| self.merge_values(edit, at, *combine, requested.was.get(&at), &row[at], &value));
            if let Some(value) = together {
                // A sum can change the row although both writers set the same value.
                combined |= is_news && (is_other || row[at] != value);
                if row[at] != value {
                    row[at] = value;
                    changed.push(at);
                }
            } else if is_news && is_other {
                contested.push((at, value));
                newer.push(writer);
            } else if is_other {
                row[at] = value;
                changed.push(at);
            }
        }
        let server = body(&definition.fields, old);
        let decision =
            if contested.is_empty() { ConflictDecision::Client } else { self.decision(ready, edit, &newer, &server) };
        let client_wins = decision == ConflictDecision::Client;
        // With row tracking, an edit applies as a whole or not at all, except merged fields.
        if !client_wins && definition.conflicts.track == Track::Row {
            let kept = read(&definition.fields, old)?;
            changed.retain(|at| {
                let stays = definition.conflicts.fields.contains_key(definition.fields[*at].name.as_str());
                if !stays {
                    row[*at] = kept[*at].clone();
                }
                stays
            });
        }
        let has_conflict = !contested.is_empty() || combined;
        let winner = match (contested.is_empty(), &decision) {
            (true, _) | (false, ConflictDecision::Set(_)) => Winner::Both,
            (false, ConflictDecision::Client) => Winner::Client,
            (false, ConflictDecision::Server) => Winner::Server,
        };
        if client_wins {
            for (at, value) in contested {
                row[at] = value;
                changed.push(at);
            }
        }
        if let ConflictDecision::Set(set) = decision {
            for (at, value) in set {
                row[at] = value;
                changed.push(at);
            }
        }
        if !changed.is_empty() {
            let problems = definition.fields.taken_away(&row, &read(&definition.fields, old)?);
            if !problems.is_empty() {
                return Ok(EditOutcome::Refused(problems));
            }
            let change = Change { row, fields: changed };
            if let Some(refused) = self.put(ledger, ready, edit, Some(old), change, definition.may_leave)? {
                return Ok(refused);
            }
        }
        if !has_conflict {
            return Ok(EditOutcome::Applied);
        }
        self.log(ledger, ready, edit, winner, ready.word(), &server)?;
        Ok(EditOutcome::Conflicted(winner))
    }

    /// Writes a row, unless the device may not. The author must be able to see an inserted row.
    fn put(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        old: Option<&StoredRow>,
        change: Change,
        may_leave: bool,
    ) -> Result<Option<EditOutcome>, StoreError> {
        let sharing = row_sharing::compute_sharing(ledger, self.application, self.collections, ready, &change.row)?;
        let is_insert = old.is_none_or(|old| old.body.is_none());
        if (is_insert || !may_leave) && !self.holds(&sharing.0) {
            return Ok(Some(refused(Code::NotPermitted, "", "would create a row that is not visible to this device")));
        }
        let seen = edit.seen.min(ledger.newest());
        let write = Write { id: &edit.id, change: &change.row, fields: &change.fields, author: self.author, seen };
        write_row(ledger, self.application, self.collections, ready, old, write, sharing)
            .map(|written| written.err().map(EditOutcome::Refused))
    }

    fn holds(&self, keys: &[KeyNumber]) -> bool {
        keys.iter().any(|key| self.held.binary_search(key).is_ok())
    }

    /// Whether an edit did not know of a write.
    fn is_news(&self, edit: &Edit, writer: &Writer) -> bool {
        writer.0 > edit.base && writer.1 != self.author
    }

    /// Decides which of two edits wins.
    fn decision(&self, ready: &Ready, edit: &Edit, newer: &[Writer], server: &Json) -> ConflictDecision {
        match &ready.definition.conflicts.resolver {
            Resolver::Process(_) => self.conflicts.decision(ready, edit, server),
            _ if self.client_wins(ready, edit, newer, server) => ConflictDecision::Client,
            _ => ConflictDecision::Server,
        }
    }

    fn client_wins(&self, ready: &Ready, edit: &Edit, newer: &[Writer], server: &Json) -> bool {
        let known = newer.iter().map(|(_, _, seen)| *seen);
        match &ready.definition.conflicts.resolver {
            Resolver::Server | Resolver::Process(_) => false,
            Resolver::Client => true,
            Resolver::First => known.min().is_some_and(|known| edit.seen < known),
            Resolver::Last => known.max().is_none_or(|known| edit.seen >= known),
            Resolver::Predicate(_) => {
                let client = edit.set.clone().map_or(Json::Null, Json::Object);
                let sides = [client, server.clone(), Json::Object(edit.was.clone())].map(Value::from);
                // An evaluation error keeps the server's value.
                ready.predicate.as_ref().is_some_and(|predicate| predicate.holds(&sides).unwrap_or(false))
            }
        }
    }

    /// Merges both edits into one value; `None` if they cannot be merged.
    fn merge_values(
        &self,
        edit: &Edit,
        field: usize,
        combine: Combine,
        was: Option<&Value>,
        server: &Value,
        client: &Value,
    ) -> Option<Value> {
        match (combine, was.unwrap_or(&Value::Null), server, client) {
            (Combine::Max, _, server, client) => Some(greater(server, client)?.1),
            (Combine::Min, _, server, client) => Some(greater(server, client)?.0),
            (Combine::Sum, was, server, client) => match (server, client, was) {
                (Value::Integer(server), Value::Integer(client), was) => {
                    let was = if let Value::Integer(was) = was { *was } else { 0 };
                    Some(Value::Integer(server.checked_add(client.checked_sub(was)?)?))
                }
                (Value::Number(server), Value::Number(client), was) => {
                    let was = if let Value::Number(was) = was { *was } else { 0.0 };
                    Some(Value::Number(server + (client - was)))
                        .filter(|sum| matches!(sum, Value::Number(sum) if sum.is_finite()))
                }
                _ => None,
            },
            (Combine::Merge, was, Value::Text(server), Value::Text(client)) => {
                let base = was.as_text().unwrap_or_default();
                self.conflicts.merge(edit, field, base, server, client).map(|text| Value::from(text.as_str()))
            }
            (Combine::Merge, ..) => None,
        }
    }

    /// Logs an edit that was refused for its stamps. A row that the device cannot see is not part of the entry.
    fn log_stamp_refusal(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        old: Option<&StoredRow>,
    ) -> Result<(), StoreError> {
        let visible = old.filter(|old| old.body.is_some() && self.holds(&old.keys));
        let server = visible.map_or(Json::Null, |row| body(&ready.definition.fields, row));
        self.log(ledger, ready, edit, Winner::Server, "ahead", &server)
    }

    fn log(
        &self,
        ledger: &mut RowTransaction<'_>,
        ready: &Ready,
        edit: &Edit,
        winner: Winner,
        resolver: &str,
        server: &Json,
    ) -> Result<(), StoreError> {
        let text = |json: &Json| json.to_string().into_boxed_str();
        ledger.log_conflict(&Conflict {
            number: 0,
            collection: ready.number,
            row: edit.id.as_str().into(),
            at: ledger.now(),
            device: self.device,
            resolver: resolver.into(),
            winner: winner.word().into(),
            base: text(&Json::Object(edit.was.clone())),
            server: text(server),
            client: text(&edit.set.clone().map_or(Json::Null, Json::Object)),
            reverted_at: None,
        })
    }
}

impl Ready {
    /// Name of the resolver.
    fn word(&self) -> &'static str {
        match self.definition.conflicts.resolver {
            Resolver::Server => "server",
            Resolver::Client => "client",
            Resolver::First => "first",
            Resolver::Last => "last",
            Resolver::Predicate(_) => "predicate",
            Resolver::Process(_) => "process",
        }
    }
}

impl RequestedEdit {
    /// Parses an edit. Returns the accepted fields, and the problems of the rest.
    fn read(
        fields: &Fields,
        set: &Map<String, Json>,
        was: &Map<String, Json>,
        is_update: bool,
    ) -> (RequestedEdit, Vec<Problem>) {
        let mut problems = Vec::new();
        let set = set.iter().filter_map(|(name, value)| match accept(fields, name, value) {
            Ok((at, Value::Null)) if is_update && fields[at].required => {
                problems.push(Problem::new(Code::Required, name.as_str(), "is required and cannot be cleared"));
                None
            }
            Ok(accepted) => Some(accepted),
            Err(problem) => {
                problems.push(problem);
                None
            }
        });
        let set = set.collect();
        // Previous values follow the device's version of the collection; those that do not fit are ignored.
        let was = was.iter().filter_map(|(name, value)| accept(fields, name, value).ok()).collect();
        (RequestedEdit { set, was }, problems)
    }
}

fn accept(fields: &Fields, name: &str, value: &Json) -> Result<(usize, Value), Problem> {
    let at = fields.position(name).ok_or_else(|| fields.unknown(name))?;
    let value = fields[at].kind.accept(Value::from(value.clone()));
    Ok((at, value.map_err(|message| Problem::new(Code::WrongType, name, message))?))
}

pub(crate) fn refused(code: Code, path: &str, message: &str) -> EditOutcome {
    EditOutcome::Refused(vec![Problem::new(code, path, message)])
}

/// The problem with a row id, if any.
pub(crate) fn check_row_id(id: &str) -> Option<Problem> {
    let fits = (1..=ROW_ID_CHARS_MAX).contains(&id.chars().count()) && !id.chars().any(|c| c.is_control() || c == '/');
    let message = format!("must be 1 to {ROW_ID_CHARS_MAX} characters without `/` and control characters");
    (!fits).then(|| Problem::new(Code::InvalidFormat, "id", message).param("format", "id").hint("use a UUID"))
}

/// The problem with the stamps of an edit, if any. A stamp that the server has not issued would count as knowledge of
/// every write. After a restore, devices can still send stamps of the lost history; these are not in the future.
fn check_stamps(edit: &Edit, ledger: &RowTransaction<'_>) -> Option<Problem> {
    let end = ledger.newest().max(Stamp::at(ledger.now() + STAMPS_AHEAD_MAX));
    let name = [("base", edit.base), ("seen", edit.seen)].into_iter().find(|(_, stamp)| *stamp > end)?.0;
    let message =
        format!("its `{name}` is more than {} min ahead of the server's clock", STAMPS_AHEAD_MAX.as_secs() / 60);
    // Without a path: a field of the row may have the same name, and the whole edit is refused.
    Some(Problem::new(Code::OutOfRange, "", message).hint("sync again, and repeat the edit"))
}

/// Parses a stored row into its fields.
pub(crate) fn read(fields: &Fields, row: &StoredRow) -> Result<Row, StoreError> {
    let body = row.body.as_deref().unwrap_or("{}");
    fields.row_from_stored(body).map_err(|_| StoreError::Damaged(format!("the row `{}`", row.id)))
}

fn body(fields: &Fields, row: &StoredRow) -> Json {
    let shown = row.body.as_deref().and_then(|body| fields.stored_as_json(body).ok());
    shown.and_then(|body| serde_json::from_str(&body).ok()).unwrap_or(Json::Null)
}

/// Orders two values of one type; null is neither greater nor smaller.
fn greater(one: &Value, other: &Value) -> Option<(Value, Value)> {
    let order = match (one, other) {
        (Value::Integer(one), Value::Integer(other)) => one.cmp(other),
        (Value::Number(one), Value::Number(other)) => one.total_cmp(other),
        (Value::Text(one), Value::Text(other)) => one.cmp(other),
        (Value::Timestamp(one), Value::Timestamp(other)) => one.cmp(other),
        (Value::Boolean(one), Value::Boolean(other)) => one.cmp(other),
        _ => return None,
    };
    let (one, other) = (one.clone(), other.clone());
    Some(if order.is_le() { (one, other) } else { (other, one) })
}

/// Last writers of fields, where they differ from the writer of the row.
#[derive(Default)]
struct Columns(BTreeMap<String, (Stamp, AuthorNumber, Stamp)>);

impl Columns {
    fn read(text: Option<&str>) -> Columns {
        Columns(text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default())
    }

    fn writer(&self, name: &str, row: &StoredRow) -> Writer {
        self.0.get(name).copied().unwrap_or((row.version, row.author, row.seen))
    }
}

/// All last writers of a row and its fields.
fn writers(row: &StoredRow) -> impl Iterator<Item = Writer> + use<> {
    let columns = Columns::read(row.columns.as_deref());
    columns.0.into_values().chain([(row.version, row.author, row.seen)])
}

/// A write of a row.
pub(crate) struct Write<'a> {
    pub(crate) id: &'a str,
    pub(crate) change: &'a Row,
    /// The changed fields.
    pub(crate) fields: &'a [usize],
    pub(crate) author: AuthorNumber,
    pub(crate) seen: Stamp,
}

/// Writes a row, and updates rows shared through it. Returns its version, or why it is invalid.
pub(crate) fn write_row(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    ready: &Ready,
    old: Option<&StoredRow>,
    write: Write<'_>,
    (keys, joins): row_sharing::RowSharing,
) -> Result<Result<Stamp, Vec<Problem>>, StoreError> {
    let fields = &ready.definition.fields;
    let body = fields.to_json(write.change);
    let mut problems = ready.edit_problems(&body);
    if !problems.is_empty() {
        // Problems that existed before, under another version of fields and schema, do not block other changes.
        if let Some(stored) = old.filter(|old| old.body.is_some()) {
            let stored = read(fields, stored)?;
            let before = ready.edit_problems(&fields.to_json(&stored));
            // A value that is set again is checked, even if its predecessor had the same problem.
            let is_given = |problem: &Problem| {
                let name = problem.path.split('.').next().unwrap_or_default();
                fields.position(name).is_some_and(|at| stored[at] != write.change[at])
            };
            problems.retain(|problem| is_given(problem) || !before.contains(problem));
        }
        if !problems.is_empty() {
            return Ok(Err(problems));
        }
    }
    let present = old.filter(|old| old.body.is_some() && ready.definition.conflicts.track == Track::Column);
    let columns = present.map(|old| {
        let before = Columns::read(old.columns.as_deref());
        let stays = fields.iter().enumerate().filter(|(at, _)| !write.fields.contains(at));
        let writers = stays.map(|(_, field)| (field.name.to_string(), before.writer(field.name.as_str(), old)));
        writers.collect::<BTreeMap<_, _>>()
    });
    let columns = columns.filter(|columns| !columns.is_empty());
    let keys_change = old.map_or(!keys.is_empty(), |old| old.keys != keys);
    let new = RowWrite {
        collection: ready.number,
        id: write.id.into(),
        body: Some(body.into()),
        author: write.author,
        seen: write.seen,
        columns: columns.map(|columns| serde_json::to_string(&columns).expect("numbers are JSON").into()),
        keys,
        joins,
    };
    let version = ledger.write(old, &new)?;
    outbox::raise_event(ledger, application, ready, version, (old, new.body.as_deref(), write.id))?;
    if keys_change {
        row_sharing::update_shared_rows(ledger, application, collections, (ready.number, write.id))?;
    }
    Ok(Ok(version))
}

/// Removes an existing row; rows shared through it lose its keys.
pub(crate) fn remove_row(
    ledger: &mut RowTransaction<'_>,
    application: &Name,
    collections: &Collections,
    row: &StoredRow,
    (author, seen): (AuthorNumber, Stamp),
) -> Result<(), StoreError> {
    let (collection, id) = (row.collection, row.id.clone());
    let gone =
        RowWrite { collection, id, body: None, author, seen, columns: None, keys: Vec::new(), joins: Vec::new() };
    let version = ledger.write(Some(row), &gone)?;
    if let Some(ready) = collections.of_number(collection) {
        outbox::raise_event(ledger, application, ready, version, (Some(row), None, &row.id))?;
    }
    row_sharing::update_shared_rows(ledger, application, collections, (collection, &row.id))
}
