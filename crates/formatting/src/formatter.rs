//! The formatter: compiles templates once, selects them by locale and channel, renders them within bounds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, io,
};

use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior};
use tocsin_model::{
    application::{ContentTemplates, TemplateEngine},
    content::{Content, JsonUse, MailField, PartsUsed},
    field::Fields,
    id::Name,
    problem::{Code, Problem},
    stack::with_large_stack,
};

use crate::{
    compile::{COMPUTED, Compiler, display_key, partial_name, references},
    filters,
    limits::{HEADER_BYTES_MAX, OUTPUT_BYTES_MAX},
    lint,
    locale::truncations,
    parts::{FormatError, Part, message_of},
    plain, sandbox,
    scope::{KnownVariables, LINKS, RootsUsed, Scope, TemplateRoot, json},
    template::{COMPUTED_VALUE, Template},
    xslt::{self, Stylesheet, XsltError},
};

/// Step limit of one part.
const FUEL: u64 = 100_000;
/// Nesting limit: a macro call counts four, blocks and includes one.
const RECURSION_MAX: usize = 64;

/// The compiled templates of one notification class. Shared by any number of threads; put it into an `Arc`.
pub struct Formatter {
    pub(crate) environment: Environment<'static>,
    fields: Fields,
    pub(crate) templates: Vec<Template>,
    /// The roots that the computed fields use, if there are any.
    computed: Option<RootsUsed>,
    computed_names: Vec<Name>,
    /// The variables of each template, with their lines.
    variables: BTreeMap<String, Vec<(String, u32)>>,
    /// For no locale.
    base: LocaleTemplates,
    /// By locale, in lower case.
    locales: HashMap<String, LocaleTemplates>,
    has_headers: bool,
    warnings: Vec<Problem>,
}

impl fmt::Debug for Formatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.templates.iter().map(|template| &template.name)).finish()
    }
}

/// Numbers of templates: by part, and of each header by its name in lower case.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct TemplateSlots {
    pub parts: [Option<u32>; 5],
    pub headers: Vec<(String, u32)>,
    pub mail: [Option<u32>; MailField::ALL.len()],
}

impl TemplateSlots {
    fn is_empty(&self) -> bool {
        self.parts == [None; 5]
    }

    /// The numbers of all templates.
    fn numbers(&self) -> impl Iterator<Item = u32> {
        let parts = self.parts.iter().chain(&self.mail).flatten().copied();
        parts.chain(self.headers.iter().map(|(_, number)| *number))
    }

    /// Removes unused parts.
    fn retain_parts(&mut self, used: PartsUsed) {
        let [subject, text, html, json, sms] = &mut self.parts;
        let json_used = match used.json {
            JsonUse::Never => false,
            JsonUse::InTheirPlace => text.is_none() && html.is_none(),
            JsonUse::Always => true,
        };
        // A text part without a template is derived from the HTML.
        let html_used = used.html || used.text && text.is_none();
        let uses = [used.subject, used.text, html_used, json_used, used.sms];
        for (slot, used) in [subject, text, html, json, sms].into_iter().zip(uses) {
            *slot = slot.filter(|_| used);
        }
    }

    /// Fills empty slots from `other`.
    fn fill(&mut self, other: &TemplateSlots) {
        let own = self.parts.iter_mut().chain(&mut self.mail);
        for (own, other) in own.zip(other.parts.into_iter().chain(other.mail)) {
            *own = own.or(other);
        }
        for (name, number) in &other.headers {
            if !self.headers.iter().any(|(own, _)| own == name) {
                self.headers.push((name.clone(), *number));
            }
        }
    }
}

/// The templates of one locale.
#[derive(Debug, Default)]
struct LocaleTemplates {
    any: TemplateSlots,
    devices: HashMap<String, TemplateSlots>,
}

/// The result of formatting a notification.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Formatted {
    /// The content.
    pub content: Content,
    /// The computed fields, in the order of their names.
    pub computed: Vec<(Name, serde_json::Value)>,
    /// Whether the content may differ for another recipient of the same event with the same fields, channel, language
    /// and time zone, at about the same time. Other contents can be shared (render cache).
    pub personal: bool,
}

