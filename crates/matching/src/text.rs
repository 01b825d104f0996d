//! Text tests: patterns with `*`, addresses in networks, case folding.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// Lower-cases a text by Unicode, each character by itself: a part of a text is lower-cased to a part of the lower-cased
/// text. So both lower-case forms of sigma become `σ`; by Unicode's rule for final sigma, the one of `ΑΣ` would depend on
/// what follows. ASCII in lower case is borrowed.
pub fn fold(text: &str) -> Cow<'_, str> {
    if !text.is_ascii() {
        let lower = text.to_lowercase();
        return Cow::Owned(if lower.contains('ς') { lower.replace('ς', "σ") } else { lower });
    }
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(text.to_ascii_lowercase());
    }
    Cow::Borrowed(text)
}

/// A wildcard pattern: `*` stands for any text, also the empty one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wildcard {
    /// The literal parts between the stars; one more than there are stars. The first and the last may be empty.
    parts: Arc<[Arc<str>]>,
}

impl Wildcard {
    /// A pattern from its literal parts; at least one.
    pub fn new(parts: Vec<Arc<str>>) -> Self {
        Wildcard { parts: parts.into() }
    }

    /// The literal parts before, between and after the stars.
    pub fn parts(&self) -> &[Arc<str>] {
        &self.parts
    }

    /// Whether a text matches: first and last part at the ends, the others in order between, each at the earliest
    /// position. Time: the text's length times the longest part's at worst, whatever the number of stars.
    pub fn fits(&self, text: &str) -> bool {
        let [first, middle @ .., last] = &*self.parts else { return self.parts.iter().all(|part| **part == *text) };
        let Some(rest) = text.strip_prefix(&**first) else { return false };
        let Some(mut rest) = rest.strip_suffix(&**last) else { return false };
        for part in middle {
            let Some(at) = rest.find(&**part) else { return false };
            rest = &rest[at + part.len()..];
        }
        true
    }
}

/// A network of IPv4 or IPv6 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The first address.
    address: IpAddr,
    /// The prefix length.
    bits: u8,
}

impl Network {
    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or one address. Host bits are cleared.
    ///
    /// # Errors
    /// The problem, as text.
    pub fn read(text: &str) -> Result<Network, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an IP address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|number: &u8| *number <= most && bits.bytes().all(|byte| byte.is_ascii_digit()))
                .ok_or_else(|| format!("`{bits}` is not a number of bits from 0 to {most}"))?,
        };
        Ok(Network { address: masked(address, bits), bits })
    }

    /// Whether a text is an address in the network. IPv4 addresses are not in IPv6 networks, in any notation.
    pub fn has(&self, text: &str) -> bool {
        text.parse::<IpAddr>().is_ok_and(|address| {
            address.is_ipv4() == self.address.is_ipv4() && masked(address, self.bits) == self.address
        })
    }
}

impl Network {
    /// Whether it is IPv4, the prefix length, and the first address: equal for equal networks.
    pub(crate) fn key(&self) -> (bool, u8, u128) {
        (self.address.is_ipv4(), self.bits, number(self.address))
    }

    /// The first address of the network of this prefix length that contains an address, if the text is an address of
    /// that family.
    pub(crate) fn address_within(text: &str, is_ipv4: bool, bits: u8) -> Option<u128> {
        // A cheap test first: addresses are short and begin with a hexadecimal digit or a colon.
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_hexdigit() || byte == b':');
        let address: IpAddr = if begins && text.len() <= 45 { text.parse().ok()? } else { return None };
        (address.is_ipv4() == is_ipv4).then(|| number(masked(address, bits)))
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match() {
        let fits = |pattern: &str, text: &str| Wildcard::new(pattern.split('*').map(Arc::from).collect()).fits(text);
        for (pattern, text) in
            [("a*b", "ab"), ("a*b", "a--b"), ("*", ""), ("*ab*ab*", "aabab"), ("x", "x"), ("*é", "caf\u{e9}")]
        {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a*a", "a"), ("a*b", "a"), ("*ab*ab*", "aab-ba"), ("x", "xx"), ("ab*bc", "abc"), ("a*b*c", "acb")]
        {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn networks_contain_their_addresses() {
        let has = |network: &str, address: &str| Network::read(network).expect("a network").has(address);
        assert!(has("10.0.0.7/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("0.0.0.0/0", "255.255.255.255") && !has("0.0.0.0/0", "::1"));
        assert!(has("2001:db8::/33", "2001:db8:7fff::") && !has("2001:db8::/33", "2001:db8:8000::"));
        assert!(has("192.0.2.1", "192.0.2.1") && !has("192.0.2.1", "192.0.2.1 ") && !has("192.0.2.1", "192.0.2.2"));
        assert_eq!(Network::read("10.0.0.0/33"), Err("`33` is not a number of bits from 0 to 32".to_owned()));
        assert_eq!(Network::read("10.0.0/8"), Err("`10.0.0` is not an IP address".to_owned()));
        assert!(Network::read("10.0.0.0/+8").is_err());
    }
}
