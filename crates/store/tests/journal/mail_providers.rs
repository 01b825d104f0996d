//! Mails to mailbox providers by day.

use tocsin_model::mail_provider::ProviderDay;

use crate::support::*;

fn day(provider: &str, day: u32, limit: u64, sent: u64) -> (Box<str>, ProviderDay) {
    (provider.into(), ProviderDay { day, limit, sent, held_back: sent / 10 })
}

#[test]
fn numbers_of_a_day_add_up_and_the_last_day_is_read() {
    on_each(async |journal| {
        let (mail, other) = (name("mail"), name("other"));
        let add = async |days| journal.add_provider_days(&app(), &mail, days).await.expect("stored");
        let last = async |channel| journal.last_provider_days(&app(), channel).await.expect("read");
        assert!(last(&mail).await.is_empty());
        add(vec![day("google", 10, 200, 50), day("outlook", 10, 300, 20)]).await;
        add(vec![day("google", 10, 200, 30), day("google", 11, 300, 10)]).await;
        assert_eq!(last(&mail).await, [day("google", 11, 300, 10), day("outlook", 10, 300, 20)]);
        // A late answer counts for its day.
        add(vec![day("google", 10, 200, 10), day("outlook", 10, u64::MAX, 20)]).await;
        let expected = [day("google", 11, 300, 10), day("outlook", 10, u64::MAX, 40)];
        assert_eq!(last(&mail).await, expected);
        assert!(last(&other).await.is_empty(), "each channel has its own");
        assert!(journal.last_provider_days(&name("else"), &mail).await.expect("read").is_empty());
        // Old days are deleted, those of a provider without mail as well.
        add(vec![day("google", 101, 300, 10)]).await;
        assert_eq!(last(&mail).await, [day("google", 101, 300, 10)]);
    });
}
