//! Metrics of ports. The handles are cached with the ports, so that counting needs no look-up.

use std::collections::BTreeMap;

use metrics::{Counter, Histogram};
use tocsin_model::{exchange::Exchange, id::Name};

/// Metrics of a receive port.
pub(crate) struct ReceiveMeters {
    /// Stored messages.
    pub new: Counter,
    /// Duplicates.
    pub duplicate: Counter,
    /// Requests that were sent before their commit.
    pub sent_before_commit: Counter,
    /// Duration of requests until their reply.
    pub wait: Histogram,
}

impl ReceiveMeters {
    pub fn of_all(exchange: &Exchange) -> BTreeMap<Name, ReceiveMeters> {
        exchange.receive.keys().map(|port| (port.clone(), ReceiveMeters::new(&exchange.name, port))).collect()
    }

    fn new(exchange: &Name, port: &Name) -> ReceiveMeters {
        let place = [("exchange", exchange.to_string()), ("port", port.to_string())];
        let received = |result: &str| {
            let [exchange, port] = place.clone();
            metrics::counter!("tocsin_exchange_received_total", &[exchange, port, ("result", result.to_owned())])
        };
        ReceiveMeters {
            new: received("new"),
            duplicate: received("duplicate"),
            sent_before_commit: metrics::counter!("tocsin_exchange_sent_before_commit_total", &place),
            wait: metrics::histogram!("tocsin_exchange_request_duration_seconds", &place),
        }
    }
}

/// Metrics of a send port.
pub(crate) struct SendMeters {
    exchange: Name,
    port: Name,
    done: Counter,
}

impl SendMeters {
    pub fn new(exchange: &Name, port: &Name) -> SendMeters {
        SendMeters { exchange: exchange.clone(), port: port.clone(), done: sent(exchange, port, "done") }
    }

    /// Counts an attempt with this result.
    pub fn count(&self, result: &'static str) {
        match result {
            "done" => self.done.increment(1),
            // These are rare.
            result => sent(&self.exchange, &self.port, result).increment(1),
        }
    }
}

fn sent(exchange: &Name, port: &Name, result: &'static str) -> Counter {
    let labels = [("exchange", exchange.to_string()), ("port", port.to_string()), ("result", result.to_owned())];
    metrics::counter!("tocsin_exchange_sent_total", &labels)
}
