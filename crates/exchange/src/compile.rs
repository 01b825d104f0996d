//! Compiles an exchange definition, or reports every problem in it.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use tocsin_connect::{Clock, files::Files, networks::Networks, programs::Programs};
use tocsin_delivery::{SendPortAccess, http::call::Caller};
use tocsin_model::{
    definition::{
        self,
        secrets::{self, Language, OptionSecrets},
    },
    exchange::{Exchange, Step, Transport},
    field::Fields,
    id::Name,
    problem::{Code, Problem, closest},
};

use crate::{
    pipeline::{self, CompileContext, Pipeline},
    promote::MessageSchema,
    route::Routes,
};

/// Resources of this server that a definition may use.
#[derive(Clone, Copy)]
pub struct CompileAccess<'a> {
    /// Non-public networks that send ports may reach.
    pub networks: &'a Networks,
    /// Files that options may name.
    pub files: &'a Files,
    /// Programs that pipeline steps may start.
    pub programs: &'a Programs,
    /// Source of the current time.
    pub clock: &'a Arc<dyn Clock>,
}

/// A compiled exchange definition.
pub struct CompiledExchange {
    /// The definition.
    pub definition: Exchange,
    /// Properties and headers of its messages.
    pub(crate) schema: MessageSchema,
    pub(crate) routes: Routes,
    pub(crate) send_ports: BTreeMap<Name, Arc<CompiledSendPort>>,
    /// The pipelines of the receive ports.
    pub(crate) receive: BTreeMap<Name, Arc<Pipeline>>,
    /// The receive ports of asynchronous replies, each with the property lists that can correlate them.
    pub(crate) reply_ports: BTreeMap<Name, Vec<Vec<Name>>>,
    /// Receive ports whose messages must share a partition because they can correlate with each other; empty without
    /// asynchronous replies.
    pub(crate) colocated_ports: Vec<Name>,
}

/// A compiled send port: its transports and pipelines.
pub(crate) struct CompiledSendPort {
    pub definition: tocsin_model::exchange::SendPort,
    pub first: Caller,
    pub backup: Option<Caller>,
    pub pipeline: Arc<Pipeline>,
    pub reply_pipeline: Arc<Pipeline>,
}

/// Compiles without blocking the other tasks of this thread: stylesheets and schemas can take seconds.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Reads and checks a definition; usable without a server. Problems do not reveal the values of variables.
///
/// # Errors
/// Every problem found, with its position in the text.
pub fn compile(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    access: &CompileAccess<'_>,
) -> Result<CompiledExchange, Vec<Problem>> {
    let read = |environment: &dyn Fn(&str) -> Option<String>| compile_text(text, environment, access);
    definition::read_redacted(environment, &["send.", "receive."], read)
}

