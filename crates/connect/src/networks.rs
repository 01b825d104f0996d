//! Network access policy for addresses that subscribers supply: public addresses, and those the operator has allowed.
//!
//! A host is resolved once, every address is checked, and the connection uses a checked address. This prevents DNS
//! rebinding between check and use.

use std::{
    borrow::Cow,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

/// The text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a network, such as `10.0.0.0/8`, `fd00::/8` or `127.0.0.1`")]
pub struct NetworkError(pub String);

impl Network {
    /// Whether the address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                same(base.to_bits().into(), address.to_bits().into(), 32, self.bits)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => same(base.to_bits(), address.to_bits(), 128, self.bits),
            _ => false,
        }
    }
}

fn same(left: u128, right: u128, width: u8, bits: u8) -> bool {
    bits == 0 || (left ^ right) >> (width - bits) == 0
}

impl FromStr for Network {
    type Err = NetworkError;
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (base, bits) = text.split_once('/').map_or((text, None), |(base, bits)| (base, Some(bits)));
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let width = if base.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), str::parse).map_err(|_| wrong())?;
        if bits <= width { Ok(Network { base, bits }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Network {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "examples": ["10.0.0.0/8"] })
    }
}

/// Allowed addresses besides the public ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Networks {
    /// Ranges that are allowed.
    pub allow_networks: Vec<Network>,
    /// Host names that are allowed, whatever address they resolve to.
    pub allow_hosts: Vec<String>,
}

impl Networks {
    /// The union of this policy and further networks and hosts.
    pub fn with(&self, networks: &[Network], hosts: &[String]) -> Networks {
        Networks {
            allow_networks: [&self.allow_networks, networks].concat(),
            allow_hosts: [&self.allow_hosts, hosts].concat(),
        }
    }

    /// Checks an address of a host; the error names the kind of a forbidden address.
    pub fn check_address(&self, host: &str, address: IpAddr) -> Result<(), &'static str> {
        let open = self.allow_hosts.iter().any(|open| open.eq_ignore_ascii_case(host.trim_end_matches('.')))
            || self
                .allow_networks
                .iter()
                .any(|network| network.contains(address) || network.contains(address.to_canonical()));
        match special_purpose(address) {
            Some(what) if !open => Err(what),
            _ => Ok(()),
        }
    }
}

/// The kind of a non-public address (the special-purpose registries of RFC 6890).
pub fn special_purpose(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_purpose_v4(address),
        IpAddr::V6(address) => special_purpose_v6(address),
    }
}

fn special_purpose_v4(address: Ipv4Addr) -> Option<&'static str> {
    Some(match address.octets() {
        [0, ..] => "an address of this network",
        [10, ..] | [192, 168, ..] => "a private address",
        [172, second, ..] if second & 0xf0 == 16 => "a private address",
        [100, second, ..] if second & 0xc0 == 64 => "a carrier's internal address",
        [127, ..] => "a loopback address",
        [169, 254, ..] => "a link-local address",
        [192, 0, 0, _] | [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "a reserved address",
        [192, 88, 99, _] => "a 6to4 relay address",
        [198, 18 | 19, ..] => "a benchmarking address",
        [224..=239, ..] => "a multicast address",
        [240..=255, ..] => "a reserved address",
        _ => return None,
    })
}

fn special_purpose_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    Some(match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => "the unspecified address",
        [0, 0, 0, 0, 0, 0, 0, 1] => "a loopback address",
        // An address that embeds an IPv4 address is as forbidden as that one; NAT64 and 6to4 reach hosts behind a
        // gateway.
        [0, 0, 0, 0, 0, 0xffff, high, low] => return special_purpose_v4(embedded(high, low)),
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => "an embedded IPv4 address",
        [0x64, 0xff9b, ..] => "a NAT64 address",
        [0x100, 0, 0, 0 | 1, ..] => "a discarding address",
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => "a reserved address",
        [0x2002, ..] => "a 6to4 address",
        [0x5f00, ..] => "a segment-routing address",
        [first, ..] if first & 0xfe00 == 0xfc00 => "a private address",
        [first, ..] if first & 0xffc0 == 0xfe80 => "a link-local address",
        [first, ..] if first & 0xffc0 == 0xfec0 => "a site-local address",
        [first, ..] if first & 0xff00 == 0xff00 => "a multicast address",
        [first, ..] if first & 0xe000 == 0x2000 => return None,
        _ => "a reserved address",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_allowed() {
        let forbidden = [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.1",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ];
        for text in forbidden {
            assert!(special_purpose(text.parse().expect("an address")).is_some(), "{text} must be forbidden");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.63.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.1.2.3",
            "223.255.255.1",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
        ] {
            assert_eq!(special_purpose(text.parse().expect("an address")), None, "{text} must be allowed");
        }
    }

    #[test]
    fn the_operator_opens_by_network_or_by_name() {
        let networks = Networks {
            allow_networks: vec!["127.0.0.0/8".parse().expect("a network"), "fd00::/8".parse().expect("a network")],
            allow_hosts: vec!["hooks.internal".into()],
        };
        let check_address =
            |host: &str, address: &str| networks.check_address(host, address.parse().expect("an address")).is_ok();
        assert!(
            check_address("a.example", "127.0.0.1")
                && check_address("a.example", "::ffff:127.0.0.1")
                && check_address("a.example", "fd00::7")
        );
        assert!(check_address("HOOKS.internal.", "10.0.0.1"));
        assert!(
            !check_address("a.example", "10.0.0.1")
                && !check_address("a.hooks.internal", "10.0.0.1")
                && !check_address("a.example", "::1")
        );
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "example.org", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
