//! A document as a sequence of operations, which a worker process applies with libxml2.
//!
//! The server parses XML or JSON from outside and writes the operations; only the worker has a tree of the library.

/// Most attributes and declared namespaces of an element: the library's lookup is linear.
pub const ATTRIBUTES_MAX: usize = 1_000;

/// Room for the operations of a small document.
const OPERATIONS_BYTES: usize = 1_024;

/// A declared namespace of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace(pub usize);

/// The codes of operations.
pub mod operation {
    pub const OPEN: u8 = 1;
    pub const CLOSE: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const ATTRIBUTE: u8 = 4;
    pub const DECLARE: u8 = 5;
    pub const XML_NAMESPACE: u8 = 6;
    pub const NAMESPACE: u8 = 7;
    pub const ATTRIBUTE_IN: u8 = 8;
    pub const MARK: u8 = 9;
    pub const COMMENT: u8 = 10;
    pub const INSTRUCTION: u8 = 11;
}

/// An XML document, written from start to end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    operations: Vec<u8>,
    /// Pending text: adjacent texts are one node, as in XPath.
    text: String,
    nodes: usize,
    namespaces: usize,
}

impl Tree {
    /// Starts a document with its root element.
    pub fn new(root: &str) -> Tree {
        let mut tree = Tree { operations: Vec::with_capacity(OPERATIONS_BYTES), ..Tree::default() };
        tree.open(root);
        tree
    }

    /// The number of nodes so far.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The encoded operations.
    pub fn into_operations(mut self) -> Vec<u8> {
        self.end_text();
        self.operations
    }

    /// Opens an element. The name must be an XML name without a colon.
    pub fn open(&mut self, name: &str) {
        self.put(operation::OPEN, &[name]);
        self.nodes += 1;
    }

    /// Closes the current element.
    pub fn close(&mut self) {
        self.put(operation::CLOSE, &[]);
    }

    /// Adds an attribute to the current element.
    pub fn attribute(&mut self, name: &str, value: &str) {
        self.put(operation::ATTRIBUTE, &[name, value]);
        self.nodes += 1;
    }

    /// Declares a namespace at the current element; an empty prefix is the default namespace.
    pub fn declare(&mut self, prefix: &str, href: &str) -> Namespace {
        self.put(operation::DECLARE, &[prefix, href]);
        self.nodes += 1;
        self.next_namespace()
    }

    /// The namespace of the prefix `xml`, which is always declared.
    pub fn namespace_of_xml(&mut self) -> Namespace {
        self.put(operation::XML_NAMESPACE, &[]);
        self.next_namespace()
    }

    fn next_namespace(&mut self) -> Namespace {
        self.namespaces += 1;
        Namespace(self.namespaces - 1)
    }

    /// Puts the current element into a namespace of this tree.
    pub fn put_into(&mut self, namespace: Namespace) {
        self.put(operation::NAMESPACE, &[]);
        write_number(&mut self.operations, namespace.0);
    }

    /// Adds an attribute in a namespace of this tree to the current element.
    pub fn attribute_in(&mut self, namespace: Namespace, name: &str, value: &str) {
        self.put(operation::ATTRIBUTE_IN, &[name, value]);
        write_number(&mut self.operations, namespace.0);
        self.nodes += 1;
    }

    /// Sets the mark of the current element, a number that identifies it in errors.
    pub fn mark(&mut self, mark: usize) {
        self.put(operation::MARK, &[]);
        write_number(&mut self.operations, mark);
    }

    /// Adds text to the current element.
    pub fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.text.is_empty() {
            self.nodes += 1;
        }
        self.text.push_str(text);
    }

    /// Adds a comment, in the current element or beside the root element.
    pub fn comment(&mut self, text: &str) {
        self.put(operation::COMMENT, &[text]);
        self.nodes += 1;
    }

    /// Adds a processing instruction, in the current element or beside the root element.
    pub fn instruction(&mut self, target: &str, content: &str) {
        self.put(operation::INSTRUCTION, &[target, content]);
        self.nodes += 1;
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.operations.push(operation::TEXT);
            write_terminated(&mut self.operations, &self.text);
            self.text.clear();
        }
    }

    fn put(&mut self, operation: u8, texts: &[&str]) {
        self.end_text();
        self.operations.push(operation);
        texts.iter().for_each(|text| write_terminated(&mut self.operations, text));
    }
}

/// Appends a number in variable-length encoding.
pub fn write_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a text with its length.
pub fn write_text(out: &mut Vec<u8>, text: &str) {
    write_bytes(out, text.as_bytes());
}

/// Appends a text with its length, and a NUL: the worker passes it to the library without a copy.
fn write_terminated(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() + 1);
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// Appends bytes with their length.
pub fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_number(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Decodes the functions above. `None` if the input ends too early.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn number(&mut self) -> Option<usize> {
        let (mut number, mut shift) = (0_usize, 0);
        loop {
            let byte = self.byte()?;
            number |= usize::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
            shift += 7;
        }
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}
