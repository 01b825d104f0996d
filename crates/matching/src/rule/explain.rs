//! The evaluation plan of a rule, as text.

use tocsin_model::id::Name;

use crate::{
    expression::Expression,
    index_stats::{FilterStats, IndexStats},
    residual::Check,
    rule::{
        branches::Range,
        rule_set::{CompiledRule, RuleSet},
    },
};

/// The evaluation plan of a rule.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RuleExplanation {
    /// The rule.
    pub rule: Name,
    /// The segment whose members are notified, if the rule has an audience.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audience: Option<Name>,
    /// Alternatives; a subscription found by several of them is matched once.
    pub branches: Vec<BranchExplanation>,
    /// Suppression of repeated matches, as text.
    #[serde(rename = "remembers", skip_serializing_if = "Vec::is_empty")]
    pub suppression: Vec<String>,
    /// Statistics of the subscriptions' own filters, if the rule is running.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filters: Option<FilterStats>,
    /// The query plan of the store, if the rule has a query.
    pub query: Vec<String>,
    /// Warnings for the author of the rule.
    pub warnings: Vec<String>,
}

/// The evaluation plan of one alternative.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct BranchExplanation {
    /// Tested once per event.
    pub event_guards: Vec<String>,
    /// Tested once when a subscription is added.
    pub subscription_guards: Vec<String>,
    /// Looked up in the hash table.
    pub keys: Vec<String>,
    /// Looked up in the sorted column.
    pub range: Vec<String>,
    /// Whether the subscriptions can have filters of their own. Without an index, the candidates are those whose filter
    /// matches and those without one; otherwise a candidate's filter must match.
    pub filters: bool,
    /// Checked for each candidate from the index.
    pub residual: Vec<String>,
    /// The average number of subscriptions in the group of an event, if the rule is running; a range takes a part of
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates: Option<u64>,
}

/// One line, such as `near: looks at every subscription; checks distance_km(...) <= sub.distance_km for each`.
impl std::fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if !self.query.is_empty() {
            let steps: Vec<&str> = self.query.iter().map(|line| line.trim_start()).collect();
            write!(f, "runs its query for each event batch: {}", steps.join("; "))?;
            if let Some(audience) = &self.audience {
                write!(f, "; skips subscribers outside the segment `{audience}`")?;
            }
            return self.suppression.iter().try_for_each(|memory| write!(f, "; {memory}"));
        }
        for (at, branch) in self.branches.iter().enumerate() {
            if at > 0 {
                f.write_str("; or ")?;
            }
            write!(f, "{branch}")?;
        }
        if self.branches.is_empty() {
            f.write_str("never matches")?;
        }
        self.suppression.iter().try_for_each(|memory| write!(f, "; {memory}"))
    }
}

impl std::fmt::Display for BranchExplanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let and = |parts: &[String]| parts.join(" && ");
        let mut said = Vec::new();
        if !self.event_guards.is_empty() {
            said.push(format!("only if {}", and(&self.event_guards)));
        }
        if !self.subscription_guards.is_empty() {
            said.push(format!("of subscriptions with {}", and(&self.subscription_guards)));
        }
        if !self.keys.is_empty() {
            said.push(format!("looks up {}", and(&self.keys)));
        }
        if !self.range.is_empty() {
            said.push(format!("takes the slice {}", and(&self.range)));
        }
        match (self.keys.is_empty() && self.range.is_empty(), self.filters) {
            (true, true) => said.push("takes the subscriptions whose own filter matches, or that have none".to_owned()),
            (true, false) => said.push("looks at every subscription".to_owned()),
            (false, true) => said.push("takes those whose own filter matches, or that have none".to_owned()),
            (false, false) => {}
        }
        if !self.residual.is_empty() {
            said.push(format!("checks {} for each", and(&self.residual)));
        }
        f.write_str(&said.join("; "))
    }
}

impl CompiledRule {
    fn scans(&self) -> bool {
        self.branches.iter().any(|branch| !branch.is_indexed() && !branch.residual.is_empty())
    }

