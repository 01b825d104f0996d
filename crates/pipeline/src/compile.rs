//! A definition becomes what the steps run: rules and formatters.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_formatting::{Formatter, KnownVariables};
use tocsin_matching::{
    notify::NotifyFields,
    rule::{RuleExplanation, RuleSet},
};
use tocsin_model::{
    application::{Application, EventClass},
    id::Name,
    problem::Problem,
};

/// One version of an application, ready to run.
pub struct Compiled {
    /// The definition.
    pub application: Application,
    /// Its version.
    pub version: u32,
    /// Its rules, compiled together.
    pub rules: Arc<RuleSet>,
    /// How each rule fills its notification's fields.
    pub notify: BTreeMap<Name, NotifyFields>,
    /// The templates of each notification class.
    pub formatters: BTreeMap<Name, Formatter>,
}

impl Compiled {
    /// Compiles rules and templates.
    ///
    /// # Errors
    /// Every problem found, with the path in the definition.
    pub fn new(application: Application, version: u32) -> Result<Compiled, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut formatters = BTreeMap::new();
        for (name, class) in &application.notifications {
            let known = KnownVariables::of(&application, name);
            match Formatter::compile(&format!("notifications.{name}"), &class.content, &known) {
                Ok(formatter) => {
                    formatters.insert(name.clone(), formatter);
                }
                Err(found) => problems.extend(found),
            }
        }
        match RuleSet::compile(&application) {
            Ok(rules) if problems.is_empty() => {
                let rules = Arc::new(rules);
                let of = |name: &Name| rules.number(name.as_str()).map(|rule| NotifyFields::of(&rules, rule));
                let notify = application.rules.keys().filter_map(|name| Some((name.clone(), of(name)?))).collect();
                Ok(Compiled { application, version, rules, notify, formatters })
            }
            Ok(_) => Err(problems),
            Err(found) => {
                problems.extend(found);
                Err(problems)
            }
        }
    }

    /// An event class by its name.
    pub fn event_class(&self, name: &Name) -> Option<&EventClass> {
        self.application.events.get(name)
    }

    /// What will work but cost more than its author may think, such as a rule that scans.
    pub fn warnings(&self) -> Vec<Problem> {
        let of_rule = |found: RuleExplanation| {
            let path = format!("rules.{}", found.rule);
            found.warnings.into_iter().map(move |warning| Problem::at(path.clone(), warning))
        };
        self.explain().into_iter().flat_map(of_rule).collect()
    }

    /// How each rule is answered.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        self.rules.explain()
    }
}
