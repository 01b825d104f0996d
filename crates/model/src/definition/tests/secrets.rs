//! Masked secrets in definitions, and their restoration.

use super::super::secrets::{self, HEADERS, Language, MASK, OptionSecrets, SecretShape, masks};
use super::*;

/// Some rows of the tables of protocols and kinds.
const OPTIONS: OptionSecrets = OptionSecrets {
    channels: &[
        ("smtp", "options.password", SecretShape::Whole),
        ("smtp", "options.servers.password", SecretShape::Whole),
        ("smtp", "options.dkim.key", SecretShape::Whole),
        ("http", "options.password", SecretShape::Whole),
        ("http", "options.headers", HEADERS),
        ("http", "options.with", SecretShape::Except(&["account"])),
        ("http", "options.body", SecretShape::Named),
    ],
    sources: &[
        ("nats", "options.token", SecretShape::Whole),
        ("nats", "options.password", SecretShape::Whole),
        ("mqtt", "options.password", SecretShape::Whole),
        ("poll", "options.headers", HEADERS),
        ("process", "options.environment", SecretShape::Whole),
    ],
};

fn redact(language: Language, text: &str) -> String {
    secrets::redact(language, text, OPTIONS)
}

fn restore(language: Language, text: &str, stored: &[&str]) -> String {
    secrets::restore(language, text, stored, OPTIONS)
}

const MAIL: &str = r#"application: shop # of ours
channels:
  mail:
    protocol: smtp
    options:
      host: mail.example.org
      from: a@example.org
      username: shop
      password: hunter-2 # said once
      servers:
        - { host: a.example.org, password: "hunter-3" }
        - { host: b.example.org, password: "${B_PASSWORD}" }
      dkim:
        - selector: one
          key: |
            "hunter-0" -----BEGIN PRIVATE KEY-----
            hunter-4
            -----END PRIVATE KEY-----

      headers: { X-Team: shop }
  hook:
    protocol: http
    options:
      url: 'https://me:hunter-5@example.org/a?token=hunter-6&page=1' # it's "theirs"
      password: 'it''s hunter-13' # and ours
      headers: { Authorization: Bearer hunter-7, Accept: text/plain, X-Own: "Bearer ${TOKEN}" }
      with: { account: AC1, token: hunter-8 }
      body: { json: { api_key: "hunter-9", text: "{text}" } }
sources:
  orders: { kind: outbox, events: [order], options: { database: "postgres://u:hunter-10@db/shop", table: t, key: id } }
  bus: { kind: nats, events: [order], options: { servers: ["nats://hunter-11@nats:4222"], stream: s, password: 1234567 } }
  tool: { kind: process, events: [order], options: { command: [/bin/tool], environment: { PIN: hunter-12 } } }
"#;

const EXCHANGE: &str = r#"exchange: hub
receive:
  in:
    mode: one_way
    pipeline:
      - run: { command: [/bin/x], environment: { KEY: hunter-1 } }
    locations:
      bus: { kind: nats, options: { servers: ["nats://n:4222"], stream: s, token: hunter-6 } }
      box: { kind: outbox, options: { database: "postgres://u:hunter-7@db/shop", table: t } }
send:
  out:
    mode: one_way
    protocol: http
    options: { url: "https://example.org", secret: whsec_hunter-2, headers: { X-Api-Key: hunter-3 } }
    backup: { protocol: http, options: { url: "https://a:hunter-4@example.org", secret: "${SECRET}" } }
    pipeline:
      - sign: { secret: hunter-5 }
routes: {}
"#;

/// Compares the masked definition; checks that it and one edited around its masks are restored.
fn check(language: Language, text: &str, expected: Expect) {
    let shown = redact(language, text);
    assert!(!shown.contains("hunter"), "{shown}");
    expected.assert_eq(&shown);
    assert_eq!(redact(language, &shown), shown, "what is shown shows as the same");
    assert_eq!(restore(language, &shown, &[text]), text, "what is put back is what is stored");
    let edited = format!("# edited\n{shown}");
    let value = |text: &str| document::parse(text, &mut Vec::new()).expect("YAML").value();
    assert_eq!(value(&restore(language, &edited, &[text])), value(text));
    assert_eq!(value(&restore(language, &edited, &["application: a", text])), value(text), "an older version has it");
    let crlf = text.replace('\n', "\r\n");
    assert_eq!(redact(language, &crlf).replace("\r\n", "\n"), shown);
}

