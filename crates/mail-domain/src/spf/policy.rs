use std::net::{Ipv4Addr, Ipv6Addr};

use super::macros::DomainSpec;

/// Result of a matching directive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Qualifier {
    Pass,
    Fail,
    SoftFail,
    Neutral,
}

/// Prefix lengths of `a` and `mx`, for both families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefixes {
    pub v4: u8,
    pub v6: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mechanism {
    All,
    Include(DomainSpec),
    A(Option<DomainSpec>, Prefixes),
    Mx(Option<DomainSpec>, Prefixes),
    Ptr(Option<DomainSpec>),
    Ip4(Ipv4Addr, u8),
    Ip6(Ipv6Addr, u8),
    Exists(DomainSpec),
}

/// A mechanism with its qualifier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directive {
    pub qualifier: Qualifier,
    pub mechanism: Mechanism,
    /// As written.
    pub text: String,
}

/// An SPF record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Policy {
    pub directives: Vec<Directive>,
    pub redirect: Option<DomainSpec>,
    pub explanation: Option<DomainSpec>,
}

/// An SPF record is not well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PolicyError {
    term: Option<String>,
    problem: &'static str,
}

impl PolicyError {
    /// The term, if the error is in one.
    pub fn term(&self) -> Option<&str> {
        self.term.as_deref()
    }
}

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.term {
            Some(term) => write!(f, "`{term}`: {}", self.problem),
            None => f.write_str(self.problem),
        }
    }
}

impl std::error::Error for PolicyError {}

impl Policy {
    /// Parses a record, `v=spf1` included.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let whole = |problem| PolicyError { term: None, problem };
        let mut terms = text.split(' ');
        if !terms.next().is_some_and(|version| version.eq_ignore_ascii_case("v=spf1")) {
            return Err(whole("the record does not begin with `v=spf1`"));
        }
        let mut policy = Policy::default();
        for term in terms.filter(|term| !term.is_empty()) {
            let wrong = |problem| PolicyError { term: Some(term.to_owned()), problem };
            if !term.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong("terms are ASCII, separated by spaces"));
            }
            match term.find([':', '/', '=']) {
                Some(at) if term.as_bytes()[at] == b'=' => {
                    policy.modifier(&term[..at], &term[at + 1..]).map_err(wrong)?;
                }
                _ => policy.directives.push(directive(term).map_err(wrong)?),
            }
        }
        Ok(policy)
    }

    /// All domains with macros.
    pub fn targets(&self) -> impl Iterator<Item = &DomainSpec> {
        let of_directives = self.directives.iter().filter_map(|directive| match &directive.mechanism {
            Mechanism::Include(target) | Mechanism::Exists(target) => Some(target),
            Mechanism::A(target, _) | Mechanism::Mx(target, _) | Mechanism::Ptr(target) => target.as_ref(),
            Mechanism::All | Mechanism::Ip4(..) | Mechanism::Ip6(..) => None,
        });
        of_directives.chain(&self.redirect).chain(&self.explanation)
    }

    fn modifier(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        let place = match name.to_ascii_lowercase().as_str() {
            "redirect" => &mut self.redirect,
            "exp" => &mut self.explanation,
            other => {
                let is_name = other.starts_with(|c: char| c.is_ascii_alphabetic())
                    && other.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
                if !is_name {
                    return Err("the name of a modifier begins with a letter");
                }
                // Unknown modifiers are ignored, but must be well-formed (section 6).
                return DomainSpec::parse_text(value).map(|_| ());
            }
        };
        if place.is_some() {
            return Err("the modifier occurs twice");
        }
        *place = Some(DomainSpec::parse(value)?);
        Ok(())
    }
}

