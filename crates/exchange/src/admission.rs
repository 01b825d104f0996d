//! Admission: whether a receive port may accept a message now.

use tocsin_model::{
    exchange::{Exchange, ThrottleReason},
    id::Name,
    time::Timestamp,
};
use tokio::time::Instant;

use crate::{
    core::Core,
    error::ReceiveError,
    flow::{InFlight, MEMORY_SHORT, RETRY_AFTER, ThrottleRefusal, rate_text, refuse},
    running::RunningExchange,
    send_queue::RELIEF,
};

/// Admits a message whose sender waits, before any work is done for it.
pub(crate) fn admit(
    core: &Core,
    running: &RunningExchange,
    port: &Name,
    now: Timestamp,
) -> Result<InFlight, ReceiveError> {
    check_admission(core, running, port, now).map_err(refuse)?;
    let (flow, most) = (&running.flow, running.compiled.definition.flow.in_flight_max);
    flow.enter(most).ok_or_else(|| {
        let text = format!("{most} senders wait for an answer, and `flow.in_flight` allows no more");
        refuse(flow.throttle(None, ThrottleReason::InFlight, text, RETRY_AFTER.0, now))
    })
}

/// Checks whether a receive port may accept a message.
pub(crate) fn check_admission(
    core: &Core,
    running: &RunningExchange,
    port: &Name,
    now: Timestamp,
) -> Result<(), ThrottleRefusal> {
    core.flow_monitor.wake();
    let (flow, definition) = (&running.flow, &running.compiled.definition);
    if let Err((rate, retry_after)) = flow.meter(port, Instant::now()) {
        return Err(flow.throttle(None, ThrottleReason::Operator, rate_text(rate), retry_after, now));
    }
    if core.flow_monitor.memory_is_short() {
        return Err(flow.throttle(None, ThrottleReason::Memory, MEMORY_SHORT.to_owned(), RETRY_AFTER.0 * 5, now));
    }
    match grown(core, definition) {
        Some(text) => Err(flow.throttle(None, ThrottleReason::StoreGrowth, text, RETRY_AFTER.0, now)),
        None => Ok(()),
    }
}

/// The explanation, if the exchange has reached its limit of open messages.
pub(crate) fn grown(core: &Core, definition: &Exchange) -> Option<String> {
    let (open, most) = (core.parts.spool.open_of(&definition.name), definition.open_messages_max);
    (open >= most).then(|| format!("{open} messages are open, and `open_messages` allows {most}"))
}

/// Checks that a message to these send ports would not wait longer than allowed.
pub(crate) fn check_queues<'a>(
    running: &RunningExchange,
    ports: impl Iterator<Item = &'a Name>,
    now: Timestamp,
) -> Result<(), ThrottleRefusal> {
    let wait_max = running.compiled.definition.flow.wait_max;
    for port in ports {
        if let Some(send_port) = running.send_ports.get(port)
            && let Some(wait) = send_port.with(|queue| queue.excessive_wait(wait_max, now))
        {
            let text = format!(
                "a message would wait {} s for the send port `{port}`, and `flow.wait` allows {} s",
                wait.as_secs(),
                wait_max.as_secs()
            );
            let retry_after = wait.saturating_sub(wait_max.mul_f64(RELIEF));
            return Err(running.flow.throttle(Some(port), ThrottleReason::RateImbalance, text, retry_after, now));
        }
    }
    Ok(())
}
