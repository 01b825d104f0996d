//! Safe bindings of libxslt and libxml2.
//!
//! Used in worker processes (`worker`) and by tests of this module only: the libraries have no time and memory limits
//! of their own and cannot be interrupted.
//!
//! Assumptions: applying a compiled stylesheet does not change it, so any number of threads may apply it at the same
//! time, each to its own tree (libxslt documents this, and a test checks it). A tree belongs to one thread. Texts
//! passed to the library are not kept beyond the call.
#![allow(unsafe_code)]

use std::{
    borrow::Cow,
    ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void},
    ptr::{self, NonNull},
    sync::Once,
    time::Duration,
};

use crate::tree::{Fields, operation};

#[repr(C)]
struct Source {
    name: *const c_char,
    text: *const c_char,
    length: c_int,
}

/// The limits of a transformation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// XSLT instructions.
    pub steps: c_ulong,
    /// XPath operations.
    pub xpath_steps: c_ulong,
    /// Bytes of memory.
    pub bytes: c_long,
    /// Processor time.
    pub milliseconds: c_long,
    /// Nested templates.
    pub depth: c_int,
}

// `tocsin_*` are in bindings.c, the others in libxml2. A pointer to a document, a node or a stylesheet is opaque here.
unsafe extern "C" {
    fn tocsin_xslt_init();
    fn tocsin_xslt_said() -> *const c_char;
    fn tocsin_xslt_compile(
        text: *const c_char,
        length: c_int,
        name: *const c_char,
        sources: *const Source,
        count: c_int,
        method: *const c_char,
    ) -> *mut c_void;
    fn tocsin_xslt_free(stylesheet: *mut c_void);
    fn tocsin_xslt_output(stylesheet: *mut c_void, which: c_int) -> *const c_char;
    fn tocsin_xslt_context() -> *mut c_void;
    fn tocsin_xslt_free_context(context: *mut c_void);
    fn tocsin_xslt_apply(
        stylesheet: *mut c_void,
        context: *mut c_void,
        document: *mut c_void,
        limits: *const Limits,
        out: *mut *mut c_char,
        length: *mut c_int,
    ) -> c_int;
    fn tocsin_xslt_free_text(text: *mut c_char);
    fn xmlNewDoc(version: *const c_char) -> *mut c_void;
    fn xmlFreeDoc(document: *mut c_void);
    fn xmlNewDocNode(
        document: *mut c_void,
        namespace: *mut c_void,
        name: *const c_char,
        content: *const c_char,
    ) -> *mut c_void;
    fn xmlAddChild(parent: *mut c_void, child: *mut c_void) -> *mut c_void;
    fn xmlNewDocTextLen(document: *mut c_void, content: *const c_char, length: c_int) -> *mut c_void;
    fn xmlNewDocComment(document: *mut c_void, content: *const c_char) -> *mut c_void;
    fn xmlNewDocPI(document: *mut c_void, name: *const c_char, content: *const c_char) -> *mut c_void;
    fn xmlNewProp(node: *mut c_void, name: *const c_char, value: *const c_char) -> *mut c_void;
    fn xmlNewNs(node: *mut c_void, href: *const c_char, prefix: *const c_char) -> *mut c_void;
    fn xmlSearchNs(document: *mut c_void, node: *mut c_void, prefix: *const c_char) -> *mut c_void;
    fn xmlSetNs(node: *mut c_void, namespace: *mut c_void);
    fn xmlNewNsProp(
        node: *mut c_void,
        namespace: *mut c_void,
        name: *const c_char,
        value: *const c_char,
    ) -> *mut c_void;
    fn tocsin_worker_begin(parent: c_long) -> c_int;
    fn tocsin_worker_milliseconds() -> c_ulong;
    fn tocsin_worker_seconds(seconds: c_ulong);
    fn tocsin_worker_confine(address_bytes: c_ulong) -> c_int;
    fn tocsin_worker_bound(bytes: c_long) -> c_long;
    fn tocsin_worker_pool() -> c_long;
    fn tocsin_tree_mark(node: *mut c_void, mark: usize);
    fn tocsin_schema_compile(document: *mut c_void, objections: *mut ValidationErrors) -> *mut c_void;
    fn tocsin_schema_check(schema: *mut c_void, document: *mut c_void, objections: *mut ValidationErrors) -> c_int;
    fn tocsin_schema_free(schema: *mut c_void);
}

