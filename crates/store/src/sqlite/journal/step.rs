//! Commit of a step: its results and the acknowledgement of its input are one transaction.

use hashbrown::HashSet;
use rusqlite::Connection;
use tocsin_model::{
    id::{EventBatchId, Name, NotificationBatchId},
    notification::{NotificationHead, Notifications},
    receipt::Attempt,
};

use crate::{
    error::StoreError,
    journal::{NewEventBatch, Step, WorkState},
    sqlite::{
        journal::{
            accept, broadcasts,
            context::JournalContext,
            counters::oldest_event,
            delays, firings,
            names::Names,
            packing::{Body, ascending, pack_body, pack_numbers, pack_ordinals},
            resends,
            row_writer::{ChannelOrdinals, PackedBatch, PackedChunk, RowWriter, pack_chunk},
            states, submission_queue,
        },
        writer::{AfterCommit, Database},
    },
};

/// Step prepared for its rows: everything that needs no database is done before the writer runs.
pub struct PackedStep {
    step: Step,
    batches: Vec<PackedBatch>,
    receipts: Vec<PackedChunk>,
    retries: Vec<ChannelOrdinals>,
    suspensions: Vec<ChannelOrdinals>,
    continued: Vec<submission_queue::NewRow>,
    chronicled: Vec<(EventBatchId, Body)>,
    delay_names: delays::DelayNames,
}

/// Commits a step.
pub async fn commit(
    database: &Database,
    shared: &JournalContext,
    mut step: Step,
) -> Result<Vec<NotificationBatchId>, StoreError> {
    let mut continued = Vec::with_capacity(step.continued.len());
    for new in std::mem::take(&mut step.continued) {
        continued.push(accept::row(database, shared, NewEventBatch { idempotency: None, ..new }).await?);
    }
    let mut names = Vec::with_capacity(step.batches.len());
    for NotificationHead { application, rule, class, event_class, channel, .. } in
        step.batches.iter().map(|new| &new.head)
    {
        names.push(shared.names.numbers(database, [application, rule, class, event_class, channel]).await?);
    }
    let mut retries = Vec::with_capacity(step.retries.len());
    for retry in &step.retries {
        retries.push(resolve_channel(database, shared, &retry.application, &retry.channel, &retry.ordinals).await?);
    }
    let mut suspensions = Vec::with_capacity(step.suspensions.len());
    for waits in &step.suspensions {
        suspensions.push(resolve_channel(database, shared, &waits.application, &waits.channel, &waits.ordinals).await?);
    }
    for firing in &step.firings {
        // Assigns numbers to the names, so that the firing can be counted.
        shared.names.numbers(database, [&firing.application, &firing.rule]).await?;
    }
    let delay_names = delays::names(database, shared, &step).await?;
    let known = shared.names.clone();
    let bytes = step.batches.iter().map(|new| new.packed.len()).sum::<usize>()
        + step.chronicled.iter().map(|(_, packed)| packed.len()).sum::<usize>()
        + step.receipts.iter().map(|chunk| chunk.attempts.len() * size_of::<Attempt>()).sum::<usize>();
    let mut packed =
        super::context::off_the_runtime(bytes, move || pack(step, &known, names, retries, suspensions)).await??;
    packed.continued = continued;
    packed.delay_names = delay_names;
    let shared = shared.clone();
    database.write_retryable(move |connection, after| store(connection, after, &shared, &packed)).await
}

async fn resolve_channel(
    database: &Database,
    shared: &JournalContext,
    application: &Name,
    channel: &Name,
    ordinals: &[u32],
) -> Result<ChannelOrdinals, StoreError> {
    let [application, channel] = shared.names.numbers(database, [application, channel]).await?;
    let ordinals = ascending(ordinals);
    Ok(ChannelOrdinals { application, channel, notifications: ordinals.len(), ordinals: pack_ordinals(&ordinals) })
}

fn pack(
    mut step: Step,
    known: &Names,
    names: Vec<[i64; 5]>,
    retries: Vec<ChannelOrdinals>,
    suspensions: Vec<ChannelOrdinals>,
) -> Result<PackedStep, StoreError> {
    let mut batches = Vec::with_capacity(names.len());
    for (new, names) in step.batches.iter_mut().zip(names) {
        let packed = std::mem::take(&mut new.packed);
        let events = Notifications::event_batches(&packed)?;
        batches.push(PackedBatch { names, events, body: pack_body(packed) });
    }
    let receipts = step
        .receipts
        .iter()
        .map(|chunk| pack_chunk(chunk.batch, known.find(&chunk.channel), &chunk.attempts))
        .collect();
    let chronicled =
        std::mem::take(&mut step.chronicled).into_iter().map(|(id, packed)| (id, pack_body(packed))).collect();
    let (continued, delay_names) = (Vec::new(), delays::DelayNames::new());
    Ok(PackedStep { step, batches, receipts, retries, suspensions, continued, chronicled, delay_names })
}

