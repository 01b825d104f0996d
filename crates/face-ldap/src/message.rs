//! LDAP messages (RFC 4511): decoding of requests and encoding of responses.

use tocsin_directory::{
    Modification, ModifyType, RawAttribute, Scope,
    filter::{FILTER_DEPTH_MAX, FILTER_TERMS_MAX, Filter},
    ldap_error::Code,
    policy::{Notice, Warning},
};

use crate::ber::{self, DecodeError, Reader};

/// Maximum size of a filter in bytes, since all its assertion values are prepared before the search.
pub const FILTER_BYTES_MAX: usize = 512 << 10;
/// Maximum attributes in one search request.
pub const NAMES_MAX: usize = 1_000;
/// Maximum attributes, modifications and values of one update. In memory, empty ones are many times larger than in the
/// message.
pub const VALUES_MAX: usize = 700_000;
/// Maximum controls of one message.
const CONTROLS_MAX: usize = 16;

/// A request message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Message id, above zero.
    pub id: u32,
    /// Operation.
    pub request: Request,
    /// Controls.
    pub controls: Vec<Control>,
}

/// A control (RFC 4511, 4.1.11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// Object identifier.
    pub oid: String,
    /// Whether a server that does not support it must reject the request.
    pub critical: bool,
    /// Control value.
    pub value: Option<Vec<u8>>,
}

/// Protocol operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    Bind { version: u32, dn: String, proof: BindCredentials },
    Unbind,
    Search(SearchRequest),
    Modify { dn: String, modifications: Vec<Modification> },
    Add { dn: String, attributes: Vec<RawAttribute> },
    Delete { dn: String },
    Rename { dn: String, new_rdn: String, delete_old: bool, new_superior: Option<String> },
    Compare { dn: String, attribute: String, value: Vec<u8> },
    Abandon(u32),
    Extended { oid: String, value: Option<Vec<u8>> },
}

/// Credentials of a bind.
#[derive(Clone, PartialEq, Eq)]
pub enum BindCredentials {
    /// Simple bind with a password.
    Simple(Vec<u8>),
    /// SASL mechanism and its credentials.
    Sasl(String, Option<Vec<u8>>),
}

impl std::fmt::Debug for BindCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            BindCredentials::Simple(_) => "Simple(…)",
            BindCredentials::Sasl(..) => "Sasl(…)",
        })
    }
}

/// Search request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchRequest {
    /// Base DN.
    pub base: String,
    /// Scope.
    pub scope: Scope,
    /// Maximum entries; 0: no limit by the client.
    pub size_limit: u32,
    /// Maximum seconds; 0: no limit by the client.
    pub time_limit: u32,
    /// Whether values are omitted.
    pub types_only: bool,
    /// Filter.
    pub filter: Filter,
    /// Requested attributes.
    pub attributes: Vec<String>,
}

