//! A definition becomes what runs, or every problem in it.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_delivery::{Clock, http::call::Caller, networks::Networks};
use tocsin_model::{
    definition,
    exchange::{Exchange, Transport},
    field::Fields,
    id::Name,
    problem::{Problem, closest},
};

use crate::{Exchanges, route::Routes};

/// An exchange, ready to run.
pub struct Compiled {
    /// As it is defined.
    pub definition: Exchange,
    pub(crate) fields: Fields,
    pub(crate) routes: Routes,
    pub(crate) ways: BTreeMap<Name, Arc<Way>>,
    /// Headers that are kept of each message, in lower case.
    pub(crate) headers_kept: Vec<String>,
}

/// How a send port reaches its far side.
pub(crate) struct Way {
    pub definition: tocsin_model::exchange::SendPort,
    pub first: Caller,
    pub backup: Option<Caller>,
}

impl Exchanges {
    /// Reads and checks a definition.
    ///
    /// # Errors
    /// Every problem found, with its place in the text.
    pub fn compile(&self, text: &str) -> Result<Compiled, Vec<Problem>> {
        compile(text, &*self.parts.environment, &self.parts.networks, &self.parts.clock)
    }
}

/// Reads and checks a definition; without a server, too.
///
/// # Errors
/// Every problem found, with its place in the text.
pub fn compile(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    networks: &Networks,
    clock: &Arc<dyn Clock>,
) -> Result<Compiled, Vec<Problem>> {
    let exchange = definition::read_exchange(text, environment)?;
    compile_read(exchange, networks, clock).map_err(|problems| definition::locate(text, problems))
}

fn compile_read(exchange: Exchange, networks: &Networks, clock: &Arc<dyn Clock>) -> Result<Compiled, Vec<Problem>> {
    let mut problems = Vec::new();
    let fields = exchange.fields();
    let mut ways = BTreeMap::new();
    for (name, port) in &exchange.send {
        let path = format!("send.{name}");
        let mut open = |transport: &Transport, path: &str| {
            let opened = open(transport, path, networks, clock).and_then(|caller| check_places(caller, &fields, path));
            opened.map_err(|found| problems.extend(found)).ok()
        };
        let first = open(&port.transport, &path);
        let backup = port.backup.as_ref().map(|backup| open(backup, &format!("{path}.backup")));
        if let (Some(first), None | Some(Some(_))) = (first, &backup) {
            let way = Way { definition: port.clone(), first, backup: backup.flatten() };
            ways.insert(name.clone(), Arc::new(way));
        }
    }
    let routes = Routes::compile(&exchange, &fields).map_err(|found| problems.extend(found)).ok();
    let headers_kept = headers_kept(&exchange);
    match routes {
        Some(routes) if problems.is_empty() => {
            Ok(Compiled { definition: exchange, fields, routes, ways, headers_kept })
        }
        _ => Err(problems),
    }
}

fn open(
    transport: &Transport,
    path: &str,
    networks: &Networks,
    clock: &Arc<dyn Clock>,
) -> Result<Caller, Vec<Problem>> {
    if transport.protocol.as_str() != "http" {
        let message = format!("`{}` is not a protocol of send ports", transport.protocol);
        return Err(vec![Problem::at(format!("{path}.protocol"), message).hint("give `http`")]);
    }
    Caller::open(&transport.options, &format!("{path}.options"), networks, clock.clone())
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

/// The headers that a property or a send port asks for.
fn headers_kept(exchange: &Exchange) -> Vec<String> {
    let properties = exchange.properties.iter().filter_map(|property| match &property.from {
        tocsin_model::exchange::Place::Header(name) => Some(name.clone()),
        tocsin_model::exchange::Place::Json(_) => None,
    });
    let transports = exchange.send.values().flat_map(|port| std::iter::once(&port.transport).chain(&port.backup));
    let forwarded = transports.filter_map(|transport| transport.options.get("forward")?.as_array());
    let forwarded = forwarded.flatten().filter_map(|name| Some(name.as_str()?.to_ascii_lowercase()));
    let mut kept: Vec<String> = properties.chain(forwarded).collect();
    kept.sort();
    kept.dedup();
    kept
}
