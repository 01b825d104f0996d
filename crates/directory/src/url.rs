//! LDAP URLs (RFC 4516) and the text form of filters (RFC 4515).

use crate::{
    dn::Dn,
    filter::{FILTER_DEPTH_MAX, FILTER_TERMS_MAX, Filter, Scope},
};

/// Maximum length of a URL, in bytes.
const URL_BYTES_MAX: usize = 16 << 10;

/// Search described by a URL such as `ldap:///ou=people,o=site??sub?(l=Linz)`.
#[derive(Debug, Clone)]
pub(crate) struct LdapUrlSearch {
    pub(crate) base: Dn,
    pub(crate) scope: Scope,
    pub(crate) filter: Filter,
}

impl LdapUrlSearch {
    /// Parses a URL. It must not name a host, since the search runs on this server.
    ///
    /// # Errors
    /// The URL is malformed; the text says where.
    pub(crate) fn read(url: &str) -> Result<LdapUrlSearch, String> {
        if url.len() > URL_BYTES_MAX {
            return Err(format!("has {} bytes; the maximum is {URL_BYTES_MAX}", url.len()));
        }
        let rest = url.strip_prefix("ldap:///").ok_or("should begin with `ldap:///`, without a host")?;
        let mut parts = rest.split('?').map(decoded);
        let mut next = || parts.next().unwrap_or_else(|| Ok(String::new()));
        let (base, _attributes, scope, filter) = (next()?, next()?, next()?, next()?);
        let base = Dn::parse(&base)
            .map_err(|error| format!("begins with `{base}`, which is not a distinguished name: {error}"))?;
        let scope = match scope.as_str() {
            "" | "base" => Scope::Base,
            "one" => Scope::One,
            "sub" => Scope::Subtree,
            other => return Err(format!("has the scope `{other}`; give base, one or sub")),
        };
        let filter = if filter.is_empty() { "(objectClass=*)" } else { &filter };
        Ok(LdapUrlSearch { base, scope, filter: read_filter(filter)? })
    }
}

/// Returns the URL with another base.
pub(crate) fn with_base(url: &str, dn: &str) -> String {
    use std::fmt::Write;
    let rest = url.split_once('?').map(|(_, rest)| format!("?{rest}")).unwrap_or_default();
    let mut base = String::new();
    for byte in dn.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte) {
            true => base.push(char::from(byte)),
            false => write!(base, "%{byte:02X}").expect("text takes all"),
        }
    }
    format!("ldap:///{base}{rest}")
}

