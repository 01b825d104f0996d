//! Names of chronicle columns, and their spelling in expressions.

use std::collections::BTreeSet;

use tocsin_model::field::{Field, Fields};

/// The name of a column. No field has a name like this, since expressions could not spell it.
pub(crate) fn column_name(chronicle: &str, statistic: &str, moment: &str) -> String {
    format!("{chronicle}-{statistic}-{moment}")
}

/// The column of a path such as `chronicle.day.high.before`.
pub(crate) fn column_of(path: &str) -> Option<String> {
    let mut parts = path.strip_prefix("chronicle.")?.split('.');
    let (chronicle, statistic, moment) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then(|| column_name(chronicle, statistic, moment))
}

/// The path of a column in expressions, if the name is that of one.
pub(crate) fn column_path(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('-').collect();
    matches!(parts[..], [_, _, "before" | "after"]).then(|| format!("chronicle.{}", parts.join(".")))
}

/// The spelling of a field or column in expressions.
pub(crate) fn spelling(name: &str) -> String {
    if name.contains('-') { format!("chronicle.{}", name.replace('-', ".")) } else { format!("event.{name}") }
}

/// The problem and hint for the path of an unknown column.
pub(crate) fn unknown_column(path: &str, columns: &Fields) -> (String, String) {
    let mut parts = path.split('.').skip(1);
    let (chronicle, statistic, moment) = (parts.next().unwrap_or_default(), parts.next(), parts.next());
    let apart = |field: &Field| -> Option<(String, String)> {
        let (chronicle, rest) = field.name.as_str().split_once('-')?;
        Some((chronicle.to_owned(), rest.split_once('-')?.0.to_owned()))
    };
    let known: Vec<(String, String)> = columns.iter().filter_map(apart).collect();
    let listed = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    let names: BTreeSet<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
    if names.is_empty() {
        let hint = "declare it below `chronicles` of the event class".to_owned();
        return ("the event class has no chronicles".to_owned(), hint);
    }
    if !names.contains(chronicle) {
        let hint = match tocsin_model::problem::closest(chronicle, names.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("its chronicles are {}", listed(names)),
        };
        return (format!("the event class has no chronicle `{chronicle}`"), hint);
    }
    let given: BTreeSet<&str> =
        known.iter().filter(|(name, _)| name == chronicle).map(|(_, statistic)| statistic.as_str()).collect();
    let Some(statistic) = statistic else {
        let example = given.iter().next().copied().unwrap_or("count");
        let hint = format!("name what it gives, such as `chronicle.{chronicle}.{example}.before`: {}", listed(given));
        return (format!("`{path}` names a group, not a value"), hint);
    };
    if !given.contains(statistic) {
        let hint = match tocsin_model::problem::closest(statistic, given.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("it gives {}", listed(given)),
        };
        return (format!("the chronicle `{chronicle}` gives no `{statistic}`"), hint);
    }
    let said = match moment {
        Some(moment) => format!("`{moment}` is neither `before` nor `after`"),
        None => "the path does not say `before` or `after`".to_owned(),
    };
    let hint = format!("write `chronicle.{chronicle}.{statistic}.before` or `.after`");
    (said, hint)
}