/// The result of a preview.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// The keys under which templates are looked up, in this order.
    pub looked_for: Vec<String>,
    /// Each part and header with a template, and the text derived from HTML.
    pub parts: Vec<PreviewedPart>,
    /// The computed fields.
    pub computed: Vec<(Name, serde_json::Value)>,
    /// The error of the notification as a whole: there is no template, or a computed field fails.
    pub failure: Option<FormatError>,
}

/// One part of a preview.
#[derive(Debug, Clone, PartialEq)]
pub struct PreviewedPart {
    /// The part.
    pub part: Part,
    /// The name of a header.
    pub header: Option<String>,
    /// The key of the selected template; none for a text derived from HTML.
    pub template: Option<String>,
    /// The rendered content.
    pub content: Result<String, FormatError>,
}

impl Formatter {
    /// Compiles the templates of a class. `class_path` is the path of the class in its definition, for the problems:
    /// `notifications.quake_alert`.
    ///
    /// # Errors
    /// Every problem of every template: syntax errors, unknown names and filters, missing partials, partials that
    /// include each other. Positions are relative to the value at the problem's path.
    pub fn compile(
        class_path: &str,
        templates: &ContentTemplates,
        variables: &KnownVariables,
    ) -> Result<Formatter, Vec<Problem>> {
        with_large_stack(|| Formatter::compile_all(class_path, templates, variables)).unwrap_or_else(|error| {
            let message = format!("the templates were not compiled, as no thread could be started: {error}");
            let hint = "raise the limit of threads of the process, or try again later";
            Err(vec![Problem::new(Code::Internal, class_path, message).hint(hint)])
        })
    }

    fn compile_all(
        class_path: &str,
        templates: &ContentTemplates,
        variables: &KnownVariables,
    ) -> Result<Formatter, Vec<Problem>> {
        let mut compiler = Compiler::new(environment(), class_path, variables);
        compiler.add_computed();
        let mut formatter = Formatter {
            environment: Environment::empty(),
            fields: variables.fields.clone(),
            templates: Vec::new(),
            computed: None,
            computed_names: variables.computed.keys().cloned().collect(),
            variables: BTreeMap::new(),
            base: LocaleTemplates::default(),
            locales: HashMap::new(),
            has_headers: false,
            warnings: Vec::new(),
        };
        for (key, parts) in &templates.templates {
            let mut slots = TemplateSlots::default();
            // The engine of lines: they are never stylesheets.
            let is_merged = templates.engine == TemplateEngine::Notifybc;
            let lines = if is_merged { TemplateEngine::Notifybc } else { TemplateEngine::Jinja };
            for part in Part::ALL {
                let Some((engine, source)) = part.of(parts) else { continue };
                let engine = if part == Part::Subject { lines } else { engine };
                slots.parts[part as usize] = compiler.add(key, part, None, engine, source);
            }
            for (header, source) in &parts.headers {
                let number = compiler.add(key, Part::Header, Some(header), lines, source);
                slots.headers.extend(number.map(|number| (header.to_ascii_lowercase(), number)));
            }
            for (field, source) in &parts.mail {
                slots.mail[*field as usize] = compiler.add(key, Part::Mail, Some(field.name()), lines, source);
            }
            formatter.has_headers |= !slots.headers.is_empty();
            formatter.place(key, slots);
        }
        let compiled = compiler.finish();
        let mut problems = compiled.problems;
        formatter.environment = compiled.environment;
        formatter.templates = compiled.templates;
        formatter.computed = compiled.computed;
        formatter.warnings = compiled.warnings;
        formatter.variables = compiled.variables;
        if problems.is_empty() {
            let (found, warnings) = lint::try_with_samples(&formatter, class_path, variables);
            problems.extend(found);
            formatter.warnings.extend(warnings);
        }
        if problems.is_empty() { Ok(formatter) } else { Err(problems) }
    }

