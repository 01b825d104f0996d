//! An XML element.

use std::{borrow::Cow, sync::Arc};

/// An element with its descendants.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Element {
    /// Name without its prefix.
    pub name: String,
    /// Prefix as written; empty without one.
    pub prefix: String,
    /// The name of its namespace; empty without one.
    pub namespace: Arc<str>,
    /// Attributes with their names as written.
    pub attributes: Vec<(String, String)>,
    /// Own text, without that of its descendants.
    pub text: String,
    pub children: Vec<Element>,
    /// Position in the parent's own text, in bytes.
    pub at: usize,
}

impl Element {
    /// The value of an attribute with this qualified name, else of one with this local name.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let exact = self.attributes.iter().find(|(known, _)| known == name);
        let found = exact.or_else(|| self.attributes.iter().find(|(known, _)| local(known) == name));
        found.map(|(_, value)| value.as_str())
    }

    /// The children of a name: a prefixed name matches as written; a local name matches in the namespace of this
    /// element, else in any.
    pub fn children_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        let (prefix, name) = name.split_once(':').map_or((None, name), |(prefix, name)| (Some(prefix), name));
        let fits = move |child: &&Element| child.name == name && prefix.is_none_or(|prefix| child.prefix == prefix);
        let is_own = |child: &Element| child.namespace == self.namespace;
        let own_alone = prefix.is_none() && self.children.iter().any(|child| fits(&child) && is_own(child));
        self.children.iter().filter(fits).filter(move |child| !own_alone || is_own(child))
    }

    /// The string value (XPath 1.0, section 5.2): its text and that of all descendants, in document order.
    pub fn whole_text(&self) -> Cow<'_, str> {
        if self.children.is_empty() {
            return Cow::Borrowed(&self.text);
        }
        let mut whole = String::new();
        self.write_text(&mut whole);
        Cow::Owned(whole)
    }

    fn write_text(&self, whole: &mut String) {
        let mut from = 0;
        for child in &self.children {
            whole.push_str(&self.text[from..child.at]);
            child.write_text(whole);
            from = child.at;
        }
        whole.push_str(&self.text[from..]);
    }

    /// Attributes and children with their string values. Of several with one name, those without a foreign
    /// namespace take precedence.
    pub fn leaves(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let is_own = |name: &str| self.children.iter().any(|own| own.name == name && own.namespace == self.namespace);
        let children = self
            .children
            .iter()
            .filter(move |child| child.namespace == self.namespace || !is_own(&child.name))
            .map(|child| (child.name.as_str(), child.whole_text()));
        // Attributes of XML and XML Schema are not data.
        let is_meta = |name: &str| name.starts_with("xml:") || name.starts_with("xsi:");
        let is_second =
            |name: &str| name.contains(':') && self.attributes.iter().any(|(known, _)| known == local(name));
        let attributes = self
            .attributes
            .iter()
            .filter(move |(name, _)| !is_meta(name) && !is_second(name))
            .map(|(name, value)| (local(name), Cow::Borrowed(value.as_str())));
        attributes.chain(children)
    }
}

/// The local name.
pub(super) fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}
