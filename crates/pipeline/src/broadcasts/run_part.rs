//! Matches a part of a broadcast's audience: the event of the part becomes notification batches, and the event of the
//! next part, in one commit.

use std::time::Instant;

use tocsin_model::{
    broadcast::{BroadcastPart, broadcast_class, broadcast_fields, broadcast_source},
    event::{EventBatch, EventPacker},
    id::{ChangeSequence, SubscriptionId},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Broadcast, BroadcastState, BroadcastStep, NewEventBatch, NewNotificationBatch, NextPart, Step},
};

use super::audience::Audience;
use crate::{Flow, match_events::new_batches};

/// Whether an event batch is of a broadcast.
pub(crate) fn is_broadcast(batch: &EventBatch) -> bool {
    batch.class == broadcast_class() && batch.source == broadcast_source()
}

/// The event of a part of a broadcast.
pub(super) fn event_of(
    broadcast: &Broadcast,
    version: u32,
    after: SubscriptionId,
    snapshot_sequence: ChangeSequence,
    now: Timestamp,
) -> NewEventBatch {
    let mut packer = EventPacker::new(broadcast_fields());
    packer.push(&BroadcastPart { id: broadcast.id, after: after.0 }.row());
    NewEventBatch {
        application: broadcast.application.clone(),
        version,
        class: broadcast_class(),
        source: broadcast_source(),
        received_at: now,
        accepted_at: now,
        snapshot_sequence,
        events: packer.finish(),
        idempotency: None,
        marks: Vec::new(),
    }
}

/// Matches the parts of an event batch and adds the results to the step, up to about `most` notifications. The inner
/// error says why the batch cannot be read.
pub(crate) async fn run_part(
    flow: &Flow,
    batch: &EventBatch,
    most: Option<usize>,
    step: &mut Step,
) -> Result<Result<(), String>, StoreError> {
    let fields = broadcast_fields();
    for row in batch.events.rows() {
        let row = row.and_then(|packed| tocsin_model::field::unpack_row(&fields, packed));
        let Some(part) = row.ok().as_deref().and_then(BroadcastPart::read) else {
            return Ok(Err("the event of a broadcast cannot be read".to_owned()));
        };
        run(flow, batch, part, most, step).await?;
    }
    Ok(Ok(()))
}

async fn run(
    flow: &Flow,
    batch: &EventBatch,
    part: BroadcastPart,
    most: Option<usize>,
    step: &mut Step,
) -> Result<(), StoreError> {
    let started = Instant::now();
    let now = flow.clock.now();
    let Some(broadcast) = flow.broadcast_store.broadcast(part.id).await? else { return Ok(()) };
    let mut progress =
        BroadcastStep { id: part.id, reached: SubscriptionId(part.after), examined: 0, next: NextPart::Parked, now };
    if broadcast.state != BroadcastState::Running {
        step.broadcasts.push(progress);
        return Ok(());
    }
    let compiled = match flow.compiled_broadcast(part.id, &batch.application, batch.version).await? {
        Ok(compiled) => compiled,
        Err(problems) => {
            let reason = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            tracing::error!(broadcast = %part.id, reason, "a broadcast cannot be matched");
            progress.next = NextPart::Failed(reason);
            step.broadcasts.push(progress);
            return Ok(());
        }
    };
    let until = broadcast.started_at.unwrap_or(batch.accepted_at);
    let audience = Audience { flow, broadcast: &compiled, until, events: batch.id };
    let expires_at = compiled.draft.expires_at;
    let (subscriptions_max, notifications_max) = (
        flow.options.run_subscriptions.max(1) as u64,
        flow.options.run_notifications.min(most.unwrap_or(usize::MAX)).max(1) as u64,
    );
    let mut made = Vec::new();
    let (mut notifications, mut read) = (0, 0);
    progress.next = loop {
        if expires_at.is_some_and(|end| end <= now) {
            break NextPart::Matched;
        }
        // Each subscription makes at most one notification.
        let room = (notifications_max - notifications).min(subscriptions_max - read) as usize;
        let examined = match audience.next(progress.reached, room).await? {
            Ok(examined) => examined,
            Err(reason) => {
                tracing::error!(broadcast = %part.id, reason, "a broadcast cannot be matched");
                made.clear();
                break NextPart::Failed(reason);
            }
        };
        progress.reached = examined.reached;
        progress.examined += examined.examined;
        read += examined.read;
        notifications += examined.notifications();
        metrics::counter!("tocsin_broadcast_unusable_subscriptions_total").increment(examined.unusable);
        let is_last = examined.is_last;
        let rules = compiled.rules();
        made.extend(new_batches(&compiled.compiled, rules, examined.cut, batch.accepted_at, flow.clock.now()));
        if is_last {
            break NextPart::Matched;
        }
        if notifications >= notifications_max || read >= subscriptions_max {
            break NextPart::Continued;
        }
        tokio::task::yield_now().await;
    };
    progress.now = flow.clock.now();
    if progress.next == NextPart::Continued {
        let sequence = batch.snapshot_sequence.unwrap_or_default();
        step.continued.push(event_of(&broadcast, batch.version, progress.reached, sequence, progress.now));
    }
    metrics::counter!("tocsin_broadcast_examined_total").increment(progress.examined);
    metrics::counter!("tocsin_broadcast_recipients_total").increment(notifications);
    metrics::histogram!("tocsin_broadcast_part_duration_seconds").record(started.elapsed());
    step.batches.extend(made.into_iter().map(|mut made: NewNotificationBatch| {
        made.head.expires_at = earlier(made.head.expires_at, expires_at);
        made
    }));
    step.broadcasts.push(progress);
    Ok(())
}

/// The earlier of two expiry times; `None` means never.
fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
