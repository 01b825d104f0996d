//! Command `segments`: lists, stores and removes segments; shows and explains their members.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::lists::{ItemList, texts};
use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin segments`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the segments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Store a segment and count its members
    #[command(after_help = "Example:
  tocsin segments put adults-in-vienna '(&(region=Vienna)(age>=18))'")]
    Put {
        /// Segment
        #[arg(value_name = "SEGMENT")]
        name: String,
        /// LDAP filter (RFC 4515), such as '(&(region=Vienna)(age>=18))'
        filter: String,
        /// Purpose of the segment
        #[arg(long)]
        description: Option<String>,
    },
    /// Count the members of a filter and show some
    Preview {
        /// LDAP filter (RFC 4515), such as '(&(region=Vienna)(age>=18))'
        filter: String,
        /// Number of members to show, at most 100
        #[arg(long, default_value_t = 10, value_name = "COUNT")]
        sample: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the members of a segment
    Members {
        /// Segment
        #[arg(value_name = "SEGMENT")]
        name: String,
        /// Maximum number of rows
        #[arg(long, default_value_t = 1000, value_name = "COUNT")]
        limit: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Explain whether a subscriber is a member of a segment
    Why {
        /// Segment
        #[arg(value_name = "SEGMENT")]
        name: String,
        /// Subscriber id
        subscriber: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a segment; its members stay
    Remove {
        /// Segment
        #[arg(value_name = "SEGMENT")]
        name: String,
    },
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the server refuses the request.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            Action::List { json } => {
                let items = client.list("/v1/segments", &[], usize::MAX).await?;
                let heads = ["name", "filter", "changed", "description"];
                ItemList { items, limit: usize::MAX, json }.show(terminal, "there are no segments", &heads, |item| {
                    texts(item, &["name", "filter", "updated_at", "description"])
                })
            }
            Action::Put { name, filter, description } => {
                let path = format!("/v1/segments/{}", segment(&name));
                let body = json!({"filter": filter, "description": description});
                client.send(client.request(Method::PUT, &path).json(&body)).await?;
                let counted = count(client, &filter, 0).await?;
                Ok(terminal.line(format_args!("{} stored: {}", printable(&name), counted.sentence()))?)
            }
            Action::Preview { filter, sample, json } => {
                let counted = count(client, &filter, sample).await?;
                if json {
                    return Ok(terminal.json(&json!({
                        "canonical": counted.canonical,
                        "members": counted.members,
                        "looked_at": counted.looked_at,
                        "subscribers": counted.subscribers,
                        "sample": counted.sample,
                    }))?);
                }
                terminal.line(counted.sentence())?;
                show(terminal, &counted.sample)
            }
            Action::Members { name, limit, json } => {
                let path = format!("/v1/segments/{}/members", segment(&name));
                let mut items = client.list(&path, &[], limit).await?;
                let more = items.len() > limit;
                items.truncate(limit);
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line(format_args!("{} has no members", printable(&name)))?);
                }
                show(terminal, &items)?;
                if more || items.len() == limit {
                    terminal.line(format_args!("there may be more than {limit}; --limit shows more"))?;
                }
                Ok(())
            }
            Action::Why { name, subscriber, json } => {
                let path = format!("/v1/segments/{}/members/{}", segment(&name), segment(&subscriber));
                let explained = client.get(&path, &[]).await?;
                if json {
                    return Ok(terminal.json(&explained)?);
                }
                let belongs =
                    if explained["member"].as_bool() == Some(true) { "is a member" } else { "is not a member" };
                terminal.line(format_args!("{} {belongs} of {}", printable(&subscriber), printable(&name)))?;
                let parts = explained["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
                let rows: Vec<Vec<String>> = parts.iter().map(|part| texts(part, &["truth", "filter"])).collect();
                Ok(terminal.table(&["result", "part"], &rows)?)
            }
            Action::Remove { name } => {
                client.send(client.request(Method::DELETE, &format!("/v1/segments/{}", segment(&name)))).await?;
                Ok(terminal.line(format_args!("{} removed", printable(&name)))?)
            }
        }
    }
}

/// Number of subscribers that match a filter.
struct MemberCount {
    canonical: Value,
    members: u64,
    looked_at: u64,
    subscribers: u64,
    sample: Vec<Value>,
}

impl MemberCount {
    fn sentence(&self) -> String {
        let many =
            if self.members == 1 { "1 member".to_owned() } else { format!("{} members", thousands(self.members)) };
        format!("{many} of {} subscribers", thousands(self.subscribers))
    }
}

/// Counts page by page, because one request only examines a limited number of subscribers.
async fn count(client: &Client, filter: &str, sample: usize) -> Outcome<MemberCount> {
    let mut counted =
        MemberCount { canonical: Value::Null, members: 0, looked_at: 0, subscribers: 0, sample: Vec::new() };
    let mut after: Option<String> = None;
    loop {
        let body = json!({"filter": filter, "sample": sample - counted.sample.len(), "after": after});
        let page = client.post("/v1/segments/preview", &body).await?;
        let number = |name: &str| {
            page[name].as_u64().ok_or_else(|| Failure::failed("the response has no counts; is this a Tocsin server?"))
        };
        counted.members += number("members")?;
        counted.looked_at += number("looked_at")?;
        counted.subscribers = number("subscribers")?;
        counted.sample.extend(page["sample"].as_array().into_iter().flatten().take(sample).cloned());
        counted.canonical = page["canonical"].clone();
        match page["next"].as_str() {
            Some(next) if after.as_deref() != Some(next) => after = Some(next.to_owned()),
            _ => return Ok(counted),
        }
    }
}

fn show(terminal: &Terminal, subscribers: &[Value]) -> Outcome {
    if subscribers.is_empty() {
        return Ok(());
    }
    let rows: Vec<Vec<String>> =
        subscribers.iter().map(|item| texts(item, &["id", "enabled", "locale", "attributes"])).collect();
    Ok(terminal.table(&["id", "enabled", "locale", "attributes"], &rows)?)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::commands::fake_server;

    async fn check(args: &[&str], answers: Vec<(u16, Value)>, expected: Expect) {
        let run = async |args: Args, terminal: &Terminal, client: &Client| args.run(terminal, client).await;
        fake_server::check("segments", args, answers, run, expected).await;
    }

    fn counted(members: u64, ids: &[&str], next: Option<&str>) -> (u16, Value) {
        let sample: Vec<Value> =
            ids.iter().map(|id| json!({"id": id, "enabled": true, "attributes": {"age": 42}})).collect();
        let looked_at = 1_000_000;
        let mut page = json!({"canonical": "(age=42)", "members": members, "looked_at": looked_at, "subscribers": 1_500_000, "sample": sample});
        if let Some(next) = next {
            page["next"] = next.into();
        }
        (200, page)
    }

    #[tokio::test]
    async fn a_count_covers_all_pages() {
        check(
            &["preview", "(age=42)", "--sample", "2"],
            vec![counted(1, &["ann"], Some("x")), counted(2_000, &["bob"], None)],
            expect![[r#"
                2,001 members of 1,500,000 subscribers
                id   enabled  locale  attributes
                ann  true             {"age":42}
                bob  true             {"age":42}
                POST /v1/segments/preview [application/json] {"filter":"(age=42)","sample":2,"after":null}
                POST /v1/segments/preview [application/json] {"filter":"(age=42)","sample":1,"after":"x"}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn storing_prints_the_number_of_members() {
        check(
            &["put", "adults", "(age>=18)"],
            vec![(201, json!({"name": "adults"})), counted(1, &[], None)],
            expect![[r#"
                adults stored: 1 member of 1,500,000 subscribers
                PUT /v1/segments/adults [application/json] {"filter":"(age>=18)","description":null}
                POST /v1/segments/preview [application/json] {"filter":"(age>=18)","sample":0,"after":null}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn membership_is_explained_part_by_part() {
        let parts =
            json!([{"filter": "(age>=18)", "truth": "undefined"}, {"filter": "(region=Vienna)", "truth": "true"}]);
        check(
            &["why", "adults", "a/b"],
            vec![(200, json!({"member": false, "truth": "undefined", "parts": parts}))],
            expect![[r#"
                a/b is not a member of adults
                result     part
                undefined  (age>=18)
                true       (region=Vienna)
                GET /v1/segments/adults/members/a%2Fb"#]],
        )
        .await;
    }
}