#[test]
fn secrets_of_an_application_are_masked_and_come_back() {
    check(
        Language::Application,
        MAIL,
        expect![[r#"
            application: shop # of ours
            channels:
              mail:
                protocol: smtp
                options:
                  host: mail.example.org
                  from: a@example.org
                  username: shop
                  password: "***" # said once
                  servers:
                    - { host: a.example.org, password: "***" }
                    - { host: b.example.org, password: "${B_PASSWORD}" }
                  dkim:
                    - selector: one
                      key: "***"

                  headers: { X-Team: shop }
              hook:
                protocol: http
                options:
                  url: "https://me:***@example.org/a?token=***&page=1" # it's "theirs"
                  password: "***" # and ours
                  headers: { Authorization: "***", Accept: text/plain, X-Own: "Bearer ${TOKEN}" }
                  with: { account: AC1, token: "***" }
                  body: { json: { api_key: "***", text: "{text}" } }
            sources:
              orders: { kind: outbox, events: [order], options: { database: "postgres://u:***@db/shop", table: t, key: id } }
              bus: { kind: nats, events: [order], options: { servers: ["nats://***@nats:4222"], stream: s, password: "***" } }
              tool: { kind: process, events: [order], options: { command: [/bin/tool], environment: { PIN: "***" } } }
        "#]],
    );
}

#[test]
fn secrets_of_an_exchange_are_masked_and_come_back() {
    check(
        Language::Exchange,
        EXCHANGE,
        expect![[r#"
            exchange: hub
            receive:
              in:
                mode: one_way
                pipeline:
                  - run: { command: [/bin/x], environment: { KEY: "***" } }
                locations:
                  bus: { kind: nats, options: { servers: ["nats://n:4222"], stream: s, token: "***" } }
                  box: { kind: outbox, options: { database: "postgres://u:***@db/shop", table: t } }
            send:
              out:
                mode: one_way
                protocol: http
                options: { url: "https://example.org", secret: "***", headers: { X-Api-Key: "***" } }
                backup: { protocol: http, options: { url: "https://a:***@example.org", secret: "${SECRET}" } }
                pipeline:
                  - sign: { secret: "***" }
            routes: {}
        "#]],
    );
}

/// Restores a list of servers with masks from a stored one; compares the result.
fn check_list(stored: &str, given: &str, expected: &str) {
    let text = |servers: &str| {
        format!("application: a\nchannels:\n  m:\n    protocol: smtp\n    options:\n      servers: {servers}\n")
    };
    assert_eq!(restore(Language::Application, &text(given), &[&text(stored)]), text(expected));
}

#[test]
fn items_of_lists_keep_their_own_secret() {
    let stored = "[{host: a, password: x}, {host: b, password: y}]";
    // Another order, one less, one more.
    let swapped = r#"[{host: b, password: "***"}, {host: a, password: "***"}]"#;
    check_list(stored, swapped, r#"[{host: b, password: "y"}, {host: a, password: "x"}]"#);
    check_list(stored, r#"[{host: b, password: "***"}]"#, r#"[{host: b, password: "y"}]"#);
    let more = r#"[{host: c, password: z}, {host: a, password: "***"}, {host: b, password: "***"}]"#;
    check_list(stored, more, r#"[{host: c, password: z}, {host: a, password: "x"}, {host: b, password: "y"}]"#);
    // One was edited where it stands.
    let edited = r#"[{host: a, password: "***"}, {host: c, password: "***"}]"#;
    check_list(stored, edited, r#"[{host: a, password: "x"}, {host: c, password: "y"}]"#);
    // It is ambiguous which of them it was: a mask remains.
    let unclear = r#"[{host: c, password: "***"}]"#;
    check_list(stored, unclear, unclear);
    let unclear = r#"[{host: b, password: "***"}, {host: c, password: "***"}]"#;
    check_list(stored, unclear, r#"[{host: b, password: "y"}, {host: c, password: "***"}]"#);
}

#[test]
fn a_mask_with_nothing_behind_it_is_a_problem() {
    let shown = redact(Language::Application, MAIL);
    let elsewhere = shown.replace("  mail:", "  post:").replace("kind: nats", "kind: mqtt");
    let restored = restore(Language::Application, &elsewhere, &[MAIL]);
    let problems = masks(Language::Application, &restored, OPTIONS);
    let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "channels.post.options.password",
            "channels.post.options.servers[0].password",
            "channels.post.options.dkim[0].key",
            "sources.bus.options.servers[0]",
            "sources.bus.options.password",
        ],
        "{problems:?}"
    );
    let first = problems.iter().find(|problem| problem.path == paths[0]).expect("the first");
    expect![[r#"
        9:17: channels.post.options.password: holds `***`, the mask of a stored secret, but no secret is stored here; give the secret, or better take it from the environment: `${NAME}`"#]]
    .assert_eq(&first.to_string());
    let exchange = restore(Language::Exchange, &redact(Language::Exchange, EXCHANGE), &[]);
    let problems = masks(Language::Exchange, &exchange, OPTIONS);
    assert!(problems.iter().all(|problem| problem.message.contains(MASK)), "{problems:?}");
    assert_eq!(problems.len(), 7, "{problems:?}");
    // A secret is not restored into an entry of another kind.
    let elsewhere = redact(Language::Exchange, EXCHANGE).replace("kind: nats", "kind: mqtt");
    let restored = restore(Language::Exchange, &elsewhere, &[EXCHANGE]);
    assert!(restored.contains("hunter-7") && !restored.contains("hunter-6"), "{restored}");
}

#[test]
fn a_new_secret_beside_a_mask_is_taken() {
    let stored =
        "application: a\nsources:\n  s: { kind: outbox, options: { database: 'mysql://u:old@h/d?ssl_key=k' } }\n";
    let given =
        "application: a\nsources:\n  s: { kind: outbox, options: { database: 'mysql://v:***@i/d?ssl_key=n&x=1' } }\n";
    let restored = restore(Language::Application, given, &[stored]);
    assert!(restored.contains("mysql://v:old@i/d?ssl_key=n&x=1"), "{restored}");
}

#[test]
fn a_variable_in_place_of_the_protocol_hides_no_secret() {
    let text = "application: a\nsources:\n  s: { kind: '${KIND:-nats}', options: { password: hunter2 } }\n";
    assert!(!redact(Language::Application, text).contains("hunter2"));
}

#[test]
fn an_unreadable_definition_is_withheld() {
    let shown = redact(Language::Application, "password: hunter2\n  broken: [");
    assert!(!shown.contains("hunter2"), "{shown}");
    // An invalid text is stored as it is and then reported.
    let broken = "channels: [ ***";
    assert_eq!(restore(Language::Application, broken, &[MAIL]), broken);
}
