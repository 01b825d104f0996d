//! Dispatch: gives inputs to the send queues and performs their actions: attempts, reads of the spool and wake-ups.

use std::{collections::HashSet, sync::Arc};

use tocsin_model::{
    application::Rate,
    exchange::{FlowSide, PortState},
    id::{MessageId, Name},
};
use tocsin_store::{
    error::StoreError,
    spool::{Leg, LegState, NewLeg, NewMessage, WaitingLeg},
};
use tokio::{task::AbortHandle, time::Instant};

use crate::{
    commit::PendingMessage,
    compile::CompiledSendPort,
    core::Core,
    reply_waiters::ReplyNotice,
    running::RunningExchange,
    send,
    send_port::{SendPort, TimedQueue},
    send_queue::{Action, Actions, Conditions, FinishedLeg, Page, RefillRequest, SendQueue},
};

/// Sends legs: drives the send queues of all exchanges.
pub(crate) struct Dispatch {
    pub core: Arc<Core>,
}

impl Dispatch {
    /// Dispatches the legs of a stored message.
    pub fn dispatch(self: &Arc<Self>, running: &RunningExchange, stored: &NewMessage) {
        let core = &self.core;
        if let Some(reason) = &stored.suspended {
            if !stored.head.raw {
                metrics::counter!("tocsin_exchange_unroutable_total", "exchange" => running.name()).increment(1);
            }
            tracing::warn!(message = %stored.id, exchange = %stored.exchange, reason, "a message is suspended");
        }
        core.expect_expiry(stored);
        if let (Some(_), Some(request)) = (stored.settles, stored.answers) {
            // The caller reads from the spool whether the reply was in time.
            let ports = stored.legs.iter().filter_map(|leg| running.send_ports.get(&leg.port));
            ports.for_each(|port| self.refill(port));
            return core.reply_waiters.answer(request, ReplyNotice::None);
        }
        for (number, leg) in stored.legs.iter().enumerate() {
            let Some(port) = running.send_ports.get(&leg.port) else { continue };
            let leg = waiting_leg(stored, u32::try_from(number).expect("legs are few"), leg);
            self.input(port, |queue, conditions| queue.push(leg, conditions));
        }
    }

    /// Starts the only leg of a message before the message is stored, if it would be sent at once in any case.
    pub fn claim(&self, port: &SendPort, message: &NewMessage) -> Option<Box<WaitingLeg>> {
        let conditions = self.core.conditions();
        let leg = message.legs.first()?;
        let is_claimed = port.with(|queue| queue.claim((message.id, 0), &conditions));
        is_claimed.then(|| Box::new(waiting_leg(message, 0, leg)))
    }

    /// Sends a claimed leg before its message is stored.
    pub fn send_first(self: &Arc<Self>, port: Arc<SendPort>, leg: Box<WaitingLeg>, pending: Box<PendingMessage>) {
        let (core, running) = (self.core.clone(), pending.running.clone());
        self.core.tasks.spawn(send::attempt(core, running, port, leg, Some(pending)));
    }

    /// Releases a leg after its attempt.
    pub fn finished(self: &Arc<Self>, port: &Arc<SendPort>, leg: FinishedLeg) {
        self.input(port, |queue, conditions| queue.finished(leg, conditions));
    }

    /// Makes a send queue read the spool.
    pub fn refill(self: &Arc<Self>, port: &Arc<SendPort>) {
        self.input(port, SendQueue::refill);
    }

    /// Makes all send queues read the spool.
    pub fn refill_all(self: &Arc<Self>) {
        for running in self.core.registry.all().values() {
            running.send_ports.values().for_each(|port| self.refill(port));
        }
    }

    /// Changes the definition and the state of a port. Attempts in progress go on unchanged.
    pub fn configure(self: &Arc<Self>, port: &Arc<SendPort>, compiled: Arc<CompiledSendPort>, state: PortState) {
        self.input(port, |queue, conditions| port.configure(queue, compiled, state, conditions));
    }

    /// Limits the rate of receiving (all receive ports or one) or of sending (one port); `None`: unlimited.
    pub fn set_rate(
        self: &Arc<Self>,
        running: &RunningExchange,
        side: FlowSide,
        port: Option<Name>,
        rate: Option<Rate>,
    ) {
        match (side, port) {
            (FlowSide::Publishing, port) => running.flow.set_rate(port, rate),
            (FlowSide::Delivery, Some(port)) => {
                if let Some(port) = running.send_ports.get(&port) {
                    self.input(port, |queue, conditions| queue.set_rate(rate, conditions));
                }
            }
            (FlowSide::Delivery, None) => {}
        }
    }