/// Checks a definition for a user who may not apply it. Variables are replaced by placeholders, and ports that use a
/// variable are not checked.
pub(crate) fn check_sealed(text: &str, access: &CompileAccess<'_>) -> Result<(), Vec<Problem>> {
    let sealed = |name: &str| Some(definition::placeholder_value(name));
    let Err(mut problems) = compile_text(text, &sealed, access) else { return Ok(()) };
    let unknown = definition::ports_with_variables(text);
    let is_of =
        |path: &str, port: &str| path.strip_prefix(port).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    problems.retain(|problem| !unknown.iter().any(|port| is_of(&problem.path, port)));
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn compile_text(
    text: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    access: &CompileAccess<'_>,
) -> Result<CompiledExchange, Vec<Problem>> {
    let options = OptionSecrets { channels: &[], sources: tocsin_sources::source_secrets() };
    let masks = secrets::masks(Language::Exchange, text, options);
    let exchange = match definition::read_exchange(text, environment) {
        Ok(exchange) if masks.is_empty() => exchange,
        read => {
            let problems = [masks, read.err().unwrap_or_default()].concat();
            return Err(definition::in_order(problems));
        }
    };
    compile_read(exchange, access).map_err(|problems| definition::locate(text, problems))
}

fn compile_read(exchange: Exchange, access: &CompileAccess<'_>) -> Result<CompiledExchange, Vec<Problem>> {
    let mut problems = Vec::new();
    let schema = MessageSchema::new(&exchange);
    let mut keep = |found: Vec<Problem>| problems.extend(found);
    let tools = CompileContext { exchange: &exchange, programs: access.programs, begun: Instant::now() };
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
    keep(shared_addresses(&exchange));
    let mut send_ports = BTreeMap::new();
    for name in exchange.send.keys() {
        let send_port = send_port(name, &schema.fields, access, &tools).map_err(&mut keep).ok();
        send_ports.extend(send_port.map(|send_port| (name.clone(), Arc::new(send_port))));
    }
    let routes = Routes::compile(&exchange, &schema.fields).map_err(&mut keep).ok();
    let reply_ports = reply_ports(&exchange);
    // Reply ports come first, so that their position does not depend on other ports.
    let others = exchange.receive.keys().filter(|port| !reply_ports.contains_key(*port));
    let colocated_ports =
        if reply_ports.is_empty() { Vec::new() } else { reply_ports.keys().chain(others).cloned().collect() };
    match routes {
        Some(routes) if problems.is_empty() => Ok(CompiledExchange {
            definition: exchange,
            schema,
            routes,
            send_ports,
            receive,
            reply_ports,
            colocated_ports,
        }),
        _ => Err(problems),
    }
}

/// Mail locations that listen at the address of an earlier one: only one can.
fn shared_addresses(exchange: &Exchange) -> Vec<Problem> {
    let mut known: BTreeMap<&str, String> = BTreeMap::new();
    let mut problems = Vec::new();
    for (port, defined) in &exchange.receive {
        for (name, location) in &defined.locations {
            let path = format!("receive.{port}.locations.{name}");
            let listen = location.options.get("listen").and_then(|listen| listen.as_str());
            let Some(listen) = listen.filter(|_| location.kind.as_str() == "mail") else { continue };
            match known.get(listen) {
                Some(first) => {
                    let problem = Problem::new(
                        Code::Duplicate,
                        format!("{path}.options.listen"),
                        format!("`{listen}` is the address of `{first}`"),
                    )
                    .param("value", listen.to_string());
                    problems.push(
                        problem.hint("give each mail location an address of its own, or one location both recipients"),
                    );
                }
                None => drop(known.insert(listen, path)),
            }
        }
    }
    problems
}

/// Compiles a send port.
fn send_port(
    name: &Name,
    fields: &Fields,
    access: &CompileAccess<'_>,
    tools: &CompileContext<'_>,
) -> Result<CompiledSendPort, Vec<Problem>> {
    let port = &tools.exchange.send[name];
    let path = format!("send.{name}");
    let mut problems = Vec::new();
    let mut open = |transport: &Transport, path: &str| {
        let opened = open(transport, path, access).and_then(|caller| check_places(caller, fields, path));
        opened.map_err(|found| problems.extend(found)).ok()
    };
    let first = open(&port.transport, &path);
    let backup = port.backup.as_ref().map(|backup| open(backup, &format!("{path}.backup")));
    let signs = port.pipeline.0.iter().any(|step| matches!(step, Step::Sign { .. }));
    let both = [first.as_ref(), backup.as_ref().and_then(Option::as_ref)];
    if signs && both.into_iter().flatten().any(Caller::signs) {
        let problem = Problem::new(
            Code::MissingCounterpart,
            format!("{path}.options.secret"),
            "signs what a step of the pipeline has signed",
        );
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
            Ok(CompiledSendPort { definition: port.clone(), first, backup, pipeline, reply_pipeline })
        }
        _ => Err(problems),
    }
}

fn open(transport: &Transport, path: &str, access: &CompileAccess<'_>) -> Result<Caller, Vec<Problem>> {
    let access = SendPortAccess { networks: access.networks, files: access.files, clock: access.clock };
    tocsin_delivery::open_send_port(transport.protocol.as_str(), &transport.options, path, &access)
}

/// Checks that each placeholder in a URL or a header names a property; otherwise every message would be refused.
fn check_places(caller: Caller, fields: &Fields, path: &str) -> Result<Caller, Vec<Problem>> {
    let unknown = caller.places().into_iter().filter(|place| fields.position(place).is_none());
    let problem = |place: &str| {
        let problem =
            Problem::new(Code::UnknownReference, format!("{path}.options"), format!("`{{{place}}}` names no property"))
                .param("kind", "property");
        match closest(place, fields.iter().map(|field| field.name.as_str())) {
            Some(meant) => problem.hint(format!("did you mean `{{{meant}}}`?")),
            None => problem.hint(format!("say where it stands: `properties: {{ {place}: $.{place} }}`")),
        }
    };
    let problems: Vec<Problem> = unknown.map(problem).collect();
    if problems.is_empty() { Ok(caller) } else { Err(problems) }
}

