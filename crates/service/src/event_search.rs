//! Search of stored events by application, class, source, time and a condition in CEL, with counts by a field.
//!
//! A search reads heads of event batches, newest first, and unpacks those that may contain a result.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::Instant,
};

use tocsin_matching::event_condition::EventCondition;
use tocsin_model::{
    event::EventBatch,
    field::{Fields, unpack_row},
    id::{EventBatchId, EventId, Name},
    problem::{Code, Problem, closest},
    time::Timestamp,
    value::Value,
};
use tocsin_store::journal::EventBatchState;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    operations::named,
    page::{cursor, key_of},
    scanned::{LEEWAY, PAGE, Period, ScanBudget, Scanned},
};

/// Maximum number of different values that one search counts.
pub const VALUES_MAX: usize = 1_000;
/// Longest value that is counted by itself, in bytes of JSON.
const VALUE_BYTES_MAX: usize = 256;
/// Number of events between two looks at the time.
const EVENTS_PER_LOOK: u64 = 64;

/// Selection of events; all conditions must hold.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EventQuery {
    /// Application.
    pub application: Option<Name>,
    /// Event class.
    pub class: Option<Name>,
    /// Source.
    pub source: Option<Name>,
    /// Time of acceptance.
    pub period: Period,
    /// Condition in CEL over `event`; requires application and class.
    pub condition: Option<String>,
    /// Field by whose values the events are counted instead of listed; requires application and class.
    pub count_by: Option<String>,
}

/// An event in a list.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundEvent {
    /// Its id.
    pub id: EventId,
    /// Its application.
    pub application: Name,
    /// Its class.
    pub class: Name,
    /// Its source.
    pub source: Name,
    /// The version that packed it.
    pub version: u32,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// State of its batch.
    pub state: EventBatchState,
    /// Its fields, without nulls.
    pub fields: Vec<(String, Value)>,
}

/// Result of a search of events.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundEvents {
    /// Events, and the extent of the search.
    pub scanned: Scanned<FoundEvent>,
    /// Number of events for which the condition exceeded its cost limit, or that are damaged.
    pub errors: u64,
    /// Counts by value, if they were requested.
    pub counts: Option<FieldCounts>,
}

/// Number of events by the values of a field.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldCounts {
    /// The field.
    pub field: String,
    /// Values with their number of events, most frequent first.
    pub values: Vec<(Value, u64)>,
    /// Number of events with other values.
    pub other: u64,
}

/// Counts by value while a search runs, bounded.
#[derive(Default)]
struct ValueCounts {
    by_value: HashMap<String, (Value, u64)>,
    other: u64,
}

impl ValueCounts {
    fn add(&mut self, value: &Value) {
        let text = serde_json::to_string(value).unwrap_or_default();
        if text.len() > VALUE_BYTES_MAX {
            self.other += 1;
            return;
        }
        let is_full = self.by_value.len() == VALUES_MAX;
        match self.by_value.entry(text) {
            Entry::Occupied(mut found) => found.get_mut().1 += 1,
            Entry::Vacant(_) if is_full => self.other += 1,
            Entry::Vacant(place) => _ = place.insert((value.clone(), 1)),
        }
    }

    fn finish(self, field: String, limit: usize) -> FieldCounts {
        let mut sorted: Vec<(String, (Value, u64))> = self.by_value.into_iter().collect();
        sorted.sort_by(|(one, (_, few)), (next, (_, more))| more.cmp(few).then_with(|| one.cmp(next)));
        let rest: u64 = sorted.iter().skip(limit).map(|(_, (_, count))| count).sum();
        let values = sorted.into_iter().take(limit).map(|(_, counted)| counted).collect();
        FieldCounts { field, values, other: self.other + rest }
    }
}

/// A checked query.
struct EventSearch {
    query: EventQuery,
    condition: Option<EventCondition>,
    /// Field that is counted: its index in the rows of the condition.
    counted: Option<usize>,
}

impl EventSearch {
    fn may_hold(&self, batch: &EventBatch) -> bool {
        let is_or_any = |wanted: &Option<Name>, found: &Name| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let query = &self.query;
        is_or_any(&query.application, &batch.application)
            && is_or_any(&query.class, &batch.class)
            && is_or_any(&query.source, &batch.source)
            && query.period.contains(batch.accepted_at)
    }
}

/// Progress of a search.
struct EventScan {
    limit: usize,
    items: Vec<FoundEvent>,
    counts: ValueCounts,
    errors: u64,
    rows: u64,
    end: Instant,
}

