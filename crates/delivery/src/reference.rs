//! Generates the reference page of all protocol options from their schemas.

use std::fmt::Write;

use tocsin_connect::reference::section;
use tocsin_model::content::{JsonUse, PartsUsed};

use crate::protocol::protocols;

/// `docs/reference/channels.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Channel options\n\n<!-- Generated from the code; `UPDATE=1 cargo test -p tocsin-delivery` writes it anew. -->\n\n\
         What stands under `options` of a channel, for each `protocol`. A text may name a variable of the environment, \
         `${SMTP_PASSWORD}`. Times are written `500ms`, `30s`, `5m` or `2h`. How the protocols use them is described in the \
         guide: [channels](../guide/channels.md), [mail](../guide/mail.md).\n",
    );
    for protocol in protocols() {
        section(&mut page, protocol.name, protocol.summary, &(protocol.schema)().to_value());
        let needs: Vec<&str> = protocol.needs.iter().map(|need| need.summary()).collect();
        let _ = write!(page, "\nIt sends {}, and uses {}.\n", parts(protocol.parts), needs.join("; "));
    }
    page
}

/// The parts of a content, as a list.
fn parts(parts: PartsUsed) -> String {
    let json = match parts.json {
        JsonUse::Never => None,
        JsonUse::InTheirPlace => Some("JSON in place of a text"),
        JsonUse::Always => Some("JSON"),
    };
    let given = [
        parts.subject.then_some("the subject"),
        parts.text.then_some("the text"),
        parts.html.then_some("HTML"),
        parts.sms.then_some("the text for SMS"),
        json,
    ];
    given.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use super::*;

    #[test]
    fn the_committed_page_of_options_is_the_generated_one() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/channels.md");
        let page = reference_page();
        if env::var_os("UPDATE").is_some() {
            fs::write(&file, &page).expect("the page can be written");
        }
        let committed = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(committed, page, "`UPDATE=1 cargo test -p tocsin-delivery committed` writes it anew");
    }
}
