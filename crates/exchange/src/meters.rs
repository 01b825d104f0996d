//! What is counted for every message. The handles are kept with the ports, so that counting costs no look-up.

use std::collections::BTreeMap;

use metrics::{Counter, Histogram};
use tocsin_model::{exchange::Exchange, id::Name};

/// What is counted at a receive port.
pub(crate) struct ReceiveMeters {
    /// Messages that are stored.
    pub new: Counter,
    /// Repetitions of them.
    pub duplicate: Counter,
    /// Requests that left before they were stored.
    pub left_first: Counter,
    /// How long requests waited for their reply.
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
            metrics::counter!("exchange_received_total", &[exchange, port, ("result", result.to_owned())])
        };
        ReceiveMeters {
            new: received("new"),
            duplicate: received("duplicate"),
            left_first: metrics::counter!("exchange_left_first_total", &place),
            wait: metrics::histogram!("exchange_wait_seconds", &place),
        }
    }
}

/// What is counted at a send port.
pub(crate) struct SendMeters {
    exchange: Name,
    port: Name,
    done: Counter,
}

impl SendMeters {
    pub fn new(exchange: &Name, port: &Name) -> SendMeters {
        SendMeters { exchange: exchange.clone(), port: port.clone(), done: sent(exchange, port, "done") }
    }

    /// A leg was tried with this result.
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
    metrics::counter!("exchange_sent_total", &labels)
}
