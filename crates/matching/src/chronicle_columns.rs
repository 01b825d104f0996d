//! Packed chronicle columns of a batch, stored with it: names and types of the columns, then a row for each event.
//! Another version of the application may read other columns: missing ones are null.

use bytes::Bytes;
use tocsin_model::{
    field::{Damaged, Field, FieldType, Fields, Row, pack_row, unpack_row},
    pack::{Reader, write_bytes, write_varint},
    value::Value,
};

const KINDS: [FieldType; 5] =
    [FieldType::Boolean, FieldType::Integer, FieldType::Number, FieldType::String, FieldType::Timestamp];

/// Packs the columns of rows, which follow `first` other values.
pub fn pack(columns: &Fields, rows: &[Row], first: usize) -> Bytes {
    if columns.is_empty() {
        return Bytes::new();
    }
    let mut out = Vec::new();
    write_varint(&mut out, columns.len() as u64);
    for field in columns.iter() {
        write_bytes(&mut out, field.name.as_str().as_bytes());
        out.push(KINDS.iter().position(|kind| *kind == field.kind).unwrap_or_default() as u8);
    }
    let mut packed = Vec::new();
    for row in rows {
        packed.clear();
        pack_row(columns, &row[first..], &mut packed);
        write_bytes(&mut out, &packed);
    }
    out.into()
}

/// Replaces values of events by null where `is_erased` says so. `None` if no value is replaced.
///
/// # Errors
/// The bytes are damaged.
pub fn erase(bytes: &[u8], is_erased: impl Fn(usize, &Value) -> bool) -> Result<Option<Bytes>, Damaged> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let packed = Packed::read_all(bytes)?;
    let mut has_any = false;
    let mut rows = Vec::with_capacity(packed.rows.len());
    for (ordinal, row) in packed.rows.iter().enumerate() {
        let mut row = unpack_row(&packed.fields, row)?;
        for value in row.iter_mut().filter(|value| !value.is_null()) {
            if is_erased(ordinal, value) {
                (*value, has_any) = (Value::Null, true);
            }
        }
        rows.push(row);
    }
    Ok(has_any.then(|| pack(&packed.fields, &rows, 0)))
}

/// Packed columns, readable event by event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packed<'a> {
    fields: Fields,
    rows: Vec<&'a [u8]>,
    /// For each wanted column, its index.
    places: Vec<Option<usize>>,
}

impl<'a> Packed<'a> {
    /// Reads the columns `requested`.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn read(bytes: &'a [u8], requested: &Fields) -> Result<Packed<'a>, Damaged> {
        if bytes.is_empty() || requested.is_empty() {
            return Ok(Packed { places: vec![None; requested.len()], ..Packed::default() });
        }
        let packed = Packed::read_all(bytes)?;
        let fields = &packed.fields;
        let place = |field: &Field| fields.position(field.name.as_str()).filter(|at| fields[*at].kind == field.kind);
        let places = requested.iter().map(place).collect();
        Ok(Packed { places, ..packed })
    }

    /// Reads all columns, without a request.
    fn read_all(bytes: &'a [u8]) -> Result<Packed<'a>, Damaged> {
        let mut reader = Reader::new(bytes);
        let count = reader.count()?;
        let mut fields = Vec::with_capacity(count);
        for _ in 0..count {
            fields.push(Field::new(
                reader.text()?.parse().map_err(|_| Damaged)?,
                *KINDS.get(usize::from(reader.byte()?)).ok_or(Damaged)?,
            ));
        }
        let fields = Fields::new(fields);
        let mut rows = Vec::new();
        while !reader.is_empty() {
            rows.push(reader.bytes()?);
        }
        Ok(Packed { fields, rows, places: Vec::new() })
    }

    /// Appends the columns of an event to its row.
    ///
    /// # Errors
    /// The bytes are damaged.
    pub fn append(&self, ordinal: usize, row: &mut Row) -> Result<(), Damaged> {
        let Some(packed) = self.rows.get(ordinal) else {
            row.extend(self.places.iter().map(|_| Value::Null));
            return Ok(());
        };
        let mut given = unpack_row(&self.fields, packed)?;
        row.extend(self.places.iter().map(|place| place.map(|at| std::mem::take(&mut given[at])).unwrap_or_default()));
        Ok(())
    }
}