    /// The time of one core for checking a million subscriptions. `tocsin-bench --only match.scan` measures it: 5 ms
    /// for a distance, which is checked column by column, 155 ms for a product and 325 ms for a list, which are
    /// interpreted.
    fn scan_time(&self) -> &'static str {
        let scanned = self.branches.iter().filter(|branch| !branch.is_indexed());
        if scanned.flat_map(|branch| &branch.residual).any(Check::is_interpreted) {
            "about a fifth of a second"
        } else {
            "some hundredths of a second"
        }
    }

    /// The evaluation plan, with a warning if the rule scans all subscriptions.
    pub(super) fn explain(&self, audiences: &[Name], class: &Name) -> RuleExplanation {
        let source = self.source.as_deref().unwrap_or_default();
        let text = |expression: &Expression| expression.span.text(source).to_owned();
        let texts = |expressions: &[Expression]| expressions.iter().map(text).collect::<Vec<String>>();
        let branches: Vec<BranchExplanation> = self
            .branches
            .iter()
            .map(|branch| BranchExplanation {
                event_guards: texts(&branch.event_guards),
                subscription_guards: {
                    let audience = self.audience.map(|audience| format!("a subscriber of `{}`", audiences[audience]));
                    audience.into_iter().chain(texts(&branch.subscription_guards)).collect()
                },
                keys: branch
                    .keys
                    .iter()
                    .map(|key| {
                        format!(
                            "{} {} {}",
                            text(&key.event),
                            if key.any_of { "in" } else { "==" },
                            text(&key.subscription)
                        )
                    })
                    .collect(),
                range: match &branch.range {
                    Range::None => Vec::new(),
                    Range::One(only) => vec![text(&only.source)],
                    Range::Two(ends) => ends.iter().map(|end| text(&end.source)).collect(),
                },
                filters: self.filters.is_some(),
                residual: branch.residual.iter().map(|check| text(check.source())).collect(),
                candidates: None,
            })
            .collect();
        let mut warnings = Vec::new();
        if !self.enabled {
            warnings.push("the rule is disabled".to_owned());
        }
        if self.filters.is_none() && self.scans() {
            warnings.push(format!(
                "no index answers: each event is checked against every subscription of `{class}`, {} for a million; \
                 compare a field of the event with a field of the subscription by `==` or an order",
                self.scan_time()
            ));
        }
        let rearm = self.state.as_ref().and_then(|state| state.rearm.as_ref());
        if rearm.is_some_and(|rearm| rearm.rules.rules.iter().any(CompiledRule::scans)) {
            warnings.push(
                "no index answers `rearm`: each event is checked against every subscription that waits to be re-armed"
                    .to_owned(),
            );
        }
        let suppression = self.state.as_ref().map(|state| state.explained.clone()).unwrap_or_default();
        let audience = self.audience.map(|audience| audiences[audience].clone());
        RuleExplanation {
            rule: self.name.clone(),
            audience,
            branches,
            suppression,
            filters: None,
            query: Vec::new(),
            warnings,
        }
    }
}

impl RuleSet {
    /// The evaluation plan of each rule, with warnings where a rule scans all subscriptions.
    pub fn explain(&self) -> Vec<RuleExplanation> {
        self.rules.iter().map(|rule| rule.explain(&self.audiences, &self.classes[rule.class].name)).collect()
    }
}

impl IndexStats {
    /// Adds the statistics to the explanations of the rules.
    pub fn explain(&self, rules: &RuleSet, explanations: &mut [RuleExplanation]) {
        for (rule, explanation) in rules.rules.iter().zip(explanations).filter(|(rule, _)| rule.enabled) {
            explanation.filters = rule.filters.and_then(|plan| self.filters.get(plan)).copied();
            for (branch, said) in self.branches.iter().skip(rule.first_branch).zip(&mut explanation.branches) {
                said.candidates = Some(branch.ceil() as u64);
            }
        }
    }
}
