//! Turns a valid endpoint into the code that replaces it; nothing can fail here.

mod rewrite;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{GenericParam, Path, ReturnType};

use self::rewrite::{at, at_span, borrow, borrowing, everywhere_static, located, tuple};
use crate::model::{Endpoint, Extractor, Fingerprint, KeySource, Scope};
use crate::parse::{Handler, is_ours};

// Input:
//
//     #[idempotent(scope = (account.tenant, account.user), key = form.request_id, authorize = may_pay, ttl = "24h")]
//     pub async fn create_payment(
//         mut account: Account,
//         web::Json(form): web::Json<NewPayment>,
//         tx: &Tx,
//     ) -> Result<HttpResponse, PaymentError> {
//         /* body */
//     }
//
// Output, with `P` for `::idem_runtime::__private` and `Args` for `(Account, web::Json<NewPayment>)`:
//
//     pub async fn create_payment(
//         __idem_request: P::HttpRequest,
//         __idem_payload: P::Payload,
//     ) -> P::HttpResponse {
//         async fn create_payment(
//             mut account: Account,
//             web::Json(form): web::Json<NewPayment>,
//             tx: &Tx,
//         ) -> Result<HttpResponse, PaymentError> {
//             /* body */
//         }
//         static __IDEM_POLICY: P::Policy = P::Policy::new(
//             ::core::concat!(::core::module_path!(), "::", "create_payment"),
//             ::core::concat!(::core::file!(), ":", ::core::line!()),
//         )
//         .ttl(86_400_000)
//         .key_from_request();
//         P::register!(&__IDEM_POLICY);
//         P::run::<Args, &'static Tx, _>(
//             &__IDEM_POLICY,
//             __idem_request,
//             __idem_payload,
//             |(account, web::Json(form))| P::scope(&(&account.tenant, &account.user)),
//             |(account, web::Json(form))| P::key(&form.request_id),
//             |(__idem_0, __idem_1)| {
//                 P::boxed(async move { P::authorized(may_pay(__idem_0, __idem_1).await) })
//             },
//             |(__idem_0, __idem_1), __idem_tx, __idem_request| {
//                 P::boxed(async move {
//                     P::respond(create_payment(__idem_0, __idem_1, __idem_tx).await, __idem_request)
//                 })
//             },
//         )
//         .await
//     }
//
// The inner function keeps the user's body under the user's own signature. The closures capture
// nothing, and `run` knows their types, as function pointers all but the last: that costs the
// compiler less than generic ones, and handlers with the same parameters share all that lies behind
// `run`. The last would need `Tx` to be a transaction for its type alone, and a wrong one would be
// three errors. `P::respond` inside the last closure, and not behind it, lets a handler return an
// `impl Responder` that borrows from its arguments.
pub(crate) fn expand(endpoint: &Endpoint<'_>) -> TokenStream {
    let private = private(&endpoint.settings.krate);
    let (warnings, policy) = (pool_warnings(endpoint), policy(endpoint));
    let run = run(endpoint);
    let content = quote! {
        #warnings
        static __IDEM_POLICY: #private::Policy = #policy;
        #private::register!(&__IDEM_POLICY);
        #run
    };
    shell(endpoint.handler, &private, &content)
}

/// Stands in for a handler with faults. It has the shape of a good one, so that registering it with
/// actix is not a second error, and holds the user's function, so that editors keep working.
pub(crate) fn stand_in(mut handler: Handler, krate: &Path) -> TokenStream {
    handler
        .attributes
        .retain(|attribute| !is_ours(attribute.path()));
    let shell = shell(&handler, &private(krate), &quote!(::core::unreachable!()));
    quote!(#[allow(dead_code)] #shell)
}

/// What actix calls, around the user's function.
fn shell(handler: &Handler, private: &TokenStream, content: &TokenStream) -> TokenStream {
    let Handler {
        attributes,
        visibility,
        signature,
        body,
    } = handler;
    let name = &signature.ident;
    let (generics, where_clause) = (&signature.generics, &signature.generics.where_clause);
    quote! {
        #(#attributes)*
        #visibility async fn #name #generics (
            __idem_request: #private::HttpRequest,
            __idem_payload: #private::Payload,
        ) -> #private::HttpResponse #where_clause {
            #signature #body
            #content
        }
    }
}

