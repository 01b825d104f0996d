//! Status of the store, the configuration and the queue.

use serde_json::{Map, Value, json};
use tocsin_notifybc::record::Collection;
use tocsin_store::records::KeyFilter;

use super::Notifybc;

/// Configurations that every installation has: the version of the documents and the RSA key pair.
const CONFIGURATIONS_MIN: u64 = 2;

/// Result of the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    /// Whether every check passed.
    pub is_ok: bool,
    /// The answer: `status`, `info`, `error` and `details`.
    pub body: Value,
}

impl Notifybc {
    /// Checks the store (`MongoDB`), the configuration and the queue (`redis`).
    pub async fn health(&self) -> Health {
        let mut checks = Checks::default();
        let count = self.store.count_documents(Collection::Configuration, &KeyFilter::default()).await;
        checks.add("MongoDB", count.is_ok(), json!({}));
        match count {
            Ok(count) => checks.add("config", count >= CONFIGURATIONS_MIN, json!({ "count": count })),
            Err(_) => checks.add("config", false, json!({})),
        }
        let failures = self.service.ready().await;
        let detail = if failures.is_empty() { json!({}) } else { json!({ "message": failures.join("; ") }) };
        checks.add("redis", failures.is_empty(), detail);
        checks.health()
    }
}

#[derive(Default)]
struct Checks {
    info: Map<String, Value>,
    error: Map<String, Value>,
    details: Map<String, Value>,
}

impl Checks {
    fn add(&mut self, name: &str, is_up: bool, detail: Value) {
        let mut status = json!({ "status": if is_up { "up" } else { "down" } });
        if let (Value::Object(status), Value::Object(detail)) = (&mut status, detail) {
            status.extend(detail);
        }
        let part = if is_up { &mut self.info } else { &mut self.error };
        part.insert(name.to_owned(), status.clone());
        self.details.insert(name.to_owned(), status);
    }

    fn health(self) -> Health {
        let is_ok = self.error.is_empty();
        let status = if is_ok { "ok" } else { "error" };
        let body = json!({ "status": status, "info": self.info, "error": self.error, "details": self.details });
        Health { is_ok, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_5_a_failed_check_is_in_error_and_details() {
        let mut checks = Checks::default();
        checks.add("MongoDB", true, json!({}));
        checks.add("config", false, json!({ "count": 1 }));
        let health = checks.health();
        assert!(!health.is_ok);
        let expected = json!({
            "status": "error",
            "info": { "MongoDB": { "status": "up" } },
            "error": { "config": { "status": "down", "count": 1 } },
            "details": { "MongoDB": { "status": "up" }, "config": { "status": "down", "count": 1 } },
        });
        assert_eq!(health.body, expected);
    }
}
