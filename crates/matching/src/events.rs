//! The events of a batch as cells: each field of each event is a cell, and text borrows from the batch. Rows of values
//! are built once, on demand.

use std::sync::OnceLock;

use tocsin_model::{
    event::{EventBatch, PackedEvents},
    field::{Damaged, FieldType, Fields, Row, unpack_row},
    pack::Reader,
    time::Timestamp,
    value::Value,
};

use crate::{
    eval_value::{EvalError, EvalValue, Text, write_key, write_text_key},
    rows::Layout,
};

/// Events of one class, in the order of their batch.
#[derive(Debug)]
pub struct Events<'a> {
    count: usize,
    /// Cells without lists and maps; empty if there are any, or if rows were given.
    cells: Vec<Cell>,
    width: usize,
    packed: Option<(PackedEvents, Fields)>,
    borrowed_rows: Option<&'a [Row]>,
    unpacked_rows: OnceLock<Vec<Row>>,
}

/// A field of an event.
#[derive(Debug, Clone, Copy)]
enum Cell {
    Null,
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Timestamp(i64),
    /// Start and end in the bytes of the batch.
    Text(u32, u32),
}

impl<'a> Events<'a> {
    /// Events that are rows already.
    pub fn of_rows(rows: &'a [Row]) -> Events<'a> {
        let unpacked_rows = OnceLock::new();
        Events {
            count: rows.len(),
            cells: Vec::new(),
            width: 0,
            packed: None,
            borrowed_rows: Some(rows),
            unpacked_rows,
        }
    }

    /// Events that are rows already, owned.
    pub(crate) fn of_owned_rows(rows: Vec<Row>) -> Events<'static> {
        let (count, unpacked_rows) = (rows.len(), OnceLock::from(rows));
        Events { count, cells: Vec::new(), width: 0, packed: None, borrowed_rows: None, unpacked_rows }
    }

    pub(crate) fn none() -> Events<'static> {
        Events::of_rows(&[])
    }

    /// The events of a batch that was packed with `from`, as rows of `to`: mapped by name, and missing fields are null.
    pub(crate) fn of_batch(batch: &EventBatch, from: &Fields, to: &Fields) -> Result<Events<'static>, Damaged> {
        let layout = Layout::between(from, to);
        let is_plain = |kind: FieldType| !matches!(kind, FieldType::List | FieldType::Map);
        let bytes = batch.events.bytes();
        if matches!(layout, Layout::Same)
            && !from.is_empty()
            && from.iter().all(|field| is_plain(field.kind))
            && u32::try_from(bytes.len()).is_ok()
        {
            let count = batch.events.count() as usize;
            let cells = read(bytes, count, from)?;
            let packed = Some((batch.events.clone(), from.clone()));
            return Ok(Events {
                count,
                cells,
                width: from.len(),
                packed,
                borrowed_rows: None,
                unpacked_rows: OnceLock::new(),
            });
        }
        let row = |packed: Result<&[u8], Damaged>| Ok(layout.apply(unpack_row(from, packed?)?));
        Ok(Events::of_owned_rows(batch.events.rows().map(row).collect::<Result<_, Damaged>>()?))
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All events, as rows of their class.
    pub fn rows(&self) -> &[Row] {
        self.borrowed_rows.unwrap_or_else(|| self.unpacked_rows.get_or_init(|| self.unpack()))
    }

    fn unpack(&self) -> Vec<Row> {
        let unpacked = self.packed.iter().flat_map(|(events, fields)| {
            events
                .rows()
                .map(|row| row.and_then(|row| unpack_row(fields, row)).expect("the rows were validated on read"))
        });
        unpacked.collect()
    }

    /// One event, as a row of its class.
    ///
    /// # Panics
    /// The index is out of bounds.
    pub fn row(&self, at: usize) -> &[Value] {
        &self.rows()[at]
    }

    #[inline]
    fn cell(&self, at: usize, field: usize) -> Option<Cell> {
        if field < self.width { self.cells.get(at * self.width + field).copied() } else { None }
    }

    /// A field of an event; null if there is no such field.
    #[inline]
    pub(crate) fn eval_value(&self, at: usize, field: usize) -> EvalValue<'_> {
        match self.cell(at, field) {
            Some(Cell::Null) => EvalValue::Null,
            Some(Cell::Boolean(value)) => EvalValue::Boolean(value),
            Some(Cell::Integer(value)) => EvalValue::Integer(value),
            Some(Cell::Number(value)) => EvalValue::Number(value),
            Some(Cell::Timestamp(time)) => EvalValue::Timestamp(Timestamp(time)),
            Some(Cell::Text(from, to)) => {
                let text = std::str::from_utf8(self.bytes(from, to)).expect("UTF-8 was validated on read");
                EvalValue::Text(Text::Borrowed(text))
            }
            None => self.row(at).get(field).map_or(EvalValue::Null, EvalValue::of),
        }
    }

    /// A field of an event, if it is an integer.
    #[inline]
    pub(crate) fn integer(&self, at: usize, field: usize) -> Option<i64> {
        match self.cell(at, field) {
            Some(Cell::Integer(value)) => Some(value),
            Some(_) => None,
            None => match self.row(at).get(field) {
                Some(Value::Integer(value)) => Some(*value),
                _ => None,
            },
        }
    }

    /// Appends the key of a field, as [`write_key`] does.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub(crate) fn write_key(&self, at: usize, field: usize, key: &mut Vec<u8>) -> Result<(), EvalError> {
        match self.cell(at, field) {
            Some(Cell::Text(from, to)) => {
                write_text_key(self.bytes(from, to), key);
                Ok(())
            }
            _ => write_key(&self.eval_value(at, field), key),
        }
    }

    #[inline]
    fn bytes(&self, from: u32, to: u32) -> &[u8] {
        let bytes = self.packed.as_ref().map_or(&[] as &[u8], |(events, _)| events.bytes());
        &bytes[from as usize..to as usize]
    }
}

