//! Addresses and CIDR ranges.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;
use serde_json::Value;

/// A list of addresses and ranges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks(Vec<IpNet>);

impl Networks {
    /// The networks of a list, or of one text. Others are reported to `ignored`.
    pub(super) fn parse(name: &str, value: Option<&Value>, ignored: &mut Vec<String>) -> Networks {
        let items = match value {
            None => &[],
            Some(Value::Array(items)) => items.as_slice(),
            Some(other) => std::slice::from_ref(other),
        };
        let mut networks = Vec::with_capacity(items.len());
        for item in items {
            match item.as_str().and_then(network) {
                Some(network) => networks.push(network),
                None => ignored.push(format!("{name}: {item} is not an address or range")),
            }
        }
        Networks(networks)
    }

    /// Whether an address is in one of them. An IPv4 address may be written as an IPv6 one.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A range, or an address as a range of one.
fn network(text: &str) -> Option<IpNet> {
    let text = text.trim();
    match IpAddr::from_str(text) {
        Ok(address) => Some(IpNet::from(address.to_canonical())),
        Err(_) => text.parse().ok(),
    }
}
