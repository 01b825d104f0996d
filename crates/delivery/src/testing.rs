//! Fixtures that the tests of all protocols share.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use tocsin_connect::Clock;
use tocsin_model::{
    application::{Channel, RetrySchedule},
    content::Content,
    id::{EventBatchId, EventId, NotificationBatchId, NotificationId},
    receipt::Disposition,
    time::Timestamp,
};
use tokio::sync::mpsc;

use crate::{
    channel::{Context, Facts, Message, OpenChannel, Outgoing, Ticket},
    token_signer::TokenSigner,
};

/// The current time in the tests.
pub(crate) const NOW: &str = "2026-11-21T09:30:00Z";

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Timestamp {
        NOW.parse().expect("a time")
    }
}

pub(crate) fn context() -> Context {
    let clock = Arc::new(Stopped);
    Context {
        clock,
        installation: "test".into(),
        data_folder: "/nonexistent".into(),
        networks: Default::default(),
        token_signer: Arc::new(TokenSigner::new(&[7; 32])),
        feeds: None,
        provider_days: None,
        public_url: None,
        programs: Default::default(),
        files: tocsin_connect::files::Files::new(vec![std::env::temp_dir()], "/nonexistent".into()),
        application: "quakes".into(),
    }
}

pub(crate) fn channel(protocol: &str, options: Value, concurrency: u32) -> Channel {
    Channel {
        disable_after: None,
        endpoint_event: None,
        protocol: protocol.parse().expect("a name"),
        options: options.as_object().expect("an object").clone(),
        retry: RetrySchedule { delays: Vec::new(), jitter_percent: 0 },
        concurrency,
        flow: Default::default(),
        lease: std::time::Duration::from_secs(60),
        log: Default::default(),
    }
}

pub(crate) fn outgoing(ordinal: u32, address: &str) -> Outgoing {
    Outgoing {
        id: NotificationId { batch: NotificationBatchId(7), ordinal },
        subscriber: None,
        address: address.into(),
        ticket: Ticket { key: 31, ordinal },
        unsubscribe: None,
        subscription: None,
        recall: None,
        message: Arc::new(message(ordinal)),
        others: Vec::new(),
    }
}

/// One message to several recipients.
pub(crate) fn multicast(addresses: &[&str]) -> Vec<Outgoing> {
    let first = outgoing(0, "");
    let to = |(number, address): (usize, &&str)| Outgoing {
        message: first.message.clone(),
        ..outgoing(number as u32, address)
    };
    addresses.iter().enumerate().map(to).collect()
}

pub(crate) fn message(ordinal: u32) -> Message {
    Message {
        message_id: format!("n-7-{ordinal}.test"),
        content: Arc::new(Content {
            subject: Some("Earthquake near Kobe".into()),
            text: Some("Magnitude 6.1\n.\nStay safe – 神戸\n".into()),
            html: Some("<p>Magnitude <b>6.1</b></p>".into()),
            ..Content::default()
        }),
        facts: Facts {
            application: "quakes".parse().expect("a name"),
            class: "quake".parse().expect("a name"),
            event: Some(EventId { batch: EventBatchId(3), ordinal: 1 }),
            fields: Arc::new(
                json!({ "magnitude": 6.1, "place": "Kobe" }).as_object().expect("an object").clone().into(),
            ),
        },
        formatted_at: NOW.parse().expect("a time"),
        priority: Default::default(),
        expires_at: None,
        place: None,
        withdrawal: None,
    }
}

/// The content of a message, for changes.
pub(crate) fn content_of(outgoing: &mut Outgoing) -> &mut Content {
    Arc::make_mut(&mut Arc::make_mut(&mut outgoing.message).content)
}

/// Delivers messages and returns their results in the order of their numbers.
pub(crate) async fn deliver(open: &dyn OpenChannel, messages: Vec<Outgoing>) -> Vec<String> {
    let (answers, mut answered) = mpsc::channel(messages.len().max(1));
    let mut shown = BTreeMap::new();
    open.send_all(messages, &answers).await;
    drop(answers);
    while let Some(answer) = answered.recv().await {
        for (_, ticket) in answer.tickets() {
            let before = shown.insert(ticket.ordinal, show(&answer.disposition));
            assert_eq!(before, None, "one answer each");
        }
    }
    shown.into_values().collect()
}

/// A disposition as one line.
pub(crate) fn show(disposition: &Disposition) -> String {
    match disposition {
        Disposition::Delivered { reply } => format!("delivered {reply}"),
        Disposition::Deferred { reason, .. } => format!("deferred {:?} {}", reason.kind, reason.text),
        Disposition::Refused { reason } => format!("refused {:?} {}", reason.kind, reason.text),
    }
}