/// The one module that generated code names.
fn private(krate: &Path) -> TokenStream {
    quote!(#krate::__private)
}

/// Calls the runtime. All tokens of the call stand at the parameters, so that an error about their
/// types is reported there, and once.
fn run(endpoint: &Endpoint<'_>) -> TokenStream {
    let place = at_span(endpoint.handler.signature.paren_token.span.join());
    let private = located(private(&endpoint.settings.krate), place);
    let types = located(types(endpoint), place);
    let transaction = everywhere_static(endpoint.transaction.ty).into_token_stream();
    let transaction = located(transaction, place);
    let (scope, key) = (scope(endpoint), key(endpoint));
    let (authorize, call) = (authorize(endpoint), call(endpoint));
    quote_spanned! {place=>
        #private::run::<#types, #transaction, _>(
            &__IDEM_POLICY,
            __idem_request,
            __idem_payload,
            #scope,
            #key,
            #authorize,
            #call,
        )
        .await
    }
}

/// What is extracted, as one tuple type.
fn types(endpoint: &Endpoint<'_>) -> TokenStream {
    tuple(endpoint.extractors.iter().map(|extractor| extractor.ty))
}

/// One name for each extracted value, independent of the user's pattern.
fn names(endpoint: &Endpoint<'_>) -> Vec<Ident> {
    let extractors = endpoint.extractors.iter().enumerate();
    extractors
        .map(|(index, extractor)| format_ident!("__idem_{index}", span = at(extractor.ty)))
        .collect()
}

