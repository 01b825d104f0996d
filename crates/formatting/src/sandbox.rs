//! Sandbox: bounds the values that a template creates.
//!
//! The engine bounds steps and depth, but not the size of a value that one step creates: `a ~ a` doubles a text, and
//! forty of them in a row fill any memory. So the source is rewritten before compilation: an operator, call or list
//! that can create a large value is wrapped in a function call that weighs its result. The iterations of a loop are
//! weighed with the text in it. Line numbers are preserved. A render ends with an error when the sum of its weights
//! exceeds [`WEIGHT_MAX`].

use std::{cell::Cell, collections::BTreeMap, rc::Rc};

use minijinja::{
    Environment, Error, ErrorKind,
    machinery::{
        Span,
        ast::{BinOpKind, Call, CallArg, CompareOpKind, Expr, Macro, Spanned, Stmt},
    },
    syntax::SyntaxConfig,
    value::{Value as Jinja, ValueKind},
};

use crate::{
    limits::OUTPUT_BYTES_MAX,
    template_depth::{self, SyntaxError},
};

/// The largest sum of the weights of one render: bytes of texts, and a few for each element of a list.
const WEIGHT_MAX: usize = 16 << 20;
/// The weight of a list element in addition to its text.
const ELEMENT_WEIGHT: usize = 32;
/// The deepest value that is weighed; no template can nest lists this deep.
const VALUE_DEPTH_MAX: usize = 32;
/// Most iterations of one loop.
const ITERATIONS_MAX: usize = 20_000;

const WEIGHED: &str = "weighed__";
const TIMES: &str = "times__";
const TURNS: &str = "turns__";
const SEARCHED: &str = "searched__";
const JOINED: &str = "joined__";

thread_local! {
    static WEIGHT: Cell<usize> = const { Cell::new(0) };
}

/// Starts a render: resets the weight.
pub fn begin() {
    WEIGHT.set(0);
}

/// Adds to the weight of this render.
///
/// # Errors
/// The sum exceeds the limit.
pub fn charge(weight: usize) -> Result<(), Error> {
    let sum = WEIGHT.get().saturating_add(weight);
    WEIGHT.set(sum);
    if sum > WEIGHT_MAX { Err(too_much()) } else { Ok(()) }
}