    /// Warnings: likely mistakes that compile. Positions as in [`Formatter::compile`].
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// Formats one notification. `channel` is the name of its channel.
    ///
    /// Each part and each header is looked up separately: `de-AT/email`, `de/email`, `de-AT`, `de`, `email`, base. For
    /// an HTML part without a text part, the text is derived from the HTML. Cost: a few microseconds for a common
    /// template; the event is not converted again.
    ///
    /// # Errors
    /// There is no template, or one fails: the template, its part and line, and the error.
    pub fn format(&self, locale: Option<&str>, channel: &str, scope: &Scope<'_>) -> Result<Formatted, FormatError> {
        self.format_parts(locale, channel, scope, PartsUsed::ALL)
    }

    /// As [`Formatter::format`], without unused parts.
    ///
    /// # Errors
    /// As there; unused templates cannot fail.
    pub fn format_parts(
        &self,
        locale: Option<&str>,
        channel: &str,
        scope: &Scope<'_>,
        used: PartsUsed,
    ) -> Result<Formatted, FormatError> {
        let mut found = self.find(locale, channel);
        if found.is_empty() {
            return Err(FormatError::Missing { locale: locale.map(str::to_owned), channel: channel.to_owned() });
        }
        found.retain_parts(used);
        let personal = self.uses(&found).is_personal();
        let (root, computed) = self.root(&found, locale, scope)?;
        let mut applied = self.apply_stylesheets(&found, locale, scope);
        let mut render = |number: Option<u32>| {
            let Some(number) = number else { return Ok(None) };
            let at = applied.iter().position(|(of, _)| *of == number);
            let output = at.map(|at| applied.swap_remove(at).1);
            self.render(&self.templates[number as usize], &root, scope, locale, output).map(Some)
        };
        let [subject, text, html, json, sms] = found.parts;
        let derives_text = used.text && self.derives_text(&found);
        let (subject, html) = (render(subject)?, render(html)?);
        let text = match (render(text)?, &html) {
            (None, Some(html)) if derives_text => Some(plain::text_of(html)),
            (text, _) => text,
        };
        let (headers, mail) = (Vec::new(), Vec::new());
        let mut content = Content { subject, text, html, json: render(json)?, sms: render(sms)?, headers, mail };
        for (_, number) in &found.headers {
            content.headers.extend(self.header(*number, &root, scope, locale)?);
        }
        for (field, number) in MailField::ALL.into_iter().zip(found.mail) {
            let Some(number) = number else { continue };
            let value = self.header(number, &root, scope, locale)?;
            content.mail.extend(value.map(|(_, value)| (field, value)));
        }
        Ok(Formatted { content, computed, personal })
    }

    /// Formats one notification for a preview: each part separately, with the selected template.
    pub fn preview(&self, locale: Option<&str>, channel: &str, scope: &Scope<'_>) -> Preview {
        let found = self.find(locale, channel);
        let looked_for = places(locale, channel);
        let mut preview = Preview { looked_for, parts: Vec::new(), computed: Vec::new(), failure: None };
        if found.is_empty() {
            let (locale, channel) = (locale.map(str::to_owned), channel.to_owned());
            preview.failure = Some(FormatError::Missing { locale, channel });
            return preview;
        }
        let root = match self.root(&found, locale, scope) {
            Ok((root, computed)) => {
                preview.computed = computed;
                root
            }
            Err(failure) => {
                preview.failure = Some(failure);
                return preview;
            }
        };
        for number in found.numbers() {
            let template = &self.templates[number as usize];
            let content = match template.part {
                Part::Header | Part::Mail => self
                    .header(number, &root, scope, locale)
                    .map(|header| header.map_or(String::new(), |(_, value)| value)),
                _ => self.render(template, &root, scope, locale, None),
            };
            let (part, header, key) = (template.part, template.header.clone(), Some(template.key.clone()));
            preview.parts.push(PreviewedPart { part, header, template: key, content });
        }
        if self.derives_text(&found)
            && let Some(at) = preview.parts.iter().position(|part| part.part == Part::Html)
            && let Ok(html) = &preview.parts[at].content
        {
            let content = Ok(plain::text_of(html));
            preview.parts.insert(at, PreviewedPart { part: Part::Text, header: None, template: None, content });
        }
        preview
    }

