//! A definition becomes what the steps run: rules, formatters, channels.

use tocsin_model::{application::Application, problem::Problem};

/// One version of an application, ready to run.
#[derive(Debug)]
pub struct Compiled {
    /// The definition.
    pub application: Application,
    /// Its version.
    pub version: u32,
}

impl Compiled {
    /// Compiles rules, templates and channel options.
    ///
    /// # Errors
    /// Every problem found, with the path in the definition.
    pub fn new(application: Application, version: u32) -> Result<Compiled, Vec<Problem>> {
        Ok(Compiled { application, version })
    }

    /// What will work but cost more than its author may think, such as a rule that scans.
    pub fn warnings(&self) -> Vec<Problem> {
        Vec::new()
    }
}