/// Tags of responses.
pub mod tag {
    pub const BIND: u8 = 0x61;
    pub const ENTRY: u8 = 0x64;
    pub const SEARCH_DONE: u8 = 0x65;
    pub const MODIFY: u8 = 0x67;
    pub const ADD: u8 = 0x69;
    pub const DELETE: u8 = 0x6b;
    pub const RENAME: u8 = 0x6d;
    pub const COMPARE: u8 = 0x6f;
    pub const EXTENDED: u8 = 0x78;
    pub const INTERMEDIATE: u8 = 0x79;
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OCTETS: u8 = 0x04;
const INTEGER: u8 = 0x02;
const ENUMERATED: u8 = 0x0a;
const BOOLEAN: u8 = 0x01;

/// Decoding error of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageError {
    /// Not an LDAP message: the connection ends.
    DecodeError(&'static str),
    /// The request is malformed, but can be answered: message id, response tag, code, reason.
    Request(u32, u8, Code, &'static str),
}

/// Reason for a filter above the limits of the server.
const FILTER_TOO_LARGE: &str =
    "a filter that is too deep, has too many terms or is too long; the maximum is 100 levels, 2,000 terms and 512 KiB";

/// Reason for an update above the limit of the server.
const TOO_MANY_VALUES: &str = "too many attributes, modifications and values; the maximum is 700,000 in all";

/// Result code of a decoding error: `adminLimitExceeded` for limits of the server, `protocolError` otherwise.
pub fn code_of(why: &str) -> Code {
    if why == FILTER_TOO_LARGE || why == TOO_MANY_VALUES { Code::AdminLimitExceeded } else { Code::ProtocolError }
}

impl From<DecodeError> for MessageError {
    fn from(garbled: DecodeError) -> Self {
        MessageError::DecodeError(garbled.0)
    }
}

/// Decodes a complete message.
///
/// # Errors
/// The bytes are not a valid message.
pub fn read(frame: &[u8]) -> Result<Message, MessageError> {
    let mut outer = Reader(frame);
    let mut message = Reader(outer.expect(SEQUENCE)?);
    let id = message.count(INTEGER)?;
    let (tag, content) = message.value()?;
    if id == 0 {
        return Err(MessageError::DecodeError("the message id 0, which is reserved for the server"));
    }
    let request = match request(tag, content) {
        Ok(request) => request,
        Err(DecodeError(why)) => {
            return Err(match answer_tag(tag) {
                Some(answer) => MessageError::Request(id, answer, code_of(why), why),
                None => MessageError::DecodeError(why),
            });
        }
    };
    let controls = match message.optional(0xa0)? {
        Some(content) => controls(content)?,
        None => Vec::new(),
    };
    Ok(Message { id, request, controls })
}

fn answer_tag(tag: u8) -> Option<u8> {
    Some(match tag {
        0x60 => tag::BIND,
        0x63 => tag::SEARCH_DONE,
        0x66 => tag::MODIFY,
        0x68 => tag::ADD,
        0x4a => tag::DELETE,
        0x6c => tag::RENAME,
        0x6e => tag::COMPARE,
        0x77 => tag::EXTENDED,
        _ => return None,
    })
}

fn request(tag: u8, content: &[u8]) -> Result<Request, DecodeError> {
    let mut reader = Reader(content);
    match tag {
        0x60 => bind(reader),
        0x42 => Ok(Request::Unbind),
        0x63 => search(reader).map(Request::Search),
        0x66 => {
            let dn = reader.text(OCTETS)?;
            let mut changes = Reader(reader.expect(SEQUENCE)?);
            let (mut modifications, mut values) = (Vec::new(), 0);
            while !changes.is_empty() {
                modifications.push(modification(changes.expect(SEQUENCE)?, &mut values)?);
            }
            Ok(Request::Modify { dn, modifications })
        }
        0x68 => {
            let dn = reader.text(OCTETS)?;
            let mut list = Reader(reader.expect(SEQUENCE)?);
            let (mut attributes, mut values) = (Vec::new(), 0);
            while !list.is_empty() {
                attributes.push(attribute(list.expect(SEQUENCE)?, &mut values)?);
            }
            Ok(Request::Add { dn, attributes })
        }
        0x4a => Ok(Request::Delete { dn: utf8(content)? }),
        0x6c => {
            let (dn, new_rdn, delete_old) = (reader.text(OCTETS)?, reader.text(OCTETS)?, reader.boolean(BOOLEAN)?);
            let new_superior = reader.optional(0x80)?.map(utf8).transpose()?;
            Ok(Request::Rename { dn, new_rdn, delete_old, new_superior })
        }
        0x6e => {
            let dn = reader.text(OCTETS)?;
            let mut assertion = Reader(reader.expect(SEQUENCE)?);
            Ok(Request::Compare { dn, attribute: assertion.text(OCTETS)?, value: assertion.expect(OCTETS)?.to_vec() })
        }
        0x50 => {
            // Implicit tag: the content is that of an INTEGER.
            let mut number = vec![INTEGER, content.len().min(127) as u8];
            number.extend_from_slice(&content[..content.len().min(127)]);
            Ok(Request::Abandon(Reader(&number).count(INTEGER)?))
        }
        0x77 => {
            let oid = utf8(reader.expect(0x80)?)?;
            Ok(Request::Extended { oid, value: reader.optional(0x81)?.map(<[u8]>::to_vec) })
        }
        _ => Err(DecodeError("an unknown operation")),
    }
}

fn utf8(content: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(content).map(str::to_owned).map_err(|_| DecodeError("text that is not UTF-8"))
}

fn bind(mut reader: Reader<'_>) -> Result<Request, DecodeError> {
    let (version, dn) = (reader.count(INTEGER)?, reader.text(OCTETS)?);
    let proof = match reader.value()? {
        (0x80, password) => BindCredentials::Simple(password.to_vec()),
        (0xa3, content) => {
            let mut sasl = Reader(content);
            BindCredentials::Sasl(sasl.text(OCTETS)?, sasl.optional(OCTETS)?.map(<[u8]>::to_vec))
        }
        _ => return Err(DecodeError("an unknown authentication method")),
    };
    Ok(Request::Bind { version, dn, proof })
}

/// An attribute. `count`: the attributes and values of the request so far.
fn attribute(content: &[u8], count: &mut usize) -> Result<RawAttribute, DecodeError> {
    let mut reader = Reader(content);
    let name = reader.text(OCTETS)?;
    let mut set = Reader(reader.expect(SET)?);
    let mut values = Vec::new();
    *count += 1;
    while !set.is_empty() {
        *count += 1;
        if *count > VALUES_MAX {
            return Err(DecodeError(TOO_MANY_VALUES));
        }
        values.push(set.expect(OCTETS)?.to_vec());
    }
    match *count > VALUES_MAX {
        true => Err(DecodeError(TOO_MANY_VALUES)),
        false => Ok((name, values)),
    }
}

fn modification(content: &[u8], count: &mut usize) -> Result<Modification, DecodeError> {
    let mut reader = Reader(content);
    let act = match reader.count(ENUMERATED)? {
        0 => ModifyType::Add,
        1 => ModifyType::Delete,
        2 => ModifyType::Replace,
        3 => ModifyType::Increment,
        _ => return Err(DecodeError("an unknown modification type")),
    };
    let (attribute, values) = attribute(reader.expect(SEQUENCE)?, count)?;
    Ok(Modification { act, attribute, values })
}

fn search(mut reader: Reader<'_>) -> Result<SearchRequest, DecodeError> {
    let base = reader.text(OCTETS)?;
    let scope = match reader.count(ENUMERATED)? {
        0 => Scope::Base,
        1 => Scope::One,
        2 => Scope::Subtree,
        _ => return Err(DecodeError("an unknown scope")),
    };
    // Alias dereferencing; the directory has no aliases.
    if reader.count(ENUMERATED)? > 3 {
        return Err(DecodeError("an unknown alias dereferencing mode"));
    }
    let (size_limit, time_limit, types_only) =
        (reader.count(INTEGER)?, reader.count(INTEGER)?, reader.boolean(BOOLEAN)?);
    let mut terms = 0;
    let filter = filter(&mut reader, 0, &mut terms)?;
    let attributes = names(Reader(reader.expect(SEQUENCE)?))?;
    Ok(SearchRequest { base, scope, size_limit, time_limit, types_only, filter, attributes })
}

fn filter(reader: &mut Reader<'_>, depth: usize, terms: &mut usize) -> Result<Filter, DecodeError> {
    *terms += 1;
    if depth > FILTER_DEPTH_MAX || *terms > FILTER_TERMS_MAX {
        return Err(DecodeError(FILTER_TOO_LARGE));
    }
    let (tag, content) = reader.value()?;
    if content.len() > FILTER_BYTES_MAX {
        return Err(DecodeError(FILTER_TOO_LARGE));
    }
    let mut inner = Reader(content);
    let assertion = |mut inner: Reader<'_>| Ok::<_, DecodeError>((inner.text(OCTETS)?, inner.expect(OCTETS)?.to_vec()));
    Ok(match tag {
        0xa0 | 0xa1 => {
            let mut parts = Vec::new();
            while !inner.is_empty() {
                parts.push(filter(&mut inner, depth + 1, terms)?);
            }
            if tag == 0xa0 { Filter::And(parts) } else { Filter::Or(parts) }
        }
        0xa2 => {
            let part = filter(&mut inner, depth + 1, terms)?;
            if !inner.is_empty() {
                return Err(DecodeError("a negation of more than one filter"));
            }
            Filter::Not(Box::new(part))
        }
        0xa3 => assertion(inner).map(|(name, value)| Filter::Equal(name, value))?,
        0xa4 => substrings(inner, terms)?,
        0xa5 => assertion(inner).map(|(name, value)| Filter::AtLeast(name, value))?,
        0xa6 => assertion(inner).map(|(name, value)| Filter::AtMost(name, value))?,
        0x87 => Filter::Present(utf8(content)?),
        0xa8 => assertion(inner).map(|(name, value)| Filter::Approximate(name, value))?,
        0xa9 => {
            let (rule, attribute) =
                (inner.optional(0x81)?.map(utf8).transpose()?, inner.optional(0x82)?.map(utf8).transpose()?);
            let value = inner.expect(0x83)?.to_vec();
            let names = if inner.tag() == Some(0x84) { inner.boolean(0x84)? } else { false };
            Filter::Extensible { rule, attribute, value, names }
        }
        _ => return Err(DecodeError("an unknown filter type")),
    })
}

/// Decodes a filter on its own.
///
/// # Errors
/// The bytes are not a filter.
pub fn decode_filter(bytes: &[u8]) -> Result<Filter, DecodeError> {
    filter(&mut Reader(bytes), 0, &mut 0)
}

/// Decodes an attribute list on its own.
///
/// # Errors
/// The bytes are not an attribute list.
pub fn decode_attribute_list(bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
    names(Reader(Reader(bytes).expect(SEQUENCE)?))
}

fn names(mut list: Reader<'_>) -> Result<Vec<String>, DecodeError> {
    let mut names = Vec::new();
    while !list.is_empty() {
        if names.len() == NAMES_MAX {
            return Err(DecodeError("too many attributes in the list"));
        }
        names.push(list.text(OCTETS)?);
    }
    Ok(names)
}

fn substrings(mut reader: Reader<'_>, terms: &mut usize) -> Result<Filter, DecodeError> {
    let name = reader.text(OCTETS)?;
    let mut parts = Reader(reader.expect(SEQUENCE)?);
    let (mut first, mut middle, mut last) = (None, Vec::new(), None);
    if parts.is_empty() {
        return Err(DecodeError("an empty substring assertion"));
    }
    while !parts.is_empty() {
        *terms += 1;
        if *terms > FILTER_TERMS_MAX {
            return Err(DecodeError(FILTER_TOO_LARGE));
        }
        match parts.value()? {
            (0x80, part) if first.is_none() && middle.is_empty() && last.is_none() => first = Some(part.to_vec()),
            (0x81, part) if last.is_none() => middle.push(part.to_vec()),
            (0x82, part) if last.is_none() => last = Some(part.to_vec()),
            _ => return Err(DecodeError("substrings in the wrong order")),
        }
    }
    Ok(Filter::Substrings(name, first, middle, last))
}

fn controls(content: &[u8]) -> Result<Vec<Control>, DecodeError> {
    let mut list = Reader(content);
    let mut controls = Vec::new();
    while !list.is_empty() {
        let mut control = Reader(list.expect(SEQUENCE)?);
        let oid = control.text(OCTETS)?;
        let critical = if control.tag() == Some(BOOLEAN) { control.boolean(BOOLEAN)? } else { false };
        controls.push(Control { oid, critical, value: control.optional(OCTETS)?.map(<[u8]>::to_vec) });
        if controls.len() > CONTROLS_MAX {
            return Err(DecodeError("too many controls"));
        }
    }
    Ok(controls)
}

/// Optional parts of a response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseExtras {
    /// Name of an extended response.
    pub oid: Option<&'static str>,
    /// Value of an extended response.
    pub value: Option<Vec<u8>>,
    /// Response controls.
    pub controls: Vec<(&'static str, Vec<u8>)>,
    /// Password policy information, if the client requested it.
    pub notice: Option<Notice>,
}

/// Encodes a response.
pub fn answer(out: &mut Vec<u8>, id: u32, tag: u8, code: Code, matched: &str, text: &str, extra: &ResponseExtras) {
    ber::nested(out, SEQUENCE, |out| {
        ber::number(out, INTEGER, id);
        ber::nested(out, tag, |out| {
            ber::number(out, ENUMERATED, u32::from(code as u16));
            ber::value(out, OCTETS, matched.as_bytes());
            ber::value(out, OCTETS, text.as_bytes());
            if let Some(oid) = extra.oid {
                ber::value(out, 0x8a, oid.as_bytes());
            }
            if let Some(value) = &extra.value {
                ber::value(out, 0x8b, value);
            }
        });
        response_controls(out, &extra.controls);
    });
}

/// Encodes response controls, if there are any.
pub fn response_controls(out: &mut Vec<u8>, controls: &[(&'static str, Vec<u8>)]) {
    if controls.is_empty() {
        return;
    }
    ber::nested(out, 0xa0, |out| {
        for (oid, value) in controls {
            ber::nested(out, SEQUENCE, |out| {
                ber::value(out, OCTETS, oid.as_bytes());
                ber::value(out, OCTETS, value);
            });
        }
    });
}

/// Encodes an intermediate response (RFC 4511, 4.13).
pub fn intermediate(out: &mut Vec<u8>, id: u32, oid: &str, value: &[u8]) {
    ber::nested(out, SEQUENCE, |out| {
        ber::number(out, INTEGER, id);
        ber::nested(out, tag::INTERMEDIATE, |out| {
            ber::value(out, 0x80, oid.as_bytes());
            ber::value(out, 0x81, value);
        });
    });
}

/// Encodes the password policy response control of draft-behera-ldap-password-policy-10.
pub fn notice(notice: Notice) -> Vec<u8> {
    let mut value = Vec::new();
    ber::nested(&mut value, SEQUENCE, |out| {
        if let Some(warning) = notice.warning {
            ber::nested(out, 0xa0, |out| match warning {
                Warning::ExpiresIn(seconds) => ber::number(out, 0x80, seconds),
                Warning::GracesLeft(count) => ber::number(out, 0x81, count),
            });
        }
        if let Some(fault) = notice.fault {
            ber::number(out, 0x81, u32::from(fault as u8));
        }
    });
    value
}

/// Encodes a notice of disconnection (RFC 4511, 4.4.1).
pub fn notice_of_disconnection(out: &mut Vec<u8>, code: Code, text: &str) {
    let extra = ResponseExtras { oid: Some("1.3.6.1.4.1.1466.20036"), ..ResponseExtras::default() };
    answer(out, 0, tag::EXTENDED, code, "", text, &extra);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(request: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        ber::nested(&mut out, SEQUENCE, |out| {
            ber::number(out, INTEGER, 7);
            request(out);
        });
        out
    }

    #[test]
    fn deep_filters_are_rejected_at_once() {
        let search = |depth: usize| {
            let mut filter = vec![0x87, 2, b'c', b'n'];
            for _ in 0..depth {
                let mut outer = Vec::new();
                ber::value(&mut outer, 0xa2, &filter);
                filter = outer;
            }
            message(|out| {
                ber::nested(out, 0x63, |out| {
                    ber::value(out, OCTETS, b"o=x");
                    out.extend_from_slice(&[10, 1, 2, 10, 1, 0, 2, 1, 0, 2, 1, 0, 1, 1, 0]);
                    out.extend_from_slice(&filter);
                    ber::value(out, SEQUENCE, b"");
                });
            })
        };
        assert!(read(&search(FILTER_DEPTH_MAX)).is_ok());
        assert!(matches!(
            read(&search(16_000)),
            Err(MessageError::Request(7, tag::SEARCH_DONE, Code::AdminLimitExceeded, _))
        ));
    }

    #[test]
    fn a12_assertions_and_pieces_of_substrings_have_one_bound() {
        let of_pieces = |count: usize| {
            let mut out = Vec::new();
            ber::nested(&mut out, 0xa4, |out| {
                ber::value(out, OCTETS, b"cn");
                ber::nested(out, SEQUENCE, |out| (0..count).for_each(|_| ber::value(out, 0x81, b"x")));
            });
            out
        };
        let of_assertions = |count: usize| {
            let mut out = Vec::new();
            ber::nested(&mut out, 0xa1, |out| (0..count).for_each(|_| ber::value(out, 0x87, b"cn")));
            out
        };
        for bytes in [of_pieces(FILTER_TERMS_MAX), of_assertions(FILTER_TERMS_MAX)] {
            let Err(DecodeError(why)) = decode_filter(&bytes) else { panic!("it is read") };
            assert_eq!(code_of(why), Code::AdminLimitExceeded);
        }
        let mut long = Vec::new();
        ber::nested(&mut long, 0xa3, |out| {
            ber::value(out, OCTETS, b"cn");
            ber::value(out, OCTETS, &vec![b'x'; FILTER_BYTES_MAX]);
        });
        assert_eq!(decode_filter(&long).map_err(|DecodeError(why)| code_of(why)), Err(Code::AdminLimitExceeded));
        for (bytes, terms) in [(of_pieces(1_999), 2_000), (of_assertions(1_999), 2_000)] {
            assert_eq!(decode_filter(&bytes).map(|filter| filter.terms()), Ok(terms));
        }
    }

    #[test]
    fn d_values_of_an_update_are_bounded() {
        let add = |count: usize| {
            message(|out| {
                ber::nested(out, 0x68, |out| {
                    ber::value(out, OCTETS, b"cn=a");
                    ber::nested(out, SEQUENCE, |out| {
                        ber::nested(out, SEQUENCE, |out| {
                            ber::value(out, OCTETS, b"cn");
                            ber::nested(out, SET, |out| (0..count).for_each(|_| ber::value(out, OCTETS, b"")));
                        })
                    });
                })
            })
        };
        let modify = |count: usize| {
            message(|out| {
                ber::nested(out, 0x66, |out| {
                    ber::value(out, OCTETS, b"cn=a");
                    ber::nested(out, SEQUENCE, |out| {
                        for _ in 0..count {
                            ber::nested(out, SEQUENCE, |out| {
                                ber::number(out, ENUMERATED, 1);
                                ber::nested(out, SEQUENCE, |out| {
                                    ber::value(out, OCTETS, b"");
                                    ber::value(out, SET, b"");
                                });
                            });
                        }
                    });
                })
            })
        };
        // One of them is the attribute.
        assert!(read(&add(VALUES_MAX - 1)).is_ok() && read(&modify(VALUES_MAX)).is_ok());
        for (bytes, tag) in [(add(VALUES_MAX), tag::ADD), (modify(VALUES_MAX + 1), tag::MODIFY)] {
            assert_eq!(
                read(&bytes).err(),
                Some(MessageError::Request(7, tag, Code::AdminLimitExceeded, TOO_MANY_VALUES))
            );
        }
    }

    #[test]
    fn lists_of_names_are_bounded() {
        let list = |count: usize| {
            let mut out = Vec::new();
            ber::nested(&mut out, SEQUENCE, |out| (0..count).for_each(|_| ber::value(out, OCTETS, b"cn")));
            out
        };
        assert_eq!(decode_attribute_list(&list(NAMES_MAX)).map(|names| names.len()), Ok(NAMES_MAX));
        assert!(decode_attribute_list(&list(NAMES_MAX + 1)).is_err());
    }

    #[test]
    fn slow_mutated_messages_never_panic() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
        println!("SEED={seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let good = [
            message(|out| {
                ber::nested(out, 0x60, |out| {
                    ber::number(out, INTEGER, 3);
                    ber::value(out, OCTETS, b"cn=a,o=x");
                    ber::value(out, 0x80, b"secret");
                })
            }),
            message(|out| {
                ber::nested(out, 0x66, |out| {
                    ber::value(out, OCTETS, b"cn=a,o=x");
                    ber::nested(out, SEQUENCE, |out| {
                        ber::nested(out, SEQUENCE, |out| {
                            ber::number(out, ENUMERATED, 2);
                            ber::nested(out, SEQUENCE, |out| {
                                ber::value(out, OCTETS, b"mail");
                                ber::nested(out, SET, |out| ber::value(out, OCTETS, b"a@b"));
                            });
                        })
                    });
                })
            }),
        ];
        for bytes in &good {
            assert!(read(bytes).is_ok());
        }
        for _ in 0..20_000 {
            let mut bytes = good[random.usize(..good.len())].clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = random.u8(..),
                    1 => bytes.insert(at, random.u8(..)),
                    _ => bytes.truncate(at.max(2)),
                }
            }
            let _ = (first_whole(&bytes), read(&bytes));
        }
    }

    fn first_whole(bytes: &[u8]) -> bool {
        matches!(ber::first_length(bytes, 1 << 18), Ok(Some(_)))
    }
}