fn store(
    connection: &Connection,
    after: &mut AfterCommit,
    shared: &JournalContext,
    packed: &PackedStep,
) -> Result<Vec<NotificationBatchId>, StoreError> {
    let PackedStep { step, batches, receipts, retries, suspensions, continued, chronicled, delay_names } = packed;
    let committing = shared.claims.begin(step)?;
    let mut rows = RowWriter::new(connection, shared, step.time(committing.claimed_at));
    let matching = !(step.matched.is_empty() && step.failed.is_empty());
    let brings_work = !(step.batches.is_empty() && step.retries.is_empty() && step.resent.is_none());

    let mut ids = Vec::with_capacity(batches.len());
    let matched_now: HashSet<EventBatchId> = step.matched.iter().map(|claim| claim.id).collect();
    for (new, packed) in step.batches.iter().zip(batches) {
        let id = rows.add_batch(&new.head, new.count, packed, &matched_now)?;
        if let Some(run) = new.run.filter(|run| !packed.events.contains(run)) {
            rows.execute("INSERT INTO run_links (run, notification_batch) VALUES (?1, ?2)", (run.0, id.0))?;
        }
        rows.link_broadcast(id, &new.head.rule)?;
        ids.push(id);
        if new.count == 0 {
            continue;
        }
        let [application, _, _, _, channel] = packed.names;
        match &new.suspended {
            Some(reason) => {
                let ordinals = pack_numbers(0..u64::from(new.count));
                let all = ChannelOrdinals { application, channel, notifications: new.count as usize, ordinals };
                let work_state = WorkState { priority: new.priority, ..WorkState::default() };
                rows.add_suspension(id, &all, 0, reason, new.head.matched_at, &work_state)?;
            }
            None => {
                let work_state = WorkState { priority: new.priority, ..WorkState::default() };
                let due_at = new.head.matched_at;
                rows.add_work(id, (application, channel), 0, due_at, new.count as usize, None, &work_state)?;
            }
        }
    }
    let mut matched = step.matched.clone();
    matched.sort_unstable_by_key(|claim| claim.id);
    for run in matched.chunk_by(|one, next| one.id.0 + 1 == next.id.0) {
        rows.mark_matched(run)?;
    }
    for (claim, reason) in &step.failed {
        rows.mark_failed(*claim, reason)?;
    }
    delays::store(&mut rows, step, delay_names)?;
    for (id, body) in chronicled {
        rows.keep_chronicled(*id, body)?;
    }
    for claim in &step.held {
        rows.mark_progress(*claim, step)?;
    }
    for claim in &step.finished {
        rows.finish(*claim)?;
    }
    if let Some(resent) = &step.resent {
        resends::record_progress(connection, shared, &mut rows, resent)?;
    }
    for (packed, chunk) in receipts.iter().zip(&step.receipts) {
        rows.record(packed, &chunk.attempts)?;
    }
    for (retry, channel_ordinals) in step.retries.iter().zip(retries) {
        let lane = (channel_ordinals.application, channel_ordinals.channel);
        let ordinals = Some(&channel_ordinals.ordinals[..]);
        rows.add_work(
            retry.batch,
            lane,
            retry.attempts,
            broadcasts::due_at(connection, retry.batch, retry.due_at, rows.time)?,
            channel_ordinals.notifications,
            ordinals,
            &retry.work_state,
        )?;
    }
    for (waits, channel_ordinals) in step.suspensions.iter().zip(suspensions) {
        rows.add_suspension(
            waits.batch,
            channel_ordinals,
            waits.attempts,
            &waits.reason,
            waits.since,
            &waits.work_state,
        )?;
    }

    for broadcast in &step.broadcasts {
        broadcasts::record(connection, broadcast)?;
    }
    rows.record_matching(step, ids.first().copied())?;
    firings::record(connection, step)?;
    states::write(connection, &step.states)?;

    let oldest = if matching { Some(oldest_event(connection)?) } else { None };
    rows.store_counts(after, oldest, brings_work)?;
    accept::store_all(connection, after, shared, continued)?;
    after.run(move || committing.finish());
    Ok(ids)
}
