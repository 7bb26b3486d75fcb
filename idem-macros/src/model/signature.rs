//! The rules for the function below the attribute: its qualifiers, parameters and attributes.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Error, FnArg, GenericArgument, GenericParam, Meta, Pat, PatIdent, PatType, Path,
    PathArguments, Safety, Signature, Token, Type, TypeImplTrait, TypeReference,
};

use crate::errors::{Errors, with_note};
use crate::parse::{Handler, is_ours};

/// The parameters, told apart: what extractors fill and what the runtime supplies.
pub(super) struct Parameters<'a> {
    pub(super) extractors: Vec<Extractor<'a>>,
    pub(super) transaction: Option<Transaction<'a>>,
}

/// A parameter taken from the request.
pub(crate) struct Extractor<'a> {
    pub(crate) pattern: &'a Pat,
    pub(crate) ty: &'a Type,
}

/// The reference parameter.
pub(crate) struct Transaction<'a> {
    pattern: &'a Pat,
    pub(crate) ty: &'a TypeReference,
    /// How many extractors stand before it.
    pub(crate) position: usize,
}

impl<'a> Parameters<'a> {
    /// Applies every rule that needs the function alone.
    pub(super) fn check(handler: &'a Handler, errors: &mut Errors) -> Self {
        let signature = &handler.signature;
        qualifiers(signature, errors);
        generics(signature, errors);
        for attribute in &handler.attributes {
            errors.check(attribute_may_stand_below(attribute, signature));
        }
        let mut extractors = Vec::new();
        let mut transaction: Option<Transaction<'_>> = None;
        for input in &signature.inputs {
            let Some(parameter) = errors.check(typed(input)) else {
                continue;
            };
            parameter_attributes(parameter, errors);
            errors.check(without_impl_trait(parameter));
            match (reference(&parameter.ty), &transaction) {
                (None, _) => extractors.push(Extractor {
                    pattern: &parameter.pat,
                    ty: &parameter.ty,
                }),
                (Some(second), Some(first)) => errors.add(second_reference(second, first.ty)),
                (Some(ty), None) => {
                    errors.check(lifetime_is_elided(ty));
                    transaction = Some(Transaction {
                        pattern: &parameter.pat,
                        ty,
                        position: extractors.len(),
                    });
                }
            }
        }
        if transaction.is_none() {
            errors.add(missing_transaction(signature, &extractors));
        }
        few_enough(&extractors, errors);
        Self {
            extractors,
            transaction,
        }
    }

    /// The names that the extractors' patterns bind.
    pub(super) fn bindings(&self) -> Vec<Ident> {
        self.extractors
            .iter()
            .flat_map(|extractor| bindings(extractor.pattern))
            .collect()
    }

    /// The names that the transaction's pattern binds.
    pub(super) fn transaction_bindings(&self) -> Vec<Ident> {
        self.transaction
            .iter()
            .flat_map(|transaction| bindings(transaction.pattern))
            .collect()
    }
}

impl Extractor<'_> {
    /// Finds the pool in a type that looks like a second way into the database: the `P` of
    /// `web::Data<P>`, where its name ends with `Pool`.
    pub(crate) fn pool(&self) -> Option<&Ident> {
        let data = last_segment(self.ty).filter(|segment| segment.ident == "Data")?;
        let PathArguments::AngleBracketed(arguments) = &data.arguments else {
            return None;
        };
        let GenericArgument::Type(inner) = arguments.args.first()? else {
            return None;
        };
        let name = &last_segment(inner)?.ident;
        name.to_string().ends_with("Pool").then_some(name)
    }
}

fn bindings(pattern: &Pat) -> Vec<Ident> {
    struct Bindings(Vec<Ident>);
    impl Visit<'_> for Bindings {
        fn visit_pat_ident(&mut self, pattern: &PatIdent) {
            self.0.push(pattern.ident.clone());
            visit::visit_pat_ident(self, pattern);
        }
    }
    let mut found = Bindings(Vec::new());
    found.visit_pat(pattern);
    found.0
}

fn qualifiers(signature: &Signature, errors: &mut Errors) {
    if signature.asyncness.is_none() {
        let name = &signature.ident;
        errors.at(
            signature.fn_token,
            format!("a handler is async\nhelp: write `async fn {name}(..)`"),
        );
    }
    if let Some(constness) = &signature.constness {
        errors.at(
            constness,
            "a handler cannot be `const`\nhelp: remove `const`",
        );
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        errors.at(
            unsafety,
            "a handler cannot be `unsafe`: actix calls it\nhelp: remove `unsafe`",
        );
    }
    if let Some(abi) = &signature.abi {
        errors.at(abi, "a handler cannot be `extern`\nhelp: remove `extern`");
    }
    if let Some(variadic) = &signature.variadic {
        errors.at(
            variadic,
            "a handler cannot be variadic\nhelp: name each parameter",
        );
    }
}

fn generics(signature: &Signature, errors: &mut Errors) {
    for parameter in &signature.generics.params {
        if let GenericParam::Lifetime(lifetime) = parameter {
            errors.at(
                lifetime,
                "a handler has no lifetime parameters: extractors own what they hold\n\
                 help: leave the lifetime out, as in `tx: &Tx`",
            );
        }
    }
}

/// Attributes that neither see nor change the function, so that they may stand anywhere.
const INERT: [&str; 13] = [
    "doc",
    "cfg",
    "cfg_attr",
    "allow",
    "warn",
    "deny",
    "forbid",
    "expect",
    "deprecated",
    "must_use",
    "inline",
    "cold",
    "track_caller",
];

