//! Texts of hosted pages by language. A catalog is a JSON object of texts by key; `{name}` in a text is a placeholder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

/// The language whose catalog has all texts.
const STANDARD: &str = "en";
const BUILT_IN: [(&str, &str); 3] = [
    ("en", include_str!("catalogs/en.json")),
    ("de", include_str!("catalogs/de.json")),
    ("fr", include_str!("catalogs/fr.json")),
];
/// Largest catalog, in bytes.
const CATALOG_BYTES_MAX: u64 = 1024 * 1024;
/// Most ranges of an `Accept-Language` that are read.
const RANGES_MAX: usize = 32;

/// The texts of one language.
#[derive(Debug, PartialEq)]
pub(crate) struct Catalog {
    /// Its language tag.
    pub(crate) tag: String,
    texts: BTreeMap<String, String>,
}

impl Catalog {
    fn read(tag: &str, json: &str) -> Result<Catalog, String> {
        let texts = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Ok(Catalog { tag: tag.to_owned(), texts })
    }

    /// A text with its placeholders replaced. A text that is missing is shown by its key, which a test excludes for the
    /// built-in ones.
    pub(crate) fn text<'v>(&self, key: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
        let Some(text) = self.texts.get(key) else { return key.to_owned() };
        let mut out = String::with_capacity(text.len() + 32);
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            out.push_str(before);
            let Some((name, end)) = after.split_once('}') else {
                out.push('{');
                rest = after;
                continue;
            };
            out.push_str(value(name).unwrap_or_default());
            rest = end;
        }
        out.push_str(rest);
        out
    }

    /// Whether it has a text.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.texts.contains_key(key)
    }

    /// The name of the language in the language.
    pub(crate) fn name(&self) -> &str {
        self.texts.get("language.name").map_or(self.tag.as_str(), String::as_str)
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.texts.keys().map(String::as_str)
    }
}

/// The placeholders of a text.
pub(crate) fn placeholders(text: &str) -> BTreeSet<&str> {
    text.split('{').skip(1).filter_map(|after| Some(after.split_once('}')?.0)).collect()
}

/// All catalogs.
#[derive(Debug, Clone)]
pub(crate) struct Catalogs(Vec<Arc<Catalog>>);

impl Catalogs {
    /// The built-in catalogs.
    pub(crate) fn built_in() -> Catalogs {
        let read = |(tag, json): (&str, &str)| {
            Arc::new(Catalog::read(tag, json).expect("a test reads every built-in catalog"))
        };
        Catalogs(BUILT_IN.into_iter().map(read).collect())
    }

    /// The built-in catalogs, with those of a folder: `pt-BR.json` adds a language, `de.json` replaces texts of a built-in
    /// one. A text that a catalog lacks is that of English.
    ///
    /// # Errors
    /// A file cannot be read, or has a text that does not exist, or a placeholder that the English text lacks.
    pub(crate) fn with_folder(folder: &Path) -> Result<Catalogs, String> {
        let mut catalogs = Catalogs::built_in();
        let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                files.push(path);
            }
        }
        files.sort();
        for path in files {
            let failed = |reason: String| format!("{}: {reason}", path.display());
            let tag = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if !tocsin_model::subscriber::is_language_tag(tag) {
                return Err(failed(format!("`{tag}` is not a language tag such as `pt-BR`")));
            }
            let bytes = std::fs::metadata(&path).map_err(|error| failed(error.to_string()))?.len();
            if bytes > CATALOG_BYTES_MAX {
                return Err(failed(format!("has {bytes} bytes; at most {CATALOG_BYTES_MAX} are permitted")));
            }
            let json = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
            let own = Catalog::read(tag, &json).map_err(failed)?;
            catalogs.add(own).map_err(failed)?;
        }
        Ok(catalogs)
    }

    fn add(&mut self, own: Catalog) -> Result<(), String> {
        let standard = self.standard().clone();
        for (key, text) in &own.texts {
            let Some(english) = standard.texts.get(key) else { return Err(format!("`{key}` is no text of a page")) };
            let known = placeholders(english);
            if let Some(unknown) = placeholders(text).into_iter().find(|name| !known.contains(name)) {
                return Err(format!("`{key}` has the placeholder `{unknown}`, which the English text lacks"));
            }
        }
        let same = |catalog: &Arc<Catalog>| catalog.tag.eq_ignore_ascii_case(&own.tag);
        let place = self.0.iter().position(same);
        let mut texts = place.map_or_else(|| standard.texts.clone(), |at| self.0[at].texts.clone());
        if place.is_none() {
            texts.remove("language.name");
        }
        texts.extend(own.texts);
        let catalog = Arc::new(Catalog { tag: own.tag, texts });
        match place {
            Some(at) => self.0[at] = catalog,
            None => self.0.push(catalog),
        }
        Ok(())
    }

    /// The languages.
    pub(crate) fn all(&self) -> &[Arc<Catalog>] {
        &self.0
    }

    fn standard(&self) -> &Arc<Catalog> {
        self.0.iter().find(|catalog| catalog.tag == STANDARD).expect("the English catalog is built in")
    }

    /// The catalog for an `Accept-Language` (RFC 9110, 12.5.4), by lookup (RFC 4647, 3.4): of the range with the highest
    /// weight that has one, also by a shorter tag.
    pub(crate) fn choose(&self, accepted: &str) -> Arc<Catalog> {
        let mut ranges: Vec<(&str, u16)> = accepted
            .split(',')
            .take(RANGES_MAX)
            .filter_map(|range| {
                let (tag, parameters) = range.split_once(';').unwrap_or((range, ""));
                let weight = parameters.trim().strip_prefix("q=").or_else(|| parameters.trim().strip_prefix("Q="));
                let weight = weight.map_or(Some(1_000), thousandths)?;
                (weight > 0 && !tag.trim().is_empty()).then_some((tag.trim(), weight))
            })
            .collect();
        // Must stay a stable sort: of equal weights the first applies.
        ranges.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
        let found = ranges.into_iter().find_map(|(range, _)| match range {
            "*" => Some(self.standard()),
            range => self.lookup(range),
        });
        found.unwrap_or_else(|| self.standard()).clone()
    }

    fn lookup(&self, range: &str) -> Option<&Arc<Catalog>> {
        let mut shorter = range;
        loop {
            if let Some(found) = self.0.iter().find(|catalog| catalog.tag.eq_ignore_ascii_case(shorter)) {
                return Some(found);
            }
            shorter = &shorter[..shorter.rfind('-')?];
        }
    }
}

