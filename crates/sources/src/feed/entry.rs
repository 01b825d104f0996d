//! The items of RSS, Atom and JSON Feed in a common form.
//!
//! A format's own elements take precedence; those of other vocabularies (Dublin Core, iTunes, Media RSS, Atom in RSS)
//! are used where the format has none of its own.

use std::io::Cursor;

use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};
use tocsin_model::{
    charset::{self, Syntax},
    date_text,
    problem::{Code, Problem},
};
use url::Url;

use crate::items::{Element, Format, Item, Layout, PositionedItem, Xml};

/// The members of an item, except the kind of change.
pub(super) const MEMBERS: [&str; 9] =
    ["id", "title", "link", "summary", "content", "author", "published", "updated", "categories"];

const ATOM: &str = "http://www.w3.org/2005/Atom";
const CONTENT: &str = "http://purl.org/rss/1.0/modules/content/";
const DC: &str = "http://purl.org/dc/elements/1.1/";
const DC_TERMS: &str = "http://purl.org/dc/terms/";
const ITUNES: &str = "http://www.itunes.com/dtds/podcast-1.0.dtd";
const MEDIA: &str = "http://search.yahoo.com/mrss/";
const PRISM: &str = "http://prismstandard.org/namespaces/basic/2.0/";
/// Placeholder for the namespace of the item's own format.
const OWN: &str = "";

/// A parsed item.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// The members of the item.
    pub members: Map<String, Value>,
    /// Dates as written, to detect changes of uncertain dates.
    pub written: Map<String, Value>,
    /// Dates that cannot be converted to a time, and why.
    pub uncertain: Vec<String>,
}

/// The context of parsing a feed.
#[derive(Debug, Clone, Default)]
pub(super) struct FeedContext {
    /// The address of the feed, the base of relative links.
    pub url: Option<Url>,
    /// The time zone of dates without one.
    pub zone: Option<TimeZone>,
}

/// Parses the items of a feed, in its order.
///
/// # Errors
/// The body is not a supported feed.
pub(super) fn entries(
    body: &[u8],
    charset: Option<&str>,
    context: &FeedContext,
) -> Result<Vec<Result<Entry, Problem>>, Problem> {
    let start = charset::decode(&body[..body.len().min(4)], Syntax::Json, None).unwrap_or_default();
    if body.trim_ascii().is_empty() {
        return Err(Problem::new(Code::Empty, "", "is empty, and should be a feed"));
    }
    if start.trim_start().starts_with('{') || body.trim_ascii_start().starts_with(b"{") {
        return json_entries(body, charset, context);
    }
    let root = root(body, charset)?;
    let base = base_of(&root, context.url.as_ref());
    match root.name.as_str() {
        "rss" => {
            let Some(channel) = root.children_of("channel").next() else {
                return Err(Problem::syntax("feed", "", "is RSS without a channel"));
            };
            let base = base_of(channel, base.as_ref());
            Ok(items_of(channel, "item", base.as_ref(), None, context))
        }
        "RDF" => Ok(items_of(&root, "item", base.as_ref(), None, context)),
        "feed" => {
            let author = author_of(&root);
            Ok(items_of(&root, "entry", base.as_ref(), author.as_deref(), context))
        }
        "html" | "HTML" => {
            Err(Problem::syntax("feed", "", "is an HTML page and no feed").hint("give the address of the feed itself"))
        }
        other => Err(Problem::syntax("feed", "", format!("is neither RSS nor Atom: its root element is `{other}`"))),
    }
}

fn items_of(
    parent: &Element,
    name: &str,
    base: Option<&Url>,
    author: Option<&str>,
    context: &FeedContext,
) -> Vec<Result<Entry, Problem>> {
    let items = parent.children.iter().filter(|child| child.name == name);
    items.map(|item| Ok(entry(item, base, author, context))).collect()
}

