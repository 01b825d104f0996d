//! Generator of the configuration reference and the commented configuration file, from the table of keys.

use std::fmt::Write;

use serde_json::Value;

use super::table::SECTIONS;

/// Page `docs/reference/configuration.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         <!-- Generated from crates/tocsin/src/configuration.rs; `UPDATE=1 cargo test -p tocsin` writes it anew. -->\n\n\
         The defaults are overridden by one TOML file (`--config`, otherwise `tocsin.toml` in the working folder, otherwise in the data\n\
         folder), then by environment variables (those of OpenTelemetry for `telemetry`, then `TOCSIN_*`), then by flags\n\
         (`--set KEY=VALUE`). `tocsin config` prints the\n\
         effective values, each with its source. `tocsin init` writes a file with every key and its description.\n\n\
         Sizes are written `64KiB`, `16MiB`, `1GiB`; durations `250ms`, `30s`, `5m`, `2h`, `7d`; in variables and flags, lists\n\
         are separated by commas. A value outside of its range is refused at the start.\n",
    );
    for (section, doc, keys) in SECTIONS.iter() {
        let _ = write!(
            page,
            "\n## `[{section}]`\n\n{doc}\n\n| key | type | default | range | meaning |\n|---|---|---|---|---|\n"
        );
        for key in keys {
            let _ = writeln!(
                page,
                "| `{}`<br>`{}` | {} | `{}` | {} | {} |",
                key.path,
                key.variable(),
                key.kind,
                toml_value(&key.default),
                key.range.map_or(String::new(), |range| range.to_string()),
                key.doc
            );
        }
    }
    page
}

/// Configuration file with every key, its description and its default, commented out.
pub fn commented_file() -> String {
    let mut file = String::from(
        "# Configuration of Tocsin. Commented keys have their default. `tocsin config` prints the effective values.\n",
    );
    for (section, doc, keys) in SECTIONS.iter() {
        let _ = write!(file, "\n# {doc}\n[{section}]\n");
        for key in keys {
            let range = key.range.map_or(String::new(), |range| format!(" Range: {range}."));
            for line in wrapped(&format!("{}{range}", key.doc), 100) {
                let _ = writeln!(file, "# {line}");
            }
            let name = key.path.rsplit('.').next().unwrap_or(&key.path);
            let _ = writeln!(file, "#{name} = {}", toml_value(&key.default));
        }
    }
    file
}

/// JSON strings, numbers, booleans and lists of them are valid TOML.
fn toml_value(value: &Value) -> String {
    value.to_string()
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::{Configuration, Layers};

    #[test]
    fn the_commented_file_is_empty_and_uncommented_sets_the_defaults() {
        let file = commented_file();
        let layered =
            Layers { file: Some(("x".into(), file.clone())), ..Layers::default() }.merge().expect("a configuration");
        assert_eq!(layered.configuration, Configuration::default());
        let uncommented: String = file
            .lines()
            .map(|line| if line.starts_with('#') && !line.starts_with("# ") { &line[1..] } else { line })
            .fold(String::new(), |text, line| text + line + "\n");
        let layered =
            Layers { file: Some(("x".into(), uncommented)), ..Layers::default() }.merge().expect("a configuration");
        assert_eq!(layered.configuration, Configuration::default());
        assert!(layered.settings.values().all(|setting| setting.source != crate::configuration::Source::Default));
    }

    #[test]
    fn the_committed_page_is_up_to_date() {
        crate::cli::compare_reference("configuration.md", &reference_page());
    }
}
