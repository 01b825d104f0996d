//! SQL names for values beside fields: subscriber columns, which extend the subscription, and chronicle columns, which
//! extend the event.
//!
//! An expression path becomes a column name with `-` for each dot: `subscriber.attributes.region` is
//! `"subscriber-attributes-region"`, and `chronicle.day.high.before` is `"chronicle-day-high-before"`.
//!
//! Chronicles are tables as well, named `"quote.day"` after the event class and the chronicle.

use tocsin_model::{
    application::Application,
    field::{Field, Fields},
    id::Name,
};

use crate::{
    compiled_chronicle::{CompiledChronicle, all_columns, column_fields, compile_chronicles},
    sql_names::{CHRONICLE, chronicle_fields, field},
    subscriber::{PARTS, SubscriberColumns},
    user_functions::compile_functions,
};

pub use crate::sql_names::{QueriesRead, table_name};

/// A chronicle as a table.
#[derive(Debug, Clone, PartialEq)]
pub struct ChronicleTable {
    /// The table's name in queries.
    pub name: String,
    /// The fields of its key.
    pub key: Fields,
    /// The statistics, by name.
    pub statistics: Fields,
}

/// The tables of all chronicles of an application. A list or a map in a key is represented as JSON.
pub fn chronicle_tables(application: &Application) -> Vec<ChronicleTable> {
    let functions = compile_functions(&application.functions).unwrap_or_default();
    // Problems are reported when the rules are compiled.
    let of = |(class, event)| compile_chronicles(class, event, &functions).ok().map(|found| (class, found));
    let table = |(class, chronicle): (&Name, CompiledChronicle)| ChronicleTable {
        name: table_name(class, &chronicle.name),
        statistics: chronicle.statistics(),
        key: chronicle.key,
    };
    let all = application.events.iter().filter_map(of);
    all.flat_map(|(class, found)| found.into_iter().map(move |chronicle| (class, chronicle))).map(table).collect()
}

/// The application as queries see it: with additional fields at the end of its classes. These are subscriber columns if
/// it declares attributes, and chronicle columns for event classes with chronicles.
pub fn as_queries_see(application: &Application) -> Application {
    let mut seen = application.clone();
    let subscriber = subscriber_fields(application);
    for class in seen.subscriptions.values_mut() {
        // Values are assigned by position, so no column is left out.
        let mut fields: Vec<Field> = class.fields.iter().cloned().collect();
        for (at, own) in subscriber.iter().enumerate() {
            let is_taken = class.fields.position(own.name.as_str()).is_some();
            let other = is_taken.then(|| field(format!("subscriber-{at}-{at}"), own.kind)).flatten();
            fields.push(other.unwrap_or_else(|| own.clone()));
        }
        class.fields = Fields::new(fields);
    }
    let functions = compile_functions(&application.functions).unwrap_or_default();
    for (name, class) in &mut seen.events {
        // Problems are reported when the rules are compiled.
        let Ok(chronicles) = compile_chronicles(name, class, &functions) else { continue };
        let columns = chronicle_fields(&column_fields(&chronicles, &all_columns(&chronicles)));
        let is_new = |field: &&Field| class.fields.position(field.name.as_str()).is_none();
        let fields = class.fields.iter().chain(columns.iter().filter(is_new)).cloned().collect();
        class.fields = Fields::new(fields);
    }
    seen
}

/// Returns those of the fields that queries read which are not declared by the application. Fields are names of event
/// or subscription classes, each with the name of a field. `tables` are the names of the chronicle tables that they
/// read.
pub fn read_undeclared<'a>(
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

fn subscriber_fields(application: &Application) -> Fields {
    if application.attributes.is_empty() {
        return Fields::new(Vec::new());
    }
    let columns = SubscriberColumns::new(application.attributes.clone());
    let names = PARTS.iter().map(|part| format!("subscriber-{part}"));
    let attributes = application.attributes.iter().map(|attribute| format!("subscriber-attributes-{}", attribute.name));
    let fields = names.chain(attributes).zip(columns.kinds()).enumerate().filter_map(|(at, (name, kind))| {
        // Positions are fixed, so a column whose name is too long gets another name.
        field(name, kind).or_else(|| field(format!("subscriber-{at}"), kind))
    });
    Fields::new(fields.collect())
}