/// The whole document.
fn root(body: &[u8], charset: Option<&str>) -> Result<Element, Problem> {
    let text = body.trim_ascii_start();
    let begins = |with: &[u8]| text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    if begins(b"<!doctype html") || begins(b"<html") {
        return Err(
            Problem::syntax("feed", "", "is an HTML page and no feed").hint("give the address of the feed itself")
        );
    }
    let layout = Layout {
        format: Format::Xml,
        items: "/*".to_owned(),
        delimiter: None,
        encoding: None,
        columns: Vec::new(),
        // Decoding can triple the size of a text.
        item_bytes_max: body.len() * 3,
        xml: Xml::Feed,
        required: Vec::new(),
    };
    // Some programs write empty lines before the declaration, which XML does not allow.
    let mut items = layout.items(Box::new(Cursor::new(text.to_vec())), charset);
    let found = items.next().transpose()?;
    // The document is read to its end, so that truncation is detected.
    if let Some(Err(problem)) = items.next() {
        return Err(problem);
    }
    match found {
        Some(PositionedItem { item: Item::Xml(element), .. }) => Ok(element),
        _ => Err(Problem::syntax("feed", "", "has no root element")),
    }
}

/// The base address below an element (XML Base).
fn base_of(element: &Element, outer: Option<&Url>) -> Option<Url> {
    match element.attributes.iter().find(|(name, _)| name == "xml:base") {
        Some((_, base)) => resolved(base, outer).and_then(|base| Url::parse(&base).ok()).or_else(|| outer.cloned()),
        None => outer.cloned(),
    }
}

/// An address, absolute if possible.
fn resolved(address: &str, base: Option<&Url>) -> Option<String> {
    let address = address.trim();
    if address.is_empty() {
        return None;
    }
    match (Url::parse(address), base) {
        (Ok(_), _) | (Err(_), None) => Some(address.to_owned()),
        (Err(_), Some(base)) => Some(base.join(address).map_or_else(|_| address.to_owned(), String::from)),
    }
}

/// The first child with one of these names that is not empty, in the order of the names.
fn first<'a>(item: &'a Element, names: &[(&str, &str)]) -> Option<(&'a Element, String)> {
    names.iter().find_map(|(namespace, name)| {
        let fits = |child: &&Element| child.name == *name && is_of(child, item, namespace);
        item.children.iter().filter(fits).find_map(|child| {
            let text = child.whole_text().trim().to_owned();
            (!text.is_empty()).then_some((child, text))
        })
    })
}

/// Whether an element is of this namespace. Feeds often do not declare the usual prefixes, or declare other addresses.
fn is_of(child: &Element, item: &Element, namespace: &str) -> bool {
    let usual = match namespace {
        OWN => {
            return child.namespace == item.namespace && (child.prefix == item.prefix || !child.namespace.is_empty());
        }
        ATOM => "atom",
        CONTENT => "content",
        DC => "dc",
        DC_TERMS => "dcterms",
        ITUNES => "itunes",
        MEDIA => "media",
        _ => "prism",
    };
    *child.namespace == *namespace
        || child.prefix == usual && child.namespace != item.namespace
        || child.prefix == usual && child.namespace.is_empty()
}

