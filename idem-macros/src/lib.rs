//! Entry points.
mod derive;
mod duration;
mod errors;
mod expand;
mod model;
mod parse;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;
use quote::quote;

use self::errors::Errors;
use self::model::Endpoint;
use self::parse::Options;

/// Attribute.
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    guard(arguments.into(), &item.into()).into()
}

/// Replaces the handler. With faults, they are reported and something that compiles takes its place.
fn guard(arguments: TokenStream2, item: &TokenStream2) -> TokenStream2 {
    let mut errors = Errors::default();
    let options = Options::parse(arguments, &mut errors);
    let handler = errors.check(parse::handler(item));
    let endpoint = Endpoint::check(&options, handler.as_ref(), &mut errors);
    let expansion = endpoint.as_ref().map(expand::expand);
    let Err(errors) = errors.finish() else {
        return expansion.unwrap_or_default();
    };
    match handler {
        Some(handler) if handler.signature.receiver().is_none() => {
            let stand_in = expand::stand_in(handler, &model::krate(&options));
            quote!(#errors #stand_in)
        }
        _ => quote!(#errors #item),
    }
}

/// Derive.
#[proc_macro_derive(ScopeKey, attributes(scope))]
pub fn derive_scope_key(item: TokenStream) -> TokenStream {
    derive::scope_key(&syn::parse_macro_input!(item as syn::DeriveInput)).into()
}
