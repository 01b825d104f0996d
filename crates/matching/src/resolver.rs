//! Conflict resolution predicates: CEL over both edits of a row and their common base.

use tocsin_model::{
    application::Application,
    collection::Resolver,
    field::{Field, FieldType, Fields},
    filter::{Dialect, Filter},
    problem::Problem,
};

use crate::filter::{self, compiled::CompiledFilter};

/// The fields of `event` in a predicate, in this order.
pub const SIDES: [&str; 3] = ["client", "server", "base"];

/// Parses and checks a predicate over [`SIDES`].
pub fn compile(text: &str) -> Result<CompiledFilter, Vec<Problem>> {
    let side = |name: &str| Field::new(name.parse().expect("a name"), FieldType::Map);
    filter::compile(&Filter::new(Dialect::Cel, text), &Fields::new(SIDES.map(side).to_vec()))
}

/// Checks the predicates of an application's collections.
pub fn check(application: &Application) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    for (name, collection) in &application.collections {
        let Resolver::Predicate(text) = &collection.conflicts.resolver else { continue };
        let path = format!("collections.{name}.conflicts.resolver.predicate");
        let found = compile(text).err().into_iter().flatten();
        problems.extend(found.map(|problem| Problem { path: path.clone(), ..problem }));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_invalid_predicate_is_reported_with_its_position() {
        let check = |predicate: &str| {
            let text = format!(
                "application: a\ncollections:\n  notes:\n    fields: {{ text: string }}\n    partition: everyone\n\
                 \x20   conflicts: {{ resolver: {{ predicate: \"{predicate}\" }} }}\n"
            );
            super::check(&tocsin_model::definition::read(&text, &|_| None).expect("a definition"))
        };
        assert_eq!(check("event.client.text > event.server.text"), Ok(()));
        let problems = check("event.client.text >").expect_err("it ends too early");
        assert_eq!(problems[0].path, "collections.notes.conflicts.resolver.predicate");
        assert!(problems[0].line.is_some(), "{problems:?}");
        assert!(check("event.clinet.text == 'a'").is_err());
    }
}
