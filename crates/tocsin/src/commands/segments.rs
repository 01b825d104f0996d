//! Lists, stores and removes segments; shows who belongs to them, or would.

use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};

use super::lists::Listed;
use crate::{
    client::{Client, segment},
    failure::{Failure, Outcome},
    terminal::{Terminal, printable, thousands},
};

/// Arguments of `tocsin segments`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the segments
    List {
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Stores a segment, and counts its members
    Put {
        /// Its name
        name: String,
        /// A filter of LDAP (RFC 4515), such as '(&(region=Vienna)(age>=18))'
        filter: String,
        /// What it is for
        #[arg(long)]
        description: Option<String>,
    },
    /// Counts who meets a filter that is not saved, and shows some of them
    Preview {
        /// A filter of LDAP (RFC 4515), such as '(&(region=Vienna)(age>=18))'
        filter: String,
        /// How many to show; at most 100
        #[arg(long, default_value_t = 10)]
        sample: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Lists the members of a segment
    Members {
        /// Its name
        name: String,
        /// Most lines
        #[arg(long, default_value_t = 1000)]
        limit: usize,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Says whether a subscriber belongs to a segment, part by part of its filter
    Why {
        /// The segment's name
        name: String,
        /// The subscriber's id
        subscriber: String,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
    /// Removes a segment; its members stay
    Remove {
        /// Its name
        name: String,
    },
}

impl Args {
    /// Lists, stores, counts, shows or removes.
    ///
    /// # Errors
    /// The server does not do it.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome {
        match self.what {
            What::List { json } => {
                let items = client.list("/v1/segments", &[], usize::MAX).await?;
                let heads = ["name", "filter", "changed", "description"];
                Listed { items, limit: usize::MAX, json }.show(terminal, "there are no segments", &heads, |item| {
                    texts(item, &["name", "filter", "updated_at", "description"])
                })
            }
            What::Put { name, filter, description } => {
                let path = format!("/v1/segments/{}", segment(&name));
                let body = json!({"filter": filter, "description": description});
                client.send(client.request(Method::PUT, &path).json(&body)).await?;
                let counted = count(client, &filter, 0).await?;
                Ok(terminal.line(format_args!("{} is stored: {}", printable(&name), counted.sentence()))?)
            }
            What::Preview { filter, sample, json } => {
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
            What::Members { name, limit, json } => {
                let path = format!("/v1/segments/{}/members", segment(&name));
                let mut items = client.list(&path, &[], limit).await?;
                let more = items.len() > limit;
                items.truncate(limit);
                if json {
                    return Ok(terminal.json(&items)?);
                }
                if items.is_empty() {
                    return Ok(terminal.line(format_args!("nobody belongs to {}", printable(&name)))?);
                }
                show(terminal, &items)?;
                if more || items.len() == limit {
                    terminal.line(format_args!("there may be more than {limit}; --limit shows more"))?;
                }
                Ok(())
            }
            What::Why { name, subscriber, json } => {
                let path = format!("/v1/segments/{}/members/{}", segment(&name), segment(&subscriber));
                let told = client.get(&path, &[]).await?;
                if json {
                    return Ok(terminal.json(&told)?);
                }
                let belongs = if told["member"].as_bool() == Some(true) { "belongs" } else { "does not belong" };
                terminal.line(format_args!("{} {belongs} to {}", printable(&subscriber), printable(&name)))?;
                let parts = told["parts"].as_array().map(Vec::as_slice).unwrap_or_default();
                let rows: Vec<Vec<String>> = parts.iter().map(|part| texts(part, &["truth", "filter"])).collect();
                Ok(terminal.table(&["is", "part"], &rows)?)
            }
            What::Remove { name } => {
                client.send(client.request(Method::DELETE, &format!("/v1/segments/{}", segment(&name)))).await?;
                Ok(terminal.line(format_args!("{} is removed", printable(&name)))?)
            }
        }
    }
}

/// How many meet a filter.
struct Counted {
    canonical: Value,
    members: u64,
    looked_at: u64,
    subscribers: u64,
    sample: Vec<Value>,
}

impl Counted {
    fn sentence(&self) -> String {
        let many =
            if self.members == 1 { "1 member".to_owned() } else { format!("{} members", thousands(self.members)) };
        format!("{many} of {} subscribers", thousands(self.subscribers))
    }
}

/// Counts to the end, request by request, since one looks at so many only.
async fn count(client: &Client, filter: &str, sample: usize) -> Outcome<Counted> {
    let mut counted = Counted { canonical: Value::Null, members: 0, looked_at: 0, subscribers: 0, sample: Vec::new() };
    let mut after: Option<String> = None;
    loop {
        let body = json!({"filter": filter, "sample": sample - counted.sample.len(), "after": after});
        let told = client.post("/v1/segments/preview", &body).await?;
        let number = |name: &str| {
            told[name].as_u64().ok_or_else(|| Failure::failed("the answer has no counts; is this a Tocsin server?"))
        };
        counted.members += number("members")?;
        counted.looked_at += number("looked_at")?;
        counted.subscribers = number("subscribers")?;
        counted.sample.extend(told["sample"].as_array().into_iter().flatten().take(sample).cloned());
        counted.canonical = told["canonical"].clone();
        match told["next"].as_str() {
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

fn texts(item: &Value, names: &[&str]) -> Vec<String> {
    let text = |name: &&str| match &item[*name] {
        Value::String(text) => printable(text).into_owned(),
        Value::Null => String::new(),
        other => printable(&other.to_string()).into_owned(),
    };
    names.iter().map(text).collect()
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

    fn told(members: u64, ids: &[&str], next: Option<&str>) -> (u16, Value) {
        let sample: Vec<Value> =
            ids.iter().map(|id| json!({"id": id, "enabled": true, "attributes": {"age": 42}})).collect();
        let looked_at = 1_000_000;
        let mut told = json!({"canonical": "(age=42)", "members": members, "looked_at": looked_at, "subscribers": 1_500_000, "sample": sample});
        if let Some(next) = next {
            told["next"] = next.into();
        }
        (200, told)
    }

    #[tokio::test]
    async fn a_count_goes_on_to_the_end() {
        check(
            &["preview", "(age=42)", "--sample", "2"],
            vec![told(1, &["ann"], Some("x")), told(2_000, &["bob"], None)],
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
    async fn storing_tells_how_many_it_is() {
        check(
            &["put", "adults", "(age>=18)"],
            vec![(201, json!({"name": "adults"})), told(1, &[], None)],
            expect![[r#"
                adults is stored: 1 member of 1,500,000 subscribers
                PUT /v1/segments/adults [application/json] {"filter":"(age>=18)","description":null}
                POST /v1/segments/preview [application/json] {"filter":"(age>=18)","sample":0,"after":null}"#]],
        )
        .await;
    }

    #[tokio::test]
    async fn why_tells_part_by_part() {
        let parts =
            json!([{"filter": "(age>=18)", "truth": "undefined"}, {"filter": "(region=Vienna)", "truth": "true"}]);
        check(
            &["why", "adults", "a/b"],
            vec![(200, json!({"member": false, "truth": "undefined", "parts": parts}))],
            expect![[r#"
                a/b does not belong to adults
                is         part
                undefined  (age>=18)
                true       (region=Vienna)
                GET /v1/segments/adults/members/a%2Fb"#]],
        )
        .await;
    }
}
