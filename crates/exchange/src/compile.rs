//! A definition becomes what runs, or every problem in it.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use tocsin_delivery::{Clock, files::Files, http::call::Caller, networks::Networks, programs::Programs};
use tocsin_model::{
    definition,
    exchange::{Exchange, Place, Step, Transport},
    field::Fields,
    id::Name,
    problem::{Problem, closest},
};

use crate::{
    Exchanges,
    pipeline::{self, Pipeline, Tools},
    route::Routes,
};

/// Networks and files that the transports of send ports may reach.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    /// Networks that are not public.
    pub networks: &'a Networks,
    /// Files that options name.
    pub files: &'a Files,
}

/// An exchange, ready to run.
pub struct Compiled {
    /// As it is defined.
    pub definition: Exchange,
    pub(crate) fields: Fields,
    pub(crate) routes: Routes,
    pub(crate) ways: BTreeMap<Name, Arc<Way>>,
    /// The pipelines of the receive ports.
    pub(crate) receive: BTreeMap<Name, Arc<Pipeline>>,
    /// Headers that are kept of each message, in lower case.
    pub(crate) headers_kept: Vec<String>,
    /// Where later replies come in, and by which properties they may be known.
    pub(crate) later: BTreeMap<Name, Vec<Vec<Name>>>,
    /// The receive ports whose messages are to be together, as they may answer each other; none where no replies come later.
    pub(crate) together: Vec<Name>,
}

/// How a send port reaches its far side.
pub(crate) struct Way {
    pub definition: tocsin_model::exchange::SendPort,
    pub first: Caller,
    pub backup: Option<Caller>,
    pub pipeline: Arc<Pipeline>,
    pub reply_pipeline: Arc<Pipeline>,
}

impl Exchanges {
    /// Reads and checks a definition.
    ///
    /// # Errors
    /// Every problem found, with its place in the text.
    pub fn compile(&self, text: &str) -> Result<Compiled, Vec<Problem>> {
        let parts = &self.parts;
        beside_tasks(|| {
            compile(
                text,
                &*parts.environment,
                Reach { networks: &parts.networks, files: &parts.files },
                &parts.programs,
                &parts.clock,
            )
        })
    }

    /// Checks a definition for somebody who may not apply it: variables stand for themselves, and ports that take something
    /// from one are not judged.
    ///
    /// # Errors
    /// Every problem found, with its place in the text.
    pub fn check_sealed(&self, text: &str) -> Result<(), Vec<Problem>> {
        let parts = &self.parts;
        beside_tasks(|| {
            check_sealed(text, Reach { networks: &parts.networks, files: &parts.files }, &parts.programs, &parts.clock)
        })
    }
}

/// Compiles without holding up the other tasks of this thread: stylesheets and schemas may take seconds.
fn beside_tasks<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Reads and checks a definition; without a server, too. Problems tell no values of variables.
///
/// # Errors
/// Every problem found, with its place in the text.
pub fn compile(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    reach: Reach<'_>,
    programs: &Programs,
    clock: &Arc<dyn Clock>,
) -> Result<Compiled, Vec<Problem>> {
    let read = |environment: &dyn Fn(&str) -> Option<String>| compile_text(text, environment, reach, programs, clock);
    definition::read_without_saying(environment, &["send.", "receive."], read)
}

