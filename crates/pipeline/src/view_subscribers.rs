//! Looks subscribers up as the rules of an application see them: to which audiences they belong, and the values of what
//! rules read of them.

use tocsin_matching::{
    rule::{Memberships, RuleSet},
    subscriber::SubscriberView,
};
use tocsin_model::id::{ChangeSequence, SubscriberNumber};
use tocsin_store::{error::StoreError, records::Records};

/// The subscribers as they were at a place of the change feed, one for each number. Asks the records for nothing that no
/// rule asks for. Of one that was not there nothing is known.
///
/// # Errors
/// `Missing` if the feed does not reach back to the place.
pub async fn view_subscribers(
    records: &dyn Records,
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
