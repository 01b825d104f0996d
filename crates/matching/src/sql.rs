//! What queries in SQL see beside fields, under names that are names of columns: who the subscriber is, as columns of the
//! subscription; what chronicles say, as columns of the event.
//!
//! A path of an expression becomes the name of a column with `-` for each dot: `subscriber.attributes.region` is
//! `"subscriber-attributes-region"`, and `chronicle.day.high.before` is `"chronicle-day-high-before"`.
//!
//! Chronicles are tables as well, one for each, called `"quote.day"` after the event class and the chronicle.

use std::collections::BTreeSet;

use tocsin_model::{
    application::Application,
    field::{Field, FieldType, Fields},
    id::Name,
};

use crate::{
    chronicle::compile::{CompiledChronicle, all_columns, column_fields, compile_chronicles},
    defined::Functions,
    subscriber::{PARTS, SubscriberColumns},
};

/// What stands before the name of a chronicle's column.
const CHRONICLE: &str = "chronicle-";

/// What the queries of an application read beside fields.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueriesRead {
    /// Whether they ask who subscribers are.
    pub subscribers: bool,
    /// What they read of chronicles: event classes, and names of columns as rule sets have them.
    pub chronicles: BTreeSet<(Name, Name)>,
    /// The chronicles that they read as tables: event classes, and names of chronicles.
    pub tables: BTreeSet<(Name, Name)>,
}

/// A chronicle as a table.
#[derive(Debug, Clone, PartialEq)]
pub struct ChronicleTable {
    /// What queries call it.
    pub name: String,
    /// The fields of its key.
    pub key: Fields,
    /// What it says of a key, by the names of statistics.
    pub says: Fields,
}

/// The name of a chronicle's table. No class is called so.
pub fn table_name(class: &Name, chronicle: &Name) -> String {
    format!("{class}.{chronicle}")
}

/// The tables of all chronicles of an application. A list or a map in a key is its JSON.
pub fn chronicle_tables(application: &Application) -> Vec<ChronicleTable> {
    let functions = Functions::compile(&application.functions).unwrap_or_default();
    // What is wrong with them is told where rules are compiled.
    let of = |(class, event)| compile_chronicles(class, event, &functions).ok().map(|found| (class, found));
    let table = |(class, chronicle): (&Name, CompiledChronicle)| ChronicleTable {
        name: table_name(class, &chronicle.name),
        says: chronicle.says(),
        key: chronicle.key,
    };
    let all = application.events.iter().filter_map(of);
    all.flat_map(|(class, found)| found.into_iter().map(move |chronicle| (class, chronicle))).map(table).collect()
}

/// The application with further fields at the end of its classes, as queries see it: those of subscribers where it declares
/// attributes, those of chronicles where an event class has any.
pub fn as_queries_see(application: &Application) -> Application {
    let mut seen = application.clone();
    let subscriber = subscriber_fields(application);
    for class in seen.subscriptions.values_mut() {
        // Their values are given by place, so none is left out.
        let mut fields: Vec<Field> = class.fields.iter().cloned().collect();
        for (at, own) in subscriber.iter().enumerate() {
            let is_taken = class.fields.position(own.name.as_str()).is_some();
            let other = is_taken.then(|| field(format!("subscriber-{at}-{at}"), own.kind)).flatten();
            fields.push(other.unwrap_or_else(|| own.clone()));
        }
        class.fields = Fields::new(fields);
    }
    let functions = Functions::compile(&application.functions).unwrap_or_default();
    for (name, class) in &mut seen.events {
        // What is wrong with them is told where rules are compiled.
        let Ok(chronicles) = compile_chronicles(name, class, &functions) else { continue };
        let columns = chronicle_fields(&column_fields(&chronicles, &all_columns(&chronicles)));
        let is_new = |field: &&Field| class.fields.position(field.name.as_str()).is_none();
        let fields = class.fields.iter().chain(columns.iter().filter(is_new)).cloned().collect();
        class.fields = Fields::new(fields);
    }
    seen
}

/// Which of the fields that queries read are not the application's own: names of event classes and of subscription
/// classes, each with the name of a field. `tables` are the names of the chronicles' tables that they read.
pub fn read_beside<'a>(
    application: &Application,
    events: impl Iterator<Item = (&'a Name, &'a Name)>,
    subscriptions: impl Iterator<Item = (&'a Name, &'a Name)>,
    tables: impl Iterator<Item = &'a str>,
) -> QueriesRead {
    let is_own = |fields: Option<&Fields>, name: &Name| fields.is_some_and(|own| own.position(name.as_str()).is_some());
    let parts = |table: &str| {
        let (class, chronicle) = table.split_once('.')?;
        Some((class.parse().ok()?, chronicle.parse().ok()?))
    };
    let mut read = QueriesRead { tables: tables.filter_map(parts).collect(), ..QueriesRead::default() };
    for (class, field) in subscriptions {
        let own = application.subscriptions.get(class).map(|class| &class.fields);
        read.subscribers |= !is_own(own, field);
    }
    for (class, field) in events {
        let own = application.events.get(class).map(|class| &class.fields);
        let column = field.as_str().strip_prefix(CHRONICLE).and_then(|column| column.parse().ok());
        if let (false, Some(column)) = (is_own(own, field), column) {
            read.chronicles.insert((class.clone(), column));
        }
    }
    read
}

/// The columns of chronicles as queries name them.
pub(crate) fn chronicle_fields(columns: &Fields) -> Fields {
    // One whose name would be too long cannot be read.
    let named = |column: &Field| field(format!("{CHRONICLE}{}", column.name), column.kind);
    Fields::new(columns.iter().filter_map(named).collect())
}

fn subscriber_fields(application: &Application) -> Fields {
    if application.attributes.is_empty() {
        return Fields::new(Vec::new());
    }
    let columns = SubscriberColumns::new(application.attributes.clone());
    let names = PARTS.iter().map(|part| format!("subscriber-{part}"));
    let attributes = application.attributes.iter().map(|attribute| format!("subscriber-attributes-{}", attribute.name));
    let fields = names.chain(attributes).zip(columns.kinds()).enumerate().filter_map(|(at, (name, kind))| {
        // Each has its place, so one with a name that is too long has another name.
        field(name, kind).or_else(|| field(format!("subscriber-{at}"), kind))
    });
    Fields::new(fields.collect())
}

fn field(name: String, kind: FieldType) -> Option<Field> {
    Some(Field::new(name.parse().ok()?, kind))
}
