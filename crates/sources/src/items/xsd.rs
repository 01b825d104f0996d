//! What an XML Schema says of a document: which elements come many times, and what is in each of them.
//!
//! Read are declarations of elements and attributes, with named and anonymous types, sequences, choices and extensions.
//! Imports and includes are not followed.

use std::{collections::BTreeMap, io::Cursor};

use tocsin_model::{
    field::{FieldType, Fields},
    problem::Problem,
};

use super::{Element, Format, Item, Layout, Xml};

/// How deep declarations may lead into each other.
const DEPTH_MAX: usize = 16;

/// What of a schema matters here.
#[derive(Debug, PartialEq)]
pub(crate) struct Schema {
    /// The path of the elements that come many times.
    pub items: String,
    /// Path and type of what is in each, by name.
    leaves: BTreeMap<String, (String, FieldType)>,
}

impl Schema {
    /// Reads the text of a schema.
    ///
    /// # Errors
    /// It is not XML or no schema, or no element in it comes many times.
    pub fn read(text: &str) -> Result<Schema, Problem> {
        let layout = Layout {
            format: Format::Xml,
            items: "/schema".to_owned(),
            delimiter: None,
            encoding: None,
            columns: Vec::new(),
            item_bytes_max: text.len(),
            xml: Xml::default(),
            wanted: Vec::new(),
        };
        let found = layout.items(Box::new(Cursor::new(text.as_bytes().to_vec())), Some("utf-8")).next().transpose();
        let Some(Item::Xml(root)) = found.map_err(at_schema)?.map(|placed| placed.item) else {
            return Err(Problem::at("schema", "is not an XML Schema").hint("its root element is `xs:schema`"));
        };
        let declarations = Declarations(&root);
        let tops = root.children.iter().filter(|child| child.name == "element");
        for top in tops {
            if let Some((path, item)) = declarations.repeated(top, "", 0) {
                let mut leaves = BTreeMap::new();
                declarations.leaves(item, "", 0, &mut leaves);
                return Ok(Schema { items: path, leaves });
            }
        }
        let problem = Problem::at("schema", "declares no element that comes many times");
        Err(problem.hint("give the one that is the event `maxOccurs=\"unbounded\"`"))
    }

    /// The path of each field that the schema declares by its name.
    pub fn paths(&self, fields: &Fields) -> BTreeMap<String, String> {
        let path = |name: &str| Some((name.to_owned(), self.leaves.get(name)?.0.clone()));
        fields.iter().filter_map(|field| path(field.name.as_str())).collect()
    }

    /// Fields whose type is another in the schema.
    pub fn misfits(&self, fields: &Fields) -> Vec<Problem> {
        let misfit = |name: &str, kind: FieldType| {
            let (_, declared) = self.leaves.get(name)?;
            let fits = kind == *declared
                || matches!(
                    (kind, declared),
                    (FieldType::String, _)
                        | (FieldType::Number, FieldType::Integer)
                        | (FieldType::List | FieldType::Map, FieldType::String)
                );
            let (wanted, given) = (kind.name(), declared.name());
            let message = format!("`{name}` is of type {given} in the schema, and of type {wanted} in the class");
            (!fits).then(|| Problem::at("schema", message))
        };
        fields.iter().filter_map(|field| misfit(field.name.as_str(), field.kind)).collect()
    }
}

fn at_schema(problem: Problem) -> Problem {
    Problem { path: "schema".to_owned(), ..problem }
}

/// All that a schema declares.
struct Declarations<'a>(&'a Element);