/// Tools whose attributes the compiler ignores.
const TOOLS: [&str; 3] = ["clippy", "diagnostic", "rustfmt"];

fn attribute_may_stand_below(attribute: &Attribute, signature: &Signature) -> syn::Result<()> {
    if attribute.path().is_ident("cfg_attr") {
        let Ok(conditional) =
            attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
        else {
            return Ok(());
        };
        return conditional
            .iter()
            .skip(1)
            .try_for_each(|meta| may_stand_below(meta.path(), meta, signature));
    }
    may_stand_below(attribute.path(), attribute, signature)
}

fn may_stand_below(path: &Path, tokens: impl ToTokens, signature: &Signature) -> syn::Result<()> {
    let name = path
        .segments
        .iter()
        .map(|segment| segment.ident.to_string())
        .collect::<Vec<_>>()
        .join("::");
    let tool = path
        .segments
        .first()
        .filter(|_| path.segments.len() > 1)
        .map(|segment| segment.ident.to_string());
    if INERT.contains(&&*name) || tool.is_some_and(|tool| TOOLS.contains(&&*tool)) {
        return Ok(());
    }
    let message = if is_ours(path) {
        "`#[idempotent]` stands above this handler already\nhelp: keep one of the two".to_owned()
    } else {
        format!(
            "`#[{name}]` must stand above `#[idempotent]`: it needs to see the handler as you wrote it\n\
             help: write\n\
             \x20   #[{name}(..)]\n\
             \x20   #[idempotent(..)]\n\
             \x20   async fn {}(..)",
            signature.ident,
        )
    };
    Err(Error::new_spanned(tokens, message))
}

fn typed(input: &FnArg) -> syn::Result<&PatType> {
    match input {
        FnArg::Typed(parameter) => Ok(parameter),
        FnArg::Receiver(receiver) => Err(Error::new_spanned(
            receiver,
            "a handler has no `self`: actix calls it without a value\n\
             help: make it a function, and take what it needs as `web::Data<..>`",
        )),
    }
}

fn parameter_attributes(parameter: &PatType, errors: &mut Errors) {
    for attribute in &parameter.attrs {
        if attribute.path().is_ident("cfg") || attribute.path().is_ident("cfg_attr") {
            errors.at(
                attribute,
                "a handler's parameters cannot be conditional\nhelp: write two handlers, each with its own `#[cfg(..)]`",
            );
        }
    }
}

fn without_impl_trait(parameter: &PatType) -> syn::Result<()> {
    struct Found<'a>(Option<&'a TypeImplTrait>);
    impl<'a> Visit<'a> for Found<'a> {
        fn visit_type_impl_trait(&mut self, ty: &'a TypeImplTrait) {
            self.0.get_or_insert(ty);
        }
    }
    let mut found = Found(None);
    found.visit_type(&parameter.ty);
    let Some(ty) = found.0 else { return Ok(()) };
    Err(Error::new_spanned(
        ty,
        "a parameter's type needs a name here\n\
         help: make it a generic parameter: `<T: .. + 'static>`",
    ))
}

/// Looks through the invisible groups that macros leave around types.
fn reference(ty: &Type) -> Option<&TypeReference> {
    match ty {
        Type::Reference(reference) => Some(reference),
        Type::Group(group) => reference(&group.elem),
        Type::Paren(paren) => reference(&paren.elem),
        _ => None,
    }
}

fn second_reference(second: &TypeReference, first: &TypeReference) -> Error {
    with_note(
        second,
        "only one parameter is a reference: the transaction\nhelp: take what comes from the request by value",
        first,
        "the transaction is this one",
    )
}

fn lifetime_is_elided(ty: &TypeReference) -> syn::Result<()> {
    match &ty.lifetime {
        Some(lifetime) if lifetime.ident != "_" => Err(Error::new_spanned(
            lifetime,
            "the transaction lives as long as the runtime says\nhelp: leave the lifetime out, as in `tx: &Tx`",
        )),
        _ => Ok(()),
    }
}

/// What the transactions that handlers are lent are called, and how they are lent.
const LENT: &[(&str, &str)] = &[
    ("Tx", "&Tx"),
    ("PgConnection", "&mut PgConnection"),
    ("SqliteConnection", "&mut SqliteConnection"),
    ("Transaction", "&mut Transaction<'_, _>"),
];

fn missing_transaction(signature: &Signature, extractors: &[Extractor<'_>]) -> Error {
    let by_value = extractors.iter().find_map(|extractor| {
        let segment = last_segment(extractor.ty)?;
        let (_, lent) = LENT.iter().find(|(name, _)| segment.ident == name)?;
        Some((extractor.ty, lent))
    });
    if let Some((ty, lent)) = by_value {
        return Error::new_spanned(
            ty,
            format!(
                "a handler is lent its transaction, which the runtime ends\nhelp: write `{lent}`"
            ),
        );
    }
    let name = &signature.ident;
    let others = if signature.inputs.is_empty() {
        ""
    } else {
        ".., "
    };
    Error::new_spanned(
        name,
        format!(
            "handler `{name}` has no transaction parameter: its writes would commit on their own\n\
             help: write `async fn {name}({others}tx: &Tx)`, or `_tx: &Tx` if it writes nothing",
        ),
    )
}

/// As many as actix extracts into one tuple.
const MAX_EXTRACTORS: usize = 16;

fn few_enough(extractors: &[Extractor<'_>], errors: &mut Errors) {
    if let Some(extractor) = extractors.get(MAX_EXTRACTORS) {
        errors.at(
            extractor.ty,
            format!("actix extracts at most {MAX_EXTRACTORS} parameters\nhelp: take several of them as one tuple"),
        );
    }
}

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}
