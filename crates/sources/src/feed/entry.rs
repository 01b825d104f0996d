//! The items of RSS 2.0, RSS 1.0 and Atom, as one.

use std::io::Cursor;

use jiff::{Timestamp, fmt::rfc2822};
use serde_json::{Map, Value, json};
use tocsin_model::problem::Problem;

use crate::items::{Element, Format, Item, Layout, Placed};

/// What an item may have, beside how it changed.
pub(super) const MEMBERS: [&str; 9] =
    ["id", "title", "link", "summary", "content", "author", "published", "updated", "categories"];

/// Where each sort of feed has its items.
const PLACES: [&str; 3] = ["/rss/channel/item", "/feed/entry", "/RDF/item"];

/// Reads the items of a feed, in its order.
///
/// # Errors
/// It is not XML, or none of the sorts of feeds.
pub(super) fn entries(body: &[u8]) -> Result<Vec<Map<String, Value>>, Problem> {
    for place in PLACES {
        let found = elements(body, place)?;
        if !found.is_empty() {
            return Ok(found.iter().map(entry).collect());
        }
    }
    // One without items is a feed all the same.
    let roots = [elements(body, "/rss")?, elements(body, "/feed")?, elements(body, "/RDF")?];
    match roots.iter().any(|found| !found.is_empty()) {
        true => Ok(Vec::new()),
        false => Err(Problem::at("", "is neither RSS nor Atom")),
    }
}

fn elements(body: &[u8], path: &str) -> Result<Vec<Element>, Problem> {
    let layout = Layout {
        format: Format::Xml,
        items: path.to_owned(),
        delimiter: b',',
        columns: Vec::new(),
        item_bytes_max: body.len(),
    };
    let items = layout.items(Box::new(Cursor::new(body.to_vec())));
    let element = |placed: Result<Placed, Problem>| match placed? {
        Placed { item: Item::Xml(element), .. } => Ok(element),
        _ => Err(Problem::at("", "is not XML")),
    };
    items.map(element).collect()
}

fn entry(element: &Element) -> Map<String, Value> {
    let text = |names: &[&str]| {
        let found = names.iter().find_map(|name| element.children.iter().find(|child| child.name == *name))?;
        let text = found.whole_text().trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let time = |names: &[&str]| text(names).map(|text| instant(&text));
    let link = link(element);
    let title = text(&["title"]);
    // What has no identity is known by where it leads, or what it is called.
    let id = text(&["guid", "id"])
        .or_else(|| element.attribute("about").map(str::to_owned))
        .or_else(|| link.clone())
        .or_else(|| title.clone());
    let categories = element.children.iter().filter(|child| matches!(child.name.as_str(), "category" | "subject"));
    let category =
        |child: &Element| child.attribute("term").map_or_else(|| child.whole_text().trim().to_owned(), str::to_owned);
    let categories: Vec<String> = categories.map(category).collect();
    let author = element.children.iter().find(|child| child.name == "author" && !child.children.is_empty());
    let author = match author.and_then(|author| author.children.iter().find(|child| child.name == "name")) {
        Some(name) => Some(name.whole_text().trim().to_owned()),
        None => text(&["creator", "author"]),
    };
    let members = [
        ("id", id),
        ("title", title),
        ("link", link),
        ("summary", text(&["description", "summary"])),
        ("content", text(&["encoded", "content"])),
        ("author", author),
        ("published", time(&["pubDate", "published", "date"])),
        ("updated", time(&["updated", "modified"])),
    ];
    let mut entry: Map<String, Value> =
        members.into_iter().filter_map(|(name, text)| Some((name.to_owned(), Value::String(text?)))).collect();
    if !categories.is_empty() {
        entry.insert("categories".to_owned(), json!(categories));
    }
    entry
}

/// The text of RSS, or the address of Atom's link to the item itself.
fn link(element: &Element) -> Option<String> {
    let links = || element.children.iter().filter(|child| child.name == "link");
    let alternate = links().find(|link| link.attribute("rel").is_none_or(|rel| rel == "alternate"))?;
    match alternate.attribute("href") {
        Some(href) => Some(href.to_owned()),
        None => Some(alternate.text.trim().to_owned()).filter(|text| !text.is_empty()),
    }
}

/// A time of RFC 2822, as RSS has it, in the form of RFC 3339; what is no time stays as it is.
fn instant(text: &str) -> String {
    if let Ok(time) = text.parse::<Timestamp>() {
        return time.to_string();
    }
    rfc2822::parse(text).map_or_else(|_| text.to_owned(), |time| time.timestamp().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(feed: &str, expected: Value) {
        let found = entries(feed.as_bytes()).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(json!(found), expected);
    }

    #[test]
    fn rss_and_atom_are_read_as_one() {
        check(
            "<rss version='2.0' xmlns:dc='d' xmlns:content='c'><channel><title>T</title><item><title>A &amp; B</title>\
             <link>https://a.example/1</link><guid isPermaLink='false'>g1</guid><description><![CDATA[<p>x</p>]]></description>\
             <pubDate>Sun, 22 Nov 2026 10:00:00 +0100</pubDate><category>x</category><category>y</category>\
             <dc:creator>Eve</dc:creator><content:encoded>long</content:encoded></item></channel></rss>",
            json!([{"id": "g1", "title": "A & B", "link": "https://a.example/1", "summary": "<p>x</p>", "content": "long",
                "author": "Eve", "published": "2026-11-22T09:00:00Z", "categories": ["x", "y"]}]),
        );
        check(
            "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>urn:1</id><title>T</title><link rel='self' href='s'/>\
             <link href='https://a.example/2'/><updated>2026-11-22T10:00:00+01:00</updated><author><name>Bob</name></author>\
             <summary>s</summary><category term='z'/></entry></feed>",
            json!([{"id": "urn:1", "title": "T", "link": "https://a.example/2", "summary": "s", "author": "Bob",
                "updated": "2026-11-22T09:00:00Z", "categories": ["z"]}]),
        );
        check(
            "<r:RDF xmlns:r='r'><item r:about='u'><title>T</title></item></r:RDF>",
            json!([{"id": "u", "title": "T"}]),
        );
        check("<rss><channel/></rss>", json!([]));
    }

    #[test]
    fn what_is_no_feed_is_told() {
        for wrong in ["<html/>", "", "{}", "<!DOCTYPE rss><rss/>"] {
            assert!(entries(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
