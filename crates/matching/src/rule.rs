//! Compiled rules of an application: the plans of its event and subscription classes, and the columns of subscriptions
//! that are kept for them.

pub(crate) mod branches; // splits a predicate into branches
pub(crate) mod rule_set; // compiled rules
mod compile_state; // compiles `per`, `cooldown`, `rearm`, `changed` into expressions
pub(crate) mod compile; // compiles the rules of an application
pub(crate) mod explain; // explains the evaluation plan of a rule

pub use branches::BRANCHES_MAX;
pub use explain::{BranchExplanation, RuleExplanation};
pub use rule_set::{RuleNumber, RuleSet};

pub use crate::subscriber::{AUDIENCES_MAX, Memberships};
