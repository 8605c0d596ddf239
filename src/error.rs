//! The two failures that the person at the keyboard can mend: a wrong request, and a model or runtime that cannot be
//! used. Everything else is an ordinary [`anyhow::Error`].

use std::fmt;

/// Who has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request is wrong: a flag, a text, a reference recording, an output path (exit code 2).
    Request,
    /// The model folder or the runtime cannot be used (exit code 3).
    Model,
}

/// A failure whose cause lies in what the caller gave, with an optional hint on the way out.
///
/// Attach it with `?` alone or over a lower cause with [`anyhow::Context::context`]; find it again with
/// `error.downcast_ref::<UserError>()`, which also looks through contexts.
///
/// Messages are lower case, carry no full stop, and name both what was found and what was wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserError {
    fault: Fault,
    message: String,
    hint: Option<String>,
}

impl UserError {
    /// The request is wrong.
    pub fn request(message: impl Into<String>) -> Self {
        Self { fault: Fault::Request, message: message.into(), hint: None }
    }

    /// The model folder or the runtime cannot be used.
    pub fn model(message: impl Into<String>) -> Self {
        Self { fault: Fault::Model, message: message.into(), hint: None }
    }

    /// Adds one line on what to do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Who has to act.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// What to do, if anything more can be said than the message says.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UserError {}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_user_error_is_found_below_and_above_other_contexts() {
        let below: anyhow::Result<()> = Err(UserError::model("no manifest").with_hint("look elsewhere").into());
        let error = below.context("cannot load").unwrap_err();
        let found = error.downcast_ref::<UserError>().unwrap();
        assert_eq!(found.fault(), Fault::Model);
        assert_eq!(found.hint(), Some("look elsewhere"));
        assert_eq!(format!("{error:#}"), "cannot load: no manifest");

        let above = Err::<(), _>(std::io::Error::other("disk on fire")).context(UserError::request("cannot read x"));
        let error = above.context("speaking").unwrap_err();
        assert_eq!(error.downcast_ref::<UserError>().unwrap().fault(), Fault::Request);
        assert_eq!(format!("{error:#}"), "speaking: cannot read x: disk on fire");
    }
}
