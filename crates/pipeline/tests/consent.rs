//! Double opt-in through the pipeline: the confirmation message reaches a pending subscription, nothing else does.

use std::time::Duration;

use tocsin_delivery::{ConfirmLink, TokenSigner};
use tocsin_model::{
    consent::{Confirmation, ConsentMethod, ConsentPolicy, ConsentRequest, Evidence, InitialConsent, Proof, Requested},
    id::{Name, SubscriptionId},
    subscriber::{Device, DeviceState},
    time::Timestamp,
};
use tocsin_store::records::{
    ConfirmConsent, ConsentStore, KeptState, NewConsented, NewSubscriber, NewSubscription, Precondition,
    SubscriberStore, SubscriptionStore,
};
use tocsin_testkit::Scenario;

const CLUB: &str = r#"
application: club
events:
  requested: { on: subscription.requested, of: news }
  joined: { on: subscription.confirmed, of: news }
  issue: { fields: { number: integer } }
subscriptions:
  news: { consent: double_opt_in }
notifications:
  ask: { content: { templates: { base: { subject: "code {{ confirm_code }}", text: "{{ confirm_link }}" } } } }
  welcome: { content: { templates: { base: { subject: "welcome {{ confirm_code }}" } } } }
  latest: { fields: { number: integer }, content: { templates: { base: { subject: "issue {{ number }}" } } } }
rules:
  ask: { on: requested, subscription: news, notify: ask }
  greet: { on: joined, subscription: news, notify: welcome }
  publish: { on: issue, subscription: news, notify: latest }
channels:
  email: { protocol: smtp, options: { host: localhost, from: t@example.org }, retry: [] }
"#;

const LINK: ConfirmLink = ConfirmLink { subscription: SubscriptionId(1), request: 1 };

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn evidence(way: ConsentMethod) -> Evidence {
    Evidence::new(way, "subscriber")
}

/// Start of the simulated clock.
fn midnight() -> Timestamp {
    "2026-03-01T00:00:00Z".parse().expect("a time")
}

/// A person whose address is pending, and a request for consent.
async fn request(scenario: &Scenario, now: Timestamp) -> Requested {
    let device = Device { channel: name("email"), address: "ann@example.org".to_owned(), state: DeviceState::Pending };
    let ann = NewSubscriber {
        id: "ann".parse().expect("an id"),
        profile: Default::default(),
        devices: Some(vec![(name("email"), device)]),
        preferences: None,
        kept: KeptState { devices: [name("email")].into(), ..KeptState::default() },
    };
    scenario.records().put_subscriber(ann, Precondition::Any, now).await.expect("stored");
    let subscription = NewSubscription {
        application: name("club"),
        class: name("news"),
        subscriber: "ann".parse().expect("an id"),
        key: Some("self".to_owned()),
        device: Some(name("email")),
        enabled: None,
        values: "{}".into(),
        terms: Default::default(),
    };
    let policy = ConsentPolicy::default();
    let consent = ConsentRequest { policy, code: None, repeats: true, evidence: evidence(ConsentMethod::Api) };
    let consent = InitialConsent::Requested(consent);
    let new = NewConsented { subscription, consent, keeps_confirmed: true, quiet: false };
    let written = scenario.records().put_consented(vec![new], now).await.expect("stored");
    let (id, requested) = written.into_iter().next().expect("an answer").expect("stored");
    assert_eq!(id, LINK.subscription);
    requested
}

async fn confirm(scenario: &Scenario, now: Timestamp) -> Confirmation {
    let proof = Proof::Link { request: 1 };
    let (id, evidence) = (LINK.subscription, evidence(ConsentMethod::Link));
    let confirm = ConfirmConsent { id, proof, attempts_max: 5, evidence, now };
    scenario.records().confirm_consent(confirm).await.expect("read")
}

#[tokio::test(start_paused = true)]
async fn only_the_confirmation_message_reaches_a_pending_subscription() {
    let mut scenario = Scenario::new(&[CLUB]).await;
    // The secret of the scenario.
    let code = TokenSigner::new(&[7; 32]).consent().code(LINK);
    let now = midnight();
    assert_eq!(request(&scenario, now).await, Requested::Started);
    let day = Duration::from_secs(3_600);
    let transcript = scenario.run_and_wait(r#"08:00 event issue {"number": 1}"#, day).await;
    assert!(transcript.contains(&format!("email ann@example.org n-1-0: code {code} -> delivered")), "{transcript}");
    assert!(!transcript.contains("issue 1"), "{transcript}");
    // A repeated request sends the same code.
    let later = now + Duration::from_secs(600);
    assert_eq!(request(&scenario, later).await, Requested::Resent);
    let transcript = scenario.run_and_wait("10:00 crash", day).await;
    assert_eq!(transcript.matches(&format!("code {code} -> delivered")).count(), 2, "{transcript}");
    assert_eq!(confirm(&scenario, later).await, Confirmation::Confirmed);
    let transcript = scenario.run_and_wait(r#"11:00 event issue {"number": 2}"#, day).await;
    assert!(transcript.contains("ann@example.org") && transcript.contains("welcome"), "{transcript}");
    assert_eq!(transcript.matches(&code).count(), 2, "a confirmed subscription has no code: {transcript}");
    assert!(transcript.contains("issue 2 -> delivered"), "{transcript}");
    scenario.records().withdraw_consent(LINK.subscription, evidence(ConsentMethod::Page), later).await.expect("stored");
    let transcript = scenario.run_and_wait(r#"12:00 event issue {"number": 3}"#, day).await;
    assert!(!transcript.contains("issue 3"), "{transcript}");
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_subscription_is_removed_by_the_upkeep() {
    let mut scenario = Scenario::new(&[CLUB]).await;
    request(&scenario, Timestamp::from_millis(0)).await;
    scenario.run_and_wait(r#"08:00 event issue {"number": 1}"#, Duration::from_secs(3_600)).await;
    let found = scenario.records().subscription(LINK.subscription).await.expect("read");
    assert_eq!(found, None, "the clock is years after the request");
}
