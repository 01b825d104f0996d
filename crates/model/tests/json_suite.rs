//! JSONTestSuite through our parsers: as a value, and as a row of a class.

use std::{fs, path::Path};

use tocsin_model::{
    field::{Field, FieldType, Fields},
    json,
    value::Value,
};

/// Texts that a parser may accept or not, and that are accepted: numbers that a double rounds, deep lists within the
/// parser's limit.
const TAKEN: [&str; 6] = [
    "i_number_double_huge_neg_exp.json",
    "i_number_real_underflow.json",
    "i_number_too_big_neg_int.json",
    "i_number_too_big_pos_int.json",
    "i_number_very_big_negative_int.json",
    "i_structure_UTF-8_BOM_empty_object.json",
];

#[test]
fn e4_json_test_suite_is_taken_and_refused_as_documented() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sources/testdata/json-parsing");
    let field = Field::new("tags".parse().expect("a name"), FieldType::List);
    let fields = Fields::new(vec![field]);
    let (mut count, mut taken) = (0, Vec::new());
    for entry in fs::read_dir(folder).expect("the suite is in the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let text = fs::read(&path).expect("a file");
        let plain = json::without_mark(&text);
        let is_bounded = json::check(plain, json::VALUES_MAX).is_ok();
        let value = serde_json::from_slice::<Value>(plain);
        match name.as_bytes()[0] {
            b'y' => assert!(value.is_ok() && is_bounded, "{name}: {value:?}"),
            b'n' => assert!(value.is_err(), "{name}: {value:?}"),
            _ if value.is_ok() && is_bounded => taken.push(name.clone()),
            _ => {}
        }
        // As the value of a field: the same, and without a crash.
        let row = fields.row_from_json(&[b"{\"tags\":[", plain, b"]}"].concat());
        if name.starts_with('y') {
            assert!(row.is_ok(), "{name}: {row:?}");
        }
        let _ = fields.row_from_json(&text);
        count += 1;
    }
    taken.sort();
    assert_eq!(count, 318);
    assert_eq!(taken, TAKEN);
}