/// Most errors kept for one document.
pub const OBJECTIONS_MAX: usize = 4;
const OBJECTION_BYTES: usize = 400;

/// The errors of a document; mirrors the struct in schema.c.
#[repr(C)]
struct ValidationErrors {
    count: usize,
    marks: [usize; OBJECTIONS_MAX],
    texts: [[c_char; OBJECTION_BYTES]; OBJECTIONS_MAX],
}

impl ValidationErrors {
    fn none() -> ValidationErrors {
        ValidationErrors { count: 0, marks: [0; OBJECTIONS_MAX], texts: [[0; OBJECTION_BYTES]; OBJECTIONS_MAX] }
    }

    /// The mark of the element and the message, for each.
    fn errors(&self) -> Vec<(usize, String)> {
        let text = |text: &[c_char; OBJECTION_BYTES]| {
            // SAFETY: the C code ends each text with a NUL within its array, and unused entries are zeroed.
            unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().trim().to_owned()
        };
        self.marks
            .iter()
            .zip(&self.texts)
            .take(self.count)
            .map(|(mark, last_message)| (*mark, text(last_message)))
            .collect()
    }
}

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    schema: NonNull<c_void>,
    /// The schema refers to it.
    #[expect(dead_code, reason = "kept for the library")]
    document: Tree,
}

// SAFETY: a validation does not change the schema: nothing that the document names is looked up.
unsafe impl Send for Schema {}
// SAFETY: as above.
unsafe impl Sync for Schema {}

impl Schema {
    /// Compiles it.
    ///
    /// # Errors
    /// The errors, each with the mark of its element.
    pub fn compile(document: Tree) -> Result<Schema, Vec<(usize, String)>> {
        let mut objections = ValidationErrors::none();
        // SAFETY: the document is ours and lives as long as the schema; the error struct is valid for the call.
        let made = unsafe { tocsin_schema_compile(document.document.as_ptr(), &mut objections) };
        match NonNull::new(made) {
            Some(schema) => Ok(Schema { schema, document }),
            None => Err(objections.errors()),
        }
    }

    /// Validates a document. Returns the number of errors, and the first ones.
    pub fn check(&self, document: &Tree) -> Result<(), (usize, Vec<(usize, String)>)> {
        let mut objections = ValidationErrors::none();
        // SAFETY: schema and document live through the call; the document is not shared, since no `Tree` is `Sync`.
        let outcome = unsafe { tocsin_schema_check(self.schema.as_ptr(), document.document.as_ptr(), &mut objections) };
        if outcome == 0 { Ok(()) } else { Err((objections.count, objections.errors())) }
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        // SAFETY: it came from the compiler, and has no other owner; its document is freed after it.
        unsafe { tocsin_schema_free(self.schema.as_ptr()) }
    }
}

/// Makes a new process a worker of `parent`: closes all but its first three descriptors, and ends it with that process.
///
/// # Errors
/// The parent has ended, or the system call fails.
pub fn begin(parent: u32) -> Result<(), &'static str> {
    // SAFETY: takes a number. The first call in a process that has no other thread and uses no other descriptor.
    match unsafe { tocsin_worker_begin(c_long::from(parent)) } {
        0 => Ok(()),
        _ => Err("the parent has ended"),
    }
}

/// The processor time of this process.
pub fn processor_time() -> Duration {
    // SAFETY: takes no arguments, and reads a clock.
    Duration::from_millis(unsafe { tocsin_worker_milliseconds() })
}

