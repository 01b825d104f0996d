//! Trace context of an event in a distributed trace: W3C Trace Context, level 2.

use crate::pack::{Damaged, Reader, write_bytes, write_varint};

/// Most characters of a `tracestate` that are propagated (3.3.1.5).
const STATE_CHARACTERS_MAX: usize = 512;
/// Most members of a `tracestate` (3.3.1.1).
const STATE_MEMBERS_MAX: usize = 32;
/// The known flags: sampled, and random trace id.
const KNOWN_FLAGS: u8 = 0b11;
const SAMPLED: u8 = 0b01;

/// A trace context: a position in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace id.
    pub trace: [u8; 16],
    /// The parent span; zeros at the root of the trace.
    pub span: [u8; 8],
    /// Flags of level 2; unknown ones are not propagated.
    pub flags: u8,
    /// Vendor-specific state: a checked `tracestate`, perhaps empty.
    pub state: Box<str>,
}

impl TraceContext {
    /// Parses `traceparent` and `tracestate`. An invalid `traceparent` is ignored (4.3); an invalid `tracestate` is
    /// dropped.
    pub fn read(parent: &str, state: Option<&str>) -> Option<TraceContext> {
        let parent = parent.trim_ascii();
        let (version, rest) = parent.split_at_checked(2)?;
        let is_whole = match (version, parent.as_bytes().get(55)) {
            ("ff", _) | ("00", Some(_)) => false,
            (_, after) => after.is_none_or(|byte| *byte == b'-'),
        };
        let rest = rest.get(..53)?.as_bytes();
        let is_separated = [0, 33, 50].iter().all(|at| rest[*at] == b'-');
        if !is_whole || !is_separated || parent.bytes().take(55).any(|byte| byte.is_ascii_uppercase()) {
            return None;
        }
        let part = |from: usize, to: usize| hex::decode(&rest[from..to]).ok();
        hex::decode(version).ok()?;
        let trace: [u8; 16] = part(1, 33)?.try_into().ok()?;
        let span: [u8; 8] = part(34, 50)?.try_into().ok()?;
        let flags = *part(51, 53)?.first()? & KNOWN_FLAGS;
        if trace == [0; 16] || span == [0; 8] {
            return None;
        }
        Some(TraceContext { trace, span, flags, state: state.and_then(checked_state).unwrap_or_default() })
    }

    /// Parses it from headers with names in lower case. Several `traceparent` headers are invalid; several
    /// `tracestate` headers are one list (3.2, 3.3).
    pub fn of_headers<'h>(headers: impl Iterator<Item = (&'h str, &'h str)> + Clone) -> Option<TraceContext> {
        let all = |requested: &'static str| {
            headers.clone().filter(move |(name, _)| *name == requested).map(|(_, value)| value)
        };
        let mut parents = all("traceparent");
        let parent = parents.next().filter(|_| parents.next().is_none())?;
        let states: Vec<&str> = all("tracestate").collect();
        TraceContext::read(parent, Some(&states.join(",")))
    }

    /// The headers `traceparent`, and `tracestate` if there is one.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = Some(&self.state).filter(|state| !state.is_empty());
        let state = state.map(|state| ("tracestate", state.to_string()));
        std::iter::once(("traceparent", self.parent_text())).chain(state)
    }

    /// The root context of a new trace.
    pub fn begin(trace: [u8; 16]) -> TraceContext {
        TraceContext { trace, span: [0; 8], flags: KNOWN_FLAGS, state: Box::default() }
    }

    /// Whether the caller samples the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The parent span, if there is one.
    pub fn parent(&self) -> Option<[u8; 8]> {
        (self.span != [0; 8]).then_some(self.span)
    }

    /// The same trace with another span.
    pub fn at(&self, span: [u8; 8]) -> TraceContext {
        TraceContext { span, ..self.clone() }
    }

    /// The value of `traceparent`, version 00.
    pub fn parent_text(&self) -> String {
        format!("00-{}-{}-{:02x}", hex::encode(self.trace), hex::encode(self.span), self.flags)
    }

    fn pack(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.trace);
        out.extend_from_slice(&self.span);
        out.push(self.flags);
        write_bytes(out, self.state.as_bytes());
    }

    fn unpack(reader: &mut Reader<'_>) -> Result<TraceContext, Damaged> {
        let trace = reader.take(16)?.try_into().map_err(|_| Damaged)?;
        let span = reader.take(8)?.try_into().map_err(|_| Damaged)?;
        Ok(TraceContext { trace, span, flags: reader.byte()?, state: reader.text()?.into() })
    }
}

/// The propagated members: all of them, or none if one is invalid or they are too many. A list that is too long loses
/// members from its end, which are the oldest.
fn checked_state(text: &str) -> Option<Box<str>> {
    let members: Vec<&str> = text.split(',').map(str::trim_ascii).filter(|member| !member.is_empty()).collect();
    if members.len() > STATE_MEMBERS_MAX || !members.iter().all(|member| is_member(member)) {
        return None;
    }
    let mut state = String::new();
    for member in members {
        if state.len() + member.len() + 1 > STATE_CHARACTERS_MAX {
            break;
        }
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(member);
    }
    Some(state.into())
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let is_key = (1..=256).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte));
    let is_value = (1..=256).contains(&value.len())
        && value.bytes().all(|byte| (0x20..=0x7e).contains(&byte) && !b",=".contains(&byte));
    is_key && is_value
}

/// Trace contexts of a batch's events, as runs. Most batches have none, and most of the others share one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traces {
    /// Start of each run: an event, and the context from there on.
    runs: Vec<(u32, Option<TraceContext>)>,
}

