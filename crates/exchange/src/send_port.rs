//! A running send port: its definition, its state and its send queue. It outlives changes of the definition.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tocsin_model::{
    exchange::{Mode, PortState, SendOrder, SendPort as Definition},
    id::Name,
    time::Timestamp,
    value::Value,
};
use tocsin_store::spool::{CorrelationKey, Head, LegOrder, NewLeg};
use tokio::task::AbortHandle;

use crate::{
    compile::CompiledSendPort,
    meters::SendMeters,
    promote,
    send_queue::{Actions, Conditions, QueueSettings, SendQueue},
};

/// The highest priority.
const PRIORITY_MAX: i64 = 9;

/// A running send port.
pub(crate) struct SendPort {
    exchange: Name,
    name: Name,
    compiled: RwLock<Arc<CompiledSendPort>>,
    pub queue: Mutex<TimedQueue>,
    pub meters: SendMeters,
}

/// A send queue, and the task of its next wake-up.
pub(crate) struct TimedQueue {
    pub queue: SendQueue,
    pub timer: Option<AbortHandle>,
}

impl SendPort {
    /// A port that holds its messages until it is configured.
    pub fn new(exchange: Name, name: Name, compiled: Arc<CompiledSendPort>) -> Arc<SendPort> {
        let queue = SendQueue::new(settings(&compiled.definition, PortState::Hold));
        let meters = SendMeters::new(&exchange, &name);
        let queue = Mutex::new(TimedQueue { queue, timer: None });
        Arc::new(SendPort { exchange, name, compiled: RwLock::new(compiled), queue, meters })
    }

    pub fn exchange(&self) -> &Name {
        &self.exchange
    }

    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn compiled(&self) -> Arc<CompiledSendPort> {
        self.compiled.read().clone()
    }

    /// Asks the queue something, without an action.
    pub fn with<T>(&self, ask: impl FnOnce(&mut SendQueue) -> T) -> T {
        ask(&mut self.queue.lock().queue)
    }

    pub fn state(&self) -> PortState {
        self.with(|queue| queue.state())
    }

    /// The number of legs in progress, and of ready legs.
    pub fn load(&self) -> (u32, usize) {
        self.with(|queue| queue.load())
    }

    /// When its service window opens, if it is closed.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.with(|queue| queue.opens_at(now))
    }

    /// Changes the definition and the state; an input for the queue.
    pub fn configure(
        &self,
        queue: &mut SendQueue,
        compiled: Arc<CompiledSendPort>,
        state: PortState,
        conditions: &Conditions,
    ) -> Actions {
        let settings = settings(&compiled.definition, state);
        *self.compiled.write() = compiled;
        queue.configure(settings, conditions)
    }

    /// Builds the leg of a message to this port.
    ///
    /// # Errors
    /// The message lacks a property that its asynchronous reply is correlated by.
    pub fn new_leg(&self, head: &Head) -> Result<NewLeg, String> {
        let compiled = self.compiled();
        let awaits = compiled.definition.later.as_ref().map(|later| {
            let missing = |name| format!("it has no `{name}`, by which its reply from `{}` would be known", self.name);
            let key = promote::correlation_key(head, &compiled.definition.correlate).map_err(missing)?;
            Ok::<_, String>(CorrelationKey { through: later.through.clone(), key })
        });
        let (mut lane, mut ahead) = (None, None);
        match &compiled.definition.order {
            SendOrder::Due => {}
            SendOrder::Keyed { by, .. } => {
                let texts = by.iter().map(|name| promote::text_of(head, name.as_str()).unwrap_or_default());
                lane = Some(texts.collect::<Vec<_>>().join("\u{1f}"));
            }
            SendOrder::Priority { by, ageing } => {
                let priority = match head.properties.iter().find(|(name, _)| name == by) {
                    Some((_, Value::Integer(priority))) => (*priority).clamp(0, PRIORITY_MAX),
                    _ => 0,
                };
                ahead = Some(*ageing * u32::try_from(priority).expect("it is small"));
            }
        }
        let (port, replies) = (self.name.clone(), compiled.definition.mode == Mode::Request);
        Ok(NewLeg { port, replies, awaits: awaits.transpose()?, lane, ahead })
    }
}

fn settings(definition: &Definition, state: PortState) -> QueueSettings {
    let order = match definition.order {
        SendOrder::Due => LegOrder::Due,
        SendOrder::Keyed { stops, .. } => LegOrder::Lanes { stops },
        SendOrder::Priority { .. } => LegOrder::Rank,
    };
    QueueSettings { state, concurrency: definition.concurrency, order, window: definition.window.clone() }
}