fn check_sealed(text: &str, reach: Reach<'_>, programs: &Programs, clock: &Arc<dyn Clock>) -> Result<(), Vec<Problem>> {
    let sealed = |name: &str| Some(definition::stand_in(name));
    let Err(mut problems) = compile_text(text, &sealed, reach, programs, clock) else { return Ok(()) };
    let unknown = definition::ports_with_variables(text);
    let is_of =
        |path: &str, port: &str| path.strip_prefix(port).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    problems.retain(|problem| !unknown.iter().any(|port| is_of(&problem.path, port)));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn compile_text(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    reach: Reach<'_>,
    programs: &Programs,
    clock: &Arc<dyn Clock>,
) -> Result<Compiled, Vec<Problem>> {
    let exchange = definition::read_exchange(text, environment)?;
    compile_read(exchange, reach, programs, clock).map_err(|problems| definition::locate(text, problems))
}

fn compile_read(
    exchange: Exchange,
    reach: Reach<'_>,
    programs: &Programs,
    clock: &Arc<dyn Clock>,
) -> Result<Compiled, Vec<Problem>> {
    let mut problems = Vec::new();
    let fields = exchange.fields();
    let mut keep = |found: Vec<Problem>| problems.extend(found);
    let tools = Tools { exchange: &exchange, programs, clock, begun: Instant::now() };
    let mut receive = BTreeMap::new();
    for (name, port) in &exchange.receive {
        let located = port.locations.iter().flat_map(|(location, defined)| {
            let path = format!("receive.{name}.locations.{location}");
            tocsin_sources::check_location(defined.kind.as_str(), &defined.options, &path)
        });
        keep(located.collect());
        let pipeline = pipeline::compile(&port.pipeline, &format!("receive.{name}.pipeline"), &tools);
        receive.extend(pipeline.map_err(&mut keep).ok().map(|pipeline| (name.clone(), pipeline)));
    }
    let mut ways = BTreeMap::new();
    for name in exchange.send.keys() {
        let way = way(name, &fields, reach, &tools).map_err(&mut keep).ok();
        ways.extend(way.map(|way| (name.clone(), Arc::new(way))));
    }
    let routes = Routes::compile(&exchange, &fields).map_err(&mut keep).ok();
    let headers_kept = headers_kept(&exchange);
    let later = later(&exchange);
    // Those that replies come through are the first, whatever else there is or will be.
    let others = exchange.receive.keys().filter(|port| !later.contains_key(*port));
    let together = if later.is_empty() { Vec::new() } else { later.keys().chain(others).cloned().collect() };
    match routes {
        Some(routes) if problems.is_empty() => {
            Ok(Compiled { definition: exchange, fields, routes, ways, receive, headers_kept, later, together })
        }
        _ => Err(problems),
    }
}

/// A send port, ready to send.
fn way(name: &Name, fields: &Fields, reach: Reach<'_>, tools: &Tools<'_>) -> Result<Way, Vec<Problem>> {
    let port = &tools.exchange.send[name];
    let path = format!("send.{name}");
    let mut problems = Vec::new();
    let mut open = |transport: &Transport, path: &str| {
        let opened = open(transport, path, reach, tools.clock).and_then(|caller| check_places(caller, fields, path));
        opened.map_err(|found| problems.extend(found)).ok()
    };
    let first = open(&port.transport, &path);
    let backup = port.backup.as_ref().map(|backup| open(backup, &format!("{path}.backup")));
    let signs = port.pipeline.0.iter().any(|step| matches!(step, Step::Sign { .. }));
    let both = [first.as_ref(), backup.as_ref().and_then(Option::as_ref)];
    if signs && both.into_iter().flatten().any(Caller::signs) {
        let problem = Problem::at(format!("{path}.options.secret"), "signs what a step of the pipeline has signed");
        problems.push(problem.hint("leave one of the two out"));
    }
    let mut steps = |definition, key: &str| {
        let compiled = pipeline::compile(definition, &format!("{path}.{key}"), tools);
        compiled.map_err(|found| problems.extend(found)).ok()
    };
    let (pipeline, reply_pipeline) = (steps(&port.pipeline, "pipeline"), steps(&port.reply_pipeline, "reply_pipeline"));
    match (first, backup, pipeline, reply_pipeline) {
        (Some(first), backup @ (None | Some(Some(_))), Some(pipeline), Some(reply_pipeline)) if problems.is_empty() => {
            let backup = backup.flatten();
            Ok(Way { definition: port.clone(), first, backup, pipeline, reply_pipeline })
        }
        _ => Err(problems),
    }
}

fn open(transport: &Transport, path: &str, reach: Reach<'_>, clock: &Arc<dyn Clock>) -> Result<Caller, Vec<Problem>> {
    if transport.protocol.as_str() != "http" {
        let message = format!("`{}` is not a protocol of send ports", transport.protocol);
        return Err(vec![Problem::at(format!("{path}.protocol"), message).hint("give `http`")]);
    }
    Caller::open(&transport.options, &format!("{path}.options"), reach.networks, reach.files, clock.clone())
}

/// A place in a URL or a header is a property, or every message would be refused.
fn check_places(caller: Caller, fields: &Fields, path: &str) -> Result<Caller, Vec<Problem>> {
    let unknown = caller.places().into_iter().filter(|place| fields.position(place).is_none());
    let problem = |place: &str| {
        let problem = Problem::at(format!("{path}.options"), format!("`{{{place}}}` names no property"));
        match closest(place, fields.iter().map(|field| field.name.as_str())) {
            Some(meant) => problem.hint(format!("did you mean `{{{meant}}}`?")),
            None => problem.hint(format!("say where it stands: `properties: {{ {place}: $.{place} }}`")),
        }
    };
    let problems: Vec<Problem> = unknown.map(problem).collect();
    if problems.is_empty() { Ok(caller) } else { Err(problems) }
}

/// The receive ports that later replies come through, each with the properties by which they are known.
fn later(exchange: &Exchange) -> BTreeMap<Name, Vec<Vec<Name>>> {
    let mut ports: BTreeMap<Name, Vec<Vec<Name>>> = BTreeMap::new();
    for port in exchange.send.values() {
        let Some(later) = &port.later else { continue };
        let known = ports.entry(later.through.clone()).or_default();
        if !known.contains(&port.correlate) {
            known.push(port.correlate.clone());
        }
    }
    ports
}

/// The headers that a property, a step or a send port asks for.
fn headers_kept(exchange: &Exchange) -> Vec<String> {
    let header = |place: &Place| match place {
        Place::Header(name) => Some(name.clone()),
        Place::Json(_) | Place::Xml(_) => None,
    };
    let properties = exchange.properties.iter().filter_map(|property| header(&property.from));
    let receive = exchange.receive.values().map(|port| &port.pipeline);
    let pipelines = receive.chain(exchange.send.values().map(|port| &port.reply_pipeline));
    let steps = pipelines.flat_map(|pipeline| &pipeline.0).flat_map(|step| match step {
        Step::Promote(places) => places.iter().filter_map(|(_, place)| header(place)).collect(),
        Step::Decompress { .. } => vec!["content-encoding".to_owned()],
        _ => Vec::new(),
    });
    let transports = exchange.send.values().flat_map(|port| std::iter::once(&port.transport).chain(&port.backup));
    let forwarded = transports.filter_map(|transport| transport.options.get("forward")?.as_array());
    let forwarded = forwarded.flatten().filter_map(|name| Some(name.as_str()?.to_ascii_lowercase()));
    let mut kept: Vec<String> = properties.chain(steps).chain(forwarded).collect();
    kept.sort();
    kept.dedup();
    kept
}

#[cfg(test)]
mod tests {
    use tocsin_delivery::SystemClock;

    use super::*;

    const DEFINITION: &str = "
exchange: orders
receive: { orders: { mode: one_way } }
send: { erp: PORT }
routes: { every: { when: 'true', to: erp } }
";

    fn environment(name: &str) -> Option<String> {
        match name {
            "SECRET" => Some("hunter2".to_owned()),
            "NUMBER" => Some("99999999".to_owned()),
            _ => None,
        }
    }

    fn told(checked: Result<(), Vec<Problem>>) -> Vec<String> {
        let problems = checked.err().unwrap_or_default();
        problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
    }

    /// What is said to who may apply, and to who may not.
    fn check_text(text: &str) -> [Vec<String>; 2] {
        let (networks, files, programs) = (Networks::default(), Files::default(), Programs::default());
        let reach = Reach { networks: &networks, files: &files };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let compiled = compile(text, &environment, reach, &programs, &clock);
        let both = [compiled.map(drop), check_sealed(text, reach, &programs, &clock)].map(told);
        let shown = format!("{both:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("99999999"), "{shown}");
        both
    }

    /// The same of a send port.
    fn check(port: &str) -> [Vec<String>; 2] {
        check_text(&DEFINITION.replace("PORT", port))
    }

    #[test]
    fn no_problem_tells_what_a_variable_holds() {
        let unfit = "does not fit with what the environment gives";
        let good = "url: 'https://a.example/'";
        let [told, sealed] =
            check(&format!("{{ mode: one_way, protocol: http, options: {{ {good}, timeout: '${{SECRET}}' }} }}"));
        assert_eq!(told, [format!("send.erp.options.timeout: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [told, sealed] = check(&format!("{{ mode: one_way, protocol: '${{SECRET}}', options: {{ {good} }} }}"));
        assert_eq!(told, [format!("send.erp.protocol: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [told, sealed] =
            check(&format!("{{ mode: one_way, protocol: http, concurrency: '${{NUMBER}}', options: {{ {good} }} }}"));
        assert_eq!(told, ["send.erp.concurrency: should be an integer, not text"]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [told, sealed] = check("{ mode: one_way, protocol: http, options: { url: '${SECRET}' } }");
        assert_eq!(told, [format!("send.erp.options.url: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
    }

    #[test]
    fn what_takes_nothing_from_the_environment_is_judged_in_any_case() {
        for told in check("{ mode: one_way, protocol: http, options: { url: 'https://a.example/', timeout: soon } }") {
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].contains("`soon` is not a time"), "{told:?}");
        }
        // And so is what is wrong elsewhere.
        let both = "send:\n  erp: { mode: one_way, protocol: http, options: { url: '${SECRET}' } }\n  odd: { mode: one_way, protocol: gopher, options: {} }";
        let [_, sealed] = check_text(&DEFINITION.replace("send: { erp: PORT }", both));
        assert_eq!(sealed, ["send.odd.protocol: `gopher` is not a protocol of send ports"]);
    }
}