/// Limits the further processor time of this process; the kernel ends it after that.
pub fn bound_seconds(seconds: u32) {
    // SAFETY: takes a number, and changes a limit of this process only.
    unsafe { tocsin_worker_seconds(c_ulong::from(seconds)) }
}

/// Confines this process permanently; confine.c lists the restrictions.
///
/// # Errors
/// A system call fails.
pub fn confine(address_bytes: u64) -> Result<(), &'static str> {
    initialize();
    // SAFETY: takes a number, and changes limits of this process only.
    match unsafe { tocsin_worker_confine(address_bytes) } {
        0 => Ok(()),
        _ => Err("the limits of the process cannot be set"),
    }
}

/// Limits the memory that the library allocates from now on; at the limit the process ends with [`EXIT_MEMORY`]. 0
/// means no limit. Returns the bytes allocated since the last call.
pub fn bound_memory(bytes: usize) -> i64 {
    // SAFETY: takes a number, and sets a variable of this thread.
    unsafe { tocsin_worker_bound(c_long::try_from(bytes).unwrap_or(c_long::MAX)) }
}

/// The bytes that this thread's pool of small blocks has taken from the system; it returns none.
pub fn pool_bytes() -> i64 {
    // SAFETY: takes no arguments, and reads a variable of this thread.
    unsafe { tocsin_worker_pool() }
}

/// The exit status of a worker that exceeds its memory limit; the same in bindings.c.
pub const EXIT_MEMORY: i32 = 77;

static READY: Once = Once::new();

fn initialize() {
    // SAFETY: takes no arguments; `Once` calls it once, before any other call of the library in this process.
    READY.call_once(|| unsafe { tocsin_xslt_init() });
}

/// The error message of the last call on this thread.
fn last_message() -> String {
    // SAFETY: the pointer is to an array of this thread that ends with a NUL and lives as long as the thread.
    unsafe { CStr::from_ptr(tocsin_xslt_said()) }.to_string_lossy().into_owned()
}

/// A compiled stylesheet.
#[derive(Debug)]
pub struct Sheet(NonNull<c_void>);

// SAFETY: see the module documentation: applying does not change it. It is freed once, by the last owner.
unsafe impl Send for Sheet {}
// SAFETY: as above.
unsafe impl Sync for Sheet {}

/// Declarations of `xsl:output` (XSLT 1.0, section 16).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    pub method: String,
    pub encoding: String,
    pub media_type: String,
}

/// The failure of a transformation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransformFailure {
    /// The library's message.
    Said(String),
    /// The memory limit was exceeded.
    Memory,
    /// The time limit was exceeded.
    Time,
}

impl Sheet {
    /// Compiles a stylesheet source. `sources` are its possible imports, by name; `method` is its output method if it
    /// declares none. An empty `method` is for a whole document: the stylesheet's declarations apply, and its result is
    /// encoded in UTF-8.
    pub fn compile(text: &str, name: &str, sources: &[(&str, &str)], method: Option<&str>) -> Result<Sheet, String> {
        initialize();
        let length = |text: &str| c_int::try_from(text.len()).map_err(|_| "the stylesheet is too long".to_owned());
        let terminated = |text: &str| CString::new(text).map_err(|_| "a name has a NUL".to_owned());
        let names: Vec<CString> = sources.iter().map(|(name, _)| terminated(name)).collect::<Result<_, _>>()?;
        let sources: Vec<Source> = names
            .iter()
            .zip(sources)
            .map(|(name, (_, text))| {
                Ok(Source { name: name.as_ptr(), text: text.as_ptr().cast(), length: length(text)? })
            })
            .collect::<Result<_, String>>()?;
        let (name, method) = (terminated(name)?, method.map(terminated).transpose()?);
        let method = method.as_ref().map_or(ptr::null(), |method| method.as_ptr());
        // SAFETY: all pointers are valid for the call, with the given lengths; the C code keeps none of them.
        let made = unsafe {
            let count = sources.len() as c_int;
            let (text, length) = (text.as_ptr().cast(), length(text)?);
            tocsin_xslt_compile(text, length, name.as_ptr(), sources.as_ptr(), count, method)
        };
        NonNull::new(made).map(Sheet).ok_or_else(last_message)
    }

