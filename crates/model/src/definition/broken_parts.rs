//! Parts of a definition that have problems, so that a check can continue with the other parts and report no follow-on
//! problems: a reference to a broken part is not reported as well.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use super::language::APPLICATION;
use crate::{
    application::Application,
    definition::{PROBLEMS_MAX, shape::Shape},
    id::Name,
    problem::{Code, Problem, closest},
};

/// Sections whose entries others name.
const NAMED: [&str; 6] = ["events", "subscriptions", "notifications", "partials", "functions", "attributes"];

/// Keys of a rule that describe its notifications.
const OUTPUT_KEYS: [&str; 2] = ["notify", "with"];

/// Parts with problems.
#[derive(Debug, Default)]
pub struct BrokenParts {
    /// Section and name of each broken entry.
    entries: BTreeSet<(String, String)>,
    /// Names of broken fields, each with its paths. The other fields of their class are usable.
    fields: BTreeMap<String, BTreeSet<String>>,
    /// Paths of broken parts of templates. The other parts of their class are usable.
    templates: BTreeSet<String>,
    /// Paths of broken keys of rules on which the predicate does not depend. The other keys of their rule are usable.
    rule_keys: BTreeSet<String>,
    /// Sections whose key is misspelt, or that are not YAML.
    sections: BTreeSet<&'static str>,
}

impl BrokenParts {
    /// Broken parts by the problems of a definition.
    pub fn of(problems: &[Problem]) -> BrokenParts {
        let mut broken = BrokenParts::default();
        let mut unknown = 0;
        for problem in problems {
            let mut keys = problem.path.split('.');
            let section = keys.next().unwrap_or_default();
            let Some(name) = keys.next() else {
                // No more problems are reported than these, so further ones are not compared.
                if problem.code == Code::UnknownMember && unknown < PROBLEMS_MAX {
                    unknown += 1;
                    broken.sections.extend(closest(section, sections()));
                }
                continue;
            };
            match (keys.next(), keys.next()) {
                (Some("fields"), Some(field)) => {
                    let field = field.split('[').next().unwrap_or_default();
                    let path = format!("{section}.{name}.fields.{field}");
                    broken.fields.entry(field.to_owned()).or_default().insert(path);
                }
                (Some("content"), Some("templates")) => {
                    let place: Vec<&str> = problem.path.split('.').take(6).collect();
                    broken.templates.insert(place.join("."));
                }
                (Some(key), _) if section == "rules" && OUTPUT_KEYS.contains(&key) => {
                    broken.rule_keys.insert(format!("{section}.{name}.{key}"));
                }
                _ => {
                    broken.entries.insert((section.to_owned(), name.split('[').next().unwrap_or_default().to_owned()));
                }
            }
        }
        broken
    }

    /// Adds sections that were left out, because they are not YAML.
    pub(super) fn leave_out(&mut self, left_out: &[String]) {
        self.sections.extend(sections().filter(|section| left_out.iter().any(|name| name == section)));
    }

    /// Removes problems that follow from others: names of entries in a misspelt section, and of broken fields.
    pub fn without_follow_ons(&self, problems: Vec<Problem>) -> Vec<Problem> {
        let is_follow_on = |problem: &Problem| {
            let kind = problem.params.get("kind").and_then(Json::as_str).unwrap_or_default();
            let is_in_section =
                |section: &&str| kind.replace(['_', ' '], "").starts_with(&section[..section.len() - 1]);
            problem.code == Code::UnknownReference && self.sections.iter().any(is_in_section)
                || self.names_broken_field(problem)
        };
        problems.into_iter().filter(|problem| !is_follow_on(problem)).collect()
    }

