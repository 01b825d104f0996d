//! Template compiler of a notification class: resolves partials, converts MJML to HTML, and collects problems.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::Environment;
use tocsin_model::{
    application::{TemplateEngine, TemplateText},
    id::Name,
    problem::{Code, Problem, closest},
    stack::with_large_stack,
};

use crate::{
    lint,
    merge::MergeTemplate,
    mjml,
    parts::Part,
    sandbox::{self, PreparedTemplate, Reference},
    scope::{KnownVariables, RootsUsed},
    template::{COMPUTED_VALUE, Template},
    template_depth::{self, SyntaxError},
    xslt::Stylesheet,
};

/// Prefix of the names of computed fields' templates; keys of a definition cannot contain it.
pub const COMPUTED: &str = "\u{1}computed/";
const PARTIAL: &str = "\u{1}partial/";
/// Deepest nesting of partials.
const PARTIAL_DEPTH_MAX: usize = 16;

/// The engine's name of a partial that is compiled for a target.
pub fn partial_name(partial: &str, target: &str) -> String {
    format!("{PARTIAL}{partial}:{target}")
}

/// The partial of such a name.
pub fn partial_of_name(name: &str) -> Option<&str> {
    Some(name.strip_prefix(PARTIAL)?.rsplit_once(':')?.0)
}

/// A template's key for display.
pub fn display_key(key: &str) -> &str {
    if key.is_empty() { "base" } else { key }
}

/// The language of a template's key, such as `de-AT/email`. A key without `/` can also be a channel: it is a language
/// if it has two letters, or a region.
fn language(key: &str) -> Option<&str> {
    match key.split_once('/') {
        Some((language, _)) => Some(language),
        None => Some(key).filter(|key| key.split('-').next().is_some_and(|first| first.len() == 2)),
    }
}

/// The result of compiling a class.
pub struct CompiledTemplates {
    pub environment: Environment<'static>,
    pub templates: Vec<Template>,
    pub computed: Option<RootsUsed>,
    /// The variables of each template by its name in the environment, with their lines.
    pub variables: BTreeMap<String, Vec<(String, u32)>>,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
}

/// Compiles the templates of one class.
pub struct Compiler<'a> {
    class_path: &'a str,
    variables: &'a KnownVariables,
    done: CompiledTemplates,
    /// The text size of each partial, including those that it includes.
    partial_bytes: BTreeMap<String, usize>,
    /// Partials that include themselves, which were reported.
    cycles: BTreeSet<String>,
    /// The compiled partials, by their names in the environment, and the roots that they use. None: the partial has a
    /// problem, which was reported. Each is compiled once, so that the work does not grow with the number of paths to it.
    added: BTreeMap<String, Option<RootsUsed>>,
    /// Variables that templates assign, which their partials can read.
    assigned: BTreeSet<String>,
    /// Partials to check once all assignments are known: path, name in the environment, and parsed source.
    unchecked: Vec<(String, String, PreparedTemplate)>,
}

impl<'a> Compiler<'a> {
    pub fn new(environment: Environment<'static>, class_path: &'a str, variables: &'a KnownVariables) -> Self {
        let (partial_bytes, cycles, problems) = partials(&variables.partials);
        let done = CompiledTemplates {
            environment,
            templates: Vec::new(),
            computed: None,
            variables: BTreeMap::new(),
            problems,
            warnings: Vec::new(),
        };
        let (added, assigned, unchecked) = Default::default();
        Compiler { class_path, variables, done, partial_bytes, cycles, added, assigned, unchecked }
    }

    /// Adds the computed fields of the class.
    pub fn add_computed(&mut self) {
        for (name, expression) in &self.variables.computed {
            let path = format!("{}.computed.{name}", self.class_path);
            // On a separate line, so that a comment in the expression cannot swallow the end.
            let before = format!("{{% set {COMPUTED_VALUE} = (");
            let source = format!("{before}{expression}\n) %}}");
            let original = self.done.problems.len();
            let prepared = match template_depth::check_expression(expression)
                .and_then(|()| sandbox::prepare(&source, &self.partial_bytes))
            {
                Ok(prepared) => prepared,
                Err(error) => {
                    let problem = Problem::syntax("jinja", path, error.message);
                    let problem = problem.hint(error.hint.unwrap_or("give one expression, without braces"));
                    self.done.problems.push(problem.position(error.line, 1));
                    continue;
                }
            };
            let uses = RootsUsed::in_text(expression);
            self.done.computed = Some(self.done.computed.unwrap_or_default().or(uses));
            self.object(&path, &prepared);
            let known = KnownVariables { computed: BTreeMap::new(), ..self.variables.clone() };
            let template = format!("{COMPUTED}{name}");
            match self.done.environment.add_template_owned(template.clone(), prepared.source.clone()) {
                Ok(()) => {
                    self.keep_variables(&template, &prepared);
                    self.unknown(&path, &template, &prepared, &known);
                }
                Err(error) => {
                    self.done.problems.push(SyntaxError::read(&prepared.source, &error).problem(&path).position(1, 1));
                }
            }
            // Positions refer to the original source.
            for problem in self.done.problems[original..].iter_mut().filter(|problem| problem.line == Some(1)) {
                problem.column = problem.column.map(|column| column.saturating_sub(before.len() as u32).max(1));
            }
        }
    }

