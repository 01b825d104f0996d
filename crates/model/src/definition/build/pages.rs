//! Hosted pages in a definition: branding, and the titles of classes.

use std::collections::BTreeMap;

use crate::{
    definition::{
        build::builder::Builder,
        document::{Entry, Node, join},
    },
    id::Name,
    pages::{Branding, ClassTexts, LocalizedText, PAGE_TEXT_BYTES_MAX, Pages},
    problem::{Code, Problem},
    subscriber::is_language_tag,
};

impl Builder<'_> {
    /// The hosted pages.
    pub(super) fn pages(&mut self, root: &Node) -> Pages {
        let Some(node) = root.get("pages") else { return Pages::default() };
        Pages {
            branding: Branding {
                name: self.page_text(node, "name", "pages"),
                logo: self.parsed(node, "logo", "pages", "give an HTTPS address in visible ASCII characters"),
                accent: self.parsed(node, "accent", "pages", "give six hexadecimal digits after `#`"),
                footer: self.page_text(node, "footer", "pages"),
                imprint: self.parsed(node, "imprint", "pages", "give an HTTPS address in visible ASCII characters"),
            },
            notifications: self.class_texts(node, "notifications"),
            subscriptions: self.class_texts(node, "subscriptions"),
        }
    }

    fn class_texts(&mut self, pages: &Node, section: &str) -> BTreeMap<Name, ClassTexts> {
        let known: Vec<String> =
            self.root.get(section).map_or(&[][..], Node::entries).iter().map(|entry| entry.key.clone()).collect();
        let mut texts = BTreeMap::new();
        for Entry { key, value, .. } in pages.get(section).map_or(&[][..], Node::entries) {
            let path = join(&format!("pages.{section}"), key);
            let Ok(name) = key.parse::<Name>() else { continue };
            if !known.contains(key) {
                let noun = section.trim_end_matches('s');
                let problem = value
                    .problem(
                        Code::UnknownReference,
                        &path,
                        format!("names the {noun} class `{name}`, which does not exist"),
                    )
                    .param("kind", format!("{noun}_class"))
                    .param("value", key.clone());
                self.problems.push(problem);
            }
            let title = self.localized(value, "title", &path);
            let description = self.localized(value, "description", &path);
            texts.insert(name, ClassTexts { title, description });
        }
        texts
    }

    fn page_text(&mut self, node: &Node, key: &str, path: &str) -> Option<String> {
        let given = node.get(key)?;
        let text = given.text()?.trim();
        if text.len() > PAGE_TEXT_BYTES_MAX {
            let problem = Problem::too_long(join(path, key), text.len(), PAGE_TEXT_BYTES_MAX);
            self.problems.push(problem.position(given.line, given.column));
        }
        Some(text.to_owned()).filter(|text| !text.is_empty())
    }

    fn localized(&mut self, class: &Node, key: &str, path: &str) -> LocalizedText {
        let Some(node) = class.get(key) else { return LocalizedText::default() };
        if node.text().is_some() {
            let text = self.page_text(class, key, path);
            return LocalizedText(text.map(|text| (String::new(), text)).into_iter().collect());
        }
        let path = join(path, key);
        let mut texts = BTreeMap::new();
        for Entry { key: tag, value, .. } in node.entries() {
            if !is_language_tag(tag) {
                let message = format!("`{tag}` is not a language tag");
                self.problems.push(
                    value
                        .problem(Code::InvalidFormat, &join(&path, tag), message)
                        .param("format", "language_tag")
                        .hint("give BCP 47, such as `de` or `pt-BR`"),
                );
            }
            texts.extend(self.page_text(node, tag, &path).map(|text| (tag.clone(), text)));
        }
        LocalizedText(texts)
    }
}
