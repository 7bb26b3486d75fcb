//! Turns a valid endpoint into the code that replaces it; nothing can fail here.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Expr, GenericParam, Lifetime, Pat, PatIdent, Path, ReturnType, Type, TypeReference, parse_quote,
};

use crate::model::{Endpoint, Extractor, Fingerprint, KeySource, Parameters, Scope, Settings};

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
//         P::run::<Args, &'static Tx, _, _, _, _>(
//             &__IDEM_POLICY,
//             __idem_request,
//             __idem_payload,
//             |(account, web::Json(form)): &Args| P::scope(&(&account.tenant, &account.user)),
//             |(account, web::Json(form)): &Args| P::key(&form.request_id),
//             async |(__idem_0, __idem_1): &Args| P::authorized(may_pay(__idem_0, __idem_1).await),
//             async |(__idem_0, __idem_1): Args, __idem_tx: &Tx, __idem_request: &P::HttpRequest| {
//                 P::respond(create_payment(__idem_0, __idem_1, __idem_tx).await, __idem_request)
//             },
//         )
//         .await
//     }
//
// The inner function keeps the user's body under the user's own signature. Closures need their
// parameter types spelled out. `P::respond` inside the last closure, and not behind it, lets a handler
// return an `impl Responder` that borrows from its arguments.
pub(crate) fn expand(endpoint: &Endpoint<'_>) -> TokenStream {
    let Endpoint {
        settings,
        parameters,
        handler,
    } = endpoint;
    let private = private(&settings.krate);
    let (attributes, visibility) = (&handler.attributes, &handler.visibility);
    let (signature, body) = (&handler.signature, &handler.body);
    let name = &signature.ident;
    let (generics, where_clause) = (&signature.generics, &signature.generics.where_clause);

    let warnings = pool_warnings(parameters);
    let policy = policy(settings, name, &private);
    let arguments = tuple(parameters.extractors.iter().map(|extractor| extractor.ty));
    let transaction = everywhere_static(parameters.transaction.ty);
    let scope = scope(settings, parameters, &private);
    let key = key(settings, parameters, &private);
    let authorize = authorize(settings, parameters, &private);
    let call = call(endpoint, &private);

    quote! {
        #(#attributes)*
        #visibility async fn #name #generics (
            __idem_request: #private::HttpRequest,
            __idem_payload: #private::Payload,
        ) -> #private::HttpResponse #where_clause {
            #signature #body
            #warnings
            static __IDEM_POLICY: #private::Policy = #policy;
            #private::run::<#arguments, #transaction, _, _, _, _>(
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
}

