//! Checks that docs/reference/reliability.md names only existing tests.

use std::{collections::BTreeMap, path::Path};

#[test]
fn reliability_md_names_existing_tests() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
    let page = std::fs::read_to_string(crates.join("../docs/reference/reliability.md")).expect("the page");
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    let (mut named, mut missing) = (0, Vec::new());
    for (file, test) in page.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")) {
        let read = || std::fs::read_to_string(crates.join(file)).unwrap_or_default();
        let text = texts.entry(file).or_insert_with(read);
        named += 1;
        if !text.contains(&format!("fn {test}(")) {
            missing.push(format!("{file}::{test}"));
        }
    }
    assert!(missing.is_empty(), "correct docs/reference/reliability.md: {missing:#?}");
    assert!(named > 80, "{named}");
}
