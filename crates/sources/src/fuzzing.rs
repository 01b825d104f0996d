//! Entry points for fuzz targets: parsers of files, feeds and mails.

use std::{
    io::{BufReader, Cursor},
    net::{Ipv4Addr, SocketAddr},
};

use tocsin_mail_in::Envelope;

use crate::{
    feed,
    items::{Format, Layout, Text, Xml},
    mail,
};

/// Formats of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// A JSON object in each line.
    Ndjson,
    /// A JSON document.
    Json,
    /// Comma-separated values.
    Csv,
    /// XML, whose items are the elements `i` below the root `r`.
    Xml,
}

/// The items of a file as debug texts, read in chunks of `piece` bytes.
///
/// # Errors
/// The file cannot be parsed.
pub fn read_file(format: FileFormat, text: &[u8], piece: usize) -> Result<Vec<String>, String> {
    let (format, items) = match format {
        FileFormat::Ndjson => (Format::Ndjson, ""),
        FileFormat::Json => (Format::Json, ""),
        FileFormat::Csv => (Format::Csv, ""),
        FileFormat::Xml => (Format::Xml, "/r/i"),
    };
    let layout = Layout {
        format,
        items: items.to_owned(),
        delimiter: None,
        encoding: None,
        columns: Vec::new(),
        item_bytes_max: 4_096,
        xml: Xml::default(),
        required: Vec::new(),
    };
    let open = || -> Text { Box::new(BufReader::with_capacity(piece, Cursor::new(text.to_vec()))) };
    layout.examine(open(), None).map_err(|problem| problem.to_string())?;
    Ok(layout.items(open(), None).map(|item| format!("{item:?}")).collect())
}

/// The entries of a feed as debug texts.
///
/// # Errors
/// The body is not a feed.
pub fn read_feed(body: &[u8]) -> Result<Vec<String>, String> {
    feed::debug_entries(body)
}

/// A mail as the item of an event, in JSON.
pub fn read_mail(bytes: &[u8]) -> String {
    let envelope = Envelope {
        from: "sender@test".to_owned(),
        to: vec!["recipient@test".to_owned()],
        peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 25)),
        host: "client.test".to_owned(),
        user: None,
        encrypted: false,
    };
    mail::item_json(&envelope, bytes)
}