/// The receive ports of asynchronous replies, each with the property lists that can correlate them.
fn reply_ports(exchange: &Exchange) -> BTreeMap<Name, Vec<Vec<Name>>> {
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

#[cfg(test)]
mod tests {
    use tocsin_connect::SystemClock;

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

    fn messages_of(checked: Result<(), Vec<Problem>>) -> Vec<String> {
        let problems = checked.err().unwrap_or_default();
        problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
    }

    /// The problems that `compile` and `check_sealed` report.
    fn check_text(text: &str) -> [Vec<String>; 2] {
        let (networks, files, programs) = (Networks::default(), Files::default(), Programs::default());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let access = CompileAccess { networks: &networks, files: &files, programs: &programs, clock: &clock };
        let both = [compile(text, &environment, &access).map(drop), check_sealed(text, &access)].map(messages_of);
        let shown = format!("{both:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("99999999"), "{shown}");
        both
    }

    /// The same for a send port.
    fn check(port: &str) -> [Vec<String>; 2] {
        check_text(&DEFINITION.replace("PORT", port))
    }

    #[test]
    fn problems_do_not_reveal_the_values_of_variables() {
        let unfit = "does not fit with what the environment gives";
        let good = "url: 'https://a.example/'";
        let [open, sealed] =
            check(&format!("{{ mode: one_way, protocol: http, options: {{ {good}, timeout: '${{SECRET}}' }} }}"));
        assert_eq!(open, [format!("send.erp.options.timeout: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [open, sealed] = check(&format!("{{ mode: one_way, protocol: '${{SECRET}}', options: {{ {good} }} }}"));
        assert_eq!(open, [format!("send.erp.protocol: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [open, sealed] =
            check(&format!("{{ mode: one_way, protocol: http, concurrency: '${{NUMBER}}', options: {{ {good} }} }}"));
        assert_eq!(open, ["send.erp.concurrency: should be an integer, not text"]);
        assert!(sealed.is_empty(), "{sealed:?}");
        let [open, sealed] = check("{ mode: one_way, protocol: http, options: { url: '${SECRET}' } }");
        assert_eq!(open, [format!("send.erp.options.url: {unfit}")]);
        assert!(sealed.is_empty(), "{sealed:?}");
    }

    #[test]
    fn two_mail_locations_cannot_listen_at_one_address() {
        let mails = |other: &str| {
            let location =
                |address: &str| format!("{{ kind: mail, options: {{ listen: '{address}', recipients: ['*'] }} }}");
            let (first, second) = (location("127.0.0.1:2525"), location(other));
            let port = format!("orders: {{ mode: one_way, locations: {{ first: {first}, second: {second} }} }}");
            let good = "{ mode: one_way, protocol: http, options: { url: 'https://a.example/' } }";
            check_text(&DEFINITION.replace("orders: { mode: one_way }", &port).replace("PORT", good))
        };
        for problems in mails("127.0.0.1:2525") {
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with("receive.orders.locations.second.options.listen: "), "{problems:?}");
        }
        assert_eq!(mails("127.0.0.1:2526"), [Vec::<String>::new(), Vec::new()]);
    }

    #[test]
    fn ports_without_variables_are_checked_even_if_sealed() {
        for problems in
            check("{ mode: one_way, protocol: http, options: { url: 'https://a.example/', timeout: soon } }")
        {
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("`soon` is not a time"), "{problems:?}");
        }
        // Problems of other ports are reported too.
        let both = "send:\n  erp: { mode: one_way, protocol: http, options: { url: '${SECRET}' } }\n  odd: { mode: one_way, protocol: gopher, options: {} }";
        let [_, sealed] = check_text(&DEFINITION.replace("send: { erp: PORT }", both));
        assert_eq!(sealed, ["send.odd.protocol: `gopher` is not a protocol of send ports"]);
    }
}
