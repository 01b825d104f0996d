//! Cost bound of a JSON Schema, computed before validation.
//!
//! Validation applies each subschema of `allOf`, `anyOf`, `$ref` and the like to the same value again. So twenty levels
//! of `anyOf` with two references each are a million evaluations of one value. This graph of the subschemas limits what
//! a schema can contain, and counts the evaluations of a document where the number can grow faster than the document.

use std::collections::{BTreeMap, HashMap};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value as Json};
use tocsin_model::problem::{Code, Problem};

/// Most subschemas.
const SUBSCHEMAS_MAX: usize = 5_000;
/// Deepest nesting of the text of a schema.
const DEPTH_MAX: usize = 100;
/// Longest chain of subschemas applied to one value, by `$ref` and keywords such as `allOf`.
const HEIGHT_MAX: usize = 64;
/// Most subschemas that are applied to one value.
const APPLIED_MAX: u64 = 10_000;
/// Most evaluations for any document.
const STEPS_MAX: u64 = 1_000_000;
/// Further evaluations allowed for each value of a document.
const STEPS_PER_VALUE: u64 = 20;

/// Keywords that apply one subschema to the same value.
const SAME: [&str; 4] = ["not", "if", "then", "else"];
/// Keywords that apply a list of subschemas to the same value.
const SAME_LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];
/// Keywords that apply a subschema to all members or items, or to those that other keywords left over.
const REST: [&str; 6] = [
    "additionalProperties",
    "unevaluatedProperties",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "propertyNames",
];
/// Keywords whose members are used through references only.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The graph of subschemas: which of them are applied to which values.
#[derive(Debug, Default)]
pub struct Cost {
    nodes: Vec<Node>,
    /// Whether the number of evaluations is linear in the document size.
    is_linear: bool,
    /// Whether a subschema applies itself to a part of its value.
    is_recursive: bool,
}

#[derive(Debug, Default)]
struct Node {
    same: Vec<usize>,
    properties: HashMap<String, usize>,
    /// Applied to every member: `patternProperties`, and the keywords of [`REST`].
    members: Vec<usize>,
    prefix: Vec<usize>,
    /// Applied to every item.
    items: Vec<usize>,
}

impl Cost {
    /// Builds the graph of a schema.
    ///
    /// # Errors
    /// The schema exceeds a limit, or applies a subschema to the same value without end.
    pub fn of(schema: &Json) -> Result<Cost, Problem> {
        let is_draft_4 = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
        let mut reader = Reader { is_draft_4, ..Reader::default() };
        reader.index(schema, "", "", 0)?;
        let places: Vec<(String, &Json, String)> = std::mem::take(&mut reader.schemas);
        let mut cost = Cost { nodes: Vec::with_capacity(places.len()), ..Cost::default() };
        for (pointer, schema, base) in &places {
            cost.nodes.push(reader.node(pointer, schema, base));
        }
        cost.check()?;
        Ok(cost)
    }

    fn check(&mut self) -> Result<(), Problem> {
        let order = self.same_order()?;
        let (mut heights, mut applied) = (vec![1usize; self.nodes.len()], vec![1u64; self.nodes.len()]);
        for at in order {
            for next in &self.nodes[at].same {
                heights[at] = heights[at].max(1 + heights[*next]);
                applied[at] = applied[at].saturating_add(applied[*next]);
            }
            if heights[at] > HEIGHT_MAX {
                let message = format!("applies more than {HEIGHT_MAX} subschemas within each other to one value");
                return Err(Problem::new(Code::TooDeep, "schema", message)
                    .param("limit", HEIGHT_MAX)
                    .hint("replace chains of `$ref` and `allOf` by their last schema"));
            }
            if applied[at] > APPLIED_MAX {
                let message = format!("applies more than {APPLIED_MAX} subschemas to one value");
                let hint = "nest `anyOf`, `allOf` and `oneOf` less, or repeat fewer references in them";
                return Err(Problem::new(Code::TooComplex, "schema", message).param("limit", APPLIED_MAX).hint(hint));
            }
        }
        self.is_recursive = self.has_cycle();
        self.is_linear = (0..self.nodes.len()).all(|at| self.is_single(at));
        Ok(())
    }