/// Reads packed rows of plain fields.
fn read(bytes: &[u8], count: usize, fields: &Fields) -> Result<Vec<Cell>, Damaged> {
    let kinds: Vec<FieldType> = fields.iter().map(|field| field.kind).collect();
    // A damaged count must not reserve much memory: a row takes at least one byte.
    if count > bytes.len() {
        return Err(Damaged);
    }
    let mut cells = vec![Cell::Null; count * kinds.len()];
    let mut reader = Reader::new(bytes);
    for row_cells in cells.chunks_exact_mut(kinds.len()) {
        let mut row = Reader::new(reader.bytes()?);
        let bitmap = row.take(kinds.len().div_ceil(8))?;
        for (at, (kind, cell)) in kinds.iter().zip(row_cells).enumerate() {
            if bitmap[at / 8] & (1 << (at % 8)) == 0 {
                continue;
            }
            *cell = match kind {
                FieldType::Integer => Cell::Integer(row.signed()?),
                FieldType::String => {
                    let text = row.bytes()?;
                    if !text.is_ascii() && std::str::from_utf8(text).is_err() {
                        return Err(Damaged);
                    }
                    let end = bytes.len() - reader.left() - row.left();
                    Cell::Text((end - text.len()) as u32, end as u32)
                }
                FieldType::Boolean => Cell::Boolean(row.byte()? != 0),
                FieldType::Number => Cell::Number(row.float()?),
                FieldType::Timestamp => Cell::Timestamp(row.signed()?),
                FieldType::List | FieldType::Map => return Err(Damaged),
            };
        }
        if !row.is_empty() {
            return Err(Damaged);
        }
    }
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tocsin_model::{
        event::EventPacker,
        field::Field,
        id::{EventBatchId, Name},
    };

    use super::*;
    use crate::eval_value::equal;

    fn fields(kinds: &[FieldType]) -> Fields {
        let field = |(at, kind): (usize, &FieldType)| Field::new(format!("f{at}").parse().expect("a name"), *kind);
        Fields::new(kinds.iter().enumerate().map(field).collect())
    }

    fn batch(events: PackedEvents) -> EventBatch {
        let name = |text: &str| text.parse::<Name>().expect("a name");
        EventBatch {
            id: EventBatchId(1),
            application: name("a"),
            version: 1,
            class: name("c"),
            source: name("api"),
            received_at: Timestamp(0),
            accepted_at: Timestamp(0),
            snapshot_sequence: None,
            events,
            chronicled: Default::default(),
        }
    }

    #[test]
    fn cells_equal_rows_and_damage_is_found() {
        let plain =
            [FieldType::String, FieldType::Integer, FieldType::Number, FieldType::Boolean, FieldType::Timestamp];
        for seed in 0..40u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let kinds: Vec<FieldType> = (0..random.usize(1..20)).map(|_| plain[random.usize(..5)]).collect();
            let fields = fields(&kinds);
            let mut value = |kind: FieldType| match kind {
                _ if random.u8(..4) == 0 => Value::Null,
                FieldType::Integer => Value::Integer(random.i64(..) >> random.u8(..64)),
                FieldType::Number => Value::Number(random.f64()),
                FieldType::Boolean => Value::Boolean(random.bool()),
                FieldType::Timestamp => Value::Timestamp(Timestamp(random.i64(..))),
                _ => Value::from(&*std::iter::repeat_with(|| random.char('a'..'\u{400}')).take(9).collect::<String>()),
            };
            let rows: Vec<Row> = (0..30).map(|_| kinds.iter().map(|kind| value(*kind)).collect()).collect();
            let mut packer = EventPacker::new(fields.clone());
            rows.iter().for_each(|row| packer.push(row));
            let packed = packer.finish();
            let events = Events::of_batch(&batch(packed.clone()), &fields, &fields).expect("it is whole");
            let given = Events::of_rows(&rows);
            assert!(!events.cells.is_empty() && given.cells.is_empty());
            for (at, row) in rows.iter().enumerate() {
                for (field, value) in row.iter().enumerate() {
                    let [mut key, mut expected] = [Vec::new(), Vec::new()];
                    for (events, key) in [(&events, &mut key), (&given, &mut expected)] {
                        assert!(equal(&events.eval_value(at, field), &EvalValue::of(value)), "seed {seed}");
                        assert_eq!(
                            events.integer(at, field).map(Value::Integer).is_some(),
                            matches!(value, Value::Integer(_))
                        );
                        events.write_key(at, field, key).expect("it has a key");
                    }
                    assert_eq!(key, expected, "seed {seed}");
                }
                assert!(matches!(events.eval_value(at, row.len()), EvalValue::Null));
            }
            assert_eq!(events.rows(), rows);
            // Truncated data is reported as damaged, at every length.
            for end in 0..packed.bytes().len() {
                let cut = batch(PackedEvents::from_parts(packed.count(), packed.bytes().slice(..end)));
                assert!(Events::of_batch(&cut, &fields, &fields).is_err(), "seed {seed}, {end}");
            }
        }
        let text = fields(&[FieldType::String]);
        let wrong = PackedEvents::from_parts(1, Bytes::from_static(&[4, 1, 2, 0xff, 0xff]));
        assert!(Events::of_batch(&batch(wrong), &text, &text).is_err());
        let huge = PackedEvents::from_parts(u32::MAX, Bytes::from_static(&[4, 1, 2, b'a', b'b']));
        assert!(Events::of_batch(&batch(huge), &text, &text).is_err());
    }

    #[test]
    fn rows_are_built_where_cells_cannot_hold_them() {
        let (old, new) = (fields(&[FieldType::List, FieldType::Integer]), fields(&[FieldType::List]));
        let list = Value::List([Value::Integer(1)].into());
        let mut packer = EventPacker::new(old.clone());
        packer.push(&[list.clone(), Value::Integer(7)]);
        let batch = batch(packer.finish());
        let check = |to: &Fields, expected: Row| {
            let events = Events::of_batch(&batch, &old, to).expect("it is whole");
            assert_eq!((events.len(), events.row(0)), (1, &expected[..]));
            assert!(equal(&events.eval_value(0, 0), &EvalValue::of(&expected[0])));
        };
        check(&old, vec![list.clone(), Value::Integer(7)]);
        check(&new, vec![list]);
    }
}