/// Decodes percent-encoding.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, later @ ..] = rest {
        rest = later;
        bytes.push(match first {
            b'%' => {
                let (digits, later) = rest.split_at_checked(2).ok_or("ends within a `%`")?;
                rest = later;
                hex(digits).ok_or("has a `%` without two hexadecimal digits")?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())
}

fn hex(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u8::from_str_radix(text, 16).ok()
}

impl Filter {
    /// Parses the text form of a filter (RFC 4515). The outermost parentheses can be omitted, as for `ldapsearch`.
    ///
    /// # Errors
    /// The filter is malformed; the text says where.
    pub fn parse(text: &str) -> Result<Filter, String> {
        match text.starts_with('(') {
            true => read_filter(text),
            false => read_filter(&format!("({text})")),
        }
    }
}

/// Parses a filter.
///
/// # Errors
/// The filter is malformed; the text says where.
pub(crate) fn read_filter(text: &str) -> Result<Filter, String> {
    let mut rest = text;
    let filter = parenthesised(&mut rest, 0)?;
    if filter.terms() > FILTER_TERMS_MAX {
        return Err(format!("has a filter of {} terms; the maximum is {FILTER_TERMS_MAX}", filter.terms()));
    }
    if rest.is_empty() { Ok(filter) } else { Err(format!("has `{rest}` after its filter")) }
}

fn parenthesised(rest: &mut &str, depth: usize) -> Result<Filter, String> {
    if depth > FILTER_DEPTH_MAX {
        return Err("has a filter that is nested too deeply".to_owned());
    }
    let inner = rest.strip_prefix('(').ok_or_else(|| format!("should have `(` before `{rest}`"))?;
    *rest = inner;
    let many = |rest: &mut &str| {
        *rest = &rest[1..];
        let mut parts = Vec::new();
        while rest.starts_with('(') {
            parts.push(parenthesised(rest, depth + 1)?);
        }
        Ok::<_, String>(parts)
    };
    let filter = match inner.chars().next() {
        Some('&') => Filter::And(many(rest)?),
        Some('|') => Filter::Or(many(rest)?),
        Some('!') => {
            *rest = &inner[1..];
            Filter::Not(Box::new(parenthesised(rest, depth + 1)?))
        }
        _ => {
            let end = inner.find([')', '(']).unwrap_or(inner.len());
            *rest = &inner[end..];
            item(&inner[..end])?
        }
    };
    *rest = rest.strip_prefix(')').ok_or("has a filter without its `)`")?;
    Ok(filter)
}

fn item(text: &str) -> Result<Filter, String> {
    let (left, value) = text.split_once('=').ok_or_else(|| format!("has `{text}`, which is not a filter"))?;
    let named = |name: &str| match name.is_empty() {
        true => Err(format!("has `{text}`, which names no attribute")),
        false => Ok(name.to_owned()),
    };
    if let Some(name) = left.strip_suffix('>') {
        return Ok(Filter::AtLeast(named(name)?, unescaped(value)?));
    }
    if let Some(name) = left.strip_suffix('<') {
        return Ok(Filter::AtMost(named(name)?, unescaped(value)?));
    }
    if let Some(name) = left.strip_suffix('~') {
        return Ok(Filter::Approximate(named(name)?, unescaped(value)?));
    }
    if let Some(left) = left.strip_suffix(':') {
        return extensible(left, unescaped(value)?);
    }
    let name = named(left)?;
    if value == "*" {
        return Ok(Filter::Present(name));
    }
    let parts = value.split('*').map(unescaped).collect::<Result<Vec<_>, _>>()?;
    let [first, middle @ .., last] = parts.as_slice() else {
        return Ok(Filter::Equal(name, parts.into_iter().next().unwrap_or_default()));
    };
    let unless_empty = |part: &Vec<u8>| (!part.is_empty()).then(|| part.clone());
    let middle = middle.iter().filter_map(unless_empty).collect();
    Ok(Filter::Substrings(name, unless_empty(first), middle, unless_empty(last)))
}

/// Parses the left side of an extensible match such as `cn:dn:2.4.6.8.10`; each of the three parts is optional.
fn extensible(left: &str, value: Vec<u8>) -> Result<Filter, String> {
    let mut parts = left.split(':');
    let attribute = parts.next().filter(|name| !name.is_empty()).map(str::to_owned);
    let mut rest: Vec<&str> = parts.collect();
    let names = rest.first().is_some_and(|word| word.eq_ignore_ascii_case("dn"));
    if names {
        rest.remove(0);
    }
    match rest.as_slice() {
        [] => Ok(Filter::Extensible { rule: None, attribute, value, names }),
        [rule] => Ok(Filter::Extensible { rule: Some((*rule).to_owned()), attribute, value, names }),
        _ => Err(format!("has `{left}`, which is not a filter")),
    }
}

/// Decodes `\2a` escapes.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, later @ ..] = rest {
        rest = later;
        bytes.push(match first {
            b'\\' => {
                let digits = rest.split_at_checked(2).and_then(|(digits, later)| Some((hex(digits)?, later)));
                let (byte, later) = digits.ok_or("has a `\\` without two hexadecimal digits")?;
                rest = later;
                byte
            }
            byte => *byte,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Vec<u8> {
        value.as_bytes().to_vec()
    }

    #[test]
    fn the_filters_of_rfc_4515_are_parsed() {
        let check = |filter: &str, expected: Filter| assert_eq!(read_filter(filter), Ok(expected), "{filter}");
        check("(cn=Babs Jensen)", Filter::Equal("cn".into(), text("Babs Jensen")));
        check("(!(cn=Tim))", Filter::Not(Box::new(Filter::Equal("cn".into(), text("Tim")))));
        check(
            "(&(a=*)(|(sn>=J)(c<=x)))",
            Filter::And(vec![
                Filter::Present("a".into()),
                Filter::Or(vec![Filter::AtLeast("sn".into(), text("J")), Filter::AtMost("c".into(), text("x"))]),
            ]),
        );
        let parts = vec![text("of"), text("mich")];
        check("(o=univ*of*mich*)", Filter::Substrings("o".into(), Some(text("univ")), parts, None));
        check(r"(o=Parens R Us \28for all\29)", Filter::Equal("o".into(), text("Parens R Us (for all)")));
        check(r"(cn=*\2A*)", Filter::Substrings("cn".into(), None, vec![text("*")], None));
        let extensible = |attribute: Option<&str>, rule: Option<&str>, names| Filter::Extensible {
            attribute: attribute.map(str::to_owned),
            rule: rule.map(str::to_owned),
            value: text("x"),
            names,
        };
        check("(cn:caseExactMatch:=x)", extensible(Some("cn"), Some("caseExactMatch"), false));
        check("(sn:dn:2.4.6:=x)", extensible(Some("sn"), Some("2.4.6"), true));
        check("(:DN:2.4.6:=x)", extensible(None, Some("2.4.6"), true));
        for wrong in
            ["", "cn=x", "(cn=x", "(cn)", "(=x)", "((cn=x))", "(!(a=b)(c=d))", r"(cn=\2)", "(cn=x))", "(a=b(c)"]
        {
            assert!(read_filter(wrong).is_err(), "{wrong}");
        }
        assert!(read_filter(&format!("{}(a=b){}", "(!".repeat(200), ")".repeat(200))).is_err());
    }

    #[test]
    fn a_url_selects_a_base_a_scope_and_a_filter() {
        let meant = LdapUrlSearch::read("ldap:///ou=people,o=My%20site??one?(l=Linz%3f)").expect("fine");
        assert_eq!((meant.base.0.len(), meant.scope), (2, Scope::One));
        assert_eq!(meant.filter, Filter::Equal("l".into(), text("Linz?")));
        assert_eq!(LdapUrlSearch::read("ldap:///o=site").expect("fine").filter, Filter::Present("objectClass".into()));
        for wrong in
            ["http://x", "ldap://host/o=site", "ldap:///x", "ldap:///o=x??all", "ldap:///o=x??sub?x", "ldap:///o=%x"]
        {
            assert!(LdapUrlSearch::read(wrong).is_err(), "{wrong}");
        }
    }
}
