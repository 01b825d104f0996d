//! Checks the options of a channel as a whole: each part is compiled, and reports its problems.

use tocsin_connect::options::Options;
use tocsin_model::problem::{Code, Problem};

use super::{classify::Answers, options::HttpOptions, recipes::complete, request::Form, sign::Signer};

impl Options for HttpOptions {
    fn problems(&self) -> Vec<Problem> {
        let options = match complete(self) {
            Ok(options) => options,
            Err(problems) => return problems,
        };
        let mut problems = Vec::new();
        if let Some(secret) = &options.secret
            && let Err(text) = Signer::new(secret)
        {
            let hint = "make one with `echo whsec_$(openssl rand -base64 32)` and take it from the environment";
            problems.push(Problem::new(Code::InvalidKey, "secret", text).hint(hint));
        }
        problems.extend(Form::read(&options, &options.with).err().unwrap_or_default());
        problems.extend(Answers::read(&options.answers).err().unwrap_or_default());
        problems.extend(options.feedback.iter().flat_map(|feedback| feedback.problems(false)));
        problems.extend(options.client.certificates.problems());
        problems
    }
}