    /// The variables that its templates, including partials, read and that differ between recipients of one event: the
    /// template, its part, and the name. For stylesheets and computed fields, only variables beside the fields are
    /// known.
    pub fn personal(&self) -> Vec<(&str, Part, String)> {
        let is_personal = |name: &String| {
            let (root, step) = name.split_once('.').unwrap_or((name, ""));
            match root {
                "subscriber" | "sub" | "device" => true,
                root if LINKS.contains(&root) => true,
                "notification" => step.is_empty() || step == "id",
                _ => false,
            }
        };
        let roots = |uses: RootsUsed| {
            let used = [
                ("subscriber", uses.subscriber),
                ("sub", uses.sub),
                ("device", uses.device),
                ("preferences_link", uses.links),
            ];
            used.into_iter().filter(|(_, used)| *used).map(|(root, _)| root.to_owned()).collect::<Vec<_>>()
        };
        let read = |template: &Template| match template.needs_root() {
            true => self.undeclared(&template.name).into_iter().filter(is_personal).collect(),
            false => roots(template.uses),
        };
        let of = |template| read(template).into_iter().map(|name| (template.key.as_str(), template.part, name));
        let mut found: Vec<_> = self.templates.iter().flat_map(of).collect();
        let computed = self.computed.map(roots).unwrap_or_default();
        if let Some(template) = self.templates.first() {
            let named = computed
                .into_iter()
                .map(|root| (template.key.as_str(), template.part, format!("{root}, in a computed field")));
            found.extend(named);
        }
        found
    }

    /// The free variables of a template and its partials, recursively.
    fn undeclared(&self, name: &str) -> BTreeSet<String> {
        let target = name.rsplit(':').next().unwrap_or_default();
        let (mut variables, mut seen, mut waiting) = (BTreeSet::new(), BTreeSet::new(), vec![name.to_owned()]);
        while let Some(name) = waiting.pop() {
            let Ok(template) = self.environment.get_template(&name) else { continue };
            if seen.insert(name) {
                variables.extend(template.undeclared_variables(true));
                let partials = references(template.source()).into_iter();
                waiting.extend(partials.map(|reference| partial_name(&reference.name, target)));
            }
        }
        variables
    }

    fn find(&self, locale: Option<&str>, channel: &str) -> TemplateSlots {
        let mut found = TemplateSlots::default();
        let mut fill = |slots: Option<&TemplateSlots>| {
            if let Some(slots) = slots {
                found.fill(slots);
            }
        };
        if !self.locales.is_empty()
            && let Some(locale) = locale
        {
            let locale = locale.to_ascii_lowercase();
            let places = || truncations(&locale).filter_map(|locale| self.locales.get(locale));
            places().for_each(|place| fill(place.devices.get(channel)));
            places().for_each(|place| fill(Some(&place.any)));
        }
        fill(self.base.devices.get(channel));
        fill(Some(&self.base.any));
        found
    }

    /// Whether the text is made from the HTML. Mails of NotifyBC have the parts of their message only.
    fn derives_text(&self, found: &TemplateSlots) -> bool {
        let is_merged = |number: u32| self.templates[number as usize].merge.is_some();
        found.parts[Part::Text as usize].is_none() && !found.parts[Part::Html as usize].is_some_and(is_merged)
    }

    /// The roots that these templates and the computed fields use.
    fn uses(&self, found: &TemplateSlots) -> RootsUsed {
        let numbers = found.numbers();
        numbers.fold(self.computed.unwrap_or_default(), |uses, number| uses.or(self.templates[number as usize].uses))
    }

    /// Whether a part is produced by a stylesheet, which runs in a worker process: formatting then waits for that
    /// process.
    pub fn has_stylesheets(&self) -> bool {
        self.templates.iter().any(|template| template.stylesheet.is_some())
    }

    /// Whether a template or a computed field may read the subscription.
    pub fn uses_subscription(&self) -> bool {
        self.computed.is_some_and(|uses| uses.sub) || self.templates.iter().any(|template| template.uses.sub)
    }

    /// Whether a template or a computed field may read a link to a hosted page.
    pub fn uses_links(&self) -> bool {
        self.computed.is_some_and(|uses| uses.links) || self.templates.iter().any(|template| template.uses.links)
    }