/// Builds the constant policy; what the user did not write keeps the runtime's default.
fn policy(endpoint: &Endpoint<'_>) -> TokenStream {
    let (settings, name) = (&endpoint.settings, &endpoint.handler.signature.ident);
    let private = private(&endpoint.settings.krate);
    let label = Literal::string(&name.unraw().to_string());
    let location =
        quote_spanned!(name.span()=> ::core::concat!(::core::file!(), ":", ::core::line!()));
    let mut policy = quote! {
        #private::Policy::new(::core::concat!(::core::module_path!(), "::", #label), #location)
    };
    let mut option = |method: &str, argument: TokenStream| {
        let method = Ident::new(method, Span::call_site());
        policy.extend(quote!(.#method(#argument)));
    };
    let quantities = [
        ("ttl", settings.ttl),
        ("wait", settings.wait),
        ("timeout", settings.timeout),
        ("max_body", settings.max_body),
        ("max_response", settings.max_response),
    ];
    for (method, quantity) in quantities {
        if let Some(quantity) = quantity {
            option(method, Literal::u64_unsuffixed(quantity).to_token_stream());
        }
    }
    for (method, text) in [
        ("operation", &settings.operation),
        ("header", &settings.header),
    ] {
        if let Some(text) = text {
            option(method, text.to_token_stream());
        }
    }
    if matches!(endpoint.scope, Scope::Global) {
        option("global", TokenStream::new());
    }
    match settings.key {
        KeySource::Header { optional: false } => {}
        KeySource::Header { optional: true } => option("optional_key", TokenStream::new()),
        KeySource::Request(_) => option("key_from_request", TokenStream::new()),
    }
    for (method, statuses) in [
        ("commit_on", &settings.commit_on),
        ("release_on", &settings.release_on),
    ] {
        if !statuses.is_empty() {
            let statuses = statuses.iter().copied().map(Literal::u16_unsuffixed);
            option(method, quote!(&[#(#statuses),*]));
        }
    }
    if let Some(level) = &settings.isolation {
        option("isolation", quote!(#private::Isolation::#level));
    }
    match &settings.fingerprint {
        None => {}
        Some(Fingerprint::Raw) => option("fingerprint", quote!(#private::Fingerprinting::Raw)),
        Some(Fingerprint::Custom(path)) => {
            option(
                "fingerprint",
                quote_spanned!(at(path)=> #private::Fingerprinting::Custom(#path)),
            );
        }
    }
    policy
}

fn scope(endpoint: &Endpoint<'_>) -> TokenStream {
    let private = private(&endpoint.settings.krate);
    match endpoint.scope {
        Scope::Global => quote!(|_| #private::global_scope()),
        Scope::Of(expression) => {
            let borrowed = borrow(expression);
            let value = quote_spanned!(at(expression)=> #private::scope(#borrowed));
            reading_closure(endpoint, &value)
        }
    }
}

fn key(endpoint: &Endpoint<'_>) -> TokenStream {
    let private = private(&endpoint.settings.krate);
    match endpoint.settings.key {
        KeySource::Header { .. } => quote!(#private::key_in_header),
        KeySource::Request(expression) => {
            let borrowed = borrow(expression);
            let value = quote_spanned!(at(expression)=> #private::key(#borrowed));
            reading_closure(endpoint, &value)
        }
    }
}

fn authorize(endpoint: &Endpoint<'_>) -> TokenStream {
    let private = private(&endpoint.settings.krate);
    let Some(path) = endpoint.settings.authorize else {
        return quote!(#private::everyone);
    };
    let names = names(endpoint);
    let pattern = tuple(&names);
    let verdict = quote_spanned!(at(path)=> #private::authorized(#path(#(#names),*).await));
    quote!(|#pattern| #private::boxed(async move { #verdict }))
}

/// Calls the user's function with the arguments in the order of its parameters.
fn call(endpoint: &Endpoint<'_>) -> TokenStream {
    let private = private(&endpoint.settings.krate);
    let signature = &endpoint.handler.signature;
    let name = &signature.ident;
    let turbofish = turbofish(&signature.generics.params);
    let mut arguments = names(endpoint);
    let pattern = tuple(&arguments);
    arguments.insert(
        endpoint.transaction.position,
        format_ident!("__idem_tx", span = at(endpoint.transaction.ty)),
    );
    let output = match &signature.output {
        ReturnType::Default => at(name),
        ReturnType::Type(_, ty) => at(ty),
    };
    let answer = quote_spanned! {output=>
        #private::respond(#name #turbofish (#(#arguments),*).await, __idem_request)
    };
    quote!(|#pattern, __idem_tx, __idem_request| #private::boxed(async move { #answer }))
}

fn turbofish<'a>(parameters: impl IntoIterator<Item = &'a GenericParam>) -> Option<TokenStream> {
    let names: Vec<&Ident> = parameters
        .into_iter()
        .filter_map(|parameter| match parameter {
            GenericParam::Type(parameter) => Some(&parameter.ident),
            GenericParam::Const(parameter) => Some(&parameter.ident),
            GenericParam::Lifetime(_) => None,
        })
        .collect();
    (!names.is_empty()).then(|| quote!(::<#(#names),*>))
}

/// A closure that reads the extracted values under the names the user gave them.
fn reading_closure(endpoint: &Endpoint<'_>, value: &TokenStream) -> TokenStream {
    let patterns = tuple(
        endpoint
            .extractors
            .iter()
            .map(|extractor| borrowing(extractor.pattern)),
    );
    quote!(#[allow(unused_variables)] |#patterns| #value)
}

/// Makes the compiler warn about a pool among the parameters: a deprecated item, used at its type.
fn pool_warnings(endpoint: &Endpoint<'_>) -> TokenStream {
    let pools = endpoint.extractors.iter().filter_map(Extractor::pool);
    let uses: TokenStream = pools
        .map(|pool| {
            let name = Ident::new("pool_beside_the_transaction", pool.span());
            quote!(const _: () = #name();)
        })
        .collect();
    if uses.is_empty() {
        return uses;
    }
    quote! {
        #[deprecated(note = "what it writes is not part of the handler's transaction")]
        const fn pool_beside_the_transaction() {}
        #uses
    }
}

#[cfg(test)]
mod tests;
