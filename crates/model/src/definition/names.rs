//! Name clashes: names that become SQLite tables and columns, in replicas and for rules in SQL, and attributes of the
//! directory. All of these ignore case.

use std::collections::BTreeMap;

use crate::{
    application::Application,
    field::Fields,
    id::Name,
    problem::{Code, Problem},
};

/// Prefix of table names that SQLite reserves.
const RESERVED: &str = "sqlite_";

/// Names of an application that clash as tables, columns or attributes.
pub fn name_clashes(application: &Application) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut tables = Names::of("a table of each replica");
    for (name, collection) in &application.collections {
        let path = format!("collections.{name}");
        tables.add_table(&path, name, &mut problems);
        let mut columns = Names::of("a column of its table in each replica");
        columns.reserve("id", "every row has an id of its own");
        columns.add_fields(&format!("{path}.fields"), &collection.fields, &mut problems);
    }
    let has_queries = application.rules.values().any(|rule| rule.sql.is_some());
    let mut tables = Names::of("a table for rules in SQL");
    if has_queries {
        tables.reserve("events", "rules in SQL see the events of a batch under this name");
    }
    for (name, class) in &application.subscriptions {
        let path = format!("subscriptions.{name}");
        match has_queries {
            true => tables.add_table(&path, name, &mut problems),
            false => tables.add(&path, name, &mut problems),
        }
        Names::of("a column for rules in SQL").add_fields(&format!("{path}.fields"), &class.fields, &mut problems);
    }
    // The table of a chronicle is named after its event class.
    let mut classes = Names::of("a part of names of tables for rules in SQL");
    for (name, class) in &application.events {
        let path = format!("events.{name}");
        let fields = format!("{path}.fields");
        Names::of("a column for rules in SQL").add_fields(&fields, &class.fields, &mut problems);
        let mut columns = Names::of("a part of columns for rules in SQL");
        for chronicle in class.chronicles.keys() {
            columns.add(&format!("{path}.chronicles.{chronicle}"), chronicle, &mut problems);
        }
        if !class.chronicles.is_empty() {
            classes.add(&path, name, &mut problems);
        }
    }
    Names::of("an attribute of subscribers").add_fields("attributes", &application.attributes, &mut problems);
    problems
}

/// Names that must differ without regard to case.
struct Names {
    kind: &'static str,
    known: BTreeMap<String, KnownName>,
}

enum KnownName {
    /// Another name of the application.
    Name(String),
    /// A reserved name, and the reason.
    Reserved(&'static str),
}

impl Names {
    fn of(kind: &'static str) -> Names {
        Names { kind, known: BTreeMap::new() }
    }

    fn reserve(&mut self, name: &str, why: &'static str) {
        self.known.insert(name.to_owned(), KnownName::Reserved(why));
    }

    fn add_fields(&mut self, path: &str, fields: &Fields, problems: &mut Vec<Problem>) {
        for field in fields.iter() {
            self.add(&format!("{path}.{}", field.name), &field.name, problems);
        }
    }

    fn add_table(&mut self, path: &str, name: &Name, problems: &mut Vec<Problem>) {
        if name.as_str().to_ascii_lowercase().starts_with(RESERVED) {
            let message = format!("`{name}` is {}; SQLite keeps names that begin with `{RESERVED}`", self.kind);
            problems.push(Problem::new(Code::ReservedName, path, message).hint("choose another name"));
        }
        self.add(path, name, problems);
    }

    fn add(&mut self, path: &str, name: &Name, problems: &mut Vec<Problem>) {
        let (kind, folded) = (self.kind, name.as_str().to_ascii_lowercase());
        let message = match self.known.get(&folded) {
            Some(KnownName::Name(other)) => {
                format!(
                    "`{name}` and `{other}` differ by case alone; each is {kind}, and these are compared without case"
                )
            }
            Some(KnownName::Reserved(why)) => format!("`{name}` is {kind}, and that name is taken: {why}"),
            None => {
                self.known.insert(folded, KnownName::Name(name.to_string()));
                return;
            }
        };
        problems.push(Problem::new(Code::Duplicate, path, message).hint("choose another name"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(definition: &str, expected: &[&str]) {
        let text = format!("application: shop\n{definition}");
        let application = super::super::read(&text, &|_: &str| None).expect("a definition");
        let found: Vec<String> = name_clashes(&application).iter().map(|problem| problem.path.clone()).collect();
        assert_eq!(found, expected, "{definition}");
    }

    #[test]
    fn b24_names_that_sqlite_cannot_hold_beside_each_other_are_refused() {
        let one = "{ fields: { text: string }, partition: everyone }";
        check(&format!("collections: {{ good: {one}, notes: {one} }}"), &[]);
        check(&format!("collections: {{ Good: {one}, good: {one} }}"), &["collections.good"]);
        check(
            &format!("collections: {{ sqlite_x: {one}, SQLITE_y: {one} }}"),
            &["collections.SQLITE_y", "collections.sqlite_x"],
        );
        check(
            "collections: { notes: { fields: { Name: string, name: string, ID: string, rowid: integer, select: string, sqlite_a: string }, partition: everyone } }",
            &["collections.notes.fields.name", "collections.notes.fields.ID"],
        );
    }

    #[test]
    fn b24_names_of_classes_fields_chronicles_and_attributes_differ_by_more_than_case() {
        let classes = "events:\n  trade: { fields: { Price: number, price: number }, chronicles: { day: { of: Price }, DAY: { of: Price } } }\n\
                       attributes: { Region: string, region: string }\n\
                       subscriptions:\n  watch: { fields: { limit: number, LIMIT: number } }\n  Watch: {}\n  Events: {}\n  sqlite_w: {}\n\
                       notifications: { note: { content: { templates: { base: { text: hello } } } } }\n";
        let always = [
            "subscriptions.watch",
            "subscriptions.watch.fields.LIMIT",
            "events.trade.fields.price",
            "events.trade.chronicles.day",
            "attributes.region",
        ];
        let rule = "rules: { near: { on: trade, subscription: watch, when: event.price > 1.0, notify: note } }";
        check(&format!("{classes}{rule}\n"), &always);
        // Some names are reserved only where rules in SQL see them.
        let rule = "rules: { near: { on: trade, subscription: watch, sql: 'SELECT 1', notify: note } }";
        let more = [&["subscriptions.Events", "subscriptions.sqlite_w"], &always[..]].concat();
        let mut found = more.clone();
        found.sort_unstable();
        let text = format!("application: shop\n{classes}{rule}\n");
        let application = super::super::read(&text, &|_: &str| None).expect("a definition");
        let mut paths: Vec<String> = name_clashes(&application).into_iter().map(|problem| problem.path).collect();
        paths.sort_unstable();
        assert_eq!(paths, found);
    }
}
