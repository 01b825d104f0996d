//! Delayed notifications that wait for their due time: list and cancel.

use tocsin_model::problem::{Code, Problem};
use tocsin_store::journal::{Delayed, DelayedFilter};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::Page,
};

/// Delayed notifications that one commit cancels.
const CANCELLED_AT_ONCE: usize = 10_000;

impl Service {
    /// Lists delayed notifications after the number `after`, oldest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn delayed(
        &self,
        caller: &Caller,
        filter: &DelayedFilter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<Delayed>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.delays.delayed(filter, after.unwrap_or(0), limit).await?;
        if found.is_empty() && after.is_none() {
            self.check_known(filter.application.as_ref(), &[(Part::Rule, filter.rule.as_ref())]).await?;
        }
        let next = if found.len() == limit { found.last().map(|last| last.id.to_string()) } else { None };
        Ok(Page { items: found, next })
    }

    /// Cancels delayed notifications; an empty filter needs `all`. One that is due is not cancelled. Returns their
    /// number.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the filter is empty without `all`.
    pub async fn cancel_delayed(
        &self,
        caller: &Caller,
        filter: &DelayedFilter,
        all: bool,
    ) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_application(filter.application.as_ref())?;
        if *filter == DelayedFilter::default() && !all {
            let problem = Problem::new(Code::Required, "", "names no delayed notification");
            let hint = r#"give a filter, or {"all": true} to mean every one"#;
            return Err(ServiceError::Invalid(vec![problem.hint(hint)]));
        }
        let mut cancelled = 0;
        loop {
            let count = self.delays.cancel_delayed(filter, self.clock.now(), CANCELLED_AT_ONCE).await?;
            cancelled += count as u64;
            if count < CANCELLED_AT_ONCE {
                break;
            }
        }
        if cancelled == 0 {
            self.check_known(filter.application.as_ref(), &[(Part::Rule, filter.rule.as_ref())]).await?;
        }
        metrics::counter!("tocsin_delay_cancelled_total", "by" => "operator").increment(cancelled);
        tracing::info!(cancelled, by = caller.key(), "cancelled delayed notifications");
        Ok(cancelled)
    }
}
