//! Parts of a definition that have problems, so that a check can continue with the other parts and report no follow-on
//! problems: a reference to a broken part is not reported as well.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::language::APPLICATION;
use crate::{
    application::Application,
    definition::shape::Shape,
    problem::{Code, Problem, closest},
};

/// Sections whose entries others name.
const NAMED: [&str; 6] = ["events", "subscriptions", "notifications", "partials", "functions", "attributes"];

/// Parts with problems.
#[derive(Debug, Default)]
pub struct BrokenParts {
    /// Section and name of each broken entry.
    entries: BTreeSet<(String, String)>,
    /// Paths and names of broken fields. The other fields of their class are usable.
    fields: BTreeSet<(String, String)>,
    /// Paths of broken parts of templates. The other parts of their class are usable.
    templates: BTreeSet<String>,
    /// Sections whose key is misspelt.
    sections: BTreeSet<&'static str>,
}

impl BrokenParts {
    /// Broken parts by the problems of a definition.
    pub fn of(problems: &[Problem]) -> BrokenParts {
        let mut broken = BrokenParts::default();
        for problem in problems {
            let mut keys = problem.path.split('.');
            let section = keys.next().unwrap_or_default();
            let Some(name) = keys.next() else {
                if problem.code == Code::UnknownMember {
                    broken.sections.extend(closest(section, sections()));
                }
                continue;
            };
            match (keys.next(), keys.next()) {
                (Some("fields"), Some(field)) => {
                    let field = field.split('[').next().unwrap_or_default();
                    let path = format!("{section}.{name}.fields.{field}");
                    broken.fields.insert((path, field.to_owned()));
                }
                (Some("content"), Some("templates")) => {
                    let place: Vec<&str> = problem.path.split('.').take(6).collect();
                    broken.templates.insert(place.join("."));
                }
                _ => {
                    broken.entries.insert((section.to_owned(), name.split('[').next().unwrap_or_default().to_owned()));
                }
            }
        }
        broken
    }

    /// Removes problems that follow from others: names of entries in a misspelt section, and of broken fields.
    pub fn without_follow_ons(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let is_follow_on = |problem: &Problem| {
            let kind = problem.params.get("kind").and_then(Json::as_str).unwrap_or_default();
            let is_in_section =
                |section: &&str| kind.replace(['_', ' '], "").starts_with(&section[..section.len() - 1]);
            problem.code == Code::UnknownReference && self.sections.iter().any(|section| is_in_section(section))
                || self.names_broken_field(problem)
        };
        problems.into_iter().filter(|problem| !is_follow_on(problem)).collect()
    }

    /// The application without its broken rules, sources and collections, and without those that name a broken part.
    pub fn sound(&self, mut application: Application) -> Application {
        if self.entries.is_empty() {
            return application;
        }
        let is_sound = |section: &str, name: &str, entry: Json| {
            !self.entries.contains(&(section.to_owned(), name.to_owned())) && !self.names_broken_entry(&entry)
        };
        application.rules.retain(|name, rule| is_sound("rules", name.as_str(), json(rule)));
        application.sources.retain(|name, source| is_sound("sources", name.as_str(), json(source)));
        application.collections.retain(|name, collection| is_sound("collections", name.as_str(), json(collection)));
        application
    }

    /// Whether a problem of a later stage follows from a broken part.
    pub fn explain(&self, application: &Application, problem: &Problem) -> bool {
        let mut keys = problem.path.split('.');
        let section = keys.next().unwrap_or_default();
        let name = keys.next().unwrap_or_default().split('[').next().unwrap_or_default();
        self.entries.contains(&(section.to_owned(), name.to_owned()))
            || self.templates.iter().any(|place| problem.path.starts_with(place))
            || self.names_broken_field(problem)
            || !self.entries.is_empty() && self.names_broken_entry(&json(application)[section][name])
    }

    fn names_broken_field(&self, problem: &Problem) -> bool {
        let names = |(path, field): &(String, String)| {
            let is_own = problem.path == *path || problem.path.starts_with(&format!("{path}."));
            let mut quoted = problem.message.split('`').skip(1).step_by(2);
            !is_own && quoted.any(|quoted| words(quoted).any(|word| word == field))
        };
        self.fields.iter().any(names)
    }

    fn names_broken_entry(&self, value: &Json) -> bool {
        let broken = |word: &str| {
            let is_broken = |section: &&str| self.entries.contains(&((*section).to_owned(), word.to_owned()));
            NAMED.iter().any(|section| is_broken(section))
        };
        match value {
            Json::String(text) => words(text).any(broken),
            Json::Array(items) => items.iter().any(|item| self.names_broken_entry(item)),
            Json::Object(members) => members.iter().any(|(name, value)| broken(name) || self.names_broken_entry(value)),
            _ => false,
        }
    }
}

/// Keys of the sections of a definition.
fn sections() -> impl Iterator<Item = &'static str> {
    let Shape::Object(keys) = &APPLICATION else { unreachable!("a definition is an object") };
    keys.iter().map(|key| key.name)
}

fn json(value: &impl serde::Serialize) -> Json {
    serde_json::to_value(value).expect("a definition is always JSON")
}

/// The words of an expression or a message.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-'))).filter(|word| !word.is_empty())
}
