//! A definition becomes what the steps run: rules, formatters, channels.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_formatting::Formatter;
use tocsin_matching::{NotifyFields, RuleExplanation, RuleSet};
use tocsin_model::{application::Application, id::Name, problem::Problem};

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
    /// Compiles rules, templates and channel options.
    ///
    /// # Errors
    /// Every problem found, with the path in the definition.
    pub fn new(application: Application, version: u32) -> Result<Compiled, Vec<Problem>> {
        todo!()
    }

    /// What will work but cost more than its author may think, such as a rule that scans.
    pub fn warnings(&self) -> Vec<Problem> {
        Vec::new()
    }

    /// How each rule is answered.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        self.rules.explain()
    }
}
