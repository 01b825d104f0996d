//! Entry points for fuzz targets: parsers of XML and of templates.

use std::collections::BTreeMap;

use tocsin_model::application::{ContentTemplates, TemplateEngine, TemplateParts};

use crate::{Formatter, KnownVariables, xml};

/// Parses a document as in exchanges, and as for validation.
pub fn read_xml(text: &str) {
    for is_for_schema in [false, true] {
        let options = xml::Options { nodes_max: 1_000, depth_max: 50, is_for_schema, refuse: |_, _| None };
        if let Ok(document) = xml::read(text, &options) {
            assert!(!document.places.is_empty(), "a document has a position");
        }
    }
}

/// Compiles a Jinja template and an MJML template.
pub fn read_template(text: &str) {
    for engine in [TemplateEngine::Jinja, TemplateEngine::Mjml] {
        let parts = TemplateParts { html: Some(text.into()), ..TemplateParts::default() };
        let templates = ContentTemplates { engine, templates: BTreeMap::from([(String::new(), parts)]) };
        let _ = Formatter::compile("notifications.n", &templates, &KnownVariables::default());
    }
}
