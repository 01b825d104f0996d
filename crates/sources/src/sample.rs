//! Test of a mapping: the items of a sample text as a source would read them, without a source.

use std::{collections::BTreeMap, io::Cursor};

use serde_json::{Map, Value as Json};
use tocsin_model::{
    field::{Fields, Row},
    problem::{Code, Problem},
};

use crate::{
    directory::DirectoryOptions,
    items::{Format, Layout, PositionedItem, Text, Xml},
    mapping::Mapping,
    poll::PollOptions,
};

/// Longest message of a sample.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Bytes of an item that are shown.
const SHOWN_BYTES_MAX: usize = 4 << 10;

/// An item of a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleItem {
    /// Its line, or its number.
    pub line: Option<u32>,
    /// The item as text; its beginning if it is long.
    pub item: String,
    /// The row of the event class, or the reasons of its rejection.
    pub row: Result<Row, Vec<Problem>>,
}

/// The items of a sample.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// The first items.
    pub items: Vec<SampleItem>,
    /// Whether there are more.
    pub is_cut: bool,
    /// Error that ended the reading.
    pub error: Option<Problem>,
}

/// Reads the first items of a sample with the checked options of a kind, and maps them to a class. The sample is a text
/// of the format for kinds that read texts, and one message in each line for kinds that read messages.
///
/// # Errors
/// The kind has no texts or messages of its own, such as a query.
pub fn read_sample(
    kind: &str,
    options: &Map<String, Json>,
    fields: &Fields,
    sample: &[u8],
    limit: usize,
) -> Result<Sample, Problem> {
    let (layout, paths) = layout_and_paths(kind, options, fields)?;
    let mapping = Mapping::new(fields, &paths);
    let open = || -> Text { Box::new(Cursor::new(sample.to_vec())) };
    let mut read = Sample::default();
    if let Err(problem) = layout.examine(open(), None) {
        read.error = Some(problem);
        return Ok(read);
    }
    for item in layout.items(open(), None) {
        if read.items.len() >= limit {
            read.is_cut = true;
            break;
        }
        match item {
            Ok(PositionedItem { line, item }) => {
                let mut shown = item.shown();
                shown.truncate(SHOWN_BYTES_MAX);
                let row = mapping.row(&item);
                read.items.push(SampleItem { line, item: String::from_utf8_lossy(&shown).into_owned(), row });
            }
            Err(problem) => {
                read.error = Some(problem);
                break;
            }
        }
    }
    Ok(read)
}

fn layout_and_paths(
    kind: &str,
    options: &Map<String, Json>,
    fields: &Fields,
) -> Result<(Layout, BTreeMap<String, String>), Problem> {
    let given = Json::Object(options.clone());
    let wrong = |error: serde_json::Error| Problem::new(Code::InvalidFormat, "options", error.to_string());
    match kind {
        "directory" => {
            let options: DirectoryOptions = serde_json::from_value(given).map_err(wrong)?;
            Ok((options.layout(), options.paths(fields)))
        }
        "poll" => {
            let options: PollOptions = serde_json::from_value(given).map_err(wrong)?;
            Ok((options.layout(), options.fields.clone()))
        }
        "kafka" | "mqtt" | "nats" | "process" => {
            let paths = options.get("fields").cloned().unwrap_or_else(|| Json::Object(Map::new()));
            let layout = Layout {
                format: Format::Ndjson,
                items: String::new(),
                delimiter: None,
                encoding: None,
                columns: Vec::new(),
                item_bytes_max: MESSAGE_BYTES_MAX,
                xml: Xml::default(),
                required: Vec::new(),
            };
            Ok((layout, serde_json::from_value(paths).map_err(wrong)?))
        }
        _ => {
            let problem =
                Problem::new(Code::NotApplicable, "kind", format!("`{kind}` reads no text that can be a sample"));
            Err(problem.hint("kinds with samples are directory, poll, kafka, mqtt, nats and process"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tocsin_model::{field::FieldType, value::Value};

    use super::*;
    use crate::testing::fields_of;

    fn read(kind: &str, options: Json, sample: &str) -> Result<Sample, Problem> {
        let fields = fields_of(&[("id", FieldType::String), ("size", FieldType::Number)]);
        read_sample(kind, options.as_object().expect("an object"), &fields, sample.as_bytes(), 2)
    }

    #[test]
    fn items_of_a_sample_are_mapped_or_rejected_with_reasons() {
        let paths = json!({"fields": {"id": "key", "size": "props.size"}});
        let lines = "{\"key\": \"a\", \"props\": {\"size\": 2}}\n{\"props\": {\"size\": 2}}\n{\"key\": \"c\"}\n";
        let sample = read("mqtt", paths, lines).expect("read");
        assert_eq!(sample.items[0].row, Ok(vec![Value::from("a"), Value::Number(2.0)]));
        assert!(sample.items[1].row.is_err() && sample.is_cut, "{sample:?}");
        let csv = json!({"folder": "in", "format": "csv"});
        let sample = read("directory", csv, "id,size\na,1.5\n").expect("read");
        assert_eq!(sample.items[0].row, Ok(vec![Value::from("a"), Value::Number(1.5)]), "{sample:?}");
        let page = json!({"url": "https://a.example/list", "items": "all", "format": "json"});
        let sample = read("poll", page.clone(), r#"{"all": [{"id": "a"}, {"id": 7}]}"#).expect("read");
        assert_eq!((sample.items.len(), sample.items[1].row.is_err()), (2, true), "{sample:?}");
        assert!(read("poll", page, "no JSON").expect("read").error.is_some());
        assert_eq!(read("query", json!({}), "").expect_err("no text").code, Code::NotApplicable);
    }
}
