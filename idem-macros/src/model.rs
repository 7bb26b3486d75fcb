//! Turns what was written into what is valid: every broken rule is reported, none hides another.

mod expression;
mod settings;
mod signature;
mod statuses;

pub(crate) use self::settings::{Fingerprint, KeySource, Scope, Settings, krate};
pub(crate) use self::signature::{Extractor, Transaction};

use self::signature::Parameters;
use crate::errors::Errors;
use crate::parse::{Handler, Options};

/// A handler and its options, both without fault.
pub(crate) struct Endpoint<'a> {
    pub(crate) scope: Scope<'a>,
    pub(crate) settings: Settings<'a>,
    pub(crate) extractors: Vec<Extractor<'a>>,
    pub(crate) transaction: Transaction<'a>,
    pub(crate) handler: &'a Handler,
}

impl<'a> Endpoint<'a> {
    /// Applies every rule. Without a handler (it did not parse) the options are still checked.
    ///
    /// What comes back is valid only if no error was collected.
    pub(crate) fn check(
        options: &'a Options,
        handler: Option<&'a Handler>,
        errors: &mut Errors,
    ) -> Option<Self> {
        let scope = errors.check(Scope::check(options.scope.as_ref()));
        let settings = Settings::check(options, errors);
        let handler = handler?;
        let parameters = Parameters::check(handler, errors);
        if let Some(Scope::Of(scope)) = scope {
            expression::check(scope, &expression::SCOPE, &parameters, errors);
        }
        if let KeySource::Request(key) = settings.key {
            expression::check(key, &expression::KEY, &parameters, errors);
        }
        Some(Self {
            scope: scope?,
            settings,
            extractors: parameters.extractors,
            transaction: parameters.transaction?,
            handler,
        })
    }
}

#[cfg(test)]
mod tests;