impl EventScan {
    fn is_full(&self) -> bool {
        self.items.len() == self.limit
    }

    /// Examines the events of a batch before an ordinal, last first. Returns the ordinal before which events are left,
    /// if the page is full or the time is over.
    fn search_batch(
        &mut self,
        search: &EventSearch,
        (batch, state): &(EventBatch, EventBatchState),
        fields: &Fields,
        before: u32,
    ) -> Option<u32> {
        let rows: Vec<_> = batch.events.rows().take(before as usize).collect();
        let reader = search.condition.as_ref().map(|condition| condition.reader(fields));
        for (at, row) in rows.into_iter().enumerate().rev() {
            let ordinal = at as u32;
            let is_late = self.rows.is_multiple_of(EVENTS_PER_LOOK) && Instant::now() >= self.end;
            if self.is_full() || is_late {
                return Some(ordinal + 1);
            }
            self.rows += 1;
            let Ok(packed) = row else {
                self.errors += 1;
                continue;
            };
            if let Some(reader) = &reader {
                match reader.read(packed) {
                    Ok(Ok(Some(row))) => {
                        if let Some(value) = search.counted.and_then(|at| row.get(at)) {
                            self.counts.add(value);
                            continue;
                        }
                    }
                    Ok(Ok(None)) => continue,
                    Ok(Err(_)) | Err(_) => {
                        self.errors += 1;
                        continue;
                    }
                }
            }
            match unpack_row(fields, packed) {
                Ok(row) => self.items.push(FoundEvent {
                    id: EventId { batch: batch.id, ordinal },
                    application: batch.application.clone(),
                    class: batch.class.clone(),
                    source: batch.source.clone(),
                    version: batch.version,
                    accepted_at: batch.accepted_at,
                    state: state.clone(),
                    fields: named(fields, row),
                }),
                Err(_) => self.errors += 1,
            }
        }
        None
    }
}

