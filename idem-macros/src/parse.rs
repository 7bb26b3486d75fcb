//! Turns tokens into what was written, without judging it; the handler's body stays tokens.

use proc_macro2::{Delimiter, Group, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::{Attribute, Error, Expr, Path, Signature, Token, Visibility};

use crate::errors::{Errors, did_you_mean, with_note};

/// An async function as the user wrote it.
pub(crate) struct Handler {
    /// The attributes the compiler left on it: those below ours, and inert ones above.
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    pub(crate) body: Group,
}

impl Parse for Handler {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let handler = Self {
            attributes: input.call(Attribute::parse_outer)?,
            visibility: input.parse()?,
            signature: input.parse()?,
            body: input.call(body)?,
        };
        Ok(handler)
    }
}

/// Parses the item below the attribute.
///
/// # Errors
/// The item is not a function with a body.
pub(crate) fn handler(item: &TokenStream) -> syn::Result<Handler> {
    syn::parse2(item.clone()).map_err(|error| {
        if syn::parse2::<syn::ItemFn>(item.clone()).is_err()
            && syn::parse2::<syn::Item>(item.clone()).is_ok()
        {
            Error::new_spanned(
                item,
                "`#[idempotent]` belongs above a handler\n\
                 help: it guards one `async fn` that takes extractors and `tx: &Tx`",
            )
        } else {
            error
        }
    })
}

/// Takes the body as it stands, also out of the invisible group that `macro_rules` puts around it.
fn body(input: ParseStream<'_>) -> syn::Result<Group> {
    match input.parse()? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Ok(group),
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
            body.parse2(group.stream())
        }
        other => Err(Error::new_spanned(other, "expected the handler's body")),
    }
}

/// Recognises our own attribute, under whatever path.
pub(crate) fn is_ours(attribute: &Path) -> bool {
    attribute
        .segments
        .last()
        .is_some_and(|segment| segment.ident == "idempotent")
}

/// One option as written: `name = value`.
pub(crate) struct Given {
    pub(crate) name: Ident,
    pub(crate) value: Expr,
}

/// Declares every option once: the slot that holds it and the name it is written by.
macro_rules! options {
    ($($slot:ident = $name:literal),* $(,)?) => {
        /// The options of one attribute, each at most once.
        #[derive(Default)]
        pub(crate) struct Options {
            $(pub(crate) $slot: Option<Given>,)*
        }

        impl Options {
            /// Every option's name.
            pub(crate) const NAMES: &[&str] = &[$($name),*];

            fn slot(&mut self, name: &str) -> Option<&mut Option<Given>> {
                match name {
                    $($name => Some(&mut self.$slot),)*
                    _ => None,
                }
            }
        }
    };
}

options! {
    scope = "scope",
    ttl = "ttl",
    key = "key",
    header = "header",
    operation = "operation",
    fingerprint = "fingerprint",
    wait = "wait",
    timeout = "timeout",
    authorize = "authorize",
    commit_on = "commit_on",
    release_on = "release_on",
    isolation = "isolation",
    max_body = "max_body",
    max_response = "max_response",
    krate = "crate",
}

impl Options {
    /// Parses what stands between the attribute's parentheses. A fault in one option does not hide
    /// the others.
    pub(crate) fn parse(arguments: TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let outcome = (|input: ParseStream<'_>| {
            while !input.is_empty() {
                if let Some(given) = errors.check(given(input)) {
                    errors.check(options.set(given));
                    if errors.check(separator(input)).is_some() {
                        continue;
                    }
                }
                skip_option(input)?;
            }
            Ok(())
        })
        .parse2(arguments);
        errors.check(outcome);
        options
    }

    fn set(&mut self, given: Given) -> syn::Result<()> {
        let name = given.name.to_string();
        let Some(slot) = self.slot(&name) else {
            return Err(unknown(&given.name));
        };
        if let Some(first) = slot {
            let message = format!("option `{name}` is given twice\nhelp: keep one of the two");
            return Err(with_note(
                &given.name,
                message,
                &first.name,
                "first given here",
            ));
        }
        *slot = Some(given);
        Ok(())
    }
}

fn given(input: ParseStream<'_>) -> syn::Result<Given> {
    let name = input
        .call(Ident::parse_any)
        .map_err(|error| Error::new(error.span(), "expected an option, like `ttl = \"24h\"`"))?;
    if !input.peek(Token![=]) {
        if !Options::NAMES.contains(&&*name.to_string()) {
            return Err(unknown(&name));
        }
        let message = format!("option `{name}` has no value\nhelp: write `{name} = ..`");
        return Err(Error::new_spanned(name, message));
    }
    input.parse::<Token![=]>()?;
    Ok(Given {
        name,
        value: input.parse()?,
    })
}

fn unknown(name: &Ident) -> Error {
    let help = did_you_mean(&name.to_string(), "the options are", Options::NAMES);
    Error::new_spanned(name, format!("unknown option `{name}`\n{help}"))
}

fn separator(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
        return Ok(());
    }
    Err(input.error("expected `,` between two options"))
}

/// Leaves a faulty option behind, up to and including the next comma.
fn skip_option(input: ParseStream<'_>) -> syn::Result<()> {
    while !input.is_empty() {
        if input.parse::<Option<Token![,]>>()?.is_some() {
            break;
        }
        input.parse::<TokenTree>()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(arguments: &str) -> String {
        let mut errors = Errors::default();
        Options::parse(arguments.parse().unwrap(), &mut errors);
        errors
            .finish()
            .err()
            .map(|tokens| tokens.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn every_listed_option_has_a_slot() {
        for name in Options::NAMES {
            assert_eq!(faults(&format!("{name} = value")), "", "{name}");
        }
    }

    #[test]
    fn one_faulty_option_does_not_hide_the_next() {
        let faults =
            faults("scop = account, ttl, wait = , key = = x, timeout = \"1s\" header = \"X\", 5");
        for expected in [
            "unknown option `scop`",
            "option `ttl` has no value",
            "expected an expression",
            "expected `,` between two options",
            "expected an option",
        ] {
            assert!(faults.contains(expected), "{expected} is missing: {faults}");
        }
    }

    #[test]
    fn second_occurrence_is_the_fault_and_the_first_is_the_note() {
        let faults = faults("ttl = \"1h\", scope = a, ttl = \"2h\"");
        let (second, first) = (faults.find("given twice"), faults.find("first given here"));
        assert!(second.is_some() && second < first, "{faults}");
    }

    #[test]
    fn trailing_comma_and_generic_arguments_are_no_faults() {
        assert_eq!(
            faults("scope = owner::<A, B>(&account), authorize = may::<A, B>,"),
            ""
        );
    }

    #[test]
    fn body_is_not_parsed() {
        let item = "pub async fn pay(tx: &Tx) { this is (not) Rust ; }"
            .parse()
            .unwrap();
        assert!(handler(&item).unwrap().body.to_string().contains("not"));
    }
}