/// The one module that generated code names.
fn private(krate: &Path) -> TokenStream {
    quote!(#krate::__private)
}

/// Builds the constant policy; what the user did not write keeps the runtime's default.
fn policy(settings: &Settings<'_>, name: &Ident, private: &TokenStream) -> TokenStream {
    let label = Literal::string(&name.to_string());
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

fn scope(
    settings: &Settings<'_>,
    parameters: &Parameters<'_>,
    private: &TokenStream,
) -> TokenStream {
    match &settings.scope {
        Scope::Global => {
            let arguments = tuple(parameters.extractors.iter().map(|extractor| extractor.ty));
            quote!(|_: &#arguments| #private::global_scope())
        }
        Scope::Of(expression) => {
            let borrowed = borrow(expression);
            let value = quote_spanned!(at(expression)=> #private::scope(#borrowed));
            reading_closure(&parameters.extractors, &value)
        }
    }
}

fn key(settings: &Settings<'_>, parameters: &Parameters<'_>, private: &TokenStream) -> TokenStream {
    match &settings.key {
        KeySource::Header { .. } => quote!(#private::key_in_header),
        KeySource::Request(expression) => {
            let borrowed = borrow(expression);
            let value = quote_spanned!(at(expression)=> #private::key(#borrowed));
            reading_closure(&parameters.extractors, &value)
        }
    }
}

fn authorize(
    settings: &Settings<'_>,
    parameters: &Parameters<'_>,
    private: &TokenStream,
) -> TokenStream {
    let Some(path) = settings.authorize else {
        return quote!(#private::everyone);
    };
    let (names, types) = numbered(&parameters.extractors);
    let (names_list, types) = (tuple(&names), tuple(types));
    let verdict = quote_spanned!(at(path)=> #private::authorized(#path(#(#names),*).await));
    quote!(async |#names_list: &#types| #verdict)
}

/// Calls the user's function with the arguments in the order of its parameters.
fn call(endpoint: &Endpoint<'_>, private: &TokenStream) -> TokenStream {
    let Endpoint {
        parameters,
        handler,
        ..
    } = endpoint;
    let name = &handler.signature.ident;
    let turbofish = turbofish(&handler.signature.generics.params);
    let (names, types) = numbered(&parameters.extractors);
    let (names_list, types) = (tuple(&names), tuple(types));
    let mut arguments = names;
    arguments.insert(
        parameters.transaction.position,
        Ident::new("__idem_tx", Span::call_site()),
    );
    let transaction = static_inside(parameters.transaction.ty);
    let output = match &handler.signature.output {
        ReturnType::Default => at(name),
        ReturnType::Type(_, ty) => at(ty),
    };
    let answer = quote_spanned! {output=>
        #private::respond(#name #turbofish (#(#arguments),*).await, __idem_request)
    };
    quote! {
        async |#names_list: #types, __idem_tx: #transaction, __idem_request: &#private::HttpRequest| #answer
    }
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
fn reading_closure(extractors: &[Extractor<'_>], value: &TokenStream) -> TokenStream {
    let patterns = tuple(
        extractors
            .iter()
            .map(|extractor| borrowing(extractor.pattern)),
    );
    let types = tuple(extractors.iter().map(|extractor| extractor.ty));
    quote!(#[allow(unused_variables)] |#patterns: &#types| #value)
}

/// Borrows an expression so that nothing moves out of the parameters; of a tuple, each element.
fn borrow(expression: &Expr) -> TokenStream {
    match expression {
        Expr::Paren(inner) => borrow(&inner.expr),
        Expr::Group(inner) => borrow(&inner.expr),
        Expr::Reference(_) => expression.to_token_stream(),
        Expr::Tuple(elements) => {
            let elements = tuple(elements.elems.iter().map(borrow));
            quote_spanned!(at(expression)=> &#elements)
        }
        _ => {
            // A syntax tree, not tokens: it adds the parentheses that `a + b` needs.
            let mut reference: syn::ExprReference = parse_quote!(&());
            *reference.expr = expression.clone();
            reference.and_token.span = at(expression);
            reference.to_token_stream()
        }
    }
}

/// The pattern as it must stand behind a reference: without `mut`, `ref` and `ref mut`.
fn borrowing(pattern: &Pat) -> Pat {
    struct Plain;
    impl VisitMut for Plain {
        fn visit_pat_ident_mut(&mut self, pattern: &mut PatIdent) {
            pattern.by_ref = None;
            pattern.mutability = None;
            visit_mut::visit_pat_ident_mut(self, pattern);
        }
    }
    let mut pattern = pattern.clone();
    Plain.visit_pat_mut(&mut pattern);
    pattern
}

/// Replaces every elided lifetime by `'static`, as an argument of `run` needs it.
fn everywhere_static(reference: &TypeReference) -> TypeReference {
    struct Static;
    impl VisitMut for Static {
        fn visit_lifetime_mut(&mut self, lifetime: &mut Lifetime) {
            if lifetime.ident == "_" {
                *lifetime = Lifetime::new("'static", lifetime.span());
            }
        }
        fn visit_type_reference_mut(&mut self, reference: &mut TypeReference) {
            let span = reference.and_token.span;
            reference
                .lifetime
                .get_or_insert_with(|| Lifetime::new("'static", span));
            visit_mut::visit_type_reference_mut(self, reference);
        }
    }
    let mut reference = reference.clone();
    Static.visit_type_reference_mut(&mut reference);
    reference
}

/// The same, but the reference itself stays as short as one call.
fn static_inside(reference: &TypeReference) -> TypeReference {
    TypeReference {
        lifetime: None,
        ..everywhere_static(reference)
    }
}

/// Makes the compiler warn about a pool among the parameters: a deprecated item, used at the user's type.
fn pool_warnings(parameters: &Parameters<'_>) -> TokenStream {
    let uses: TokenStream = parameters
        .pools()
        .map(|ty| {
            let name = Ident::new("pool_beside_the_transaction", ty.span());
            quote!(const _: () = #name();)
        })
        .collect();
    if uses.is_empty() {
        return uses;
    }
    quote! {
        #[deprecated(note = "what is written through this pool is not part of the handler's transaction; use the supplied one")]
        const fn pool_beside_the_transaction() {}
        #uses
    }
}

/// One name for each extracted value, and their types.
fn numbered<'a>(extractors: &[Extractor<'a>]) -> (Vec<Ident>, Vec<&'a Type>) {
    extractors
        .iter()
        .enumerate()
        .map(|(index, extractor)| (format_ident!("__idem_{index}"), extractor.ty))
        .unzip()
}

/// A tuple also of one element.
fn tuple<T: ToTokens>(elements: impl IntoIterator<Item = T>) -> TokenStream {
    let elements = elements.into_iter();
    quote!((#(#elements,)*))
}

/// The place of the user's tokens, for generated tokens whose errors belong there. Lints still know
/// that nobody wrote them.
fn at(tokens: &impl syn::spanned::Spanned) -> Span {
    Span::call_site().located_at(tokens.span())
}
