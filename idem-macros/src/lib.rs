//! Entry points.
mod derive;
mod duration;
mod errors;
mod expand;
mod model;
mod parse;

use proc_macro::TokenStream;
use quote::quote;

/// Attribute.
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    guard(arguments.into(), &item.into()).into()
}

/// Replaces the handler, or reports what is wrong and leaves it as it is.
fn guard(
    arguments: proc_macro2::TokenStream,
    item: &proc_macro2::TokenStream,
) -> proc_macro2::TokenStream {
    let mut errors = errors::Errors::default();
    let options = parse::Options::parse(arguments, &mut errors);
    let handler = errors.check(parse::handler(item));
    let endpoint = model::Endpoint::check(&options, handler.as_ref(), &mut errors);
    let expansion = endpoint.as_ref().map(expand::expand);
    match errors.finish() {
        Ok(()) => quote!(#expansion),
        Err(errors) => quote!(#errors #item),
    }
}

/// Derive.
#[proc_macro_derive(ScopeKey, attributes(scope))]
pub fn derive_scope_key(item: TokenStream) -> TokenStream {
    derive::scope_key(&syn::parse_macro_input!(item as syn::DeriveInput)).into()
}
