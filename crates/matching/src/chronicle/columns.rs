//! What chronicles gave for the events of a batch, packed to be kept with it: the columns with their names and types,
//! then a row for each event. Another version of the application may read other columns: what is not there is null.

use bytes::Bytes;
use tocsin_model::{
    field::{Damaged, Field, FieldType, Fields, Row, pack_row, unpack_row},
    pack::{Reader, write_bytes, write_varint},
    value::Value,
};

const KINDS: [FieldType; 5] =
    [FieldType::Boolean, FieldType::Integer, FieldType::Number, FieldType::String, FieldType::Timestamp];

/// Packs the columns of rows that have them behind `first` other values.
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

/// Packed columns, ready to be read event by event.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packed<'a> {
    fields: Fields,
    rows: Vec<&'a [u8]>,
    /// For each wanted column, its place.
    places: Vec<Option<usize>>,
}

impl<'a> Packed<'a> {
    /// Reads them as these columns.
    ///
    /// # Errors
    /// The bytes hold something else.
    pub fn read(bytes: &'a [u8], wanted: &Fields) -> Result<Packed<'a>, Damaged> {
        if bytes.is_empty() || wanted.is_empty() {
            return Ok(Packed { places: vec![None; wanted.len()], ..Packed::default() });
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
        let places = wanted.iter().map(place).collect();
        Ok(Packed { fields, rows, places })
    }

    /// Appends the columns of an event to its row.
    ///
    /// # Errors
    /// The bytes hold something else.
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
