//! Compiles declarations of chronicles into expressions and columns.

use std::time::Duration;

use tocsin_model::{
    application::{Application, EventClass, Rule},
    chronicle::{Chronicle, SLIDES, Statistic, Window},
    field::{Field, FieldType, Fields},
    filter::Dialect,
    id::Name,
    problem::{Code, Problem},
};

use crate::{
    check::{
        compile, compile_predicate,
        scope::{Scope, Subject},
    },
    chronicle_names::column_name,
    chronicle_span::Span,
    digest::digest,
    expression::{Expression, Kind, Type, UserFunctions},
    sql_names::QueriesRead,
    subscriber::SubscriberColumns,
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