    /// Compiles one part and returns its number. Problems are collected.
    pub fn add(
        &mut self,
        key: &str,
        part: Part,
        header: Option<&str>,
        engine: TemplateEngine,
        source: &str,
    ) -> Option<u32> {
        let shown = display_key(key);
        let path = match header {
            Some(field) if part == Part::Mail => format!("{}.content.templates.{shown}.mail.{field}", self.class_path),
            Some(header) => format!("{}.content.templates.{shown}.headers.{header}", self.class_path),
            None => format!("{}.content.templates.{shown}.{}", self.class_path, part.name()),
        };
        let target = part.name();
        let name = format!("{shown}{}:{target}", header.map(|header| format!(":{header}")).unwrap_or_default());
        let template = match engine {
            TemplateEngine::Notifybc => {
                let merge = match part {
                    Part::Json => MergeTemplate::json(source),
                    _ => Ok(MergeTemplate::text(source)),
                };
                let merge = match merge {
                    Ok(merge) => merge,
                    Err(error) => {
                        let problem = Problem::syntax("json", path, error.to_string());
                        let (line, column) = (error.line() as u32, error.column() as u32);
                        self.done.problems.push(problem.position(line, column.max(1)));
                        return None;
                    }
                };
                let (key, header, bytes) = (shown.to_owned(), header.map(str::to_owned), source.len());
                Template { name, key, part, header, uses: merge.uses(), bytes, stylesheet: None, merge: Some(merge) }
            }
            TemplateEngine::Xslt => {
                let stylesheets = stylesheets(&self.variables.partials);
                let method = if part == Part::Html { "html" } else { "text" };
                match Stylesheet::compile(source, &stylesheets, Some(method)) {
                    Ok(stylesheet) => {
                        let uses = RootsUsed::in_text(source);
                        let uses = stylesheet.imported().iter().fold(uses, |uses, name| {
                            uses.or(stylesheets
                                .get(name.as_str())
                                .map_or(RootsUsed::default(), |text| RootsUsed::in_text(text)))
                        });
                        let (key, bytes) = (shown.to_owned(), 0);
                        Template {
                            name,
                            key,
                            part,
                            header: None,
                            uses,
                            bytes,
                            stylesheet: Some(stylesheet),
                            merge: None,
                        }
                    }
                    Err(problem) => {
                        self.done.problems.push(Problem { path: format!("{path}.xslt"), ..problem });
                        return None;
                    }
                }
            }
            TemplateEngine::Jinja | TemplateEngine::Mjml => {
                let (path, html) = match engine {
                    TemplateEngine::Mjml => {
                        let path = format!("{path}.mjml");
                        let html = self.mjml(&path, source, language(key))?;
                        (path, html)
                    }
                    _ => (path, source.to_owned()),
                };
                let uses = self.jinja(&path, &name, target, source, &html, 0)?;
                if part == Part::Html {
                    self.done.warnings.extend(
                        lint::unsafe_urls(source).into_iter().map(|warning| Problem { path: path.clone(), ..warning }),
                    );
                }
                let bytes = html.len() + html.len() / 4;
                let (key, header) = (shown.to_owned(), header.map(str::to_owned));
                Template { name, key, part, header, uses, bytes, stylesheet: None, merge: None }
            }
        };
        self.done.templates.push(template);
        Some(self.done.templates.len() as u32 - 1)
    }