impl Service {
    /// Searches events, newest first, in a bounded number of batches.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; a limited key gives no application of its own; `Invalid` with every
    /// problem of the condition; the application, class or source never existed; `TooMany` concurrent searches.
    pub async fn search_events(
        &self,
        caller: &Caller,
        query: EventQuery,
        after: Option<&str>,
        limit: usize,
    ) -> Result<FoundEvents, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        caller.check_application(query.application.as_ref())?;
        let from: Option<EventId> = key_of(after)?;
        let search = Arc::new(self.event_search(query)?);
        let _permit = self.search_permit()?;
        let found = self.scan_events(&search, from, limit).await?;
        let is_empty =
            found.scanned.items.is_empty() && found.counts.as_ref().is_none_or(|counts| counts.values.is_empty());
        if is_empty && after.is_none() {
            let query = &search.query;
            let parts = [(Part::EventClass, query.class.as_ref()), (Part::Source, query.source.as_ref())];
            self.check_known(query.application.as_ref(), &parts).await?;
        }
        Ok(found)
    }

    fn event_search(&self, query: EventQuery) -> Result<EventSearch, ServiceError> {
        if query.condition.is_none() && query.count_by.is_none() {
            return Ok(EventSearch { query, condition: None, counted: None });
        }
        let (Some(application), Some(class)) = (&query.application, &query.class) else {
            let path = if query.application.is_none() { "application" } else { "class" };
            let problem = Problem::new(Code::Required, path, "is required beside `where` and `count_by`");
            return Err(ServiceError::Invalid(vec![problem.hint("their fields are those of one event class")]));
        };
        let compiled = self.running(application)?;
        let known = &compiled.application.events;
        if !known.contains_key(class) {
            let meant = closest(class.as_str(), known.keys().map(Name::as_str));
            let meant = meant.map(|meant| format!(" (did you mean `{meant}`?)")).unwrap_or_default();
            return Err(ServiceError::Missing(format!("the event class `{class}` of `{application}`{meant}")));
        }
        let condition = EventCondition::compile(&compiled.application, class, query.condition.as_deref())
            .map_err(ServiceError::Invalid)?;
        let counted = query.count_by.as_ref().map(|field| {
            condition.fields().position(field).ok_or_else(|| {
                let names: Vec<&str> = condition.fields().iter().map(|field| field.name.as_str()).collect();
                let message = format!("`{field}` is not a field of the class");
                let problem = Problem::new(Code::UnknownReference, "count_by", message).param("kind", "field");
                let problem = problem.param("value", field.clone());
                ServiceError::Invalid(vec![problem.hint(format!("its fields are {}", names.join(", ")))])
            })
        });
        let counted = counted.transpose()?;
        Ok(EventSearch { query, condition: Some(condition), counted })
    }

    /// Scans the events before `from`, or the newest.
    async fn scan_events(
        &self,
        search: &Arc<EventSearch>,
        from: Option<EventId>,
        limit: usize,
    ) -> Result<FoundEvents, ServiceError> {
        let mut budget = ScanBudget::new();
        let counts = ValueCounts::default();
        let mut scan = EventScan { limit, items: Vec::new(), counts, errors: 0, rows: 0, end: budget.end() };
        let mut fields: HashMap<(Name, u32, Name), Option<Fields>> = HashMap::new();
        let mut scanned_to = None;
        let mut before = match from {
            Some(EventId { batch, ordinal: 0 }) => Some(batch),
            Some(EventId { batch, .. }) => Some(EventBatchId(batch.0.saturating_add(1))),
            None if search.query.period.to > self.clock.now() => None,
            // The position is one before the time less a leeway for clocks.
            None => {
                let position = self.event_log.position_at(search.query.period.to + LEEWAY + LEEWAY).await?;
                Some(EventBatchId(position.0 + 1))
            }
        };
        loop {
            let heads = self.event_log.event_batches(before, PAGE).await?;
            let is_last = heads.len() < PAGE;
            for (head, state) in heads {
                let id = head.id;
                let ordinal = from.filter(|from| from.batch == id).map_or(u32::MAX, |from| from.ordinal);
                if search.query.period.is_over(head.accepted_at) {
                    return Ok(scan.finish(search, None, None, &budget));
                }
                let untouched = EventId { batch: id, ordinal };
                budget.rows = scan.rows;
                if !budget.take_head() || search.may_hold(&head) && !budget.take_batch() {
                    return Ok(scan.finish(search, Some(untouched), scanned_to, &budget));
                }
                scanned_to = Some(head.accepted_at);
                before = Some(id);
                if !search.may_hold(&head) {
                    continue;
                }
                let key = (head.application.clone(), head.version, head.class.clone());
                let fields = match fields.entry(key) {
                    Entry::Occupied(found) => found.into_mut(),
                    Entry::Vacant(place) => place.insert(match self.fields_of(&head).await {
                        Ok(fields) => Some(fields),
                        // Packed by a version that cannot be read any more.
                        Err(ServiceError::Missing(_)) => None,
                        Err(error) => return Err(error),
                    }),
                };
                let Some(fields) = fields.clone() else {
                    scan.errors += u64::from(head.events.count());
                    continue;
                };
                let Some((batch, _)) = self.event_log.event_batch(id).await? else { continue };
                let search_of_batch = search.clone();
                let searched = tokio::task::spawn_blocking(move || {
                    let reached = scan.search_batch(&search_of_batch, &(batch, state), &fields, ordinal);
                    (scan, reached)
                });
                let (searched, reached) = searched.await.map_err(|error| ServiceError::Unavailable(error.into()))?;
                scan = searched;
                let reached = reached.or(scan.is_full().then_some(0));
                if let Some(ordinal) = reached {
                    return Ok(scan.finish(search, Some(EventId { batch: id, ordinal }), scanned_to, &budget));
                }
            }
            if is_last {
                return Ok(scan.finish(search, None, None, &budget));
            }
        }
    }
}

impl EventScan {
    fn finish(
        self,
        search: &EventSearch,
        next: Option<EventId>,
        scanned_to: Option<Timestamp>,
        budget: &ScanBudget,
    ) -> FoundEvents {
        let EventScan { limit, items, counts, errors, rows, .. } = self;
        let counts = search.query.count_by.clone().map(|field| counts.finish(field, limit));
        let next = next.map(|next| cursor(&next.to_string()));
        FoundEvents { scanned: Scanned { items, next, scanned_to, batches: budget.heads, rows }, errors, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded_and_sorted() {
        let mut counts = ValueCounts::default();
        for at in 0..VALUES_MAX as i64 + 5 {
            counts.add(&Value::Integer(at));
        }
        counts.add(&Value::Integer(7));
        counts.add(&Value::from("x".repeat(VALUE_BYTES_MAX).as_str()));
        let found = counts.finish("n".to_owned(), 2);
        assert_eq!(found.values, [(Value::Integer(7), 2), (Value::Integer(0), 1)]);
        assert_eq!(found.other, VALUES_MAX as i64 as u64 - 2 + 5 + 1);
    }
}