fn entry(item: &Element, base: Option<&Url>, feed_author: Option<&str>, context: &FeedContext) -> Entry {
    let base = base_of(item, base);
    let base = base.as_ref();
    let text = |names: &[(&str, &str)]| first(item, names).map(|(_, text)| text);
    let guid = first(item, &[(OWN, "guid")]);
    let is_permanent = |guid: &Element| guid.attribute("isPermaLink").is_none_or(|value| value != "false");
    let link = link(item, base).or_else(|| {
        let (element, text) = guid.as_ref().filter(|(element, _)| is_permanent(element))?;
        // Only a URL is a link: many guids are not URLs, although they do not say so.
        let is_address = Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
        is_address.then(|| resolved(text, base_of(element, base).as_ref())).flatten()
    });
    let title = first(item, &[(OWN, "title"), (ATOM, "title"), (DC, "title"), (ITUNES, "title"), (MEDIA, "title")])
        .map(|(element, text)| plain(element, text));
    let about = item.attributes.iter().find(|(name, _)| name == "rdf:about" || name == "about");
    let id = guid
        .map(|(_, text)| text)
        .or_else(|| text(&[(OWN, "id")]))
        .or_else(|| about.map(|(_, about)| about.trim().to_owned()).filter(|about| !about.is_empty()))
        .or_else(|| text(&[(ATOM, "id"), (DC, "identifier")]));
    let summary = text(&[
        (OWN, "description"),
        (OWN, "summary"),
        (ATOM, "summary"),
        (DC, "description"),
        (ITUNES, "summary"),
        (ITUNES, "subtitle"),
        (MEDIA, "description"),
    ]);
    let own_content = if item.name == "entry" { (OWN, "content") } else { (CONTENT, "encoded") };
    let content = text(&[own_content, (CONTENT, "encoded"), (ATOM, "content")]);
    let author = author_of(item).or_else(|| feed_author.map(str::to_owned));
    let published = text(&[
        (OWN, "pubDate"),
        (OWN, "published"),
        (OWN, "issued"),
        (ATOM, "published"),
        (DC, "date"),
        (DC_TERMS, "issued"),
        (DC_TERMS, "created"),
        (PRISM, "publicationDate"),
        (OWN, "created"),
        (OWN, "date"),
    ]);
    let updated = text(&[(OWN, "updated"), (OWN, "modified"), (ATOM, "updated"), (DC_TERMS, "modified")]);
    let texts =
        [("id", id), ("title", title), ("link", link), ("summary", summary), ("content", content), ("author", author)];
    Entry::new(texts, categories(item), [("published", published), ("updated", updated)], context)
}

impl Entry {
    fn new(
        texts: [(&str, Option<String>); 6],
        categories: Vec<String>,
        dates: [(&str, Option<String>); 2],
        context: &FeedContext,
    ) -> Entry {
        let mut entry = Entry { members: Map::new(), written: Map::new(), uncertain: Vec::new() };
        for (name, text) in texts {
            if let Some(text) = text {
                entry.members.insert(name.to_owned(), Value::String(text));
            }
        }
        // Without an identity, an item is identified by its link, or by its title.
        if !entry.members.contains_key("id")
            && let Some(known) = entry.members.get("link").or_else(|| entry.members.get("title")).cloned()
        {
            entry.members.insert("id".to_owned(), known);
        }
        for (name, text) in dates {
            let Some(text) = text else { continue };
            match date_text::parse(&text, context.zone.as_ref()) {
                Ok(time) => drop(entry.members.insert(name.to_owned(), time.to_string().into())),
                Err(error) => entry.uncertain.push(format!("{name}: {error}")),
            }
            entry.written.insert(name.to_owned(), Value::String(text));
        }
        if !categories.is_empty() {
            entry.members.insert("categories".to_owned(), json!(categories));
        }
        entry
    }
}

/// An Atom text construct as plain text: HTML in it is markup.
fn plain(element: &Element, text: String) -> String {
    let is_html = element.namespace.contains("/Atom") || element.namespace.contains("/atom");
    match element.attribute("type") {
        Some("html" | "text/html") if is_html => {
            mail_parser::decoders::html::html_to_text(&text).split_whitespace().collect::<Vec<_>>().join(" ")
        }
        Some("xhtml" | "application/xhtml+xml") if is_html => text.split_whitespace().collect::<Vec<_>>().join(" "),
        _ => text,
    }
}