    /// Finishes with checks that need all templates.
    pub fn finish(mut self) -> CompiledTemplates {
        for (path, name, prepared) in std::mem::take(&mut self.unchecked) {
            let assigned = self.assigned.clone();
            let own = |variable: &str| assigned.contains(variable.split('.').next().unwrap_or_default());
            let found = lint::unknown(&self.done.environment, &name, &prepared, self.variables);
            let found = found.into_iter().filter(|(variable, _)| !own(variable));
            self.done.problems.extend(found.map(|(_, problem)| Problem { path: path.clone(), ..problem }));
        }
        self.done.problems.dedup();
        self.done
    }

    fn mjml(&mut self, path: &str, source: &str, language: Option<&str>) -> Option<String> {
        match mjml::html(source, language) {
            Ok(html) => Some(html),
            Err(problem) => {
                self.done.problems.push(Problem { path: path.to_owned(), ..problem });
                None
            }
        }
    }

    /// Compiles a Jinja source and its partials; returns the roots that they use. `written` is the original source for
    /// positions, `source` the one to compile.
    fn jinja(
        &mut self,
        path: &str,
        name: &str,
        target: &str,
        written: &str,
        source: &str,
        depth: usize,
    ) -> Option<RootsUsed> {
        let read = |source: &str| sandbox::prepare(source, &self.partial_bytes);
        let (original, prepared) = match read(source).and_then(|prepared| Ok((read(written)?, prepared))) {
            Ok(read) => read,
            Err(error) => {
                self.done.problems.push(error.in_template(path));
                return None;
            }
        };
        self.object(path, &original);
        self.assigned.extend(prepared.assigned.iter().cloned());
        let mut uses = RootsUsed::in_text(source);
        let mut whole = true;
        for reference in &original.references {
            match self.partial(path, reference, target, depth) {
                Some(of_partial) => uses = uses.or(of_partial),
                None => whole = false,
            }
        }
        if let Err(error) = self.done.environment.add_template_owned(name.to_owned(), prepared.source.clone()) {
            let error = SyntaxError { column: 1, ..SyntaxError::read(&prepared.source, &error) };
            self.done.problems.push(error.in_template(path));
            return None;
        }
        self.keep_variables(name, &prepared);
        if depth == 0 {
            self.unknown(path, name, &original, self.variables);
        } else {
            self.unchecked.push((path.to_owned(), name.to_owned(), original));
        }
        whole.then_some(uses)
    }

    /// Compiles a partial for a target, unless it has been compiled.
    fn partial(&mut self, path: &str, reference: &Reference, target: &str, depth: usize) -> Option<RootsUsed> {
        let name = partial_name(&reference.name, target);
        if let Some(uses) = self.added.get(&name) {
            return *uses;
        }
        if self.cycles.contains(&reference.name) {
            return None;
        }
        let partials = &self.variables.partials;
        let mut refuse = |code: Code, message: String, hint: String| {
            self.done
                .problems
                .push(Problem::new(code, path, message).hint(hint).position(reference.line, reference.column));
        };
        let Some((_, text)) = partials.iter().find(|(known, _)| known.as_str() == reference.name) else {
            let hint = match closest(&reference.name, partials.keys().map(Name::as_str)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if partials.is_empty() => {
                    "the definition has no `partials`; templates cannot read files".to_owned()
                }
                None => format!("partials are {}", partials.keys().map(Name::as_str).collect::<Vec<_>>().join(", ")),
            };
            refuse(
                Code::UnknownReference,
                format!("{} names the partial `{}`, which does not exist", tag(reference), reference.name),
                hint,
            );
            return None;
        };
        if depth >= PARTIAL_DEPTH_MAX {
            let hint = "use fewer".to_owned();
            refuse(Code::TooDeep, format!("is nested in more than {PARTIAL_DEPTH_MAX} partials"), hint);
            return None;
        }
        let of_partial = format!("partials.{}", reference.name);
        let (of_partial, source) = match text.engine {
            TemplateEngine::Jinja => (of_partial, text.text.clone()),
            TemplateEngine::Mjml if target == Part::Html.name() => {
                let of_partial = format!("{of_partial}.mjml");
                let html = self.mjml(&of_partial, &text.text, None)?;
                (of_partial, html)
            }
            TemplateEngine::Mjml => {
                refuse(
                    Code::NotApplicable,
                    format!("`{}` is in MJML, which produces HTML, but this part is not HTML", reference.name),
                    "use another partial".to_owned(),
                );
                return None;
            }
            TemplateEngine::Xslt | TemplateEngine::Notifybc => {
                let hint = "only stylesheets can import it; write the partial in Jinja".to_owned();
                refuse(Code::NotApplicable, format!("`{}` is a stylesheet", reference.name), hint);
                return None;
            }
        };
        let uses = self.jinja(&of_partial, &name, target, &text.text.clone(), &source, depth + 1);
        self.added.insert(name, uses);
        uses
    }

