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
        let place = |field: &Field| fields.position(field.name.as_str()).filter(|at| fields[*at].kind == field.kind);
        let places = requested.iter().map(place).collect();
        Ok(Packed { fields, rows, places })
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