fn too_much() -> Error {
    let message = format!("the template creates more than {} MiB of values", WEIGHT_MAX >> 20);
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Installs the functions that rewritten templates call. Templates cannot call them directly.
pub fn install(environment: &mut Environment<'static>) {
    environment.add_function(WEIGHED, charged);
    environment.add_function(TIMES, times);
    environment.add_function(TURNS, charged_iterations);
    environment.add_function(SEARCHED, searched);
    environment.add_function(JOINED, joined);
}

/// Whether a name is one of these functions.
pub fn is_own(name: &str) -> bool {
    [WEIGHED, TIMES, TURNS, SEARCHED, JOINED].contains(&name)
}

/// Charges for the size of a value and returns it.
pub fn charged(value: Jinja) -> Result<Jinja, Error> {
    let mut left = WEIGHT_MAX.saturating_sub(WEIGHT.get());
    charge_value(&value, &mut left, 0)?;
    WEIGHT.set(WEIGHT_MAX - left);
    Ok(value)
}

fn charge_value(value: &Jinja, left: &mut usize, depth: usize) -> Result<(), Error> {
    let own = value.as_str().map_or(ELEMENT_WEIGHT, |text| text.len() + ELEMENT_WEIGHT);
    *left = left.checked_sub(own).ok_or_else(too_much)?;
    if depth > VALUE_DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"));
    }
    match value.kind() {
        // A one-shot iterator would be consumed.
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            for item in value.try_iter()? {
                charge_value(&item, left, depth + 1)?;
            }
        }
        ValueKind::Map if value.len().is_some() => {
            for key in value.try_iter()? {
                charge_value(&value.get_item(&key)?, left, depth + 1)?;
                charge_value(&key, left, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// `left ~ right`, where null is empty text.
fn joined(left: Jinja, right: Jinja) -> Result<Jinja, Error> {
    let mut text = String::new();
    for part in [left, right] {
        match part.as_str() {
            Some(part) => text.push_str(part),
            None if part.is_none() => {}
            None => text.push_str(&part.to_string()),
        }
    }
    charge(text.len() + ELEMENT_WEIGHT)?;
    Ok(Jinja::from(text))
}

/// Charges for a search in a value and returns it. A search in null finds nothing.
fn searched(place: Jinja) -> Result<Jinja, Error> {
    if place.is_none() {
        return Ok(Jinja::from(Vec::<Jinja>::new()));
    }
    charge(place.as_str().map_or_else(|| place.len().unwrap_or_default(), |text| text.len() / 16))?;
    Ok(place)
}

/// `left * right` with a bounded result.
fn times(left: Jinja, right: Jinja) -> Result<Jinja, Error> {
    if let (ValueKind::Number, ValueKind::Number) = (left.kind(), right.kind()) {
        return match (i128::try_from(left.clone()), i128::try_from(right.clone())) {
            (Ok(a), Ok(b)) if left.is_integer() && right.is_integer() => match a.checked_mul(b) {
                Some(product) => Ok(i64::try_from(product).map_or_else(|_| Jinja::from(product), Jinja::from)),
                None => Err(Error::new(ErrorKind::InvalidOperation, "unable to calculate the product")),
            },
            _ => Ok(Jinja::from(f64::try_from(left)? * f64::try_from(right)?)),
        };
    }
    let (repeated, count) = if left.kind() == ValueKind::Number { (&right, &left) } else { (&left, &right) };
    let count = usize::try_from(count.clone()).ok().filter(|_| count.is_integer());
    match (repeated.as_str(), count) {
        (Some(text), Some(count)) => {
            if text.len().saturating_mul(count) > OUTPUT_BYTES_MAX {
                return Err(Error::new(ErrorKind::InvalidOperation, "repeated string is too large"));
            }
            charge(text.len() * count)?;
            Ok(Jinja::from(text.repeat(count)))
        }
        _ => {
            let message = format!("tried to use * operator on unsupported types {} and {}", left.kind(), right.kind());
            Err(Error::new(ErrorKind::InvalidOperation, message))
        }
    }
}

/// Returns the items of a loop, after charging for their number and the text of each iteration.
fn charged_iterations(over: Jinja, text_bytes: usize) -> Result<Jinja, Error> {
    let kind = over.kind();
    if matches!(kind, ValueKind::Undefined) || matches!(kind, ValueKind::None) {
        return Ok(over);
    }
    let too_many =
        || Error::new(ErrorKind::InvalidOperation, format!("a loop has more than {ITERATIONS_MAX} iterations"));
    if let Some(text) = over.as_str() {
        if text.len() > ITERATIONS_MAX {
            return Err(too_many());
        }
        charge(text.len().saturating_mul(text_bytes))?;
        return Ok(over);
    }
    let items: Vec<Jinja> = match over.len() {
        Some(length) if length <= ITERATIONS_MAX => {
            charge(length.saturating_mul(text_bytes))?;
            return Ok(over);
        }
        Some(_) => return Err(too_many()),
        None => over.try_iter()?.take(ITERATIONS_MAX + 1).collect(),
    };
    if items.len() > ITERATIONS_MAX {
        return Err(too_many());
    }
    charge(items.len().saturating_mul(text_bytes))?;
    Ok(Jinja::from(items))
}

/// A rewritten template, and the names in its source.
#[derive(Debug, Clone, Default)]
pub struct PreparedTemplate {
    /// The rewritten source.
    pub source: String,
    /// The partials that it references, with line and column.
    pub references: Vec<Reference>,
    /// The variables, with dotted paths as far as possible, with line and column.
    pub variables: Vec<(String, u32, u32)>,
    /// The filters and tests that it uses, with line and column.
    pub called: Vec<(CalleeKind, String, u32, u32)>,
    /// Variables that it assigns; included partials can read them.
    pub assigned: Vec<String>,
    /// Constructs that are not allowed, with hint and position.
    pub objections: Vec<(String, &'static str, u32, u32)>,
}

/// The kind of a called name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalleeKind {
    /// `{{ value|name }}`.
    Filter,
    /// `{% if value is name %}`.
    Test,
}

/// A reference to a partial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The name of the partial.
    pub name: String,
    /// `include`, `extends`, `import` or `from`.
    pub tag: &'static str,
    /// Line of the name, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

/// Parses and rewrites a template. `partial_bytes` is the text size of each partial. Needs the stack of
/// [`with_large_stack`](tocsin_model::stack::with_large_stack).
///
/// # Errors
/// The syntax is invalid, or the template exceeds a limit of [`template_depth`].
pub fn prepare(source: &str, partial_bytes: &BTreeMap<String, usize>) -> Result<PreparedTemplate, SyntaxError> {
    template_depth::check(source, false)?;
    let tree = minijinja::machinery::parse(source, "template", SyntaxConfig::default())
        .map_err(|error| SyntaxError::read(source, &error))?;
    let mut reader = TemplateRewriter {
        source,
        partial_bytes,
        inserts: Vec::new(),
        prepared: PreparedTemplate::default(),
        captured: 0,
    };
    reader.statement(&tree);
    let TemplateRewriter { mut inserts, mut prepared, .. } = reader;
    // Of two at one offset the one found first is the outer one: it comes first if it opens, last if it closes.
    inserts.sort_by_key(|insert| (insert.at, insert.order));
    let mut out = String::with_capacity(source.len() + inserts.len() * 12);
    let mut at = 0;
    for insert in inserts {
        out.push_str(&source[at..insert.at]);
        out.push_str(&insert.text);
        at = insert.at + insert.replaces;
    }
    out.push_str(&source[at..]);
    prepared.source = out;
    Ok(prepared)
}

struct Insertion {
    at: usize,
    order: i64,
    text: Rc<str>,
    replaces: usize,
}

struct TemplateRewriter<'a> {
    source: &'a str,
    partial_bytes: &'a BTreeMap<String, usize>,
    inserts: Vec<Insertion>,
    prepared: PreparedTemplate,
    /// The number of enclosing tags that capture their output.
    captured: usize,
}

impl TemplateRewriter<'_> {
    fn statements(&mut self, statements: &[Stmt<'_>]) {
        for statement in statements {
            self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt<'_>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::EmitRaw(_) => {}
            Stmt::ForLoop(found) => {
                if found.recursive {
                    let at = found.iter.span();
                    self.object("a loop cannot be `recursive`", "use a macro that calls itself", at);
                }
                let bytes = self.text_bytes(&found.body);
                let mut span = found.iter.span();
                span.start_offset = start(&found.iter).start_offset;
                self.wrap_in_call(span, TURNS, &format!(", {bytes})"));
                self.assigned(&found.target);
                self.expression(&found.iter);
                found.filter_expr.iter().for_each(|filter| self.expression(filter));
                self.statements(&found.body);
                self.statements(&found.else_body);
            }
            Stmt::IfCond(found) => {
                self.expression(&found.expr);
                self.statements(&found.true_body);
                self.statements(&found.false_body);
            }
            Stmt::WithBlock(found) => {
                for (target, value) in &found.assignments {
                    self.assigned(target);
                    self.expression(value);
                }
                self.statements(&found.body);
            }
            Stmt::Set(found) => {
                self.assigned(&found.target);
                self.expression(&found.expr);
            }
            Stmt::SetBlock(found) => {
                self.assigned(&found.target);
                found.filter.iter().for_each(|filter| self.expression(filter));
                self.captured(&found.body);
            }
            Stmt::AutoEscape(found) => {
                let hint = "values are escaped for their part; `|safe` marks a value that needs no escaping";
                self.object("`autoescape` cannot be switched", hint, found.enabled.span());
                self.statements(&found.body);
            }
            Stmt::FilterBlock(found) => {
                self.expression(&found.filter);
                self.captured(&found.body);
            }
            Stmt::Block(found) => {
                if self.captured > 0 {
                    let hint = "put the block around the tag, or use `include`";
                    self.object("a block is inside a tag that captures its output", hint, found.span());
                }
                self.statements(&found.body);
            }
            Stmt::Import(found) => self.reference(&found.expr, "import"),
            Stmt::FromImport(found) => self.reference(&found.expr, "from"),
            Stmt::Extends(found) => self.reference(&found.name, "extends"),
            Stmt::Include(found) => {
                if found.ignore_missing {
                    let hint = "remove it: all partials are known";
                    self.object("`ignore missing` has no meaning here", hint, found.name.span());
                }
                self.reference(&found.name, "include");
            }
            Stmt::Macro(found) => self.macro_of(found),
            Stmt::CallBlock(found) => {
                self.arguments(&found.call.args);
                self.macro_of(&found.macro_decl);
            }
            Stmt::Do(found) => self.arguments(&found.call.args),
        }
    }

    fn macro_of(&mut self, found: &Macro<'_>) {
        found.defaults.iter().for_each(|default| self.expression(default));
        self.captured(&found.body);
    }

    fn captured(&mut self, body: &[Stmt<'_>]) {
        self.captured += 1;
        self.statements(body);
        self.captured -= 1;
    }

    fn expression(&mut self, expression: &Expr<'_>) {
        match expression {
            Expr::Var(found) => {
                let at = found.span();
                self.variable(found.id.to_owned(), at);
                if is_own(found.id) {
                    self.object("is not known", "use another name", at);
                }
            }
            Expr::Const(_) => {}
            Expr::Slice(found) => {
                self.expression(&found.expr);
                [&found.start, &found.stop, &found.step].into_iter().flatten().for_each(|part| self.expression(part));
            }
            Expr::UnaryOp(found) => self.expression(&found.expr),
            Expr::BinOp(found) => {
                let span = found.span();
                match found.op {
                    BinOpKind::Add => self.wrap_in_call(span, WEIGHED, ")"),
                    BinOpKind::Concat => {
                        self.wrap_in_call(span, JOINED, ")");
                        self.comma(&found.left, "~");
                    }
                    BinOpKind::Mul => {
                        self.wrap_in_call(span, TIMES, ")");
                        self.comma(&found.left, "*");
                    }
                    BinOpKind::In => self.searched(&found.right),
                    _ => {}
                }
                self.expression(&found.left);
                self.expression(&found.right);
            }
            Expr::Compare(found) => {
                self.expression(&found.expr);
                for op in &found.ops {
                    if matches!(op.op, CompareOpKind::In | CompareOpKind::NotIn) {
                        self.searched(&op.expr);
                    }
                    self.expression(&op.expr);
                }
            }
            Expr::IfExpr(found) => {
                self.expression(&found.test_expr);
                self.expression(&found.true_expr);
                found.false_expr.iter().for_each(|other| self.expression(other));
            }
            Expr::Filter(found) => {
                self.called(CalleeKind::Filter, found.name, found.span());
                found.expr.iter().for_each(|inner| self.expression(inner));
                self.arguments(&found.args);
            }
            Expr::Test(found) => {
                self.called(CalleeKind::Test, found.name, found.span());
                self.expression(&found.expr);
                self.arguments(&found.args);
            }
            Expr::GetAttr(found) => match dotted(expression) {
                Some(path) => self.variable(path, start(expression)),
                None => self.expression(&found.expr),
            },
            Expr::GetItem(found) => {
                self.expression(&found.expr);
                self.expression(&found.subscript_expr);
            }
            Expr::Call(found) => self.call(found),
            Expr::List(found) => {
                self.wrap_in_call(found.span(), WEIGHED, ")");
                found.items.iter().for_each(|item| self.expression(item));
            }
            Expr::Tuple(found) => {
                if !found.items.iter().all(|item| item.as_const().is_some()) {
                    self.object("a tuple can only hold constants", "write a list: `[a, b]`", found.span());
                }
            }
            Expr::Map(found) => {
                self.wrap_in_call(found.span(), WEIGHED, ")");
                found.keys.iter().chain(&found.values).for_each(|item| self.expression(item));
            }
        }
    }

    fn call(&mut self, found: &Spanned<Call<'_>>) {
        let named = matches!(&found.expr, Expr::Var(_))
            || matches!(&found.expr, Expr::GetAttr(attribute) if matches!(attribute.expr, Expr::Var(_)));
        if named {
            let mut span = found.span();
            span.start_offset = start(&found.expr).start_offset;
            self.wrap_in_call(span, WEIGHED, ")");
        } else {
            self.object("only functions and macros can be called", "give the value a name first", found.span());
        }
        self.expression(&found.expr);
        self.arguments(&found.args);
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.expression(value),
                CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
                    self.object("arguments cannot be spread", "write them one by one", value.span());
                }
            }
        }
    }

    /// Records a reference to a partial.
    fn reference(&mut self, name: &Expr<'_>, tag: &'static str) {
        let at = name.span();
        let known = name.as_const();
        match known.as_ref().and_then(|name| name.as_str()) {
            Some(name) => self.prepared.references.push(Reference {
                name: name.to_owned(),
                tag,
                line: u32::from(at.start_line),
                column: u32::from(at.start_col) + 1,
            }),
            None => self.object("names a partial by an expression", "write its name in quotes", at),
        }
    }

    /// The amount of text in a body that each iteration writes.
    fn text_bytes(&self, body: &[Stmt<'_>]) -> usize {
        body.iter()
            .map(|statement| match statement {
                Stmt::EmitRaw(raw) => raw.raw.len(),
                // An inner loop is weighed separately.
                Stmt::ForLoop(found) => self.text_bytes(&found.else_body),
                Stmt::IfCond(found) => self.text_bytes(&found.true_body).max(self.text_bytes(&found.false_body)),
                Stmt::WithBlock(found) => self.text_bytes(&found.body),
                Stmt::SetBlock(found) => self.text_bytes(&found.body),
                Stmt::FilterBlock(found) => self.text_bytes(&found.body),
                Stmt::Block(found) => self.text_bytes(&found.body),
                Stmt::CallBlock(found) => self.text_bytes(&found.macro_decl.body),
                Stmt::Include(found) => {
                    let name = found.name.as_const();
                    let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
                    self.partial_bytes.get(name).copied().unwrap_or_default()
                }
                _ => 0,
            })
            .fold(0, usize::saturating_add)
    }

    fn assigned(&mut self, target: &Expr<'_>) {
        match target {
            Expr::Var(found) => self.prepared.assigned.push(found.id.to_owned()),
            Expr::Tuple(found) => found.items.iter().for_each(|item| self.assigned(item)),
            Expr::List(found) => found.items.iter().for_each(|item| self.assigned(item)),
            _ => {}
        }
    }

    fn variable(&mut self, path: String, at: Span) {
        self.prepared.variables.push((path, u32::from(at.start_line), u32::from(at.start_col) + 1));
    }

    fn called(&mut self, kind: CalleeKind, name: &str, at: Span) {
        self.prepared.called.push((kind, name.to_owned(), u32::from(at.start_line), u32::from(at.start_col) + 1));
    }

    /// Wraps a search target in a charge. The length of constants is bounded by the template's.
    fn searched(&mut self, place: &Expr<'_>) {
        if place.as_const().is_none() {
            let span = Span { start_offset: start(place).start_offset, ..place.span() };
            self.wrap_in_call(span, SEARCHED, ")");
        }
    }

    fn object(&mut self, message: &str, hint: &'static str, at: Span) {
        let place = (u32::from(at.start_line), u32::from(at.start_col) + 1);
        self.prepared.objections.push((message.to_owned(), hint, place.0, place.1));
    }

    /// Wraps a piece of the source in a call of one of our functions.
    fn wrap_in_call(&mut self, span: Span, function: &str, end: &str) {
        let (from, to) = (span.start_offset as usize, span.end_offset as usize);
        let from = opened_before(self.source, from, to);
        let order = self.inserts.len() as i64 + 1;
        let open = Insertion { at: from, order, text: Rc::from(format!("{function}(")), replaces: 0 };
        let close = Insertion { at: to, order: -order, text: Rc::from(end), replaces: 0 };
        self.inserts.extend([open, close]);
    }

    /// Replaces an operator by a comma between two arguments.
    fn comma(&mut self, left: &Expr<'_>, operator: &str) {
        let end = left.span().end_offset as usize;
        let gap = self.source[end..].find(|c: char| !c.is_whitespace() && c != ')').unwrap_or_default();
        debug_assert!(self.source[end + gap..].starts_with(operator), "`{operator}` follows its operand");
        self.inserts.push(Insertion { at: end + gap, order: 0, text: Rc::from(","), replaces: 1 });
    }
}

/// The start of a piece including opening parentheses, which the engine's spans leave out.
fn opened_before(source: &str, from: usize, to: usize) -> usize {
    let (mut depth, mut missing, mut quote) = (0usize, 0usize, None);
    let mut bytes = source.as_bytes()[from..to].iter();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(_), b'\\') => drop(bytes.next()),
            (Some(open), byte) => quote = (open != *byte).then_some(open),
            (None, b'"' | b'\'') => quote = Some(*byte),
            (None, b'(') => depth += 1,
            (None, b')') if depth == 0 => missing += 1,
            (None, b')') => depth -= 1,
            _ => {}
        }
    }
    (0..missing).fold(from, |from, _| source[..from].rfind('(').unwrap_or(from))
}

/// The start of an expression. The engine's spans of attributes and calls start at their last step.
fn start(expression: &Expr<'_>) -> Span {
    match expression {
        Expr::GetAttr(found) => start(&found.expr),
        Expr::GetItem(found) => start(&found.expr),
        Expr::Call(found) => start(&found.expr),
        Expr::Slice(found) => start(&found.expr),
        Expr::Filter(found) => found.expr.as_ref().map_or(found.span(), start),
        Expr::Test(found) => start(&found.expr),
        other => other.span(),
    }
}

/// The spelling of `a.b.c`.
fn dotted(expression: &Expr<'_>) -> Option<String> {
    match expression {
        Expr::Var(found) => Some(found.id.to_owned()),
        Expr::GetAttr(found) => Some(format!("{}.{}", dotted(&found.expr)?, found.name)),
        _ => None,
    }
}