    /// Reports constructs that are not allowed, and unknown filters and tests.
    fn object(&mut self, path: &str, prepared: &PreparedTemplate) {
        for (message, hint, line, column) in &prepared.objections {
            let problem = Problem::new(Code::Unsupported, path, message.clone()).hint(*hint).position(*line, *column);
            self.done.problems.push(problem);
        }
        let unknown = lint::unknown_calls(&self.done.environment, prepared);
        self.done.problems.extend(unknown.into_iter().map(|problem| Problem { path: path.to_owned(), ..problem }));
    }

    /// Records the variables of each line of a template, for errors that name those without a value.
    fn keep_variables(&mut self, name: &str, prepared: &PreparedTemplate) {
        let mut read: Vec<(String, u32)> =
            prepared.variables.iter().map(|(path, line, _)| (path.clone(), *line)).collect();
        read.sort();
        read.dedup();
        self.done.variables.insert(name.to_owned(), read);
    }

    /// Reports unknown variables.
    fn unknown(&mut self, path: &str, name: &str, prepared: &PreparedTemplate, known: &KnownVariables) {
        let found = lint::unknown(&self.done.environment, name, prepared, known);
        self.done.problems.extend(found.into_iter().map(|(_, problem)| Problem { path: path.to_owned(), ..problem }));
    }
}

fn tag(reference: &Reference) -> String {
    format!("`{}`", reference.tag)
}

/// The partials that are stylesheets.
pub fn stylesheets(partials: &BTreeMap<Name, TemplateText>) -> BTreeMap<&str, &str> {
    let stylesheets = partials.iter().filter(|(_, text)| text.engine == TemplateEngine::Xslt);
    stylesheets.map(|(name, text)| (name.as_str(), text.text.as_str())).collect()
}

/// The partials that a source references. Empty if it cannot be parsed.
pub fn references(text: &str) -> Vec<Reference> {
    let prepare = || sandbox::prepare(text, &BTreeMap::new());
    let prepared = with_large_stack(prepare).ok().and_then(Result::ok);
    prepared.map(|prepared| prepared.references).unwrap_or_default()
}

/// The text size of each partial including nested ones; the partials that include themselves, and their problems.
fn partials(all: &BTreeMap<Name, TemplateText>) -> (BTreeMap<String, usize>, BTreeSet<String>, Vec<Problem>) {
    let named: BTreeMap<&str, (usize, Vec<Reference>)> = all
        .iter()
        .filter(|(_, text)| text.engine != TemplateEngine::Xslt)
        .map(|(name, text)| (name.as_str(), (text.text.len(), references(&text.text))))
        .collect();
    let (mut bytes, mut cycles, mut problems) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for name in named.keys() {
        let mut way = Vec::new();
        match measure(name, &named, &mut way, &mut bytes) {
            Ok(_) => {}
            Err(PartialCycle) => {
                cycles.insert((*name).to_owned());
                // A partial that only leads into a cycle is not part of it.
                if way.last().is_some_and(|last| last == name) && way.len() > 1 {
                    let message = format!("uses itself: {}", way.join(" > "));
                    problems.push(
                        Problem::new(Code::Cyclic, format!("partials.{name}"), message)
                            .hint("take one of these tags out"),
                    );
                }
            }
        }
    }
    (bytes, cycles, problems)
}

struct PartialCycle;

fn measure<'a>(
    name: &'a str,
    named: &BTreeMap<&'a str, (usize, Vec<Reference>)>,
    way: &mut Vec<String>,
    bytes: &mut BTreeMap<String, usize>,
) -> Result<usize, PartialCycle> {
    if let Some(bytes) = bytes.get(name) {
        return Ok(*bytes);
    }
    let is_circle = way.iter().any(|before| before == name);
    way.push(name.to_owned());
    if is_circle {
        return Err(PartialCycle);
    }
    let Some((name, (own, references))) = named.get_key_value(name) else {
        way.pop();
        return Ok(0);
    };
    let mut sum = *own;
    for reference in references {
        let Some((next, _)) = named.get_key_value(reference.name.as_str()) else { continue };
        sum = sum.saturating_add(measure(next, named, way, bytes)?);
    }
    way.pop();
    bytes.insert((*name).to_owned(), sum);
    Ok(sum)
}
