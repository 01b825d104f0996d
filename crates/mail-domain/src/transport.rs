use tocsin_connect::dns::Resolver;

use crate::{
    finding::{Check, Finding, Record},
    tags::Tags,
};

/// Examines MTA-STS and TLS-RPT, which protect mail to the domain. Both are optional.
pub(crate) async fn examine(resolver: &Resolver, domain: &str) -> Vec<Finding> {
    let (sts, reports) = (format!("_mta-sts.{domain}"), format!("_smtp._tls.{domain}"));
    let sts = optional(
        resolver,
        Check { name: "mta_sts", subject: &sts },
        "RFC 8461, section 3.1",
        "STSv1",
        "id",
        "optional; it enforces TLS for mail to the domain, such as bounces, and needs a policy file at an HTTPS server",
        Record::txt(&sts, "v=STSv1; id=1"),
    );
    let reports = optional(
        resolver,
        Check { name: "tls_rpt", subject: &reports },
        "RFC 8460, section 3",
        "TLSRPTv1",
        "rua",
        "optional; senders report failures of TLS",
        Record::txt(&reports, &format!("v=TLSRPTv1; rua=mailto:tls-reports@{domain}")),
    );
    let (sts, reports) = tokio::join!(sts, reports);
    vec![sts, reports]
}

async fn optional(
    resolver: &Resolver,
    check: Check<'_>,
    source: &'static str,
    version: &str,
    required: &str,
    purpose: &str,
    record: Record,
) -> Finding {
    let texts = match resolver.txt(check.subject).await {
        Ok(answer) => answer.into_records(),
        Err(error) => return check.info(source, format!("the record is unknown: {error}")),
    };
    let is_record = |text: &&String| text.split(';').next().is_some_and(|first| first.trim() == format!("v={version}"));
    let found: Vec<&String> = texts.iter().filter(is_record).collect();
    match found.as_slice() {
        [] => check.info(source, "there is no record").advice(purpose).publish(record),
        [text] => match Tags::parse(text) {
            Ok(tags) if tags.value(required).is_some_and(|value| !value.is_empty()) => check.ok(source, text.as_str()),
            Ok(_) => check.info(source, format!("the record has no `{required}`: {text}")).publish(record),
            Err(problem) => check.info(source, format!("the record is not well-formed: {problem}")).publish(record),
        },
        several => {
            check.info(source, format!("there are {} records, so senders ignore them", several.len())).publish(record)
        }
    }
}
