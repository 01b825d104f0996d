//! Flow monitor: checks once a second, while messages move, what throttles them, and stores the changes.

use std::{sync::Arc, time::Duration};

use tocsin_model::{
    exchange::{FlowSide, ThrottleReason},
    time::Timestamp,
};

use crate::{
    admission::grown,
    core::Core,
    flow::{MEMORY_SHORT, Memory, rate_text},
    running::RunningExchange,
};

/// Interval of checks while messages move.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Maximum legs of a port that are counted in the spool.
const COUNTED_MAX: u64 = 100_000;

/// Checks once a second while messages move, until the exchanges stop.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        core.flow_monitor.rest();
        let is_still = check(&core).await;
        let pause = async {
            if is_still {
                core.flow_monitor.moved().await;
            } else {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = pause => {}
            () = core.stopping.cancelled() => return,
        }
    }
}

/// Checks all exchanges once. Returns whether nothing moves.
pub(crate) async fn check(core: &Core) -> bool {
    let now = core.now();
    let Memory { used, most } = &core.parts.memory;
    let is_short = *most > 0 && used().is_some_and(|used| used > *most);
    core.flow_monitor.set_memory_is_short(is_short);
    let is_full = core.parts.spool.check_room().err().map(|error| error.to_string());
    let all = core.registry.all();
    let mut is_still = true;
    for running in all.values() {
        is_still &= check_exchange(core, running, is_short, is_full.clone(), now).await;
    }
    is_still
}

async fn check_exchange(
    core: &Core,
    running: &RunningExchange,
    is_short: bool,
    is_full: Option<String>,
    now: Timestamp,
) -> bool {
    use FlowSide::{Delivery, Publishing};
    use ThrottleReason::{Disk, InFlight, Memory, Operator, RateImbalance, StoreGrowth};
    let (flow, definition) = (&running.flow, &running.compiled.definition);
    let short = is_short.then(|| MEMORY_SHORT.to_owned());
    flow.observe((Publishing, None, Memory), short.clone(), now);
    flow.observe((Publishing, None, Disk), is_full, now);
    flow.observe((Publishing, None, StoreGrowth), grown(core, definition), now);
    let (many, most) = (flow.in_flight(), definition.flow.in_flight_max as usize);
    let held = (many >= most).then(|| format!("{many} senders wait for an answer"));
    flow.observe((Publishing, None, InFlight), held, now);
    let rates = flow.rates();
    let places = std::iter::once(None).chain(definition.receive.keys().cloned().map(Some));
    for port in places {
        let set = rates.get(&port).map(|rate| rate_text(*rate));
        flow.observe((Publishing, port, Operator), set, now);
    }
    let mut is_still = true;
    for (port, send_port) in &running.send_ports {
        if let Some(moves) = send_port.with(|queue| queue.moves_if_truncated()) {
            match core.parts.spool.count_due(&definition.name, port, now, COUNTED_MAX).await {
                Ok(due) => send_port.with(|queue| queue.counted(due, moves)),
                Err(error) => tracing::error!(%error, %port, "cannot count waiting messages"),
            }
        }
        let load = send_port.with(|queue| queue.flow_load());
        is_still &= load.busy == 0 && load.waiting == 0;
        let wait = send_port.with(|queue| queue.excessive_wait(definition.flow.wait_max, now));
        let unequal = wait.map(|wait| format!("{} messages wait, a new one {} s", load.waiting, wait.as_secs()));
        flow.observe((Publishing, Some(port.clone()), RateImbalance), unequal, now);
        let busy = load.busy >= load.concurrency && load.waiting > 0;
        let busy = busy.then(|| format!("{} are in progress, {} wait", load.busy, load.waiting));
        flow.observe((Delivery, Some(port.clone()), InFlight), busy, now);
        let slowed = load.slowed_to.map(|few| format!("{} wait, and only {few} of them in memory", load.waiting));
        flow.observe((Delivery, Some(port.clone()), RateImbalance), slowed, now);
        let set = load.rate.map(|rate| format!("an operator limits sending to {rate}"));
        flow.observe((Delivery, Some(port.clone()), Operator), set, now);
        flow.observe((Delivery, Some(port.clone()), Memory), short.clone().filter(|_| load.waiting > 0), now);
        flow.observe((Delivery, Some(port.clone()), Disk), None, now);
        if let Some(wait) = send_port.with(|queue| queue.expected_wait(now)) {
            let labels = [("exchange", running.name()), ("port", port.to_string())];
            metrics::gauge!("tocsin_exchange_queue_wait_seconds", &labels).set(wait.as_secs_f64());
            metrics::gauge!("tocsin_exchange_queue_messages", &labels).set(load.waiting as f64);
        }
    }
    let changes = flow.take_changes();
    if !changes.is_empty()
        && let Err(error) = core.parts.spool.record_throttles(changes).await
    {
        tracing::error!(%error, exchange = %definition.name, "cannot store throttling changes");
    }
    is_still && flow.is_still()
}
