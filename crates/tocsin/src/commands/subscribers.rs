//! Makes claims for devices of subscribers, and subscribers parts of others.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    client::{Client, segment},
    failure::Outcome,
    terminal::{Terminal, printable},
};

/// Arguments of `tocsin subscribers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Makes a claim, to be sent to a device: whoever gives it back gets what is sent there
    Claim {
        /// Whose device
        subscriber: String,
        /// The device
        device: String,
        /// Seconds until it ends, a week at most
        #[arg(long, default_value_t = 3600)]
        expires_in: u64,
    },
    /// Makes one who is known by its addresses only a part of another, who stays
    Merge {
        /// Who is gone afterwards
        from: String,
        /// Who stays
        into: String,
        /// The claim that was sent to a device of the one and came back
        #[arg(long)]
        claim: Option<String>,
        /// Without a claim: you know in another way that both are the same
        #[arg(long, conflicts_with = "claim")]
        unverified: bool,
        /// Prints JSON
        #[arg(long)]
        json: bool,
    },
}

impl Args {
    /// Runs it.
    pub async fn run(self, terminal: &Terminal, client: &Client) -> Outcome<()> {
        match self.what {
            What::Claim { subscriber, device, expires_in } => {
                let path = format!("/v1/subscribers/{}/claim", segment(&subscriber));
                let made = client.post(&path, &json!({"device": device, "expires_in": expires_in})).await?;
                Ok(terminal.line(made["claim"].as_str().unwrap_or_default())?)
            }
            What::Merge { from, into, claim, unverified, json } => {
                let path = format!("/v1/subscribers/{}/merge", segment(&into));
                let body = match claim {
                    Some(claim) => json!({"from": from, "claim": claim}),
                    None => json!({"from": from, "unverified": unverified}),
                };
                let merged = client.post(&path, &body).await?;
                match json {
                    true => Ok(terminal.json(&merged)?),
                    false => Ok(told(&merged).iter().try_for_each(|line| terminal.line(line))?),
                }
            }
        }
    }
}

/// What was done, in words.
fn told(merged: &Value) -> Vec<String> {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default()).into_owned();
    let head = match merged["again"].as_bool() {
        Some(true) => format!(
            "{} had become a part of {} at {}",
            text(&merged["from"]),
            text(&merged["into"]),
            text(&merged["at"])
        ),
        _ => format!("{} is a part of {} now", text(&merged["from"]), text(&merged["into"])),
    };
    let names = |value: &Value| -> Vec<String> {
        let pair = |(old, new): (&String, &Value)| match text(new) {
            same if *old == same => printable(old).into_owned(),
            new => format!("{} (now {new})", printable(old)),
        };
        value.as_object().into_iter().flatten().map(pair).collect()
    };
    let mut lines = vec![head];
    let count = |name: &str| merged[name].as_u64().unwrap_or_default();
    lines.push(format!(
        "  subscriptions: {} went over, {} were there already",
        count("subscriptions"),
        count("double_subscriptions")
    ));
    for (name, what) in [("devices", "devices"), ("double_devices", "devices that were there already")] {
        let names = names(&merged[name]);
        if !names.is_empty() {
            lines.push(format!("  {what}: {}", names.join(", ")));
        }
    }
    let attributes: Vec<String> = merged["attributes"].as_array().into_iter().flatten().map(text).collect();
    if !attributes.is_empty() {
        lines.push(format!("  attributes: {}", attributes.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_two_is_told() {
        let merged = json!({
            "from": "anon-1", "into": "vera", "again": false, "at": "2026-11-21T09:30:00Z", "subscriptions": 2,
            "double_subscriptions": 1, "devices": {"main": "main_2"}, "double_devices": {"sms": "sms"},
            "attributes": ["city"],
        });
        expect_test::expect![[r#"
            anon-1 is a part of vera now
              subscriptions: 2 went over, 1 were there already
              devices: main (now main_2)
              devices that were there already: sms
              attributes: city"#]]
        .assert_eq(&told(&merged).join("\n"));
    }
}