    /// The variables for the templates of one notification, without computed fields.
    fn root(
        &self,
        found: &TemplateSlots,
        locale: Option<&str>,
        scope: &Scope<'_>,
    ) -> Result<(minijinja::Value, Vec<(Name, serde_json::Value)>), FormatError> {
        // Stylesheets and texts with tokens have an input of their own.
        if self.computed.is_none() && !found.numbers().any(|number| self.templates[number as usize].needs_root()) {
            return Ok((minijinja::Value::UNDEFINED, Vec::new()));
        }
        let root = TemplateRoot::new(&self.fields, scope, locale, self.uses(found));
        if self.computed.is_none() {
            return Ok((minijinja::Value::from_object(root), Vec::new()));
        }
        let values = self.compute(&root)?;
        let shown = values.iter().map(|(name, value)| (name.clone(), json(value))).collect();
        Ok((minijinja::Value::from_object(root.with_computed(values)), shown))
    }

    fn compute(&self, root: &TemplateRoot) -> Result<Vec<(Name, minijinja::Value)>, FormatError> {
        let root = minijinja::Value::from_object(root.clone());
        let mut values = Vec::with_capacity(self.computed_names.len());
        for name in &self.computed_names {
            let failed = |error: &Error| FormatError::Computed { field: name.to_string(), message: message_of(error) };
            sandbox::begin();
            let template =
                self.environment.get_template(&format!("{COMPUTED}{name}")).map_err(|error| failed(&error))?;
            let mut nowhere = BoundedOutput { bytes: Vec::new(), full: false, most: 0 };
            let captured = template.render_captured_to(root.clone(), &mut nowhere).map_err(|error| {
                let message = format!("{}{}", message_of(&error), self.null_variables(&error, &root));
                FormatError::Computed { field: name.to_string(), message }
            })?;
            values.push((name.clone(), captured.state().lookup(COMPUTED_VALUE).unwrap_or_default()));
        }
        Ok(values)
    }

    fn header(
        &self,
        number: u32,
        root: &minijinja::Value,
        scope: &Scope<'_>,
        locale: Option<&str>,
    ) -> Result<Option<(String, String)>, FormatError> {
        let template = &self.templates[number as usize];
        let value = self.render(template, root, scope, locale, None)?;
        let name = template.header.clone().unwrap_or_default();
        // An empty header is left out.
        Ok((!value.is_empty()).then_some((name, value)))
    }