fn author_of(item: &Element) -> Option<String> {
    let person = item.children.iter().find(|child| child.name == "author" && child.namespace == item.namespace);
    let named = person.and_then(|person| {
        let part = |name: &'static str| person.children_of(name).next().map(|part| part.whole_text().trim().to_owned());
        part("name").or_else(|| part("email")).filter(|text| !text.is_empty())
    });
    named.or_else(|| {
        // A person without a name is an author only in RSS.
        let names = [(OWN, "author"), (DC, "creator"), (ITUNES, "author"), (MEDIA, "credit")];
        first(item, &names).filter(|(element, _)| element.children.is_empty()).map(|(_, text)| text).or_else(|| {
            let (person, _) = first(item, &[(ATOM, "author")])?;
            person.children_of("name").next().map(|name| name.whole_text().trim().to_owned())
        })
    })
}

fn categories(item: &Element) -> Vec<String> {
    let of = |namespace: &str, name: &str| {
        let found = item.children.iter().filter(|child| child.name == name && is_of(child, item, namespace));
        let text = |child: &Element| {
            let term = ["term", "text"].iter().find_map(|name| child.attribute(name));
            term.map_or_else(|| child.whole_text().trim().to_owned(), |term| term.trim().to_owned())
        };
        found.map(text).filter(|text| !text.is_empty()).collect::<Vec<String>>()
    };
    let names = [(OWN, "category"), (ATOM, "category"), (DC, "subject"), (ITUNES, "category"), (MEDIA, "category")];
    names.iter().map(|(namespace, name)| of(namespace, name)).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The link to the item itself: the text of RSS, or Atom's link with the relation `alternate`, which is the default. Of
/// several, the one to an HTML page, else the first.
fn link(item: &Element, base: Option<&Url>) -> Option<String> {
    for namespace in [OWN, ATOM] {
        let links = item.children.iter().filter(|child| child.name == "link" && is_of(child, item, namespace));
        let is_alternate = |link: &&Element| {
            let relation = link.attribute("rel");
            relation.is_none_or(|rel| matches!(rel, "alternate" | "http://www.iana.org/assignments/relation/alternate"))
        };
        let mut links: Vec<&Element> = links.filter(is_alternate).collect();
        links.sort_by_key(|link| link.attribute("type").is_some_and(|kind| kind != "text/html"));
        let address = |link: &&Element| {
            let base = base_of(link, base);
            match link.attribute("href") {
                Some(href) => resolved(href, base.as_ref()),
                None => resolved(&link.whole_text(), base.as_ref()),
            }
        };
        if let Some(found) = links.iter().find_map(address) {
            return Some(found);
        }
    }
    None
}

/// The items of a JSON Feed (<https://www.jsonfeed.org/version/1.1/>). An item that is not an object is invalid by
/// itself.
fn json_entries(
    body: &[u8],
    charset: Option<&str>,
    context: &FeedContext,
) -> Result<Vec<Result<Entry, Problem>>, Problem> {
    let text =
        charset::decode(body, Syntax::Json, charset).map_err(|error| Problem::syntax("feed", "", error.to_string()))?;
    let feed: Map<String, Value> = serde_json::from_str(&text)
        .map_err(|error| Problem::syntax("json", "", format!("is not a JSON Feed: {error}")))?;
    let is_feed =
        feed.get("version").and_then(Value::as_str).is_some_and(|version| version.contains("jsonfeed.org/version/"));
    let Some(items) = feed.get("items").and_then(Value::as_array).filter(|_| is_feed) else {
        let problem = Problem::syntax(
            "feed",
            "",
            "is JSON and not a JSON Feed: it has no `version` of jsonfeed.org, or no `items`",
        );
        return Err(problem.hint("a source of the kind `poll` takes other JSON"));
    };
    let item = |item: &Value| match item {
        Value::Object(item) => Ok(json_entry(item, &feed, context)),
        other => Err(Problem::syntax(
            "feed",
            "",
            format!("is an item that is no object: {}", other.to_string().chars().take(100).collect::<String>()),
        )),
    };
    Ok(items.iter().map(item).collect())
}

fn json_entry(item: &Map<String, Value>, feed: &Map<String, Value>, context: &FeedContext) -> Entry {
    let text = |name: &str| match item.get(name)? {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        // Numeric identities are converted to text.
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let link = text("url").or_else(|| text("external_url")).and_then(|url| resolved(&url, context.url.as_ref()));
    let name_of = |of: &Map<String, Value>| {
        let first = of.get("authors").and_then(Value::as_array).and_then(|authors| authors.first());
        let name = first.or_else(|| of.get("author"))?.get("name")?.as_str()?.trim();
        (!name.is_empty()).then(|| name.to_owned())
    };
    let tags = item.get("tags").and_then(Value::as_array).into_iter().flatten();
    let tags = tags.filter_map(Value::as_str).map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
    let texts = [
        ("id", text("id")),
        ("title", text("title")),
        ("link", link),
        ("summary", text("summary")),
        ("content", text("content_html").or_else(|| text("content_text"))),
        ("author", name_of(item).or_else(|| name_of(feed))),
    ];
    let dates = [("published", text("date_published")), ("updated", text("date_modified"))];
    Entry::new(texts, tags, dates, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(feed: &[u8]) -> Vec<Entry> {
        let context = FeedContext { url: Url::parse("https://feeds.example/news/feed.xml").ok(), zone: None };
        let found = entries(feed, None, &context).unwrap_or_else(|problem| panic!("{problem}"));
        found.into_iter().map(|entry| entry.unwrap_or_else(|problem| panic!("{problem}"))).collect()
    }

    fn check(feed: &str, expected: Value) {
        let members: Vec<Map<String, Value>> = read(feed.as_bytes()).into_iter().map(|entry| entry.members).collect();
        assert_eq!(json!(members), expected);
    }

    /// The items of an RSS feed with this content in its only item.
    fn rss(item: &str) -> Vec<Entry> {
        let feed = format!(
            "<rss version='2.0' xmlns:itunes='{ITUNES}' xmlns:media='{MEDIA}' xmlns:content='{CONTENT}' xmlns:dc='{DC}' \
             xmlns:atom='{ATOM}'><channel><title>T</title><item>{item}</item></channel></rss>"
        );
        read(feed.as_bytes())
    }

    #[test]
    fn rss_and_atom_have_a_common_form() {
        check(
            &format!(
                "<rss version='2.0' xmlns:dc='{DC}' xmlns:content='{CONTENT}'><channel><title>T</title><item><title>A &amp; B</title>\
             <link>https://a.example/1</link><guid isPermaLink='false'>g1</guid><description><![CDATA[<p>x</p>]]></description>\
             <pubDate>Sun, 22 Nov 2026 10:00:00 +0100</pubDate><category>x</category><category>y</category>\
             <dc:creator>Eve</dc:creator><content:encoded>long</content:encoded></item></channel></rss>"
            ),
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
            &format!(
                "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/' xmlns:dc='{DC}'>\
             <channel rdf:about='https://a.example/'><title>C</title></channel>\
             <item rdf:about='urn:3'><title>T</title><link>https://a.example/3</link><dc:date>2026-11-22T10:00:00Z</dc:date>\
             <dc:subject>s</dc:subject></item></rdf:RDF>"
            ),
            json!([{"id": "urn:3", "title": "T", "link": "https://a.example/3", "published": "2026-11-22T10:00:00Z", "categories": ["s"]}]),
        );
        check("<rss><channel/></rss>", json!([]));
        check("<feed/>", json!([]));
    }

    #[test]
    fn documents_that_are_not_feeds_are_reported() {
        for wrong in [
            "<html/>",
            "",
            " \n",
            "{}",
            "{\"version\": \"https://jsonfeed.org/version/1\"}",
            "{\"items\": []}",
            "[1]",
            "<!DOCTYPE html><html><body>503 <br> Unavailable</body></html>",
            "<rss/>",
            "<rss><channel><item><title>cut off</title>",
            "<rss><channel></channel></rss><more/>",
            "not a feed",
        ] {
            assert!(entries(wrong.as_bytes(), None, &FeedContext::default()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn d_dates_keep_their_zone_and_an_uncertain_one_is_left_out() {
        let feed = include_bytes!("../../testdata/feeds/zones.xml");
        let found = read(feed);
        let published: Vec<&str> = found
            .iter()
            .map(|entry| entry.members.get("published").map_or("", |at| at.as_str().expect("text")))
            .collect();
        let expected = [
            "2022-02-11T18:58:02Z",
            "2022-06-15T10:30:00Z",
            "2022-02-14T06:00:00Z",
            "2022-02-14T00:00:00Z",
            "2022-06-15T16:30:00Z",
            "2022-06-15T10:30:00Z",
            "",
        ];
        assert_eq!(published, expected);
        assert_eq!(found[6].uncertain.len(), 1, "{:?}", found[6].uncertain);
        let vienna = FeedContext { url: None, zone: TimeZone::get("Europe/Vienna").ok() };
        let feed = "<rss><channel><item><title>a</title><pubDate>15 Jun 2022 12:30</pubDate></item></channel></rss>";
        let found = entries(feed.as_bytes(), None, &vienna).expect("a feed");
        assert_eq!(found[0].as_ref().expect("an item").members["published"], "2022-06-15T10:30:00Z");
    }

    #[test]
    fn d_elements_of_other_namespaces_are_only_a_fallback() {
        let found = read(include_bytes!("../../testdata/feeds/namespaces.xml"));
        assert_eq!(
            json!(found[0].members),
            json!({"id": "ep-1", "title": "The long title of the episode", "summary": "What the episode is about",
                "content": "<p>Show notes</p>", "author": "Ann", "categories": ["News"]})
        );
        let members = |item: &str| json!(rss(item)[0].members);
        assert_eq!(
            members("<media:title>m</media:title><itunes:title>i</itunes:title><title>t</title><guid>1</guid>")["title"],
            "t"
        );
        assert_eq!(members("<media:title>m</media:title><guid>1</guid>")["title"], "m");
        let alone = members("<guid>1</guid><media:content url='x'>c<media:title>m</media:title></media:content>");
        assert_eq!(alone, json!({"id": "1"}));
        assert_eq!(
            members("<dc:subject>s</dc:subject><itunes:category text='i'/><guid>1</guid>")["categories"],
            json!(["s"])
        );
        assert_eq!(members("<author>a@x (A)</author><dc:creator>C</dc:creator><guid>1</guid>")["author"], "a@x (A)");
        assert_eq!(
            members("<atom:updated>2022-06-15T10:30:00Z</atom:updated><guid>1</guid>")["updated"],
            "2022-06-15T10:30:00Z"
        );
    }

    #[test]
    fn d_an_item_has_an_identity_and_a_link() {
        let members = |item: &str| json!(rss(item)[0].members);
        assert_eq!(members("<guid>https://a.example/1</guid>")["link"], "https://a.example/1");
        assert_eq!(
            members("<guid isPermaLink='false'>https://a.example/1</guid>"),
            json!({"id": "https://a.example/1"})
        );
        assert_eq!(members("<guid>tag:x,2022:1</guid>"), json!({"id": "tag:x,2022:1"}));
        assert_eq!(members("<link>https://a.example/2</link><title>t</title>")["id"], "https://a.example/2");
        assert_eq!(members("<title>t</title>")["id"], "t");
        assert_eq!(
            members(
                "<atom:link rel='self' href='https://a.example/s'/><atom:link href='https://a.example/3'/><guid>1</guid>"
            )["link"],
            "https://a.example/3"
        );
    }

    #[test]
    fn d_relative_links_are_resolved() {
        let link = |item: &str| json!(rss(item)[0].members)["link"].clone();
        assert_eq!(link("<link>/a</link>"), "https://feeds.example/a");
        assert_eq!(link("<link>a?b</link>"), "https://feeds.example/news/a?b");
        let atom = |feed: &str| json!(read(feed.as_bytes())[0].members)["link"].clone();
        assert_eq!(
            atom(
                "<feed xmlns='http://www.w3.org/2005/Atom' xml:base='https://a.example/x/'><entry xml:base='y/'><id>1</id>\
                <link href='z'/></entry></feed>"
            ),
            "https://a.example/x/y/z"
        );
        assert_eq!(
            atom(
                "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>1</id><link type='application/json' href='https://a/j'/>\
                <link rel='enclosure' href='https://a/e'/><link rel='alternate' type='text/html' href='https://a/h'/></entry></feed>"
            ),
            "https://a/h"
        );
    }

    #[test]
    fn d_texts_of_atom_are_read_by_their_type() {
        let title = |title: &str| {
            let feed = format!("<feed xmlns='{ATOM}'><entry><id>1</id>{title}</entry></feed>");
            json!(read(feed.as_bytes())[0].members)["title"].clone()
        };
        assert_eq!(title("<title>A &lt;b&gt;</title>"), "A <b>");
        assert_eq!(title("<title type='html'>A &lt;b&gt;bold&lt;/b&gt; AT&amp;amp;T</title>"), "A bold AT&T");
        assert_eq!(
            title(
                "<title type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'>Less <b>is</b> <i>more</i>, <em>&lt;</em></div></title>"
            ),
            "Less is more, <"
        );
    }

    #[test]
    fn d_entities_of_html_and_document_types_do_not_stop_a_feed() {
        let feed = "\n<?xml version='1.0'?><!DOCTYPE rss PUBLIC '-//Netscape Communications//DTD RSS 0.91//EN' 'http://x/rss.dtd' [<!ENTITY own 'x'>]>\
            <rss version='0.91'><channel><item><title>caf&eacute;&nbsp;&own; &#8211; &amp;</title><link>https://a.example/&eacute;</link></item></channel></rss>";
        assert_eq!(json!(read(feed.as_bytes())[0].members)["title"], "café\u{a0}&own; – &");
    }

    #[test]
    fn d_a_feed_in_another_encoding_is_read() {
        let feed = b"<?xml version='1.0' encoding='windows-1252'?><rss><channel><item><title>caf\xe9 \x80</title></item></channel></rss>";
        assert_eq!(json!(read(feed)[0].members)["title"], "café €");
        let text = "\u{feff}<rss><channel><item><title>é</title></item></channel></rss>";
        let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(json!(read(&utf16)[0].members)["title"], "é");
    }

    #[test]
    fn d_a_json_feed_is_read() {
        check(
            r#"{"version": "https://jsonfeed.org/version/1.1", "title": "T", "authors": [{"name": "Feed"}], "items": [
                {"id": 7, "url": "/a", "title": "t", "content_html": "<p>c</p>", "content_text": "c", "summary": "s",
                 "date_published": "2022-06-15T12:30:00+02:00", "date_modified": "2022-06-15T10:31:00Z", "tags": ["x", ""]},
                {"id": "8", "external_url": "https://a.example/8", "content_text": "c", "author": {"name": "Old"}}]}"#,
            json!([
                {"id": "7", "title": "t", "link": "https://feeds.example/a", "summary": "s", "content": "<p>c</p>", "author": "Feed",
                 "published": "2022-06-15T10:30:00Z", "updated": "2022-06-15T10:31:00Z", "categories": ["x"]},
                {"id": "8", "link": "https://a.example/8", "content": "c", "author": "Old"},
            ]),
        );
        let feed = b"\xef\xbb\xbf{\"version\": \"https://jsonfeed.org/version/1\", \"items\": [{\"id\": \"1\"}, 5, {\"id\": \"2\"}]}";
        let found = entries(feed, None, &FeedContext::default()).expect("a feed");
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }
}