    /// The nodes in topological order: each after those that it applies to the same value.
    fn same_order(&self) -> Result<Vec<usize>, Problem> {
        let mut order = Vec::with_capacity(self.nodes.len());
        // 0: not visited; 1: on the current path; 2: done.
        let mut states = vec![0u8; self.nodes.len()];
        for start in 0..self.nodes.len() {
            let mut way = vec![(start, 0usize)];
            while let Some((at, next)) = way.pop() {
                match (states[at], self.nodes[at].same.get(next)) {
                    (2, _) => {}
                    (_, None) => {
                        states[at] = 2;
                        order.push(at);
                    }
                    (_, Some(below)) => {
                        states[at] = 1;
                        way.push((at, next + 1));
                        match states[*below] {
                            0 => way.push((*below, 0)),
                            1 => {
                                let message =
                                    "applies a subschema to the same value without end, as its `$ref` leads back to it";
                                let hint = "put the `$ref` below `properties` or `items`";
                                return Err(Problem::new(Code::Cyclic, "schema", message).hint(hint));
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
        Ok(order)
    }

    fn has_cycle(&self) -> bool {
        let mut open: Vec<usize> = vec![0; self.nodes.len()];
        let below: Vec<Vec<usize>> = self.nodes.iter().map(Node::all).collect();
        below.iter().flatten().for_each(|at| open[*at] += 1);
        let mut free: Vec<usize> = (0..open.len()).filter(|at| open[*at] == 0).collect();
        let mut done = 0;
        while let Some(at) = free.pop() {
            done += 1;
            for next in &below[at] {
                open[*next] -= 1;
                if open[*next] == 0 {
                    free.push(*next);
                }
            }
        }
        done < self.nodes.len()
    }

    /// Whether at most one of the subschemas applied to a value continues to each of its parts.
    fn is_single(&self, at: usize) -> bool {
        let (mut of_members, mut of_items, mut way) = (0, 0, vec![at]);
        let mut named: HashMap<&str, usize> = HashMap::new();
        while let Some(at) = way.pop() {
            let node = &self.nodes[at];
            way.extend(&node.same);
            of_members += node.members.len();
            of_items += node.items.len() + usize::from(!node.prefix.is_empty());
            node.properties.keys().for_each(|name| *named.entry(name).or_default() += 1);
        }
        of_items <= 1 && of_members + named.values().max().copied().unwrap_or_default() <= 1
    }

    /// Checks that a document can be validated within the limit of evaluations.
    ///
    /// # Errors
    /// The validation takes more evaluations than allowed.
    pub fn check_document(&self, json: &Json) -> Result<(), Problem> {
        if self.is_linear { Ok(()) } else { self.count(json, STEPS_MAX + STEPS_PER_VALUE * size(json)).map(drop) }
    }

    /// Counts the evaluations of a document.
    ///
    /// # Errors
    /// There are more than `most`.
    pub fn count(&self, json: &Json, most: u64) -> Result<u64, Problem> {
        let (mut steps, mut todo) = (0u64, vec![(0usize, json)]);
        if self.nodes.is_empty() {
            return Ok(0);
        }
        while let Some((at, json)) = todo.pop() {
            steps += 1;
            if steps > most {
                let message = format!("takes more than {most} evaluations of the schema");
                return Err(
                    Problem::new(Code::TooComplex, "", message).hint("apply fewer subschemas to the same value")
                );
            }
            let node = &self.nodes[at];
            todo.extend(node.same.iter().map(|next| (*next, json)));
            match json {
                Json::Object(members) => {
                    for (name, value) in members {
                        todo.extend(node.properties.get(name).map(|next| (*next, value)));
                        todo.extend(node.members.iter().map(|next| (*next, value)));
                    }
                }
                Json::Array(items) => {
                    for (place, value) in items.iter().enumerate() {
                        todo.extend(node.prefix.get(place).map(|next| (*next, value)));
                        todo.extend(node.items.iter().map(|next| (*next, value)));
                    }
                }
                _ => {}
            }
        }
        Ok(steps)
    }

    /// Whether validating a document recurses deeper than the stack of a worker allows.
    pub fn is_deep(&self, json: &Json) -> bool {
        const LEVELS: usize = 64;
        let height = if self.is_recursive || self.nodes.len() > LEVELS { depth(json) } else { 0 };
        height > 16 || self.nodes.len() > 16 * LEVELS
    }
}

impl Node {
    fn all(&self) -> Vec<usize> {
        let lists = [&self.same, &self.members, &self.prefix, &self.items];
        lists.into_iter().flatten().chain(self.properties.values()).copied().collect()
    }
}

/// The number of values of a document.
fn size(json: &Json) -> u64 {
    let (mut count, mut todo) = (0, vec![json]);
    while let Some(json) = todo.pop() {
        count += 1;
        match json {
            Json::Array(items) => todo.extend(items),
            Json::Object(members) => todo.extend(members.values()),
            _ => {}
        }
    }
    count
}

fn depth(json: &Json) -> usize {
    let (mut deepest, mut todo) = (0, vec![(json, 1)]);
    while let Some((json, depth)) = todo.pop() {
        deepest = deepest.max(depth);
        match json {
            Json::Array(items) => todo.extend(items.iter().map(|item| (item, depth + 1))),
            Json::Object(members) => todo.extend(members.values().map(|member| (member, depth + 1))),
            _ => {}
        }
    }
    deepest
}

/// Finds subschemas and the targets of references.
#[derive(Default)]
struct Reader<'a> {
    /// Pointer, schema, and the base URI of its references.
    schemas: Vec<(String, &'a Json, String)>,
    /// By address: `BASE#POINTER` and `BASE#ANCHOR`.
    places: BTreeMap<String, usize>,
    dynamic: BTreeMap<String, Vec<usize>>,
    /// Draft 4 writes `id` for `$id`.
    is_draft_4: bool,
}

impl<'a> Reader<'a> {
    fn index(&mut self, schema: &'a Json, pointer: &str, base: &str, depth: usize) -> Result<(), Problem> {
        if depth > DEPTH_MAX {
            let message = format!("is nested deeper than {DEPTH_MAX} subschemas");
            return Err(Problem::new(Code::TooDeep, "schema", message)
                .param("limit", DEPTH_MAX)
                .hint("put inner schemas into `$defs`"));
        }
        if self.schemas.len() >= SUBSCHEMAS_MAX {
            let message = format!("has more than {SUBSCHEMAS_MAX} subschemas");
            return Err(Problem::new(Code::TooMany, "schema", message)
                .param("limit", SUBSCHEMAS_MAX)
                .hint("check parts of the document in steps of their own"));
        }
        let at = self.schemas.len();
        let id = schema[if self.is_draft_4 { "id" } else { "$id" }].as_str();
        let base = match id {
            Some(id) if !id.starts_with('#') => joined(base, id.trim_end_matches('#')),
            _ => base.to_owned(),
        };
        self.schemas.push((pointer.to_owned(), schema, base.clone()));
        self.places.insert(format!("{}#{pointer}", self.schemas[0].2), at);
        if let Some(id) = id {
            let own = if id.starts_with('#') { format!("{base}{id}") } else { format!("{base}#") };
            self.places.entry(own).or_insert(at);
        }
        for name in ["$anchor", "$dynamicAnchor"] {
            if let Some(anchor) = schema[name].as_str() {
                self.places.entry(format!("{base}#{anchor}")).or_insert(at);
                self.dynamic.entry(anchor.to_owned()).or_default().push(at);
            }
        }
        let Json::Object(members) = schema else { return Ok(()) };
        for (pointer, inner) in subschemas(members, pointer) {
            self.index(inner, &pointer, &base, depth + 1)?;
        }
        Ok(())
    }

    /// The node of a subschema, with the subschemas that it applies.
    fn node(&self, pointer: &str, schema: &Json, base: &str) -> Node {
        let mut node = Node::default();
        let Json::Object(members) = schema else { return node };
        let root = self.places.iter().find(|(_, at)| **at == 0).map_or("#", |(place, _)| place.as_str());
        let root = root.trim_end_matches('#');
        let at = |below: &str| self.places.get(&format!("{root}#{pointer}/{below}")).copied();
        let listed = |keyword: &str| {
            let length = members.get(keyword).and_then(Json::as_array).map_or(0, Vec::len);
            (0..length).filter_map(move |place| at(&format!("{keyword}/{place}"))).collect::<Vec<usize>>()
        };
        let keyed = |keyword: &str| {
            let names = members.get(keyword).and_then(Json::as_object).into_iter().flat_map(Map::keys);
            names
                .filter_map(|name| Some((name.clone(), at(&format!("{keyword}/{}", escaped(name)))?)))
                .collect::<Vec<_>>()
        };
        node.same.extend(SAME.into_iter().filter_map(at));
        SAME_LIST.into_iter().for_each(|keyword| node.same.extend(listed(keyword)));
        for keyword in ["dependentSchemas", "dependencies"] {
            node.same.extend(keyed(keyword).into_iter().map(|(_, at)| at));
        }
        for keyword in ["$ref", "$recursiveRef", "$dynamicRef"] {
            let Some(reference) = members.get(keyword).and_then(Json::as_str) else { continue };
            match self.target(base, reference) {
                Some(target) => node.same.push(target),
                None => {
                    let anchor = reference.rsplit_once('#').map_or(reference, |(_, anchor)| anchor);
                    node.same.extend(self.dynamic.get(anchor).into_iter().flatten().take(1));
                }
            }
        }
        node.properties.extend(keyed("properties"));
        node.members.extend(keyed("patternProperties").into_iter().map(|(_, at)| at));
        for keyword in REST {
            let Some(at) = at(keyword) else { continue };
            match keyword {
                "additionalItems" | "unevaluatedItems" | "contains" => node.items.push(at),
                _ => node.members.push(at),
            }
        }
        node.prefix = [listed("prefixItems"), listed("items")].concat();
        node.items.extend(at("items"));
        node
    }

    fn target(&self, base: &str, reference: &str) -> Option<usize> {
        let decoded = percent_decode_str(reference).decode_utf8_lossy();
        let (document, fragment) = decoded.split_once('#').unwrap_or((&decoded, ""));
        let document = if document.is_empty() { base.to_owned() } else { joined(base, document) };
        let address = format!("{document}#{fragment}");
        if let Some(at) = self.places.get(&address) {
            return Some(*at);
        }
        // A pointer below a schema with an `$id` of its own.
        let resource = *self.places.get(&format!("{document}#"))?;
        let within = format!("{}#{}{fragment}", self.schemas_root(), self.pointer(resource));
        self.places.get(&within).copied()
    }

    fn schemas_root(&self) -> &str {
        self.places.iter().find(|(_, at)| **at == 0).map_or("", |(place, _)| place.trim_end_matches('#'))
    }

    fn pointer(&self, at: usize) -> &str {
        let pointers = self.places.iter().filter(|(_, found)| **found == at);
        let pointers = pointers.filter_map(|(place, _)| Some(place.split_once('#')?.1));
        pointers.filter(|pointer| pointer.starts_with('/')).min().unwrap_or_default()
    }
}

/// The direct subschemas, by their pointers.
fn subschemas<'a>(members: &'a Map<String, Json>, pointer: &str) -> Vec<(String, &'a Json)> {
    let is_schema = |json: &Json| json.is_object() || json.is_boolean();
    let mut found = Vec::new();
    for (keyword, value) in members {
        let one = SAME.contains(&keyword.as_str()) || REST.contains(&keyword.as_str());
        let by_name =
            matches!(keyword.as_str(), "properties" | "patternProperties" | "dependentSchemas" | "dependencies");
        let listed = SAME_LIST.contains(&keyword.as_str()) || keyword == "prefixItems";
        match value {
            Json::Array(items) if listed || keyword == "items" => {
                let items = items.iter().enumerate().filter(|(_, item)| is_schema(item));
                found.extend(items.map(|(at, item)| (format!("{pointer}/{keyword}/{at}"), item)));
            }
            Json::Object(named) if by_name || DEFINITIONS.contains(&keyword.as_str()) => {
                let named = named.iter().filter(|(_, inner)| is_schema(inner));
                found.extend(named.map(|(name, inner)| (format!("{pointer}/{keyword}/{}", escaped(name)), inner)));
            }
            value if (one || keyword == "items") && is_schema(value) => {
                found.push((format!("{pointer}/{keyword}"), value));
            }
            _ => {}
        }
    }
    found
}

/// A name as a step of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Resolves a reference against a base URI, as far as schemas need it.
fn joined(base: &str, reference: &str) -> String {
    let is_absolute = reference.contains("://") || reference.starts_with("urn:");
    if is_absolute || base.is_empty() {
        return reference.to_owned();
    }
    let scheme = base.find("://").map_or(0, |at| at + 3);
    let keep = match reference.starts_with('/') {
        true => base[scheme..].find('/').map_or(base.len(), |at| scheme + at),
        false => base[scheme..].rfind('/').map_or(base.len(), |at| scheme + at + 1),
    };
    format!("{}{reference}", &base[..keep])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: &Json) -> String {
        Cost::of(schema).map(|_| ()).expect_err("too much").message
    }

    #[test]
    fn a21_the_cost_of_a_schema_is_bounded_before_the_work() {
        let mut definitions = Map::new();
        for at in 0..20 {
            let next = json!({"$ref": format!("#/$defs/a{}", at + 1)});
            definitions.insert(format!("a{at}"), json!({"anyOf": [next, next]}));
        }
        definitions.insert("a20".to_owned(), json!({"type": "string"}));
        let bomb = json!({"$ref": "#/$defs/a0", "$defs": definitions});
        assert_eq!(refused(&bomb), "applies more than 10000 subschemas to one value");
        let chain: Map<String, Json> = (0..500)
            .map(|at| (format!("a{at}"), json!({"allOf": [{"$ref": format!("#/$defs/a{}", at + 1)}]})))
            .chain([("a500".to_owned(), json!(true))])
            .collect();
        let chain = json!({"$ref": "#/$defs/a0", "$defs": chain});
        assert_eq!(refused(&chain), "applies more than 64 subschemas within each other to one value");
        let endless = "applies a subschema to the same value without end, as its `$ref` leads back to it";
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"not": {"$ref": "#"}}),
            json!({"$id": "https://example.org/a", "anyOf": [{"$ref": "https://example.org/a"}]}),
            json!({"$id": "https://example.org/a", "anyOf": [{"$ref": "a#"}]}),
            json!({"$anchor": "me", "oneOf": [{"$ref": "#me"}]}),
            json!({"$recursiveRef": "#"}),
            json!({"$dynamicAnchor": "n", "$dynamicRef": "#n"}),
            json!({"$defs": {"a b": {"$ref": "#/$defs/a%20b"}}}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
        ] {
            assert_eq!(refused(&schema), endless, "{schema}");
        }
        let mut deep = json!(true);
        for _ in 0..150 {
            deep = json!({"properties": {"a": deep}});
        }
        assert_eq!(refused(&deep), "is nested deeper than 100 subschemas");
        let wide: Map<String, Json> = (0..6_000).map(|at| (at.to_string(), json!({"type": "string"}))).collect();
        assert_eq!(refused(&json!({"properties": wide})), "has more than 5000 subschemas");
    }

    #[test]
    fn a21_the_evaluations_of_a_document_are_counted() {
        let twice = json!({"anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]});
        let cost = Cost::of(&twice).expect("a schema");
        assert!(!cost.is_linear && cost.is_recursive);
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
        assert_eq!(cost.check_document(&nested(10)), Ok(()));
        let problem = cost.check_document(&nested(60)).expect_err("too much");
        assert!(problem.message.starts_with("takes more than 10"), "{problem}");
        let tree = json!({"properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#"}}}});
        let cost = Cost::of(&tree).expect("a schema");
        assert!(cost.is_linear && cost.is_recursive);
        let usual = json!({
            "$defs": {"base": {"properties": {"id": {"type": "string"}}}},
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"total": {"minimum": 0}}}],
            "properties": {"lines": {"items": {"properties": {"sku": {"type": "string"}}}}}
        });
        let cost = Cost::of(&usual).expect("a schema");
        assert!(cost.is_linear && !cost.is_recursive);
        assert_eq!(cost.count(&json!({"id": "a", "total": 1, "lines": [{"sku": "b"}, {}]}), 100), Ok(10));
    }
}
