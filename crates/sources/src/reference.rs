//! Generates the reference page of source options from their schemas.

use std::fmt::Write;

use tocsin_connect::reference::section;

use crate::kind::kinds;

/// `docs/reference/sources.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Source options\n\n<!-- Generated from the code; `UPDATE=1 cargo test -p tocsin-sources` writes it anew. -->\n\n\
         What stands under `options` of a source, for each `kind`; `http` has none. A text may name a variable of the \
         environment, `${DATABASE_PASSWORD}`. Times are written `500ms`, `30s`, `5m` or `2h`. What the kinds do with them is \
         described in the guide: [sources](../guide/sources.md).\n",
    );
    for kind in kinds() {
        section(&mut page, kind.name, kind.summary, &(kind.schema)().to_value());
        let needs: Vec<&str> = kind.needs.iter().map(|need| need.summary()).collect();
        let location = if kind.location.is_some() { " A receive location can have this kind." } else { "" };
        let _ = write!(page, "\nIt uses {}.{location}\n", needs.join("; "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_committed_one() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/sources.md");
        let page = reference_page();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &page).expect("written");
        }
        assert!(
            std::fs::read_to_string(path).is_ok_and(|committed| committed == page),
            "docs/reference/sources.md differs from the code; run this test with UPDATE=1"
        );
    }
}