    /// Removes cancelled messages from the memory of all send queues.
    pub fn remove_cancelled(&self, ended: &[MessageId]) {
        let ended: HashSet<MessageId> = ended.iter().copied().collect();
        for running in self.core.registry.all().values() {
            let ports = running.send_ports.values().chain(running.leaving.values());
            ports.for_each(|port| port.with(|queue| queue.remove_cancelled(&ended)));
        }
    }

    /// Gives an input to a send queue and performs the actions. Both are under one lock, so that actions are performed
    /// in the order of inputs.
    fn input(self: &Arc<Self>, port: &Arc<SendPort>, input: impl FnOnce(&mut SendQueue, &Conditions) -> Actions) {
        let conditions = self.core.conditions();
        let mut locked = port.queue.lock();
        let TimedQueue { queue, timer } = &mut *locked;
        for action in input(queue, &conditions) {
            match action {
                Action::Start(leg) => drop(self.core.tasks.spawn(self.clone().send(port.clone(), leg))),
                Action::Refill(request) => drop(self.core.tasks.spawn(self.clone().read(port.clone(), request))),
                Action::WakeAt(at) => {
                    if let Some(earlier) = timer.replace(self.wake_at(port, at)) {
                        earlier.abort();
                    }
                }
            }
        }
    }

    /// Sends a leg, unless its request has expired or its exchange was removed.
    async fn send(self: Arc<Self>, port: Arc<SendPort>, leg: Box<WaitingLeg>) {
        let is_over = leg.leg.replies && leg.expires_at.is_some_and(|at| at <= self.core.now());
        // Upkeep expires the request; its leg must not be in progress then.
        match self.core.find(port.exchange()).filter(|_| !is_over) {
            Some(running) => send::attempt(self.core.clone(), running, port, leg, None).await,
            None => self.finished(&port, FinishedLeg::of(&leg)),
        }
    }

    /// Reads due legs from the spool, and the time of the next one.
    async fn read(self: Arc<Self>, port: Arc<SendPort>, request: RefillRequest) {
        match self.page(&port, &request).await {
            Ok(page) => self.input(&port, |queue, conditions| queue.refilled(page, conditions)),
            Err(error) => {
                tracing::error!(%error, exchange = %port.exchange(), port = %port.name(), "the spool is unavailable");
                self.input(&port, SendQueue::refill_failed);
            }
        }
    }

    async fn page(&self, port: &SendPort, request: &RefillRequest) -> Result<Page, StoreError> {
        let (spool, now) = (&self.core.parts.spool, self.core.now());
        let (exchange, name, skip) = (port.exchange(), port.name(), request.skip.clone());
        let most = (request.legs_max, request.bytes_max);
        let legs = spool.due_legs(exchange, name, request.order, now, skip, most).await?;
        Ok(request.page(legs, spool.next_due(exchange, name, now).await?))
    }

    /// Wakes a send queue at this time.
    fn wake_at(self: &Arc<Self>, port: &Arc<SendPort>, at: Instant) -> AbortHandle {
        let (dispatch, port, stopping) = (self.clone(), port.clone(), self.core.stopping.clone());
        let waking = self.core.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(at) => dispatch.input(&port, SendQueue::woken),
                () = stopping.cancelled() => {}
            }
        });
        waking.abort_handle()
    }
}

pub(crate) fn waiting_leg(message: &NewMessage, number: u32, leg: &NewLeg) -> WaitingLeg {
    WaitingLeg {
        message: message.id,
        from: message.port.clone(),
        kind: message.kind,
        answers: message.answers,
        head: message.head.clone(),
        body: message.body.clone(),
        accepted_at: message.accepted_at,
        expires_at: message.expires_at,
        lane: leg.lane.clone(),
        rank: leg.ahead.map(|ahead| message.accepted_at - ahead),
        leg: Leg {
            number,
            port: leg.port.clone(),
            replies: leg.replies,
            through: leg.awaits.as_ref().map(|awaits| awaits.through.clone()),
            state: LegState::Waiting,
            attempts: 0,
            on_backup: false,
            due_at: message.accepted_at,
            tried_at: None,
            said: None,
        },
    }
}