    /// The declarations of `xsl:output`, including imported stylesheets. Empty if there are none.
    pub fn output(&self) -> Output {
        let text = |which| {
            // SAFETY: the stylesheet lives as long as `self`; the C code returns a text of it that ends with a NUL, or
            // null.
            let text = unsafe { tocsin_xslt_output(self.0.as_ptr(), which) };
            if text.is_null() {
                return String::new();
            }
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Output { method: text(0), encoding: text(1), media_type: text(2) }
    }

    /// Applies it. The result is UTF-8.
    #[cfg(test)]
    pub fn apply(&self, tree: Tree, limits: &Limits) -> Result<String, TransformFailure> {
        let result = self.apply_in(ptr::null_mut(), tree, limits)?;
        Ok(String::from_utf8_lossy(result.bytes()).into_owned())
    }

    /// Applies it in a context of the C code, or in a new one if it is null.
    fn apply_in(&self, context: *mut c_void, tree: Tree, limits: &Limits) -> Result<Transformed, TransformFailure> {
        let (mut text, mut length) = (ptr::null_mut(), 0);
        let (sheet, document) = (self.0.as_ptr(), tree.document.as_ptr());
        // SAFETY: the stylesheet lives as long as `self`, the tree has no other owner, the result pointers are valid.
        // The context is null or this stylesheet's, and no other thread uses it.
        let outcome = unsafe { tocsin_xslt_apply(sheet, context, document, limits, &mut text, &mut length) };
        match outcome {
            0 => Ok(Transformed { text, length: usize::try_from(length).unwrap_or(0) }),
            2 => Err(TransformFailure::Memory),
            3 => Err(TransformFailure::Time),
            _ => Err(TransformFailure::Said(last_message())),
        }
    }
}

/// The result of a transformation, in memory of the library.
#[derive(Debug)]
pub struct Transformed {
    /// Null if it is empty.
    text: *mut c_char,
    length: usize,
}

impl Transformed {
    pub fn bytes(&self) -> &[u8] {
        if self.text.is_null() {
            return &[];
        }
        // SAFETY: the C code returned a text of this length, which is ours until it is freed by `drop`.
        unsafe { std::slice::from_raw_parts(self.text.cast::<u8>(), self.length) }
    }
}

impl Drop for Transformed {
    fn drop(&mut self) {
        if !self.text.is_null() {
            // SAFETY: it is ours; no reference to it outlives `self`.
            unsafe { tocsin_xslt_free_text(self.text) }
        }
    }
}

/// A stylesheet for one thread, which reuses the library's transformation context: making one takes half of the time of
/// a small transformation. The results are those of [`Sheet::apply`].
#[derive(Debug)]
pub struct Transformer {
    sheet: Sheet,
    /// Null if the library's version is not known to allow it.
    context: *mut c_void,
}

impl Transformer {
    pub fn new(sheet: Sheet) -> Transformer {
        // SAFETY: takes no arguments; returns memory that `drop` frees, or null.
        let context = unsafe { tocsin_xslt_context() };
        Transformer { sheet, context }
    }

