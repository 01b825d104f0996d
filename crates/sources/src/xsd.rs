//! The event structure in an XML Schema: the repeated elements, and their contents.
//!
//! Supported are declarations of elements and attributes, with named and anonymous types, sequences, choices and
//! extensions. Imports and includes are not followed. Each declaration is visited once, so the work is linear in the
//! length of the schema, whatever the references.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io::Cursor,
};

use tocsin_model::{
    field::{FieldType, Fields},
    problem::{Code, Problem},
};

use crate::items::{Element, Format, Item, Layout, Xml};

/// Deepest chain of declarations.
const DEPTH_MAX: usize = 16;

/// The relevant part of a schema.
#[derive(Debug, PartialEq)]
pub(crate) struct Schema {
    /// The path of the repeated elements.
    pub items: String,
    /// Path and type of their contents, by name.
    leaves: BTreeMap<String, (String, FieldType)>,
}

impl Schema {
    /// Parses a schema.
    ///
    /// # Errors
    /// The text is not XML or not a schema, or no element is repeated.
    pub fn read(text: &str) -> Result<Schema, Problem> {
        let layout = Layout {
            format: Format::Xml,
            items: "/schema".to_owned(),
            delimiter: None,
            encoding: None,
            columns: Vec::new(),
            item_bytes_max: text.len(),
            xml: Xml::default(),
            required: Vec::new(),
        };
        let mut items = layout.items(Box::new(Cursor::new(text.as_bytes().to_vec())), Some("utf-8"));
        let found = items.next().transpose();
        // The text is read to its end, so that what follows the schema is no part of it.
        if let (Ok(_), Some(Err(problem))) = (&found, items.next()) {
            return Err(at_schema(problem));
        }
        let Some(Item::Xml(root)) = found.map_err(at_schema)?.map(|placed| placed.item) else {
            return Err(
                Problem::syntax("xsd", "schema", "is not an XML Schema").hint("its root element is `xs:schema`")
            );
        };
        let declarations = Declarations::new(&root);
        let tops = root.children.iter().filter(|child| child.name == "element");
        let mut seen = BTreeSet::new();
        for top in tops {
            if let Some((path, item)) = declarations.repeated(top, "", 0, &mut seen) {
                let leaves = declarations.leaves(item);
                return Ok(Schema { items: path, leaves });
            }
        }
        let problem = Problem::syntax("xsd", "schema", "declares no repeated element");
        Err(problem.hint("set `maxOccurs=\"unbounded\"` on the element that is the event"))
    }

    /// The path of each field that the schema declares by its name.
    pub fn paths(&self, fields: &Fields) -> BTreeMap<String, String> {
        let path = |name: &str| Some((name.to_owned(), self.leaves.get(name)?.0.clone()));
        fields.iter().filter_map(|field| path(field.name.as_str())).collect()
    }

    /// Fields with another type in the schema.
    pub fn mapping_problems(&self, fields: &Fields) -> Vec<Problem> {
        let misfit = |name: &str, kind: FieldType| {
            let (_, declared) = self.leaves.get(name)?;
            let fits = kind == *declared
                || matches!(
                    (kind, declared),
                    (FieldType::String, _)
                        | (FieldType::Number, FieldType::Integer)
                        | (FieldType::List | FieldType::Map, FieldType::String)
                );
            let (required, given) = (kind.name(), declared.name());
            let message = format!("`{name}` is of type {given} in the schema, and of type {required} in the class");
            (!fits).then(|| Problem::new(Code::Mismatch, "schema", message))
        };
        fields.iter().filter_map(|field| misfit(field.name.as_str(), field.kind)).collect()
    }
}

fn at_schema(problem: Problem) -> Problem {
    Problem { path: "schema".to_owned(), ..problem }
}

/// The top-level declarations of a schema, by kind and name.
struct Declarations<'a>(HashMap<(&'a str, &'a str), &'a Element>);

/// The identity of an element of the schema.
fn identity(element: &Element) -> usize {
    std::ptr::from_ref(element).addr()
}

impl<'a> Declarations<'a> {
    fn new(root: &'a Element) -> Declarations<'a> {
        let mut named = HashMap::new();
        for child in &root.children {
            if let Some(name) = child.attribute("name") {
                named.entry((child.name.as_str(), name)).or_insert(child);
            }
        }
        Declarations(named)
    }

    /// A top-level declaration, by kind and local name.
    fn named(&self, kind: &str, name: &str) -> Option<&'a Element> {
        let name = name.rsplit(':').next()?;
        self.0.get(&(kind, name)).copied()
    }