    fn render(
        &self,
        template: &Template,
        root: &minijinja::Value,
        scope: &Scope<'_>,
        locale: Option<&str>,
        applied: Option<Result<String, XsltError>>,
    ) -> Result<String, FormatError> {
        let failed = |line: Option<u32>, message: String| FormatError::Template {
            template: template.key.clone(),
            part: template.part_shown(),
            line,
            message,
        };
        let output = match (&template.stylesheet, &template.merge) {
            (Some(stylesheet), _) => {
                let apply = || stylesheet.apply(&self.input(template, scope, locale));
                applied.unwrap_or_else(apply).map_err(|error| failed(error.line, error.message))?
            }
            (None, Some(merge)) => match merge.apply(scope) {
                output if output.len() > OUTPUT_BYTES_MAX => {
                    return Err(failed(None, format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")));
                }
                output => output,
            },
            (None, None) => self.render_jinja(template, root)?,
        };
        match template.part {
            Part::Json => {
                if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&output) {
                    return Err(failed(None, format!("the output is not JSON: {error}")));
                }
                Ok(output)
            }
            Part::Subject => Ok(one_line(output)),
            Part::Header | Part::Mail => {
                let line = one_line(output);
                if line.len() > HEADER_BYTES_MAX {
                    return Err(failed(None, format!("the header is longer than {HEADER_BYTES_MAX} bytes")));
                }
                Ok(line)
            }
            Part::Sms => Ok(crate::sms::clean(&output)),
            Part::Text | Part::Html => Ok(output),
        }
    }

    fn input<'a>(&'a self, template: &Template, scope: &'a Scope<'a>, locale: Option<&'a str>) -> xslt::Input<'a> {
        xslt::Input { fields: &self.fields, scope, locale, uses: template.uses }
    }

    /// Applies the stylesheets of a notification with several in one exchange with a worker. The results have the
    /// numbers of their templates.
    fn apply_stylesheets(
        &self,
        found: &TemplateSlots,
        locale: Option<&str>,
        scope: &Scope<'_>,
    ) -> Vec<(u32, Result<String, XsltError>)> {
        let of = |number: u32| {
            let template = &self.templates[number as usize];
            Some((number, template.stylesheet.as_ref()?, template))
        };
        let stylesheets: Vec<_> = found.numbers().filter_map(of).collect();
        // A single one is applied when it is rendered.
        if stylesheets.len() < 2 {
            return Vec::new();
        }
        let calls: Vec<_> = stylesheets
            .iter()
            .map(|(_, stylesheet, template)| (*stylesheet, self.input(template, scope, locale)))
            .collect();
        stylesheets.iter().map(|(number, ..)| *number).zip(Stylesheet::apply_all(&calls)).collect()
    }

    fn render_jinja(&self, template: &Template, root: &minijinja::Value) -> Result<String, FormatError> {
        let bytes = Vec::with_capacity(template.bytes.min(1 << 16));
        let mut output = BoundedOutput { bytes, full: false, most: OUTPUT_BYTES_MAX };
        if let Err(error) = run(&self.environment, &template.name, root, &mut output) {
            let failed = |error: &Error, message: String| FormatError::Template {
                template: template.key.clone(),
                part: match partial_of(error, &template.name) {
                    Some(partial) => format!("{}, partial `{partial}`", template.part_shown()),
                    None => template.part_shown(),
                },
                line: error.line().and_then(|line| u32::try_from(line).ok()),
                message,
            };
            if output.full {
                return Err(failed(&error, format!("the output is longer than {OUTPUT_BYTES_MAX} bytes")));
            }
            // Only the slower run in debug mode knows what was undefined.
            let error = match error.kind() {
                ErrorKind::UndefinedError => self.run_recorded(template, root).unwrap_or(error),
                _ => error,
            };
            return Err(failed(&error, format!("{}{}", message_of(&error), self.null_variables(&error, root))));
        }
        Ok(String::from_utf8(output.bytes).expect("templates and values are UTF-8"))
    }

    /// The variables without a value in the line of an error, as suffix of its message.
    pub(crate) fn null_variables(&self, error: &Error, root: &minijinja::Value) -> String {
        if error.kind() == ErrorKind::OutOfFuel {
            return String::new();
        }
        let read = error.name().and_then(|name| self.variables.get(name)).map(Vec::as_slice).unwrap_or_default();
        let of_line = read.iter().filter(|(_, line)| error.line() == Some(*line as usize)).map(|(path, _)| path);
        let is_null = |path: &&String| {
            let mut value = Some(root.clone());
            for step in path.split('.') {
                value = value.and_then(|value| value.get_attr(step).ok());
                if value.as_ref().is_some_and(minijinja::Value::is_none) {
                    return true;
                }
            }
            false
        };
        let without: Vec<String> = of_line.filter(is_null).take(5).map(|path| format!("`{path}`")).collect();
        match without.len() {
            0 => String::new(),
            1 => format!(" ({} has no value)", without[0]),
            _ => format!(" ({} have no value)", without.join(", ")),
        }
    }

    fn run_recorded(&self, template: &Template, root: &minijinja::Value) -> Option<Error> {
        let mut environment = self.environment.clone();
        environment.set_debug(true);
        let mut nowhere = BoundedOutput { bytes: Vec::new(), full: false, most: OUTPUT_BYTES_MAX };
        run(&environment, &template.name, root, &mut nowhere).err()
    }

    /// Runs a template for its errors only.
    pub(crate) fn render_for_errors(&self, name: &str, root: &minijinja::Value) -> Option<Error> {
        let mut nowhere = BoundedOutput { bytes: Vec::new(), full: false, most: OUTPUT_BYTES_MAX };
        run(&self.environment, name, root, &mut nowhere).err()
    }

    fn place(&mut self, key: &str, slots: TemplateSlots) {
        match key.split_once('/') {
            Some((locale, device)) => {
                let place = self.locales.entry(locale.to_ascii_lowercase()).or_default();
                place.devices.insert(device.to_owned(), slots);
            }
            None if key.is_empty() => self.base.any = slots,
            None => {
                // A key without `/` is a locale or a channel; the definition was checked. Which one is decided at
                // lookup.
                self.base.devices.insert(key.to_owned(), slots.clone());
                self.locales.entry(key.to_ascii_lowercase()).or_default().any = slots;
            }
        }
    }
}

/// The lookup keys of a part, in order.
fn places(locale: Option<&str>, channel: &str) -> Vec<String> {
    let locales: Vec<&str> = locale.into_iter().flat_map(truncations).collect();
    let with_device = locales.iter().map(|locale| format!("{locale}/{channel}"));
    with_device
        .chain(locales.iter().map(|locale| (*locale).to_owned()))
        .chain([channel.to_owned(), display_key("").to_owned()])
        .collect()
}

pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_auto_escape_callback(|name| match name.rsplit(':').next() {
        Some("html") => AutoEscape::Html,
        Some("json") => AutoEscape::Json,
        _ => AutoEscape::None,
    });
    // A partial is compiled for each target that uses it, so that its values are escaped for that target.
    environment.set_path_join_callback(|name, parent| {
        let target = parent.rsplit(':').next().unwrap_or_default();
        crate::compile::partial_name(name, target).into()
    });
    // A field without a value is rendered as empty text, not as the word `none`; in JSON it is null.
    environment.set_formatter(write_value);
    filters::install(&mut environment);
    sandbox::install(&mut environment);
    environment
}