impl<'a> Declarations<'a> {
    /// A declaration at the top, by what it is and its name, without a prefix.
    fn named(&self, kind: &str, name: &str) -> Option<&'a Element> {
        let name = name.rsplit(':').next()?;
        self.0.children.iter().find(|child| child.name == kind && child.attribute("name") == Some(name))
    }

    /// A declaration, or the one that it refers to.
    fn meant(&self, element: &'a Element) -> Option<&'a Element> {
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

    /// The elements and attributes that are declared in a type, and in those that it extends.
    fn parts(&self, of: &'a Element, depth: usize, parts: &mut Vec<&'a Element>) {
        if depth > DEPTH_MAX {
            return;
        }
        for child in &of.children {
            match child.name.as_str() {
                "element" | "attribute" => parts.push(child),
                "extension" => {
                    if let Some(base) = child.attribute("base").and_then(|base| self.named("complexType", base)) {
                        self.parts(base, depth + 1, parts);
                    }
                    self.parts(child, depth + 1, parts);
                }
                "sequence" | "choice" | "all" | "complexContent" | "simpleContent" => {
                    self.parts(child, depth + 1, parts);
                }
                _ => {}
            }
        }
    }

    /// The first element below this one that comes many times, and its path.
    fn repeated(&self, element: &'a Element, above: &str, depth: usize) -> Option<(String, &'a Element)> {
        let meant = self.meant(element)?;
        let path = format!("{above}/{}", meant.attribute("name")?);
        let many = |part: &Element| part.attribute("maxOccurs").is_some_and(|most| !matches!(most, "0" | "1"));
        if many(element) {
            return Some((path, meant));
        }
        let mut parts = Vec::new();
        self.parts(self.content(meant)?, 0, &mut parts);
        let below = parts.into_iter().filter(|part| part.name == "element" && depth < DEPTH_MAX);
        below.into_iter().find_map(|part| self.repeated(part, &path, depth + 1))
    }

    /// What an element holds that has a value; of two with one name the one that lies higher counts.
    fn leaves(
        &self,
        element: &'a Element,
        above: &str,
        depth: usize,
        leaves: &mut BTreeMap<String, (String, FieldType)>,
    ) {
        let Some(content) = self.content(element).filter(|_| depth <= DEPTH_MAX) else { return };
        let mut parts = Vec::new();
        self.parts(content, 0, &mut parts);
        let mut deeper = Vec::new();
        for part in parts {
            let Some(part) = self.meant(part) else { continue };
            let Some(name) = part.attribute("name") else { continue };
            let mark = if part.name == "attribute" { "@" } else { "" };
            let path = if above.is_empty() { format!("{mark}{name}") } else { format!("{above}/{mark}{name}") };
            if self.content(part).is_some() {
                deeper.push((part, path.clone()));
            }
            leaves.entry(name.to_owned()).or_insert_with(|| (path, self.kind(part, 0)));
        }
        for (part, path) in deeper {
            self.leaves(part, &path, depth + 1, leaves);
        }
    }

    /// What the text of an element or the value of an attribute is.
    fn kind(&self, part: &'a Element, depth: usize) -> FieldType {
        let simple = part.children.iter().find(|child| child.name == "simpleType");
        let restriction = |simple: &'a Element| simple.children.iter().find(|child| child.name == "restriction");
        let Some(name) = part.attribute("type").or_else(|| restriction(simple?)?.attribute("base")) else {
            return FieldType::String;
        };
        let named = self.named("simpleType", name).and_then(restriction).filter(|_| depth < DEPTH_MAX);
        if let Some(restriction) = named {
            return match restriction.attribute("base") {
                Some(base) => kind_of(base.rsplit(':').next().unwrap_or(base)),
                None => FieldType::String,
            };
        }
        kind_of(name.rsplit(':').next().unwrap_or(name))
    }
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
    fn a_schema_tells_what_to_read() {
        let schema = Schema::read(STOCKS).expect("a schema");
        assert_eq!(schema.items, "/stocks/stock");
        let fields =
            fields_of(&[("id", FieldType::String), ("amount", FieldType::Number), ("at", FieldType::Timestamp)]);
        let paths: Vec<_> = schema.paths(&fields).into_iter().collect();
        let expected = [("amount", "price/amount"), ("at", "at"), ("id", "@id")];
        assert_eq!(paths, expected.map(|(name, path)| (name.to_owned(), path.to_owned())));
        assert!(schema.misfits(&fields).is_empty());
        let problems = schema.misfits(&fields_of(&[("amount", FieldType::Timestamp)]));
        let expected = "schema: `amount` is of type number in the schema, and of type timestamp in the class";
        assert_eq!(problems[0].to_string(), expected);
    }

    #[test]
    fn what_is_no_schema_is_told() {
        for wrong in ["", "<a/>", "<schema/>", "<!DOCTYPE a><schema/>", "<schema><element name='a'/></schema>"] {
            assert_eq!(Schema::read(wrong).expect_err(wrong).path, "schema");
        }
    }
}
