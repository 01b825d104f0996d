//! Operator actions on flow control: reports, and rates.

use std::sync::Arc;

use tocsin_model::{application::Rate, exchange::FlowSide, id::Name};
use tocsin_store::{error::StoreError, spool::ThrottleChange};

use crate::{
    error::OperateError,
    flow::{FlowReport, Throttled},
    operate::Operations,
    send_port::SendPort,
};

impl Operations {
    /// All active throttles.
    pub fn throttled(&self) -> Vec<Throttled> {
        self.core.registry.all().values().flat_map(|running| running.flow.throttled()).collect()
    }

    /// Reports the flow of an exchange.
    ///
    /// # Errors
    /// There is no such exchange.
    pub async fn flow(&self, exchange: &Name) -> Result<FlowReport, OperateError> {
        let running = self.running(exchange)?;
        let now = self.core.now();
        let rates = self.core.parts.spool.rates().await?;
        let queue = |(name, port): (&Name, &Arc<SendPort>)| {
            port.with(|queue| (name.clone(), queue.flow_load().waiting, queue.expected_wait(now)))
        };
        Ok(FlowReport {
            in_flight: running.flow.in_flight(),
            throttled: running.flow.throttled(),
            rates: rates.into_iter().filter(|set| set.exchange == *exchange).collect(),
            queues: running.send_ports.iter().map(queue).collect(),
        })
    }

    /// Throttling changes of an exchange, newest first.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn flow_changes(&self, exchange: &Name, limit: usize) -> Result<Vec<ThrottleChange>, StoreError> {
        self.core.parts.spool.throttles(exchange, limit).await
    }

    /// Limits the rate of receiving (all receive ports or one) or of sending (one port). Kept across restarts and new
    /// definitions. `None` removes the limit.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn set_rate(
        self: &Arc<Self>,
        exchange: &Name,
        side: FlowSide,
        port: Option<&Name>,
        rate: Option<Rate>,
    ) -> Result<(), OperateError> {
        let (operations, exchange, port) = (self.clone(), exchange.clone(), port.cloned());
        self.run_to_completion(async move { operations.set_rate_now(&exchange, side, port.as_ref(), rate).await }).await
    }

    async fn set_rate_now(
        self: &Arc<Self>,
        exchange: &Name,
        side: FlowSide,
        port: Option<&Name>,
        rate: Option<Rate>,
    ) -> Result<(), OperateError> {
        let running = self.running(exchange)?;
        let definition = &running.compiled.definition;
        let is_known = match (side, port) {
            (FlowSide::Publishing, None) => true,
            (FlowSide::Publishing, Some(port)) => definition.receive.contains_key(port),
            (FlowSide::Delivery, Some(port)) => running.send_ports.contains_key(port),
            (FlowSide::Delivery, None) => false,
        };
        if !is_known {
            let side = if side == FlowSide::Publishing { "receive" } else { "send" };
            let port = port.map(|port| format!("the {side} port `{port}`")).unwrap_or_else(|| format!("a {side} port"));
            return Err(OperateError::Missing(format!("{port} of `{exchange}`")));
        }
        let _one = self.applying.lock().await;
        self.core.parts.spool.set_rate(exchange.clone(), side, port.cloned(), rate).await?;
        // The definition can have changed in the meantime.
        if let Some(running) = self.core.find(exchange) {
            self.dispatch.set_rate(&running, side, port.cloned(), rate);
        }
        self.core.flow_monitor.wake();
        Ok(())
    }
}