impl Traces {
    /// One context for all events.
    pub fn of_all(context: TraceContext) -> Traces {
        Traces { runs: vec![(0, Some(context))] }
    }

    /// Whether no event has a context.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Sets the context from this event on. Events must be in order.
    pub fn push(&mut self, ordinal: u32, context: Option<&TraceContext>) {
        let before = self.runs.last().and_then(|(_, before)| before.as_ref());
        if before != context {
            self.runs.push((ordinal, context.cloned()));
        }
    }

    /// The context of an event, with the first event of its run.
    pub fn find(&self, ordinal: u32) -> Option<(u32, &TraceContext)> {
        let behind = self.runs.partition_point(|(first, _)| *first <= ordinal);
        let (first, context) = self.runs.get(behind.checked_sub(1)?)?;
        Some((*first, context.as_ref()?))
    }

    /// Each context with the first event of its run.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &TraceContext)> {
        self.runs.iter().filter_map(|(first, context)| Some((*first, context.as_ref()?)))
    }

    /// The packed form; empty without contexts.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (first, context) in &self.runs {
            write_varint(&mut out, u64::from(*first));
            out.push(u8::from(context.is_some()));
            if let Some(context) = context {
                context.pack(&mut out);
            }
        }
        out
    }

    /// Parses the form written by `pack`.
    ///
    /// # Errors
    /// The bytes are invalid.
    pub fn unpack(bytes: &[u8]) -> Result<Traces, Damaged> {
        let mut reader = Reader::new(bytes);
        let mut runs = Vec::new();
        while !reader.is_empty() {
            let first = u32::try_from(reader.varint()?).map_err(|_| Damaged)?;
            let context = match reader.byte()? {
                0 => None,
                1 => Some(TraceContext::unpack(&mut reader)?),
                _ => return Err(Damaged),
            };
            runs.push((first, context));
        }
        Ok(Traces { runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_the_standard_says() {
        let read = |text: &str| TraceContext::read(text, None).map(|context| context.parent_text());
        assert_eq!(read(GOOD), Some(GOOD.to_owned()));
        assert_eq!(read(&format!("  {GOOD} ")), Some(GOOD.to_owned()));
        // Later versions may append fields; unknown flags must not be propagated.
        let later = GOOD.replacen("00-", "cc-", 1).replace("-01", "-ff");
        assert_eq!(read(&format!("{later}-what-the-future-holds")), Some(GOOD.replace("-01", "-03")));
        for wrong in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("{later}.more"),
            &GOOD.replacen("00-", "ff-", 1),
            &GOOD.replacen("00-", "0x-", 1),
            &GOOD.to_uppercase(),
            &GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            &GOOD.replace("00f067aa0ba902b7", "0000000000000000"),
            &GOOD.replace("4bf9", "4bg9"),
            &GOOD.replace("6-0", "6_0"),
            "00-é4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_tracestate_is_passed_on_or_left_out() {
        let read = |text: &str| TraceContext::read(GOOD, Some(text)).expect("a context").state.to_string();
        assert_eq!(read("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE ,,"), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
        assert_eq!(read("1a-2f@foo=bar"), "1a-2f@foo=bar");
        for wrong in ["rojo", "Rojo=1", "a=b=c", "a=", "=b", "a=é", "a=b\u{7f}"] {
            assert_eq!(read(wrong), "", "{wrong}");
        }
        let many = |count: usize| (0..count).map(|at| format!("k{at}=v")).collect::<Vec<_>>().join(",");
        assert_eq!(read(&many(32)), many(32));
        assert_eq!(read(&many(33)), "");
        let long = format!("a={},b={},c=1", "x".repeat(256), "y".repeat(255));
        assert_eq!(read(&long), format!("a={}", "x".repeat(256)), "the end goes first");
    }

    #[test]
    fn headers_say_it_once_and_with_every_state() {
        let read = |headers: &[(&'static str, &str)]| {
            let found = TraceContext::of_headers(headers.iter().copied())?;
            Some(found.headers().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>())
        };
        let parent = format!("traceparent: {GOOD}");
        assert_eq!(read(&[("accept", "x"), ("traceparent", GOOD)]), Some(vec![parent.clone()]));
        let several = [("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2")];
        assert_eq!(read(&several), Some(vec![parent, "tracestate: a=1,b=2".to_owned()]));
        assert_eq!(read(&[("traceparent", GOOD), ("traceparent", GOOD)]), None);
        assert_eq!(read(&[("traceparent", "x")]), None);
        assert_eq!(read(&[("tracestate", "a=1")]), None);
    }

    #[test]
    fn runs_of_events_share_a_place() {
        let one = TraceContext::read(GOOD, Some("a=b")).expect("a context");
        let other = one.at([7; 8]);
        let mut traces = Traces::default();
        let of_each = [None, Some(&one), Some(&one), None, Some(&other)];
        for (at, context) in (0..).zip(of_each) {
            traces.push(at, context);
        }
        for (at, context) in (0..).zip(of_each) {
            assert_eq!(traces.find(at).map(|(_, found)| found), context, "{at}");
        }
        assert_eq!(traces.iter().map(|(first, _)| first).collect::<Vec<_>>(), [1, 4]);
        let packed = traces.pack();
        assert_eq!(Traces::unpack(&packed), Ok(traces));
        for end in 1..packed.len() {
            if let Ok(part) = Traces::unpack(&packed[..end]) {
                assert!(packed.starts_with(&part.pack()), "{end}");
            }
        }
        assert!(Traces::unpack(&[0, 9]).is_err());
        assert_eq!((Traces::default().pack(), Traces::unpack(&[])), (Vec::new(), Ok(Traces::default())));
        assert_eq!(Traces::of_all(one.clone()).find(99), Some((0, &one)));
    }
}
