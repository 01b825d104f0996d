//! Compiles declarations of chronicles into expressions and columns.

use std::{collections::BTreeSet, time::Duration};

use jiff::tz::TimeZone;
use tocsin_model::{
    application::{Application, EventClass, Rule},
    chronicle::{Calendar, Chronicle, SLIDES, Statistic, Window},
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};

use crate::{
    check::{Scope, Subject, compile, compile_predicate},
    expression::{Expression, Kind, Type},
    sql::QueriesRead,
    state::compile::digest,
    subscriber::SubscriberColumns,
    user_functions::UserFunctions,
};

/// A compiled chronicle.
#[derive(Debug)]
pub(crate) struct CompiledChronicle {
    pub name: Name,
    /// The indexes of the key's fields.
    pub by: Vec<usize>,
    pub key: Fields,
    pub of: Option<Expression>,
    /// The type of `of`.
    pub kind: Option<FieldType>,
    pub when: Option<Expression>,
    pub time: Option<Expression>,
    pub reset: Option<Expression>,
    pub span: Span,
    pub keys: usize,
    /// Whether queries read it as a table.
    pub tabled: bool,
    /// Fingerprint of the definition; stored entries are valid only for an equal one.
    pub signature: u64,
    pub explained: String,
}

impl CompiledChronicle {
    /// The statistics that rules can read.
    pub fn readable_statistics(&self) -> impl Iterator<Item = Statistic> + '_ {
        Statistic::ALL.into_iter().filter(|statistic| kind_of(*statistic, self.kind).is_some())
    }

    /// The statistics, as fields.
    pub fn statistics(&self) -> Fields {
        let field = |statistic: Statistic| {
            let name = statistic.name().parse().expect("the name of a statistic is one");
            Some(Field::new(name, kind_of(statistic, self.kind)?))
        };
        Fields::new(self.readable_statistics().filter_map(field).collect())
    }
}

/// A window; maps a time to one of its parts.
#[derive(Debug)]
pub(crate) enum Span {
    Always,
    /// By the width of a part, in microseconds.
    Sliding(i64),
    Calendar(Calendar, TimeZone),
}

impl Span {
    /// The part that contains a time. Later times are in the same part or in one with a higher number.
    pub fn part(&self, at: i64) -> i64 {
        match self {
            Span::Always => 0,
            Span::Sliding(width) => at.div_euclid(*width),
            Span::Calendar(calendar, zone) => calendar.begin(zone, Timestamp(at)).0,
        }
    }

    /// The first part in the window where another is the current one.
    pub fn first(&self, present: i64) -> i64 {
        match self {
            Span::Always => 0,
            Span::Sliding(_) => present.saturating_sub(SLIDES),
            Span::Calendar(..) => present,
        }
    }
}

/// A column behind the fields of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    /// The index of the chronicle in its class.
    pub chronicle: usize,
    pub statistic: Statistic,
    pub after: bool,
}

/// The type of a statistic over values of a type, if it is defined. `of` is `None` for a chronicle without a value.
pub(crate) fn kind_of(statistic: Statistic, of: Option<FieldType>) -> Option<FieldType> {
    use FieldType::{Integer, Number, String, Timestamp};
    match statistic {
        Statistic::Count => Some(Integer),
        Statistic::LastAt => Some(Timestamp),
        Statistic::Last | Statistic::Previous | Statistic::First => of,
        Statistic::Low | Statistic::High => of.filter(|kind| matches!(kind, Integer | Number | String | Timestamp)),
        Statistic::Sum => of.filter(|kind| matches!(kind, Integer | Number)),
        Statistic::Mean => of.filter(|kind| matches!(kind, Integer | Number)).map(|_| Number),
    }
}

