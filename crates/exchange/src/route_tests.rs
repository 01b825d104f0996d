//! Route test: where a message would go. Runs the steps of a receive port and evaluates the routes; stores and sends
//! nothing. Steps that call programs call them.

use bytes::Bytes;
use tocsin_model::{
    exchange::{MessageKind, Mode, PortState},
    id::Name,
    value::Value,
};

use crate::{
    error::OperateError,
    groups::WorkerGroup,
    message::{IncomingMessage, PipelineMessage},
    operate::Operations,
    promote,
    running::RunningExchange,
};

/// The result of a route test.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteTest {
    /// Error of a step: the message would be suspended before its routing.
    pub step_error: Option<String>,
    /// Whether the message would wait for aggregation with others; its routes are those of the aggregate.
    pub gathers: bool,
    /// The message after the steps of the port; several parts if a step splits it.
    pub parts: Vec<RoutedPart>,
}

/// A message after the steps of its receive port, with its routing.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedPart {
    /// Media type of the body.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
    /// Promoted properties.
    pub properties: Vec<(Name, Value)>,
    /// Routes that match, by name.
    pub routes: Vec<Name>,
    /// Send ports of these routes: name, state, whether the message would be sent there.
    pub ports: Vec<RoutedPort>,
    /// Reason of the suspension: no route leads the message to an open send port.
    pub reason: Option<String>,
}

/// A send port of a matching route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutedPort {
    /// Name.
    pub port: Name,
    /// State; `None`: it does not exist.
    pub state: Option<PortState>,
    /// Whether a leg would be stored for it.
    pub takes: bool,
}

impl Operations {
    /// Tests where a message of a receive port would go.
    ///
    /// # Errors
    /// There is no such exchange or receive port.
    pub async fn test_route(
        &self,
        exchange: &Name,
        port: &Name,
        incoming: IncomingMessage,
    ) -> Result<RouteTest, OperateError> {
        let running = self.running(exchange)?;
        let missing = || OperateError::Missing(format!("the receive port `{port}` of `{exchange}`"));
        let definition = running.compiled.definition.receive.get(port).ok_or_else(missing)?;
        let pipeline = running.compiled.receive.get(port).ok_or_else(missing)?;
        let kind = match definition.mode {
            Mode::OneWay => MessageKind::OneWay,
            Mode::Request => MessageKind::Request,
        };
        let IncomingMessage { content_type, headers, body, .. } = incoming;
        let raw = PipelineMessage { content_type, headers, body, ..PipelineMessage::default() };
        let workers = self.core.groups.of(WorkerGroup::Receive);
        let worked = pipeline.apply(raw, "route-test", &self.core.parts.clock, workers).await;
        let messages = match worked {
            Ok(messages) => messages,
            Err(error) => {
                return Ok(RouteTest { step_error: Some(error.to_string()), gathers: false, parts: Vec::new() });
            }
        };
        let parts = messages.into_iter().map(|message| routed(&running, port, kind, message)).collect();
        Ok(RouteTest { step_error: None, gathers: pipeline.assembler.is_some(), parts })
    }
}

fn routed(running: &RunningExchange, port: &Name, kind: MessageKind, message: PipelineMessage) -> RoutedPart {
    let head = promote::head(&running.compiled.schema, &message);
    let row = promote::row(&running.compiled.schema, port, kind, &head, message.body.len());
    let legs = running.legs(port, kind, &head, message.body.len());
    let takes = |target: &Name| legs.as_ref().is_ok_and(|legs| legs.iter().any(|leg| leg.port == *target));
    let routes = running.compiled.routes.names(&row).into_iter().cloned().collect();
    let targets = running.compiled.routes.targets(&row).into_iter();
    let ports = targets.map(|target| RoutedPort {
        port: target.clone(),
        state: running.send_ports.get(target).map(|port| port.state()),
        takes: takes(target),
    });
    let ports = ports.collect();
    let reason = legs.err().map(|reason| match promote::unreadable(&running.compiled.schema, &message) {
        Some(unread) => format!("its properties cannot be read: {unread}; {reason}"),
        None => reason,
    });
    let properties = head.properties.clone();
    RoutedPart { content_type: message.content_type, body: message.body, properties, routes, ports, reason }
}
