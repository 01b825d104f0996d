//! Reference implementation without an index: every rule against every subscription, by the interpreter. Slow and
//! obvious; for tests, dry runs and verification.

use tocsin_model::{
    field::{Damaged, Row},
    filter::Filter,
    id::{Name, SubscriptionId},
    value::Value,
};

use crate::{
    evaluate::{EvalContext, Parameters, holds},
    filter::compiled::CompiledFilter,
    rule::rule_set::{RuleNumber, RuleSet},
    subscriber::{Memberships, SubscriberView},
};

/// A subscription as the oracle evaluates it.
#[derive(Debug, Clone)]
pub struct SubscriptionView {
    /// The id of the subscription.
    pub id: SubscriptionId,
    /// The class of the subscription.
    pub class: Name,
    /// Parameters, as a row of its class, followed by the columns of its subscriber that rules read.
    pub row: Row,
    /// Own filter, compiled for each event class of its rules.
    pub filter: Vec<(Name, CompiledFilter)>,
    /// The filter as it was written.
    written: Option<Filter>,
    /// The audiences of its subscriber; empty after `read`.
    pub memberships: Memberships,
}

impl SubscriptionView {
    /// Reads the stored parameters and the filter of a subscription.
    ///
    /// # Errors
    /// The parameters are not a JSON object, the class is unknown, or the filter cannot be compiled.
    pub fn read(
        rules: &RuleSet,
        id: SubscriptionId,
        class: &Name,
        values: &str,
        filter: Option<&Filter>,
    ) -> Result<SubscriptionView, Damaged> {
        let plan = rules.classes.iter().find(|plan| plan.name == *class).ok_or(Damaged)?;
        let mut filters = Vec::new();
        if let Some(filter) = filter {
            let compiled = rules.compile_filter(class, filter, Some(&[])).map_err(|_| Damaged)?;
            filters.extend(compiled.into_iter().map(|(event, compiled)| (event.clone(), compiled)));
        }
        let row = plan.fields.row_from_stored(values)?;
        Ok(SubscriptionView {
            id,
            class: class.clone(),
            row,
            filter: filters,
            written: filter.cloned(),
            memberships: Memberships::default(),
        })
    }

    /// Adds the columns and memberships of the subscriber.
    pub fn of(self, rules: &RuleSet, subscriber: SubscriberView) -> SubscriptionView {
        let SubscriberView { memberships, columns } = subscriber;
        let mut filter = self.filter;
        if filter.iter().any(|(_, filter)| filter.depends_on_subscriber())
            && let Some(written) = &self.written
            && let Ok(compiled) = rules.compile_filter(&self.class, written, Some(&columns))
        {
            filter = compiled.into_iter().map(|(event, compiled)| (event.clone(), compiled)).collect();
        }
        let row = rules.full_row(&self.class, self.row, columns);
        SubscriptionView { row, filter, memberships, ..self }
    }

    /// Whether its filter, if it has one, matches an event of a class.
    pub fn accepts(&self, class: &Name, event: &[Value]) -> bool {
        let own = self.filter.iter().find(|(name, _)| name == class);
        own.is_none_or(|(_, filter)| filter.holds(event).unwrap_or(false))
    }
}

/// The rules by which an event of a class matches a subscription, without those that have a query. The event is a row
/// of the rule set's version.
pub fn matches(rules: &RuleSet, class: &Name, event: &[Value], subscription: &SubscriptionView) -> Vec<RuleNumber> {
    let Some(plan) = rules.events.get(class) else { return Vec::new() };
    let matches = |number: &&RuleNumber| {
        let rule = rules.rule(**number);
        let context = EvalContext { event, parameters: Parameters::Row(&subscription.row) };
        !rule.queried
            && rules.classes[rule.class].name == subscription.class
            && subscription.memberships.includes(rule.audience)
            && subscription.accepts(class, event)
            && rule.predicate.as_ref().is_none_or(|predicate| holds(predicate, context).unwrap_or(false))
    };
    plan.rules.iter().filter(matches).copied().collect()
}