    /// Applies the stylesheet. The result is UTF-8.
    pub fn apply(&mut self, tree: Tree, limits: &Limits) -> Result<Transformed, TransformFailure> {
        self.sheet.apply_in(self.context, tree, limits)
    }
}

impl Drop for Transformer {
    fn drop(&mut self) {
        // SAFETY: the context is ours or null. It refers to the stylesheet, which is freed after it.
        unsafe { tocsin_xslt_free_context(self.context) }
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        // SAFETY: it came from the compiler, and has no other owner.
        unsafe { tocsin_xslt_free(self.0.as_ptr()) }
    }
}

/// A document of the library.
#[derive(Debug)]
pub struct Tree {
    document: NonNull<c_void>,
    open: Vec<*mut c_void>,
    /// The declared namespaces; they live as long as the document.
    namespaces: Vec<*mut c_void>,
}

// SAFETY: a document is not tied to a thread; it is moved as a whole.
unsafe impl Send for Tree {}

impl Tree {
    /// Applies the operations of a document. `None` if they are incomplete.
    pub fn build(operations: &[u8]) -> Option<Tree> {
        initialize();
        // SAFETY: the text is a constant. Out of memory is fatal, as elsewhere.
        let document = NonNull::new(unsafe { xmlNewDoc(c"1.0".as_ptr()) }).expect("memory for a document");
        let mut tree = Tree { document, open: Vec::with_capacity(8), namespaces: Vec::new() };
        let mut fields = Fields(operations);
        while let Some(code) = fields.byte() {
            match code {
                operation::OPEN => tree.open(&text(&mut fields)?),
                operation::CLOSE => drop(tree.open.pop()),
                operation::TEXT => tree.text(&text(&mut fields)?),
                operation::ATTRIBUTE => {
                    tree.attribute(&text(&mut fields)?, &text(&mut fields)?);
                }
                operation::DECLARE => tree.declare(&text(&mut fields)?, &text(&mut fields)?),
                operation::XML_NAMESPACE => tree.namespace_of_xml(),
                operation::NAMESPACE => tree.put_into(fields.number()?),
                operation::ATTRIBUTE_IN => {
                    let (name, value) = (text(&mut fields)?, text(&mut fields)?);
                    tree.attribute_in(fields.number()?, &name, &value);
                }
                operation::MARK => tree.mark(fields.number()?),
                operation::COMMENT => tree.comment(&text(&mut fields)?),
                operation::INSTRUCTION => {
                    tree.instruction(&text(&mut fields)?, &text(&mut fields)?);
                }
                _ => return None,
            }
        }
        Some(tree)
    }

    /// Adds a node to the open element, or to the document beside its root element.
    fn add(&mut self, node: *mut c_void) {
        assert!(!node.is_null(), "memory for a node");
        let parent = self.open.last().copied().unwrap_or(self.document.as_ptr());
        // SAFETY: the parent is our document or a node in it; the node has no other parent.
        unsafe { xmlAddChild(parent, node) };
    }

    fn open(&mut self, name: &CStr) {
        let document = self.document.as_ptr();
        // SAFETY: the document is ours; the name is copied.
        let node = unsafe { xmlNewDocNode(document, ptr::null_mut(), name.as_ptr(), ptr::null()) };
        self.add(node);
        self.open.push(node);
    }

    fn comment(&mut self, text: &CStr) {
        // SAFETY: the document is ours; the text is copied.
        let node = unsafe { xmlNewDocComment(self.document.as_ptr(), text.as_ptr()) };
        self.add(node);
    }

    fn instruction(&mut self, target: &CStr, content: &CStr) {
        // SAFETY: the document is ours; both texts are copied.
        let node = unsafe { xmlNewDocPI(self.document.as_ptr(), target.as_ptr(), content.as_ptr()) };
        self.add(node);
    }

    fn attribute(&mut self, name: &CStr, value: &CStr) {
        if let Some(node) = self.open.last() {
            // SAFETY: the node is in our document; both texts are copied.
            unsafe { xmlNewProp(*node, name.as_ptr(), value.as_ptr()) };
        }
    }

    /// The library rejects a few; those are ignored.
    fn declare(&mut self, prefix: &CStr, href: &CStr) {
        let prefix = if prefix.is_empty() { ptr::null() } else { prefix.as_ptr() };
        let made = match self.open.last() {
            // SAFETY: the node is in our document; both texts are copied.
            Some(node) => unsafe { xmlNewNs(*node, href.as_ptr(), prefix) },
            None => ptr::null_mut(),
        };
        self.namespaces.push(made);
    }