    /// The application without its broken rules, sources and collections, and without those that name a broken part.
    pub fn sound(&self, mut application: Application) -> Application {
        // The query of a rule is checked against the fields of its notifications.
        application.rules.retain(|name, rule| rule.sql.is_none() || !self.has_broken_key(name));
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

    /// Removes problems of a later stage that follow from a broken part. Reads each entry of the application once,
    /// however many problems it has.
    pub fn remove_explained(&self, application: &Application, problems: &mut Vec<Problem>) {
        let is_needed = !self.entries.is_empty() && !problems.is_empty();
        let definition = if is_needed { json(application) } else { Json::Null };
        let mut known: BTreeMap<(String, String), bool> = BTreeMap::new();
        problems.retain(|problem| {
            let mut keys = problem.path.split('.');
            let section = keys.next().unwrap_or_default();
            let name = keys.next().unwrap_or_default().split('[').next().unwrap_or_default();
            let entry = (section.to_owned(), name.to_owned());
            let is_explained = self.entries.contains(&entry)
                || self.is_in_broken_template(&problem.path)
                || self.is_in_broken_key(&problem.path)
                || self.names_broken_field(problem)
                || *known.entry(entry).or_insert_with(|| self.names_broken_entry(&definition[section][name]));
            !is_explained
        });
    }

    fn is_in_broken_template(&self, path: &str) -> bool {
        let mut ends = path.match_indices(['.', '[']).map(|(at, _)| at).chain([path.len()]);
        ends.any(|end| self.templates.contains(&path[..end]))
    }

    fn is_in_broken_key(&self, path: &str) -> bool {
        let end = path.match_indices('.').nth(2).map_or(path.len(), |(at, _)| at);
        self.rule_keys.contains(&path[..end])
    }

    fn has_broken_key(&self, rule: &Name) -> bool {
        OUTPUT_KEYS.iter().any(|key| self.rule_keys.contains(&format!("rules.{rule}.{key}")))
    }

    fn names_broken_field(&self, problem: &Problem) -> bool {
        let is_own = |path: &String| {
            problem.path.strip_prefix(path.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_broken = |word: &str| self.fields.get(word).is_some_and(|paths| !paths.iter().all(is_own));
        let mut quoted = problem.message.split('`').skip(1).step_by(2);
        quoted.any(|quoted| words(quoted).any(is_broken))
    }

    fn names_broken_entry(&self, value: &Json) -> bool {
        let broken = |word: &str| {
            let is_broken = |section: &&str| self.entries.contains(&((*section).to_owned(), word.to_owned()));
            NAMED.iter().any(is_broken)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::read;

    const HEAD: &str = "application: quakes
events: { quake: { fields: { place: string } } }
subscriptions: { near: { fields: { place: string } } }
notifications: { shaken: { fields: { place: string }, content: { templates: { base: { text: '{{ place }}' } } } } }
rules:
";
    const RULES: usize = 1_000;

    fn application(rules: usize) -> Application {
        let rule = "{ on: quake, subscription: near, when: event.plce == sub.place, notify: shaken }";
        let rules: String = (0..rules).map(|number| format!("  r{number}: {rule}\n")).collect();
        read(&format!("{HEAD}{rules}"), &|_| None).expect("a definition")
    }

    fn broken(path: &str) -> BrokenParts {
        BrokenParts::of(&[Problem::new(Code::InvalidFormat, path, "is wrong")])
    }

    /// The application was written as JSON for each problem, which took minutes.
    #[test]
    fn many_problems_are_compared_with_broken_parts_at_once() {
        let application = application(RULES);
        let problem = |number| {
            let message = "the event class has no field `plce`";
            Problem::new(Code::UnknownName, format!("rules.r{number}.when"), message)
        };
        let expected = [
            ("subscriptions.far", RULES),
            ("subscriptions.near", 0),
            ("rules.r7.on", RULES - 1),
            ("rules.r7.notify", RULES),
        ];
        for (path, left) in expected {
            let mut problems: Vec<Problem> = (0..RULES).map(problem).collect();
            broken(path).remove_explained(&application, &mut problems);
            assert_eq!(problems.len(), left, "{path}");
        }
    }

    #[test]
    fn a_broken_template_or_field_explains_problems_of_itself_only() {
        let application = application(1);
        let check = |broken_path: &str, path: &str, message: &str, is_explained: bool| {
            let mut problems = vec![Problem::new(Code::UnknownName, path, message)];
            broken(broken_path).remove_explained(&application, &mut problems);
            assert_eq!(problems.is_empty(), is_explained, "{broken_path}: {path}: {message}");
        };
        let base = "notifications.shaken.content.templates.base";
        check(base, base, "is wrong", true);
        check(base, &format!("{base}.text"), "is wrong", true);
        check(&format!("{base}.text.file"), &format!("{base}.text"), "is wrong", true);
        check(&format!("{base}.text"), &format!("{base}.html"), "is wrong", false);
        check(base, &format!("{base}2.text"), "is wrong", false);
        check("rules.r0.notify", "rules.r0.notify", "there is no class `shaken`", true);
        check("rules.r0.with.place", "rules.r0.with.place", "is wrong", true);
        check("rules.r0.notify", "rules.r0.when", "is wrong", false);
        check("rules.r0.notify", "rules.r0.notify2", "is wrong", false);
        let field = "events.quake.fields.place";
        check(field, "rules.r0.when", "the event class has no field `place`", true);
        check(field, "rules.r0.when", "the event class has no field `plce`", false);
        check(field, &format!("{field}.type"), "`place` is wrong", false);
    }
}