/// The name of a column. No field has a name like this, since expressions could not spell it.
fn column_name(chronicle: &str, statistic: &str, moment: &str) -> String {
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

/// Compiles the chronicles of an event class.
///
/// # Errors
/// Every problem, with its path.
pub(crate) fn compile_chronicles(
    class: &Name,
    event: &EventClass,
    functions: &UserFunctions,
) -> Result<Vec<CompiledChronicle>, Vec<Problem>> {
    let scope = Scope { event: event.fields.clone(), functions: functions.clone(), ..Scope::default() };
    let (mut compiled, mut problems) = (Vec::new(), Vec::new());
    for (name, chronicle) in &event.chronicles {
        match compile_chronicle(name, chronicle, &scope) {
            Ok(chronicle) => compiled.push(chronicle),
            Err(found) => problems.extend(found.into_iter().map(|problem| {
                let path = format!("events.{class}.chronicles.{name}.{}", problem.path);
                Problem { path, ..problem }
            })),
        }
    }
    if problems.is_empty() { Ok(compiled) } else { Err(problems) }
}

fn compile_chronicle(name: &Name, chronicle: &Chronicle, scope: &Scope) -> Result<CompiledChronicle, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut at = |key: &str, source: &Option<String>, compile: &dyn Fn(&str) -> Result<Expression, Vec<Problem>>| {
        let compiled = compile(source.as_deref()?);
        let placed = |problem| Problem { path: key.to_owned(), ..problem };
        compiled.map_err(|found| problems.extend(found.into_iter().map(placed))).ok()
    };
    let predicate = |source: &str| compile_predicate(source, scope);
    let of = at("of", &chronicle.of, &|source| compile_value(source, scope));
    let when = at("when", &chronicle.when, &predicate);
    let time = at("time", &chronicle.time, &|source| compile_time(source, scope));
    let reset = at("reset", &chronicle.reset, &predicate);
    let span = match &chronicle.window {
        Window::Always => Span::Always,
        Window::Sliding(window) => Span::Sliding(width(*window)),
        Window::Calendar(calendar) => match calendar.zone() {
            Some(zone) => Span::Calendar(calendar.clone(), zone),
            None => {
                let problem = Problem::unknown_time_zone("window.time_zone", &calendar.time_zone);
                problems.push(problem.hint("give a name of the IANA database, such as `Europe/Vienna`"));
                Span::Always
            }
        },
    };
    let mut by = Vec::with_capacity(chronicle.by.len());
    for field in &chronicle.by {
        match scope.event.position(field.as_str()) {
            Some(at) => by.push(at),
            None => problems.push(Problem { path: "by".to_owned(), ..scope.event.unknown(field.as_str()) }),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let key = Fields::new(by.iter().map(|at| scope.event[*at].clone()).collect());
    let kind = of.as_ref().and_then(|of| field_type(&of.kind_of_value));
    let kinds: Vec<&str> = key.iter().map(|field| field.kind.name()).chain(kind.map(FieldType::name)).collect();
    let Chronicle { by: names, of: value, when: only, time: at, window, reset: anew, .. } = chronicle;
    // Stored entries stay valid as long as this text is equal.
    let meaning = format!("{names:?} {kinds:?} {value:?} {only:?} {at:?} {window:?} {anew:?}");
    Ok(CompiledChronicle {
        name: name.clone(),
        by,
        key,
        of,
        kind,
        when,
        time,
        reset,
        span,
        keys: chronicle.keys.max(1) as usize,
        tabled: false,
        signature: digest(meaning.as_bytes()),
        explained: explained(chronicle),
    })
}

fn explained(chronicle: &Chronicle) -> String {
    let mut said = match &chronicle.of {
        Some(of) => format!("follows {of}"),
        None => "counts events".to_owned(),
    };
    if !chronicle.by.is_empty() {
        let names: Vec<&str> = chronicle.by.iter().map(Name::as_str).collect();
        said.push_str(&format!(" by {}", names.join(", ")));
    }
    match &chronicle.window {
        Window::Always => {}
        Window::Sliding(window) => {
            said.push_str(&format!(" over {}", tocsin_model::definition::write_duration(*window)));
        }
        Window::Calendar(calendar) => said.push_str(&format!(", anew {calendar}")),
    }
    said
}

/// The width of a part of a sliding window.
fn width(window: Duration) -> i64 {
    let parts = u128::try_from(SLIDES).expect("SLIDES is positive");
    i64::try_from(window.as_micros() / parts).unwrap_or(i64::MAX).max(1)
}

/// The type of a field that can store the value of an expression.
fn field_type(kind: &Type) -> Option<FieldType> {
    Some(match kind {
        Type::Boolean => FieldType::Boolean,
        Type::Integer => FieldType::Integer,
        Type::Number => FieldType::Number,
        Type::Text => FieldType::String,
        Type::Timestamp => FieldType::Timestamp,
        _ => return None,
    })
}

fn compile_value(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let expression = compile(source, scope)?;
    if field_type(&expression.kind_of_value).is_some() {
        return Ok(expression);
    }
    let message = format!(
        "the expression gives {}; a chronicle follows a boolean, an integer, a number, a string or a timestamp",
        expression.kind_of_value
    );
    let problem = expression.span.problem(Code::InvalidExpression, source, message);
    Err(vec![problem.hint("convert it, such as by `double(...)`, `int(...)` or `string(...)`")])
}

fn compile_time(source: &str, scope: &Scope) -> Result<Expression, Vec<Problem>> {
    let expression = compile(source, scope)?;
    if expression.kind_of_value == Type::Timestamp {
        return Ok(expression);
    }
    let problem = expression.span.problem(
        Code::TypeMismatch,
        source,
        format!("the expression gives {}, not a timestamp", expression.kind_of_value),
    );
    Err(vec![problem.hint("name a field of type timestamp, or convert it by `timestamp(...)`")])
}

/// All columns that the chronicles of a class define.
pub(crate) fn all_columns(chronicles: &[CompiledChronicle]) -> Vec<Column> {
    let of = |at: usize| {
        let given =
            Statistic::ALL.into_iter().filter(move |statistic| kind_of(*statistic, chronicles[at].kind).is_some());
        given.flat_map(move |statistic| [false, true].map(|after| Column { chronicle: at, statistic, after }))
    };
    (0..chronicles.len()).flat_map(of).collect()
}

/// Columns as fields.
pub(crate) fn column_fields(chronicles: &[CompiledChronicle], columns: &[Column]) -> Fields {
    let field = |Column { chronicle, statistic, after }: &Column| {
        let chronicle = &chronicles[*chronicle];
        let moment = if *after { "after" } else { "before" };
        let name = column_name(chronicle.name.as_str(), statistic.name(), moment);
        Some(Field::new(name.parse().expect("the name of a chronicle is short"), kind_of(*statistic, chronicle.kind)?))
    };
    Fields::new(columns.iter().filter_map(field).collect())
}

/// The columns that the rules of the application read. All columns, if a rule has problems, so that no further problems
/// follow from them.
pub(crate) fn columns_read(
    application: &Application,
    class: &Name,
    chronicles: &[CompiledChronicle],
    functions: &UserFunctions,
    queries: &QueriesRead,
) -> Vec<Column> {
    let all = all_columns(chronicles);
    let Some(event) = application.events.get(class).filter(|_| !all.is_empty()) else { return Vec::new() };
    let mut classes = application.rules.values().filter(|rule| rule.on == *class).map(|rule| &rule.subscription);
    let in_cel = |name: &Name| application.subscriptions.get(name).is_some_and(|it| it.filter.contains(&Dialect::Cel));
    if classes.any(in_cel) {
        // Filters can read any column.
        return all;
    }
    let chronicled = column_fields(chronicles, &all);
    let first = event.fields.len();
    let by_queries = |field: &Field| queries.chronicles.contains(&(class.clone(), field.name.clone()));
    let mut read: Vec<bool> = chronicled.iter().map(by_queries).collect();
    for rule in application.rules.values().filter(|rule| rule.on == *class) {
        let subscription = application.subscriptions.get(&rule.subscription).map(|class| class.fields.clone());
        let scope = Scope {
            subject: Subject::Event,
            event: event.fields.clone(),
            subscription: subscription.unwrap_or_default(),
            subscriber: Some(SubscriberColumns::new(application.attributes.clone())),
            functions: functions.clone(),
            chronicled: chronicled.clone(),
            variables: Vec::new(),
        };
        for source in sources(rule) {
            let Ok(expression) = compile(source, &scope) else { return all };
            expression.visit(&mut |part| {
                if let Kind::Event(at) = part.kind
                    && let Some(read) = at.checked_sub(first).and_then(|at| read.get_mut(at))
                {
                    *read = true;
                }
            });
        }
    }
    all.into_iter().zip(read).filter_map(|(column, read)| read.then_some(column)).collect()
}

/// All CEL sources of a rule.
fn sources(rule: &Rule) -> impl Iterator<Item = &str> {
    let state = [&rule.when, &rule.state.per, &rule.state.changed, &rule.state.rearm];
    state
        .into_iter()
        .flatten()
        .chain(rule.with.values())
        .map(String::as_str)
        .filter(|source| source.contains("chronicle"))
}