/// Writes a value with the escaping of its target. A missing value is empty text; in JSON it is null.
pub(crate) fn write_value(
    out: &mut minijinja::Output<'_>,
    state: &mut State<'_, '_>,
    value: &minijinja::Value,
) -> Result<(), Error> {
    if value.is_none() && *state.auto_escape() != AutoEscape::Json {
        return Ok(());
    }
    if let Some(text) = value.as_str() {
        sandbox::charge(text.len())?;
    }
    // The encoder would write null, which stands for a missing value.
    if *state.auto_escape() == AutoEscape::Json
        && value.kind() == minijinja::value::ValueKind::Number
        && f64::try_from(value.clone()).is_ok_and(|number| !number.is_finite())
    {
        return Err(Error::new(ErrorKind::InvalidOperation, "the number is not finite, so JSON has no form of it"));
    }
    minijinja::escape_formatter(out, state, value)
}

pub(crate) fn run(
    environment: &Environment<'static>,
    name: &str,
    root: &minijinja::Value,
    output: &mut BoundedOutput,
) -> Result<(), Error> {
    sandbox::begin();
    environment.get_template(name)?.render_captured_to(root.clone(), output).map(|_| ())
}

/// A writer with a size limit.
pub(crate) struct BoundedOutput {
    pub bytes: Vec<u8>,
    pub full: bool,
    pub most: usize,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, more: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + more.len() > self.most {
            self.full = true;
            return Err(io::Error::other("the output is too long"));
        }
        self.bytes.extend_from_slice(more);
        Ok(more.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Collapses white space to single spaces. So a subject or header is one line and cannot start another header (header
/// injection).
fn one_line(text: String) -> String {
    // Fast path: most texts are one line already, which a scan of the bytes finds.
    let is_plain = |(at, byte): (usize, u8)| match byte {
        b' ' => at > 0 && text.as_bytes().get(at + 1).is_some_and(|next| *next != b' '),
        byte => byte.is_ascii_graphic(),
    };
    if text.bytes().enumerate().all(is_plain) {
        return text;
    }
    // Line and paragraph separators are white space; bidirectional control characters would change how the text is
    // read.
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let breaks = |c: char| c.is_whitespace() || c.is_control() || turns(c);
    let mut line = String::with_capacity(text.len());
    for word in text.split(breaks).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

/// The partial in which an error happened, if not in the template itself.
fn partial_of(error: &Error, template: &str) -> Option<String> {
    let name = error.name().filter(|name| *name != template)?;
    crate::compile::partial_of_name(name).map(str::to_owned)
}