    fn namespace_of_xml(&mut self) {
        let found = match self.open.last() {
            // SAFETY: the node is in our document; the text is a constant.
            Some(node) => unsafe { xmlSearchNs(self.document.as_ptr(), *node, c"xml".as_ptr()) },
            None => ptr::null_mut(),
        };
        self.namespaces.push(found);
    }

    fn namespace(&self, number: usize) -> Option<*mut c_void> {
        self.namespaces.get(number).copied().filter(|namespace| !namespace.is_null())
    }

    fn put_into(&mut self, namespace: usize) {
        if let (Some(node), Some(namespace)) = (self.open.last(), self.namespace(namespace)) {
            // SAFETY: both are in our document.
            unsafe { xmlSetNs(*node, namespace) };
        }
    }

    fn attribute_in(&mut self, namespace: usize, name: &CStr, value: &CStr) {
        if let (Some(node), Some(namespace)) = (self.open.last(), self.namespace(namespace)) {
            // SAFETY: node and namespace are in our document; both texts are copied.
            unsafe { xmlNewNsProp(*node, namespace, name.as_ptr(), value.as_ptr()) };
        }
    }

    fn mark(&mut self, mark: usize) {
        if let Some(node) = self.open.last() {
            // SAFETY: the node is an element of our document.
            unsafe { tocsin_tree_mark(*node, mark) };
        }
    }

    fn text(&mut self, text: &CStr) {
        if let Some(node) = self.open.last()
            && !text.is_empty()
        {
            let length = c_int::try_from(text.count_bytes()).unwrap_or(c_int::MAX);
            // SAFETY: the node is in our document; the text has this length and is copied.
            unsafe {
                let text = xmlNewDocTextLen(self.document.as_ptr(), text.as_ptr(), length);
                xmlAddChild(*node, text);
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // SAFETY: it is ours, and all its nodes are freed with it.
        unsafe { xmlFreeDoc(self.document.as_ptr()) }
    }
}

/// Reads a text that ends with a NUL. Characters that XML cannot contain (XML 1.0, section 2.2) are replaced in a copy.
fn text<'t>(fields: &mut Fields<'t>) -> Option<Cow<'t, CStr>> {
    let bytes = fields.bytes()?;
    let (end, text) = bytes.split_last()?;
    if *end != 0 {
        return None;
    }
    // All bytes are visited, so that the compiler can compare many at once.
    let is_suspect = |byte: u8| (byte < 0x20) & (byte != b'\t') & (byte != b'\n') & (byte != b'\r') | (byte == 0xef);
    if !text.iter().fold(false, |found, byte| found | is_suspect(*byte)) {
        return CStr::from_bytes_with_nul(bytes).ok().map(Cow::Borrowed);
    }
    let holds = |c| !matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}');
    let text = std::str::from_utf8(text).ok()?.chars();
    let changed: String = text.map(|c| if holds(c) { c } else { char::REPLACEMENT_CHARACTER }).collect();
    CString::new(changed).ok().map(Cow::Owned)
}

/// Test cases are XML files. Only tests parse XML with the library.
#[cfg(test)]
impl Tree {
    pub fn parse(text: &[u8]) -> Option<Tree> {
        unsafe extern "C" {
            fn xmlReadMemory(
                text: *const c_char,
                length: c_int,
                url: *const c_char,
                encoding: *const c_char,
                options: c_int,
            ) -> *mut c_void;
        }
        /// Entities and default attributes of a DTD within the text; nothing external.
        const OPTIONS: c_int = 1 << 1 | 1 << 3 | 1 << 11 | 1 << 14;
        initialize();
        let length = c_int::try_from(text.len()).ok()?;
        // SAFETY: the text is valid for the call and has this length.
        let document = unsafe { xmlReadMemory(text.as_ptr().cast(), length, c"input".as_ptr(), ptr::null(), OPTIONS) };
        let document = NonNull::new(document)?;
        Some(Tree { document, open: Vec::new(), namespaces: Vec::new() })
    }
}

/// The library's name of the stylesheet itself.
pub(crate) const OWN_NAME: &str = "stylesheet";
