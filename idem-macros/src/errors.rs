//! Collects what is wrong with one macro invocation and reports all of it at once, in source order.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::Error;

/// Everything found wrong so far.
#[derive(Default)]
pub(crate) struct Errors(Vec<Error>);

impl Errors {
    /// Adds a fault that underlines `tokens`.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, message));
    }

    /// Adds a fault; errors combined with it stay behind it, as its notes.
    pub(crate) fn add(&mut self, error: Error) {
        self.0.push(error);
    }

    /// Unwraps the good outcome of a rule and keeps the bad one.
    pub(crate) fn check<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
        outcome.map_err(|error| self.add(error)).ok()
    }

    /// Applies a rule to what was given, if anything was.
    pub(crate) fn apply<G, T>(
        &mut self,
        given: Option<G>,
        rule: impl FnOnce(G) -> Result<T, Error>,
    ) -> Option<T> {
        given.and_then(|given| self.check(rule(given)))
    }

    /// Renders all faults as `compile_error!` calls.
    ///
    /// # Errors
    /// The rendered faults, if there are any.
    pub(crate) fn finish(mut self) -> Result<(), TokenStream> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.sort_by_key(|error| {
            let start = error.span().start();
            (start.line, start.column)
        });
        Err(self.0.iter().map(Error::to_compile_error).collect())
    }
}

/// Builds an error at `tokens` followed by a note at `noted`; the note is an error of its own, because
/// stable Rust lets a macro report nothing else.
pub(crate) fn with_note(
    tokens: impl ToTokens,
    message: impl std::fmt::Display,
    noted: impl ToTokens,
    note: &str,
) -> Error {
    let mut error = Error::new_spanned(tokens, message);
    error.combine(Error::new_spanned(noted, format!("note: {note}")));
    error
}

/// Says what an unknown name was probably meant to be, and what there is.
pub(crate) fn did_you_mean(name: &str, what_there_is: &str, candidates: &[&str]) -> String {
    let list = candidates
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    match closest(name, candidates) {
        Some(meant) => format!("help: did you mean `{meant}`?\nhelp: {what_there_is} {list}"),
        None => format!("help: {what_there_is} {list}"),
    }
}

fn closest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let tolerance = name.chars().count().div_ceil(3);
    candidates
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Counts the characters to insert, remove or replace to turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (index, expected) in from.chars().enumerate() {
        let mut left = index + 1;
        let mut next = vec![left];
        for ((found, diagonal), above) in to.chars().zip(&row).zip(row.iter().skip(1)) {
            let replaced = diagonal + usize::from(found != expected);
            left = replaced.min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Errors, closest, distance};

    #[test]
    fn misspelling_finds_the_option_that_was_meant() {
        let options = ["scope", "ttl", "timeout", "operation"];
        assert_eq!(closest("scop", &options), Some("scope"));
        assert_eq!(closest("socpe", &options), Some("scope"));
        assert_eq!(closest("tll", &options), Some("ttl"));
        assert_eq!(closest("retries", &options), None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn faults_are_reported_in_source_order() {
        let tokens: proc_macro2::TokenStream = "first\n second".parse().unwrap();
        let mut tokens = tokens.into_iter();
        let (first, second) = (tokens.next().unwrap(), tokens.next().unwrap());
        let mut errors = Errors::default();
        errors.at(second, "later");
        errors.at(first, "earlier");
        let rendered = errors.finish().unwrap_err().to_string();
        assert!(
            rendered.find("earlier") < rendered.find("later"),
            "{rendered}"
        );
    }
}
