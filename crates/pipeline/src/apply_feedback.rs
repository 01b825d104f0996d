//! Feedback as operations of the running pipeline. The state of feedback is in a file of its own, which the flow uses.

use tocsin_feedback::return_address::{VerifiedOrigin, VerifyError};
use tocsin_model::{feedback::Class, time::Timestamp};
use tocsin_store::error::StoreError;

use crate::{
    Pipeline,
    feedback::{Effect, FeedbackReport, count},
};

impl Pipeline {
    /// Applies reports in order, by the policy of the installation. They are durable when this returns; repeating
    /// them changes nothing.
    ///
    /// # Errors
    /// The records are unavailable. Nothing was stored.
    pub async fn apply_feedback(&self, reports: &[FeedbackReport]) -> Result<Vec<Effect>, StoreError> {
        let flow = &self.flow;
        flow.feedback.apply(&*flow.feedback_store, &*flow.clock, reports).await
    }

    /// Verifies a return address of this installation.
    ///
    /// # Errors
    /// The address is foreign, forged or expired.
    pub fn verify_return_address(&self, address: &str, now: Timestamp) -> Result<VerifiedOrigin, VerifyError> {
        self.flow.context.token_signer.verify_return_address(address, now)
    }

    /// Counts a report without a target that can be changed.
    pub fn count_feedback(&self, class: Class, origin: &str, effect: Effect) {
        count(class, origin, effect);
    }
}
