//! Turns what was written into what is valid: every broken rule is reported, none hides another.

mod expression;
mod settings;
mod signature;

pub(crate) use self::settings::{Fingerprint, KeySource, Scope, Settings};
pub(crate) use self::signature::{Extractor, Parameters};

use crate::errors::Errors;
use crate::parse::{Handler, Options};

/// A handler and its options, both without fault.
pub(crate) struct Endpoint<'a> {
    pub(crate) settings: Settings<'a>,
    pub(crate) parameters: Parameters<'a>,
    pub(crate) handler: &'a Handler,
}

impl<'a> Endpoint<'a> {
    /// Applies every rule. Without a handler (it did not parse) the options are still checked.
    pub(crate) fn check(
        options: &'a Options,
        handler: Option<&'a Handler>,
        errors: &mut Errors,
    ) -> Option<Self> {
        let settings = Settings::check(options, errors);
        let handler = handler?;
        let parameters = Parameters::check(handler, errors);
        if let (Some(settings), Some(parameters)) = (&settings, &parameters) {
            expressions_name_parameters(settings, parameters, errors);
        }
        Some(Self {
            settings: settings?,
            parameters: parameters?,
            handler,
        })
    }
}

fn expressions_name_parameters(
    settings: &Settings<'_>,
    parameters: &Parameters<'_>,
    errors: &mut Errors,
) {
    if let Scope::Of(scope) = settings.scope {
        expression::check(scope, &expression::SCOPE, parameters, errors);
    }
    if let KeySource::Request(key) = settings.key {
        expression::check(key, &expression::KEY, parameters, errors);
    }
}
