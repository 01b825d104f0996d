//! The sender's filter over the parameters of subscriptions, beside the predicate `when`.

use tocsin_matching::{
    filter::{CompiledFilter, compile_with},
    user_functions::compile_functions,
};
use tocsin_model::{
    application::{Application, SubscriptionClass},
    field::Fields,
    filter::{Dialect, Filter},
    problem::{Code, Problem},
};

/// A compiled `subscription_filter` of a draft.
pub(super) struct SenderFilter {
    filter: CompiledFilter,
    /// The declared parameters of the subscription class.
    fields: Fields,
}

impl SenderFilter {
    /// Compiles a filter over the parameters of a subscription class. The dialect `notifybc` reads the parameter
    /// `data`.
    ///
    /// # Errors
    /// Every problem, with its path in the draft.
    pub fn compile(
        filter: &Filter,
        class: &SubscriptionClass,
        application: &Application,
    ) -> Result<SenderFilter, Vec<Problem>> {
        if !matches!(filter.dialect, Dialect::Jmespath | Dialect::Notifybc) {
            let message = format!("filters of subscriptions are not written in {}", filter.dialect);
            let problem = Problem::new(Code::Unsupported, "subscription_filter.dialect", message)
                .param("value", filter.dialect.name())
                .param("known", "jmespath, notifybc");
            return Err(vec![problem.hint("use `jmespath` or `notifybc`, or write a CEL predicate in `when`")]);
        }
        let functions = compile_functions(&application.functions)?;
        let compiled = compile_with(filter, &class.fields, &functions);
        let compiled = compiled.map_err(|problems| {
            let in_text = |problem: Problem| Problem { path: "subscription_filter.text".to_owned(), ..problem };
            problems.into_iter().map(in_text).collect::<Vec<_>>()
        });
        Ok(SenderFilter { filter: compiled?, fields: class.fields.clone() })
    }

    /// Whether a subscription with these stored parameters matches; `None` if that cannot be decided: they are damaged,
    /// or the filter exceeds its step limit.
    pub fn matches(&self, values: &str) -> Option<bool> {
        self.filter.holds(&self.fields.row_from_stored(values).ok()?).ok()
    }
}