fn directive(term: &str) -> Result<Directive, &'static str> {
    let (qualifier, rest) = match term.as_bytes().first() {
        Some(b'+') => (Qualifier::Pass, &term[1..]),
        Some(b'-') => (Qualifier::Fail, &term[1..]),
        Some(b'~') => (Qualifier::SoftFail, &term[1..]),
        Some(b'?') => (Qualifier::Neutral, &term[1..]),
        _ => (Qualifier::Pass, term),
    };
    let at = rest.find([':', '/']).unwrap_or(rest.len());
    let (name, argument) = (rest[..at].to_ascii_lowercase(), &rest[at..]);
    let required = || argument.strip_prefix(':').filter(|value| !value.is_empty()).ok_or("a domain is missing");
    let none = |mechanism: Mechanism| match argument {
        "" => Ok(mechanism),
        _ => Err("the mechanism has no argument"),
    };
    let mechanism = match name.as_str() {
        "all" => none(Mechanism::All)?,
        "include" => Mechanism::Include(DomainSpec::parse(required()?)?),
        "exists" => Mechanism::Exists(DomainSpec::parse(required()?)?),
        "a" => {
            let (domain, prefixes) = domain_and_prefixes(argument)?;
            Mechanism::A(domain, prefixes)
        }
        "mx" => {
            let (domain, prefixes) = domain_and_prefixes(argument)?;
            Mechanism::Mx(domain, prefixes)
        }
        "ptr" => Mechanism::Ptr(match argument {
            "" => None,
            _ => Some(DomainSpec::parse(required()?)?),
        }),
        "ip4" => {
            let (address, prefix) = network(argument)?;
            let address = address.parse().map_err(|_| "this is not an IPv4 address")?;
            Mechanism::Ip4(address, prefix.map_or(Ok(32), |text| prefix_length(text, 32))?)
        }
        "ip6" => {
            let (address, prefix) = network(argument)?;
            let address = address.parse().map_err(|_| "this is not an IPv6 address")?;
            Mechanism::Ip6(address, prefix.map_or(Ok(128), |text| prefix_length(text, 128))?)
        }
        _ => return Err("there is no such mechanism"),
    };
    Ok(Directive { qualifier, mechanism, text: term.to_owned() })
}

/// The address and prefix length of `ip4` and `ip6`.
fn network(argument: &str) -> Result<(&str, Option<&str>), &'static str> {
    let value = argument.strip_prefix(':').filter(|value| !value.is_empty()).ok_or("an address is missing")?;
    Ok(value.split_once('/').map_or((value, None), |(address, prefix)| (address, Some(prefix))))
}

/// The optional domain of `a` and `mx`, and its prefix lengths: `:domain/24//64`.
fn domain_and_prefixes(argument: &str) -> Result<(Option<DomainSpec>, Prefixes), &'static str> {
    let (rest, v6) = split_digits(argument, "//");
    let (rest, v4) = split_digits(rest, "/");
    let prefixes = Prefixes {
        v4: v4.map_or(Ok(32), |text| prefix_length(text, 32))?,
        v6: v6.map_or(Ok(128), |text| prefix_length(text, 128))?,
    };
    let domain = match rest.strip_prefix(':') {
        Some(domain) => Some(DomainSpec::parse(domain)?),
        None if rest.is_empty() => None,
        None => return Err("this is not a prefix length, such as `/24`"),
    };
    Ok((domain, prefixes))
}

/// Splits digits with their separator from the end.
fn split_digits<'a>(text: &'a str, separator: &str) -> (&'a str, Option<&'a str>) {
    match text.rfind(separator) {
        Some(at) => {
            let digits = &text[at + separator.len()..];
            let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            if are_digits { (&text[..at], Some(digits)) } else { (text, None) }
        }
        None => (text, None),
    }
}

