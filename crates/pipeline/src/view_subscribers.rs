//! Reads subscribers as the rules of an application see them: their audiences, and the attributes that rules read.

use tocsin_matching::{
    rule::{Memberships, RuleSet},
    subscriber::SubscriberView,
};
use tocsin_model::id::{ChangeSequence, SubscriberNumber};
use tocsin_store::{error::StoreError, records::MatchStore};

/// Returns the subscribers at a change sequence, one per number. Reads only the attributes that rules use. A
/// subscriber that did not exist has an empty view.
///
/// # Errors
/// `Missing` if the change feed does not reach back to the sequence.
pub async fn view_subscribers(
    records: &dyn MatchStore,
    rules: &RuleSet,
    subscribers: &[SubscriberNumber],
    at: ChangeSequence,
) -> Result<Vec<SubscriberView>, StoreError> {
    let mut views = vec![SubscriberView::default(); subscribers.len()];
    if !rules.audiences().is_empty() {
        let memberships = records.memberships(rules.audiences(), subscribers, at).await?;
        views.iter_mut().zip(memberships).for_each(|(view, bits)| view.memberships = Memberships(bits));
    }
    if let Some(columns) = rules.subscriber_columns() {
        let profiles = records.profiles(subscribers, at).await?;
        for (view, image) in views.iter_mut().zip(profiles) {
            view.columns = image.map(|image| columns.row(&image.id, &image.profile)).unwrap_or_default();
        }
    }
    Ok(views)
}