/// A weight of at most three decimals, in thousandths.
fn thousandths(text: &str) -> Option<u16> {
    let weight: f32 = text.trim().parse().ok()?;
    (0.0..=1.0).contains(&weight).then_some((weight * 1_000.0) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_language_has_all_texts_with_the_same_placeholders() {
        let catalogs = Catalogs::built_in();
        let english = catalogs.standard();
        for catalog in catalogs.all() {
            let keys: Vec<&str> = catalog.keys().collect();
            assert_eq!(keys, english.keys().collect::<Vec<_>>(), "{}", catalog.tag);
            for (key, text) in &catalog.texts {
                assert_eq!(placeholders(text), placeholders(&english.texts[key]), "{} {key}", catalog.tag);
                assert!(!text.trim().is_empty() && !text.contains('<'), "{} {key}", catalog.tag);
            }
        }
    }

    #[test]
    fn the_best_language_is_chosen() {
        let catalogs = Catalogs::built_in();
        for (accepted, expected) in [
            ("", "en"),
            ("de", "de"),
            ("de-AT, en;q=0.5", "de"),
            ("DE-at", "de"),
            ("en;q=0.5, fr;q=0.8", "fr"),
            ("nl, fr;q=0.1", "fr"),
            ("nl", "en"),
            ("fr;q=0, de;q=0.2", "de"),
            ("*", "en"),
            ("nl, *;q=0.1, de;q=0.05", "en"),
            (";;;,,,q=1", "en"),
            ("de;q=2, fr", "fr"),
        ] {
            assert_eq!(catalogs.choose(accepted).tag, expected, "{accepted}");
        }
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let catalog = Catalog::read("en", r#"{"a": "{x} and {y}, {x}", "b": "{ open"}"#).expect("a catalog");
        let value = |name: &str| match name {
            "x" => Some("{y}"),
            "y" => Some("2"),
            _ => None,
        };
        assert_eq!(catalog.text("a", value), "{y} and 2, {y}");
        assert_eq!(catalog.text("b", value), "{ open");
        assert_eq!(catalog.text("none", value), "none");
    }

    #[test]
    fn a_folder_adds_languages_and_replaces_texts() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
        write("nl.json", r#"{"language.name": "Nederlands", "layout.imprint": "Colofon"}"#);
        write("de.json", r#"{"layout.imprint": "Über uns"}"#);
        write("notes.txt", "no catalog");
        let catalogs = Catalogs::with_folder(folder.path()).expect("catalogs");
        let text = |tag: &str, key: &str| catalogs.choose(tag).text(key, |_| None);
        assert_eq!(text("nl-BE", "layout.imprint"), "Colofon");
        assert_eq!(text("nl-BE", "unsubscribe.button"), text("en", "unsubscribe.button"));
        assert_eq!((text("de", "layout.imprint").as_str(), catalogs.all().len()), ("Über uns", 4));
        for (name, wrong) in [
            ("xx.json", r#"{"no.such.text": "x"}"#),
            ("xx.json", r#"{"layout.imprint": "{name}"}"#),
            ("xx.json", "[]"),
            ("no_tag.json", "{}"),
        ] {
            write(name, wrong);
            let refused = Catalogs::with_folder(folder.path()).expect_err("it is refused");
            assert!(refused.contains(name), "{refused}");
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
    }
}