    /// A declaration, or the one that it refers to.
    fn resolve_reference(&self, element: &'a Element) -> Option<&'a Element> {
        match element.attribute("ref") {
            Some(name) => self.named("element", name),
            None => Some(element),
        }
    }

    /// The complex type of an element.
    fn content(&self, element: &'a Element) -> Option<&'a Element> {
        let inside = element.children.iter().find(|child| child.name == "complexType");
        inside.or_else(|| self.named("complexType", element.attribute("type")?))
    }

    /// The elements and attributes declared in a type and its base types.
    fn parts(&self, of: &'a Element) -> Vec<&'a Element> {
        let mut parts = Vec::new();
        self.add_parts(of, 0, &mut BTreeSet::new(), &mut parts);
        parts
    }

    fn add_parts(&self, of: &'a Element, depth: usize, seen: &mut BTreeSet<usize>, parts: &mut Vec<&'a Element>) {
        if depth > DEPTH_MAX || !seen.insert(identity(of)) {
            return;
        }
        for child in &of.children {
            match child.name.as_str() {
                "element" | "attribute" => parts.push(child),
                "extension" => {
                    if let Some(base) = child.attribute("base").and_then(|base| self.named("complexType", base)) {
                        self.add_parts(base, depth + 1, seen, parts);
                    }
                    self.add_parts(child, depth + 1, seen, parts);
                }
                "sequence" | "choice" | "all" | "complexContent" | "simpleContent" => {
                    self.add_parts(child, depth + 1, seen, parts);
                }
                _ => {}
            }
        }
    }

    /// The first repeated descendant element, and its path. `seen` are types without one.
    fn repeated(
        &self,
        element: &'a Element,
        above: &str,
        depth: usize,
        seen: &mut BTreeSet<usize>,
    ) -> Option<(String, &'a Element)> {
        let meant = self.resolve_reference(element)?;
        let path = format!("{above}/{}", meant.attribute("name")?);
        let many = |part: &Element| part.attribute("maxOccurs").is_some_and(|most| !matches!(most, "0" | "1"));
        if many(element) {
            return Some((path, meant));
        }
        let content = self.content(meant).filter(|content| depth < DEPTH_MAX && seen.insert(identity(content)))?;
        let below = self.parts(content).into_iter().filter(|part| part.name == "element");
        below.into_iter().find_map(|part| self.repeated(part, &path, depth + 1, seen))
    }

    /// The parts of an element that have a value, by name; of duplicate names, the one nearest to the root.
    fn leaves(&self, item: &'a Element) -> BTreeMap<String, (String, FieldType)> {
        let mut leaves = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut waiting = VecDeque::from([(item, String::new(), 0)]);
        while let Some((element, above, depth)) = waiting.pop_front() {
            let content = self.content(element).filter(|content| depth <= DEPTH_MAX && seen.insert(identity(content)));
            let Some(content) = content else { continue };
            for part in self.parts(content) {
                let Some(part) = self.resolve_reference(part) else { continue };
                let Some(name) = part.attribute("name") else { continue };
                let mark = if part.name == "attribute" { "@" } else { "" };
                let path = if above.is_empty() { format!("{mark}{name}") } else { format!("{above}/{mark}{name}") };
                if self.content(part).is_some() {
                    waiting.push_back((part, path.clone(), depth + 1));
                }
                leaves.entry(name.to_owned()).or_insert_with(|| (path, self.kind(part)));
            }
        }
        leaves
    }

    /// The type of the text of an element or of an attribute value.
    fn kind(&self, part: &'a Element) -> FieldType {
        let is_type = |child: &&Element| matches!(child.name.as_str(), "simpleType" | "complexType");
        let own = || base_of(part.children.iter().find(is_type)?);
        let Some(mut name) = part.attribute("type").or_else(own) else { return FieldType::String };
        for _ in 0..DEPTH_MAX {
            let named = self.named("simpleType", name).or_else(|| self.named("complexType", name));
            match named.map(base_of) {
                Some(Some(base)) => name = base,
                Some(None) => return FieldType::String,
                None => break,
            }
        }
        kind_of(name.rsplit(':').next().unwrap_or(name))
    }
}

/// The name of the type that the text of a type is restricted from.
fn base_of(definition: &Element) -> Option<&str> {
    definition.children.iter().find_map(|child| match child.name.as_str() {
        "restriction" | "extension" => child.attribute("base"),
        "simpleContent" => base_of(child),
        _ => None,
    })
}

/// A built-in type.
fn kind_of(name: &str) -> FieldType {
    match name {
        "boolean" => FieldType::Boolean,
        "decimal" | "float" | "double" => FieldType::Number,
        "dateTime" | "dateTimeStamp" => FieldType::Timestamp,
        "integer" | "int" | "long" | "short" | "byte" | "nonNegativeInteger" | "positiveInteger"
        | "negativeInteger" | "nonPositiveInteger" | "unsignedLong" | "unsignedInt" | "unsignedShort"
        | "unsignedByte" => FieldType::Integer,
        _ => FieldType::String,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fields_of;

    const STOCKS: &str = r#"<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
        <xs:element name="stocks"><xs:complexType><xs:sequence>
            <xs:element name="made" type="xs:dateTime"/>
            <xs:element ref="stock" maxOccurs="unbounded"/>
        </xs:sequence></xs:complexType></xs:element>
        <xs:element name="stock" type="Stock"/>
        <xs:complexType name="Stock"><xs:complexContent><xs:extension base="Named"><xs:sequence>
            <xs:element name="price"><xs:complexType><xs:sequence>
                <xs:element name="amount" type="Amount"/>
            </xs:sequence></xs:complexType></xs:element>
            <xs:element name="at" type="xs:dateTime"/>
        </xs:sequence></xs:extension></xs:complexContent></xs:complexType>
        <xs:complexType name="Named"><xs:attribute name="id" type="xs:ID"/></xs:complexType>
        <xs:simpleType name="Amount"><xs:restriction base="xs:decimal"/></xs:simpleType>
    </xs:schema>"#;

    #[test]
    fn a_schema_gives_paths_and_types() {
        let schema = Schema::read(STOCKS).expect("a schema");
        assert_eq!(schema.items, "/stocks/stock");
        let fields =
            fields_of(&[("id", FieldType::String), ("amount", FieldType::Number), ("at", FieldType::Timestamp)]);
        let paths: Vec<_> = schema.paths(&fields).into_iter().collect();
        let expected = [("amount", "price/amount"), ("at", "at"), ("id", "@id")];
        assert_eq!(paths, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
        assert!(schema.mapping_problems(&fields).is_empty());
        let problems = schema.mapping_problems(&fields_of(&[("amount", FieldType::Timestamp)]));
        let expected = "schema: `amount` is of type number in the schema, and of type timestamp in the class";
        assert_eq!(problems[0].to_string(), expected);
    }

    #[test]
    fn d_types_are_followed_to_the_built_in_ones() {
        let text = r#"<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
            <xs:element name="orders"><xs:complexType><xs:sequence>
                <xs:element name="order" maxOccurs="unbounded"><xs:complexType><xs:sequence>
                    <xs:element name="total" type="Money"/>
                    <xs:element name="tax" type="Amount"/>
                    <xs:element name="fee"><xs:complexType><xs:simpleContent><xs:extension base="Amount">
                        <xs:attribute name="currency" type="xs:string"/></xs:extension></xs:simpleContent></xs:complexType>
                    </xs:element>
                    <xs:element name="note" type="Loop"/>
                </xs:sequence></xs:complexType></xs:element>
            </xs:sequence></xs:complexType></xs:element>
            <xs:complexType name="Money"><xs:simpleContent><xs:extension base="Amount"/></xs:simpleContent></xs:complexType>
            <xs:simpleType name="Amount"><xs:restriction base="Exact"/></xs:simpleType>
            <xs:simpleType name="Exact"><xs:restriction base="xs:decimal"/></xs:simpleType>
            <xs:simpleType name="Loop"><xs:restriction base="Loop"/></xs:simpleType>
        </xs:schema>"#;
        let schema = Schema::read(text).expect("a schema");
        let kinds = ["total", "tax", "fee", "note"].map(|name| schema.leaves[name].1);
        let number = FieldType::Number;
        assert_eq!(kinds, [number, number, number, FieldType::String]);
        assert!(Schema::read(&format!("{text}<more/>")).is_err(), "there is a second root element");
    }

    #[test]
    fn invalid_schemas_are_reported() {
        for wrong in ["", "<a/>", "<schema/>", "<!DOCTYPE a><schema/>", "<schema><element name='a'/></schema>"] {
            assert_eq!(Schema::read(wrong).expect_err(wrong).path, "schema");
        }
    }

    #[test]
    fn a21_a_schema_that_refers_to_itself_is_read_once() {
        // Each type has ten parts of its own type and ten of the next: the number of paths would be 20 to the power of
        // 16.
        let part = |at: usize, name: usize| format!("<xs:element name='e{name}' type='T{at}'/>");
        let kind = |at: usize| {
            let own: String = (0..10).map(|name| part(at, name)).collect();
            let next: String = (10..20).map(|name| part(at + 1, name)).collect();
            format!("<xs:complexType name='T{at}'><xs:sequence>{own}{next}</xs:sequence></xs:complexType>")
        };
        let kinds: String = (0..40).map(kind).collect();
        let with = |last: &str| {
            format!(
                "<xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'><xs:element name='root' type='T0'/>{kinds}<xs:complexType name='T40'><xs:sequence>{last}</xs:sequence></xs:complexType></xs:schema>"
            )
        };
        assert!(Schema::read(&with("<xs:element name='leaf' type='xs:int'/>")).is_err(), "no element is repeated");
        let bases = "<xs:complexType name='B'><xs:complexContent><xs:extension base='B'/><xs:extension base='B'/></xs:complexContent></xs:complexType>";
        let text = with("").replace("<xs:element name='root' type='T0'/>", &format!("<xs:element name='root'><xs:complexType><xs:sequence><xs:element name='item' type='T0' maxOccurs='unbounded'/><xs:element name='b' type='B'/></xs:sequence></xs:complexType></xs:element>{bases}"));
        let schema = Schema::read(&text).expect("a schema");
        assert_eq!((schema.items.as_str(), schema.leaves.len()), ("/root/item", 20));
        assert_eq!(schema.leaves["e0"].0, "e0");
    }
}