fn prefix_length(text: &str, max: u8) -> Result<u8, &'static str> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    let parsed = is_number.then(|| text.parse::<u8>().ok()).flatten().filter(|length| *length <= max);
    parsed.ok_or("this is not a prefix length of the address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_formed_records_are_accepted() {
        for text in [
            "v=spf1",
            "V=SPF1 ALL",
            "v=spf1  mx  -all  ",
            "v=spf1 a/24 a//64 a/24//64 a:b.example/24 mx:b.example//64",
            "v=spf1 ip4:192.0.2.0/24 ip6:2001:db8::/32 ip6:::1 ?all",
            "v=spf1 include:_spf.example.com redirect=example.com. exp=%{d}",
            "v=spf1 exists:%{ir}.%{l1r+-}._spf.%{d} ptr ptr:example.org",
            "v=spf1 unknown=anything-%%%_%- moo.2_x=",
            "v=spf1 a:foo:bar/baz.example.com",
            "v=spf1 a:example.a-b exists:%{s}.a.1com",
        ] {
            assert_eq!(Policy::parse(text).map(|_| ()), Ok(()), "{text}");
        }
    }

    #[test]
    fn each_error_names_its_term() {
        for (text, error) in [
            ("v=spf10 -all", "the record does not begin with `v=spf1`"),
            ("v=spf1 -all\t", "`-all\t`: terms are ASCII, separated by spaces"),
            ("v=spf1 ipv4:192.0.2.1", "`ipv4:192.0.2.1`: there is no such mechanism"),
            ("v=spf1 ip4:192.0.2", "`ip4:192.0.2`: this is not an IPv4 address"),
            ("v=spf1 ip4:192.0.2.1/33", "`ip4:192.0.2.1/33`: this is not a prefix length of the address"),
            ("v=spf1 ip4:192.0.2.1/032", "`ip4:192.0.2.1/032`: this is not a prefix length of the address"),
            ("v=spf1 ip4:192.0.2.1/", "`ip4:192.0.2.1/`: this is not a prefix length of the address"),
            ("v=spf1 ip4", "`ip4`: an address is missing"),
            ("v=spf1 ip6:2001:db8::/129", "`ip6:2001:db8::/129`: this is not a prefix length of the address"),
            ("v=spf1 ip6:1.2.3.4", "`ip6:1.2.3.4`: this is not an IPv6 address"),
            ("v=spf1 -all.", "`-all.`: there is no such mechanism"),
            ("v=spf1 all:example.org", "`all:example.org`: the mechanism has no argument"),
            ("v=spf1 include", "`include`: a domain is missing"),
            ("v=spf1 include:", "`include:`: a domain is missing"),
            ("v=spf1 a/33", "`a/33`: this is not a prefix length of the address"),
            ("v=spf1 a/x", "`a/x`: this is not a prefix length, such as `/24`"),
            ("v=spf1 a:111.222.33.44", "`a:111.222.33.44`: the last label is not that of a domain"),
            ("v=spf1 a:museum", "`a:museum`: a domain has a dot"),
            ("v=spf1 a:example.com:8080", "`a:example.com:8080`: the last label is not that of a domain"),
            ("v=spf1 exists:%{x}", "`exists:%{x}`: there is no such macro"),
            ("v=spf1 exists:%{i0}.b.c", "`exists:%{i0}.b.c`: this is not the number of labels of a macro"),
            ("v=spf1 exists:%a.b.c", "`exists:%a.b.c`: `%` begins a macro; write `%%` for the character"),
            ("v=spf1 exists:%{i.b.c", "`exists:%{i.b.c`: a macro is not closed"),
            ("v=spf1 redirect=a.b redirect=a.b", "`redirect=a.b`: the modifier occurs twice"),
            ("v=spf1 redirect=", "`redirect=`: a domain has a dot"),
            ("v=spf1 2moo=x", "`2moo=x`: the name of a modifier begins with a letter"),
            ("v=spf1 moo=%", "`moo=%`: `%` begins a macro; write `%%` for the character"),
        ] {
            assert_eq!(Policy::parse(text).map(|_| ()).map_err(|error| error.to_string()), Err(error.into()), "{text}");
        }
    }
}
